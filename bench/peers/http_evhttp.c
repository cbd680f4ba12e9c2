/* http_evhttp.c: libevent's own HTTP server, one event base a thread. It parses all of HTTP and
 * makes its own date. */
#include "http_peer.h"

#include <event2/buffer.h>
#include <event2/event.h>
#include <event2/http.h>
#include <pthread.h>

static void on_request(struct evhttp_request *request, void *context)
{
    static const char body[] = "Hello, World!";
    struct evkeyvalq *headers = evhttp_request_get_output_headers(request);
    (void)context;

    if (strcmp(evhttp_request_get_uri(request), "/plaintext") != 0) {
        evhttp_send_error(request, HTTP_NOTFOUND, NULL);
        return;
    }
    evhttp_add_header(headers, "Server", "peer");
    evhttp_add_header(headers, "Content-Type", "text/plain");
    evbuffer_add_reference(evhttp_request_get_output_buffer(request), body, sizeof body - 1, NULL,
                           NULL);
    evhttp_send_reply(request, HTTP_OK, "OK", NULL);
}

static void *run(void *argument)
{
    const struct peer_arguments *arguments = argument;
    struct event_base *base = event_base_new();
    struct evhttp *http = base ? evhttp_new(base) : NULL;

    if (!http || evhttp_accept_socket(http, peer_listen(arguments->port)) != 0) {
        fprintf(stderr, "no evhttp\n");
        exit(1);
    }
    evhttp_set_gencb(http, on_request, NULL);
    event_base_dispatch(base);
    return NULL;
}

int main(int argc, char **argv)
{
    struct peer_arguments arguments = peer_arguments(argc, argv);
    pthread_t thread;

    for (unsigned i = 1; i < arguments.threads; i++)
        if (pthread_create(&thread, NULL, run, &arguments) != 0)
            return 1;
    run(&arguments);
    return 0;
}
