/* test_ready.c: the ready queue by itself, and a validator in the manner of Concurrency Kit's.
 *
 * The validator's size: WEIR_VALIDATE_THREADS consumers, WEIR_VALIDATE_ITEMS items (short by
 * default). */
#include "support/test.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <time.h>

#include "queue/ready.h"
#include "queue_rig.h"
#include "support/stress.h"

static struct wr_alloc alloc;

static struct wr_ready *make(size_t entries)
{
    struct wr_ready *ready;
    wr_alloc_init(&alloc, NULL);
    cr_assert_eq(wr_ready_create(&ready, &alloc, entries), 0);
    return ready;
}

static void unmake(struct wr_ready *ready)
{
    wr_ready_destroy(ready);
    cr_assert_eq(atomic_load(&alloc.bytes), 0);
}

Test(ready, empty_queue_gives_nothing)
{
    struct wr_ready *ready = make(8);
    void *item = &alloc;
    cr_assert_not(wr_ready_pop(ready, &item));
    cr_assert_eq(item, &alloc, "an output is written on success only");
    cr_assert_eq(wr_ready_size(ready), 0);
    unmake(ready);
}

Test(ready, holds_at_least_what_was_asked_for_and_keeps_the_order)
{
    static int items[200];
    const size_t sizes[] = { 0, 1, 2, 3, 4, 5, 7, 8, 9, 64, 127, 128, 199 };
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        struct wr_ready *ready = make(sizes[s]);
        for (size_t i = 0; i < sizes[s]; i++)
            cr_assert(wr_ready_push(ready, &items[i]), "%zu of %zu", i, sizes[s]);
        cr_assert_eq(wr_ready_size(ready), sizes[s]);
        for (size_t i = 0; i < sizes[s]; i++) {
            void *item;
            cr_assert(wr_ready_pop(ready, &item));
            cr_assert_eq(item, &items[i]);
        }
        cr_assert_eq(wr_ready_size(ready), 0);
        unmake(ready);
    }
}

Test(ready, full_queue_refuses_and_loses_nothing)
{
    static int items[8];
    struct wr_ready *ready = make(3);
    size_t held = 0;
    while (held < 8 && wr_ready_push(ready, &items[held]))
        held++;
    cr_assert_geq(held, 3);
    cr_assert_lt(held, 8, "a ring for three took eight");
    for (int turn = 0; turn < 100; turn++) {
        void *item;
        cr_assert(wr_ready_pop(ready, &item));
        cr_assert(wr_ready_push(ready, item));
        cr_assert_not(wr_ready_push(ready, item));
        cr_assert_eq(wr_ready_size(ready), held);
    }
    unmake(ready);
}

Test(ready, each_failed_allocation_is_told_and_leaves_nothing)
{
    for (int k = 1; k <= 2; k++) {
        struct wr_ready *ready = NULL;
        struct queue_failing failing = { .fail_at = k };
        queue_failing_init(&alloc, &failing);
        cr_assert_eq(wr_ready_create(&ready, &alloc, 100), -ENOMEM, "allocation %d", k);
        cr_assert_null(ready);
        cr_assert_eq(atomic_load(&alloc.bytes), 0);
    }
    struct wr_ready *ready;
    wr_alloc_init(&alloc, NULL);
    cr_assert_eq(wr_ready_create(&ready, &alloc, (size_t)1 << 31), -ENOMEM);
}

/* ---- validator ----------------------------------------------------------------------------- */

struct payload {
    uint64_t value;                 /* plain on purpose: TSan sees whether the queue orders it */
    _Atomic unsigned popped;
};

struct validation {
    struct wr_ready *ready;
    struct payload *payloads;
    size_t count;
    _Atomic size_t taken;
    _Atomic unsigned wrong;
};

static void *consume(void *argument)
{
    struct validation *run = argument;
    uint64_t last = 0;
    while (atomic_load(&run->taken) < run->count) {
        void *item;
        if (!wr_ready_pop(run->ready, &item)) {
            sched_yield();
            continue;
        }
        struct payload *payload = item;
        /* One consumer sees the items in the order in which they were pushed. */
        if (payload->value <= last || atomic_fetch_add(&payload->popped, 1) != 0)
            atomic_fetch_add(&run->wrong, 1);
        last = payload->value;
        payload->value = 0;
        atomic_fetch_add(&run->taken, 1);
    }
    return NULL;
}

Test(ready, each_item_is_popped_once_in_order_by_many_consumers, .timeout = 120)
{
    size_t consumers = queue_setting("WEIR_VALIDATE_THREADS", 4);
    struct validation run = { .ready = make(30) };
    run.count = queue_setting("WEIR_VALIDATE_ITEMS", support_rounds(1000000));
    run.payloads = calloc(run.count, sizeof *run.payloads);
    pthread_t *threads = calloc(consumers, sizeof *threads);
    for (size_t i = 0; i < consumers; i++)
        pthread_create(&threads[i], NULL, consume, &run);
    for (size_t i = 0; i < run.count; i++) {
        run.payloads[i].value = i + 1;
        while (!wr_ready_push(run.ready, &run.payloads[i]))
            sched_yield();
    }
    for (size_t i = 0; i < consumers; i++)
        pthread_join(threads[i], NULL);

    size_t once = 0;
    for (size_t i = 0; i < run.count; i++)
        once += atomic_load(&run.payloads[i].popped) == 1;
    cr_assert_eq(once, run.count);
    cr_assert_eq(atomic_load(&run.wrong), 0);
    free(threads);
    free(run.payloads);
    unmake(run.ready);
}

/* ---- size ---------------------------------------------------------------------------------- */

struct sizing {
    struct wr_ready *ready;
    _Atomic bool stop;
    _Atomic uint64_t looks;
    _Atomic bool said_empty;
};

static void *look_at_size(void *argument)
{
    struct sizing *sizing = argument;
    while (!atomic_load(&sizing->stop)) {
        if (wr_ready_size(sizing->ready) == 0)
            atomic_store(&sizing->said_empty, true);
        atomic_fetch_add(&sizing->looks, 1);
    }
    return NULL;
}

/* The ring of four slots goes round many times between the two reads of whoever looks. */
Test(ready, size_is_never_zero_while_something_is_there, .timeout = 30)
{
    static int items[2];
    struct sizing sizing = { .ready = make(3) };
    pthread_t looker;
    cr_assert(wr_ready_push(sizing.ready, &items[0]));
    pthread_create(&looker, NULL, look_at_size, &sizing);
    struct timespec begin, now;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    do {
        for (int i = 0; i < 1000; i++) {
            void *item;
            cr_assert(wr_ready_push(sizing.ready, &items[1]));
            cr_assert(wr_ready_pop(sizing.ready, &item));
        }
        clock_gettime(CLOCK_MONOTONIC, &now);
    } while (now.tv_sec - begin.tv_sec < 2 || atomic_load(&sizing.looks) < 1000);
    atomic_store(&sizing.stop, true);
    pthread_join(looker, NULL);
    cr_assert_not(atomic_load(&sizing.said_empty));
    unmake(sizing.ready);
}
