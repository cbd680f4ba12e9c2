/* sweep.c: going over all sources: what destroy and drain do, and a child after fork(). */
#include "net/net.h"

#include "base/list.h"
#include "dispatch/watch.h"
#include "os/sock.h"

/* Nothing to be written, no operation, no turn, a reader that waits. */
static bool idle(weir_socket *socket)
{
    wr_lock(&socket->in.lock);
    wr_lock(&socket->out.lock);
    bool idle = !wr_closing(socket) && socket->reading && !socket->in.head && !socket->out.head &&
                !socket->corked && socket->pending == 0 &&
                !(wr_source_flags(&socket->source) & (WR_LINKED | WR_IN));
    wr_unlock(&socket->out.lock);
    wr_unlock(&socket->in.lock);
    return idle;
}

unsigned wr_net_sweep(weir_runtime *runtime, bool reset)
{
    uint32_t made = wr_slots_made(&runtime->slots);
    unsigned found = 0;

    for (uint32_t i = 0; i < made; i++) {
        struct wr_source *source = wr_slots_pin(&runtime->slots, i);
        if (!source)
            continue;
        if (wr_watch_is(source)) {
            if (reset)
                wr_watch_end(source);
        } else {
            weir_socket *socket = WR_CONTAINER_OF(source, weir_socket, source);
            found++;
            if (reset)
                wr_close_begin(socket, true, NULL, NULL);
            else if (socket->source.kind == WR_LISTENER || idle(socket))
                wr_close_begin(socket, false, NULL, NULL);
        }
        wr_source_unpin(source);
    }
    return found;
}

void wr_net_forget(weir_runtime *runtime)
{
    for (uint32_t i = 0; i < runtime->slots.made; i++) {
        struct wr_source *source = wr_slots_at(&runtime->slots, i);
        if (wr_source_flags(source) & WR_LIVE && !wr_watch_is(source) && source->fd >= 0)
            wr_sock_close(source->fd);
    }
}
