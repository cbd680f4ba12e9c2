/* line.c: a line of operations of one direction: in order, each decided once. See net.h. */
#include <errno.h>

#include "base/assert.h"
#include "net/net.h"

/* Operations served in one visit before others get a turn (D6). */
#define SERVICE_MAX 32

struct wr_line *wr_line_of(weir_socket *socket, const weir_op *op)
{
    return op->kind_ <= WR_OP_ACCEPT ? &socket->in : &socket->out;
}

void wr_line_append(struct wr_line *line, weir_op *op)
{
    op->next_ = NULL;
    op->prev_ = line->tail;
    *(line->tail ? &line->tail->next_ : &line->head) = op;
    line->tail = op;
    op->state_ = WR_OP_PENDING;
}

void wr_line_push_head(struct wr_line *line, weir_op *op)
{
    op->prev_ = NULL;
    op->next_ = line->head;
    *(line->head ? &line->head->prev_ : &line->tail) = op;
    line->head = op;
    op->state_ = WR_OP_PENDING;
}

static void unlink_op(struct wr_line *line, weir_op *op)
{
    *(op->prev_ ? &op->prev_->next_ : &line->head) = op->next_;
    *(op->next_ ? &op->next_->prev_ : &line->tail) = op->prev_;
    op->next_ = op->prev_ = NULL;
}

void wr_line_end(weir_socket *socket, struct wr_line *line, weir_op *op, ssize_t result)
{
    WR_ASSERT(op->state_ == WR_OP_PENDING);
    unlink_op(line, op);
    if (op->kind_ == WR_OP_WRITE) {
        wr_write_free(socket, op);
        return;
    }
    /* After this the poller is not inside the expiry of it, nor will be: the memory may go. */
    if (op->flags_ & WR_OP_TIMED)
        wr_timers_cancel(&socket->source.poller->timers, &op->deadline_);
    op->state_ = WR_OP_ENDED;
    op->result_ = result;
    if (op->flags_ & WR_OP_SYNC) {
        wr_source_wake(&socket->source, line->bit);
        return;
    }
    *(line->ended ? &line->ended_tail->next_ : &line->ended) = op;
    line->ended_tail = op;
}

void wr_line_settle(weir_socket *socket, struct wr_line *line)
{
    struct wr_source *source = &socket->source;

    if (line->head && !(line->head->flags_ & WR_OP_SYNC)) {
        /* With readiness set by hand: the new head has not tried since the last edge. */
        wr_source_schedule(source, line->bit | line->bit << WR_WANT_SHIFT);
        return;
    }
    if (!(line == &socket->in && socket->reading))
        wr_source_unwant(source, line->bit);
    if (line->head)
        wr_source_wake(source, line->bit);
    else if (line == &socket->out)
        wr_write_fin(socket);
}

void wr_line_service(weir_socket *socket, struct wr_line *line)
{
    unsigned budget = SERVICE_MAX;

    wr_lock(&line->lock);
    while (line->head && !(line->head->flags_ & WR_OP_SYNC) && socket->source.fd >= 0) {
        weir_op *op = line->head;
        if (line == &socket->out && socket->corked)
            break; /* those bytes go first; the flush settles the line */
        ssize_t r = budget-- == 0 ? WR_TRY_YIELD : wr_attempt(socket, op);
        if (r == WR_TRY_YIELD)
            wr_source_schedule(&socket->source, line->bit);
        if (r == WR_TRY_YIELD || r == WR_TRY_AGAIN)
            break;
        if (r < 0 && op->kind_ == WR_OP_WRITE)
            wr_write_failed(socket, (int)r);
        else
            wr_line_end(socket, line, op, r);
    }
    if (!line->head || line->head->flags_ & WR_OP_SYNC)
        wr_line_settle(socket, line);
    wr_unlock(&line->lock);
    wr_line_report(socket, line);
}

/* Set by the poller without the lock (op_expired() in op.c), hence not one of the flags. */
static bool expired(const weir_op *op)
{
    /* acquire: pairs with the release in op_expired() */
    return __atomic_load_n(&op->expired_, __ATOMIC_ACQUIRE);
}

void wr_line_expire(weir_socket *socket, struct wr_line *line)
{
    wr_lock(&line->lock);
    weir_op *head = line->head, *next;
    for (weir_op *op = head; op; op = next) {
        next = op->next_;
        if (expired(op))
            wr_line_end(socket, line, op, -ETIMEDOUT);
    }
    if (line->head != head)
        wr_line_settle(socket, line);
    wr_unlock(&line->lock);
}

void wr_line_report(weir_socket *socket, struct wr_line *line)
{
    for (;;) {
        wr_lock(&line->lock);
        weir_op *op = line->ended;
        if (op) {
            line->ended = op->next_;
            op->next_ = NULL;
            op->state_ = WR_OP_IDLE;
            __atomic_store_n(&op->socket_, NULL, __ATOMIC_RELAXED); /* see weir_cancel() */
        }
        wr_unlock(&line->lock);
        if (!op)
            return;
        if (op->kind_ == WR_OP_CONNECT && op->result_ < 0)
            wr_close_begin(socket, true, NULL, NULL); /* nothing is left open */
        op->done_(op, op->result_, op->context_);
    }
}

void wr_line_abort(weir_socket *socket, struct wr_line *line, int error)
{
    weir_op *next;

    for (weir_op *op = line->head; op; op = next) {
        next = op->next_;
        if (op->kind_ != WR_OP_WRITE)
            wr_line_end(socket, line, op, error);
    }
}
