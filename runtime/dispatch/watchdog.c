/* watchdog.c: one thread, there only when the threads of dedicated pollers run callbacks
 * (WEIR_INLINE=1): it sees to what they leave behind when a callback does not return, names that
 * callback, and ticks for the pool in the place of poller 0, which may be in one. Modelled in
 * tests/model/inline.pml.
 *
 * section   of a poller: odd while its thread runs callbacks. It alone counts it up.
 * word      ASLEEP: the watchdog has no deadline. CALLED: it is to look at once.
 *
 *   enter    poller     section + 1; ASLEEP: call
 *   leave    poller     section + 1
 *   call     any thread word | CALLED; wake
 *   look     watchdog   each section: odd, and as at the look before: kick for what is in the ready
 *                       queue; for so long that it is to be named: name it. Again after NEAR_NS
 *                       when some section is odd, else after FAR_NS
 *   sleep    watchdog   no section has changed for REST_NS, all are even, the pool is not watched:
 *                       word | ASLEEP; look at the sections again; as they were: sleep until called
 *
 * Why no stuck callback goes unseen: enter moves `section` and then looks at `word`, sleep moves
 * `word` and then looks at the sections, all four sequentially consistent, so that one of the two
 * sees the other. Why it costs nothing at rest: it sleeps; the load of `word` at enter is all that
 * is left. */
#include "dispatch/watchdog.h"

#include "base/assert.h"
#include "dispatch/dispatch.h"
#include "dispatch/harvest.h"
#include "dispatch/inline.h"
#include "os/clock.h"
#include "os/futex.h"

#define NEAR_NS 10000000
#define FAR_NS 50000000
#define REST_NS 300000000
/* A callback that stays is named again after the first of these, then after twice as long each
 * time, up to the second. */
#define NAME_AGAIN_NS 1000000000
#define NAME_AGAIN_MAX_NS 60000000000

#define ASLEEP 1u
#define CALLED 2u

struct rounds {
    weir_time changed_at;   /* when a section was last seen to have changed */
    weir_time name_at, name_gap;
    bool stuck;             /* some section is odd and as it was at the look before */
    bool inside;            /* some section is odd */
};

static bool stopping(struct wr_watchdog *watchdog)
{
    /* acquire: pairs with the release store in wr_watchdog_stop() */
    return atomic_load_explicit(&watchdog->stop, memory_order_acquire);
}

void wr_watchdog_call(struct wr_watchdog *watchdog)
{
    /* release: pairs with the acquire in rest(): what it is called for is seen by the look */
    if (!(atomic_fetch_or_explicit(&watchdog->word, CALLED, memory_order_release) & CALLED))
        wr_futex_wake(&watchdog->word, 1);
}

void wr_watchdog_enter(struct wr_poller *poller)
{
    struct wr_watchdog *watchdog = &poller->runtime->watchdog;
    uint32_t section = atomic_load_explicit(&poller->section, memory_order_relaxed);

    WR_ASSERT(!(section & 1));
    /* seq_cst, both: pair with the two in rest() */
    atomic_store_explicit(&poller->section, section + 1, memory_order_seq_cst);
    if (atomic_load_explicit(&watchdog->word, memory_order_seq_cst) & ASLEEP)
        wr_watchdog_call(watchdog);
}

void wr_watchdog_leave(struct wr_poller *poller)
{
    uint32_t section = atomic_load_explicit(&poller->section, memory_order_relaxed);

    WR_ASSERT(section & 1);
    atomic_store_explicit(&poller->section, section + 1, memory_order_relaxed);
}

/* One poller. */
static void look_at(struct rounds *rounds, struct wr_poller *poller, weir_time now)
{
    uint32_t section = atomic_load_explicit(&poller->section, memory_order_relaxed);

    if (section != poller->section_seen) {
        rounds->changed_at = now;
    } else if (section & 1) {
        rounds->stuck = true;
        wr_inline_spill(poller);
    }
    rounds->inside = rounds->inside || section & 1;
    poller->section_seen = section;
}

