/* user_timer.c: the timers of weir/timer.h, on a poller's deadlines and the pool.
 *
 * The way of an expiry: poller, under the lock of its timers: expire() -> the embedded work item ->
 * a worker: run() -> the callback -> end_call(). What is going on is one word, state_, of bits:
 *
 *   ARMED    the deadline hangs (or is being hung) in the timers of shard_
 *   DUE      it has expired and no callback has been begun for it
 *   POSTED   the work item is with the pool
 *   RUNNING  the callback is running
 *   REPEAT   when that callback has returned, the timer is armed for its next period
 *   ENDED    weir_timer_fini() has begun: nothing is begun any more
 *
 *   who                      move                                    under
 *   set                      -> ARMED, not DUE, not REPEAT           the timer's lock
 *   cancel                   -> not ARMED, not DUE, not REPEAT       the timer's lock
 *   fini                     as cancel, -> ENDED                     the timer's lock
 *   expire, neither POSTED   ARMED -> DUE, POSTED, then posts        the lock of the timers
 *     nor RUNNING
 *   expire, else             ARMED -> DUE                            the lock of the timers
 *   drop (destroy)           -> not ARMED                            the lock of the timers
 *   run, DUE                 DUE, POSTED -> RUNNING (REPEAT)         the timer's lock
 *   run, not DUE (revoked)   POSTED -> nothing                       -
 *   end_call, REPEAT         REPEAT -> ARMED                         the timer's lock
 *   end_call, last move      RUNNING -> nothing, or                  -
 *                            RUNNING, DUE -> POSTED, DUE, then posts
 *
 * I1 The callback never runs twice at once, the work item is never posted twice: POSTED is only set
 *    by whoever moves from neither POSTED nor RUNNING, or from RUNNING in the same move; RUNNING is
 *    only set by the one worker that got the item.
 * I2 ARMED and DUE exclude each other at every unlock of the timer's lock: what expired is
 *    forgotten before the timer is hung again. So a set never inherits an old expiry, and never
 *    loses its own: when wr_timers_move() says it moved a hanging deadline, no old expiry exists;
 *    when it says it did not, none can come until wr_timers_set().
 * I3 An expiry is not lost: DUE with neither POSTED nor RUNNING is never left behind, because
 *    expire and the last moves of end_call and of run are RMWs of one word: the later of two sees
 *    the earlier.
 * I4 DUE, ARMED and REPEAT are never set once ENDED is: set and end_call look under the timer's
 *    lock, expire needs ARMED.
 *
 * Locks: the timer's own (settings: first_, period_, mode_, shard_; and the bits as above), then
 * that of the timers. expire and drop come the other way round and so take no lock of the timer:
 * they only move the word. The callback runs under neither.
 *
 * Order: everything but the word is ordered by the two locks and by the pool. The word's moves are
 * RMWs, so every release in it is continued by all later moves: the release in a last move pairs
 * with the acquire in begin_call() (the next callback sees what this one wrote) and with that in
 * weir_timer_fini() (the memory is the caller's). The release of "not ARMED" in expire and drop
 * pairs with that of fini, too, and with that in weir_timer_set(), because neither takes the lock
 * of timers that nothing hangs in. After a last move that leaves neither POSTED nor RUNNING the
 * timer is not touched: it may be gone; waking fini() only uses its address. */
#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#include <weir/timer.h>

#include "base/assert.h"
#include "base/list.h"
#include "dispatch/hub.h"
#include "dispatch/user_timer.h"
#include "os/clock.h"
#include "os/lock.h"
#include "work/pool.h"

enum { ARMED = 1, DUE = 2, POSTED = 4, RUNNING = 8, REPEAT = 16, ENDED = 32 };

/* The public struct must be readable as C++ and so cannot say _Atomic. */
_Static_assert(sizeof(_Atomic uint32_t) == sizeof(uint32_t), "state_ is used as an atomic");
_Static_assert(sizeof(struct wr_lock) == sizeof(uint32_t), "again_ is used as a lock");

