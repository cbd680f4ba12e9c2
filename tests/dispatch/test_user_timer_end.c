/* test_user_timer_end.c: weir_timer_fini(): when it waits, and that nothing is touched after it. */
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <unistd.h>

#include "support/stress.h"
#include "support/test.h"
#include "timer_rig.h"

/* On the heap: a touch after free() is AddressSanitizer's to find; without it the poison is. */
struct held {
    weir_timer timer;
    _Atomic unsigned calls;
};

static struct held *held;

static void count(weir_timer *timer, uint64_t missed, void *context)
{
    (void)timer;
    (void)missed;
    ((struct held *)context)->calls++;
}

static void make(weir_timer_fn *run)
{
    rig_start();
    held = calloc(1, sizeof(*held));
    weir_timer_init(&held->timer, rig_runtime(), run, held);
}

static void drop(void)
{
    memset(held, 0xa5, sizeof(*held));
    free(held);
    held = NULL;
}

Test(user_timer_end, an_armed_timer_is_disarmed_and_its_memory_is_free, .timeout = 10)
{
    make(count);
    weir_timer_set(&held->timer, 100, 50, WEIR_TIMER_RATE);
    weir_timer_fini(&held->timer);
    cr_assert_eq(weir_timer_set(&held->timer, 100, 0, WEIR_TIMER_ONCE), -ESHUTDOWN);
    cr_assert_eq(weir_timer_cancel(&held->timer), -EALREADY);
    cr_assert_eq(held->calls, 0);
    drop();
    rig_turn(1000);
    cr_assert_eq(rig_queued(), 0);
    cr_assert_eq(rig.blocks, 0, "there was nothing to wait for");
}

static void end_and_free(weir_timer *timer, uint64_t missed, void *context)
{
    (void)missed;
    (void)context;
    weir_timer_fini(timer);
    cr_assert_eq(weir_timer_set(timer, 0, 0, WEIR_TIMER_ONCE), -ESHUTDOWN);
    drop();
}

Test(user_timer_end, in_its_own_callback_it_does_not_wait_and_nothing_is_touched_after,
     .timeout = 10)
{
    for (int mode = WEIR_TIMER_ONCE; mode <= WEIR_TIMER_DELAY; mode++) {
        make(end_and_free);
        weir_timer_set(&held->timer, 100, 50, (enum weir_timer_mode)mode);
        rig_turn(100);
        cr_assert(rig_run());
        cr_assert_null(held);
        cr_assert_eq(rig.blocks, 0);
        rig_turn(10000);
        cr_assert_eq(rig_queued(), 0);
    }
}

static void arm_end_and_free(weir_timer *timer, uint64_t missed, void *context)
{
    /* It expires while it runs: DUE stands when fini() comes. */
    weir_timer_set(timer, 0, 0, WEIR_TIMER_ONCE);
    rig_turn(rig.now);
    end_and_free(timer, missed, context);
}

Test(user_timer_end, in_its_own_callback_it_revokes_what_expired_meanwhile, .timeout = 10)
{
    make(arm_end_and_free);
    weir_timer_set(&held->timer, 100, 0, WEIR_TIMER_ONCE);
    rig_turn(100);
    cr_assert(rig_run());
    cr_assert_null(held);
    cr_assert_eq(rig_queued(), 0);
}

static void run_it_all(void)
{
    rig_turn(rig.now);
    rig_run_all();
}

/* The poller and a worker are quicker than the thread in set(): the callback ends the timer and
 * frees it before set() has returned. */
Test(user_timer_end, set_does_not_look_at_the_timer_once_it_may_have_run, .timeout = 10)
{
    make(end_and_free);
    rig.on_ring = run_it_all;
    cr_assert_eq(weir_timer_set(&held->timer, 0, 0, WEIR_TIMER_ONCE), 0);
    cr_assert_null(held, "it did not run in between: the test proves nothing");
}

static void turn(void)
{
    rig_turn(rig.now);
}

/* Between the look at the state and the heap the timer expires; the pool has the item while fini()
 * waits. */
Test(user_timer_end, a_fini_that_meets_the_expiry_begins_no_call, .timeout = 10)
{
    make(count);
    weir_timer_set(&held->timer, 100, 50, WEIR_TIMER_RATE);
    rig.now = 100;
    rig.on_timers = turn;
    rig.on_block = rig_run_all;
    weir_timer_fini(&held->timer);
    cr_assert_null(rig.on_block, "it did not expire in between: the test proves nothing");
    cr_assert_eq(held->calls, 0);
    drop();
    rig_turn(10000);
    cr_assert_eq(rig_queued(), 0);
}

