/* uring.c: the back end on io_uring: one ring a poller.
 *
 * EDGE     (sockets and listeners, all ours): one multishot poll each in the ring.
 * RECEIVE  (streams in completion mode): what they receive comes with the completions; see
 *          inbound.h and uring_receive.c. Without provide() the same as EDGE.
 * ONESHOT  (foreign descriptors): in an epoll set that the ring polls. A poll in a ring holds the
 *          description open: a descriptor that its owner closes would stay open, its peer would see
 *          no FIN, and only epoll can tell that a number means another description now.
 *
 * ONLY THE OWNER ENTERS THE RING. attach() and detach() are commands on a stack that the owner
 * takes as a whole before each sleep. The bell word decides whether somebody must write to the
 * eventfd:
 *
 *   anybody   push; bell <- RUNG by exchange; it was ASLEEP: write the eventfd
 *   owner     take the commands; AWAKE -> ASLEEP by compare-and-exchange, which fails when it is
 *             RUNG: then do not sleep; after the sleep bell <- AWAKE by exchange
 *
 * Nothing is overlooked: a push whose exchange comes before the owner's makes it fail, or is read
 * by the one after the sleep, and the next wait takes the command; one that comes after finds
 * ASLEEP and writes. RUNG stays until a wait has returned because of it. Many rings cost one write.
 *
 * detach() from another thread waits until the owner has seen the poll's final completion. So the
 * close() that follows is a close: FIN or RST leaves, the port is free, and no event of that token
 * comes any more. The owner runs no user code, hence that takes one turn of it, not longer. The
 * owner itself, or anybody before there is an owner, cannot wait: the next wait does it.
 *
 * Every multishot poll that ends (no F_MORE) is armed again: the kernel ends them when the
 * completion queue is full. What cannot be armed now is tried again soon. When the kernel says that
 * it dropped a completion (-EBADR), nobody knows whose: all polls are cancelled and armed anew. */
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/assert.h"
#include "os/clock.h"
#include "os/fault.h"
#include "os/futex.h"
#include "os/thread.h"
#include "poll/uring_private.h"

#define ALL_BITS (WR_POLL_IN | WR_POLL_OUT | WR_POLL_HUP)
/* Looks for more completions within one wait: bounds its turn (D7). */
#define ROUNDS_MAX 256

struct batch {
    struct wr_poll_event *events;
    size_t max, count;
};

/* ---- the owner --------------------------------------------------------------------------- */

/* Nobody has its number or address any more. `done` may be gone once it is set: the wake is then
 * one for nobody. */
static void end_watch(struct wr_poller_backend *backend, struct wr_uring_watch *watch)
{
    _Atomic uint32_t *done = watch->waiter;

    watch->waiter = NULL;
    if (watch->stream)
        wr_uring_stream_drop(backend, watch->stream);
    if (!watch->lost) {
        wr_list_remove(&watch->link);
        wr_uring_watch_free(backend, watch);
    }
    if (!done)
        return;
    /* release: pairs with the acquire in wr_uring_detach() */
    atomic_store_explicit(done, 1, memory_order_release);
    wr_futex_wake(done, 1);
}

/* All that was pushed, oldest first. */
static struct wr_uring_command *take_commands(struct wr_poller_backend *backend)
{
    struct wr_uring_command *ordered = NULL, *next;
    /* acquire: pairs with the release in push() */
    struct wr_uring_command *command =
        atomic_exchange_explicit(&backend->commands, NULL, memory_order_acquire);

    for (; command; command = next) {
        next = command->next;
        command->next = ordered;
        ordered = command;
    }
    return ordered;
}

static void run_commands(struct wr_poller_backend *backend)
{
    struct wr_uring_command *next, *command = take_commands(backend);

    for (; command; command = next) {
        struct wr_uring_watch *watch = command->watch;
        next = command->next;
        if (watch->stream && command == &watch->stream->resume)
            wr_uring_stream_resume(watch->stream);
        if (command == &watch->attach)
            wr_list_add_tail(&backend->all, &watch->link);
        if (command != &watch->detach) {
            wr_uring_arm(backend, watch);
            continue;
        }
        watch->closing = true;
        if (watch->armed)
            wr_uring_cancel(backend, watch, watch->armed);
        else
            end_watch(backend, watch);
    }
}

