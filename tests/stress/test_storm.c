/* test_storm.c: producers that wait for what they started: posts to both lanes and timers, over
 * many counts of producers and workers. Whatever is accepted comes back, and soon. */
#include "support/rig.h"

#include <errno.h>
#include <semaphore.h>

#include "support/stress.h"

#define PRODUCERS_MAX 8

struct producer {
    weir_runtime *runtime;
    weir_work work;
    weir_timer timer;
    pthread_t thread;
    sem_t done;
    weir_time end;
    struct support_random random;
    uint64_t rounds;
    _Atomic unsigned inside, overlaps; /* runs of the item at once */
    int failed;
    bool again; /* the run posts itself once more before the producer is told */
};

static void tell(struct producer *producer)
{
    if (producer->again) {
        producer->again = false;
        int r = weir_post(producer->runtime, &producer->work);
        if (r == 0)
            return;
        producer->failed = r;
    }
    sem_post(&producer->done);
}

static void run(weir_work *work, void *context)
{
    struct producer *producer = context;

    (void)work;
    tell(producer);
}

static void ring(weir_timer *timer, uint64_t missed, void *context)
{
    struct producer *producer = context;

    (void)timer;
    (void)missed;
    if (atomic_exchange(&producer->inside, 1))
        atomic_fetch_add(&producer->overlaps, 1);
    atomic_store(&producer->inside, 0);
    tell(producer);
}

static int start(struct producer *producer)
{
    uint32_t kind = support_below(&producer->random, 8);

    producer->again = kind == 0;
    if (kind == 1)
        return weir_post_blocking(producer->runtime, &producer->work);
    if (kind == 2)
        return weir_timer_set(&producer->timer,
                              weir_after_us(support_below(&producer->random, 50)), 0,
                              WEIR_TIMER_ONCE);
    return weir_post(producer->runtime, &producer->work);
}

static bool await_done(struct producer *producer)
{
    struct timespec until;
    int r;

    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 5;
    do
        r = sem_timedwait(&producer->done, &until);
    while (r < 0 && errno == EINTR);
    return r == 0;
}

static void *produce(void *context)
{
    struct producer *producer = context;

    while (weir_now() < producer->end && !producer->failed) {
        int r = start(producer);
        if (r == 0 && !await_done(producer))
            r = -ETIMEDOUT;
        if (r != 0)
            producer->failed = r;
        producer->rounds++;
        support_yield(&producer->random);
    }
    return NULL;
}

static void storm(unsigned count, unsigned workers, bool spins, int64_t milliseconds)
{
    struct rig rig;
    weir_options options = WEIR_OPTIONS_INIT;
    static struct producer producers[PRODUCERS_MAX];
    uint64_t rounds = 0;
    int failed = 0;

    options.pollers = 1 + workers / 4;
    options.workers = options.workers_max = workers;
    options.spin_us_plus_one = spins ? 4 : 1;
    rig_open_with(&rig, &options);
    memset(producers, 0, sizeof producers);
    for (unsigned i = 0; i < count; i++) {
        struct producer *producer = &producers[i];
        producer->runtime = rig.runtime;
        producer->random = support_random(support_seed(), i + 100 * workers);
        producer->end = weir_after_ms(milliseconds);
        weir_work_init(&producer->work, run, producer);
        weir_timer_init(&producer->timer, rig.runtime, ring, producer);
        sem_init(&producer->done, 0, 0);
        cr_assert_eq(pthread_create(&producer->thread, NULL, produce, producer), 0);
    }
    for (unsigned i = 0; i < count; i++) {
        pthread_join(producers[i].thread, NULL);
        failed = producers[i].failed ? producers[i].failed : failed;
        cr_expect_eq(atomic_load(&producers[i].overlaps), 0);
        weir_timer_fini(&producers[i].timer);
        sem_destroy(&producers[i].done);
        rounds += producers[i].rounds;
    }
    cr_assert_eq(failed, 0, "%u producers, %u workers: %d", count, workers, failed);
    fprintf(stderr, "%u producers, %u workers: %llu rounds\n", count, workers,
            (unsigned long long)rounds);
    rig_close(&rig);
}

Test(storm, what_is_started_comes_back_whatever_the_counts, .timeout = 3600)
{
    static const unsigned counts[] = {1, 2, 4, 8};
    int64_t span = support_span_ms(1200) / 24;

    for (unsigned i = 0; i < 4; i++) {
        for (unsigned workers = 1; workers <= 4; workers *= 2) {
            storm(counts[i], workers, false, span);
            storm(counts[i], workers, true, span);
        }
    }
}
