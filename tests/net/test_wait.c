/* Waiting calls: woken by the poller alone, in order, ended by close and by deadlines. */
#include "rig_wait.h"

#include <errno.h>
#include <unistd.h>

#include "os/fault.h"

Test(wait, data_wakes_a_receiver_while_all_workers_are_busy, .timeout = 30) /* (W1, S04) */
{
    struct rig rig;
    struct rig_busy busy;
    struct waiter waiter;
    weir_socket *socket;

    rig_open(&rig, 2);
    int peer = rig_tcp(&rig, NULL, &socket);
    rig_busy_begin(&rig, &busy, 2);
    waiter_start(&waiter, socket, WEIR_NEVER);
    waiter_await_asleep(&waiter);
    uint64_t before = rig_stats(&rig).sync_wakes;
    rig_peer_send(peer, "x", 1);
    cr_assert(RIG_UNTIL(atomic_load(&waiter.ended), rig_patience(300)), "not woken");
    cr_assert_eq(waiter_join(&waiter), 1);
    cr_assert_eq(waiter.byte, 'x');
    cr_assert_gt(rig_stats(&rig).sync_wakes, before);
    rig_busy_end(&busy);
    close(peer);
    rig_close(&rig);
}

Test(wait, ping_pong_goes_on_while_all_workers_are_busy, .timeout = 30) /* (S04) */
{
    struct rig rig;
    struct rig_busy busy;
    struct rig_op first;
    struct waiter waiter;
    weir_socket *socket;
    char byte;

    rig_open(&rig, 1);
    int peer = rig_unix(&rig, NULL, &socket);
    rig_op_init(&first); /* asynchronous once, so that the socket is in the pool's hands */
    cr_assert_eq(weir_recv(socket, &first.op, &byte, 1, WEIR_NEVER), -EINPROGRESS);
    rig_peer_send(peer, "a", 1);
    cr_assert(rig_op_await(&first, 5000));
    rig_busy_begin(&rig, &busy, 1);
    for (int round = 0; round < 200; round++) {
        waiter_start(&waiter, socket, weir_after_ms(5000));
        rig_peer_send(peer, "p", 1);
        cr_assert_eq(waiter_join(&waiter), 1, "round %d", round);
        cr_assert_eq(weir_send_wait(socket, "q", 1, weir_after_ms(5000)), 1);
        rig_peer_receive(peer, &byte, 1);
    }
    rig_busy_end(&busy);
    close(peer);
    rig_close(&rig);
}

/* The hook of a recv that finds nothing: the byte and its edge come right after it looked. */
static struct {
    struct rig rig;
    int peer;
    _Atomic int left;
} between;

static int send_after_the_look(enum wr_fault_call call)
{
    if (call != WR_FAULT_RECV || atomic_fetch_sub(&between.left, 1) != 1)
        return 0;
    uint64_t before = rig_stats(&between.rig).events;
    rig_peer_send(between.peer, "x", 1);
    cr_assert(RIG_UNTIL(rig_stats(&between.rig).events > before, 5000), "no edge");
    return EAGAIN;
}

Test(wait, an_edge_between_the_last_look_and_the_sleep_is_seen, .timeout = 30) /* (W1) */
{
#ifndef WEIR_FAULTS
    (void)send_after_the_look;
    cr_skip_test("this build has no seam");
#else
    weir_socket *socket;
    char byte = 0;

    wr_fault_hook = send_after_the_look;
    rig_open(&between.rig, 1);
    between.peer = rig_unix(&between.rig, NULL, &socket);
    atomic_store(&between.left, 2); /* the call looks once before it stands in line */
    ssize_t r = weir_recv_wait(socket, &byte, 1, weir_after_ms(3000));
    cr_assert_eq(r, 1, "%zd", r);
    cr_assert_eq(byte, 'x');
    close(between.peer);
    rig_close(&between.rig);
#endif
}

Test(wait, a_waiter_that_leaves_does_not_take_the_wake_of_the_one_before_it, .timeout = 30)
{
    struct rig rig;
    struct waiter first, second;
    weir_socket *socket;

    rig_open(&rig, 1);
    int peer = rig_tcp(&rig, NULL, &socket);
    waiter_start(&first, socket, weir_after_ms(10000));
    waiter_await_asleep(&first);
    waiter_start(&second, socket, weir_after_ms(50));
    cr_assert_eq(waiter_join(&second), -ETIMEDOUT);
    rig_peer_send(peer, "x", 1);
    cr_assert(RIG_UNTIL(atomic_load(&first.ended), rig_patience(1000)), "the first sleeps on");
    cr_assert_eq(waiter_join(&first), 1);
    close(peer);
    rig_close(&rig);
}

