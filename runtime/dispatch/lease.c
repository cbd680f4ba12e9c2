/* lease.c: polling as a lease that idle workers take, and the guarantor that makes it safe.
 *
 * THE PROTOCOL, for one poller (modelled in tests/model/lease.pml)
 *
 * lease   FREE, WAITING, WORKING, GUARD, WANTED. Who moves it away from FREE polls, alone.
 * polls   how often a worker came back from the kernel.
 * guard   the guarantor's futex word, three bits. ASLEEP: it sleeps on this word, without a
 *         deadline. RESTING: it sleeps on the alarm, a timer that others set. CALLED: it is to take
 *         over without looking twice.
 *
 *   take     idle worker   FREE -> WAITING; else it parks, and then asks
 *   ask      parked one    GUARD -> WANTED, and the doorbell. Once published in the pool's idle
 *                          list, so that it sees GUARD, or the guarantor's look behind GUARD finds
 *                          it there
 *   wait     lease holder  published as idle (a post that finds nobody parked rings the doorbell),
 *                          it takes the alarm back if a finish has set it, and sleeps in the kernel
 *                          until an event, a deadline or the doorbell; polls + 1
 *   finish   that worker   no longer idle: lease <- WORKING; guarantor ASLEEP: wake it; RESTING:
 *                          set the alarm to a tick from now (or wake it, if that happens so often
 *                          that its ticks are cheaper). Deliver:
 *                          one source is kept, the others pushed, the pump kicked; lease <- FREE;
 *                          only then the kept source's turn, which may block for ever. A worker
 *                          that found an item instead of waiting finishes without having polled
 *   block    worker        announced, FREE: wake a parked worker, which will take the lease;
 *                          nobody is parked or just started: guard | CALLED
 *   look     guarantor     every TICK_NS. FREE, and polls as at the look before (nobody has polled
 *                          for a tick) or CALLED: wake a parked worker; nobody is parked: FREE ->
 *                          GUARD and poll until WANTED; lease <- FREE; wake a parked worker
 *   sleep    guarantor     WAITING, few polls since the look before, no watch over the pool: alarm
 *                          taken back; guard | RESTING; look again; still WAITING: wait for the
 *                          alarm. Without an alarm, or with callbacks to look after, and when
 *                          nobody has polled: the same with ASLEEP and the futex
 *   wake     anybody       guard without ASLEEP and RESTING; it was RESTING: the alarm goes off now
 *
 * Why an event is never left alone longer than two ticks (D1, W1): somebody polls while the lease
 * is WAITING, WORKING (which ends without a callback), GUARD or WANTED (which ends in a doorbell).
 * In FREE the guarantor is awake, or will be in a tick: it went to sleep only after it had seen
 * WAITING once more behind its own ASLEEP or RESTING; finish moves the lease first and looks at
 * `guard` second; all four are sequentially consistent, so that one of the two sees the other. The
 * alarm is set and taken back by the lease's holder alone, one after another, and taken back only
 * while the holder is WAITING; that it may undo a wake is why whoever moves it looks at RESTING
 * behind that, and lets the alarm go off if it is gone. The guarantor looks every tick and acts
 * when two looks in a row find FREE and no polls between them (each worker it wakes instead of
 * polling may find an item and hang in it: then the next look acts again). Why nothing is lost
 * between two holders: the set of watched descriptors is in the kernel, an edge that nobody
 * harvested stays there, and the lease's moves (release to acquire) hand over everything else.
 * What finish pushed is covered by the pump kicked before the lease is given back.
 *
 * At rest: a worker WAITING, the guarantor ASLEEP; of a poller for which there is no worker, GUARD,
 * with no worker parked. Nobody wakes by itself. */
#include "dispatch/lease.h"

#include "base/assert.h"
#include "dispatch/dispatch.h"
#include "dispatch/harvest.h"
#include "dispatch/hub.h"
#include "dispatch/inline.h"
#include "os/alarm.h"
#include "os/clock.h"
#include "os/futex.h"

/* How often the guarantor looks while nobody waits in the kernel. */
#define TICK_NS 1000000
/* Up to so many polls a tick it is cheaper to set and take back the alarm around each callback than
 * to look every tick; measured over so many polls. */
#define LIGHT_POLLS 4
#define COUNTED_POLLS 32
/* A callback that does not return is named, then looked for again after the first of these, then
 * after twice as long each time, up to the second. */
#define STUCK_AGAIN_NS 1000000000
#define STUCK_AGAIN_MAX_NS 60000000000

#define ASLEEP 1u
#define CALLED 2u
#define RESTING 4u

#ifdef WEIR_FAULTS
void (*wr_lease_seam_hook)(enum wr_lease_seam seam, struct wr_poller *poller);
#endif

/* The smallest time there is. */
#define NOW_NS 1

