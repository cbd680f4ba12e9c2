/* Deadlines of each kind of operation, and how they meet completion. */
#include <errno.h>
#include <unistd.h>

#include "net/net.h"
#include "rig_wait.h"

/* It ended by its deadline, not before it and not much later. */
static void expect_timeout(struct rig_op *op, int64_t started, int64_t after)
{
    cr_assert(rig_op_await(op, 10000), "never");
    cr_assert_eq(op->result, -ETIMEDOUT, "%zd", op->result);
    cr_assert_geq(rig_now_ms() - started, after - 1, "early");
    cr_assert_lt(rig_now_ms() - started, after + rig_patience(500), "late");
}

Test(deadline, a_receive_ends_at_its_deadline, .timeout = 30)
{
    struct rig rig;
    struct rig_op ops[2];
    weir_socket *socket;
    char bytes[2] = {0};

    rig_open(&rig, 1);
    int peer = rig_unix(&rig, NULL, &socket);
    rig_op_init(&ops[0]);
    rig_op_init(&ops[1]);
    int64_t started = rig_now_ms();
    cr_assert_eq(weir_recv(socket, &ops[0].op, bytes, 1, weir_after_ms(60)), -EINPROGRESS);
    cr_assert_eq(weir_recv(socket, &ops[1].op, bytes + 1, 1, WEIR_NEVER), -EINPROGRESS);
    expect_timeout(&ops[0], started, 60);
    rig_peer_send(peer, "x", 1);
    cr_assert(rig_op_await(&ops[1], 5000), "the one behind it is served");
    cr_assert_eq(bytes[1], 'x');
    cr_assert_eq(bytes[0], 0);
    close(peer);
    rig_close(&rig);
}

Test(deadline, one_in_the_middle_of_the_line_ends_at_its_deadline, .timeout = 30)
{
    struct rig rig;
    struct rig_op ops[3];
    weir_socket *socket;
    char bytes[3] = {0};

    rig_open(&rig, 1);
    int peer = rig_unix(&rig, NULL, &socket);
    int64_t started = rig_now_ms();
    for (int i = 0; i < 3; i++) {
        rig_op_init(&ops[i]);
        cr_assert_eq(weir_recv(socket, &ops[i].op, &bytes[i], 1,
                               i == 1 ? weir_after_ms(60) : WEIR_NEVER),
                     -EINPROGRESS);
    }
    expect_timeout(&ops[1], started, 60);
    rig_peer_send(peer, "ab", 2);
    cr_assert(rig_op_await(&ops[0], 5000) && rig_op_await(&ops[2], 5000));
    cr_assert_eq(bytes[0], 'a');
    cr_assert_eq(bytes[2], 'b');
    close(peer);
    rig_close(&rig);
}

Test(deadline, a_send_ends_at_its_deadline_and_tells_what_has_left, .timeout = 30)
{
    enum { SIZE = 10 << 20 };
    static char out[SIZE];
    struct rig rig;
    struct rig_op op, behind;
    struct iovec piece = {.iov_base = out, .iov_len = SIZE};
    weir_socket *socket;

    rig_open(&rig, 1);
    int peer = rig_tcp(&rig, NULL, &socket);
    rig_op_init(&op);
    rig_op_init(&behind);
    int64_t started = rig_now_ms();
    cr_assert_eq(weir_sendv(socket, &op.op, &piece, 1, weir_after_ms(80)), -EINPROGRESS);
    cr_assert_eq(weir_send(socket, &behind.op, "x", 1, WEIR_NEVER), -EINPROGRESS);
    expect_timeout(&op, started, 80);
    cr_assert(op.moved > 0 && op.moved < SIZE);
    static char in[SIZE];
    rig_peer_receive(peer, in, op.moved + 1);
    cr_assert_eq(in[op.moved], 'x', "exactly as many bytes as told, then the one behind");
    close(peer);
    rig_close(&rig);
}

Test(deadline, an_accept_ends_at_its_deadline, .timeout = 30)
{
    struct rig rig;
    struct rig_op ops[2];
    weir_listener *listener;
    weir_socket *sockets[2] = {NULL, NULL}, *third = NULL;

    rig_open(&rig, 1);
    cr_assert_eq(weir_listen(rig.runtime, "127.0.0.1:0", NULL, NULL, NULL, &listener), 0);
    rig_op_init(&ops[0]);
    rig_op_init(&ops[1]);
    int64_t started = rig_now_ms();
    cr_assert_eq(weir_accept(listener, &ops[0].op, &sockets[0], weir_after_ms(60)), -EINPROGRESS);
    cr_assert_eq(weir_accept(listener, &ops[1].op, &sockets[1], WEIR_NEVER), -EINPROGRESS);
    expect_timeout(&ops[0], started, 60);
    cr_assert_null(sockets[0], "written on success only");
    cr_assert_eq(weir_accept_wait(listener, &third, weir_after_ms(60)), -ETIMEDOUT);
    cr_assert_null(third);
    int peer = rig_connect(listener);
    cr_assert(rig_op_await(&ops[1], 5000));
    cr_assert_eq(ops[1].result, 0);
    cr_assert_not_null(sockets[1]);
    close(peer);
    rig_close(&rig);
}

