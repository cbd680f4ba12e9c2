/* weir_runtime_drain: what is idle goes at once, what is busy may finish, what is stuck does not
 * hold it up. */
#include <errno.h>
#include <unistd.h>

#include "support/rig.h"

static void answer(weir_socket *socket, const weir_view *view, int status, void *context)
{
    (void)context;
    if (status == 0 && view->length > 0)
        cr_assert_eq(weir_write(socket, view->data, view->length), 0);
    else
        (void)weir_close(socket, NULL, NULL);
}

static void serve(weir_listener *listener, weir_socket *socket, void *context)
{
    (void)listener;
    cr_assert_eq(weir_read_start(socket, answer, context), 0);
}

Test(drain, listeners_and_idle_connections_go_at_once, .timeout = 30)
{
    enum { COUNT = 10 };
    struct rig rig;
    struct rig_op op;
    weir_listener *listener, *waited;
    weir_socket *accepted = NULL;
    weir_address address;
    int peers[COUNT];
    char byte;

    rig_open(&rig, 2);
    cr_assert_eq(weir_listen(rig.runtime, "127.0.0.1:0", NULL, serve, NULL, &listener), 0);
    cr_assert_eq(weir_listener_address(listener, &address), 0);
    for (int i = 0; i < COUNT; i++) {
        peers[i] = rig_connect(listener);
        rig_peer_send(peers[i], "x", 1);
        rig_peer_receive(peers[i], &byte, 1);
    }
    rig_op_init(&op);
    cr_assert_eq(weir_listen(rig.runtime, "127.0.0.1:0", NULL, NULL, NULL, &waited), 0);
    cr_assert_eq(weir_accept(waited, &op.op, &accepted, WEIR_NEVER), -EINPROGRESS);
    int64_t before = rig_now_ms();
    cr_assert_eq(weir_runtime_drain(rig.runtime, weir_after_ms(20)), -ETIME, "they linger");
    cr_assert(rig_op_await(&op, 5000));
    cr_assert_eq(op.result, -ECANCELED);
    for (int i = 0; i < COUNT; i++) {
        cr_assert_eq(rig_peer_end(peers[i], 2000), 0, "FIN, not RST");
        close(peers[i]);
    }
    cr_assert_eq(weir_runtime_drain(rig.runtime, weir_after_ms(10000)), 0);
    cr_assert_lt(rig_now_ms() - before, rig_patience(1000));
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    cr_assert_eq(connect(fd, (struct sockaddr *)&address.storage, address.length), -1);
    cr_assert_eq(errno, ECONNREFUSED);
    close(fd);
    cr_assert_eq(rig_stats(&rig).sources, 0);
    rig_close(&rig);
}

Test(drain, what_is_busy_may_finish, .timeout = 30)
{
    enum { SIZE = 1 << 20 };
    static char out[SIZE], in[SIZE];
    struct rig rig;
    struct rig_op op;
    weir_socket *sender, *writer;

    rig_open(&rig, 2);
    int peers[2] = {rig_tcp(&rig, NULL, &sender), rig_tcp(&rig, NULL, &writer)};
    memset(out, 'o', SIZE);
    rig_op_init(&op);
    cr_assert_eq(weir_read_start(sender, answer, NULL), 0);
    cr_assert_eq(weir_read_start(writer, answer, NULL), 0);
    cr_assert_eq(weir_send(sender, &op.op, out, SIZE, WEIR_NEVER), -EINPROGRESS);
    cr_assert_eq(weir_write(writer, out, SIZE), 0);
    cr_assert_eq(weir_runtime_drain(rig.runtime, weir_after_ms(50)), -ETIME);
    for (int i = 0; i < 2; i++) {
        rig_peer_receive(peers[i], in, SIZE);
        cr_assert_arr_eq(in, out, SIZE);
    }
    cr_assert_eq(weir_runtime_drain(rig.runtime, weir_after_ms(100)), -ETIME, "they linger");
    for (int i = 0; i < 2; i++) {
        cr_assert_eq(rig_peer_end(peers[i], 2000), 0);
        close(peers[i]);
    }
    cr_assert_eq(weir_runtime_drain(rig.runtime, weir_after_ms(10000)), 0);
    cr_assert(rig_op_await(&op, 1000));
    cr_assert_eq(op.result, SIZE, "it was not cut off");
    rig_close(&rig);
}

