/* stall_server.c: a server on the public interface whose callbacks can be made to hang, for
 * bench/latency.
 *
 *     stall_server port waiting-port
 *
 * On `port` requests are answered by callbacks on workers; `GET /stall?ms=N` keeps its callback,
 * and with it a worker, asleep for N milliseconds without telling the library. Each connection to
 * `waiting-port` gets a thread of its own that answers with weir_recv_wait() and weir_send_wait().
 * It is a client's plaything: requests are told apart by their ends, and trusted. */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <weir/weir.h>

enum { STALL_MAX_MS = 60000, BUFFER_SIZE = 4096, ADDRESS_SIZE = 32 };

static const char answer[] = "HTTP/1.1 200 OK\r\n"
                             "Server: stall\r\n"
                             "Content-Type: text/plain\r\n"
                             "Content-Length: 13\r\n"
                             "\r\n"
                             "Hello, World!";
enum { ANSWER_LENGTH = sizeof answer - 1 };

static const char head_end[] = "\r\n\r\n";
static const char stall[] = "GET /stall?ms=";

static void sleep_ms(unsigned long ms)
{
    struct timespec left;
    if (ms > STALL_MAX_MS)
        ms = STALL_MAX_MS;
    left.tv_sec = (time_t)(ms / 1000);
    left.tv_nsec = (long)(ms % 1000) * 1000000;
    while (nanosleep(&left, &left) != 0)
        continue;
}

/* The request line of what is left, at most; nothing behind the view is touched. */
static unsigned long stall_of(const char *request, size_t length)
{
    char digits[8] = "";
    size_t prefix = sizeof stall - 1;

    if (length <= prefix || memcmp(request, stall, prefix) != 0)
        return 0;
    size_t room = length - prefix < sizeof digits - 1 ? length - prefix : sizeof digits - 1;
    memcpy(digits, request + prefix, room);
    return strtoul(digits, NULL, 10);
}

static void on_read(weir_socket *socket, const weir_view *view, int status, void *context)
{
    (void)context;
    if (status < 0 || view->length == 0) {
        weir_close(socket, NULL, NULL);
        return;
    }
    const char *data = (const char *)view->data, *last = data + view->length;
    for (const char *end; (end = memmem(data, (size_t)(last - data), head_end, 4));) {
        unsigned long ms = stall_of(data, (size_t)(last - data));
        data = end + 4;
        if (ms > 0)
            sleep_ms(ms);
        if (weir_write(socket, answer, ANSWER_LENGTH) < 0)
            weir_close(socket, NULL, NULL);
    }
}

static void on_accept(weir_listener *listener, weir_socket *socket, void *context)
{
    (void)listener;
    if (weir_read_start(socket, on_read, context) < 0)
        weir_close(socket, NULL, NULL);
}

/* Cancelled, the socket has been closed or the runtime is going: it must not be touched. */
static void *end_waiting(weir_socket *socket, ssize_t result)
{
    if (result != -ECANCELED)
        weir_close(socket, NULL, NULL);
    return NULL;
}

static void *answer_waiting(void *argument)
{
    weir_socket *socket = argument;
    char buffer[BUFFER_SIZE];
    size_t kept = 0;

    for (;;) {
        ssize_t got = weir_recv_wait(socket, buffer + kept, sizeof buffer - kept, WEIR_NEVER);
        if (got <= 0)
            return end_waiting(socket, got);
        size_t length = kept + (size_t)got, done = 0;
        for (const char *end; (end = memmem(buffer + done, length - done, head_end, 4));) {
            done = (size_t)(end - buffer) + 4;
            ssize_t sent = weir_send_wait(socket, answer, ANSWER_LENGTH, WEIR_NEVER);
            if (sent != ANSWER_LENGTH)
                return end_waiting(socket, sent);
        }
        kept = length - done;
        if (kept == sizeof buffer)
            return end_waiting(socket, 0);
        memmove(buffer, buffer + done, kept);
    }
}

static void on_accept_waiting(weir_listener *listener, weir_socket *socket, void *context)
{
    pthread_t thread;
    (void)listener;
    (void)context;
    if (pthread_create(&thread, NULL, answer_waiting, socket) != 0)
        weir_reset(socket);
    else
        pthread_detach(thread);
}

static void log_line(enum weir_log_level level, const char *line, void *context)
{
    (void)level;
    (void)context;
    fprintf(stderr, "%s\n", line);
}

static int listen_on(weir_runtime *runtime, const char *port, weir_accept_fn *on)
{
    char address[ADDRESS_SIZE];
    weir_listener *listener;

    snprintf(address, sizeof address, "127.0.0.1:%s", port);
    int r = weir_listen(runtime, address, NULL, on, NULL, &listener);
    if (r < 0)
        fprintf(stderr, "cannot listen on %s: %s\n", address, strerror(-r));
    return r;
}

int main(int argc, char **argv)
{
    weir_options options = WEIR_OPTIONS_INIT;
    weir_runtime *runtime;
    sigset_t signals;
    int number;

    if (argc != 3) {
        fprintf(stderr, "usage: %s port waiting-port\n", argv[0]);
        return 2;
    }
    signal(SIGPIPE, SIG_IGN);
    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGINT);
    sigprocmask(SIG_BLOCK, &signals, NULL);
    options.log = log_line;
    if (weir_runtime_create(&runtime, &options) < 0)
        return 1;
    /* The second port first: whoever can connect to the first finds both. */
    if (listen_on(runtime, argv[2], on_accept_waiting) < 0 ||
        listen_on(runtime, argv[1], on_accept) < 0)
        return 1;
    sigwait(&signals, &number);
    weir_runtime_destroy(runtime);
    return 0;
}
