/* test_blocking.c: blocked workers and what the pool does about them; the blocking lane. */
#include "support/test.h"

#include <errno.h>
#include <pthread.h>

#include "os/clock.h"
#include "os/fault.h"
#include "pool_rig.h"
#include "support/fds.h"

static _Atomic unsigned ran;
static struct gate gate;

static weir_time elapsed_ms(weir_time since)
{
    return (wr_clock_now() - since) / 1000000;
}

/* ---- announced blocks ----------------------------------------------------------------------- */

Test(blocking, item_runs_at_once_when_all_workers_are_blocked_and_say_so, .timeout = 20)
{
    struct rig rig = { .options = { .workers = 2 } };    /* nobody ticks */
    static struct job blockers[6], job;
    rig_start(&rig);
    for (unsigned i = 0; i < 6; i++) {
        job_init(&blockers[i], NULL, &gate, true);
        wr_pool_post(rig.pool, &blockers[i].work);
    }
    cr_assert(await_at_least(&gate.waiting, 6));
    weir_time begin = wr_clock_now();
    job_init(&job, &ran, NULL, false);
    wr_pool_post(rig.pool, &job.work);
    cr_assert(await_at_least(&ran, 1));
    cr_assert_lt(elapsed_ms(begin), 100);
    struct wr_pool_stats stats = rig_stats(&rig);
    cr_assert_eq(stats.blocked, 6);
    cr_assert_eq(stats.workers, 8, "as many unblocked as asked for");
    cr_assert_eq(stats.compensations, 6);
    gate_open(&gate);
    rig_stop(&rig);
}

/* The items were there before the block was announced. */
Test(blocking, announcing_a_block_hands_on_what_is_queued, .timeout = 20)
{
    struct rig rig = { .options = { .workers = 1 } };
    struct gate before = { 0 };
    static struct job first, rest[5];
    rig_start(&rig);
    job_init(&first, NULL, &before, false);
    wr_pool_post(rig.pool, &first.work);
    cr_assert(await_at_least(&before.waiting, 1));
    for (unsigned i = 0; i < 5; i++) {
        job_init(&rest[i], &ran, &gate, true);
        wr_pool_post(rig.pool, &rest[i].work);
    }
    gate_open(&before);
    cr_assert(await_at_least(&gate.waiting, 5), "%u came", atomic_load(&gate.waiting));
    gate_open(&gate);
    rig_stop(&rig);
}

static _Atomic unsigned hooked;

static void hook(void *context)
{
    atomic_fetch_add((_Atomic unsigned *)context, 1);
}

static void nest(weir_work *work, void *context)
{
    struct rig *rig = context;
    (void)work;
    weir_blocking_end();                /* without a begin: nothing */
    for (int i = 0; i < 3; i++)
        weir_blocking_begin();
    if (rig_stats(rig).blocked == 1)
        atomic_fetch_add(&ran, 1);
    for (int i = 0; i < 2; i++)
        weir_blocking_end();
    if (rig_stats(rig).blocked == 1)
        atomic_fetch_add(&ran, 1);
    weir_blocking_end();
    if (rig_stats(rig).blocked == 0)
        atomic_fetch_add(&ran, 1);
}

Test(blocking, nested_blocks_count_once_and_the_hook_runs_on_each_begin, .timeout = 20)
{
    struct rig rig = { .options = { .workers = 1 } };
    weir_work work;
    rig_start(&rig);
    wr_pool_set_block_hook(rig.pool, hook, &hooked);
    weir_work_init(&work, nest, &rig);
    wr_pool_post(rig.pool, &work);
    cr_assert(await_at_least(&ran, 3));
    cr_assert_eq(atomic_load(&hooked), 3);
    cr_assert_eq(rig_stats(&rig).workers, 2, "one for the one that was blocked");
    weir_blocking_begin();              /* not a worker: nothing */
    weir_blocking_end();
    cr_assert_eq(atomic_load(&hooked), 3);
    rig_stop(&rig);
}

static void begin_and_return(weir_work *work, void *context)
{
    (void)work;
    (void)context;
    weir_blocking_begin();
    weir_blocking_begin();
    atomic_fetch_add(&ran, 1);
}

Test(blocking, callback_that_forgets_the_end_is_reported_and_put_right, .timeout = 20)
{
    struct rig rig = { .options = { .workers = 1 } };
    weir_work work;
    rig_start(&rig);
    weir_work_init(&work, begin_and_return, NULL);
    wr_pool_post(rig.pool, &work);
    cr_assert(await_at_least(&rig.lines, 1));
    cr_assert(rig_await_parked(&rig, 2));
    cr_assert_eq(rig_stats(&rig).blocked, 0);
    rig_stop(&rig);
}

