#include "rig_wait.h"

static void *wait_main(void *argument)
{
    struct waiter *waiter = argument;

    if (waiter->listener)
        waiter->result = weir_accept_wait(waiter->listener, &waiter->accepted, waiter->deadline);
    else if (waiter->out)
        waiter->result =
            weir_send_wait(waiter->socket, waiter->out, waiter->length, waiter->deadline);
    else
        waiter->result = weir_recv_wait(waiter->socket, &waiter->byte, 1, waiter->deadline);
    atomic_store(&waiter->ended, true);
    return NULL;
}

static void start(struct waiter *waiter, weir_time deadline)
{
    waiter->deadline = deadline;
    cr_assert_eq(pthread_create(&waiter->thread, NULL, wait_main, waiter), 0);
}

void waiter_start(struct waiter *waiter, weir_socket *socket, weir_time deadline)
{
    memset(waiter, 0, sizeof *waiter);
    waiter->socket = socket;
    start(waiter, deadline);
}

void waiter_start_sender(struct waiter *waiter, weir_socket *socket, const void *data,
                         size_t length, weir_time deadline)
{
    memset(waiter, 0, sizeof *waiter);
    waiter->socket = socket;
    waiter->out = data;
    waiter->length = length;
    start(waiter, deadline);
}

void waiter_start_accepter(struct waiter *waiter, weir_listener *listener, weir_time deadline)
{
    memset(waiter, 0, sizeof *waiter);
    waiter->socket = &listener->socket;
    waiter->listener = listener;
    start(waiter, deadline);
}

ssize_t waiter_join(struct waiter *waiter)
{
    pthread_join(waiter->thread, NULL);
    return waiter->result;
}

void waiter_await_asleep(struct waiter *waiter)
{
    uint32_t flag = waiter->out ? WR_WAIT_OUT : WR_WAIT_IN;
    cr_assert(RIG_UNTIL(wr_source_flags(&waiter->socket->source) & flag, 5000), "does not sleep");
}

unsigned line_length(struct wr_line *line)
{
    unsigned length = 0;

    wr_lock(&line->lock);
    for (const weir_op *op = line->head; op; op = op->next_)
        length++;
    wr_unlock(&line->lock);
    return length;
}

void waiter_await_queued(struct waiter *waiter, unsigned operations)
{
    struct wr_line *line = waiter->out ? &waiter->socket->out : &waiter->socket->in;
    cr_assert(RIG_UNTIL(line_length(line) == operations, 5000), "%u in line, not %u",
              line_length(line), operations);
}

void waiter_ignore(weir_socket *socket, const weir_view *view, int status, void *context)
{
    (void)socket;
    (void)view;
    (void)status;
    (void)context;
}

void rig_arrived(weir_socket *socket)
{
    cr_assert(RIG_UNTIL(wr_source_flags(&socket->source) & WR_IN, 5000));
}