/* The callback that this thread is in: fini() of that very timer must not wait for it, and ends it,
 * so that its memory is not touched after it has returned. */
struct call {
    weir_timer *timer;
    bool ended;
};
static _Thread_local struct call *current;

#ifdef WEIR_FAULTS
void (*wr_timer_seam_hook)(enum wr_timer_seam seam);
#endif

static _Atomic uint32_t *word_of(weir_timer *timer)
{
    return (_Atomic uint32_t *)(void *)&timer->state_;
}

static struct wr_lock *lock_of(weir_timer *timer)
{
    return (struct wr_lock *)(void *)&timer->again_;
}

static struct wr_timers *timers_of(weir_timer *timer)
{
    return wr_dispatch_timers(timer->runtime_, timer->shard_);
}

/* relaxed, both: see "Order" above; what they publish is ordered by the lock that the caller holds.
 * */
static uint32_t raise_bits(weir_timer *timer, uint32_t bits)
{
    return atomic_fetch_or_explicit(word_of(timer), bits, memory_order_relaxed);
}

static uint32_t drop_bits(weir_timer *timer, uint32_t bits)
{
    return atomic_fetch_and_explicit(word_of(timer), ~bits, memory_order_relaxed);
}

static void post(weir_timer *timer)
{
    wr_pool_post_own(wr_dispatch_pool(timer->runtime_), &timer->work_);
}

/* The poller, under the lock of the timers. */
static void expire(struct weir_deadline_ *deadline)
{
    weir_timer *timer = WR_CONTAINER_OF(deadline, weir_timer, deadline_);
    uint32_t old = atomic_load_explicit(word_of(timer), memory_order_relaxed);
    uint32_t new;

    do {
        WR_ASSERT((old & (ARMED | DUE)) == ARMED);
        new = (old & ~(uint32_t)ARMED) | DUE;
        if (!(old & (POSTED | RUNNING)))
            new |= POSTED;
        /* release: pairs with the acquire in weir_timer_set() and in weir_timer_fini() */
    } while (!atomic_compare_exchange_weak_explicit(word_of(timer), &old, new, memory_order_release,
                                                    memory_order_relaxed));
    if (!(old & (POSTED | RUNNING)))
        post(timer);
}

void wr_user_timer_drop(struct weir_deadline_ *deadline)
{
    if (deadline->expire_ != expire)
        return;
    weir_timer *timer = WR_CONTAINER_OF(deadline, weir_timer, deadline_);
    /* release: pairs with the acquire in weir_timer_set() and in weir_timer_fini() */
    atomic_fetch_and_explicit(word_of(timer), ~(uint32_t)ARMED, memory_order_release);
}

/* Whole periods from `first` until now. */
static int64_t periods_since(weir_time first, weir_time period)
{
    weir_time now = wr_clock_now();
    weir_time late;

    if (now <= first)
        return 0;
    if (__builtin_sub_overflow(now, first, &late))
        late = INT64_MAX;
    return late / period;
}

/* ---- the worker ----------------------------------------------------------------------------- */

/* Begins the callback that is due; false: what was due has been revoked. */
static bool begin_call(weir_timer *timer, uint64_t *ret_missed)
{
    bool begun = false;

    *ret_missed = 0;
    wr_lock(lock_of(timer));
    if (atomic_load_explicit(word_of(timer), memory_order_relaxed) & DUE) {
        uint32_t repeat = timer->mode_ == WEIR_TIMER_ONCE ? 0 : REPEAT;
        /* DUE and POSTED are set, RUNNING and REPEAT are not, nobody else moves them now: one XOR.
 * * acquire: pairs with the release in end_call(): this callback sees what the last one wrote */
        uint32_t old = atomic_fetch_xor_explicit(word_of(timer), DUE | POSTED | RUNNING | repeat,
                                                 memory_order_acquire);
        WR_ASSERT((old & (DUE | POSTED | RUNNING | REPEAT | ENDED)) == (DUE | POSTED));
        (void)old;
        begun = true;
        if (timer->mode_ == WEIR_TIMER_RATE) {
            int64_t periods = periods_since(timer->first_, timer->period_);
            timer->first_ = wr_clock_add(timer->first_ + periods * timer->period_, timer->period_);
            *ret_missed = (uint64_t)periods;
        }
    }
    wr_unlock(lock_of(timer));
    return begun;
}