Test(blocking, parked_worker_counts_as_unblocked, .timeout = 20)
{
    struct rig rig = { .options = { .workers = 1 } };
    static struct job blocker;
    rig_start(&rig);
    for (unsigned i = 1; i <= 10; i++) {
        struct gate mine = { 0 };
        job_init(&blocker, &ran, &mine, true);
        wr_pool_post(rig.pool, &blocker.work);
        cr_assert(await_at_least(&mine.waiting, 1));
        gate_open(&mine);
        cr_assert(rig_await_parked(&rig, 2));
    }
    cr_assert_eq(rig_stats(&rig).workers, 2);
    cr_assert_eq(rig_stats(&rig).compensations, 1, "the second block had a worker in reserve");
    rig_stop(&rig);
}

static void fill_to_the_cap(bool announced)
{
    struct rig rig = { .ticks = true, .options = { .workers = 2, .workers_max = 5 } };
    static struct job blockers[12];
    rig_start(&rig);
    for (unsigned i = 0; i < 12; i++) {
        job_init(&blockers[i], &ran, &gate, announced);
        wr_pool_post(rig.pool, &blockers[i].work);
    }
    cr_assert(await_at_least(&gate.waiting, 5));
    sleep_ms(100);
    cr_assert_eq(atomic_load(&gate.waiting), 5);
    cr_assert_eq(rig_stats(&rig).workers, 5);
    cr_assert_leq(support_count_threads(), rig.threads_before + 6);
    /* Said before the last of them had begun, it is said once more: on a busy machine. */
    cr_assert(await_at_least(&rig.lines, 1), "nobody hears that the cap is reached");
    sleep_ms(50);
    unsigned lines = atomic_load(&rig.lines);
    sleep_ms(100);
    cr_assert_eq(atomic_load(&rig.lines), lines, "that the cap is reached is said again");
    gate_open(&gate);
    cr_assert(await_at_least(&ran, 12));
    rig_stop(&rig);
}

Test(blocking, cap_is_kept_when_blocks_are_announced, .timeout = 20)
{
    fill_to_the_cap(true);
}

Test(blocking, cap_is_kept_by_the_tick, .timeout = 20)
{
    fill_to_the_cap(false);
}

/* ---- blocks that nobody announces ------------------------------------------------------------ */

Test(blocking, item_runs_soon_when_all_workers_are_blocked_and_do_not_say_so, .timeout = 20)
{
    struct rig rig = { .ticks = true, .options = { .workers = 2 } };
    static struct job blockers[4], job;
    rig_start(&rig);
    for (unsigned i = 0; i < 4; i++) {
        job_init(&blockers[i], NULL, &gate, false);
        wr_pool_post(rig.pool, &blockers[i].work);
    }
    cr_assert(await_at_least(&gate.waiting, 4));
    sleep_ms(50);                       /* the detector has come to rest */
    weir_time begin = wr_clock_now();
    job_init(&job, &ran, NULL, false);
    wr_pool_post(rig.pool, &job.work);
    cr_assert(await_at_least(&ran, 1));
    cr_assert_lt(elapsed_ms(begin), 100);
    cr_assert_gt(rig_stats(&rig).compensations, 0);
    gate_open(&gate);
    rig_stop(&rig);
}

Test(blocking, busy_pool_that_makes_progress_is_left_alone, .timeout = 20)
{
    struct rig rig = { .options = { .workers = 1 } };
    static struct job first, second, third;
    struct gate gates[2] = { 0 };
    rig_start(&rig);
    cr_assert(rig_await_parked(&rig, 1));
    job_init(&first, NULL, &gates[0], false);
    job_init(&second, NULL, &gates[1], false);
    job_init(&third, &ran, NULL, false);
    wr_pool_post(rig.pool, &first.work);
    cr_assert(await_at_least(&gates[0].waiting, 1));
    wr_pool_post(rig.pool, &second.work);
    wr_pool_post(rig.pool, &third.work);
    cr_assert(wr_pool_tick(rig.pool, wr_clock_now()));
    gate_open(&gates[0]);
    cr_assert(await_at_least(&gates[1].waiting, 1));
    cr_assert(wr_pool_tick(rig.pool, wr_clock_now()), "an item waits, but one was begun");
    cr_assert_eq(rig_stats(&rig).workers, 1);
    cr_assert(wr_pool_tick(rig.pool, wr_clock_now()));
    cr_assert_eq(rig_stats(&rig).workers, 2, "now none was begun from tick to tick");
    cr_assert(await_at_least(&ran, 1));
    gate_open(&gates[1]);
    rig_stop(&rig);
}

