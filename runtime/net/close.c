/* close.c: how a socket ends.
 *
 * weir_close, any thread: under both locks the first closer sets `closing`, ends all operations
 * (sleeping calls leave at once, no worker needed), wants FIN (sent here if nothing waits), and
 * asks for a turn. The turns that follow, on workers:
 *
 *   flush    written bytes leave, then FIN
 *   linger   what the peer still sends is read and dropped until it finishes: closing with unread
 *            input would send RST and might destroy what the peer has not read yet
 *   end      the deadline passed, the peer finished or failed, or a reset is asked for: detach,
 *            close the fd (under both locks, so that nobody is in a system call with it), drop the
 *            own pin
 *   last     when no sleeping call is left inside: closed() is called, then the slot is given back
 *
 * The fd is closed once, by the one turn that finds `dead` unset; turns do not overlap. */
#include <errno.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/list.h"
#include "dispatch/hub.h"
#include "dispatch/inline.h"
#include "net/net.h"
#include "os/clock.h"
#include "os/sock.h"

/* What a lingering socket reads and drops before it gives up and resets. */
#define LINGER_BYTES_MAX (4u << 20)
#define LINGER_ROUNDS 8

/* The poller, under its timers' lock. */
static void deadline_passed(struct weir_deadline_ *deadline)
{
    weir_socket *socket = WR_CONTAINER_OF(deadline, weir_socket, deadline);
    wr_source_schedule(&socket->source, WR_TIMER);
}

void wr_close_init(weir_socket *socket)
{
    wr_deadline_init(&socket->deadline, deadline_passed);
}

int wr_close_begin(weir_socket *socket, bool reset, weir_closed_fn *closed, void *context)
{
    int r = 0;

    wr_lock(&socket->in.lock);
    wr_lock(&socket->out.lock);
    if (wr_closing(socket) && (!reset || socket->reset)) {
        r = -EALREADY;
    } else {
        if (!wr_closing(socket)) {
            wr_peer_forget(socket);
            socket->closed = closed;
            socket->end_context = context;
            atomic_store_explicit(&socket->closing, true, memory_order_relaxed);
            socket->reading = false;
            wr_line_abort(socket, &socket->in, -ECANCELED);
            wr_line_abort(socket, &socket->out, -ECANCELED);
            socket->fin_wanted = true;
        }
        socket->reset = socket->reset || reset;
        if (!socket->reset)
            wr_write_fin(socket);
        wr_source_schedule(&socket->source, WR_CTL);
    }
    wr_unlock(&socket->out.lock);
    wr_unlock(&socket->in.lock);
    return r;
}

/* The turn that ends it. */
static enum wr_turn end(weir_socket *socket, bool reset)
{
    struct wr_source *source = &socket->source;

    WR_ASSERT(!(source->stage & WR_STAGE_DEAD));
    wr_timers_cancel(&source->poller->timers, &socket->deadline);
    wr_source_detach(source);
    wr_lock(&socket->in.lock);
    wr_lock(&socket->out.lock);
    if (reset && socket->source.kind == WR_STREAM)
        wr_sock_set_linger_reset(source->fd);
    /* Forgotten first: in the child of a fork the number may be another's once it is closed. */
    int fd = source->fd;
    source->fd = -1;
    wr_sock_close(fd);
    wr_write_drop(socket);
    WR_ASSERT(!socket->in.head && !socket->out.head &&
              !atomic_load_explicit(&socket->ended, memory_order_relaxed));
    wr_unlock(&socket->out.lock);
    wr_unlock(&socket->in.lock);
    if (source->kind == WR_LISTENER) {
        if (socket->listening->path[0])
            unlink(socket->listening->path);
        wr_alloc_release(wr_socket_alloc(socket), socket->listening, sizeof *socket->listening);
    }
    source->stage |= WR_STAGE_DEAD;
    return wr_source_unpin_own(source) ? wr_close_last(socket) : WR_TURN_GONE;
}

/* closed() first: until it is called the pointer is alive, and a late weir_reset() must not meet
 * the next owner of the slot. */
enum wr_turn wr_close_last(weir_socket *socket)
{
    if (socket->closed)
        socket->closed(socket->end_context);
    wr_source_release(&socket->source);
    return WR_TURN_GONE;
}

