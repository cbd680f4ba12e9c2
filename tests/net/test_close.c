/* How a socket ends: once, from anywhere, with FIN or RST as asked for, and nothing after it. */
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "net/net.h"
#include "os/fault.h"
#include "rig_wait.h"

static void count_closed(void *context)
{
    atomic_fetch_add((_Atomic unsigned *)context, 1);
}

#define AWAIT_ONE(counter) cr_assert(RIG_UNTIL(atomic_load(&(counter)) == 1, 5000))

Test(close, the_peer_sees_fin, .timeout = 30)
{
    struct rig rig;
    _Atomic unsigned closed = 0;
    weir_socket *socket;

    rig_open(&rig, 1);
    int peer = rig_tcp(&rig, NULL, &socket);
    cr_assert_eq(weir_write(socket, "bye", 3), 0);
    cr_assert_eq(weir_close(socket, count_closed, &closed), 0);
    cr_assert_eq(rig_peer_end(peer, 2000), 0);
    cr_assert_eq(atomic_load(&closed), 0, "the peer has not finished");
    close(peer);
    AWAIT_ONE(closed);
    rig_close(&rig);
}

Test(close, input_that_nobody_read_does_not_turn_fin_into_rst, .timeout = 30)
{
    static char unread[100000];
    struct rig rig;
    weir_socket *socket;
    char answer[6];

    rig_open(&rig, 1);
    int peer = rig_tcp(&rig, NULL, &socket);
    rig_peer_send(peer, unread, sizeof unread);
    cr_assert_eq(weir_write(socket, "answer", 6), 0);
    cr_assert_eq(weir_close(socket, NULL, NULL), 0);
    rig_sleep_ms(20); /* until a turn has had its chance */
    rig_peer_send(peer, unread, sizeof unread);
    rig_peer_receive(peer, answer, 6);
    cr_assert_eq(rig_peer_end(peer, 2000), 0);
    close(peer);
    rig_close(&rig);
}

/* The count of what is dropped stands where the reader's context stood. */
Test(close, a_reader_with_a_context_does_not_turn_fin_into_rst, .timeout = 30)
{
    static char unread[1000];
    struct rig rig;
    _Atomic unsigned closed = 0;
    weir_socket *socket;

    rig_open(&rig, 1);
    int peer = rig_tcp(&rig, NULL, &socket);
    cr_assert_eq(weir_read_start(socket, waiter_ignore, &rig), 0);
    cr_assert_eq(weir_read_stop(socket), 0);
    rig_peer_send(peer, unread, sizeof unread);
    cr_assert_eq(weir_close(socket, count_closed, &closed), 0);
    cr_assert_eq(rig_peer_end(peer, 2000), 0);
    rig_sleep_ms(20); /* until a turn has had its chance */
    rig_peer_send(peer, unread, sizeof unread);
    cr_assert_eq(atomic_load(&closed), 0, "cut short as if the peer had sent without end");
    close(peer);
    AWAIT_ONE(closed);
    rig_close(&rig);
}

Test(close, what_was_written_arrives_though_the_peer_finished_first, .timeout = 30)
{
    static char out[100000], in[100000];
    const int small = 4096;
    struct rig rig;
    _Atomic unsigned closed = 0;
    weir_socket *socket;

    rig_open(&rig, 1);
    int peer = rig_tcp(&rig, NULL, &socket);
    memset(out, 'o', sizeof out);
    cr_assert_eq(setsockopt(peer, SOL_SOCKET, SO_RCVBUF, &small, sizeof small), 0);
    shutdown(peer, SHUT_WR);
    cr_assert_eq(weir_write(socket, out, sizeof out), 0);
    cr_assert_eq(weir_close(socket, count_closed, &closed), 0);
    AWAIT_ONE(closed);
    rig_peer_receive(peer, in, sizeof in);
    cr_assert_arr_eq(in, out, sizeof in);
    cr_assert_eq(rig_peer_end(peer, 2000), 0);
    close(peer);
    rig_close(&rig);
}

Test(close, reset_sends_rst_and_drops_what_is_written, .timeout = 30)
{
    enum { SIZE = 4 << 20 };
    static char bytes[SIZE];
    struct rig rig;
    _Atomic unsigned closed = 0;
    weir_socket *socket;

    rig_open(&rig, 1);
    int peer = rig_tcp(&rig, NULL, &socket);
    cr_assert_eq(weir_write(socket, bytes, SIZE), 0);
    cr_assert_eq(weir_close(socket, count_closed, &closed), 0);
    rig_sleep_ms(20);
    cr_assert_eq(atomic_load(&closed), 0, "it flushes");
    cr_assert_eq(weir_reset(socket), 0, "cuts a close short");
    AWAIT_ONE(closed);
    cr_assert_eq(rig_peer_end(peer, 2000), -ECONNRESET);
    close(peer);
    rig_close(&rig);
}

