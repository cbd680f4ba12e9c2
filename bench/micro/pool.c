/* pool.c: what posting to the pool costs, by the public interface alone.
 *
 *     micro_pool [--workers N] [--ops N] [--samples N] [--rounds N] [--smoke]
 *
 * post: one thread outside posts items that exist already; from the first post to the last run.
 * self_repost: one item that posts itself again and again, alone: the pump's way of going on.
 * wake: all workers parked: from the post to the first instruction of the item. The poster spins,
 *     so that the worker wakes up on another core. Beside it the same with a bare futex.
 * ping_pong: a thread outside posts and sleeps until the item has woken it. Beside it two threads
 *     and two bare futexes.
 *
 * One JSON line a metric and round. Status 1 when an item ran not at all, twice, or not in time. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <weir/weir.h>

#include "support/bench.h"

enum {
    ITEMS_MAX = 1 << 16,        /* posted at once; more operations are done in several goes */
    PATIENCE_S = 20,            /* for everything that has to come */
    REST_US = 200,              /* between "parked" and really asleep in the kernel */
};

struct item {
    weir_work work;
    unsigned runs;
};

static weir_runtime *runtime;
static struct item items[ITEMS_MAX];
static atomic_uint items_left;
static _Atomic uint32_t bell;           /* rung when what the main thread waits for is over */
static weir_work runner;                /* the only item of self_repost, wake and ping_pong */
static uint64_t reposts_left;
static atomic_int_least64_t started;    /* when the woken side began; 0: not yet */

static void fail(const char *what)
{
    fprintf(stderr, "micro_pool: %s\n", what);
    _exit(1);       /* threads may be stuck: there is nothing to be released in good order */
}

static void must(int result, const char *what)
{
    if (result < 0) {
        fprintf(stderr, "micro_pool: %s: %s\n", what, strerror(-result));
        _exit(1);
    }
}

/* ---- waiting ------------------------------------------------------------------------------- */

static void ring(_Atomic uint32_t *word)
{
    /* Release: what was done before is seen by the acquire in await(). */
    atomic_store_explicit(word, 1, memory_order_release);
    bench_futex_wake(word);
}

/* Sleeps until ring(), and takes the ring back. */
static void await(_Atomic uint32_t *word)
{
    int64_t end = bench_now_ns() + PATIENCE_S * INT64_C(1000000000);
    /* Acquire: pairs with the release in ring(). */
    while (atomic_load_explicit(word, memory_order_acquire) == 0) {
        if (bench_now_ns() > end)
            fail("something that was posted did not run");
        bench_futex_wait(word, 0, INT64_C(1000000000));
    }
    atomic_store_explicit(word, 0, memory_order_relaxed);
}

static int64_t spin_until_started(void)
{
    int64_t end = bench_now_ns() + PATIENCE_S * INT64_C(1000000000);
    int64_t at;
    /* Acquire: pairs with the release in begin(); the other side is done with the sample. */
    while ((at = atomic_load_explicit(&started, memory_order_acquire)) == 0)
        if (bench_now_ns() > end)
            fail("nobody woke up");
    atomic_store_explicit(&started, 0, memory_order_relaxed);
    return at;
}

static void begin(void)
{
    /* Release: pairs with the acquire in spin_until_started(). */
    atomic_store_explicit(&started, bench_now_ns(), memory_order_release);
}

static void await_parked(void)
{
    int64_t end = bench_now_ns() + PATIENCE_S * INT64_C(1000000000);
    weir_stats stats = { .size = sizeof stats };
    do {
        usleep(REST_US);
        must(weir_stats_get(runtime, &stats), "weir_stats_get");
        if (bench_now_ns() > end)
            fail("the workers do not park");
    } while (stats.workers_parked < stats.workers);
    usleep(REST_US);
}

/* ---- the items ----------------------------------------------------------------------------- */

static void run_item(weir_work *work, void *context)
{
    struct item *item = context;
    (void)work;
    item->runs++;
    /* Release: hands `runs` to whoever takes the last one. Acquire: the last one takes them all
     * over, and passes them on by ring(). */
    if (atomic_fetch_sub_explicit(&items_left, 1, memory_order_acq_rel) == 1)
        ring(&bell);
}

static void run_again(weir_work *work, void *context)
{
    (void)context;
    if (--reposts_left > 0)
        must(weir_post(runtime, work), "weir_post from a callback");
    else
        ring(&bell);
}

static void run_begin(weir_work *work, void *context)
{
    (void)work, (void)context;
    begin();
}

static void run_ring(weir_work *work, void *context)
{
    (void)work, (void)context;
    ring(&bell);
}

/* ---- what is measured ---------------------------------------------------------------------- */

static void print_time(const char *metric, const char *way, uint64_t round, uint64_t ops, double ns)
{
    printf("{\"metric\": \"%s\", \"way\": \"%s\", ", metric, way);
    printf("\"round\": %llu, \"ops\": %llu, \"ns\": %.1f}\n", (unsigned long long)round,
           (unsigned long long)ops, ns);
}

