/* test_pool.c: posting to the I/O lane: results, order, what a callback may do, counters. */
#include "support/test.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <sched.h>

#include "os/clock.h"
#include "pool_rig.h"
#include "support/stress.h"

Test(pool, each_accepted_post_runs_once, .timeout = 60)
{
    struct rig rig = { .options = { .workers = 4 } };
    _Atomic unsigned ran = 0;
    static struct job jobs[5000];
    rig_start(&rig);
    for (unsigned i = 0; i < 5000; i++) {
        job_init(&jobs[i], &ran, NULL, false);
        cr_assert_eq(wr_pool_post(rig.pool, &jobs[i].work), 0);
    }
    cr_assert(await_at_least(&ran, 5000));
    cr_assert(rig_await_parked(&rig, 4));
    cr_assert_eq(atomic_load(&ran), 5000);
    struct wr_pool_stats stats = rig_stats(&rig);
    cr_assert_eq(stats.posts, 5000);
    cr_assert_eq(stats.items_run, 5000);
    cr_assert_eq(stats.workers, 4);
    cr_assert_eq(stats.oldest_posted, WEIR_NEVER);
    rig_stop(&rig);
}

Test(pool, wrong_arguments_are_answered)
{
    struct rig rig = { 0 };
    struct job job;
    weir_work no_function;
    weir_work_init(&no_function, NULL, NULL);
    job_init(&job, NULL, NULL, false);
    rig_start(&rig);
    cr_assert_eq(wr_pool_post(NULL, &job.work), -EINVAL);
    cr_assert_eq(wr_pool_post(rig.pool, NULL), -EINVAL);
    cr_assert_eq(wr_pool_post(rig.pool, &no_function), -EINVAL);
    cr_assert_eq(wr_pool_post_blocking(rig.pool, NULL), -EINVAL);
    cr_assert_eq(wr_pool_post_blocking(rig.pool, &no_function), -EINVAL);
    rig_stop(&rig);
    wr_pool_destroy(NULL);
}

Test(pool, second_post_of_a_pending_item_is_refused_in_either_lane, .timeout = 30)
{
    struct rig rig = { .options = { .workers = 1, .workers_max = 1 } };
    struct gate gate = { 0 };
    struct job blocker, job;
    _Atomic unsigned ran = 0;
    rig_start(&rig);
    job_init(&blocker, NULL, &gate, false);
    job_init(&job, &ran, NULL, false);
    wr_pool_post(rig.pool, &blocker.work);
    cr_assert(await_at_least(&gate.waiting, 1));
    cr_assert_eq(wr_pool_post(rig.pool, &job.work), 0);
    cr_assert_eq(wr_pool_post(rig.pool, &job.work), -EALREADY);
    cr_assert_eq(wr_pool_post_blocking(rig.pool, &job.work), -EALREADY);
    gate_open(&gate);
    cr_assert(await_at_least(&ran, 1));
    cr_assert(rig_await_parked(&rig, 1));
    cr_assert_eq(wr_pool_post(rig.pool, &job.work), 0);
    cr_assert(await_at_least(&ran, 2));
    rig_stop(&rig);
}

struct again {
    weir_work work;
    struct rig *rig;
    unsigned left;
    _Atomic unsigned ran;
    _Atomic int worst;
};

static void post_itself(weir_work *work, void *context)
{
    struct again *again = context;
    if (again->left-- > 0) {
        int r = wr_pool_post(again->rig->pool, work);
        if (r < 0)
            atomic_store(&again->worst, r);
    }
    atomic_fetch_add(&again->ran, 1);
}

Test(pool, item_is_free_again_when_its_run_is_entered, .timeout = 30)
{
    struct rig rig = { .options = { .workers = 1 } };
    struct again again = { .rig = &rig, .left = 100 };
    weir_work_init(&again.work, post_itself, &again);
    rig_start(&rig);
    cr_assert_eq(wr_pool_post(rig.pool, &again.work), 0);
    cr_assert(await_at_least(&again.ran, 101));
    cr_assert_eq(atomic_load(&again.worst), 0);
    cr_assert_eq(rig_stats(&rig).posts, 101);
    rig_stop(&rig);
}

