/* shard.h: what many threads add to and hardly anybody reads: counters, and who is inside a call.
 *
 * Each thread adds on a line that it does not share: a worker has one to itself (claimed at its
 * start, given back at its end) and needs no locked add; any other thread has one by its number,
 * shared with few. Who reads sums over all. One thread's adds to one value all go to one shard,
 * so that up and down of the same thread meet on it.
 *
 *   claim    a worker, at its start    a bit of `claimed` 0 -> 1 (acquire), when one is free
 *   give     that worker, at its end   the bit 1 -> 0 (release): the next owner goes on from there
 *   add      any thread                its own: load, store; else: an atomic add
 *   enter    any thread, on its way into a call that may outlive destroy's look: INSIDE + 1
 *   leave    the same thread, last of all: INSIDE - 1 (release); touches nothing behind it
 *   left     destroy                   shard by shard until INSIDE is 0 (acquire)
 *
 * Why one look at each shard is enough: every enter happens before destroy begins to look (it came
 * while the socket was open, under a lock that closing took later; or the caller vouches for the
 * runtime). A thread that is inside keeps its own shard above 0 until it leaves, whatever calls it
 * makes meanwhile; so a shard once seen at 0 stays there. */
#ifndef WR_DISPATCH_SHARD_H
#define WR_DISPATCH_SHARD_H

#include <stdatomic.h>
#include <stdint.h>

#include <weir/base.h>

#include "base/alloc.h"
#include "base/cpu_relax.h"

/* One cache line of values. The layers above have names for those from ABOVE on. */
enum { WR_SHARD_TURNS, WR_SHARD_INSIDE, WR_SHARD_ABOVE, WR_SHARD_VALUES = 8 };

#define WR_SHARDS_OWN 64    /* workers that have one to themselves */
#define WR_SHARDS_SHARED 16 /* a power of two */

struct wr_shard {
    WR_ALIGN_LINE _Atomic uint64_t value[WR_SHARD_VALUES];
};

struct wr_shards {
    _Atomic uint64_t claimed;
    struct wr_shard shard[WR_SHARDS_OWN + WR_SHARDS_SHARED];
};

/* 0 or -ENOMEM; into runtime->shards. */
int wr_shards_init(weir_runtime *runtime);
void wr_shards_fini(weir_runtime *runtime);
/* A thread of the runtime that will add often. None is left: it shares one. */
void wr_shard_claim(weir_runtime *runtime);
void wr_shard_give(weir_runtime *runtime);
void wr_shard_add(weir_runtime *runtime, unsigned value, uint64_t add);
uint64_t wr_shard_sum(weir_runtime *runtime, unsigned value);

#endif
