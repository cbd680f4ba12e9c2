/* test_lease.c: the hand-offs of the polling lease, one step at a time: the guarantor falls asleep,
 * and takes over. */
#include "lease_gates.h"

#include "os/alarm.h"

/* ---- falling asleep: on the alarm, and on the futex where there is none ---------------------- */

/* The guarantor has seen that a worker waits; before it sleeps the worker comes back and never
 * returns from its callback. */
static void fall_asleep_beside_a_finish(uint32_t how)
{
    struct rig rig;
    static struct connection one;

    open_sleeping(&rig, how);
    connection_open(&rig, &one);
    cr_assert(lease_await_rest(&rig));
    hold(&gates[WR_LEASE_SEAM_BEFORE_SLEEP]);
    wr_guard_wake(&rig.runtime->pollers[0]);
    await_somebody_at(&gates[WR_LEASE_SEAM_BEFORE_SLEEP]);
    connection_hang(&one, 'h');
    let_all(&gates[WR_LEASE_SEAM_BEFORE_SLEEP]);
    cr_expect(lease_await(&rig, 0, WR_LEASE_GUARD), "nobody polls: lease %u",
              lease_state(&rig, 0));
    connection_let_go(&one);
    close_all(&rig);
}

Test(lease, guarantor_that_falls_asleep_beside_a_finish_looks_again, .timeout = 30)
{
    fall_asleep_beside_a_finish(RESTING);
    fall_asleep_beside_a_finish(ASLEEP);
}

/* It has said that it sleeps and has looked again, but does not sleep yet. */
static void finish_beside_the_last_step(uint32_t how)
{
    struct rig rig;
    static struct connection one;

    open_sleeping(&rig, how);
    connection_open(&rig, &one);
    cr_assert(lease_await_rest(&rig));
    hold_asleep(&rig, how);
    connection_hang(&one, 'h');
    let_all(&gates[WR_LEASE_SEAM_ASLEEP]);
    cr_expect(lease_await(&rig, 0, WR_LEASE_GUARD), "nobody polls: lease %u",
              lease_state(&rig, 0));
    connection_let_go(&one);
    close_all(&rig);
}

Test(lease, guarantor_that_has_looked_again_is_woken_by_the_finish, .timeout = 30)
{
    finish_beside_the_last_step(RESTING);
    finish_beside_the_last_step(ASLEEP);
}

/* The worker stands between its two steps while the guarantor makes both of its own. */
static void finish_and_sleep_side_by_side(uint32_t how)
{
    struct rig rig;
    static struct connection one;

    open_sleeping(&rig, how);
    connection_open(&rig, &one);
    cr_assert(lease_await_rest(&rig));
    hold(&gates[WR_LEASE_SEAM_BEFORE_SLEEP]);
    wr_guard_wake(&rig.runtime->pollers[0]);
    await_somebody_at(&gates[WR_LEASE_SEAM_BEFORE_SLEEP]);
    hold(&gates[WR_LEASE_SEAM_WORKING]);
    atomic_store(&one.let_go, false);
    connection_send(&one, 'h');
    await_somebody_at(&gates[WR_LEASE_SEAM_WORKING]);
    unsigned come = atomic_load(&gates[WR_LEASE_SEAM_ASLEEP].come);
    let_all(&gates[WR_LEASE_SEAM_BEFORE_SLEEP]);
    cr_assert(RIG_UNTIL(atomic_load(&gates[WR_LEASE_SEAM_ASLEEP].come) > come, 2000));
    rig_sleep_ms(5);
    let_all(&gates[WR_LEASE_SEAM_WORKING]);
    cr_assert(RIG_UNTIL(atomic_load(&one.inside) == 1, 2000));
    cr_expect(lease_await(&rig, 0, WR_LEASE_GUARD), "nobody polls: lease %u",
              lease_state(&rig, 0));
    connection_let_go(&one);
    close_all(&rig);
}

Test(lease, finish_and_sleep_side_by_side_see_each_other, .timeout = 30)
{
    finish_and_sleep_side_by_side(RESTING);
    finish_and_sleep_side_by_side(ASLEEP);
}

