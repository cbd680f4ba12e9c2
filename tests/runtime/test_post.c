/* test_post.c: posted work on a whole runtime: each accepted post runs once and soon, whatever the
 * producers, the other lane and the other jobs do. */
#include "support/rig.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <semaphore.h>
#include <sys/stat.h>
#include <unistd.h>

#include "support/stress.h"

/* ---- a producer that waits for each of its items ------------------------------------------- */

struct producer {
    weir_runtime *runtime;
    weir_work work;
    pthread_t thread;
    sem_t done;
    unsigned rounds;
    unsigned lost;    /* items that did not run within 2 s */
    unsigned refused; /* posts that were not accepted */
    struct support_random random;
};

static void tell_producer(weir_work *work, void *context)
{
    struct producer *producer = context;

    (void)work;
    sem_post(&producer->done);
}

static bool await_semaphore(sem_t *semaphore, int seconds)
{
    struct timespec until;

    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += seconds;
    int r;
    do
        r = sem_timedwait(semaphore, &until);
    while (r < 0 && errno == EINTR);
    return r == 0;
}

static void *produce(void *context)
{
    struct producer *producer = context;

    weir_work_init(&producer->work, tell_producer, producer);
    for (unsigned i = 0; i < producer->rounds && producer->lost == 0; i++) {
        int r = weir_post(producer->runtime, &producer->work);
        producer->refused += r != 0;
        producer->lost += r != 0 || !await_semaphore(&producer->done, 2);
        if (support_below(&producer->random, 4) == 0)
            support_yield(&producer->random);
    }
    return NULL;
}

static void post_one_by_one(const weir_options *options, unsigned rounds)
{
    struct rig rig;
    struct producer producers[2] = {0};

    rig_open_with(&rig, options);
    for (unsigned i = 0; i < 2; i++) {
        producers[i].runtime = rig.runtime;
        producers[i].rounds = rounds;
        producers[i].random = support_random(support_seed(), i);
        sem_init(&producers[i].done, 0, 0);
        cr_assert_eq(pthread_create(&producers[i].thread, NULL, produce, &producers[i]), 0);
    }
    for (unsigned i = 0; i < 2; i++) {
        pthread_join(producers[i].thread, NULL);
        cr_expect_eq(producers[i].refused, 0);
        cr_expect_eq(producers[i].lost, 0, "an item was posted and did not run");
        sem_destroy(&producers[i].done);
    }
    weir_stats stats = rig_stats(&rig);
    cr_expect_eq(stats.items_run, 2ULL * rounds);
    /* A wake-up that is lost is made up for by the detector, some milliseconds later. It may find a
     * worker that the machine held up, but hardly ever. */
    cr_expect_leq(stats.compensations, 5 + rounds / 1000);
    rig_close(&rig);
}

/* (W01) WEIR_STRESS=50 makes it a million each. */
Test(post, item_posted_while_the_last_worker_goes_to_sleep_runs, .timeout = 600)
{
    weir_options options = WEIR_OPTIONS_INIT;

    options.workers = options.workers_max = 2;
    options.spin_us_plus_one = 1; /* no spin: each item finds the pool parking */
    post_one_by_one(&options, support_rounds(20000));
}

/* (W01) */
Test(post, item_posted_while_the_last_worker_spins_runs, .timeout = 600)
{
    weir_options options = WEIR_OPTIONS_INIT;

    options.workers = options.workers_max = 2;
    options.spin_us_plus_one = 6; /* shorter than a round: it often ends in the middle of a post */
    post_one_by_one(&options, support_rounds(20000));
}

/* ---- memory that is gone when the item runs ------------------------------------------------ */

struct shot {
    weir_work work;
    _Atomic unsigned *ran;
};

static void free_shot(weir_work *work, void *context)
{
    struct shot *shot = context;

    memset(work, 0xa5, sizeof *work);
    atomic_fetch_add(shot->ran, 1);
    free(shot);
}

struct shooter {
    weir_runtime *runtime;
    int (*post)(weir_runtime *, weir_work *);
    _Atomic unsigned *ran;
    _Atomic unsigned posted;
    unsigned rounds;
};

static void *shoot(void *context)
{
    struct shooter *shooter = context;

    for (unsigned i = 0; i < shooter->rounds; i++) {
        struct shot *shot = malloc(sizeof *shot);
        shot->ran = shooter->ran;
        weir_work_init(&shot->work, free_shot, shot);
        if (shooter->post(shooter->runtime, &shot->work) == 0)
            atomic_fetch_add(&shooter->posted, 1);
        else
            free(shot);
        while (atomic_load(&shooter->posted) > atomic_load(shooter->ran) + 1000)
            rig_sleep_ms(1); /* a sanitizer keeps what was freed: not too much at once */
    }
    return NULL;
}

