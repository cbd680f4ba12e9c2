/* source.c: the moves of the event word; the protocol stands in source.h. */
#include "dispatch/source.h"

#include <errno.h>

#include "base/assert.h"
#include "dispatch/dispatch.h"
#include "dispatch/hub.h"
#include "dispatch/receive.h"

#define READY_BITS (WR_IN | WR_OUT)
#define TURN_BITS (READY_BITS | WR_HUP)

_Static_assert((int)WR_IN == (int)WR_POLL_IN && (int)WR_OUT == (int)WR_POLL_OUT &&
                   (int)WR_HUP == (int)WR_POLL_HUP && (int)WR_ERROR == (int)WR_POLL_ERROR,
               "the bits of a back end are the bits of the word");

static _Thread_local struct wr_source *current;

struct wr_source *wr_source_current(void)
{
    return current;
}

uint64_t wr_source_token(const struct wr_source *source)
{
    uint64_t word = atomic_load_explicit(&source->word, memory_order_relaxed);
    return (word >> WR_GENERATION_SHIFT) << WR_GENERATION_SHIFT | source->slot;
}

uint32_t wr_source_flags(struct wr_source *source)
{
    /* acquire: pairs with the release moves of other threads, in attach above all */
    return (uint32_t)atomic_load_explicit(&source->word, memory_order_acquire);
}

/* Does the word ask for a turn? */
static bool wants_turn(uint64_t word)
{
    return word & (WR_CTL | WR_TIMER) || ((word >> WR_WANT_SHIFT) & word & TURN_BITS);
}

void wr_source_wake(struct wr_source *source, uint32_t bit)
{
    _Atomic uint32_t *wake = &source->wake[bit == WR_OUT];
    /* release: pairs with the acquire load of the futex word by the waiter */
    atomic_fetch_add_explicit(wake, 1, memory_order_release);
    wr_dispatch_wake(source->poller->runtime, wake);
}

bool wr_source_event(struct wr_poller *poller, uint64_t token, uint32_t bits,
                     struct wr_source **ret_source)
{
    struct wr_source *source = wr_slots_at(&poller->runtime->slots, (uint32_t)token);
    uint64_t word = source ? atomic_load_explicit(&source->word, memory_order_relaxed) : 0, next;

    do {
        if (!source || word >> WR_GENERATION_SHIFT != token >> WR_GENERATION_SHIFT) {
            wr_poller_count(&poller->stale_drops, 1);
            return false;
        }
        next = (word | bits) & ~((uint64_t)(bits & READY_BITS) << WR_WAIT_SHIFT);
        if (wants_turn(next))
            next |= WR_LINKED;
        /* acq_rel: pairs with every other move of the word (source.h): the release shows the edge
         * to take, want and wait; the acquire sees the waiter's and the last turn's stores */
    } while (!atomic_compare_exchange_weak_explicit(&source->word, &word, next,
                                                    memory_order_acq_rel, memory_order_relaxed));

    uint64_t waiting = (word >> WR_WAIT_SHIFT) & bits & READY_BITS;
    for (uint32_t bit = WR_IN; waiting && bit <= WR_OUT; bit <<= 1) {
        if (waiting & bit) {
            wr_poller_count(&poller->sync_wakes, 1);
            wr_source_wake(source, bit);
        }
    }
    *ret_source = source;
    return !(word & WR_LINKED) && next & WR_LINKED;
}

/* The last act of a turn. */
static void finish(struct wr_source *source)
{
    uint64_t word = atomic_load_explicit(&source->word, memory_order_relaxed), next;

    do {
        WR_ASSERT(word & WR_LINKED);
        next = wants_turn(word) ? word : word & ~(uint64_t)WR_LINKED;
        /* acq_rel: pairs with the acquire in take() of the next turn, wherever it runs, and with
         * the release of event, want and schedule, whose bits this must see */
    } while (!atomic_compare_exchange_weak_explicit(&source->word, &word, next,
                                                    memory_order_acq_rel, memory_order_relaxed));
    if (next & WR_LINKED) /* to the back of the queue: others get their turn first (D6) */
        wr_dispatch_post_turn(source->poller->runtime, source);
}

