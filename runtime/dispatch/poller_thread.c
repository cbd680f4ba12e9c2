/* poller_thread.c: what a poller does: wait, expire deadlines, deliver events, kick the pump once.
 *
 * D7: it runs no user code, takes only locks that are held for a few instructions, allocates
 * nothing, comes back to waiting after at most `batch` events and WR_EXPIRE_MAX deadlines, and
 * survives any errno.
 *
 * A poller that was asked to watch over the pool (tick_wanted) also wakes every WR_POOL_TICK_NS
 * while work is waiting, and lets the pool replace workers that do not come back. */
#include <errno.h>

#include "base/assert.h"
#include "dispatch/dispatch.h"
#include "os/clock.h"
#include "os/futex.h"

/* After a wait call that failed: how long the poller stays away, so that an error that stays does
 * not spin. */
#define ERROR_PAUSE_NS 10000000

static void deliver(struct wr_poller *poller, unsigned count)
{
    weir_runtime *runtime = poller->runtime;
    unsigned pushed = 0;

    for (unsigned i = 0; i < count; i++) {
        struct wr_source *source;
        if (!wr_source_event(poller, poller->events[i].token, poller->events[i].bits, &source))
            continue;
        if (runtime->per_event) {
            wr_pool_post_own(runtime->pool, &source->work);
            continue;
        }
        bool room = wr_ready_push(poller->ready, source);
        WR_ASSERT(room);
        (void)room;
        pushed++;
    }
    if (pushed > 0) {
        atomic_fetch_add_explicit(&poller->pushes, pushed, memory_order_relaxed);
        wr_pump_kick(&poller->pump);
    }
}

static void watch_pool(struct wr_poller *poller)
{
    /* acq_rel: pairs with the release in wr_dispatch_watch(); taken before the tick, so that a
     * request that comes while the pool says "nothing waits" is found next time */
    if (atomic_load_explicit(&poller->tick_wanted, memory_order_relaxed) &&
        atomic_exchange_explicit(&poller->tick_wanted, 0, memory_order_acq_rel)) {
        if (!poller->ticking)
            poller->next_tick = wr_clock_now() + WR_POOL_TICK_NS;
        poller->ticking = true;
    }
    if (!poller->ticking)
        return;
    weir_time now = wr_clock_now();
    if (now < poller->next_tick)
        return;
    poller->next_tick = now + WR_POOL_TICK_NS;
    poller->ticking = wr_pool_tick(poller->runtime->pool, now);
}

static void pause_after_error(struct wr_poller *poller, int error)
{
    if (atomic_fetch_add_explicit(&poller->poll_errors, 1, memory_order_relaxed) == 0)
        wr_log(&poller->runtime->log, WEIR_LOG_ERROR,
               "poller %u: waiting for events failed (errno %d); it goes on", poller->index,
               -error);
    wr_futex_wait(&poller->stop, 0, wr_clock_now() + ERROR_PAUSE_NS);
}

void *wr_poller_main(void *argument)
{
    struct wr_poller *poller = argument;
    weir_runtime *runtime = poller->runtime;

    if (runtime->thread_start)
        runtime->thread_start(poller->thread.name, runtime->thread_context);
    /* acquire: pairs with the release store in wr_dispatch_stop() */
    while (!atomic_load_explicit(&poller->stop, memory_order_acquire)) {
        watch_pool(poller);
        weir_time until = wr_timers_sleep(&poller->timers);
        if (poller->ticking && poller->next_tick < until)
            until = poller->next_tick;
        int count = poller->ops->wait(poller->backend, poller->events, runtime->batch, until);
        atomic_fetch_add_explicit(&poller->waits, 1, memory_order_relaxed);
        if (count < 0)
            pause_after_error(poller, count);
        if (until != WEIR_NEVER) {
            unsigned expired = wr_timers_expire(&poller->timers, wr_clock_now(), WR_EXPIRE_MAX);
            atomic_fetch_add_explicit(&poller->timers_expired, expired, memory_order_relaxed);
        }
        if (count > 0) {
            atomic_fetch_add_explicit(&poller->harvested, (unsigned)count, memory_order_relaxed);
            deliver(poller, (unsigned)count);
        }
    }
    if (runtime->thread_stop)
        runtime->thread_stop(poller->thread.name, runtime->thread_context);
    return NULL;
}
