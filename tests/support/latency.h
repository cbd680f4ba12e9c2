/* latency.h: spans of time that a test collects, and what most of them were below. */
#ifndef WEIR_TESTS_SUPPORT_LATENCY_H
#define WEIR_TESTS_SUPPORT_LATENCY_H

#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#include <weir/base.h>

#include "support/test.h"

#define LATENCY_MAX 400000

struct latency {
    _Atomic size_t count;
    weir_time spans[LATENCY_MAX]; /* what comes after the last one is dropped */
};

/* Any thread. */
static inline void latency_add(struct latency *latency, weir_time span)
{
    size_t at = atomic_fetch_add(&latency->count, 1);
    if (at < LATENCY_MAX)
        latency->spans[at] = span;
}

static inline int latency_compare_(const void *a, const void *b)
{
    weir_time x = *(const weir_time *)a, y = *(const weir_time *)b;
    return (x > y) - (x < y);
}

static inline size_t latency_count(struct latency *latency)
{
    size_t count = atomic_load(&latency->count);
    return count < LATENCY_MAX ? count : LATENCY_MAX;
}

/* When nobody adds any more: sorts, and says once how it was. */
static inline void latency_sort(struct latency *latency, const char *what)
{
    size_t count = latency_count(latency);
    cr_assert_gt(count, 0, "%s: nothing was measured", what);
    qsort(latency->spans, count, sizeof latency->spans[0], latency_compare_);
    const weir_time *at = latency->spans;
    fprintf(stderr, "%s: n %zu, us: p50 %.0f p99 %.0f p99.9 %.0f max %.0f\n", what, count,
            (double)at[count / 2] / 1e3, (double)at[count * 99 / 100] / 1e3,
            (double)at[count * 999 / 1000] / 1e3, (double)at[count - 1] / 1e3);
}

/* After latency_sort(): what `of_1000` in a thousand are not above, in microseconds; 1000: all. */
static inline long latency_us(const struct latency *latency, size_t of_1000)
{
    size_t count = atomic_load(&latency->count);
    count = count < LATENCY_MAX ? count : LATENCY_MAX;
    size_t at = count * of_1000 / 1000;
    return (long)(latency->spans[at < count ? at : count - 1] / 1000);
}

/* How the machine treats a thread that only sleeps: a measure for others in the same run. */
struct pulse {
    struct latency late;
    _Atomic unsigned stop;
    pthread_t thread;
};

static inline void *pulse_beat_(void *context)
{
    struct pulse *pulse = context;
    const struct timespec span = {.tv_nsec = 1000000};

    while (!atomic_load(&pulse->stop)) {
        weir_time due = weir_now() + span.tv_nsec;
        nanosleep(&span, NULL);
        latency_add(&pulse->late, weir_now() - due);
    }
    return NULL;
}

static inline void pulse_begin(struct pulse *pulse)
{
    atomic_store(&pulse->stop, 0);
    atomic_store(&pulse->late.count, 0);
    cr_assert_eq(pthread_create(&pulse->thread, NULL, pulse_beat_, pulse), 0);
}

/* How late it was at worst, in microseconds. */
static inline long pulse_end(struct pulse *pulse)
{
    atomic_store(&pulse->stop, 1);
    pthread_join(pulse->thread, NULL);
    latency_sort(&pulse->late, "a thread that only sleeps, lateness");
    return latency_us(&pulse->late, 1000);
}

#endif
