/* A write to a peer that is gone must not kill the host: default disposition, every writer. */
#include "os/sock.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <unistd.h>

#include "support/test.h"

#define PATIENCE_MS 10000
/* The first writes may still be told of the reset. */
#define WRITES_MAX 4

static int file = -1;

static ssize_t by_send(int fd)
{
    return wr_sock_send(fd, "x", 1);
}

static ssize_t by_sendto(int fd)
{
    return wr_sock_sendto(fd, "x", 1, NULL, 0);
}

static ssize_t by_sendv(int fd)
{
    struct iovec piece = { .iov_base = "x", .iov_len = 1 };
    return wr_sock_sendv(fd, &piece, 1);
}

static ssize_t by_send_file(int fd)
{
    int64_t offset = 0;
    return wr_sock_send_file(fd, file, &offset, 1);
}

static ssize_t (*const writers[])(int fd) = { by_send, by_sendto, by_sendv, by_send_file };
#define WRITERS (sizeof writers / sizeof *writers)

static void set_up(void)
{
    char path[] = "/tmp/weir-sigpipe-XXXXXX";
    file = mkostemp(path, O_CLOEXEC);
    cr_assert_geq(file, 0);
    (void)unlink(path);
    cr_assert_eq(write(file, "x", 1), 1);
    cr_assert_neq(signal(SIGPIPE, SIG_DFL), SIG_ERR);
    sigset_t none;
    sigemptyset(&none);
    cr_assert_eq(pthread_sigmask(SIG_SETMASK, &none, NULL), 0);
}

/* A TCP connection that the peer has reset. */
static int reset_tcp(void)
{
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t length = sizeof at;
    int listening = socket(AF_INET, SOCK_STREAM, 0), fd = socket(AF_INET, SOCK_STREAM, 0);
    cr_assert_eq(bind(listening, (struct sockaddr *)&at, sizeof at), 0);
    cr_assert_eq(listen(listening, 1), 0);
    cr_assert_eq(getsockname(listening, (struct sockaddr *)&at, &length), 0);
    cr_assert_eq(connect(fd, (struct sockaddr *)&at, sizeof at), 0);
    int peer = accept(listening, NULL, NULL);
    cr_assert_geq(peer, 0);
    cr_assert_eq(wr_sock_set_linger_reset(peer), 0);
    (void)close(peer);
    (void)close(listening);
    struct pollfd one = { .fd = fd, .events = POLLIN };
    cr_assert_eq(poll(&one, 1, PATIENCE_MS), 1);
    cr_assert_eq(wr_sock_set_nonblocking(fd, true), 0);
    return fd;
}

static int closed_unix(void)
{
    int ends[2];
    cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends), 0);
    (void)close(ends[1]);
    return ends[0];
}

static bool pending(void)
{
    sigset_t set;
    cr_assert_eq(sigpending(&set), 0);
    return sigismember(&set, SIGPIPE) == 1;
}

static bool blocked(void)
{
    sigset_t set;
    cr_assert_eq(pthread_sigmask(SIG_SETMASK, NULL, &set), 0);
    return sigismember(&set, SIGPIPE) == 1;
}

static void block(void)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGPIPE);
    cr_assert_eq(pthread_sigmask(SIG_BLOCK, &set, NULL), 0);
}

static void write_until_epipe(int fd, size_t writer)
{
    ssize_t r = 0;
    errno = ENOENT;
    for (int i = 0; i < WRITES_MAX && r != -EPIPE; i++)
        r = writers[writer](fd);
    cr_assert_eq(r, -EPIPE, "writer %zu got %zd", writer, r);
    cr_assert_eq(errno, ENOENT);
}

Test(sigpipe, no_writer_raises_it_with_the_default_disposition, .init = set_up, .timeout = 30)
{
    for (size_t i = 0; i < WRITERS; i++) {
        int tcp = reset_tcp(), local = closed_unix();
        write_until_epipe(tcp, i);
        write_until_epipe(local, i);
        cr_assert_not(blocked());
        (void)close(tcp);
        (void)close(local);
    }
}

Test(sigpipe, a_thread_that_blocks_it_finds_none_pending, .init = set_up, .timeout = 30)
{
    block();
    for (size_t i = 0; i < WRITERS; i++) {
        int tcp = reset_tcp(), local = closed_unix();
        write_until_epipe(tcp, i);
        write_until_epipe(local, i);
        cr_assert_not(pending(), "writer %zu left it pending", i);
        cr_assert(blocked());
        (void)close(tcp);
        (void)close(local);
    }
}

Test(sigpipe, one_that_was_pending_before_is_not_taken, .init = set_up, .timeout = 30)
{
    block();
    cr_assert_eq(raise(SIGPIPE), 0);
    for (size_t i = 0; i < WRITERS; i++) {
        int local = closed_unix();
        write_until_epipe(local, i);
        cr_assert(pending(), "writer %zu took it", i);
        (void)close(local);
    }
}

Test(sigpipe, a_file_sent_well_takes_no_signal, .init = set_up, .timeout = 30)
{
    int ends[2];
    cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends), 0);
    cr_assert_eq(by_send_file(ends[0]), 1);
    cr_assert_not(blocked());
    block();
    cr_assert_eq(raise(SIGPIPE), 0);
    cr_assert_eq(by_send_file(ends[0]), 1);
    cr_assert(pending());
    (void)close(ends[0]);
    (void)close(ends[1]);
}