/* Once more what could not be done, as much as there is room for completions. */
static void retry(struct wr_poller_backend *backend)
{
    unsigned left = backend->ring.cq.ring_entries / 4; /* a watch may have two requests */

    backend->starved = false;
    wr_uring_arm_own(backend);
    for (struct wr_list *link = backend->all.next; link != &backend->all && !backend->starved;
         link = link->next) {
        struct wr_uring_watch *watch = WR_CONTAINER_OF(link, struct wr_uring_watch, link);
        bool cancel = watch->closing && watch->armed & ~watch->cancelled;
        if (!cancel && (watch->closing || !wr_uring_unarmed(watch)))
            continue;
        if (left-- == 0)
            wr_uring_arm_later(backend, false);
        else if (cancel)
            wr_uring_cancel(backend, watch, watch->armed);
        else
            wr_uring_arm(backend, watch);
    }
}

static bool may_retry(struct wr_poller_backend *backend)
{
    return backend->starved && wr_clock_now() >= backend->retry &&
           io_uring_cq_ready(&backend->ring) == 0 && !io_uring_cq_has_overflow(&backend->ring);
}

static uint32_t bits_of(unsigned mask)
{
    uint32_t bits = 0;

    if (mask & POLLIN)
        bits |= WR_POLL_IN;
    if (mask & POLLOUT)
        bits |= WR_POLL_OUT;
    if (mask & POLLRDHUP)
        bits |= WR_POLL_IN | WR_POLL_HUP;
    if (mask & (POLLERR | POLLHUP))
        bits |= ALL_BITS;
    return bits;
}

/* The bits to report; the watch may be gone afterwards. */
static uint32_t complete_watch(struct wr_poller_backend *backend, struct wr_uring_watch *watch,
                               enum wr_uring_request request,
                               const struct io_uring_cqe *completion)
{
    bool failed = completion->res < 0 && completion->res != -ECANCELED;
    bool last = !(completion->flags & IORING_CQE_F_MORE);
    uint32_t bits = 0;

    if (last) {
        watch->armed &= (uint8_t)~WR_URING_BIT(request);
        watch->cancelled &= (uint8_t)~WR_URING_BIT(request);
    }
    if (request != WR_URING_POLL)
        bits = wr_uring_stream_complete(backend, watch, request, completion);
    else if (completion->res != -ECANCELED)
        bits = failed ? ALL_BITS : bits_of((unsigned)completion->res);
    if (request == WR_URING_POLL && watch->stream && !watch->closing)
        bits = wr_uring_stream_polled(backend, watch, bits);
    if (last && watch->closing && !watch->armed) {
        watch->lost = false;
        end_watch(backend, watch);
        return 0;
    }
    if (watch->closing)
        return 0;
    if (last && request == WR_URING_POLL)
        wr_uring_arm_later(backend, failed); /* let who reads and writes find out why */
    return bits;
}

static void complete_own(struct wr_poller_backend *backend, bool *armed,
                         const struct io_uring_cqe *completion)
{
    if (completion->flags & IORING_CQE_F_MORE)
        return;
    *armed = false;
    wr_uring_arm_later(backend, completion->res < 0 && completion->res != -ECANCELED);
}

static void report(struct batch *batch, uint64_t token, uint32_t bits)
{
    /* Completions of one stream follow each other. */
    if (batch->count > 0 && batch->events[batch->count - 1].token == token)
        batch->events[batch->count - 1].bits |= bits;
    else
        batch->events[batch->count++] = (struct wr_poll_event){token, bits};
}

/* `batch` NULL: what is ready will be reported anew, what was received is owed. */
static void complete(struct wr_poller_backend *backend, const struct io_uring_cqe *completion,
                     struct batch *batch)
{
    if (completion->user_data == WR_URING_BELL) {
        complete_own(backend, &backend->bell_armed, completion);
    } else if (completion->user_data == WR_URING_FOREIGN) {
        backend->foreign_ready = true;
        complete_own(backend, &backend->foreign_armed, completion);
    } else if (completion->user_data != WR_URING_CANCEL) {
        enum wr_uring_request request = completion->user_data & WR_URING_REQUEST_MASK;
        struct wr_uring_watch *watch =
            (struct wr_uring_watch *)(uintptr_t)(completion->user_data & ~WR_URING_REQUEST_MASK);
        uint64_t token = watch->token;
        uint32_t bits = complete_watch(backend, watch, request, completion);
        if (bits && batch) {
            report(batch, token, bits);
        } else if (bits && request != WR_URING_POLL) {
            watch->owed |= (uint8_t)bits;
            backend->owing = true;
        }
    }
}

