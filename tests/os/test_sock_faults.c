/* Each wrapper has a seam: a call can be made to fail or to be interrupted at any use of it. */
#include "os/sock.h"

#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <unistd.h>

#include "os/fault.h"
#include "support/fds.h"
#include "support/test.h"

#ifdef WEIR_FAULTS

static enum wr_fault_call fault_call;
static int fault_error;
static unsigned fault_seen;

/* Fails the first use of one call. */
static int fail_first(enum wr_fault_call call)
{
    if (call != fault_call)
        return 0;
    return fault_seen++ == 0 ? fault_error : 0;
}

/* Two connected stream ends with a byte to be read at b, a listener with somebody waiting. */
struct rig {
    int a, b, listening, client, fresh;
    int file;
    struct sockaddr_in at;
};

static void rig_init(struct rig *rig)
{
    int ends[2];
    socklen_t length = sizeof rig->at;
    wr_fault_hook = NULL;
    cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    rig->a = ends[0];
    rig->b = ends[1];
    cr_assert_eq(write(rig->a, "x", 1), 1);
    rig->at = (struct sockaddr_in){ .sin_family = AF_INET,
                                    .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    rig->listening = socket(AF_INET, SOCK_STREAM, 0);
    rig->client = socket(AF_INET, SOCK_STREAM, 0);
    rig->fresh = socket(AF_INET, SOCK_STREAM, 0);
    cr_assert_eq(bind(rig->listening, (struct sockaddr *)&rig->at, sizeof rig->at), 0);
    cr_assert_eq(listen(rig->listening, 4), 0);
    cr_assert_eq(getsockname(rig->listening, (struct sockaddr *)&rig->at, &length), 0);
    cr_assert_eq(connect(rig->client, (struct sockaddr *)&rig->at, sizeof rig->at), 0);
    struct pollfd one = { .fd = rig->listening, .events = POLLIN };
    cr_assert_eq(poll(&one, 1, 10000), 1);
    char path[] = "/tmp/weir-faults-XXXXXX";
    rig->file = mkstemp(path);
    cr_assert_geq(rig->file, 0);
    (void)unlink(path);
    cr_assert_eq(write(rig->file, "y", 1), 1);
}

static void rig_fini(struct rig *rig)
{
    wr_fault_hook = NULL;
    int fds[] = { rig->a, rig->b, rig->listening, rig->client, rig->fresh, rig->file };
    for (size_t i = 0; i < sizeof fds / sizeof *fds; i++)
        (void)close(fds[i]);
}

/* A new descriptor is of no use to the test: only that it came. */
static long drop(int fd)
{
    return fd < 0 ? fd : close(fd);
}

static long use_open(struct rig *rig)
{
    (void)rig;
    return drop(wr_sock_open(AF_INET, SOCK_STREAM));
}

static long use_bind(struct rig *rig)
{
    struct sockaddr_in any = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    return wr_sock_bind(rig->fresh, (struct sockaddr *)&any, sizeof any);
}

static long use_listen(struct rig *rig)
{
    return wr_sock_listen(rig->listening, 5);
}

static long use_accept(struct rig *rig)
{
    return drop(wr_sock_accept(rig->listening, NULL, NULL));
}

static long use_connect(struct rig *rig)
{
    int r = wr_sock_connect(rig->fresh, (struct sockaddr *)&rig->at, sizeof rig->at);
    return r == -EINPROGRESS ? 0 : r;
}

static long use_recv(struct rig *rig)
{
    char byte;
    return wr_sock_recv(rig->b, &byte, 1);
}

static long use_recvfrom(struct rig *rig)
{
    char byte;
    struct sockaddr_storage from;
    socklen_t length;
    return wr_sock_recvfrom(rig->b, &byte, 1, &from, &length);
}

static long use_send(struct rig *rig)
{
    return wr_sock_send(rig->a, "x", 1);
}

static long use_sendto(struct rig *rig)
{
    return wr_sock_sendto(rig->a, "x", 1, NULL, 0);
}

static long use_sendv(struct rig *rig)
{
    struct iovec piece = { .iov_base = "x", .iov_len = 1 };
    return wr_sock_sendv(rig->a, &piece, 1);
}

static long use_send_file(struct rig *rig)
{
    int64_t offset = 0;
    ssize_t r = wr_sock_send_file(rig->a, rig->file, &offset, 1);
    cr_assert_eq(offset, r > 0 ? r : 0);
    return r;
}

static long use_error(struct rig *rig)
{
    return wr_sock_error(rig->a);
}

static long use_type(struct rig *rig)
{
    return wr_sock_type(rig->a);
}

static long use_is_listening(struct rig *rig)
{
    return wr_sock_is_listening(rig->a);
}

static long use_linger(struct rig *rig)
{
    return wr_sock_set_linger_reset(rig->fresh);
}

static long use_nodelay(struct rig *rig)
{
    return wr_sock_set_nodelay(rig->fresh);
}

static long use_reuse(struct rig *rig)
{
    return wr_sock_set_reuse(rig->fresh, true);
}

static long use_name(struct rig *rig)
{
    struct sockaddr_storage name;
    socklen_t length;
    return wr_sock_name(rig->a, &name, &length);
}

static long use_peer(struct rig *rig)
{
    struct sockaddr_storage name;
    socklen_t length;
    return wr_sock_peer(rig->a, &name, &length);
}

static long use_shutdown(struct rig *rig)
{
    return wr_sock_shutdown(rig->a, SHUT_WR);
}

static long use_nonblocking(struct rig *rig)
{
    return wr_sock_set_nonblocking(rig->fresh, true);
}

static long use_reserve(struct rig *rig)
{
    (void)rig;
    return drop(wr_sock_reserve_fd());
}

static long use_close(struct rig *rig)
{
    int fd = rig->fresh;
    rig->fresh = -1;
    return wr_sock_close(fd);
}

#define FAST (1U << 31)         /* the kernel never interrupts it */

static const struct use {
    const char *name;
    enum wr_fault_call call;
    long (*run)(struct rig *rig);
    unsigned calls;             /* after one that was interrupted */
} uses[] = {
    { "open", WR_FAULT_SOCKET, use_open, 2 },
    { "bind", WR_FAULT_BIND, use_bind, 2 },
    { "listen", WR_FAULT_LISTEN, use_listen, 2 },
    { "accept", WR_FAULT_ACCEPT, use_accept, 2 },
    { "connect", WR_FAULT_CONNECT, use_connect, 1 },
    { "recv", WR_FAULT_RECV, use_recv, 2 },
    { "recvfrom", WR_FAULT_RECV, use_recvfrom, 2 },
    { "send", WR_FAULT_SEND, use_send, 2 },
    { "sendto", WR_FAULT_SEND, use_sendto, 2 },
    { "sendv", WR_FAULT_SEND, use_sendv, 2 },
    { "send_file", WR_FAULT_SENDFILE, use_send_file, 2 },
    { "error", WR_FAULT_SOCKOPT, use_error, 2 },
    { "type", WR_FAULT_SOCKOPT, use_type, 2 },
    { "is_listening", WR_FAULT_SOCKOPT, use_is_listening, 2 },
    { "linger", WR_FAULT_SOCKOPT, use_linger, 2 },
    { "nodelay", WR_FAULT_SOCKOPT, use_nodelay, 2 },
    { "reuse", WR_FAULT_SOCKOPT, use_reuse, 3 },
    { "name", WR_FAULT_NAME, use_name, 2 },
    { "peer", WR_FAULT_NAME, use_peer, 2 },
    { "shutdown", WR_FAULT_SHUTDOWN, use_shutdown, 2 },
    { "close", WR_FAULT_CLOSE, use_close, 1 },
    { "nonblocking", WR_FAULT_FCNTL, use_nonblocking, FAST },
    { "reserve", WR_FAULT_EVENTFD, use_reserve, FAST },
};

#define USES (sizeof uses / sizeof *uses)

static long run_with_fault(const struct use *use, int error)
{
    struct rig rig;
    rig_init(&rig);
    fault_call = use->call;
    fault_error = error;
    fault_seen = 0;
    wr_fault_hook = fail_first;
    errno = ENOENT;
    long r = use->run(&rig);
    cr_assert_eq(errno, ENOENT, "%s changed errno", use->name);
    rig_fini(&rig);
    return r;
}

Test(sock_faults, every_wrapper_returns_the_errno_it_got_and_keeps_the_callers, .timeout = 30)
{
    int before = support_count_fds();
    for (size_t i = 0; i < USES; i++) {
        cr_assert_eq(run_with_fault(&uses[i], ENOBUFS), -ENOBUFS, "%s", uses[i].name);
        cr_assert_eq(fault_seen, 1, "%s tried again", uses[i].name);
    }
    cr_assert_eq(support_count_fds(), before);
}

Test(sock_faults, every_wrapper_works_when_nothing_fails, .timeout = 30)
{
    for (size_t i = 0; i < USES; i++) {
        cr_assert_geq(run_with_fault(&uses[i], 0), 0, "%s", uses[i].name);
        cr_assert_geq(fault_seen, 1, "%s has no seam", uses[i].name);
    }
}

Test(sock_faults, an_interrupted_call_is_tried_again_but_for_connect_and_close, .timeout = 30)
{
    for (size_t i = 0; i < USES; i++) {
        if (uses[i].calls == FAST)
            continue;
        cr_assert_geq(run_with_fault(&uses[i], EINTR), 0, "%s", uses[i].name);
        cr_assert_eq(fault_seen, uses[i].calls, "%s called %u times", uses[i].name, fault_seen);
    }
}

Test(sock_faults, a_close_that_fails_has_closed_all_the_same, .timeout = 30)
{
    struct rig rig;
    rig_init(&rig);
    int before = support_count_fds();
    fault_call = WR_FAULT_CLOSE;
    fault_error = EIO;
    fault_seen = 0;
    wr_fault_hook = fail_first;
    cr_assert_eq(use_close(&rig), -EIO);
    cr_assert_eq(support_count_fds(), before - 1);
    rig_fini(&rig);
}

Test(sock_faults, an_interrupted_connect_goes_on_in_the_background, .timeout = 30)
{
    struct rig rig;
    rig_init(&rig);
    fault_call = WR_FAULT_CONNECT;
    fault_error = EINTR;
    fault_seen = 0;
    wr_fault_hook = fail_first;
    cr_assert_eq(wr_sock_connect(rig.fresh, (struct sockaddr *)&rig.at, sizeof rig.at),
                 -EINPROGRESS);
    struct pollfd one = { .fd = rig.fresh, .events = POLLOUT };
    cr_assert_eq(poll(&one, 1, 10000), 1);
    cr_assert_eq(wr_sock_error(rig.fresh), 0);
    struct sockaddr_storage peer;
    socklen_t length;
    cr_assert_eq(wr_sock_peer(rig.fresh, &peer, &length), 0);
    rig_fini(&rig);
}

#else

Test(sock_faults, need_a_build_with_faults, .timeout = 30)
{
    cr_skip_test("built without WEIR_FAULTS");
}

#endif
