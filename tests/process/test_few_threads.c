/* test_few_threads.c: threads that cannot be created: fewer do, or the start fails cleanly; nobody
 * waits for one that does not come. (M04) */
#include "support/rig.h"

#include <errno.h>

#include "dispatch/dispatch.h"
#include "support/scarce.h"

#ifdef WEIR_FAULTS

enum { WORKERS = 4, TRIES = 4 /* of one creation */ };

/* Creations, counted from 0; the bits say which never work. */
static _Atomic unsigned creations, tries, fail_mask;
static unsigned fail_tries = TRIES; /* how often a creation that fails does so in a row */

static int on_create(enum wr_fault_call call)
{
    if (call != WR_FAULT_THREAD)
        return 0;
    unsigned creation = atomic_load(&creations);
    bool fails = creation < 32 && atomic_load(&fail_mask) >> creation & 1;
    if (fails && atomic_load(&tries) < fail_tries) {
        if (atomic_fetch_add(&tries, 1) + 1 < TRIES)
            return EAGAIN;
        atomic_store(&tries, 0);
        atomic_fetch_add(&creations, 1);
        return EAGAIN;
    }
    atomic_store(&tries, 0);
    atomic_fetch_add(&creations, 1);
    return 0;
}

static void fail_creations(unsigned mask)
{
    atomic_store(&fail_mask, 0);
    atomic_store(&creations, 0);
    atomic_store(&tries, 0);
    atomic_store(&fail_mask, mask);
    if (!wr_fault_hook) /* not while threads of a runtime look at it */
        wr_fault_hook = on_create;
}

static weir_options four_workers(struct scarce_memory *memory)
{
    weir_options options = WEIR_OPTIONS_INIT;

    scarce_memory_init(memory);
    options.pollers = 1;
    options.workers = WORKERS;
    options.workers_max = WORKERS;
    options.allocator = &memory->allocator;
    return options;
}

static void on_work(weir_work *work, void *context)
{
    (void)work;
    atomic_fetch_add((_Atomic unsigned *)context, 1);
}

static void expect_works(weir_runtime *runtime)
{
    _Atomic unsigned ran = 0;
    weir_work work;

    weir_work_init(&work, on_work, &ran);
    cr_assert_eq(weir_post(runtime, &work), 0);
    cr_assert(RIG_UNTIL(atomic_load(&ran) == 1, 5000));
}

/* The third, the last: from there on the system is not asked again. */
Test(few_threads, fewer_workers_than_asked_for_are_a_warning, .timeout = 60)
{
    static const unsigned missing[] = {1, 2, WORKERS - 1};

    for (size_t i = 0; i < sizeof missing / sizeof *missing; i++) {
        struct scarce_memory memory;
        struct rig rig;
        weir_options options = four_workers(&memory);

        fail_creations(1u << missing[i]);
        rig_open_with(&rig, &options);
        cr_expect_eq(rig_stats(&rig).workers, missing[i], "%u workers",
                     (unsigned)rig_stats(&rig).workers);
        unsigned warnings = rig_lines(&rig, WEIR_LOG_WARN);
        cr_expect_eq(warnings, 1, "%u warnings", warnings);
        cr_expect(rig_logged(&rig, "of 4 workers could be started"));
        expect_works(rig.runtime);
        rig_close(&rig);
        cr_expect_eq(atomic_load(&memory.blocks), 0);
    }
}

static void expect_no_start(unsigned mask)
{
    struct scarce_memory memory;
    weir_options options = four_workers(&memory);
    struct support_held before = support_held();
    weir_runtime *runtime = (weir_runtime *)&memory;

    fail_creations(mask);
    int r = weir_runtime_create(&runtime, &options);
    cr_expect_eq(r, -EAGAIN, "mask %x: %d", mask, r);
    cr_expect_eq(runtime, (weir_runtime *)&memory, "set on failure");
    cr_expect_leq(support_await_threads(before.threads, 2000), before.threads);
    cr_expect_eq(support_count_fds(), before.fds);
    cr_expect_eq(atomic_load(&memory.blocks), 0, "mask %x: %ld blocks", mask,
                 atomic_load(&memory.blocks));
}

