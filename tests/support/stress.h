/* stress.h: a seed that is printed, random numbers from it, and random yields that widen races. */
#ifndef WEIR_TESTS_SUPPORT_STRESS_H
#define WEIR_TESTS_SUPPORT_STRESS_H

#include <stdint.h>

/* WEIR_SEED when it is set, else the time; printed once a process on standard error. */
uint64_t support_seed(void);

/* One generator a thread, never shared: start it with the seed and the thread's number. */
struct support_random {
    uint64_t state;
};
struct support_random support_random(uint64_t seed, unsigned thread);
uint64_t support_next(struct support_random *random);
/* 0 .. below - 1. */
uint32_t support_below(struct support_random *random, uint32_t below);

/* Nothing, a few pauses, a sched_yield or (rarely) a sleep of up to 100 microseconds. */
void support_yield(struct support_random *random);

/* `normal` times WEIR_STRESS (a factor, default 1), divided by 10 in TSan builds and by 50 under
 * valgrind (WEIR_VALGRIND=1); at least 1. */
unsigned support_rounds(unsigned normal);

/* How long a run that is bounded by time goes on, in milliseconds: WEIR_STRESS_SECONDS when it is
 * set, else `normal`. */
int64_t support_span_ms(int64_t normal);

#endif