/* Completions that are in the ring, as far as there is room. */
static void take_completions(struct wr_poller_backend *backend, struct batch *batch)
{
    struct io_uring_cqe *place;

    /* Ready first: asked for one that is not there, liburing would enter the kernel. */
    while ((!batch || batch->count < batch->max) && io_uring_cq_ready(&backend->ring) > 0 &&
           io_uring_peek_cqe(&backend->ring, &place) == 0) {
        struct io_uring_cqe completion = {.user_data = place->user_data,
                                          .res = place->res,
                                          .flags = place->flags};
        io_uring_cqe_seen(&backend->ring, place);
        if (!wr_fault(WR_FAULT_URING_COMPLETION))
            complete(backend, &completion, batch);
    }
}

static void harvest(struct wr_poller_backend *backend, struct batch *batch)
{
    for (int rounds = 0; rounds < ROUNDS_MAX; rounds++) {
        take_completions(backend, batch);
        if ((batch && batch->count == batch->max) || !wr_uring_has_more(backend) ||
            wr_uring_enter(backend, false, 0) < 0)
            return;
    }
}

/* From the epoll set; it speaks again only when something new comes to it. */
static int harvest_foreign(struct wr_poller_backend *backend, struct batch *batch)
{
    size_t room = batch->max - batch->count;
    int count = 0;

    /* None may be an interrupted wait: a second look. */
    for (int looks = 0; looks < 2 && count == 0; looks++)
        count = wr_poll_epoll.wait(backend->foreign, batch->events + batch->count, room, 0);
    if (count < 0)
        return count;
    backend->foreign_ready = (size_t)count == room;
    batch->count += (size_t)count;
    return 0;
}

static void harvest_owed(struct wr_poller_backend *backend, struct batch *batch)
{
    backend->owing = false;
    for (struct wr_list *link = backend->all.next; link != &backend->all; link = link->next) {
        struct wr_uring_watch *watch = WR_CONTAINER_OF(link, struct wr_uring_watch, link);
        if (!watch->owed || watch->closing)
            continue;
        if (batch->count == batch->max) {
            backend->owing = true;
            return;
        }
        report(batch, watch->token, watch->owed);
        watch->owed = 0;
    }
}

/* A completion was dropped: it may have been anybody's last. After this no poll is armed that we do
 * not know of; who asks for readiness anew gets it if it holds. A stream that may have lost bytes
 * ends with an error. */
static int start_over(struct wr_poller_backend *backend)
{
    int r = wr_uring_cancel_all(backend);

    if (r < 0)
        return r;
    harvest(backend, NULL);
    backend->bell_armed = backend->foreign_armed = false;
    backend->foreign_ready = true;
    for (struct wr_list *next, *link = backend->all.next; link != &backend->all; link = next) {
        struct wr_uring_watch *watch = WR_CONTAINER_OF(link, struct wr_uring_watch, link);
        next = link->next;
        if (!watch->armed || watch->lost)
            continue;
        if (watch->closing) {
            watch->lost = true;         /* kept to the end, in case the kernel still has it */
            end_watch(backend, watch);
        } else {
            wr_uring_stream_broken(backend, watch);
            watch->armed = watch->cancelled = 0;
        }
    }
    r = wr_uring_pool_restart(backend);
    if (r < 0)
        return r;
    retry(backend);
    return 0;
}

/* Hands over what is prepared, sleeps if nothing is there. */
static int sleep_once(struct wr_poller_backend *backend, weir_time deadline)
{
    uint32_t awake = WR_BELL_AWAKE;
    int r = wr_uring_submit(backend);

    if (r < 0)
        return r;
    bool more = wr_uring_has_more(backend), there = io_uring_cq_ready(&backend->ring) > 0;
    if (there && !more)
        return 0;
    /* acq_rel: pairs with the exchange in wr_uring_doorbell(); see above */
    bool sleep = !more && !backend->foreign_ready && !backend->owing &&
                 deadline > wr_clock_now() && wr_uring_sleep_hungry(backend) &&
                 atomic_compare_exchange_strong_explicit(&backend->bell, &awake, WR_BELL_ASLEEP,
                                                         memory_order_acq_rel,
                                                         memory_order_relaxed);
    r = wr_uring_enter(backend, sleep, deadline);
    /* acq_rel: pairs with the exchange in wr_uring_doorbell(); the commands of whoever rang are
     * seen by the next wait */
    atomic_exchange_explicit(&backend->bell, WR_BELL_AWAKE, memory_order_acq_rel);
    return r;
}

