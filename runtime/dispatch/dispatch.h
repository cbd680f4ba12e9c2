/* dispatch.h: the joint of pollers, ready queues and the pool; what a runtime is to the layers
 * above. */
#ifndef WR_DISPATCH_DISPATCH_H
#define WR_DISPATCH_DISPATCH_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include <weir/base.h>

#include "base/alloc.h"
#include "base/cpu_relax.h"
#include "base/log.h"
#include "dispatch/shard.h"
#include "dispatch/slot.h"
#include "dispatch/source.h"
#include "dispatch/timer.h"
#include "dispatch/turns.h"
#include "dispatch/watchdog.h"
#include "os/thread.h"
#include "poll/poller.h"
#include "queue/ready.h"
#include "work/pool.h"
#include "work/pump.h"

/* Events a poller delivers, deadlines it expires, before it waits again: bounds one turn of it
 * (D7). */
#define WR_EXPIRE_MAX 256

/* One poller: a thread, a back end, a ready queue with its pump, and deadlines. */
struct wr_poller {
    weir_runtime *runtime;
    unsigned index;
    const struct wr_poll_ops *ops;
    struct wr_poller_backend *backend;
    struct wr_ready *ready;
    struct wr_poll_event *events;
    struct wr_thread thread;
    bool running; /* the thread was started */
    bool ticking; /* the poller alone: it watches over the pool */
    weir_time next_tick;
    bool waited;                /* the lease's holder, alone: it has been in the kernel */
    weir_time next;             /* who polls, alone: the first deadline */
    _Atomic uint32_t stop;
    _Atomic uint32_t tick_wanted; /* the pool asked to be watched */
    /* the polling lease (lease.c) */
    WR_ALIGN_LINE _Atomic uint32_t lease;
    _Atomic uint32_t guard, polls;
    int alarm;                  /* wakes the guarantor; -1: none */
    bool alarmed;               /* who holds the lease, alone: it has set the alarm, */
    uint32_t alarms;            /* how often, */
    weir_time alarms_counted;   /* and when it last looked at the clock for that */
    /* inline callbacks of a dedicated poller (inline.c, watchdog.c) */
    struct wr_worker *guest;
    _Atomic uint32_t section, napping;
    uint32_t section_seen; /* the watchdog alone */
    /* counters: written by who polls (wr_poller_count), read by anybody */
    WR_ALIGN_LINE _Atomic uint64_t waits;
    _Atomic uint64_t harvested, stale_drops, sync_wakes, pushes, timers_expired, poll_errors;
    _Atomic uint64_t inline_turns;
    /* written by many */
    WR_ALIGN_LINE _Atomic uint64_t doorbells;
    _Atomic uint32_t live; /* sources that live here */
    WR_ALIGN_LINE struct wr_pump pump;
    WR_ALIGN_LINE struct wr_timers timers;
};

struct wr_dispatch_options {
    const char *name;
    unsigned pollers, batch;
    weir_time slice_ns;
    uint32_t sources_max;
    size_t source_size; /* of the largest thing built on a source */
    size_t stack_size;
    unsigned recv_buffers;              /* of completion mode, a poller; 0: readiness */
    bool per_event, lease, inline_callbacks;
    const struct wr_poll_ops *ops;
};

