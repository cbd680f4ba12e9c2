/* park.c: how a worker of the I/O lane comes to sleep and is woken. Why nothing is lost by it is
 * written on top of pool.c; this file keeps `idle`, `parked`, `timed` and the workers' words. */
#include <errno.h>

#include "base/assert.h"
#include "os/clock.h"
#include "os/futex.h"
#include "work/pool_private.h"

/* Looks between two readings of the clock, while spinning. */
#define SPIN_LOOKS 32

static void clear_request(struct wr_pool *pool)
{
    WR_SEAM(WR_SEAM_CLEARING);
    /* 0 already: another has cleared what we were bound by, or nobody has asked. See pool.c. */
    if (atomic_load_explicit(&pool->request, memory_order_relaxed) == 0) {
        wr_inject_before_look();
        return;
    }
    /* acq_rel: pairs with the exchange to 1 in wr_pool_request(): the look that follows sees
     * what was pushed before any exchange in front of this one; those behind it see us in the
     * idle list */
    atomic_exchange_explicit(&pool->request, 0, memory_order_acq_rel);
    wr_inject_before_look();
}

/* ---- the idle list, under the lock --------------------------------------------------------- */

static struct wr_worker *worker_at(struct wr_list *node)
{
    return WR_CONTAINER_OF(node, struct wr_worker, node);
}

/* The state that who sleeps on it looks at without the lock. */
static void set_word(struct wr_worker *worker, enum wr_worker_word word)
{
    /* release: pairs with the acquire in sleep_parked() and in wr_blocking_loop() */
    atomic_store_explicit(&worker->word, word, memory_order_release);
}

static void remove_idle(struct wr_worker *worker)
{
    struct wr_lane *lane = worker->lane;
    WR_ASSERT(lane->parked > 0);
    wr_list_remove(&worker->node);
    lane->parked--;
    if (worker->timed)
        lane->timed--;
    worker->timed = false;
}

struct wr_worker *wr_park_take_idle(struct wr_lane *lane, int *ret_lease)
{
    if (wr_list_empty(&lane->idle))
        return NULL;
    struct wr_worker *worker = worker_at(lane->idle.next);
    remove_idle(worker);
    set_word(worker, WR_WORKER_WOKEN);
    lane->wakes++;
    *ret_lease = worker->lease;
    return worker;
}

/* The worker may be off already, in the worst case joined: the futex call takes the address for a
 * name only, and a sleeper that is woken for nothing looks again. */
void wr_park_rouse(struct wr_pool *pool, struct wr_worker *worker, int lease)
{
    if (lease >= 0)
        pool->options.idle->wake(pool->options.idle_context, lease);
    else
        wr_futex_wake(&worker->word, 1);
}

void wr_park_wake_all(struct wr_pool *pool, struct wr_lane *lane)
{
    struct wr_worker *worker;
    int lease;
    while ((worker = wr_park_take_idle(lane, &lease)))
        wr_park_rouse(pool, worker, lease);
}

bool wr_park_wake(struct wr_pool *pool)
{
    int lease = -1;
    wr_lock(&pool->io.lock);
    struct wr_worker *worker = wr_park_take_idle(&pool->io, &lease);
    wr_unlock(&pool->io.lock);
    if (worker)
        wr_park_rouse(pool, worker, lease);
    return worker;
}

bool wr_pool_wake(struct wr_pool *pool)
{
    struct wr_lane *lane = &pool->io;
    struct wr_worker *worker = NULL;
    int lease = -1;
    wr_lock(&lane->lock);
    /* Those that wait under a lease are at the end of the list. */
    if (!wr_list_empty(&lane->idle) && worker_at(lane->idle.next)->lease < 0)
        worker = wr_park_take_idle(lane, &lease);
    wr_unlock(&lane->lock);
    if (worker)
        wr_park_rouse(pool, worker, lease);
    return worker;
}

