/* receive.c: completion mode at the back end's own face: order, back-pressure, ends, cancels, and
 * that every buffer comes back. */
#include "receive.h"

#include <errno.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include "os/clock.h"
#include "os/fault.h"
#include "support/stress.h"

#define MS ((weir_time)1000000)

static void look_until(struct stream *stream, uint64_t received)
{
    weir_time limit = wr_clock_now() + 5000 * MS;

    while (stream->received < received) {
        cr_assert_lt(wr_clock_now(), limit, "stream %u: %u of %u bytes have come",
                     (unsigned)stream->token, (unsigned)stream->received, (unsigned)received);
        if (stream_read_all(stream) == 0)
            rig_look(stream->rig);
    }
}

static int look_until_end(struct stream *stream)
{
    weir_time limit = wr_clock_now() + 2000 * MS;

    while (stream->result == WR_INBOUND_NOTHING && wr_clock_now() < limit) {
        stream_read_all(stream);
        rig_look(stream->rig);
    }
    return stream->result;
}

/* ---- bytes --------------------------------------------------------------------------------- */

Test(receive, bytes_come_in_the_kernels_own_buffers, .timeout = 30)
{
    static struct rig rig;
    struct stream stream;
    struct wr_buffer *first = NULL, *second = NULL;

    receive_open(&rig, 4, 0, 0);
    stream_open(&stream, &rig, 7);
    rig_look(&rig);
    stream_send(&stream, 10);
    cr_assert(rig_await(&rig, 7) & WR_POLL_IN);
    stream_send(&stream, 20);
    cr_assert(rig_await(&rig, 7) & WR_POLL_IN);
    cr_assert_eq(receive_stats(&rig).out, 2);
    cr_assert_eq(stream_read(&stream, SIZE_MAX, &first), 10);
    cr_assert_eq(stream_read(&stream, 5, &second), 5, "a part of it");
    cr_assert_null(second);
    cr_assert_eq(stream_read(&stream, SIZE_MAX, &second), 15, "and the rest");
    cr_assert_eq(stream_read(&stream, SIZE_MAX, NULL), 0);
    cr_assert_eq(receive_stats(&rig).rearmed, 1, "one receive for all");
    rig.ops->give(rig.backend, first);
    rig.ops->give(rig.backend, second);
    stream_close(&stream);
    receive_close(&rig);
}

Test(receive, without_buffers_a_stream_is_watched_edge_by_edge, .timeout = 30)
{
    static struct rig rig;
    struct wr_inbound *inbound = NULL;

    rig_open(&rig, rig_uring());
    int fd = rig_end(&rig);
    cr_assert_eq(rig.ops->attach_receive(rig.backend, fd, 7, WR_POLL_RECEIVE, &inbound), 0);
    cr_assert_null(inbound);
    rig_bits(&rig, 7, NULL);
    rig_feed(&rig, fd);
    cr_assert_eq(rig_bits(&rig, 7, NULL) & WR_POLL_IN, WR_POLL_IN);
    cr_assert_eq(rig_detach(&rig, fd, 7), 0);
    rig_look(&rig);
    rig_close_end(&rig, fd);
    rig_close(&rig);
}

/* What is sent while a stream is not received from waits in the socket (WR_POLL_RECEIVE_LATER). */
Test(receive, a_stream_that_is_to_wait_is_received_from_when_it_is_resumed, .timeout = 30)
{
    static struct rig rig;
    struct stream stream;

    receive_open(&rig, 4, 0, 0);
    memset(&stream, 0, sizeof stream);
    stream.rig = &rig;
    stream.token = 7;
    stream.result = WR_INBOUND_NOTHING;
    stream.fd = rig_end(&rig);
    cr_assert_eq(rig.ops->attach_receive(rig.backend, stream.fd, 7, WR_POLL_RECEIVE_LATER,
                                         &stream.inbound), 0);
    stream_send(&stream, 100);
    cr_assert_eq(rig_bits(&rig, 7, NULL), WR_POLL_OUT);
    rig.ops->resume(rig.backend, stream.inbound);
    cr_assert(rig_await(&rig, 7) & WR_POLL_IN);
    cr_assert_eq(stream_read_all(&stream), 100);
    stream_close(&stream);
    receive_close(&rig);
}

