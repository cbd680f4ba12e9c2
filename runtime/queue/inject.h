/* inject.h: the pool's queue of work items: intrusive, unbounded, many to many, of two classes:
 * what I/O brings goes before jobs, and each class is first in, first out.
 *
 * Producers push on a ck_stack (one compare-and-swap, no lock); a consumer that holds the take lock
 * turns the whole stack round into a list and pops from that list. The lock is only ever tried.
 *
 *            | push  | pop                        | size
 *   push     | free  | free                       | free
 *   pop      | free  | one succeeds, others UNCERTAIN | free
 *
 * UNCERTAIN: another consumer is taking right now: the queue may hold more. Whoever sees it
 * looks again before sleeping. What the taker leaves stays in the shared list: a taker that then
 * blocks for ever takes nothing with it but its own item. */
#ifndef WR_QUEUE_INJECT_H
#define WR_QUEUE_INJECT_H

#include <stddef.h>

#include <weir/work.h>

#include "base/alloc.h"

struct wr_inject;

enum wr_take { WR_TAKE_EMPTY, WR_TAKE_ITEM, WR_TAKE_UNCERTAIN };

/* A job may wait long, and in a queue of jobs that sleep what the kernel has brought must not wait
 * with them. So items of I/O are popped first; after WR_INJECT_IO_MAX of them in a row a job is, if
 * one is there. */
enum wr_class { WR_CLASS_IO, WR_CLASS_JOB, WR_CLASSES };
#define WR_INJECT_IO_MAX 8

int wr_inject_create(struct wr_inject **ret_inject, struct wr_alloc *alloc);
void wr_inject_destroy(struct wr_inject *inject);
/* Uses work->next_. `work` must stay until it is popped. Loads that follow it are not made before
 * it. */
void wr_inject_push(struct wr_inject *inject, enum wr_class class, weir_work *work);
/* Orders the looks that follow (pop, maybe) behind an exchange that the thread has just made. */
void wr_inject_before_look(void);
enum wr_take wr_inject_pop(struct wr_inject *inject, weir_work **ret_work);
/* True when an item is or may be there. False: every item whose push happened before the call
 * has been popped (so no item that the caller must know of is overlooked; exact when nothing
 * runs). */
int wr_inject_maybe(const struct wr_inject *inject);
/* weir_work.posted_ of the oldest item, or WEIR_NEVER when it is empty; may be a little off
 * while others take. */
weir_time wr_inject_oldest(struct wr_inject *inject);
/* How many were pushed, as counted by consumers: exact behind wr_inject_oldest() when nobody
 * pushes or takes. */
uint64_t wr_inject_pushes(const struct wr_inject *inject);

#ifdef WEIR_FAULTS
/* For tests: be the consumer that has the take lock and is held up, so that others are told
 * UNCERTAIN. */
void wr_inject_hold(struct wr_inject *inject);
void wr_inject_let_go(struct wr_inject *inject);
#endif

#endif
