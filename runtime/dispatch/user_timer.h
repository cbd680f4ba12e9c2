/* user_timer.h: what destroy needs to know of the timers of weir/timer.h. */
#ifndef WR_DISPATCH_USER_TIMER_H
#define WR_DISPATCH_USER_TIMER_H

#include <weir/base.h>

/* For wr_timers_close(): when `deadline` is that of a weir_timer, the timer is disarmed, silently,
 * and will not touch the runtime again; other deadlines are left alone.
 *
 * The order at destroy: refuse (wr_dispatch_stopping), close the timers of every poller, join the
 * pollers, let the pool run what is posted and join it, then give memory back. After that a
 * weir_timer knows itself idle: weir_timer_cancel() and weir_timer_fini() look at nothing but the
 * timer. */
void wr_user_timer_drop(struct weir_deadline_ *deadline);

#endif
