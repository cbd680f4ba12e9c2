/* test_inject.c: the work queue by itself, and validators in the manner of Concurrency Kit's.
 *
 * Their size: WEIR_VALIDATE_THREADS threads a side, WEIR_VALIDATE_ITEMS items in all (short by
 * default). */
#include "support/test.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

#include "queue/inject.h"
#include "queue_rig.h"
#include "support/stress.h"

static struct wr_alloc alloc;

static struct wr_inject *make(void)
{
    struct wr_inject *inject;
    wr_alloc_init(&alloc, NULL);
    cr_assert_eq(wr_inject_create(&inject, &alloc), 0);
    return inject;
}

static void unmake(struct wr_inject *inject)
{
    wr_inject_destroy(inject);
    cr_assert_eq(atomic_load(&alloc.bytes), 0);
}

Test(inject, empty_queue_says_empty)
{
    struct wr_inject *inject = make();
    weir_work *work = (weir_work *)(void *)&alloc;
    cr_assert_eq(wr_inject_pop(inject, &work), WR_TAKE_EMPTY);
    cr_assert_eq(work, (weir_work *)(void *)&alloc, "an output is written on success only");
    cr_assert_not(wr_inject_maybe(inject));
    cr_assert_eq(wr_inject_oldest(inject), WEIR_NEVER);
    unmake(inject);
}

Test(inject, first_come_first_served_also_when_pushes_and_pops_mix)
{
    struct wr_inject *inject = make();
    weir_work items[64];
    size_t pushed = 0, popped = 0;
    while (popped < 64) {
        for (int i = 0; i < 3 && pushed < 64; i++)
            wr_inject_push(inject, WR_CLASS_JOB, &items[pushed++]);
        weir_work *work;
        cr_assert(wr_inject_maybe(inject));
        cr_assert_eq(wr_inject_pop(inject, &work), WR_TAKE_ITEM);
        cr_assert_eq(work, &items[popped++]);
    }
    cr_assert_not(wr_inject_maybe(inject));
    unmake(inject);
}

static weir_work *pop(struct wr_inject *inject)
{
    weir_work *work;
    return wr_inject_pop(inject, &work) == WR_TAKE_ITEM ? work : NULL;
}

Test(inject, io_goes_before_jobs_that_came_first)
{
    struct wr_inject *inject = make();
    weir_work jobs[50], io;
    for (int i = 0; i < 50; i++)
        wr_inject_push(inject, WR_CLASS_JOB, &jobs[i]);
    cr_assert_eq(pop(inject), &jobs[0]);
    wr_inject_push(inject, WR_CLASS_IO, &io);
    cr_assert_eq(pop(inject), &io);
    for (int i = 1; i < 50; i++)
        cr_assert_eq(pop(inject), &jobs[i]);
    cr_assert_null(pop(inject));
    unmake(inject);
}

Test(inject, jobs_wait_for_so_many_of_io_and_no_more)
{
    struct wr_inject *inject = make();
    weir_work jobs[3], io[8 * WR_INJECT_IO_MAX];
    for (int i = 0; i < 8 * WR_INJECT_IO_MAX; i++)
        wr_inject_push(inject, WR_CLASS_IO, &io[i]);
    for (int i = 0; i < 3; i++)
        wr_inject_push(inject, WR_CLASS_JOB, &jobs[i]);
    int next = 0;
    for (int i = 0; i < 3; i++) {
        for (int k = 0; k < WR_INJECT_IO_MAX; k++)
            cr_assert_eq(pop(inject), &io[next++]);
        cr_assert_eq(pop(inject), &jobs[i]);
    }
    while (next < 8 * WR_INJECT_IO_MAX)
        cr_assert_eq(pop(inject), &io[next++]);
    /* None was there when it was a job's turn: the next to come has it. */
    wr_inject_push(inject, WR_CLASS_IO, &io[0]);
    wr_inject_push(inject, WR_CLASS_JOB, &jobs[0]);
    cr_assert_eq(pop(inject), &jobs[0]);
    cr_assert_eq(pop(inject), &io[0]);
    cr_assert_null(pop(inject));
    unmake(inject);
}