Test(drain, one_that_is_stuck_does_not_hold_it_up, .timeout = 30) /* (C09) */
{
    struct rig rig;
    struct rig_op op;
    weir_socket *stuck;
    char byte;

    rig_open(&rig, 1);
    int peer = rig_unix(&rig, NULL, &stuck);
    rig_op_init(&op);
    cr_assert_eq(weir_recv(stuck, &op.op, &byte, 1, WEIR_NEVER), -EINPROGRESS);
    int64_t before = rig_now_ms();
    cr_assert_eq(weir_runtime_drain(rig.runtime, weir_after_ms(100)), -ETIME);
    cr_assert_geq(rig_now_ms() - before, 99);
    cr_assert_lt(rig_now_ms() - before, 100 + rig_patience(300));
    cr_assert_eq(atomic_load(&op.ended), 0, "it stays as it is");
    close(peer);
    cr_assert(rig_op_await(&op, 5000));
    cr_assert_eq(op.result, 0);
    rig_op_init(&op);
    before = rig_now_ms();
    rig_close(&rig);
    cr_assert_lt(rig_now_ms() - before, rig_patience(1000), "destroy ends the rest");
}

struct going_on {
    weir_work work;
    weir_timer timer;
    _Atomic unsigned works, timers;
    weir_runtime *runtime;
    _Atomic int drained;
};

static void on_work(weir_work *work, void *context)
{
    struct going_on *going_on = context;

    (void)work;
    atomic_store(&going_on->drained, weir_runtime_drain(going_on->runtime, weir_after_ms(5000)));
    atomic_fetch_add(&going_on->works, 1);
}

static void on_timer(weir_timer *timer, uint64_t missed, void *context)
{
    struct going_on *going_on = context;

    (void)timer;
    (void)missed;
    atomic_fetch_add(&going_on->timers, 1);
}

Test(drain, nothing_new_is_taken_but_work_and_timers_go_on, .timeout = 30)
{
    struct rig rig;
    struct rig_op op;
    struct going_on going_on = {.drained = 1};
    weir_listener *listener;
    weir_socket *socket = NULL;
    int fds[2];

    rig_open(&rig, 1);
    going_on.runtime = rig.runtime;
    cr_assert_eq(weir_runtime_drain(NULL, WEIR_NEVER), -EINVAL);
    cr_assert_eq(weir_runtime_drain(rig.runtime, weir_now() - 1), 0, "there is nothing");
    rig_op_init(&op);
    rig_tcp_pair(fds);
    cr_assert_eq(weir_listen(rig.runtime, "127.0.0.1:0", NULL, serve, NULL, &listener),
                 -ESHUTDOWN);
    cr_assert_eq(weir_adopt(rig.runtime, fds[0], NULL, &socket), -ESHUTDOWN);
    cr_assert_eq(weir_connect(rig.runtime, "127.0.0.1:9", NULL, &op.op, &socket, WEIR_NEVER),
                 -ESHUTDOWN);
    cr_assert_eq(weir_connect_wait(rig.runtime, "127.0.0.1:9", NULL, &socket, WEIR_NEVER),
                 -ESHUTDOWN);
    cr_assert_eq(weir_datagram_open(rig.runtime, "127.0.0.1:0", NULL, &socket), -ESHUTDOWN);
    cr_assert_null(socket);
    weir_work_init(&going_on.work, on_work, &going_on);
    weir_timer_init(&going_on.timer, rig.runtime, on_timer, &going_on);
    cr_assert_eq(weir_post(rig.runtime, &going_on.work), 0);
    cr_assert_eq(weir_timer_set(&going_on.timer, weir_after_ms(5), 0, WEIR_TIMER_ONCE), 0);
    cr_assert(RIG_UNTIL(atomic_load(&going_on.works) && atomic_load(&going_on.timers), 5000));
    cr_assert_eq(atomic_load(&going_on.drained), -EDEADLK, "from a callback");
    weir_timer_fini(&going_on.timer);
    close(fds[0]);
    close(fds[1]);
    rig_close(&rig);
}
