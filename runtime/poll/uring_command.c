/* uring_command.c: what any thread asks of the owner of a ring: attach, detach, resume, the bell.
 * The protocol of commands and bell stands in uring.c. */
#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/assert.h"
#include "os/futex.h"
#include "os/thread.h"
#include "poll/uring_private.h"

void wr_uring_doorbell(struct wr_poller_backend *backend)
{
    static const uint64_t one = 1;

    /* acq_rel: pairs with the moves of the owner in sleep_once(); see above */
    if (atomic_exchange_explicit(&backend->bell, WR_BELL_RUNG, memory_order_acq_rel) !=
        WR_BELL_ASLEEP)
        return;
    int saved = errno;
    ssize_t written = write(backend->bell_fd, &one, sizeof one);
    WR_ASSERT(written == (ssize_t)sizeof one);
    (void)written;
    errno = saved;
}

static bool is_owner(struct wr_poller_backend *backend)
{
    return atomic_load_explicit(&backend->owner, memory_order_relaxed) == wr_thread_id();
}

static void push(struct wr_poller_backend *backend, struct wr_uring_command *command)
{
    struct wr_uring_command *head = atomic_load_explicit(&backend->commands, memory_order_relaxed);

    do
        command->next = head;
    /* release: pairs with the acquire in take_commands() */
    while (!atomic_compare_exchange_weak_explicit(&backend->commands, &head, command,
                                                  memory_order_release, memory_order_relaxed));
    if (!is_owner(backend))
        wr_uring_doorbell(backend);
}

/* 0, -EBADF, or -EPERM: as epoll says it of what is never anything but ready. */
static int check_descriptor(int fd)
{
    struct stat status;

    if (fstat(fd, &status) < 0)
        return -errno;
    return S_ISREG(status.st_mode) || S_ISDIR(status.st_mode) || S_ISBLK(status.st_mode) ? -EPERM
                                                                                         : 0;
}

/* NULL, or made with its stream when `ret_inbound` is there. */
static struct wr_uring_watch *make_watch(struct wr_poller_backend *backend, bool later,
                                         struct wr_inbound **ret_inbound)
{
    struct wr_uring_watch *watch = wr_alloc_zero(backend->alloc, sizeof *watch);

    if (!watch || !ret_inbound)
        return watch;
    watch->stream = wr_uring_stream_make(backend, watch, later);
    if (!watch->stream) {
        wr_alloc_release(backend->alloc, watch, sizeof *watch);
        return NULL;
    }
    *ret_inbound = &watch->stream->inbound;
    return watch;
}

void wr_uring_watch_free(struct wr_poller_backend *backend, struct wr_uring_watch *watch)
{
    if (watch->stream)
        wr_alloc_release(backend->alloc, watch->stream, sizeof *watch->stream);
    wr_alloc_release(backend->alloc, watch, sizeof *watch);
}

/* `ret_inbound`: NULL for readiness. */
static int attach_edge(struct wr_poller_backend *backend, int fd, uint64_t token, uint64_t *slot,
                       bool later, struct wr_inbound **ret_inbound)
{
    struct wr_uring_watch *watch;
    int r = check_descriptor(fd);

    if (r < 0)
        return r;
    if (wr_poll_epoll_holds(backend->foreign, fd))
        return -EEXIST;
    watch = make_watch(backend, later, ret_inbound);
    if (!watch)
        return -ENOMEM;
    watch->attach.watch = watch;
    watch->detach.watch = watch;
    watch->token = token;
    watch->fd = fd;
    *slot = (uintptr_t)watch;
    push(backend, &watch->attach);
    return 0;
}

int wr_uring_attach_receive(struct wr_poller_backend *backend, int fd, uint64_t token,
                          enum wr_poll_mode mode, struct wr_inbound **ret_inbound)
{
    int saved = errno;
    int r;

    WR_ASSERT(token != WR_POLL_TOKEN_NONE);
    if (fd < 0)
        return -EBADF;
    wr_tokens_lock(&backend->watches, fd);
    uint64_t *slot = wr_tokens_make(&backend->watches, fd);
    if (!slot)
        r = -ENOMEM;
    else if (*slot != WR_POLL_TOKEN_NONE)
        r = -EEXIST;
    else if (mode != WR_POLL_ONESHOT)
        r = attach_edge(backend, fd, token, slot, mode == WR_POLL_RECEIVE_LATER,
                        backend->pool.ring ? ret_inbound : NULL);
    else
        r = wr_poll_epoll.attach(backend->foreign, fd, token, mode);
    wr_tokens_unlock(&backend->watches, fd);
    errno = saved;
    return r;
}

int wr_uring_attach(struct wr_poller_backend *backend, int fd, uint64_t token,
                          enum wr_poll_mode mode)
{
    return wr_uring_attach_receive(backend, fd, token, mode, NULL);
}

/* Its command is in no list: the right has come back to the owner before it leaves again. */
void wr_uring_resume(struct wr_poller_backend *backend, struct wr_inbound *inbound)
{
    struct wr_uring_stream *stream = WR_CONTAINER_OF(inbound, struct wr_uring_stream, inbound);

    WR_ASSERT(inbound->direct);
    inbound->direct = false;
    push(backend, &stream->resume);
}

int wr_uring_rearm(struct wr_poller_backend *backend, int fd, uint64_t token, uint32_t bits)
{
    return wr_poll_epoll.rearm(backend->foreign, fd, token, bits);
}

/* Takes the watch out of the table. NULL: none of ours goes by that number and token. */
static struct wr_uring_watch *claim(struct wr_poller_backend *backend, int fd, uint64_t token)
{
    struct wr_uring_watch *watch = NULL;

    wr_tokens_lock(&backend->watches, fd);
    uint64_t *slot = wr_tokens_find(&backend->watches, fd);
    if (slot && *slot != WR_POLL_TOKEN_NONE) {
        watch = (struct wr_uring_watch *)(uintptr_t)*slot;
        if (watch->token == token)
            *slot = WR_POLL_TOKEN_NONE;
        else
            watch = NULL;
    }
    wr_tokens_unlock(&backend->watches, fd);
    return watch;
}

int wr_uring_detach(struct wr_poller_backend *backend, int fd, uint64_t token)
{
    _Atomic uint32_t done = 0;
    struct wr_uring_watch *watch = fd < 0 ? NULL : claim(backend, fd, token);

    if (!watch)
        return wr_poll_epoll.detach(backend->foreign, fd, token);
    bool wait = atomic_load_explicit(&backend->owner, memory_order_relaxed) && !is_owner(backend);
    if (wait)
        watch->waiter = &done;
    push(backend, &watch->detach);
    /* acquire: pairs with the release in end_watch() */
    while (wait && !atomic_load_explicit(&done, memory_order_acquire))
        wr_futex_wait(&done, 0, WEIR_NEVER);
    return 0;
}