/* Callbacks that do not return, whoever runs them. */
static void name_stuck(struct rounds *rounds, weir_runtime *runtime, weir_time now)
{
    if (!rounds->stuck) {
        rounds->name_at = 0;
        return;
    }
    if (rounds->name_at == 0) { /* it is timed from the first call on */
        wr_pool_name_stuck(runtime->pool, now);
        rounds->name_at = now + WR_POOL_STUCK_NS;
        rounds->name_gap = NAME_AGAIN_NS;
    } else if (now >= rounds->name_at) {
        wr_pool_name_stuck(runtime->pool, now);
        rounds->name_at = now + rounds->name_gap;
        if (rounds->name_gap < NAME_AGAIN_MAX_NS)
            rounds->name_gap *= 2;
    }
}

static bool as_seen(weir_runtime *runtime)
{
    for (unsigned i = 0; i < runtime->poller_count; i++) {
        struct wr_poller *poller = &runtime->pollers[i];
        /* seq_cst: pairs with the store in wr_watchdog_enter() */
        uint32_t section = atomic_load_explicit(&poller->section, memory_order_seq_cst);
        if (section != poller->section_seen || section & 1)
            return false;
    }
    return true;
}

/* Until it is called, at most until `until`. */
static void rest(struct wr_watchdog *watchdog, weir_time until)
{
    weir_runtime *runtime = watchdog->runtime;
    uint32_t expected = 0;

    if (until == WEIR_NEVER) {
        /* seq_cst: pairs with the load in wr_watchdog_enter() */
        atomic_fetch_or_explicit(&watchdog->word, ASLEEP, memory_order_seq_cst);
        expected = ASLEEP;
        if (!as_seen(runtime))
            until = 0;
    }
    if (until != 0 && !stopping(watchdog))
        wr_futex_wait(&watchdog->word, expected, until);
    /* acquire: pairs with the release in wr_watchdog_call() */
    atomic_fetch_and_explicit(&watchdog->word, ~(ASLEEP | CALLED), memory_order_acquire);
}

static void *watchdog_main(void *argument)
{
    struct wr_watchdog *watchdog = argument;
    weir_runtime *runtime = watchdog->runtime;
    struct rounds rounds = {0};

    if (runtime->thread_start)
        runtime->thread_start(watchdog->thread.name, runtime->thread_context);
    while (!stopping(watchdog)) {
        weir_time until = wr_harvest_watch(&runtime->pollers[0]);
        weir_time now = wr_clock_now();
        rounds.stuck = rounds.inside = false;
        for (unsigned i = 0; i < runtime->poller_count; i++)
            look_at(&rounds, &runtime->pollers[i], now);
        name_stuck(&rounds, runtime, now);
        weir_time next = now + (rounds.inside ? NEAR_NS : FAR_NS);
        if (!rounds.inside && now - rounds.changed_at >= REST_NS)
            next = WEIR_NEVER;
        rest(watchdog, next < until ? next : until);
    }
    if (runtime->thread_stop)
        runtime->thread_stop(watchdog->thread.name, runtime->thread_context);
    return NULL;
}

int wr_watchdog_start(struct wr_watchdog *watchdog, weir_runtime *runtime, const char *name,
                      size_t stack_size)
{
    watchdog->runtime = runtime;
    int r = wr_thread_start(&watchdog->thread, name, stack_size, watchdog_main, watchdog);

    watchdog->running = r == 0;
    return r;
}

void wr_watchdog_stop(struct wr_watchdog *watchdog)
{
    if (!watchdog->running)
        return;
    /* release: pairs with the acquire in stopping() */
    atomic_store_explicit(&watchdog->stop, 1, memory_order_release);
    wr_watchdog_call(watchdog);
    wr_thread_join(&watchdog->thread);
    watchdog->running = false;
}
