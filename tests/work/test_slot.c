/* test_slot.c: what a callback posts and its own worker keeps: it is run once, nobody waits for it
 * in vain, and nobody waits because of it. */
#include "support/test.h"

#include <pthread.h>

#include "os/clock.h"
#include "pool_rig.h"
#include "work/pool_private.h"

#define LONG_ENOUGH 100         /* posts of itself after which a worker keeps the next */

static struct rig rig;

/* An item that posts itself, and then does what the test wants, on the worker that keeps. */
static struct chain {
    weir_work work;
    unsigned left;
    void (*then)(void);
    _Atomic unsigned kept;      /* what `then` posts is in the slot */
    _Atomic unsigned steps, over;
} chain;

static bool is_kept(void)
{
    return atomic_load(&wr_worker_current()->slot);
}

static void step(weir_work *work, void *context)
{
    (void)context;
    atomic_fetch_add(&chain.steps, 1);
    if (chain.left-- > 0) {
        cr_assert_eq(wr_pool_post(rig.pool, work), 0);
        return;
    }
    if (chain.then)
        chain.then();
    atomic_store(&chain.over, 1);
}

static void begin_chain(unsigned length, void (*then)(void))
{
    chain.left = length;
    chain.then = then;
    weir_work_init(&chain.work, step, NULL);
    cr_assert_eq(wr_pool_post(rig.pool, &chain.work), 0);
}

/* A chain of 16 may be broken by a worker that is woken for it: so the length is ours to choose,
 * and the last step waits for the slot to be in use. */
static void step_until_kept(weir_work *work, void *context)
{
    (void)context;
    bool keeps = wr_worker_current()->kept_in_a_row > LONG_ENOUGH;
    if (keeps) {
        chain.then();
        atomic_store(&chain.over, 1);
    } else {
        cr_assert_eq(wr_pool_post(rig.pool, work), 0);
    }
}

static void begin_chain_until_kept(void (*then)(void))
{
    chain.then = then;
    weir_work_init(&chain.work, step_until_kept, NULL);
    cr_assert_eq(wr_pool_post(rig.pool, &chain.work), 0);
}

static struct gate hang;
static struct job first, second;
static _Atomic unsigned ran;

static void post_and_hang(void)
{
    job_init(&first, &ran, NULL, false);
    wr_pool_post(rig.pool, &first.work);
    atomic_store(&chain.kept, is_kept());
    gate_wait(&hang);
}

static void end_hang(void)
{
    gate_open(&hang);
    cr_assert(await_at_least(&chain.over, 1));
    rig_stop(&rig);
}

Test(slot, each_kept_item_runs_once_and_is_counted, .timeout = 30)
{
    rig.ticks = true;
    rig.options.workers = rig.options.workers_max = 2;      /* on a busy machine it would add one */
    rig_start(&rig);
    begin_chain(20000, NULL);
    cr_assert(await_at_least(&chain.over, 1));
    cr_assert(rig_await_parked(&rig, 2));
    cr_assert_eq(atomic_load(&chain.steps), 20001);
    struct wr_pool_stats stats = rig_stats(&rig);
    cr_assert_eq(stats.posts, 20001);
    cr_assert_eq(stats.items_run, 20001);
    rig_stop(&rig);
}

Test(slot, item_kept_by_a_callback_that_hangs_is_run_by_another, .timeout = 30)
{
    rig.ticks = true;
    rig_start(&rig);
    begin_chain_until_kept(post_and_hang);
    cr_assert(await_at_least(&hang.waiting, 1));
    cr_assert(atomic_load(&chain.kept), "the item was never kept");
    cr_assert(await_at_least_ms(&ran, 1, 2000), "the item is stranded");
    end_hang();
    cr_assert_eq(atomic_load(&ran), 1);
}

Test(slot, item_kept_by_the_only_worker_that_hangs_is_run, .timeout = 30)
{
    rig.ticks = true;
    rig.options.workers = 1;
    rig_start(&rig);
    begin_chain_until_kept(post_and_hang);
    cr_assert(await_at_least(&hang.waiting, 1));
    cr_assert(atomic_load(&chain.kept));
    cr_assert(await_at_least_ms(&ran, 1, 2000), "the item is stranded");
    end_hang();
}

static void post_and_block(void)
{
    job_init(&first, &ran, NULL, false);
    wr_pool_post(rig.pool, &first.work);
    atomic_store(&chain.kept, is_kept());
    weir_blocking_begin();
    gate_wait(&hang);
    weir_blocking_end();
}

