/* Started operations: how they end, once, in order, with what they moved. */
#include <errno.h>
#include <unistd.h>

#include "net/net.h"
#include "rig_wait.h"

Test(op, a_start_that_ends_on_the_spot_brings_no_callback, .timeout = 30) /* (O2) */
{
    struct rig rig;
    struct rig_op op;
    weir_socket *socket;
    char byte = 0;

    rig_open(&rig, 1);
    int peer = rig_unix(&rig, NULL, &socket);
    rig_op_init(&op);
    rig_peer_send(peer, "x", 1);
    rig_arrived(socket);
    cr_assert_eq(weir_recv(socket, &op.op, &byte, 1, WEIR_NEVER), 1);
    cr_assert_eq(weir_send(socket, &op.op, "y", 1, WEIR_NEVER), 1);
    cr_assert_eq(weir_op_moved(&op.op), 1);
    cr_assert_eq(weir_send(socket, &op.op, "", 0, WEIR_NEVER), 0);
    cr_assert_eq(weir_recv(socket, &op.op, &byte, 1, weir_now() - 1), -ETIMEDOUT);
    cr_assert_eq(weir_cancel(&op.op), -EALREADY);
    shutdown(peer, SHUT_WR);
    rig_arrived(socket);
    cr_assert_eq(weir_recv(socket, &op.op, &byte, 1, WEIR_NEVER), 0, "the end, on the spot");
    cr_assert_eq(weir_close(socket, NULL, NULL), 0);
    close(peer);
    rig_close(&rig);
    cr_assert_eq(atomic_load(&op.ended), 0);
}

struct inline_check {
    pthread_t starter;
    _Atomic bool starting, was_inline, here;
    struct rig_op op;
};

static void check_inline(weir_op *op, ssize_t result, void *context)
{
    struct inline_check *check = context;

    (void)op;
    (void)result;
    if (pthread_equal(pthread_self(), check->starter))
        atomic_store(&check->was_inline, true);
    atomic_store(&check->here, true);
}

Test(op, a_callback_never_comes_inside_a_call, .timeout = 30) /* (O2) */
{
    struct rig rig;
    struct inline_check check = {.starter = pthread_self()};
    weir_op op;
    weir_socket *socket;
    char byte;

    rig_open(&rig, 1);
    int peer = rig_unix(&rig, NULL, &socket);
    weir_op_init(&op, check_inline, &check);
    cr_assert_eq(weir_recv(socket, &op, &byte, 1, WEIR_NEVER), -EINPROGRESS);
    cr_assert_eq(weir_cancel(&op), 0);
    cr_assert(RIG_UNTIL(atomic_load(&check.here), 5000));
    atomic_store(&check.here, false);
    cr_assert_eq(weir_recv(socket, &op, &byte, 1, WEIR_NEVER), -EINPROGRESS);
    cr_assert_eq(weir_reset(socket), 0);
    cr_assert(RIG_UNTIL(atomic_load(&check.here), 5000));
    cr_assert_not(atomic_load(&check.was_inline));
    close(peer);
    rig_close(&rig);
}

/* A callback that receives a byte at a time until it must wait, and measures the stack. */
struct chain {
    weir_socket *socket;
    weir_op op;
    char byte;
    char *lowest, *highest;
    _Atomic bool ended;
    size_t received;
    unsigned depth, deepest, zero_sends;
};

static void measure(struct chain *chain)
{
    char *volatile here = (char *)__builtin_frame_address(0);

    if (!chain->lowest || here < chain->lowest)
        chain->lowest = here;
    if (here > chain->highest)
        chain->highest = here;
}

static void chain_step(weir_op *op, ssize_t result, void *context)
{
    struct chain *chain = context;
    weir_op other;

    if (++chain->depth > chain->deepest)
        chain->deepest = chain->depth;
    measure(chain);
    while (result > 0) {
        chain->received++;
        weir_op_init(&other, chain_step, chain); /* ends on the spot, each time */
        if (weir_send(chain->socket, &other, "", 0, WEIR_NEVER) == 0)
            chain->zero_sends++;
        result = weir_recv(chain->socket, op, &chain->byte, 1, WEIR_NEVER);
    }
    chain->depth--;
    if (result != -EINPROGRESS)
        atomic_store(&chain->ended, true);
}