/* A post that finds nobody asks for the watch over the pool. */
static void request_to_watch_beside_sleep(uint32_t how)
{
    struct rig rig;
    static struct connection one;

    open_sleeping(&rig, how);
    connection_open(&rig, &one);
    cr_assert(lease_await_rest(&rig));
    hold(&gates[WR_LEASE_SEAM_BEFORE_SLEEP]);
    wr_guard_wake(&rig.runtime->pollers[0]);
    await_somebody_at(&gates[WR_LEASE_SEAM_BEFORE_SLEEP]);
    wr_dispatch_watch(rig.runtime);
    let_all(&gates[WR_LEASE_SEAM_BEFORE_SLEEP]);
    cr_expect(RIG_UNTIL(!atomic_load(&rig.runtime->pollers[0].tick_wanted), 1000));
    close_all(&rig);
}

Test(lease, guarantor_that_falls_asleep_beside_a_request_to_watch_ticks, .timeout = 30)
{
    request_to_watch_beside_sleep(RESTING);
    request_to_watch_beside_sleep(ASLEEP);
}

/* ---- the alarm ------------------------------------------------------------------------------ */

static void send_and_rest(struct rig *rig, struct connection *connection, unsigned nth)
{
    connection_send(connection, 'x');
    cr_assert(connection_heard(connection, nth, 2000));
    cr_assert(lease_await(rig, 0, WR_LEASE_WAITING));
}

Test(lease, light_load_sets_the_alarm_and_wakes_no_guarantor, .timeout = 30)
{
    struct rig rig;
    static struct connection one;

    open_sleeping(&rig, RESTING);
    connection_open(&rig, &one);
    cr_assert(lease_await_rest(&rig));
    hold_asleep(&rig, RESTING);
    for (unsigned i = 1; i <= 8; i++) {
        send_and_rest(&rig, &one, i);
        cr_assert_eq(guard_word(&rig), RESTING, "woken by poll %u", i);
    }
    cr_expect_geq(rig.runtime->pollers[0].alarms, 8);
    close_all(&rig);
}

Test(lease, many_polls_make_the_guarantor_tick_instead, .timeout = 30)
{
    struct rig rig;
    static struct connection one;

    open_sleeping(&rig, RESTING);
    connection_open(&rig, &one);
    cr_assert(lease_await_rest(&rig));
    hold_asleep(&rig, RESTING);
    int64_t until = rig_now_ms() + rig_patience(5000);
    while (guard_word(&rig) == RESTING && rig_now_ms() < until) {
        connection_send(&one, 'x');
        nanosleep(&(struct timespec) {.tv_nsec = 20000}, NULL);
    }
    cr_expect_neq(guard_word(&rig), RESTING);
    close_all(&rig);
}

/* The worker is about to take the alarm back, and undoes the wake that comes just before. */
Test(lease, wake_beside_the_taking_back_of_the_alarm_is_not_lost, .timeout = 30)
{
    struct rig rig;
    static struct connection one;
    struct wr_poller *poller;
    struct gate *alarm = &gates[WR_LEASE_SEAM_ALARM], *sleeps = &gates[WR_LEASE_SEAM_SLEEPS];

    open_sleeping(&rig, RESTING);
    poller = &rig.runtime->pollers[0];
    connection_open(&rig, &one);
    cr_assert(lease_await_rest(&rig));
    hold(sleeps);
    hold_asleep(&rig, RESTING);
    let_all(&gates[WR_LEASE_SEAM_ASLEEP]);
    await_somebody_at(sleeps);
    hold(alarm);
    connection_send(&one, 'x');
    let_one(alarm); /* sets it */
    cr_assert(connection_heard(&one, 1, 2000));
    await_somebody_at(alarm); /* takes it back */
    wr_dispatch_watch(rig.runtime);
    let_all(alarm);
    cr_assert(RIG_UNTIL(atomic_load(&alarm->waiting) == 0, 2000));
    rig_sleep_ms(10);
    let_all(sleeps);
    cr_expect(RIG_UNTIL(!atomic_load(&poller->tick_wanted), 1000), "the guarantor sleeps on");
    wr_alarm_set(poller->alarm, 1); /* else it cannot end either */
    close_all(&rig);
}

