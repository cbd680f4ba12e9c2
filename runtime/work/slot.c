/* slot.c: what a callback posts and its own worker runs next, without the pool's queue.
 *
 * An item that posts itself, or its successor, again and again would go through lines that all
 * workers write, and wake a second worker that finds it gone. So a worker that has run what it
 * posted itself STREAK_MIN times in a row, each time before anybody who was woken for it came,
 * keeps the next ones in a slot of its own. After KEPT_MAX of them it has to earn that again.
 *
 * slot      of each worker: NULL, or a job that the callback it runs has posted. Moved by exchange
 *           only: filled by its worker, emptied by its worker or by the tick.
 *
 *   keep    owner      in a callback, no block announced, `slot` NULL, nothing queued (so nothing
 *                      is overtaken, and whoever waits gets the next turn): slot <- the job;
 *                      watching is 1: done. Else watching <- 1, and watch() if that was 0
 *   spill   owner      a second post of the same callback, or a block is announced: slot <- NULL;
 *                      got it: post it to the queue
 *   run     owner      the callback has returned: slot <- NULL; got it: it is run next
 *   tick    one thread `slot` filled, its owner has begun nothing since the tick before, when it
 *                      was filled as well: the callback is long or does not return. slot <- NULL;
 *                      got it: post it to the queue. And no tick answers false while a slot is
 *                      filled: it clears `watching` first and looks at the slots then
 *
 * Each job runs once: of those who empty a slot the exchange lets one have it. None is stranded by
 * an owner that never returns: `keep` fills first and reads `watching` second, the tick clears
 * `watching` first and looks second, all four are sequentially consistent, so that the one or the
 * other sees the other; hence somebody ticks while a slot is filled, and its second tick takes the
 * job out. So a job waits two ticks (10 ms) at most for an owner that hangs without saying so, and
 * not at all for one that announces a block. No wake is owed for it before. */
#include "base/assert.h"
#include "os/clock.h"
#include "work/pool_private.h"

/* Waking the one who ticks costs as much as about so many posts to the queue. */
#define STREAK_MIN 16
#define KEPT_MAX 1024

/* What `worker` has posted was the only thing to do, and went to the queue. */
static void note_post(struct wr_worker *worker, weir_work *work)
{
    worker->posted = work;
}

bool wr_slot_keep(struct wr_worker *worker, weir_work *work)
{
    struct wr_pool *pool = worker->pool;
    if (worker->lane != &pool->io || worker->block_depth > 0)
        return false;
    if (worker->kept) {
        worker->streak = 0;
        wr_slot_spill(worker);
        return false;
    }
    if (wr_inject_maybe(pool->inject)) {
        note_post(worker, NULL);
        return false;
    }
    if (worker->streak < STREAK_MIN) {
        note_post(worker, work);
        return false;
    }
    worker->kept = true;
    /* seq_cst, both: pair with the exchange of `watching` in the tick and its look at the slots;
     * the first also with the exchange of who empties it, who then sees the item */
    weir_work *before = atomic_exchange_explicit(&worker->slot, work, memory_order_seq_cst);
    WR_ASSERT(!before);
    (void)before;
    if (atomic_load_explicit(&pool->watching, memory_order_seq_cst) == 0)
        wr_pool_watch(pool);
    return true;
}

/* NULL: it is empty, or somebody else was faster. */
static weir_work *empty(struct wr_worker *worker)
{
    if (!atomic_load_explicit(&worker->slot, memory_order_relaxed))
        return NULL;
    /* acquire: pairs with the exchange in wr_slot_keep() */
    return atomic_exchange_explicit(&worker->slot, NULL, memory_order_acquire);
}

void wr_slot_spill(struct wr_worker *worker)
{
    if (!worker->kept)
        return;
    worker->kept = false;
    weir_work *work = empty(worker);
    if (work)
        wr_pool_post_queue(worker->pool, WR_CLASS_JOB, work);
}

weir_work *wr_slot_take(struct wr_worker *worker)
{
    if (!worker->kept)
        return NULL;
    worker->kept = false;
    weir_work *work = empty(worker);
    if (!work || ++worker->kept_in_a_row >= KEPT_MAX)
        worker->streak = 0;
    if (work)
        wr_count(&worker->kept_runs);
    return work;
}

void wr_slot_taken_from_queue(struct wr_worker *worker, const weir_work *work)
{
    worker->streak = work == worker->posted ? worker->streak + 1 : 0;
    worker->posted = NULL;
    worker->kept_in_a_row = 0;
}

/* Under the lock. The jobs whose owners hang; `*ret_filled`: some slot is filled still. */
static weir_work *take_from_hung(struct wr_lane *lane, bool *ret_filled)
{
    weir_work *taken = NULL;
    unsigned left = lane->threads;
    *ret_filled = false;
    for (unsigned i = 0; i < lane->threads_max && left > 0; i++) {
        struct wr_worker *worker = lane->slots[i];
        if (!worker)
            continue;
        left--;
        uint64_t started = atomic_load_explicit(&worker->started, memory_order_relaxed);
        bool filled = atomic_load_explicit(&worker->slot, memory_order_relaxed);
        weir_work *work = NULL;
        if (filled && worker->slot_seen && worker->slot_started == started)
            work = empty(worker);
        if (work) {
            work->next_ = taken;
            taken = work;
            filled = false;
        }
        worker->slot_seen = filled;
        worker->slot_started = started;
        *ret_filled = *ret_filled || filled;
    }
    return taken;
}

bool wr_slots_tick(struct wr_pool *pool)
{
    bool filled;
    wr_lock(&pool->io.lock);
    weir_work *taken = take_from_hung(&pool->io, &filled);
    wr_unlock(&pool->io.lock);
    while (taken) {
        weir_work *next = taken->next_;
        wr_pool_post_queue(pool, WR_CLASS_JOB, taken);
        taken = next;
    }
    return filled;
}

bool wr_slots_filled(struct wr_pool *pool)
{
    struct wr_lane *lane = &pool->io;
    bool filled = false;
    wr_lock(&lane->lock);
    unsigned left = lane->threads;
    for (unsigned i = 0; i < lane->threads_max && left > 0; i++) {
        if (!lane->slots[i])
            continue;
        left--;
        /* seq_cst: pairs with the exchange in wr_slot_keep(), see above */
        filled = filled || atomic_load_explicit(&lane->slots[i]->slot, memory_order_seq_cst);
    }
    wr_unlock(&lane->lock);
    return filled;
}
