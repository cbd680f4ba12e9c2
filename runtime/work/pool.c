/* pool.c: the worker pool: posting, the request for a worker, the tick, start and end.
 *
 * THE PROTOCOL OF SLEEPING AND WAKING (I/O lane)
 *
 * request   1: at least one thread is bound to look at the queue later than the moment this was
 *           set, or nobody was parked then. 0 promises nothing. Moved by exchange only.
 * idle      the parked workers, the latest first, under the lane's lock.
 * word      of each worker: RUNNING; PARKED or RETIME while in `idle`; WOKEN from being taken out.
 * watching  1: watch() was called and no tick has answered false since. Moved by exchange only.
 *
 *   post     poster     push; request is 1: done. Else request <- 1; it was 0: take one worker out
 *                       of `idle` and wake it; nobody is there: watching <- 1, and watch() if that
 *                       was 0
 *   clear    worker     request <- 0 unless it is 0, and afterwards a look at the queue. Done after
 *                       each wake, after each spin that found something, and between publishing and
 *                       sleeping
 *   take     worker     pop; request is 0 and more may be there: as a post without the push, and
 *                       that BEFORE the callback; then the callback, which may block for ever
 *   spin     worker     request <- 1 (it binds itself), look for a while; then clear, or park
 *   park     worker     publish in `idle`; clear; pop; something: leave `idle` (taken out by
 *                       somebody meanwhile: clear once more); nothing: sleep while PARKED
 *   tick     one thread something queued: compare progress, compensate. Nothing: watching <- 0,
 *                       request <- 0, look again; something: watching <- 1, post without the push
 *
 *   keep     worker     a job that its callback posts may stay with it: see slot.c
 *
 * Why no post is lost. All exchanges of `request` are acq_rel and make one modification order;
 * each sees what happened before those in front of it. Let P be the exchange of a post. (A post
 * that reads 1 makes none. It counts as an exchange that found 1, right behind the one that it
 * read: its push is ordered before its load (wr_inject_push()), and a clear before the look that
 * follows (wr_inject_before_look()), so that a clear which the load missed is followed by a look
 * that does not miss the push. So while all are busy, nobody writes `request`.)
 *
 * 1. P found 1. Let Q be the last exchange before P that turned 0 into 1; between Q and P nobody
 *    cleared. (a) Q's thread spins: it will clear, after P, and look: it sees the item. (b) Q's
 *    thread took a worker out of `idle`: that worker clears after its wake, hence after Q, hence
 *    after P, and looks. (c) Q found nobody in `idle`: every worker that sleeps from then on
 *    publishes later (the lock orders it), clears later than Q, hence after P, and looks. All
 *    others are in callbacks, and Q has set `watching`: the tick looks.
 * 2. P found 0. Its thread looks into `idle` under the lock. A worker W that publishes after that
 *    look sees the item in the look that follows (the lock orders push before look). One that had
 *    published is found and woken, unless somebody else has taken it out: then it clears after its
 *    wake; if that clear comes before P it will publish again before it sleeps: the case before.
 * 3. The look of the one who is bound may take an older item and leave ours: then request was set
 *    after the clear by somebody to whom 1 and 2 apply, or is 0 and "take" sees more
 *    (wr_inject_maybe() overlooks nothing that happened before). So coverage is handed on before a
 *    callback runs: a worker inside a callback never counts.
 *    A clear that reads 0 writes nothing. What it was to clear has been cleared by another, who
 *    looks after that: who relied on 1 relied on this. A post that finds 0 later looks into `idle`
 *    behind us: it cannot have had the lock before us, or its 1 would have been read.
 * 4. A look ends in item, empty (linearized) or uncertain. Uncertain is looked at again, never
 *    slept on: wr_worker_take() answers only the first two.
 * 5. The tick's clear is as good as a worker's, since a look follows. Without it `request` could
 *    stay 1 from a time when all were in callbacks, `watching` be 0, and the next post would call
 *    neither a worker nor watch(). `watching` is cleared first: a post that finds 0 in `request`
 *    after the tick's clear sees `watching` 0 too, and calls watch() again.
 *
 * At most one wake is outstanding: a second needs `request` 0 again, which the first one woken
 * makes it (a burst wakes a chain and not a crowd); the tick alone goes beyond that.
 *
 * Numbers, under the lane's lock: unblocked = threads - blocked. Fewer than `target`: a block
 * that is announced starts a thread at once, as long as threads < threads_max. No item begun
 * from one tick to the next while some wait: one worker more. More than `target` and parked: as
 * many of them as are too many, those parked longest, sleep with a deadline and leave at it. All
 * others sleep without one, so that an idle pool makes no system call.
 *
 * A lease (options.idle): a worker that parks may take one, and then waits for events in the
 * place of sleeping. It is published at the end of `idle`, so that sleepers are woken before it,
 * and woken by the lease's own wake(). To the protocol its wait is a sleep: when it ends, by a
 * wake or by an event, the worker leaves `idle`, clears if it was taken out, gives the lease
 * back, and asks for the next worker before it runs the event that it kept. It never has a time
 * to leave at.
 *
 * End: the blocking lane first (its jobs may post to the I/O lane), then the I/O lane: a worker
 * that finds the queue empty leaves. Only workers in callbacks can still post then, and each
 * looks at the queue after its callback. The thread that destroys ticks meanwhile, so that items
 * that wait for each other end here as they do elsewhere. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "os/clock.h"
#include "os/futex.h"
#include "work/pool_private.h"

#define IDLE_DEFAULT_NS 10000000000
/* How often stuck workers are named at most. */
#define STUCK_SAID_NS 1000000000
/* The line that names them, and what one of them takes of it at most. */
#define WR_STUCK_TEXT_MAX 400
#define WR_STUCK_WORKER_MAX 100