/* The hub that the public pointer names. runtime.c fills in alloc, log, pool and the hooks. */
struct weir_runtime {
    struct wr_alloc alloc;
    struct wr_log log;
    struct wr_pool *pool;
    struct wr_slots slots;
    struct wr_poller *pollers;
    unsigned poller_count;
    unsigned batch;
    /* One work item an event: where that of a source lies behind it; 0: the pumps, and none does.
     */
    size_t work_offset;
    /* completion mode: where in a source's memory its struct wr_inbound * is; else 0 */
    size_t inbound_offset;
    bool lease;                                 /* idle workers poll */
    wr_turn_fn *turn[WR_KINDS];                 /* the layers above fill theirs in */
    bool inline_callbacks; /* who polled runs them */
    bool inline_dedicated; /* and that is a poller's own thread */
    struct wr_watchdog watchdog;
    pid_t pid;                 /* who made it: not the child of a fork */
    _Atomic uint32_t stopping; /* destroy has begun */
    _Atomic uint32_t draining;
    _Atomic uint32_t kept;   /* our code cannot be unloaded any more */
    const void *maker;       /* where the runtime was made: code that is kept as well; or NULL */
    void (*thread_start)(const char *name, void *context);
    void (*thread_stop)(const char *name, void *context);
    void *thread_context;
    void (*callbacks_end)(void); /* a thread that ran callbacks ends: the net layer's own */
    struct wr_shards *shards;
    struct wr_turns turns;
    size_t write_budget; /* bytes that may wait to be sent, on all sockets together */
};

/* Makes pollers, not yet their threads. 0 or -errno; on failure call wr_dispatch_fini() all the
 * same. */
int wr_dispatch_init(weir_runtime *runtime, const struct wr_dispatch_options *options);
/* Starts the threads; needs runtime->pool. */
int wr_dispatch_start(weir_runtime *runtime, const struct wr_dispatch_options *options);
/* Stops and joins the threads; the pool may still run. */
void wr_dispatch_stop(weir_runtime *runtime);
void wr_dispatch_fini(weir_runtime *runtime);
/* After a fork, in the child: closes the pollers' descriptors, nothing else. */
void wr_dispatch_forget(weir_runtime *runtime);
/* For wr_pool_options.watch. */
void wr_dispatch_watch(void *runtime);

/* A source for `fd`, not yet attached; its turns are runtime->turn[kind]. 0; -ENOSPC; -ENOMEM;
 * -ESHUTDOWN. */
int wr_source_open(weir_runtime *runtime, int fd, unsigned kind, struct wr_source **ret_source);
/* Begin to be watched, and be found by sweeps. Nothing may be wanted of the source yet. 0 or -errno
 * of the back end: then call wr_source_release(). */
int wr_source_attach(struct wr_source *source, enum wr_poll_mode mode);
/* ONESHOT only: see wr_poll_ops. */
int wr_source_rearm(struct wr_source *source, uint32_t bits);
/* No event of it from now on; before its fd is closed. */
void wr_source_detach(struct wr_source *source);
/* The slot is free again; nothing of it may be in a queue or in a turn but the caller's own, last
 * one. */
void wr_source_release(struct wr_source *source);

/* A turn of a source that the caller has LINKED. Any thread. */
void wr_dispatch_post_turn(weir_runtime *runtime, struct wr_source *source);

/* Around a call that sleeps in a source and touches the runtime when it has been let go, its pin
 * given back: destroy waits for it. Any thread; entered while the runtime is sure to be there. */
void wr_dispatch_enter(weir_runtime *runtime);
void wr_dispatch_leave(weir_runtime *runtime);
/* Destroy, when no source is left: until nobody is inside. */
void wr_dispatch_wait_left(weir_runtime *runtime);

/* Sleeps until no source is left or the deadline. 0 or -ETIMEDOUT. */
int wr_dispatch_wait_empty(weir_runtime *runtime, weir_time deadline);

/* Of whoever polls, alone: an add that locks no line. */
static inline void wr_poller_count(_Atomic uint64_t *counter, uint64_t add)
{
    atomic_store_explicit(counter, atomic_load_explicit(counter, memory_order_relaxed) + add,
                          memory_order_relaxed);
}

void wr_poller_doorbell(struct wr_poller *poller);
/* Arms or moves a deadline of something that lives at `poller`; rings when that is needed. */
void wr_poller_deadline(struct wr_poller *poller, struct weir_deadline_ *deadline, weir_time when);

/* poller_thread.c: the body of a dedicated poller's thread. */
void *wr_poller_main(void *poller);

#endif
