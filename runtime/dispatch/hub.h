/* hub.h: what timers need of the runtime they belong to. Implemented by dispatch.c; tests give
 * their own. */
#ifndef WR_DISPATCH_HUB_H
#define WR_DISPATCH_HUB_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include <weir/base.h>

#include "dispatch/timer.h"
#include "work/pool.h"

/* All of them: any thread, never blocking, from the runtime's creation until its memory is given
 * back. */
struct wr_timers *wr_dispatch_timers(weir_runtime *runtime, uint32_t shard);
void wr_dispatch_doorbell(weir_runtime *runtime, uint32_t shard);
/* A poller index for the calling thread; cheap. */
uint32_t wr_dispatch_shard(weir_runtime *runtime);
struct wr_pool *wr_dispatch_pool(weir_runtime *runtime);
/* Sleeps, announced as a block, until `*word` is no longer `seen`, or the deadline; may return for
 * nothing. A poller's own thread goes on polling meanwhile. Blocks. 0 or -ETIMEDOUT. */
int wr_dispatch_sleep(weir_runtime *runtime, _Atomic uint32_t *word, uint32_t seen,
                      weir_time deadline);
/* After a change of the word: all that sleep for it. It may be gone: its address is a name. */
void wr_dispatch_wake(weir_runtime *runtime, _Atomic uint32_t *word);
/* Destroy has begun: nothing new is accepted. Once true, always true. */
bool wr_dispatch_stopping(const weir_runtime *runtime);

#endif
