/* uring_probe.c: whether io_uring can be had here, found out by using it: filters may refuse any of
 * its three system calls, and only the kernel knows which operations it has. */
#include <errno.h>
#include <stdio.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

#include "os/clock.h"
#include "os/sock.h"
#include "poll/uring_private.h"

#define PATIENCE_NS 1000000000

/* One edge of a descriptor that nobody else knows. */
static int hear_one_edge(struct wr_poller_backend *backend, int fd)
{
    static const uint64_t one = 1;
    weir_time deadline = wr_clock_add(wr_clock_now(), PATIENCE_NS);
    struct wr_poll_event event;
    int count;

    if (write(fd, &one, sizeof one) != (ssize_t)sizeof one)
        return -errno;
    do
        count = wr_poll_uring.wait(backend, &event, 1, deadline);
    while (count == 0 && wr_clock_now() < deadline);
    if (count < 0)
        return count;
    return count > 0 && event.token == 1 && event.bits & WR_POLL_IN ? 0 : -ENOSYS;
}

static int try_ring(int fd)
{
    struct wr_poller_backend *backend;
    struct wr_alloc alloc;

    wr_alloc_init(&alloc, NULL);
    int r = wr_poll_uring.open(&backend, &alloc, 1);
    if (r < 0)
        return r;
    r = wr_poll_uring.attach(backend, fd, 1, WR_POLL_EDGE);
    /* Twice: a poll that reports once and ends is not what we need. */
    for (int edges = 0; edges < 2 && r == 0; edges++)
        r = hear_one_edge(backend, fd);
    wr_poll_uring.close(backend);
    return r;
}

/* Two pieces, the second of which finds the receive still armed. */
static int receive_two(struct wr_poller_backend *backend, int pair[2], struct wr_inbound *inbound)
{
    weir_time deadline = wr_clock_add(wr_clock_now(), PATIENCE_NS);
    struct wr_poll_event event;
    struct wr_buffer *buffer;
    int result, got = 0, count;

    while (got < 2 && wr_clock_now() < deadline) {
        if (write(pair[1], "x", 1) != 1)
            return -errno;
        do {
            count = wr_poll_uring.wait(backend, &event, 1, deadline);
            if (count < 0)
                return count;
        } while (wr_inbound_empty(inbound) && wr_clock_now() < deadline);
        if (wr_inbound_take(inbound, &buffer, &result) != WR_INBOUND_BUFFER)
            return -ENOSYS;
        got += buffer->length == 1;
        wr_poll_uring.give(backend, buffer);
    }
    return got == 2 ? 0 : -ENOSYS;
}

static int try_receive(int pair[2])
{
    struct wr_poller_backend *backend;
    struct wr_inbound *inbound = NULL;
    struct wr_alloc alloc;

    wr_alloc_init(&alloc, NULL);
    int r = wr_poll_uring.open(&backend, &alloc, 1);
    if (r < 0)
        return r;
    r = wr_poll_uring.provide(backend, 2);
    if (r == 0)
        r = wr_poll_uring.attach_receive(backend, pair[0], 1, WR_POLL_RECEIVE, &inbound);
    if (r == 0)
        r = receive_two(backend, pair, inbound);
    wr_poll_uring.close(backend);
    return r;
}

static void explain(int error, char ret_why[WR_WHY_MAX])
{
    struct rlimit limit = {0, 0};
    const char *what = "";

    switch (error) {
    case -EPERM:
        what = "not allowed: a seccomp filter, or sysctl kernel.io_uring_disabled";
        break;
    case -EACCES:
        what = "not allowed: a security module";
        break;
    case -ENOSYS:
    case -EINVAL:
        what = "this kernel, or a seccomp filter, does not have what is needed";
        break;
    case -ENOMEM:
        (void)getrlimit(RLIMIT_MEMLOCK, &limit);
        snprintf(ret_why, WR_WHY_MAX,
                 "io_uring was asked for; no memory for a ring: RLIMIT_MEMLOCK is %lld bytes "
                 "(errno %d)",
                 limit.rlim_cur == RLIM_INFINITY ? -1LL : (long long)limit.rlim_cur, ENOMEM);
        return;
    default:
        what = "it failed";
    }
    snprintf(ret_why, WR_WHY_MAX, "io_uring was asked for; %s (errno %d)", what, -error);
}

int wr_uring_probe(char ret_why[WR_WHY_MAX])
{
    int saved = errno;
    int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    int r = fd < 0 ? -errno : try_ring(fd);

    if (fd >= 0)
        close(fd);
    if (r < 0)
        explain(r, ret_why);
    else
        snprintf(ret_why, WR_WHY_MAX, "asked for");
    errno = saved;
    return r;
}

int wr_uring_probe_receive(char ret_why[WR_WHY_MAX])
{
    int saved = errno;
    int pair[2] = {-1, -1};
    int r = wr_sock_pair(pair);

    if (r == 0)
        r = try_receive(pair);
    for (int i = 0; i < 2; i++)
        if (pair[i] >= 0)
            close(pair[i]);
    if (r == -ENOSYS || r == -EINVAL)
        snprintf(ret_why, WR_WHY_MAX,
                 "this kernel has no multishot receive into rings of buffers (errno %d)", -r);
    else if (r < 0)
        snprintf(ret_why, WR_WHY_MAX, "it failed (errno %d)", -r);
    errno = saved;
    return r;
}
