#include "pool_rig.h"

#include <time.h>

#include "os/clock.h"
#include "support/fds.h"
#include "support/test.h"

void sleep_ms(int milliseconds)
{
    struct timespec span = { milliseconds / 1000, milliseconds % 1000 * 1000000L };
    nanosleep(&span, NULL);
}

bool await_at_least_ms(_Atomic unsigned *value, unsigned least, int milliseconds)
{
    weir_time until = wr_clock_now() + milliseconds * 1000000LL;
    while (atomic_load(value) < least) {
        if (wr_clock_now() > until)
            return false;
        struct timespec span = { 0, 200000 };
        nanosleep(&span, NULL);
    }
    return true;
}

bool await_at_least(_Atomic unsigned *value, unsigned least)
{
    return await_at_least_ms(value, least, 5000);
}

static void watch(void *context)
{
    struct rig *rig = context;
    atomic_fetch_add(&rig->watches, 1);
    atomic_store(&rig->wanted, true);
}

static void count_line(enum weir_log_level level, const char *line, void *context)
{
    struct rig *rig = context;
    (void)level;
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&lock);
    snprintf(rig->last_line, sizeof rig->last_line, "%s", line);
    pthread_mutex_unlock(&lock);
    atomic_fetch_add(&rig->lines, 1);
}

static void *tick(void *argument)
{
    struct rig *rig = argument;
    bool ticking = false;
    while (!atomic_load(&rig->end)) {
        sleep_ms(WR_POOL_TICK_NS / 1000000);
        if (atomic_exchange(&rig->wanted, false))
            ticking = true;
        if (ticking)
            ticking = wr_pool_tick(rig->pool, wr_clock_now());
    }
    return NULL;
}

int rig_try(struct rig *rig)
{
    struct wr_pool_options *options = &rig->options;
    rig->threads_before = support_count_threads();
    if (!rig->alloc.source.allocate)
        wr_alloc_init(&rig->alloc, NULL);
    rig->log = (struct wr_log) { .hook = count_line, .context = rig, .level = WEIR_LOG_WARN };
    options->name = "rig";
    if (options->workers == 0)
        options->workers = 2;
    if (options->workers_max == 0)
        options->workers_max = options->workers + 8;
    if (options->blocking_max == 0)
        options->blocking_max = 4;
    options->stack_size = 128 * 1024;
    options->alloc = &rig->alloc;
    options->log = &rig->log;
    options->watch = watch;
    options->watch_context = rig;
    int r = wr_pool_create(&rig->pool, options);
    if (r == 0 && rig->ticks)
        pthread_create(&rig->ticker, NULL, tick, rig);
    return r;
}

void rig_start(struct rig *rig)
{
    cr_assert_eq(rig_try(rig), 0);
}

void rig_stop(struct rig *rig)
{
    atomic_store(&rig->end, true);
    if (rig->ticks)
        pthread_join(rig->ticker, NULL);
    wr_pool_destroy(rig->pool);
    rig->pool = NULL;
    cr_assert_eq(atomic_load(&rig->alloc.bytes), 0);
    cr_assert_leq(support_await_threads(rig->threads_before, 2000), rig->threads_before);
}

struct wr_pool_stats rig_stats(struct rig *rig)
{
    struct wr_pool_stats stats;
    wr_pool_stats_get(rig->pool, &stats);
    return stats;
}

bool rig_await_parked(struct rig *rig, unsigned parked)
{
    weir_time until = wr_clock_now() + 5000000000;
    while (rig_stats(rig).parked != parked) {
        if (wr_clock_now() > until)
            return false;
        sleep_ms(1);
    }
    return true;
}

void gate_wait(struct gate *gate)
{
    atomic_fetch_add(&gate->waiting, 1);
    while (!atomic_load(&gate->open))
        sleep_ms(1);
}

void gate_open(struct gate *gate)
{
    atomic_store(&gate->open, true);
}

static void run_job(weir_work *work, void *context)
{
    struct job *job = context;
    struct gate *gate = job->gate;
    _Atomic unsigned *done = job->done;
    bool announced = job->announced;
    (void)work;
    if (job->ran)
        atomic_fetch_add(job->ran, 1);
    if (gate && announced)
        weir_blocking_begin();
    if (gate)
        gate_wait(gate);
    if (gate && announced)
        weir_blocking_end();
    if (done)
        atomic_fetch_add(done, 1);
}

void job_init(struct job *job, _Atomic unsigned *ran, struct gate *gate, bool announced)
{
    *job = (struct job) { .ran = ran, .gate = gate, .announced = announced };
    weir_work_init(&job->work, run_job, job);
}
