/* test_lease_end.c: a whole runtime whose idle workers poll: at rest, woken from it, with several
 * pollers, and ended in each state of the lease. */
#include "support/lease.h"

#include <dirent.h>
#include <unistd.h>

#include "dispatch/dispatch.h"
#include "dispatch/lease.h"
#include "support/latency.h"
#include "support/stress.h"

#define CONNECTIONS_MAX 16
#define SOON_US (rig_patience(50) * 1000L)

static struct connection connections[CONNECTIONS_MAX];
static struct latency latency;

/* ---- at rest -------------------------------------------------------------------------------- */

/* Times the runtime's threads have gone to sleep. */
static uint64_t switches(void)
{
    DIR *tasks = opendir("/proc/self/task");
    uint64_t sum = 0;

    cr_assert_not_null(tasks);
    for (const struct dirent *task; (task = readdir(tasks));) {
        char path[300], line[256];
        unsigned long long count;
        if (task->d_name[0] == '.')
            continue;
        snprintf(path, sizeof path, "/proc/self/task/%s/status", task->d_name);
        FILE *status = fopen(path, "re");
        bool ours = false;
        while (status && fgets(line, sizeof line, status)) {
            ours = ours || strncmp(line, "Name:\tweir-", 11) == 0;
            if (ours && sscanf(line, "voluntary_ctxt_switches: %llu", &count) == 1)
                sum += count;
        }
        if (status)
            fclose(status);
    }
    closedir(tasks);
    return sum;
}

static void rests(unsigned pollers, unsigned workers)
{
    struct rig rig;

    lease_open(&rig, pollers, workers, 0);
    for (unsigned i = 0; i < 4; i++) {
        connection_open(&rig, &connections[i]);
        connection_send(&connections[i], 'x');
        cr_assert(connection_heard(&connections[i], 1, 5000));
    }
    cr_assert(lease_await_rest(&rig), "%u pollers, %u workers", pollers, workers);
    rig_sleep_ms(150); /* the last look for callbacks that do not return */
    weir_stats stats = rig_stats(&rig);
    uint64_t before = switches();
    cr_assert_gt(before, 0);
    rig_sleep_ms(300);
    cr_expect_eq(switches() - before, 0, "%u pollers, %u workers: %llu wake-ups", pollers, workers,
                 (unsigned long long)(switches() - before));
    cr_expect_eq(rig_stats(&rig).waits, stats.waits);
    cr_expect_eq(rig_stats(&rig).doorbells, stats.doorbells);
    lease_close(&rig);
}

Test(lease_end, idle_runtime_makes_no_system_call_and_is_not_woken, .timeout = 60)
{
    rests(1, 1);
    rests(1, 2);
    rests(1, 4);
    rests(2, 1);
    rests(2, 4);
    rests(4, 2);
}

static void note_time(weir_work *work, void *context)
{
    (void)work;
    atomic_store((_Atomic weir_time *)context, weir_now());
}

/* The only worker waits in the kernel. */
Test(lease_end, post_to_an_idle_runtime_rings_the_doorbell_of_the_only_worker, .timeout = 60)
{
    struct rig rig;
    weir_work work;

    lease_open(&rig, 1, 1, 0);
    atomic_store(&latency.count, 0);
    for (unsigned i = 0; i < 50; i++) {
        _Atomic weir_time ran = 0;
        cr_assert(lease_await_rest(&rig));
        uint64_t doorbells = rig_stats(&rig).doorbells;
        weir_work_init(&work, note_time, &ran);
        weir_time posted = weir_now();
        cr_assert_eq(weir_post(rig.runtime, &work), 0);
        cr_assert(RIG_UNTIL(atomic_load(&ran) != 0, 5000), "post %u waits", i);
        latency_add(&latency, atomic_load(&ran) - posted);
        cr_expect_eq(rig_stats(&rig).doorbells - doorbells, 1);
    }
    latency_sort(&latency, "post to an idle runtime");
    cr_expect_leq(latency_us(&latency, 950), SOON_US);
    lease_close(&rig);
}

/* A worker that sleeps is woken rather than the one that waits. */
Test(lease_end, post_beside_a_parked_worker_leaves_the_waiting_one_alone, .timeout = 60)
{
    struct rig rig;
    weir_work work;

    lease_open(&rig, 1, 2, 0);
    for (unsigned i = 0; i < 20; i++) {
        _Atomic weir_time ran = 0;
        cr_assert(lease_await_rest(&rig));
        uint64_t waits = rig_stats(&rig).waits;
        weir_work_init(&work, note_time, &ran);
        cr_assert_eq(weir_post(rig.runtime, &work), 0);
        cr_assert(RIG_UNTIL(atomic_load(&ran) != 0, 5000));
        cr_expect_eq(rig_stats(&rig).waits, waits);
    }
    lease_close(&rig);
}

