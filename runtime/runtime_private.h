/* runtime_private.h: the runtime as runtime.c and stats.c see it. */
#ifndef WR_RUNTIME_PRIVATE_H
#define WR_RUNTIME_PRIVATE_H

#include "dispatch/dispatch.h"
#include "options.h"
#include "poll/backends.h"

struct wr_runtime {
    weir_runtime hub;               /* stands first: the public pointer */
    struct wr_options options;      /* in force */
    const char *backend;
    char why[WR_WHY_MAX];
};

#endif
