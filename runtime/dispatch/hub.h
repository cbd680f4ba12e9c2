/* hub.h: what timers need of the runtime they belong to. Implemented by dispatch.c; tests give
 * their own. */
#ifndef WR_DISPATCH_HUB_H
#define WR_DISPATCH_HUB_H

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
/* Destroy has begun: nothing new is accepted. Once true, always true. */
bool wr_dispatch_stopping(const weir_runtime *runtime);

#endif
