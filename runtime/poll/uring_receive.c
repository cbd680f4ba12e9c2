/* uring_receive.c: completion mode: the buffers of a ring, and what receives with them.
 *
 * A stream has a multishot receive that takes a buffer of the pool for each piece (buffer ring:
 * kernel 5.19, multishot receive: 6.0), and a multishot poll for OUT and the end. inbound.h says
 * how bytes and the right to receive reach the reader. The receive is armed while the owner has the
 * right; with few buffers in the ring a one-shot poll stands in for it, and the reader receives by
 * itself.
 *
 *   -ENOBUFS             no buffer was left: the right goes to the reader
 *   cancelled            more than `cap` buffers are unread, by us: the same
 *   0, -ECONNRESET, ...  the end of the stream or its error: the same, with the result
 *   more would come, but the completion queue was full: armed again when it has been emptied
 *
 * A multishot receive may sleep through the end of the stream: when bytes and the end are there
 * before it runs, it takes the bytes and waits for a wake that has been (seen on 6.18; liburing
 * issue 1549). So the poll asks for the peer's end as well, and when that has come and the receive
 * has not ended it is cancelled: the reader finds the rest and the end in the socket.
 *
 * A buffer is the kernel's while it is in the ring, a list's, a reader's, or on its way back: on a
 * stack that anybody pushes on and the owner takes as a whole before it sleeps. Only the owner
 * puts buffers into the ring, whose tail is a plain store. When not one buffer is in the ring, the
 * owner puts the word HUNGRY in place of an empty stack before it sleeps, by compare-and-exchange;
 * who pushes on that rings. One word decides: a push before makes the exchange fail, one after it
 * finds HUNGRY. */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/assert.h"
#include "os/fault.h"
#include "poll/uring_private.h"

#define BUFFER_SIZE 4096
#define GROUP 0
#define BUFFERS_MAX 32768
/* Unread buffers of one stream, at most; and in any case at most a quarter of all. */
#define CAP_MAX 64

/* Its address alone is used. */
static struct wr_buffer hungry;

/* ---- the pool ---------------------------------------------------------------------------- */

static unsigned inside(struct wr_uring_pool *pool)
{
    return atomic_load_explicit(&pool->inside, memory_order_relaxed);
}

static unsigned char *place_of(const struct wr_uring_pool *pool, unsigned id)
{
    return (unsigned char *)pool->ring + pool->count * sizeof(struct io_uring_buf) +
           (size_t)id * BUFFER_SIZE;
}

/* The `nth` of those that the next advance() shows to the kernel. */
static void add(struct wr_uring_pool *pool, struct wr_buffer *buffer, int nth)
{
    buffer->out = false;
    buffer->data = place_of(pool, buffer->id);
    io_uring_buf_ring_add(pool->ring, buffer->data, BUFFER_SIZE, buffer->id,
                          io_uring_buf_ring_mask(pool->count), nth);
}

static void advance(struct wr_uring_pool *pool, int count)
{
    io_uring_buf_ring_advance(pool->ring, count);
    atomic_store_explicit(&pool->inside, inside(pool) + (unsigned)count, memory_order_relaxed);
}

static int register_ring(struct wr_poller_backend *backend)
{
    struct wr_uring_pool *pool = &backend->pool;
    struct io_uring_buf_reg registration = {.ring_addr = (uintptr_t)pool->ring,
                                            .ring_entries = pool->count,
                                            .bgid = GROUP};
    int fault = wr_fault(WR_FAULT_URING_BUFFERS), added = 0;
    int r = fault ? -fault : io_uring_register_buf_ring(&backend->ring, &registration, 0);

    if (r < 0)
        return r == -ENOMEM ? r : -ENOSYS;
    io_uring_buf_ring_init(pool->ring);
    for (unsigned id = 0; id < pool->count; id++)
        if (!pool->buffers[id].out)
            add(pool, &pool->buffers[id], added++);
    atomic_store_explicit(&pool->inside, 0, memory_order_relaxed);
    advance(pool, added);
    return 0;
}

int wr_uring_provide(struct wr_poller_backend *backend, unsigned buffers)
{
    struct wr_uring_pool *pool = &backend->pool;
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    unsigned count = 1;

    WR_ASSERT(!backend->enabled && !pool->memory && buffers > 0 && buffers <= BUFFERS_MAX);
    while (count < buffers)
        count *= 2;
    pool->count = count;
    pool->low = count / 8 > 0 ? count / 8 : 1;
    pool->cap = count / 4 > CAP_MAX ? CAP_MAX : count / 4 > 0 ? count / 4 : 1;
    /* The ring stands on a page; the kernel holds on to it until the io_uring has gone. */
    pool->memory_size = count * (sizeof(struct io_uring_buf) + BUFFER_SIZE) + page;
    pool->memory = wr_alloc_raw(backend->alloc, pool->memory_size);
    pool->buffers = wr_alloc_zero(backend->alloc, count * sizeof *pool->buffers);
    if (!pool->memory || !pool->buffers)
        return -ENOMEM;
    for (unsigned id = 0; id < count; id++)
        pool->buffers[id].id = (uint16_t)id;
    uintptr_t start = ((uintptr_t)pool->memory + page - 1) / page * page;
    pool->ring = (struct io_uring_buf_ring *)start;
    memset(pool->ring, 0, count * sizeof(struct io_uring_buf));
    int r = register_ring(backend);
    if (r < 0)
        pool->ring = NULL;
    return r;
}

