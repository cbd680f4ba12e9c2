/* args.h: the few kinds of arguments the samples take. */
#ifndef ARGS_H
#define ARGS_H

#include <stddef.h>

#include "serve.h"

enum arg_kind { ARG_SWITCH, ARG_SECONDS, ARG_BYTES };

/* An argument besides the common ones (--listen, --drain, --quiet, --help). */
struct arg {
    const char *name;       /* "--sync" */
    enum arg_kind kind;
    void *target;           /* bool *; unsigned * (milliseconds); uint64_t * */
    const char *help;
};

/**
 * Read the command line into `serve` and the targets of `args`.
 * @return -1 go on; else exit with this code (--help: 0, a mistake: 2; what is to be said was
 * said).
 */
int args_parse(struct serve *serve, const struct arg *args, size_t count, int argc, char **argv);

#endif
