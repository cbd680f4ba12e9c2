/* sock.c: system calls on sockets.
 *
 * Each wrapper has one shape: keep errno, try (a fault put in by a test counts as the call's own
 * failure, so that it goes through the same retry), end. MSG_DONTWAIT is given beside O_NONBLOCK
 * because a descriptor handed to us may share its flags with another process. */
#include "os/sock.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/sendfile.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "os/fault.h"

#define SEND_FLAGS (MSG_NOSIGNAL | MSG_DONTWAIT)

/* The calls of every request, made without becoming a cancellation point: that is two atomic moves
 * each in libc, and nothing here may end in the middle. Sanitizers watch libc's names. */
#if defined(SYS_recvfrom) && defined(SYS_sendto) && !defined(WEIR_TSAN) && \
    !defined(__SANITIZE_ADDRESS__)
static ssize_t receive(int fd, void *buffer, size_t length)
{
    return syscall(SYS_recvfrom, fd, buffer, length, MSG_DONTWAIT, NULL, NULL);
}

static ssize_t transmit(int fd, const void *data, size_t length)
{
    return syscall(SYS_sendto, fd, data, length, SEND_FLAGS, NULL, 0);
}
#else
static ssize_t receive(int fd, void *buffer, size_t length)
{
    return recv(fd, buffer, length, MSG_DONTWAIT);
}

static ssize_t transmit(int fd, const void *data, size_t length)
{
    return send(fd, data, length, SEND_FLAGS);
}
#endif

static bool injected(enum wr_fault_call call)
{
    int error = wr_fault(call);
    if (error)
        errno = error;
    return error != 0;
}

static bool interrupted(ssize_t r)
{
    return r < 0 && errno == EINTR;
}

static ssize_t end(ssize_t r, int saved)
{
    if (r < 0)
        r = -errno;
    errno = saved;
    return r;
}

int wr_sock_open(int family, int type)
{
    int saved = errno;
    int r;
    do
        r = injected(WR_FAULT_SOCKET) ? -1 : socket(family, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    while (interrupted(r));
    return (int)end(r, saved);
}

int wr_sock_bind(int fd, const struct sockaddr *address, socklen_t length)
{
    int saved = errno;
    int r;
    do
        r = injected(WR_FAULT_BIND) ? -1 : bind(fd, address, length);
    while (interrupted(r));
    return (int)end(r, saved);
}

int wr_sock_listen(int fd, int backlog)
{
    int saved = errno;
    int r;
    do
        r = injected(WR_FAULT_LISTEN) ? -1 : listen(fd, backlog);
    while (interrupted(r));
    return (int)end(r, saved);
}

int wr_sock_accept(int fd, struct sockaddr_storage *ret_from, socklen_t *ret_length)
{
    int saved = errno;
    int r;
    socklen_t length;
    do {
        length = sizeof *ret_from;
        r = injected(WR_FAULT_ACCEPT) ? -1
            : accept4(fd, (struct sockaddr *)ret_from, ret_from ? &length : NULL,
                      SOCK_CLOEXEC | SOCK_NONBLOCK);
    } while (interrupted(r));
    if (r >= 0 && ret_from)
        *ret_length = length;
    return (int)end(r, saved);
}

int wr_sock_connect(int fd, const struct sockaddr *address, socklen_t length)
{
    int saved = errno;
    int fault = wr_fault(WR_FAULT_CONNECT);
    if (fault && fault != EINTR)
        return -fault;
    int r = connect(fd, address, length);
    if (r == 0 && fault) {
        r = -1;
        errno = fault;
    }
    /* Not retried: the attempt goes on without us, and a second call would get EALREADY. */
    if (interrupted(r))
        errno = EINPROGRESS;
    return (int)end(r, saved);
}

static int get_option(int fd, int option, int *ret_value)
{
    int saved = errno;
    int r, value = 0;
    do {
        socklen_t length = sizeof value;
        r = injected(WR_FAULT_SOCKOPT) ? -1
            : getsockopt(fd, SOL_SOCKET, option, &value, &length);
    } while (interrupted(r));
    if (r == 0)
        *ret_value = value;
    return (int)end(r, saved);
}

static int set_option(int fd, int level, int option, const void *value, size_t length)
{
    int saved = errno;
    int r;
    do
        r = injected(WR_FAULT_SOCKOPT) ? -1
            : setsockopt(fd, level, option, value, (socklen_t)length);
    while (interrupted(r));
    return (int)end(r, saved);
}

static int set_flag(int fd, int level, int option, bool on)
{
    int value = on;
    return set_option(fd, level, option, &value, sizeof value);
}

int wr_sock_error(int fd)
{
    int error = 0;
    int r = get_option(fd, SO_ERROR, &error);
    return r < 0 ? r : -error;
}

int wr_sock_pair(int ret_fds[2])
{
    int saved = errno;
    int fault = wr_fault(WR_FAULT_SOCKET);
    int r = fault ? -fault
            : socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ret_fds) < 0
                ? -errno
                : 0;

    errno = saved;
    return r;
}

