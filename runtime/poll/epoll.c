/* epoll.c: the back end on epoll. One epoll instance and one eventfd (the doorbell) a poller.
 *
 * EDGE:     registered once, edge-triggered, for everything; never modified until the detach.
 * ONESHOT:  EPOLLONESHOT; each rearm() is one EPOLL_CTL_MOD, which makes the kernel look at the
 *           descriptor anew, so that what came meanwhile is heard.
 * Disarmed: the kernel adds EPOLLERR|EPOLLHUP to every mask it is given, also to 0: a disarmed
 * watch
 *           on a broken pipe is reported all the same. So a disarmed registration carries the token
 *           NONE, which wait() drops, and EPOLLONESHOT, by which the kernel then silences it
 *           altogether (private bits only: not even HUP) until the next MOD: one wake at most,
 *           never a spin. The next rearm() under the true token reports the hang-up.
 * Doorbell: an eventfd, edge-triggered under the token NONE, never read. Each write is a new edge,
 * the
 *           counter would overflow after 2^64 writes.
 *
 * A number is looked up in the token table before it is modified or deleted: see tokens.h. What it
 * cannot reach is a description that its owner closed here and keeps open elsewhere (dup, fork):
 * the kernel has no name for that registration any more. It is a ONESHOT one (ours are detached
 * before they are closed), so that it speaks once at most, under a token that dispatch drops.
 *
 * To ThreadSanitizer, which does not know epoll_pwait2, the kernel's own ordering (what happened
 * before an epoll_ctl or a doorbell is seen after the wait that it woke) is told in words. */
#include <errno.h>
#include <limits.h>
#include <linux/time_types.h>
#include <stdbool.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/tsan.h"
#include "os/clock.h"
#include "os/fault.h"
#include "poll/epoll.h"
#include "poll/poller.h"
#include "poll/tokens.h"

struct wr_poller_backend {
    int epoll_fd;
    int doorbell_fd;
    bool milliseconds;              /* epoll_pwait2 is not to be had; the owner's, in wait() */
    unsigned batch_max;
    struct epoll_event *events;     /* batch_max of them */
    struct wr_alloc *alloc;
    struct wr_tokens tokens;
};

/* epoll_ctl as 0 or -errno; errno stays as it was. */
static int control(struct wr_poller_backend *backend, int op, int fd, uint32_t mask, uint64_t token)
{
    struct epoll_event event = { .events = mask, .data.u64 = token };
    int saved = errno;
    int result = -wr_fault(WR_FAULT_EPOLL_CTL);

    WR_TSAN_RELEASE(backend);
    if (result == 0 && epoll_ctl(backend->epoll_fd, op, fd, &event) < 0)
        result = -errno;
    errno = saved;
    return result;
}

static void backend_close(struct wr_poller_backend *backend)
{
    int saved = errno;

    if (backend->doorbell_fd >= 0)
        close(backend->doorbell_fd);
    if (backend->epoll_fd >= 0)
        close(backend->epoll_fd);
    wr_tokens_fini(&backend->tokens);
    wr_alloc_release(backend->alloc, backend->events,
                     backend->batch_max * sizeof(struct epoll_event));
    wr_alloc_release(backend->alloc, backend, sizeof(*backend));
    errno = saved;
}

/* A descriptor, or -errno. */
static int make_epoll(void)
{
    int fault = wr_fault(WR_FAULT_EPOLL_CREATE);
    int fd = fault ? -1 : epoll_create1(EPOLL_CLOEXEC);

    return fd >= 0 ? fd : fault ? -fault : -errno;
}

static int make_doorbell(void)
{
    int fault = wr_fault(WR_FAULT_EVENTFD);
    int fd = fault ? -1 : eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);

    return fd >= 0 ? fd : fault ? -fault : -errno;
}

static int open_descriptors(struct wr_poller_backend *backend)
{
    int fd = make_epoll();
    if (fd < 0)
        return fd;
    backend->epoll_fd = fd;
    fd = make_doorbell();
    if (fd < 0)
        return fd;
    backend->doorbell_fd = fd;
    return control(backend, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLET, WR_POLL_TOKEN_NONE);
}