/* ---- taking over ---------------------------------------------------------------------------- */

Test(lease, lease_is_back_when_the_callback_begins, .timeout = 30)
{
    struct rig rig;
    static struct connection one;

    hook();
    lease_open(&rig, 1, 1, 0);
    connection_open(&rig, &one);
    cr_assert(lease_await_rest(&rig));
    stop_guarantor(&rig);
    connection_hang(&one, 'h');
    cr_expect_eq(lease_state(&rig, 0), WR_LEASE_FREE);
    connection_let_go(&one);
    close_all(&rig);
}

/* One look that finds the lease FREE says nothing: somebody has polled since the look before. */
Test(lease, guarantor_takes_over_at_the_second_look_and_not_at_the_first, .timeout = 30)
{
    struct rig rig;
    static struct connection one;

    hook();
    lease_open(&rig, 1, 1, 0);
    connection_open(&rig, &one);
    cr_assert(lease_await_rest(&rig));
    stop_guarantor(&rig);
    connection_hang(&one, 'h');
    one_look();
    cr_expect_eq(lease_state(&rig, 0), WR_LEASE_FREE, "taken over from one who has just polled");
    let_one(&gates[WR_LEASE_SEAM_LOOK]);
    cr_expect(lease_await(&rig, 0, WR_LEASE_GUARD));
    connection_let_go(&one);
    close_all(&rig);
}

Test(lease, guarantor_wakes_a_parked_worker_rather_than_polling_itself, .timeout = 30)
{
    struct rig rig;
    static struct connection one;

    hook();
    lease_open(&rig, 1, 2, 0);
    connection_open(&rig, &one);
    cr_assert(lease_await_rest(&rig));
    stop_guarantor(&rig);
    connection_hang(&one, 'h');
    one_look();
    unsigned come = atomic_load(&gates[WR_LEASE_SEAM_TAKING].come);
    one_look();
    cr_expect(lease_await(&rig, 0, WR_LEASE_WAITING));
    cr_expect_eq(atomic_load(&gates[WR_LEASE_SEAM_TAKING].come), come);
    connection_let_go(&one);
    close_all(&rig);
}

/* The second worker has found no lease to take and is about to park while the first begins to
 * hang and the guarantor takes over. */
Test(lease, worker_that_parks_behind_a_take_over_gets_the_lease, .timeout = 30)
{
    struct rig rig;
    struct rig_busy busy;
    static struct connection one;

    hook();
    lease_open(&rig, 1, 2, 0);
    connection_open(&rig, &one);
    cr_assert(lease_await_rest(&rig));
    rig_busy_begin(&rig, &busy, 1); /* it is the parked one who comes */
    hold(&parking);
    rig_busy_end(&busy);
    await_somebody_at(&parking);
    connection_hang(&one, 'h');
    cr_assert(lease_await(&rig, 0, WR_LEASE_GUARD));
    let_all(&parking);
    cr_expect(lease_await(&rig, 0, WR_LEASE_WAITING), "a worker sleeps, the guarantor polls");
    connection_let_go(&one);
    cr_expect(lease_await_rest(&rig));
    close_all(&rig);
}

/* It parks when the guarantor has already seen that nobody is, but before it takes the lease. */
Test(lease, worker_that_parks_beside_a_take_over_gets_the_lease, .timeout = 30)
{
    struct rig rig;
    struct rig_busy busy;
    static struct connection one;

    hook();
    lease_open(&rig, 1, 2, 0);
    connection_open(&rig, &one);
    cr_assert(lease_await_rest(&rig));
    rig_busy_begin(&rig, &busy, 1);
    hold(&parking);
    rig_busy_end(&busy);
    await_somebody_at(&parking);
    hold(&gates[WR_LEASE_SEAM_TAKING]);
    connection_hang(&one, 'h');
    await_somebody_at(&gates[WR_LEASE_SEAM_TAKING]);
    let_all(&parking);
    cr_assert(RIG_UNTIL(rig_stats(&rig).workers_parked == 1, 2000));
    let_all(&gates[WR_LEASE_SEAM_TAKING]);
    cr_expect(lease_await(&rig, 0, WR_LEASE_WAITING), "a worker sleeps, the guarantor polls");
    connection_let_go(&one);
    close_all(&rig);
}

