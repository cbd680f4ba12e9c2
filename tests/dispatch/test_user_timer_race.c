/* test_user_timer_race.c: weir/timer.h: cancel, and what may come between a look and a move. */
#include <errno.h>

#include "dispatch/user_timer.h"
#include "support/test.h"
#include "timer_rig.h"

/* ---- cancel --------------------------------------------------------------------------------- */

Test(user_timer, cancel_answers_exactly, .timeout = 10)
{
    start();
    cr_assert_eq(weir_timer_cancel(&probe.timer), -EALREADY, "it was never set");
    weir_timer_set(&probe.timer, 100, 0, WEIR_TIMER_ONCE);
    cr_assert_eq(weir_timer_cancel(&probe.timer), 0);
    cr_assert_eq(weir_timer_cancel(&probe.timer), -EALREADY);
    step(100);
    cr_assert_eq(probe.calls, 0);
    weir_timer_set(&probe.timer, 200, 0, WEIR_TIMER_ONCE);
    rig_turn(200);
    cr_assert_eq(weir_timer_cancel(&probe.timer), 0, "queued is not begun");
    rig_run_all();
    cr_assert_eq(probe.calls, 0, "it ran although cancel said that it would not");
    weir_timer_set(&probe.timer, 300, 0, WEIR_TIMER_ONCE);
    step(300);
    cr_assert_eq(probe.calls, 1);
    cr_assert_eq(weir_timer_cancel(&probe.timer), -EALREADY);
    finish();
}

Test(user_timer, a_cancel_that_meets_the_expiry_answers_exactly, .timeout = 10)
{
    start();
    weir_timer_set(&probe.timer, 100, 0, WEIR_TIMER_ONCE);
    rig.now = 100;
    rig.on_timers = turn_now;
    int result = weir_timer_cancel(&probe.timer);
    cr_assert_null(rig.on_timers);
    cr_assert_eq(rig_queued(), 1, "it did not expire in between: the test proves nothing");
    rig_run_all();
    cr_assert_eq(probe.calls, result == 0 ? 0 : 1, "cancel said %d", result);
    finish();
}

static void cancel_self(struct probe *self)
{
    self->result = weir_timer_cancel(&self->timer);
}

Test(user_timer, cancelled_from_its_callback_a_periodic_timer_is_not_armed_again, .timeout = 10)
{
    start();
    for (int mode = WEIR_TIMER_RATE; mode <= WEIR_TIMER_DELAY; mode++) {
        probe.act = cancel_self;
        probe.calls = 0;
        weir_timer_set(&probe.timer, rig.now, 50, (enum weir_timer_mode)mode);
        step(rig.now);
        cr_assert_eq(probe.calls, 1);
        cr_assert_eq(probe.result, -EALREADY, "it is running");
        step(rig.now + 1000);
        cr_assert_eq(probe.calls, 1, "armed again, mode %d", mode);
    }
    finish();
}

static void set_and_cancel_self(struct probe *self)
{
    cr_assert_eq(weir_timer_set(&self->timer, rig.now + 10, 0, WEIR_TIMER_ONCE), 0);
    self->result = weir_timer_cancel(&self->timer);
}

Test(user_timer, what_its_callback_armed_can_be_cancelled, .timeout = 10)
{
    start();
    probe.act = set_and_cancel_self;
    weir_timer_set(&probe.timer, 100, 50, WEIR_TIMER_RATE);
    step(100);
    cr_assert_eq(probe.result, 0);
    step(1000);
    cr_assert_eq(probe.calls, 1);
    finish();
}

/* ---- between a look and a move --------------------------------------------------------------- */

#ifdef WEIR_FAULTS

static struct {
    enum wr_timer_seam seam;
    void (*act)(void);
    unsigned passed;
} between;

static void on_seam(enum wr_timer_seam seam)
{
    if (seam != between.seam || between.passed > 0)
        return;
    between.passed++;
    between.act();
}

static void let_in(enum wr_timer_seam seam, void (*act)(void))
{
    between.seam = seam;
    between.act = act;
    between.passed = 0;
    wr_timer_seam_hook = on_seam;
}

static void set_and_expire(void)
{
    cr_assert_eq(weir_timer_set(&probe.timer, rig.now, 0, WEIR_TIMER_ONCE), 0);
    rig_turn(rig.now);
}