Test(few_threads, without_a_worker_or_a_poller_the_start_fails_cleanly, .timeout = 60)
{
    expect_no_start(~0u);                /* not one thread */
    expect_no_start(1);                  /* the first */
    expect_no_start(1u << WORKERS);      /* the last: the poller */
    expect_no_start(~0u << 2);           /* two workers, and then nothing */
}

Test(few_threads, a_moment_without_threads_is_waited_out, .timeout = 60)
{
    struct scarce_memory memory;
    struct rig rig;
    weir_options options = four_workers(&memory);

    fail_tries = TRIES - 1;
    fail_creations(~0u);
    rig_open_with(&rig, &options);
    cr_expect_eq(rig_stats(&rig).workers, WORKERS);
    cr_expect_eq(rig_lines(&rig, WEIR_LOG_WARN), 0);
    rig_close(&rig);
}

Test(few_threads, a_blocking_job_without_a_thread_is_refused_and_free_again, .timeout = 60)
{
    struct rig rig;
    _Atomic unsigned ran = 0;
    weir_work work;

    weir_work_init(&work, on_work, &ran);
    fail_creations(0);
    rig_open(&rig, 2);
    fail_creations(1);
    cr_expect_eq(weir_post_blocking(rig.runtime, &work), -EAGAIN);
    cr_expect_eq(weir_post_blocking(rig.runtime, &work), 0, "the next call works");
    cr_assert(RIG_UNTIL(atomic_load(&ran) == 1, 5000));
    /* One thread is there now: another job waits for it when none can be added. */
    fail_creations(~0u);
    cr_expect_eq(weir_post_blocking(rig.runtime, &work), 0);
    cr_assert(RIG_UNTIL(atomic_load(&ran) == 2, 5000));
    rig_close(&rig);
}

/* Workers that are not there yet, or do not run anything, are not what an event waits for. */
Test(few_threads, an_idle_worker_is_not_called_stuck, .timeout = 60)
{
    struct rig rig;

    rig_open(&rig, 2);
    rig_sleep_ms(20);
    cr_expect_not(wr_pool_name_stuck(rig.runtime->pool, weir_now()));
    cr_expect_eq(rig_lines(&rig, WEIR_LOG_WARN), 0, "%s", rig.text);
    rig_close(&rig);
}

static void block_for_a_while(weir_work *work, void *context)
{
    (void)work;
    weir_blocking_begin();
    rig_sleep_ms(20);
    weir_blocking_end();
    atomic_fetch_add((_Atomic unsigned *)context, 1);
}

/* Nobody can stand in for a worker that blocks: its work waits, and goes on. */
Test(few_threads, a_block_without_a_replacement_only_takes_longer, .timeout = 60)
{
    struct rig rig;
    _Atomic unsigned ran = 0;
    weir_work works[8];
    weir_options options = WEIR_OPTIONS_INIT;

    options.workers = 1;
    options.workers_max = 8;
    fail_creations(0);
    rig_open_with(&rig, &options);
    fail_creations(~0u);
    for (int i = 0; i < 8; i++) {
        weir_work_init(&works[i], block_for_a_while, &ran);
        cr_assert_eq(weir_post(rig.runtime, &works[i]), 0);
    }
    cr_assert(RIG_UNTIL(atomic_load(&ran) == 8, 10000), "%u of 8 ran", atomic_load(&ran));
    cr_expect_leq(rig_lines(&rig, WEIR_LOG_WARN) + rig_lines(&rig, WEIR_LOG_ERROR), 2, "%u lines",
                  rig_lines(&rig, WEIR_LOG_WARN) + rig_lines(&rig, WEIR_LOG_ERROR));
    fail_creations(0);
    atomic_store(&ran, 0);
    for (int i = 0; i < 8; i++)
        cr_assert_eq(weir_post(rig.runtime, &works[i]), 0);
    cr_assert(RIG_UNTIL(atomic_load(&ran) == 8, 10000));
    cr_expect_gt(rig_stats(&rig).compensations, 0, "threads are there again and are not used");
    rig_close(&rig);
}

#else

Test(few_threads, need_a_build_with_faults, .timeout = 30)
{
    cr_skip_test("built without WEIR_FAULTS");
}

#endif