/* Nobody ticks. */
Test(slot, block_that_is_announced_hands_the_item_over_at_once, .timeout = 30)
{
    rig_start(&rig);
    begin_chain_until_kept(post_and_block);
    cr_assert(await_at_least(&hang.waiting, 1));
    cr_assert(atomic_load(&chain.kept));
    cr_assert(await_at_least_ms(&ran, 1, 2000), "the item is stranded");
    end_hang();
}

static void post_two_and_hang(void)
{
    job_init(&first, &ran, NULL, false);
    job_init(&second, &ran, NULL, false);
    wr_pool_post(rig.pool, &first.work);
    atomic_store(&chain.kept, is_kept());
    wr_pool_post(rig.pool, &second.work);
    gate_wait(&hang);
}

Test(slot, second_post_of_a_callback_hands_both_over_at_once, .timeout = 30)
{
    rig_start(&rig);
    cr_assert(rig_await_parked(&rig, 2));
    begin_chain_until_kept(post_two_and_hang);
    cr_assert(await_at_least(&hang.waiting, 1));
    cr_assert(atomic_load(&chain.kept));
    cr_assert(await_at_least_ms(&ran, 2, 2000), "%u of 2 were run", atomic_load(&ran));
    end_hang();
}

static void post_while_blocked(void)
{
    job_init(&first, &ran, NULL, false);
    weir_blocking_begin();
    wr_pool_post(rig.pool, &first.work);
    atomic_store(&chain.kept, is_kept());
    gate_wait(&hang);
    weir_blocking_end();
}

Test(slot, nothing_is_kept_inside_an_announced_block, .timeout = 30)
{
    rig_start(&rig);
    begin_chain_until_kept(post_while_blocked);
    cr_assert(await_at_least(&hang.waiting, 1));
    cr_assert_not(atomic_load(&chain.kept));
    cr_assert(await_at_least_ms(&ran, 1, 2000), "the item is stranded");
    end_hang();
}

/* ---- fairness ------------------------------------------------------------------------------- */

/* Two items that post each other for ever. At step 1000 another thread posts one; the step waits
 * for that. */
static struct {
    weir_work works[2];
    struct job other;
    _Atomic unsigned steps, other_ran, stop;
    unsigned posted_at, run_at;
} pair;

static void run_other(weir_work *work, void *context)
{
    (void)work, (void)context;
    pair.run_at = atomic_load(&pair.steps);
    atomic_store(&pair.stop, 1);
    atomic_store(&pair.other_ran, 1);
}

static void *post_other(void *argument)
{
    weir_work_init(&pair.other.work, run_other, NULL);
    wr_pool_post(rig.pool, &pair.other.work);
    return argument;
}

static void post_partner(weir_work *work, void *context)
{
    (void)context;
    unsigned steps = atomic_fetch_add(&pair.steps, 1) + 1;
    if (pair.posted_at == 0 && wr_worker_current()->kept_in_a_row > LONG_ENOUGH) {
        pthread_t thread;
        pair.posted_at = steps;
        pthread_create(&thread, NULL, post_other, NULL);
        pthread_join(thread, NULL);
    }
    if (steps < 1000000 && !atomic_load(&pair.stop))
        wr_pool_post(rig.pool, &pair.works[work == &pair.works[0]]);
    else
        atomic_store(&pair.stop, 1);
}

Test(slot, items_that_post_each_other_let_others_run, .timeout = 60)
{
    rig.ticks = true;
    rig.options.workers = rig.options.workers_max = 1;
    rig_start(&rig);
    for (int i = 0; i < 2; i++)
        weir_work_init(&pair.works[i], post_partner, NULL);
    wr_pool_post(rig.pool, &pair.works[0]);
    cr_assert(await_at_least(&pair.other_ran, 1));
    cr_assert_leq(pair.run_at, pair.posted_at + 2, "after %u steps",
                  pair.run_at - pair.posted_at);
    rig_stop(&rig);
}

static _Atomic unsigned left_slot;

static void step_until_not_kept(weir_work *work, void *context)
{
    static bool kept_before;
    (void)context;
    unsigned in_a_row = wr_worker_current()->kept_in_a_row;
    if (kept_before && in_a_row == 0)
        atomic_store(&left_slot, 1);
    kept_before = in_a_row > LONG_ENOUGH;
    unsigned steps = atomic_fetch_add(&chain.steps, 1);
    if (!atomic_load(&left_slot) && steps < 1000000)
        wr_pool_post(rig.pool, work);
}

