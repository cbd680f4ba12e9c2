/* ready.c: the ready queue on ck_ring, in its form for one producer and many consumers.
 *
 * The counters of a ck_ring run freely; only the index into the buffer is masked. The consumers'
 * counter and the producer's stand on lines of their own (the ring pads them, we align the
 * ring), size and mask, which nobody writes, on a third.
 *
 * "Empty" is linearized: pop reads the consumers' counter first and the producer's second. The
 * first only grows and never passes the second, so when both are equal the ring was empty at the
 * second read.
 *
 * This file is compiled without ThreadSanitizer and tells it of the order itself (base/tsan.h). */
#include "queue/ready.h"

#include <errno.h>
#include <limits.h>

#include <ck_ring.h>

#include "base/assert.h"
#include "base/cpu_relax.h"
#include "base/tsan.h"

/* The counters are 32 bits wide: a ring of half of that would make "full" and "empty" ambiguous. */
#define ENTRIES_MAX ((size_t)1 << 30)

_Static_assert(sizeof(unsigned int) * CHAR_BIT == 32, "the counters of ck_ring");

struct wr_ready {
    WR_ALIGN_LINE struct ck_ring ring;
    struct ck_ring_buffer *buffer;
    struct wr_alloc *alloc;
    size_t slots;
};

/* A ring of n slots holds n - 1 pointers. */
static size_t slots_for(size_t entries)
{
    size_t slots = 4;
    while (slots <= entries)
        slots *= 2;
    return slots;
}

int wr_ready_create(struct wr_ready **ret_ready, struct wr_alloc *alloc, size_t entries_min)
{
    if (entries_min >= ENTRIES_MAX)
        return -ENOMEM;
    struct wr_ready *ready = wr_alloc_lines(alloc, sizeof *ready);
    if (!ready)
        return -ENOMEM;
    ready->alloc = alloc;
    ready->slots = slots_for(entries_min);
    ready->buffer = wr_alloc_lines(alloc, ready->slots * sizeof *ready->buffer);
    if (!ready->buffer) {
        wr_ready_destroy(ready);
        return -ENOMEM;
    }
    ck_ring_init(&ready->ring, (unsigned)ready->slots);
    *ret_ready = ready;
    return 0;
}

void wr_ready_destroy(struct wr_ready *ready)
{
    if (!ready)
        return;
    struct wr_alloc *alloc = ready->alloc;
    wr_alloc_release_lines(alloc, ready->buffer, ready->slots * sizeof *ready->buffer);
    wr_alloc_release_lines(alloc, ready, sizeof *ready);
}

bool wr_ready_push(struct wr_ready *ready, void *item)
{
    WR_TSAN_RELEASE(item);
    return ck_ring_enqueue_spmc(&ready->ring, ready->buffer, item);
}

bool wr_ready_pop(struct wr_ready *ready, void **ret_item)
{
    void *item;
    if (!ck_ring_dequeue_spmc(&ready->ring, ready->buffer, &item))
        return false;
    WR_TSAN_ACQUIRE(item);
    *ret_item = item;
    return true;
}

/* Not ck_ring_size(), which masks the difference: a thread that is held up between the two reads
 * while the ring goes round exactly once would be told "empty", and a pump that believes it
 * strands the rest. */
size_t wr_ready_size(const struct wr_ready *ready)
{
    unsigned int popped = ck_pr_load_uint(&ready->ring.c_head);
    /* Pairs with the order in which the counters are written: the consumers' never passes the
     * producer's, so that with this order of reads a queue that holds something never looks
     * empty. */
    ck_pr_fence_load();
    unsigned int pushed = ck_pr_load_uint(&ready->ring.p_tail);
    size_t size = (unsigned int)(pushed - popped);
    return size < ready->slots ? size : ready->slots - 1;
}
