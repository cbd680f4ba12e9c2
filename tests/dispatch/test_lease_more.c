/* test_lease_more.c: the hand-offs of the polling lease, one step at a time: leases that are not
 * used, announced blocks, the watch over the pool. */
#include "lease_gates.h"

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

Test(lease_more, worker_that_always_finds_an_item_when_it_parks_does_not_keep_others_from_polling,
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

Test(lease_more, announced_block_calls_the_guarantor_when_nobody_can_step_in, .timeout = 30)
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
Test(lease_more, call_of_the_guarantor_outlives_other_wakes, .timeout = 30)
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

Test(lease_more, announced_block_wakes_a_parked_worker_and_not_the_guarantor, .timeout = 30)
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

Test(lease_more, announced_block_starts_a_worker_who_polls, .timeout = 30)
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
Test(lease_more, request_to_watch_beside_a_take_over_is_seen, .timeout = 30)
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
Test(lease_more, request_to_watch_reaches_a_guarantor_that_polls, .timeout = 30)
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