void wr_guard_wake(struct wr_poller *poller)
{
    /* seq_cst: pairs with the moves of the same word in guard_sleep(), which see what was asked,
     * and with the look in move_alarm() */
    uint32_t guard =
        atomic_fetch_and_explicit(&poller->guard, ~(ASLEEP | RESTING), memory_order_seq_cst);
    if (guard & ASLEEP)
        wr_futex_wake(&poller->guard, 1);
    if (guard & RESTING)
        wr_alarm_set(poller->alarm, NOW_NS);
}

static void call_guard(struct wr_poller *poller)
{
    /* release: pairs with the acquire in was_called(), whose look at the lease comes later */
    uint32_t guard = atomic_fetch_or_explicit(&poller->guard, CALLED, memory_order_release);
    if (guard & RESTING)
        wr_guard_wake(poller);
    else if (!(guard & CALLED))
        wr_futex_wake(&poller->guard, 1);
}

/* ---- the worker's side ---------------------------------------------------------------------- */

static bool move_lease(struct wr_poller *poller, enum wr_lease_state from, enum wr_lease_state to)
{
    uint32_t expected = from;

    /* seq_cst: pairs with the release store of the holder before, with guard_sleep(), and, to
     * GUARD, with wr_dispatch_watch() */
    return atomic_load_explicit(&poller->lease, memory_order_relaxed) == expected &&
           atomic_compare_exchange_strong_explicit(&poller->lease, &expected, to,
                                                   memory_order_seq_cst, memory_order_relaxed);
}

static int idle_take(void *context)
{
    weir_runtime *runtime = context;
    unsigned first = wr_dispatch_shard(runtime);

    for (unsigned i = 0; i < runtime->poller_count; i++) {
        unsigned index = (first + i) % runtime->poller_count;
        if (move_lease(&runtime->pollers[index], WR_LEASE_FREE, WR_LEASE_WAITING))
            return (int)index;
    }
    return -1;
}

/* One worker needs one lease. */
static void idle_ask(void *context)
{
    weir_runtime *runtime = context;

    for (unsigned i = 0; i < runtime->poller_count; i++) {
        struct wr_poller *poller = &runtime->pollers[i];
        if (move_lease(poller, WR_LEASE_GUARD, WR_LEASE_WANTED)) {
            wr_poller_doorbell(poller);
            return;
        }
    }
}

/* The holder of the lease. */
static void move_alarm(struct wr_poller *poller, int64_t after)
{
    poller->alarmed = after > 0;
    WR_LEASE_SEAM(WR_LEASE_SEAM_ALARM, poller);
    wr_alarm_set(poller->alarm, after);
    /* seq_cst: pairs with the move in wr_guard_wake(): either its alarm comes behind ours, or it is
     * seen here that ours may have undone it */
    if (!(atomic_load_explicit(&poller->guard, memory_order_seq_cst) & RESTING))
        wr_alarm_set(poller->alarm, NOW_NS);
}

/* The holder of the lease: is this the last of COUNTED_POLLS that came in quick succession? */
static bool polls_often(struct wr_poller *poller)
{
    if (++poller->alarms % COUNTED_POLLS != 0)
        return false;
    weir_time now = wr_clock_now(), before = poller->alarms_counted;
    poller->alarms_counted = now;
    return now - before < (weir_time)TICK_NS * COUNTED_POLLS / LIGHT_POLLS;
}

static int idle_wait(void *context, int lease)
{
    weir_runtime *runtime = context;
    struct wr_poller *poller = &runtime->pollers[lease];

    if (poller->alarmed)
        move_alarm(poller, 0);
    /* What an earlier holder has pushed, and left to its own thread, is there to be taken. */
    bool ready = runtime->inline_callbacks && wr_ready_size(poller->ready) > 0;
    int count = wr_harvest_wait(poller, ready ? 0 : WEIR_NEVER);
    poller->waited = true;

    /* Only who has the lease writes it. */
    atomic_store_explicit(&poller->polls,
                          atomic_load_explicit(&poller->polls, memory_order_relaxed) + 1,
                          memory_order_relaxed);
    return count;
}

/* NULL: the caller has nothing to run. Who has not waited has an item to run before. */
static void *collect_inline(struct wr_poller *poller, int count)
{
    bool waited = poller->waited;

    poller->waited = false;
    wr_harvest_collect(poller, count, NULL);
    if (wr_ready_size(poller->ready) == 0)
        return NULL;
    if (waited)
        return poller;
    wr_pump_kick(&poller->pump);
    return NULL;
}

