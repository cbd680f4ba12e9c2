#include "support/lease.h"

#include <unistd.h>

#include "dispatch/dispatch.h"
#include "dispatch/lease.h"

static int peers[64];
static unsigned peer_count;

void lease_open(struct rig *rig, unsigned pollers, unsigned workers, unsigned workers_max)
{
    weir_options options = WEIR_OPTIONS_INIT;

    options.pollers = pollers;
    options.workers = workers;
    options.workers_max = workers_max ? workers_max : workers;
    options.poll = WEIR_POLL_LEASE;
    options.backend = WEIR_BACKEND_EPOLL;
    rig_open_with(rig, &options);
}

void lease_close(struct rig *rig)
{
    while (peer_count > 0)
        close(peers[--peer_count]);
    rig_close(rig);
}

/* ---- connections ---------------------------------------------------------------------------- */

static void stay(struct connection *connection)
{
    while (!atomic_load(&connection->let_go))
        rig_sleep_ms(1);
}

static void on_read(weir_socket *socket, const weir_view *view, int status, void *context)
{
    struct connection *connection = context;

    (void)socket;
    if (status < 0 || view->length == 0)
        return;
    const unsigned char *bytes = view->data;
    atomic_store(&connection->heard_at, weir_now());
    if (bytes[0] == 'b')
        weir_blocking_begin();
    atomic_fetch_add(&connection->inside, 1);
    if (bytes[0] != 'x')
        stay(connection);
    if (bytes[0] == 'b')
        weir_blocking_end();
    atomic_fetch_add(&connection->heard, (unsigned)view->length);
}

void connection_open(struct rig *rig, struct connection *connection)
{
    memset(connection, 0, sizeof *connection);
    connection->peer = rig_unix(rig, NULL, &connection->socket);
    cr_assert_lt(peer_count, sizeof peers / sizeof peers[0]);
    peers[peer_count++] = connection->peer;
    cr_assert_eq(weir_read_start(connection->socket, on_read, connection), 0);
}

void connection_send(struct connection *connection, char what)
{
    rig_peer_send(connection->peer, &what, 1);
}

void connection_hang(struct connection *connection, char what)
{
    unsigned before = atomic_load(&connection->inside);

    atomic_store(&connection->let_go, false);
    connection_send(connection, what);
    cr_assert(RIG_UNTIL(atomic_load(&connection->inside) > before, 5000), "nobody came to hang");
}

void connection_let_go(struct connection *connection)
{
    atomic_store(&connection->let_go, true);
}

bool connection_heard(struct connection *connection, unsigned heard, int milliseconds)
{
    return RIG_UNTIL(atomic_load(&connection->heard) >= heard, rig_patience(milliseconds));
}

/* ---- waiting threads ------------------------------------------------------------------------ */

static void *wait_for_bytes(void *context)
{
    struct waiter *waiter = context;
    char byte;

    while (weir_recv_wait(waiter->socket, &byte, 1, WEIR_NEVER) == 1) {
        atomic_store(&waiter->served_at, weir_now());
        atomic_fetch_add(&waiter->served, 1);
    }
    return NULL;
}

void waiter_open(struct rig *rig, struct waiter *waiter)
{
    memset(waiter, 0, sizeof *waiter);
    waiter->peer = rig_unix(rig, NULL, &waiter->socket);
    cr_assert_eq(pthread_create(&waiter->thread, NULL, wait_for_bytes, waiter), 0);
    cr_assert_geq(waiter_time(waiter), 0);
}

weir_time waiter_time(struct waiter *waiter)
{
    unsigned before = atomic_load(&waiter->served);
    weir_time sent = weir_now();

    rig_peer_send(waiter->peer, "x", 1);
    while (atomic_load(&waiter->served) == before) {
        if (weir_now() > sent + 5000000000)
            return -1;
        usleep(20);
    }
    return atomic_load(&waiter->served_at) - sent;
}

void waiter_close(struct waiter *waiter)
{
    close(waiter->peer);
    pthread_join(waiter->thread, NULL);
}

/* ---- who polls ------------------------------------------------------------------------------ */

unsigned lease_state(struct rig *rig, unsigned poller)
{
    return atomic_load(&rig->runtime->pollers[poller].lease);
}

bool lease_await(struct rig *rig, unsigned poller, unsigned state)
{
    return RIG_UNTIL(lease_state(rig, poller) == state, rig_patience(2000));
}

static bool at_rest(struct rig *rig)
{
    unsigned leased = 0;
    weir_stats stats = rig_stats(rig);

    for (unsigned i = 0; i < rig->runtime->poller_count; i++) {
        struct wr_poller *poller = &rig->runtime->pollers[i];
        if (atomic_load(&poller->lease) == WR_LEASE_WAITING && atomic_load(&poller->guard))
            leased++;
        else if (atomic_load(&poller->lease) != WR_LEASE_GUARD)
            return false;
    }
    unsigned pollers = rig->runtime->poller_count;
    unsigned wanted = stats.workers < pollers ? (unsigned)stats.workers : pollers;
    return stats.workers_parked == stats.workers && leased == wanted;
}

/* A doorbell may be on its way: at rest is who stays there. */
static bool stays_at_rest(struct rig *rig)
{
    uint64_t waits = rig_stats(rig).waits;

    for (int i = 0; i < 4; i++) {
        if (!at_rest(rig))
            return false;
        rig_sleep_ms(1);
    }
    return rig_stats(rig).waits == waits;
}

bool lease_await_rest(struct rig *rig)
{
    return RIG_UNTIL(stays_at_rest(rig), rig_patience(3000));
}
