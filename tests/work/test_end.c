/* test_end.c: creation that fails half-way, refusal, and destroy with everything pending. */
#include "support/test.h"

#include <errno.h>
#include <pthread.h>

#include "os/fault.h"
#include "pool_rig.h"
#include "support/fds.h"
#include "support/stress.h"
#include "work/pool_private.h"

static _Atomic unsigned ran;
static struct gate gate;

/* When destroy has been called, most likely; the tests hold either way. */
static void *open_later(void *argument)
{
    sleep_ms(20);
    gate_open(argument);
    return NULL;
}

Test(end, destroy_runs_what_is_queued_in_both_lanes, .timeout = 30)
{
    struct rig rig = { .options = { .workers = 2, .workers_max = 2, .blocking_max = 2 } };
    static struct job jobs[400];
    rig_start(&rig);
    for (unsigned i = 0; i < 400; i++) {
        job_init(&jobs[i], &ran, i < 4 ? &gate : NULL, false);
        if (i % 2)
            cr_assert_eq(wr_pool_post(rig.pool, &jobs[i].work), 0);
        else
            cr_assert_eq(wr_pool_post_blocking(rig.pool, &jobs[i].work), 0);
    }
    cr_assert(await_at_least(&gate.waiting, 4));
    cr_assert_eq(atomic_load(&ran), 4);
    gate_open(&gate);
    rig_stop(&rig);
    cr_assert_eq(atomic_load(&ran), 400);
}

struct chain {
    weir_work work;
    struct rig *rig;
    unsigned left;
};

static void post_next(weir_work *work, void *context)
{
    struct chain *chain = context;
    atomic_fetch_add(&ran, 1);
    if (chain->left-- > 0)
        wr_pool_post_own(chain->rig->pool, work);
}

static void start_chain(weir_work *work, void *context)
{
    struct chain *chain = context;
    gate_wait(&gate);
    weir_work_init(work, post_next, chain);
    wr_pool_post_own(chain->rig->pool, work);
}

/* The items that begin the chains run in either lane when destroy is called already. */
Test(end, destroy_runs_what_running_items_post, .timeout = 30)
{
    struct rig rig = { .options = { .workers = 3 } };
    static struct chain chains[4];
    pthread_t opener;
    rig_start(&rig);
    for (unsigned i = 0; i < 4; i++) {
        chains[i] = (struct chain) { .rig = &rig, .left = 49 };
        weir_work_init(&chains[i].work, start_chain, &chains[i]);
        if (i % 2)
            wr_pool_post(rig.pool, &chains[i].work);
        else
            wr_pool_post_blocking(rig.pool, &chains[i].work);
    }
    cr_assert(await_at_least(&gate.waiting, 4));
    pthread_create(&opener, NULL, open_later, &gate);
    rig_stop(&rig);
    pthread_join(opener, NULL);
    cr_assert_eq(atomic_load(&ran), 200);
}

Test(end, posts_are_refused_from_then_on_and_own_items_are_not, .timeout = 30)
{
    struct rig rig = { 0 };
    struct job job;
    rig_start(&rig);
    wr_pool_refuse(rig.pool);
    job_init(&job, &ran, NULL, false);
    cr_assert_eq(wr_pool_post(rig.pool, &job.work), -ESHUTDOWN);
    cr_assert_eq(wr_pool_post_blocking(rig.pool, &job.work), -ESHUTDOWN);
    cr_assert_eq(wr_pool_post(rig.pool, &job.work), -ESHUTDOWN, "still free");
    cr_assert_eq(atomic_load(&ran), 0);
    wr_pool_post_own(rig.pool, &job.work);
    cr_assert(await_at_least(&ran, 1));
    rig_stop(&rig);
}

static void wait_for_the_next(weir_work *work, void *context)
{
    struct chain *chain = context;
    static struct job inner;
    (void)work;
    gate_wait(&gate);
    job_init(&inner, &ran, NULL, false);
    wr_pool_post_own(chain->rig->pool, &inner.work);
    if (await_at_least(&ran, 1))
        atomic_fetch_add(&ran, 10);
}

