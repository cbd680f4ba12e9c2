/* peer.c: the peer's end, told to who does not read.
 *
 * Few sockets ask for it, so that none has room for it: what belongs to it is allocated when it is
 * asked for, together with the drain callback, whose place in the socket then holds a mark. Both
 * are under out.lock; the mark is never called. Closing gives it back. */
#include <errno.h>

#include "net/net.h"

struct peer {
    weir_drain_fn *on_drain;
    void *drain_context;
    weir_peer_closed_fn *on_peer_closed; /* NULL: told, or not to be told */
    void *context;
};

static void mark(weir_socket *socket, int status, void *context)
{
    (void)socket;
    (void)status;
    (void)context;
}

static struct peer *peer_of(const weir_socket *socket)
{
    return !wr_closing(socket) && socket->on_drain == mark ? socket->end_context : NULL;
}

weir_drain_fn *wr_drain_get(const weir_socket *socket, void **ret_context)
{
    const struct peer *peer = peer_of(socket);

    *ret_context = peer ? peer->drain_context : socket->end_context;
    return peer ? peer->on_drain : socket->on_drain;
}

void wr_drain_set(weir_socket *socket, weir_drain_fn *on_drain, void *context)
{
    struct peer *peer = peer_of(socket);

    *(peer ? &peer->on_drain : &socket->on_drain) = on_drain;
    *(peer ? &peer->drain_context : &socket->end_context) = context;
}

void wr_peer_forget(weir_socket *socket)
{
    struct peer *peer = peer_of(socket);

    if (peer)
        wr_alloc_release(wr_socket_alloc(socket), peer, sizeof *peer);
}

void wr_peer_notify(weir_socket *socket)
{
    wr_lock(&socket->out.lock);
    struct peer *peer = peer_of(socket);
    weir_peer_closed_fn *on_peer_closed = peer ? peer->on_peer_closed : NULL;
    void *context = peer ? peer->context : NULL;
    if (peer)
        peer->on_peer_closed = NULL;
    wr_unlock(&socket->out.lock);
    if (on_peer_closed)
        on_peer_closed(socket, context);
}

/* Under out.lock. */
static int ask(weir_socket *socket, weir_peer_closed_fn *on_peer_closed, void *context)
{
    struct peer *peer = peer_of(socket);

    if (!peer && !on_peer_closed)
        return 0;
    if (!peer) {
        peer = wr_alloc_raw(wr_socket_alloc(socket), sizeof *peer);
        if (!peer)
            return -ENOMEM;
        peer->on_drain = socket->on_drain;
        peer->drain_context = socket->end_context;
        socket->on_drain = mark;
        socket->end_context = peer;
    }
    peer->on_peer_closed = on_peer_closed;
    peer->context = context;
    /* It may have gone already: then this brings the turn. */
    if (on_peer_closed)
        wr_source_want(&socket->source, WR_HUP);
    else
        wr_source_unwant(&socket->source, WR_HUP);
    return 0;
}

int weir_on_peer_closed(weir_socket *socket, weir_peer_closed_fn *on_peer_closed, void *context)
{
    if (!socket || socket->source.kind != WR_STREAM)
        return -EINVAL;
    wr_lock(&socket->out.lock);
    int r = wr_closing(socket) ? -ECANCELED : ask(socket, on_peer_closed, context);
    wr_unlock(&socket->out.lock);
    return r;
}
