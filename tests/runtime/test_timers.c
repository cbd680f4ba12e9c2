/* test_timers.c: timers on a whole runtime: never early, on time while anybody is free, and no
 * trouble to others. What the timer itself promises is tested beside it, in tests/dispatch. */
#include "support/rig.h"

#include <errno.h>
#include <unistd.h>

#include "os/fault.h"
#include "support/latency.h"
#include "support/stress.h"

static struct latency late;
static struct pulse pulse;

/* ---- early and late ------------------------------------------------------------------------ */

struct alarm {
    weir_timer timer;
    weir_time due;
    _Atomic unsigned rang, early;
};

static void note_lateness(weir_timer *timer, uint64_t missed, void *context)
{
    struct alarm *alarm = context;
    weir_time now = weir_now();

    (void)timer;
    (void)missed;
    if (now < alarm->due)
        atomic_fetch_add(&alarm->early, 1);
    latency_add(&late, now - alarm->due);
    atomic_fetch_add(&alarm->rang, 1);
}

static void set_alarm(struct alarm *alarm, weir_time due)
{
    alarm->due = due;
    cr_assert_eq(weir_timer_set(&alarm->timer, due, 0, WEIR_TIMER_ONCE), 0);
}

static void expect_all_rang(struct alarm *alarms, unsigned count)
{
    unsigned early = 0;

    for (unsigned i = 0; i < count; i++) {
        cr_assert(RIG_UNTIL(atomic_load(&alarms[i].rang) == 1, 10000), "timer %u of %u", i, count);
        weir_timer_fini(&alarms[i].timer);
        early += alarms[i].early;
    }
    cr_expect_eq(early, 0, "%u of %u were early", early, count);
}

/* (T01, T12) Nothing but timers lives in the runtime. */
Test(timers, thousand_short_timers_are_never_early, .timeout = 30)
{
    struct rig rig;
    static struct alarm alarms[1000];
    struct support_random random = support_random(support_seed(), 0);

    rig_open(&rig, 2);
    for (unsigned i = 0; i < 1000; i++) {
        weir_timer_init(&alarms[i].timer, rig.runtime, note_lateness, &alarms[i]);
        for (weir_time at = weir_now() + support_below(&random, 500000); weir_now() < at;)
            ;
        set_alarm(&alarms[i], weir_after_ms(1));
    }
    expect_all_rang(alarms, 1000);
    latency_sort(&late, "timer of 1 ms, lateness");
    rig_close(&rig);
}

/* (T10) One at a time, so that each finds the runtime asleep. */
Test(timers, a_tenth_of_a_millisecond_is_not_rounded_up_to_one, .timeout = 30)
{
    struct rig rig;
    static struct alarm alarms[300];

    rig_open(&rig, 2);
    for (unsigned i = 0; i < 300; i++) {
        weir_timer_init(&alarms[i].timer, rig.runtime, note_lateness, &alarms[i]);
        set_alarm(&alarms[i], weir_after_us(100));
        while (!atomic_load(&alarms[i].rang) && weir_now() < alarms[i].due + 1000000000)
            ;
    }
    expect_all_rang(alarms, 300);
    latency_sort(&late, "timer of 100 us, lateness");
    cr_expect_leq(latency_us(&late, 250), rig_patience(700));
    rig_close(&rig);
}

struct spinning {
    weir_work work;
    weir_runtime *runtime;
    _Atomic unsigned *stop;
    _Atomic unsigned *left;
    bool sleeps;
};

/* 20 ms of it, again and again. */
static void spin(weir_work *work, void *context)
{
    struct spinning *spinning = context;
    weir_time end = weir_after_ms(20);

    while (weir_now() < end)
        if (spinning->sleeps)
            rig_sleep_ms(1);
    if (atomic_load(spinning->stop) || weir_post(spinning->runtime, work) != 0)
        atomic_fetch_add(spinning->left, 1);
}

/* (T09) Three of four workers are busy for ever, one of them with computing. */
Test(timers, busy_workers_do_not_delay_timers_while_one_is_free, .timeout = 30)
{
    struct rig rig;
    static struct alarm alarms[200];
    struct spinning spinning[3];
    _Atomic unsigned stop = 0, left = 0;

    rig_open(&rig, 4);
    for (unsigned i = 0; i < 3; i++) {
        spinning[i] = (struct spinning){
            .runtime = rig.runtime, .stop = &stop, .left = &left, .sleeps = i > 0};
        weir_work_init(&spinning[i].work, spin, &spinning[i]);
        cr_assert_eq(weir_post(rig.runtime, &spinning[i].work), 0);
    }
    pulse_begin(&pulse);
    for (unsigned i = 0; i < 200; i++) {
        weir_timer_init(&alarms[i].timer, rig.runtime, note_lateness, &alarms[i]);
        set_alarm(&alarms[i], weir_after_ms(1));
        rig_sleep_ms(2);
    }
    expect_all_rang(alarms, 200);
    long machine_us = pulse_end(&pulse);
    atomic_store(&stop, 1);
    cr_assert(RIG_UNTIL(atomic_load(&left) == 3, 5000));
    latency_sort(&late, "timer beside busy workers, lateness");
    cr_expect_leq(latency_us(&late, 950), rig_patience(5) * 1000L + 2 * machine_us);
    rig_close(&rig);
}