static void free_itself(weir_work *work, void *context)
{
    _Atomic unsigned *ran = context;
    memset(work, 0x5a, sizeof *work);
    free(work);
    atomic_fetch_add(ran, 1);
}

/* Shows under ASan and TSan whether the pool or the poster touches an item after its run was
 * entered. */
Test(pool, item_may_be_freed_by_its_own_run, .timeout = 60)
{
    struct rig rig = { .options = { .workers = 4 } };
    _Atomic unsigned ran = 0;
    rig_start(&rig);
    for (unsigned i = 0; i < 4000; i++) {
        weir_work *work = malloc(sizeof *work);
        weir_work_init(work, free_itself, &ran);
        int r = i % 8 ? wr_pool_post(rig.pool, work) : wr_pool_post_blocking(rig.pool, work);
        cr_assert_eq(r, 0);
    }
    cr_assert(await_at_least(&ran, 4000));
    rig_stop(&rig);
}

static unsigned order[100], order_count;

static void note_order(weir_work *work, void *context)
{
    (void)work;
    order[order_count++] = (unsigned)(uintptr_t)context;
}

Test(pool, one_worker_runs_first_come_first_served, .timeout = 30)
{
    struct rig rig = { .options = { .workers = 1, .workers_max = 1 } };
    weir_work items[100];
    rig_start(&rig);
    for (unsigned i = 0; i < 100; i++) {
        weir_work_init(&items[i], note_order, (void *)(uintptr_t)i);
        wr_pool_post(rig.pool, &items[i]);
    }
    rig_stop(&rig);
    cr_assert_eq(order_count, 100);
    for (unsigned i = 0; i < 100; i++)
        cr_assert_eq(order[i], i);
}

/* An item of I/O that posts itself for ever; at its hundredth run it posts a job. */
struct busy_io {
    weir_work work;
    struct rig *rig;
    struct job job;
    unsigned runs;
    unsigned runs_before_job;
    _Atomic unsigned job_ran;
};

static void note_busy_io(weir_work *work, void *context)
{
    struct busy_io *io = context;
    (void)work;
    io->runs_before_job = io->runs;
    atomic_store(&io->job_ran, 1);
}

static void post_own_for_ever(weir_work *work, void *context)
{
    struct busy_io *io = context;
    if (++io->runs == 100) {
        weir_work_init(&io->job.work, note_busy_io, io);
        wr_pool_post(io->rig->pool, &io->job.work);
    }
    if (io->runs < 1000000 && !atomic_load(&io->job_ran))
        wr_pool_post_own(io->rig->pool, work);
}

Test(pool, job_waits_for_few_items_of_io_when_these_never_end, .timeout = 30)
{
    struct rig rig = { .options = { .workers = 1, .workers_max = 1 } };
    struct busy_io io = { .rig = &rig };
    weir_work_init(&io.work, post_own_for_ever, &io);
    rig_start(&rig);
    wr_pool_post_own(rig.pool, &io.work);
    cr_assert(await_at_least(&io.job_ran, 1));
    cr_assert_leq(io.runs_before_job, 100 + 16);
    rig_stop(&rig);
}

struct look {
    weir_work work;
    struct rig *rig;
    bool worker, io;
    char name[16];
    _Atomic unsigned ran;
};

static void look_around(weir_work *work, void *context)
{
    struct look *look = context;
    (void)work;
    look->worker = wr_pool_is_worker(look->rig->pool);
    look->io = wr_pool_on_io_worker();
    pthread_getname_np(pthread_self(), look->name, sizeof look->name);
    atomic_fetch_add(&look->ran, 1);
}

static _Atomic unsigned hook_starts, hook_stops;

static void on_start(const char *name, void *context)
{
    if (strncmp(name, "rig-", 4) == 0 && context == &hook_starts)
        atomic_fetch_add(&hook_starts, 1);
}

static void on_stop(const char *name, void *context)
{
    if (strncmp(name, "rig-", 4) == 0 && context == &hook_starts)
        atomic_fetch_add(&hook_stops, 1);
}