static int backend_open(struct wr_poller_backend **ret_backend, struct wr_alloc *alloc,
                        unsigned batch_max)
{
    int saved = errno;
    int result;

    WR_ASSERT(batch_max > 0 && batch_max <= INT_MAX / sizeof(struct epoll_event));
    struct wr_poller_backend *backend = wr_alloc_zero(alloc, sizeof(*backend));
    if (backend == NULL)
        return -ENOMEM;
    backend->epoll_fd = -1;
    backend->doorbell_fd = -1;
    backend->batch_max = batch_max;
    backend->alloc = alloc;
    wr_tokens_init(&backend->tokens, alloc);
    backend->events = wr_alloc_zero(alloc, batch_max * sizeof(struct epoll_event));
    result = backend->events == NULL ? -ENOMEM : open_descriptors(backend);
    errno = saved;
    if (result < 0)
        backend_close(backend);
    else
        *ret_backend = backend;
    return result;
}

static int backend_attach(struct wr_poller_backend *backend, int fd, uint64_t token,
                          enum wr_poll_mode mode)
{
    int result;

    WR_ASSERT(token != WR_POLL_TOKEN_NONE);
    if (fd < 0)
        return -EBADF;
    wr_tokens_lock(&backend->tokens, fd);
    uint64_t *slot = wr_tokens_make(&backend->tokens, fd);
    if (slot == NULL)
        result = -ENOMEM;
    else if (mode == WR_POLL_EDGE)
        result = control(backend, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET,
                         token);
    else
        result = control(backend, EPOLL_CTL_ADD, fd, EPOLLONESHOT, WR_POLL_TOKEN_NONE);
    if (result == 0)
        *slot = token;
    wr_tokens_unlock(&backend->tokens, fd);
    return result;
}

/* Under the lock of `fd`: is it still attached under `token`? */
static bool is_attached(struct wr_poller_backend *backend, int fd, uint64_t token)
{
    const uint64_t *slot = wr_tokens_find(&backend->tokens, fd);

    return slot != NULL && *slot == token;
}

/* EPERM out of MOD and DEL: the number belongs to a file now. It is not the one that was attached.
 * */
static int gone(int result)
{
    return result == -EPERM ? -ENOENT : result;
}

static int backend_rearm(struct wr_poller_backend *backend, int fd, uint64_t token, uint32_t bits)
{
    uint32_t mask = EPOLLONESHOT;
    int result = -ENOENT;

    WR_ASSERT((bits & ~(uint32_t)(WR_POLL_IN | WR_POLL_OUT)) == 0);
    if (fd < 0)
        return -EBADF;
    if (bits & WR_POLL_IN)
        mask |= EPOLLIN | EPOLLRDHUP;
    if (bits & WR_POLL_OUT)
        mask |= EPOLLOUT;
    wr_tokens_lock(&backend->tokens, fd);
    if (is_attached(backend, fd, token))
        result = gone(control(backend, EPOLL_CTL_MOD, fd, mask, bits ? token : WR_POLL_TOKEN_NONE));
    wr_tokens_unlock(&backend->tokens, fd);
    return result;
}

static int backend_detach(struct wr_poller_backend *backend, int fd, uint64_t token)
{
    int result = -ENOENT;

    if (fd < 0)
        return -EBADF;
    wr_tokens_lock(&backend->tokens, fd);
    if (is_attached(backend, fd, token)) {
        result = gone(control(backend, EPOLL_CTL_DEL, fd, 0, WR_POLL_TOKEN_NONE));
        /* Another error (no memory, say) leaves it attached: the caller may try again. */
        if (result == 0 || result == -ENOENT || result == -EBADF)
            *wr_tokens_find(&backend->tokens, fd) = WR_POLL_TOKEN_NONE;
    }
    wr_tokens_unlock(&backend->tokens, fd);
    return result;
}

/* Nanoseconds from now to `deadline`; 0 when it has passed. Not for WEIR_NEVER. */
static int64_t span_until(weir_time deadline)
{
    weir_time now = deadline > 0 ? wr_clock_now() : 0;

    return deadline > now ? deadline - now : 0;
}

static int wait_nanoseconds(struct wr_poller_backend *backend, int max, weir_time deadline)
{
#ifdef SYS_epoll_pwait2
    struct __kernel_timespec span = { 0, 0 };
    int fault = wr_fault(WR_FAULT_EPOLL_WAIT);

    if (fault)
        return -fault;
    if (deadline != WEIR_NEVER) {
        int64_t left = span_until(deadline);
        span.tv_sec = left / 1000000000;
        span.tv_nsec = left % 1000000000;
    }
    /* By number: not every C library has a wrapper for it. The kernel ignores the size with no
     * mask. */
    long count = syscall(SYS_epoll_pwait2, backend->epoll_fd, backend->events, max,
                         deadline == WEIR_NEVER ? NULL : &span, NULL, (size_t)0);
    return count >= 0 ? (int)count : -errno;
#else
    (void)backend;
    (void)max;
    (void)deadline;
    return -ENOSYS;
#endif
}

