/* op.c: operations: asynchronous and sleeping, started, cancelled, expired.
 *
 * A sleeping call is a node in the same line as the others, so that order holds between both
 * styles. Its protocol (W1), under the line's lock but for the sleep itself:
 *
 *   clear x; try; on EAGAIN load the futex word
 *   wait(x): x was set meanwhile -> again; else WAIT_x is set
 *   unlock; sleep while the futex word is as loaded; lock; again
 *
 * The poller sets x and clears WAIT_x in one move, then bumps the futex word and wakes. Its move
 * comes before wait(x), which then fails, or after it, and finds WAIT_x; the futex word was loaded
 * before WAIT_x was set, so that the bump cannot be missed. No worker takes part. A call that
 * leaves (done, timed out, aborted) settles the line: the next in line tries anew (W3). */
#include <errno.h>
#include <limits.h>
#include <string.h>

#include "base/assert.h"
#include "base/list.h"
#include "dispatch/hub.h"
#include "dispatch/watch.h"
#include "net/net.h"
#include "os/clock.h"

#ifdef WEIR_FAULTS
void (*wr_net_seam_hook)(enum wr_net_seam seam);
#endif

void weir_op_init(weir_op *op, weir_op_fn *done, void *context)
{
    if (!op)
        return;
    memset(op, 0, sizeof *op);
    op->done_ = done;
    op->context_ = context;
}

void wr_op_prepare(weir_op *op, enum wr_op_kind kind, void *data, size_t length)
{
    op->kind_ = (uint16_t)kind;
    op->flags_ = 0;
    op->expired_ = 0;
    op->data_ = data;
    op->length_ = length;
    op->moved_ = 0;
    op->extra_ = NULL;
    op->offset_ = 0;
}

void wr_op_prepare_wait(weir_op *op, enum wr_op_kind kind, void *data, size_t length)
{
    memset(op, 0, sizeof *op);
    wr_op_prepare(op, kind, data, length);
    op->flags_ = WR_OP_SYNC;
}

size_t weir_op_moved(const weir_op *op)
{
    return op ? op->moved_ : 0;
}

/* Where an operation is pending: the socket, and in the lowest bit the line. Written under the
 * line's lock, read by cancels at any time. */
static void *place_of(weir_socket *socket, const struct wr_line *line)
{
    return (char *)socket + (line == &socket->out);
}

static weir_socket *socket_at(void *place)
{
    return (weir_socket *)(void *)((char *)place - ((uintptr_t)place & 1));
}

/* The poller, under its timers' lock: the op is in its line, hence alive, and so is the socket. */
static void op_expired(struct weir_deadline_ *deadline)
{
    weir_op *op = WR_CONTAINER_OF(deadline, weir_op, deadline_);
    weir_socket *socket = socket_at(__atomic_load_n(&op->socket_, __ATOMIC_RELAXED));
    /* release: pairs with the acquire in expired() of line.c */
    __atomic_store_n(&op->expired_, 1, __ATOMIC_RELEASE);
    wr_source_schedule(&socket->source, WR_CTL);
}

/* Under the line's lock: may an operation be started? */
static int refuse(const weir_socket *socket, const struct wr_line *line)
{
    if (wr_closing(socket))
        return -ECANCELED;
    if (line == &socket->in && socket->reading)
        return -EBUSY;
    if (line == &socket->out && socket->fin_wanted)
        return -EPIPE;
    if (line == &socket->out && socket->write_errno)
        return -socket->write_errno;
    return 0;
}

/* What the running callback has written goes first. */
static void flush_own_cork(weir_socket *socket, const struct wr_line *line)
{
    struct wr_scratch *scratch = wr_scratch_peek();
    if (line == &socket->out && scratch && scratch->corking == socket && scratch->corked > 0)
        wr_cork_flush(socket, scratch);
}

