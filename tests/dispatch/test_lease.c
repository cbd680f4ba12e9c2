/* test_lease.c: the hand-offs of the polling lease, one step at a time: the guarantor falls asleep,
 * and takes over. */
#include "lease_gates.h"

/* ---- falling asleep ------------------------------------------------------------------------- */

/* The guarantor has seen that a worker waits; before it is ASLEEP the worker comes back and never
 * returns from its callback. */
Test(lease, guarantor_that_falls_asleep_beside_a_finish_looks_again, .timeout = 30)
{
    struct rig rig;
    static struct connection one;

    hook();
    lease_open(&rig, 1, 1, 0);
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

/* It is ASLEEP and has looked again, but does not sleep yet. */
Test(lease, guarantor_that_has_looked_again_is_woken_by_the_finish, .timeout = 30)
{
    struct rig rig;
    static struct connection one;

    hook();
    lease_open(&rig, 1, 1, 0);
    connection_open(&rig, &one);
    cr_assert(lease_await_rest(&rig));
    hold(&gates[WR_LEASE_SEAM_ASLEEP]);
    wr_guard_wake(&rig.runtime->pollers[0]);
    await_somebody_at(&gates[WR_LEASE_SEAM_ASLEEP]);
    if (guard_word(&rig) != ASLEEP) /* it was on its way there when it was woken */
        let_one(&gates[WR_LEASE_SEAM_ASLEEP]);
    cr_assert(RIG_UNTIL(guard_word(&rig) == ASLEEP, 2000));
    await_somebody_at(&gates[WR_LEASE_SEAM_ASLEEP]);
    connection_hang(&one, 'h');
    let_all(&gates[WR_LEASE_SEAM_ASLEEP]);
    cr_expect(lease_await(&rig, 0, WR_LEASE_GUARD), "nobody polls: lease %u",
              lease_state(&rig, 0));
    connection_let_go(&one);
    close_all(&rig);
}

/* The worker stands between its two steps while the guarantor makes both of its own. */
Test(lease, finish_and_sleep_side_by_side_see_each_other, .timeout = 30)
{
    struct rig rig;
    static struct connection one;

    hook();
    lease_open(&rig, 1, 1, 0);
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

/* A post that finds nobody asks for the watch over the pool. */
Test(lease, guarantor_that_falls_asleep_beside_a_request_to_watch_ticks, .timeout = 30)
{
    struct rig rig;
    static struct connection one;

    hook();
    lease_open(&rig, 1, 1, 0);
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

/* Comes to rest, sleeps for longer than REST_NS, then `polls` workers' waits end before it looks;
 * true: that look sends it to sleep again. */
static bool sleeps_after(unsigned polls)
{
    struct rig rig;
    static struct connection one;
    struct gate *look = &gates[WR_LEASE_SEAM_LOOK], *sleep = &gates[WR_LEASE_SEAM_BEFORE_SLEEP];

    hook();
    lease_open(&rig, 1, 1, 0);
    connection_open(&rig, &one);
    cr_assert(lease_await_rest(&rig));
    rig_sleep_ms(150); /* also past a look for callbacks that do not return */
    hold(look);
    for (unsigned i = 1; i <= polls; i++) {
        connection_send(&one, 'x');
        cr_assert(connection_heard(&one, i, 2000));
        cr_assert(lease_await(&rig, 0, WR_LEASE_WAITING));
    }
    await_somebody_at(look);
    unsigned looks_before = atomic_load(&look->come), sleeps_before = atomic_load(&sleep->come);
    let_one(look);
    cr_assert(RIG_UNTIL(atomic_load(&look->come) > looks_before ||
                            atomic_load(&sleep->come) > sleeps_before,
                        2000));
    bool slept = atomic_load(&sleep->come) > sleeps_before;
    let_all(look);
    cr_expect(lease_await_rest(&rig));
    close_all(&rig);
    return slept;
}

Test(lease, guarantor_that_has_slept_long_sleeps_on_after_a_single_poll, .timeout = 30)
{
    cr_expect(sleeps_after(1));
    cr_expect_not(sleeps_after(2));
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
