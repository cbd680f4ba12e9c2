/* test_peer_closed.c: who does not read hears all the same that the peer has gone, and what the
 * peer sent before can still be read. (F14) */
#include "support/rig.h"

#include <errno.h>
#include <unistd.h>

struct ear {
    _Atomic unsigned told, drains, ends;
    _Atomic size_t bytes;
    _Atomic int status;
};

static void on_peer_closed(weir_socket *socket, void *context)
{
    struct ear *ear = context;

    (void)socket;
    atomic_fetch_add(&ear->told, 1);
}

static void on_drain(weir_socket *socket, int status, void *context)
{
    struct ear *ear = context;

    (void)socket;
    if (status == 0)
        atomic_fetch_add(&ear->drains, 1);
}

static void on_read(weir_socket *socket, const weir_view *view, int status, void *context)
{
    struct ear *ear = context;

    (void)socket;
    atomic_fetch_add(&ear->bytes, view->length);
    if (status < 0 || view->length == 0) {
        atomic_store(&ear->status, status);
        atomic_fetch_add(&ear->ends, 1);
    }
}

static bool told(struct ear *ear, unsigned times)
{
    return RIG_UNTIL(atomic_load(&ear->told) == times, 5000);
}

static void reset(int fd)
{
    struct linger now = {.l_onoff = 1};

    cr_assert_eq(setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now), 0);
    close(fd);
}

Test(peer_closed, told_while_nobody_reads_and_the_rest_is_read_later, .timeout = 30)
{
    struct rig rig;
    struct ear ear = {0};
    weir_socket *socket;

    rig_open(&rig, 2);
    int peer = rig_tcp(&rig, NULL, &socket);
    cr_assert_eq(weir_on_peer_closed(socket, on_peer_closed, &ear), 0);
    rig_peer_send(peer, "bye", 3);
    rig_sleep_ms(20);
    cr_expect_eq(atomic_load(&ear.told), 0, "bytes are not the end");
    shutdown(peer, SHUT_WR);
    cr_expect(told(&ear, 1), "not told");
    cr_expect_eq(weir_write(socket, "x", 1), 0, "the other way is open");
    char byte;
    rig_peer_receive(peer, &byte, 1);
    cr_assert_eq(weir_read_start(socket, on_read, &ear), 0);
    cr_expect(RIG_UNTIL(atomic_load(&ear.ends) == 1, 5000));
    cr_expect_eq(atomic_load(&ear.bytes), 3);
    cr_expect_eq(atomic_load(&ear.status), 0);
    rig_sleep_ms(5);
    cr_expect_eq(atomic_load(&ear.told), 1, "told again");
    close(peer);
    rig_close(&rig);
}

Test(peer_closed, told_of_a_reset_after_a_pause, .timeout = 30)
{
    struct rig rig;
    struct ear ear = {0};
    weir_socket *socket;

    rig_open(&rig, 2);
    int peer = rig_tcp(&rig, NULL, &socket);
    cr_assert_eq(weir_read_start(socket, on_read, &ear), 0);
    rig_peer_send(peer, "x", 1);
    cr_assert(RIG_UNTIL(atomic_load(&ear.bytes) == 1, 5000));
    cr_assert_eq(weir_read_stop(socket), 0);
    cr_assert_eq(weir_on_peer_closed(socket, on_peer_closed, &ear), 0);
    reset(peer);
    cr_expect(told(&ear, 1), "not told");
    cr_expect_eq(atomic_load(&ear.ends), 0, "reading is paused");
    cr_assert_eq(weir_read_start(socket, on_read, &ear), 0);
    cr_expect(RIG_UNTIL(atomic_load(&ear.ends) == 1, 5000));
    cr_expect_eq(atomic_load(&ear.status), -ECONNRESET);
    rig_close(&rig);
}

