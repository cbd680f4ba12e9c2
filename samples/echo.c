/* echo.c: a server that sends back what it is sent. Asynchronous: no connection has a thread,
 * and none has memory of ours, but the one whose peer sends and does not read. With --sync the
 * same service by a thread per connection and calls that wait, on the same runtime. */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "args.h"
#include "serve.h"

/* How long a peer may leave unread what we owe it. */
enum { PATIENCE_MS = 30000 };

/* ---- asynchronous ---------------------------------------------------------------------------- */

struct unsent {
    weir_op op;
    weir_socket *socket;
    weir_kept *bytes;
};

static void wait_for_reader(weir_socket *socket, const weir_view *view);

static void on_read(weir_socket *socket, const weir_view *view, int status, void *context)
{
    (void)context;
    if (status < 0 || view->length == 0) {      /* an error, or the peer has finished */
        weir_close(socket, NULL, NULL);
        return;
    }
    int r = weir_write(socket, view->data, view->length);
    if (r == -EAGAIN)                           /* too much is unread already; nothing was taken */
        wait_for_reader(socket, view);
    else if (r < 0)
        weir_close(socket, NULL, NULL);
}

static void unsent_end(struct unsent *unsent, ssize_t result)
{
    weir_socket *socket = unsent->socket;
    weir_view_release(unsent->bytes);
    free(unsent);
    if (result < 0)
        weir_reset(socket);
    else if (weir_read_start(socket, on_read, NULL) < 0)
        weir_close(socket, NULL, NULL);
}

static void on_sent(weir_op *op, ssize_t result, void *context)
{
    (void)op;
    unsent_end(context, result);
}

/* Read no more until the peer has read this. An operation ends for certain: by the peer's
 * reading, by its going away, or by the deadline. */
static void wait_for_reader(weir_socket *socket, const weir_view *view)
{
    struct unsent *unsent = malloc(sizeof *unsent);
    weir_kept *bytes = unsent ? weir_view_keep(view) : NULL;
    if (!bytes) {
        free(unsent);
        weir_reset(socket);
        return;
    }
    *unsent = (struct unsent){ .socket = socket, .bytes = bytes };
    weir_op_init(&unsent->op, on_sent, unsent);
    weir_read_stop(socket);
    ssize_t r = weir_send(socket, &unsent->op, bytes->data, bytes->length,
                          weir_after_ms(PATIENCE_MS));
    if (r != -EINPROGRESS)
        unsent_end(unsent, r);
}

static void on_accept(weir_listener *listener, weir_socket *socket, void *context)
{
    (void)listener;
    (void)context;
    weir_read_start(socket, on_read, NULL);
}

/* ---- a thread per connection ----------------------------------------------------------------- */

/* The runtime cannot tell a thread that waits for the next message from one in the middle of
 * something, so we keep the list by which they are told to end. */
struct client {
    struct client *next, **link;
    weir_socket *socket;
    bool idle;                  /* nothing received is unanswered */
    bool closed;    /* by stop_clients(): the socket may end before its thread notices */
};

static pthread_mutex_t clients_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t clients_gone = PTHREAD_COND_INITIALIZER;
static struct client *clients;

static bool client_set_idle(struct client *client, bool idle)
{
    pthread_mutex_lock(&clients_lock);
    client->idle = idle;
    bool go_on = !idle || !atomic_load_explicit(&serve_stopping, memory_order_relaxed);
    pthread_mutex_unlock(&clients_lock);
    return go_on;
}

static void *client_run(void *context)
{
    struct client *client = context;
    char buffer[16384];
    while (client_set_idle(client, true)) {
        ssize_t n = weir_recv_wait(client->socket, buffer, sizeof buffer, WEIR_NEVER);
        if (n <= 0)
            break;
        client_set_idle(client, false);
        if (weir_send_wait(client->socket, buffer, (size_t)n, weir_after_ms(PATIENCE_MS)) != n)
            break;
    }
    /* Under the lock, because a socket is nobody's to use once somebody has closed it. */
    pthread_mutex_lock(&clients_lock);
    if (!client->closed)
        weir_close(client->socket, NULL, NULL);
    *client->link = client->next;
    if (client->next)
        client->next->link = client->link;
    if (!clients)
        pthread_cond_broadcast(&clients_gone);
    pthread_mutex_unlock(&clients_lock);
    free(client);
    return NULL;
}

static void on_accept_sync(weir_listener *listener, weir_socket *socket, void *context)
{
    (void)listener;
    (void)context;
    struct client *client = malloc(sizeof *client);
    if (!client) {
        weir_reset(socket);
        return;
    }
    *client = (struct client){ .socket = socket, .idle = true };
    pthread_mutex_lock(&clients_lock);
    client->next = clients;
    client->link = &clients;
    if (clients)
        clients->link = &client->next;
    clients = client;
    pthread_t thread;
    int r = pthread_create(&thread, NULL, client_run, client);
    if (r == 0) {
        pthread_detach(thread);
    } else {
        clients = client->next;
        if (clients)
            clients->link = &clients;
        free(client);
        weir_reset(socket);
    }
    pthread_mutex_unlock(&clients_lock);
}

/* End those that wait for their next message; or all, and wait until no thread is left. */
static void stop_clients(bool now)
{
    pthread_mutex_lock(&clients_lock);
    for (struct client *client = clients; client; client = client->next) {
        if (client->closed || (!now && !client->idle))
            continue;
        client->closed = true;
        if (now)
            weir_reset(client->socket);
        else
            weir_close(client->socket, NULL, NULL);
    }
    while (now && clients)
        pthread_cond_wait(&clients_gone, &clients_lock);
    pthread_mutex_unlock(&clients_lock);
}

/* ---- the program ----------------------------------------------------------------------------- */

static const char *try_it(const char *address, char *buffer, size_t size)
{
    bool is_unix = strncmp(address, "unix:", 5) == 0;
    snprintf(buffer, size, "echo hello | socat -t 1 - %s%s", is_unix ? "UNIX-CONNECT:" : "TCP:",
             is_unix ? address + 5 : address);
    return buffer;
}

int main(int argc, char **argv)
{
    bool sync = false;
    struct serve serve = {
        .name = "echo",
        .about = "A server that sends back what it is sent.",
        .try_it = try_it,
        .on_accept = on_accept,
        .listen = WEIR_LISTEN_OPTIONS_INIT,
        .default_port = "7777",
        .drain_ms = 10000
    };
    const struct arg args[] = {
        { "--sync", ARG_SWITCH, &sync, "a thread per connection, and calls that wait" }
    };
    int exit_code = args_parse(&serve, args, sizeof args / sizeof args[0], argc, argv);
    if (exit_code >= 0)
        return exit_code;
    if (sync) {
        serve.on_accept = on_accept_sync;
        serve.stop = stop_clients;
    }
    return serve_run(&serve);
}
