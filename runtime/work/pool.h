/* pool.h: the worker pool: I/O lane with parking, throttled wakes and compensation; blocking lane.
 *
 * It knows nothing of descriptors. The protocol of sleeping and waking stands on top of pool.c. */
#ifndef WR_WORK_POOL_H
#define WR_WORK_POOL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <weir/base.h>
#include <weir/work.h>

#include "base/alloc.h"
#include "base/log.h"

struct wr_pool;

/* What an idle worker may do instead of sleeping: wait for events itself (the polling lease). */
struct wr_pool_idle {
    int (*take)(void *context);             /* >= 0: a lease, to be finished; -1: park */
    void (*ask)(void *context);             /* has parked without one: whoever has one gives it */
    int (*wait)(void *context, int lease);  /* sleeps; the worker counts as parked meanwhile */
    /* Gives the lease back; what is returned (NULL: nothing) is then run as an item. */
    void *(*finish)(void *context, int lease, int count);
    void (*run)(void *context, void *item);
    void (*wake)(void *context, int lease); /* any thread: ends a wait; never blocks */
    /* The calling worker has announced a block, its first one; `added`: a worker was started. */
    void (*block)(void *context, bool added);
};

struct wr_pool_options {
    const char *name;               /* thread name prefix */
    unsigned workers, workers_max, blocking_max;
    unsigned spin_us;
    size_t stack_size;
    struct wr_alloc *alloc;
    const struct wr_log *log;
    void (*thread_start)(const char *name, void *context);
    void (*thread_stop)(const char *name, void *context);
    void *thread_context;
    /* Called (any thread, must not block) when work was posted and no worker is parked, at most
     * once until wr_pool_tick() has answered false: the caller then calls wr_pool_tick() every
     * WR_POOL_TICK_NS. */
    /* It may come again while wr_pool_tick() is on its way to answer false: whoever keeps a note
     * of it takes the note down before the tick, not after. */
    void (*watch)(void *context);
    void *watch_context;
    const struct wr_pool_idle *idle;    /* NULL: idle workers park */
    void *idle_context;
    weir_time idle_ns;              /* surplus workers, blocking threads leave after it; 0: 10 s */
};

/* How often a busy pool is looked at by the detector of unannounced blocks. */
#define WR_POOL_TICK_NS 5000000

struct wr_pool_stats {
    uint64_t posts, items_run, wakes, parks, compensations;
    uint64_t workers, blocked, parked, blocking_threads, blocking_queued;
    weir_time oldest_posted;        /* of both lanes; WEIR_NEVER: nothing is queued */
};

/* 0; -ENOMEM; -EAGAIN not one worker (fewer than asked for: a warning and success). */
int wr_pool_create(struct wr_pool **ret_pool, const struct wr_pool_options *options);
/* Refuse public posts from now on (-ESHUTDOWN). */
void wr_pool_refuse(struct wr_pool *pool);
/* Runs what is queued in both lanes, also what running items post to the I/O lane, joins all
 * threads, frees. A callback that blocks for ever makes it wait for ever. NULL is fine. Never
 * from a worker; no thread that is not a worker may post, tick or read the counters any more:
 * this ticks by itself. */
void wr_pool_destroy(struct wr_pool *pool);

/* weir_post and weir_post_blocking: see weir/work.h for the results. */
int wr_pool_post(struct wr_pool *pool, weir_work *work);
int wr_pool_post_blocking(struct wr_pool *pool, weir_work *work);
/* Our own items, which I/O and deadlines bring: never refused, never fails, no double-post check
 * (the caller guarantees it). They overtake what was posted, within WR_INJECT_IO_MAX. */
void wr_pool_post_own(struct wr_pool *pool, weir_work *work);

/* The calling thread: is it a worker (either lane) of this pool / an I/O worker of any pool? */
bool wr_pool_is_worker(const struct wr_pool *pool);
bool wr_pool_on_io_worker(void);
/* See weir/work.h. The block hook runs first on each begin, nested ones too. */
void wr_pool_blocking_begin(void);
void wr_pool_blocking_end(void);
/* A function called on an I/O worker when it announces a block (net flushes what the callback
 * wrote). NULL: none. Set before the first item is posted. */
void wr_pool_set_block_hook(struct wr_pool *pool, void (*hook)(void *context), void *context);
/* Wakes one worker that sleeps in the pool (not one that waits under a lease). False: there is
 * none. */
bool wr_pool_wake(struct wr_pool *pool);
/* On a worker, inside an item: what it is about, a descriptor for one. Until the item ends. */
void wr_pool_note(int subject);
/* Says at warn level, at most once a second, which workers have been inside one item for
 * WR_POOL_STUCK_NS or longer, as far as calls of this can tell. True: some worker is inside an
 * item, and another call later may tell more. */
bool wr_pool_name_stuck(struct wr_pool *pool, weir_time now);
#define WR_POOL_STUCK_NS 100000000

/* A thread that is not the pool's and runs items (guest.c): to announced blocks, notes and the
 * naming of stuck callbacks it is like a worker. */
struct wr_worker;
/* `block` is called on the guest when a callback announces a block, its first one. 0 or -ENOMEM.
 * Owner: the caller; any thread, as long as the pool lives. */
int wr_pool_guest_add(struct wr_pool *pool, const char *name, void (*block)(void *context),
                      void *context, struct wr_worker **ret_guest);
/* When its thread has ended. NULL is fine. */
void wr_pool_guest_remove(struct wr_worker *guest);
/* The calling thread is that guest from now on; NULL: no more. */
void wr_pool_guest_here(struct wr_worker *guest);
/* On a worker or guest: one item begins, another begins at once, the item ends. */
void wr_pool_item_begin(uintptr_t function);
void wr_pool_item_next(uintptr_t function);
void wr_pool_item_end(void);

/* The detector: compensates when items are waiting and none was started since the tick before, says
 * when jobs have waited long for the blocking lane.
 * True: keep ticking; false: nothing waits, watch() will be called again. One thread at a time. */
bool wr_pool_tick(struct wr_pool *pool, weir_time now);

void wr_pool_stats_get(struct wr_pool *pool, struct wr_pool_stats *ret_stats);

#endif
