/* op_more.c: the public faces of the less common operations: pieces, files, datagrams. */
#include <errno.h>
#include <limits.h>

#include "net/net.h"

/* The sum of the lengths, or -EINVAL when it does not fit. */
static ssize_t pieces_length(const struct iovec *pieces, size_t count)
{
    size_t sum = 0;

    for (size_t i = 0; i < count; i++) {
        if (pieces[i].iov_len > (size_t)SSIZE_MAX - sum)
            return -EINVAL;
        sum += pieces[i].iov_len;
    }
    return (ssize_t)sum;
}

static void prepare_pieces(weir_op *op, size_t count, size_t length)
{
    op->offset_ = (int64_t)count;
    op->length_ = length;
}

ssize_t weir_sendv(weir_socket *socket, weir_op *op, const struct iovec *pieces, size_t count,
                   weir_time deadline)
{
    if (wr_op_bad_start(socket, op, pieces, count))
        return -EINVAL;
    ssize_t length = pieces_length(pieces, count);
    if (length < 0)
        return length;
    wr_op_prepare(op, WR_OP_SENDV, (void *)(uintptr_t)pieces, 0);
    prepare_pieces(op, count, (size_t)length);
    return wr_op_start(socket, op, deadline);
}

ssize_t weir_sendv_wait(weir_socket *socket, const struct iovec *pieces, size_t count,
                        weir_time deadline)
{
    weir_op op;
    if (wr_op_bad(socket, pieces, count))
        return -EINVAL;
    ssize_t length = pieces_length(pieces, count);
    if (length < 0)
        return length;
    wr_op_prepare_wait(&op, WR_OP_SENDV, (void *)(uintptr_t)pieces, 0);
    prepare_pieces(&op, count, (size_t)length);
    return wr_op_wait(socket, &op, deadline);
}

ssize_t weir_send_file(weir_socket *socket, weir_op *op, int fd, int64_t offset, size_t length,
                       weir_time deadline)
{
    if (wr_op_bad_start(socket, op, "", length) || fd < 0 || offset < 0)
        return -EINVAL;
    wr_op_prepare(op, WR_OP_FILE, NULL, length);
    op->fd_ = fd;
    op->offset_ = offset;
    return wr_op_start(socket, op, deadline);
}

ssize_t weir_send_file_wait(weir_socket *socket, int fd, int64_t offset, size_t length,
                            weir_time deadline)
{
    weir_op op;
    if (wr_op_bad(socket, "", length) || fd < 0 || offset < 0)
        return -EINVAL;
    wr_op_prepare_wait(&op, WR_OP_FILE, NULL, length);
    op.fd_ = fd;
    op.offset_ = offset;
    return wr_op_wait(socket, &op, deadline);
}

ssize_t weir_recvfrom(weir_socket *socket, weir_op *op, void *buffer, size_t length,
                      weir_address *ret_from, weir_time deadline)
{
    if (wr_op_bad_start(socket, op, buffer, length))
        return -EINVAL;
    wr_op_prepare(op, WR_OP_RECVFROM, buffer, length);
    op->extra_ = ret_from;
    return wr_op_start(socket, op, deadline);
}

ssize_t weir_recvfrom_wait(weir_socket *socket, void *buffer, size_t length, weir_address *ret_from,
                           weir_time deadline)
{
    weir_op op;
    if (wr_op_bad(socket, buffer, length))
        return -EINVAL;
    wr_op_prepare_wait(&op, WR_OP_RECVFROM, buffer, length);
    op.extra_ = ret_from;
    return wr_op_wait(socket, &op, deadline);
}

static bool bad_to(const weir_socket *socket, const weir_address *to)
{
    return socket->source.kind != WR_DATAGRAM || (to && to->length > sizeof to->storage);
}

ssize_t weir_sendto(weir_socket *socket, weir_op *op, const void *data, size_t length,
                    const weir_address *to, weir_time deadline)
{
    if (wr_op_bad_start(socket, op, data, length) || bad_to(socket, to))
        return -EINVAL;
    wr_op_prepare(op, WR_OP_SENDTO, (void *)(uintptr_t)data, length);
    op->extra_ = (void *)(uintptr_t)to;
    return wr_op_start(socket, op, deadline);
}

ssize_t weir_sendto_wait(weir_socket *socket, const void *data, size_t length,
                         const weir_address *to, weir_time deadline)
{
    weir_op op;
    if (wr_op_bad(socket, data, length) || bad_to(socket, to))
        return -EINVAL;
    wr_op_prepare_wait(&op, WR_OP_SENDTO, (void *)(uintptr_t)data, length);
    op.extra_ = (void *)(uintptr_t)to;
    return wr_op_wait(socket, &op, deadline);
}
