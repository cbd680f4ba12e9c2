/* queue_rig.h: what the queues' tests share: an allocator that fails once, sizes from the
 * environment. */
#ifndef WEIR_TESTS_QUEUE_RIG_H
#define WEIR_TESTS_QUEUE_RIG_H

#include <stdlib.h>

#include "base/alloc.h"

/* The `fail_at`-th allocation gets nothing. */
struct queue_failing {
    int calls, fail_at;
};

static inline void *queue_failing_allocate(size_t size, void *context)
{
    struct queue_failing *failing = context;
    return ++failing->calls == failing->fail_at ? NULL : malloc(size);
}

static inline void queue_failing_release(void *memory, size_t size, void *context)
{
    (void)size;
    (void)context;
    free(memory);
}

static inline void queue_failing_init(struct wr_alloc *alloc, struct queue_failing *failing)
{
    weir_allocator source = { queue_failing_allocate, queue_failing_release, failing };
    wr_alloc_init(alloc, &source);
}

static inline size_t queue_setting(const char *name, size_t standard)
{
    const char *text = getenv(name);
    unsigned long value = text ? strtoul(text, NULL, 10) : 0;
    return value > 0 ? value : standard;
}

#endif