Test(op, a_chain_of_receives_keeps_the_stack_flat, .timeout = 30) /* (W15) */
{
    enum { SIZE = 1 << 20, PIECE = 4096 };
    static const char piece[PIECE];
    struct rig rig;
    struct chain chain = {0};
    weir_options options = WEIR_OPTIONS_INIT;

    options.pollers = options.workers = options.workers_max = 1;
    options.stack_size = 64 << 10;
    rig_open_with(&rig, &options);
    int peer = rig_unix(&rig, NULL, &chain.socket);
    weir_op_init(&chain.op, chain_step, &chain);
    cr_assert_eq(weir_recv(chain.socket, &chain.op, &chain.byte, 1, WEIR_NEVER), -EINPROGRESS);
    for (size_t sent = 0; sent < SIZE; sent += PIECE)
        rig_peer_send(peer, piece, PIECE);
    shutdown(peer, SHUT_WR);
    cr_assert(RIG_UNTIL(atomic_load(&chain.ended), 40000));
    cr_assert_eq(chain.received, SIZE);
    cr_assert_eq(chain.zero_sends, SIZE);
    cr_assert_eq(chain.deepest, 1, "callbacks nest %u deep", chain.deepest);
    cr_assert_lt(chain.highest - chain.lowest, 4096);
    close(peer);
    rig_close(&rig);
}

Test(op, operations_of_one_direction_end_in_the_order_they_came, .timeout = 30) /* (O3) */
{
    enum { COUNT = 500 };
    static struct rig_op ops[COUNT];
    static char bytes[COUNT], sent[COUNT];
    struct rig rig;
    weir_socket *socket;

    rig_open(&rig, 3);
    int peer = rig_tcp(&rig, NULL, &socket);
    for (int i = 0; i < COUNT; i++) {
        rig_op_init(&ops[i]);
        sent[i] = (char)(i * 7);
        cr_assert_eq(weir_recv(socket, &ops[i].op, &bytes[i], 1, WEIR_NEVER), -EINPROGRESS);
    }
    rig_peer_send(peer, sent, COUNT);
    for (int i = 0; i < COUNT; i++) {
        cr_assert(rig_op_await(&ops[i], 5000), "operation %d", i);
        cr_assert_eq(ops[i].result, 1);
    }
    cr_assert_arr_eq(bytes, sent, COUNT);
    close(peer);
    rig_close(&rig);
}

static _Atomic unsigned told;

static void note_when(weir_op *op, ssize_t result, void *context)
{
    (void)op;
    cr_assert_eq(result, -ECANCELED);
    *(unsigned *)context = atomic_load(&told);
    atomic_fetch_add(&told, 1); /* last: the test looks when all have been counted */
}

Test(op, what_ends_together_is_told_in_the_order_it_came, .timeout = 30) /* (O3) */
{
    enum { COUNT = 5 };
    struct rig rig;
    weir_socket *socket;
    weir_op ops[COUNT];
    unsigned when[COUNT];
    char bytes[COUNT];

    rig_open(&rig, 1);
    int peer = rig_unix(&rig, NULL, &socket);
    for (unsigned i = 0; i < COUNT; i++) {
        weir_op_init(&ops[i], note_when, &when[i]);
        cr_assert_eq(weir_recv(socket, &ops[i], &bytes[i], 1, WEIR_NEVER), -EINPROGRESS);
    }
    cr_assert_eq(weir_reset(socket), 0);
    cr_assert(RIG_UNTIL(atomic_load(&told) == COUNT, 5000));
    for (unsigned i = 0; i < COUNT; i++)
        cr_assert_eq(when[i], i);
    close(peer);
    rig_close(&rig);
}

Test(op, sends_of_all_kinds_leave_in_order, .timeout = 30) /* (O3) */
{
    enum { BIG = 4 << 20 };
    static char big[BIG], in[BIG + 6];
    struct rig rig;
    struct rig_op ops[3];
    struct waiter waiter;
    weir_socket *socket;
    struct iovec pieces[2] = {{.iov_base = (void *)(uintptr_t) "c", .iov_len = 1},
                              {.iov_base = (void *)(uintptr_t) "d", .iov_len = 1}};

    rig_open(&rig, 2);
    int peer = rig_tcp(&rig, NULL, &socket);
    for (int i = 0; i < 3; i++)
        rig_op_init(&ops[i]);
    memset(big, 'a', BIG);
    cr_assert_eq(weir_send(socket, &ops[0].op, big, BIG, WEIR_NEVER), -EINPROGRESS);
    cr_assert_eq(weir_write(socket, "b", 1), 0);
    cr_assert_eq(weir_sendv(socket, &ops[1].op, pieces, 2, WEIR_NEVER), -EINPROGRESS);
    waiter_start_sender(&waiter, socket, "e", 1, weir_after_ms(10000));
    waiter_await_queued(&waiter, 4);
    cr_assert_eq(weir_send(socket, &ops[2].op, "f", 1, WEIR_NEVER), -EINPROGRESS);
    cr_assert_eq(weir_write(socket, "g", 1), 0);
    rig_peer_receive(peer, in, sizeof in);
    cr_assert_eq(waiter_join(&waiter), 1);
    cr_assert(memcmp(in, big, BIG) == 0 && memcmp(in + BIG, "bcdefg", 6) == 0, "%.6s", in + BIG);
    for (int i = 0; i < 3; i++)
        cr_assert(rig_op_await(&ops[i], 5000));
    cr_assert_eq(ops[1].result, 2);
    close(peer);
    rig_close(&rig);
}