Test(user_timer, an_expiry_between_the_last_look_and_the_last_move_is_not_lost, .timeout = 10)
{
    start();
    let_in(WR_TIMER_SEAM_LAST_MOVE, set_and_expire);
    weir_timer_set(&probe.timer, 100, 0, WEIR_TIMER_ONCE);
    rig_turn(100);
    cr_assert(rig_run());
    cr_assert_eq(between.passed, 1);
    cr_assert_eq(rig_queued(), 1, "lost");
    rig_run_all();
    cr_assert_eq(probe.calls, 2);
    finish();
}

Test(user_timer, an_expiry_while_a_revoked_item_leaves_is_not_lost, .timeout = 10)
{
    start();
    let_in(WR_TIMER_SEAM_REVOKED, set_and_expire);
    weir_timer_set(&probe.timer, 100, 0, WEIR_TIMER_ONCE);
    rig_turn(100);
    cr_assert_eq(weir_timer_cancel(&probe.timer), 0);
    rig_run_all();
    cr_assert_eq(between.passed, 1);
    cr_assert_eq(probe.calls, 1, "lost");
    finish();
}

static void cancel_in_time(void)
{
    probe.result = weir_timer_cancel(&probe.timer);
}

Test(user_timer, a_cancel_right_before_the_callback_begins_holds, .timeout = 10)
{
    start();
    let_in(WR_TIMER_SEAM_DUE, cancel_in_time);
    weir_timer_set(&probe.timer, 100, 50, WEIR_TIMER_RATE);
    step(100);
    cr_assert_eq(between.passed, 1);
    cr_assert_eq(probe.result, 0);
    step(1000);
    cr_assert_eq(probe.calls, 0, "it ran although cancel said that it would not");
    finish();
}

static void set_in_time(void)
{
    cr_assert_eq(weir_timer_set(&probe.timer, rig.now + 10, 0, WEIR_TIMER_ONCE), 0);
}

Test(user_timer, a_set_right_before_the_callback_begins_holds, .timeout = 10)
{
    start();
    let_in(WR_TIMER_SEAM_DUE, set_in_time);
    weir_timer_set(&probe.timer, 100, 0, WEIR_TIMER_ONCE);
    step(100);
    cr_assert_eq(between.passed, 1);
    cr_assert_eq(probe.calls, 0, "early");
    step(110);
    cr_assert_eq(probe.calls, 1);
    finish();
}

#endif

/* ---- the runtime goes ----------------------------------------------------------------------- */

Test(user_timer, destroy_disarms_and_refuses, .timeout = 10)
{
    start();
    weir_timer_set(&probe.timer, 100, 50, WEIR_TIMER_RATE);
    step(100);
    rig.stopping = true;
    cr_assert_eq(weir_timer_set(&second.timer, 100, 0, WEIR_TIMER_ONCE), -ESHUTDOWN);
    rig.stopping = false;
    rig_destroy();
    /* From here on whoever asks the runtime anything fails the test. */
    cr_assert_eq(probe.calls, 1);
    cr_assert_eq(weir_timer_cancel(&probe.timer), -EALREADY);
    weir_timer_fini(&probe.timer);
    weir_timer_fini(&second.timer);
}

static void close_all(void)
{
    for (unsigned i = 0; i < RIG_SHARDS; i++)
        wr_timers_close(&rig.timers[i], NULL);
}

Test(user_timer, a_set_that_meets_destroy_says_so, .timeout = 10)
{
    start();
    rig.on_shard = close_all;
    cr_assert_eq(weir_timer_set(&probe.timer, 100, 0, WEIR_TIMER_ONCE), -ESHUTDOWN);
    rig_turn(100);
    cr_assert_eq(rig_queued(), 0);
    rig_destroy();
    weir_timer_fini(&probe.timer);
    weir_timer_fini(&second.timer);
}

static void destroy_begins(struct probe *self)
{
    (void)self;
    rig.stopping = true;
    for (unsigned i = 0; i < RIG_SHARDS; i++)
        wr_timers_close(&rig.timers[i], NULL);
}

Test(user_timer, a_callback_that_runs_during_destroy_is_the_last, .timeout = 10)
{
    start();
    probe.act = destroy_begins;
    weir_timer_set(&probe.timer, 100, 50, WEIR_TIMER_DELAY);
    step(100);
    cr_assert_eq(probe.calls, 1);
    rig_destroy();
    weir_timer_fini(&probe.timer);
    weir_timer_fini(&second.timer);
}
