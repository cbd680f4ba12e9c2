/* plaintext.c: an HTTP/1.1 server that answers /plaintext and /json from memory.
 *
 * A connection that is idle, or whose requests arrive whole, has no memory of ours: its bytes
 * are read where they lie in the worker's buffer (a view), all requests in it are answered into
 * the worker's output, and that leaves with one write. Only a connection in the middle of
 * something has a struct connection: a part of a request has come, or the peer does not read
 * its responses. Then reading by views stops and one operation with a deadline is pending; when
 * that something is over, the memory is given back. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "args.h"
#include "http_response.h"
#include "serve.h"

/* A body must bring this much, or its end, in each body_ms. */
enum { BODY_STEP = 10 * 1024 };

static unsigned header_ms = 10000, body_ms = 10000, idle_ms = 60000, write_ms = 10000;
static uint64_t body_max = 8 * 1024 * 1024;

static struct http_answer plaintext, json, options, not_found, not_allowed;

static void make_answers(void)
{
    http_errors_init();
    http_answer_init(&plaintext, 200, "", "text/plain", "Hello, World!");
    http_answer_init(&json, 200, "", "application/json", "{\"message\":\"Hello, World!\"}");
    http_answer_init(&options, 200, "Allow: GET, HEAD, OPTIONS\r\n", NULL, "");
    http_answer_init(&not_found, 404, "", "text/plain", "Not Found");
    http_answer_init(&not_allowed, 405, "Allow: GET, HEAD, OPTIONS\r\n", "text/plain",
                     "Method Not Allowed");
}

static const struct http_answer *find_answer(const struct http_request *request)
{
    static const struct { const char *path; const struct http_answer *answer; } routes[] = {
        { "/plaintext", &plaintext }, { "/json", &json }, { "*", &options }
    };
    for (size_t i = 0; i < sizeof routes / sizeof routes[0]; i++) {
        if (request->path_length != strlen(routes[i].path) ||
            memcmp(request->path, routes[i].path, request->path_length) != 0)
            continue;
        if (request->method == HTTP_GET || request->method == HTTP_HEAD)
            return routes[i].answer;
        return request->method == HTTP_OPTIONS ? &options : &not_allowed;
    }
    return &not_found;
}

/* ---- a request and its response -------------------------------------------------------------- */

struct exchange {
    struct http_request request;
    const struct http_answer *answer;   /* NULL: the head is not complete; else in the body */
};

static void exchange_init(struct exchange *exchange)
{
    http_request_init(&exchange->request, body_max);
    exchange->answer = NULL;
}

/* A client that waits for our leave to send its body gets it, or the final answer when that is
 * no. */
static int answer_expectation(const struct exchange *exchange, struct http_output *output)
{
    if (exchange->answer->status >= 400)
        return -exchange->answer->status;
    http_continue(output);
    return 0;
}

/* Go on with the exchange by what is there: -status, 0 when more is needed, or how many bytes
 * were used. */
static ssize_t read_request(struct exchange *exchange, const char *data, size_t length,
                            struct http_output *output)
{
    ssize_t head = 0;
    if (!exchange->answer) {
        head = http_head(&exchange->request, data, length);
        if (head <= 0)
            return head;
        exchange->answer = find_answer(&exchange->request);
        if (exchange->request.expect_continue && (size_t)head == length) {
            int r = answer_expectation(exchange, output);
            if (r < 0)
                return r;
        }
    }
    ssize_t body = http_body(&exchange->request, data + head, length - (size_t)head);
    return body < 0 ? body : head + body;
}

/* Answer every request that is complete. Returns how many bytes are done with: what remains is
 * the begin of a head. Sets `*ret_close` when nothing more is to be read. */
static size_t answer_all(struct exchange *exchange, const char *data, size_t length,
                         struct http_output *output, bool *ret_close)
{
    size_t used = 0;
    while (used < length) {
        ssize_t n = read_request(exchange, data + used, length - used, output);
        if (n == 0)
            break;
        if (n < 0) {
            const struct http_answer *refusal = http_error((int)-n);
            if (exchange->answer && exchange->answer->status == -n)
                refusal = exchange->answer;
            http_respond(output, &exchange->request, refusal, false);
            *ret_close = true;
            return length;
        }
        used += (size_t)n;
        if (exchange->request.body_pending)
            break;
        bool keep_alive = exchange->request.keep_alive &&
                          !atomic_load_explicit(&serve_stopping, memory_order_relaxed);
        http_respond(output, &exchange->request, exchange->answer, keep_alive);
        if (!keep_alive) {
            *ret_close = true;
            return length;
        }
        exchange_init(exchange);
    }
    return used;
}

/* ---- a connection in the middle of something ------------------------------------------------- */

