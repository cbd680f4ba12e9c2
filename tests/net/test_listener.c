/* Listeners: accepting by operation, by waiting call and by callback; how they end. */
#include <errno.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "net/net.h"
#include "rig_wait.h"

static weir_listener *listen_on(struct rig *rig, const char *address, weir_accept_fn *on_accept,
                                void *context)
{
    weir_listener *listener = NULL;
    int r = weir_listen(rig->runtime, address, NULL, on_accept, context, &listener);

    cr_assert_eq(r, 0, "weir_listen: %d", r);
    return listener;
}

static void count_closed(void *context)
{
    atomic_fetch_add((_Atomic unsigned *)context, 1);
}

Test(listener, close_ends_every_waiting_accept_at_once, .timeout = 30) /* (S02) */
{
    struct rig rig;
    struct rig_busy busy;
    struct waiter waiters[4];
    _Atomic unsigned closed = 0;

    rig_open(&rig, 1);
    weir_listener *listener = listen_on(&rig, "127.0.0.1:0", NULL, NULL);
    rig_busy_begin(&rig, &busy, 1);
    for (unsigned i = 0; i < 4; i++) {
        waiter_start_accepter(&waiters[i], listener, WEIR_NEVER);
        waiter_await_queued(&waiters[i], i + 1);
    }
    int64_t before = rig_now_ms();
    cr_assert_eq(weir_listener_close(listener, count_closed, &closed), 0);
    for (unsigned i = 0; i < 4; i++) {
        cr_assert_eq(waiter_join(&waiters[i]), -ECANCELED);
        cr_assert_null(waiters[i].accepted);
    }
    cr_assert_lt(rig_now_ms() - before, rig_patience(100));
    cr_assert_eq(weir_listener_close(listener, NULL, NULL), -EALREADY);
    rig_busy_end(&busy);
    cr_assert(RIG_UNTIL(atomic_load(&closed) == 1, 5000));
    rig_close(&rig);
}

Test(listener, an_accept_needs_no_worker, .timeout = 30) /* (S02, W1) */
{
    struct rig rig;
    struct rig_busy busy;
    struct waiter waiter;

    rig_open(&rig, 1);
    weir_listener *listener = listen_on(&rig, "127.0.0.1:0", NULL, NULL);
    rig_busy_begin(&rig, &busy, 1);
    waiter_start_accepter(&waiter, listener, WEIR_NEVER);
    waiter_await_asleep(&waiter);
    int peer = rig_connect(listener);
    cr_assert(RIG_UNTIL(atomic_load(&waiter.ended), rig_patience(300)), "not woken");
    cr_assert_eq(waiter_join(&waiter), 0);
    cr_assert_eq(weir_send_wait(waiter.accepted, "x", 1, weir_after_ms(5000)), 1);
    char byte;
    rig_peer_receive(peer, &byte, 1);
    rig_busy_end(&busy);
    close(peer);
    rig_close(&rig);
}

Test(listener, accepts_are_served_in_order, .timeout = 30) /* (O3) */
{
    struct rig rig;
    struct rig_op ops[3];
    weir_socket *sockets[3] = {NULL, NULL, NULL};
    int peers[3];

    rig_open(&rig, 2);
    weir_listener *listener = listen_on(&rig, "[::1]:0", NULL, NULL);
    for (int i = 0; i < 3; i++) {
        rig_op_init(&ops[i]);
        cr_assert_eq(weir_accept(listener, &ops[i].op, &sockets[i], WEIR_NEVER), -EINPROGRESS);
    }
    cr_assert_eq(weir_cancel(&ops[1].op), 0);
    for (int i = 0; i < 3; i++)
        peers[i] = rig_connect(listener);
    for (int i = 0; i < 3; i++)
        cr_assert(rig_op_await(&ops[i], 5000));
    cr_assert_eq(ops[0].result, 0);
    cr_assert_eq(ops[1].result, -ECANCELED);
    cr_assert_null(sockets[1]);
    cr_assert_eq(ops[2].result, 0);
    rig_op_init(&ops[1]);
    cr_assert_eq(weir_accept(listener, &ops[1].op, &sockets[1], WEIR_NEVER), 0, "on the spot");
    int expected[3] = {0, 2, 1}; /* whose socket is the i-th connection */
    for (int i = 0; i < 3; i++) {
        char byte = 0, letter = (char)('a' + i);
        rig_peer_send(peers[i], &letter, 1);
        cr_assert_eq(weir_recv_wait(sockets[expected[i]], &byte, 1, weir_after_ms(5000)), 1);
        cr_assert_eq(byte, letter);
        close(peers[i]);
    }
    rig_close(&rig);
}

