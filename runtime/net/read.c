/* read.c: the persistent reader: what comes in goes to its callback as views of the worker's
 * buffer. */
#include <errno.h>

#include "base/assert.h"
#include "dispatch/receive.h"
#include "net/net.h"
#include "net/view.h"
#include "os/clock.h"
#include "os/sock.h"

/* Buffers or datagrams delivered in one turn; then others get theirs (D6). */
#define STREAM_ROUNDS 4
#define DATAGRAM_ROUNDS 64
/* Buffers of a ring delivered in one turn, and how many of them a receive of our own counts for. */
#define LENT_ROUNDS 8
#define LENT_EACH (LENT_ROUNDS / STREAM_ROUNDS)
/* When there is no memory for the worker's buffer. */
#define SMALL_BUFFER 1024

int weir_read_start(weir_socket *socket, weir_read_fn *on_read, void *context)
{
    if (!socket || !on_read || socket->source.kind == WR_LISTENER)
        return -EINVAL;
    int r = 0;

    wr_lock(&socket->in.lock);
    if (wr_closing(socket))
        r = -ECANCELED;
    else if (socket->reading || socket->in.head)
        r = -EBUSY;
    if (r == 0) {
        socket->reading = true;
        socket->on_read = on_read;
        socket->in_context = context;
        /* After a pause the readiness may have been taken: look, rather than wait for an edge. */
        wr_source_schedule(&socket->source, socket->touched ? WR_IN | WR_WANT_IN : WR_WANT_IN);
    }
    wr_unlock(&socket->in.lock);
    return r;
}

/* Under in.lock. */
static void stop(weir_socket *socket)
{
    socket->reading = false;
    socket->touched = true; /* a next start looks by itself */
    wr_source_unwant(&socket->source, WR_IN);
}

int weir_read_stop(weir_socket *socket)
{
    if (!socket || socket->source.kind == WR_LISTENER)
        return -EINVAL;

    wr_lock(&socket->in.lock);
    int r = wr_closing(socket) ? -ECANCELED : socket->reading ? 0 : -EALREADY;
    if (r == 0)
        stop(socket);
    wr_unlock(&socket->in.lock);
    return r;
}

int weir_read_deadline(weir_socket *socket, weir_time deadline)
{
    if (!socket || socket->source.kind == WR_LISTENER)
        return -EINVAL;
    int r = 0;

    wr_lock(&socket->in.lock);
    if (wr_closing(socket)) {
        r = -ECANCELED;
    } else {
        wr_poller_deadline(socket->source.poller, &socket->deadline, deadline);
    }
    wr_unlock(&socket->in.lock);
    return r;
}

/* Under nothing. False: not reading (any more). */
static bool reader(weir_socket *socket, weir_read_fn **ret_read, void **ret_context)
{
    wr_lock(&socket->in.lock);
    bool reading = socket->reading;
    *ret_read = socket->on_read;
    *ret_context = socket->in_context;
    wr_unlock(&socket->in.lock);
    return reading;
}

static void deliver(weir_socket *socket, const void *data, size_t length, int status,
                    const struct wr_view_origin *origin, weir_read_fn *on_read, void *context)
{
    weir_view view = {.data = data, .length = length, .private_ = (void *)(uintptr_t)origin};
    on_read(socket, &view, status, context);
}

/* The end, or an error: the reader hears of it once. */
static void finish(weir_socket *socket, ssize_t result, struct wr_view_origin *origin)
{
    weir_read_fn *on_read;
    void *context;

    wr_lock(&socket->in.lock);
    bool reading = socket->reading;
    on_read = socket->on_read;
    context = socket->in_context;
    stop(socket);
    if (result == 0)
        socket->end_seen = true;
    wr_unlock(&socket->in.lock);
    if (reading)
        deliver(socket, "", 0, (int)result, origin, on_read, context);
}