/* ---- waiting -------------------------------------------------------------------------------- */

static sem_t entered, leave, fini_waits;
static _Atomic bool left;

static void stay(weir_timer *timer, uint64_t missed, void *context)
{
    struct held *self = context;

    (void)missed;
    sem_post(&entered);
    sem_wait(&leave);
    /* What fini() must outwait: the callback arms itself, fini() has begun or not. */
    weir_timer_set(timer, 0, 0, WEIR_TIMER_ONCE);
    self->calls++;
    left = true;
}

static void *work_once(void *unused)
{
    (void)unused;
    rig_run();
    return NULL;
}

static void fini_is_about_to_wait(void)
{
    sem_post(&fini_waits);
}

static void *end_it(void *ret_left)
{
    weir_timer_fini(&held->timer);
    *(bool *)ret_left = left;
    drop();
    return NULL;
}

static void start_waiting_test(void)
{
    make(stay);
    sem_init(&entered, 0, 0);
    sem_init(&leave, 0, 0);
    sem_init(&fini_waits, 0, 0);
    left = false;
    rig.on_block = fini_is_about_to_wait;
    weir_timer_set(&held->timer, 100, 50, WEIR_TIMER_RATE);
    rig_turn(100);
}

Test(user_timer_end, it_waits_while_the_callback_runs_elsewhere, .timeout = 20)
{
    pthread_t worker, ender;
    bool left_before = false;

    start_waiting_test();
    pthread_create(&worker, NULL, work_once, NULL);
    sem_wait(&entered);
    pthread_create(&ender, NULL, end_it, &left_before);
    sem_wait(&fini_waits);
    sem_post(&leave);
    pthread_join(ender, NULL);
    pthread_join(worker, NULL);
    cr_assert(left_before, "fini() returned while the callback was running");
    cr_assert_eq(rig.blocks, 1);
    cr_assert_eq(rig.unblocks, 1);
    rig_turn(10000);
    cr_assert_eq(rig_queued(), 0, "armed after its end");
}

static _Atomic bool item_came_by;

static void *work_late(void *unused)
{
    (void)unused;
    sem_wait(&fini_waits);
    /* fini() waits now, or is about to: the item is the last that refers to the timer. */
    item_came_by = true;
    rig_run();
    return NULL;
}

static void *end_queued(void *ret_came_by)
{
    weir_timer_fini(&held->timer);
    *(bool *)ret_came_by = item_came_by;
    cr_assert_eq(held->calls, 0, "begun after fini() had");
    drop();
    return NULL;
}

Test(user_timer_end, it_waits_for_an_item_that_is_queued_and_announces_that, .timeout = 20)
{
    pthread_t worker, ender;
    bool came_by = false;

    start_waiting_test();
    item_came_by = false;
    pthread_create(&worker, NULL, work_late, NULL);
    pthread_create(&ender, NULL, end_queued, &came_by);
    pthread_join(ender, NULL);
    pthread_join(worker, NULL);
    cr_assert(came_by, "fini() returned while the pool had the item");
    cr_assert_eq(rig.blocks, 1);
}

/* ---- one call sees the last ------------------------------------------------------------------ */

static unsigned plain;                  /* written and read by callbacks only, on two threads */
static _Atomic bool first_is_over;

static void arm_and_write(weir_timer *timer, uint64_t missed, void *context)
{
    struct held *self = context;

    (void)missed;
    if (self->calls++ == 0)
        weir_timer_set(timer, 200, 0, WEIR_TIMER_ONCE);
    plain++;
}

static void *first_call(void *unused)
{
    (void)unused;
    rig_run();
    /* relaxed: it orders nothing, so that only the timer does */
    atomic_store_explicit(&first_is_over, true, memory_order_relaxed);
    return NULL;
}

/* For ThreadSanitizer: after its callback the first worker touches nothing but the timer's word. */
Test(user_timer_end, a_call_sees_what_the_one_before_wrote, .timeout = 20)
{
    pthread_t worker;

    make(arm_and_write);
    plain = 0;
    weir_timer_set(&held->timer, 100, 0, WEIR_TIMER_ONCE);
    rig_turn(100);
    pthread_create(&worker, NULL, first_call, NULL);
    while (!atomic_load_explicit(&first_is_over, memory_order_relaxed))
        continue;
    rig_turn(200);
    cr_assert(rig_run());
    cr_assert_eq(plain, 2);
    pthread_join(worker, NULL);
    weir_timer_fini(&held->timer);
    drop();
}