/* ---- slow callbacks ------------------------------------------------------------------------ */

struct slow {
    weir_timer timer, next;
    weir_time armed, rang;
    _Atomic unsigned done;
};

static void ring_next(weir_timer *timer, uint64_t missed, void *context)
{
    struct slow *slow = context;

    (void)timer;
    (void)missed;
    slow->rang = weir_now();
    atomic_store(&slow->done, 1);
}

static void be_slow_then_arm(weir_timer *timer, uint64_t missed, void *context)
{
    struct slow *slow = context;

    (void)timer;
    (void)missed;
    rig_sleep_ms(200);
    slow->armed = weir_now();
    weir_timer_set(&slow->next, weir_after_ms(80), 0, WEIR_TIMER_ONCE);
}

/* (T02) */
Test(timers, time_counts_from_the_call_also_after_a_long_callback, .timeout = 30)
{
    struct rig rig;
    struct slow slow = {0};

    rig_open(&rig, 1);
    weir_timer_init(&slow.timer, rig.runtime, be_slow_then_arm, &slow);
    weir_timer_init(&slow.next, rig.runtime, ring_next, &slow);
    cr_assert_eq(weir_timer_set(&slow.timer, weir_now(), 0, WEIR_TIMER_ONCE), 0);
    cr_assert(RIG_UNTIL(atomic_load(&slow.done), 5000));
    weir_timer_fini(&slow.timer);
    weir_timer_fini(&slow.next);
    cr_expect_geq(slow.rang - slow.armed, 80000000);
    cr_expect_leq(slow.rang - slow.armed, rig_patience(80 + 60) * 1000000LL);
    rig_close(&rig);
}

/* (T02) Before the runtime has done anything at all. */
Test(timers, time_counts_from_the_call_in_a_runtime_that_is_new, .timeout = 30)
{
    struct rig rig;
    static struct alarm alarm;

    rig_open(&rig, 1);
    weir_timer_init(&alarm.timer, rig.runtime, note_lateness, &alarm);
    set_alarm(&alarm, weir_after_ms(50));
    expect_all_rang(&alarm, 1);
    cr_expect_leq(late.spans[0], rig_patience(60) * 1000000LL);
    rig_close(&rig);
}

struct series {
    weir_timer timer;
    weir_time begun[64], ended[64];
    uint64_t missed[64];
    _Atomic unsigned count;
};

static void note_series(weir_timer *timer, uint64_t missed, void *context)
{
    struct series *series = context;
    unsigned at = atomic_load(&series->count);

    if (at == 64) {
        weir_timer_cancel(timer);
        return;
    }
    series->begun[at] = weir_now();
    series->missed[at] = missed;
    rig_sleep_ms(at % 2 ? 50 : 8);
    series->ended[at] = weir_now();
    atomic_store(&series->count, at + 1);
}

static void run_series(struct series *series, weir_time first, enum weir_timer_mode mode,
                       unsigned calls)
{
    struct rig rig;

    rig_open(&rig, 2);
    weir_timer_init(&series->timer, rig.runtime, note_series, series);
    cr_assert_eq(weir_timer_set(&series->timer, first, 20000000, mode), 0);
    cr_assert(RIG_UNTIL(atomic_load(&series->count) >= calls, 20000));
    weir_timer_fini(&series->timer);
    rig_close(&rig);
}

/* (T03) A period of 20 ms, callbacks of 8 and 50 ms: the grid stays, what does not fit is
 * counted. */