/* The first act of a turn. Readiness that no asynchronous operation wants stays: a thread that is
 * between its clear and its wait relies on it. HUP stays, so what is taken is the want of it.
 * Returns HUP, ERROR and what was taken. */
static uint64_t take(struct wr_source *source)
{
    uint64_t word = atomic_load_explicit(&source->word, memory_order_relaxed), mine, heard;

    do {
        WR_ASSERT(word & WR_LINKED);
        mine = word & (WR_CTL | WR_TIMER | ((word >> WR_WANT_SHIFT) & READY_BITS));
        heard = (word & WR_HUP) << WR_WANT_SHIFT;
        /* acq_rel: pairs with finish() of the turn before and with the release of whoever linked */
    } while (!atomic_compare_exchange_weak_explicit(&source->word, &word, word & ~(mine | heard),
                                                    memory_order_acq_rel, memory_order_relaxed));
    return mine | (word & (WR_HUP | WR_ERROR));
}

void wr_source_run(struct wr_source *source)
{
    struct wr_source *outer = current;
    weir_runtime *runtime = source->poller->runtime;
    uint64_t taken = take(source);

    wr_shard_add(runtime, WR_SHARD_TURNS, 1);
    wr_pool_note(source->fd);
    current = source;
    enum wr_turn turn = runtime->turn[source->kind](source, (uint32_t)taken);
    current = outer;
    if (turn == WR_TURN_DONE)
        finish(source);
}

/* Sets `add`, and LINKED where that asks for a turn; posts the turn if this linked it. */
static void set_and_link(struct wr_source *source, uint64_t add)
{
    uint64_t word = atomic_load_explicit(&source->word, memory_order_relaxed), next;

    do {
        next = word | add;
        if (wants_turn(next))
            next |= WR_LINKED;
        /* acq_rel: pairs with take() and finish(): either the turn that runs sees the bits when it
         * finishes, or this sees LINKED off and what that turn wrote */
    } while (!atomic_compare_exchange_weak_explicit(&source->word, &word, next,
                                                    memory_order_acq_rel, memory_order_relaxed));
    if (!(word & WR_LINKED) && next & WR_LINKED)
        wr_dispatch_post_turn(source->poller->runtime, source);
}

void wr_source_schedule(struct wr_source *source, uint32_t flags)
{
    set_and_link(source, flags);
}

void wr_source_want(struct wr_source *source, uint32_t bits)
{
    set_and_link(source, (uint64_t)bits << WR_WANT_SHIFT);
}

void wr_source_unwant(struct wr_source *source, uint32_t bits)
{
    atomic_fetch_and_explicit(&source->word, ~((uint64_t)bits << WR_WANT_SHIFT),
                              memory_order_relaxed);
}

void wr_source_clear(struct wr_source *source, uint32_t bits)
{
    /* The try that follows must not move before this: acquire, pairs with the release in event:
     * what came with an edge that this erases is seen by the try. */
    atomic_fetch_and_explicit(&source->word, ~(uint64_t)bits, memory_order_acq_rel);
}

bool wr_source_wait(struct wr_source *source, uint32_t bit)
{
    uint64_t word = atomic_load_explicit(&source->word, memory_order_relaxed);

    do {
        if (word & bit)
            return false;
        /* acq_rel: pairs with event: the poller's move comes before (then this fails) or after
         * (then it finds WAIT and wakes) */
    } while (!atomic_compare_exchange_weak_explicit(&source->word, &word,
                                                    word | (uint64_t)bit << WR_WAIT_SHIFT,
                                                    memory_order_acq_rel, memory_order_relaxed));
    return true;
}

void wr_source_unwait(struct wr_source *source, uint32_t bit)
{
    atomic_fetch_and_explicit(&source->word, ~((uint64_t)bit << WR_WAIT_SHIFT),
                              memory_order_relaxed);
}

bool wr_source_pin(struct wr_source *source)
{
    uint32_t refs = atomic_load_explicit(&source->refs, memory_order_relaxed);

    do {
        if (refs == 0)
            return false;
        /* acquire: pairs with the release store in wr_source_open(): the owner is made */
    } while (!atomic_compare_exchange_weak_explicit(&source->refs, &refs, refs + 1,
                                                    memory_order_acquire, memory_order_relaxed));
    return true;
}

