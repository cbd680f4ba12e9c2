/* lease.h: a runtime whose idle workers poll, connections whose callbacks stay where they are, and
 * a look at who polls. */
#ifndef WEIR_TESTS_SUPPORT_LEASE_H
#define WEIR_TESTS_SUPPORT_LEASE_H

#include "support/rig.h"

/* WEIR_POLL=lease; workers_max == 0: as many as `workers`. */
void lease_open(struct rig *rig, unsigned pollers, unsigned workers, unsigned workers_max);
/* Closes the peers of all connections, then as rig_close(). */
void lease_close(struct rig *rig);

/* A connection, closed by lease_close(). What its callback does is told by the byte it is sent:
 *   x   nothing      h   stays until it is let go      b   the same, and announces it */
struct connection {
    weir_socket *socket;
    int peer;
    _Atomic unsigned inside, heard;
    _Atomic bool let_go;
    _Atomic weir_time heard_at;
};
void connection_open(struct rig *rig, struct connection *connection);
void connection_send(struct connection *connection, char what);
/* Sends `h` or `b`, and returns when the callback is there. */
void connection_hang(struct connection *connection, char what);
void connection_let_go(struct connection *connection);
bool connection_heard(struct connection *connection, unsigned heard, int milliseconds);

/* A thread in weir_recv_wait() on a connection of its own. */
struct waiter {
    weir_socket *socket;
    int peer;
    pthread_t thread;
    _Atomic unsigned served;
    _Atomic weir_time served_at;
};
void waiter_open(struct rig *rig, struct waiter *waiter);
/* Sends one byte, waits until it was served: how long that took, in nanoseconds; -1: it was not
 * within 5 s. */
weir_time waiter_time(struct waiter *waiter);
/* Lets it end: closes the peer, joins the thread. */
void waiter_close(struct waiter *waiter);

/* Who polls: an enum wr_lease_state, of one poller. */
unsigned lease_state(struct rig *rig, unsigned poller);
bool lease_await(struct rig *rig, unsigned poller, unsigned state);
/* A worker waits in the kernel and the guarantor sleeps without a deadline, at every poller for
 * which there is a worker; all workers are idle. */
bool lease_await_rest(struct rig *rig);

#endif
