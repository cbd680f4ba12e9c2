/* pool_peer.h: the measurements of micro/pool.c for a pool that is not ours. C11 and C++17.
 *
 * A program includes this, defines the four functions below and calls peer_main(). It prints the
 * same JSON lines. What is posted is a function and its argument, which is what pools take. */
#ifndef BENCH_PEERS_POOL_PEER_H
#define BENCH_PEERS_POOL_PEER_H

#include <linux/futex.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { PEER_ITEMS_MAX = 1 << 16, PEER_PATIENCE_S = 20, PEER_REST_US = 250 };

typedef void peer_function(void *argument);

static void peer_open(unsigned workers);
/* The caller uses each index once until what it posted has ended. */
static void peer_post(unsigned index, peer_function *run, void *argument);
/* Whether an item may post from inside the pool. */
static int peer_posts_inside(void);
/* While the main thread waits: returns soon, or when `*word` is not `value` any more. */
static void peer_wait(uint32_t *word, uint32_t value);

static int64_t peer_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static inline void peer_futex_wait(uint32_t *word, uint32_t value)
{
    struct timespec span = { 0, 100000000 };
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, &span, NULL, 0);
}

static inline void peer_futex_wake(uint32_t *word, int count)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, count, NULL, NULL, 0);
}

static uint32_t peer_bell;
static unsigned peer_left;
static uint64_t peer_reposts;
static int64_t peer_started;

static void peer_ring(void)
{
    __atomic_store_n(&peer_bell, 1, __ATOMIC_RELEASE);
    peer_futex_wake(&peer_bell, 1);
}

static void peer_await(void)
{
    int64_t end = peer_now() + PEER_PATIENCE_S * INT64_C(1000000000);
    while (!__atomic_load_n(&peer_bell, __ATOMIC_ACQUIRE)) {
        peer_wait(&peer_bell, 0);
        if (peer_now() > end) {
            fprintf(stderr, "something that was posted did not run\n");
            _exit(1);
        }
    }
    __atomic_store_n(&peer_bell, 0, __ATOMIC_RELAXED);
}

static void peer_count(void *argument)
{
    (void)argument;
    if (__atomic_fetch_sub(&peer_left, 1, __ATOMIC_ACQ_REL) == 1)
        peer_ring();
}

static void peer_again(void *argument)
{
    if (--peer_reposts > 0)
        peer_post((unsigned)(peer_reposts & 1), peer_again, argument);
    else
        peer_ring();
}

static void peer_note(void *argument)
{
    (void)argument;
    __atomic_store_n(&peer_started, peer_now(), __ATOMIC_RELEASE);
}

static void peer_answer(void *argument)
{
    (void)argument;
    peer_ring();
}

static void peer_print(const char *way, const char *metric, uint64_t round, uint64_t ops, double ns)
{
    printf("{\"metric\": \"%s\", \"way\": \"%s\", \"round\": %llu, \"ops\": %llu, \"ns\": %.1f}\n",
           metric, way, (unsigned long long)round, (unsigned long long)ops, ns);
}

static double peer_measure_post(uint64_t ops)
{
    int64_t spent = 0;
    for (uint64_t done = 0; done < ops;) {
        uint64_t count = ops - done, most = PEER_ITEMS_MAX;
        count = count < most ? count : most;
        __atomic_store_n(&peer_left, (unsigned)count, __ATOMIC_RELAXED);
        int64_t at = peer_now();
        for (uint64_t i = 0; i < count; i++)
            peer_post((unsigned)i, peer_count, NULL);
        peer_await();
        spent += peer_now() - at;
        done += count;
    }
    return (double)spent / (double)ops;
}

static int peer_compare(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? -1 : x > y;
}

/* Until the workers sleep, and what has ended is tidied up by who has a loop. */
static void peer_rest(void)
{
    usleep(PEER_REST_US);
    peer_wait(&peer_bell, 1);
    usleep(PEER_REST_US);
}

/* The poster spins, so that the worker wakes up on another core. */
static void peer_measure_wake(const char *way, uint64_t round, uint64_t samples)
{
    int64_t *times = (int64_t *)calloc(samples, sizeof *times);
    for (uint64_t i = 0; i < samples; i++) {
        int64_t started;
        peer_rest();
        int64_t at = peer_now();
        peer_post(0, peer_note, NULL);
        while ((started = __atomic_load_n(&peer_started, __ATOMIC_ACQUIRE)) == 0)
            ;
        __atomic_store_n(&peer_started, 0, __ATOMIC_RELAXED);
        times[i] = started - at;
    }
    peer_rest();
    qsort(times, samples, sizeof *times, peer_compare);
    peer_print(way, "wake_p50", round, samples, (double)times[samples / 2]);
    peer_print(way, "wake_p99", round, samples, (double)times[samples * 99 / 100]);
    free(times);
}

/* PROGRAM WORKERS ROUNDS OPS SAMPLES */
static int peer_main(const char *way, int argc, char **argv)
{
    uint64_t number[4] = { 2, 1, 100000, 100 };
    for (int i = 0; i < 4 && i + 1 < argc; i++)
        number[i] = strtoull(argv[i + 1], NULL, 10);
    uint64_t rounds = number[1], ops = number[2], samples = number[3];
    peer_open((unsigned)number[0]);
    peer_measure_post(ops < 100000 ? ops : 100000);
    for (uint64_t round = 1; round <= rounds; round++) {
        peer_print(way, "post", round, ops, peer_measure_post(ops));
        if (peer_posts_inside()) {
            peer_reposts = ops;
            int64_t at = peer_now();
            peer_post(0, peer_again, NULL);
            peer_await();
            peer_print(way, "self_repost", round, ops, (double)(peer_now() - at) / (double)ops);
        }
        peer_measure_wake(way, round, samples);
        int64_t at = peer_now();
        for (uint64_t i = 0; i < samples * 10; i++) {
            peer_post(0, peer_answer, NULL);
            peer_await();
        }
        peer_print(way, "ping_pong", round, samples * 10,
                   (double)(peer_now() - at) / (double)(samples * 10));
        fflush(stdout);
    }
    _exit(0);       /* the pool's threads are left as they are */
}

#endif
