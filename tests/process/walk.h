/* walk.h: a walk over the whole interface, during which something may run out at any step.
 *
 * A step that fails is made again, once for each thing that ran out since the last such excuse: the
 * next call works. */
#ifndef WEIR_TESTS_PROCESS_WALK_H
#define WEIR_TESTS_PROCESS_WALK_H

#include "support/rig.h"
#include "support/scarce.h"

struct walk {
    const char *name; /* what runs out, for messages */
    unsigned k;       /* the how manieth use of it */
    struct scarce_memory memory;
    unsigned (*failed)(struct walk *walk); /* how often something ran out so far */
    unsigned excused;
    weir_runtime *runtime;
    struct support_held before;
    _Atomic unsigned ran; /* callbacks of jobs, timers, watches */
    int file;
};

/* Fails the test when a step fails without excuse, never ends, or leaves something behind. */
void walk_run(struct walk *walk);
void walk_options(struct walk *walk, weir_options *ret_options);
/* After everything was destroyed. */
void walk_expect_nothing_left(struct walk *walk);

#endif
