/* lease.c: polling as a lease that idle workers take, and the guarantor that makes it safe.
 *
 * THE PROTOCOL, for one poller
 *
 * lease   FREE, WAITING, WORKING, GUARD; `polls` counts how often a worker gave it back.
 * guard   the guarantor's futex word: AWAKE, or ASLEEP without a deadline.
 *
 *   take     idle worker   FREE -> WAITING, or it parks; if the guarantor has it: `wanted` <- 1 and
 *                          the doorbell, then it parks
 *   wait     that worker   published as idle (a post that finds nobody parked rings the doorbell),
 *                          it sleeps in the kernel until an event, a deadline or the doorbell
 *   finish   that worker   no longer idle: WAITING -> WORKING; guarantor ASLEEP: wake it. Deliver:
 *                          one source is kept, the others pushed, the pump kicked; polls + 1; ->
 *                          FREE; only then the kept source's turn, which may block for ever
 *   tick     guarantor     AWAKE: looks every TICK_NS. FREE and `polls` as at the look before:
 *                          nobody has polled for a tick. Wake a parked worker, which will take the
 *                          lease; nobody is parked: FREE -> GUARD and poll, until `wanted`
 *   sleep    guarantor     WAITING and `polls` as before, no watch over the pool: ASLEEP; look
 *                          again: not WAITING: AWAKE
 *
 * Why an event is never left alone longer than two ticks (D1, W1): somebody polls while the lease
 * is WAITING, WORKING (which ends without a callback) or GUARD. In FREE the guarantor is awake: it
 * went to sleep only after it had seen WAITING once more behind its own ASLEEP; finish moves the
 * lease first and looks at `guard` second, both sequentially consistent, so that one of the two
 * sees the other. Why nothing is lost between two holders: the set of watched descriptors is in the
 * kernel, an edge that nobody harvested stays there, and the lease's moves (release to acquire)
 * hand over everything else. What finish pushed is covered by the pump kicked before the lease is
 * given back. */
#include "dispatch/lease.h"

#include "base/assert.h"
#include "dispatch/dispatch.h"
#include "dispatch/harvest.h"
#include "dispatch/hub.h"
#include "os/clock.h"
#include "os/futex.h"

/* How often the guarantor looks while nobody waits in the kernel. */
#define TICK_NS 1000000

enum { AWAKE = 0, ASLEEP = 1 };

void wr_guard_wake(struct wr_poller *poller)
{
    /* seq_cst: pairs with the exchange to ASLEEP in guard_sleep() */
    if (atomic_exchange_explicit(&poller->guard, AWAKE, memory_order_seq_cst) == ASLEEP)
        wr_futex_wake(&poller->guard, 1);
}

/* ---- the worker's side --------------------------------------------------------------------- */

static bool try_take(struct wr_poller *poller, enum wr_lease_state state)
{
    uint32_t free = WR_LEASE_FREE;

    /* seq_cst: pairs with the release store of the holder before, and with guard_sleep() */
    return atomic_load_explicit(&poller->lease, memory_order_relaxed) == WR_LEASE_FREE &&
           atomic_compare_exchange_strong_explicit(&poller->lease, &free, state,
                                                   memory_order_seq_cst, memory_order_relaxed);
}

static int idle_take(void *context)
{
    weir_runtime *runtime = context;
    unsigned first = wr_dispatch_shard(runtime);

    for (unsigned i = 0; i < runtime->poller_count; i++) {
        unsigned index = (first + i) % runtime->poller_count;
        if (try_take(&runtime->pollers[index], WR_LEASE_WAITING))
            return (int)index;
    }
    for (unsigned i = 0; i < runtime->poller_count; i++) {
        struct wr_poller *poller = &runtime->pollers[i];
        if (atomic_load_explicit(&poller->lease, memory_order_relaxed) == WR_LEASE_GUARD &&
            !atomic_exchange_explicit(&poller->lease_wanted, 1, memory_order_relaxed))
            wr_poller_doorbell(poller);
    }
    return -1;
}

static int idle_wait(void *context, int lease)
{
    weir_runtime *runtime = context;
    return wr_harvest_wait(&runtime->pollers[lease], WEIR_NEVER);
}