static void *idle_finish(void *context, int lease, int count)
{
    weir_runtime *runtime = context;
    struct wr_poller *poller = &runtime->pollers[lease];
    struct wr_source *kept = NULL;
    void *item;

    WR_ASSERT(atomic_load_explicit(&poller->lease, memory_order_relaxed) == WR_LEASE_WAITING);
    /* seq_cst, both: pair with the two in guard_sleep() */
    atomic_store_explicit(&poller->lease, WR_LEASE_WORKING, memory_order_seq_cst);
    WR_LEASE_SEAM(WR_LEASE_SEAM_WORKING, poller);
    uint32_t guard = atomic_load_explicit(&poller->guard, memory_order_seq_cst);
    if (guard & RESTING && !polls_often(poller))
        move_alarm(poller, TICK_NS);
    else if (guard & (ASLEEP | RESTING))
        wr_guard_wake(poller);
    if (runtime->inline_callbacks) {
        item = collect_inline(poller, count);
    } else {
        wr_harvest_deliver(poller, count, &kept);
        item = kept;
    }
    /* release: pairs with the acquire of the next holder in move_lease() */
    atomic_store_explicit(&poller->lease, WR_LEASE_FREE, memory_order_release);
    WR_LEASE_SEAM(WR_LEASE_SEAM_FREE, poller);
    return item;
}

static void idle_run(void *context, void *item)
{
    weir_runtime *runtime = context;

    if (runtime->inline_callbacks)
        wr_inline_run(item);
    else
        wr_source_run(item);
}

static void idle_wake(void *context, int lease)
{
    weir_runtime *runtime = context;
    wr_poller_doorbell(&runtime->pollers[lease]);
}

static void idle_block(void *context, bool added)
{
    weir_runtime *runtime = context;

    for (unsigned i = 0; i < runtime->poller_count; i++) {
        struct wr_poller *poller = &runtime->pollers[i];
        if (atomic_load_explicit(&poller->lease, memory_order_relaxed) != WR_LEASE_FREE)
            continue;
        if (wr_pool_wake(runtime->pool))
            continue;
        if (!added)
            call_guard(poller);
        added = false;
    }
}

const struct wr_pool_idle wr_lease_idle = {
    .take = idle_take,
    .ask = idle_ask,
    .wait = idle_wait,
    .finish = idle_finish,
    .run = idle_run,
    .wake = idle_wake,
    .block = idle_block,
};

/* ---- the guarantor's side ------------------------------------------------------------------- */

/* What the guarantor of one poller keeps for itself. */
struct guard {
    struct wr_poller *poller;
    uint32_t polls;             /* as at the look before */
    weir_time stuck_look;       /* when to look for callbacks that do not return; WEIR_NEVER */
    weir_time stuck_gap;        /* from that look to the next */
    weir_time stuck_noted;      /* the latest look */
};

static bool stopping(struct wr_poller *poller)
{
    /* acquire: pairs with the release store in wr_dispatch_stop() */
    return atomic_load_explicit(&poller->stop, memory_order_acquire);
}

static bool was_called(struct wr_poller *poller)
{
    /* acquire: pairs with the release in call_guard() */
    return atomic_load_explicit(&poller->guard, memory_order_relaxed) & CALLED &&
           atomic_fetch_and_explicit(&poller->guard, ~CALLED, memory_order_acquire) & CALLED;
}

static bool note_stuck(struct guard *guard, weir_time now)
{
    guard->stuck_noted = now;
    return wr_pool_name_stuck(guard->poller->runtime->pool, now);
}

/* Looks for callbacks that do not return, when that is due. Returns when it is due again. */
static weir_time look_for_stuck(struct guard *guard)
{
    weir_time now = guard->stuck_look == WEIR_NEVER ? 0 : wr_clock_now();

    if (now < guard->stuck_look)
        return guard->stuck_look;
    if (!note_stuck(guard, now)) {
        guard->stuck_look = WEIR_NEVER;
        return WEIR_NEVER;
    }
    guard->stuck_look = now + guard->stuck_gap;
    if (guard->stuck_gap < STUCK_AGAIN_MAX_NS)
        guard->stuck_gap *= 2;
    return guard->stuck_look;
}

/* The guarantor had to poll, and something has come: if a worker is in a callback now, see later
 * whether it still is. */
static void begin_to_look(struct guard *guard)
{
    weir_time now = guard->stuck_look == WEIR_NEVER ? wr_clock_now() : 0;

    if (now < guard->stuck_noted + WR_POOL_STUCK_NS || !note_stuck(guard, now))
        return;
    guard->stuck_look = now + WR_POOL_STUCK_NS;
    guard->stuck_gap = STUCK_AGAIN_NS;
}

/* At least once: who wants the lease at once may find other things to do, again and again. */
static void poll_for_workers(struct guard *guard)
{
    struct wr_poller *poller = guard->poller;

    while (!stopping(poller)) {
        weir_time until = wr_harvest_watch(poller), look = look_for_stuck(guard);
        int count = wr_harvest_wait(poller, until < look ? until : look);
        wr_harvest_deliver(poller, count, NULL);
        begin_to_look(guard);
        if (atomic_load_explicit(&poller->lease, memory_order_relaxed) != WR_LEASE_GUARD)
            return;
    }
}

