/* uring_ring.c: setting up a ring, and what is asked of it: multishot polls, cancels, waiting.
 *
 * The ring is made disabled, because a ring with SINGLE_ISSUER belongs to the thread that enables
 * it. DEFER_TASKRUN (6.1) makes completions the owner's own work inside its enter calls; one enter
 * that waits for one completion then brings twenty at most, and says by TASKRUN that there are
 * more. Older kernels get what they know of these flags. No SQPOLL, ever: a thread that spins is
 * not ours to spend.
 *
 * A poll is armed for IN, OUT and RDHUP at once and reports edges, like EPOLLET: readiness that
 * holds when it is armed comes as the first edge, so that arming late or again loses nothing. */
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/assert.h"
#include "os/clock.h"
#include "os/fault.h"
#include "poll/uring_private.h"

#define ENTRIES_MIN 8
#define ENTRIES_MAX 256
#define COMPLETIONS_EACH 16         /* completions there is room for, an entry */
/* Newer than the oldest headers we build with: kernel 6.15, waiting is not waiting for a disk. */
#define FEATURE_NO_IOWAIT (1u << 17)
#define ENTER_NO_IOWAIT (1u << 7)
#define RETRY_NS 10000000

#define ALWAYS (IORING_SETUP_R_DISABLED | IORING_SETUP_CQSIZE | IORING_SETUP_CLAMP)
#define DEFERRED (IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN)

static const unsigned flag_steps[] = {
    ALWAYS | IORING_SETUP_SUBMIT_ALL | DEFERRED | IORING_SETUP_COOP_TASKRUN |
        IORING_SETUP_TASKRUN_FLAG,
    ALWAYS | IORING_SETUP_SUBMIT_ALL | DEFERRED | IORING_SETUP_TASKRUN_FLAG,
    ALWAYS | IORING_SETUP_SUBMIT_ALL | IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG,
    ALWAYS | IORING_SETUP_SUBMIT_ALL,
    ALWAYS,
};

static int setup_once(struct io_uring *ring, unsigned entries, unsigned flags,
                      unsigned *ret_features)
{
    struct io_uring_params params = {.flags = flags, .cq_entries = entries * COMPLETIONS_EACH};
    int fault = wr_fault(WR_FAULT_URING_SETUP);
    int r = fault ? -fault : io_uring_queue_init_params(entries, ring, &params);

    *ret_features = params.features;
    return r;
}

int wr_uring_setup(struct wr_poller_backend *backend, unsigned batch_max)
{
    unsigned entries = batch_max < ENTRIES_MIN   ? ENTRIES_MIN
                       : batch_max > ENTRIES_MAX ? ENTRIES_MAX
                                                 : batch_max;
    unsigned step = 0, features = 0, forced = (unsigned)wr_fault(WR_FAULT_URING_ENTRIES);
    entries = forced > 0 ? forced : entries;
    int r = setup_once(&backend->ring, entries, flag_steps[0], &features);

    while (r == -EINVAL || (r == -ENOMEM && entries > ENTRIES_MIN)) {
        if (r == -EINVAL && ++step == sizeof flag_steps / sizeof *flag_steps)
            return -ENOSYS;
        if (r == -ENOMEM)
            entries = entries / 2 < ENTRIES_MIN ? ENTRIES_MIN : entries / 2;
        r = setup_once(&backend->ring, entries, flag_steps[step], &features);
    }
    if (r < 0)
        return r;
    backend->open = true;
    if (!(features & IORING_FEAT_EXT_ARG) || !(features & IORING_FEAT_NODROP))
        return -ENOSYS;
    backend->enter_flags = IORING_ENTER_GETEVENTS | IORING_ENTER_EXT_ARG;
    if (features & FEATURE_NO_IOWAIT)
        backend->enter_flags |= ENTER_NO_IOWAIT;
    return 0;
}

void wr_uring_starve(struct wr_poller_backend *backend)
{
    if (!backend->starved)
        backend->retry = wr_clock_add(wr_clock_now(), RETRY_NS);
    backend->starved = true;
}

void wr_uring_arm_later(struct wr_poller_backend *backend, bool failed)
{
    if (failed) {
        wr_uring_starve(backend);
        return;
    }
    backend->starved = true;
    backend->retry = 0;
}

static struct io_uring_sqe *next_entry(struct wr_poller_backend *backend)
{
    struct io_uring_sqe *entry = io_uring_get_sqe(&backend->ring);

    if (!entry && wr_uring_submit(backend) == 0)
        entry = io_uring_get_sqe(&backend->ring);
    if (!entry)
        wr_uring_starve(backend);
    return entry;
}

static bool arm(struct wr_poller_backend *backend, int fd, unsigned mask, uint64_t name)
{
    struct io_uring_sqe *entry = next_entry(backend);

    if (!entry)
        return false;
    io_uring_prep_poll_multishot(entry, fd, mask);
    io_uring_sqe_set_data64(entry, name);
    return true;
}

static uint64_t name_of(const struct wr_uring_watch *watch, enum wr_uring_request request)
{
    return (uintptr_t)watch | (uint64_t)request;
}

static bool arm_receive(struct wr_poller_backend *backend, struct wr_uring_watch *watch)
{
    struct io_uring_sqe *entry = next_entry(backend);

    if (!entry)
        return false;
    io_uring_prep_recv_multishot(entry, watch->fd, NULL, 0, 0);
    /* Without it a receive with no buffer at hand would end though there is nothing to receive. */
    entry->ioprio |= IORING_RECVSEND_POLL_FIRST;
    entry->flags |= IOSQE_BUFFER_SELECT;
    entry->buf_group = 0;
    io_uring_sqe_set_data64(entry, name_of(watch, WR_URING_RECEIVE));
    return true;
}