/* Reads and drops. True: the peer has finished, failed, or sends without end. */
static bool drop_input(weir_socket *socket, struct wr_scratch *scratch)
{
    unsigned char small[1024];
    unsigned char *buffer = scratch ? scratch->in : small;
    size_t size = scratch ? sizeof scratch->in : sizeof small;

    if (!(socket->source.stage & WR_STAGE_DROPPING))
        socket->dropped = 0; /* in place of a context that nobody needs any more */
    socket->source.stage |= WR_STAGE_DROPPING;
    for (int rounds = 0; rounds < LINGER_ROUNDS; rounds++) {
        ssize_t n = wr_receive(socket, buffer, size);
        if (n == -EAGAIN)
            return false;
        if (n <= 0)
            return true;
        socket->dropped += (size_t)n;
        if (socket->dropped > LINGER_BYTES_MAX)
            return true;
    }
    wr_source_schedule(&socket->source, WR_IN);
    return false;
}

static void arm_linger(weir_socket *socket)
{
    if (socket->source.stage & WR_STAGE_LINGERING)
        return;
    socket->source.stage |= WR_STAGE_LINGERING;
    wr_poller_deadline(socket->source.poller, &socket->deadline,
                       wr_clock_add(wr_clock_now(), (int64_t)socket->in.limit * 1000000));
}

enum wr_turn wr_close_turn(weir_socket *socket, struct wr_scratch *scratch, uint32_t flags)
{
    /* Who sets it behind this look asks for a turn afterwards. */
    if (!wr_closing(socket))
        return WR_TURN_DONE;
    /* The end waits for the ring to let go, which the ring's own thread cannot: a worker's turn. */
    if (wr_inline_owns(&socket->source)) {
        wr_source_schedule(&socket->source, WR_CTL | (flags & WR_TIMER));
        return WR_TURN_DONE;
    }
    wr_lock(&socket->out.lock);
    bool reset = socket->reset || socket->write_errno;
    bool flushing = socket->out.head != NULL;
    wr_unlock(&socket->out.lock);

    wr_report(socket);
    if (reset || socket->source.kind != WR_STREAM)
        return end(socket, reset);
    if (flags & WR_TIMER && socket->source.stage & WR_STAGE_LINGERING &&
        !wr_timers_armed(&socket->source.poller->timers, &socket->deadline))
        return end(socket, true);
    if (flushing) {
        arm_linger(socket);
        wr_source_want(&socket->source, WR_OUT);
        return WR_TURN_DONE;
    }
    /* `end_seen` is the in line's; who saw `closing` under a lock sees what was written before, and
     * nobody writes it now. */
    if (socket->end_seen || drop_input(socket, scratch))
        return end(socket, socket->source.stage & WR_STAGE_DROPPING &&
                               socket->dropped > LINGER_BYTES_MAX);
    arm_linger(socket);
    wr_source_want(&socket->source, WR_IN);
    return WR_TURN_DONE;
}

/* ---- the public faces ---------------------------------------------------------------- */

int weir_close(weir_socket *socket, weir_closed_fn *closed, void *context)
{
    if (!socket || socket->source.kind == WR_LISTENER)
        return -EINVAL;
    return wr_close_begin(socket, false, closed, context);
}

int weir_reset(weir_socket *socket)
{
    if (!socket || socket->source.kind == WR_LISTENER)
        return -EINVAL;
    return wr_close_begin(socket, true, NULL, NULL);
}

int weir_listener_close(weir_listener *listener, weir_closed_fn *closed, void *context)
{
    if (!listener)
        return -EINVAL;
    return wr_close_begin(&listener->socket, false, closed, context);
}

struct closer {
    _Atomic uint32_t done;
    weir_runtime *runtime;
};

static void wake_closer(void *context)
{
    struct closer *closer = context;
    weir_runtime *runtime = closer->runtime;
    /* release: pairs with the acquire load in weir_close_wait(), after which it may be gone */
    atomic_store_explicit(&closer->done, 1, memory_order_release);
    wr_dispatch_wake(runtime, &closer->done);
}

int weir_close_wait(weir_socket *socket)
{
    struct closer closer = {.done = 0};

    if (!socket || socket->source.kind == WR_LISTENER)
        return -EINVAL;
    if (wr_source_current() == &socket->source)
        return -EDEADLK;
    weir_runtime *runtime = socket->source.poller->runtime;
    closer.runtime = runtime;
    wr_dispatch_enter(runtime);
    int r = wr_close_begin(socket, false, wake_closer, &closer);
    if (r < 0) {
        wr_dispatch_leave(runtime);
        return r;
    }
    /* acquire: pairs with the release store in wake_closer() */
    while (!atomic_load_explicit(&closer.done, memory_order_acquire))
        wr_dispatch_sleep(runtime, &closer.done, 0, WEIR_NEVER);
    wr_dispatch_leave(runtime);
    return 0;
}
