/* Closing inside callbacks, and while callbacks run elsewhere. */
#include <errno.h>
#include <unistd.h>

#include "net/net.h"
#include "rig_wait.h"

/* A connection object that dies with its socket: freed in closed(), so that any later touch or call
 * is a report of the sanitizer. */
struct object {
    weir_socket *socket;
    weir_op op, other;
    char byte, another;
    _Atomic unsigned *closed, *calls;
    int close_result;
};

static void free_object(void *context)
{
    struct object *object = context;

    atomic_fetch_add(object->closed, 1);
    memset(object, 0xa5, sizeof *object);
    free(object);
}

static void close_object(struct object *object)
{
    atomic_fetch_add(object->calls, 1);
    int r = weir_close(object->socket, free_object, object);
    cr_assert_eq(r, 0, "%d", r);
    cr_assert_eq(weir_close(object->socket, free_object, object), -EALREADY);
}

static void close_in_read(weir_socket *socket, const weir_view *view, int status, void *context)
{
    struct object *object = context;

    (void)view;
    (void)status;
    cr_assert_eq(weir_write(socket, "last words", 10), 0);
    close_object(object);
    cr_assert_eq(weir_write(socket, "more", 4), -ECANCELED);
}

static void close_in_op(weir_op *op, ssize_t result, void *context)
{
    struct object *object = context;

    (void)op;
    if (result != -ECANCELED)
        close_object(object);
}

static void closed_after_it(weir_op *op, ssize_t result, void *context)
{
    struct object *object = context;

    (void)op;
    cr_assert_eq(result, -ECANCELED);
    atomic_fetch_add(object->calls, 1);
}

static struct object *new_object(struct rig *rig, int *ret_peer, _Atomic unsigned *closed,
                                 _Atomic unsigned *calls)
{
    struct object *object = calloc(1, sizeof *object);

    cr_assert_not_null(object);
    object->closed = closed;
    object->calls = calls;
    *ret_peer = rig_tcp(rig, NULL, &object->socket);
    return object;
}

static void finish(struct rig *rig, int peer, _Atomic unsigned *closed)
{
    cr_assert_eq(rig_peer_end(peer, 5000), 0);
    close(peer);
    cr_assert(RIG_UNTIL(atomic_load(closed) == 1, 5000));
    rig_sleep_ms(5);
    rig_close(rig);
    cr_assert_eq(atomic_load(closed), 1);
}

Test(close_callback, in_a_read_callback, .timeout = 30) /* (F07) */
{
    struct rig rig;
    _Atomic unsigned closed = 0, calls = 0;
    int peer;
    char words[10];

    rig_open(&rig, 2);
    struct object *object = new_object(&rig, &peer, &closed, &calls);
    cr_assert_eq(weir_read_start(object->socket, close_in_read, object), 0);
    rig_peer_send(peer, "hello", 5);
    rig_peer_receive(peer, words, 10);
    cr_assert_arr_eq(words, "last words", 10);
    rig_peer_send(peer, "more", 4);
    finish(&rig, peer, &closed);
    cr_assert_eq(atomic_load(&calls), 1, "one callback, none after the close");
}

Test(close_callback, in_a_read_callback_with_more_ready, .timeout = 30) /* (F07) */
{
    struct rig rig;
    struct rig_busy busy;
    _Atomic unsigned closed = 0, calls = 0;
    int peer;

    rig_open(&rig, 1);
    struct object *object = new_object(&rig, &peer, &closed, &calls);
    cr_assert_eq(weir_read_start(object->socket, close_in_read, object), 0);
    cr_assert_eq(weir_read_deadline(object->socket, weir_after_ms(10)), 0);
    rig_busy_begin(&rig, &busy, 1); /* data, end and deadline are all there when the turn runs */
    static char bytes[100000];
    rig_peer_send(peer, bytes, sizeof bytes);
    shutdown(peer, SHUT_WR);
    rig_sleep_ms(rig_patience(40));
    rig_busy_end(&busy);
    finish(&rig, peer, &closed);
    cr_assert_eq(atomic_load(&calls), 1);
}

Test(close_callback, in_an_operation_callback, .timeout = 30) /* (F07) */
{
    struct rig rig;
    _Atomic unsigned closed = 0, calls = 0;
    int peer;

    rig_open(&rig, 2);
    struct object *object = new_object(&rig, &peer, &closed, &calls);
    weir_op_init(&object->op, close_in_op, object);
    weir_op_init(&object->other, closed_after_it, object);
    cr_assert_eq(weir_recv(object->socket, &object->op, &object->byte, 1, WEIR_NEVER),
                 -EINPROGRESS);
    cr_assert_eq(weir_recv(object->socket, &object->other, &object->another, 1, WEIR_NEVER),
                 -EINPROGRESS);
    rig_peer_send(peer, "x", 1);
    finish(&rig, peer, &closed);
    cr_assert_eq(atomic_load(&calls), 2, "the other operation ends, before closed()");
}

