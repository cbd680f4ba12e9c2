/* blocking.c: blocks that a callback announces, and the lane for jobs that block.
 *
 * The lane is a list under a lock: its jobs last so long that nothing finer would be felt, and
 * the lock is not the I/O lane's.
 *   coming: threads bound to look at the queue before anything else: just started, or just taken
 *   out of the idle list.
 * Before a post queues its job it makes sure of an idle thread, or of one that is coming and that
 * no other job counts on, or starts one. At the cap, or when no thread can be started, it counts on
 * those that work; without any it gives the item back. A thread leaves after idle_ns without a
 * job, and only when nothing is queued. */
#include <errno.h>

#include "base/assert.h"
#include "os/clock.h"
#include "os/futex.h"
#include "work/pool_private.h"

/* A job of the blocking lane that has waited longer for a thread is worth a line in the log. */
#define OVERDUE_NS 1000000000

/* ---- announced blocks ---------------------------------------------------------------------- */

void wr_pool_blocking_begin(void)
{
    struct wr_worker *worker = wr_worker_current();
    if (worker && worker->guest_block) {
        wr_guest_blocking_begin(worker);
        return;
    }
    if (!worker || worker->lane != &worker->pool->io)
        return;
    struct wr_pool *pool = worker->pool;
    struct wr_lane *lane = worker->lane;
    wr_slot_spill(worker);
    void (*hook)(void *) = atomic_load_explicit(&pool->block_hook, memory_order_relaxed);
    if (hook)
        hook(pool->block_context);
    if (worker->block_depth++ > 0)
        return;

    wr_lock(&lane->lock);
    lane->blocked++;
    /* A pool that ends is full of workers that have left; its ticks see to those that are stuck. */
    bool missing = !lane->stopping && lane->threads - lane->blocked < lane->target &&
                   lane->threads < lane->threads_max;
    if (missing)
        wr_worker_count(lane);
    wr_unlock(&lane->lock);
    bool added = missing && wr_worker_start(pool, lane) == 0;
    if (added) {
        wr_lock(&lane->lock);
        lane->compensations++;
        wr_unlock(&lane->lock);
    }
    if (pool->options.idle)
        pool->options.idle->block(pool->options.idle_context, added);
    /* A start that failed is made up for by the tick, which this asks for when items wait. */
    wr_pool_request_more(pool);
}

void wr_pool_blocking_end(void)
{
    struct wr_worker *worker = wr_worker_current();
    if (!worker || worker->block_depth == 0)
        return;
    if (--worker->block_depth > 0 || worker->guest_block)
        return;
    wr_lock(&worker->lane->lock);
    WR_ASSERT(worker->lane->blocked > 0);
    worker->lane->blocked--;
    wr_unlock(&worker->lane->lock);
}

void weir_blocking_begin(void)
{
    wr_pool_blocking_begin();
}

void weir_blocking_end(void)
{
    wr_pool_blocking_end();
}

/* ---- the lane ------------------------------------------------------------------------------ */

/* Under the lock. Returns the idle thread that is to be woken for it, or NULL. */
static struct wr_worker *enqueue(struct wr_lane *lane, weir_work *work)
{
    work->next_ = NULL;
    if (lane->last)
        lane->last->next_ = work;
    else
        lane->first = work;
    lane->last = work;
    lane->queued++;
    lane->posts++;
    int lease;
    struct wr_worker *woken = wr_park_take_idle(lane, &lease);
    if (woken)
        lane->coming++;
    return woken;
}

static weir_work *dequeue(struct wr_lane *lane)
{
    weir_work *work = lane->first;
    if (!work)
        return NULL;
    lane->first = work->next_;
    if (!lane->first) {
        lane->last = NULL;
        lane->full_said = false;
    }
    lane->queued--;
    return work;
}

/* Under the lock, which is given up meanwhile. What wr_worker_start() says. */
static int start_one(struct wr_pool *pool)
{
    struct wr_lane *lane = &pool->blocking;
    wr_worker_count(lane);
    lane->coming++;
    wr_unlock(&lane->lock);
    int r = wr_worker_start(pool, lane);
    wr_lock(&lane->lock);
    if (r < 0)
        lane->coming--;
    return r;
}

/* Under the lock, which may be given up meanwhile: sees to it that a thread will come to one job
 * more. 0, -ESHUTDOWN, -EAGAIN. */