#ifdef WEIR_FAULTS
void (*wr_pool_seam_hook)(enum wr_pool_seam seam);
#endif

/* ---- start and end ------------------------------------------------------------------------- */

static int lane_init(struct wr_pool *pool, struct wr_lane *lane, char letter, unsigned threads_max)
{
    lane->letter = letter;
    lane->threads_max = threads_max;
    wr_list_init(&lane->idle);
    wr_list_init(&lane->gone);
    lane->slots = wr_alloc_zero(pool->options.alloc, threads_max * sizeof(struct wr_worker *));
    return lane->slots ? 0 : -ENOMEM;
}

static void pool_free(struct wr_pool *pool)
{
    struct wr_alloc *alloc = pool->options.alloc;
    wr_alloc_release(alloc, pool->io.slots, pool->io.threads_max * sizeof(struct wr_worker *));
    wr_alloc_release(alloc, pool->blocking.slots,
                     pool->blocking.threads_max * sizeof(struct wr_worker *));
    wr_inject_destroy(pool->inject);
    wr_alloc_release_lines(alloc, pool, sizeof *pool);
}

static int start_workers(struct wr_pool *pool)
{
    unsigned wanted = pool->io.target;
    for (unsigned i = 0; i < wanted; i++) {
        wr_lock(&pool->io.lock);
        wr_worker_count(&pool->io);
        wr_unlock(&pool->io.lock);
        int r = wr_worker_start(pool, &pool->io);
        if (r < 0 && i == 0)
            return r;
        if (r < 0) {
            wr_log(pool->options.log, WEIR_LOG_WARN, "%u of %u workers could be started (errno %d)",
                   i, wanted, -r);
            return 0;
        }
    }
    return 0;
}

