/* stats.c: one snapshot of everything that is counted. */
#include <weir/stats.h>

#include <errno.h>
#include <string.h>

#include "net/net.h"
#include "os/clock.h"
#include "runtime_private.h"
#include "stats_text.h"

static uint64_t get(_Atomic uint64_t *counter)
{
    return atomic_load_explicit(counter, memory_order_relaxed);
}

static void add_pump(weir_stats *all, struct wr_pump *pump)
{
    all->kicks += get(&pump->kicks);
    all->slices_expired += get(&pump->slices_expired);
}

static void add_poller(weir_stats *all, struct wr_poller *poller)
{
    all->waits += get(&poller->waits);
    all->events += get(&poller->harvested);
    all->stale_drops += get(&poller->stale_drops);
    all->sync_wakes += get(&poller->sync_wakes);
    all->doorbells += get(&poller->doorbells);
    all->timers_expired += get(&poller->timers_expired);
    all->poll_errors += get(&poller->poll_errors);
    all->pushes += get(&poller->pushes);
    add_pump(all, &poller->pump);
    all->inline_turns += get(&poller->inline_turns);
}

static void add_receive(weir_stats *all, struct wr_poller *poller)
{
    struct wr_poll_receive_stats part;

    poller->ops->receive_stats(poller->backend, &part);
    all->recv_buffers += part.buffers;
    all->recv_buffers_out += part.out;
    all->recv_starved += part.starved;
    all->recv_handed_over += part.handed_over;
    all->recv_rearmed += part.rearmed;
}

static void add_pool(weir_stats *all, struct wr_pool *pool)
{
    struct wr_pool_stats part;

    wr_pool_stats_get(pool, &part);
    weir_time now = wr_clock_now();
    if (part.oldest_posted != WEIR_NEVER && part.oldest_posted > 0 && now > part.oldest_posted)
        all->queue_age_ns = (uint64_t)(now - part.oldest_posted);
    all->posts = part.posts;
    all->items_run = part.items_run;
    all->wakes = part.wakes;
    all->parks = part.parks;
    all->compensations = part.compensations;
    all->workers = part.workers;
    all->workers_blocked = part.blocked;
    all->workers_parked = part.parked;
    all->blocking_threads = part.blocking_threads;
    all->blocking_queued = part.blocking_queued;
}

static void add_settings(weir_stats *all, const struct wr_options *options)
{
    all->pollers_set = options->pollers;
    all->workers_set = options->workers;
    all->workers_max_set = options->workers_max;
    all->blocking_max_set = options->blocking_max;
    all->batch_set = options->batch;
    all->slice_us_set = options->slice_us;
    all->spin_us_set = options->spin_us;
    all->sources_max_set = options->sources_max;
    all->write_budget_set = options->write_budget == SIZE_MAX ? UINT64_MAX : options->write_budget;
}

int weir_stats_get(weir_runtime *runtime, weir_stats *stats)
{
    weir_stats all;

    if (!runtime || !stats || stats->size == 0)
        return -EINVAL;
    memset(&all, 0, sizeof all);
    for (unsigned i = 0; i < runtime->poller_count; i++)
        add_poller(&all, &runtime->pollers[i]);
    add_pump(&all, &runtime->turns.pump);
    for (unsigned i = 0; runtime->inbound_offset && i < runtime->poller_count; i++)
        add_receive(&all, &runtime->pollers[i]);
    add_pool(&all, runtime->pool);
    all.sources = atomic_load_explicit(&runtime->slots.live, memory_order_relaxed);
    all.turns = wr_shard_sum(runtime, WR_SHARD_TURNS);
    all.accepts = wr_counted(runtime, WR_COUNT_ACCEPTS);
    all.accept_errors = wr_counted(runtime, WR_COUNT_ACCEPT_ERRORS);
    all.bytes_received = wr_counted(runtime, WR_COUNT_RECEIVED);
    all.bytes_sent = wr_counted(runtime, WR_COUNT_SENT);
    all.write_pending = wr_counted_waiting(runtime);
    all.memory = atomic_load_explicit(&runtime->alloc.bytes, memory_order_relaxed);
    add_settings(&all, &((struct wr_runtime *)runtime)->options);

    size_t size = stats->size < sizeof all ? stats->size : sizeof all;
    all.size = stats->size;
    memcpy(stats, &all, size);
    return 0;
}

int weir_stats_format(weir_runtime *runtime, enum weir_stats_format format, char *buffer,
                      size_t size)
{
    weir_stats stats = {.size = sizeof stats};

    if (!runtime || (!buffer && size > 0))
        return -EINVAL;
    int r = weir_stats_get(runtime, &stats);
    return r < 0 ? r : wr_stats_print(&stats, format, buffer, size);
}
