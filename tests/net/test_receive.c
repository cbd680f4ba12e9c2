/* Completion mode through the public interface: views of the ring's own buffers, few buffers, slow
 * and paused readers, and no buffer lost. */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "net/net.h"
#include "support/rig.h"

#define BUFFER 4096

static unsigned char byte_at(size_t place)
{
    return (unsigned char)(place * 31 + place / 251);
}

static void skip_unless_available(const weir_options *options)
{
    weir_runtime *runtime;
    const char *why;

    if (weir_runtime_create(&runtime, options) < 0)
        cr_skip_test("no io_uring here");
    weir_runtime_backend(runtime, &why);
    bool available = strstr(why, "recv: completion") != NULL;
    weir_runtime_destroy(runtime);
    if (!available)
        cr_skip_test("no completion mode here");
}

static void open_receiving(struct rig *rig, unsigned workers, unsigned buffers)
{
    weir_options options = WEIR_OPTIONS_INIT;

    options.backend = WEIR_BACKEND_IO_URING;
    options.recv = WEIR_RECV_COMPLETION;
    options.recv_buffers = buffers;
    options.workers = options.workers_max = workers;
    skip_unless_available(&options);
    rig_open_with(rig, &options);
}

/* All buffers are with the kernel again: nothing has leaked. A bell lets the poller look. */
static void close_receiving(struct rig *rig)
{
    cr_assert(RIG_UNTIL(rig_stats(rig).sources == 0, 5000));
    wr_poller_doorbell(&rig->runtime->pollers[0]);
    cr_assert(RIG_UNTIL(rig_stats(rig).recv_buffers_out == 0, 2000), "%u buffers have leaked",
              (unsigned)rig_stats(rig).recv_buffers_out);
    rig_close(rig);
}

struct reader {
    _Atomic size_t received, calls;
    _Atomic bool ended, wrong;
    int slow_ms;
    unsigned keep;                  /* keeps the first views of so many calls */
    weir_kept *kept[8];
    const unsigned char *data[8];   /* where the first views were */
};

static void check(struct reader *reader, const weir_view *view, size_t place)
{
    for (size_t i = 0; i < view->length; i++)
        if (view->data[i] != byte_at(place + i))
            atomic_store(&reader->wrong, true);
}

static void on_read(weir_socket *socket, const weir_view *view, int status, void *context)
{
    struct reader *reader = context;
    size_t place = atomic_load(&reader->received), call = atomic_load(&reader->calls);

    (void)socket;
    check(reader, view, place);
    if (call < 8)
        reader->data[call] = view->data;
    if (call < reader->keep)
        reader->kept[call] = weir_view_keep(view);
    if (reader->slow_ms) {
        rig_sleep_ms(reader->slow_ms);
        check(reader, view, place); /* nobody else has the buffer meanwhile */
    }
    atomic_fetch_add(&reader->received, view->length);
    atomic_fetch_add(&reader->calls, 1);
    if (status != 0 || view->length == 0)
        atomic_store(&reader->ended, true);
}

static void send_bytes(int peer, size_t *sent, size_t count)
{
    unsigned char bytes[BUFFER];

    while (count > 0) {
        size_t part = count < sizeof bytes ? count : sizeof bytes;
        for (size_t i = 0; i < part; i++)
            bytes[i] = byte_at(*sent + i);
        rig_peer_send(peer, bytes, part);
        *sent += part;
        count -= part;
    }
}

static void close_one(struct rig *rig, weir_socket *socket, int peer)
{
    (void)rig;
    cr_assert_eq(weir_close(socket, NULL, NULL), 0);
    close(peer);
}

Test(receive, a_view_is_the_rings_own_buffer_and_is_given_back, .timeout = 30)
{
    struct reader reader = {.keep = 1};
    struct rig rig;
    weir_socket *socket;
    size_t sent = 0;

    open_receiving(&rig, 1, 2);
    int peer = rig_tcp(&rig, NULL, &socket);
    cr_assert_eq(weir_read_start(socket, on_read, &reader), 0);
    for (size_t call = 1; call <= 6; call++) {
        send_bytes(peer, &sent, 10);
        cr_assert(RIG_UNTIL(atomic_load(&reader.calls) == call, 5000));
        wr_poller_doorbell(&rig.runtime->pollers[0]); /* the buffer goes back at its next turn */
        cr_assert(RIG_UNTIL(rig_stats(&rig).recv_buffers_out == 0, 5000));
    }
    cr_expect_eq(rig_stats(&rig).recv_rearmed, 1, "one receive for all");
    cr_expect_eq(atomic_load(&reader.wrong), false);
    /* Two buffers, in turns: none was copied into memory of a worker's. */
    for (unsigned i = 2; i < 6; i++)
        cr_expect(reader.data[i] == reader.data[i - 2], "view %u", i);
    cr_expect(reader.data[0] != reader.data[1]);
    cr_assert_not_null(reader.kept[0]);
    for (size_t i = 0; i < reader.kept[0]->length; i++)
        cr_expect_eq(reader.kept[0]->data[i], byte_at(i), "what was kept has changed");
    weir_view_release(reader.kept[0]);
    close_one(&rig, socket, peer);
    close_receiving(&rig);
}

