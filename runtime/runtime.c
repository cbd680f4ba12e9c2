/* runtime.c: the order in which a runtime starts and stops; the only place that wires the layers.
 *
 * Start: settings, back end, pollers (no threads yet), counters, the pool with its threads, the
 * pollers' threads. Stop: nothing new is accepted; every source is reset and ends by turns on the
 * pool; when none is left, and no thread of the host in a waiting call, the deadlines are dropped
 * and the pollers joined; the pool runs what is posted and is joined; then memory is given back. A
 * half-started runtime is stopped by the same steps. */
#include <weir/runtime.h>

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include <weir/work.h>

#include "base/assert.h"
#include "dispatch/dispatch.h"
#include "dispatch/lease.h"
#include "dispatch/user_timer.h"
#include "net/net.h"
#include "options.h"
#include "os/clock.h"
#include "poll/backends.h"
#include "runtime_private.h"

/* How often destroy and drain go over the sources while some are left. */
#define SWEEP_NS 5000000

static struct wr_runtime *full(weir_runtime *runtime)
{
    return (struct wr_runtime *)runtime;
}

static void worker_stop(const char *name, void *context)
{
    weir_runtime *runtime = context;

    wr_net_thread_stop();
    wr_shard_give(runtime);
    if (runtime->thread_stop)
        runtime->thread_stop(name, runtime->thread_context);
}

static void worker_start(const char *name, void *context)
{
    weir_runtime *runtime = context;

    wr_shard_claim(runtime);
    if (runtime->thread_start)
        runtime->thread_start(name, runtime->thread_context);
}

/* A worker of ours is about to block. */
static void before_block(void *context)
{
    (void)context;
    wr_net_block_hook();
}

static int start_pool(weir_runtime *runtime, const struct wr_options *options)
{
    struct wr_pool_options pool = {
        .name = options->name,
        .workers = options->workers,
        .workers_max = options->workers_max,
        .blocking_max = options->blocking_max,
        .spin_us = options->spin_us,
        .stack_size = options->stack_size,
        .alloc = &runtime->alloc,
        .log = &runtime->log,
        .thread_start = worker_start,
        .thread_stop = worker_stop,
        .thread_context = runtime,
        .idle = options->poll == WEIR_POLL_LEASE ? &wr_lease_idle : NULL,
        .idle_context = runtime,
        .watch = wr_dispatch_watch,
        .watch_context = runtime,
    };
    int r = wr_pool_create(&runtime->pool, &pool);

    if (r == 0)
        wr_pool_set_block_hook(runtime->pool, before_block, runtime);
    return r;
}

static int start(weir_runtime *runtime, const struct wr_options *options,
                 const struct wr_poll_ops *ops)
{
    struct wr_dispatch_options dispatch = {
        .name = options->name,
        .pollers = options->pollers,
        .batch = options->batch,
        .slice_ns = (weir_time)options->slice_us * 1000,
        .sources_max = options->sources_max,
        .source_size = wr_net_source_size(),
        .stack_size = options->stack_size,
        .per_event = options->dispatch == WEIR_DISPATCH_PER_EVENT,
        .lease = options->poll == WEIR_POLL_LEASE,
        .recv_buffers = options->recv == WEIR_RECV_COMPLETION ? options->recv_buffers : 0,
        .inline_callbacks = options->inline_callbacks == WEIR_INLINE_ON,
        .ops = ops,
    };
    int r = wr_dispatch_init(runtime, &dispatch);

    wr_net_init(runtime);
    if (r == 0)
        r = start_pool(runtime, options);
    if (r == 0)
        r = wr_dispatch_start(runtime, &dispatch);
    return r;
}

/* Sources end; then threads; then memory. Copes with a runtime that started only in part. */
static void stop(weir_runtime *runtime)
{
    /* seq_cst: pairs with the loads in wr_source_open() and wr_dispatch_stopping() */
    atomic_store_explicit(&runtime->stopping, 1, memory_order_seq_cst);
    if (runtime->pool) {
        do
            wr_net_sweep(runtime, true);
        while (wr_dispatch_wait_empty(runtime, wr_clock_now() + SWEEP_NS) < 0);
        wr_dispatch_wait_left(runtime);
    }
    for (unsigned i = 0; i < runtime->poller_count; i++)
        wr_timers_close(&runtime->pollers[i].timers, wr_user_timer_drop);
    wr_dispatch_stop(runtime);
    if (runtime->pool) {
        wr_pool_refuse(runtime->pool);
        wr_pool_destroy(runtime->pool);
    }
    wr_dispatch_fini(runtime);
    struct wr_alloc alloc = runtime->alloc; /* outlives the memory it stands in; nobody counts */
    wr_alloc_release_lines(&alloc, full(runtime), sizeof(struct wr_runtime));
}

