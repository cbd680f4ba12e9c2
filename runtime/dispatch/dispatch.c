/* dispatch.c: the hub: making, starting and stopping of pollers; what the layers above ask of it.
 */
#include "dispatch/dispatch.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "dispatch/hub.h"
#include "dispatch/inline.h"
#include "dispatch/lease.h"
#include "dispatch/watch.h"
#include "os/alarm.h"
#include "os/clock.h"
#include "os/futex.h"
#include "os/keep.h"

static bool pump_pop(struct wr_pump *pump, void **ret_item)
{
    struct wr_poller *poller = pump->context;
    return wr_ready_pop(poller->ready, ret_item);
}

static bool pump_more(struct wr_pump *pump)
{
    struct wr_poller *poller = pump->context;
    return wr_ready_size(poller->ready) > 0;
}

static void pump_handle(struct wr_pump *pump, void *item)
{
    (void)pump;
    wr_source_run(item);
}

static void pump_post(struct wr_pump *pump, weir_work *work)
{
    struct wr_poller *poller = pump->context;
    wr_pool_post_own(poller->runtime->pool, work);
}

static const struct wr_pump_ops pump_ops = {
    .pop = pump_pop,
    .more = pump_more,
    .handle = pump_handle,
    .post = pump_post,
    .now = wr_clock_now,
};

static int init_poller(struct wr_poller *poller, weir_runtime *runtime,
                       const struct wr_dispatch_options *options)
{
    poller->runtime = runtime;
    poller->index = (unsigned)(poller - runtime->pollers);
    poller->alarm = -1;
    wr_timers_init(&poller->timers);
    wr_pump_init(&poller->pump, &pump_ops, options->slice_ns, poller);
    poller->events = wr_alloc_zero(&runtime->alloc, options->batch * sizeof *poller->events);
    if (!poller->events)
        return -ENOMEM;
    int r = wr_ready_create(&poller->ready, &runtime->alloc, options->sources_max);
    if (r < 0)
        return r;
    r = options->ops->open(&poller->backend, &runtime->alloc, options->batch);
    if (r < 0)
        return r;
    poller->ops = options->ops;
    if (options->lease) {
        poller->alarm = wr_alarm_open();
        if (poller->alarm < 0)
            wr_log(&runtime->log, WEIR_LOG_INFO,
                   "poller %u: no timer (errno %d): its thread ticks while there is load",
                   poller->index, -poller->alarm);
    }
    return options->recv_buffers > 0 ? poller->ops->provide(poller->backend, options->recv_buffers)
                                     : 0;
}

int wr_dispatch_init(weir_runtime *runtime, const struct wr_dispatch_options *options)
{
    runtime->batch = options->batch;
    runtime->lease = options->lease;
    runtime->inline_callbacks = options->inline_callbacks;
    runtime->inline_dedicated = options->inline_callbacks && !options->lease;
    runtime->turn[WR_KIND_WATCH] = wr_watch_turn;
    size_t size = (options->source_size + sizeof(void *) - 1) & ~(sizeof(void *) - 1);
    if (options->per_event) {
        runtime->work_offset = size;
        size += sizeof(weir_work);
    }
    if (options->recv_buffers > 0) {
        runtime->inbound_offset = size;
        size += sizeof(struct wr_inbound *);
    }
    int r = wr_slots_init(&runtime->slots, &runtime->alloc, size, options->sources_max);
    if (r == 0)
        r = wr_shards_init(runtime);
    if (r == 0)
        r = wr_turns_init(&runtime->turns, runtime, options->slice_ns);
    if (r < 0)
        return r;
    runtime->pollers = wr_alloc_lines(&runtime->alloc, options->pollers * sizeof *runtime->pollers);
    if (!runtime->pollers)
        return -ENOMEM;
    runtime->poller_count = options->pollers;
    for (unsigned i = 0; i < options->pollers && r == 0; i++)
        r = init_poller(&runtime->pollers[i], runtime, options);
    return r;
}

/* The first poller's thread lives as long as the runtime, so it keeps our code, and that of whoever
 * made the runtime, from being unloaded. */
