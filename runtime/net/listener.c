/* listener.c: listening and accepting.
 *
 * Errors of one connection (aborted, network trouble) are passed over. Errors of scarcity
 * (descriptors, memory) pause accepting: the connection stays in the backlog, and the listener
 * looks again when its deadline passes, at first soon, then less and less often. It never stops for
 * good and never spins. */
#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/list.h"
#include "net/net.h"
#include "os/clock.h"
#include "os/sock.h"

/* Connections taken in one turn (D6). */
#define ACCEPT_MAX 64
#define BACKOFF_MIN 5000000
#define BACKOFF_MAX 250000000
#define LOG_INTERVAL 1000000000
#define BACKLOG_DEFAULT 4096

static bool scarce(int error)
{
    return error == -EMFILE || error == -ENFILE || error == -ENOBUFS || error == -ENOMEM ||
           error == -ENOSPC || error == -EINVAL || error == -EBADF || error == -ENOTSOCK ||
           error == -EOPNOTSUPP;
}

int wr_accept_one(weir_socket *listener, weir_socket **ret_socket)
{
    weir_runtime *runtime = listener->source.poller->runtime;

    for (int tries = 0; tries < ACCEPT_MAX; tries++) {
        int fd = wr_sock_accept(listener->source.fd, NULL, NULL);
        if (fd == -EAGAIN)
            return fd;
        int r = fd;
        if (fd >= 0) {
            r = wr_socket_open(runtime, fd, WR_STREAM, &listener->listening->accepted, ret_socket);
            if (r == 0) {
                wr_count(runtime, WR_COUNT_ACCEPTS, 1);
                return 0;
            }
            wr_sock_close(fd);
        }
        wr_count(runtime, WR_COUNT_ACCEPT_ERRORS, 1);
        if (scarce(r) || r == -ESHUTDOWN)
            return r;
        /* anything else concerns that one connection, or passes: the next */
    }
    return WR_TRY_YIELD;
}

static void back_off(weir_socket *listener, int error)
{
    struct wr_listening *listening = listener->listening;
    weir_time now = wr_clock_now();

    if (now >= listening->logged) {
        listening->logged = now + LOG_INTERVAL;
        wr_log(&listener->source.poller->runtime->log, WEIR_LOG_WARN,
               "accepting pauses: %s (errno %d); it resumes by itself",
               error == -EMFILE || error == -ENFILE ? "no descriptor is left" : "out of resources",
               -error);
    }
    listening->backoff = listening->backoff ? listening->backoff * 2 : BACKOFF_MIN;
    if (listening->backoff > BACKOFF_MAX)
        listening->backoff = BACKOFF_MAX;
    wr_poller_deadline(listener->source.poller, &listener->deadline, now + listening->backoff);
}

int wr_accept_try(weir_socket *listener, weir_socket **ret_socket)
{
    int r = wr_accept_one(listener, ret_socket);
    if (r == 0)
        listener->listening->backoff = 0;
    if (!scarce(r))
        return r;
    back_off(listener, r);
    return -EAGAIN;
}

void wr_accept_turn(weir_socket *socket)
{
    weir_listener *listener = WR_CONTAINER_OF(socket, weir_listener, socket);

    if (!socket->on_accept)
        return;
    for (int taken = 0; taken < ACCEPT_MAX; taken++) {
        weir_socket *accepted;
        wr_lock(&socket->in.lock);
        int r = wr_closing(socket) ? -ECANCELED : wr_accept_one(socket, &accepted);
        wr_unlock(&socket->in.lock);
        if (r == 0) {
            socket->listening->backoff = 0;
            socket->on_accept(listener, accepted, socket->in_context);
            continue;
        }
        if (scarce(r))
            back_off(socket, r);
        else if (r == WR_TRY_YIELD)
            wr_source_schedule(&socket->source, WR_IN);
        return;
    }
    wr_source_schedule(&socket->source, WR_IN); /* there may be more: to the back of the queue */
}

/* ---- opening ------------------------------------------------------------------------- */

/* The file of a unix socket that nobody listens on is in the way of a bind: true when it was
 * removed. */
static bool remove_stale(const weir_address *address)
{
    const struct sockaddr_un *name = (const struct sockaddr_un *)(const void *)&address->storage;
    struct stat status;

    if (name->sun_path[0] == 0 || lstat(name->sun_path, &status) < 0 || !S_ISSOCK(status.st_mode))
        return false;
    int fd = wr_sock_open(AF_UNIX, SOCK_STREAM);
    if (fd < 0)
        return false;
    int r = wr_sock_connect(fd, (const struct sockaddr *)&address->storage, address->length);
    wr_sock_close(fd);
    return r == -ECONNREFUSED && unlink(name->sun_path) == 0;
}