/* Once: whoever it finds something for looks until there is nothing more. */
static bool arm_look(struct wr_poller_backend *backend, struct wr_uring_watch *watch)
{
    struct io_uring_sqe *entry = next_entry(backend);

    if (!entry)
        return false;
    io_uring_prep_poll_add(entry, watch->fd, POLLIN | POLLRDHUP);
    io_uring_sqe_set_data64(entry, name_of(watch, WR_URING_LOOK));
    return true;
}

static void arm_stream(struct wr_poller_backend *backend, struct wr_uring_watch *watch)
{
    enum wr_uring_request request = wr_uring_stream_request(backend, watch->stream);
    bool armed = request == WR_URING_RECEIVE ? arm_receive(backend, watch)
                                             : arm_look(backend, watch);

    if (armed)
        watch->armed |= (uint8_t)WR_URING_BIT(request);
}

static bool stream_unarmed(const struct wr_uring_watch *watch)
{
    return watch->stream && watch->stream->right &&
           !(watch->armed & (WR_URING_BIT(WR_URING_RECEIVE) | WR_URING_BIT(WR_URING_LOOK)));
}

bool wr_uring_unarmed(const struct wr_uring_watch *watch)
{
    return !(watch->armed & WR_URING_BIT(WR_URING_POLL)) || stream_unarmed(watch);
}

void wr_uring_arm(struct wr_poller_backend *backend, struct wr_uring_watch *watch)
{
    unsigned mask = (watch->stream ? 0 : POLLIN) | POLLOUT | POLLRDHUP;

    WR_ASSERT(!watch->closing);
    if (!(watch->armed & WR_URING_BIT(WR_URING_POLL)) &&
        arm(backend, watch->fd, mask, name_of(watch, WR_URING_POLL)))
        watch->armed |= (uint8_t)WR_URING_BIT(WR_URING_POLL);
    if (stream_unarmed(watch))
        arm_stream(backend, watch);
}

void wr_uring_arm_own(struct wr_poller_backend *backend)
{
    if (!backend->bell_armed)
        backend->bell_armed = arm(backend, backend->bell_fd, POLLIN, WR_URING_BELL);
    if (!backend->foreign_armed)
        backend->foreign_armed =
            arm(backend, wr_poll_epoll_fd(backend->foreign), POLLIN, WR_URING_FOREIGN);
}

void wr_uring_cancel(struct wr_poller_backend *backend, struct wr_uring_watch *watch,
                     unsigned bits)
{
    for (unsigned request = 0; request < WR_URING_REQUESTS; request++) {
        unsigned bit = WR_URING_BIT(request);
        if (!(bits & bit) || !(watch->armed & bit) || watch->cancelled & bit)
            continue;
        struct io_uring_sqe *entry = next_entry(backend);
        if (!entry)
            return;
        /* By its name, never by the descriptor's number, which may be another's by then. */
        io_uring_prep_cancel64(entry, name_of(watch, request), 0);
        io_uring_sqe_set_data64(entry, WR_URING_CANCEL);
        watch->cancelled |= (uint8_t)bit;
    }
}

int wr_uring_cancel_all(struct wr_poller_backend *backend)
{
    struct io_uring_sqe *entry = next_entry(backend);

    if (!entry)
        return -EAGAIN;
    io_uring_prep_cancel64(entry, 0, IORING_ASYNC_CANCEL_ANY | IORING_ASYNC_CANCEL_ALL);
    io_uring_sqe_set_data64(entry, WR_URING_CANCEL);
    return wr_uring_submit(backend);
}

int wr_uring_submit(struct wr_poller_backend *backend)
{
    int fault = io_uring_sq_ready(&backend->ring) ? wr_fault(WR_FAULT_URING_ENTER) : 0;
    int r = fault ? -fault : 0;

    while (r >= 0 && io_uring_sq_ready(&backend->ring)) {
        r = io_uring_submit(&backend->ring);
        if (r == 0)
            r = -EAGAIN;
    }
    return r < 0 ? r : 0;
}

int wr_uring_enable(struct wr_poller_backend *backend)
{
    /* By number: liburing 2.3 does not export its function for it. */
    long r = syscall(SYS_io_uring_register, backend->ring.ring_fd, IORING_REGISTER_ENABLE_RINGS,
                     NULL, 0);

    if (r < 0)
        return -errno;
    backend->enabled = true;
    wr_uring_arm_own(backend);
    return 0;
}

bool wr_uring_has_more(struct wr_poller_backend *backend)
{
    unsigned flags = IO_URING_READ_ONCE(*backend->ring.sq.kflags);

    if (flags & IORING_SQ_CQ_OVERFLOW)
        atomic_fetch_add_explicit(&backend->overflows, 1, memory_order_relaxed);
    return flags & (IORING_SQ_TASKRUN | IORING_SQ_CQ_OVERFLOW);
}

int wr_uring_enter(struct wr_poller_backend *backend, bool sleep, weir_time deadline)
{
    struct __kernel_timespec span = {0, 0};
    struct io_uring_getevents_arg argument;
    int fault = wr_fault(WR_FAULT_URING_ENTER);

    if (fault)
        return -fault;
    memset(&argument, 0, sizeof argument);
    if (sleep && deadline != WEIR_NEVER) {
        weir_time now = wr_clock_now();
        int64_t left = deadline > now ? deadline - now : 0;
        span.tv_sec = left / 1000000000;
        span.tv_nsec = left % 1000000000;
        argument.ts = (uintptr_t)&span;
    }
    int r = io_uring_enter2((unsigned)backend->ring.ring_fd, 0, sleep, backend->enter_flags,
                            (sigset_t *)(void *)&argument, sizeof argument);
    return r < 0 ? r : 0;
}
