/* counters.c: counters that many threads write: each thread adds on a line of its own choosing, the
 * sum is made when somebody asks. */
#include <errno.h>

#include "net/net.h"

#define SHARDS 16

struct shard {
    WR_ALIGN_LINE _Atomic uint64_t value[WR_COUNTERS];
};

struct net {
    struct shard shards[SHARDS];
};

int wr_net_init(weir_runtime *runtime)
{
    runtime->net = wr_alloc_lines(&runtime->alloc, sizeof(struct net));
    for (int kind = WR_STREAM; kind <= WR_LISTENER; kind++)
        runtime->turn[kind] = wr_socket_turn;
    return runtime->net ? 0 : -ENOMEM;
}

void wr_net_fini(weir_runtime *runtime)
{
    wr_alloc_release_lines(&runtime->alloc, runtime->net, sizeof(struct net));
    runtime->net = NULL;
}

void wr_count(weir_runtime *runtime, enum wr_counter counter, uint64_t add)
{
    struct net *net = runtime->net;
    struct shard *shard = &net->shards[(unsigned)wr_thread_id() % SHARDS];
    atomic_fetch_add_explicit(&shard->value[counter], add, memory_order_relaxed);
}

uint64_t wr_counted(weir_runtime *runtime, enum wr_counter counter)
{
    struct net *net = runtime->net;
    uint64_t sum = 0;

    for (unsigned i = 0; i < SHARDS; i++)
        sum += atomic_load_explicit(&net->shards[i].value[counter], memory_order_relaxed);
    return sum;
}

uint64_t wr_counted_waiting(weir_runtime *runtime)
{
    /* In this order: what is freed between the two was kept before. */
    uint64_t freed = wr_counted(runtime, WR_COUNT_FREED);
    uint64_t kept = wr_counted(runtime, WR_COUNT_KEPT);
    return kept > freed ? kept - freed : 0;
}
