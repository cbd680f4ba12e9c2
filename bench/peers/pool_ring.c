/* pool_ring.c: what a pool cannot do without: a bounded ring of functions with a sequence number a
 * cell, workers that look a little and then sleep on one futex, and a poster that wakes one only
 * when somebody sleeps. It promises nothing else: no growth, no fairness, no stuck workers. */
#include <pthread.h>
#include <sched.h>

#include "pool_peer.h"

#define CELLS (2u * PEER_ITEMS_MAX)
#define LOOKS 200
#define LINE _Alignas(64)

struct cell {
    LINE uint32_t sequence;
    peer_function *run;
    void *argument;
};

static struct cell cells[CELLS];
static LINE uint32_t head;
static LINE uint32_t tail;
static LINE uint32_t sleepers;
static uint32_t wakes;

static void peer_post(unsigned index, peer_function *run, void *argument)
{
    uint32_t at = __atomic_load_n(&tail, __ATOMIC_RELAXED);
    struct cell *cell;
    (void)index;
    for (;;) {
        cell = &cells[at % CELLS];
        int32_t ahead = (int32_t)(__atomic_load_n(&cell->sequence, __ATOMIC_ACQUIRE) - at);
        if (ahead == 0 && __atomic_compare_exchange_n(&tail, &at, at + 1, 1, __ATOMIC_RELAXED,
                                                      __ATOMIC_RELAXED))
            break;
        if (ahead < 0)
            sched_yield();          /* full */
        if (ahead != 0)
            at = __atomic_load_n(&tail, __ATOMIC_RELAXED);
    }
    cell->run = run;
    cell->argument = argument;
    /* An exchange, so that the look at the sleepers is not made before it. */
    (void)__atomic_exchange_n(&cell->sequence, at + 1, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&sleepers, __ATOMIC_SEQ_CST) > 0) {
        __atomic_fetch_add(&wakes, 1, __ATOMIC_RELAXED);
        peer_futex_wake(&wakes, 1);
    }
}

static int pop(peer_function **run, void **argument)
{
    uint32_t at = __atomic_load_n(&head, __ATOMIC_RELAXED);
    struct cell *cell;
    for (;;) {
        cell = &cells[at % CELLS];
        int32_t ahead = (int32_t)(__atomic_load_n(&cell->sequence, __ATOMIC_ACQUIRE) - (at + 1));
        if (ahead < 0)
            return 0;               /* empty */
        if (ahead == 0 && __atomic_compare_exchange_n(&head, &at, at + 1, 1, __ATOMIC_RELAXED,
                                                      __ATOMIC_RELAXED))
            break;
        if (ahead > 0)
            at = __atomic_load_n(&head, __ATOMIC_RELAXED);
    }
    *run = cell->run;
    *argument = cell->argument;
    __atomic_store_n(&cell->sequence, at + CELLS, __ATOMIC_RELEASE);
    return 1;
}

static void *work(void *unused)
{
    peer_function *run;
    void *argument;
    for (;;) {
        int found = 0;
        for (int i = 0; i < LOOKS && !found; i++)
            found = pop(&run, &argument);
        if (!found) {
            uint32_t seen = __atomic_load_n(&wakes, __ATOMIC_RELAXED);
            __atomic_fetch_add(&sleepers, 1, __ATOMIC_SEQ_CST);
            found = pop(&run, &argument);
            if (!found)
                peer_futex_wait(&wakes, seen);
            __atomic_fetch_sub(&sleepers, 1, __ATOMIC_RELAXED);
        }
        if (found)
            run(argument);
    }
    return unused;
}

static void peer_open(unsigned workers)
{
    for (uint32_t i = 0; i < CELLS; i++)
        cells[i].sequence = i;
    for (unsigned i = 0; i < workers; i++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, work, NULL) != 0)
            _exit(1);
    }
}

static int peer_posts_inside(void)
{
    return 1;
}

static void peer_wait(uint32_t *word, uint32_t value)
{
    if (value == 0)
        peer_futex_wait(word, value);
}

int main(int argc, char **argv)
{
    return peer_main("ring", argc, argv);
}
