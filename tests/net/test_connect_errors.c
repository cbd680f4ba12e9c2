/* Connecting to who does not answer: what was given up is gone, and is heard of once. */
#include <errno.h>
#include <unistd.h>

#include "net/net.h"
#include "support/rig.h"
#include "support/scarce.h"

enum { MANY = 200, ROUNDS = 5 };

static struct rig_op ops[MANY];
static weir_socket *sockets[MANY];

static void begin_all(struct rig *rig, const char *address, int64_t first_ms, int64_t step_us)
{
    for (int i = 0; i < MANY; i++) {
        rig_op_init(&ops[i]);
        sockets[i] = NULL;
        weir_time deadline = weir_now() + first_ms * 1000000 + i * step_us * 1000;
        int r = weir_connect(rig->runtime, address, NULL, &ops[i].op, &sockets[i], deadline);
        cr_assert_eq(r, -EINPROGRESS, "connect: %d", r);
    }
}

static void await_all(int milliseconds)
{
    for (int i = 0; i < MANY; i++)
        cr_assert(rig_op_await(&ops[i], milliseconds), "connect %d does not end", i);
}

/* (N04) */
Test(connect_errors, a_thousand_given_up_leave_no_descriptor, .timeout = 120)
{
    struct rig rig;
    struct blackhole hole;

    blackhole_open(&hole);
    rig_open(&rig, 2);
    int before = support_count_fds();
    for (int round = 0; round < ROUNDS; round++) {
        begin_all(&rig, hole.address, 100, 0);
        if (round % 2) /* some are cancelled before */
            for (int i = 0; i < MANY; i += 2)
                weir_cancel(&ops[i].op);
        await_all(rig_patience(5000));
        for (int i = 0; i < MANY; i++) {
            ssize_t r = ops[i].result;
            cr_expect_eq(r, round % 2 && i % 2 == 0 ? -ECANCELED : -ETIMEDOUT, "%zd", r);
            cr_expect_null(sockets[i]);
        }
        cr_expect(RIG_UNTIL(rig_stats(&rig).sources == 0, rig_patience(3000)), "%u sources",
                  (unsigned)rig_stats(&rig).sources);
        cr_expect_eq(support_count_fds(), before);
    }
    weir_socket *none = NULL;
    for (int i = 0; i < 20; i++)
        cr_expect_eq(
            weir_connect_wait(rig.runtime, hole.address, NULL, &none, weir_after_ms(5)),
            -ETIMEDOUT);
    cr_expect(RIG_UNTIL(support_count_fds() == before, rig_patience(3000)));
    cr_expect_null(none);
    rig_close(&rig);
    blackhole_close(&hole);
}

/* (N05) The kernel tries again after a second, and is refused then: around that moment the
 * deadlines pass. */
Test(connect_errors, an_error_of_the_kernel_that_comes_late_is_not_a_second_end, .timeout = 60)
{
    struct rig rig;
    struct blackhole hole;
    unsigned refused = 0, timed_out = 0;

    rig_open(&rig, 2);
    blackhole_open(&hole);
    begin_all(&rig, hole.address, 900, 1500); /* 0.9 s to 1.2 s */
    blackhole_close(&hole);
    await_all(rig_patience(5000));
    rig_sleep_ms(1500); /* the kernel's next try */
    for (int i = 0; i < MANY; i++) {
        cr_expect_eq(atomic_load(&ops[i].ended), 1, "connect %d ended %u times", i,
                     atomic_load(&ops[i].ended));
        refused += ops[i].result == -ECONNREFUSED || ops[i].result == -ECONNRESET;
        timed_out += ops[i].result == -ETIMEDOUT;
    }
    cr_log_info("%u refused, %u timed out", refused, timed_out);
    cr_expect_eq(refused + timed_out, MANY);
    cr_expect_gt(timed_out, 0);
    cr_expect_eq(rig_stats(&rig).sources, 0);
    rig_close(&rig);
}

/* (N06) */
Test(connect_errors, the_end_of_the_runtime_waits_for_no_peer, .timeout = 60)
{
    struct rig rig;
    struct blackhole hole;

    blackhole_open(&hole);
    rig_open(&rig, 2);
    begin_all(&rig, hole.address, 3600000, 0);
    int64_t start = rig_now_ms();
    int r = weir_runtime_drain(rig.runtime, weir_after_ms(50));
    cr_expect_eq(r, -ETIME, "%d", r);
    weir_runtime_destroy(rig.runtime);
    rig.runtime = NULL;
    cr_expect_lt(rig_now_ms() - start, rig_patience(1000));
    for (int i = 0; i < MANY; i++)
        cr_expect(atomic_load(&ops[i].ended) == 1 && ops[i].result == -ECANCELED);
    rig_close(&rig);
    blackhole_close(&hole);
}

Test(connect_errors, what_cannot_be_reached_is_told, .timeout = 30)
{
    struct rig rig;
    weir_socket *socket = NULL;
    static const struct {
        const char *address;
        int wanted;
    } cases[] = {
        {"unix:/nowhere/at/all", -ENOENT}, {"unix:@weir-nobody", -ECONNREFUSED},
        {"255.255.255.255:1", -ENETUNREACH}, {"127.0.0.1:1", -ECONNREFUSED},
        {"127.0.0.1", -EINVAL},            {"no.such.name:80", -EINVAL},
    };

    rig_open(&rig, 1);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int r = weir_connect_wait(rig.runtime, cases[i].address, NULL, &socket,
                                  weir_after_ms(2000));
        if (cases[i].wanted == -ENETUNREACH) /* or EACCES, as the routes are */
            cr_expect_lt(r, 0);
        else
            cr_expect_eq(r, cases[i].wanted, "%s: %d", cases[i].address, r);
        cr_expect_null(socket);
    }
    cr_expect(RIG_UNTIL(rig_stats(&rig).sources == 0, 2000));
    rig_close(&rig);
}
