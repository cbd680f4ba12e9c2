/* test_user_timer.c: weir/timer.h, in time that stands still. */
#include <errno.h>

#include "support/test.h"
#include "timer_rig.h"

/* ---- when it runs --------------------------------------------------------------------------- */

Test(user_timer, is_never_early, .timeout = 10)
{
    start();
    for (weir_time first = 1; first < 3000; first += 37) {
        weir_time due = rig.now + first;
        probe.calls = 0;
        cr_assert_eq(weir_timer_set(&probe.timer, due, 0, WEIR_TIMER_ONCE), 0);
        step(due - 1);
        cr_assert_eq(probe.calls, 0, "early");
        step(due);
        cr_assert_eq(probe.calls, 1);
        step(due + 1000);
        cr_assert_eq(probe.calls, 1, "once is once");
    }
    finish();
}

Test(user_timer, a_time_that_has_passed_is_as_soon_as_possible_after_what_was_posted, .timeout = 10)
{
    weir_work *own;

    start();
    rig.now = 5000;
    cr_assert_eq(weir_timer_set(&second.timer, INT64_MIN, 0, WEIR_TIMER_ONCE), 0);
    rig_turn(5000);
    own = rig.first;
    cr_assert_eq(weir_timer_set(&probe.timer, 17, 0, WEIR_TIMER_ONCE), 0);
    cr_assert_eq(probe.calls, 0, "not inside the call");
    rig_turn(5000);
    cr_assert_eq(rig_queued(), 2);
    cr_assert_eq(rig.first, own, "it overtook what was posted before");
    rig_run_all();
    cr_assert_eq(probe.calls, 1);
    cr_assert_eq(second.calls, 1);
    finish();
}

static void set_200_from_now(struct probe *self)
{
    if (self->calls == 1)
        self->result = weir_timer_set(&self->timer, rig.now + 200, 0, WEIR_TIMER_ONCE);
}

/* Bug T02: the new time was counted from the start of the turn. */
Test(user_timer, set_after_a_long_callback_counts_from_the_call, .timeout = 10)
{
    start();
    probe.act = set_200_from_now;
    probe.takes[0] = 500;
    weir_timer_set(&probe.timer, 1000, 0, WEIR_TIMER_ONCE);
    step(1000);
    cr_assert_eq(rig.now, 1500);
    step(1699);
    cr_assert_eq(probe.calls, 1, "early");
    step(1700);
    cr_assert_eq(probe.calls, 2);
    finish();
}

/* Bug T03. Calls of 20 and of 60 at a period of 50: fixed rate keeps its grid. */
Test(user_timer, fixed_rate_keeps_the_grid_and_counts_what_it_missed, .timeout = 10)
{
    static const weir_time expected[] = { 100, 150, 200, 330, 350, 500 };
    static const uint64_t missed[] = { 0, 0, 0, 1, 0, 2 };
    uint64_t sum = 0;

    start();
    probe.takes[0] = 20;
    probe.takes[1] = 20;
    probe.takes[2] = 130;       /* 200..330: 250 is late, 300 is missed */
    probe.takes[3] = 10;
    probe.takes[4] = 150;       /* 350..500: 400 is late, 450 and 500 are missed */
    weir_timer_set(&probe.timer, 100, 50, WEIR_TIMER_RATE);
    for (weir_time now = 0; now <= 520; now += 10) {
        rig_turn(now);
        cr_assert_leq(rig_queued(), 1, "never more than one is queued");
        rig_run_all();
    }
    cr_assert_eq(probe.calls, 6);
    for (unsigned i = 0; i < 6; i++) {
        cr_assert_eq(probe.at[i], expected[i], "call %u at %lld", i, (long long)probe.at[i]);
        cr_assert_eq(probe.missed[i], missed[i], "call %u", i);
        sum += 1 + probe.missed[i];
    }
    cr_assert_eq(sum, (500 - 100) / 50 + 1, "every period is a call or counted");
    /* It misses two once more; then it is a one-shot timer, which misses nothing. */
    probe.takes[6] = 150;
    step(550);
    step(550);
    weir_timer_set(&probe.timer, 0, 0, WEIR_TIMER_ONCE);
    step(rig.now);
    cr_assert_gt(probe.calls, 7);
    cr_assert_eq(probe.missed[probe.calls - 1], 0);
    finish();
}

