/* Datagrams: one a call, with its sender, empty ones too. */
#include <errno.h>
#include <unistd.h>

#include "net/net.h"
#include "rig_wait.h"

static weir_socket *datagram_open(struct rig *rig, const char *text, weir_address *ret_address)
{
    weir_socket *socket = NULL;
    int r = weir_datagram_open(rig->runtime, text, NULL, &socket);

    cr_assert_eq(r, 0, "weir_datagram_open: %d", r);
    cr_assert_eq(weir_socket_address(socket, ret_address), 0);
    return socket;
}

static void expect_same(const weir_address *one, const weir_address *other)
{
    char texts[2][WEIR_ADDRESS_TEXT_MAX];

    cr_assert_gt(weir_address_format(one, texts[0], sizeof texts[0]), 0);
    cr_assert_gt(weir_address_format(other, texts[1], sizeof texts[1]), 0);
    cr_assert_str_eq(texts[0], texts[1]);
}

Test(datagram, operations_keep_order_sender_and_bounds, .timeout = 30) /* (O3) */
{
    struct rig rig;
    struct rig_op ops[3];
    weir_address addresses[2], from[3];
    char buffers[3][8];

    rig_open(&rig, 2);
    weir_socket *receiver = datagram_open(&rig, "127.0.0.1:0", &addresses[0]);
    weir_socket *sender = datagram_open(&rig, "127.0.0.1:0", &addresses[1]);
    for (int i = 0; i < 3; i++) {
        rig_op_init(&ops[i]);
        cr_assert_eq(weir_recvfrom(receiver, &ops[i].op, buffers[i], sizeof buffers[i], &from[i],
                                   WEIR_NEVER),
                     -EINPROGRESS);
    }
    cr_assert_eq(weir_sendto_wait(sender, "one", 3, &addresses[0], WEIR_NEVER), 3);
    cr_assert_eq(weir_sendto_wait(sender, "", 0, &addresses[0], WEIR_NEVER), 0);
    cr_assert_eq(weir_sendto_wait(sender, "too long by far", 15, &addresses[0], WEIR_NEVER), 15);
    for (int i = 0; i < 3; i++) {
        cr_assert(rig_op_await(&ops[i], 5000));
        expect_same(&from[i], &addresses[1]);
        cr_assert_eq(from[i].length, addresses[1].length);
    }
    cr_assert_eq(ops[0].result, 3);
    cr_assert_arr_eq(buffers[0], "one", 3);
    cr_assert_eq(ops[1].result, 0, "an empty one is no end");
    cr_assert_eq(ops[2].result, 8, "cut");
    cr_assert_eq(weir_sendto_wait(sender, "x", 1, &addresses[0], WEIR_NEVER), 1);
    cr_assert_eq(weir_recvfrom_wait(receiver, buffers[0], 8, NULL, weir_after_ms(5000)), 1,
                 "what was cut is gone");
    cr_assert_eq(weir_shutdown(receiver), -ENOTCONN);
    int64_t before = rig_now_ms();
    cr_assert_eq(weir_close_wait(receiver), 0);
    cr_assert_eq(weir_close_wait(sender), 0);
    cr_assert_lt(rig_now_ms() - before, rig_patience(300), "it lingered");
    rig_close(&rig);
}

struct views {
    _Atomic unsigned count, wrong;
    weir_address sender;
};

static void on_view(weir_socket *socket, const weir_view *view, int status, void *context)
{
    struct views *views = context;
    weir_address from;
    char texts[2][WEIR_ADDRESS_TEXT_MAX];
    unsigned index = atomic_load(&views->count);

    bool good = status == 0 && view->length == index % 7 && weir_view_from(view, &from) == 0;
    for (size_t i = 0; good && i < view->length; i++)
        good = view->data[i] == (unsigned char)index;
    good = good && weir_address_format(&from, texts[0], sizeof texts[0]) > 0 &&
           weir_address_format(&views->sender, texts[1], sizeof texts[1]) > 0 &&
           strcmp(texts[0], texts[1]) == 0;
    if (!good)
        atomic_fetch_add(&views->wrong, 1);
    if (index == 150) { /* a pause in the middle of a burst */
        cr_assert_eq(weir_read_stop(socket), 0);
        cr_assert_eq(weir_read_start(socket, on_view, views), 0);
    }
    atomic_fetch_add(&views->count, 1);
}