Test(close, linger_bounds_a_close_whose_peer_stays, .timeout = 30)
{
    weir_socket_options options = WEIR_SOCKET_OPTIONS_INIT;
    enum { SIZE = 4 << 20 };
    static char bytes[SIZE];
    struct rig rig;
    _Atomic unsigned closed[2] = {0, 0};
    weir_socket *silent, *deaf;

    options.linger_ms = 150;
    rig_open(&rig, 1);
    int peer = rig_tcp(&rig, &options, &silent);  /* never finishes */
    int other = rig_tcp(&rig, &options, &deaf);   /* never reads */
    cr_assert_eq(weir_write(deaf, bytes, SIZE), 0);
    int64_t before = rig_now_ms();
    cr_assert_eq(weir_close(silent, count_closed, &closed[0]), 0);
    cr_assert_eq(weir_close(deaf, count_closed, &closed[1]), 0);
    AWAIT_ONE(closed[0]);
    AWAIT_ONE(closed[1]);
    cr_assert_geq(rig_now_ms() - before, 149);
    cr_assert_lt(rig_now_ms() - before, 150 + rig_patience(700));
    cr_assert_eq(rig_peer_end(peer, 2000), 0, "FIN came first");
    cr_assert_eq(rig_peer_end(other, 2000), -ECONNRESET);
    close(peer);
    close(other);
    rig_close(&rig);
}

Test(close, a_second_close_is_told_so, .timeout = 30) /* (F05) */
{
    struct rig rig;
    struct rig_op op;
    _Atomic unsigned closed = 0, wrong = 0;
    weir_socket *socket;
    char byte;

    rig_open(&rig, 1);
    int peer = rig_tcp(&rig, NULL, &socket);
    rig_op_init(&op);
    cr_assert_eq(weir_close(socket, count_closed, &closed), 0);
    cr_assert_eq(weir_close(socket, count_closed, &wrong), -EALREADY);
    cr_assert_eq(weir_close_wait(socket), -EALREADY);
    cr_assert_eq(weir_shutdown(socket), -ECANCELED);
    cr_assert_eq(weir_write(socket, "x", 1), -ECANCELED);
    cr_assert_eq(weir_recv(socket, &op.op, &byte, 1, WEIR_NEVER), -ECANCELED);
    cr_assert_eq(weir_recv_wait(socket, &byte, 1, WEIR_NEVER), -ECANCELED);
    cr_assert_eq(weir_read_start(socket, waiter_ignore, NULL), -ECANCELED);
    cr_assert_eq(weir_read_deadline(socket, WEIR_NEVER), -ECANCELED);
    cr_assert_eq(weir_reset(socket), 0);
    close(peer);
    AWAIT_ONE(closed);
    rig_close(&rig);
    cr_assert_eq(atomic_load(&closed), 1);
    cr_assert_eq(atomic_load(&wrong), 0);
    cr_assert_eq(weir_close(NULL, NULL, NULL), -EINVAL);
}

struct racer {
    pthread_t thread;
    pthread_barrier_t *barrier;
    weir_socket *_Atomic *socket;
    _Atomic unsigned *closed;
    unsigned rounds, won;
};

static void *race_main(void *argument)
{
    struct racer *racer = argument;

    for (unsigned i = 0; i < racer->rounds; i++) {
        pthread_barrier_wait(racer->barrier);
        int r = weir_close(atomic_load(racer->socket), count_closed, racer->closed);
        racer->won += r == 0;
        pthread_barrier_wait(racer->barrier);
    }
    return NULL;
}

Test(close, of_two_threads_that_close_one_wins, .timeout = 30) /* (F05, O5) */
{
    enum { ROUNDS = 300 };
    struct rig rig;
    struct racer racers[2];
    pthread_barrier_t barrier;
    weir_socket *_Atomic shared = NULL;
    _Atomic unsigned closed = 0;

    rig_open(&rig, 2);
    pthread_barrier_init(&barrier, NULL, 3);
    for (int i = 0; i < 2; i++) {
        racers[i] = (struct racer){.barrier = &barrier,
                                   .socket = &shared,
                                   .closed = &closed,
                                   .rounds = ROUNDS};
        cr_assert_eq(pthread_create(&racers[i].thread, NULL, race_main, &racers[i]), 0);
    }
    for (unsigned i = 0; i < ROUNDS; i++) {
        weir_socket *socket;
        int peer = rig_unix(&rig, NULL, &socket);
        atomic_store(&shared, socket);
        pthread_barrier_wait(&barrier);
        pthread_barrier_wait(&barrier); /* both have called: the peer keeps it alive until here */
        close(peer);
        cr_assert(RIG_UNTIL(atomic_load(&closed) == i + 1, 5000));
    }
    for (int i = 0; i < 2; i++)
        pthread_join(racers[i].thread, NULL);
    cr_assert_eq(racers[0].won + racers[1].won, ROUNDS);
    pthread_barrier_destroy(&barrier);
    rig_close(&rig);
    cr_assert_eq(atomic_load(&closed), ROUNDS);
}

