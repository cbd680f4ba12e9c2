/* The host's allocator: counted, sizes given back, and running dry at any use of it. */
#include "base/alloc.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdint.h>

#include "base/cpu_relax.h"
#include "support/test.h"

#define BLOCKS 16

/* An allocator that knows what it gave, dirties it, fails at its k-th use and is off by an offset
 * that malloc() would never have. */
struct source {
    unsigned uses, fail_at;
    unsigned mistakes;              /* releases of what was not given, or with another size */
    size_t offset;
    struct { char *given; size_t size; } blocks[BLOCKS];
};

static void *source_allocate(size_t size, void *context)
{
    struct source *source = context;
    errno = ENOMEM;
    if (++source->uses == source->fail_at)
        return NULL;
    for (unsigned i = 0; i < BLOCKS; i++) {
        if (source->blocks[i].given)
            continue;
        char *memory = malloc(size + source->offset);
        if (!memory)
            return NULL;
        memset(memory, 0xa5, size + source->offset);
        source->blocks[i].given = memory + source->offset;
        source->blocks[i].size = size;
        return memory + source->offset;
    }
    return NULL;
}

static void source_release(void *memory, size_t size, void *context)
{
    struct source *source = context;
    errno = EINVAL;
    for (unsigned i = 0; i < BLOCKS; i++) {
        if (source->blocks[i].given != memory)
            continue;
        if (source->blocks[i].size != size)
            source->mistakes++;
        source->blocks[i].given = NULL;
        free((char *)memory - source->offset);
        return;
    }
    source->mistakes++;
}

static size_t bytes(struct wr_alloc *alloc)
{
    return atomic_load_explicit(&alloc->bytes, memory_order_relaxed);
}

static unsigned held(const struct source *source)
{
    unsigned count = 0;
    for (unsigned i = 0; i < BLOCKS; i++)
        count += source->blocks[i].given != NULL;
    return count;
}

static struct wr_alloc alloc_of(struct source *source)
{
    struct wr_alloc alloc;
    weir_allocator hooks = { source_allocate, source_release, source };
    wr_alloc_init(&alloc, &hooks);
    return alloc;
}

/* Takes one block of each kind; all or nothing, as every user of an allocator has to. */
static int take_three(struct wr_alloc *alloc, void *ret[3])
{
    ret[0] = wr_alloc_raw(alloc, 10);
    ret[1] = ret[0] ? wr_alloc_zero(alloc, 20) : NULL;
    ret[2] = ret[1] ? wr_alloc_lines(alloc, 30) : NULL;
    if (ret[2])
        return 0;
    wr_alloc_release(alloc, ret[1], 20);
    wr_alloc_release(alloc, ret[0], 10);
    return -ENOMEM;
}

Test(alloc, every_size_is_given_back_as_it_was_asked_for, .timeout = 20)
{
    struct source source = { 0 };
    struct wr_alloc alloc = alloc_of(&source);
    void *taken[3];
    cr_assert_eq(take_three(&alloc, taken), 0);
    cr_assert_geq(bytes(&alloc), 60);
    wr_alloc_release(&alloc, taken[0], 10);
    wr_alloc_release(&alloc, taken[1], 20);
    wr_alloc_release_lines(&alloc, taken[2], 30);
    cr_assert_eq(source.mistakes, 0);
    cr_assert_eq(held(&source), 0);
    cr_assert_eq(bytes(&alloc), 0);
}

Test(alloc, failing_at_the_kth_use_is_null_and_counts_nothing, .timeout = 20)
{
    for (unsigned k = 1; k <= 3; k++) {
        struct source source = { .fail_at = k };
        struct wr_alloc alloc = alloc_of(&source);
        void *taken[3];
        cr_assert_eq(take_three(&alloc, taken), -ENOMEM);
        cr_assert_eq(source.uses, k);
        cr_assert_eq(bytes(&alloc), 0);
        cr_assert_eq(held(&source), 0);
        cr_assert_eq(source.mistakes, 0);
    }
}

