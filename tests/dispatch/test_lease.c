/* test_lease.c: the hand-offs of the polling lease, one step at a time: a whole runtime whose
 * workers and guarantors are stopped where a race would be. */
#include "support/lease.h"

#include "dispatch/dispatch.h"
#include "dispatch/lease.h"
#include "work/pool_private.h"

#define ASLEEP 1u
#define CALLED 2u

/* ---- places where a thread waits to be let on ----------------------------------------------- */

struct gate {
    _Atomic int tickets;        /* threads that may pass; FREELY */
    _Atomic unsigned come, waiting;
};
#define FREELY INT32_MAX

static struct gate gates[WR_LEASE_SEAMS], parking;
static _Atomic unsigned looks[4]; /* by poller */

static void pass(struct gate *gate)
{
    atomic_fetch_add(&gate->come, 1);
    atomic_fetch_add(&gate->waiting, 1);
    for (;;) {
        int tickets = atomic_load(&gate->tickets);
        if (tickets == FREELY)
            break;
        if (tickets > 0 && atomic_compare_exchange_weak(&gate->tickets, &tickets, tickets - 1))
            break;
        nanosleep(&(struct timespec) {.tv_nsec = 50000}, NULL);
    }
    atomic_fetch_sub(&gate->waiting, 1);
}

static void on_seam(enum wr_lease_seam seam, struct wr_poller *poller)
{
    if (seam == WR_LEASE_SEAM_LOOK)
        atomic_fetch_add(&looks[poller->index], 1);
    pass(&gates[seam]);
}

static void on_pool_seam(enum wr_pool_seam seam)
{
    if (seam == WR_SEAM_BEFORE_PARK)
        pass(&parking);
}

static void hold(struct gate *gate)
{
    atomic_store(&gate->tickets, 0);
}

static void let_all(struct gate *gate)
{
    atomic_store(&gate->tickets, FREELY);
}

/* Returns when somebody waits there. */
static void await_somebody_at(struct gate *gate)
{
    cr_assert(RIG_UNTIL(atomic_load(&gate->waiting) > 0, rig_patience(2000)), "nobody has come");
}

static void let_one(struct gate *gate)
{
    await_somebody_at(gate);
    atomic_fetch_add(&gate->tickets, 1);
    cr_assert(RIG_UNTIL(atomic_load(&gate->tickets) == 0, rig_patience(2000)));
}

/* Lets the guarantor make one look, until it comes back for the next. */
static void one_look(void)
{
    struct gate *gate = &gates[WR_LEASE_SEAM_LOOK];
    unsigned come = atomic_load(&gate->come);

    let_one(gate);
    cr_assert(RIG_UNTIL(atomic_load(&gate->come) > come, rig_patience(2000)));
}

static void hook(void)
{
    for (unsigned i = 0; i < WR_LEASE_SEAMS; i++)
        let_all(&gates[i]);
    let_all(&parking);
    wr_lease_seam_hook = on_seam;
    wr_pool_seam_hook = on_pool_seam;
}

/* The guarantor of poller 0, wherever it is, comes to its next look and stays there. */
static void stop_guarantor(struct rig *rig)
{
    hold(&gates[WR_LEASE_SEAM_LOOK]);
    wr_guard_wake(&rig->runtime->pollers[0]);
    await_somebody_at(&gates[WR_LEASE_SEAM_LOOK]);
}

static uint32_t guard_word(struct rig *rig)
{
    return atomic_load(&rig->runtime->pollers[0].guard);
}

static void close_all(struct rig *rig)
{
    for (unsigned i = 0; i < WR_LEASE_SEAMS; i++)
        let_all(&gates[i]);
    let_all(&parking);
    lease_close(rig);
    wr_lease_seam_hook = NULL;
    wr_pool_seam_hook = NULL;
}

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

/* ---- leases that are not used --------------------------------------------------------------- */

static struct {
    struct rig *rig;
    weir_work works[2];
    _Atomic bool on;
    unsigned turn; /* the worker's alone */
} feed;

static void nothing(weir_work *work, void *context)
{
    (void)work;
    (void)context;
}

/* An item comes each time just when the worker has parked. */
static void feed_parking(enum wr_pool_seam seam)
{
    if (seam != WR_SEAM_PARK_PUBLISHED || !atomic_load(&feed.on))
        return;
    weir_work *work = &feed.works[feed.turn++ % 2];
    weir_work_init(work, nothing, NULL);
    cr_assert_eq(weir_post(feed.rig->runtime, work), 0);
}

Test(lease, worker_that_always_finds_an_item_when_it_parks_does_not_keep_others_from_polling,
     .timeout = 30)
{
    struct rig rig;
    static struct connection one;

    hook();
    wr_pool_seam_hook = feed_parking;
    lease_open(&rig, 1, 1, 0);
    feed.rig = &rig;
    connection_open(&rig, &one);
    cr_assert(lease_await_rest(&rig));
    atomic_store(&feed.on, true);
    connection_send(&one, 'x'); /* takes it out of the kernel */
    cr_assert(connection_heard(&one, 1, 2000));
    for (unsigned i = 2; i < 12; i++) {
        connection_send(&one, 'x');
        cr_assert(connection_heard(&one, i, 1000), "event %u waits while items run", i);
    }
    atomic_store(&feed.on, false);
    close_all(&rig);
}