/* Hangs a deadline that does not hang; under the timer's lock. True: ring the doorbell of shard_.
 * */
static bool hang(weir_timer *timer, weir_time when)
{
    struct wr_timers *timers = timers_of(timer);

    if (when == WEIR_NEVER)
        return false;
    raise_bits(timer, ARMED);
    bool ring = wr_timers_set(timers, &timer->deadline_, when);
    /* Closed: it never hung, or drop() has been or is being called: the cancel waits for that. */
    if (!ring && wr_timers_closed(timers)) {
        wr_timers_cancel(timers, &timer->deadline_);
        drop_bits(timer, ARMED);
    }
    return ring;
}

static void rearm(weir_timer *timer)
{
    bool ring = false;

    wr_lock(lock_of(timer));
    uint32_t shard = timer->shard_;
    /* Asked again under the lock: set, cancel and fini withdraw it. */
    if (atomic_load_explicit(word_of(timer), memory_order_relaxed) & REPEAT) {
        drop_bits(timer, REPEAT);
        if (timer->mode_ == WEIR_TIMER_RATE)
            ring = hang(timer, timer->first_);
        else
            ring = hang(timer, wr_clock_add(wr_clock_now(), timer->period_));
    }
    wr_unlock(lock_of(timer));
    if (ring)
        wr_dispatch_doorbell(timer->runtime_, shard);
}

static void end_call(weir_timer *timer)
{
    weir_runtime *runtime = timer->runtime_;
    _Atomic uint32_t *word = word_of(timer);

    if (atomic_load_explicit(word, memory_order_relaxed) & REPEAT)
        rearm(timer);
    uint32_t old = atomic_load_explicit(word, memory_order_relaxed);
    uint32_t new;
    WR_TIMER_SEAM(WR_TIMER_SEAM_LAST_MOVE);
    do {
        WR_ASSERT(old & RUNNING && !(old & POSTED));
        new = old & ~(uint32_t)RUNNING;
        if (old & DUE)
            new |= POSTED;
        /* release: pairs with the acquire in begin_call() and in weir_timer_fini() */
    } while (!atomic_compare_exchange_weak_explicit(word, &old, new, memory_order_release,
                                                    memory_order_relaxed));
    if (new & POSTED)
        post(timer);                    /* fini() waits for POSTED, too: the timer is still there */
    else if (new & ENDED)
        wr_dispatch_wake(runtime, word);
}

static void run(weir_work *work, void *context)
{
    weir_timer *timer = context;
    weir_runtime *runtime = timer->runtime_;
    _Atomic uint32_t *word = word_of(timer);
    uint64_t missed;

    (void)work;
    for (;;) {
        uint32_t old = atomic_load_explicit(word, memory_order_relaxed);
        WR_ASSERT(old & POSTED && !(old & RUNNING));
        WR_TIMER_SEAM(old & DUE ? WR_TIMER_SEAM_DUE : WR_TIMER_SEAM_REVOKED);
        if (old & DUE) {
            if (begin_call(timer, &missed))
                break;
            /* release: pairs with the acquire in weir_timer_fini() */
        } else if (atomic_compare_exchange_weak_explicit(word, &old, old & ~(uint32_t)POSTED,
                                                         memory_order_release,
                                                         memory_order_relaxed)) {
            if (old & ENDED)
                wr_dispatch_wake(runtime, word);
            return;
        }
    }
    struct call call = { .timer = timer, .ended = false };
    current = &call;
    timer->run_(timer, missed, timer->context_);
    current = NULL;
    if (!call.ended)
        end_call(timer);
}

/* ---- the caller ------------------------------------------------------------------------------ */

