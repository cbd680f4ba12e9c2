/* alloc.c: memory from the host's allocator, counted.
 *
 * Invariant: `bytes` is the sum of the sizes handed to the source's allocate() and not yet to its
 * release(). It is a statistic and orders nothing, so it is relaxed throughout. */
#include "base/alloc.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/cpu_relax.h"

/* A block of whole lines begins with up to a line of padding, whose last word is the true start. */
#define LINES_EXTRA (WR_CACHE_LINE + sizeof(void *))

static void *from_malloc(size_t size, void *context)
{
    (void)context;
    return malloc(size);
}

static void to_free(void *memory, size_t size, void *context)
{
    (void)size;
    (void)context;
    free(memory);
}

void wr_alloc_init(struct wr_alloc *alloc, const weir_allocator *source)
{
    static const weir_allocator standard = { .allocate = from_malloc, .release = to_free };
    alloc->source = source ? *source : standard;
    atomic_init(&alloc->bytes, 0);
}

void *wr_alloc_raw(struct wr_alloc *alloc, size_t size)
{
    /* malloc(0) may answer NULL, which would look like being out of memory. */
    if (size == 0)
        size = 1;
    int saved = errno;
    void *memory = alloc->source.allocate(size, alloc->source.context);
    errno = saved;
    if (memory)
        atomic_fetch_add_explicit(&alloc->bytes, size, memory_order_relaxed);
    return memory;
}

void *wr_alloc_zero(struct wr_alloc *alloc, size_t size)
{
    void *memory = wr_alloc_raw(alloc, size);
    if (memory)
        memset(memory, 0, size);
    return memory;
}

void *wr_alloc_lines(struct wr_alloc *alloc, size_t size)
{
    if (size > SIZE_MAX - LINES_EXTRA)
        return NULL;
    char *start = wr_alloc_zero(alloc, size + LINES_EXTRA);
    if (!start)
        return NULL;
    uintptr_t over = (uintptr_t)(start + LINES_EXTRA) % WR_CACHE_LINE;
    char *lines = start + LINES_EXTRA - over;
    memcpy(lines - sizeof start, &start, sizeof start);
    return lines;
}

void wr_alloc_release(struct wr_alloc *alloc, void *memory, size_t size)
{
    if (!memory)
        return;
    if (size == 0)
        size = 1;
    size_t before = atomic_fetch_sub_explicit(&alloc->bytes, size, memory_order_relaxed);
    WR_ASSERT(before >= size);
    (void)before;
    int saved = errno;
    alloc->source.release(memory, size, alloc->source.context);
    errno = saved;
}

void wr_alloc_release_lines(struct wr_alloc *alloc, void *memory, size_t size)
{
    if (!memory)
        return;
    char *start;
    memcpy(&start, (char *)memory - sizeof start, sizeof start);
    wr_alloc_release(alloc, start, size + LINES_EXTRA);
}
