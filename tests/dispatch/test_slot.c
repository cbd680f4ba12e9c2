/* The table of sources: names, reuse, limits, memory. */
#include <errno.h>
#include <pthread.h>

#include "source_rig.h"
#include "support/stress.h"
#include "support/test.h"

static struct wr_slots *slots(void)
{
    return &glass.runtime.slots;
}

static struct wr_source *take(void)
{
    struct wr_source *source = NULL;
    int r = wr_slots_take(slots(), &source);

    cr_assert_eq(r, 0, "%d", r);
    return source;
}

static uint32_t generation(const struct wr_source *source)
{
    return (uint32_t)(wr_source_token(source) >> WR_GENERATION_SHIFT);
}

Test(slot, there_are_as_many_as_asked_for, .timeout = 10)
{
    struct wr_source *sources[GLASS_SOURCES_MAX], *one_more = NULL;

    glass_start(GLASS_SOURCES_MAX);
    cr_assert_eq(wr_slots_made(slots()), 0);
    for (uint32_t i = 0; i < GLASS_SOURCES_MAX; i++) {
        sources[i] = take();
        cr_assert_eq(wr_slots_at(slots(), sources[i]->slot), sources[i]);
        for (uint32_t j = 0; j < i; j++)
            cr_assert_neq(sources[i]->slot, sources[j]->slot);
    }
    cr_assert_eq(wr_slots_take(slots(), &one_more), -ENOSPC);
    cr_assert_null(one_more);
    cr_assert_eq(wr_slots_made(slots()), GLASS_SOURCES_MAX);
    cr_assert_null(wr_slots_at(slots(), 1u << 20));
    wr_slots_give(slots(), sources[3]);
    cr_assert_eq(take(), sources[3], "what is given back can be taken again");
    cr_assert_eq(wr_slots_take(slots(), &one_more), -ENOSPC);
    glass_end();
}

Test(slot, what_was_freed_first_is_used_first, .timeout = 10)
{
    struct wr_source *sources[GLASS_SOURCES_MAX];

    glass_start(GLASS_SOURCES_MAX);
    for (int i = 0; i < GLASS_SOURCES_MAX; i++)
        sources[i] = take();
    for (int i = 0; i < GLASS_SOURCES_MAX; i++)
        wr_slots_give(slots(), sources[i]);
    for (int i = 0; i < GLASS_SOURCES_MAX; i++)
        cr_assert_eq(take(), sources[i]);
    glass_end();
}

Test(slot, a_new_owner_gets_a_new_name_and_clean_memory, .timeout = 10)
{
    glass_start(1);
    struct probe *probe = glass_open();
    uint32_t before = generation(&probe->source);
    probe->turns = 5;
    probe->told = true;
    atomic_store(&probe->source.wake[0], 9);
    wr_source_schedule(&probe->source, WR_CTL | WR_TIMER);
    wr_source_want(&probe->source, WR_IN);
    probe->source.refs = 0;
    wr_slots_give(slots(), &probe->source);
    cr_assert_eq(generation(&probe->source), before + 1, "the old name is stale at once");
    struct wr_source *source = take();
    cr_assert_eq((void *)source, (void *)probe);
    cr_assert_eq(wr_source_flags(source), 0);
    cr_assert_eq(probe->turns, 0);
    cr_assert_not(probe->told);
    cr_assert_eq(atomic_load(&source->wake[0]), 9, "a waker may be about to use it");
    glass_end();
}

Test(slot, generations_go_round_without_touching_the_flags, .timeout = 10)
{
    glass_start(1);
    struct wr_source *source = take();
    atomic_store(&source->word, (uint64_t)UINT32_MAX << WR_GENERATION_SHIFT | WR_IN);
    wr_slots_give(slots(), source);
    cr_assert_eq(generation(source), 0);
    cr_assert_eq(wr_source_flags(source), 0);
    glass_end();
}

