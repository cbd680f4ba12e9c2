/* write.c: weir_write: bytes that leave together.
 *
 * Bytes written inside a turn of the socket gather in the scratch of the thread (the cork) and
 * leave in one system call when the callback returns or announces a block. What the kernel does not
 * take, and what is written while something waits, goes into WRITE operations in the out line,
 * where it keeps its place among the others. `corked` (under out.lock) tells other threads that
 * such bytes come first. */
#include <errno.h>
#include <string.h>

#include "base/assert.h"
#include "base/list.h"
#include "net/net.h"
#include "os/sock.h"

/* The smallest allocation for bytes that wait. */
#define CHUNK_MIN 16384

struct chunk {
    weir_op op; /* WR_OP_WRITE */
    size_t capacity;
    unsigned char bytes[];
};

static struct chunk *chunk_of(weir_op *op)
{
    return WR_CONTAINER_OF(op, struct chunk, op);
}

void wr_write_free(weir_socket *socket, weir_op *op)
{
    struct chunk *chunk = chunk_of(op);
    WR_ASSERT(socket->pending >= op->length_ - op->moved_);
    socket->pending -= op->length_ - op->moved_;
    wr_count(socket->source.poller->runtime, WR_COUNT_FREED, op->length_);
    wr_alloc_release(wr_socket_alloc(socket), chunk, sizeof *chunk + chunk->capacity);
}

static struct chunk *chunk_make(weir_socket *socket, size_t length)
{
    size_t capacity = length < CHUNK_MIN ? CHUNK_MIN : length;
    struct chunk *chunk = wr_alloc_raw(wr_socket_alloc(socket), sizeof *chunk + capacity);

    if (!chunk)
        return NULL;
    chunk->capacity = capacity;
    weir_op_init(&chunk->op, NULL, NULL);
    wr_op_prepare(&chunk->op, WR_OP_WRITE, chunk->bytes, 0);
    return chunk;
}

static void chunk_add(weir_socket *socket, struct chunk *chunk, const struct iovec *piece)
{
    if (piece->iov_len == 0)
        return;
    WR_ASSERT(piece->iov_len <= chunk->capacity - chunk->op.length_);
    memcpy(chunk->bytes + chunk->op.length_, piece->iov_base, piece->iov_len);
    chunk->op.length_ += piece->iov_len;
    socket->pending += piece->iov_len;
    wr_count(socket->source.poller->runtime, WR_COUNT_KEPT, piece->iov_len);
}

/* Asked only of a socket on which bytes wait: a write that the kernel takes at once costs none of
 * this. */
static bool over_budget(weir_socket *socket)
{
    weir_runtime *runtime = socket->source.poller->runtime;
    return runtime->write_budget != SIZE_MAX &&
           wr_counted_waiting(runtime) >= runtime->write_budget;
}

/* Who was refused for the budget has bytes of its own that wait, so it comes here again: at the
 * latest when the last of them leaves, it is told. */
void wr_write_moved(weir_socket *socket, size_t moved)
{
    WR_ASSERT(socket->pending >= moved);
    socket->pending -= moved;
    if (socket->above && socket->pending <= socket->write_low &&
        (socket->pending == 0 || !over_budget(socket))) {
        socket->above = false;
        socket->drained = true;
        wr_source_schedule(&socket->source, WR_CTL);
    }
}

void wr_write_drop(weir_socket *socket)
{
    weir_op *next;

    for (weir_op *op = socket->out.head; op; op = next) {
        next = op->next_;
        if (op->kind_ == WR_OP_WRITE)
            wr_line_end(socket, &socket->out, op, -ECANCELED);
    }
}

void wr_write_failed(weir_socket *socket, int error)
{
    WR_ASSERT(error < 0 && error >= -UINT8_MAX); /* as all that the kernel says */
    socket->write_errno = (uint8_t)-error;
    wr_write_drop(socket);
    /* A writer that waits to be told hears of it. A reader hears from the kernel that the peer is
     * gone; of another error (no memory, say) neither it nor the peer would hear, and both might
     * wait for each other. */
    socket->drained = true;
    if (error != -EPIPE && error != -ECONNRESET && socket->source.fd >= 0)
        wr_sock_shutdown(socket->source.fd, SHUT_RDWR);
    wr_source_schedule(&socket->source, WR_CTL);
    if (socket->out.head)
        wr_line_settle(socket, &socket->out);
}

