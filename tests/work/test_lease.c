/* test_lease.c: idle workers that wait for events under a lease, with a lease and events of the
 * test's own: one lease, at most one event, a wait that ends by an event or by a wake. */
#include "support/test.h"

#include "os/clock.h"
#include "os/futex.h"
#include "pool_rig.h"

static struct {
    _Atomic unsigned taken;                 /* 1: a worker has the lease */
    _Atomic unsigned waits, wakes, runs, asks, blocks, blocks_added;
    _Atomic uint32_t bell;                  /* what the wait sleeps on; 1: rung */
    _Atomic unsigned event;                 /* to be returned by the next finish() */
    struct gate *gate;                      /* the event's callback waits here */
} poller;

static int take(void *context)
{
    (void)context;
    return atomic_exchange(&poller.taken, 1) == 0 ? 7 : -1;
}

static int wait(void *context, int lease)
{
    (void)context;
    cr_assert_eq(lease, 7);
    atomic_fetch_add(&poller.waits, 1);
    while (atomic_exchange(&poller.bell, 0) == 0)
        wr_futex_wait(&poller.bell, 0, WEIR_NEVER);
    return 1;
}

static void *finish(void *context, int lease, int count)
{
    (void)context;
    (void)count;
    cr_assert_eq(lease, 7);
    void *item = count > 0 && atomic_exchange(&poller.event, 0) ? &poller : NULL;
    cr_assert_eq(atomic_exchange(&poller.taken, 0), 1);
    return item;
}

static void run(void *context, void *item)
{
    (void)context;
    cr_assert_eq(item, &poller);
    atomic_fetch_add(&poller.runs, 1);
    if (poller.gate)
        gate_wait(poller.gate);
}

static void ring(void)
{
    atomic_store(&poller.bell, 1);
    wr_futex_wake(&poller.bell, 1);
}

static void ask(void *context)
{
    (void)context;
    atomic_fetch_add(&poller.asks, 1);
}

static void block(void *context, bool added)
{
    (void)context;
    atomic_fetch_add(added ? &poller.blocks_added : &poller.blocks, 1);
}

static void wake(void *context, int lease)
{
    (void)context;
    cr_assert_eq(lease, 7);
    atomic_fetch_add(&poller.wakes, 1);
    ring();
}

static void happen(void)
{
    atomic_store(&poller.event, 1);
    ring();
}

static const struct wr_pool_idle idle = {
    .take = take, .ask = ask, .wait = wait, .finish = finish, .run = run, .wake = wake,
    .block = block
};

static struct rig rig;
static _Atomic unsigned ran;

static void start(unsigned workers)
{
    rig.options.workers = workers;
    rig.options.idle = &idle;
    rig_start(&rig);
    cr_assert(rig_await_parked(&rig, workers));
    cr_assert(await_at_least(&poller.waits, 1));
}

Test(lease, only_worker_waits_under_it_and_a_post_wakes_it, .timeout = 20)
{
    static struct job job;
    start(1);
    for (unsigned i = 1; i <= 20; i++) {
        job_init(&job, &ran, NULL, false);
        wr_pool_post(rig.pool, &job.work);
        cr_assert(await_at_least(&ran, i));
        cr_assert(rig_await_parked(&rig, 1));
    }
    cr_assert_eq(atomic_load(&poller.wakes), 20);
    rig_stop(&rig);
    cr_assert_eq(atomic_load(&poller.taken), 0);
}

Test(lease, post_wakes_a_sleeper_and_leaves_the_one_that_waits_for_events, .timeout = 20)
{
    static struct job job;
    start(3);
    for (unsigned i = 1; i <= 20; i++) {
        happen();                               /* the one that waits is the last to park again */
        cr_assert(await_at_least(&poller.runs, i));
        cr_assert(rig_await_parked(&rig, 3));
        cr_assert(await_at_least(&poller.waits, i + 1));
        job_init(&job, &ran, NULL, false);
        wr_pool_post(rig.pool, &job.work);
        cr_assert(await_at_least(&ran, i));
        cr_assert(rig_await_parked(&rig, 3));
    }
    cr_assert_eq(atomic_load(&poller.wakes), 0);
    rig_stop(&rig);
}

Test(lease, event_is_run_by_the_one_who_waited_after_the_lease_is_back, .timeout = 20)
{
    struct gate gate = { 0 };
    poller.gate = &gate;
    start(1);
    happen();
    cr_assert(await_at_least(&gate.waiting, 1));
    cr_assert_eq(atomic_load(&poller.taken), 0);
    cr_assert_eq(rig_stats(&rig).items_run, 1);
    cr_assert_eq(rig_stats(&rig).wakes, 0);
    gate_open(&gate);
    rig_stop(&rig);
}

/* The event's callback blocks for ever; a post had taken the worker out just when the event
 * came. */
Test(lease, worker_woken_beside_its_event_passes_the_duty_on, .timeout = 20)
{
    static struct job job;
    struct gate gate = { 0 };
    poller.gate = &gate;
    rig.ticks = true;
    start(1);
    job_init(&job, &ran, NULL, false);
    atomic_store(&poller.event, 1);             /* without a bell: the post's wake brings it */
    wr_pool_post(rig.pool, &job.work);
    cr_assert(await_at_least(&gate.waiting, 1));
    cr_assert(await_at_least_ms(&ran, 1, 1000), "the item is with nobody");
    gate_open(&gate);
    rig_stop(&rig);
}