Test(slot, only_one_that_is_watched_is_pinned_for_a_sweep, .timeout = 10)
{
    struct wr_source *source;

    glass_start(2);
    cr_assert_null(wr_slots_pin(slots(), 0), "no such slot was made");
    cr_assert_eq(wr_source_open(&glass.runtime, 7, 0, &source), 0);
    uint32_t slot = source->slot;
    cr_assert_null(wr_slots_pin(slots(), slot), "not attached yet");
    cr_assert_eq(wr_source_attach(source, WR_POLL_EDGE), 0);
    cr_assert_eq(wr_slots_pin(slots(), slot), source);
    cr_assert_not(wr_source_unpin_own(source), "the sweep holds it");
    cr_assert(wr_source_unpin_own(source));
    cr_assert_null(wr_slots_pin(slots(), slot), "it is going");
    wr_source_release(source);
    cr_assert_null(wr_slots_pin(slots(), slot), "it has gone");
    glass_end();
}

static int allocations_left;

static void *allocate(size_t size, void *context)
{
    (void)context;
    return allocations_left-- > 0 ? malloc(size) : NULL;
}

static void release(void *memory, size_t size, void *context)
{
    (void)size;
    (void)context;
    free(memory);
}

Test(slot, without_memory_nothing_is_taken_and_the_next_try_may_succeed, .timeout = 10)
{
    const weir_allocator allocator = {.allocate = allocate, .release = release};
    struct wr_alloc alloc;
    struct wr_slots table;
    struct wr_source *source = NULL;

    wr_alloc_init(&alloc, &allocator);
    allocations_left = 0;
    cr_assert_eq(wr_slots_init(&table, &alloc, sizeof(struct probe), 64), -ENOMEM);
    wr_slots_fini(&table);
    allocations_left = 1;
    cr_assert_eq(wr_slots_init(&table, &alloc, sizeof(struct probe), 64), 0);
    cr_assert_eq(wr_slots_take(&table, &source), -ENOMEM);
    cr_assert_null(source);
    cr_assert_eq(atomic_load(&table.live), 0);
    allocations_left = 1;
    cr_assert_eq(wr_slots_take(&table, &source), 0);
    wr_slots_fini(&table);
    cr_assert_eq(atomic_load(&alloc.bytes), 0);
}

/* Threads that take and give while another plays a poller with names old and new. */
struct taker {
    pthread_t thread;
    unsigned number, rounds;
    _Atomic bool *wrong;
};

static _Atomic uint64_t names[4];

static void *take_main(void *argument)
{
    struct taker *taker = argument;
    struct support_random random = support_random(taker->number, taker->number);

    for (unsigned i = 0; i < taker->rounds; i++) {
        struct wr_source *source;
        if (wr_slots_take(slots(), &source) < 0)
            continue;
        struct probe *probe = (struct probe *)(void *)source;
        if (probe->turns != 0)
            atomic_store(taker->wrong, true);
        probe->turns = taker->number;
        atomic_store(&names[taker->number % 4], wr_source_token(source));
        support_yield(&random);
        if (probe->turns != taker->number)
            atomic_store(taker->wrong, true);
        wr_slots_give(slots(), source);
    }
    return NULL;
}

Test(slot, threads_take_and_give_while_stale_events_come, .timeout = 30) /* (F10) */
{
    struct taker takers[4];
    _Atomic bool wrong = false;
    unsigned rounds = support_rounds(5000);

    glass_start(3); /* fewer than threads: slots change hands all the time */
    for (unsigned i = 0; i < 4; i++) {
        takers[i] = (struct taker){.number = i + 1, .rounds = rounds, .wrong = &wrong};
        cr_assert_eq(pthread_create(&takers[i].thread, NULL, take_main, &takers[i]), 0);
    }
    for (unsigned i = 0; i < rounds; i++)
        cr_assert_not(glass_event_named(atomic_load(&names[i % 4]), WR_IN | WR_OUT), "not wanted");
    for (unsigned i = 0; i < 4; i++)
        pthread_join(takers[i].thread, NULL);
    cr_assert_not(atomic_load(&wrong), "a slot had two owners");
    cr_assert_eq(atomic_load(&slots()->live), 0);
    glass_end();
}
