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
    WR_LEASE_GUARD = 3,     /* the guarantor polls */
    WR_LEASE_WANTED = 4     /* it still does; a worker has parked that would like to */
};

/* Places at which a test stops a thread, to replay a race. */
enum wr_lease_seam {
    WR_LEASE_SEAM_WORKING,          /* a worker has moved the lease; not looked at the guarantor */
    WR_LEASE_SEAM_FREE,             /* it has given the lease back; its callback comes next */
    WR_LEASE_SEAM_LOOK,             /* the guarantor begins a look */
    WR_LEASE_SEAM_TAKING,           /* it has found nobody parked; has not taken the lease yet */
    WR_LEASE_SEAM_GUARD,            /* it has taken the lease; does not poll yet */
    WR_LEASE_SEAM_BEFORE_SLEEP,     /* it has seen WAITING; is not ASLEEP yet */
    WR_LEASE_SEAM_ASLEEP,           /* it is ASLEEP and has looked again; does not sleep yet */
    WR_LEASE_SEAM_SLEEPS,           /* nothing kept it awake; the system call comes next */
    WR_LEASE_SEAM_ALARM,            /* a worker is about to set the alarm, or to take it back */
    WR_LEASE_SEAMS
};

#ifdef WEIR_FAULTS
/* Set by tests before any runtime exists; NULL: nothing. */
extern void (*wr_lease_seam_hook)(enum wr_lease_seam seam, struct wr_poller *poller);
#define WR_LEASE_SEAM(seam, poller) \
    (wr_lease_seam_hook ? wr_lease_seam_hook(seam, poller) : (void)0)
#else
#define WR_LEASE_SEAM(seam, poller) ((void)(seam), (void)(poller))
#endif

/* For wr_pool_options.idle; the context is the runtime. */
extern const struct wr_pool_idle wr_lease_idle;

/* The body of a poller's thread under the lease. */
void *wr_guard_main(void *poller);
/* Makes the guarantor look: to stop, or to watch over the pool. Any thread. */
void wr_guard_wake(struct wr_poller *poller);

#endif
