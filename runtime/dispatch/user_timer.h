/* user_timer.h: what destroy and tests need to know of the timers of weir/timer.h. */
#ifndef WR_DISPATCH_USER_TIMER_H
#define WR_DISPATCH_USER_TIMER_H

#include <weir/base.h>

/* Where a test may let something happen in between, to replay a race. */
enum wr_timer_seam {
    WR_TIMER_SEAM_DUE,          /* run() has seen DUE and is about to begin the callback */
    WR_TIMER_SEAM_REVOKED,      /* run() has seen that nothing is due and is about to leave */
    WR_TIMER_SEAM_LAST_MOVE     /* end_call() has looked and is about to leave */
};

#ifdef WEIR_FAULTS
/* Set by tests before any thread runs; NULL: nothing. */
extern void (*wr_timer_seam_hook)(enum wr_timer_seam seam);
#define WR_TIMER_SEAM(seam) (wr_timer_seam_hook ? wr_timer_seam_hook(seam) : (void)0)
#else
#define WR_TIMER_SEAM(seam) ((void)(seam))
#endif

/* For wr_timers_close(): when `deadline` is that of a weir_timer, the timer is disarmed, silently,
 * and will not touch the runtime again; other deadlines are left alone.
 *
 * The order at destroy: refuse (wr_dispatch_stopping), close the timers of every poller, join the
 * pollers, let the pool run what is posted and join it, then give memory back. After that a
 * weir_timer knows itself idle: weir_timer_cancel() and weir_timer_fini() look at nothing but the
 * timer. */
void wr_user_timer_drop(struct weir_deadline_ *deadline);

#endif