/* Who wants the lease is busy with something else when it gets it. */
Test(lease, guarantor_that_is_asked_at_once_polls_before_it_gives_the_lease_back, .timeout = 30)
{
    struct rig rig;
    struct rig_busy busy;
    static struct connection connections[2];

    hook();
    lease_open(&rig, 1, 2, 0);
    for (int i = 0; i < 2; i++)
        connection_open(&rig, &connections[i]);
    cr_assert(lease_await_rest(&rig));
    rig_busy_begin(&rig, &busy, 1);
    hold(&parking);
    rig_busy_end(&busy);
    await_somebody_at(&parking);
    hold(&gates[WR_LEASE_SEAM_GUARD]);
    connection_hang(&connections[0], 'h');
    uint64_t events = rig_stats(&rig).events;
    await_somebody_at(&gates[WR_LEASE_SEAM_GUARD]);
    connection_send(&connections[1], 'x');
    let_one(&parking);
    cr_assert(lease_await(&rig, 0, WR_LEASE_WANTED));
    let_one(&gates[WR_LEASE_SEAM_GUARD]);
    cr_expect(RIG_UNTIL(rig_stats(&rig).events > events, 1000), "nobody has polled");
    connection_let_go(&connections[0]);
    close_all(&rig);
}

/* Both pollers are with their guarantors; one worker comes back. */
Test(lease, idle_worker_asks_one_guarantor_and_leaves_the_other_alone, .timeout = 30)
{
    struct rig rig;
    static struct connection connections[2];

    hook();
    lease_open(&rig, 2, 2, 0);
    for (int i = 0; i < 2; i++) {
        connection_open(&rig, &connections[i]);
        cr_assert(lease_await_rest(&rig));
    }
    for (int i = 0; i < 2; i++)
        connection_hang(&connections[i], 'h');
    for (unsigned i = 0; i < 2; i++)
        cr_assert(lease_await(&rig, i, WR_LEASE_GUARD));
    unsigned before[2] = {atomic_load(&looks[0]), atomic_load(&looks[1])};
    connection_let_go(&connections[0]);
    cr_assert(RIG_UNTIL(lease_state(&rig, 0) == WR_LEASE_WAITING ||
                            lease_state(&rig, 1) == WR_LEASE_WAITING,
                        2000));
    rig_sleep_ms(20);
    unsigned asked = lease_state(&rig, 0) != WR_LEASE_WAITING;
    cr_expect_eq(lease_state(&rig, asked), WR_LEASE_WAITING);
    cr_expect_eq(lease_state(&rig, !asked), WR_LEASE_GUARD);
    cr_expect_eq(atomic_load(&looks[!asked]), before[!asked], "it gave the lease back in between");
    connection_let_go(&connections[1]);
    cr_expect(lease_await_rest(&rig));
    close_all(&rig);
}

/* The pump is posted by the only worker, on its way out of the kernel: it is not idle any more. */
Test(lease, worker_that_delivers_a_batch_does_not_wake_itself, .timeout = 30)
{
    struct rig rig;
    struct rig_busy busy;
    static struct connection connections[4];

    hook();
    lease_open(&rig, 1, 1, 0);
    for (int i = 0; i < 4; i++)
        connection_open(&rig, &connections[i]);
    cr_assert(lease_await_rest(&rig));
    stop_guarantor(&rig);
    rig_busy_begin(&rig, &busy, 1);
    for (int i = 0; i < 4; i++)
        connection_send(&connections[i], 'x');
    weir_stats before = rig_stats(&rig);
    rig_busy_end(&busy);
    for (int i = 0; i < 4; i++)
        cr_assert(connection_heard(&connections[i], 1, 2000));
    cr_expect_eq(rig_stats(&rig).pushes - before.pushes, 3);
    cr_expect_eq(rig_stats(&rig).doorbells, before.doorbells);
    close_all(&rig);
}