/* The first waiter's time is over, it cannot leave yet, and the wake meant for it comes. */
static void timeout_meets_wake(struct rig *rig, weir_socket *socket, int peer, struct waiter *first)
{
    wr_lock(&socket->in.lock);
    rig_sleep_ms(150); /* longer than the deadline: it has woken by itself and wants the lock */
    rig_peer_send(peer, "x", 1);
    cr_assert(RIG_UNTIL(wr_source_flags(&socket->source) & WR_IN, 5000), "no edge");
    wr_unlock(&socket->in.lock);
    cr_assert_eq(waiter_join(first), -ETIMEDOUT);
    (void)rig;
}

Test(wait, a_timeout_that_races_a_wake_hands_over_to_the_next_waiter, .timeout = 30) /* (W3) */
{
    struct rig rig;
    struct waiter first, second;
    weir_socket *socket;

    rig_open(&rig, 1);
    int peer = rig_unix(&rig, NULL, &socket);
    waiter_start(&first, socket, weir_after_ms(100));
    waiter_await_asleep(&first);
    waiter_start(&second, socket, weir_after_ms(5000));
    waiter_await_queued(&second, 2);
    timeout_meets_wake(&rig, socket, peer, &first);
    cr_assert_eq(waiter_join(&second), 1);
    cr_assert_eq(second.byte, 'x');
    close(peer);
    rig_close(&rig);
}

Test(wait, a_timeout_that_races_a_wake_hands_over_to_the_next_operation, .timeout = 30) /* (W3) */
{
    struct rig rig;
    struct waiter first;
    struct rig_op second;
    weir_socket *socket;
    char byte = 0;

    rig_open(&rig, 1);
    int peer = rig_unix(&rig, NULL, &socket);
    waiter_start(&first, socket, weir_after_ms(100));
    waiter_await_asleep(&first);
    rig_op_init(&second);
    cr_assert_eq(weir_recv(socket, &second.op, &byte, 1, WEIR_NEVER), -EINPROGRESS);
    timeout_meets_wake(&rig, socket, peer, &first);
    cr_assert(rig_op_await(&second, rig_patience(1000)), "nobody took the byte");
    cr_assert_eq(second.result, 1);
    close(peer);
    rig_close(&rig);
}

Test(wait, waiting_and_started_receives_are_served_in_order, .timeout = 30) /* (O3) */
{
    struct rig rig;
    struct waiter waiters[2];
    struct rig_op ops[2];
    weir_socket *socket;
    char bytes[2] = {0};

    rig_open(&rig, 2);
    int peer = rig_tcp(&rig, NULL, &socket);
    for (int i = 0; i < 2; i++)
        rig_op_init(&ops[i]);
    cr_assert_eq(weir_recv(socket, &ops[0].op, &bytes[0], 1, WEIR_NEVER), -EINPROGRESS);
    waiter_start(&waiters[0], socket, weir_after_ms(5000));
    waiter_await_queued(&waiters[0], 2);
    cr_assert_eq(weir_recv(socket, &ops[1].op, &bytes[1], 1, WEIR_NEVER), -EINPROGRESS);
    waiter_start(&waiters[1], socket, weir_after_ms(5000));
    waiter_await_queued(&waiters[1], 4);
    rig_peer_send(peer, "abcd", 4);
    cr_assert_eq(waiter_join(&waiters[1]), 1);
    cr_assert_eq(waiter_join(&waiters[0]), 1);
    cr_assert(rig_op_await(&ops[0], 5000) && rig_op_await(&ops[1], 5000));
    cr_assert_eq(bytes[0], 'a');
    cr_assert_eq(waiters[0].byte, 'b');
    cr_assert_eq(bytes[1], 'c');
    cr_assert_eq(waiters[1].byte, 'd');
    close(peer);
    rig_close(&rig);
}

Test(wait, a_late_receiver_does_not_overtake_one_that_waits, .timeout = 30) /* (O3) */
{
    struct rig rig;
    struct rig_busy busy;
    struct rig_op ops[2];
    struct waiter waiter;
    weir_socket *socket;
    char bytes[2] = {0};

    if (rig_pollers_call())
        cr_skip_test("busy workers hold up no callback here");
    rig_open(&rig, 1);
    int peer = rig_unix(&rig, NULL, &socket);
    rig_op_init(&ops[0]);
    rig_op_init(&ops[1]);
    cr_assert_eq(weir_recv(socket, &ops[0].op, &bytes[0], 1, WEIR_NEVER), -EINPROGRESS);
    rig_busy_begin(&rig, &busy, 1); /* who is first cannot be served yet */
    rig_peer_send(peer, "abc", 3);
    cr_assert_eq(weir_recv(socket, &ops[1].op, &bytes[1], 1, WEIR_NEVER), -EINPROGRESS);
    waiter_start(&waiter, socket, weir_after_ms(10000));
    waiter_await_queued(&waiter, 3);
    rig_busy_end(&busy);
    cr_assert_eq(waiter_join(&waiter), 1);
    cr_assert(rig_op_await(&ops[0], 5000) && rig_op_await(&ops[1], 5000));
    cr_assert_eq(bytes[0], 'a');
    cr_assert_eq(bytes[1], 'b');
    cr_assert_eq(waiter.byte, 'c');
    close(peer);
    rig_close(&rig);
}

