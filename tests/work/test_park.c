/* test_park.c: sleeping and waking of I/O workers. The races are replayed: a hook stops a worker
 * at a chosen place and does there what the other thread would have done. */
#include "support/test.h"

#include <dirent.h>
#include <pthread.h>

#include "os/clock.h"
#include "os/thread.h"
#include "pool_rig.h"
#include "work/pool_private.h"

/* ---- the hook ------------------------------------------------------------------------------ */

static struct {
    _Atomic int at;                     /* which seam, or -1 */
    _Atomic unsigned hits;
    void (*act)(void);                  /* once, on the thread that comes there first */
} seam = { .at = -1 };

static struct rig the_rig;

static void on_seam(enum wr_pool_seam where)
{
    int expected = (int)where;
    if (seam.act && atomic_compare_exchange_strong(&seam.at, &expected, -1)) {
        seam.act();
        atomic_fetch_add(&seam.hits, 1);
    }
}

/* The next thread that comes to `where` calls `act`. */
static void arm(enum wr_pool_seam where)
{
    atomic_store(&seam.at, (int)where);
}

static void start_with_seam(void (*act)(void))
{
    seam.act = act;
    wr_pool_seam_hook = on_seam;
    rig_start(&the_rig);
}

/* ---- a post beside a worker that parks ------------------------------------------------------ */

static _Atomic unsigned ran;
static struct job late, latest;

static void post_late(void)
{
    cr_assert_eq(wr_pool_post(the_rig.pool, &late.work), 0);
}

static void post_here_and_arm(weir_work *work, void *context)
{
    static struct job second;
    (void)work;
    /* Posted while nobody is parked: the request is left at 1. */
    job_init(&second, &ran, NULL, false);
    wr_pool_post(the_rig.pool, &second.work);
    arm((enum wr_pool_seam)(uintptr_t)context);
}

/* The only worker parks, the request 0 or 1; somebody posts when it is at `where`. */
static void post_at(enum wr_pool_seam where, bool requested)
{
    static weir_work first;
    the_rig.options.workers = 1;
    start_with_seam(post_late);
    cr_assert(rig_await_parked(&the_rig, 1));
    job_init(&late, &ran, NULL, false);
    if (requested) {
        weir_work_init(&first, post_here_and_arm, (void *)(uintptr_t)where);
        wr_pool_post(the_rig.pool, &first);
        cr_assert(await_at_least(&ran, 2), "the post at seam %d was lost", (int)where);
    } else {
        static struct job opener;
        job_init(&opener, &ran, NULL, false);
        arm(where);
        wr_pool_post(the_rig.pool, &opener.work);
        cr_assert(await_at_least(&ran, 2), "the post at seam %d was lost", (int)where);
    }
    cr_assert_eq(atomic_load(&seam.hits), 1, "the worker never came to the seam");
    cr_assert(rig_await_parked(&the_rig, 1));
    rig_stop(&the_rig);
}

Test(park, post_after_the_empty_look_and_before_publishing_is_run, .timeout = 20)
{
    post_at(WR_SEAM_BEFORE_PARK, false);
}

Test(park, post_before_publishing_with_a_request_left_over_is_run, .timeout = 20)
{
    post_at(WR_SEAM_BEFORE_PARK, true);
}

Test(park, post_between_publishing_and_the_second_look_is_run, .timeout = 20)
{
    post_at(WR_SEAM_PARK_PUBLISHED, false);
}

Test(park, post_between_publishing_and_clearing_with_a_request_left_over_is_run, .timeout = 20)
{
    post_at(WR_SEAM_PARK_PUBLISHED, true);
}

Test(park, post_at_the_clear_is_seen_by_the_look_that_follows, .timeout = 20)
{
    post_at(WR_SEAM_CLEARING, true);
}

Test(park, post_between_the_second_look_and_the_sleep_is_run, .timeout = 20)
{
    post_at(WR_SEAM_BEFORE_SLEEP, false);
}

Test(park, post_before_the_sleep_with_a_request_left_over_is_run, .timeout = 20)
{
    post_at(WR_SEAM_BEFORE_SLEEP, true);
}

