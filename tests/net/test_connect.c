/* Connecting: the deadline holds whatever the network does, and nothing is left when it fails. */
#include <errno.h>
#include <netinet/in.h>
#include <unistd.h>

#include "net/net.h"
#include "rig_wait.h"

/* A peer that answers nothing: a listener that never accepts, its backlog full. */
struct hole {
    int listener;
    int fillers[8];
    char address[WEIR_ADDRESS_TEXT_MAX];
};

static void hole_open(struct hole *hole)
{
    weir_address address;

    hole->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    cr_assert_eq(weir_address_parse(&address, "127.0.0.1:0"), 0);
    cr_assert_eq(bind(hole->listener, (struct sockaddr *)&address.storage, address.length), 0);
    cr_assert_eq(listen(hole->listener, 0), 0);
    cr_assert_eq(
        getsockname(hole->listener, (struct sockaddr *)&address.storage, &address.length), 0);
    cr_assert_gt(weir_address_format(&address, hole->address, sizeof hole->address), 0);
    for (int i = 0; i < 8; i++) {
        hole->fillers[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        int r = connect(hole->fillers[i], (struct sockaddr *)&address.storage, address.length);
        cr_assert(r == 0 || errno == EINPROGRESS);
    }
    rig_sleep_ms(20);
}

static void hole_close(struct hole *hole)
{
    for (int i = 0; i < 8; i++)
        close(hole->fillers[i]);
    close(hole->listener);
}

Test(connect, it_connects_by_operation_and_by_waiting, .timeout = 30)
{
    struct rig rig;
    struct rig_op op;
    struct rig_busy busy;
    weir_listener *listener;
    weir_socket *sockets[2] = {NULL, NULL}, *accepted;
    weir_socket_options options = WEIR_SOCKET_OPTIONS_INIT;
    char address[WEIR_ADDRESS_TEXT_MAX];

    rig_open(&rig, 1);
    cr_assert_eq(weir_listen(rig.runtime, "127.0.0.1:0", NULL, NULL, NULL, &listener), 0);
    rig_address(listener, address);
    rig_op_init(&op);
    options.user = &rig;
    int r = weir_connect(rig.runtime, address, &options, &op.op, &sockets[0], WEIR_NEVER);
    cr_assert(r == 0 || (r == -EINPROGRESS && rig_op_await(&op, 5000) && op.result == 0));
    cr_assert_not_null(sockets[0]);
    cr_assert_eq(weir_socket_user(sockets[0]), &rig);
    rig_busy_begin(&rig, &busy, 1); /* waiting needs no worker */
    cr_assert_eq(weir_connect_wait(rig.runtime, address, NULL, &sockets[1], weir_after_ms(5000)),
                 0);
    for (int i = 0; i < 2; i++) {
        weir_address peer, own;
        cr_assert_eq(weir_accept_wait(listener, &accepted, weir_after_ms(5000)), 0);
        cr_assert_eq(weir_socket_peer(accepted, &peer), 0);
        cr_assert_eq(weir_socket_address(sockets[i], &own), 0);
        cr_assert_arr_eq(&peer.storage, &own.storage, sizeof(struct sockaddr_in));
    }
    rig_busy_end(&busy);
    rig_close(&rig);
}

Test(connect, a_refused_one_fails_and_leaves_nothing, .timeout = 30)
{
    struct rig rig;
    struct rig_op op;
    weir_listener *listener;
    weir_socket *socket = NULL;
    char address[WEIR_ADDRESS_TEXT_MAX];

    rig_open(&rig, 1);
    cr_assert_eq(weir_listen(rig.runtime, "127.0.0.1:0", NULL, NULL, NULL, &listener), 0);
    rig_address(listener, address);
    cr_assert_eq(weir_listener_close(listener, NULL, NULL), 0);
    cr_assert(RIG_UNTIL(rig_stats(&rig).sources == 0, 5000));
    int fds = support_count_fds();
    rig_op_init(&op);
    int r = weir_connect(rig.runtime, address, NULL, &op.op, &socket, WEIR_NEVER);
    if (r == -EINPROGRESS) {
        cr_assert(rig_op_await(&op, 5000));
        r = (int)op.result;
    }
    cr_assert_eq(r, -ECONNREFUSED, "%d", r);
    cr_assert_eq(weir_connect_wait(rig.runtime, address, NULL, &socket, WEIR_NEVER),
                 -ECONNREFUSED);
    cr_assert_null(socket);
    cr_assert(RIG_UNTIL(support_count_fds() == fds, 2000));
    cr_assert_eq(weir_connect_wait(rig.runtime, "unix:/nowhere", NULL, &socket, WEIR_NEVER),
                 -ENOENT);
    cr_assert_eq(weir_connect_wait(rig.runtime, "nowhere:1", NULL, &socket, WEIR_NEVER), -EINVAL);
    cr_assert_eq(weir_connect_wait(rig.runtime, address, NULL, NULL, WEIR_NEVER), -EINVAL);
    cr_assert_eq(support_count_fds(), fds);
    rig_close(&rig);
}

struct heart {
    weir_timer timer;
    _Atomic unsigned beats;
};

static void beat(weir_timer *timer, uint64_t missed, void *context)
{
    struct heart *heart = context;

    (void)timer;
    (void)missed;
    atomic_fetch_add(&heart->beats, 1);
}

Test(connect, the_deadline_holds_when_nobody_answers, .timeout = 30) /* (S05) */
{
    struct rig rig;
    struct rig_op op;
    struct hole hole;
    struct heart heart = {.beats = 0};
    weir_socket *socket = NULL;

    rig_open(&rig, 1);
    hole_open(&hole);
    int fds = support_count_fds();
    weir_timer_init(&heart.timer, rig.runtime, beat, &heart);
    cr_assert_eq(weir_timer_set(&heart.timer, weir_after_ms(10), 10000000, WEIR_TIMER_RATE), 0);
    rig_op_init(&op);
    int64_t before = rig_now_ms();
    int r = weir_connect(rig.runtime, hole.address, NULL, &op.op, &socket, weir_after_ms(300));
    cr_assert_eq(r, -EINPROGRESS, "%d", r);
    cr_assert_lt(rig_now_ms() - before, rig_patience(100), "the start blocked");
    cr_assert(rig_op_await(&op, 10000));
    cr_assert_eq(op.result, -ETIMEDOUT);
    cr_assert_geq(rig_now_ms() - before, 299);
    cr_assert_lt(rig_now_ms() - before, 300 + rig_patience(500));
    cr_assert_geq(atomic_load(&heart.beats), 15, "%u beats", atomic_load(&heart.beats));
    before = rig_now_ms();
    r = weir_connect_wait(rig.runtime, hole.address, NULL, &socket, weir_after_ms(100));
    cr_assert_eq(r, -ETIMEDOUT);
    cr_assert_lt(rig_now_ms() - before, 100 + rig_patience(500));
    cr_assert_null(socket);
    cr_assert(RIG_UNTIL(support_count_fds() == fds, 2000), "descriptors are left open");
    weir_timer_fini(&heart.timer);
    hole_close(&hole);
    rig_close(&rig);
    cr_assert_eq(atomic_load(&op.ended), 1);
}

Test(connect, a_cancelled_one_ends_at_once_and_leaves_nothing, .timeout = 30)
{
    struct rig rig;
    struct rig_op op;
    struct hole hole;
    weir_socket *socket = NULL;

    rig_open(&rig, 1);
    hole_open(&hole);
    int fds = support_count_fds();
    rig_op_init(&op);
    cr_assert_eq(weir_connect(rig.runtime, hole.address, NULL, &op.op, &socket, WEIR_NEVER),
                 -EINPROGRESS);
    cr_assert_eq(weir_cancel(&op.op), 0);
    cr_assert(rig_op_await(&op, 5000));
    cr_assert_eq(op.result, -ECANCELED);
    cr_assert_null(socket);
    cr_assert(RIG_UNTIL(support_count_fds() == fds && rig_stats(&rig).sources == 0, 2000));
    hole_close(&hole);
    rig_close(&rig);
    cr_assert_eq(atomic_load(&op.ended), 1);
}

static void close_in_connect(weir_op *op, ssize_t result, void *context)
{
    struct rig_op *mine = context;

    (void)op;
    mine->result = result;
    atomic_fetch_add(&mine->ended, 1);
}

/* Deadlines around the moment in which it connects: one end each, a socket only with success. */
Test(connect, deadline_and_success_race_to_one_end, .timeout = 30) /* (C01) */
{
    enum { ROUNDS = 400 };
    struct rig rig;
    weir_listener *listener;
    char address[WEIR_ADDRESS_TEXT_MAX];
    unsigned connected = 0;

    rig_open(&rig, 2);
    cr_assert_eq(weir_listen(rig.runtime, "127.0.0.1:0", NULL, NULL, NULL, &listener), 0);
    rig_address(listener, address);
    for (int i = 0; i < ROUNDS; i++) {
        struct rig_op op;
        weir_socket *socket = NULL, *accepted;
        memset(&op, 0, sizeof op);
        weir_op_init(&op.op, close_in_connect, &op);
        int r = weir_connect(rig.runtime, address, NULL, &op.op, &socket, weir_after_us(i % 80));
        if (r == -EINPROGRESS) {
            cr_assert(rig_op_await(&op, 5000));
            r = (int)op.result;
        }
        cr_assert(r == 0 || r == -ETIMEDOUT, "%d", r);
        cr_assert((r == 0) == (socket != NULL), "result %d, socket %p", r, (void *)socket);
        connected += r == 0;
        if (r == 0)
            cr_assert_eq(weir_reset(socket), 0);
        if (weir_accept_wait(listener, &accepted, weir_after_ms(20)) == 0)
            cr_assert_eq(weir_reset(accepted), 0);
        cr_assert_leq(atomic_load(&op.ended), 1);
    }
    cr_assert_gt(connected, 0);
    cr_assert(RIG_UNTIL(rig_stats(&rig).sources == 1, 5000), "sockets are left");
    rig_close(&rig);
}