static void *poller_main(void *argument)
{
    struct wr_poller *poller = argument;
    weir_runtime *runtime = poller->runtime;

    if (poller->index == 0) {
        wr_keep_loaded((const void *)(uintptr_t)&poller_main);
        if (runtime->maker)
            wr_keep_loaded(runtime->maker);
        /* release: pairs with the acquire load in await_kept() */
        atomic_store_explicit(&runtime->kept, 1, memory_order_release);
        wr_futex_wake(&runtime->kept, 1);
    }
    return runtime->lease ? wr_guard_main(poller) : wr_poller_main(poller);
}

/* Whoever is told that the runtime is there may unload the library at once. */
static void await_kept(weir_runtime *runtime)
{
    /* acquire: pairs with the release store in poller_main() */
    while (!atomic_load_explicit(&runtime->kept, memory_order_acquire))
        wr_futex_wait(&runtime->kept, 0, WEIR_NEVER);
}

static void guest_blocks(void *poller)
{
    wr_inline_spill(poller);
}

static int start_poller(struct wr_poller *poller, const char *name, size_t stack_size)
{
    weir_runtime *runtime = poller->runtime;
    int r = 0;

    if (runtime->inline_dedicated)
        r = wr_pool_guest_add(runtime->pool, name, guest_blocks, poller, &poller->guest);
    if (r == 0)
        r = wr_thread_start(&poller->thread, name, stack_size, poller_main, poller);
    poller->running = r == 0;
    return r;
}

int wr_dispatch_start(weir_runtime *runtime, const struct wr_dispatch_options *options)
{
    char name[WR_THREAD_NAME_MAX];
    int r = 0;

    for (unsigned i = 0; i < runtime->poller_count && r == 0; i++) {
        snprintf(name, sizeof name, "%.8s-p%u", options->name, i % 1000u);
        r = start_poller(&runtime->pollers[i], name, options->stack_size);
    }
    if (r == 0 && runtime->inline_dedicated) {
        snprintf(name, sizeof name, "%.8s-dog", options->name);
        r = wr_watchdog_start(&runtime->watchdog, runtime, name, options->stack_size);
    }
    if (r == 0)
        await_kept(runtime);
    return r;
}

static void stop_poller(struct wr_poller *poller)
{
    /* release: pairs with the acquire load in wr_poller_main() */
    atomic_store_explicit(&poller->stop, 1, memory_order_release);
    wr_futex_wake(&poller->stop, 1);
    if (poller->runtime->lease)
        wr_guard_wake(poller);
    wr_poller_doorbell(poller);
    wr_thread_join(&poller->thread);
    poller->running = false;
}

void wr_dispatch_stop(weir_runtime *runtime)
{
    for (unsigned i = 0; i < runtime->poller_count; i++) {
        if (runtime->pollers[i].running)
            stop_poller(&runtime->pollers[i]);
    }
    /* Behind them: one may end in a callback that waits for the pool. */
    wr_watchdog_stop(&runtime->watchdog);
    for (unsigned i = 0; i < runtime->poller_count; i++) {
        wr_pool_guest_remove(runtime->pollers[i].guest);
        runtime->pollers[i].guest = NULL;
    }
}

void wr_dispatch_forget(weir_runtime *runtime)
{
    for (unsigned i = 0; i < runtime->poller_count; i++) {
        struct wr_poller *poller = &runtime->pollers[i];
        if (!poller->ops)
            continue;
        poller->ops->close(poller->backend);
        wr_alarm_close(poller->alarm);
    }
}

void wr_dispatch_fini(weir_runtime *runtime)
{
    wr_dispatch_forget(runtime);
    for (unsigned i = 0; i < runtime->poller_count; i++) {
        struct wr_poller *poller = &runtime->pollers[i];
        wr_ready_destroy(poller->ready);
        wr_alloc_release(&runtime->alloc, poller->events, runtime->batch * sizeof *poller->events);
    }
    wr_alloc_release_lines(&runtime->alloc, runtime->pollers,
                           runtime->poller_count * sizeof *runtime->pollers);
    runtime->pollers = NULL;
    runtime->poller_count = 0;
    wr_turns_fini(&runtime->turns);
    wr_shards_fini(runtime);
    wr_slots_fini(&runtime->slots);
}