/* Rounds up: rounding down would turn the last millisecond before a deadline into a busy loop. */
static int wait_milliseconds(struct wr_poller_backend *backend, int max, weir_time deadline)
{
    int timeout = -1;
    int fault = wr_fault(WR_FAULT_EPOLL_WAIT);

    if (fault)
        return -fault;
    if (deadline != WEIR_NEVER) {
        int64_t left = span_until(deadline);
        int64_t rounded = left / 1000000 + (left % 1000000 != 0);
        timeout = rounded > INT_MAX ? INT_MAX : (int)rounded;
    }
    int count = epoll_wait(backend->epoll_fd, backend->events, max, timeout);
    return count >= 0 ? count : -errno;
}

static uint32_t bits_of(uint32_t mask)
{
    uint32_t bits = 0;

    if (mask & EPOLLIN)
        bits |= WR_POLL_IN;
    if (mask & EPOLLOUT)
        bits |= WR_POLL_OUT;
    if (mask & EPOLLRDHUP)
        bits |= WR_POLL_IN | WR_POLL_HUP;
    if (mask & (EPOLLERR | EPOLLHUP))
        bits |= WR_POLL_IN | WR_POLL_OUT | WR_POLL_HUP;
    if (mask & EPOLLERR)
        bits |= WR_POLL_ERROR;
    return bits;
}

static int backend_wait(struct wr_poller_backend *backend, struct wr_poll_event *ret_events,
                        size_t max,
                        weir_time deadline)
{
    int saved = errno;
    int room = (int)(max < backend->batch_max ? max : backend->batch_max);
    int count = -ENOSYS;
    int reported = 0;

    WR_ASSERT(max > 0);
    if (!backend->milliseconds) {
        count = wait_nanoseconds(backend, room, deadline);
        /* EPERM: some container filters answer so to what they do not know (kernel < 5.11 is
         * ENOSYS). */
        backend->milliseconds = count == -ENOSYS || count == -EPERM;
    }
    if (backend->milliseconds)
        count = wait_milliseconds(backend, room, deadline);
    if (count > 0)
        WR_TSAN_ACQUIRE(backend);
    errno = saved;
    if (count < 0)
        return count == -EINTR ? 0 : count;
    for (int i = 0; i < count; i++) {
        const struct epoll_event *event = &backend->events[i];
        if (event->data.u64 == WR_POLL_TOKEN_NONE)
            continue;
        ret_events[reported].token = event->data.u64;
        ret_events[reported].bits = bits_of(event->events);
        reported++;
    }
    return reported;
}

static void backend_doorbell(struct wr_poller_backend *backend)
{
    static const uint64_t one = 1;
    int saved = errno;

    WR_TSAN_RELEASE(backend);
    /* Non-blocking, and the counter has room: it cannot fail for any reason that a retry would
     * mend. */
    ssize_t written = write(backend->doorbell_fd, &one, sizeof(one));
    WR_ASSERT(written == (ssize_t)sizeof(one));
    errno = saved;
}

int wr_poll_epoll_fd(const struct wr_poller_backend *backend)
{
    return backend->epoll_fd;
}

bool wr_poll_epoll_holds(struct wr_poller_backend *backend, int fd)
{
    bool holds = false;

    wr_tokens_lock(&backend->tokens, fd);
    uint64_t *slot = wr_tokens_find(&backend->tokens, fd);
    if (slot != NULL && *slot != WR_POLL_TOKEN_NONE) {
        /* Only the kernel knows whether the number means what it did when it was attached. */
        holds = control(backend, EPOLL_CTL_ADD, fd, EPOLLONESHOT, WR_POLL_TOKEN_NONE) == -EEXIST;
        if (!holds) {
            (void)control(backend, EPOLL_CTL_DEL, fd, 0, WR_POLL_TOKEN_NONE);
            *slot = WR_POLL_TOKEN_NONE;
        }
    }
    wr_tokens_unlock(&backend->tokens, fd);
    return holds;
}

const struct wr_poll_ops wr_poll_epoll = {
    .name = "epoll",
    .open = backend_open,
    .close = backend_close,
    .attach = backend_attach,
    .rearm = backend_rearm,
    .detach = backend_detach,
    .wait = backend_wait,
    .doorbell = backend_doorbell,
};