void wr_uring_pool_fini(struct wr_poller_backend *backend)
{
    struct wr_uring_pool *pool = &backend->pool;

    wr_alloc_release(backend->alloc, pool->memory, pool->memory_size);
    wr_alloc_release(backend->alloc, pool->buffers, pool->count * sizeof *pool->buffers);
}

/* No request runs: what the kernel took and nobody was told of is not out, hence put in anew. */
int wr_uring_pool_restart(struct wr_poller_backend *backend)
{
    if (!backend->pool.ring)
        return 0;
    int r = io_uring_unregister_buf_ring(&backend->ring, GROUP);
    return r < 0 ? r : register_ring(backend);
}

void wr_uring_refill(struct wr_poller_backend *backend)
{
    struct wr_uring_pool *pool = &backend->pool;
    struct wr_buffer *next, *buffer;
    int count = 0;

    if (!pool->ring || !atomic_load_explicit(&pool->returned, memory_order_relaxed))
        return;
    /* acquire: pairs with the release in wr_uring_give() */
    buffer = atomic_exchange_explicit(&pool->returned, NULL, memory_order_acquire);
    for (; buffer && buffer != &hungry; buffer = next) {
        next = buffer->next;
        add(pool, buffer, count++);
    }
    advance(pool, count);
}

bool wr_uring_sleep_hungry(struct wr_poller_backend *backend)
{
    struct wr_buffer *none = NULL;

    if (!backend->pool.ring || inside(&backend->pool) > 0)
        return true;
    /* relaxed is enough: who finds it has the bell's word to show it */
    return atomic_compare_exchange_strong_explicit(&backend->pool.returned, &none, &hungry,
                                                   memory_order_relaxed, memory_order_relaxed) ||
           none == &hungry;
}

void wr_uring_give(struct wr_poller_backend *backend, struct wr_buffer *buffer)
{
    struct wr_uring_pool *pool = &backend->pool;
    struct wr_buffer *head = atomic_load_explicit(&pool->returned, memory_order_relaxed);

    do
        buffer->next = head == &hungry ? NULL : head;
    /* release: pairs with the acquire in wr_uring_refill() */
    while (!atomic_compare_exchange_weak_explicit(&pool->returned, &head, buffer,
                                                  memory_order_release, memory_order_relaxed));
    if (head == &hungry)
        wr_poll_uring.doorbell(backend);
}

void wr_uring_receive_stats(struct wr_poller_backend *backend, struct wr_poll_receive_stats *ret)
{
    struct wr_uring_pool *pool = &backend->pool;

    memset(ret, 0, sizeof *ret);
    if (!pool->ring)
        return;
    ret->buffers = pool->count;
    ret->out = pool->count - inside(pool);
    ret->starved = atomic_load_explicit(&pool->starved, memory_order_relaxed);
    ret->handed_over = atomic_load_explicit(&pool->handed_over, memory_order_relaxed);
    ret->rearmed = atomic_load_explicit(&pool->rearmed, memory_order_relaxed);
}

/* ---- streams ----------------------------------------------------------------------------- */

struct wr_uring_stream *wr_uring_stream_make(struct wr_poller_backend *backend,
                                             struct wr_uring_watch *watch, bool later)
{
    struct wr_uring_stream *stream = wr_alloc_zero(backend->alloc, sizeof *stream);

    if (!stream)
        return NULL;
    wr_inbound_init(&stream->inbound, later);
    stream->right = !later;
    stream->resume.watch = watch;
    return stream;
}

void wr_uring_stream_drop(struct wr_poller_backend *backend, struct wr_uring_stream *stream)
{
    struct wr_buffer *buffer;
    int result;

    while (!wr_inbound_empty(&stream->inbound))
        if (wr_inbound_take(&stream->inbound, &buffer, &result) == WR_INBOUND_BUFFER)
            wr_uring_give(backend, buffer);
}

void wr_uring_stream_resume(struct wr_uring_stream *stream)
{
    WR_ASSERT(!stream->right);
    stream->right = true;
}

