/* receive_close.c: completion mode: what is armed when it ends, and rings that are too small or
 * lose something. */
#include <errno.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include "os/clock.h"
#include "os/fault.h"
#include "poll/backends.h"
#include "receive.h"
#include "support/stress.h"

#define MS ((weir_time)1000000)

/* ---- cancel and close (U12) ------------------------------------------------------------------ */

/* Bytes are on their way when the stream is detached: the receive may have them or not. */
Test(receive, bytes_that_race_a_detach_leave_no_buffer_behind, .timeout = 60)
{
    enum { TOGETHER = 8 };
    static struct rig rig;
    static struct stream streams[TOGETHER];
    struct support_random random = support_random(support_seed(), 1);
    unsigned rounds = support_rounds(500);

    receive_open(&rig, 16, 0, 0);
    for (unsigned round = 0; round < rounds; round++) {
        for (unsigned i = 0; i < TOGETHER; i++)
            stream_open(&streams[i], &rig, round * TOGETHER + i);
        if (support_below(&random, 2))
            rig_look(&rig);
        for (unsigned i = 0; i < TOGETHER; i++) {
            stream_send(&streams[i], 1 + support_below(&random, 20000));
            /* One event: completions of the others stay in the queue. */
            if (support_below(&random, 3) == 0)
                cr_assert_geq(rig.ops->wait(rig.backend, rig.events, 1, 0), 0);
            if (support_below(&random, 3) == 0)
                stream_read_all(&streams[i]);
            if (support_below(&random, 3) == 0)
                rig_finish(&rig, streams[i].fd);
            cr_assert_eq(rig_detach(&rig, streams[i].fd, streams[i].token), 0);
        }
        for (unsigned i = 0; i < TOGETHER; i++)
            rig_close_end(&rig, streams[i].fd);
        for (int looks = 0; looks < 50 && receive_stats(&rig).out > 0; looks++)
            rig_look(&rig);
        cr_assert_eq(receive_stats(&rig).out, 0, "round %u: %u are out", round,
                     (unsigned)receive_stats(&rig).out);
    }
    receive_close(&rig);
}

/* Streams that are received from, starved, unread, to be resumed, to be cancelled. */
Test(receive, a_ring_is_closed_with_everything_armed, .timeout = 30)
{
    enum { MANY = 64 };
    static struct rig rig;
    static struct stream streams[MANY];

    for (int round = 0; round < 10; round++) {
        receive_open(&rig, 16, 0, 0);
        for (unsigned i = 0; i < MANY; i++)
            stream_open(&streams[i], &rig, i);
        rig_look(&rig);
        for (unsigned i = 0; i < MANY; i++) {
            stream_send(&streams[i], i * 300);
            if (i % 8 == 0)
                rig_look(&rig);
            if (i % 4 == 0)
                stream_read_all(&streams[i]);
            if (i % 16 == 3)
                cr_assert_eq(rig_detach(&rig, streams[i].fd, i), 0);
        }
        rig.ops->close(rig.backend);
        cr_assert_eq(rig.alloc.bytes, 0, "%zu bytes were not given back", rig.alloc.bytes);
        for (unsigned i = 0; i < MANY; i++)
            rig_close_end(&rig, streams[i].fd);
    }
}

/* ---- numbers used again (F03, U12) ----------------------------------------------------------- */

static struct {
    struct rig rig;
    _Atomic uint64_t released; /* the token detached last */
    _Atomic bool done;
} reuse;

/* Reads what came, if something has, and closes: it must be its own. */
static void use_once(uint64_t token)
{
    struct wr_inbound *inbound = NULL;
    struct wr_buffer *buffer;
    uint64_t got = token;
    int pair[2], result;

    cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair), 0);
    cr_assert_eq(reuse.rig.ops->attach_receive(reuse.rig.backend, pair[0], token, WR_POLL_RECEIVE,
                                               &inbound), 0);
    cr_assert_eq(send(pair[1], &token, sizeof token, MSG_NOSIGNAL), (ssize_t)sizeof token);
    for (int looks = 0; token % 4 == 0 && looks < 10000 && wr_inbound_empty(inbound); looks++)
        sched_yield();
    if (wr_inbound_take(inbound, &buffer, &result) == WR_INBOUND_BUFFER) {
        memcpy(&got, buffer->data, sizeof got);
        reuse.rig.ops->give(reuse.rig.backend, buffer);
    }
    cr_assert_eq(got, token, "a stranger's bytes");
    cr_assert_eq(rig_detach(&reuse.rig, pair[0], token), 0);
    atomic_store(&reuse.released, token);
    close(pair[0]);
    close(pair[1]);
}

static void *use_a_number_again(void *unused)
{
    uint64_t rounds = support_rounds(100000);

    (void)unused;
    for (uint64_t token = 1; token <= rounds; token++)
        use_once(token);
    atomic_store(&reuse.done, true);
    reuse.rig.ops->doorbell(reuse.rig.backend);
    return NULL;
}

Test(receive, bytes_never_reach_the_next_user_of_a_number, .timeout = 110)
{
    pthread_t thread;

    receive_open(&reuse.rig, 16, 0, 0);
    rig_look(&reuse.rig);
    cr_assert_eq(pthread_create(&thread, NULL, use_a_number_again, NULL), 0);
    while (!atomic_load(&reuse.done)) {
        uint64_t released = atomic_load(&reuse.released);
        int count =
            reuse.rig.ops->wait(reuse.rig.backend, reuse.rig.events, RIG_BATCH, WEIR_NEVER);
        cr_assert_geq(count, 0);
        for (int i = 0; i < count; i++)
            cr_assert_gt(reuse.rig.events[i].token, released, "detached before the wait began");
    }
    pthread_join(thread, NULL);
    receive_close(&reuse.rig);
}