int wr_sock_type(int fd)
{
    int type = 0;
    int r = get_option(fd, SO_TYPE, &type);
    return r < 0 ? r : type;
}

int wr_sock_is_listening(int fd)
{
    int listening = 0;
    int r = get_option(fd, SO_ACCEPTCONN, &listening);
    return r < 0 ? r : listening != 0;
}

int wr_sock_set_linger_reset(int fd)
{
    struct linger reset = { .l_onoff = 1, .l_linger = 0 };
    return set_option(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
}

int wr_sock_set_nodelay(int fd)
{
    return set_flag(fd, IPPROTO_TCP, TCP_NODELAY, true);
}

int wr_sock_set_reuse(int fd, bool port_too)
{
    int r = set_flag(fd, SOL_SOCKET, SO_REUSEADDR, true);
    return r == 0 && port_too ? set_flag(fd, SOL_SOCKET, SO_REUSEPORT, true) : r;
}

int wr_sock_set_v6only(int fd, bool only)
{
    return set_flag(fd, IPPROTO_IPV6, IPV6_V6ONLY, only);
}

ssize_t wr_sock_recv(int fd, void *buffer, size_t length)
{
    int saved = errno;
    ssize_t r;
    do
        r = injected(WR_FAULT_RECV) ? -1 : receive(fd, buffer, length);
    while (interrupted(r));
    return end(r, saved);
}

ssize_t wr_sock_recvfrom(int fd, void *buffer, size_t length, struct sockaddr_storage *ret_from,
                         socklen_t *ret_length)
{
    int saved = errno;
    ssize_t r;
    socklen_t from_length;
    do {
        from_length = sizeof *ret_from;
        r = injected(WR_FAULT_RECV) ? -1
            : recvfrom(fd, buffer, length, MSG_DONTWAIT, (struct sockaddr *)ret_from,
                       ret_from ? &from_length : NULL);
    } while (interrupted(r));
    if (r >= 0 && ret_from) {
        /* The kernel writes nothing for a sender without a name. */
        if (from_length == 0)
            ret_from->ss_family = AF_UNSPEC;
        *ret_length = from_length;
    }
    return end(r, saved);
}

ssize_t wr_sock_send(int fd, const void *data, size_t length)
{
    int saved = errno;
    ssize_t r;
    do
        r = injected(WR_FAULT_SEND) ? -1 : transmit(fd, data, length);
    while (interrupted(r));
    return end(r, saved);
}

ssize_t wr_sock_sendto(int fd, const void *data, size_t length, const struct sockaddr *to,
                       socklen_t to_length)
{
    int saved = errno;
    ssize_t r;
    do
        r = injected(WR_FAULT_SEND) ? -1 : sendto(fd, data, length, SEND_FLAGS, to, to_length);
    while (interrupted(r));
    return end(r, saved);
}

ssize_t wr_sock_sendv(int fd, const struct iovec *pieces, size_t count)
{
    int saved = errno;
    ssize_t r;
    /* sendmsg() takes them to be written to; it does not. */
    struct msghdr message = { .msg_iov = (struct iovec *)(uintptr_t)pieces,
                              .msg_iovlen = count < IOV_MAX ? count : IOV_MAX };
    do
        r = injected(WR_FAULT_SEND) ? -1 : sendmsg(fd, &message, SEND_FLAGS);
    while (interrupted(r));
    return end(r, saved);
}

/* sendfile(2) has no MSG_NOSIGNAL. Holding SIGPIPE off is per thread, and so is the signal that the
 * kernel raises: it is taken back before the mask is, unless one was pending before. */
struct sigpipe_guard {
    sigset_t before;
    bool was_blocked;
    bool was_pending;
};

static void guard_begin(struct sigpipe_guard *guard)
{
    sigset_t pipe_only;
    sigemptyset(&pipe_only);
    sigaddset(&pipe_only, SIGPIPE);
    (void)pthread_sigmask(SIG_BLOCK, &pipe_only, &guard->before);
    guard->was_blocked = sigismember(&guard->before, SIGPIPE) == 1;
    guard->was_pending = false;
    /* Had it not been blocked, a pending one would have been delivered by now. */
    if (guard->was_blocked) {
        sigset_t pending;
        (void)sigpending(&pending);
        guard->was_pending = sigismember(&pending, SIGPIPE) == 1;
    }
}

static void guard_end(const struct sigpipe_guard *guard, bool raised)
{
    if (raised && !guard->was_pending) {
        sigset_t pipe_only;
        sigemptyset(&pipe_only);
        sigaddset(&pipe_only, SIGPIPE);
        struct timespec at_once = { 0 };
        while (sigtimedwait(&pipe_only, NULL, &at_once) < 0 && errno == EINTR) {
        }
    }
    if (!guard->was_blocked)
        (void)pthread_sigmask(SIG_SETMASK, &guard->before, NULL);
}

ssize_t wr_sock_send_file(int fd, int file, int64_t *offset, size_t length)
{
    int saved = errno;
    ssize_t r;
    off_t at = *offset;
    struct sigpipe_guard guard;
    guard_begin(&guard);
    do
        r = injected(WR_FAULT_SENDFILE) ? -1 : sendfile(fd, file, &at, length);
    while (interrupted(r));
    int error = errno;
    /* Also when some went out before the connection broke: then the count is the answer. */
    guard_end(&guard, r < 0 ? error == EPIPE : (size_t)r < length);
    errno = error;
    if (r > 0)
        *offset = at;
    return end(r, saved);
}

int wr_sock_shutdown(int fd, int how)
{
    int saved = errno;
    int r;
    do
        r = injected(WR_FAULT_SHUTDOWN) ? -1 : shutdown(fd, how);
    while (interrupted(r));
    return (int)end(r, saved);
}

int wr_sock_close(int fd)
{
    int saved = errno;
    int r = close(fd);
    if (injected(WR_FAULT_CLOSE))
        r = -1;
    return interrupted(r) ? (int)end(0, saved) : (int)end(r, saved);
}

int wr_sock_set_nonblocking(int fd, bool on)
{
    int saved = errno;
    int flags = injected(WR_FAULT_FCNTL) ? -1 : fcntl(fd, F_GETFL);
    if (flags < 0)
        return (int)end(flags, saved);
    int former = (flags & O_NONBLOCK) != 0;
    if (former == on)
        return former;
    int wanted = on ? flags | O_NONBLOCK : flags & ~O_NONBLOCK;
    int r = injected(WR_FAULT_FCNTL) ? -1 : fcntl(fd, F_SETFL, wanted);
    return (int)end(r < 0 ? r : former, saved);
}

typedef int name_call(int fd, struct sockaddr *address, socklen_t *length);

static int name_of(name_call *call, int fd, struct sockaddr_storage *ret, socklen_t *ret_length)
{
    int saved = errno;
    int r;
    socklen_t length;
    do {
        length = sizeof *ret;
        r = injected(WR_FAULT_NAME) ? -1 : call(fd, (struct sockaddr *)ret, &length);
    } while (interrupted(r));
    if (r == 0)
        *ret_length = length;
    return (int)end(r, saved);
}

int wr_sock_name(int fd, struct sockaddr_storage *ret, socklen_t *ret_length)
{
    return name_of(getsockname, fd, ret, ret_length);
}

int wr_sock_peer(int fd, struct sockaddr_storage *ret, socklen_t *ret_length)
{
    return name_of(getpeername, fd, ret, ret_length);
}

int wr_sock_reserve_fd(void)
{
    int saved = errno;
    /* Needs no file system, which a jailed process may not have. */
    int r = injected(WR_FAULT_EVENTFD) ? -1 : eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    return (int)end(r, saved);
}