/* A reader at random: how much it takes, how long it keeps a buffer, when the owner looks. */
static uint64_t read_at_random(unsigned buffers, uint64_t total)
{
    enum { KEPT = 8 };
    static struct rig rig;
    struct stream stream;
    struct wr_buffer *kept[KEPT] = {NULL};
    struct support_random random = support_random(support_seed(), buffers);
    weir_time limit = wr_clock_now() + 20000 * MS;

    receive_open(&rig, buffers, 0, 0);
    stream_open(&stream, &rig, buffers);
    while (stream.received < total) {
        cr_assert_lt(wr_clock_now(), limit, "%u buffers: it stands still at %u", buffers,
                     (unsigned)stream.received);
        uint32_t what = support_below(&random, 4), place = support_below(&random, KEPT);
        if (what == 0)
            stream_send(&stream, 1 + support_below(&random, 20000));
        else if (what == 1)
            rig_look(&rig);
        else if (!kept[place])
            stream_read(&stream, 1 + support_below(&random, 6000), &kept[place]);
        if (what == 3 && kept[place]) {
            rig.ops->give(rig.backend, kept[place]);
            kept[place] = NULL;
        }
    }
    for (unsigned i = 0; i < KEPT; i++)
        if (kept[i])
            rig.ops->give(rig.backend, kept[i]);
    uint64_t starved = receive_stats(&rig).starved;
    stream_close(&stream);
    receive_close(&rig);
    return starved;
}

/* (U06) */
Test(receive, order_is_kept_with_few_buffers_and_many, .timeout = 120)
{
    uint64_t starved = 0;

    for (unsigned buffers = 1; buffers <= 64; buffers *= 2)
        starved += read_at_random(buffers, 4000 * (uint64_t)support_rounds(100));
    cr_assert_gt(starved, 0, "a buffer was always there: the test proves nothing");
}

/* ---- back-pressure ------------------------------------------------------------------------- */

/* (U07) Some are flooded and nobody reads them; the others must not notice. */
Test(receive, streams_that_nobody_reads_leave_the_others_their_turn, .timeout = 60)
{
    enum { PAUSED = 4, BUSY = 8, BUFFERS = 512, MOST = 64 + 40 };
    static struct rig rig;
    static struct stream paused[PAUSED], busy[BUSY];

    receive_open(&rig, BUFFERS, 0, 0);
    for (unsigned i = 0; i < PAUSED; i++)
        stream_open(&paused[i], &rig, i);
    for (unsigned i = 0; i < BUSY; i++)
        stream_open(&busy[i], &rig, 100 + i);
    for (int round = 0; round < 300; round++) {
        for (unsigned i = 0; i < PAUSED; i++)
            stream_send(&paused[i], 1000);
        rig_look(&rig);
    }
    for (unsigned i = 0; i < PAUSED; i++)
        cr_expect_leq(wr_inbound_unread(paused[i].inbound), MOST);
    cr_expect_eq(receive_stats(&rig).starved, 0);
    for (int round = 0; round < 50; round++) {
        for (unsigned i = 0; i < BUSY; i++)
            cr_assert_eq(stream_send(&busy[i], 700), 700);
        for (unsigned i = 0; i < BUSY; i++)
            look_until(&busy[i], busy[i].sent);
    }
    for (unsigned i = 0; i < PAUSED; i++) {
        look_until(&paused[i], paused[i].sent);
        stream_close(&paused[i]);
    }
    for (unsigned i = 0; i < BUSY; i++)
        stream_close(&busy[i]);
    receive_close(&rig);
}

/* One buffer would be enough for none of them, were it waited for. */
Test(receive, one_buffer_that_never_comes_back_stops_nobody, .timeout = 60)
{
    enum { MANY = 16 };
    static struct rig rig;
    static struct stream streams[MANY];
    struct wr_buffer *hostage = NULL;

    receive_open(&rig, 1, 0, 0);
    for (unsigned i = 0; i < MANY; i++)
        stream_open(&streams[i], &rig, i);
    rig_look(&rig);
    stream_send(&streams[0], 10);
    cr_assert(rig_await(&rig, 0) & WR_POLL_IN);
    cr_assert_eq(stream_read(&streams[0], SIZE_MAX, &hostage), 10);
    cr_assert_not_null(hostage);
    for (int round = 0; round < 30; round++)
        for (unsigned i = 0; i < MANY; i++) {
            cr_assert_eq(stream_send(&streams[i], 3000), 3000);
            look_until(&streams[i], streams[i].sent);
        }
    cr_assert_gt(receive_stats(&rig).starved, 0);
    rig.ops->give(rig.backend, hostage);
    for (unsigned i = 0; i < MANY; i++)
        stream_close(&streams[i]);
    receive_close(&rig);
}

/* With buffers again a stream is received from again, and a starved one that is idle costs
 * nothing. */