static int bind_listen(int fd, const weir_address *address, const weir_listen_options *options)
{
    int family = address->storage.ss_family, r = 0;

    if (family != AF_UNIX)
        r = wr_sock_set_reuse(fd, options->reuse_port);
    if (r == 0 && family == AF_INET6)
        r = wr_sock_set_v6only(fd, !options->dual_stack);
    if (r == 0)
        r = wr_sock_bind(fd, (const struct sockaddr *)&address->storage, address->length);
    if (r == -EADDRINUSE && family == AF_UNIX && remove_stale(address))
        r = wr_sock_bind(fd, (const struct sockaddr *)&address->storage, address->length);
    if (r == 0)
        r = wr_sock_listen(fd, options->backlog ? (int)options->backlog : BACKLOG_DEFAULT);
    return r;
}

static int make_listener(weir_runtime *runtime, int fd, const weir_address *address,
                         const weir_listen_options *options, weir_socket **ret_socket)
{
    struct wr_listening *listening = wr_alloc_zero(&runtime->alloc, sizeof *listening);
    if (!listening)
        return -ENOMEM;
    listening->accepted = options->socket;
    listening->accepted.size = sizeof listening->accepted;
    if (address->storage.ss_family == AF_UNIX) {
        const struct sockaddr_un *name =
            (const struct sockaddr_un *)(const void *)&address->storage;
        memcpy(listening->path, name->sun_path, sizeof name->sun_path);
        listening->path[sizeof listening->path - 1] = 0;
    }
    int r = wr_socket_make(runtime, fd, WR_LISTENER, NULL, ret_socket);
    if (r == 0) {
        (*ret_socket)->listening = listening;
        r = wr_source_attach(&(*ret_socket)->source, WR_POLL_EDGE);
        if (r < 0)
            wr_source_release(&(*ret_socket)->source);
    }
    if (r < 0)
        wr_alloc_release(&runtime->alloc, listening, sizeof *listening);
    return r;
}

int weir_listen(weir_runtime *runtime, const char *text, const weir_listen_options *options,
                weir_accept_fn *on_accept, void *context, weir_listener **ret_listener)
{
    static const weir_listen_options defaults = WEIR_LISTEN_OPTIONS_INIT;
    weir_address address;
    weir_socket *socket = NULL;

    if (!options)
        options = &defaults;
    if (!runtime || !ret_listener || options->size != sizeof *options ||
        options->backlog > INT32_MAX || !wr_socket_options_valid(&options->socket))
        return -EINVAL;
    /* acquire: pairs with the release store in weir_runtime_drain() */
    if (atomic_load_explicit(&runtime->draining, memory_order_acquire))
        return -ESHUTDOWN;
    int r = weir_address_parse(&address, text);
    if (r < 0)
        return r;
    int fd = wr_sock_open(address.storage.ss_family, SOCK_STREAM);
    if (fd < 0)
        return fd;
    r = bind_listen(fd, &address, options);
    if (r == 0)
        r = make_listener(runtime, fd, &address, options, &socket);
    if (r < 0 || !socket) {
        /* The name is ours only once it is bound; a failed bind must not remove somebody else's
         * file. */
        wr_sock_close(fd);
        return r;
    }
    socket->on_accept = on_accept;
    socket->in_context = context;
    *ret_listener = WR_CONTAINER_OF(socket, weir_listener, socket);
    socket->reading = on_accept != NULL;
    if (on_accept)
        wr_source_want(&socket->source, WR_IN); /* a connection that came meanwhile has set IN */
    return 0;
}

int weir_accept(weir_listener *listener, weir_op *op, weir_socket **ret_socket, weir_time deadline)
{
    if (!listener || !op || !op->done_ || op->state_ != WR_OP_IDLE || !ret_socket)
        return -EINVAL;
    if (listener->socket.on_accept)
        return -EBUSY;
    wr_op_prepare(op, WR_OP_ACCEPT, NULL, 0);
    op->extra_ = ret_socket;
    return (int)wr_op_start(&listener->socket, op, deadline);
}

int weir_accept_wait(weir_listener *listener, weir_socket **ret_socket, weir_time deadline)
{
    weir_op op;
    if (!listener || !ret_socket)
        return -EINVAL;
    if (listener->socket.on_accept)
        return -EBUSY;
    wr_op_prepare_wait(&op, WR_OP_ACCEPT, NULL, 0);
    op.extra_ = ret_socket;
    return (int)wr_op_wait(&listener->socket, &op, deadline);
}
