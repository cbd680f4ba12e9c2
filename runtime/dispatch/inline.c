/* inline.c: callbacks on the thread that polled (WEIR_INLINE=1); modelled in
 * tests/model/inline.pml.
 *
 * All that a batch made ready goes on the ready queue, as ever, and every sleeping call of the
 * batch has been woken by then. What is different: the pump is not kicked for it. The thread that
 * harvested pops from the queue itself, up to a budget, and kicks
 *   before its first callback   when the queue holds more than the budget
 *   when it is done             when the budget or the time is used up and something is left
 * So what it has not begun is in nobody's hands: any worker that comes by may pop it. What is left
 * to say is who comes by when a callback does not return and has not announced it (D1):
 *
 * Lease. The lease has been given back before the first callback. Pushes are made under the lease
 * alone, so that the next holder sees them all: it looks at the queue before it waits, and does not
 * sleep while something is there; a block that is announced makes sure that there is one, as ever.
 * Nobody takes the lease: the guarantor, which looks every tick while the lease is FREE, kicks at
 * the look at which it acts.
 *
 * Dedicated. The poller's own thread is the guest of the pool (work/guest.c). While it is in a
 * callback nobody waits for events at this poller: that is what the mode gives up. For what has
 * been harvested the guest kicks when the callback announces a block, and else the watchdog
 * (watchdog.c), which names the callback, too.
 *
 * Waiting calls on a dedicated poller's thread. A callback that waits for a socket of its own
 * poller would wait for ever. So the thread goes on polling while it waits (wr_inline_sleep):
 * harvests, wakes, pushes, kicks; callbacks are then for the workers, as they never nest. Who lets
 * it go changes a word and cannot know where the sleeper is:
 *   sleeper   napping <- 1; look at the word; wait for events; look again ...
 *   waker     change the word; look at napping, by a read-modify-write; 1: ring the doorbell
 * Both moves of `napping` are RMWs of one word: the waker's comes behind the sleeper's and sees 1,
 * or before it, and then the sleeper's look at the word sees the change. */
#include "dispatch/inline.h"

#include <errno.h>

#include "base/assert.h"
#include "dispatch/dispatch.h"
#include "dispatch/harvest.h"
#include "dispatch/watchdog.h"
#include "os/clock.h"

/* The poller whose own thread this is. */
static _Thread_local struct wr_poller *own;

void wr_inline_spill(struct wr_poller *poller)
{
    if (wr_ready_size(poller->ready) > 0)
        wr_pump_kick(&poller->pump);
}

void wr_inline_run(struct wr_poller *poller)
{
    weir_time start = 0;
    unsigned turns = 0;
    bool more = true; /* is left for others; who pushes later comes himself */
    void *source;

    size_t size = wr_ready_size(poller->ready);
    if (size > WR_INLINE_MAX)
        wr_pump_kick(&poller->pump);
    if (size > 1)
        start = wr_clock_now();
    while (turns < WR_INLINE_MAX && (more = wr_ready_pop(poller->ready, &source))) {
        if (turns++ > 0)
            wr_pool_item_next((uintptr_t)wr_source_run);
        wr_source_run(source);
        more = wr_ready_size(poller->ready) > 0;
        if (!more || wr_clock_now() - start >= WR_INLINE_NS)
            break;
    }
    atomic_fetch_add_explicit(&poller->inline_turns, turns, memory_order_relaxed);
    if (more)
        wr_inline_spill(poller);
}

void wr_inline_loop(struct wr_poller *poller)
{
    own = poller;
    wr_pool_guest_here(poller->guest);
    /* acquire: pairs with the release store in wr_dispatch_stop() */
    while (!atomic_load_explicit(&poller->stop, memory_order_acquire)) {
        int count = wr_harvest_wait(poller, WEIR_NEVER);
        if (wr_harvest_collect(poller, count, NULL) == 0)
            continue;
        wr_watchdog_enter(poller);
        wr_pool_item_begin((uintptr_t)wr_source_run);
        wr_inline_run(poller);
        wr_pool_item_end();
        wr_watchdog_leave(poller);
    }
    wr_pool_guest_here(NULL);
    own = NULL;
}

bool wr_inline_sleep(weir_runtime *runtime, _Atomic uint32_t *word, uint32_t seen,
                     weir_time deadline, int *ret_result)
{
    struct wr_poller *poller = own;

    if (!poller || poller->runtime != runtime)
        return false;
    *ret_result = 0;
    wr_pool_blocking_begin();
    wr_watchdog_leave(poller);
    /* acq_rel: pairs with the same move in wr_inline_wake() */
    atomic_fetch_or_explicit(&poller->napping, 1, memory_order_acq_rel);
    /* acquire: pairs with the release of whoever changes the word */
    while (atomic_load_explicit(word, memory_order_acquire) == seen) {
        if (deadline != WEIR_NEVER && wr_clock_now() >= deadline) {
            *ret_result = -ETIMEDOUT;
            break;
        }
        wr_harvest_deliver(poller, wr_harvest_wait(poller, deadline), NULL);
    }
    atomic_fetch_and_explicit(&poller->napping, 0, memory_order_relaxed);
    wr_watchdog_enter(poller);
    wr_pool_blocking_end();
    return true;
}

void wr_inline_wake(weir_runtime *runtime)
{
    if (!runtime->inline_dedicated)
        return;
    for (unsigned i = 0; i < runtime->poller_count; i++) {
        struct wr_poller *poller = &runtime->pollers[i];
        /* acq_rel: pairs with the same move in wr_inline_sleep() */
        if (poller != own &&
            atomic_fetch_or_explicit(&poller->napping, 0, memory_order_acq_rel) != 0)
            wr_poller_doorbell(poller);
    }
}

bool wr_inline_owns(const struct wr_source *source)
{
    return own && own == source->poller && own->ops->owner_waits;
}