#ifdef WEIR_FAULTS

/* ---- small rings (U05) ----------------------------------------------------------------------- */

/* Rings with one entry, of which completions overflow at every turn. */
static uint64_t read_through(unsigned entries, unsigned flags_fewer)
{
    enum { MANY = 300, EACH = 3 };
    static struct rig rig;
    static struct stream streams[MANY];

    receive_open(&rig, 512, entries, flags_fewer);
    for (unsigned i = 0; i < MANY; i++)
        stream_open(&streams[i], &rig, i);
    for (int round = 0; round < EACH; round++) {
        weir_time limit = wr_clock_now() + 10000 * MS;
        uint64_t total = 0, all = 0;
        for (unsigned i = 0; i < MANY; i++)
            cr_assert_eq(stream_send(&streams[i], 100 + i), 100 + i);
        for (unsigned i = 0; i < MANY; i++)
            all += 100 + i;
        while (total < all && wr_clock_now() < limit) {
            int count = rig.ops->wait(rig.backend, rig.events, 16, limit);
            cr_assert_geq(count, 0, "%d", count);
            for (int i = 0; i < count; i++)
                total += stream_read_all(&streams[rig.events[i].token]);
        }
        cr_assert_eq(total, all, "round %d: %u of %u bytes have come", round, (unsigned)total,
                     (unsigned)all);
    }
    uint64_t overflows = atomic_load(&rig.backend->overflows);
    for (unsigned i = 0; i < MANY; i++)
        stream_close(&streams[i]);
    for (int looks = 0; looks < 50 && receive_stats(&rig).out > 0; looks++)
        rig_look(&rig);
    receive_close(&rig);
    return overflows;
}

Test(receive, a_ring_of_one_entry_loses_nothing, .timeout = 60)
{
    (void)read_through(1, 0);
}

Test(receive, a_completion_queue_that_overflows_loses_nothing, .timeout = 60)
{
    (void)read_through(2, 0);
    cr_assert_gt(read_through(1, 2), 0, "it never overflowed: the test proves nothing");
}

/* ---- a kernel that lacks it, or loses -------------------------------------------------------- */

static struct {
    enum wr_fault_call call;
    int error;
    unsigned times;
} plan;

static int planned(enum wr_fault_call call)
{
    if (call != plan.call || plan.times == 0)
        return 0;
    plan.times--;
    return plan.error;
}

Test(receive, a_kernel_without_rings_of_buffers_says_so, .timeout = 30)
{
    static struct rig rig;
    const struct wr_poll_ops *ops = rig_uring();
    char why[256] = "asked for";

    rig_open(&rig, ops);
    plan.call = WR_FAULT_URING_BUFFERS;
    plan.error = EINVAL;
    plan.times = 1;
    wr_fault_hook = planned;
    cr_assert_eq(ops->provide(rig.backend, 4), -ENOSYS);
    plan.times = 1;
    cr_assert_not(wr_backend_receives(ops, why));
    cr_assert_not_null(strstr(why, "asked for; recv: readiness"), "%s", why);
    rig_close(&rig);
}

/* The completion that ends a receive is lost, with a buffer: nobody can say what was in it. The
 * stream ends with an error, the other one goes on, and the buffer is back. */
Test(receive, a_stream_that_lost_its_last_completion_ends_with_an_error, .timeout = 30)
{
    static struct rig rig;
    struct stream stream, other;
    struct wr_buffer *kept[4];

    receive_open(&rig, 4, 0, 0);
    stream_open(&stream, &rig, 7);
    rig_bits(&rig, 7, NULL);
    stream_send(&stream, 100);
    rig_break(&rig, stream.fd);
    plan.call = WR_FAULT_URING_COMPLETION;
    plan.error = 1;
    plan.times = 100;
    wr_fault_hook = planned;
    for (int i = 0; i < 5; i++)
        cr_assert_eq(rig_look(&rig), 0);
    cr_assert_lt(plan.times, 100, "nothing was lost: the test proves nothing");
    plan.times = 0;
    stream_open(&other, &rig, 8);
    rig_look(&rig);
    plan.call = WR_FAULT_URING_ENTER;
    plan.error = EBADR;
    plan.times = 1;
    cr_assert(rig_await(&rig, 7) & WR_POLL_IN, "nobody is told");
    stream_read_all(&stream);
    cr_assert_eq(stream.result, -EIO, "%d", stream.result);
    wr_fault_hook = NULL;
    stream_read_all(&other); /* its receive was cancelled, too: the right goes back */
    rig_look(&rig);
    for (int i = 0; i < 4; i++) {
        stream_send(&other, 10);
        cr_assert(rig_await(&rig, 8) & WR_POLL_IN);
        kept[i] = NULL;
        cr_assert_eq(stream_read(&other, SIZE_MAX, &kept[i]), 10);
        cr_assert_not_null(kept[i], "buffer %d of 4 has leaked", i);
    }
    for (int i = 0; i < 4; i++)
        rig.ops->give(rig.backend, kept[i]);
    stream_close(&stream);
    stream_close(&other);
    receive_close(&rig);
}

#endif
