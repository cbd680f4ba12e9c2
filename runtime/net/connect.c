/* connect.c: connecting: an operation in the out line of a socket that the user does not see before
 * it has succeeded. On any other end the socket is reset and nothing is left open. */
#include <errno.h>

#include "net/net.h"
#include "os/sock.h"

int wr_connect_check(int fd)
{
    struct sockaddr_storage peer;
    socklen_t length = sizeof peer;
    int r = wr_sock_error(fd); /* writable is not connected: the error is asked for first */

    if (r < 0)
        return r;
    r = wr_sock_peer(fd, &peer, &length);
    return r == -ENOTCONN ? -EAGAIN : r;
}

/* 0 connected, -EINPROGRESS it goes on; both with *ret_socket set. Else nothing is left. */
static int begin(weir_runtime *runtime, const char *text, const weir_socket_options *options,
                 weir_socket **ret_socket)
{
    weir_address address;
    int r = weir_address_parse(&address, text);
    if (r < 0)
        return r;
    /* acquire: pairs with the release store in weir_runtime_drain() */
    if (atomic_load_explicit(&runtime->draining, memory_order_acquire))
        return -ESHUTDOWN;
    int fd = wr_sock_open(address.storage.ss_family, SOCK_STREAM);
    if (fd < 0)
        return fd;
    int connected = wr_sock_connect(fd, (const struct sockaddr *)&address.storage, address.length);
    if (connected == -EINPROGRESS)
        r = wr_socket_open_connecting(runtime, fd, options, ret_socket);
    else
        r = connected < 0 ? connected
                          : wr_socket_open(runtime, fd, WR_STREAM, options, ret_socket);
    if (r < 0)
        wr_sock_close(fd);
    return r < 0 ? r : connected;
}

int weir_connect(weir_runtime *runtime, const char *address, const weir_socket_options *options,
                 weir_op *op, weir_socket **ret_socket, weir_time deadline)
{
    weir_socket *socket = NULL;
    if (!runtime || !op || !op->done_ || op->state_ != WR_OP_IDLE || !ret_socket ||
        !wr_socket_options_valid(options))
        return -EINVAL;
    int r = begin(runtime, address, options, &socket);
    if (r == 0)
        *ret_socket = socket;
    if (r != -EINPROGRESS)
        return r;
    wr_op_prepare(op, WR_OP_CONNECT, NULL, 0);
    op->extra_ = ret_socket;
    r = (int)wr_op_start(socket, op, deadline);
    if (r < 0 && r != -EINPROGRESS)
        weir_reset(socket);
    return r;
}

static int connect_wait(weir_runtime *runtime, const char *address,
                        const weir_socket_options *options, weir_socket **ret_socket,
                        weir_time deadline)
{
    weir_socket *socket = NULL, *connected = NULL;
    weir_op op;
    int r = begin(runtime, address, options, &socket);
    if (r == 0)
        *ret_socket = socket;
    if (r != -EINPROGRESS)
        return r;
    wr_op_prepare_wait(&op, WR_OP_CONNECT, NULL, 0);
    op.extra_ = &connected;
    r = (int)wr_op_wait(socket, &op, deadline);
    if (r == 0)
        *ret_socket = connected;
    else
        weir_reset(socket);
    return r;
}

int weir_connect_wait(weir_runtime *runtime, const char *address,
                      const weir_socket_options *options, weir_socket **ret_socket,
                      weir_time deadline)
{
    if (!runtime || !ret_socket || !wr_socket_options_valid(options))
        return -EINVAL;
    /* A destroy that ends the wait must not be over before the socket has been reset. */
    wr_dispatch_enter(runtime);
    int r = connect_wait(runtime, address, options, ret_socket, deadline);
    wr_dispatch_leave(runtime);
    return r;
}