void wr_read_timeout(weir_socket *socket)
{
    struct wr_view_origin origin = {.alloc = wr_socket_alloc(socket)};

    wr_lock(&socket->in.lock);
    /* It may have been moved or taken back since it passed: then there is nothing to tell. */
    bool due = !wr_closing(socket) && wr_timers_take_due(&socket->source.poller->timers,
                                                      &socket->deadline, wr_clock_now());
    weir_read_fn *on_read = socket->on_read; /* also while paused */
    void *context = socket->in_context;
    wr_unlock(&socket->in.lock);
    if (due && on_read)
        deliver(socket, "", 0, -ETIMEDOUT, &origin, on_read, context);
}

/* Completion mode: the views are the ring's own buffers, as long as it has some. */
static bool read_turn_lent(weir_socket *socket, unsigned char *buffer, size_t size,
                           struct wr_scratch *scratch)
{
    struct wr_view_origin origin = {.alloc = wr_socket_alloc(socket)};

    for (int rounds = LENT_ROUNDS; rounds > 0;) {
        struct wr_buffer *lent = NULL;
        ssize_t n = -EAGAIN;
        wr_lock(&socket->in.lock); /* who stops reading may begin to receive at once */
        bool reading = socket->reading;
        if (reading)
            n = wr_receive_lent(socket, buffer, size, &lent);
        weir_read_fn *on_read = socket->on_read;
        void *context = socket->in_context;
        wr_unlock(&socket->in.lock);
        if (!reading || n == -EAGAIN)
            return reading || rounds < LENT_ROUNDS;
        if (n <= 0) {
            finish(socket, n, &origin);
            return true;
        }
        wr_count(socket->source.poller->runtime, WR_COUNT_RECEIVED, (uint64_t)n);
        deliver(socket, lent ? lent->data : buffer, (size_t)n, 0, &origin, on_read, context);
        if (lent)
            wr_source_give(&socket->source, lent);
        if (scratch && scratch->corked > 0)
            wr_cork_flush(socket, scratch);
        rounds -= lent ? 1 : LENT_EACH;
    }
    wr_source_schedule(&socket->source, WR_IN);
    return true;
}

bool wr_read_turn(weir_socket *socket, struct wr_scratch *scratch, uint32_t flags)
{
    unsigned char small[SMALL_BUFFER];
    unsigned char *buffer = scratch ? scratch->in : small;
    size_t size = scratch ? sizeof scratch->in : sizeof small;
    bool stream = socket->source.kind == WR_STREAM;
    unsigned rounds = stream ? STREAM_ROUNDS : DATAGRAM_ROUNDS;
    struct wr_view_origin origin; /* not zeroed: it has room for an address, which is large */
    weir_read_fn *on_read;
    void *context;

    if (wr_source_inbound(&socket->source))
        return read_turn_lent(socket, buffer, size, scratch);
    if (!reader(socket, &on_read, &context))
        return false;
    origin.alloc = wr_socket_alloc(socket);
    origin.datagram = !stream;
    do {
        if (rounds-- == 0) {
            wr_source_schedule(&socket->source,
                               WR_IN); /* to the back of the queue, the edge kept */
            return true;
        }
        ssize_t n;
        if (stream) {
            n = wr_sock_recv(socket->source.fd, buffer, size);
        } else {
            origin.from.length = sizeof origin.from.storage;
            n = wr_sock_recvfrom(socket->source.fd, buffer, size, &origin.from.storage,
                                 &origin.from.length);
        }
        if (n == -EAGAIN)
            return true;
        if (n < 0 || (n == 0 && stream)) {
            finish(socket, n, &origin);
            return true;
        }
        wr_count(socket->source.poller->runtime, WR_COUNT_RECEIVED, (uint64_t)n);
        deliver(socket, buffer, (size_t)n, 0, &origin, on_read, context);
        if (scratch && scratch->corked > 0)
            wr_cork_flush(socket, scratch);
        /* A short read emptied the socket. What comes later brings an edge of its own; but an end
         * that came together with these bytes has had its edge already: HUP says so. */
        if (stream && (size_t)n < size && !(flags & WR_HUP))
            return true;
    } while (reader(socket, &on_read, &context));
    return true;
}