Test(close, close_wait_returns_when_all_has_ended, .timeout = 30)
{
    struct rig rig;
    struct rig_op op;
    weir_socket *socket;
    char byte;

    rig_open(&rig, 1);
    int peer = rig_unix(&rig, NULL, &socket);
    rig_op_init(&op);
    cr_assert_eq(weir_recv(socket, &op.op, &byte, 1, WEIR_NEVER), -EINPROGRESS);
    shutdown(peer, SHUT_WR);
    cr_assert(rig_op_await(&op, 5000));
    rig_op_init(&op);
    cr_assert_eq(weir_close_wait(socket), 0);
    cr_assert_eq(rig_peer_end(peer, 100), 0);
    cr_assert(RIG_UNTIL(rig_stats(&rig).sources == 0, 1000));
    close(peer);
    rig_close(&rig);
}

/* ---- the descriptor ------------------------------------------------------------------ */

Test(close, a_duplicate_that_stays_open_does_not_keep_the_poller_awake, .timeout = 30) /* (F02) */
{
    struct rig rig;
    _Atomic unsigned closed = 0;
    int fds[2];
    weir_socket *socket;

    rig_open(&rig, 1);
    rig_tcp_pair(fds);
    int duplicate = fcntl(fds[0], F_DUPFD_CLOEXEC, 0);
    cr_assert_eq(weir_adopt(rig.runtime, fds[0], NULL, &socket), 0);
    cr_assert_eq(weir_read_start(socket, waiter_ignore, NULL), 0);
    cr_assert_eq(weir_close(socket, count_closed, &closed), 0);
    cr_assert_eq(weir_reset(socket), 0);
    AWAIT_ONE(closed);
    int other = rig_unix(&rig, NULL, &socket); /* takes the number */
    rig_sleep_ms(20);
    weir_stats before = rig_stats(&rig);
    for (int i = 0; i < 20; i++) {
        rig_peer_send(fds[1], "x", 1); /* for the duplicate */
        rig_sleep_ms(1);
    }
    weir_stats after = rig_stats(&rig);
    cr_assert_leq(after.events, before.events, "events of a socket that is closed");
    cr_assert_leq(after.waits, before.waits + 1);
    cr_assert_eq(after.stale_drops, before.stale_drops);
    close(duplicate);
    close(fds[1]);
    close(other);
    rig_close(&rig);
}

#ifdef WEIR_FAULTS
static _Atomic int closes, watched_closes;

static int count_closes(enum wr_fault_call call)
{
    if (call == WR_FAULT_CLOSE && atomic_load(&watched_closes))
        atomic_fetch_add(&closes, 1);
    return 0;
}
#endif

/* Reset mid-flight by their peers, closed by us twice and by a deadline: one close(2) each. */
Test(close, each_descriptor_is_closed_once, .timeout = 30) /* (F15) */
{
#ifndef WEIR_FAULTS
    cr_skip_test("this build has no seam");
#else
    enum { COUNT = 200 };
    weir_socket_options options = WEIR_SOCKET_OPTIONS_INIT;
    struct linger linger = {.l_onoff = 1};
    static weir_socket *sockets[COUNT];
    static int peers[COUNT];
    _Atomic unsigned closed = 0;
    struct rig rig;

    wr_fault_hook = count_closes;
    options.linger_ms = 50;
    rig_open(&rig, 2);
    for (int i = 0; i < COUNT; i++) {
        peers[i] = rig_tcp(&rig, &options, &sockets[i]);
        cr_assert_eq(weir_read_start(sockets[i], waiter_ignore, NULL), 0);
        cr_assert_eq(weir_write(sockets[i], "response", 8), 0);
    }
    atomic_store(&watched_closes, 1);
    for (int i = 0; i < COUNT; i++) {
        setsockopt(peers[i], SOL_SOCKET, SO_LINGER, &linger, sizeof linger);
        if (i % 3 == 0)
            cr_assert_eq(weir_close(sockets[i], count_closed, &closed), 0);
        close(peers[i]);
        if (i % 3 != 0)
            cr_assert_eq(weir_close(sockets[i], count_closed, &closed), 0);
        peers[i] = open("/dev/null", O_RDONLY | O_CLOEXEC); /* who takes the number is not hurt */
    }
    cr_assert(RIG_UNTIL(atomic_load(&closed) == COUNT, 5000));
    rig_sleep_ms(80);
    cr_assert_eq(atomic_load(&closes), COUNT);
    for (int i = 0; i < COUNT; i++) {
        cr_assert_geq(fcntl(peers[i], F_GETFD), 0, "number %d of somebody else is gone", peers[i]);
        close(peers[i]);
    }
    rig_close(&rig);
#endif
}