/* ---- cancel -------------------------------------------------------------------------- */

Test(op, cancel_takes_one_operation_out_and_leaves_the_others, .timeout = 30)
{
    struct rig rig;
    struct rig_op ops[3];
    weir_socket *socket;
    char bytes[3] = {0};

    rig_open(&rig, 1);
    int peer = rig_unix(&rig, NULL, &socket);
    for (int round = 0; round < 3; round++) { /* the first, one between, the last */
        for (int i = 0; i < 3; i++) {
            rig_op_init(&ops[i]);
            bytes[i] = 0;
            cr_assert_eq(weir_recv(socket, &ops[i].op, &bytes[i], 1, WEIR_NEVER), -EINPROGRESS);
        }
        cr_assert_eq(weir_recv(socket, &ops[0].op, bytes, 1, WEIR_NEVER), -EINVAL, "pending");
        cr_assert_eq(weir_cancel(&ops[round].op), 0);
        cr_assert_eq(weir_cancel(&ops[round].op), -EALREADY);
        cr_assert(rig_op_await(&ops[round], 5000));
        cr_assert_eq(ops[round].result, -ECANCELED);
        rig_peer_send(peer, "ab", 2);
        char expected = 'a';
        for (int i = 0; i < 3; i++) {
            cr_assert(rig_op_await(&ops[i], 5000));
            cr_assert_eq(bytes[i], i == round ? 0 : expected++);
            cr_assert_eq(weir_cancel(&ops[i].op), -EALREADY);
            cr_assert_eq(atomic_load(&ops[i].ended), 1);
        }
    }
    cr_assert_eq(weir_cancel(NULL), -EINVAL);
    close(peer);
    rig_close(&rig);
}

Test(op, a_cancelled_send_tells_what_has_left_and_lets_the_buffer_go, .timeout = 30) /* (C03) */
{
    enum { SIZE = 10 << 20 };
    struct rig rig;
    struct rig_op op;
    weir_socket *socket;

    rig_open(&rig, 1);
    int peer = rig_tcp(&rig, NULL, &socket);
    char *out = malloc(SIZE), *in = malloc(SIZE);
    cr_assert(out && in);
    memset(out, 'o', SIZE);
    rig_op_init(&op);
    cr_assert_eq(weir_send(socket, &op.op, out, SIZE, WEIR_NEVER), -EINPROGRESS);
    rig_sleep_ms(50);
    cr_assert_eq(weir_cancel(&op.op), 0);
    cr_assert(rig_op_await(&op, 5000));
    cr_assert_eq(op.result, -ECANCELED);
    cr_assert(op.moved > 0 && op.moved < SIZE, "%zu", op.moved);
    free(out); /* a later use is a report of the sanitizer */
    cr_assert_eq(weir_close(socket, NULL, NULL), 0);
    rig_peer_receive(peer, in, op.moved);
    for (size_t i = 0; i < op.moved; i++)
        cr_assert_eq(in[i], 'o');
    cr_assert_eq(rig_peer_end(peer, 2000), 0, "not one byte more");
    free(in);
    close(peer);
    rig_close(&rig);
}

Test(op, a_cancelled_receive_lets_the_buffer_go, .timeout = 30) /* (C05) */
{
    struct rig rig;
    struct rig_op *op = malloc(sizeof *op);
    weir_socket *socket;
    char *buffer = malloc(8), bytes[8];

    rig_open(&rig, 1);
    int peer = rig_unix(&rig, NULL, &socket);
    rig_op_init(op);
    cr_assert_eq(weir_recv(socket, &op->op, buffer, 8, weir_after_ms(10000)), -EINPROGRESS);
    cr_assert_eq(weir_cancel(&op->op), 0);
    cr_assert(rig_op_await(op, 5000));
    cr_assert_eq(op->result, -ECANCELED);
    memset(op, 0xa5, sizeof *op);
    memset(buffer, 0xa5, 8);
    free(op); /* a later use is a report of the sanitizer */
    free(buffer);
    rig_peer_send(peer, "received", 8);
    cr_assert_eq(weir_recv_wait(socket, bytes, 8, weir_after_ms(5000)), 8);
    cr_assert_arr_eq(bytes, "received", 8);
    close(peer);
    rig_close(&rig);
}