static int provide(struct wr_pool *pool)
{
    struct wr_lane *lane = &pool->blocking;
    while (!lane->stopping) {
        /* Those that are being started are not counted on: their start may fail. */
        if (!wr_list_empty(&lane->idle) || lane->coming > lane->queued + lane->starting)
            return 0;
        if (lane->threads < lane->threads_max) {
            if (start_one(pool) < 0)
                return lane->threads > lane->starting ? 0 : -EAGAIN;
            /* It may have come, taken another's job and even left: look again. */
            continue;
        }
        if (lane->threads > lane->starting)
            return 0;
        /* All there may be are being started by others; whether that works is soon known. */
        if (lane->threads_max == 0)
            return -EAGAIN;
        wr_unlock(&lane->lock);
        wr_thread_yield();
        wr_lock(&lane->lock);
    }
    return -ESHUTDOWN;
}

/* Under the lock. A job waits, all the threads there may be are busy, and that has not been said
 * since the queue was empty. */
static bool full(const struct wr_lane *lane)
{
    return !lane->full_said && lane->first && lane->threads >= lane->threads_max;
}

/* Jobs that never end bring no post and no look of a thread of the lane, so the pool's tick says
 * it: a post that leaves the lane full asks for ticks, and they go on while it is. */
bool wr_blocking_tick(struct wr_pool *pool, weir_time now)
{
    struct wr_lane *lane = &pool->blocking;
    weir_time waited = 0;

    wr_lock(&lane->lock);
    if (full(lane)) {
        waited = now - lane->first->posted_;
        lane->full_said = waited >= OVERDUE_NS;
    }
    bool said = lane->full_said, waits = full(lane);
    wr_unlock(&lane->lock);
    if (said && waited > 0)
        wr_log(pool->options.log, WEIR_LOG_WARN,
               "blocking lane: all %u threads are busy, a job has waited for %lld ms",
               lane->threads_max, (long long)(waited / 1000000));
    return waits;
}

static int post_blocking(struct wr_pool *pool, weir_work *work)
{
    struct wr_lane *lane = &pool->blocking;
    wr_lock(&lane->lock);
    int r = provide(pool);
    struct wr_worker *woken = r == 0 ? enqueue(lane, work) : NULL;
    bool waits = full(lane);
    wr_unlock(&lane->lock);
    if (woken)
        wr_futex_wake(&woken->word, 1);
    if (waits)
        wr_pool_watch(pool);
    return r;
}

int wr_pool_post_blocking(struct wr_pool *pool, weir_work *work)
{
    if (!pool || !work || !work->run_)
        return -EINVAL;
    if (atomic_load_explicit(&pool->refusing, memory_order_relaxed))
        return -ESHUTDOWN;
    if (!wr_work_claim(work))
        return -EALREADY;
    work->posted_ = wr_clock_now();
    int r = post_blocking(pool, work);
    if (r < 0)
        wr_work_free(work);
    return r;
}

/* Under the lock, which is given up while sleeping. False: the time is over and nobody came. */
static bool sleep_idle(struct wr_worker *worker)
{
    struct wr_lane *lane = worker->lane;
    atomic_store_explicit(&worker->word, WR_WORKER_PARKED, memory_order_relaxed);
    wr_list_add_head(&lane->idle, &worker->node);
    lane->parked++;
    wr_unlock(&lane->lock);

    weir_time deadline = wr_clock_add(wr_clock_now(), worker->pool->options.idle_ns);
    int r = 0;
    /* acquire: pairs with the release with which wr_park_take_idle() says WOKEN */
    while (r == 0 && atomic_load_explicit(&worker->word, memory_order_acquire) == WR_WORKER_PARKED)
        r = wr_futex_wait(&worker->word, WR_WORKER_PARKED, deadline);

    wr_lock(&lane->lock);
    bool woken = atomic_load_explicit(&worker->word, memory_order_relaxed) == WR_WORKER_WOKEN;
    if (woken && !lane->stopping) {
        lane->coming--;
    } else if (!woken) {
        wr_list_remove(&worker->node);
        lane->parked--;
    }
    return woken;
}

void wr_blocking_loop(struct wr_worker *worker)
{
    struct wr_lane *lane = worker->lane;
    bool stays = true;
    wr_lock(&lane->lock);
    lane->coming--;
    while (stays) {
        weir_work *work = dequeue(lane);
        if (work) {
            wr_unlock(&lane->lock);
            wr_worker_run(worker, work);
            wr_lock(&lane->lock);
        } else if (lane->stopping) {
            stays = false;
        } else {
            /* Not woken, but a job may be queued for another that has been: then look as well. */
            stays = sleep_idle(worker) || lane->first;
        }
    }
    WR_ASSERT(!lane->first);
    wr_worker_uncount(worker);
    wr_unlock(&lane->lock);
}
