/* http_libuv.c: libuv with Node's former parser (http_parser), one loop a thread. The parser sees
 * every byte; the answer is canned, and the answers of one read leave in one write. */
#include "http_peer.h"

#include <http_parser.h>
#include <pthread.h>
#include <uv.h>

enum { BUFFER_SIZE = 16384 };

struct connection {
    uv_tcp_t tcp;
    http_parser parser;
    size_t due;         /* requests of this read that are not answered yet */
};

struct loop {
    uv_loop_t loop;
    uv_tcp_t listener;
    char buffer[BUFFER_SIZE];   /* libuv reads one connection at a time, so one is enough */
};

struct write {
    uv_write_t request;
    char *bytes;
};

static char *answers;
static http_parser_settings settings;

static int on_message_complete(http_parser *parser)
{
    struct connection *connection = parser->data;
    connection->due++;
    return 0;
}

static void on_closed(uv_handle_t *handle)
{
    free(handle->data);
}

static void end(struct connection *connection)
{
    if (!uv_is_closing((uv_handle_t *)&connection->tcp))
        uv_close((uv_handle_t *)&connection->tcp, on_closed);
}

static void on_written(uv_write_t *request, int status)
{
    struct write *write = request->data;
    (void)status;       /* the read that follows says it as well */
    free(write->bytes);
    free(write);
}

/* What the socket takes at once leaves without a request of libuv's; the rest is copied. */
static int send_bytes(struct connection *connection, size_t length)
{
    uv_buf_t buffer = uv_buf_init(answers, (unsigned)length);
    int sent = uv_try_write((uv_stream_t *)&connection->tcp, &buffer, 1);

    if (sent == (int)length)
        return 0;
    if (sent < 0 && sent != UV_EAGAIN)
        return sent;
    size_t done = sent > 0 ? (size_t)sent : 0;
    struct write *write = malloc(sizeof *write);
    char *bytes = malloc(length - done);
    if (!write || !bytes) {
        free(write);
        free(bytes);
        return UV_ENOMEM;
    }
    memcpy(bytes, answers + done, length - done);
    write->bytes = bytes;
    write->request.data = write;
    buffer = uv_buf_init(bytes, (unsigned)(length - done));
    return uv_write(&write->request, (uv_stream_t *)&connection->tcp, &buffer, 1, on_written);
}

static void on_read(uv_stream_t *stream, ssize_t got, const uv_buf_t *buffer)
{
    struct connection *connection = stream->data;

    if (got == 0)
        return;
    if (got < 0) {
        end(connection);
        return;
    }
    size_t parsed = http_parser_execute(&connection->parser, &settings, buffer->base, (size_t)got);
    if (parsed != (size_t)got) {
        end(connection);
        return;
    }
    while (connection->due > 0) {
        size_t now = connection->due < PEER_ANSWERS_AT_ONCE ? connection->due
                                                            : PEER_ANSWERS_AT_ONCE;
        if (send_bytes(connection, now * PEER_ANSWER_LENGTH) < 0) {
            end(connection);
            return;
        }
        connection->due -= now;
    }
}

static void on_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *ret_buffer)
{
    struct loop *loop = handle->loop->data;
    (void)suggested;
    *ret_buffer = uv_buf_init(loop->buffer, BUFFER_SIZE);
}

static void on_connection(uv_stream_t *listener, int status)
{
    struct connection *connection = status == 0 ? calloc(1, sizeof *connection) : NULL;

    if (!connection)
        return;
    uv_tcp_init(listener->loop, &connection->tcp);
    connection->tcp.data = connection;
    http_parser_init(&connection->parser, HTTP_REQUEST);
    connection->parser.data = connection;
    if (uv_accept(listener, (uv_stream_t *)&connection->tcp) != 0) {
        end(connection);
        return;
    }
    uv_tcp_nodelay(&connection->tcp, 1);
    uv_read_start((uv_stream_t *)&connection->tcp, on_alloc, on_read);
}

static void *run(void *argument)
{
    const struct peer_arguments *arguments = argument;
    struct loop *loop = calloc(1, sizeof *loop);

    if (!loop || uv_loop_init(&loop->loop) != 0)
        exit(1);
    loop->loop.data = loop;
    uv_tcp_init(&loop->loop, &loop->listener);
    if (uv_tcp_open(&loop->listener, peer_listen(arguments->port)) != 0 ||
        uv_listen((uv_stream_t *)&loop->listener, PEER_BACKLOG, on_connection) != 0) {
        fprintf(stderr, "libuv cannot listen\n");
        exit(1);
    }
    uv_run(&loop->loop, UV_RUN_DEFAULT);
    return NULL;
}

int main(int argc, char **argv)
{
    struct peer_arguments arguments = peer_arguments(argc, argv);
    pthread_t thread;

    answers = peer_answers();
    http_parser_settings_init(&settings);
    settings.on_message_complete = on_message_complete;
    for (unsigned i = 1; i < arguments.threads; i++)
        if (pthread_create(&thread, NULL, run, &arguments) != 0)
            return 1;
    run(&arguments);
    return 0;
}