int wr_pool_create(struct wr_pool **ret_pool, const struct wr_pool_options *options)
{
    WR_ASSERT(options->workers > 0 && options->workers <= options->workers_max);
    struct wr_pool *pool = wr_alloc_lines(options->alloc, sizeof *pool);
    if (!pool)
        return -ENOMEM;
    pool->options = *options;
    if (pool->options.idle_ns <= 0)
        pool->options.idle_ns = IDLE_DEFAULT_NS;
    if (options->name)
        memcpy(pool->name, options->name, strnlen(options->name, WR_POOL_NAME_MAX));
    pool->io.target = options->workers;
    wr_list_init(&pool->guests);

    int r = lane_init(pool, &pool->io, 'w', options->workers_max);
    if (r == 0)
        r = lane_init(pool, &pool->blocking, 'b', options->blocking_max);
    if (r == 0)
        r = wr_inject_create(&pool->inject, options->alloc);
    if (r == 0)
        r = start_workers(pool);
    if (r < 0) {
        pool_free(pool);
        return r;
    }
    *ret_pool = pool;
    return 0;
}

void wr_pool_refuse(struct wr_pool *pool)
{
    atomic_store_explicit(&pool->refusing, 1, memory_order_relaxed);
}

static void end_lane(struct wr_pool *pool, struct wr_lane *lane)
{
    wr_lock(&lane->lock);
    lane->stopping = true;
    wr_park_wake_all(pool, lane);
    wr_unlock(&lane->lock);
    wr_worker_join_all(pool, lane);
    WR_ASSERT(lane->threads == 0 && wr_list_empty(&lane->idle) && wr_list_empty(&lane->gone));
}

void wr_pool_destroy(struct wr_pool *pool)
{
    if (!pool)
        return;
    WR_ASSERT(!wr_pool_is_worker(pool));
    wr_pool_refuse(pool);
    end_lane(pool, &pool->blocking);
    end_lane(pool, &pool->io);
    WR_ASSERT(!wr_inject_maybe(pool->inject) && !pool->blocking.first);
    WR_ASSERT(wr_list_empty(&pool->guests));
    pool_free(pool);
}

void wr_pool_set_block_hook(struct wr_pool *pool, void (*hook)(void *), void *context)
{
    pool->block_context = context;
    atomic_store_explicit(&pool->block_hook, hook, memory_order_relaxed);
}

/* ---- posting ------------------------------------------------------------------------------- */

void weir_work_init(weir_work *work, weir_work_fn *run, void *context)
{
    *work = (weir_work) { .run_ = run, .context_ = context };
}

void wr_pool_request(struct wr_pool *pool)
{
    if (atomic_load_explicit(&pool->request, memory_order_relaxed))
        return;
    /* acq_rel: pairs with the exchange to 0 in wr_park() and its like: one order of all of them */
    if (atomic_exchange_explicit(&pool->request, 1, memory_order_acq_rel) != 0)
        return;
    if (!wr_park_wake(pool))
        wr_pool_watch(pool);
}

void wr_pool_watch(struct wr_pool *pool)
{
    /* acq_rel: pairs with the exchange to 0 in disarm(): who finds 0 calls watch() */
    if (atomic_exchange_explicit(&pool->watching, 1, memory_order_acq_rel) == 0 &&
        pool->options.watch)
        pool->options.watch(pool->options.watch_context);
}

void wr_pool_request_more(struct wr_pool *pool)
{
    if (atomic_load_explicit(&pool->request, memory_order_relaxed) == 0 &&
        wr_inject_maybe(pool->inject))
        wr_pool_request(pool);
}

void wr_pool_post_queue(struct wr_pool *pool, enum wr_class class, weir_work *work)
{
    /* For the age of the queue alone, which is read in milliseconds. */
    work->posted_ = wr_clock_coarse();
    /* From the push on the item may have run and be gone. */
    wr_inject_push(pool->inject, class, work);
    wr_pool_request(pool);
}

int wr_pool_post(struct wr_pool *pool, weir_work *work)
{
    if (!pool || !work || !work->run_)
        return -EINVAL;
    if (atomic_load_explicit(&pool->refusing, memory_order_relaxed))
        return -ESHUTDOWN;
    if (!wr_work_claim(work))
        return -EALREADY;
    struct wr_worker *worker = wr_worker_current();
    if (!worker || worker->pool != pool || !wr_slot_keep(worker, work))
        wr_pool_post_queue(pool, WR_CLASS_JOB, work);
    return 0;
}

