/* serve.c: the life of a server process around a runtime. */
#include "serve.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

atomic_bool serve_stopping;

/* What the runtime has to say goes to stderr. It asks for no lock of ours: a line is one call. */
static void log_line(enum weir_log_level level, const char *line, void *context)
{
    const struct serve *serve = context;
    const char *word = level == WEIR_LOG_WARN ? "warning: " : "";
    if (level == WEIR_LOG_ERROR)
        word = "error: ";
    fprintf(stderr, "%s: %s%s\n", serve->name, word, line);
}

static const char *hint(int error)
{
    switch (error) {
    case EADDRINUSE:
        return "another program listens there; `ss -lntp` names it, or choose another port";
    case EACCES: return "ports below 1024 need privileges; choose a higher one";
    case EADDRNOTAVAIL: return "this machine has no such address";
    case EINVAL: return "expected IPV4:PORT, [IPV6]:PORT or unix:PATH";
    case ENOENT: return "the directory does not exist";
    default: return "--help shows the forms of an address";
    }
}

/* Listen on all addresses. Returns 0, or -1 after saying which one cannot be had and why. */
static int listen_all(struct serve *serve, weir_runtime *runtime, weir_listener **listeners)
{
    static char defaults[2][32];
    bool by_default = serve->address_count == 0;
    if (by_default) {
        snprintf(defaults[0], sizeof defaults[0], "127.0.0.1:%s", serve->default_port);
        snprintf(defaults[1], sizeof defaults[1], "[::1]:%s", serve->default_port);
        serve->addresses[serve->address_count++] = defaults[0];
        serve->addresses[serve->address_count++] = defaults[1];
    }
    unsigned count = 0;
    for (unsigned i = 0; i < serve->address_count; i++) {
        int r = weir_listen(runtime, serve->addresses[i], &serve->listen, serve->on_accept, NULL,
                            &listeners[count]);
        if (by_default && i > 0 && (r == -EAFNOSUPPORT || r == -EADDRNOTAVAIL))
            continue;                           /* a machine without IPv6: the other one will do */
        if (r < 0) {
            fprintf(stderr, "%s: cannot listen on %s: %s (%s)\n", serve->name, serve->addresses[i],
                    strerror(-r), hint(-r));
            return -1;
        }
        count++;
    }
    serve->address_count = count;
    return 0;
}

/* Where it listens, on what it runs, how to try it. */
static void say_hello(const struct serve *serve, weir_runtime *runtime, weir_listener **listeners)
{
    const char *why = "";
    const char *backend = weir_runtime_backend(runtime, &why);
    weir_stats stats = { .size = sizeof stats };
    weir_stats_get(runtime, &stats);
    char first[WEIR_ADDRESS_TEXT_MAX] = "", text[WEIR_ADDRESS_TEXT_MAX], line[256];
    for (unsigned i = 0; i < serve->address_count; i++) {
        weir_address address;
        if (weir_listener_address(listeners[i], &address) < 0 ||
            weir_address_format(&address, text, sizeof text) < 0)
            continue;
        printf("%s: listening on %s\n", serve->name, text);
        if (i == 0)
            memcpy(first, text, sizeof first);
    }
    printf("%s: back end %s (%s), pollers %llu, workers %llu\n", serve->name, backend, why,
           (unsigned long long)stats.pollers_set, (unsigned long long)stats.workers_set);
    printf("%s: try  %s\n", serve->name, serve->try_it(first, line, sizeof line));
    fflush(stdout);
}

/* In one call: lines of others do not come between. */
static void say_stats(const struct serve *serve, weir_runtime *runtime)
{
    static char text[16384];
    int length = weir_stats_format(runtime, WEIR_STATS_TEXT, text, sizeof text);
    if (length > 0 && (size_t)length < sizeof text)
        fprintf(stderr, "%s: statistics:\n%s\n", serve->name, text);
}

/* Let work finish until the deadline or another signal. How many connections were given up. */
static unsigned long long drain(const struct serve *serve, weir_runtime *runtime,
                                const sigset_t *signals)
{
    static const struct timespec none;
    weir_time deadline = weir_after_ms(serve->drain_ms);
    int r = -ETIME;
    do {
        /* In slices, because a second signal must not wait for the deadline. */
        weir_time slice = weir_after_ms(20);
        r = weir_runtime_drain(runtime, slice < deadline ? slice : deadline);
    } while (r == -ETIME && weir_now() < deadline && sigtimedwait(signals, NULL, &none) < 0);
    weir_stats stats = { .size = sizeof stats };
    weir_stats_get(runtime, &stats);
    return r == 0 ? 0 : stats.sources > 0 ? stats.sources : 1;
}

int serve_run(struct serve *serve)
{
    /* Blocked before any thread starts, so that only sigwait() below sees them. A peer that is
     * gone must not end us by way of a pipe on stdout either. */
    sigset_t signals, questions;
    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGINT);
    questions = signals;
    sigaddset(&questions, SIGUSR1);
    sigprocmask(SIG_BLOCK, &questions, NULL);
    signal(SIGPIPE, SIG_IGN);

    weir_options options = WEIR_OPTIONS_INIT;
    options.log = log_line;
    options.log_context = serve;
    options.thread_stop = serve->thread_stop;
    weir_runtime *runtime;
    int r = weir_runtime_create(&runtime, &options);
    if (r < 0) {
        fprintf(stderr, "%s: cannot start: %s\n", serve->name, strerror(-r));
        return 1;
    }
    weir_listener *listeners[SERVE_ADDRESSES_MAX];
    if (listen_all(serve, runtime, listeners) < 0) {
        weir_runtime_destroy(runtime);
        return 1;
    }
    if (!serve->quiet)
        say_hello(serve, runtime, listeners);

    int number;
    while (sigwait(&questions, &number) != 0 || number == SIGUSR1)
        say_stats(serve, runtime);
    atomic_store_explicit(&serve_stopping, true, memory_order_relaxed);
    if (!serve->quiet)
        fprintf(stderr, "%s: ending, %u.%u s at most; once more to end at once\n", serve->name,
                serve->drain_ms / 1000, serve->drain_ms / 100 % 10);
    if (serve->stop)
        serve->stop(false);
    unsigned long long given_up = drain(serve, runtime, &signals);
    if (given_up > 0)
        fprintf(stderr, "%s: gave up %llu connection%s\n", serve->name, given_up,
                given_up > 1 ? "s" : "");
    if (serve->stop)
        serve->stop(true);
    if (serve->stats)
        say_stats(serve, runtime);
    weir_runtime_destroy(runtime);
    return given_up > 0;
}