Test(alloc, zeroed_memory_is_zero_even_when_the_source_is_dirty, .timeout = 20)
{
    struct source source = { 0 };
    struct wr_alloc alloc = alloc_of(&source);
    static const char zeros[300];
    char *zero = wr_alloc_zero(&alloc, sizeof zeros);
    char *lines = wr_alloc_lines(&alloc, sizeof zeros);
    cr_assert_arr_eq(zero, zeros, sizeof zeros);
    cr_assert_arr_eq(lines, zeros, sizeof zeros);
    wr_alloc_release(&alloc, zero, sizeof zeros);
    wr_alloc_release_lines(&alloc, lines, sizeof zeros);
}

Test(alloc, lines_are_aligned_wherever_the_source_begins, .timeout = 20)
{
    for (size_t offset = 0; offset < WR_CACHE_LINE; offset += 16) {
        struct source source = { .offset = offset };
        struct wr_alloc alloc = alloc_of(&source);
        char *lines = wr_alloc_lines(&alloc, 100);
        cr_assert_not_null(lines);
        cr_assert_eq((uintptr_t)lines % WR_CACHE_LINE, 0);
        memset(lines, 1, 100);
        wr_alloc_release_lines(&alloc, lines, 100);
        cr_assert_eq(source.mistakes, 0);
        cr_assert_eq(held(&source), 0);
        cr_assert_eq(bytes(&alloc), 0);
    }
}

Test(alloc, a_size_that_wraps_round_is_out_of_memory, .timeout = 20)
{
    struct source source = { 0 };
    struct wr_alloc alloc = alloc_of(&source);
    cr_assert_null(wr_alloc_lines(&alloc, SIZE_MAX));
    cr_assert_null(wr_alloc_lines(&alloc, SIZE_MAX - 16));
    cr_assert_eq(source.uses, 0);
}

Test(alloc, nothing_is_still_something_to_hold, .timeout = 20)
{
    struct source source = { 0 };
    struct wr_alloc alloc = alloc_of(&source);
    void *raw = wr_alloc_raw(&alloc, 0), *zero = wr_alloc_zero(&alloc, 0);
    cr_assert_not_null(raw);
    cr_assert_not_null(zero);
    wr_alloc_release(&alloc, raw, 0);
    wr_alloc_release(&alloc, zero, 0);
    cr_assert_eq(source.mistakes, 0);
    cr_assert_eq(bytes(&alloc), 0);
}

Test(alloc, releasing_null_does_nothing, .timeout = 20)
{
    struct source source = { 0 };
    struct wr_alloc alloc = alloc_of(&source);
    wr_alloc_release(&alloc, NULL, 7);
    wr_alloc_release_lines(&alloc, NULL, 7);
    cr_assert_eq(source.mistakes, 0);
    cr_assert_eq(bytes(&alloc), 0);
}

Test(alloc, errno_is_left_alone, .timeout = 20)
{
    struct source source = { .fail_at = 2 };
    struct wr_alloc alloc = alloc_of(&source);
    errno = ENOENT;
    void *raw = wr_alloc_raw(&alloc, 8);
    cr_assert_null(wr_alloc_zero(&alloc, 8));
    wr_alloc_release(&alloc, raw, 8);
    cr_assert_eq(errno, ENOENT);
}

Test(alloc, without_a_source_malloc_serves, .timeout = 20)
{
    struct wr_alloc alloc;
    wr_alloc_init(&alloc, NULL);
    char *zero = wr_alloc_zero(&alloc, 64);
    cr_assert_not_null(zero);
    cr_assert_eq(zero[63], 0);
    cr_assert_eq(bytes(&alloc), 64);
    wr_alloc_release(&alloc, zero, 64);
    cr_assert_eq(bytes(&alloc), 0);
}