Test(user_timer, fixed_delay_counts_from_the_return, .timeout = 10)
{
    static const weir_time expected[] = { 100, 170, 280, 340 };

    start();
    probe.takes[0] = 20;
    probe.takes[1] = 60;
    probe.takes[2] = 10;
    weir_timer_set(&probe.timer, 100, 50, WEIR_TIMER_DELAY);
    for (weir_time now = 0; now <= 345; now += 1)
        step(now);
    cr_assert_eq(probe.calls, 4);
    for (unsigned i = 0; i < 4; i++) {
        cr_assert_eq(probe.at[i], expected[i], "call %u at %lld", i, (long long)probe.at[i]);
        cr_assert_eq(probe.missed[i], 0);
    }
    finish();
}

Test(user_timer, periods_before_it_was_set_are_not_missed, .timeout = 10)
{
    start();
    rig.now = 1000025;
    weir_timer_set(&probe.timer, 0, 50, WEIR_TIMER_RATE);
    step(1000025);
    step(1000049);
    cr_assert_eq(probe.calls, 1);
    cr_assert_eq(probe.missed[0], 0);
    step(1000050);
    cr_assert_eq(probe.calls, 2, "the grid is that of `first`");
    weir_timer_set(&probe.timer, INT64_MIN, INT64_MAX, WEIR_TIMER_RATE);
    step(1000060);
    weir_timer_set(&probe.timer, INT64_MIN, 1, WEIR_TIMER_RATE);
    step(1000070);
    cr_assert_eq(probe.calls, 4);
    finish();
}

Test(user_timer, a_next_time_that_does_not_fit_never_comes, .timeout = 10)
{
    start();
    weir_timer_set(&probe.timer, 100, INT64_MAX, WEIR_TIMER_DELAY);
    weir_timer_set(&second.timer, 100, INT64_MAX, WEIR_TIMER_RATE);
    step(100);
    step(WEIR_NEVER - 1);
    cr_assert_eq(probe.calls, 1);
    cr_assert_eq(second.calls, 1);
    cr_assert_eq(weir_timer_cancel(&probe.timer), -EALREADY);
    /* And it knows that it is not armed: it asks the runtime nothing when that is gone. */
    rig_destroy();
    weir_timer_fini(&probe.timer);
    weir_timer_fini(&second.timer);
}

static unsigned others;

static void count_other(weir_work *work, void *context)
{
    (void)work;
    (void)context;
    others++;
}

static void set_again_now(struct probe *self)
{
    if (self->calls < 20)
        cr_assert_eq(weir_timer_set(&self->timer, 0, 0, WEIR_TIMER_ONCE), 0);
}

/* Bug T04: a zero delay armed by its own callback locked everybody else out. */
Test(user_timer, a_zero_delay_armed_by_its_callback_lets_others_have_their_turn, .timeout = 10)
{
    weir_work work;

    start();
    others = 0;
    probe.act = set_again_now;
    weir_timer_set(&probe.timer, 0, 0, WEIR_TIMER_ONCE);
    for (unsigned i = 1; i <= 20; i++) {
        rig_turn(0);
        weir_work_init(&work, count_other, NULL);
        rig_post(&work);
        cr_assert_eq(rig_queued(), 2, "one expiry a turn");
        rig_run_all();
        cr_assert_eq(probe.calls, i, "it ran again within the turn");
        cr_assert_eq(others, i);
    }
    finish();
}

/* Bug T11: the next wake was computed from a time that had passed. */
Test(user_timer, those_that_fell_due_meanwhile_follow_at_once, .timeout = 10)
{
    struct probe third = { .calls = 0 };

    start();
    weir_timer_init(&third.timer, rig_runtime(), on_timer, &third);
    probe.takes[0] = 50;
    weir_timer_set(&probe.timer, 100, 0, WEIR_TIMER_ONCE);
    weir_timer_set(&second.timer, 101, 0, WEIR_TIMER_ONCE);
    weir_timer_set(&third.timer, 102, 0, WEIR_TIMER_ONCE);
    step(100);
    cr_assert_eq(rig.now, 150);
    step(150);
    cr_assert_eq(second.at[0], 150);
    cr_assert_eq(third.at[0], 150);
    weir_timer_fini(&third.timer);
    finish();
}

