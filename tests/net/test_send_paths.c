/* What leaves: very many pieces, a peer that is gone, data that waits when the socket is closed. */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "net/net.h"
#include "support/rig.h"

/* ---- more pieces than the kernel takes at once (R01) ----------------------------------------- */

enum { PIECES = 4096 };

static unsigned char bytes[PIECES];
static struct iovec pieces[PIECES];

static void make_pieces(void)
{
    for (int i = 0; i < PIECES; i++) {
        bytes[i] = (unsigned char)(i * 7 + (i >> 8));
        pieces[i] = (struct iovec){&bytes[i], 1};
    }
}

static void expect_bytes(int peer, const char *path)
{
    unsigned char got[PIECES];

    rig_peer_receive(peer, got, sizeof got);
    cr_expect_arr_eq(got, bytes, sizeof got, "%s", path);
}

static void write_in_callback(weir_socket *socket, const weir_view *view, int status, void *context)
{
    (void)context;
    if (status == 0 && view->length > 0)
        cr_expect_eq(weir_writev(socket, pieces, PIECES), 0);
}

Test(send_paths, pieces_that_have_left_are_not_looked_at_again, .timeout = 30)
{
    enum { COUNT = 2000, EACH = 4096 };
    static unsigned char block[EACH];
    static struct iovec large[COUNT];
    struct rig rig;
    struct rig_op op;
    weir_socket *socket;

    for (int i = 0; i < COUNT; i++)
        large[i] = (struct iovec){block, EACH};
    rig_open(&rig, 1);
    int peer = rig_tcp(&rig, NULL, &socket);
    rig_op_init(&op);
    cr_assert_eq(weir_sendv(socket, &op.op, large, COUNT, WEIR_NEVER), -EINPROGRESS);
    rig_sleep_ms(50); /* what fits has left */
    cr_assert_eq(weir_cancel(&op.op), 0);
    cr_assert(rig_op_await(&op, 5000));
    cr_assert_gt(op.moved, EACH);
    cr_assert_eq((const struct iovec *)op.op.data_ - large, (ptrdiff_t)(op.moved / EACH));
    cr_assert_eq((size_t)op.op.offset_, COUNT - op.moved / EACH);
    close(peer);
    rig_close(&rig);
}

Test(send_paths, empty_pieces_and_parts_of_pieces_are_passed_over, .timeout = 10)
{
    char text[] = "abcdef";
    struct iovec three[] = {{text, 0}, {text, 3}, {text, 0}, {text + 3, 3}, {text, 0}};
    struct iovec next[WR_PIECES_MAX];
    struct wr_pieces left = {.first = three, .count = 5};

    cr_assert_eq(wr_pieces_next(&left, next), 2);
    wr_pieces_sent(&left, 2);
    cr_assert_eq(wr_pieces_next(&left, next), 2);
    cr_assert_eq(next[0].iov_base, text + 2);
    cr_assert_eq(next[0].iov_len, 1);
    wr_pieces_sent(&left, 2);
    cr_assert_eq(wr_pieces_next(&left, next), 1);
    cr_assert_eq(next[0].iov_base, text + 4);
    wr_pieces_sent(&left, 2);
    cr_assert_eq(left.count, 0);
    cr_assert_eq(wr_pieces_next(&left, next), 0);
}

Test(send_paths, four_thousand_pieces_arrive_in_order, .timeout = 60)
{
    struct rig rig;
    struct rig_op op;

    make_pieces();
    rig_open(&rig, 2);
    for (int tcp = 0; tcp < 2; tcp++) {
        weir_socket *socket;
        int peer = tcp ? rig_tcp(&rig, NULL, &socket) : rig_unix(&rig, NULL, &socket);
        cr_expect_eq(weir_writev(socket, pieces, PIECES), 0);
        expect_bytes(peer, "weir_writev");
        cr_expect_eq(weir_sendv_wait(socket, pieces, PIECES, weir_after_ms(10000)), PIECES);
        expect_bytes(peer, "weir_sendv_wait");
        rig_op_init(&op);
        ssize_t r = weir_sendv(socket, &op.op, pieces, PIECES, WEIR_NEVER);
        if (r == -EINPROGRESS) {
            cr_assert(rig_op_await(&op, 10000));
            r = op.result;
        }
        cr_expect_eq(r, PIECES, "%zd", r);
        expect_bytes(peer, "weir_sendv");
        cr_expect_eq(weir_read_start(socket, write_in_callback, NULL), 0);
        rig_peer_send(peer, "x", 1);
        expect_bytes(peer, "weir_writev in a callback");
        close(peer);
    }
    rig_close(&rig);
}

/* Pieces of different lengths, none and long ones among them, into a socket that is full: each part
 * of the way is cut somewhere. */
Test(send_paths, pieces_of_all_lengths_survive_a_full_socket, .timeout = 60)
{
    enum { COUNT = 3000, UNIT = 997 };
    static unsigned char data[COUNT * UNIT], got[COUNT * UNIT];
    static struct iovec many[COUNT];
    struct rig rig;
    struct rig_op op;
    weir_socket *socket;
    size_t at = 0;

    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (unsigned char)(i * 31 + (i >> 9));
    for (int i = 0; i < COUNT; i++) {
        many[i] = (struct iovec){data + at, (size_t)(i * 37 % UNIT)};
        at += many[i].iov_len;
    }
    rig_open(&rig, 2);
    int peer = rig_tcp(&rig, NULL, &socket);
    rig_op_init(&op);
    cr_expect_eq(weir_sendv(socket, &op.op, many, COUNT, WEIR_NEVER), -EINPROGRESS);
    rig_sleep_ms(20);
    cr_expect_eq(atomic_load(&op.ended), 0);
    rig_peer_receive(peer, got, at);
    cr_assert(rig_op_await(&op, 10000));
    cr_expect_eq(op.result, (ssize_t)at);
    cr_expect_eq(op.moved, at);
    cr_expect_eq(memcmp(got, data, at), 0);
    close(peer);
    rig_close(&rig);
}

