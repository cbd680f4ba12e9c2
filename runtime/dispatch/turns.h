/* turns.h: the turns that sources get otherwise than by an event: asked for by callers, by
 * deadlines, and by turns that are not done.
 *
 * A source queues by one link of its own, so that it needs no work item: an idle one is the
 * smaller for it. One pump of the pool (work/pump.h) drains the queue. The ready queue of a poller
 * would not do, which has one producer and must never make it wait for another.
 *
 *   post   any thread that set LINKED: push, kick. LINKED keeps a source from being here twice, or
 *          here and in a ready queue. Never blocks, never fails, allocates nothing.
 *   pop    a copy of the pump: one source, whose turn it runs; "uncertain" of the queue is looked
 *          at again, so that "empty" is true when it is said, as the pump demands. */
#ifndef WR_DISPATCH_TURNS_H
#define WR_DISPATCH_TURNS_H

#include <weir/base.h>

#include "base/cpu_relax.h"
#include "queue/inject.h"
#include "work/pump.h"

struct wr_source;

struct wr_turns {
    struct wr_inject *queue;
    weir_runtime *runtime;
    WR_ALIGN_LINE struct wr_pump pump;
};

/* 0 or -ENOMEM; on failure wr_turns_fini() is called all the same. */
int wr_turns_init(struct wr_turns *turns, weir_runtime *runtime, weir_time slice_ns);
void wr_turns_fini(struct wr_turns *turns);
void wr_turns_post(struct wr_turns *turns, struct wr_source *source);

#endif
