/* inline.h: callbacks on the thread that polled (WEIR_INLINE=1). The protocol stands on top of
 * inline.c. */
#ifndef WR_DISPATCH_INLINE_H
#define WR_DISPATCH_INLINE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include <weir/base.h>

struct wr_poller;
struct wr_source;

/* What the thread that polled runs itself of one batch: so many sources, and no further one once
 * so much time has passed. */
#define WR_INLINE_MAX 16
#define WR_INLINE_NS 200000

/* Runs sources of the poller's ready queue, up to the budget; kicks the pump for what is left. On a
 * worker that has given the lease back, inside an item; or on the poller's own thread. */
void wr_inline_run(struct wr_poller *poller);
/* Something is ready: workers are to see to it, as the caller may be long in coming. Any thread. */
void wr_inline_spill(struct wr_poller *poller);

/* The body of a dedicated poller whose callbacks are inline. */
void wr_inline_loop(struct wr_poller *poller);
/* See hub.h: wr_dispatch_sleep() on the poller's own thread. False: the caller is none. */
bool wr_inline_sleep(weir_runtime *runtime, _Atomic uint32_t *word, uint32_t seen,
                     weir_time deadline, int *ret_result);
/* After a change of what somebody may wait for in there. Any thread. */
void wr_inline_wake(weir_runtime *runtime);
/* The calling thread is the one that alone may enter the ring in which `source` is watched: it
 * cannot wait for the ring to let go of it. */
bool wr_inline_owns(const struct wr_source *source);

#endif
