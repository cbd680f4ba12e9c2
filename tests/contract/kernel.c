/* kernel.c: what poller.h promises where only real descriptors can show it. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include "os/clock.h"
#include "rig.h"
#include "support/fds.h"

#define MS 1000000
#define ALL (WR_POLL_IN | WR_POLL_OUT | WR_POLL_HUP)

/* A connected TCP pair over the loopback; ours is non-blocking. */
static void tcp_pair(int ret_pair[2])
{
    struct sockaddr_in address = { .sin_family = AF_INET,
                                   .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t length = sizeof(address);
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    cr_assert_eq(bind(listener, (struct sockaddr *)&address, sizeof(address)), 0);
    cr_assert_eq(listen(listener, 1), 0);
    cr_assert_eq(getsockname(listener, (struct sockaddr *)&address, &length), 0);
    ret_pair[1] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    cr_assert_eq(connect(ret_pair[1], (struct sockaddr *)&address, sizeof(address)), 0);
    ret_pair[0] = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    cr_assert_geq(ret_pair[0], 0);
    close(listener);
}

static size_t read_all(int fd, bool *ret_end)
{
    char buffer[4096];
    size_t total = 0;
    ssize_t got;

    while ((got = recv(fd, buffer, sizeof(buffer), 0)) > 0)
        total += (size_t)got;
    *ret_end = got == 0;
    return total;
}

EVERY_KERNEL_BACKEND(tail_data_before_fin_can_be_read_to_the_end)
{
    enum { TAIL = 100 * 1024 };
    static char data[TAIL];
    size_t sent = 0, got = 0;
    bool end = false;
    int pair[2];

    tcp_pair(pair);
    cr_assert_eq(rig_attach(rig, pair[0], 7, WR_POLL_EDGE), 0);
    rig_bits(rig, 7, NULL);
    while (sent < TAIL) {
        ssize_t n = send(pair[1], data + sent, TAIL - sent, MSG_NOSIGNAL);
        cr_assert_gt(n, 0);
        sent += (size_t)n;
    }
    cr_assert_eq(shutdown(pair[1], SHUT_WR), 0);
    while (!end) {
        uint32_t bits = rig_await(rig, 7);
        cr_assert(bits & WR_POLL_IN, "%zu bytes of the tail came, then silence", got);
        got += read_all(pair[0], &end);
    }
    cr_assert_eq(got, TAIL);
    cr_assert_eq(send(pair[0], "x", 1, MSG_NOSIGNAL), 1, "our side must go on after a half close");
    close(pair[0]);
    close(pair[1]);
}

EVERY_KERNEL_BACKEND(a_reset_is_ready_for_everything_once)
{
    struct linger linger = { 1, 0 };
    char byte;
    int pair[2];

    tcp_pair(pair);
    cr_assert_eq(rig_attach(rig, pair[0], 7, WR_POLL_EDGE), 0);
    rig_bits(rig, 7, NULL);
    cr_assert_eq(setsockopt(pair[1], SOL_SOCKET, SO_LINGER, &linger, sizeof(linger)), 0);
    close(pair[1]);
    cr_assert_eq(rig_await(rig, 7) & ~(uint32_t)WR_POLL_ERROR, ALL);
    cr_assert_eq(rig_look(rig), 0);
    cr_assert_eq(recv(pair[0], &byte, 1, 0), -1);
    cr_assert_eq(errno, ECONNRESET);
    close(pair[0]);
}

/* Of a pipe the kernel says EPOLLHUP or EPOLLERR alone. */
EVERY_KERNEL_BACKEND(the_end_of_a_pipe_that_is_left_alone_is_ready)
{
    for (int mode = WR_POLL_EDGE; mode <= WR_POLL_ONESHOT; mode++) {
        for (int ours = 0; ours < 2; ours++) {
            int ends[2];
            cr_assert_eq(pipe2(ends, O_NONBLOCK | O_CLOEXEC), 0);
            cr_assert_eq(rig_attach(rig, ends[ours], 7, (enum wr_poll_mode)mode), 0);
            close(ends[1 - ours]);
            if (mode == WR_POLL_ONESHOT)
                cr_assert_eq(rig_rearm(rig, ends[ours], 7, ours ? WR_POLL_OUT : WR_POLL_IN), 0);
            cr_assert_eq(rig_bits(rig, 7, NULL), ALL);
            cr_assert_eq(rig_look(rig), 0);
            cr_assert_eq(rig_detach(rig, ends[ours], 7), 0);
            close(ends[ours]);
        }
    }
}

EVERY_KERNEL_BACKEND(both_directions_have_edges_of_their_own)
{
    static char data[65536];
    bool end;
    int pair[2];

    cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair), 0);
    cr_assert_eq(rig_attach(rig, pair[0], 7, WR_POLL_EDGE), 0);
    rig_bits(rig, 7, NULL);
    while (send(pair[0], data, sizeof(data), MSG_NOSIGNAL) > 0)
        continue;
    rig_bits(rig, 7, NULL);
    cr_assert_eq(send(pair[1], "x", 1, MSG_NOSIGNAL), 1);
    cr_assert_eq(rig_bits(rig, 7, NULL), WR_POLL_IN, "full, and something came in");
    read_all(pair[1], &end);
    cr_assert(rig_bits(rig, 7, NULL) & WR_POLL_OUT, "there is room again and nobody said so");
    close(pair[0]);
    close(pair[1]);
}