/* Nobody ticks any more, so destroy has to. */
Test(end, destroy_finds_a_worker_for_items_that_wait_for_each_other, .timeout = 30)
{
    struct rig rig = { .options = { .workers = 1 } };
    static struct chain chain;
    pthread_t opener;
    rig_start(&rig);
    chain = (struct chain) { .rig = &rig };
    weir_work_init(&chain.work, wait_for_the_next, &chain);
    wr_pool_post(rig.pool, &chain.work);
    cr_assert(await_at_least(&gate.waiting, 1));
    pthread_create(&opener, NULL, open_later, &gate);
    rig_stop(&rig);
    pthread_join(opener, NULL);
    cr_assert_eq(atomic_load(&ran), 11, "the inner item ran beside the one that waits for it");
}

Test(end, create_and_destroy_many_times_leaves_nothing, .timeout = 60)
{
    struct support_held before = support_held();
    unsigned rounds = support_rounds(300);
    for (unsigned i = 0; i < rounds; i++) {
        struct rig rig = { .options = { .workers = 1 + i % 4, .idle_ns = i % 3 ? 0 : 1 } };
        struct job io, blocking;
        _Atomic unsigned mine = 0;
        rig_start(&rig);
        job_init(&io, &mine, NULL, false);
        job_init(&blocking, &mine, NULL, false);
        if (i % 2)
            wr_pool_post(rig.pool, &io.work);
        if (i % 5)
            wr_pool_post_blocking(rig.pool, &blocking.work);
        rig_stop(&rig);
        cr_assert_eq(atomic_load(&mine), (i % 2 ? 1u : 0u) + (i % 5 ? 1u : 0u));
    }
    struct support_held after = support_held();
    cr_assert_eq(after.fds, before.fds);
    cr_assert_leq(support_await_threads(before.threads, 2000), before.threads);
}

/* Surplus workers and blocking threads come and go all the time while the pool ends. */
Test(end, destroy_meets_threads_that_are_leaving, .timeout = 60)
{
    unsigned rounds = support_rounds(100);
    for (unsigned i = 0; i < rounds; i++) {
        struct rig rig = { .options = { .workers = 1, .workers_max = 8, .idle_ns = 100000 } };
        struct gate mine = { 0 };
        struct job jobs[6];
        rig_start(&rig);
        for (unsigned k = 0; k < 6; k++) {
            job_init(&jobs[k], NULL, k % 3 ? &mine : NULL, true);
            if (k % 2)
                cr_assert_eq(wr_pool_post(rig.pool, &jobs[k].work), 0);
            else
                cr_assert_eq(wr_pool_post_blocking(rig.pool, &jobs[k].work), 0);
        }
        cr_assert(await_at_least(&mine.waiting, 4));
        gate_open(&mine);
        if (i % 2)
            sleep_ms((int)(i % 3));
        rig_stop(&rig);
    }
}

/* ---- failures
 * --------------------------------------------------------------------------------- */

struct failing {
    _Atomic int calls;
    int fail_at;
};

static void *failing_allocate(size_t size, void *context)
{
    struct failing *failing = context;
    return atomic_fetch_add(&failing->calls, 1) + 1 == failing->fail_at ? NULL : malloc(size);
}

static void failing_release(void *memory, size_t size, void *context)
{
    (void)size;
    (void)context;
    free(memory);
}

static int create_with_failing_allocation(int k, struct rig *rig, struct failing *failing)
{
    *failing = (struct failing) { .fail_at = k };
    weir_allocator source = { failing_allocate, failing_release, failing };
    *rig = (struct rig) { .options = { .workers = 2 } };
    wr_alloc_init(&rig->alloc, &source);
    return rig_try(rig);
}