struct canceller {
    pthread_t thread;
    _Atomic(struct rig_op *) target;
    _Atomic bool leave;
    _Atomic int answer;
};

static void *cancel_main(void *argument)
{
    struct canceller *canceller = argument;

    while (!atomic_load(&canceller->leave)) {
        struct rig_op *op = atomic_exchange(&canceller->target, NULL);
        if (op)
            atomic_store(&canceller->answer, weir_cancel(&op->op));
    }
    return NULL;
}

/* Cancels from another thread while the data comes: which of both wins is left to chance. */
Test(op, cancel_and_completion_race_to_one_end, .timeout = 30) /* (O1) */
{
    struct rig rig;
    struct canceller canceller = {0};
    weir_socket *socket;
    unsigned taken = 0, cancelled = 0;
    char byte, rest[64];

    rig_open(&rig, 2);
    int peer = rig_unix(&rig, NULL, &socket);
    cr_assert_eq(pthread_create(&canceller.thread, NULL, cancel_main, &canceller), 0);
    unsigned rounds = 2000;
    for (unsigned round = 0; round < rounds; round++) {
        struct rig_op op;
        rig_op_init(&op);
        atomic_store(&canceller.answer, 1);
        cr_assert_eq(weir_recv(socket, &op.op, &byte, 1, WEIR_NEVER), -EINPROGRESS);
        if (round % 2)
            atomic_store(&canceller.target, &op);
        rig_peer_send(peer, "x", 1);
        if (round % 2 == 0)
            atomic_store(&canceller.target, &op);
        cr_assert(rig_op_await(&op, 5000) &&
                  RIG_UNTIL(atomic_load(&canceller.answer) != 1, 5000));
        int answer = atomic_load(&canceller.answer);
        cr_assert(op.result == (answer == 0 ? -ECANCELED : 1), "cancel %d, result %zd", answer,
                  op.result);
        cr_assert_eq(atomic_load(&op.ended), 1);
        taken += op.result == 1;
        if (op.result == -ECANCELED) {
            cancelled++;
            cr_assert_eq(weir_recv_wait(socket, rest, 1, weir_after_ms(5000)), 1, "no byte lost");
        }
    }
    atomic_store(&canceller.leave, true);
    pthread_join(canceller.thread, NULL);
    cr_assert_eq(taken + cancelled, rounds);
    close(peer);
    rig_close(&rig);
}

Test(op, arguments_that_are_wrong_are_refused, .timeout = 30)
{
    struct rig rig;
    struct rig_op op;
    weir_op unset;
    weir_socket *socket;
    weir_listener *listener;
    char byte;

    rig_open(&rig, 1);
    int peer = rig_unix(&rig, NULL, &socket);
    rig_op_init(&op);
    weir_op_init(&unset, NULL, NULL);
    cr_assert_eq(weir_recv(NULL, &op.op, &byte, 1, WEIR_NEVER), -EINVAL);
    cr_assert_eq(weir_recv(socket, NULL, &byte, 1, WEIR_NEVER), -EINVAL);
    cr_assert_eq(weir_recv(socket, &unset, &byte, 1, WEIR_NEVER), -EINVAL, "no function");
    cr_assert_eq(weir_recv(socket, &op.op, NULL, 1, WEIR_NEVER), -EINVAL);
    cr_assert_eq(weir_send(socket, &op.op, &byte, (size_t)-1, WEIR_NEVER), -EINVAL);
    cr_assert_eq(weir_sendv(socket, &op.op, NULL, 1, WEIR_NEVER), -EINVAL);
    cr_assert_eq(weir_send_file(socket, &op.op, -1, 0, 1, WEIR_NEVER), -EINVAL);
    cr_assert_eq(weir_sendto(socket, &op.op, &byte, 1, NULL, WEIR_NEVER), -EINVAL, "a stream");
    cr_assert_eq(weir_recv_wait(NULL, &byte, 1, WEIR_NEVER), -EINVAL);
    cr_assert_eq(weir_listen(rig.runtime, "127.0.0.1:0", NULL, NULL, NULL, &listener), 0);
    cr_assert_eq(weir_accept(listener, &op.op, NULL, WEIR_NEVER), -EINVAL);
    close(peer);
    rig_close(&rig);
}