struct connection {
    weir_op op;                     /* receives more of the request, or sends `unsent` */
    weir_socket *socket;
    struct exchange exchange;
    weir_time deadline;             /* of the head, or of the next BODY_STEP bytes */
    size_t step;                    /* bytes of the body since the deadline was set */
    char *unsent;                   /* responses that weir_write() refused */
    size_t unsent_length;
    bool closing;                   /* after what is unsent */
    size_t length;                  /* of the begin of a head in `bytes` */
    char bytes[HTTP_HEAD_MAX];      /* enough: the parser refuses a longer head */
};

static void read_views(weir_socket *socket);

/* A peer that does not take its responses in time is not worth a linger. */
static void end(weir_socket *socket, int status)
{
    if (status == -ETIMEDOUT || status == -ENOMEM)
        weir_reset(socket);
    else
        weir_close(socket, NULL, NULL);
}

static void connection_free(struct connection *connection)
{
    free(connection->unsent);
    free(connection);
}

/* Hand the responses over. The kernel, or weir, keeps what the peer does not take yet; when
 * that is too much they stay with us. Returns 0 or -errno: the connection is beyond help. */
static int connection_write(struct connection *connection, const struct http_output *output)
{
    if (output->failed)
        return -ENOMEM;
    int r = output->length > 0 ? weir_write(connection->socket, output->bytes, output->length) : 0;
    if (r != -EAGAIN)
        return r;
    connection->unsent = malloc(output->length);
    if (!connection->unsent)
        return -ENOMEM;
    memcpy(connection->unsent, output->bytes, output->length);
    connection->unsent_length = output->length;
    return 0;
}

/* Set the deadline by what the bytes just received have brought. */
static void connection_progress(struct connection *connection, size_t received, bool was_in_body,
                                bool answered)
{
    bool in_body = connection->exchange.answer;
    connection->step += received;
    if (in_body && (answered || !was_in_body || connection->step >= BODY_STEP)) {
        connection->step = 0;
        connection->deadline = weir_after_ms(body_ms);
    } else if (!in_body && (answered || connection->deadline == 0)) {
        connection->deadline = weir_after_ms(header_ms);
    }
}

/* More of the request has come. */
static int connection_received(struct connection *connection, size_t received)
{
    bool was_in_body = connection->exchange.answer;
    struct http_output *output = http_output_begin();
    connection->length += received;
    size_t used = answer_all(&connection->exchange, connection->bytes, connection->length, output,
                             &connection->closing);
    connection->length -= used;
    if (used > 0)
        memmove(connection->bytes, connection->bytes + used, connection->length);
    connection_progress(connection, received, was_in_body, output->length > 0);
    return connection_write(connection, output);
}

/* The operation has ended. Returns 0 to go on, or -errno when the connection is over. */
static int connection_step(struct connection *connection, ssize_t result)
{
    if (connection->unsent) {
        free(connection->unsent);
        connection->unsent = NULL;
        connection_progress(connection, 0, false, true);    /* the wait was not the request's */
        return result < 0 ? (int)result : 0;
    }
    if (result > 0)
        return connection_received(connection, (size_t)result);
    if (result != -ETIMEDOUT)
        return result < 0 ? (int)result : -ECONNRESET;
    struct http_output *output = http_output_begin();
    http_respond(output, &connection->exchange.request, http_error(408), false);
    connection->closing = true;
    return connection_write(connection, output);
}

/* Start what comes next, until an operation is pending or the something is over. */
static void connection_go_on(struct connection *connection, int status)
{
    weir_socket *socket = connection->socket;
    while (status == 0) {
        ssize_t result;
        if (connection->unsent) {
            result = weir_send(socket, &connection->op, connection->unsent,
                               connection->unsent_length, weir_after_ms(write_ms));
        } else if (connection->closing) {
            break;
        } else if (connection->length == 0 && !connection->exchange.answer) {
            connection_free(connection);
            read_views(socket);
            return;
        } else {
            result = weir_recv(socket, &connection->op, connection->bytes + connection->length,
                               sizeof connection->bytes - connection->length, connection->deadline);
        }
        if (result == -EINPROGRESS)
            return;
        status = connection_step(connection, result);
    }
    connection_free(connection);
    end(socket, status);
}

static void on_done(weir_op *op, ssize_t result, void *context)
{
    struct connection *connection = context;
    (void)op;
    connection_go_on(connection, connection_step(connection, result));
}

/* The view ended within a request (`rest` is the begin of its head), or its responses are too
 * much. */