/* Who comes to stand first is woken by the poller from then on, and needs no worker. */
static void first_after(bool cancelled)
{
    struct rig rig;
    struct rig_busy busy;
    struct rig_op first;
    struct waiter second;
    weir_socket *socket;
    char byte;

    rig_open(&rig, 1);
    int peer = rig_unix(&rig, NULL, &socket);
    rig_op_init(&first);
    cr_assert_eq(
        weir_recv(socket, &first.op, &byte, 1, cancelled ? WEIR_NEVER : weir_after_ms(60)),
        -EINPROGRESS);
    waiter_start(&second, socket, weir_after_ms(5000));
    waiter_await_queued(&second, 2);
    if (!cancelled)
        cr_assert(rig_op_await(&first, 5000));
    rig_busy_begin(&rig, &busy, 1);
    if (cancelled)
        cr_assert_eq(weir_cancel(&first.op), 0);
    rig_peer_send(peer, "x", 1);
    cr_assert_eq(waiter_join(&second), 1);
    rig_busy_end(&busy);
    cr_assert(rig_op_await(&first, 5000));
    cr_assert_eq(first.result, cancelled ? -ECANCELED : -ETIMEDOUT);
    close(peer);
    rig_close(&rig);
}

Test(wait, a_receiver_behind_a_cancelled_operation_needs_no_worker, .timeout = 30) /* (W1) */
{
    first_after(true);
}

Test(wait, a_receiver_behind_an_expired_operation_needs_no_worker, .timeout = 30) /* (W1) */
{
    first_after(false);
}

Test(wait, close_ends_every_waiting_receiver_at_once, .timeout = 30) /* (S01) */
{
    struct rig rig;
    struct rig_busy busy;
    struct waiter waiters[4];
    weir_socket *socket;

    rig_open(&rig, 1);
    int peer = rig_tcp(&rig, NULL, &socket);
    rig_busy_begin(&rig, &busy, 1); /* no worker helps */
    for (unsigned i = 0; i < 4; i++) {
        waiter_start(&waiters[i], socket, WEIR_NEVER);
        waiter_await_queued(&waiters[i], i + 1);
    }
    int64_t before = rig_now_ms();
    cr_assert_eq(weir_close(socket, NULL, NULL), 0);
    cr_assert_lt(rig_now_ms() - before, rig_patience(50), "close blocked");
    for (unsigned i = 0; i < 4; i++)
        cr_assert_eq(waiter_join(&waiters[i]), -ECANCELED);
    cr_assert_lt(rig_now_ms() - before, rig_patience(100), "they were not woken at once");
    cr_assert_eq(rig_peer_end(peer, 1000), 0, "the peer sees FIN");
    rig_busy_end(&busy);
    close(peer);
    rig_close(&rig);
}

Test(wait, a_deadline_that_has_passed_still_tries_once, .timeout = 30)
{
    struct rig rig;
    weir_socket *socket;
    char byte = 0;

    rig_open(&rig, 1);
    int peer = rig_unix(&rig, NULL, &socket);
    cr_assert_eq(weir_recv_wait(socket, &byte, 1, weir_now() - 1), -ETIMEDOUT);
    rig_peer_send(peer, "x", 1);
    rig_arrived(socket);
    cr_assert_eq(weir_recv_wait(socket, &byte, 1, weir_now() - 1), 1);
    int64_t before = rig_now_ms();
    cr_assert_eq(weir_recv_wait(socket, &byte, 1, weir_after_ms(60)), -ETIMEDOUT);
    cr_assert_geq(rig_now_ms() - before, 59, "never early");
    cr_assert_lt(rig_now_ms() - before, rig_patience(500));
    close(peer);
    rig_close(&rig);
}