Test(close_callback, in_the_callback_of_a_passed_deadline, .timeout = 30) /* (F07) */
{
    struct rig rig;
    _Atomic unsigned closed = 0, calls = 0;
    int peer;

    rig_open(&rig, 2);
    struct object *object = new_object(&rig, &peer, &closed, &calls);
    weir_op_init(&object->op, close_in_op, object);
    cr_assert_eq(weir_recv(object->socket, &object->op, &object->byte, 1, weir_after_ms(10)),
                 -EINPROGRESS);
    finish(&rig, peer, &closed);
}

Test(close_callback, in_the_callback_of_an_error, .timeout = 30) /* (F07) */
{
    struct rig rig;
    struct linger linger = {.l_onoff = 1};
    _Atomic unsigned closed = 0, calls = 0;
    int peer;

    rig_open(&rig, 2);
    struct object *object = new_object(&rig, &peer, &closed, &calls);
    weir_op_init(&object->op, close_in_op, object);
    cr_assert_eq(weir_recv(object->socket, &object->op, &object->byte, 1, WEIR_NEVER),
                 -EINPROGRESS);
    setsockopt(peer, SOL_SOCKET, SO_LINGER, &linger, sizeof linger);
    close(peer);
    cr_assert(RIG_UNTIL(atomic_load(&closed) == 1, 5000));
    rig_close(&rig);
    cr_assert_eq(atomic_load(&calls), 1);
}

struct opener {
    struct rig rig;
    _Atomic bool done;
};

static void open_in_closed(void *context)
{
    struct opener *opener = context;
    weir_socket *socket;
    int fds[2];

    /* The memory of the one that has gone may be that of the next. */
    for (int i = 0; i < 100; i++) {
        cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
        cr_assert_eq(weir_adopt(opener->rig.runtime, fds[0], NULL, &socket), 0);
        close(fds[1]);
        int r = weir_close_wait(socket);
        cr_assert_eq(r, 0, "%d", r);
    }
    atomic_store(&opener->done, true);
}

Test(close_callback, closed_may_open_and_close_others, .timeout = 30)
{
    static struct opener opener;
    weir_options options = WEIR_OPTIONS_INIT;
    weir_socket *socket;

    options.pollers = 1;
    options.workers = 2;
    options.sources_max = 64;
    rig_open_with(&opener.rig, &options);
    int peer = rig_unix(&opener.rig, NULL, &socket);
    close(peer);
    cr_assert_eq(weir_close(socket, open_in_closed, &opener), 0);
    cr_assert(RIG_UNTIL(atomic_load(&opener.done), 10000));
    rig_close(&opener.rig);
}

static void own_close_wait(weir_socket *socket, const weir_view *view, int status, void *context)
{
    (void)view;
    (void)status;
    atomic_store((_Atomic int *)context, weir_close_wait(socket));
}

Test(close_callback, close_wait_on_the_own_socket_is_refused, .timeout = 30)
{
    struct rig rig;
    _Atomic int result = 1;
    weir_socket *socket;

    rig_open(&rig, 1);
    int peer = rig_unix(&rig, NULL, &socket);
    cr_assert_eq(weir_read_start(socket, own_close_wait, (void *)&result), 0);
    rig_peer_send(peer, "x", 1);
    cr_assert(RIG_UNTIL(atomic_load(&result) != 1, 5000));
    cr_assert_eq(atomic_load(&result), -EDEADLK);
    close(peer);
    rig_close(&rig);
}

/* ---- from elsewhere ------------------------------------------------------------------ */

struct running {
    _Atomic unsigned inside, ended, after;
    _Atomic bool closed;
    int spin;
};

static void run_a_while(weir_socket *socket, const weir_view *view, int status, void *context)
{
    struct running *running = context;

    (void)view;
    (void)status;
    if (atomic_load(&running->closed))
        atomic_fetch_add(&running->after, 1);
    atomic_fetch_add(&running->inside, 1);
    for (int i = 0; i < running->spin; i++)
        cr_assert_eq(weir_write_pending(socket), 0); /* the socket is there until we leave */
    atomic_fetch_add(&running->ended, 1);
}

static void mark_closed(void *context)
{
    struct running *running = context;

    if (atomic_load(&running->inside) != atomic_load(&running->ended))
        atomic_fetch_add(&running->after, 1);
    atomic_store(&running->closed, true);
}

Test(close_callback, while_a_callback_runs_elsewhere, .timeout = 30) /* (F06) */
{
    struct rig rig;

    rig_open(&rig, 2);
    unsigned rounds = 1000;
    for (unsigned round = 0; round < rounds; round++) {
        struct running running = {.spin = (int)(round % 50)};
        weir_socket *socket;
        int peer = rig_unix(&rig, NULL, &socket);
        cr_assert_eq(weir_read_start(socket, run_a_while, &running), 0);
        rig_peer_send(peer, "x", 1);
        weir_time until = weir_after_us(round % 40);
        while (weir_now() < until)
            ;
        cr_assert_eq(weir_close(socket, mark_closed, &running), 0);
        close(peer);
        cr_assert(RIG_UNTIL(atomic_load(&running.closed), 5000));
        cr_assert_eq(atomic_load(&running.after), 0);
    }
    rig_close(&rig);
}