struct accepting {
    _Atomic unsigned count, inside, overlaps;
    void *user;
};

static void on_accept(weir_listener *listener, weir_socket *socket, void *context)
{
    struct accepting *accepting = context;

    (void)listener;
    if (atomic_fetch_add(&accepting->inside, 1) != 0)
        atomic_fetch_add(&accepting->overlaps, 1);
    accepting->user = weir_socket_user(socket);
    cr_assert_eq(weir_close(socket, NULL, NULL), 0);
    atomic_fetch_add(&accepting->count, 1);
    atomic_fetch_sub(&accepting->inside, 1);
}

Test(listener, each_connection_comes_once_and_calls_do_not_overlap, .timeout = 30)
{
    enum { COUNT = 150 };
    struct rig rig;
    struct rig_op op;
    struct rig_busy busy;
    struct accepting accepting = {.count = 0};
    weir_listen_options options = WEIR_LISTEN_OPTIONS_INIT;
    weir_listener *listener;
    weir_socket *socket;
    int peers[COUNT];

    rig_open(&rig, 4);
    options.socket.user = &accepting;
    cr_assert_eq(weir_listen(rig.runtime, "127.0.0.1:0", &options, on_accept, &accepting,
                             &listener), 0);
    rig_op_init(&op);
    cr_assert_eq(weir_accept(listener, &op.op, &socket, WEIR_NEVER), -EBUSY);
    cr_assert_eq(weir_accept_wait(listener, &socket, WEIR_NEVER), -EBUSY);
    rig_busy_begin(&rig, &busy, 4); /* until all are there: more than one turn takes */
    for (int i = 0; i < COUNT; i++)
        peers[i] = rig_connect(listener);
    rig_busy_end(&busy);
    cr_assert(RIG_UNTIL(atomic_load(&accepting.count) == COUNT, 5000));
    for (int i = 0; i < COUNT; i++) {
        cr_assert_eq(rig_peer_end(peers[i], 5000), 0);
        close(peers[i]);
    }
    cr_assert_eq(atomic_load(&accepting.overlaps), 0);
    cr_assert_eq(accepting.user, &accepting);
    cr_assert_eq(rig_stats(&rig).accepts, COUNT);
    rig_close(&rig);
    cr_assert_eq(atomic_load(&accepting.count), COUNT);
}

static void close_own(weir_listener *listener, weir_socket *socket, void *context)
{
    struct accepting *accepting = context;

    atomic_fetch_add(&accepting->count, 1);
    cr_assert_eq(weir_reset(socket), 0);
    cr_assert_eq(weir_listener_close(listener, count_closed, &accepting->inside), 0);
}

Test(listener, closing_it_in_its_callback_brings_no_other, .timeout = 30) /* (F07) */
{
    struct rig rig;
    struct rig_busy busy;
    struct accepting accepting = {.count = 0};

    if (rig_pollers_call())
        cr_skip_test("busy workers hold up no callback here");
    rig_open(&rig, 1);
    weir_listener *listener = listen_on(&rig, "127.0.0.1:0", close_own, &accepting);
    rig_busy_begin(&rig, &busy, 1);
    int peers[2] = {rig_connect(listener), rig_connect(listener)};
    rig_busy_end(&busy);
    cr_assert(RIG_UNTIL(atomic_load(&accepting.inside) == 1, 5000), "closed() did not come");
    cr_assert_eq(rig_peer_end(peers[0], 5000), -ECONNRESET);
    cr_assert_eq(rig_peer_end(peers[1], 5000), -ECONNRESET);
    close(peers[0]);
    close(peers[1]);
    rig_close(&rig);
    cr_assert_eq(atomic_load(&accepting.count), 1);
}