Test(lease, destroy_ends_the_wait, .timeout = 20)
{
    start(2);
    rig_stop(&rig);
    cr_assert_eq(atomic_load(&poller.wakes), 1);
    cr_assert_eq(atomic_load(&poller.taken), 0);
}

Test(lease, wake_takes_sleepers_only, .timeout = 20)
{
    start(2);
    cr_assert(wr_pool_wake(rig.pool));
    cr_assert(rig_await_parked(&rig, 2));
    cr_assert_eq(atomic_load(&poller.wakes), 0);
    rig_stop(&rig);

    memset(&rig, 0, sizeof rig);
    atomic_store(&poller.waits, 0);
    start(1);
    cr_assert_not(wr_pool_wake(rig.pool));
    rig_stop(&rig);
}

static void begin_only(weir_work *work, void *context)
{
    (void)work;
    gate_wait(context);
}

Test(lease, stuck_workers_are_named_once_a_second, .timeout = 20)
{
    struct gate gate = { 0 };
    weir_work work;
    start(1);
    weir_work_init(&work, begin_only, &gate);
    wr_pool_post(rig.pool, &work);
    cr_assert(await_at_least(&gate.waiting, 1));
    weir_time first = 1000000000000, ms = 1000000;
    cr_assert(wr_pool_name_stuck(rig.pool, first));
    cr_assert(wr_pool_name_stuck(rig.pool, first + 99 * ms));
    cr_assert_eq(atomic_load(&rig.lines), 0, "%s", rig.last_line);
    for (int i = 0; i < 1000; i++)
        cr_assert(wr_pool_name_stuck(rig.pool, first + (100 + i) * ms));
    cr_assert_eq(atomic_load(&rig.lines), 1);
    cr_assert_not_null(strstr(rig.last_line, "rig-w1 for 100 ms in function 0x"), "%s",
                       rig.last_line);
    cr_assert(wr_pool_name_stuck(rig.pool, first + 1100 * ms));
    cr_assert_eq(atomic_load(&rig.lines), 2);
    cr_assert_not_null(strstr(rig.last_line, "rig-w1 for 1100 ms"), "%s", rig.last_line);
    gate_open(&gate);
    cr_assert(rig_await_parked(&rig, 1));
    cr_assert_not(wr_pool_name_stuck(rig.pool, first + 9000 * ms));
    cr_assert_eq(atomic_load(&rig.lines), 2);
    rig_stop(&rig);
}

/* A worker that is always in another item when it is looked at is not stuck. */
Test(lease, busy_worker_is_not_named, .timeout = 20)
{
    static struct job job;
    weir_time first = 1000000000000, ms = 1000000;
    start(1);
    for (int i = 0; i < 20; i++) {
        struct gate gate = { 0 };
        job_init(&job, &ran, &gate, false);
        wr_pool_post(rig.pool, &job.work);
        cr_assert(await_at_least(&gate.waiting, 1));
        cr_assert(wr_pool_name_stuck(rig.pool, first + i * 500 * ms));
        gate_open(&gate);
        cr_assert(rig_await_parked(&rig, 1));
    }
    cr_assert_eq(atomic_load(&rig.lines), 0, "%s", rig.last_line);
    rig_stop(&rig);
}

static void note_subject(weir_work *work, void *context)
{
    wr_pool_note(17);
    begin_only(work, context);
}

Test(lease, stuck_worker_is_named_with_what_it_is_about, .timeout = 20)
{
    struct gate gate = { 0 };
    weir_work work;
    start(1);
    weir_work_init(&work, note_subject, &gate);
    wr_pool_post(rig.pool, &work);
    cr_assert(await_at_least(&gate.waiting, 1));
    wr_pool_name_stuck(rig.pool, 1000000000000);
    wr_pool_name_stuck(rig.pool, 1000250000000);
    cr_assert_not_null(strstr(rig.last_line, "rig-w1 for 250 ms in descriptor 17"), "%s",
                       rig.last_line);
    gate_open(&gate);
    rig_stop(&rig);
}

/* ---- parking without a lease, announcing a block ------------------------------------------- */

Test(lease, who_parks_without_one_asks_once_parked, .timeout = 20)
{
    start(2);
    cr_assert(await_at_least(&poller.asks, 1));
    cr_assert_eq(atomic_load(&poller.asks), 1);
    rig_stop(&rig);
}

static void announce(weir_work *work, void *context)
{
    (void)work;
    wr_pool_blocking_begin();
    wr_pool_blocking_begin();
    gate_wait(context);
    wr_pool_blocking_end();
    wr_pool_blocking_end();
}

static void blocks_are_told(unsigned workers_max)
{
    struct gate gate = { 0 };
    weir_work work;
    rig.options.workers_max = workers_max;
    start(1);
    weir_work_init(&work, announce, &gate);
    wr_pool_post(rig.pool, &work);
    cr_assert(await_at_least(&gate.waiting, 1));
    cr_assert_eq(atomic_load(&poller.blocks_added), workers_max > 1);
    cr_assert_eq(atomic_load(&poller.blocks), workers_max == 1);
    gate_open(&gate);
    rig_stop(&rig);
}

Test(lease, block_is_told_once_with_whether_a_worker_was_added, .timeout = 20)
{
    blocks_are_told(2);
    memset(&rig, 0, sizeof rig);
    memset(&poller, 0, sizeof poller);
    blocks_are_told(1);
}
