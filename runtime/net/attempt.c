/* attempt.c: one try of one operation. Under the lock of its line; nothing here blocks (but a file
 * read). */
#include <errno.h>
#include <limits.h>

#include "base/assert.h"
#include "net/net.h"
#include "os/sock.h"

/* System calls of one try before others get a turn. */
#define CALLS_MAX 16
#define FILE_CHUNK (1 << 20)

static ssize_t attempt_send(weir_socket *socket, weir_op *op)
{
    const unsigned char *data = op->data_;

    for (int calls = 0; calls < CALLS_MAX; calls++) {
        ssize_t n = wr_sock_send(socket->source.fd, data + op->moved_, op->length_ - op->moved_);
        if (n < 0)
            return n;
        op->moved_ += (size_t)n;
        wr_count(socket->source.poller->runtime, WR_COUNT_SENT, (uint64_t)n);
        if (op->kind_ == WR_OP_WRITE)
            wr_write_moved(socket, (size_t)n);
        if (op->moved_ == op->length_)
            return (ssize_t)op->length_;
    }
    return WR_TRY_YIELD;
}

size_t wr_pieces_next(const struct wr_pieces *pieces, struct iovec ret_next[WR_PIECES_MAX])
{
    size_t skip = pieces->skip, count = 0;

    for (size_t i = 0; i < pieces->count && count < WR_PIECES_MAX; i++) {
        const struct iovec *piece = &pieces->first[i];
        if (piece->iov_len > skip) {
            ret_next[count].iov_base = (unsigned char *)piece->iov_base + skip;
            ret_next[count++].iov_len = piece->iov_len - skip;
        }
        skip = 0;
    }
    return count;
}

void wr_pieces_sent(struct wr_pieces *pieces, size_t sent)
{
    pieces->skip += sent;
    while (pieces->count > 0 && pieces->skip >= pieces->first->iov_len) {
        pieces->skip -= pieces->first->iov_len;
        pieces->first++;
        pieces->count--;
    }
}

/* The position stands in the operation: data_ and offset_ are the pieces that are left, extra_ is
 * what has left of the first. */
static ssize_t attempt_sendv(weir_socket *socket, weir_op *op)
{
    struct wr_pieces pieces = {
        .first = op->data_, .count = (size_t)op->offset_, .skip = (uintptr_t)op->extra_};

    for (int calls = 0; calls < CALLS_MAX; calls++) {
        struct iovec next[WR_PIECES_MAX];
        size_t count = wr_pieces_next(&pieces, next);
        if (count == 0)
            return (ssize_t)op->moved_;
        ssize_t n = wr_sock_sendv(socket->source.fd, next, count);
        if (n < 0)
            return n;
        wr_pieces_sent(&pieces, (size_t)n);
        op->data_ = (void *)(uintptr_t)pieces.first;
        op->offset_ = (int64_t)pieces.count;
        op->extra_ = (void *)pieces.skip;
        op->moved_ += (size_t)n;
        wr_count(socket->source.poller->runtime, WR_COUNT_SENT, (uint64_t)n);
    }
    return op->moved_ == op->length_ ? (ssize_t)op->moved_ : WR_TRY_YIELD;
}

static ssize_t attempt_file(weir_socket *socket, weir_op *op)
{
    for (int calls = 0; calls < CALLS_MAX; calls++) {
        size_t left = op->length_ - op->moved_;
        ssize_t n = wr_sock_send_file(socket->source.fd, op->fd_, &op->offset_,
                                      left < FILE_CHUNK ? left : FILE_CHUNK);
        if (n < 0)
            return n;
        op->moved_ += (size_t)n;
        wr_count(socket->source.poller->runtime, WR_COUNT_SENT, (uint64_t)n);
        if (n == 0 || op->moved_ == op->length_)
            return (ssize_t)op->moved_;
    }
    return WR_TRY_YIELD;
}

static ssize_t attempt_receive(weir_socket *socket, weir_op *op)
{
    weir_address *from = op->extra_;
    ssize_t n;

    socket->touched = true;
    if (op->kind_ == WR_OP_RECVFROM && from) {
        socklen_t length = sizeof from->storage;
        n = wr_sock_recvfrom(socket->source.fd, op->data_, op->length_, &from->storage, &length);
        if (n >= 0)
            from->length = length;
    } else {
        n = wr_receive(socket, op->data_, op->length_);
    }
    if (n >= 0) {
        op->moved_ = (size_t)n;
        wr_count(socket->source.poller->runtime, WR_COUNT_RECEIVED, (uint64_t)n);
    }
    if (n == 0 && socket->source.kind == WR_STREAM && op->length_ > 0)
        socket->end_seen = true;
    return n;
}

static ssize_t attempt_sendto(weir_socket *socket, weir_op *op)
{
    const weir_address *to = op->extra_;
    ssize_t n = to ? wr_sock_sendto(socket->source.fd, op->data_, op->length_,
                                    (const struct sockaddr *)&to->storage, to->length)
                   : wr_sock_send(socket->source.fd, op->data_, op->length_);
    if (n >= 0) {
        op->moved_ = (size_t)n;
        wr_count(socket->source.poller->runtime, WR_COUNT_SENT, (uint64_t)n);
    }
    return n;
}

static ssize_t attempt_connect(weir_socket *socket, weir_op *op)
{
    int r = wr_connect_check(socket->source.fd);
    if (r == 0) {
        wr_receive_begin(socket);
        *(weir_socket **)op->extra_ = socket;
    }
    return r;
}

ssize_t wr_attempt(weir_socket *socket, weir_op *op)
{
    WR_ASSERT(socket->source.fd >= 0);
    switch ((enum wr_op_kind)op->kind_) {
    case WR_OP_RECV:
    case WR_OP_RECVFROM:
        return attempt_receive(socket, op);
    case WR_OP_ACCEPT:
        return wr_accept_try(socket, op->extra_);
    case WR_OP_CONNECT:
        return attempt_connect(socket, op);
    case WR_OP_SEND:
    case WR_OP_WRITE:
        return attempt_send(socket, op);
    case WR_OP_SENDV:
        return attempt_sendv(socket, op);
    case WR_OP_FILE:
        return attempt_file(socket, op);
    case WR_OP_SENDTO:
        return attempt_sendto(socket, op);
    }
    return -EINVAL;
}