void wr_write_fin(weir_socket *socket)
{
    if (!socket->fin_wanted || socket->fin_sent || socket->out.head || socket->corked ||
        socket->source.fd < 0)
        return;
    socket->fin_sent = true;
    if (socket->source.kind == WR_STREAM)
        wr_sock_shutdown(socket->source.fd, SHUT_WR);
}

void wr_write_notify(weir_socket *socket)
{
    wr_lock(&socket->out.lock);
    void *context = NULL;
    weir_drain_fn *on_drain =
        socket->drained && !wr_closing(socket) ? wr_drain_get(socket, &context) : NULL;
    int status = -socket->write_errno;
    socket->drained = false;
    wr_unlock(&socket->out.lock);
    if (on_drain)
        on_drain(socket, status, context);
}

/* Under out.lock. Skips what has left; the rest of the pieces goes to the end of the line, or to
 * its head. 0 or -ENOMEM. */
static int keep_rest(weir_socket *socket, const struct iovec *pieces, size_t count, size_t skip,
                     bool first)
{
    size_t length = 0;
    for (size_t i = 0; i < count; i++)
        length += pieces[i].iov_len;
    length -= skip;
    if (length == 0)
        return 0;

    weir_op *tail = socket->out.head ? socket->out.head->prev_ : NULL;
    struct chunk *chunk = NULL;
    if (!first && tail && tail->kind_ == WR_OP_WRITE &&
        chunk_of(tail)->capacity - tail->length_ >= length)
        chunk = chunk_of(tail);
    if (!chunk) {
        chunk = chunk_make(socket, length);
        if (!chunk)
            return -ENOMEM;
        if (first)
            wr_line_push_head(&socket->out, &chunk->op);
        else
            wr_line_append(&socket->out, &chunk->op);
    }
    for (size_t i = 0; i < count; i++) {
        struct iovec piece = pieces[i];
        size_t gone = skip < piece.iov_len ? skip : piece.iov_len;
        skip -= gone;
        piece.iov_base = (unsigned char *)piece.iov_base + gone;
        piece.iov_len -= gone;
        chunk_add(socket, chunk, &piece);
    }
    return 0;
}

static size_t sum(const struct iovec *pieces, size_t count)
{
    size_t length = 0;
    for (size_t i = 0; i < count; i++)
        length += pieces[i].iov_len;
    return length;
}

/* Under out.lock, nothing waits before these: send now, keep the rest at the head of the line. 0 or
 * -errno. */
static int send_now(weir_socket *socket, const struct iovec *pieces, size_t count)
{
    size_t length = sum(pieces, count), sent = 0;
    struct wr_pieces left = {.first = pieces, .count = count};

    while (sent < length) {
        struct iovec next[WR_PIECES_MAX];
        size_t n = wr_pieces_next(&left, next);
        ssize_t r = n == 1 ? wr_sock_send(socket->source.fd, next[0].iov_base, next[0].iov_len)
                           : wr_sock_sendv(socket->source.fd, next, n);
        if (r == -EAGAIN)
            break;
        if (r < 0) {
            wr_write_failed(socket, (int)r);
            return (int)r;
        }
        sent += (size_t)r;
        wr_pieces_sent(&left, (size_t)r);
        wr_count(socket->source.poller->runtime, WR_COUNT_SENT, (uint64_t)r);
    }
    if (sent == length)
        return 0;
    int r = keep_rest(socket, pieces, count, sent, true);
    if (r < 0) {
        wr_write_failed(socket, r); /* half of it has left: the stream cannot go on */
        return r;
    }
    wr_source_want(&socket->source, WR_OUT);
    return 0;
}

void wr_cork_flush(weir_socket *socket, struct wr_scratch *scratch)
{
    struct iovec piece = {.iov_base = scratch->out, .iov_len = scratch->corked};

    wr_lock(&socket->out.lock);
    socket->corked = false;
    scratch->corked = 0;
    socket->pending -= piece.iov_len;
    if (socket->source.fd >= 0 && !socket->write_errno && !socket->reset) {
        bool behind = socket->out.head != NULL;
        send_now(socket, &piece, 1);
        if (behind)
            wr_line_settle(socket, &socket->out);
    }
    wr_write_moved(socket, 0);
    wr_write_fin(socket);
    wr_unlock(&socket->out.lock);
}

