/* poller_thread.c: the body of a dedicated poller's thread (WEIR_POLL=dedicated): it waits,
 * delivers, and watches over the pool when it was asked to; with inline callbacks it goes round in
 * wr_inline_loop(), and the watchdog watches. Under the lease the body is
 * wr_guard_main(), in lease.c. */
#include "dispatch/dispatch.h"
#include "dispatch/harvest.h"
#include "dispatch/inline.h"

void *wr_poller_main(void *argument)
{
    struct wr_poller *poller = argument;
    weir_runtime *runtime = poller->runtime;

    if (runtime->inline_dedicated)
        wr_shard_claim(runtime);
    if (runtime->thread_start)
        runtime->thread_start(poller->thread.name, runtime->thread_context);
    if (runtime->inline_dedicated)
        wr_inline_loop(poller);
    /* acquire: pairs with the release store in wr_dispatch_stop() */
    while (!atomic_load_explicit(&poller->stop, memory_order_acquire)) {
        weir_time until = wr_harvest_watch(poller);
        wr_harvest_deliver(poller, wr_harvest_wait(poller, until), NULL);
    }
    if (runtime->inline_dedicated && runtime->callbacks_end)
        runtime->callbacks_end();
    wr_shard_give(runtime);
    if (runtime->thread_stop)
        runtime->thread_stop(poller->thread.name, runtime->thread_context);
    return NULL;
}
