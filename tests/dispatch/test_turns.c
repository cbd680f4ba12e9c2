/* The queue of turns that are asked for (dispatch/turns.h), over a pool that runs one copy of the
 * pump when told to and sources that only count. */
#include <pthread.h>
#include <string.h>

#include "base/list.h"
#include "dispatch/dispatch.h"
#include "queue/inject.h"
#include "support/stress.h"
#include "support/test.h"

#define SOURCES 100

struct counted {
    struct wr_source source; /* stands first */
    _Atomic unsigned runs;
    unsigned at; /* when it ran, among all */
    struct counted *asks; /* in its turn */
};

static weir_runtime runtime;
static struct counted counted[SOURCES];
static weir_work *_Atomic copy; /* posted and not begun */
static _Atomic unsigned copies, runs, twice;

/* ---- doubles ------------------------------------------------------------------------- */

void weir_work_init(weir_work *work, weir_work_fn *run, void *context)
{
    *work = (weir_work){.run_ = run, .context_ = context};
}

void wr_pool_post_own(struct wr_pool *pool, weir_work *work)
{
    (void)pool;
    atomic_fetch_add(&copies, 1);
    if (atomic_exchange(&copy, work))
        atomic_fetch_add(&twice, 1);
}

void wr_source_run(struct wr_source *source)
{
    struct counted *one = WR_CONTAINER_OF(source, struct counted, source);

    one->at = atomic_fetch_add(&runs, 1);
    if (one->asks)
        wr_turns_post(&runtime.turns, &one->asks->source);
    one->asks = NULL;
    /* Last: from here on the owner may post it again. */
    atomic_fetch_add(&one->runs, 1);
}

/* ---- the rig ------------------------------------------------------------------------- */

static void start(void)
{
    memset(&runtime, 0, sizeof runtime);
    memset(counted, 0, sizeof counted);
    wr_alloc_init(&runtime.alloc, NULL);
    cr_assert_eq(wr_turns_init(&runtime.turns, &runtime, 1000000000), 0);
}

static void end(void)
{
    wr_turns_fini(&runtime.turns);
    cr_assert_eq(atomic_load(&runtime.alloc.bytes), 0);
    cr_assert_eq(atomic_load(&twice), 0, "a copy was posted while one was pending");
}

static bool run_copy(void)
{
    weir_work *work = atomic_exchange(&copy, NULL);
    if (work)
        work->run_(work, work->context_);
    return work != NULL;
}

/* ---- what is promised ---------------------------------------------------------------- */

Test(turns, many_are_asked_for_one_copy_is_posted_and_they_run_in_order, .timeout = 10)
{
    start();
    for (unsigned i = 0; i < SOURCES; i++)
        wr_turns_post(&runtime.turns, &counted[i].source);
    cr_assert_eq(atomic_load(&copies), 1);
    cr_assert(run_copy());
    for (unsigned i = 0; i < SOURCES; i++) {
        cr_assert_eq(atomic_load(&counted[i].runs), 1);
        cr_assert_eq(counted[i].at, i);
    }
    cr_assert_eq(atomic_load(&copies), 2, "the next copy, before the first turn");
    cr_assert(run_copy());
    cr_assert_not(run_copy());
    cr_assert_eq(atomic_load(&runs), SOURCES);
    end();
}

Test(turns, one_asked_for_in_a_turn_comes_behind_those_that_wait, .timeout = 10) /* (D6) */
{
    start();
    counted[0].asks = &counted[0];
    wr_turns_post(&runtime.turns, &counted[0].source);
    wr_turns_post(&runtime.turns, &counted[1].source);
    while (run_copy())
        ;
    cr_assert_eq(counted[1].at, 1);
    cr_assert_eq(counted[0].at, 2);
    cr_assert_eq(atomic_load(&counted[0].runs), 2);
    end();
}

#ifdef WEIR_FAULTS
static void *run_main(void *ran)
{
    *(bool *)ran = run_copy();
    return NULL;
}

/* A copy that cannot look because another is held up with the queue in its hands must not take
 * that for "empty": it owes the turns that are there. */
Test(turns, who_is_told_uncertain_looks_again, .timeout = 20) /* (D1) */
{
    pthread_t thread;
    bool ran = false;

    start();
    wr_turns_post(&runtime.turns, &counted[0].source);
    wr_inject_hold(runtime.turns.queue);
    cr_assert_eq(pthread_create(&thread, NULL, run_main, &ran), 0);
    /* It has begun, so it has taken the request back, and can do nothing but look. */
    while (atomic_load(&runtime.turns.pump.requested))
        sched_yield();
    for (int i = 0; i < 1000; i++)
        sched_yield();
    wr_inject_let_go(runtime.turns.queue);
    pthread_join(thread, NULL);
    cr_assert(ran);
    cr_assert_eq(atomic_load(&counted[0].runs), 1, "stranded: no copy is posted and none looks");
    end();
}
#endif

/* Threads ask, threads run copies: each asked-for turn comes exactly once. */
struct asker {
    pthread_t thread;
    unsigned first, count, rounds;
};

static void *ask_main(void *argument)
{
    struct asker *asker = argument;

    for (unsigned round = 1; round <= asker->rounds; round++) {
        for (unsigned i = 0; i < asker->count; i++)
            wr_turns_post(&runtime.turns, &counted[asker->first + i].source);
        for (unsigned i = 0; i < asker->count; i++)
            while (atomic_load(&counted[asker->first + i].runs) < round)
                if (!run_copy())
                    sched_yield();
    }
    return NULL;
}

Test(turns, each_comes_once_however_many_ask_and_run, .timeout = 60) /* (D4) */
{
    struct asker askers[4];
    unsigned rounds = support_rounds(500);

    start();
    for (unsigned i = 0; i < 4; i++) {
        askers[i] = (struct asker){.first = i * 25, .count = 25, .rounds = rounds};
        cr_assert_eq(pthread_create(&askers[i].thread, NULL, ask_main, &askers[i]), 0);
    }
    for (unsigned i = 0; i < 4; i++)
        pthread_join(askers[i].thread, NULL);
    cr_assert_eq(atomic_load(&runs), 4 * 25 * rounds);
    while (run_copy())
        ;
    end();
}
