/* slot.c: see slot.h. */
#include "dispatch/slot.h"

#include <errno.h>
#include <string.h>

#include "base/assert.h"
#include "base/cpu_relax.h"
#include "dispatch/source.h"
#include "os/futex.h"

int wr_slots_init(struct wr_slots *slots, struct wr_alloc *alloc, size_t element_size, uint32_t max)
{
    memset(slots, 0, sizeof *slots);
    slots->alloc = alloc;
    slots->element_size = (element_size + 15) & ~(size_t)15;
    slots->max = max;
    slots->chunk_max = (max + WR_SLOTS_CHUNK - 1) / WR_SLOTS_CHUNK;
    slots->chunks = wr_alloc_zero(alloc, slots->chunk_max * sizeof *slots->chunks);
    return slots->chunks ? 0 : -ENOMEM;
}

void wr_slots_fini(struct wr_slots *slots)
{
    if (!slots->chunks)
        return;
    for (uint32_t i = 0; i < slots->chunk_max; i++)
        wr_alloc_release_lines(slots->alloc,
                               atomic_load_explicit(&slots->chunks[i], memory_order_relaxed),
                               slots->element_size * WR_SLOTS_CHUNK);
    wr_alloc_release(slots->alloc, (void *)slots->chunks, slots->chunk_max * sizeof *slots->chunks);
    memset(slots, 0, sizeof *slots);
}

struct wr_source *wr_slots_at(const struct wr_slots *slots, uint32_t slot)
{
    if (slot / WR_SLOTS_CHUNK >= slots->chunk_max)
        return NULL;
    /* acquire: pairs with the release store in make_chunk(), so that the zeroed memory is seen */
    unsigned char *chunk =
        atomic_load_explicit(&slots->chunks[slot / WR_SLOTS_CHUNK], memory_order_acquire);
    return chunk ? (struct wr_source *)(void *)(chunk + slot % WR_SLOTS_CHUNK * slots->element_size)
                 : NULL;
}

uint32_t wr_slots_made(struct wr_slots *slots)
{
    wr_lock(&slots->lock);
    uint32_t made = slots->made;
    wr_unlock(&slots->lock);
    return made;
}

/* Under the lock. */
static void append_free(struct wr_slots *slots, struct wr_source *source)
{
    source->link = NULL;
    if (slots->free_last)
        slots->free_last->link = source;
    else
        slots->free_first = source;
    slots->free_last = source;
}

/* Under the lock. */
static int make_chunk(struct wr_slots *slots)
{
    if (slots->made >= slots->max)
        return -ENOSPC;
    unsigned char *chunk = wr_alloc_lines(slots->alloc, slots->element_size * WR_SLOTS_CHUNK);
    if (!chunk)
        return -ENOMEM;
    /* release: pairs with the acquire load in wr_slots_at() */
    atomic_store_explicit(&slots->chunks[slots->made / WR_SLOTS_CHUNK], chunk,
                          memory_order_release);
    for (uint32_t i = 0; i < WR_SLOTS_CHUNK && slots->made < slots->max; i++) {
        struct wr_source *source = (struct wr_source *)(void *)(chunk + i * slots->element_size);
        source->slot = slots->made++;
        append_free(slots, source);
    }
    return 0;
}

int wr_slots_take(struct wr_slots *slots, struct wr_source **ret_source)
{
    int r = 0;

    wr_lock(&slots->lock);
    if (!slots->free_first)
        r = make_chunk(slots);
    struct wr_source *source = slots->free_first;
    if (r == 0) {
        WR_ASSERT(source);
        slots->free_first = source->link;
        if (!slots->free_first)
            slots->free_last = NULL;
        /* All but the name, the word, the futex words and the pins: a poller may be reading the
         * word because of a stale event, or be about to wake a waiter that has left meanwhile; a
         * late cancel may try to pin. */
        size_t head = offsetof(struct wr_source, link);
        memset((unsigned char *)source + head, 0, slots->element_size - head);
    }
    wr_unlock(&slots->lock);
    if (r < 0)
        return r;
    /* seq_cst: pairs with the load in wr_dispatch_wait_empty() */
    atomic_fetch_add_explicit(&slots->live, 1, memory_order_seq_cst);
    *ret_source = source;
    return 0;
}

void wr_slots_give(struct wr_slots *slots, struct wr_source *source)
{
    wr_lock(&slots->lock); /* against wr_slots_pin() */
    uint64_t word = atomic_load_explicit(&source->word, memory_order_relaxed);
    uint64_t next;
    do
        next = ((word >> WR_GENERATION_SHIFT) + 1) << WR_GENERATION_SHIFT;
    while (!atomic_compare_exchange_weak_explicit(&source->word, &word, next, memory_order_relaxed,
                                                  memory_order_relaxed));
    append_free(slots, source);
    wr_unlock(&slots->lock);
    /* release: pairs with the acquire load in wr_dispatch_wait_empty(): what the source did is over
     */
    if (atomic_fetch_sub_explicit(&slots->live, 1, memory_order_release) == 1)
        wr_futex_wake(&slots->live, 1);
}

struct wr_source *wr_slots_pin(struct wr_slots *slots, uint32_t slot)
{
    struct wr_source *source = wr_slots_at(slots, slot);

    if (!source)
        return NULL;
    wr_lock(&slots->lock);
    bool pinned = wr_source_flags(source) & WR_LIVE && wr_source_pin(source);
    wr_unlock(&slots->lock);
    return pinned ? source : NULL;
}
