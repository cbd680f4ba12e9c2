#include "support/stress.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static uint64_t seed;
static pthread_once_t seed_once = PTHREAD_ONCE_INIT;

static void choose_seed(void)
{
    const char *text = getenv("WEIR_SEED");
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    seed = text ? strtoull(text, NULL, 0) : (uint64_t)now.tv_sec * 1000003u + (uint64_t)now.tv_nsec;
    fprintf(stderr, "seed: WEIR_SEED=%llu\n", (unsigned long long)seed);
}

uint64_t support_seed(void)
{
    pthread_once(&seed_once, choose_seed);
    return seed;
}

struct support_random support_random(uint64_t from, unsigned thread)
{
    return (struct support_random){.state = from ^ (0x9e3779b97f4a7c15u * (thread + 1u))};
}

/* SplitMix64: every state is good, also 0. */
uint64_t support_next(struct support_random *random)
{
    uint64_t z = random->state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

uint32_t support_below(struct support_random *random, uint32_t below)
{
    return (uint32_t)(((support_next(random) >> 32) * below) >> 32);
}

void support_yield(struct support_random *random)
{
    uint32_t kind = support_below(random, 64);

    if (kind == 0) {
        struct timespec pause = {.tv_nsec = (long)support_below(random, 100000)};
        nanosleep(&pause, NULL);
    } else if (kind < 8) {
        sched_yield();
    } else if (kind < 24) {
        for (volatile uint32_t i = support_below(random, 200); i > 0; i = i - 1)
            ;
    }
}

unsigned support_rounds(unsigned normal)
{
    const char *factor = getenv("WEIR_STRESS");
    double rounds = normal * (factor ? strtod(factor, NULL) : 1.0);

#if defined(WEIR_TSAN)
    rounds /= 10;
#endif
    if (getenv("WEIR_VALGRIND"))
        rounds /= 50;
    return rounds < 1 ? 1u : (unsigned)rounds;
}

int64_t support_span_ms(int64_t normal)
{
    const char *text = getenv("WEIR_STRESS_SECONDS");
    double seconds = text ? strtod(text, NULL) : 0;

    return seconds > 0 ? (int64_t)(seconds * 1000) : normal;
}