void weir_timer_init(weir_timer *timer, weir_runtime *runtime, weir_timer_fn *run_fn, void *context)
{
    if (timer == NULL)
        return;
    *timer = (weir_timer){ .runtime_ = runtime, .run_ = run_fn, .context_ = context };
    wr_deadline_init(&timer->deadline_, expire);
    weir_work_init(&timer->work_, run, timer);
}

int weir_timer_set(weir_timer *timer, weir_time first, weir_time period, enum weir_timer_mode mode)
{
    bool ring = false;

    if (timer == NULL || timer->runtime_ == NULL || timer->run_ == NULL || first == WEIR_NEVER)
        return -EINVAL;
    if (mode != WEIR_TIMER_ONCE && mode != WEIR_TIMER_RATE && mode != WEIR_TIMER_DELAY)
        return -EINVAL;
    if (mode != WEIR_TIMER_ONCE && period <= 0)
        return -EINVAL;
    weir_runtime *runtime = timer->runtime_;
    if (wr_dispatch_stopping(runtime))
        return -ESHUTDOWN;
    wr_lock(lock_of(timer));
    /* acquire: pairs with the release in expire() and drop: not ARMED means that they have left the
     * deadline alone, which may be hung at another poller now, under another lock */
    uint32_t state = atomic_load_explicit(word_of(timer), memory_order_acquire);
    if (state & ENDED) {
        wr_unlock(lock_of(timer));
        return -ESHUTDOWN;
    }
    /* Periods that were over before the timer was set are nobody's: the first call missed none. */
    timer->first_ = mode == WEIR_TIMER_RATE ? first + periods_since(first, period) * period : first;
    timer->period_ = period;
    timer->mode_ = (uint32_t)mode;
    bool moved = state & ARMED &&
                 wr_timers_move(timers_of(timer), &timer->deadline_, timer->first_, &ring);
    if (!moved) {
        drop_bits(timer, DUE | REPEAT);
        timer->shard_ = wr_dispatch_shard(runtime);
        ring = hang(timer, timer->first_);
    }
    uint32_t shard = timer->shard_;
    wr_unlock(lock_of(timer));
    /* From here on the callback may have run, ended the timer and freed it: it is not looked at. */
    if (ring)
        wr_dispatch_doorbell(runtime, shard);
    /* Asked last: not closed means that the timer hung, or still hangs, among live timers. */
    return wr_timers_closed(wr_dispatch_timers(runtime, shard)) ? -ESHUTDOWN : 0;
}

/* Under the timer's lock. True: something that would have run will not. */
static bool disarm(weir_timer *timer)
{
    bool disarmed = false;

    if (atomic_load_explicit(word_of(timer), memory_order_relaxed) & ARMED)
        disarmed = wr_timers_cancel(timers_of(timer), &timer->deadline_);
    /* From here on no expiry can come: either it hung no more, or expire() has returned. */
    return drop_bits(timer, ARMED | DUE | REPEAT) & DUE || disarmed;
}

int weir_timer_cancel(weir_timer *timer)
{
    if (timer == NULL)
        return -EINVAL;
    wr_lock(lock_of(timer));
    bool disarmed = disarm(timer);
    wr_unlock(lock_of(timer));
    return disarmed ? 0 : -EALREADY;
}

void weir_timer_fini(weir_timer *timer)
{
    if (timer == NULL)
        return;
    wr_lock(lock_of(timer));
    disarm(timer);
    raise_bits(timer, ENDED);
    wr_unlock(lock_of(timer));
    if (current != NULL && current->timer == timer) {
        current->ended = true;
        return;
    }
    _Atomic uint32_t *word = word_of(timer);
    for (;;) {
        /* acquire: pairs with the release of the last move in end_call() or run(), and with that in
 * * expire() and drop, which may have seen to the deadline without any call having come of it */
        uint32_t state = atomic_load_explicit(word, memory_order_acquire);
        if (!(state & (POSTED | RUNNING)))
            break;
        /* The item may wait for this very worker: let the pool replace it. */
        wr_dispatch_sleep(timer->runtime_, word, state, WEIR_NEVER);
    }
}