static void shoot_from_two_threads(int (*post)(weir_runtime *, weir_work *), unsigned rounds)
{
    struct rig rig;
    struct shooter shooters[2];
    pthread_t threads[2];
    _Atomic unsigned ran[2] = {0, 0};

    rig_open(&rig, 2);
    for (unsigned i = 0; i < 2; i++) {
        shooters[i] = (struct shooter){
            .runtime = rig.runtime, .post = post, .ran = &ran[i], .rounds = rounds};
        cr_assert_eq(pthread_create(&threads[i], NULL, shoot, &shooters[i]), 0);
    }
    for (unsigned i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    cr_expect(RIG_UNTIL(atomic_load(&ran[0]) == rounds && atomic_load(&ran[1]) == rounds, 10000),
              "%u and %u of %u ran", atomic_load(&ran[0]), atomic_load(&ran[1]), rounds);
    rig_close(&rig);
}

/* (W02) */
Test(post, item_may_be_freed_by_its_own_run, .timeout = 120)
{
    shoot_from_two_threads(weir_post, support_rounds(50000));
}

/* (W02) */
Test(post, blocking_item_may_be_freed_by_its_own_run, .timeout = 120)
{
    shoot_from_two_threads(weir_post_blocking, support_rounds(10000));
}

/* ---- how often it runs --------------------------------------------------------------------- */

static void count_run(weir_work *work, void *context)
{
    _Atomic unsigned *ran = context;

    (void)work;
    atomic_fetch_add(ran, 1);
}

/* (W03) */
Test(post, thousand_posts_are_thousand_runs, .timeout = 30)
{
    struct rig rig;
    static weir_work works[1000];
    _Atomic unsigned ran = 0;

    rig_open(&rig, 2);
    for (unsigned i = 0; i < 1000; i++) {
        weir_work_init(&works[i], count_run, &ran);
        cr_assert_eq(weir_post(rig.runtime, &works[i]), 0);
    }
    cr_assert(RIG_UNTIL(atomic_load(&ran) == 1000, 5000), "%u ran", atomic_load(&ran));
    rig_close(&rig);
    cr_assert_eq(atomic_load(&ran), 1000);
}

/* (W03) One item, posted as fast as it goes: the answer says which posts count. */
Test(post, item_runs_as_often_as_its_posts_were_accepted, .timeout = 30)
{
    struct rig rig;
    weir_work work;
    _Atomic unsigned ran = 0;
    unsigned accepted = 0, others = 0;

    rig_open(&rig, 2);
    weir_work_init(&work, count_run, &ran);
    for (unsigned i = 0; i < support_rounds(20000); i++) {
        int r = weir_post(rig.runtime, &work);
        accepted += r == 0;
        others += r != 0 && r != -EALREADY;
    }
    cr_assert_eq(others, 0);
    cr_assert(RIG_UNTIL(atomic_load(&ran) == accepted, 5000));
    rig_close(&rig);
    cr_assert_eq(atomic_load(&ran), accepted);
}

/* ---- fan-in: many producers, one item that works for all of them --------------------------- */

#define FAN_PRODUCERS 8

struct fan {
    weir_runtime *runtime;
    weir_work work;
    _Atomic unsigned waiting; /* put there and not yet taken */
    _Atomic unsigned taken;
    _Atomic unsigned errors;
    unsigned each;
};

static void take_one(weir_work *work, void *context)
{
    struct fan *fan = context;

    /* A plain look, no read-modify-write: who was told -EALREADY relies on it all the same. */
    unsigned waiting = atomic_load_explicit(&fan->waiting, memory_order_relaxed);
    do {
        if (waiting == 0)
            return;
    } while (!atomic_compare_exchange_weak(&fan->waiting, &waiting, waiting - 1));
    if (waiting > 1 && weir_post(fan->runtime, work) == -EINVAL)
        atomic_fetch_add(&fan->errors, 1);
    atomic_fetch_add(&fan->taken, 1);
}

static void *fan_in(void *context)
{
    struct fan *fan = context;

    for (unsigned i = 0; i < fan->each; i++) {
        atomic_fetch_add(&fan->waiting, 1);
        int r = weir_post(fan->runtime, &fan->work);
        if (r != 0 && r != -EALREADY)
            atomic_fetch_add(&fan->errors, 1);
    }
    return NULL;
}

/* (W09) */
Test(post, burst_of_eight_producers_leaves_nothing_behind, .timeout = 120)
{
    struct rig rig;
    struct fan fan = {.each = support_rounds(20000)};
    pthread_t threads[FAN_PRODUCERS];

    rig_open(&rig, 4);
    fan.runtime = rig.runtime;
    weir_work_init(&fan.work, take_one, &fan);
    for (unsigned i = 0; i < FAN_PRODUCERS; i++)
        cr_assert_eq(pthread_create(&threads[i], NULL, fan_in, &fan), 0);
    for (unsigned i = 0; i < FAN_PRODUCERS; i++)
        pthread_join(threads[i], NULL);
    cr_expect(RIG_UNTIL(atomic_load(&fan.taken) == FAN_PRODUCERS * fan.each, 10000),
              "%u of %u were taken, %u wait", atomic_load(&fan.taken), FAN_PRODUCERS * fan.each,
              atomic_load(&fan.waiting));
    cr_expect_eq(atomic_load(&fan.errors), 0);
    rig_close(&rig);
}

struct mark {
    weir_runtime *runtime;
    weir_work work;
    _Atomic uint64_t written, seen;
};

static void look_at_mark(weir_work *work, void *context)
{
    struct mark *mark = context;

    (void)work;
    uint64_t seen = atomic_load_explicit(&mark->written, memory_order_relaxed);
    atomic_store_explicit(&mark->seen, seen, memory_order_relaxed);
}

static bool await_seen(struct mark *mark, uint64_t written)
{
    int64_t until = rig_now_ms() + 2000;

    for (unsigned looks = 0; atomic_load(&mark->seen) < written; looks++) {
        if (looks % 1024 == 1023 && rig_now_ms() > until)
            return false;
        if (looks > 256)
            sched_yield();
    }
    return true;
}

/* (W01) Payload and flag: a post that is told -EALREADY has been heard of. */
Test(post, run_sees_what_was_written_before_a_post_that_found_it_pending, .timeout = 120)
{
    struct rig rig;
    weir_options options = WEIR_OPTIONS_INIT;
    struct mark mark = {0};
    unsigned unseen = 0, pending = 0;
    int64_t end = rig_now_ms() + support_span_ms(1000);

    options.workers = options.workers_max = 1;
    options.spin_us_plus_one = 501; /* the worker is at it within some hundred nanoseconds */
    rig_open_with(&rig, &options);
    mark.runtime = rig.runtime;
    weir_work_init(&mark.work, look_at_mark, &mark);
    for (uint64_t i = 1; unseen == 0 && (i % 64 || rig_now_ms() < end); i++) {
        while (weir_post(rig.runtime, &mark.work) != 0)
            ;
        /* The item is being started right now: what is written next, and the post of it, race
         * with that. */
        for (unsigned spin = (unsigned)(i % 512); spin > 0; spin--)
            __asm__ volatile("" ::: "memory");
        atomic_store_explicit(&mark.written, i, memory_order_relaxed);
        pending += weir_post(rig.runtime, &mark.work) == -EALREADY;
        unseen += !await_seen(&mark, i);
    }
    cr_expect_eq(unseen, 0, "the last write was not seen, and nothing runs");
    cr_expect_gt(pending, 0, "the race was never near");
    rig_close(&rig);
}

/* ---- the lanes ----------------------------------------------------------------------------- */

struct slow {
    weir_work work;
    _Atomic unsigned *inside, *open;
};

static void be_slow(weir_work *work, void *context)
{
    struct slow *slow = context;

    (void)work;
    atomic_fetch_add(slow->inside, 1);
    while (!atomic_load(slow->open))
        rig_sleep_ms(1);
}

static int64_t time_of_a_post(struct rig *rig, int milliseconds)
{
    weir_work work;
    _Atomic unsigned ran = 0;
    int64_t begin = rig_now_ms();

    weir_work_init(&work, count_run, &ran);
    cr_assert_eq(weir_post(rig->runtime, &work), 0);
    cr_assert(RIG_UNTIL(atomic_load(&ran) == 1, milliseconds), "a short job did not start");
    return rig_now_ms() - begin;
}

/* (W10) */
Test(post, hundred_slow_jobs_in_the_blocking_lane_do_not_delay_a_short_one, .timeout = 60)
{
    struct rig rig;
    weir_options options = WEIR_OPTIONS_INIT;
    static struct slow jobs[100];
    _Atomic unsigned inside = 0, open = 0;

    options.workers = options.workers_max = options.blocking_max = 4;
    rig_open_with(&rig, &options);
    for (unsigned i = 0; i < 100; i++) {
        jobs[i].inside = &inside;
        jobs[i].open = &open;
        weir_work_init(&jobs[i].work, be_slow, &jobs[i]);
        cr_assert_eq(weir_post_blocking(rig.runtime, &jobs[i].work), 0);
    }
    cr_assert(RIG_UNTIL(atomic_load(&inside) == 4, 5000));
    int64_t took = time_of_a_post(&rig, 5000);
    cr_expect_leq(took, rig_patience(50), "it took %lld ms", (long long)took);
    cr_expect_eq(rig_stats(&rig).blocking_queued, 96);
    atomic_store(&open, 1);
    cr_assert(RIG_UNTIL(atomic_load(&inside) == 100, 10000));
    rig_close(&rig);
}

static void open_fifo(weir_work *work, void *context)
{
    (void)work;
    int fd = open(context, O_RDONLY | O_CLOEXEC);
    if (fd >= 0)
        close(fd);
}

/* (W11) */
Test(post, blocking_lane_full_for_ever_is_seen_and_the_rest_goes_on, .timeout = 60)
{
    struct rig rig;
    weir_options options = WEIR_OPTIONS_INIT;
    weir_work works[6];
    char folder[] = "/tmp/weir-fifo-XXXXXX", path[64];

    cr_assert_not_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/fifo", folder);
    cr_assert_eq(mkfifo(path, 0600), 0);
    options.workers = options.workers_max = 2;
    options.blocking_max = 4;
    rig_open_with(&rig, &options);
    for (unsigned i = 0; i < 5; i++) {
        weir_work_init(&works[i], open_fifo, path);
        cr_assert_eq(weir_post_blocking(rig.runtime, &works[i]), 0);
    }
    cr_expect(RIG_UNTIL(rig_stats(&rig).queue_age_ns > 50000000, 5000),
              "the age of the job that waits is not to be seen");
    cr_expect_eq(rig_stats(&rig).blocking_threads, 4);
    cr_expect_eq(rig_stats(&rig).blocking_queued, 1);
    int64_t took = time_of_a_post(&rig, 5000);
    cr_expect_leq(took, rig_patience(50), "it took %lld ms", (long long)took);
    cr_expect_not(rig_logged(&rig, "blocking lane: all"));
    /* Nobody posts meanwhile. */
    cr_expect(RIG_UNTIL(rig_logged(&rig, "blocking lane: all 4 threads are busy"), 5000));
    cr_expect_geq(rig_stats(&rig).queue_age_ns, 1000000000);
    weir_work_init(&works[5], open_fifo, path);
    cr_assert_eq(weir_post_blocking(rig.runtime, &works[5]), 0);
    /* A reader and writer at once lets the four go, and whoever comes after them. */
    int fd = open(path, O_RDWR | O_CLOEXEC);
    cr_expect(RIG_UNTIL(rig_stats(&rig).blocking_queued == 0, 5000));
    cr_expect(RIG_UNTIL(rig_stats(&rig).items_run >= 7, 5000));
    rig_sleep_ms(20);
    close(fd);
    rig_close(&rig);
    unlink(path);
    rmdir(folder);
}

/* (W14) The jobs sleep and do not say so; the pool is small at rest. */
Test(post, sleeping_jobs_do_not_hold_up_a_read, .timeout = 60)
{
    struct rig rig;
    weir_options options = WEIR_OPTIONS_INIT;
    static struct slow jobs[50];
    _Atomic unsigned inside = 0, open = 0;
    weir_socket *reader, *waiter;
    struct rig_op op;
    char buffer[8], other[8];

    options.workers = 2;
    rig_open_with(&rig, &options);
    int peer = rig_tcp(&rig, NULL, &reader), second = rig_tcp(&rig, NULL, &waiter);
    rig_op_init(&op);
    cr_assert_eq(weir_recv(reader, &op.op, buffer, sizeof buffer, weir_after_ms(30000)),
                 -EINPROGRESS);
    for (unsigned i = 0; i < 50; i++) {
        jobs[i].inside = &inside;
        jobs[i].open = &open;
        weir_work_init(&jobs[i].work, be_slow, &jobs[i]);
        cr_assert_eq(weir_post(rig.runtime, &jobs[i].work), 0);
    }
    rig_peer_send(peer, "x", 1);
    rig_peer_send(second, "y", 1);
    int64_t begin = rig_now_ms();
    cr_expect_eq(weir_recv_wait(waiter, other, sizeof other, weir_after_ms(1000)), 1);
    int64_t waited = rig_now_ms() - begin;
    cr_expect_leq(waited, rig_patience(50), "a waiting thread needs no worker: %lld ms",
                  (long long)waited);
    cr_expect(rig_op_await(&op, rig_patience(1000)), "the read did not end within a second");
    fprintf(stderr, "read behind 50 sleeping jobs: %lld ms\n", (long long)(rig_now_ms() - begin));
    atomic_store(&open, 1);
    close(peer);
    close(second);
    rig_close(&rig);
}