/* ---- workers that wait for work of their own pool -------------------------------------------- */

struct outer {
    weir_work work;
    struct rig *rig;
    struct job inner;
    _Atomic unsigned inner_ran;
    bool announced;
};

static void wait_for_inner(weir_work *work, void *context)
{
    struct outer *outer = context;
    (void)work;
    job_init(&outer->inner, &outer->inner_ran, NULL, false);
    wr_pool_post(outer->rig->pool, &outer->inner.work);
    if (outer->announced)
        weir_blocking_begin();
    if (await_at_least(&outer->inner_ran, 1))
        atomic_fetch_add(&ran, 1);
    if (outer->announced)
        weir_blocking_end();
}

static void sync_over_async(struct rig *rig, bool announced)
{
    static struct outer outers[6];
    rig_start(rig);
    for (unsigned i = 0; i < 6; i++) {
        outers[i] = (struct outer) { .rig = rig, .announced = announced };
        weir_work_init(&outers[i].work, wait_for_inner, &outers[i]);
        wr_pool_post(rig->pool, &outers[i].work);
    }
    cr_assert(await_at_least_ms(&ran, 6, 1000), "%u of 6 came back", atomic_load(&ran));
    rig_stop(rig);
}

Test(blocking, workers_may_wait_for_work_of_their_own_pool_and_say_so, .timeout = 20)
{
    struct rig rig = { .options = { .workers = 2 } };
    sync_over_async(&rig, true);
}

Test(blocking, workers_may_wait_for_work_of_their_own_pool_and_say_nothing, .timeout = 20)
{
    struct rig rig = { .ticks = true, .options = { .workers = 2 } };
    sync_over_async(&rig, false);
}

/* ---- surplus --------------------------------------------------------------------------------- */

static void make_surplus(struct rig *rig)
{
    static struct job blockers[4];
    for (unsigned i = 0; i < 4; i++) {
        job_init(&blockers[i], NULL, &gate, true);
        wr_pool_post(rig->pool, &blockers[i].work);
    }
    cr_assert(await_at_least(&gate.waiting, 4));
    cr_assert_eq(rig_stats(rig).workers, 6);
    gate_open(&gate);
}

static bool await_workers(struct rig *rig, unsigned workers)
{
    for (int i = 0; i < 3000 && rig_stats(rig).workers != workers; i++)
        sleep_ms(1);
    return rig_stats(rig).workers == workers;
}

Test(blocking, surplus_leaves_and_the_resident_stay, .timeout = 20)
{
    struct rig rig = { .options = { .workers = 2, .idle_ns = 50000000 } };
    rig_start(&rig);
    make_surplus(&rig);
    cr_assert(await_workers(&rig, 2), "%u are left", (unsigned)rig_stats(&rig).workers);
    cr_assert_leq(support_await_threads(rig.threads_before + 2, 2000), rig.threads_before + 2);
    sleep_ms(150);
    cr_assert_eq(rig_stats(&rig).workers, 2);
    cr_assert_eq(rig_stats(&rig).parked, 2);
    rig_stop(&rig);
}

/* The workers that are woken are the ones parked last: were it for them to leave, nobody ever
 * would. */
Test(blocking, surplus_leaves_also_while_work_comes, .timeout = 20)
{
    struct rig rig = { .options = { .workers = 2, .idle_ns = 50000000 } };
    static struct job job;
    rig_start(&rig);
    make_surplus(&rig);
    unsigned turns = 0;
    for (; turns < 2000 && rig_stats(&rig).workers > 2; turns++) {
        job_init(&job, &ran, NULL, false);
        wr_pool_post(rig.pool, &job.work);
        cr_assert(await_at_least(&ran, turns + 1));
        sleep_ms(1);
    }
    cr_assert_eq(rig_stats(&rig).workers, 2);
    rig_stop(&rig);
}

