/* shard.c: see shard.h. All values are relaxed, but INSIDE on its way down. */
#include "dispatch/shard.h"

#include <errno.h>

#include "base/assert.h"
#include "dispatch/dispatch.h"
#include "os/clock.h"
#include "os/futex.h"
#include "os/thread.h"

/* Threads that leave have a few instructions to go. */
#define LEAVE_LOOK_NS 200000

/* A worker may add to another runtime's values as well: hence of whom its shard is. */
static _Thread_local struct {
    weir_runtime *runtime;
    struct wr_shard *shard;
} own;

int wr_shards_init(weir_runtime *runtime)
{
    runtime->shards = wr_alloc_lines(&runtime->alloc, sizeof *runtime->shards);
    return runtime->shards ? 0 : -ENOMEM;
}

void wr_shards_fini(weir_runtime *runtime)
{
    wr_alloc_release_lines(&runtime->alloc, runtime->shards, sizeof *runtime->shards);
    runtime->shards = NULL;
}

void wr_shard_claim(weir_runtime *runtime)
{
    _Atomic uint64_t *claimed = &runtime->shards->claimed;
    uint64_t taken = atomic_load_explicit(claimed, memory_order_relaxed), bit;

    WR_ASSERT(!own.runtime);
    do {
        bit = ~taken & (taken + 1); /* the lowest that is free; 0: none is */
        if (bit == 0)
            return;
        /* acquire: pairs with the release in wr_shard_give(): what the last owner added is seen */
    } while (!atomic_compare_exchange_weak_explicit(claimed, &taken, taken | bit,
                                                    memory_order_acquire, memory_order_relaxed));
    own.runtime = runtime;
    own.shard = &runtime->shards->shard[__builtin_ctzll(bit)];
}

void wr_shard_give(weir_runtime *runtime)
{
    if (own.runtime != runtime)
        return;
    uint64_t bit = (uint64_t)1 << (own.shard - runtime->shards->shard);
    own.runtime = NULL;
    own.shard = NULL;
    /* release: pairs with the acquire in wr_shard_claim() */
    atomic_fetch_and_explicit(&runtime->shards->claimed, ~bit, memory_order_release);
}

static _Atomic uint64_t *shared(weir_runtime *runtime, unsigned value)
{
    unsigned index = (unsigned)wr_thread_id() % WR_SHARDS_SHARED;
    return &runtime->shards->shard[WR_SHARDS_OWN + index].value[value];
}

void wr_shard_add(weir_runtime *runtime, unsigned value, uint64_t add)
{
    if (own.runtime != runtime) {
        atomic_fetch_add_explicit(shared(runtime, value), add, memory_order_relaxed);
        return;
    }
    _Atomic uint64_t *mine = &own.shard->value[value];
    atomic_store_explicit(mine, atomic_load_explicit(mine, memory_order_relaxed) + add,
                          memory_order_relaxed);
}

uint64_t wr_shard_sum(weir_runtime *runtime, unsigned value)
{
    uint64_t sum = 0;

    for (unsigned i = 0; i < WR_SHARDS_OWN + WR_SHARDS_SHARED; i++)
        sum += atomic_load_explicit(&runtime->shards->shard[i].value[value], memory_order_relaxed);
    return sum;
}

void wr_dispatch_enter(weir_runtime *runtime)
{
    wr_shard_add(runtime, WR_SHARD_INSIDE, 1);
}

void wr_dispatch_leave(weir_runtime *runtime)
{
    if (own.runtime != runtime) {
        /* release: pairs with the acquire load in wr_dispatch_wait_left(). The memory may be gone
         * right behind this, so that nobody is woken: destroy looks. */
        atomic_fetch_sub_explicit(shared(runtime, WR_SHARD_INSIDE), 1, memory_order_release);
        return;
    }
    _Atomic uint64_t *mine = &own.shard->value[WR_SHARD_INSIDE];
    /* release: pairs as above */
    atomic_store_explicit(mine, atomic_load_explicit(mine, memory_order_relaxed) - 1,
                          memory_order_release);
}

void wr_dispatch_wait_left(weir_runtime *runtime)
{
    _Atomic uint32_t nobody_wakes = 0;

    for (unsigned i = 0; i < WR_SHARDS_OWN + WR_SHARDS_SHARED; i++)
        /* acquire: pairs with the release in wr_dispatch_leave() */
        while (atomic_load_explicit(&runtime->shards->shard[i].value[WR_SHARD_INSIDE],
                                    memory_order_acquire) > 0)
            wr_futex_wait(&nobody_wakes, 0, wr_clock_now() + LEAVE_LOOK_NS);
}