Test(inject, oldest_is_the_time_of_the_item_that_waits_longest_in_either_class)
{
    struct wr_inject *inject = make();
    weir_work job = { .posted_ = 10 }, io = { .posted_ = 20 };
    wr_inject_push(inject, WR_CLASS_JOB, &job);
    wr_inject_push(inject, WR_CLASS_IO, &io);
    cr_assert_eq(wr_inject_oldest(inject), 10);
    cr_assert_eq(wr_inject_pushes(inject), 2);
    cr_assert_eq(pop(inject), &io);
    cr_assert_eq(wr_inject_oldest(inject), 10);
    cr_assert(wr_inject_maybe(inject));
    cr_assert_eq(pop(inject), &job);
    cr_assert_not(wr_inject_maybe(inject));
    unmake(inject);
}

Test(inject, oldest_is_the_time_of_the_item_that_is_popped_next)
{
    struct wr_inject *inject = make();
    weir_work items[3] = { { .posted_ = 30 }, { .posted_ = 10 }, { .posted_ = 20 } };
    weir_work *work;
    for (int i = 0; i < 3; i++)
        wr_inject_push(inject, WR_CLASS_JOB, &items[i]);
    for (int i = 0; i < 3; i++) {
        cr_assert_eq(wr_inject_oldest(inject), items[i].posted_);
        cr_assert_eq(wr_inject_pop(inject, &work), WR_TAKE_ITEM);
        cr_assert_eq(work, &items[i]);
    }
    cr_assert_eq(wr_inject_oldest(inject), WEIR_NEVER);
    unmake(inject);
}

Test(inject, look_at_the_oldest_keeps_the_order_and_counts_what_was_pushed)
{
    struct wr_inject *inject = make();
    weir_work items[40] = { 0 }, *work;
    size_t pushed = 0, popped = 0;
    while (popped < 40) {
        for (int i = 0; i < 5 && pushed < 40; i++) {
            items[pushed].posted_ = (weir_time)pushed;
            wr_inject_push(inject, WR_CLASS_JOB, &items[pushed++]);
        }
        cr_assert_eq(wr_inject_oldest(inject), (weir_time)popped);
        cr_assert_eq(wr_inject_pushes(inject), pushed);
        for (int i = 0; i < 2; i++) {
            cr_assert_eq(wr_inject_pop(inject, &work), WR_TAKE_ITEM);
            cr_assert_eq(work, &items[popped++]);
        }
    }
    cr_assert_eq(wr_inject_oldest(inject), WEIR_NEVER);
    unmake(inject);
}

Test(inject, failed_allocation_is_told)
{
    struct wr_inject *inject = NULL;
    struct queue_failing failing = { .fail_at = 1 };
    queue_failing_init(&alloc, &failing);
    cr_assert_eq(wr_inject_create(&inject, &alloc), -ENOMEM);
    cr_assert_null(inject);
    cr_assert_eq(atomic_load(&alloc.bytes), 0);
}

#ifdef WEIR_FAULTS
Test(inject, pop_beside_another_taker_is_uncertain_and_never_empty)
{
    struct wr_inject *inject = make();
    weir_work item, *work;
    wr_inject_hold(inject);
    cr_assert_eq(wr_inject_pop(inject, &work), WR_TAKE_UNCERTAIN);
    cr_assert(wr_inject_maybe(inject), "the taker may hold the way to an item");
    wr_inject_push(inject, WR_CLASS_JOB, &item);
    cr_assert_eq(wr_inject_pop(inject, &work), WR_TAKE_UNCERTAIN);
    cr_assert_eq(wr_inject_oldest(inject), WEIR_NEVER, "does not wait for the taker");
    wr_inject_let_go(inject);
    cr_assert_eq(wr_inject_pop(inject, &work), WR_TAKE_ITEM);
    unmake(inject);
}
#endif

/* ---- validator: each item once, each producer's in order ------------------------------------ */

#define PRODUCERS_MAX 64

struct payload {
    weir_work work;
    size_t producer, number;        /* plain on purpose: TSan sees whether the queue orders them */
    _Atomic unsigned popped;
};

struct validation {
    struct wr_inject *inject;
    struct payload *payloads;
    size_t threads, each;
    _Atomic size_t next_producer, taken;
    _Atomic unsigned wrong;
};