/* Under out.lock. */
static int refuse(weir_socket *socket)
{
    if (wr_closing(socket))
        return -ECANCELED;
    if (socket->write_errno)
        return -socket->write_errno;
    if (socket->fin_wanted)
        return -EPIPE;
    if (socket->pending >= socket->out.limit ||
        (socket->pending > 0 && socket->out.head && over_budget(socket))) {
        socket->above = true;
        return -EAGAIN;
    }
    return 0;
}

/* Under out.lock. */
static int write_datagram(weir_socket *socket, const struct iovec *pieces, size_t count)
{
    ssize_t n = wr_sock_sendv(socket->source.fd, pieces, count);
    if (n >= 0)
        wr_count(socket->source.poller->runtime, WR_COUNT_SENT, (uint64_t)n);
    return n < 0 ? (int)n : 0;
}

/* Under out.lock. */
static int take(weir_socket *socket, const struct iovec *pieces, size_t count)
{
    struct wr_scratch *scratch = wr_scratch_peek();
    size_t length = sum(pieces, count);
    bool own = scratch && scratch->corking == socket;

    if (socket->source.kind == WR_DATAGRAM)
        return write_datagram(socket, pieces, count);
    if (!socket->out.head && own && length <= sizeof scratch->out - scratch->corked) {
        for (size_t i = 0; i < count; i++) {
            if (pieces[i].iov_len > 0)
                memcpy(scratch->out + scratch->corked, pieces[i].iov_base, pieces[i].iov_len);
            scratch->corked += pieces[i].iov_len;
        }
        socket->pending += length;
        socket->corked = scratch->corked > 0;
        return 0;
    }
    if (socket->out.head || socket->corked)
        return keep_rest(socket, pieces, count, 0, false);
    return send_now(socket, pieces, count);
}

int weir_writev(weir_socket *socket, const struct iovec *pieces, size_t count)
{
    if (!socket || (!pieces && count > 0) || socket->source.kind == WR_LISTENER)
        return -EINVAL;
    struct wr_scratch *scratch = wr_scratch_peek();

    /* No room in the cork: what is there leaves first. */
    if (scratch && scratch->corking == socket && scratch->corked > 0 &&
        sum(pieces, count) > sizeof scratch->out - scratch->corked)
        wr_cork_flush(socket, scratch);
    wr_lock(&socket->out.lock);
    int r = refuse(socket);
    if (r == 0)
        r = take(socket, pieces, count);
    if (r == 0 && socket->pending >= socket->out.limit)
        socket->above = true;
    wr_unlock(&socket->out.lock);
    return r;
}

int weir_write(weir_socket *socket, const void *data, size_t length)
{
    struct iovec piece = {.iov_base = (void *)(uintptr_t)data, .iov_len = length};
    if (!data && length > 0)
        return -EINVAL;
    return weir_writev(socket, &piece, 1);
}

int weir_on_drain(weir_socket *socket, weir_drain_fn *on_drain, void *context)
{
    if (!socket || socket->source.kind == WR_LISTENER)
        return -EINVAL;
    wr_lock(&socket->out.lock);
    int r = wr_closing(socket) ? -ECANCELED : 0;
    if (r == 0)
        wr_drain_set(socket, on_drain, context);
    wr_unlock(&socket->out.lock);
    return r;
}

size_t weir_write_pending(weir_socket *socket)
{
    if (!socket)
        return 0;
    wr_lock(&socket->out.lock);
    size_t pending = socket->pending;
    wr_unlock(&socket->out.lock);
    return pending;
}

int weir_shutdown(weir_socket *socket)
{
    if (!socket || socket->source.kind == WR_LISTENER)
        return -EINVAL;
    int r = 0;

    wr_lock(&socket->out.lock);
    if (wr_closing(socket))
        r = -ECANCELED;
    else if (socket->source.kind != WR_STREAM)
        r = -ENOTCONN;
    else if (socket->fin_wanted)
        r = -EALREADY;
    if (r == 0) {
        socket->fin_wanted = true;
        wr_write_fin(socket);
    }
    wr_unlock(&socket->out.lock);
    return r;
}