/* Under the line's lock: the try of an operation that nobody stands before. */
static ssize_t try_first(weir_socket *socket, struct wr_line *line, weir_op *op)
{
    if (line->head || (line == &socket->out && socket->corked))
        return -EAGAIN;
    uint32_t bit = wr_line_bit(socket, line);
    if (wr_source_flags(&socket->source) & bit)
        wr_source_clear(&socket->source, bit);
    ssize_t r = wr_attempt(socket, op);
    if (r == WR_TRY_YIELD) {
        wr_source_schedule(&socket->source, bit); /* there is room: the turn goes on */
        r = -EAGAIN;
    }
    return r;
}

ssize_t wr_op_start(weir_socket *socket, weir_op *op, weir_time deadline)
{
    struct wr_line *line = wr_line_of(socket, op);

    flush_own_cork(socket, line);
    wr_lock(&line->lock);
    ssize_t r = refuse(socket, line);
    if (r == 0)
        r = try_first(socket, line, op);
    if (r == -EAGAIN && deadline != WEIR_NEVER && deadline <= wr_clock_now())
        r = -ETIMEDOUT;
    if (r == -EAGAIN) {
        /* release: pairs with the acquire in weir_cancel() */
        __atomic_store_n(&op->socket_, place_of(socket, line), __ATOMIC_RELEASE);
        wr_line_append(line, op);
        if (deadline != WEIR_NEVER) {
            op->flags_ |= WR_OP_TIMED;
            wr_deadline_init(&op->deadline_, op_expired);
            wr_poller_deadline(socket->source.poller, &op->deadline_, deadline);
        }
        if (line->head == op)
            wr_source_want(&socket->source, wr_line_bit(socket, line));
        r = -EINPROGRESS;
    }
    wr_unlock(&line->lock);
    return r;
}

/* Under the lock; leaves it for the sleep. 0 woken, -ETIMEDOUT. */
static int sleep_for(weir_socket *socket, struct wr_line *line, uint32_t seen, weir_time deadline)
{
    wr_unlock(&line->lock);
    int r = wr_dispatch_sleep(socket->source.poller->runtime,
                              &socket->source.wake[line == &socket->out], seen, deadline);
    wr_lock(&line->lock);
    return r;
}

/* Under the lock, the op in the line: until it is decided. */
static void wait_decided(weir_socket *socket, struct wr_line *line, weir_op *op, weir_time deadline)
{
    struct wr_source *source = &socket->source;
    uint32_t bit = wr_line_bit(socket, line);

    while (op->state_ == WR_OP_PENDING) {
        bool head = line->head == op && !(line == &socket->out && socket->corked);
        if (head) {
            wr_source_clear(source, bit);
            ssize_t r = wr_attempt(socket, op);
            if (r == WR_TRY_YIELD)
                continue;
            if (r != WR_TRY_AGAIN) {
                wr_line_end(socket, line, op, r);
                wr_line_settle(socket, line);
                break;
            }
        }
        /* acquire: pairs with the release in wr_source_wake(); loaded before WAIT is set, see above
         */
        uint32_t seen =
            atomic_load_explicit(&source->wake[bit == WR_OUT], memory_order_acquire);
        if (head && !wr_source_wait(source, bit))
            continue;
        if (sleep_for(socket, line, seen, deadline) == -ETIMEDOUT && op->state_ == WR_OP_PENDING) {
            head = line->head == op;
            if (head) /* otherwise the flag is that of the one before us */
                wr_source_unwait(source, bit);
            wr_line_end(socket, line, op, -ETIMEDOUT);
            if (head)
                wr_line_settle(socket, line);
        }
    }
}