/* So that a worker which could do it at the same time is asked now and then. */
Test(slot, chain_goes_through_the_queue_after_so_many, .timeout = 30)
{
    rig.options.workers = 1;
    rig.ticks = true;
    rig_start(&rig);
    weir_work_init(&chain.work, step_until_not_kept, NULL);
    wr_pool_post(rig.pool, &chain.work);
    cr_assert(await_at_least(&left_slot, 1));
    rig_stop(&rig);
}

/* ---- the tick that goes away ---------------------------------------------------------------- */

static struct gate fill, filled;
static _Atomic int seam_at = -1;

static void fill_at_seam(enum wr_pool_seam where)
{
    int expected = (int)where;
    if (!atomic_compare_exchange_strong(&seam_at, &expected, -1))
        return;
    gate_open(&fill);
    cr_assert(await_at_least(&filled.waiting, 1));
}

static void wait_then_post_and_hang(void)
{
    gate_wait(&fill);
    job_init(&first, &ran, NULL, false);
    wr_pool_post(rig.pool, &first.work);
    atomic_store(&chain.kept, is_kept());
    gate_wait(&filled);
}

/* The tick is about to say that nothing waits when a slot is filled. */
static void fill_beside_the_tick(enum wr_pool_seam where)
{
    wr_pool_seam_hook = fill_at_seam;
    rig.options.workers = 1;
    rig_start(&rig);
    begin_chain_until_kept(wait_then_post_and_hang);
    cr_assert(await_at_least(&fill.waiting, 1));
    cr_assert_eq(atomic_load(&rig.watches), 1);
    atomic_store(&seam_at, (int)where);
    bool goes_on = wr_pool_tick(rig.pool, wr_clock_now());
    cr_assert(atomic_load(&chain.kept), "the item was never kept");
    cr_assert(goes_on || atomic_load(&rig.watches) == 2, "nobody looks after the item");
    for (int i = 0; i < 4; i++)
        (void)wr_pool_tick(rig.pool, wr_clock_now());
    cr_assert(await_at_least(&ran, 1), "the item is stranded");
    gate_open(&filled);
    cr_assert(await_at_least(&chain.over, 1));
    rig_stop(&rig);
}

Test(slot, item_kept_when_the_tick_has_looked_is_seen_by_it, .timeout = 30)
{
    fill_beside_the_tick(WR_SEAM_TICK_EMPTY);
}

Test(slot, item_kept_when_the_tick_is_going_is_watched_again, .timeout = 30)
{
    fill_beside_the_tick(WR_SEAM_TICK_DISARMED);
}

Test(slot, item_kept_when_the_tick_has_gone_is_watched_again, .timeout = 30)
{
    rig.options.workers = 1;
    rig_start(&rig);
    begin_chain_until_kept(wait_then_post_and_hang);
    cr_assert(await_at_least(&fill.waiting, 1));
    cr_assert_not(wr_pool_tick(rig.pool, wr_clock_now()));
    cr_assert_eq(atomic_load(&rig.watches), 1);
    gate_open(&fill);
    cr_assert(await_at_least(&filled.waiting, 1));
    cr_assert(atomic_load(&chain.kept), "the item was never kept");
    cr_assert_eq(atomic_load(&rig.watches), 2, "nobody looks after the item");
    gate_open(&filled);
    cr_assert(await_at_least(&ran, 1));
    rig_stop(&rig);
}

Test(slot, item_of_a_callback_that_returns_between_two_ticks_stays, .timeout = 30)
{
    rig.options.workers = 1;
    rig_start(&rig);
    begin_chain_until_kept(post_and_hang);
    cr_assert(await_at_least(&hang.waiting, 1));
    cr_assert(wr_pool_tick(rig.pool, wr_clock_now()), "a slot is filled");
    cr_assert(atomic_load(&rig.pool->io.slots[0]->slot), "it was taken at first sight");
    gate_open(&hang);
    cr_assert(await_at_least(&ran, 1));
    cr_assert(rig_await_parked(&rig, 1));
    cr_assert_not(wr_pool_tick(rig.pool, wr_clock_now()));
    cr_assert_eq(rig_stats(&rig).compensations, 0);
    rig_stop(&rig);
}
