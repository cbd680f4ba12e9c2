/* test_lease.c: a whole runtime whose idle workers poll (WEIR_POLL=lease): who is served, and how
 * soon, while callbacks do not return; how it ends; what it does when there is nothing to do. The
 * races are replayed in tests/dispatch/test_lease.c. */
#include "support/lease.h"

#include <unistd.h>

#include "dispatch/lease.h"
#include "support/latency.h"
#include "support/stress.h"

#define CONNECTIONS_MAX 16
/* For what takes microseconds on a machine with nothing else to do. One in twenty may take longer:
 * threads that are ready wait for tens of milliseconds where others compile. */
#define SOON_US (rig_patience(50) * 1000L)

static struct connection connections[CONNECTIONS_MAX];
static struct latency latency;
static struct waiter waiter;

static void open_with(struct rig *rig, unsigned workers, unsigned workers_max, unsigned count)
{
    lease_open(rig, 1, workers, workers_max);
    for (unsigned i = 0; i < count; i++)
        connection_open(rig, &connections[i]);
    cr_assert(lease_await_rest(rig));
    atomic_store(&latency.count, 0);
}

/* One byte, from sending to the callback. */
static void time_one(struct connection *connection)
{
    unsigned heard = atomic_load(&connection->heard);
    weir_time sent = weir_now();

    connection_send(connection, 'x');
    cr_assert(RIG_UNTIL(atomic_load(&connection->heard) > heard, 10000), "not heard");
    latency_add(&latency, atomic_load(&connection->heard_at) - sent);
}

static void time_waiter(void)
{
    weir_time time = waiter_time(&waiter);

    cr_assert_geq(time, 0, "a thread waits for data that is there");
    latency_add(&latency, time);
}

static void expect_soon(const char *what)
{
    latency_sort(&latency, what);
    cr_expect_leq(latency_us(&latency, 950), SOON_US);
}

/* ---- callbacks that do not return ----------------------------------------------------------- */

Test(lease, one_stuck_worker_leaves_the_other_connections_served, .timeout = 60)
{
    struct rig rig;
    struct support_random random = support_random(support_seed(), 0);

    open_with(&rig, 2, 0, 5);
    connection_hang(&connections[0], 'h');
    for (int64_t end = rig_now_ms() + support_span_ms(1500); rig_now_ms() < end; rig_sleep_ms(1))
        time_one(&connections[1 + support_below(&random, 4)]);
    connection_let_go(&connections[0]);
    expect_soon("one of two workers stuck");
    lease_close(&rig);
}

Test(lease, waiting_threads_are_served_while_all_workers_are_stuck, .timeout = 60)
{
    struct rig rig;

    open_with(&rig, 2, 0, 2);
    waiter_open(&rig, &waiter);
    connection_hang(&connections[0], 'h');
    connection_hang(&connections[1], 'h');
    for (unsigned i = 0; i < 300; i++)
        time_waiter();
    expect_soon("all workers stuck");
    cr_expect_eq(lease_state(&rig, 0), WR_LEASE_GUARD);
    connection_let_go(&connections[0]);
    cr_expect(lease_await(&rig, 0, WR_LEASE_WAITING), "the lease does not go back");
    connection_let_go(&connections[1]);
    cr_expect(lease_await_rest(&rig));
    waiter_close(&waiter);
    lease_close(&rig);
}

/* The first one behind the moment at which the last worker got stuck. */
Test(lease, guarantor_takes_over_within_two_ticks_or_so, .timeout = 60)
{
    struct rig rig;

    open_with(&rig, 1, 0, 1);
    waiter_open(&rig, &waiter);
    for (unsigned i = 0; i < 60; i++) {
        connection_hang(&connections[0], 'h');
        time_waiter();
        connection_let_go(&connections[0]);
        cr_assert(connection_heard(&connections[0], i + 1, 5000));
        cr_assert(lease_await(&rig, 0, WR_LEASE_WAITING));
    }
    expect_soon("from stuck to served");
    waiter_close(&waiter);
    lease_close(&rig);
}

Test(lease, guarantor_takes_over_at_once_when_the_block_is_announced, .timeout = 60)
{
    struct rig rig;

    open_with(&rig, 1, 0, 1);
    waiter_open(&rig, &waiter);
    for (unsigned i = 0; i < 60; i++) {
        connection_hang(&connections[0], 'b');
        time_waiter();
        connection_let_go(&connections[0]);
        cr_assert(connection_heard(&connections[0], i + 1, 5000));
        cr_assert(lease_await(&rig, 0, WR_LEASE_WAITING));
    }
    expect_soon("from an announced block to served");
    waiter_close(&waiter);
    lease_close(&rig);
}

