/* harvest.c: what a poller does: wait, expire deadlines, deliver events, kick the pump once.
 *
 * D7: it runs no user code, takes only locks that are held for a few instructions, allocates
 * nothing, comes back to waiting after at most `batch` events and WR_EXPIRE_MAX deadlines, and
 * survives any errno. */
#include "dispatch/harvest.h"

#include <errno.h>

#include "base/assert.h"
#include "os/clock.h"
#include "os/futex.h"

/* After a wait call that failed: how long the poller stays away, so that an error that stays does
 * not spin. */
#define ERROR_PAUSE_NS 10000000
/* More than the coarse clock lags behind, which is a tick: 10 ms at the most. */
#define COARSE_LAG_NS 50000000

static void pause_after_error(struct wr_poller *poller, int error)
{
    if (atomic_fetch_add_explicit(&poller->poll_errors, 1, memory_order_relaxed) == 0)
        wr_log(&poller->runtime->log, WEIR_LOG_ERROR,
               "poller %u: waiting for events failed (errno %d); it goes on", poller->index,
               -error);
    wr_futex_wait(&poller->stop, 0, wr_clock_now() + ERROR_PAUSE_NS);
}

/* Most often the first deadline is seconds away, and a clock that lags by a tick or two tells. */
static void expire(struct wr_poller *poller)
{
    if (wr_clock_coarse() < poller->next - COARSE_LAG_NS) {
        wr_timers_awake(&poller->timers);
        return;
    }
    unsigned expired = wr_timers_expire(&poller->timers, wr_clock_now(), WR_EXPIRE_MAX);
    wr_poller_count(&poller->timers_expired, expired);
}

int wr_harvest_wait(struct wr_poller *poller, weir_time until)
{
    weir_time next = wr_timers_sleep(&poller->timers);

    poller->next = next;
    int count = poller->ops->wait(poller->backend, poller->events, poller->runtime->batch,
                                  next < until ? next : until);
    wr_poller_count(&poller->waits, 1);
    return count;
}

unsigned wr_harvest_collect(struct wr_poller *poller, int count, struct wr_source **ret_kept)
{
    weir_runtime *runtime = poller->runtime;
    unsigned pushed = 0;

    if (count < 0)
        pause_after_error(poller, count);
    if (poller->next != WEIR_NEVER)
        expire(poller);
    for (int i = 0; i < count; i++) {
        struct wr_source *source;
        const struct wr_poll_event *event = &poller->events[i];
        if (!wr_source_event(poller, event->token, event->bits, &source))
            continue;
        if (ret_kept && !*ret_kept) {
            *ret_kept = source;
        } else if (runtime->work_offset) {
            wr_dispatch_post_turn(runtime, source);
        } else {
            bool room = wr_ready_push(poller->ready, source);
            WR_ASSERT(room);
            (void)room;
            pushed++;
        }
    }
    if (count > 0)
        wr_poller_count(&poller->harvested, (unsigned)count);
    if (pushed > 0)
        wr_poller_count(&poller->pushes, pushed);
    return pushed;
}

void wr_harvest_deliver(struct wr_poller *poller, int count, struct wr_source **ret_kept)
{
    if (wr_harvest_collect(poller, count, ret_kept) > 0)
        wr_pump_kick(&poller->pump);
}

weir_time wr_harvest_watch(struct wr_poller *poller)
{
    /* seq_cst, both: pair with the store in wr_dispatch_watch(), and with the move to GUARD that
     * came before this look, if one did. Taken before the tick, so that a request that comes while
     * the pool says "nothing waits" is found next time */
    if (atomic_load_explicit(&poller->tick_wanted, memory_order_seq_cst) &&
        atomic_exchange_explicit(&poller->tick_wanted, 0, memory_order_seq_cst)) {
        if (!poller->ticking)
            poller->next_tick = wr_clock_now() + WR_POOL_TICK_NS;
        poller->ticking = true;
    }
    if (!poller->ticking)
        return WEIR_NEVER;
    weir_time now = wr_clock_now();
    if (now >= poller->next_tick) {
        poller->next_tick = now + WR_POOL_TICK_NS;
        poller->ticking = wr_pool_tick(poller->runtime->pool, now);
    }
    return poller->ticking ? poller->next_tick : WEIR_NEVER;
}