Test(park, post_beside_a_worker_that_has_been_woken_is_run, .timeout = 20)
{
    post_at(WR_SEAM_WOKEN, false);
}

/* ---- uncertain ------------------------------------------------------------------------------ */

/* A consumer is held up with the take lock while an item is pushed whose poster saw a request:
 * only the second look of the worker that parks can find it. */
static void push_beside_a_taker(void)
{
    wr_inject_hold(the_rig.pool->inject);
    wr_inject_push(the_rig.pool->inject, WR_CLASS_JOB, &late.work);
}

Test(park, worker_that_cannot_know_looks_again_and_does_not_sleep, .timeout = 20)
{
    static struct job opener;
    the_rig.options.workers = 1;
    start_with_seam(push_beside_a_taker);
    cr_assert(rig_await_parked(&the_rig, 1));
    job_init(&opener, &ran, NULL, false);
    job_init(&late, &ran, NULL, false);
    arm(WR_SEAM_PARK_PUBLISHED);
    wr_pool_post(the_rig.pool, &opener.work);
    cr_assert(await_at_least(&seam.hits, 1));
    sleep_ms(20);
    cr_assert_eq(atomic_load(&ran), 1);
    wr_inject_let_go(the_rig.pool->inject);
    cr_assert(await_at_least(&ran, 2), "it slept on \"uncertain\"");
    rig_stop(&the_rig);
}

/* ---- woken and found at once ---------------------------------------------------------------- */

static struct gate stuck;

static void post_two(void)
{
    wr_pool_post(the_rig.pool, &late.work);
    wr_pool_post(the_rig.pool, &latest.work);
}

/* The only free worker is parking and has cleared the request when two items come: the first
 * takes it out of the idle list, the second relies on that. It finds the first by itself and
 * blocks in it for ever. It has to pass the duty on before: nobody is parked, so the pool must
 * ask to be watched. */
Test(park, worker_woken_while_it_finds_an_item_passes_the_duty_on, .timeout = 20)
{
    static struct job opener;
    the_rig.options.workers = 1;
    start_with_seam(post_two);
    cr_assert(rig_await_parked(&the_rig, 1));
    job_init(&opener, &ran, NULL, false);
    job_init(&late, &ran, &stuck, false);
    job_init(&latest, &ran, NULL, false);
    arm(WR_SEAM_PARK_CLEARED);
    wr_pool_post(the_rig.pool, &opener.work);
    cr_assert(await_at_least(&stuck.waiting, 1));
    cr_assert(await_at_least_ms(&the_rig.watches, 1, 1000), "the second item is with nobody");
    gate_open(&stuck);
    cr_assert(await_at_least(&ran, 3));
    rig_stop(&the_rig);
}

/* ---- wakes are throttled -------------------------------------------------------------------- */

static struct gate hold;
static struct gate together;

static void wait_at_hold(void)
{
    gate_wait(&hold);
}

Test(park, burst_wakes_one_worker_and_that_one_the_next, .timeout = 20)
{
    static struct job jobs[4];
    the_rig.options.workers = 4;
    the_rig.options.workers_max = 4;
    start_with_seam(wait_at_hold);
    cr_assert(rig_await_parked(&the_rig, 4));
    arm(WR_SEAM_WOKEN);
    for (int i = 0; i < 4; i++) {
        job_init(&jobs[i], &ran, &together, false);
        cr_assert_eq(wr_pool_post(the_rig.pool, &jobs[i].work), 0);
    }
    cr_assert(await_at_least(&hold.waiting, 1));
    sleep_ms(20);
    struct wr_pool_stats stats = rig_stats(&the_rig);
    cr_assert_eq(stats.wakes, 1, "%u were woken by a burst", (unsigned)stats.wakes);
    cr_assert_eq(stats.parked, 3);
    /* Nobody posts or ticks from here on, and each item blocks the worker that runs it. */
    gate_open(&hold);
    cr_assert(await_at_least(&together.waiting, 4), "the chain ended at %u",
              atomic_load(&together.waiting));
    cr_assert_eq(rig_stats(&the_rig).wakes, 4);
    gate_open(&together);
    rig_stop(&the_rig);
}

