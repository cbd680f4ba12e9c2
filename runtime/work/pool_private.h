/* pool_private.h: the pool as its own files see it: pool.c, worker.c, park.c, slot.c, blocking.c.
 * The protocol stands on top of pool.c. */
#ifndef WR_WORK_POOL_PRIVATE_H
#define WR_WORK_POOL_PRIVATE_H

#include <stdatomic.h>

#include "base/cpu_relax.h"
#include "base/list.h"
#include "os/lock.h"
#include "os/thread.h"
#include "queue/inject.h"
#include "work/pool.h"

/* Eight bytes of the host's, "-w", four digits: what the kernel keeps of a thread's name. */
#define WR_POOL_NAME_MAX 8

/* The word a worker sleeps on; written under its lane's lock, but for RUNNING. */
enum wr_worker_word {
    WR_WORKER_RUNNING = 0,
    WR_WORKER_PARKED = 1,       /* in the idle list */
    WR_WORKER_WOKEN = 2,        /* taken out of it: it owes a look at the queue */
    WR_WORKER_RETIME = 3        /* in the idle list, and has been given a time to leave at */
};

struct wr_worker {
    WR_ALIGN_LINE _Atomic uint64_t started;     /* items begun: written by itself alone */
    _Atomic uint64_t kept_runs;                 /* those of its slot, likewise */
    _Atomic(weir_work *) slot;                  /* see slot.c */
    _Atomic uintptr_t inside;                   /* the function of the item it is in, or 0 */
    _Atomic int subject;                        /* what that item is about, or -1 */
    struct wr_pool *pool;
    struct wr_lane *lane;
    unsigned index;                             /* its place in lane->slots */
    unsigned block_depth;                       /* announced blocks that are open; itself alone */
    /* slot.c, itself alone */
    bool kept;                                  /* has filled the slot and not looked since */
    unsigned streak, kept_in_a_row;
    const weir_work *posted;                    /* a name, never looked into */

    WR_ALIGN_LINE _Atomic uint32_t word;
    bool timed;                                 /* parked until leave_at; under the lock */
    int lease;                                  /* -1, or what it waits under; under the lock */
    weir_time leave_at;
    struct wr_list node;                        /* in lane->idle or lane->gone */
    _Atomic uint32_t created;                   /* who started it is done with this memory */
    uint64_t seen_started;                      /* by wr_pool_name_stuck(), at seen_at; */
    weir_time seen_at;                          /* under the lock */
    uint64_t slot_started;                      /* by the tick, when it saw the slot filled: */
    bool slot_seen;                             /* under the lock */
    void (*guest_block)(void *context);         /* set: a guest, of no lane */
    void *guest_context;
    struct wr_thread thread;
};

/* The threads of one lane. Everything is under `lock`. */
struct wr_lane {
    WR_ALIGN_LINE struct wr_lock lock;
    char letter;                    /* of the thread names */
    bool stopping;
    bool start_failed;              /* said once, until a start succeeds */
    unsigned threads_max;
    unsigned threads;               /* started or being started, and not leaving */
    unsigned starting;              /* of these, being started */
    unsigned living;                /* threads, and those that leave and are not in `gone` yet */
    unsigned parked, timed;
    struct wr_worker **slots;       /* by index; NULL is free */
    struct wr_list idle;            /* parked, the latest first */
    struct wr_list gone;            /* to be joined */
    uint64_t gone_started, gone_kept;
    uint64_t wakes, parks, compensations;
    /* the I/O lane */
    unsigned target;                /* how many should be unblocked at least */
    unsigned blocked;               /* of `threads`, inside an announced block */
    /* the blocking lane: its queue, oldest first */
    weir_work *first, *last;
    uint64_t queued, posts;
    bool full_said;                 /* said that jobs wait long, since the queue was empty */
    unsigned coming;                /* threads that will look at the queue before anything else */
};

struct wr_pool {
    WR_ALIGN_LINE _Atomic uint32_t request;     /* 1: somebody is bound to look at the queue */
    _Atomic uint32_t watching;                  /* 1: watch() was called, no tick was false since */

    WR_ALIGN_LINE _Atomic uint32_t spinners;
    _Atomic uint32_t refusing;
    _Atomic uint32_t exits;                     /* threads that ended; destroy sleeps on it */
    _Atomic(void (*)(void *)) block_hook;
    void *block_context;                        /* set before block_hook */
    weir_time stuck_said;                       /* when stuck workers may be named; io.lock */
    struct wr_inject *inject;
    struct wr_lane io, blocking;
    struct wr_list guests;                      /* under io.lock */

    /* who ticks, alone */
    bool tick_armed;                            /* tick_started is of the tick before */
    bool tick_capped;                           /* said that no worker can be added */
    uint64_t tick_started;

    struct wr_pool_options options;             /* `name` is not used: */
    char name[WR_POOL_NAME_MAX + 1];
};

/* Over all workers that a lane has and had: items begun, and of these those of their slots. */
struct wr_worker_sum {
    uint64_t started, kept;
};

/* ---- worker.c ---- */
/* The calling thread's worker (or guest) of any pool, or NULL. */
struct wr_worker *wr_worker_current(void);
/* Starts a thread that the caller has counted (wr_worker_count()). 0, -ENOMEM, -EAGAIN: it is
 * counted no more. Without the lock. */
