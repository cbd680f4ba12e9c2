/* rig_wait.h: threads that sleep in the waiting calls of a socket. */
#ifndef WEIR_TESTS_NET_RIG_WAIT_H
#define WEIR_TESTS_NET_RIG_WAIT_H

#include "net/net.h"
#include "support/rig.h"

struct waiter {
    pthread_t thread;
    weir_socket *socket;
    weir_listener *listener; /* accepts when it is set */
    const void *out;         /* sends when it is set */
    size_t length;
    weir_time deadline;
    _Atomic bool ended;
    ssize_t result;
    char byte;
    weir_socket *accepted;
};

void waiter_start(struct waiter *waiter, weir_socket *socket, weir_time deadline);
void waiter_start_sender(struct waiter *waiter, weir_socket *socket, const void *data,
                         size_t length, weir_time deadline);
void waiter_start_accepter(struct waiter *waiter, weir_listener *listener, weir_time deadline);
/* What the call returned. */
ssize_t waiter_join(struct waiter *waiter);
/* Until the flag by which the poller finds it is set. */
void waiter_await_asleep(struct waiter *waiter);
/* Until so many operations stand in the line. */
void waiter_await_queued(struct waiter *waiter, unsigned operations);
unsigned line_length(struct wr_line *line);

/* Until what the peer did is there to be read on the spot: in completion mode a poller receives it
 * first. Nobody may be reading. */
void rig_arrived(weir_socket *socket);

/* A reader that does nothing. */
void waiter_ignore(weir_socket *socket, const weir_view *view, int status, void *context);

#endif