Test(park, single_post_wakes_a_single_worker, .timeout = 20)
{
    static struct job job;
    the_rig.options.workers = 4;
    rig_start(&the_rig);
    cr_assert(rig_await_parked(&the_rig, 4));
    for (unsigned i = 1; i <= 50; i++) {
        job_init(&job, &ran, NULL, false);
        wr_pool_post(the_rig.pool, &job.work);
        cr_assert(await_at_least(&ran, i));
        cr_assert(rig_await_parked(&the_rig, 4));
    }
    cr_assert_eq(rig_stats(&the_rig).wakes, 50);
    rig_stop(&the_rig);
}

static _Atomic int runner;

static void note_runner(weir_work *work, void *context)
{
    (void)work;
    (void)context;
    atomic_store(&runner, wr_thread_id());
    atomic_fetch_add(&ran, 1);
}

Test(park, worker_that_parked_last_is_woken_first, .timeout = 20)
{
    static weir_work work;
    int first = 0;
    the_rig.options.workers = 4;
    rig_start(&the_rig);
    weir_work_init(&work, note_runner, NULL);
    for (unsigned i = 1; i <= 20; i++) {
        cr_assert(rig_await_parked(&the_rig, 4));
        wr_pool_post(the_rig.pool, &work);
        cr_assert(await_at_least(&ran, i));
        if (i == 1)
            first = atomic_load(&runner);
        cr_assert_eq(atomic_load(&runner), first, "turn %u", i);
    }
    rig_stop(&the_rig);
}

/* ---- watch and tick ------------------------------------------------------------------------- */

static struct gate first_gate, second_gate;
static struct job a, b;

/* The only worker is stuck in `b`, which was posted while it ran `a`: the request is left at 1. */
static void get_stuck_with_a_request(void)
{
    cr_assert(rig_await_parked(&the_rig, 1));
    job_init(&a, &ran, &first_gate, false);
    job_init(&b, &ran, &second_gate, false);
    job_init(&late, &ran, NULL, false);
    wr_pool_post(the_rig.pool, &a.work);
    cr_assert(await_at_least(&first_gate.waiting, 1));
    wr_pool_post(the_rig.pool, &b.work);
    cr_assert_eq(atomic_load(&the_rig.watches), 1);
    gate_open(&first_gate);
    cr_assert(await_at_least(&second_gate.waiting, 1));
    cr_assert_eq(atomic_load(&the_rig.pool->request), 1);
}

static void end_stuck(void)
{
    gate_open(&second_gate);
    cr_assert(await_at_least(&ran, 3));
    rig_stop(&the_rig);
}

Test(park, post_after_the_tick_said_false_is_watched_again, .timeout = 20)
{
    the_rig.options.workers = 1;
    rig_start(&the_rig);
    get_stuck_with_a_request();
    cr_assert_not(wr_pool_tick(the_rig.pool, wr_clock_now()));
    post_late();
    cr_assert_eq(atomic_load(&the_rig.watches), 2, "nobody looks after the item");
    cr_assert(wr_pool_tick(the_rig.pool, wr_clock_now()));
    cr_assert(wr_pool_tick(the_rig.pool, wr_clock_now()));
    cr_assert(await_at_least(&ran, 3));
    end_stuck();
}

Test(park, post_while_the_tick_is_about_to_say_false_is_seen_by_it, .timeout = 20)
{
    the_rig.options.workers = 1;
    start_with_seam(post_late);
    get_stuck_with_a_request();
    arm(WR_SEAM_TICK_DISARMED);
    bool goes_on = wr_pool_tick(the_rig.pool, wr_clock_now());
    cr_assert(goes_on || atomic_load(&the_rig.watches) == 2, "nobody looks after the item");
    wr_pool_tick(the_rig.pool, wr_clock_now());
    wr_pool_tick(the_rig.pool, wr_clock_now());
    cr_assert(await_at_least(&ran, 3));
    end_stuck();
}