/* ---- set ------------------------------------------------------------------------------------ */

Test(user_timer, refuses_what_makes_no_sense, .timeout = 10)
{
    weir_timer none;

    start();
    cr_assert_eq(weir_timer_set(NULL, 1, 0, WEIR_TIMER_ONCE), -EINVAL);
    cr_assert_eq(weir_timer_set(&probe.timer, WEIR_NEVER, 0, WEIR_TIMER_ONCE), -EINVAL);
    cr_assert_eq(weir_timer_set(&probe.timer, 1, 0, WEIR_TIMER_RATE), -EINVAL);
    cr_assert_eq(weir_timer_set(&probe.timer, 1, -1, WEIR_TIMER_DELAY), -EINVAL);
    cr_assert_eq(weir_timer_set(&probe.timer, 1, 1, (enum weir_timer_mode)3), -EINVAL);
    weir_timer_init(&none, rig_runtime(), NULL, NULL);
    cr_assert_eq(weir_timer_set(&none, 1, 0, WEIR_TIMER_ONCE), -EINVAL);
    weir_timer_init(&none, NULL, on_timer, NULL);
    cr_assert_eq(weir_timer_set(&none, 1, 0, WEIR_TIMER_ONCE), -EINVAL);
    cr_assert_eq(weir_timer_cancel(NULL), -EINVAL);
    weir_timer_fini(NULL);
    weir_timer_init(NULL, NULL, NULL, NULL);
    step(100);
    cr_assert_eq(probe.calls, 0);
    finish();
}

Test(user_timer, only_an_earlier_time_rings, .timeout = 10)
{
    start();
    weir_timer_set(&probe.timer, 1000, 0, WEIR_TIMER_ONCE);
    cr_assert_eq(rig.rings, 1);
    for (weir_time when = 1001; when < 3000; when++)
        weir_timer_set(&probe.timer, when, 0, WEIR_TIMER_ONCE);
    cr_assert_eq(rig.rings, 1, "moving to later made %u system calls", rig.rings - 1);
    weir_timer_set(&probe.timer, 900, 0, WEIR_TIMER_ONCE);
    cr_assert_eq(rig.rings, 2);
    step(900);
    cr_assert_eq(probe.calls, 1);
    finish();
}

Test(user_timer, set_anew_forgets_what_has_expired_and_not_begun, .timeout = 10)
{
    start();
    weir_timer_set(&probe.timer, 100, 0, WEIR_TIMER_ONCE);
    rig_turn(100);
    cr_assert_eq(rig_queued(), 1);
    weir_timer_set(&probe.timer, 500, 0, WEIR_TIMER_ONCE);
    rig_run_all();
    cr_assert_eq(probe.calls, 0, "the old expiry ran the new setting, early");
    step(500);
    cr_assert_eq(probe.calls, 1);
    /* The same, and the new one expires while the old item is still queued. */
    weir_timer_set(&probe.timer, 600, 0, WEIR_TIMER_ONCE);
    rig_turn(600);
    weir_timer_set(&probe.timer, 650, 0, WEIR_TIMER_ONCE);
    rig_turn(650);
    cr_assert_eq(rig_queued(), 1);
    rig_run_all();
    cr_assert_eq(probe.calls, 2);
    finish();
}

/* Bug T07, in one thread: between the look at the state and the move in the heap, the old time
 * comes. */
Test(user_timer, a_set_that_meets_the_expiry_is_not_early_and_not_lost, .timeout = 10)
{
    start();
    weir_timer_set(&probe.timer, 100, 0, WEIR_TIMER_ONCE);
    rig.now = 100;
    rig.on_timers = turn_now;
    cr_assert_eq(weir_timer_set(&probe.timer, 500, 0, WEIR_TIMER_ONCE), 0);
    cr_assert_null(rig.on_timers);
    cr_assert_eq(rig_queued(), 1, "it did not expire in between: the test proves nothing");
    rig_run_all();
    cr_assert_eq(probe.calls, 0, "early");
    step(499);
    cr_assert_eq(probe.calls, 0);
    step(500);
    cr_assert_eq(probe.calls, 1, "lost");
    finish();
}