/* ---- several pollers ------------------------------------------------------------------------ */

static unsigned heard_in_all(unsigned count)
{
    unsigned sum = 0;

    for (unsigned i = 0; i < count; i++)
        sum += atomic_load(&connections[i].heard);
    return sum;
}

static void traffic(unsigned pollers, unsigned workers)
{
    struct rig rig;
    struct support_random random = support_random(support_seed(), pollers * 10 + workers);
    unsigned sent = 0;

    lease_open(&rig, pollers, workers, 0);
    for (unsigned i = 0; i < CONNECTIONS_MAX; i++)
        connection_open(&rig, &connections[i]);
    for (int64_t end = rig_now_ms() + support_span_ms(400); rig_now_ms() < end;) {
        for (unsigned burst = support_below(&random, 2 * CONNECTIONS_MAX); burst > 0; burst--) {
            connection_send(&connections[support_below(&random, CONNECTIONS_MAX)], 'x');
            sent++;
        }
        if (support_below(&random, 4) == 0)
            cr_assert(RIG_UNTIL(heard_in_all(CONNECTIONS_MAX) == sent, 5000), "%u of %u heard",
                      heard_in_all(CONNECTIONS_MAX), sent);
        if (support_below(&random, 16) == 0)
            rig_sleep_ms((int)support_below(&random, 4));
    }
    cr_assert(RIG_UNTIL(heard_in_all(CONNECTIONS_MAX) == sent, 5000), "%u of %u heard",
              heard_in_all(CONNECTIONS_MAX), sent);
    cr_expect(lease_await_rest(&rig), "%u pollers, %u workers do not come to rest", pollers,
              workers);
    lease_close(&rig);
}

Test(lease_end, one_worker_serves_two_pollers, .timeout = 60)
{
    traffic(2, 1);
}

Test(lease_end, one_worker_serves_four_pollers, .timeout = 60)
{
    traffic(4, 1);
}

Test(lease_end, two_workers_serve_two_and_four_pollers, .timeout = 60)
{
    traffic(2, 2);
    traffic(4, 2);
}

Test(lease_end, four_workers_serve_two_and_four_pollers, .timeout = 60)
{
    traffic(2, 4);
    traffic(4, 4);
}

/* All workers hang, on connections of both pollers; those of the other connections are harvested
 * by guarantors and run when a worker comes back. */
Test(lease_end, events_of_all_pollers_run_when_one_worker_is_back, .timeout = 60)
{
    struct rig rig;

    lease_open(&rig, 2, 2, 0);
    for (unsigned i = 0; i < 8; i++)
        connection_open(&rig, &connections[i]);
    connection_hang(&connections[0], 'h');
    connection_hang(&connections[1], 'h');
    for (unsigned i = 2; i < 8; i++)
        connection_send(&connections[i], 'x');
    cr_expect(RIG_UNTIL(rig_stats(&rig).events >= 8, 2000), "not harvested");
    connection_let_go(&connections[0]);
    for (unsigned i = 2; i < 8; i++)
        cr_expect(connection_heard(&connections[i], 1, 2000), "connection %u", i);
    connection_let_go(&connections[1]);
    cr_expect(lease_await_rest(&rig));
    lease_close(&rig);
}

/* ---- the end -------------------------------------------------------------------------------- */

/* Lets callbacks go when destroy has been at it for a while. */
struct release {
    pthread_t thread;
    struct connection *connections;
    unsigned count;
};

static void *let_go_later(void *context)
{
    struct release *release = context;

    rig_sleep_ms(20);
    for (unsigned i = 0; i < release->count; i++)
        connection_let_go(&release->connections[i]);
    return NULL;
}

static void end_with_stuck(struct rig *rig, unsigned stuck)
{
    struct release release = {.connections = connections, .count = stuck};

    cr_assert_eq(pthread_create(&release.thread, NULL, let_go_later, &release), 0);
    int64_t begin = rig_now_ms();
    weir_runtime_destroy(rig->runtime);
    rig->runtime = NULL;
    int64_t took = rig_now_ms() - begin;
    pthread_join(release.thread, NULL);
    cr_expect_leq(took, rig_patience(1000));
    lease_close(rig);
}

