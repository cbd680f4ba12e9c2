/* weir_shutdown: FIN behind all that is to be sent, whatever way that ends; receiving goes on. */
#include <errno.h>
#include <unistd.h>

#include "net/net.h"
#include "rig_wait.h"

enum { BIG = 2 << 20 };
static char big[BIG], in[BIG];

Test(shutdown, receiving_goes_on_after_fin, .timeout = 30) /* (F13) */
{
    struct rig rig;
    struct rig_op op;
    weir_socket *socket;
    char byte;

    rig_open(&rig, 1);
    int peer = rig_tcp(&rig, NULL, &socket);
    rig_op_init(&op);
    cr_assert_eq(weir_write(socket, "x", 1), 0);
    cr_assert_eq(weir_shutdown(socket), 0);
    cr_assert_eq(weir_shutdown(socket), -EALREADY);
    cr_assert_eq(rig_peer_end(peer, 2000), 0);
    cr_assert_eq(weir_write(socket, "x", 1), -EPIPE);
    cr_assert_eq(weir_send(socket, &op.op, "x", 1, WEIR_NEVER), -EPIPE);
    cr_assert_eq(weir_send_wait(socket, "x", 1, WEIR_NEVER), -EPIPE);
    rig_peer_send(peer, "y", 1);
    cr_assert_eq(weir_recv_wait(socket, &byte, 1, weir_after_ms(5000)), 1);
    cr_assert_eq(weir_shutdown(NULL), -EINVAL);
    close(peer);
    rig_close(&rig);
}

Test(shutdown, fin_follows_what_is_written, .timeout = 30)
{
    struct rig rig;
    struct rig_op op, late;
    weir_socket *socket;

    rig_open(&rig, 1);
    int peer = rig_tcp(&rig, NULL, &socket);
    rig_op_init(&op);
    cr_assert_eq(weir_send(socket, &op.op, big, BIG, WEIR_NEVER), -EINPROGRESS);
    cr_assert_eq(weir_write(socket, "x", 1), 0);
    cr_assert_eq(weir_shutdown(socket), 0);
    rig_op_init(&late);
    cr_assert_eq(weir_send(socket, &late.op, "y", 1, WEIR_NEVER), -EPIPE, "FIN is promised");
    cr_assert_eq(weir_write(socket, "y", 1), -EPIPE);
    rig_peer_receive(peer, in, BIG);
    cr_assert(rig_op_await(&op, 5000));
    cr_assert_eq(op.result, BIG);
    rig_peer_receive(peer, in, 1);
    cr_assert_eq(rig_peer_end(peer, 2000), 0);
    close(peer);
    rig_close(&rig);
}

Test(shutdown, fin_follows_a_waiting_send, .timeout = 30)
{
    struct rig rig;
    struct waiter waiter;
    weir_socket *socket;

    rig_open(&rig, 1);
    int peer = rig_tcp(&rig, NULL, &socket);
    waiter_start_sender(&waiter, socket, big, BIG, weir_after_ms(10000));
    waiter_await_asleep(&waiter);
    cr_assert_eq(weir_shutdown(socket), 0);
    rig_peer_receive(peer, in, BIG);
    cr_assert_eq(waiter_join(&waiter), BIG);
    cr_assert_eq(rig_peer_end(peer, 2000), 0);
    close(peer);
    rig_close(&rig);
}

enum ending { BY_CANCEL, BY_DEADLINE, BY_WAITING_DEADLINE };

static void fin_after(enum ending ending)
{
    struct rig rig;
    struct rig_op op;
    struct waiter waiter;
    weir_socket *socket;

    rig_open(&rig, 1);
    int peer = rig_tcp(&rig, NULL, &socket);
    rig_op_init(&op);
    weir_time deadline = ending == BY_CANCEL ? WEIR_NEVER : weir_after_ms(60);
    if (ending == BY_WAITING_DEADLINE) {
        waiter_start_sender(&waiter, socket, big, BIG, deadline);
        waiter_await_asleep(&waiter);
    } else {
        cr_assert_eq(weir_send(socket, &op.op, big, BIG, deadline), -EINPROGRESS);
    }
    cr_assert_eq(weir_shutdown(socket), 0);
    if (ending == BY_CANCEL)
        cr_assert_eq(weir_cancel(&op.op), 0);
    if (ending == BY_WAITING_DEADLINE)
        cr_assert_gt(waiter_join(&waiter), 0, "what has left");
    else
        cr_assert(rig_op_await(&op, 5000));
    cr_assert_eq(rig_peer_end(peer, 2000), 0, "no FIN");
    close(peer);
    rig_close(&rig);
}

Test(shutdown, fin_follows_a_cancelled_send, .timeout = 30)
{
    fin_after(BY_CANCEL);
}

Test(shutdown, fin_follows_an_expired_send, .timeout = 30)
{
    fin_after(BY_DEADLINE);
}

Test(shutdown, fin_follows_an_expired_waiting_send, .timeout = 30)
{
    fin_after(BY_WAITING_DEADLINE);
}

static void write_and_shut(weir_socket *socket, const weir_view *view, int status, void *context)
{
    (void)context;
    if (status != 0 || view->length == 0)
        return;
    cr_assert_eq(weir_write(socket, "answer", 6), 0);
    cr_assert_eq(weir_shutdown(socket), 0);
}

Test(shutdown, fin_follows_what_a_callback_wrote, .timeout = 30)
{
    struct rig rig;
    weir_socket *socket;
    char answer[6];

    rig_open(&rig, 1);
    int peer = rig_tcp(&rig, NULL, &socket);
    cr_assert_eq(weir_read_start(socket, write_and_shut, NULL), 0);
    rig_peer_send(peer, "x", 1);
    rig_peer_receive(peer, answer, 6);
    cr_assert_eq(rig_peer_end(peer, 2000), 0);
    close(peer);
    rig_close(&rig);
}