void wr_pool_post_own(struct wr_pool *pool, weir_work *work)
{
    WR_ASSERT(work->run_);
    wr_pool_post_queue(pool, WR_CLASS_IO, work);
}

/* ---- the tick ------------------------------------------------------------------------------ */

/* True: something has come meanwhile. See 5 above for the order. */
static bool disarm(struct wr_pool *pool, weir_time now)
{
    WR_SEAM(WR_SEAM_TICK_EMPTY);
    /* seq_cst: pairs with the exchange to 1 in wr_pool_watch(), and with the load in
     * wr_slot_keep(): the look at the slots follows */
    atomic_exchange_explicit(&pool->watching, 0, memory_order_seq_cst);
    WR_SEAM(WR_SEAM_TICK_DISARMED);
    /* acq_rel: pairs with the exchange to 1 in wr_pool_request(); the look follows */
    atomic_exchange_explicit(&pool->request, 0, memory_order_acq_rel);
    wr_inject_before_look();
    bool items = wr_inject_maybe(pool->inject);
    bool kept = wr_slots_filled(pool);
    if (!items && !kept && !wr_blocking_tick(pool, now))
        return false;
    /* acq_rel: pairs with the exchange to 1 in wr_pool_watch(): it need not call watch() */
    atomic_exchange_explicit(&pool->watching, 1, memory_order_acq_rel);
    if (items)
        wr_pool_request(pool);
    return true;
}

static void compensate(struct wr_pool *pool)
{
    struct wr_lane *lane = &pool->io;
    if (!wr_park_wake(pool)) {
        wr_lock(&lane->lock);
        unsigned threads = lane->threads;
        bool room = threads < lane->threads_max;
        if (room)
            wr_worker_count(lane);
        wr_unlock(&lane->lock);
        if (!room) {
            if (!pool->tick_capped)
                wr_log(pool->options.log, WEIR_LOG_WARN,
                       "work waits while all %u workers are busy: no more may be started", threads);
            pool->tick_capped = true;
            return;
        }
        /* A failure has been logged; the next tick tries again. */
        if (wr_worker_start(pool, lane) < 0)
            return;
    }
    wr_lock(&lane->lock);
    lane->compensations++;
    wr_unlock(&lane->lock);
}

/* Under the lock. For how long it has been inside one item, as far as we have looked; -1: it is
 * inside none. */
static weir_time time_inside(struct wr_worker *worker, weir_time now)
{
    /* acquire: pairs with the release in wr_worker_begin(), after which the name stands */
    if (!atomic_load_explicit(&worker->inside, memory_order_acquire))
        return -1;
    uint64_t started = atomic_load_explicit(&worker->started, memory_order_relaxed);
    if (started != worker->seen_started) {
        worker->seen_started = started;
        worker->seen_at = now;
    }
    return now - worker->seen_at;
}

/* The worker goes on meanwhile: what is said of it may be of its next item. */
static size_t describe(char *text, size_t room, const char *separator, struct wr_worker *worker,
                       weir_time inside)
{
    int subject = atomic_load_explicit(&worker->subject, memory_order_relaxed);
    uintptr_t function = atomic_load_explicit(&worker->inside, memory_order_relaxed);
    int length = snprintf(text, room, "%s %s%s for %" PRId64 " ms ", separator,
                          worker->guest_block ? "poller " : "", worker->thread.name,
                          inside / 1000000);
    if (subject >= 0)
        length += snprintf(text + length, room - (size_t)length, "in descriptor %d", subject);
    else
        length += snprintf(text + length, room - (size_t)length, "in function %#" PRIxPTR,
                           function);
    return (size_t)length;
}

/* What is said of those that are stuck. */
struct stuck {
    weir_time now;
    bool say, any;
    size_t length;
    char text[WR_STUCK_TEXT_MAX];
};