Test(timers, fixed_rate_neither_drifts_nor_queues_what_it_missed, .timeout = 60)
{
    static struct series series;
    weir_time first = weir_after_ms(20);
    uint64_t periods = 0;

    run_series(&series, first, WEIR_TIMER_RATE, 20);
    for (unsigned i = 0; i < 20; i++) {
        periods += series.missed[i] + (i > 0);
        weir_time due = first + (weir_time)periods * 20000000;
        cr_assert_geq(series.begun[i], due, "call %u came before its period", i);
        cr_assert_lt(series.begun[i], due + rig_patience(60) * 1000000LL, "call %u", i);
        if (i % 2) /* the callback before was short: this one comes on the grid */
            latency_add(&late, series.begun[i] - due);
    }
    cr_expect_gt(periods, 19, "nothing was missed, though every other callback overran");
    latency_sort(&late, "fixed rate, lateness on the grid");
    cr_expect_leq(latency_us(&late, 500), 5000, "it drifts");
}

/* (T03) */
Test(timers, fixed_delay_counts_from_the_end_of_the_callback, .timeout = 60)
{
    static struct series series;

    run_series(&series, weir_after_ms(20), WEIR_TIMER_DELAY, 10);
    for (unsigned i = 1; i < 10; i++) {
        cr_assert_geq(series.begun[i] - series.ended[i - 1], 20000000, "call %u", i);
        cr_assert_eq(series.missed[i], 0);
    }
}

#ifdef WEIR_FAULTS
static _Atomic unsigned hold_poller;

/* Stands in for whatever may keep a poller from its wait. */
static int hold_once(enum wr_fault_call call)
{
    if ((call == WR_FAULT_EPOLL_WAIT || call == WR_FAULT_URING_ENTER) &&
        atomic_exchange(&hold_poller, 0))
        rig_sleep_ms(100);
    return 0;
}

static void note_byte(weir_socket *socket, const weir_view *view, int status, void *context);

/* (T11) When the poller looks again, their time has passed already. */
Test(timers, those_that_fell_due_while_the_poller_was_held_up_follow_at_once, .timeout = 30)
{
    struct rig rig;
    static struct alarm alarms[3];
    weir_socket *socket;
    _Atomic unsigned bytes = 0;

    wr_fault_hook = hold_once;
    rig_open(&rig, 1);
    int peer = rig_unix(&rig, NULL, &socket);
    cr_assert_eq(weir_read_start(socket, note_byte, &bytes), 0);
    rig_sleep_ms(10);
    atomic_store(&hold_poller, 1);
    rig_peer_send(peer, "x", 1);
    cr_assert(RIG_UNTIL(atomic_load(&hold_poller) == 0, 5000));
    for (unsigned i = 0; i < 3; i++) {
        weir_timer_init(&alarms[i].timer, rig.runtime, note_lateness, &alarms[i]);
        set_alarm(&alarms[i], weir_after_ms(20 + i));
    }
    expect_all_rang(alarms, 3);
    latency_sort(&late, "timers of a poller that was held up, lateness");
    cr_expect_leq(latency_us(&late, 1000), rig_patience(100 + 50) * 1000L);
    close(peer);
    rig_close(&rig);
}
#endif

/* ---- a timer that never rests -------------------------------------------------------------- */

static void arm_again(weir_timer *timer, uint64_t missed, void *context)
{
    _Atomic uint64_t *rounds = context;

    (void)missed;
    atomic_fetch_add(rounds, 1);
    weir_timer_set(timer, weir_now(), 0, WEIR_TIMER_ONCE);
}

static void note_byte(weir_socket *socket, const weir_view *view, int status, void *context)
{
    (void)socket;
    if (status == 0 && view->length > 0)
        atomic_fetch_add((_Atomic unsigned *)context, 1);
}

static void count_run(weir_work *work, void *context)
{
    (void)work;
    atomic_fetch_add((_Atomic unsigned *)context, 1);
}

/* (T04) */
Test(timers, zero_delay_armed_by_its_callback_leaves_sockets_and_posts_their_turn, .timeout = 30)
{
    struct rig rig;
    weir_timer timer;
    weir_work work;
    weir_socket *socket;
    _Atomic uint64_t rounds = 0;
    _Atomic unsigned bytes = 0, ran = 0;

    rig_open(&rig, 1);
    int peer = rig_unix(&rig, NULL, &socket);
    cr_assert_eq(weir_read_start(socket, note_byte, &bytes), 0);
    weir_timer_init(&timer, rig.runtime, arm_again, &rounds);
    weir_work_init(&work, count_run, &ran);
    cr_assert_eq(weir_timer_set(&timer, weir_now(), 0, WEIR_TIMER_ONCE), 0);
    cr_assert(RIG_UNTIL(atomic_load(&rounds) > 10, 5000));
    int64_t begin = rig_now_ms();
    rig_peer_send(peer, "x", 1);
    cr_assert_eq(weir_post(rig.runtime, &work), 0);
    cr_expect(RIG_UNTIL(atomic_load(&bytes) && atomic_load(&ran), 5000), "%u bytes, %u runs",
              atomic_load(&bytes), atomic_load(&ran));
    cr_expect_leq(rig_now_ms() - begin, rig_patience(100));
    uint64_t before = atomic_load(&rounds);
    cr_expect(RIG_UNTIL(atomic_load(&rounds) > before + 10, 5000), "the timer starves");
    weir_timer_fini(&timer);
    close(peer);
    rig_close(&rig);
}

