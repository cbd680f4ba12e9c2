/* line.c: what the simulator (bench/sim) is fed with: what a cache line costs that another core
 * has written, and what waking a thread costs him who wakes and him who waits.
 *
 *     micro_line [--rounds N] [--ops N] [--samples N] [--first CPU] [--second CPU] [--smoke]
 *
 * One JSON line a round: nanoseconds, medians of the samples. The threads are pinned. Two virtual
 * CPUs may be two threads of one core: then `transfer` is a lower bound for other machines. */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "support/bench.h"

enum {
    REST_US = 100,              /* until he who waits is asleep */
    PATIENCE_NS = 1000000000,
};

static struct {
    _Alignas(128) _Atomic uint32_t line;        /* what the two take in turns */
    _Alignas(128) _Atomic uint32_t word;        /* what the sleeper sleeps on */
    _Alignas(128) atomic_int_least64_t woken;   /* when he woke */
    uint64_t turns;
    int cpu;
} peer;

static void pin(int cpu)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET((size_t)cpu, &set);
    if (sched_setaffinity(0, sizeof set, &set) != 0)
        fprintf(stderr, "micro_line: cannot run on CPU %d: %s\n", cpu, strerror(errno));
}

static void start(pthread_t *thread, void *(*run)(void *))
{
    if (pthread_create(thread, NULL, run, NULL) != 0) {
        fprintf(stderr, "micro_line: no thread\n");
        exit(1);
    }
}

/* Waits until the line shows the `parity`, then takes it over with a read-modify-write. Where one
 * CPU has to do for both threads the other would wait for a time slice, hence the yield. */
static void take_turn(uint32_t parity)
{
    unsigned tries = 0;
    while ((atomic_load_explicit(&peer.line, memory_order_relaxed) & 1) != parity)
        if (++tries % 10000 == 0)
            sched_yield();
    atomic_fetch_add_explicit(&peer.line, 1, memory_order_relaxed);
}

static void *run_turns(void *unused)
{
    pin(peer.cpu);
    for (uint64_t i = 0; i < peer.turns; i++)
        take_turn(1);
    return unused;
}

static double measure_transfer(uint64_t turns)
{
    pthread_t thread;
    peer.turns = turns;
    start(&thread, run_turns);
    take_turn(0);               /* the other one runs */
    int64_t begin = bench_now_ns();
    for (uint64_t i = 1; i < turns; i++)
        take_turn(0);
    int64_t spent = bench_now_ns() - begin;
    pthread_join(thread, NULL);
    return (double)spent / (double)(2 * (turns - 1));
}

static double measure_local(uint64_t turns)
{
    int64_t begin = bench_now_ns();
    for (uint64_t i = 0; i < turns; i++)
        atomic_fetch_add_explicit(&peer.line, 1, memory_order_relaxed);
    return (double)(bench_now_ns() - begin) / (double)turns;
}

static void *run_sleeper(void *unused)
{
    pin(peer.cpu);
    for (uint64_t i = 1; i <= peer.turns; i++) {
        while (atomic_load_explicit(&peer.word, memory_order_relaxed) < i)
            bench_futex_wait(&peer.word, (uint32_t)i - 1, PATIENCE_NS);
        atomic_store_explicit(&peer.woken, bench_now_ns(), memory_order_relaxed);
    }
    return unused;
}

static void measure_wake(uint64_t samples, double *ret_call, double *ret_latency)
{
    static struct bench_histogram calls, latencies;
    pthread_t thread;

    memset(&calls, 0, sizeof calls);
    memset(&latencies, 0, sizeof latencies);
    peer.turns = samples;
    atomic_store_explicit(&peer.word, 0, memory_order_relaxed);
    start(&thread, run_sleeper);
    for (uint64_t i = 0; i < samples; i++) {
        usleep(REST_US);
        atomic_store_explicit(&peer.woken, 0, memory_order_relaxed);
        int64_t begin = bench_now_ns(), woken;
        atomic_fetch_add_explicit(&peer.word, 1, memory_order_relaxed);
        bench_futex_wake(&peer.word);
        bench_record(&calls, bench_now_ns() - begin);
        while ((woken = atomic_load_explicit(&peer.woken, memory_order_relaxed)) == 0)
            sched_yield();
        bench_record(&latencies, woken - begin);
    }
    pthread_join(thread, NULL);
    *ret_call = (double)bench_percentile(&calls, 0.5);
    *ret_latency = (double)bench_percentile(&latencies, 0.5);
}

static double measure_epoll(uint64_t turns)
{
    struct epoll_event event;
    int epoll = epoll_create1(EPOLL_CLOEXEC);
    int64_t begin = bench_now_ns();
    for (uint64_t i = 0; i < turns; i++)
        if (epoll_wait(epoll, &event, 1, 0) != 0)
            exit(1);
    double spent = (double)(bench_now_ns() - begin) / (double)turns;
    close(epoll);
    return spent;
}

int main(int argc, char **argv)
{
    static const char *const known[] = {
        "--rounds=", "--ops=", "--samples=", "--first=", "--second=", "--smoke", NULL,
    };
    bench_only(argc, argv, known);
    int smoke = bench_flag(argc, argv, "--smoke");
    uint64_t rounds = bench_argument(argc, argv, "--rounds", smoke ? 1 : 7);
    uint64_t ops = bench_argument(argc, argv, "--ops", smoke ? 2000 : 1000000);
    uint64_t samples = bench_argument(argc, argv, "--samples", smoke ? 20 : 2000);
    int first = (int)bench_argument(argc, argv, "--first", 0);
    peer.cpu = (int)bench_argument(argc, argv, "--second", 1);
    if (rounds == 0 || ops < 2 || samples == 0) {
        fprintf(stderr, "micro_line: numbers must not be 0\n");
        return 2;
    }
    pin(first);
    for (uint64_t round = 1; round <= rounds; round++) {
        double wake = 0, latency = 0;
        double local = measure_local(ops), epoll = measure_epoll(ops / 2);
        atomic_store_explicit(&peer.line, 0, memory_order_relaxed);
        double transfer = measure_transfer(ops);
        measure_wake(samples, &wake, &latency);
        printf("{\"round\": %llu, \"local_ns\": %.1f, \"transfer_ns\": %.1f, \"epoll_ns\": %.0f, ",
               (unsigned long long)round, local, transfer, epoll);
        printf("\"wake_ns\": %.0f, \"latency_ns\": %.0f}\n", wake, latency);
        fflush(stdout);
    }
    return 0;
}
