/* receive.c: bytes of a stream, from wherever they are: the socket, or in completion mode the list
 * of what the poller's ring has received (poll/inbound.h). Under in.lock, or in the turn of a
 * socket that closes: one reader at a time. */
#include <errno.h>
#include <string.h>

#include "dispatch/receive.h"
#include "net/net.h"
#include "os/fault.h"
#include "os/sock.h"

/* The list is empty and the right to receive is here; at the end of what is there it goes back. */
static ssize_t receive_directly(weir_socket *socket, void *buffer, size_t size)
{
    ssize_t n = wr_sock_recv(socket->source.fd, buffer, size);

    if (n == -EAGAIN)
        wr_source_resume(&socket->source);
    return n;
}

ssize_t wr_receive_lent(weir_socket *socket, void *buffer, size_t size,
                        struct wr_buffer **ret_lent)
{
    struct wr_inbound *inbound = wr_source_inbound(&socket->source);
    /* A look at the list fails as a receive does that it stands for. */
    int fault = inbound->direct ? 0 : wr_fault(WR_FAULT_RECV), result = -EAGAIN;

    *ret_lent = NULL;
    if (fault)
        return -fault;
    switch (wr_inbound_take(inbound, ret_lent, &result)) {
    case WR_INBOUND_BUFFER:
        return (ssize_t)(*ret_lent)->length;
    case WR_INBOUND_RESULT:
        return result;
    case WR_INBOUND_DIRECT:
        return receive_directly(socket, buffer, size);
    case WR_INBOUND_EMPTY:
        break;
    }
    return -EAGAIN;
}

/* What one lent buffer holds, as far as there is room; the rest is put back. */
static size_t copy_out(weir_socket *socket, struct wr_inbound *inbound, struct wr_buffer *lent,
                       void *buffer, size_t size)
{
    size_t count = lent->length < size ? lent->length : size;

    if (count > 0)
        memcpy(buffer, lent->data, count);
    lent->data += count;
    lent->length -= (uint32_t)count;
    if (lent->length > 0)
        wr_inbound_put_back(inbound, lent);
    else
        wr_source_give(&socket->source, lent);
    return count;
}

ssize_t wr_receive(weir_socket *socket, void *buffer, size_t size)
{
    struct wr_inbound *inbound = wr_source_inbound(&socket->source);
    unsigned char *at = buffer;
    struct wr_buffer *lent;
    size_t copied = 0;

    if (!inbound)
        return wr_sock_recv(socket->source.fd, buffer, size);
    do {
        ssize_t n = wr_receive_lent(socket, at, size - copied, &lent);
        if (!lent)
            return n;
        size_t count = copy_out(socket, inbound, lent, at, size - copied);
        at = count > 0 ? at + count : at;
        copied += count;
        /* More of the same costs no call of the system; what is no bytes waits for the next. */
    } while (copied < size && wr_inbound_has_bytes(inbound));
    return (ssize_t)copied;
}

void wr_receive_begin(weir_socket *socket)
{
    if (wr_source_inbound(&socket->source))
        wr_source_resume(&socket->source);
}