int weir_runtime_create(weir_runtime **ret_runtime, const weir_options *user)
{
    struct wr_options options;
    struct wr_alloc alloc;
    const struct wr_poll_ops *ops = NULL;
    char why[WR_WHY_MAX] = "";

    if (!ret_runtime)
        return -EINVAL;
    int saved = errno;
    int r = wr_options_resolve(&options, user);
    if (r < 0)
        goto out;
    r = wr_backend_choose(options.backend, &ops, why);
    if (r < 0) {
        wr_log(&options.log, WEIR_LOG_ERROR, "back end: %s", why);
        goto out;
    }
    if (options.recv == WEIR_RECV_COMPLETION && !wr_backend_receives(ops, why)) {
        wr_log(&options.log, WEIR_LOG_WARN, "back end %s: %s", ops->name, why);
        options.recv = WEIR_RECV_READINESS;
    }
    wr_alloc_init(&alloc, options.has_allocator ? &options.allocator : NULL);
    struct wr_runtime *made = wr_alloc_lines(&alloc, sizeof *made);
    if (!made) {
        r = -ENOMEM;
        goto out;
    }
    weir_runtime *runtime = &made->hub;
    runtime->alloc = alloc; /* it counts the runtime itself, too */
    runtime->log = options.log;
    runtime->pid = getpid();
    runtime->maker = __builtin_return_address(0);
    runtime->write_budget = options.write_budget;
    runtime->thread_start = options.thread_start;
    runtime->thread_stop = options.thread_stop;
    runtime->thread_context = options.thread_context;
    runtime->callbacks_end = wr_net_thread_stop;
    if (ops->owner_waits && options.poll == WEIR_POLL_LEASE) {
        wr_log(&options.log, WEIR_LOG_INFO,
               "%s is for one thread a poller: pollers are dedicated, not leased", ops->name);
        options.poll = WEIR_POLL_DEDICATED;
    }
    if (options.dispatch == WEIR_DISPATCH_PER_EVENT && options.inline_callbacks == WEIR_INLINE_ON) {
        wr_log(&options.log, WEIR_LOG_INFO,
               "per-event dispatch hands over each event: callbacks are not inline");
        options.inline_callbacks = WEIR_INLINE_OFF;
    }
    made->options = options;
    made->backend = ops->name;
    memcpy(made->why, why, sizeof why);
    r = start(runtime, &made->options, ops);
    if (r < 0) {
        wr_log(&options.log, WEIR_LOG_ERROR, "the runtime cannot start (errno %d)", -r);
        stop(runtime);
        goto out;
    }
    wr_log(&options.log, WEIR_LOG_INFO, "back end %s: %s", ops->name, why);
    *ret_runtime = runtime;
out:
    errno = saved;
    return r;
}

static void leave_it(void *memory, size_t size, void *context)
{
    (void)memory;
    (void)size;
    (void)context;
}

/* In the child of a fork there are none of our threads: only the descriptors are closed. The epoll
 * set is shared with the parent and must not be changed; what the parent's threads held stays as it
 * is: half changed, perhaps, and the lock of the host's allocator might be among it. So no memory
 * is given back. */
static void forget(weir_runtime *runtime)
{
    runtime->alloc.source.release = leave_it;
    wr_net_forget(runtime);
    wr_dispatch_forget(runtime);
}

void weir_runtime_destroy(weir_runtime *runtime)
{
    if (!runtime)
        return;
    int saved = errno;
    if (getpid() != runtime->pid)
        forget(runtime);
    else if (wr_pool_is_worker(runtime->pool))
        wr_log(&runtime->log, WEIR_LOG_ERROR,
               "weir_runtime_destroy was called from a callback; ignored");
    else
        stop(runtime);
    errno = saved;
}

int weir_runtime_drain(weir_runtime *runtime, weir_time deadline)
{
    if (!runtime)
        return -EINVAL;
    if (wr_pool_is_worker(runtime->pool))
        return -EDEADLK;

    /* release: pairs with the acquire loads in listen, connect and adopt */
    atomic_store_explicit(&runtime->draining, 1, memory_order_release);
    unsigned left;
    while ((left = wr_net_sweep(runtime, false)) > 0) {
        weir_time now = wr_clock_now(), until = wr_clock_add(now, SWEEP_NS);
        if (now >= deadline) {
            wr_log(&runtime->log, WEIR_LOG_INFO, "drain: %u sockets are left at the deadline",
                   left);
            return -ETIME;
        }
        wr_dispatch_wait_empty(runtime, until < deadline ? until : deadline);
    }
    return 0;
}

const char *weir_runtime_backend(const weir_runtime *runtime, const char **ret_why)
{
    if (!runtime)
        return NULL;
    const struct wr_runtime *made = (const struct wr_runtime *)runtime;
    if (ret_why)
        *ret_why = made->why;
    return made->backend;
}

int weir_post(weir_runtime *runtime, weir_work *work)
{
    return runtime && work ? wr_pool_post(runtime->pool, work) : -EINVAL;
}

int weir_post_blocking(weir_runtime *runtime, weir_work *work)
{
    return runtime && work ? wr_pool_post_blocking(runtime->pool, work) : -EINVAL;
}