static void open_and_hang(struct rig *rig, unsigned pollers, unsigned workers, unsigned stuck)
{
    lease_open(rig, pollers, workers, 0);
    for (unsigned i = 0; i < 4; i++)
        connection_open(rig, &connections[i]);
    cr_assert(lease_await_rest(rig));
    for (unsigned i = 0; i < stuck; i++)
        connection_hang(&connections[i], 'h');
}

Test(lease_end, destroy_at_rest, .timeout = 60)
{
    struct rig rig;

    for (unsigned i = 0; i < 20; i++) {
        open_and_hang(&rig, 1 + i % 2, 1 + i % 3, 0);
        end_with_stuck(&rig, 0);
    }
}

Test(lease_end, destroy_right_after_the_start, .timeout = 60)
{
    struct rig rig;

    for (unsigned i = 0; i < 100; i++) {
        lease_open(&rig, 1 + i % 2, 1 + i % 3, 0);
        lease_close(&rig);
    }
}

Test(lease_end, destroy_while_the_lease_is_free, .timeout = 60)
{
    struct rig rig;

    for (unsigned i = 0; i < 10; i++) {
        open_and_hang(&rig, 1, 1, 1);
        end_with_stuck(&rig, 1);
    }
}

Test(lease_end, destroy_while_the_guarantor_polls, .timeout = 60)
{
    struct rig rig;

    for (unsigned i = 0; i < 5; i++) {
        open_and_hang(&rig, 1, 2, 2);
        cr_assert(lease_await(&rig, 0, WR_LEASE_GUARD));
        end_with_stuck(&rig, 2);
    }
}

Test(lease_end, destroy_while_one_worker_polls_and_another_is_stuck, .timeout = 60)
{
    struct rig rig;

    for (unsigned i = 0; i < 5; i++) {
        open_and_hang(&rig, 1, 2, 1);
        cr_assert(lease_await(&rig, 0, WR_LEASE_WAITING));
        end_with_stuck(&rig, 1);
    }
}

Test(lease_end, destroy_with_events_on_their_way, .timeout = 60)
{
    struct rig rig;

    for (unsigned round = 0; round < 30; round++) {
        open_and_hang(&rig, 1 + round % 2, 1 + round % 3, 0);
        for (unsigned i = 0; i < 4; i++)
            connection_send(&connections[i], 'x');
        end_with_stuck(&rig, 0);
    }
}

#ifdef WEIR_FAULTS
/* A guarantor that destroy finds at the place that the test names. */
static enum wr_lease_seam held_seam;
static _Atomic bool held, let_on;

static void hold_guarantor(enum wr_lease_seam seam, struct wr_poller *poller)
{
    (void)poller;
    if (seam != held_seam || atomic_load(&let_on))
        return;
    atomic_store(&held, true);
    while (!atomic_load(&let_on))
        rig_sleep_ms(1);
}

static void *let_on_later(void *context)
{
    rig_sleep_ms(20);
    atomic_store(&let_on, true);
    return context;
}

static void end_with_guarantor_at(enum wr_lease_seam seam, unsigned stuck)
{
    struct rig rig;
    pthread_t thread;

    wr_lease_seam_hook = hold_guarantor;
    held_seam = seam;
    atomic_store(&let_on, true);
    open_and_hang(&rig, 1, 1, 0);
    atomic_store(&held, false);
    atomic_store(&let_on, false);
    wr_guard_wake(&rig.runtime->pollers[0]);
    if (stuck)
        connection_hang(&connections[0], 'h');
    cr_assert(RIG_UNTIL(atomic_load(&held), 2000));
    connection_let_go(&connections[0]);
    cr_assert_eq(pthread_create(&thread, NULL, let_on_later, NULL), 0);
    int64_t begin = rig_now_ms();
    weir_runtime_destroy(rig.runtime);
    rig.runtime = NULL;
    cr_expect_leq(rig_now_ms() - begin, rig_patience(1000));
    pthread_join(thread, NULL);
    lease_close(&rig);
    wr_lease_seam_hook = NULL;
}

Test(lease_end, destroy_beside_a_guarantor_that_falls_asleep, .timeout = 60)
{
    end_with_guarantor_at(WR_LEASE_SEAM_BEFORE_SLEEP, 0);
    end_with_guarantor_at(WR_LEASE_SEAM_ASLEEP, 0);
}

Test(lease_end, destroy_beside_a_guarantor_that_takes_over, .timeout = 60)
{
    end_with_guarantor_at(WR_LEASE_SEAM_TAKING, 1);
    end_with_guarantor_at(WR_LEASE_SEAM_GUARD, 1);
}
#endif
