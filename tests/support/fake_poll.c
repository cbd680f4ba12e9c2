/* fake_poll.c: one lock, one condition, plain arrays: a double must be right at a glance. */
#include "support/fake_poll.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <time.h>

#define INJECTED_MAX 64

struct fake_fd {
    bool open, pollable, attached;
    enum wr_poll_mode mode;
    uint64_t token;
    uint32_t level;                 /* what holds now */
    uint32_t asked;                 /* ONESHOT: what is asked for; 0: disarmed */
    uint32_t pending;               /* EDGE: edges not yet reported */
};

struct wr_poller_backend {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct wr_alloc *alloc;
    bool rung;
    int error;
    unsigned next;                  /* where the next wait begins to look: nobody starves */
    unsigned injected_count;
    struct wr_poll_event injected[INJECTED_MAX];
    struct fake_fd fds[FAKE_POLL_FDS];
};

static struct fake_fd *find(struct wr_poller_backend *backend, int fd)
{
    if (fd < 0 || fd >= FAKE_POLL_FDS || !backend->fds[fd].open)
        return NULL;
    return &backend->fds[fd];
}

static int fake_open(struct wr_poller_backend **ret_backend, struct wr_alloc *alloc,
                     unsigned batch_max)
{
    (void)batch_max;
    struct wr_poller_backend *backend = wr_alloc_zero(alloc, sizeof(*backend));
    pthread_condattr_t attributes;

    if (backend == NULL)
        return -ENOMEM;
    backend->alloc = alloc;
    pthread_mutex_init(&backend->lock, NULL);
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&backend->changed, &attributes);
    pthread_condattr_destroy(&attributes);
    *ret_backend = backend;
    return 0;
}

static void fake_close(struct wr_poller_backend *backend)
{
    pthread_cond_destroy(&backend->changed);
    pthread_mutex_destroy(&backend->lock);
    wr_alloc_release(backend->alloc, backend, sizeof(*backend));
}

static int fake_attach(struct wr_poller_backend *backend, int fd, uint64_t token,
                       enum wr_poll_mode mode)
{
    int result = 0;

    pthread_mutex_lock(&backend->lock);
    struct fake_fd *entry = find(backend, fd);
    if (entry == NULL) {
        result = -EBADF;
    } else if (!entry->pollable) {
        result = -EPERM;
    } else if (entry->attached) {
        result = -EEXIST;
    } else {
        entry->attached = true;
        entry->mode = mode;
        entry->token = token;
        entry->asked = 0;
        entry->pending = mode == WR_POLL_EDGE ? entry->level : 0;
        pthread_cond_signal(&backend->changed);
    }
    pthread_mutex_unlock(&backend->lock);
    return result;
}

static int fake_rearm(struct wr_poller_backend *backend, int fd, uint64_t token, uint32_t bits)
{
    int result = 0;

    pthread_mutex_lock(&backend->lock);
    struct fake_fd *entry = find(backend, fd);
    if (entry == NULL) {
        result = -EBADF;
    } else if (!entry->attached || entry->token != token) {
        result = -ENOENT;
    } else {
        entry->asked = bits;
        pthread_cond_signal(&backend->changed);
    }
    pthread_mutex_unlock(&backend->lock);
    return result;
}

static int fake_detach(struct wr_poller_backend *backend, int fd, uint64_t token)
{
    int result = 0;

    pthread_mutex_lock(&backend->lock);
    struct fake_fd *entry = find(backend, fd);
    if (entry == NULL)
        result = -EBADF;
    else if (!entry->attached || entry->token != token)
        result = -ENOENT;
    else
        entry->attached = false;
    pthread_mutex_unlock(&backend->lock);
    return result;
}

static uint32_t take_bits(struct fake_fd *entry)
{
    uint32_t bits = 0;

    if (!entry->open || !entry->attached)
        return 0;
    if (entry->mode == WR_POLL_EDGE) {
        bits = entry->pending;
        entry->pending = 0;
    } else if (entry->asked != 0) {
        bits = entry->level & (entry->asked | WR_POLL_HUP);
        if (bits & WR_POLL_HUP)
            bits |= WR_POLL_IN;
        if (bits != 0)
            entry->asked = 0;
    }
    return bits;
}

