/* worker.c: the threads of both lanes: start, the loop of an I/O worker, running an item, end.
 *
 * A thread's life, all counts under its lane's lock:
 *   counted    threads, starting, living + 1           by who wants it
 *   created    starting - 1                            by who wants it; failed: all three - 1
 *   leaving    threads - 1, its place is free          by itself, in the section that decides it
 *   gone       living - 1, in `gone`                   by itself, in its last section
 *   joined     memory given back                       by the next one of its lane that ends, or
 *                                                      by destroy
 * So at most one ended thread a lane waits for its join, and destroy, which sleeps until `living`
 * is 0, finds the last one in `gone`. Before that a thread waits until `created` says that who
 * started it is done with its memory. */
#include <errno.h>
#include <stdio.h>

#include "base/assert.h"
#include "os/clock.h"
#include "os/futex.h"
#include "work/pool_private.h"

/* How often a look that ended in "uncertain" is repeated at once; after that the CPU is offered to
 * the one who holds the take lock. */
#define UNCERTAIN_LOOKS_MAX 64

static _Thread_local struct wr_worker *current;

struct wr_worker *wr_worker_current(void)
{
    return current;
}

bool wr_pool_is_worker(const struct wr_pool *pool)
{
    return current && current->pool == pool;
}

bool wr_pool_on_io_worker(void)
{
    return current && current->lane == &current->pool->io;
}

/* ---- items --------------------------------------------------------------------------------- */

enum wr_take wr_worker_take(struct wr_pool *pool, weir_work **ret_work)
{
    /* An empty queue is only read: the lock's line stays with all. */
    if (!wr_inject_maybe(pool->inject))
        return WR_TAKE_EMPTY;
    for (unsigned looks = 0;; looks++) {
        enum wr_take take = wr_inject_pop(pool->inject, ret_work);
        if (take != WR_TAKE_UNCERTAIN)
            return take;
        if (looks < UNCERTAIN_LOOKS_MAX)
            wr_cpu_relax();
        else
            wr_thread_yield();
    }
}

void wr_worker_begin(struct wr_worker *worker, uintptr_t function)
{
    wr_count(&worker->started);
    atomic_store_explicit(&worker->subject, -1, memory_order_relaxed);
    /* release: pairs with the acquire in wr_pool_name_stuck(), which reads the name */
    atomic_store_explicit(&worker->inside, function, memory_order_release);
}

void wr_pool_note(int subject)
{
    if (current)
        atomic_store_explicit(&current->subject, subject, memory_order_relaxed);
}

void wr_worker_end(struct wr_worker *worker)
{
    atomic_store_explicit(&worker->inside, 0, memory_order_relaxed);
    if (worker->block_depth == 0)
        return;
    wr_log(worker->pool->options.log, WEIR_LOG_ERROR,
           "%s: a callback returned without weir_blocking_end()", worker->thread.name);
    while (worker->block_depth > 0)
        wr_pool_blocking_end();
}

void wr_pool_guest_here(struct wr_worker *guest)
{
    WR_ASSERT(!guest || guest->guest_block);
    current = guest;
}

void wr_pool_item_begin(uintptr_t function)
{
    WR_ASSERT(current);
    wr_worker_begin(current, function);
}

void wr_pool_item_end(void)
{
    WR_ASSERT(current);
    wr_worker_end(current);
}

void wr_pool_item_next(uintptr_t function)
{
    wr_pool_item_end();
    wr_pool_item_begin(function);
}

void wr_worker_run(struct wr_worker *worker, weir_work *work)
{
    weir_work_fn *run = work->run_;
    void *context = work->context_;
    wr_worker_begin(worker, (uintptr_t)run);
    wr_work_free(work);
    run(work, context);
    wr_worker_end(worker);
}

static void io_loop(struct wr_worker *worker)
{
    struct wr_pool *pool = worker->pool;
    for (;;) {
        weir_work *work = wr_slot_take(worker);
        if (!work) {
            if (wr_worker_take(pool, &work) != WR_TAKE_ITEM) {
                if (!pool->options.idle && wr_park_spin(worker))
                    continue;
                enum wr_park parked = wr_park(worker, &work);
                if (parked == WR_PARK_LEAVE)
                    return;
                if (parked == WR_PARK_AGAIN)
                    continue;
            }
            wr_slot_taken_from_queue(worker, work);
        }
        wr_pool_request_more(pool);
        wr_worker_run(worker, work);
    }
}

/* ---- start and end ------------------------------------------------------------------------- */

void wr_worker_count(struct wr_lane *lane)
{
    lane->threads++;
    lane->starting++;
    lane->living++;
}

void wr_worker_uncount(struct wr_worker *worker)
{
    struct wr_lane *lane = worker->lane;
    WR_ASSERT(lane->threads > 0 && lane->slots[worker->index] == worker);
    lane->threads--;
    lane->slots[worker->index] = NULL;
    lane->gone_started += atomic_load_explicit(&worker->started, memory_order_relaxed);
    lane->gone_kept += atomic_load_explicit(&worker->kept_runs, memory_order_relaxed);
}

static void join(struct wr_pool *pool, struct wr_list *gone)
{
    struct wr_list *node;
    while ((node = wr_list_pop(gone))) {
        struct wr_worker *worker = WR_CONTAINER_OF(node, struct wr_worker, node);
        wr_thread_join(&worker->thread);
        wr_alloc_release_lines(pool->options.alloc, worker, sizeof *worker);
    }
}