static int backend_wait(struct wr_poller_backend *backend, struct wr_poll_event *ret_events,
                        size_t max, weir_time deadline)
{
    struct batch batch = {.events = ret_events, .max = max};
    int saved = errno;
    int r = 0;

    WR_ASSERT(max > 0 && max <= INT_MAX);
    if (!backend->enabled) {
        r = wr_uring_enable(backend);
        if (r == 0)
            atomic_store_explicit(&backend->owner, wr_thread_id(), memory_order_relaxed);
    }
    if (r == 0) {
        wr_uring_refill(backend);
        run_commands(backend);
        if (may_retry(backend))
            retry(backend);
        r = sleep_once(backend, backend->starved && backend->retry < deadline ? backend->retry
                                                                              : deadline);
        if (r == -EBADR)
            r = start_over(backend);
        harvest(backend, &batch);
        if (backend->owing)
            harvest_owed(backend, &batch);
        if (backend->foreign_ready && batch.count < max) {
            int count = harvest_foreign(backend, &batch);
            r = count < 0 ? count : r;
        }
    }
    errno = saved;
    /* EBUSY: the completion queue was full; it has been emptied now. */
    if (batch.count > 0 || r == -EINTR || r == -ETIME || r == -EBUSY)
        return (int)batch.count;
    return r;
}

/* ---- open and close ---------------------------------------------------------------------- */

/* In the child of a fork, too: nothing of the parent's ring is changed. */
static void backend_close(struct wr_poller_backend *backend)
{
    struct wr_uring_command *next, *command = take_commands(backend);
    struct wr_list *link;
    int saved = errno;

    if (backend->open)
        io_uring_queue_exit(&backend->ring);
    if (backend->bell_fd >= 0)
        close(backend->bell_fd);
    if (backend->foreign)
        wr_poll_epoll.close(backend->foreign);
    for (; command; command = next) {
        next = command->next;
        if (command == &command->watch->attach)
            wr_list_add_tail(&backend->all, &command->watch->link);
    }
    while ((link = wr_list_pop(&backend->all)))
        wr_uring_watch_free(backend, WR_CONTAINER_OF(link, struct wr_uring_watch, link));
    wr_uring_pool_fini(backend);
    wr_tokens_fini(&backend->watches);
    wr_alloc_release_lines(backend->alloc, backend, sizeof *backend);
    errno = saved;
}

static int open_parts(struct wr_poller_backend *backend, unsigned batch_max)
{
    int fault = wr_fault(WR_FAULT_EVENTFD);

    backend->bell_fd = fault ? -1 : eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (backend->bell_fd < 0)
        return fault ? -fault : -errno;
    int r = wr_poll_epoll.open(&backend->foreign, backend->alloc, batch_max);
    return r < 0 ? r : wr_uring_setup(backend, batch_max);
}

static int backend_open(struct wr_poller_backend **ret_backend, struct wr_alloc *alloc,
                        unsigned batch_max)
{
    int saved = errno;

    WR_ASSERT(batch_max > 0);
    struct wr_poller_backend *backend = wr_alloc_lines(alloc, sizeof *backend);
    if (!backend)
        return -ENOMEM;
    backend->alloc = alloc;
    wr_tokens_init(&backend->watches, alloc);
    wr_list_init(&backend->all);
    int r = open_parts(backend, batch_max);
    errno = saved;
    if (r < 0)
        backend_close(backend);
    else
        *ret_backend = backend;
    return r;
}

const struct wr_poll_ops wr_poll_uring = {
    .name = "io_uring",
    .owner_waits = true,
    .open = backend_open,
    .close = backend_close,
    .attach = wr_uring_attach,
    .rearm = wr_uring_rearm,
    .detach = wr_uring_detach,
    .wait = backend_wait,
    .doorbell = wr_uring_doorbell,
    .provide = wr_uring_provide,
    .attach_receive = wr_uring_attach_receive,
    .resume = wr_uring_resume,
    .give = wr_uring_give,
    .receive_stats = wr_uring_receive_stats,
};