ssize_t wr_op_wait(weir_socket *socket, weir_op *op, weir_time deadline)
{
    struct wr_line *line = wr_line_of(socket, op);

    flush_own_cork(socket, line);
    wr_lock(&line->lock);
    ssize_t r = refuse(socket, line);
    if (r == 0)
        r = try_first(socket, line, op);
    if (r != -EAGAIN) {
        wr_unlock(&line->lock);
        return r;
    }
    bool pinned = wr_source_pin(&socket->source);
    WR_ASSERT(pinned); /* not closing, under the lock: the socket's own pin is there */
    (void)pinned;
    weir_runtime *runtime = socket->source.poller->runtime;
    wr_dispatch_enter(runtime); /* the last pin posts a turn, when nothing else keeps the runtime */
    wr_line_append(line, op);
    wait_decided(socket, line, op, deadline);
    wr_unlock(&line->lock);
    wr_source_unpin(&socket->source);
    WR_NET_SEAM(WR_SEAM_UNPINNED);
    wr_dispatch_leave(runtime);
    return op->result_ < 0 && op->moved_ > 0 ? (ssize_t)op->moved_ : op->result_;
}

int weir_cancel(weir_op *op)
{
    if (!op)
        return -EINVAL;
    /* acquire: pairs with the release in wr_op_start() */
    void *place = __atomic_load_n(&op->socket_, __ATOMIC_ACQUIRE);
    weir_socket *socket = socket_at(place);
    /* It may end right now and the slot go to another: then we pin and lock that one in vain. */
    if (!place || !wr_source_pin(&socket->source))
        return -EALREADY;
    struct wr_line *line = place == (void *)socket ? &socket->in : &socket->out;
    int r = -EALREADY;

    if (wr_watch_is(&socket->source)) { /* which has no lines */
        wr_source_unpin(&socket->source);
        return r;
    }
    wr_lock(&line->lock);
    /* Its place is taken back under this lock before it can be started anew, elsewhere too: as long
     * as it is here, so is the operation. */
    if (__atomic_load_n(&op->socket_, __ATOMIC_RELAXED) == place && op->state_ == WR_OP_PENDING) {
        bool head = line->head == op;
        wr_line_end(socket, line, op, -ECANCELED);
        if (head)
            wr_line_settle(socket, line);
        wr_source_schedule(&socket->source, WR_CTL);
        r = 0;
    }
    wr_unlock(&line->lock);
    wr_source_unpin(&socket->source);
    return r;
}

/* ---- the public faces ---------------------------------------------------------------- */

bool wr_op_bad(const weir_socket *socket, const void *data, size_t length)
{
    return !socket || socket->source.kind == WR_LISTENER || (!data && length > 0) ||
           length > SSIZE_MAX;
}

bool wr_op_bad_start(const weir_socket *socket, const weir_op *op, const void *data, size_t length)
{
    return !op || !op->done_ || op->state_ != WR_OP_IDLE || wr_op_bad(socket, data, length);
}

ssize_t weir_recv(weir_socket *socket, weir_op *op, void *buffer, size_t length, weir_time deadline)
{
    if (wr_op_bad_start(socket, op, buffer, length))
        return -EINVAL;
    wr_op_prepare(op, WR_OP_RECV, buffer, length);
    return wr_op_start(socket, op, deadline);
}

ssize_t weir_recv_wait(weir_socket *socket, void *buffer, size_t length, weir_time deadline)
{
    weir_op op;
    if (wr_op_bad(socket, buffer, length))
        return -EINVAL;
    wr_op_prepare_wait(&op, WR_OP_RECV, buffer, length);
    return wr_op_wait(socket, &op, deadline);
}

ssize_t weir_send(weir_socket *socket, weir_op *op, const void *data, size_t length,
                  weir_time deadline)
{
    if (wr_op_bad_start(socket, op, data, length))
        return -EINVAL;
    wr_op_prepare(op, WR_OP_SEND, (void *)(uintptr_t)data, length);
    return wr_op_start(socket, op, deadline);
}

ssize_t weir_send_wait(weir_socket *socket, const void *data, size_t length, weir_time deadline)
{
    weir_op op;
    if (wr_op_bad(socket, data, length))
        return -EINVAL;
    wr_op_prepare_wait(&op, WR_OP_SEND, (void *)(uintptr_t)data, length);
    return wr_op_wait(socket, &op, deadline);
}