static unsigned surplus(const struct wr_lane *lane)
{
    unsigned unblocked = lane->threads - lane->blocked;
    return unblocked > lane->target ? unblocked - lane->target : 0;
}

/* Of those that are too many, each one parked has a time to leave at: the ones parked longest,
 * since those parked last are the ones that are woken. Gives a time to one more if that is due.
 * Returns the one to be told; NULL: nobody, or the caller. */
static struct wr_worker *retime(struct wr_worker *caller)
{
    struct wr_lane *lane = caller->lane;
    if (lane->timed >= surplus(lane))
        return NULL;
    for (struct wr_list *node = lane->idle.prev; node != &lane->idle; node = node->prev) {
        struct wr_worker *worker = worker_at(node);
        if (worker->timed || worker->lease >= 0)
            continue;
        worker->timed = true;
        worker->leave_at = wr_clock_add(wr_clock_now(), worker->pool->options.idle_ns);
        lane->timed++;
        if (worker == caller)
            return NULL;
        set_word(worker, WR_WORKER_RETIME);
        return worker;
    }
    return NULL;
}

/* False: the pool ends and so does the caller. With a lease it goes to the end of the list: a
 * worker that sleeps is woken rather than one that waits for events. */
static bool publish(struct wr_worker *worker, int lease)
{
    struct wr_lane *lane = worker->lane;
    struct wr_worker *told = NULL;
    wr_lock(&lane->lock);
    bool stays = !lane->stopping;
    if (stays) {
        set_word(worker, WR_WORKER_PARKED);
        worker->lease = lease;
        if (lease >= 0)
            wr_list_add_tail(&lane->idle, &worker->node);
        else
            wr_list_add_head(&lane->idle, &worker->node);
        lane->parked++;
        lane->parks++;
        told = retime(worker);
    } else {
        wr_worker_uncount(worker);
    }
    wr_unlock(&lane->lock);
    if (told)
        wr_futex_wake(&told->word, 1);
    return stays;
}

/* True: somebody has taken the caller out before. */
static bool unpublish(struct wr_worker *worker)
{
    wr_lock(&worker->lane->lock);
    bool woken = atomic_load_explicit(&worker->word, memory_order_relaxed) == WR_WORKER_WOKEN;
    if (!woken)
        remove_idle(worker);
    set_word(worker, WR_WORKER_RUNNING);
    wr_unlock(&worker->lane->lock);
    return woken;
}

/* When the caller, parked, is to wake by itself. */
static weir_time deadline_of(struct wr_worker *worker)
{
    wr_lock(&worker->lane->lock);
    weir_time deadline = worker->timed ? worker->leave_at : WEIR_NEVER;
    if (atomic_load_explicit(&worker->word, memory_order_relaxed) == WR_WORKER_RETIME)
        set_word(worker, WR_WORKER_PARKED);
    wr_unlock(&worker->lane->lock);
    return deadline;
}

/* Its time has come. True: it leaves; false: it was woken meanwhile, or is not too many any
 * more. */
static bool retire(struct wr_worker *worker)
{
    struct wr_lane *lane = worker->lane;
    wr_lock(&lane->lock);
    bool leaves = false;
    if (worker->timed && wr_clock_now() >= worker->leave_at) {
        leaves = surplus(lane) > 0;
        if (leaves) {
            remove_idle(worker);
            wr_worker_uncount(worker);
        } else {
            worker->timed = false;
            lane->timed--;
        }
    }
    wr_unlock(&lane->lock);
    return leaves;
}

/* False: the caller leaves. */
static bool sleep_parked(struct wr_worker *worker)
{
    weir_time deadline = deadline_of(worker);
    for (;;) {
        /* acquire: pairs with the release in set_word() */
        uint32_t word = atomic_load_explicit(&worker->word, memory_order_acquire);
        if (word == WR_WORKER_WOKEN)
            return true;
        if (word == WR_WORKER_PARKED &&
            wr_futex_wait(&worker->word, WR_WORKER_PARKED, deadline) == 0)
            continue;
        if (word == WR_WORKER_PARKED && retire(worker))
            return false;
        deadline = deadline_of(worker);
    }
}