static void measure_post(uint64_t round, uint64_t ops)
{
    int64_t spent = 0;

    for (uint64_t done = 0; done < ops;) {
        uint64_t count = ops - done < ITEMS_MAX ? ops - done : ITEMS_MAX;
        for (uint64_t i = 0; i < count; i++) {
            items[i].runs = 0;
            weir_work_init(&items[i].work, run_item, &items[i]);
        }
        atomic_store_explicit(&items_left, (unsigned)count, memory_order_relaxed);
        int64_t at = bench_now_ns();
        for (uint64_t i = 0; i < count; i++)
            must(weir_post(runtime, &items[i].work), "weir_post");
        await(&bell);
        spent += bench_now_ns() - at;
        for (uint64_t i = 0; i < count; i++)
            if (items[i].runs != 1)
                fail("an item did not run exactly once");
        done += count;
    }
    print_time("post", "weir", round, ops, (double)spent / (double)ops);
}

static void measure_self_repost(uint64_t round, uint64_t ops)
{
    reposts_left = ops;
    weir_work_init(&runner, run_again, NULL);
    int64_t at = bench_now_ns();
    must(weir_post(runtime, &runner), "weir_post");
    await(&bell);
    int64_t spent = bench_now_ns() - at;
    if (reposts_left != 0)
        fail("an item that posts itself was lost");
    print_time("self_repost", "weir", round, ops, (double)spent / (double)ops);
}

/* The other side of the bare futexes. */
struct peer {
    pthread_t thread;
    _Atomic uint32_t word;
    bool answers;           /* ping_pong: ring the bell; wake: note the time */
    uint64_t turns;
};

static void *run_peer(void *argument)
{
    struct peer *peer = argument;
    for (uint64_t i = 0; i < peer->turns; i++) {
        await(&peer->word);
        if (peer->answers)
            ring(&bell);
        else
            begin();
    }
    return NULL;
}

static void start_peer(struct peer *peer)
{
    must(-pthread_create(&peer->thread, NULL, run_peer, peer), "pthread_create");
}

static void measure_wake(uint64_t round, uint64_t samples)
{
    static struct bench_histogram times[2];     /* weir, futex */
    static const char *const ways[] = { "weir", "futex" };
    struct peer peer = { .turns = samples };

    memset(times, 0, sizeof times);
    start_peer(&peer);
    weir_work_init(&runner, run_begin, NULL);
    /* In turns, sample by sample: what disturbs the one disturbs the other. */
    for (uint64_t i = 0; i < samples; i++) {
        await_parked();
        int64_t at = bench_now_ns();
        must(weir_post(runtime, &runner), "weir_post");
        bench_record(&times[0], spin_until_started() - at);
        usleep(2 * REST_US);
        at = bench_now_ns();
        ring(&peer.word);
        bench_record(&times[1], spin_until_started() - at);
    }
    pthread_join(peer.thread, NULL);
    for (int i = 0; i < 2; i++) {
        print_time("wake_p50", ways[i], round, samples, (double)bench_percentile(&times[i], 0.5));
        print_time("wake_p99", ways[i], round, samples, (double)bench_percentile(&times[i], 0.99));
    }
}

static void measure_ping_pong(uint64_t round, uint64_t turns)
{
    struct peer peer = { .turns = turns, .answers = true };

    weir_work_init(&runner, run_ring, NULL);
    int64_t at = bench_now_ns();
    for (uint64_t i = 0; i < turns; i++) {
        must(weir_post(runtime, &runner), "weir_post");
        await(&bell);
    }
    print_time("ping_pong", "weir", round, turns, (double)(bench_now_ns() - at) / (double)turns);

    start_peer(&peer);
    at = bench_now_ns();
    for (uint64_t i = 0; i < turns; i++) {
        ring(&peer.word);
        await(&bell);
    }
    print_time("ping_pong", "futex", round, turns, (double)(bench_now_ns() - at) / (double)turns);
    pthread_join(peer.thread, NULL);
}

int main(int argc, char **argv)
{
    static const char *const known[] = {
        "--workers=", "--ops=", "--samples=", "--rounds=", "--smoke", NULL,
    };
    bench_only(argc, argv, known);
    int smoke = bench_flag(argc, argv, "--smoke");
    uint64_t ops = bench_argument(argc, argv, "--ops", smoke ? 20000 : 2000000);
    uint64_t samples = bench_argument(argc, argv, "--samples", smoke ? 20 : 2000);
    uint64_t rounds = bench_argument(argc, argv, "--rounds", smoke ? 1 : 7);
    uint64_t workers = bench_argument(argc, argv, "--workers", 2);
    if (ops == 0 || samples == 0 || rounds == 0 || workers == 0) {
        fprintf(stderr, "micro_pool: numbers must not be 0\n");
        return 2;
    }

    weir_options options = WEIR_OPTIONS_INIT;
    options.workers = (unsigned)workers;
    must(weir_runtime_create(&runtime, &options), "weir_runtime_create");
    measure_post(0, smoke ? 1000 : 100000);     /* warm up: pages, branch predictors, threads */
    for (uint64_t round = 1; round <= rounds; round++) {
        measure_post(round, ops);
        measure_self_repost(round, ops);
        measure_wake(round, samples);
        measure_ping_pong(round, smoke ? samples : samples * 10);
        fflush(stdout);
    }
    weir_runtime_destroy(runtime);
    return 0;
}