static void *produce(void *argument)
{
    struct validation *run = argument;
    size_t producer = atomic_fetch_add(&run->next_producer, 1);
    for (size_t i = 0; i < run->each; i++) {
        struct payload *payload = &run->payloads[producer * run->each + i];
        payload->producer = producer;
        payload->number = i + 1;
        wr_inject_push(run->inject, producer % WR_CLASSES, &payload->work);
    }
    return NULL;
}

static void *consume(void *argument)
{
    struct validation *run = argument;
    size_t last[PRODUCERS_MAX] = { 0 };
    while (atomic_load(&run->taken) < run->threads * run->each) {
        weir_work *work;
        if (wr_inject_pop(run->inject, &work) != WR_TAKE_ITEM) {
            sched_yield();
            continue;
        }
        struct payload *payload = (struct payload *)(void *)work;
        if (payload->number <= last[payload->producer] ||
            atomic_fetch_add(&payload->popped, 1) != 0)
            atomic_fetch_add(&run->wrong, 1);
        last[payload->producer] = payload->number;
        memset(work, 0xa5, sizeof *work);       /* poison: nobody looks at it any more */
        atomic_fetch_add(&run->taken, 1);
    }
    return NULL;
}

Test(inject, each_item_is_popped_once_and_each_producers_in_order, .timeout = 120)
{
    size_t threads = queue_setting("WEIR_VALIDATE_THREADS", 4);
    if (threads > PRODUCERS_MAX)
        threads = PRODUCERS_MAX;
    struct validation run = { .inject = make(), .threads = threads };
    run.each = queue_setting("WEIR_VALIDATE_ITEMS", support_rounds(1000000)) / threads;
    run.payloads = calloc(threads * run.each, sizeof *run.payloads);
    pthread_t *all = calloc(2 * threads, sizeof *all);
    for (size_t i = 0; i < 2 * threads; i++)
        pthread_create(&all[i], NULL, i % 2 ? produce : consume, &run);
    for (size_t i = 0; i < 2 * threads; i++)
        pthread_join(all[i], NULL);

    size_t once = 0;
    for (size_t i = 0; i < threads * run.each; i++)
        once += atomic_load(&run.payloads[i].popped) == 1;
    cr_assert_eq(once, threads * run.each);
    cr_assert_eq(atomic_load(&run.wrong), 0);
    cr_assert_not(wr_inject_maybe(run.inject));
    free(all);
    free(run.payloads);
    unmake(run.inject);
}

/* ---- validator: "empty" is only said when it was so ----------------------------------------- */

struct holding {
    struct wr_inject *inject;
    size_t turns;
    weir_work *items;
    _Atomic size_t next;
    _Atomic unsigned said_empty;
};

/* Each thread pops once for each item it has pushed, so that during a pop the queue holds at least
 * one item: "empty" is wrong whenever it is said. */
static void *push_then_pop(void *argument)
{
    struct holding *run = argument;
    weir_work *work = &run->items[atomic_fetch_add(&run->next, 1)];
    for (size_t i = 0; i < run->turns; i++) {
        wr_inject_push(run->inject, i % WR_CLASSES, work);
        enum wr_take take;
        for (;;) {
            take = wr_inject_pop(run->inject, &work);
            if (take == WR_TAKE_ITEM)
                break;
            if (take == WR_TAKE_EMPTY)
                atomic_fetch_add(&run->said_empty, 1);
        }
    }
    return NULL;
}

Test(inject, empty_is_only_said_when_nothing_was_there, .timeout = 120)
{
    size_t threads = queue_setting("WEIR_VALIDATE_THREADS", 4);
    struct holding run = { .inject = make() };
    run.turns = queue_setting("WEIR_VALIDATE_ITEMS", support_rounds(1000000)) / threads;
    pthread_t *all = calloc(threads, sizeof *all);
    run.items = calloc(threads, sizeof *run.items);
    for (size_t i = 0; i < threads; i++)
        pthread_create(&all[i], NULL, push_then_pop, &run);
    for (size_t i = 0; i < threads; i++)
        pthread_join(all[i], NULL);
    cr_assert_eq(atomic_load(&run.said_empty), 0);
    free(run.items);
    free(all);
    unmake(run.inject);
}