/* Moves the list: the nodes of `from` hang on `to` afterwards. */
static void move_all(struct wr_list *to, struct wr_list *from)
{
    struct wr_list *node;
    wr_list_init(to);
    while ((node = wr_list_pop(from)))
        wr_list_add_tail(to, node);
}

static void tell_exit(struct wr_pool *pool)
{
    /* release: pairs with the acquire in wr_worker_join_all() */
    atomic_fetch_add_explicit(&pool->exits, 1, memory_order_release);
    wr_futex_wake(&pool->exits, 1);
}

static void leave(struct wr_worker *worker)
{
    struct wr_pool *pool = worker->pool;
    struct wr_lane *lane = worker->lane;
    /* acquire: pairs with the release in wr_worker_start() */
    while (!atomic_load_explicit(&worker->created, memory_order_acquire))
        wr_thread_yield();

    struct wr_list earlier;
    wr_lock(&lane->lock);
    move_all(&earlier, &lane->gone);
    lane->living--;
    wr_list_add_tail(&lane->gone, &worker->node);
    wr_unlock(&lane->lock);
    tell_exit(pool);
    join(pool, &earlier);
}

static void *worker_main(void *argument)
{
    struct wr_worker *worker = argument;
    const struct wr_pool_options *options = &worker->pool->options;
    current = worker;
    if (options->thread_start)
        options->thread_start(worker->thread.name, options->thread_context);
    if (worker->lane == &worker->pool->io)
        io_loop(worker);
    else
        wr_blocking_loop(worker);
    /* Its counters have been added up already: what the hook does is not a worker's. */
    current = NULL;
    if (options->thread_stop)
        options->thread_stop(worker->thread.name, options->thread_context);
    leave(worker);
    return NULL;
}

static void take_slot(struct wr_lane *lane, struct wr_worker *worker)
{
    unsigned index = 0;
    wr_lock(&lane->lock);
    while (lane->slots[index])
        index++;
    WR_ASSERT(index < lane->threads_max);
    worker->index = index;
    lane->slots[index] = worker;
    wr_unlock(&lane->lock);
}

/* Under the lock. The caller logs without it: the hook is the host's. */
static bool settle(struct wr_lane *lane, struct wr_worker *worker, int r)
{
    lane->starting--;
    bool first = r < 0 && !lane->start_failed;
    lane->start_failed = r < 0;
    if (r < 0) {
        lane->threads--;
        lane->living--;
        if (worker)
            lane->slots[worker->index] = NULL;
    }
    return first;
}

int wr_worker_start(struct wr_pool *pool, struct wr_lane *lane)
{
    struct wr_worker *worker = wr_alloc_lines(pool->options.alloc, sizeof *worker);
    int r = -ENOMEM;
    if (worker) {
        worker->pool = pool;
        worker->lane = lane;
        worker->lease = -1;
        wr_list_init(&worker->node);
        take_slot(lane, worker);
        char name[32];
        snprintf(name, sizeof name, "%s-%c%u", pool->name, lane->letter, worker->index + 1);
        r = wr_thread_start(&worker->thread, name, pool->options.stack_size, worker_main, worker);
    }

    wr_lock(&lane->lock);
    bool say = settle(lane, worker, r);
    wr_unlock(&lane->lock);
    if (r == 0) {
        /* release: pairs with the acquire in leave(): from here on the memory is the thread's */
        atomic_store_explicit(&worker->created, 1, memory_order_release);
        return 0;
    }
    wr_alloc_release_lines(pool->options.alloc, worker, sizeof *worker);
    tell_exit(pool);
    if (say)
        wr_log(pool->options.log, WEIR_LOG_ERROR, "no thread for the %s lane (errno %d)",
               lane == &pool->io ? "I/O" : "blocking", -r);
    return r == -ENOMEM ? -ENOMEM : -EAGAIN;
}

void wr_worker_join_all(struct wr_pool *pool, struct wr_lane *lane)
{
    struct wr_list gone;
    for (;;) {
        /* acquire: pairs with the release in tell_exit() */
        uint32_t exits = atomic_load_explicit(&pool->exits, memory_order_acquire);
        wr_lock(&lane->lock);
        unsigned living = lane->living;
        if (living == 0)
            move_all(&gone, &lane->gone);
        wr_unlock(&lane->lock);
        if (living == 0)
            break;
        /* Items may wait for each other, and nobody else ticks any more. */
        weir_time until = wr_clock_add(wr_clock_now(), WR_POOL_TICK_NS);
        if (wr_futex_wait(&pool->exits, exits, until) == -ETIMEDOUT)
            (void)wr_pool_tick(pool, wr_clock_now());
    }
    join(pool, &gone);
}

struct wr_worker_sum wr_worker_sum(const struct wr_lane *lane)
{
    struct wr_worker_sum sum = {.started = lane->gone_started, .kept = lane->gone_kept};
    unsigned left = lane->threads;
    for (unsigned i = 0; i < lane->threads_max && left > 0; i++) {
        const struct wr_worker *worker = lane->slots[i];
        if (!worker)
            continue;
        left--;
        sum.started += atomic_load_explicit(&worker->started, memory_order_relaxed);
        sum.kept += atomic_load_explicit(&worker->kept_runs, memory_order_relaxed);
    }
    return sum;
}
