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
    if (line->head) {
        op->prev_ = line->head->prev_;
        op->prev_->next_ = op;
        line->head->prev_ = op;
    } else {
        op->prev_ = op;
        line->head = op;
    }
    op->state_ = WR_OP_PENDING;
}

void wr_line_push_head(struct wr_line *line, weir_op *op)
{
    op->next_ = line->head;
    op->prev_ = line->head ? line->head->prev_ : op;
    if (line->head)
        line->head->prev_ = op;
    line->head = op;
    op->state_ = WR_OP_PENDING;
}

static void unlink_op(struct wr_line *line, weir_op *op)
{
    if (line->head == op)
        line->head = op->next_;
    else
        op->prev_->next_ = op->next_;
    if (op->next_)
        op->next_->prev_ = op->prev_;
    else if (line->head)
        line->head->prev_ = op->prev_;
    op->next_ = op->prev_ = NULL;
}

/* The two lines share one list, so that a turn sees by one look that nothing is there. */
static void push_ended(weir_socket *socket, weir_op *op)
{
    op->next_ = atomic_load_explicit(&socket->ended, memory_order_relaxed);
    /* release: pairs with the acquire in wr_report() */
    while (!atomic_compare_exchange_weak_explicit(&socket->ended, &op->next_, op,
                                                  memory_order_release, memory_order_relaxed))
        ;
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
        wr_source_wake(&socket->source, wr_line_bit(socket, line));
        return;
    }
    push_ended(socket, op);
}

void wr_line_settle(weir_socket *socket, struct wr_line *line)
{
    struct wr_source *source = &socket->source;
    uint32_t bit = wr_line_bit(socket, line);

    if (line->head && !(line->head->flags_ & WR_OP_SYNC)) {
        /* With readiness set by hand: the new head has not tried since the last edge. */
        wr_source_schedule(source, bit | bit << WR_WANT_SHIFT);
        return;
    }
    if (!(line == &socket->in && socket->reading))
        wr_source_unwant(source, bit);
    if (line->head)
        wr_source_wake(source, bit);
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
            wr_source_schedule(&socket->source, wr_line_bit(socket, line));
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
    wr_report(socket);
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

/* Takes the list, and turns it round: the first that ended comes first. */
static weir_op *take_ended(weir_socket *socket)
{
    if (!atomic_load_explicit(&socket->ended, memory_order_relaxed))
        return NULL;
    /* acquire: pairs with the release in push_ended() */
    weir_op *op = atomic_exchange_explicit(&socket->ended, NULL, memory_order_acquire);
    weir_op *first = NULL;

    while (op) {
        weir_op *next = op->next_;
        op->next_ = first;
        first = op;
        op = next;
    }
    return first;
}

void wr_report(weir_socket *socket)
{
    weir_op *op, *next;

    while ((op = take_ended(socket)) != NULL) {
        for (; op; op = next) {
            struct wr_line *line = wr_line_of(socket, op);
            wr_lock(&line->lock); /* against weir_cancel() */
            next = op->next_;
            op->next_ = NULL;
            op->state_ = WR_OP_IDLE;
            __atomic_store_n(&op->socket_, NULL, __ATOMIC_RELAXED);
            wr_unlock(&line->lock);
            if (op->kind_ == WR_OP_CONNECT && op->result_ < 0)
                wr_close_begin(socket, true, NULL, NULL); /* nothing is left open */
            op->done_(op, op->result_, op->context_);
        }
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