/* ---- announced blocks ----------------------------------------------------------------------- */

Test(lease, announced_block_calls_the_guarantor_when_nobody_can_step_in, .timeout = 30)
{
    struct rig rig;
    static struct connection one;

    hook();
    lease_open(&rig, 1, 1, 0);
    connection_open(&rig, &one);
    cr_assert(lease_await_rest(&rig));
    stop_guarantor(&rig);
    connection_hang(&one, 'b');
    cr_expect(RIG_UNTIL(guard_word(&rig) == CALLED, 1000), "guard %u", guard_word(&rig));
    let_one(&gates[WR_LEASE_SEAM_LOOK]);
    cr_expect(lease_await(&rig, 0, WR_LEASE_GUARD), "one look is not enough");
    cr_expect_eq(guard_word(&rig), 0);
    connection_let_go(&one);
    close_all(&rig);
}

/* A request to watch comes between the call and the look. */
Test(lease, call_of_the_guarantor_outlives_other_wakes, .timeout = 30)
{
    struct rig rig;
    static struct connection one;

    hook();
    lease_open(&rig, 1, 1, 0);
    connection_open(&rig, &one);
    cr_assert(lease_await_rest(&rig));
    stop_guarantor(&rig);
    connection_hang(&one, 'b');
    cr_assert(RIG_UNTIL(guard_word(&rig) == CALLED, 1000));
    wr_dispatch_watch(rig.runtime);
    cr_expect_eq(guard_word(&rig), CALLED);
    connection_let_go(&one);
    close_all(&rig);
}

Test(lease, announced_block_wakes_a_parked_worker_and_not_the_guarantor, .timeout = 30)
{
    struct rig rig;
    static struct connection one;

    hook();
    lease_open(&rig, 1, 2, 0);
    connection_open(&rig, &one);
    cr_assert(lease_await_rest(&rig));
    stop_guarantor(&rig);
    connection_hang(&one, 'b');
    cr_expect(lease_await(&rig, 0, WR_LEASE_WAITING), "nobody has taken the lease");
    cr_expect_eq(guard_word(&rig), 0);
    connection_let_go(&one);
    close_all(&rig);
}

Test(lease, announced_block_starts_a_worker_who_polls, .timeout = 30)
{
    struct rig rig;
    static struct connection one;

    hook();
    lease_open(&rig, 1, 1, 2);
    connection_open(&rig, &one);
    cr_assert(lease_await_rest(&rig));
    stop_guarantor(&rig);
    connection_hang(&one, 'b');
    cr_expect(lease_await(&rig, 0, WR_LEASE_WAITING), "nobody has taken the lease");
    cr_expect_eq(guard_word(&rig), 0);
    connection_let_go(&one);
    close_all(&rig);
}

/* ---- the watch over the pool ---------------------------------------------------------------- */

/* Nobody is parked, and the guarantor is about to take the lease: no doorbell is rung for it. */
Test(lease, request_to_watch_beside_a_take_over_is_seen, .timeout = 30)
{
    struct rig rig;
    weir_work work;
    static struct connection one;
    _Atomic unsigned ran = 0;

    hook();
    lease_open(&rig, 1, 1, 2);
    connection_open(&rig, &one);
    cr_assert(lease_await_rest(&rig));
    hold(&gates[WR_LEASE_SEAM_TAKING]);
    connection_hang(&one, 'h');
    await_somebody_at(&gates[WR_LEASE_SEAM_TAKING]);
    weir_work_init(&work, nothing, &ran);
    cr_assert_eq(weir_post(rig.runtime, &work), 0);
    let_all(&gates[WR_LEASE_SEAM_TAKING]);
    cr_expect(RIG_UNTIL(rig_stats(&rig).compensations == 1, 2000), "nobody watches over the pool");
    connection_let_go(&one);
    close_all(&rig);
}

/* It polls already, without a deadline. */
Test(lease, request_to_watch_reaches_a_guarantor_that_polls, .timeout = 30)
{
    struct rig rig;
    weir_work work;
    static struct connection one;

    hook();
    lease_open(&rig, 1, 1, 2);
    connection_open(&rig, &one);
    cr_assert(lease_await_rest(&rig));
    connection_hang(&one, 'h');
    cr_assert(lease_await(&rig, 0, WR_LEASE_GUARD));
    rig_sleep_ms(5);
    weir_work_init(&work, nothing, NULL);
    cr_assert_eq(weir_post(rig.runtime, &work), 0);
    cr_expect(RIG_UNTIL(rig_stats(&rig).compensations == 1, 2000), "nobody watches over the pool");
    connection_let_go(&one);
    close_all(&rig);
}