/* ---- a peer that is gone (R02) --------------------------------------------------------------- */

static weir_socket *gone(struct rig *rig, bool tcp)
{
    const struct linger now = {.l_onoff = 1, .l_linger = 0};
    weir_socket *socket;
    char byte = 'x';

    int peer = tcp ? rig_tcp(rig, NULL, &socket) : rig_unix(rig, NULL, &socket);
    if (tcp)
        setsockopt(peer, SOL_SOCKET, SO_LINGER, &now, sizeof now);
    close(peer);
    /* The first to notice is told of the reset; from then on it is a broken pipe. */
    while (tcp && weir_send_wait(socket, &byte, 1, weir_after_ms(5000)) >= 0)
        ;
    return socket;
}

static _Atomic int late_result;

static void write_late(weir_work *work, void *context)
{
    (void)work;
    weir_write(context, "x", 1);
    atomic_store(&late_result, weir_writev(context, pieces, 2));
}

static void expect_broken(ssize_t result, const char *path)
{
    cr_expect(result == -EPIPE || result == -ECONNRESET, "%s: %zd", path, result);
}

Test(send_paths, a_write_to_who_is_gone_is_an_error_and_no_signal, .timeout = 60)
{
    struct rig rig;
    struct rig_op op;
    weir_work work;
    weir_time soon = weir_after_ms(10000);

    make_pieces();
    cr_assert_neq(signal(SIGPIPE, SIG_DFL), SIG_ERR); /* it would kill this process */
    rig_open(&rig, 2);
    int file = memfd_create("paths", MFD_CLOEXEC);
    cr_assert_eq(ftruncate(file, 100000), 0);
    for (int tcp = 0; tcp < 2; tcp++) {
        expect_broken(weir_send_wait(gone(&rig, tcp), "x", 1, soon), "send_wait");
        expect_broken(weir_sendv_wait(gone(&rig, tcp), pieces, 2, soon), "sendv_wait");
        expect_broken(weir_send_file_wait(gone(&rig, tcp), file, 0, 100000, soon), "file_wait");
        expect_broken(weir_write(gone(&rig, tcp), "x", 1), "write");
        expect_broken(weir_writev(gone(&rig, tcp), pieces, 2), "writev");
        rig_op_init(&op);
        expect_broken(weir_send(gone(&rig, tcp), &op.op, "x", 1, soon), "send");
        expect_broken(weir_sendv(gone(&rig, tcp), &op.op, pieces, 2, soon), "sendv");
        expect_broken(weir_send_file(gone(&rig, tcp), &op.op, file, 0, 100000, soon), "file");
        weir_work_init(&work, write_late, gone(&rig, tcp));
        atomic_store(&late_result, 0);
        cr_assert_eq(weir_post(rig.runtime, &work), 0);
        cr_assert(RIG_UNTIL(atomic_load(&late_result) != 0, 5000));
        expect_broken(atomic_load(&late_result), "a write on a worker");
    }
    cr_expect_eq(signal(SIGPIPE, SIG_DFL), SIG_DFL, "the disposition is what it was");
    close(file);
    rig_close(&rig);
}

/* ---- closed with data on its way (R04) ------------------------------------------------------- */

enum { QUEUED = 5 << 20 };

static unsigned char queue[QUEUED];

static weir_socket_options patient(void)
{
    weir_socket_options options = WEIR_SOCKET_OPTIONS_INIT;

    options.write_high = 2 * QUEUED;
    options.linger_ms = 30000;
    return options;
}

Test(send_paths, a_graceful_close_sends_all_of_it_to_a_slow_reader, .timeout = 60)
{
    struct rig rig;
    weir_socket *socket;
    weir_socket_options options = patient();
    static unsigned char got[QUEUED];

    for (size_t i = 0; i < QUEUED; i++)
        queue[i] = (unsigned char)(i * 13 + (i >> 11));
    rig_open(&rig, 1);
    int peer = rig_tcp(&rig, &options, &socket);
    cr_assert_eq(weir_write(socket, queue, QUEUED), 0);
    cr_assert_eq(weir_close(socket, NULL, NULL), 0);
    for (size_t at = 0; at < QUEUED;) {
        size_t part = QUEUED - at < 200000 ? QUEUED - at : 200000;
        rig_peer_receive(peer, got + at, part);
        at += part;
        rig_sleep_ms(2);
    }
    cr_expect_eq(memcmp(got, queue, QUEUED), 0);
    cr_expect_eq(rig_peer_end(peer, 5000), 0, "then the end");
    close(peer);
    cr_expect(RIG_UNTIL(rig_stats(&rig).sources == 0, 5000));
    cr_expect_eq(rig_stats(&rig).write_pending, 0);
    rig_close(&rig);
}

Test(send_paths, an_abortive_close_drops_it, .timeout = 60)
{
    struct rig rig;
    weir_socket *socket;
    weir_socket_options options = patient();

    rig_open(&rig, 1);
    int peer = rig_tcp(&rig, &options, &socket);
    cr_assert_eq(weir_write(socket, queue, QUEUED), 0);
    cr_assert_eq(weir_reset(socket), 0);
    cr_expect(RIG_UNTIL(rig_stats(&rig).sources == 0, 5000));
    cr_expect_eq(rig_stats(&rig).write_pending, 0);
    cr_expect_eq(rig_peer_end(peer, 5000), -ECONNRESET);
    close(peer);
    rig_close(&rig);
}