/* ---- everything at once --------------------------------------------------------------------- */

#define TIMERS 4

struct busy {
    weir_timer timer;
    _Atomic unsigned inside;
    unsigned calls;                     /* plain: one call after the other, each sees the last */
    _Atomic bool done;
    struct support_random random;
};

static struct busy busy[TIMERS];
static _Atomic bool over;

static void busy_call(weir_timer *timer, uint64_t missed, void *context)
{
    struct busy *self = context;

    (void)missed;
    /* relaxed: what orders `calls` from one call to the next must be the timer, not this. */
    cr_assert_eq(atomic_fetch_add_explicit(&self->inside, 1, memory_order_relaxed), 0,
                 "twice at once");
    support_yield(&self->random);
    if (support_below(&self->random, 4) == 0)
        weir_timer_set(timer, rig.now + support_below(&self->random, 10), 0, WEIR_TIMER_ONCE);
    if (support_below(&self->random, 16) == 0)
        weir_timer_cancel(timer);
    self->calls++;
    atomic_fetch_sub_explicit(&self->inside, 1, memory_order_relaxed);
    atomic_store_explicit(&self->done, true, memory_order_relaxed);
}

static void *busy_poller(void *unused)
{
    (void)unused;
    while (!over)
        rig_turn(rig.now + 1);
    return NULL;
}

static void *busy_worker(void *unused)
{
    (void)unused;
    while (!over) {
        if (!rig_run())
            sched_yield();
    }
    return NULL;
}

/* Re-arms around the expiry, from two threads (bug T07: locks taken in opposite order stood still).
 * */
static void *busy_setter(void *argument)
{
    struct support_random random = support_random(support_seed(), *(unsigned *)argument);
    unsigned rounds = support_rounds(20000);

    for (unsigned round = 0; round < rounds; round++) {
        weir_timer *timer = &busy[support_below(&random, TIMERS)].timer;
        rig.shard = support_below(&random, RIG_SHARDS);
        if (support_below(&random, 8) == 0)
            weir_timer_cancel(timer);
        else
            weir_timer_set(timer, rig.now + support_below(&random, 6) - 2,
                           1 + support_below(&random, 3),
                           (enum weir_timer_mode)support_below(&random, 3));
        support_yield(&random);
    }
    return NULL;
}

/* What is set last must come. */
static void await_one_more_call(struct busy *self)
{
    weir_time first;
    unsigned before;

    weir_timer_fini(&self->timer);
    before = self->calls;               /* after fini() nobody else looks at it */
    self->done = false;
    weir_timer_init(&self->timer, rig_runtime(), busy_call, self);
    first = rig.now + 1;
    cr_assert_eq(weir_timer_set(&self->timer, first, 0, WEIR_TIMER_ONCE), 0);
    for (int i = 0; i < 10000 && !self->done; i++)
        usleep(1000);
    weir_timer_fini(&self->timer);
    cr_assert_gt(self->calls, before, "an expiry was lost");
}

Test(user_timer_end, two_that_set_two_workers_and_a_poller_agree, .timeout = 100)
{
    pthread_t poller, workers[2], setters[2];
    unsigned numbers[2] = { 1, 2 };

    rig_start();
    support_seed();
    for (unsigned i = 0; i < TIMERS; i++) {
        busy[i].random = support_random(support_seed(), 100 + i);
        weir_timer_init(&busy[i].timer, rig_runtime(), busy_call, &busy[i]);
    }
    pthread_create(&poller, NULL, busy_poller, NULL);
    for (unsigned i = 0; i < 2; i++) {
        pthread_create(&workers[i], NULL, busy_worker, NULL);
        pthread_create(&setters[i], NULL, busy_setter, &numbers[i]);
    }
    for (unsigned i = 0; i < 2; i++)
        pthread_join(setters[i], NULL);
    for (unsigned i = 0; i < TIMERS; i++)
        await_one_more_call(&busy[i]);
    over = true;
    pthread_join(poller, NULL);
    for (unsigned i = 0; i < 2; i++)
        pthread_join(workers[i], NULL);
}