Test(pool, threads_know_where_they_are_and_have_names_and_hooks, .timeout = 30)
{
    struct rig rig = { .options = { .workers = 1, .thread_start = on_start, .thread_stop = on_stop,
                                    .thread_context = &hook_starts } };
    struct look io = { .rig = &rig }, blocking = { .rig = &rig };
    weir_work_init(&io.work, look_around, &io);
    weir_work_init(&blocking.work, look_around, &blocking);
    rig_start(&rig);
    wr_pool_post(rig.pool, &io.work);
    wr_pool_post_blocking(rig.pool, &blocking.work);
    cr_assert(await_at_least(&io.ran, 1));
    cr_assert(await_at_least(&blocking.ran, 1));
    cr_assert(io.worker && io.io);
    cr_assert(blocking.worker && !blocking.io);
    cr_assert_not(wr_pool_is_worker(rig.pool));
    cr_assert_not(wr_pool_on_io_worker());
    cr_assert_str_eq(io.name, "rig-w1");
    cr_assert_str_eq(blocking.name, "rig-b1");
    rig_stop(&rig);
    cr_assert_eq(atomic_load(&hook_starts), 2);
    cr_assert_eq(atomic_load(&hook_stops), 2);
}

Test(pool, oldest_posted_is_the_time_of_the_item_that_waits_longest, .timeout = 30)
{
    struct rig rig = { .options = { .workers = 1, .workers_max = 1 } };
    struct gate gate = { 0 };
    struct job blocker, public, own;
    rig_start(&rig);
    cr_assert_eq(rig_stats(&rig).oldest_posted, WEIR_NEVER);
    job_init(&blocker, NULL, &gate, false);
    job_init(&public, NULL, NULL, false);
    job_init(&own, NULL, NULL, false);
    wr_pool_post(rig.pool, &blocker.work);
    cr_assert(await_at_least(&gate.waiting, 1));
    cr_assert_eq(rig_stats(&rig).oldest_posted, WEIR_NEVER, "what runs does not wait");
    weir_time before = wr_clock_now();
    wr_pool_post_own(rig.pool, &own.work);
    weir_time between = wr_clock_now();
    wr_pool_post(rig.pool, &public.work);
    weir_time oldest = rig_stats(&rig).oldest_posted;
    /* The times of posts are read from a clock that is behind by a tick of the kernel. */
    cr_assert(before - 10000000 <= oldest && oldest <= between);
    sleep_ms(20);
    cr_assert_eq(rig_stats(&rig).oldest_posted, oldest, "it is not the time of the look");
    gate_open(&gate);
    rig_stop(&rig);
}

/* ---- a post races with a worker that goes to sleep, many times over ------------------------- */

struct pinger {
    struct rig *rig;
    struct job job;
    unsigned rounds, lost;
    struct support_random random;
};

static void *ping(void *argument)
{
    struct pinger *pinger = argument;
    for (unsigned i = 1; i <= pinger->rounds && !pinger->lost; i++) {
        wr_pool_post(pinger->rig->pool, &pinger->job.work);
        weir_time until = wr_clock_now() + 2000000000;
        while (atomic_load(pinger->job.ran) < i && !pinger->lost) {
            if (wr_clock_now() > until)
                pinger->lost = i;
            sched_yield();
        }
        support_yield(&pinger->random);
    }
    return NULL;
}

static void ping_pong(unsigned workers, unsigned spin_us)
{
    struct rig rig = { .options = { .workers = workers, .spin_us = spin_us } };
    struct pinger pingers[2];
    _Atomic unsigned ran[2] = { 0 };
    pthread_t threads[2];
    rig_start(&rig);
    for (unsigned i = 0; i < 2; i++) {
        pingers[i] = (struct pinger) { .rig = &rig, .rounds = support_rounds(5000),
                                       .random = support_random(support_seed(), i) };
        job_init(&pingers[i].job, &ran[i], NULL, false);
        pthread_create(&threads[i], NULL, ping, &pingers[i]);
    }
    for (unsigned i = 0; i < 2; i++) {
        pthread_join(threads[i], NULL);
        cr_expect_eq(pingers[i].lost, 0, "post %u was lost", pingers[i].lost);
    }
    rig_stop(&rig);
}

Test(pool, no_post_is_lost_while_workers_fall_asleep, .timeout = 60)
{
    ping_pong(1, 0);
    ping_pong(3, 0);
}

Test(pool, no_post_is_lost_while_workers_spin, .timeout = 60)
{
    ping_pong(1, 20);
    ping_pong(4, 50);
}
