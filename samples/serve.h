/* serve.h: what every sample server does besides serving: arguments, listening, saying where,
 * and ending well when it is told to. */
#ifndef SERVE_H
#define SERVE_H

#include <stdatomic.h>
#include <stdbool.h>

#include <weir/weir.h>

enum { SERVE_ADDRESSES_MAX = 16 };

struct serve {
    /* Set by the sample. */
    const char *name;               /* of the program */
    const char *about;              /* one sentence for --help */
    /* A command line to try it, in `buffer`. */
    const char *(*try_it)(const char *address, char *buffer, size_t size);
    weir_accept_fn *on_accept;
    weir_listen_options listen;
    const char *default_port;
    void (*stop)(bool now);         /* NULL, or called to end what the library does not know of */
    void (*thread_stop)(const char *name, void *context);   /* as in weir_options */
    /* Set by arguments. */
    const char *addresses[SERVE_ADDRESSES_MAX];
    unsigned address_count;
    unsigned drain_ms;
    bool quiet;
    bool stats;                     /* say the runtime's counters at the end, too */
};

/** Set while the server ends: connections should be closed when their present work is done. */
extern atomic_bool serve_stopping;

/**
 * Run until SIGTERM or SIGINT: the whole life of the program. SIGUSR1: the runtime's counters go to
 * stderr, a line each, an empty line behind them.
 * @return its exit code: 0 all work was finished; 1 it could not start, or some work was given up.
 */
int serve_run(struct serve *serve);

#endif
