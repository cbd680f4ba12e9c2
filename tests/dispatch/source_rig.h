/* source_rig.h: a runtime made of glass for sources: one poller that is a function call, a pool
 * that runs one turn when told to. Nothing happens between two lines of a test. */
#ifndef WEIR_TESTS_DISPATCH_SOURCE_RIG_H
#define WEIR_TESTS_DISPATCH_SOURCE_RIG_H

#include <stdbool.h>
#include <stdint.h>

#include "dispatch/dispatch.h"

#define GLASS_SOURCES_MAX 70 /* a chunk, and a bit */

struct glass {
    weir_runtime runtime;
    struct wr_poller poller;
    struct wr_source *first, *last;
    unsigned posts; /* turns posted, ever */
    unsigned attached, detached;
};

extern struct glass glass;

/* What a turn does, and what it saw. */
struct probe {
    struct wr_source source; /* stands first */
    void (*act)(struct probe *probe, uint32_t flags);
    enum wr_turn answer;
    unsigned turns;
    uint32_t flags; /* given to the last turn */
    bool inside, overlapped;
    struct wr_source *current; /* wr_source_current() in the last turn */
    struct probe *other;
    bool told; /* what act() found out */
};

void glass_start(uint32_t sources_max);
void glass_end(void);
struct probe *glass_open(void);
unsigned glass_queued(void);
/* A worker: the oldest turn. False: there is none. */
bool glass_run(void);

/* The poller: an event of `source` as it is named now, or by `token`. True: it was pushed. */
bool glass_event(struct wr_source *source, uint32_t bits);
bool glass_event_named(uint64_t token, uint32_t bits);
/* A worker that popped it from the ready queue. */
void glass_pop(struct probe *probe);

#define FLAGS(probe) (wr_source_flags(&(probe)->source))

#endif