/* Posted work keeps all workers busy, and none of them ever finds the queue empty. */
struct flood {
    weir_runtime *runtime;
    weir_work works[8];
    _Atomic bool end;
    _Atomic unsigned left;
};

static void busy_and_again(weir_work *work, void *context)
{
    struct flood *flood = context;

    for (weir_time until = weir_now() + 100000; weir_now() < until;)
        ;
    if (atomic_load(&flood->end) || weir_post(flood->runtime, work) != 0)
        atomic_fetch_sub(&flood->left, 1);
}

Test(lease, events_are_served_while_workers_never_run_out_of_posted_work, .timeout = 60)
{
    struct rig rig;
    static struct flood flood;

    open_with(&rig, 2, 0, 1);
    flood.runtime = rig.runtime;
    flood.left = 8;
    for (unsigned i = 0; i < 8; i++) {
        weir_work_init(&flood.works[i], busy_and_again, &flood);
        cr_assert_eq(weir_post(rig.runtime, &flood.works[i]), 0);
    }
    rig_sleep_ms(20);
    for (unsigned i = 0; i < 100; i++)
        time_one(&connections[0]);
    atomic_store(&flood.end, true);
    cr_assert(RIG_UNTIL(atomic_load(&flood.left) == 0, 5000));
    expect_soon("workers busy with posted work");
    cr_expect(lease_await_rest(&rig));
    lease_close(&rig);
}

/* ---- blocking in our own calls -------------------------------------------------------------- */

struct asker {
    weir_socket *other; /* what the callback receives from, waiting */
    _Atomic unsigned answers, failed;
    _Atomic bool inside;
};

static void ask_and_wait(weir_socket *socket, const weir_view *view, int status, void *context)
{
    struct asker *asker = context;
    char byte;

    (void)socket;
    if (status < 0 || view->length == 0)
        return;
    atomic_store(&asker->inside, true);
    ssize_t r = weir_recv_wait(asker->other, &byte, 1, weir_after_ms(10000));
    atomic_store(&asker->inside, false);
    atomic_fetch_add(r == 1 ? &asker->answers : &asker->failed, 1);
}

/* A callback on the only worker waits for another socket: the data that ends it needs a poller. */
static void ask_in_callbacks(unsigned workers, const char *what)
{
    struct rig rig;
    struct asker asker = {0};
    weir_socket *asking;

    open_with(&rig, workers, 0, 0);
    int other = rig_unix(&rig, NULL, &asker.other);
    int peer = rig_unix(&rig, NULL, &asking);
    cr_assert_eq(weir_read_start(asking, ask_and_wait, &asker), 0);
    for (unsigned i = 0; i < 100; i++) {
        rig_peer_send(peer, "?", 1);
        cr_assert(RIG_UNTIL(atomic_load(&asker.inside), 5000));
        if (i % 2)
            rig_sleep_ms(3); /* it sleeps by now */
        weir_time sent = weir_now();
        rig_peer_send(other, "!", 1);
        while (atomic_load(&asker.answers) + atomic_load(&asker.failed) == i)
            usleep(20);
        latency_add(&latency, weir_now() - sent);
    }
    cr_expect_eq(atomic_load(&asker.failed), 0);
    expect_soon(what);
    close(other);
    close(peer);
    lease_close(&rig);
}

Test(lease, answer_reaches_a_callback_that_waits_for_it_on_the_only_worker, .timeout = 120)
{
    ask_in_callbacks(1, "waiting in a callback, one worker");
}

Test(lease, answer_reaches_a_callback_that_waits_for_it_beside_another_worker, .timeout = 120)
{
    ask_in_callbacks(2, "waiting in a callback, two workers");
}

/* ---- timers --------------------------------------------------------------------------------- */

struct alarm_ {
    weir_timer timer;
    _Atomic unsigned rings;
    _Atomic weir_time rang_at;
};

static void on_alarm(weir_timer *timer, uint64_t missed, void *context)
{
    struct alarm_ *alarm = context;

    (void)timer;
    (void)missed;
    atomic_store(&alarm->rang_at, weir_now());
    atomic_fetch_add(&alarm->rings, 1);
}

