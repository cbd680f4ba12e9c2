/* ready.h: the ready queue of one poller: a ring of pointers on ck_ring, one producer, many
 * consumers.
 *
 *            | push        | pop            | size
 *   push     | one thread  | free           | free
 *   pop      | free        | free           | free
 *
 * The capacity is at least the number of sources and a source is queued at most once (its event
 * word coalesces), so that push cannot fail and nothing is ever allocated. push is wait-free,
 * pop lock-free. Order: what happened before a push is seen after the pop that got the pointer. */
#ifndef WR_QUEUE_READY_H
#define WR_QUEUE_READY_H

#include <stdbool.h>
#include <stddef.h>

#include "base/alloc.h"

struct wr_ready;

/* 0 or -ENOMEM. `entries_min` is rounded up to a power of two. */
int wr_ready_create(struct wr_ready **ret_ready, struct wr_alloc *alloc, size_t entries_min);
void wr_ready_destroy(struct wr_ready *ready);
/* The owning poller only. `item` points to real memory (ThreadSanitizer keeps its note there).
 * False: full, which is a bug of ours (the caller asserts). */
bool wr_ready_push(struct wr_ready *ready, void *item);
bool wr_ready_pop(struct wr_ready *ready, void **ret_item);
/* Never 0 while an item is there whose push happened before the call; may be too high by what is
 * popped meanwhile. */
size_t wr_ready_size(const struct wr_ready *ready);

#endif