/* (U06) More is sent than there are buffers while nobody takes any; all comes, in order. */
Test(receive, a_slow_callback_gets_all_in_order, .timeout = 60)
{
    for (unsigned buffers = 1; buffers <= 16; buffers *= 4) {
        struct reader reader = {.slow_ms = 1};
        struct rig rig;
        weir_socket *socket;
        size_t sent = 0;

        open_receiving(&rig, 2, buffers);
        int peer = rig_tcp(&rig, NULL, &socket);
        cr_assert_eq(weir_read_start(socket, on_read, &reader), 0);
        for (int i = 0; i < 200; i++)
            send_bytes(peer, &sent, 1 + (size_t)i * 37 % 9000);
        shutdown(peer, SHUT_WR);
        cr_assert(RIG_UNTIL(atomic_load(&reader.ended), 20000), "%u of %u bytes have come",
                  (unsigned)atomic_load(&reader.received), (unsigned)sent);
        cr_expect_eq(atomic_load(&reader.received), sent);
        cr_expect_eq(atomic_load(&reader.wrong), false, "%u buffers: another order", buffers);
        close_one(&rig, socket, peer);
        close_receiving(&rig);
    }
}

/* (U07) Paused readers are flooded; the one that reads goes on, and later they get all. */
Test(receive, paused_readers_leave_the_others_their_turn, .timeout = 60)
{
    enum { PAUSED = 4 };
    static struct reader readers[PAUSED], busy;
    struct rig rig;
    weir_socket *sockets[PAUSED], *socket;
    int peers[PAUSED];
    size_t sent[PAUSED] = {0}, sent_busy = 0;

    open_receiving(&rig, 1, 16);
    for (int i = 0; i < PAUSED; i++) {
        peers[i] = rig_tcp(&rig, NULL, &sockets[i]);
        send_bytes(peers[i], &sent[i], 60000);
    }
    int peer = rig_tcp(&rig, NULL, &socket);
    cr_assert_eq(weir_read_start(socket, on_read, &busy), 0);
    for (int i = 0; i < 100; i++) {
        send_bytes(peer, &sent_busy, 500);
        cr_assert(RIG_UNTIL(atomic_load(&busy.received) == sent_busy, 5000), "round %d", i);
    }
    for (int i = 0; i < PAUSED; i++) {
        cr_assert_eq(weir_read_start(sockets[i], on_read, &readers[i]), 0);
        cr_assert(RIG_UNTIL(atomic_load(&readers[i].received) == sent[i], 5000));
        cr_expect_eq(atomic_load(&readers[i].wrong), false);
        close_one(&rig, sockets[i], peers[i]);
    }
    close_one(&rig, socket, peer);
    close_receiving(&rig);
}

/* Operations of odd lengths, waiting and not, and a reader after them: each byte once. */
Test(receive, operations_take_a_buffer_in_parts, .timeout = 30)
{
    static struct reader reader;
    struct rig rig;
    struct rig_op op;
    weir_socket *socket;
    unsigned char bytes[997];
    size_t sent = 0, received = 0;

    open_receiving(&rig, 1, 4);
    int peer = rig_tcp(&rig, NULL, &socket);
    send_bytes(peer, &sent, 30000);
    while (received < 20000) {
        ssize_t n = received % 2
                        ? weir_recv_wait(socket, bytes, 1 + received % 997, weir_after_ms(5000))
                        : -EINPROGRESS;
        if (n == -EINPROGRESS) {
            rig_op_init(&op);
            n = weir_recv(socket, &op.op, bytes, 1 + received % 997, weir_after_ms(5000));
        }
        if (n == -EINPROGRESS) {
            cr_assert(RIG_UNTIL(atomic_load(&op.ended) == 1, 6000));
            n = op.result;
        }
        cr_assert_gt(n, 0, "%zd", n);
        for (ssize_t i = 0; i < n; i++)
            cr_assert_eq(bytes[i], byte_at(received + (size_t)i));
        received += (size_t)n;
    }
    atomic_store(&reader.received, received);
    cr_assert_eq(weir_read_start(socket, on_read, &reader), 0);
    shutdown(peer, SHUT_WR);
    cr_assert(RIG_UNTIL(atomic_load(&reader.ended), 5000));
    cr_expect_eq(atomic_load(&reader.received), sent);
    cr_expect_eq(atomic_load(&reader.wrong), false);
    close_one(&rig, socket, peer);
    close_receiving(&rig);
}

/* What nobody has read when the runtime goes. */
Test(receive, destroy_with_unread_buffers_gives_all_back, .timeout = 30)
{
    enum { MANY = 32 };
    struct rig rig;
    weir_socket *socket;
    int peers[MANY];

    for (int round = 0; round < 5; round++) {
        open_receiving(&rig, 2, 8);
        for (int i = 0; i < MANY; i++) {
            size_t sent = 0;
            peers[i] = rig_unix(&rig, NULL, &socket);
            send_bytes(peers[i], &sent, 3000);
        }
        rig_sleep_ms(5 * round);
        weir_runtime_destroy(rig.runtime);
        rig.runtime = NULL;
        for (int i = 0; i < MANY; i++)
            close(peers[i]);
        rig_close(&rig);
    }
}