/* All workers are in callbacks, as it seems. */
static void take_over(struct guard *guard)
{
    struct wr_poller *poller = guard->poller;
    struct wr_pool *pool = poller->runtime->pool;

    /* What a worker has pushed and not begun. Without inline callbacks the pump knows of it. */
    if (poller->runtime->inline_callbacks)
        wr_inline_spill(poller);
    if (wr_pool_wake(pool))
        return;
    WR_LEASE_SEAM(WR_LEASE_SEAM_TAKING, poller);
    if (!move_lease(poller, WR_LEASE_FREE, WR_LEASE_GUARD))
        return;
    /* One that has parked meanwhile saw no GUARD to ask; one that parks from now on does. */
    bool parked = wr_pool_wake(pool);
    WR_LEASE_SEAM(WR_LEASE_SEAM_GUARD, poller);
    if (!parked)
        poll_for_workers(guard);
    /* release: pairs with the acquire of the next holder in move_lease() */
    atomic_store_explicit(&poller->lease, WR_LEASE_FREE, memory_order_release);
    wr_pool_wake(pool);
}

/* All callbacks have returned: nothing is left that the guarantor would have to wake up for. */
static bool callbacks_pend(struct guard *guard)
{
    if (guard->stuck_look != WEIR_NEVER && !note_stuck(guard, wr_clock_now()))
        guard->stuck_look = WEIR_NEVER;
    return guard->stuck_look != WEIR_NEVER;
}

/* A worker waits in the kernel: when it leaves it will wake us, or (RESTING) set the alarm. */
static void guard_sleep(struct guard *guard, uint32_t how)
{
    struct wr_poller *poller = guard->poller;

    WR_LEASE_SEAM(WR_LEASE_SEAM_BEFORE_SLEEP, poller);
    if (how == RESTING)
        wr_alarm_set(poller->alarm, 0);
    /* seq_cst, both: pair with the store of WORKING and the load of `guard` in idle_finish(); the
     * first also with wr_guard_wake(): who asked for something before is seen below */
    bool called = atomic_fetch_or_explicit(&poller->guard, how, memory_order_seq_cst) & CALLED;
    bool waiting =
        atomic_load_explicit(&poller->lease, memory_order_seq_cst) == WR_LEASE_WAITING;
    WR_LEASE_SEAM(WR_LEASE_SEAM_ASLEEP, poller);
    if (waiting && !called && !stopping(poller) &&
        !atomic_load_explicit(&poller->tick_wanted, memory_order_relaxed)) {
        WR_LEASE_SEAM(WR_LEASE_SEAM_SLEEPS, poller);
        if (how == RESTING)
            wr_alarm_wait(poller->alarm);
        else
            wr_futex_wait(&poller->guard, ASLEEP, guard->stuck_look);
    }
    /* seq_cst: pairs as the move to ASLEEP; never a store, which would break the chain of moves */
    atomic_fetch_and_explicit(&poller->guard, ~how, memory_order_seq_cst);
}

/* Returns after a tick, or earlier when it was woken. */
static void look(struct guard *guard)
{
    struct wr_poller *poller = guard->poller;
    WR_LEASE_SEAM(WR_LEASE_SEAM_LOOK, poller);
    bool watching = wr_harvest_watch(poller) != WEIR_NEVER;
    bool called = was_called(poller);
    uint32_t polls = atomic_load_explicit(&poller->polls, memory_order_relaxed);
    uint32_t lease = atomic_load_explicit(&poller->lease, memory_order_relaxed);
    uint32_t polled = polls - guard->polls;

    guard->polls = polls;
    look_for_stuck(guard);
    if (lease == WR_LEASE_WAITING && !watching) {
        bool rest = polled <= LIGHT_POLLS && poller->alarm >= 0 && !callbacks_pend(guard);
        if (rest || polled == 0) {
            guard_sleep(guard, rest ? RESTING : ASLEEP);
            return;
        }
    }
    if (lease == WR_LEASE_FREE && (polled == 0 || called))
        take_over(guard);
    wr_futex_wait(&poller->guard, 0, wr_clock_now() + TICK_NS);
}

void *wr_guard_main(void *argument)
{
    struct wr_poller *poller = argument;
    weir_runtime *runtime = poller->runtime;
    struct guard guard = {.poller = poller, .stuck_look = WEIR_NEVER};

    if (runtime->thread_start)
        runtime->thread_start(poller->thread.name, runtime->thread_context);
    while (!stopping(poller))
        look(&guard);
    if (runtime->thread_stop)
        runtime->thread_stop(poller->thread.name, runtime->thread_context);
    return NULL;
}