int wr_worker_start(struct wr_pool *pool, struct wr_lane *lane);
/* Under the lock: one more thread is about to be started. */
void wr_worker_count(struct wr_lane *lane);
/* Under the lock: the calling worker will return from its loop and is no longer counted. */
void wr_worker_uncount(struct wr_worker *worker);
void wr_worker_run(struct wr_worker *worker, weir_work *work);
/* Around what a worker runs: it is counted, and blocks left open are closed. */
void wr_worker_begin(struct wr_worker *worker, uintptr_t function);
void wr_worker_end(struct wr_worker *worker);
/* ITEM; EMPTY: every item whose push happened before has been popped. Looks until it knows. */
enum wr_take wr_worker_take(struct wr_pool *pool, weir_work **ret_work);
/* Waits until no thread of the lane is left and joins them all; ticks meanwhile. Without the
 * lock. */
void wr_worker_join_all(struct wr_pool *pool, struct wr_lane *lane);
/* Under the lock. */
struct wr_worker_sum wr_worker_sum(const struct wr_lane *lane);

/* ---- pool.c ---- */
/* Binds one worker to look at the queue, unless one is bound already. Behind a push, or in front of
 * a look that follows. */
void wr_pool_request(struct wr_pool *pool);
/* Asks to be ticked: see wr_pool_options.watch. */
void wr_pool_watch(struct wr_pool *pool);
/* The same as wr_pool_request() if something may be queued; before a worker enters a callback. */
void wr_pool_request_more(struct wr_pool *pool);
void wr_pool_post_queue(struct wr_pool *pool, enum wr_class class, weir_work *work);

/* ---- park.c ---- */
enum wr_park { WR_PARK_AGAIN, WR_PARK_ITEM, WR_PARK_LEAVE };
enum wr_park wr_park(struct wr_worker *worker, weir_work **ret_work);
/* Looks for a short while before parking. True: something may be queued. */
bool wr_park_spin(struct wr_worker *worker);
/* Wakes the worker that parked last. False: nobody is parked. Without the lock. */
bool wr_park_wake(struct wr_pool *pool);
/* Under the lock: takes a parked worker out of the idle list and says so in its word. The caller
 * then wakes it with wr_park_rouse() and `*ret_lease`, without the lock. NULL: nobody is parked. */
struct wr_worker *wr_park_take_idle(struct wr_lane *lane, int *ret_lease);
void wr_park_rouse(struct wr_pool *pool, struct wr_worker *worker, int lease);
/* Under the lock: the same for all; wakes them itself. */
void wr_park_wake_all(struct wr_pool *pool, struct wr_lane *lane);

/* ---- guest.c ---- */
void wr_guest_blocking_begin(struct wr_worker *guest);

/* ---- slot.c ---- */
/* On a worker, about to post a job. True: the slot has it; false: it is for the queue. */
bool wr_slot_keep(struct wr_worker *worker, weir_work *work);
/* Posts to the queue what the slot has. */
void wr_slot_spill(struct wr_worker *worker);
/* The callback has returned: what to run next, or NULL. */
weir_work *wr_slot_take(struct wr_worker *worker);
/* `work`, or NULL, has come by another way. */
void wr_slot_taken_from_queue(struct wr_worker *worker, const weir_work *work);
/* The tick's part; true: some slot is filled. */
bool wr_slots_tick(struct wr_pool *pool);
/* After `watching` was cleared. */
bool wr_slots_filled(struct wr_pool *pool);

/* ---- blocking.c ---- */
/* Says when jobs have waited long for the lane. True: some wait, and it has not been said: look
 * again. Who ticks, alone. */
bool wr_blocking_tick(struct wr_pool *pool, weir_time now);
/* The loop of a thread of the blocking lane. */
void wr_blocking_loop(struct wr_worker *worker);

/* An item's state_: 1 from a post until run() is entered; never set in our own items. A post that
 * finds 1 is refused, and whoever made it relies on the run that is to come: it must see what was
 * written before that post. So freeing is an exchange and not a store, which could still wait in
 * the processor's buffer when run() looks already. */
static inline bool wr_work_claim(weir_work *work)
{
    /* acq_rel: pairs with the exchange in wr_work_free(): the reads of the run before are done; or
     * the run to come sees what the caller wrote */
    return __atomic_exchange_n(&work->state_, 1, __ATOMIC_ACQ_REL) == 0;
}

static inline void wr_work_free(weir_work *work)
{
    /* acq_rel: pairs with the exchange in wr_work_claim() */
    if (__atomic_load_n(&work->state_, __ATOMIC_RELAXED))
        (void)__atomic_exchange_n(&work->state_, 0, __ATOMIC_ACQ_REL);
}

/* A counter that one thread writes and others read. */
static inline void wr_count(_Atomic uint64_t *counter)
{
    uint64_t value = atomic_load_explicit(counter, memory_order_relaxed);
    atomic_store_explicit(counter, value + 1, memory_order_relaxed);
}

/* Places at which a test stops a worker, to replay a race. */
enum wr_pool_seam {
    WR_SEAM_BEFORE_PARK,        /* has looked and found nothing; is not published yet */
    WR_SEAM_PARK_PUBLISHED,     /* is in the idle list; has not cleared the request yet */
    WR_SEAM_CLEARING,           /* is about to clear the request, wherever it does */
    WR_SEAM_PARK_CLEARED,       /* has cleared it and not looked again yet */
    WR_SEAM_BEFORE_SLEEP,       /* has looked again */
    WR_SEAM_WOKEN,              /* has been woken; has not cleared the request */
    WR_SEAM_TICK_EMPTY,         /* the tick has found nothing and not cleared `watching` yet */
    WR_SEAM_TICK_DISARMED       /* the tick has cleared `watching` */
};

#ifdef WEIR_FAULTS
/* Set by tests before any pool exists; NULL: nothing. */
extern void (*wr_pool_seam_hook)(enum wr_pool_seam seam);
#define WR_SEAM(seam) (wr_pool_seam_hook ? wr_pool_seam_hook(seam) : (void)0)
#else
#define WR_SEAM(seam) ((void)(seam))
#endif

#endif