static int collect(struct wr_poller_backend *backend, struct wr_poll_event *ret_events, size_t max)
{
    size_t count = 0;

    while (count < max && backend->injected_count > 0)
        ret_events[count++] = backend->injected[--backend->injected_count];
    for (unsigned looked = 0; count < max && looked < FAKE_POLL_FDS; looked++) {
        struct fake_fd *entry = &backend->fds[backend->next];
        backend->next = (backend->next + 1) % FAKE_POLL_FDS;
        uint32_t bits = take_bits(entry);
        if (bits != 0) {
            ret_events[count].token = entry->token;
            ret_events[count].bits = bits;
            count++;
        }
    }
    return (int)count;
}

static int fake_wait(struct wr_poller_backend *backend, struct wr_poll_event *ret_events,
                     size_t max,
                     weir_time deadline)
{
    struct timespec until = { 0, 0 };
    int count;

    if (deadline > 0) {
        until.tv_sec = (time_t)(deadline / 1000000000);
        until.tv_nsec = (long)(deadline % 1000000000);
    }
    pthread_mutex_lock(&backend->lock);
    for (;;) {
        count = -backend->error;
        backend->error = 0;
        if (count == 0)
            count = collect(backend, ret_events, max);
        if (count != 0 || backend->rung)
            break;
        if (deadline == WEIR_NEVER)
            pthread_cond_wait(&backend->changed, &backend->lock);
        else if (pthread_cond_timedwait(&backend->changed, &backend->lock, &until) == ETIMEDOUT)
            break;
    }
    backend->rung = false;
    pthread_mutex_unlock(&backend->lock);
    return count;
}

static void fake_doorbell(struct wr_poller_backend *backend)
{
    pthread_mutex_lock(&backend->lock);
    backend->rung = true;
    pthread_cond_signal(&backend->changed);
    pthread_mutex_unlock(&backend->lock);
}

const struct wr_poll_ops wr_poll_fake = {
    .name = "fake",
    .open = fake_open,
    .close = fake_close,
    .attach = fake_attach,
    .rearm = fake_rearm,
    .detach = fake_detach,
    .wait = fake_wait,
    .doorbell = fake_doorbell,
};

int fake_poll_open_fd(struct wr_poller_backend *backend, bool pollable)
{
    int fd = 0;

    pthread_mutex_lock(&backend->lock);
    while (fd < FAKE_POLL_FDS && backend->fds[fd].open)
        fd++;
    if (fd < FAKE_POLL_FDS)
        backend->fds[fd] = (struct fake_fd){ .open = true, .pollable = pollable,
                                             .level = WR_POLL_OUT };
    pthread_mutex_unlock(&backend->lock);
    return fd < FAKE_POLL_FDS ? fd : -EMFILE;
}

void fake_poll_close_fd(struct wr_poller_backend *backend, int fd)
{
    pthread_mutex_lock(&backend->lock);
    backend->fds[fd].open = false;
    pthread_mutex_unlock(&backend->lock);
}

void fake_poll_raise(struct wr_poller_backend *backend, int fd, uint32_t bits)
{
    pthread_mutex_lock(&backend->lock);
    backend->fds[fd].level |= bits;
    if (backend->fds[fd].attached)
        backend->fds[fd].pending |= bits;
    pthread_cond_signal(&backend->changed);
    pthread_mutex_unlock(&backend->lock);
}

void fake_poll_lower(struct wr_poller_backend *backend, int fd, uint32_t bits)
{
    pthread_mutex_lock(&backend->lock);
    backend->fds[fd].level &= ~bits;
    pthread_mutex_unlock(&backend->lock);
}

void fake_poll_inject(struct wr_poller_backend *backend, uint64_t token, uint32_t bits)
{
    pthread_mutex_lock(&backend->lock);
    if (backend->injected_count < INJECTED_MAX)
        backend->injected[backend->injected_count++] = (struct wr_poll_event){ .token = token,
                                                                               .bits = bits };
    pthread_cond_signal(&backend->changed);
    pthread_mutex_unlock(&backend->lock);
}

void fake_poll_fail_wait(struct wr_poller_backend *backend, int error)
{
    pthread_mutex_lock(&backend->lock);
    backend->error = error;
    pthread_cond_signal(&backend->changed);
    pthread_mutex_unlock(&backend->lock);
}
