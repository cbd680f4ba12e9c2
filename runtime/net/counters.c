/* counters.c: counters of bytes and accepts, on the threads' shards (dispatch/shard.h). */
#include "net/net.h"

_Static_assert((int)WR_COUNTERS <= (int)WR_SHARD_VALUES, "each counter has a place");

void wr_count(weir_runtime *runtime, enum wr_counter counter, uint64_t add)
{
    wr_shard_add(runtime, counter, add);
}

uint64_t wr_counted(weir_runtime *runtime, enum wr_counter counter)
{
    return wr_shard_sum(runtime, counter);
}

uint64_t wr_counted_waiting(weir_runtime *runtime)
{
    /* In this order: what is freed between the two was kept before. */
    uint64_t freed = wr_counted(runtime, WR_COUNT_FREED);
    uint64_t kept = wr_counted(runtime, WR_COUNT_KEPT);
    return kept > freed ? kept - freed : 0;
}