Test(wait, a_receiver_and_a_started_send_share_a_socket, .timeout = 30)
{
    enum { SIZE = 4 << 20 };
    static char out[SIZE], in[SIZE];
    struct rig rig;
    struct waiter waiter;
    struct rig_op op;
    weir_socket *socket;

    rig_open(&rig, 2);
    int peer = rig_tcp(&rig, NULL, &socket);
    for (size_t i = 0; i < SIZE; i++)
        out[i] = (char)(i * 31 >> 3);
    waiter_start(&waiter, socket, WEIR_NEVER);
    waiter_await_asleep(&waiter);
    rig_op_init(&op);
    cr_assert_eq(weir_send(socket, &op.op, out, SIZE, WEIR_NEVER), -EINPROGRESS);
    rig_peer_receive(peer, in, SIZE);
    cr_assert(rig_op_await(&op, 5000));
    cr_assert_eq(op.result, SIZE);
    cr_assert_arr_eq(in, out, SIZE);
    cr_assert_not(atomic_load(&waiter.ended), "woken for what was not for it");
    rig_peer_send(peer, "x", 1);
    cr_assert_eq(waiter_join(&waiter), 1);
    close(peer);
    rig_close(&rig);
}

/* What a receiver notes and what a turn reads at the same time must be ordered. */
Test(wait, a_receiver_sees_the_end_while_a_send_goes_on, .timeout = 30)
{
    enum { SIZE = 2 << 20 };
    static char out[SIZE], in[SIZE];
    struct rig rig;
    struct waiter waiter;
    struct rig_op op;
    weir_socket *socket;

    rig_open(&rig, 2);
    for (int round = 0; round < 10; round++) {
        int peer = rig_tcp(&rig, NULL, &socket);
        waiter_start(&waiter, socket, WEIR_NEVER);
        waiter_await_asleep(&waiter);
        rig_op_init(&op);
        cr_assert_eq(weir_send(socket, &op.op, out, SIZE, WEIR_NEVER), -EINPROGRESS);
        rig_peer_receive(peer, in, SIZE / 2);
        shutdown(peer, SHUT_WR);
        rig_peer_receive(peer, in, SIZE / 2);
        cr_assert_eq(waiter_join(&waiter), 0, "the end");
        cr_assert(rig_op_await(&op, 5000));
        cr_assert_eq(op.result, SIZE, "sending goes on");
        cr_assert_eq(weir_close_wait(socket), 0, "the peer has finished");
        close(peer);
    }
    rig_close(&rig);
}

Test(wait, a_sender_sleeps_until_the_peer_reads, .timeout = 30)
{
    enum { SIZE = 8 << 20 };
    static char out[SIZE], in[SIZE];
    struct rig rig;
    struct rig_busy busy;
    struct waiter waiter;
    weir_socket *socket;

    rig_open(&rig, 1);
    int peer = rig_tcp(&rig, NULL, &socket);
    rig_busy_begin(&rig, &busy, 1);
    for (size_t i = 0; i < SIZE; i++)
        out[i] = (char)(i >> 7);
    waiter_start_sender(&waiter, socket, out, SIZE, weir_after_ms(20000));
    waiter_await_asleep(&waiter);
    rig_peer_receive(peer, in, SIZE);
    cr_assert_eq(waiter_join(&waiter), SIZE);
    cr_assert_arr_eq(in, out, SIZE);
    rig_busy_end(&busy);

    ssize_t sent = weir_send_wait(socket, out, SIZE, weir_after_ms(100));
    cr_assert(sent > 0 && sent < SIZE, "what has left is told: %zd", sent);
    rig_peer_receive(peer, in, (size_t)sent);
    cr_assert_arr_eq(in, out, (size_t)sent);
    close(peer);
    rig_close(&rig);
}

Test(wait, a_socket_that_is_read_refuses_receives, .timeout = 30)
{
    struct rig rig;
    struct rig_op op;
    weir_socket *socket;
    char byte;

    rig_open(&rig, 1);
    int peer = rig_unix(&rig, NULL, &socket);
    cr_assert_eq(weir_read_start(socket, waiter_ignore, NULL), 0);
    rig_op_init(&op);
    cr_assert_eq(weir_recv(socket, &op.op, &byte, 1, WEIR_NEVER), -EBUSY);
    cr_assert_eq(weir_recv_wait(socket, &byte, 1, WEIR_NEVER), -EBUSY);
    cr_assert_eq(weir_read_stop(socket), 0);
    cr_assert_eq(weir_recv(socket, &op.op, &byte, 1, WEIR_NEVER), -EINPROGRESS);
    cr_assert_eq(weir_read_start(socket, waiter_ignore, NULL), -EBUSY);
    close(peer);
    rig_close(&rig);
    cr_assert_eq(atomic_load(&op.ended), 1);
}