Test(receive, receiving_goes_on_when_buffers_are_there_again, .timeout = 30)
{
    static struct rig rig;
    struct stream stream;
    struct wr_buffer *kept[2] = {NULL, NULL};

    receive_open(&rig, 2, 0, 0);
    stream_open(&stream, &rig, 7);
    rig_look(&rig);
    for (int i = 0; i < 2; i++) {
        stream_send(&stream, 10);
        cr_assert(rig_await(&rig, 7) & WR_POLL_IN);
        cr_assert_eq(stream_read(&stream, SIZE_MAX, &kept[i]), 10);
    }
    stream_send(&stream, 10);
    look_until(&stream, 30);
    stream_read_all(&stream); /* the right goes back; there is no buffer still */
    rig_look(&rig);
    uint64_t armed = receive_stats(&rig).rearmed;
    for (int i = 0; i < 20; i++)
        rig_look(&rig);
    cr_assert_eq(receive_stats(&rig).rearmed, armed, "armed again and again for nothing");
    for (int i = 0; i < 2; i++)
        rig.ops->give(rig.backend, kept[i]);
    stream_send(&stream, 10);
    look_until(&stream, 40);
    stream_read_all(&stream);
    rig_look(&rig);
    uint64_t over = receive_stats(&rig).handed_over;
    stream_send(&stream, 10);
    cr_assert(rig_await(&rig, 7) & WR_POLL_IN);
    cr_assert_eq(receive_stats(&rig).out, 1, "the ring receives");
    cr_assert_eq(stream_read_all(&stream), 10);
    cr_assert_eq(receive_stats(&rig).handed_over, over);
    stream_close(&stream);
    receive_close(&rig);
}

static struct {
    struct rig rig;
    struct wr_buffer *buffer;
} late;

static void *give_in_a_while(void *unused)
{
    (void)unused;
    nanosleep(&(struct timespec){.tv_nsec = 20 * MS}, NULL);
    late.rig.ops->give(late.rig.backend, late.buffer);
    return NULL;
}

Test(receive, who_gives_the_first_buffer_back_wakes_a_hungry_owner, .timeout = 30)
{
    struct stream stream;
    pthread_t thread;

    receive_open(&late.rig, 1, 0, 0);
    stream_open(&stream, &late.rig, 7);
    rig_look(&late.rig);
    stream_send(&stream, 10);
    cr_assert(rig_await(&late.rig, 7) & WR_POLL_IN);
    cr_assert_eq(stream_read(&stream, SIZE_MAX, &late.buffer), 10);
    while (rig_look(&late.rig) > 0)
        continue;
    weir_time limit = wr_clock_now() + 5000 * MS;
    cr_assert_eq(pthread_create(&thread, NULL, give_in_a_while, NULL), 0);
    cr_assert_eq(late.rig.ops->wait(late.rig.backend, late.rig.events, RIG_BATCH, limit), 0);
    cr_assert_lt(wr_clock_now(), limit, "it slept on");
    pthread_join(thread, NULL);
    stream_close(&stream);
    receive_close(&late.rig);
}

/* ---- ends ---------------------------------------------------------------------------------- */

/* A multishot receive that finds bytes and the end when it is armed, or is woken by both before it
 * runs, takes the bytes and sleeps on. */
Test(receive, an_end_that_comes_with_the_last_bytes_is_heard, .timeout = 60)
{
    static struct rig rig;
    unsigned rounds = support_rounds(40);

    receive_open(&rig, 8, 0, 0);
    for (unsigned round = 0; round < rounds; round++) {
        struct stream stream;
        stream_open(&stream, &rig, round);
        if (round & 1)
            rig_look(&rig); /* it is armed */
        stream_send(&stream, 1);
        if (round & 2)
            rig_break(&rig, stream.fd);
        else
            rig_finish(&rig, stream.fd);
        cr_assert_eq(look_until_end(&stream), 0, "round %u: %d", round, stream.result);
        cr_assert_eq(stream.received, 1);
        stream_close(&stream);
    }
    receive_close(&rig);
}

Test(receive, the_end_is_behind_the_bytes_that_nobody_had_read, .timeout = 30)
{
    static struct rig rig;
    struct stream stream;

    receive_open(&rig, 4, 0, 0);
    stream_open(&stream, &rig, 7);
    for (int i = 0; i < 20; i++) {
        stream_send(&stream, 3000);
        rig_look(&rig);
    }
    rig_finish(&rig, stream.fd);
    for (int i = 0; i < 5; i++)
        rig_look(&rig);
    cr_assert_eq(look_until_end(&stream), 0);
    cr_assert_eq(stream.received, 60000);
    stream_close(&stream);
    receive_close(&rig);
}