static void run_posted(weir_work *work, void *source)
{
    (void)work;
    wr_source_run(source);
}

void wr_dispatch_post_turn(weir_runtime *runtime, struct wr_source *source)
{
    if (runtime->work_offset == 0) {
        wr_turns_post(&runtime->turns, source);
        return;
    }
    weir_work *work = (weir_work *)(void *)((char *)source + runtime->work_offset);
    weir_work_init(work, run_posted, source);   /* LINKED: nobody else has to do with it */
    wr_pool_post_own(runtime->pool, work);
}

int wr_dispatch_wait_empty(weir_runtime *runtime, weir_time deadline)
{
    for (;;) {
        /* seq_cst: an acquire that pairs with the release in wr_slots_give(); and, after the store
         * of `stopping`, with the increment in wr_slots_take(): see wr_source_open() */
        uint32_t live = atomic_load_explicit(&runtime->slots.live, memory_order_seq_cst);
        if (live == 0)
            return 0;
        if (wr_futex_wait(&runtime->slots.live, live, deadline) == -ETIMEDOUT)
            return -ETIMEDOUT;
    }
}

void wr_poller_doorbell(struct wr_poller *poller)
{
    atomic_fetch_add_explicit(&poller->doorbells, 1, memory_order_relaxed);
    poller->ops->doorbell(poller->backend);
}

void wr_poller_deadline(struct wr_poller *poller, struct weir_deadline_ *deadline, weir_time when)
{
    if (wr_timers_set(&poller->timers, deadline, when))
        wr_poller_doorbell(poller);
}

void wr_dispatch_watch(void *context)
{
    weir_runtime *runtime = context;
    struct wr_poller *poller = &runtime->pollers[0];

    /* seq_cst: pairs with the looks in wr_harvest_watch(), and with the load below as there */
    atomic_store_explicit(&poller->tick_wanted, 1, memory_order_seq_cst);
    if (runtime->inline_dedicated) {
        wr_watchdog_call(&runtime->watchdog);
        return;
    }
    if (!runtime->lease) {
        wr_poller_doorbell(poller);
        return;
    }
    wr_guard_wake(poller);
    /* seq_cst: pairs with the move to GUARD in move_lease(): either it is seen here, or the look
     * that follows it sees the request */
    uint32_t lease = atomic_load_explicit(&poller->lease, memory_order_seq_cst);
    if (lease == WR_LEASE_GUARD || lease == WR_LEASE_WANTED)
        wr_poller_doorbell(poller);
}

/* ---- hub.h: what timers need of us --------------------------------------------------- */

struct wr_timers *wr_dispatch_timers(weir_runtime *runtime, uint32_t shard)
{
    WR_ASSERT(shard < runtime->poller_count);
    return &runtime->pollers[shard].timers;
}

void wr_dispatch_doorbell(weir_runtime *runtime, uint32_t shard)
{
    wr_poller_doorbell(&runtime->pollers[shard]);
}

uint32_t wr_dispatch_shard(weir_runtime *runtime)
{
    return (uint32_t)wr_thread_id() % runtime->poller_count;
}

struct wr_pool *wr_dispatch_pool(weir_runtime *runtime)
{
    return runtime->pool;
}

int wr_dispatch_sleep(weir_runtime *runtime, _Atomic uint32_t *word, uint32_t seen,
                      weir_time deadline)
{
    int r;

    if (wr_inline_sleep(runtime, word, seen, deadline, &r))
        return r;
    wr_pool_blocking_begin();
    r = wr_futex_wait(word, seen, deadline);
    wr_pool_blocking_end();
    return r;
}

void wr_dispatch_wake(weir_runtime *runtime, _Atomic uint32_t *word)
{
    wr_futex_wake(word, INT_MAX);
    wr_inline_wake(runtime);
}

bool wr_dispatch_stopping(const weir_runtime *runtime)
{
    /* acquire: pairs with the release store in destroy */
    return atomic_load_explicit(&runtime->stopping, memory_order_acquire);
}