Test(blocking, blocked_workers_that_come_back_and_go_again_do_not_pile_up, .timeout = 20)
{
    struct rig rig = { .options = { .workers = 2, .workers_max = 64, .idle_ns = 20000000 } };
    rig_start(&rig);
    for (unsigned turn = 0; turn < 20; turn++) {
        static struct job blockers[4];
        struct gate mine = { 0 };
        _Atomic unsigned done = 0;
        for (unsigned i = 0; i < 4; i++) {
            job_init(&blockers[i], NULL, &mine, true);
            blockers[i].done = &done;
            wr_pool_post(rig.pool, &blockers[i].work);
        }
        cr_assert(await_at_least(&mine.waiting, 4));
        cr_assert_leq(rig_stats(&rig).workers, 7, "turn %u", turn);
        gate_open(&mine);
        cr_assert(await_at_least(&done, 4));
        sleep_ms((int)(turn % 4) * 10);
    }
    cr_assert(await_workers(&rig, 2));
    rig_stop(&rig);
}

/* ---- the blocking lane
 * ------------------------------------------------------------------------ */

Test(blocking, lane_full_of_slow_jobs_does_not_delay_an_item, .timeout = 30)
{
    struct rig rig = { .options = { .workers = 1, .blocking_max = 4 } };
    static struct job slow[100], job;
    _Atomic unsigned done = 0;
    rig_start(&rig);
    for (unsigned i = 0; i < 100; i++) {
        job_init(&slow[i], NULL, &gate, false);
        slow[i].done = &done;
        cr_assert_eq(wr_pool_post_blocking(rig.pool, &slow[i].work), 0);
    }
    cr_assert(await_at_least(&gate.waiting, 4));
    weir_time begin = wr_clock_now();
    job_init(&job, &ran, NULL, false);
    wr_pool_post(rig.pool, &job.work);
    cr_assert(await_at_least(&ran, 1));
    cr_assert_lt(elapsed_ms(begin), 50);
    cr_assert_eq(atomic_load(&gate.waiting), 4, "the cap");
    struct wr_pool_stats stats = rig_stats(&rig);
    cr_assert_eq(stats.blocking_threads, 4);
    cr_assert_eq(stats.blocking_queued, 96);
    cr_assert_lt(stats.oldest_posted, begin);
    gate_open(&gate);
    cr_assert(await_at_least(&done, 100));
    rig_stop(&rig);
}

/* (W11) Nobody posts any more, and no job ends: the tick says it, once, and rests. */
Test(blocking, lane_that_stays_full_is_said_without_another_post, .timeout = 20)
{
    struct rig rig = { .options = { .blocking_max = 1 } };  /* the test ticks */
    static struct job first, second, third;
    struct gate again = { 0 };
    rig_start(&rig);
    job_init(&first, NULL, &gate, false);
    job_init(&second, NULL, &again, false);
    job_init(&third, &ran, NULL, false);
    cr_assert_eq(wr_pool_post_blocking(rig.pool, &first.work), 0);
    cr_assert(await_at_least(&gate.waiting, 1));
    weir_time now = wr_clock_now();
    cr_expect_not(wr_pool_tick(rig.pool, now), "the one thread is busy, and nothing waits");
    unsigned watches = atomic_load(&rig.watches);
    cr_assert_eq(wr_pool_post_blocking(rig.pool, &second.work), 0);
    cr_expect_eq(atomic_load(&rig.watches), watches + 1, "nobody is asked to look");
    cr_expect(wr_pool_tick(rig.pool, now + 500000000));
    cr_expect_eq(atomic_load(&rig.lines), 0);
    cr_expect_not(wr_pool_tick(rig.pool, now + 2000000000), "it is said, and looked for no more");
    cr_expect_eq(atomic_load(&rig.lines), 1);
    cr_expect_not_null(strstr(rig.last_line, "blocking lane: all 1 threads"), "%s", rig.last_line);
    cr_expect_eq(wr_pool_post_blocking(rig.pool, &third.work), 0);
    cr_expect_not(wr_pool_tick(rig.pool, now + 3000000000));
    cr_expect_eq(atomic_load(&rig.lines), 1, "said again");
    gate_open(&gate);
    gate_open(&again);
    cr_assert(await_at_least(&ran, 1));
    rig_stop(&rig);
}

static unsigned order[50], order_count;

static void note_order(weir_work *work, void *context)
{
    (void)work;
    order[order_count++] = (unsigned)(uintptr_t)context;
}