static void connection_begin(weir_socket *socket, const struct exchange *exchange, const char *rest,
                             size_t length, const struct http_output *output, bool closing)
{
    struct connection *connection = malloc(sizeof *connection);
    weir_read_stop(socket);
    if (!connection) {
        end(socket, -ENOMEM);
        return;
    }
    weir_op_init(&connection->op, on_done, connection);
    connection->socket = socket;
    connection->exchange = *exchange;
    connection->deadline = 0;
    connection->step = 0;
    connection->unsent = NULL;
    connection->closing = closing;
    connection->length = length;
    memcpy(connection->bytes, rest, length);
    connection_progress(connection, 0, false, false);
    connection_go_on(connection, connection_write(connection, output));
}

/* ---- a connection between requests ----------------------------------------------------------- */

/* All that is remembered of it is when it was last heard of, in milliseconds, in place of a
 * pointer. The deadline is not moved with each request: when it passes, this tells whether it
 * was meant. */
static void *now_as_pointer(void)
{
    enum { LAG_MS = 10 };   /* of this clock, at most: it is cheap, and read with each request */
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    return (void *)(uintptr_t)(now.tv_sec * 1000 + now.tv_nsec / 1000000 + LAG_MS);
}

static void on_idle(weir_socket *socket)
{
    weir_time end = ((weir_time)(uintptr_t)weir_socket_user(socket) + idle_ms) * 1000000;
    if (end > weir_now())
        weir_read_deadline(socket, end);
    else
        weir_close(socket, NULL, NULL);
}

static void on_read(weir_socket *socket, const weir_view *view, int status, void *context)
{
    (void)context;
    if (status == -ETIMEDOUT) {
        on_idle(socket);
        return;
    }
    if (status < 0 || view->length == 0) {      /* an error, or the peer has finished */
        weir_close(socket, NULL, NULL);
        return;
    }
    const char *data = (const char *)view->data;
    struct exchange exchange;
    struct http_output *output = http_output_begin();
    bool closing = false;
    exchange_init(&exchange);
    size_t used = answer_all(&exchange, data, view->length, output, &closing);

    int r = output->failed ? -ENOMEM : 0;
    if (r == 0 && output->length > 0)
        r = weir_write(socket, output->bytes, output->length);
    bool written = r != -EAGAIN;
    if (written && (r < 0 || closing)) {
        end(socket, r);
        return;
    }
    if (written && used == view->length && !exchange.answer) {
        weir_socket_set_user(socket, now_as_pointer());
        return;
    }
    if (written)
        output->length = 0;
    connection_begin(socket, &exchange, data + used, view->length - used, output, closing);
}

static void read_views(weir_socket *socket)
{
    weir_socket_set_user(socket, now_as_pointer());
    weir_read_deadline(socket, weir_after_ms(idle_ms));
    if (weir_read_start(socket, on_read, NULL) < 0)
        weir_close(socket, NULL, NULL);
}

static void on_accept(weir_listener *listener, weir_socket *socket, void *context)
{
    (void)listener;
    (void)context;
    read_views(socket);
}

/* ---- the program ----------------------------------------------------------------------------- */

static const char *try_it(const char *address, char *buffer, size_t size)
{
    if (strncmp(address, "unix:", 5) == 0)
        snprintf(buffer, size, "curl -i --unix-socket %s http://localhost/plaintext", address + 5);
    else
        snprintf(buffer, size, "curl -i http://%s/plaintext", address);
    return buffer;
}

static void thread_stop(const char *name, void *context)
{
    (void)name;
    (void)context;
    http_output_end();
}

int main(int argc, char **argv)
{
    struct serve serve = {
        .name = "plaintext",
        .about = "An HTTP/1.1 server with two resources, /plaintext and /json.",
        .try_it = try_it,
        .on_accept = on_accept,
        .listen = WEIR_LISTEN_OPTIONS_INIT,
        .default_port = "8080",
        .thread_stop = thread_stop,
        .drain_ms = 10000
    };
    const struct arg args[] = {
        { "--header-timeout", ARG_SECONDS, &header_ms, "how long a request's head may take (10)" },
        { "--body-timeout", ARG_SECONDS, &body_ms, "in which a body brings 10 KiB or ends (10)" },
        { "--idle-timeout", ARG_SECONDS, &idle_ms, "how long a connection may be idle (60)" },
        { "--write-timeout", ARG_SECONDS, &write_ms, "how long a peer may not read (10)" },
        { "--body-max", ARG_BYTES, &body_max, "largest body of a request (8388608)" }
    };
    int exit_code = args_parse(&serve, args, sizeof args / sizeof args[0], argc, argv);
    if (exit_code >= 0)
        return exit_code;
    serve.listen.socket.write_high = 256 * 1024;    /* of responses that a peer leaves unread */
    make_answers();
    return serve_run(&serve);
}