static bool exists(const char *path)
{
    struct stat status;
    return lstat(path, &status) == 0;
}

Test(listener, the_file_of_a_unix_socket_comes_and_goes_with_it, .timeout = 30)
{
    struct rig rig;
    struct waiter waiter;
    _Atomic unsigned closed = 0;
    char path[64], address[80];
    weir_listener *other = NULL;

    rig_open(&rig, 1);
    snprintf(path, sizeof path, "/tmp/weir-listener-%d", (int)getpid());
    snprintf(address, sizeof address, "unix:%s", path);
    unlink(path);
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    snprintf(name.sun_path, sizeof name.sun_path, "%s", path);
    int stale = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    cr_assert_eq(bind(stale, (struct sockaddr *)&name, sizeof name), 0);
    close(stale); /* the file stays, nobody listens */
    weir_listener *listener = listen_on(&rig, address, NULL, NULL);
    cr_assert_eq(weir_listen(rig.runtime, address, NULL, NULL, NULL, &other), -EADDRINUSE);
    cr_assert_null(other);
    cr_assert(exists(path), "a bind that fails leaves the file of another");
    waiter_start_accepter(&waiter, listener, weir_after_ms(5000));
    int peer = rig_connect(listener);
    cr_assert_eq(waiter_join(&waiter), 0);
    close(peer);
    cr_assert_eq(weir_listener_close(listener, count_closed, &closed), 0);
    cr_assert(RIG_UNTIL(atomic_load(&closed) == 1, 5000));
    cr_assert_not(exists(path));
    rig_close(&rig);
}

Test(listener, what_is_wrong_is_refused_and_leaves_nothing, .timeout = 30)
{
    struct rig rig;
    weir_listen_options options = WEIR_LISTEN_OPTIONS_INIT;
    weir_listener *listener = NULL, *first;
    weir_socket *socket;
    char address[WEIR_ADDRESS_TEXT_MAX];

    rig_open(&rig, 1);
    first = listen_on(&rig, "127.0.0.1:0", NULL, NULL);
    rig_address(first, address);
    int fds = support_count_fds();
    cr_assert_eq(weir_listen(NULL, address, NULL, NULL, NULL, &listener), -EINVAL);
    cr_assert_eq(weir_listen(rig.runtime, NULL, NULL, NULL, NULL, &listener), -EINVAL);
    cr_assert_eq(weir_listen(rig.runtime, "localhost:80", NULL, NULL, NULL, &listener), -EINVAL);
    cr_assert_eq(weir_listen(rig.runtime, address, NULL, NULL, NULL, NULL), -EINVAL);
    cr_assert_eq(weir_listen(rig.runtime, address, NULL, NULL, NULL, &listener), -EADDRINUSE);
    cr_assert_eq(weir_listen(rig.runtime, "192.0.2.1:0", NULL, NULL, NULL, &listener),
                 -EADDRNOTAVAIL);
    cr_assert_eq(weir_listen(rig.runtime, "unix:/nowhere/at/all", NULL, NULL, NULL, &listener),
                 -ENOENT);
    options.size = 1;
    cr_assert_eq(weir_listen(rig.runtime, "127.0.0.1:0", &options, NULL, NULL, &listener),
                 -EINVAL);
    cr_assert_null(listener);
    cr_assert_eq(support_count_fds(), fds);
    cr_assert_eq(weir_close((weir_socket *)first, NULL, NULL), -EINVAL, "not a socket");
    cr_assert_eq(weir_accept_wait(NULL, &socket, WEIR_NEVER), -EINVAL);
    cr_assert_eq(weir_listener_close(NULL, NULL, NULL), -EINVAL);
    rig_close(&rig);
}
