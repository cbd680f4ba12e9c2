/* lease_gates.h: a runtime whose workers and guarantors wait, where a race would be, until the test
 * lets them on. */
#ifndef WEIR_TESTS_LEASE_GATES_H
#define WEIR_TESTS_LEASE_GATES_H

#include "support/lease.h"

#include "dispatch/dispatch.h"
#include "dispatch/lease.h"
#include "work/pool_private.h"

/* The bits of a poller's `guard`. */
#define ASLEEP 1u
#define CALLED 2u
#define RESTING 4u

/* A place where a thread waits to be let on. */
struct gate {
    _Atomic int tickets; /* threads that may pass */
    _Atomic unsigned come, waiting;
};

extern struct gate gates[WR_LEASE_SEAMS];
extern struct gate parking;         /* WR_SEAM_BEFORE_PARK */
extern _Atomic unsigned looks[4];   /* of guarantors, by poller */

/* All gates open. Before lease_open(). */
void hook(void);
/* hook(), then lease_open() with one poller and worker, whose guarantor sleeps this way: RESTING;
 * ASLEEP, as when the kernel has no timer for it. */
void open_sleeping(struct rig *rig, uint32_t how);
/* The guarantor has said that it sleeps, and does not yet: WR_LEASE_SEAM_ASLEEP holds it. */
void hold_asleep(struct rig *rig, uint32_t how);
/* Opens all gates, then as lease_close(). */
void close_all(struct rig *rig);

void hold(struct gate *gate);
void let_all(struct gate *gate);
void await_somebody_at(struct gate *gate);
/* Lets one pass, who is there or will come. */
void let_one(struct gate *gate);
/* Lets the guarantor make one look, until it comes back for the next. */
void one_look(void);
/* The guarantor of poller 0, wherever it is, comes to its next look and stays there. */
void stop_guarantor(struct rig *rig);
uint32_t guard_word(struct rig *rig);

#endif
