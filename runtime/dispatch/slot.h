/* slot.h: the table of sources: memory that stays where it is and what it is until the runtime
 * ends.
 *
 * A source is named by (slot, generation). The memory of a slot is never given back before destroy,
 * so that a poller may look at the event word of a source that has gone; the generation in that
 * word tells it so. Freed slots are reused first in, first out, which keeps a stale name stale for
 * long. */
#ifndef WR_DISPATCH_SLOT_H
#define WR_DISPATCH_SLOT_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "base/alloc.h"
#include "os/lock.h"

struct wr_source;

#define WR_SLOTS_CHUNK 64 /* sources an allocation */

struct wr_slots {
    struct wr_alloc *alloc;
    size_t element_size;
    uint32_t max; /* sources at once */
    uint32_t chunk_max;
    _Atomic(unsigned char *) *chunks;
    struct wr_lock lock; /* guards what follows */
    uint32_t made;       /* slots that exist */
    struct wr_source *free_first, *free_last;
    _Atomic uint32_t live; /* sources in use; also the futex word of destroy */
};

/* 0 or -ENOMEM. `element_size` holds a struct wr_source first. */
int wr_slots_init(struct wr_slots *slots, struct wr_alloc *alloc, size_t element_size,
                  uint32_t max);
void wr_slots_fini(struct wr_slots *slots);

/* A zeroed element with slot and generation set. 0; -ENOSPC `max` are in use; -ENOMEM. Any thread.
 */
int wr_slots_take(struct wr_slots *slots, struct wr_source **ret_source);
/* The generation moves on: whoever still holds the old name is told apart. Any thread. */
void wr_slots_give(struct wr_slots *slots, struct wr_source *source);

/* The source at `slot`, whoever lives there now; NULL when no such slot was ever made. Any thread.
 */
struct wr_source *wr_slots_at(const struct wr_slots *slots, uint32_t slot);
/* As wr_slots_at(), pinned (wr_source_pin); NULL when nobody lives there. Any thread. */
struct wr_source *wr_slots_pin(struct wr_slots *slots, uint32_t slot);
/* How many slots exist: all sources are below. */
uint32_t wr_slots_made(struct wr_slots *slots);

#endif