Test(datagram, a_reader_gets_one_a_view_and_none_is_lost, .timeout = 30)
{
    enum { COUNT = 200 };
    struct rig rig;
    struct rig_busy busy;
    struct views views = {.count = 0};
    weir_address address;

    rig_open(&rig, 1);
    weir_socket *receiver = datagram_open(&rig, "[::1]:0", &address);
    weir_socket *sender = datagram_open(&rig, "[::1]:0", &views.sender);
    cr_assert_eq(weir_read_start(receiver, on_view, &views), 0);
    rig_busy_begin(&rig, &busy, 1); /* all are there before the first is read */
    for (unsigned i = 0; i < COUNT; i++) {
        char bytes[7];
        memset(bytes, (int)i, sizeof bytes);
        ssize_t r = weir_sendto_wait(sender, bytes, i % 7, &address, WEIR_NEVER);
        cr_assert_eq(r, i % 7);
    }
    rig_busy_end(&busy);
    cr_assert(RIG_UNTIL(atomic_load(&views.count) == COUNT, 5000), "%u came",
              atomic_load(&views.count));
    cr_assert_eq(atomic_load(&views.wrong), 0);
    rig_close(&rig);
}

static void expect_stream(weir_socket *socket, const weir_view *view, int status, void *context)
{
    weir_address from;

    (void)socket;
    if (status == 0 && view->length > 0)
        atomic_store((_Atomic int *)context, weir_view_from(view, &from));
}

Test(datagram, a_view_of_a_stream_has_no_sender, .timeout = 30)
{
    struct rig rig;
    _Atomic int result = 1;
    weir_socket *socket;

    rig_open(&rig, 1);
    int peer = rig_unix(&rig, NULL, &socket);
    cr_assert_eq(weir_read_start(socket, expect_stream, (void *)&result), 0);
    rig_peer_send(peer, "x", 1);
    cr_assert(RIG_UNTIL(atomic_load(&result) != 1, 5000));
    cr_assert_eq(atomic_load(&result), -ENOTCONN);
    close(peer);
    rig_close(&rig);
}

Test(datagram, what_cannot_be_sent_is_told, .timeout = 30)
{
    static char big[70000];
    struct rig rig;
    weir_address address;

    rig_open(&rig, 1);
    weir_socket *socket = datagram_open(&rig, "127.0.0.1:0", &address);
    cr_assert_eq(weir_sendto_wait(socket, big, sizeof big, &address, WEIR_NEVER), -EMSGSIZE);
    cr_assert_eq(weir_write(socket, "x", 1), -EDESTADDRREQ, "it has no peer");
    cr_assert_eq(weir_sendto_wait(socket, "x", 1, NULL, WEIR_NEVER), -EDESTADDRREQ);
    cr_assert_eq(weir_sendto_wait(socket, "x", 1, &address, WEIR_NEVER), 1, "it goes on");
    rig_close(&rig);
}

Test(datagram, one_that_is_connected_writes_and_reads, .timeout = 30)
{
    static char big[300000];
    struct rig rig;
    int fds[2];
    weir_socket *socket;
    char bytes[16];

    rig_open(&rig, 1);
    cr_assert_eq(socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, fds), 0);
    cr_assert_eq(weir_adopt(rig.runtime, fds[0], NULL, &socket), 0);
    cr_assert_eq(weir_write(socket, "hello", 5), 0);
    cr_assert_eq(recv(fds[1], bytes, sizeof bytes, 0), 5);
    cr_assert_eq(weir_write(socket, big, sizeof big), -EMSGSIZE);
    cr_assert_eq(send(fds[1], "abc", 3, MSG_NOSIGNAL), 3);
    cr_assert_eq(weir_recv_wait(socket, bytes, sizeof bytes, weir_after_ms(5000)), 3);
    close(fds[1]);
    rig_close(&rig);
}