/* Under the lock. */
static void look_at(struct stuck *stuck, struct wr_worker *worker)
{
    weir_time inside = time_inside(worker, stuck->now);

    stuck->any = stuck->any || inside >= 0;
    if (stuck->say && inside >= WR_POOL_STUCK_NS &&
        stuck->length < sizeof stuck->text - WR_STUCK_WORKER_MAX)
        stuck->length += describe(stuck->text + stuck->length, sizeof stuck->text - stuck->length,
                                  stuck->length > 0 ? "," : "", worker, inside);
}

bool wr_pool_name_stuck(struct wr_pool *pool, weir_time now)
{
    struct wr_lane *lane = &pool->io;
    struct stuck stuck = {.now = now};

    wr_lock(&lane->lock);
    stuck.say = now >= pool->stuck_said;
    for (struct wr_list *node = pool->guests.next; node != &pool->guests; node = node->next)
        look_at(&stuck, WR_CONTAINER_OF(node, struct wr_worker, node));
    unsigned left = lane->threads;
    for (unsigned i = 0; i < lane->threads_max && left > 0; i++) {
        if (!lane->slots[i])
            continue;
        left--;
        look_at(&stuck, lane->slots[i]);
    }
    if (stuck.length > 0)
        pool->stuck_said = now + STUCK_SAID_NS;
    wr_unlock(&lane->lock);
    if (stuck.length > 0)
        wr_log(pool->options.log, WEIR_LOG_WARN, "callbacks do not return:%s", stuck.text);
    return stuck.any;
}

bool wr_pool_tick(struct wr_pool *pool, weir_time now)
{
    bool waits = wr_blocking_tick(pool, now);
    bool kept = wr_slots_tick(pool);
    if (!wr_inject_maybe(pool->inject)) {
        pool->tick_armed = false;
        return waits || kept || disarm(pool, now);
    }
    /* Progress is counted, not timed: a tick that comes late accuses nobody. */
    wr_lock(&pool->io.lock);
    uint64_t started = wr_worker_sum(&pool->io).started;
    wr_unlock(&pool->io.lock);
    if (pool->tick_armed && started == pool->tick_started)
        compensate(pool);
    else
        pool->tick_capped = false;
    pool->tick_armed = true;
    pool->tick_started = started;
    return true;
}

/* ---- counters ------------------------------------------------------------------------------ */

void wr_pool_stats_get(struct wr_pool *pool, struct wr_pool_stats *ret_stats)
{
    struct wr_pool_stats stats = { .oldest_posted = wr_inject_oldest(pool->inject) };
    struct wr_lane *io = &pool->io, *blocking = &pool->blocking;

    stats.posts = wr_inject_pushes(pool->inject);
    wr_lock(&io->lock);
    struct wr_worker_sum sum = wr_worker_sum(io);
    stats.items_run = sum.started;
    for (struct wr_list *node = pool->guests.next; node != &pool->guests; node = node->next) {
        const struct wr_worker *guest = WR_CONTAINER_OF(node, struct wr_worker, node);
        stats.items_run += atomic_load_explicit(&guest->started, memory_order_relaxed);
    }
    stats.posts += sum.kept;
    stats.wakes = io->wakes;
    stats.parks = io->parks;
    stats.compensations = io->compensations;
    stats.workers = io->threads;
    stats.blocked = io->blocked;
    stats.parked = io->parked;
    wr_unlock(&io->lock);

    wr_lock(&blocking->lock);
    stats.items_run += wr_worker_sum(blocking).started;
    stats.posts += blocking->posts;
    stats.blocking_threads = blocking->threads;
    stats.blocking_queued = blocking->queued;
    if (blocking->first && blocking->first->posted_ < stats.oldest_posted)
        stats.oldest_posted = blocking->first->posted_;
    wr_unlock(&blocking->lock);
    *ret_stats = stats;
}
