/* lease.h: who polls: the poller's own thread (dedicated), or idle workers that lend themselves
 * (lease).
 *
 * Under the lease a worker that finds no work waits in the kernel instead of parking: what it
 * harvests it runs itself, and nothing is handed over or woken. The poller's thread is the
 * guarantor. The protocol stands on top of lease.c. */
#ifndef WR_DISPATCH_LEASE_H
#define WR_DISPATCH_LEASE_H

#include "work/pool.h"

struct wr_poller;

enum wr_lease_state {
    WR_LEASE_FREE = 0,      /* nobody polls: every worker that did is in a callback, or none did */
    WR_LEASE_WAITING = 1,   /* a worker waits in the kernel: nothing is owed to anybody */
    WR_LEASE_WORKING = 2,   /* a worker delivers what it harvested; it runs no callback */
    WR_LEASE_GUARD = 3      /* the guarantor polls */
};

/* For wr_pool_options.idle; the context is the runtime. */
extern const struct wr_pool_idle wr_lease_idle;

/* The body of a poller's thread under the lease. */
void *wr_guard_main(void *poller);
/* Makes the guarantor look: to stop, or to watch over the pool. Any thread. */
void wr_guard_wake(struct wr_poller *poller);
/* A worker is about to block: if nobody polls now, somebody else has to. */
void wr_lease_blocking(weir_runtime *runtime);

#endif