EVERY_KERNEL_BACKEND(a_duplicate_that_stays_open_does_not_speak_after_detach)
{
    for (int mode = WR_POLL_EDGE; mode <= WR_POLL_ONESHOT; mode++) {
        int pair[2];
        cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair), 0);
        int duplicate = dup(pair[0]);
        cr_assert_eq(rig_attach(rig, pair[0], 7, (enum wr_poll_mode)mode), 0);
        if (mode == WR_POLL_ONESHOT)
            cr_assert_eq(rig_rearm(rig, pair[0], 7, WR_POLL_IN), 0);
        rig_bits(rig, 7, NULL);
        cr_assert_eq(rig_detach(rig, pair[0], 7), 0);
        close(pair[0]);
        cr_assert_eq(send(pair[1], "x", 1, MSG_NOSIGNAL), 1);
        cr_assert_eq(rig_look(rig), 0, "mode %d: the duplicate keeps firing", mode);
        close(pair[1]);
        cr_assert_eq(rig_look(rig), 0, "mode %d", mode);
        close(duplicate);
    }
}

/* The description is its owner's: a back end that held it would keep the connection open. */
EVERY_KERNEL_BACKEND(an_armed_watch_does_not_hold_open_what_its_owner_closes)
{
    struct pollfd peer = { .events = POLLRDHUP };
    int pair[2];

    cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair), 0);
    peer.fd = pair[1];
    cr_assert_eq(rig_attach(rig, pair[0], 7, WR_POLL_ONESHOT), 0);
    cr_assert_eq(rig_rearm(rig, pair[0], 7, WR_POLL_IN), 0);
    rig_look(rig);
    close(pair[0]);
    cr_assert_eq(poll(&peer, 1, 0), 1, "the peer was not told");
    rig_detach(rig, pair[0], 7);
    close(pair[1]);
}

/* One descriptor, one name: also when one asks for edges and the other for a single shot. */
EVERY_KERNEL_BACKEND(a_descriptor_is_attached_once_whatever_the_mode)
{
    int pair[2];

    cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair), 0);
    for (int mode = WR_POLL_EDGE; mode <= WR_POLL_ONESHOT; mode++) {
        int other = mode == WR_POLL_EDGE ? WR_POLL_ONESHOT : WR_POLL_EDGE;
        cr_assert_eq(rig_attach(rig, pair[0], 7, (enum wr_poll_mode)mode), 0);
        cr_assert_eq(rig_attach(rig, pair[0], 8, (enum wr_poll_mode)other), -EEXIST);
        cr_assert_eq(rig_detach(rig, pair[0], 8), -ENOENT);
        cr_assert_eq(rig_detach(rig, pair[0], 7), 0);
        rig_look(rig);
    }
    close(pair[0]);
    close(pair[1]);
}

EVERY_KERNEL_BACKEND(a_watch_whose_owner_keeps_a_duplicate_speaks_once_at_most)
{
    weir_time deadline = wr_clock_now() + 100 * MS;
    unsigned events = 0;
    int pair[2];

    cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair), 0);
    int duplicate = dup(pair[0]);
    cr_assert_eq(rig_attach(rig, pair[0], 7, WR_POLL_ONESHOT), 0);
    cr_assert_eq(rig_rearm(rig, pair[0], 7, WR_POLL_IN), 0);
    close(pair[0]);
    int result = rig_detach(rig, pair[0], 7);
    cr_assert(result == -ENOENT || result == -EBADF, "%d", result);
    cr_assert_eq(send(pair[1], "x", 1, MSG_NOSIGNAL), 1);
    close(pair[1]);
    unsigned returns = 0;
    while (wr_clock_now() < deadline) {
        int count = rig->ops->wait(rig->backend, rig->events, RIG_BATCH, deadline);
        cr_assert_geq(count, 0);
        events += (unsigned)count;
        returns++;
    }
    cr_assert_leq(events, 1);
    cr_assert_leq(returns, 4, "wait came back %u times", returns);
    close(duplicate);
}

