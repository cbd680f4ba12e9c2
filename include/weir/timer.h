/* timer.h: one-shot and periodic timers, embedded by the caller. */
#ifndef WEIR_TIMER_H
#define WEIR_TIMER_H

#include <weir/base.h>
#include <weir/work.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct weir_timer weir_timer;

/**
 * Runs on a worker, never early, never twice at once for one timer.
 * @param missed  periods that passed without a call since the call before (fixed rate only; else
 * 0).
 */
typedef void weir_timer_fn(weir_timer *timer, uint64_t missed, void *context);

enum weir_timer_mode {
    WEIR_TIMER_ONCE = 0,    /* `period` is ignored */
    WEIR_TIMER_RATE = 1,    /* first, first + period, ...; missed ones are counted, not queued */
    WEIR_TIMER_DELAY = 2    /* `period` after the callback has returned */
};

/**
 * A timer. The fields are the library's; the memory must stay until weir_timer_fini(). The
 * runtime's destroy disarms silently; after it only cancel and fini are legal: they look at nothing
 * but the timer then.
 */
struct weir_timer {
    struct weir_deadline_ deadline_;
    weir_work work_;
    weir_runtime *runtime_;
    weir_timer_fn *run_;
    void *context_;
    weir_time first_;
    weir_time period_;
    uint64_t missed_;
    uint32_t mode_;
    uint32_t state_;
    uint32_t again_;
    uint32_t shard_;
};

/**
 * Make `timer` ready to be set. It is not armed.
 * Threads: any.   Blocks: no.   Owner: the caller.
 */
WEIR_API void weir_timer_init(weir_timer *timer, weir_runtime *runtime, weir_timer_fn *run,
                              void *context);

/**
 * Arm, or arm anew: the old setting is forgotten unless its callback is running already. Legal from
 * the callback itself. Moving an armed timer to a later time costs no system call.
 * @param first   absolute; a time that has passed means as soon as possible, after the work posted
 * before.
 * @param period  nanoseconds, > 0 for RATE and DELAY.
 * @return 0; -EINVAL NULL, a period that is not positive, an unknown mode, first == WEIR_NEVER;
 *         -ESHUTDOWN the runtime is being destroyed, or weir_timer_fini() has begun.
 * Threads: any, also callbacks.   Blocks: no.
 */
WEIR_API int weir_timer_set(weir_timer *timer, weir_time first, weir_time period,
                            enum weir_timer_mode mode);

/**
 * Disarm.
 * @return 0 the callback will not run (again); -EALREADY it is running, is about to, or ran: there
 * is
 *         nothing to disarm. A periodic timer whose callback is running is not armed again; -EINVAL
 *         NULL.
 * Threads: any, also callbacks.   Blocks: no.
 */
WEIR_API int weir_timer_cancel(weir_timer *timer);

/**
 * Disarm and wait until the callback is not running: after this the memory is the caller's and the
 * callback cannot run. From the timer's own callback it disarms and does not wait; then the memory
 * must stay until that callback has returned.
 * Threads: any.   Blocks: while the callback runs.
 */
WEIR_API void weir_timer_fini(weir_timer *timer);

#ifdef __cplusplus
}
#endif

#endif