/* The poller is quicker than the thread that sets: it expires before set() has returned. */
Test(user_timer, a_set_whose_time_comes_at_once_is_not_lost, .timeout = 10)
{
    start();
    rig.on_ring = turn_now;
    cr_assert_eq(weir_timer_set(&probe.timer, 0, 0, WEIR_TIMER_ONCE), 0);
    cr_assert_null(rig.on_ring);
    cr_assert_eq(rig_queued(), 1);
    rig_run_all();
    cr_assert_eq(probe.calls, 1);
    finish();
}

Test(user_timer, follows_whoever_sets_it_to_another_poller, .timeout = 10)
{
    start();
    weir_timer_set(&probe.timer, 100, 0, WEIR_TIMER_ONCE);
    rig.shard = 1;
    weir_timer_set(&probe.timer, 200, 0, WEIR_TIMER_ONCE);
    step(200);
    cr_assert_eq(probe.calls, 1);
    weir_timer_set(&probe.timer, 300, 50, WEIR_TIMER_RATE);
    cr_assert(wr_timers_armed(&rig.timers[1], &probe.timer.deadline_));
    rig.shard = 0;
    step(300);
    cr_assert(wr_timers_armed(&rig.timers[1], &probe.timer.deadline_), "it stays where it is");
    cr_assert_eq(weir_timer_cancel(&probe.timer), 0);
    cr_assert_not(wr_timers_armed(&rig.timers[1], &probe.timer.deadline_));
    cr_assert_eq(probe.calls, 2);
    finish();
}

/* ---- while the callback runs ---------------------------------------------------------------- */

static void set_now_and_turn(struct probe *self)
{
    if (self->calls > 1)
        return;
    cr_assert_eq(weir_timer_set(&self->timer, rig.now, 0, WEIR_TIMER_ONCE), 0);
    rig_turn(rig.now);
    cr_assert_eq(rig_queued(), 0, "posted while its callback runs: it could run twice at once");
}

Test(user_timer, what_expires_while_the_callback_runs_follows_it, .timeout = 10)
{
    start();
    probe.act = set_now_and_turn;
    weir_timer_set(&probe.timer, 100, 0, WEIR_TIMER_ONCE);
    rig_turn(100);
    cr_assert(rig_run());
    cr_assert_eq(probe.calls, 1, "nested");
    cr_assert_eq(rig_queued(), 1, "lost");
    rig_run_all();
    cr_assert_eq(probe.calls, 2);
    finish();
}

static void turn_a_period_later(void)
{
    rig_turn(rig.now + 50);
}

/* Between arming for the next period and the last move of the call, that period is over. */
Test(user_timer, a_period_that_ends_before_the_call_has_is_not_lost, .timeout = 10)
{
    start();
    weir_timer_set(&probe.timer, 100, 50, WEIR_TIMER_DELAY);
    rig_turn(100);
    rig.on_ring = turn_a_period_later;
    cr_assert(rig_run());
    cr_assert_null(rig.on_ring, "it did not ring: the test proves nothing");
    cr_assert_eq(rig_queued(), 1, "lost");
    rig_run_all();
    cr_assert_eq(probe.calls, 2);
    finish();
}

static void set_later_once(struct probe *self)
{
    if (self->calls == 1)
        weir_timer_set(&self->timer, rig.now + 1000, 0, WEIR_TIMER_ONCE);
}

Test(user_timer, set_from_the_callback_replaces_the_period, .timeout = 10)
{
    start();
    probe.act = set_later_once;
    weir_timer_set(&probe.timer, 100, 50, WEIR_TIMER_RATE);
    step(100);
    step(1099);
    cr_assert_eq(probe.calls, 1);
    step(1100);
    step(5000);
    cr_assert_eq(probe.calls, 2);
    finish();
}