/* The pool, two tables, the queue, and then a worker each. */
Test(end, each_allocation_that_fails_is_told_and_leaves_nothing, .timeout = 30)
{
    struct rig rig;
    struct failing failing;
    for (int k = 1; k <= 5; k++) {
        cr_assert_eq(create_with_failing_allocation(k, &rig, &failing), -ENOMEM, "the %d.", k);
        cr_assert_null(rig.pool);
        cr_assert_eq(atomic_load(&rig.alloc.bytes), 0);
    }
    cr_assert_eq(create_with_failing_allocation(6, &rig, &failing), 0, "one worker of two");
    cr_assert_eq(rig_stats(&rig).workers, 1);
    rig_stop(&rig);
    cr_assert_eq(create_with_failing_allocation(7, &rig, &failing), 0);
    cr_assert_eq(rig_stats(&rig).workers, 2);
    rig_stop(&rig);
}

#ifdef WEIR_FAULTS
static _Atomic int thread_calls;
static int fail_from;

/* EINVAL is not tried again, so that each start is one call. */
static int fail_thread(enum wr_fault_call call)
{
    if (call != WR_FAULT_THREAD)
        return 0;
    return atomic_fetch_add(&thread_calls, 1) + 1 >= fail_from ? EINVAL : 0;
}

static int create_with_failing_thread(int k, struct rig *rig)
{
    wr_fault_hook = fail_thread;
    fail_from = k;
    atomic_store(&thread_calls, 0);
    *rig = (struct rig) { .options = { .workers = 4 } };
    return rig_try(rig);
}

static struct rig late_rig;
static _Atomic int late_result = 1;

/* The I/O worker that posts to the blocking lane is held up where it starts a thread, past the
 * check for refusal, until destroy has told that lane to end. */
static int end_the_lane_meanwhile(enum wr_fault_call call)
{
    if (call != WR_FAULT_THREAD || !wr_pool_on_io_worker())
        return 0;
    atomic_fetch_add(&gate.waiting, 1);
    struct wr_lane *lane = &late_rig.pool->blocking;
    for (bool stopping = false; !stopping; sleep_ms(1)) {
        wr_lock(&lane->lock);
        stopping = lane->stopping;
        wr_unlock(&lane->lock);
    }
    return 0;
}

static void post_blocking_late(weir_work *work, void *context)
{
    (void)work;
    atomic_store(&late_result, wr_pool_post_blocking(late_rig.pool, context));
}

Test(end, job_posted_while_its_lane_ends_is_refused_and_not_lost, .timeout = 30)
{
    weir_work poster;
    struct job job;
    wr_fault_hook = end_the_lane_meanwhile;
    late_rig.options.workers = 1;
    rig_start(&late_rig);
    job_init(&job, &ran, NULL, false);
    weir_work_init(&poster, post_blocking_late, &job.work);
    wr_pool_post(late_rig.pool, &poster);
    cr_assert(await_at_least(&gate.waiting, 1));
    rig_stop(&late_rig);
    cr_assert_eq(atomic_load(&late_result), -ESHUTDOWN);
    cr_assert_eq(atomic_load(&ran), 0);
}

Test(end, without_the_first_worker_there_is_no_pool, .timeout = 30)
{
    struct rig rig;
    cr_assert_eq(create_with_failing_thread(1, &rig), -EAGAIN);
    cr_assert_null(rig.pool);
    cr_assert_eq(atomic_load(&rig.alloc.bytes), 0);
}

Test(end, fewer_workers_than_asked_for_are_a_warning, .timeout = 30)
{
    for (int k = 3; k <= 4; k++) {
        struct rig rig;
        struct job job;
        _Atomic unsigned mine = 0;
        cr_assert_eq(create_with_failing_thread(k, &rig), 0);
        cr_assert_geq(atomic_load(&rig.lines), 1);
        cr_assert_eq(rig_stats(&rig).workers, (unsigned)k - 1);
        job_init(&job, &mine, NULL, false);
        wr_pool_post(rig.pool, &job.work);
        cr_assert(await_at_least(&mine, 1));
        rig_stop(&rig);
    }
}
#endif