/* ---- parking ------------------------------------------------------------------------------- */

/* Published, with a lease: waits for events, and runs the one that is kept for it. */
static void wait_leased(struct wr_worker *worker, int lease)
{
    struct wr_pool *pool = worker->pool;
    const struct wr_pool_idle *idle = pool->options.idle;
    void *context = pool->options.idle_context;
    int count = idle->wait(context, lease);
    /* Who took us out relies on a look that follows: in wr_pool_request_more(), or the caller's. */
    if (unpublish(worker))
        clear_request(pool);
    void *item = idle->finish(context, lease, count);
    if (!item)
        return;
    wr_pool_request_more(pool);
    wr_worker_begin(worker, (uintptr_t)idle->run);
    idle->run(context, item);
    wr_worker_end(worker);
}

enum wr_park wr_park(struct wr_worker *worker, weir_work **ret_work)
{
    struct wr_pool *pool = worker->pool;
    const struct wr_pool_idle *idle = pool->options.idle;
    int lease = idle ? idle->take(pool->options.idle_context) : -1;
    WR_SEAM(WR_SEAM_BEFORE_PARK);
    if (!publish(worker, lease)) {
        if (lease >= 0)
            idle->finish(pool->options.idle_context, lease, 0);
        return WR_PARK_LEAVE;
    }
    if (idle && lease < 0)
        idle->ask(pool->options.idle_context);
    WR_SEAM(WR_SEAM_PARK_PUBLISHED);
    clear_request(pool);
    WR_SEAM(WR_SEAM_PARK_CLEARED);
    if (wr_worker_take(pool, ret_work) == WR_TAKE_ITEM) {
        /* Who took us out relies on a look after that, so a second clear comes before what the
         * caller does next: wr_pool_request_more(). */
        if (unpublish(worker))
            clear_request(pool);
        if (lease >= 0)
            idle->finish(pool->options.idle_context, lease, 0);
        return WR_PARK_ITEM;
    }
    WR_SEAM(WR_SEAM_BEFORE_SLEEP);
    if (lease >= 0) {
        wait_leased(worker, lease);
        return WR_PARK_AGAIN;
    }
    if (!sleep_parked(worker))
        return WR_PARK_LEAVE;
    WR_SEAM(WR_SEAM_WOKEN);
    /* Nobody else writes it while we are not in the list. */
    atomic_store_explicit(&worker->word, WR_WORKER_RUNNING, memory_order_relaxed);
    clear_request(pool);
    return WR_PARK_AGAIN;
}

bool wr_park_spin(struct wr_worker *worker)
{
    struct wr_pool *pool = worker->pool;
    unsigned few = pool->io.target > 1 ? pool->io.target / 2 : 1;
    if (pool->options.spin_us == 0)
        return false;
    if (atomic_fetch_add_explicit(&pool->spinners, 1, memory_order_relaxed) >= few) {
        atomic_fetch_sub_explicit(&pool->spinners, 1, memory_order_relaxed);
        return false;
    }
    /* acq_rel: pairs with the exchange in wr_pool_request(): from here on we are the one who is
     * bound, and posts leave the parked ones alone; we clear when we have found something, or
     * park */
    atomic_exchange_explicit(&pool->request, 1, memory_order_acq_rel);
    weir_time until = wr_clock_add(wr_clock_now(), (int64_t)pool->options.spin_us * 1000);
    bool found = false;
    do {
        for (unsigned i = 0; i < SPIN_LOOKS && !found; i++) {
            found = wr_inject_maybe(pool->inject);
            wr_cpu_relax();
        }
    } while (!found && wr_clock_now() < until);
    atomic_fetch_sub_explicit(&pool->spinners, 1, memory_order_relaxed);
    if (found)
        clear_request(pool);
    return found;
}
