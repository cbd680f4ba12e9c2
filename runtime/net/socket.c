/* socket.c: making sockets, and their turn. */
#include <errno.h>

#include "base/list.h"
#include "dispatch/watch.h"
#include "net/net.h"
#include "os/sock.h"

#define WRITE_HIGH_DEFAULT (1u << 20)
#define LINGER_MS_DEFAULT 2000

struct wr_alloc *wr_socket_alloc(weir_socket *socket)
{
    return &socket->source.poller->runtime->alloc;
}

size_t wr_net_source_size(void)
{
    size_t watch = wr_watch_size();
    return watch > sizeof(struct weir_socket) ? watch : sizeof(struct weir_socket);
}

bool wr_socket_options_valid(const weir_socket_options *options)
{
    return !options ||
           ((options->size == 0 || options->size == sizeof *options) &&
            options->write_high <= UINT32_MAX &&
            options->write_low <= (options->write_high ? options->write_high : WRITE_HIGH_DEFAULT));
}

/* One turn, on a worker; no other of this socket runs (D5). */
enum wr_turn wr_socket_turn(struct wr_source *source, uint32_t flags)
{
    weir_socket *socket = WR_CONTAINER_OF(source, weir_socket, source);

    if (source->stage & WR_STAGE_DEAD)
        return wr_close_last(socket);
    struct wr_scratch *scratch = wr_scratch_get(wr_socket_alloc(socket));
    if (scratch)
        scratch->corking = socket;
    if (flags & WR_CTL) {
        wr_line_expire(socket, &socket->in);
        wr_line_expire(socket, &socket->out);
        wr_report(socket);
    }
    if (flags & WR_OUT)
        wr_line_service(socket, &socket->out);
    if (source->kind == WR_LISTENER) {
        /* Its time has come: what was scarce may be there again. */
        if (flags & (WR_IN | WR_TIMER)) {
            wr_line_service(socket, &socket->in);
            wr_accept_turn(socket);
        }
    } else {
        if (flags & WR_IN && !wr_read_turn(socket, scratch, flags))
            wr_line_service(socket, &socket->in);
        if (flags & WR_TIMER)
            wr_read_timeout(socket);
    }
    if (flags & (WR_CTL | WR_OUT))
        wr_write_notify(socket);
    if (flags & WR_HUP)
        wr_peer_notify(socket);
    if (scratch && scratch->corked > 0)
        wr_cork_flush(socket, scratch);
    if (scratch)
        scratch->corking = NULL;
    return wr_close_turn(socket, scratch, flags);
}

void wr_net_init(weir_runtime *runtime)
{
    for (int kind = WR_STREAM; kind <= WR_LISTENER; kind++)
        runtime->turn[kind] = wr_socket_turn;
}

int wr_socket_make(weir_runtime *runtime, int fd, enum wr_socket_kind kind,
                   const weir_socket_options *options, weir_socket **ret_socket)
{
    static const weir_socket_options defaults = WEIR_SOCKET_OPTIONS_INIT;
    struct wr_source *source;

    if (!options)
        options = &defaults;
    int r = wr_source_open(runtime, fd, kind, &source);
    if (r < 0)
        return r;
    weir_socket *socket = WR_CONTAINER_OF(source, weir_socket, source);
    socket->out.limit = options->write_high ? (uint32_t)options->write_high : WRITE_HIGH_DEFAULT;
    socket->write_low = options->write_low ? (uint32_t)options->write_low : socket->out.limit / 4;
    socket->in.limit = options->linger_ms ? options->linger_ms : LINGER_MS_DEFAULT;
    socket->user = options->user;
    wr_close_init(socket);
    if (kind == WR_STREAM && !options->no_nodelay)
        wr_sock_set_nodelay(fd); /* not TCP: no matter */
    *ret_socket = socket;
    return 0;
}

static int open_socket(weir_runtime *runtime, int fd, enum wr_socket_kind kind,
                       enum wr_poll_mode mode, const weir_socket_options *options,
                       weir_socket **ret_socket)
{
    weir_socket *socket;
    int r = wr_socket_make(runtime, fd, kind, options, &socket);

    if (r < 0)
        return r;
    r = wr_source_attach(&socket->source, mode);
    if (r < 0) {
        wr_source_release(&socket->source);
        return r;
    }
    *ret_socket = socket;
    return 0;
}

