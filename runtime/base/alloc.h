/* alloc.h: memory from the host's allocator, counted. Sizes are given back on release. */
#ifndef WR_BASE_ALLOC_H
#define WR_BASE_ALLOC_H

#include <stddef.h>

#include <weir/runtime.h>

struct wr_alloc {
    weir_allocator source;
    _Atomic size_t bytes;           /* taken and not given back */
};

/* `source` NULL: malloc and free. */
void wr_alloc_init(struct wr_alloc *alloc, const weir_allocator *source);

/* All of them: any thread, errno is left alone, a size of 0 is as good as 1. */

/* Zeroed memory, aligned as malloc() does; NULL when there is none. */
void *wr_alloc_zero(struct wr_alloc *alloc, size_t size);
/* As wr_alloc_zero(), aligned to a cache line (over-allocates; release with
 * wr_alloc_release_lines()). */
void *wr_alloc_lines(struct wr_alloc *alloc, size_t size);
/* Uninitialised. */
void *wr_alloc_raw(struct wr_alloc *alloc, size_t size);
/* NULL is fine. `size` is what was asked for. */
void wr_alloc_release(struct wr_alloc *alloc, void *memory, size_t size);
void wr_alloc_release_lines(struct wr_alloc *alloc, void *memory, size_t size);

#endif