EVERY_KERNEL_BACKEND(a_thousand_descriptors_come_in_one_batch)
{
    enum { PAIRS = 500 };
    static unsigned seen[2 * PAIRS];
    static int pairs[PAIRS][2];

    for (unsigned i = 0; i < PAIRS; i++) {
        cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pairs[i]),
                     0);
        cr_assert_eq(rig_attach(rig, pairs[i][0], 2 * i, WR_POLL_EDGE), 0);
        cr_assert_eq(rig_attach(rig, pairs[i][1], 2 * i + 1, WR_POLL_EDGE), 0);
    }
    cr_assert_eq(rig_look(rig), 2 * PAIRS);
    for (unsigned i = 0; i < 2 * PAIRS; i++)
        seen[rig->events[i].token]++;
    for (unsigned i = 0; i < PAIRS; i++) {
        cr_assert_eq(seen[2 * i], 1);
        cr_assert_eq(seen[2 * i + 1], 1);
        cr_assert_eq(rig_detach(rig, pairs[i][0], 2 * i), 0);
        cr_assert_eq(rig_detach(rig, pairs[i][1], 2 * i + 1), 0);
        close(pairs[i][0]);
        close(pairs[i][1]);
    }
    cr_assert_eq(rig_look(rig), 0);
}

static void ignore(int number)
{
    (void)number;
}

/* Interrupts until told to stop: one signal may come before the wait and be lost. */
struct pest {
    pthread_t victim;
    _Atomic bool stop;
};

static void *interrupt(void *argument)
{
    struct pest *pest = argument;
    struct timespec pause = { 0, 2 * MS };

    while (!pest->stop) {
        pthread_kill(pest->victim, SIGUSR1);
        nanosleep(&pause, NULL);
    }
    return NULL;
}

EVERY_KERNEL_BACKEND(a_signal_is_no_error_and_no_event)
{
    static struct pest pest;
    struct sigaction action = { .sa_handler = ignore };
    weir_time limit = wr_clock_now() + 10000 * (weir_time)MS;
    pthread_t thread;

    cr_assert_eq(sigaction(SIGUSR1, &action, NULL), 0);
    pest.victim = pthread_self();
    cr_assert_eq(pthread_create(&thread, NULL, interrupt, &pest), 0);
    errno = 4711;
    for (int i = 0; i < 5; i++)
        cr_assert_eq(rig->ops->wait(rig->backend, rig->events, RIG_BATCH, limit), 0);
    cr_assert_lt(wr_clock_now(), limit, "no wait was interrupted");
    cr_assert_eq(errno, 4711);
    pest.stop = true;
    pthread_join(thread, NULL);
}

EVERY_KERNEL_BACKEND(errno_is_left_alone)
{
    int pair[2];

    cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair), 0);
    errno = 4711;
    cr_assert_eq(rig_attach(rig, pair[0], 7, WR_POLL_ONESHOT), 0);
    cr_assert_eq(rig_attach(rig, pair[0], 7, WR_POLL_ONESHOT), -EEXIST);
    cr_assert_eq(rig_attach(rig, 1999, 8, WR_POLL_EDGE), -EBADF);
    cr_assert_eq(rig_rearm(rig, pair[0], 7, WR_POLL_OUT), 0);
    cr_assert_eq(rig_look(rig), 1);
    cr_assert_eq(rig_look(rig), 0);
    rig->ops->doorbell(rig->backend);
    cr_assert_eq(rig_detach(rig, pair[0], 7), 0);
    cr_assert_eq(rig_detach(rig, pair[0], 7), -ENOENT);
    cr_assert_eq(errno, 4711);
    close(pair[0]);
    close(pair[1]);
}

EVERY_KERNEL_BACKEND(its_descriptors_do_not_survive_exec)
{
    unsigned own = 0;

    (void)rig;
    for (int fd = 3; fd < 256; fd++) {
        char path[64], name[64];
        snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
        ssize_t length = readlink(path, name, sizeof(name) - 1);
        if (length < 0)
            continue;
        name[length] = '\0';
        if (strncmp(name, "anon_inode:", 11) != 0)
            continue;
        own++;
        cr_assert(fcntl(fd, F_GETFD) & FD_CLOEXEC, "%s", name);
    }
    cr_assert_geq(own, 1);
}
