/* floor_epoll.c: what system calls alone cost. One epoll loop a thread (see floor.h).
 *
 *     floor_epoll [-m http|echo] [-t threads] [-a robin|reuseport] [-b bytes] port
 *
 * http counts "\r\n\r\n" in the byte stream and sends as many canned answers in one go; echo sends
 * back what it got. `robin` places connections in turn (the first loop accepts for all),
 * `reuseport` leaves the choice to the kernel's hash, which with few connections loads the loops
 * unevenly. */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "floor/floor.h"

enum { EVENTS_MAX = 512 };

static int epolls[FLOOR_THREADS_MAX];
/* One byte a descriptor: how much of "\r\n\r\n" has been seen. A number that is closed by one loop
 * may be opened by another: the kernel orders the two, which nobody but the kernel knows. */
static atomic_uchar *matched;
static size_t matched_count;

static void watch(int epoll, int fd, uint32_t events)
{
    struct epoll_event event = { .events = events, .data.fd = fd };
    if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) != 0)
        floor_die("epoll_ctl", errno);
}

static bool answer(int fd, const char *data, size_t length)
{
    floor_stick(data);
    if (floor_options.echo)
        return floor_send_all(fd, data, length);
    unsigned char seen = atomic_load_explicit(&matched[fd], memory_order_relaxed);
    size_t heads = bench_count_heads(&seen, data, length);
    atomic_store_explicit(&matched[fd], seen, memory_order_relaxed);
    return floor_send_answers(fd, heads);
}

/* One event of a connection. A read that does not fill the buffer has emptied the socket, which
 * saves the read that would say EAGAIN: the edge of what comes later is a new event. But the end
 * of the peer may have come in this very event. */
static void serve(int fd, bool ends, char *buffer, struct floor_counts *counts)
{
    for (;;) {
        ssize_t got = recv(fd, buffer, floor_options.buffer_size, 0);
        floor_count(&counts->receives, 1);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0 && errno == EAGAIN)
            return;
        if (got <= 0)
            break;
        size_t length = (size_t)got;
        floor_count(&counts->sends, 1);
        if (!answer(fd, buffer, length))
            break;
        if (length < floor_options.buffer_size && !ends)
            return;
    }
    close(fd);
}

static void accept_all(int listener, unsigned own, unsigned *turn)
{
    for (;;) {
        int on = 1;
        int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0)
            return;
        if ((size_t)fd >= matched_count) {
            close(fd);
            continue;
        }
        atomic_store_explicit(&matched[fd], 0, memory_order_relaxed);
        (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        unsigned loop = floor_options.reuse_port ? own : (*turn)++ % floor_options.threads;
        watch(epolls[loop], fd, EPOLLIN | EPOLLRDHUP | EPOLLET);
    }
}

static void *run_loop(void *argument)
{
    unsigned own = (unsigned)(uintptr_t)argument;
    unsigned turn = 0;
    int listener = floor_options.reuse_port || own == 0 ? floor_listen(SOCK_NONBLOCK) : -1;
    struct floor_counts *counts = &floor_counts[own];
    char *buffer = malloc(floor_options.buffer_size);
    struct epoll_event events[EVENTS_MAX];

    if (!buffer)
        floor_die("malloc", ENOMEM);
    if (listener >= 0)
        watch(epolls[own], listener, EPOLLIN);
    for (;;) {
        int count = epoll_wait(epolls[own], events, EVENTS_MAX, -1);
        floor_count(&counts->waits, 1);
        floor_count(&counts->events, count > 0 ? (unsigned)count : 0);
        for (int i = 0; i < count; i++) {
            bool ends = events[i].events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR);
            if (events[i].data.fd == listener)
                accept_all(listener, own, &turn);
            else
                serve(events[i].data.fd, ends, buffer, counts);
        }
    }
    return NULL;
}

static bool take_nothing(int option, const char *value)
{
    (void)option, (void)value;
    return false;
}

int main(int argc, char **argv)
{
    struct rlimit files;

    floor_arguments(argc, argv, "", take_nothing, "");
    if (getrlimit(RLIMIT_NOFILE, &files) != 0)
        floor_die("getrlimit", errno);
    matched_count = files.rlim_cur < (1UL << 20) ? files.rlim_cur : 1UL << 20;
    matched = calloc(matched_count, sizeof *matched);
    if (!matched)
        floor_die("calloc", ENOMEM);
    for (unsigned i = 0; i < floor_options.threads; i++) {
        epolls[i] = epoll_create1(EPOLL_CLOEXEC);
        if (epolls[i] < 0)
            floor_die("epoll_create1", errno);
    }
    floor_run(run_loop);
}