bool wr_source_unpin_own(struct wr_source *source)
{
    /* acq_rel: pairs with the same move of every other pin: the last one sees what all others did
     */
    return atomic_fetch_sub_explicit(&source->refs, 1, memory_order_acq_rel) == 1;
}

void wr_source_unpin(struct wr_source *source)
{
    /* The turn that ended the source left it LINKED: nobody else can link it, so that it is in no
     * queue. */
    weir_runtime *runtime = source->poller->runtime;
    if (wr_source_unpin_own(source))
        wr_dispatch_post_turn(runtime, source);
}

int wr_source_open(weir_runtime *runtime, int fd, unsigned kind, struct wr_source **ret_source)
{
    WR_ASSERT(kind < WR_KINDS);
    if (wr_dispatch_stopping(runtime))
        return -ESHUTDOWN;
    struct wr_source *source;
    int r = wr_slots_take(&runtime->slots, &source);
    if (r < 0)
        return r;
    /* Once more, now that it counts: destroy has seen the count and waits, or this sees destroy.
     * seq_cst: pairs with the store in destroy; the count moves before, and is looked at after. */
    if (atomic_load_explicit(&runtime->stopping, memory_order_seq_cst)) {
        wr_slots_give(&runtime->slots, source);
        return -ESHUTDOWN;
    }

    struct wr_poller *best = &runtime->pollers[source->slot % runtime->poller_count];
    for (unsigned i = 0; i < runtime->poller_count; i++) {
        struct wr_poller *poller = &runtime->pollers[i];
        if (atomic_load_explicit(&poller->live, memory_order_relaxed) <
            atomic_load_explicit(&best->live, memory_order_relaxed))
            best = poller;
    }
    atomic_fetch_add_explicit(&best->live, 1, memory_order_relaxed);
    source->fd = fd;
    source->poller = best;
    source->kind = (uint8_t)kind;
    /* release: pairs with the acquire in wr_source_pin() */
    atomic_store_explicit(&source->refs, 1, memory_order_release);
    *ret_source = source;
    return 0;
}

int wr_source_attach(struct wr_source *source, enum wr_poll_mode mode)
{
    struct wr_poller *poller = source->poller;
    uint64_t token = wr_source_token(source);
    bool receive = mode == WR_POLL_RECEIVE || mode == WR_POLL_RECEIVE_LATER;
    int r;

    if (receive && poller->runtime->inbound_offset)
        r = poller->ops->attach_receive(poller->backend, source->fd, token, mode,
                                        wr_source_inbound_place(source));
    else
        r = poller->ops->attach(poller->backend, source->fd, token,
                                receive ? WR_POLL_EDGE : mode);

    /* release: pairs with the acquire in wr_source_flags(): who sees LIVE sees the whole object */
    if (r == 0)
        atomic_fetch_or_explicit(&source->word, WR_LIVE, memory_order_release);
    return r;
}

int wr_source_rearm(struct wr_source *source, uint32_t bits)
{
    struct wr_poller *poller = source->poller;
    return poller->ops->rearm(poller->backend, source->fd, wr_source_token(source), bits);
}

void wr_source_detach(struct wr_source *source)
{
    source->poller->ops->detach(source->poller->backend, source->fd, wr_source_token(source));
}

/* The own pin of a source that never came to be watched. Who pins it meanwhile has mistaken it for
 * its slot's last owner, and is gone in a few instructions. */
static void drop_unused(struct wr_source *source)
{
    uint32_t refs = atomic_load_explicit(&source->refs, memory_order_relaxed);

    /* acq_rel: pairs with the same move in wr_source_unpin_own() */
    while (refs > 0 &&
           (refs > 1 || !atomic_compare_exchange_weak_explicit(
                            &source->refs, &refs, 0, memory_order_acq_rel, memory_order_relaxed))) {
        wr_cpu_relax();
        refs = atomic_load_explicit(&source->refs, memory_order_relaxed);
    }
}

void wr_source_release(struct wr_source *source)
{
    struct wr_poller *poller = source->poller;

    drop_unused(source);
    atomic_fetch_sub_explicit(&poller->live, 1, memory_order_relaxed);
    wr_slots_give(&poller->runtime->slots, source);
}