Test(deadline, a_datagram_receive_ends_at_its_deadline, .timeout = 30)
{
    struct rig rig;
    struct rig_op op;
    weir_socket *socket;
    weir_address from = {0};
    char byte;

    rig_open(&rig, 1);
    cr_assert_eq(weir_datagram_open(rig.runtime, "127.0.0.1:0", NULL, &socket), 0);
    rig_op_init(&op);
    int64_t started = rig_now_ms();
    cr_assert_eq(weir_recvfrom(socket, &op.op, &byte, 1, &from, weir_after_ms(60)), -EINPROGRESS);
    expect_timeout(&op, started, 60);
    cr_assert_eq(from.length, 0, "written on success only");
    cr_assert_eq(weir_recvfrom_wait(socket, &byte, 1, NULL, weir_after_ms(60)), -ETIMEDOUT);
    rig_close(&rig);
}

/* The deadline passes, and the data comes, before a worker can look: then the deadline wins, and
 * the byte is there for the next. */
Test(deadline, data_that_comes_with_the_deadline_goes_to_the_next, .timeout = 30) /* (C01) */
{
    struct rig rig;
    struct rig_busy busy;
    struct rig_op ops[2];
    weir_socket *socket;
    char bytes[2] = {0};

    rig_open(&rig, 1);
    int peer = rig_unix(&rig, NULL, &socket);
    rig_op_init(&ops[0]);
    rig_op_init(&ops[1]);
    cr_assert_eq(weir_recv(socket, &ops[0].op, bytes, 1, weir_after_ms(100)), -EINPROGRESS);
    cr_assert_eq(weir_recv(socket, &ops[1].op, bytes + 1, 1, WEIR_NEVER), -EINPROGRESS);
    rig_busy_begin(&rig, &busy, 1);
    cr_assert(RIG_UNTIL(wr_source_flags(&socket->source) & WR_CTL, 5000), "no expiry");
    rig_peer_send(peer, "x", 1);
    cr_assert(RIG_UNTIL(wr_source_flags(&socket->source) & WR_IN, 5000), "no edge");
    rig_busy_end(&busy);
    cr_assert(rig_op_await(&ops[0], 5000));
    cr_assert(rig_op_await(&ops[1], 5000), "the byte is lost");
    cr_assert_eq(ops[0].result, -ETIMEDOUT);
    cr_assert_eq(bytes[1], 'x');
    close(peer);
    rig_close(&rig);
}

/* Nothing orders the poller's expiry before this cancel: what they share must be atomic. */
Test(deadline, a_cancel_after_the_deadline_ends_the_operation_once, .timeout = 30) /* (C01) */
{
    struct rig rig;
    struct rig_busy busy;
    struct rig_op op;
    weir_socket *socket;
    char byte;

    rig_open(&rig, 1);
    int peer = rig_unix(&rig, NULL, &socket);
    rig_busy_begin(&rig, &busy, 1);
    rig_op_init(&op);
    cr_assert_eq(weir_recv(socket, &op.op, &byte, 1, weir_after_ms(20)), -EINPROGRESS);
    rig_sleep_ms(rig_patience(60));
    int r = weir_cancel(&op.op);
    rig_busy_end(&busy);
    cr_assert(rig_op_await(&op, 5000));
    cr_assert_eq(r, 0);
    cr_assert_eq(op.result, -ECANCELED);
    close(peer);
    rig_close(&rig);
    cr_assert_eq(atomic_load(&op.ended), 1);
}

/* Done before the deadline, reported after it: the result stays what it was. */
Test(deadline, a_deadline_that_passes_after_the_end_changes_nothing, .timeout = 30) /* (C01) */
{
    struct rig rig;
    struct rig_op ops[2];
    weir_socket *socket;
    char bytes[2] = {0};

    rig_open(&rig, 2);
    int peer = rig_unix(&rig, NULL, &socket);
    for (int round = 0; round < 20; round++) {
        rig_op_init(&ops[0]);
        cr_assert_eq(weir_recv(socket, &ops[0].op, bytes, 1, weir_after_ms(20)), -EINPROGRESS);
        rig_peer_send(peer, "x", 1);
        cr_assert(rig_op_await(&ops[0], 5000));
        memset(&ops[0].op, 0xa5, sizeof ops[0].op); /* the caller's again */
        rig_sleep_ms(round % 4 == 0 ? 25 : 1);
        cr_assert_eq(atomic_load(&ops[0].ended), 1);
    }
    close(peer);
    rig_close(&rig);
}

/* Deadlines tuned to fall around the completion: each ends once, and no byte is lost. */
Test(deadline, a_deadline_and_completion_race_to_one_end, .timeout = 30) /* (C01) */
{
    enum { ROUNDS = 1500 };
    struct rig rig;
    weir_socket *socket;
    unsigned taken = 0, late = 0;
    char byte;

    rig_open(&rig, 2);
    int peer = rig_unix(&rig, NULL, &socket);
    for (unsigned round = 0; round < ROUNDS; round++) {
        struct rig_op op;
        int64_t span = 20 + round * 7 % 200;
        rig_op_init(&op);
        ssize_t r = weir_recv(socket, &op.op, &byte, 1, weir_after_us(span));
        if (r == -EINPROGRESS) {
            weir_time until = weir_after_us(span - 15);
            while (weir_now() < until)
                ;
            rig_peer_send(peer, "x", 1);
            cr_assert(rig_op_await(&op, 5000));
            r = op.result;
        } else {
            rig_peer_send(peer, "x", 1);
        }
        cr_assert(r == 1 || r == -ETIMEDOUT, "%zd", r);
        taken += r == 1;
        late += r != 1;
        if (r != 1)
            cr_assert_eq(weir_recv_wait(socket, &byte, 1, weir_after_ms(5000)), 1);
        cr_assert_leq(atomic_load(&op.ended), 1);
    }
    cr_assert_eq(taken + late, ROUNDS);
    close(peer);
    rig_close(&rig);
}
