/* Values that each thread adds to on a line of its own (dispatch/shard.h). */
#include <pthread.h>

#include "dispatch/dispatch.h"
#include "support/stress.h"
#include "support/test.h"

#define THREADS 6
#define VALUE WR_SHARD_ABOVE

static weir_runtime runtime, other;

static void start(void)
{
    wr_alloc_init(&runtime.alloc, NULL);
    wr_alloc_init(&other.alloc, NULL);
    cr_assert_eq(wr_shards_init(&runtime), 0);
    cr_assert_eq(wr_shards_init(&other), 0);
}

static void end(void)
{
    cr_assert_eq(atomic_load(&runtime.shards->claimed), 0, "a shard was not given back");
    wr_shards_fini(&runtime);
    wr_shards_fini(&other);
    cr_assert_eq(atomic_load(&runtime.alloc.bytes), 0);
}

static void run(pthread_t *threads, unsigned count, void *(*body)(void *), void *argument)
{
    for (unsigned i = 0; i < count; i++)
        cr_assert_eq(pthread_create(&threads[i], NULL, body, argument), 0);
    for (unsigned i = 0; i < count; i++)
        pthread_join(threads[i], NULL);
}

static void *add_main(void *rounds)
{
    for (unsigned i = 0; i < *(unsigned *)rounds; i++) {
        if (i % 16 == 0)
            wr_shard_claim(&runtime); /* so that they change hands */
        wr_shard_add(&runtime, VALUE, 1);
        wr_shard_add(&other, VALUE, 1);
        if (i % 16 == 7)
            wr_shard_give(&runtime);
    }
    wr_shard_give(&runtime);
    return NULL;
}

Test(shard, no_add_is_lost_while_shards_change_hands, .timeout = 60)
{
    pthread_t threads[THREADS];
    unsigned rounds = support_rounds(20000);

    start();
    run(threads, THREADS, add_main, &rounds);
    cr_assert_eq(wr_shard_sum(&runtime, VALUE), (uint64_t)THREADS * rounds);
    cr_assert_eq(wr_shard_sum(&other, VALUE), (uint64_t)THREADS * rounds,
                 "added to a runtime that the thread does not work for");
    end();
}

static pthread_barrier_t barrier;

static void *claim_main(void *argument)
{
    (void)argument;
    wr_shard_claim(&runtime);
    pthread_barrier_wait(&barrier);
    for (unsigned i = 0; i < 1000; i++)
        wr_shard_add(&runtime, VALUE, 1);
    pthread_barrier_wait(&barrier);
    wr_shard_give(&runtime);
    return NULL;
}

Test(shard, more_threads_than_shards_share_some, .timeout = 60)
{
    enum { COUNT = WR_SHARDS_OWN + 4 };
    pthread_t threads[COUNT];

    start();
    pthread_barrier_init(&barrier, NULL, COUNT);
    run(threads, COUNT, claim_main, NULL);
    cr_assert_eq(wr_shard_sum(&runtime, VALUE), 1000u * COUNT);
    for (unsigned i = 0; i < WR_SHARDS_OWN; i++)
        cr_assert_eq(atomic_load(&runtime.shards->shard[i].value[VALUE]), 1000, "one owner each");
    pthread_barrier_destroy(&barrier);
    end();
}

/* ---- who is inside ------------------------------------------------------------------- */

static _Atomic bool entered, go, left;

static void *inside_main(void *works_here)
{
    if (works_here)
        wr_shard_claim(&runtime);
    wr_dispatch_enter(&runtime);
    atomic_store(&entered, true);
    while (!atomic_load(&go))
        sched_yield();
    wr_dispatch_enter(&runtime); /* a call within a call */
    wr_dispatch_leave(&runtime);
    wr_dispatch_leave(&runtime);
    if (works_here)
        wr_shard_give(&runtime);
    return NULL;
}

static void *destroy_main(void *argument)
{
    (void)argument;
    wr_dispatch_wait_left(&runtime);
    atomic_store(&left, true);
    return NULL;
}

static void stays_until_it_leaves(bool works_here)
{
    pthread_t inside, destroy;

    start();
    atomic_store(&entered, false);
    atomic_store(&go, false);
    atomic_store(&left, false);
    cr_assert_eq(pthread_create(&inside, NULL, inside_main, works_here ? &go : NULL), 0);
    while (!atomic_load(&entered))
        sched_yield();
    cr_assert_eq(pthread_create(&destroy, NULL, destroy_main, NULL), 0);
    for (int i = 0; i < 2000; i++)
        sched_yield();
    cr_assert_not(atomic_load(&left), "somebody is inside still");
    atomic_store(&go, true);
    pthread_join(inside, NULL);
    pthread_join(destroy, NULL);
    cr_assert(atomic_load(&left));
    cr_assert_eq(wr_shard_sum(&runtime, WR_SHARD_INSIDE), 0);
    end();
}

Test(shard, destroy_waits_for_who_is_inside_on_a_shared_shard, .timeout = 20)
{
    stays_until_it_leaves(false);
}

Test(shard, destroy_waits_for_a_worker_that_is_inside, .timeout = 20)
{
    stays_until_it_leaves(true);
}