/* ---- deadlines of sockets that are changed as they expire ---------------------------------- */

struct reader {
    weir_socket *socket;
    _Atomic uint64_t bytes, timeouts;
    _Atomic unsigned stop;
};

static void note_read(weir_socket *socket, const weir_view *view, int status, void *context)
{
    struct reader *reader = context;

    (void)socket;
    atomic_fetch_add(&reader->bytes, view->length);
    if (status == -ETIMEDOUT)
        atomic_fetch_add(&reader->timeouts, 1);
}

static void *change_deadline(void *context)
{
    struct reader *reader = context;
    struct support_random random = support_random(support_seed(), 7);

    while (!atomic_load(&reader->stop)) {
        weir_read_deadline(reader->socket, weir_after_us(support_below(&random, 30)));
        for (weir_time end = weir_now() + support_below(&random, 40000); weir_now() < end;)
            ;
    }
    return NULL;
}

/* (T07) */
Test(timers, deadline_changed_in_the_instant_it_expires_hangs_nobody, .timeout = 600)
{
    struct rig rig;
    struct reader reader = {0};
    pthread_t thread;
    uint64_t sent = 0;

    rig_open(&rig, 2);
    int peer = rig_unix(&rig, NULL, &reader.socket);
    cr_assert_eq(weir_read_start(reader.socket, note_read, &reader), 0);
    cr_assert_eq(pthread_create(&thread, NULL, change_deadline, &reader), 0);
    for (int64_t end = rig_now_ms() + support_span_ms(400); rig_now_ms() < end; sent++) {
        rig_peer_send(peer, "x", 1);
        cr_assert(RIG_UNTIL(atomic_load(&reader.bytes) > sent, 5000), "it hangs");
    }
    atomic_store(&reader.stop, 1);
    pthread_join(thread, NULL);
    cr_expect_gt(atomic_load(&reader.timeouts), 10, "the deadline hardly ever passed");
    rig_sleep_ms(20);
    uint64_t before = atomic_load(&reader.timeouts);
    cr_assert_eq(weir_read_deadline(reader.socket, weir_now()), 0);
    cr_expect(RIG_UNTIL(atomic_load(&reader.timeouts) > before, 5000), "the last one is lost");
    close(peer);
    rig_close(&rig);
}

static void take_back(weir_socket *socket, const weir_view *view, int status, void *context)
{
    struct reader *reader = context;

    note_read(socket, view, status, context);
    if (status == 0)
        weir_read_deadline(socket, reader->stop ? weir_after_ms(30) : WEIR_NEVER);
}

static void read_with_a_passed_deadline(bool later)
{
    struct rig rig;
    struct rig_busy busy;
    struct reader reader = {.stop = later};

    if (rig_pollers_call())
        cr_skip_test("busy workers hold up no callback here");
    rig_open(&rig, 1);
    int peer = rig_unix(&rig, NULL, &reader.socket);
    cr_assert_eq(weir_read_start(reader.socket, take_back, &reader), 0);
    rig_busy_begin(&rig, &busy, 1);
    cr_assert_eq(weir_read_deadline(reader.socket, weir_after_ms(5)), 0);
    rig_peer_send(peer, "x", 1);
    cr_assert(RIG_UNTIL(rig_stats(&rig).timers_expired >= 1, 5000));
    rig_busy_end(&busy);
    cr_assert(RIG_UNTIL(atomic_load(&reader.bytes) == 1, 5000));
    rig_sleep_ms(10);
    cr_expect_eq(atomic_load(&reader.timeouts), 0, "it was taken back before it was told");
    if (later)
        cr_expect(RIG_UNTIL(atomic_load(&reader.timeouts) == 1, 5000));
    close(peer);
    rig_close(&rig);
}

/* (T07) The deadline passes while the data that comes with it waits for a worker. */
Test(timers, deadline_taken_back_by_the_callback_before_it_is_told_is_not_told, .timeout = 30)
{
    read_with_a_passed_deadline(false);
}

/* (T07) */
Test(timers, deadline_moved_by_the_callback_before_it_is_told_is_told_later, .timeout = 30)
{
    read_with_a_passed_deadline(true);
}
