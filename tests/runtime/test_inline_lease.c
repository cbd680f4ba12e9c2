/* test_inline_lease.c: the worker that polled runs several sources of its batch (WEIR_INLINE=1
 * under the lease): what it has not begun is anybody's while it hangs. The guarantor is held where
 * it would begin to look, so that it can be told who came to help. */
#include "support/lease.h"

#include "dispatch/inline.h"
#include "dispatch/lease.h"

#define CONNECTIONS_MAX 48

#ifdef WEIR_FAULTS

static struct connection connections[CONNECTIONS_MAX];
static _Atomic bool held;
static _Atomic unsigned stopped;

static void on_seam(enum wr_lease_seam seam, struct wr_poller *poller)
{
    (void)poller;
    if (seam != WR_LEASE_SEAM_LOOK || !atomic_load(&held))
        return;
    atomic_fetch_add(&stopped, 1);
    while (atomic_load(&held))
        rig_sleep_ms(1);
    atomic_fetch_sub(&stopped, 1);
}

static void open_with(struct rig *rig, unsigned workers, unsigned workers_max, unsigned count)
{
    weir_options options = WEIR_OPTIONS_INIT;

    wr_lease_seam_hook = on_seam;
    options.pollers = 1;
    options.workers = workers;
    options.workers_max = workers_max;
    options.poll = WEIR_POLL_LEASE;
    options.backend = WEIR_BACKEND_EPOLL;
    options.dispatch = WEIR_DISPATCH_PUMP;
    options.inline_callbacks = WEIR_INLINE_ON;
    rig_open_with(rig, &options);
    for (unsigned i = 0; i < count; i++)
        connection_open(rig, &connections[i]);
}

static unsigned heard_of(unsigned first, unsigned count)
{
    unsigned heard = 0;

    for (unsigned i = first; i < first + count; i++)
        heard += atomic_load(&connections[i].heard);
    return heard;
}

/* One worker harvests all that is sent between these two: the guarantor, which sleeps, is woken
 * when the first callback comes, and stops. */
static void batch_begin(struct rig *rig)
{
    cr_assert(lease_await_rest(rig));
    atomic_store(&held, true);
    connection_hang(&connections[0], 'h');
    cr_assert(RIG_UNTIL(atomic_load(&stopped) == 1, 5000), "the guarantor does not look");
}

static void batch_come(void)
{
    connection_let_go(&connections[0]);
}

/* The first callback of the batch stays; the others have only been pushed. */
static void batch_with_first(struct rig *rig, char what, unsigned count)
{
    batch_begin(rig);
    atomic_store(&connections[1].let_go, false);
    connection_send(&connections[1], what);
    for (unsigned i = 2; i < 2 + count; i++)
        connection_send(&connections[i], 'x');
    batch_come();
    cr_assert(RIG_UNTIL(atomic_load(&connections[1].inside) == 1, 5000));
}

static void end(struct rig *rig)
{
    connection_let_go(&connections[1]);
    cr_expect(connection_heard(&connections[1], 1, 5000));
    atomic_store(&held, false);
    lease_close(rig);
}

Test(inline_lease, worker_keeps_up_to_its_budget_and_kicks_for_the_rest, .timeout = 60)
{
    struct rig rig;

    open_with(&rig, 1, 1, 41);
    batch_begin(&rig);
    uint64_t before = rig_stats(&rig).inline_turns;
    for (unsigned i = 1; i <= 40; i++)
        connection_send(&connections[i], 'x');
    batch_come();
    cr_expect(RIG_UNTIL(heard_of(1, 40) == 40, 5000), "%u of 40 heard", heard_of(1, 40));
    uint64_t run = rig_stats(&rig).inline_turns - before;
    cr_expect_geq(run, 2); /* the first is of the batch before */
    cr_expect_leq(run, 1 + WR_INLINE_MAX);
    atomic_store(&held, false);
    lease_close(&rig);
}

Test(inline_lease, guarantor_kicks_for_what_came_with_a_stuck_callback, .timeout = 60)
{
    struct rig rig;

    open_with(&rig, 1, 2, 9);
    batch_with_first(&rig, 'h', 7);
    rig_sleep_ms(20);
    cr_expect_eq(heard_of(2, 7), 0); /* the only worker hangs */
    atomic_store(&held, false);
    cr_expect(RIG_UNTIL(heard_of(2, 7) == 7, 5000), "%u of 7 heard", heard_of(2, 7));
    end(&rig);
}

Test(inline_lease, announced_block_kicks_for_what_came_with_it, .timeout = 60)
{
    struct rig rig;

    open_with(&rig, 1, 2, 9);
    batch_with_first(&rig, 'b', 7);
    cr_expect(RIG_UNTIL(heard_of(2, 7) == 7, 5000), "%u of 7 heard", heard_of(2, 7));
    end(&rig);
}

static void nothing(weir_work *work, void *context)
{
    (void)work;
    atomic_store((_Atomic bool *)context, true);
}

Test(inline_lease, next_holder_takes_what_is_there_before_it_waits, .timeout = 60)
{
    struct rig rig;
    weir_work work;
    _Atomic bool ran = false;

    open_with(&rig, 2, 2, 9);
    batch_with_first(&rig, 'h', 7);
    rig_sleep_ms(20);
    cr_expect_eq(heard_of(2, 7), 0); /* the second worker is parked */
    weir_work_init(&work, nothing, &ran);
    cr_assert_eq(weir_post(rig.runtime, &work), 0);
    cr_expect(RIG_UNTIL(heard_of(2, 7) == 7, 5000), "%u of 7 heard", heard_of(2, 7));
    end(&rig);
}

/* No kick: whoever is idle stays so. */
Test(inline_lease, small_batch_wakes_nobody, .timeout = 60)
{
    struct rig rig;

    open_with(&rig, 2, 2, 4);
    for (unsigned round = 1; round <= 20; round++) {
        cr_assert(lease_await_rest(&rig));
        weir_stats before = rig_stats(&rig);
        for (unsigned i = 0; i < 4; i++)
            connection_send(&connections[i], 'x');
        cr_assert(RIG_UNTIL(heard_of(0, 4) == 4 * round, 5000));
        weir_stats after = rig_stats(&rig);
        cr_expect_eq(after.kicks, before.kicks);
        cr_expect_eq(after.wakes, before.wakes);
    }
    lease_close(&rig);
}

#else

Test(inline_lease, everything)
{
    cr_skip_test("this build has no seam");
}

#endif