/* Armed before or behind the moment at which the last worker gets stuck; a worker is added. */
Test(lease, timers_fire_while_all_workers_are_stuck, .timeout = 60)
{
    struct rig rig;
    static struct alarm_ alarms[2];

    open_with(&rig, 1, 2, 1);
    weir_time when = weir_after_ms(60);
    for (unsigned i = 0; i < 2; i++) {
        weir_timer_init(&alarms[i].timer, rig.runtime, on_alarm, &alarms[i]);
        if (i == 1)
            connection_hang(&connections[0], 'h');
        cr_assert_eq(weir_timer_set(&alarms[i].timer, when, 0, WEIR_TIMER_ONCE), 0);
    }
    for (unsigned i = 0; i < 2; i++) {
        cr_assert(RIG_UNTIL(atomic_load(&alarms[i].rings) == 1, 5000), "timer %u", i);
        long late = (long)((atomic_load(&alarms[i].rang_at) - when) / 1000);
        fprintf(stderr, "timer, all workers stuck: %ld us late\n", late);
        cr_expect_leq(late, 4 * SOON_US); /* one of one */
    }
    connection_let_go(&connections[0]);
    for (unsigned i = 0; i < 2; i++)
        weir_timer_fini(&alarms[i].timer);
    lease_close(&rig);
}

/* None can be added: it waits, and is not lost. */
Test(lease, timer_that_nobody_can_run_runs_when_a_worker_is_back, .timeout = 60)
{
    struct rig rig;
    static struct alarm_ alarm;

    open_with(&rig, 1, 0, 1);
    weir_timer_init(&alarm.timer, rig.runtime, on_alarm, &alarm);
    connection_hang(&connections[0], 'h');
    cr_assert_eq(weir_timer_set(&alarm.timer, weir_after_ms(5), 0, WEIR_TIMER_ONCE), 0);
    rig_sleep_ms(50);
    cr_expect_eq(atomic_load(&alarm.rings), 0);
    connection_let_go(&connections[0]);
    cr_expect(RIG_UNTIL(atomic_load(&alarm.rings) == 1, 5000));
    weir_timer_fini(&alarm.timer);
    cr_expect(lease_await_rest(&rig));
    lease_close(&rig);
}

/* The worker that waits in the kernel wakes for it. */
Test(lease, timer_set_from_outside_shortens_the_wait_in_the_kernel, .timeout = 60)
{
    struct rig rig;
    static struct alarm_ alarm;

    open_with(&rig, 1, 0, 0);
    weir_timer_init(&alarm.timer, rig.runtime, on_alarm, &alarm);
    for (unsigned i = 1; i <= 20; i++) {
        weir_time when = weir_after_ms(3);
        cr_assert_eq(weir_timer_set(&alarm.timer, when, 0, WEIR_TIMER_ONCE), 0);
        cr_assert(RIG_UNTIL(atomic_load(&alarm.rings) == i, 5000));
        latency_add(&latency, atomic_load(&alarm.rang_at) - when);
    }
    expect_soon("timer, idle");
    weir_timer_fini(&alarm.timer);
    lease_close(&rig);
}

/* ---- stuck callbacks are named -------------------------------------------------------------- */

static unsigned lines_with(struct rig *rig, const char *part)
{
    unsigned count = 0;

    pthread_mutex_lock(&rig->lock);
    for (const char *at = rig->text; (at = strstr(at, part)); at++)
        count++;
    pthread_mutex_unlock(&rig->lock);
    return count;
}

Test(lease, callback_that_does_not_return_is_named_once_a_second_at_most, .timeout = 60)
{
    struct rig rig;

    open_with(&rig, 1, 0, 1);
    waiter_open(&rig, &waiter);
    connection_hang(&connections[0], 'h');
    int64_t begin = rig_now_ms();
    while (rig_now_ms() < begin + 2300) {
        time_waiter();
        rig_sleep_ms(5);
    }
    int64_t span = rig_now_ms() - begin;
    connection_let_go(&connections[0]);
    unsigned lines = lines_with(&rig, "callbacks do not return: weir-w1 for ");
    fprintf(stderr, "%u lines in %lld ms; %s", lines, (long long)span, rig.text);
    cr_expect_geq(lines, 2);
    cr_expect_leq((int64_t)lines, 1 + span / 1000);
    cr_expect(rig_logged(&rig, " ms in descriptor "), "%s", rig.text);
    waiter_close(&waiter);
    lease_close(&rig);
}

Test(lease, callbacks_that_return_are_not_named_however_busy_the_workers_are, .timeout = 60)
{
    struct rig rig;

    open_with(&rig, 1, 0, 1);
    for (unsigned i = 1; i <= 60; i++) {
        connection_hang(&connections[0], 'h');
        rig_sleep_ms(8); /* long enough for the guarantor to take over */
        connection_let_go(&connections[0]);
        cr_assert(connection_heard(&connections[0], i, 5000));
    }
    cr_expect_eq(lines_with(&rig, "do not return"), 0, "%s", rig.text);
    lease_close(&rig);
}