enum wr_uring_request wr_uring_stream_request(struct wr_poller_backend *backend,
                                              const struct wr_uring_stream *stream)
{
    if (stream->useless || inside(&backend->pool) < backend->pool.low)
        return WR_URING_LOOK;
    atomic_fetch_add_explicit(&backend->pool.rearmed, 1, memory_order_relaxed);
    return WR_URING_RECEIVE;
}

static uint32_t hand_over(struct wr_poller_backend *backend, struct wr_uring_stream *stream,
                          int result)
{
    WR_ASSERT(stream->right);
    stream->right = false;
    atomic_fetch_add_explicit(&backend->pool.handed_over, 1, memory_order_relaxed);
    wr_inbound_hand_over(&stream->inbound, result);
    return result == WR_INBOUND_NOTHING ? WR_POLL_IN : WR_POLL_IN | WR_POLL_HUP;
}

static uint32_t arrive(struct wr_poller_backend *backend, struct wr_uring_watch *watch,
                       const struct io_uring_cqe *completion)
{
    struct wr_uring_pool *pool = &backend->pool;
    struct wr_buffer *buffer = &pool->buffers[completion->flags >> IORING_CQE_BUFFER_SHIFT];

    WR_ASSERT(!buffer->out && inside(pool) > 0);
    buffer->out = true;
    atomic_store_explicit(&pool->inside, inside(pool) - 1, memory_order_relaxed);
    if (watch->closing || completion->res <= 0) {
        wr_uring_give(backend, buffer);
        return 0;
    }
    buffer->length = (uint32_t)completion->res;
    wr_inbound_push(&watch->stream->inbound, buffer);
    return WR_POLL_IN;
}

/* The receive has ended, for a reason other than more than the completion queue can hold. */
static uint32_t end_receive(struct wr_poller_backend *backend, struct wr_uring_stream *stream,
                            int result)
{
    switch (result) {
    case -ENOBUFS:
        atomic_fetch_add_explicit(&backend->pool.starved, 1, memory_order_relaxed);
        return hand_over(backend, stream, WR_INBOUND_NOTHING);
    case -ECANCELED:
        return hand_over(backend, stream, WR_INBOUND_NOTHING);
    case -EAGAIN:
    case -EINTR:
    case -ENOMEM:
        wr_uring_arm_later(backend, true);
        return 0;
    case -EINVAL:
    case -EOPNOTSUPP:
    case -EBADF:
    case -EFAULT:
        /* Of the request, not of the stream: who looks and receives by itself is told why. */
        stream->useless = true;
        wr_uring_arm_later(backend, true);
        return 0;
    default:
        return hand_over(backend, stream, result);
    }
}

uint32_t wr_uring_stream_complete(struct wr_poller_backend *backend, struct wr_uring_watch *watch,
                                  enum wr_uring_request request,
                                  const struct io_uring_cqe *completion)
{
    struct wr_uring_stream *stream = watch->stream;
    bool last = !(completion->flags & IORING_CQE_F_MORE);
    uint32_t bits = 0;

    if (completion->flags & IORING_CQE_F_BUFFER)
        bits = arrive(backend, watch, completion);
    if (watch->closing)
        return 0;
    if (request == WR_URING_LOOK) {
        if (completion->res != -ECANCELED && completion->res != -ENOMEM &&
            completion->res != -EAGAIN)
            return hand_over(backend, stream, WR_INBOUND_NOTHING);
        wr_uring_arm_later(backend, completion->res != -ECANCELED);
        return 0;
    }
    bool many = wr_inbound_unread(&stream->inbound) > backend->pool.cap;
    if (!last && many)
        wr_uring_cancel(backend, watch, WR_URING_BIT(WR_URING_RECEIVE));
    else if (last && completion->res > 0 && many)
        bits |= hand_over(backend, stream, WR_INBOUND_NOTHING);
    else if (last && completion->res > 0)
        wr_uring_arm_later(backend, false);
    else if (last)
        bits |= end_receive(backend, stream, completion->res);
    return bits;
}

uint32_t wr_uring_stream_polled(struct wr_poller_backend *backend, struct wr_uring_watch *watch,
                                uint32_t bits)
{
    if (!(bits & WR_POLL_HUP))
        return bits;
    if (watch->stream->right)
        wr_uring_cancel(backend, watch, WR_URING_BIT(WR_URING_RECEIVE));
    return bits & ~(uint32_t)WR_POLL_IN;
}

void wr_uring_stream_broken(struct wr_poller_backend *backend, struct wr_uring_watch *watch)
{
    if (!watch->stream || !watch->stream->right ||
        !(watch->armed & WR_URING_BIT(WR_URING_RECEIVE)))
        return;
    watch->owed |= (uint8_t)hand_over(backend, watch->stream, -EIO);
    backend->owing = true;
}