static void post_late_blocking(void)
{
    cr_assert_eq(wr_pool_post_blocking(the_rig.pool, &late.work), 0);
}

/* It fills the blocking lane; the pool is watched already, so that it calls nobody. */
Test(park, post_that_fills_the_lane_while_the_tick_finds_nothing_is_seen_by_it, .timeout = 20)
{
    static struct gate lane_gate;
    static struct job busy;
    the_rig.options.blocking_max = 1;
    start_with_seam(post_late_blocking);
    job_init(&busy, NULL, &lane_gate, false);
    job_init(&late, &ran, NULL, false);
    cr_assert_eq(wr_pool_post_blocking(the_rig.pool, &busy.work), 0);
    cr_assert(await_at_least(&lane_gate.waiting, 1));
    wr_pool_watch(the_rig.pool);
    arm(WR_SEAM_TICK_EMPTY);
    bool goes_on = wr_pool_tick(the_rig.pool, wr_clock_now());
    cr_assert_eq(atomic_load(&seam.hits), 1);
    cr_assert(goes_on || atomic_load(&the_rig.watches) == 2, "nobody looks after the lane");
    gate_open(&lane_gate);
    cr_assert(await_at_least(&ran, 1));
    rig_stop(&the_rig);
}

/* Asked for while the worker was stuck, then it parked and was woken: a post finds no request
 * and nobody parked, and that the pool is watched already. */
Test(park, watch_is_called_once_until_a_tick_says_false, .timeout = 20)
{
    static struct gate third_gate;
    static struct job c;
    the_rig.options.workers = 1;
    the_rig.options.workers_max = 1;
    rig_start(&the_rig);
    get_stuck_with_a_request();
    gate_open(&second_gate);
    cr_assert(rig_await_parked(&the_rig, 1));
    job_init(&c, NULL, &third_gate, false);
    wr_pool_post(the_rig.pool, &c.work);
    cr_assert(await_at_least(&third_gate.waiting, 1));
    cr_assert_eq(atomic_load(&the_rig.pool->request), 0);
    post_late();
    cr_assert_eq(atomic_load(&the_rig.pool->request), 1);
    cr_assert(wr_pool_tick(the_rig.pool, wr_clock_now()));
    cr_assert_eq(atomic_load(&the_rig.watches), 1);
    gate_open(&third_gate);
    end_stuck();
}

/* ---- idle ----------------------------------------------------------------------------------- */

static unsigned long switches(void)
{
    unsigned long sum = 0;
    DIR *tasks = opendir("/proc/self/task");
    struct dirent *task;
    while ((task = readdir(tasks))) {
        char path[300], line[200];
        snprintf(path, sizeof path, "/proc/self/task/%s/status", task->d_name);
        FILE *status = fopen(path, "r");
        bool ours = false;
        unsigned long value;
        while (status && fgets(line, sizeof line, status)) {
            ours = ours || strncmp(line, "Name:\trig-", 10) == 0;
            if (ours && (sscanf(line, "voluntary_ctxt_switches: %lu", &value) == 1 ||
                         sscanf(line, "nonvoluntary_ctxt_switches: %lu", &value) == 1))
                sum += value;
        }
        if (status)
            fclose(status);
    }
    closedir(tasks);
    return sum;
}

Test(park, idle_pool_never_wakes, .timeout = 20)
{
    static struct job jobs[100];
    the_rig.options.workers = 4;
    the_rig.options.spin_us = 20;
    rig_start(&the_rig);
    for (int i = 0; i < 100; i++) {
        job_init(&jobs[i], &ran, NULL, false);
        wr_pool_post(the_rig.pool, &jobs[i].work);
    }
    cr_assert(await_at_least(&ran, 100));
    cr_assert(rig_await_parked(&the_rig, 4));
    sleep_ms(50);
    unsigned long before = switches();
    cr_assert_gt(before, 0);
    sleep_ms(300);
    cr_assert_eq(switches(), before);
    rig_stop(&the_rig);
}