static void *idle_finish(void *context, int lease, int count)
{
    weir_runtime *runtime = context;
    struct wr_poller *poller = &runtime->pollers[lease];
    struct wr_source *kept = NULL;

    /* seq_cst, both: pair with the exchange and the load in guard_sleep() */
    atomic_store_explicit(&poller->lease, WR_LEASE_WORKING, memory_order_seq_cst);
    if (atomic_load_explicit(&poller->guard, memory_order_seq_cst) == ASLEEP)
        wr_guard_wake(poller);
    wr_harvest_deliver(poller, count, &kept);
    atomic_fetch_add_explicit(&poller->polls, 1, memory_order_relaxed);
    /* release: pairs with the acquire of the next holder in try_take() */
    atomic_store_explicit(&poller->lease, WR_LEASE_FREE, memory_order_release);
    return kept;
}

static void idle_run(void *context, void *item)
{
    (void)context;
    wr_source_run(item);
}

static void idle_wake(void *context, int lease)
{
    weir_runtime *runtime = context;
    wr_poller_doorbell(&runtime->pollers[lease]);
}

const struct wr_pool_idle wr_lease_idle = {
    .take = idle_take, .wait = idle_wait, .finish = idle_finish, .run = idle_run, .wake = idle_wake,
};

void wr_lease_blocking(weir_runtime *runtime)
{
    for (unsigned i = 0; i < runtime->poller_count; i++) {
        struct wr_poller *poller = &runtime->pollers[i];
        if (atomic_load_explicit(&poller->lease, memory_order_relaxed) == WR_LEASE_FREE) {
            wr_pool_wake(runtime->pool); /* nobody is parked: the block itself starts a worker */
            return;
        }
    }
}

/* ---- the guarantor's side ------------------------------------------------------------------ */

static bool stopping(struct wr_poller *poller)
{
    /* acquire: pairs with the release store in wr_dispatch_stop() */
    return atomic_load_explicit(&poller->stop, memory_order_acquire);
}

/* All workers are in callbacks: poll for them until one is idle. */
static void take_over(struct wr_poller *poller)
{
    if (wr_pool_wake(poller->runtime->pool) || !try_take(poller, WR_LEASE_GUARD))
        return;
    wr_pool_name_stuck(poller->runtime->pool);
    while (!stopping(poller) &&
           !atomic_load_explicit(&poller->lease_wanted, memory_order_relaxed)) {
        weir_time until = wr_harvest_watch(poller);
        wr_harvest_deliver(poller, wr_harvest_wait(poller, until), NULL);
    }
    atomic_store_explicit(&poller->lease_wanted, 0, memory_order_relaxed);
    /* release: pairs with the acquire of the next holder in try_take() */
    atomic_store_explicit(&poller->lease, WR_LEASE_FREE, memory_order_release);
    wr_pool_wake(poller->runtime->pool);
}

/* A worker waits in the kernel: it will wake us when it leaves. */
static void guard_sleep(struct wr_poller *poller)
{
    /* seq_cst, both: pair with the store of WORKING and the load of `guard` in idle_finish() */
    atomic_exchange_explicit(&poller->guard, ASLEEP, memory_order_seq_cst);
    if (atomic_load_explicit(&poller->lease, memory_order_seq_cst) == WR_LEASE_WAITING &&
        !stopping(poller) && !atomic_load_explicit(&poller->tick_wanted, memory_order_relaxed))
        wr_futex_wait(&poller->guard, ASLEEP, WEIR_NEVER);
    atomic_store_explicit(&poller->guard, AWAKE, memory_order_relaxed);
}

void *wr_guard_main(void *argument)
{
    struct wr_poller *poller = argument;
    weir_runtime *runtime = poller->runtime;
    uint32_t seen = 0;

    if (runtime->thread_start)
        runtime->thread_start(poller->thread.name, runtime->thread_context);
    while (!stopping(poller)) {
        bool watching = wr_harvest_watch(poller) != WEIR_NEVER;
        uint32_t polls = atomic_load_explicit(&poller->polls, memory_order_relaxed);
        uint32_t lease = atomic_load_explicit(&poller->lease, memory_order_relaxed);
        if (polls == seen && lease == WR_LEASE_WAITING && !watching) {
            guard_sleep(poller);
            continue;
        }
        if (polls == seen && lease == WR_LEASE_FREE)
            take_over(poller);
        seen = polls;
        wr_futex_wait(&poller->guard, AWAKE, wr_clock_now() + TICK_NS);
    }
    if (runtime->thread_stop)
        runtime->thread_stop(poller->thread.name, runtime->thread_context);
    return NULL;
}