Test(peer_closed, told_at_once_when_the_peer_had_gone_before, .timeout = 30)
{
    struct rig rig;
    struct ear ear = {0};
    weir_socket *socket;

    rig_open(&rig, 2);
    int peer = rig_tcp(&rig, NULL, &socket);
    close(peer);
    cr_assert_eq(weir_read_start(socket, on_read, &ear), 0);
    cr_assert(RIG_UNTIL(atomic_load(&ear.ends) == 1, 5000));
    for (unsigned times = 1; times <= 3; times++) {
        cr_assert_eq(weir_on_peer_closed(socket, on_peer_closed, &ear), 0);
        cr_expect(told(&ear, times), "call %u is not answered", times);
    }
    uint64_t turns = rig_stats(&rig).turns;
    rig_sleep_ms(20);
    cr_expect_leq(rig_stats(&rig).turns, turns + 1, "the end that stays brings turn after turn");
    cr_expect_eq(atomic_load(&ear.told), 3);
    rig_close(&rig);
}

Test(peer_closed, asked_for_beside_a_drain_callback_both_come, .timeout = 30)
{
    struct rig rig;
    struct ear ear = {0}, late = {0};
    weir_socket *socket;
    static unsigned char piece[16384];
    weir_socket_options options = WEIR_SOCKET_OPTIONS_INIT;

    rig_open(&rig, 2);
    options.write_high = 64 * 1024;
    int peer = rig_unix(&rig, &options, &socket);
    cr_assert_eq(weir_on_drain(socket, on_drain, &ear), 0);
    cr_assert_eq(weir_on_peer_closed(socket, on_peer_closed, &ear), 0);
    for (struct ear *now = &ear;; now = &late) {
        size_t written = 0;
        for (int r; (r = weir_write(socket, piece, sizeof piece)) == 0;)
            cr_assert_lt(written += sizeof piece, 64u << 20);
        for (; written > 0; written -= sizeof piece)
            rig_peer_receive(peer, piece, sizeof piece);
        cr_expect(RIG_UNTIL(atomic_load(&now->drains) == 1, 5000));
        if (now == &late)
            break;
        cr_assert_eq(weir_on_drain(socket, on_drain, &late), 0); /* another one in its place */
    }
    close(peer);
    cr_expect(told(&ear, 1));
    rig_close(&rig);
}

static void close_it(weir_socket *socket, void *context)
{
    weir_close(socket, NULL, NULL);
    on_peer_closed(socket, context);
}

Test(peer_closed, may_close_and_is_not_told_after_that_or_when_taken_back, .timeout = 30)
{
    struct rig rig;
    struct ear ear = {0}, never = {0};
    weir_socket *one, *other, *datagram;

    rig_open(&rig, 2);
    int peer = rig_tcp(&rig, NULL, &one), second = rig_tcp(&rig, NULL, &other);
    cr_assert_eq(weir_on_peer_closed(other, on_peer_closed, &never), 0);
    cr_assert_eq(weir_on_peer_closed(other, NULL, NULL), 0);
    close(second);
    cr_assert_eq(weir_on_peer_closed(one, close_it, &ear), 0);
    close(peer);
    cr_expect(told(&ear, 1));
    cr_expect(RIG_UNTIL(rig_stats(&rig).sources == 1, 5000), "the one that was closed stays");
    cr_expect_eq(atomic_load(&never.told), 0);
    cr_assert_eq(weir_on_peer_closed(other, on_peer_closed, &never), 0);
    cr_expect(told(&never, 1));
    cr_assert_eq(weir_datagram_open(rig.runtime, "127.0.0.1:0", NULL, &datagram), 0);
    cr_expect_eq(weir_on_peer_closed(datagram, on_peer_closed, &ear), -EINVAL);
    cr_expect_eq(weir_on_peer_closed(NULL, on_peer_closed, &ear), -EINVAL);
    cr_assert_eq(weir_close(datagram, NULL, NULL), 0);
    rig_close(&rig);
}