int wr_socket_open(weir_runtime *runtime, int fd, enum wr_socket_kind kind,
                   const weir_socket_options *options, weir_socket **ret_socket)
{
    return open_socket(runtime, fd, kind, kind == WR_STREAM ? WR_POLL_RECEIVE : WR_POLL_EDGE,
                       options, ret_socket);
}

int wr_socket_open_connecting(weir_runtime *runtime, int fd, const weir_socket_options *options,
                              weir_socket **ret_socket)
{
    return open_socket(runtime, fd, WR_STREAM, WR_POLL_RECEIVE_LATER, options, ret_socket);
}

int weir_adopt(weir_runtime *runtime, int fd, const weir_socket_options *options,
               weir_socket **ret_socket)
{
    if (!runtime || fd < 0 || !ret_socket || !wr_socket_options_valid(options))
        return -EINVAL;
    int type = wr_sock_type(fd);
    if (type < 0)
        return type;
    int listening = wr_sock_is_listening(fd);
    if (listening != 0 || (type != SOCK_STREAM && type != SOCK_DGRAM))
        return -EINVAL;
    /* acquire: pairs with the release store in weir_runtime_drain() */
    if (atomic_load_explicit(&runtime->draining, memory_order_acquire))
        return -ESHUTDOWN;
    int before = wr_sock_set_nonblocking(fd, true);
    if (before < 0)
        return before;
    int r = wr_socket_open(runtime, fd, type == SOCK_STREAM ? WR_STREAM : WR_DATAGRAM, options,
                           ret_socket);
    if (r < 0 && before == 0)
        wr_sock_set_nonblocking(fd, false);
    return r;
}

int weir_datagram_open(weir_runtime *runtime, const char *text, const weir_socket_options *options,
                       weir_socket **ret_socket)
{
    weir_address address;
    if (!runtime || !ret_socket || !wr_socket_options_valid(options))
        return -EINVAL;
    int r = weir_address_parse(&address, text);
    if (r < 0)
        return r;
    /* acquire: pairs with the release store in weir_runtime_drain() */
    if (atomic_load_explicit(&runtime->draining, memory_order_acquire))
        return -ESHUTDOWN;
    int fd = wr_sock_open(address.storage.ss_family, SOCK_DGRAM);
    if (fd < 0)
        return fd;
    r = wr_sock_bind(fd, (const struct sockaddr *)&address.storage, address.length);
    if (r == 0)
        r = wr_socket_open(runtime, fd, WR_DATAGRAM, options, ret_socket);
    if (r < 0)
        wr_sock_close(fd);
    return r;
}

/* ---- small questions ----------------------------------------------------------------- */

void *weir_socket_user(const weir_socket *socket)
{
    return socket ? socket->user : NULL;
}

void weir_socket_set_user(weir_socket *socket, void *user)
{
    if (socket)
        socket->user = user;
}

weir_runtime *weir_socket_runtime(const weir_socket *socket)
{
    return socket ? socket->source.poller->runtime : NULL;
}

static int ask_name(weir_socket *socket, weir_address *ret_address,
                    int (*ask)(int, struct sockaddr_storage *, socklen_t *))
{
    weir_address address = {.length = sizeof address.storage};

    if (!socket || !ret_address)
        return -EINVAL;
    wr_lock(&socket->in.lock); /* the descriptor is not closed meanwhile */
    int r = socket->source.fd < 0 ? -ECANCELED
                                  : ask(socket->source.fd, &address.storage, &address.length);
    wr_unlock(&socket->in.lock);
    if (r == 0)
        *ret_address = address;
    return r;
}

int weir_socket_address(weir_socket *socket, weir_address *ret_address)
{
    return ask_name(socket, ret_address, wr_sock_name);
}

int weir_socket_peer(weir_socket *socket, weir_address *ret_address)
{
    return ask_name(socket, ret_address, wr_sock_peer);
}

int weir_listener_address(weir_listener *listener, weir_address *ret_address)
{
    return listener ? ask_name(&listener->socket, ret_address, wr_sock_name) : -EINVAL;
}