Test(blocking, lane_is_first_come_first_served, .timeout = 20)
{
    struct rig rig = { .options = { .blocking_max = 1 } };
    weir_work items[50];
    rig_start(&rig);
    for (unsigned i = 0; i < 50; i++) {
        weir_work_init(&items[i], note_order, (void *)(uintptr_t)i);
        cr_assert_eq(wr_pool_post_blocking(rig.pool, &items[i]), 0);
    }
    rig_stop(&rig);
    cr_assert_eq(order_count, 50);
    for (unsigned i = 0; i < 50; i++)
        cr_assert_eq(order[i], i);
}

Test(blocking, idle_thread_is_used_again_and_leaves_when_it_stays_idle, .timeout = 20)
{
    struct rig rig = { .options = { .blocking_max = 8, .idle_ns = 200000000 } };
    static struct job job;
    rig_start(&rig);
    cr_assert_eq(rig_stats(&rig).blocking_threads, 0);
    for (unsigned i = 1; i <= 20; i++) {
        job_init(&job, &ran, NULL, false);
        wr_pool_post_blocking(rig.pool, &job.work);
        cr_assert(await_at_least(&ran, i));
        sleep_ms(2);
    }
    cr_assert_leq(rig_stats(&rig).blocking_threads, 2);
    for (int i = 0; i < 3000 && rig_stats(&rig).blocking_threads > 0; i++)
        sleep_ms(1);
    cr_assert_eq(rig_stats(&rig).blocking_threads, 0);
    job_init(&job, &ran, NULL, false);
    cr_assert_eq(wr_pool_post_blocking(rig.pool, &job.work), 0);
    cr_assert(await_at_least(&ran, 21));
    rig_stop(&rig);
}

/* Each thread is gone almost before the one who started it can look. */
Test(blocking, lane_whose_threads_leave_at_once_takes_every_job, .timeout = 20)
{
    struct rig rig = { .options = { .idle_ns = 1 } };
    static struct job job;
    rig_start(&rig);
    for (unsigned i = 1; i <= 500; i++) {
        job_init(&job, &ran, NULL, false);
        cr_assert_eq(wr_pool_post_blocking(rig.pool, &job.work), 0);
        cr_assert(await_at_least(&ran, i));
    }
    rig_stop(&rig);
}

#ifdef WEIR_FAULTS
static _Atomic bool no_threads;

static int refuse_threads(enum wr_fault_call call)
{
    return call == WR_FAULT_THREAD && atomic_load(&no_threads) ? EPERM : 0;
}

Test(blocking, lane_without_a_thread_and_none_to_be_had_queues_nothing, .timeout = 20)
{
    struct rig rig = { 0 };
    static struct job job, second;
    wr_fault_hook = refuse_threads;
    rig_start(&rig);
    job_init(&job, &ran, NULL, false);
    job_init(&second, &ran, &gate, false);
    atomic_store(&no_threads, true);
    for (int i = 0; i < 10; i++)        /* the item is free again each time, and so is all else */
        cr_assert_eq(wr_pool_post_blocking(rig.pool, &job.work), -EAGAIN);
    cr_assert_eq(atomic_load(&rig.lines), 1, "said once");
    cr_assert_eq(rig_stats(&rig).blocking_queued, 0);
    cr_assert_eq(rig_stats(&rig).blocking_threads, 0);
    atomic_store(&no_threads, false);
    cr_assert_eq(wr_pool_post_blocking(rig.pool, &second.work), 0);
    cr_assert(await_at_least(&gate.waiting, 1));
    atomic_store(&no_threads, true);
    cr_assert_eq(wr_pool_post_blocking(rig.pool, &job.work), 0, "a thread exists: it will come");
    gate_open(&gate);
    cr_assert(await_at_least(&ran, 2));
    rig_stop(&rig);
}

Test(blocking, compensation_that_gets_no_thread_is_made_up_for_by_a_tick, .timeout = 20)
{
    struct rig rig = { .ticks = true, .options = { .workers = 1 } };
    static struct job blocker, job;
    wr_fault_hook = refuse_threads;
    rig_start(&rig);
    atomic_store(&no_threads, true);
    job_init(&blocker, NULL, &gate, true);
    job_init(&job, &ran, NULL, false);
    wr_pool_post(rig.pool, &blocker.work);
    cr_assert(await_at_least(&gate.waiting, 1));
    wr_pool_post(rig.pool, &job.work);
    sleep_ms(60);
    cr_assert_eq(atomic_load(&ran), 0);
    cr_assert_eq(atomic_load(&rig.lines), 1, "said once, tried at each tick");
    atomic_store(&no_threads, false);
    cr_assert(await_at_least(&ran, 1));
    gate_open(&gate);
    rig_stop(&rig);
}
#endif
