/* test_waiters.c: threads that wait in synchronous calls against peers that answer at once: each
 * edge falls somewhere between the last look and the sleep, sooner or later also in between. */
#include "support/rig.h"

#include <errno.h>
#include <sys/time.h>
#include <unistd.h>

#include "support/stress.h"

#define PAIRS_MAX 16

struct pair {
    weir_socket *socket;
    int peer;
    pthread_t waiter, answerer;
    struct support_random random;
    weir_time end;
    _Atomic uint32_t rounds;
    int failed;
};

/* Counts up with its peer; a call that sleeps for two seconds has missed its wake-up. */
static void *wait_and_count(void *context)
{
    struct pair *pair = context;
    uint32_t number = 0, back;

    while (weir_now() < pair->end && !pair->failed) {
        number++;
        ssize_t n = weir_send_wait(pair->socket, &number, sizeof number, weir_after_ms(2000));
        if (n == sizeof number) {
            if (support_below(&pair->random, 2))
                support_yield(&pair->random);
            n = weir_recv_wait(pair->socket, &back, sizeof back, weir_after_ms(2000));
        }
        if (n != sizeof back || back != number)
            pair->failed = n < 0 ? (int)n : -EBADMSG;
        atomic_store(&pair->rounds, number);
    }
    return NULL;
}

static void *answer_at_once(void *context)
{
    struct pair *pair = context;
    struct support_random random = support_random(support_seed(), 1000 + (unsigned)pair->peer);
    uint32_t number;

    while (recv(pair->peer, &number, sizeof number, MSG_WAITALL) == sizeof number) {
        for (uint32_t spin = support_below(&random, 2000); spin > 0; spin--)
            __asm__ volatile("" ::: "memory");
        if (send(pair->peer, &number, sizeof number, MSG_NOSIGNAL) != sizeof number)
            break;
    }
    return NULL;
}

static void count_up(unsigned pairs, bool stuck, int64_t milliseconds)
{
    struct rig rig;
    struct rig_busy busy;
    static struct pair all[PAIRS_MAX];
    uint64_t rounds = 0;

    rig_open(&rig, 1);
    if (stuck)
        rig_busy_begin(&rig, &busy, 1);
    memset(all, 0, sizeof all);
    for (unsigned i = 0; i < pairs; i++) {
        all[i].peer = rig_unix(&rig, NULL, &all[i].socket);
        all[i].random = support_random(support_seed(), i);
        all[i].end = weir_after_ms(milliseconds);
        cr_assert_eq(pthread_create(&all[i].answerer, NULL, answer_at_once, &all[i]), 0);
        cr_assert_eq(pthread_create(&all[i].waiter, NULL, wait_and_count, &all[i]), 0);
    }
    for (unsigned i = 0; i < pairs; i++) {
        pthread_join(all[i].waiter, NULL);
        cr_expect_eq(all[i].failed, 0, "pair %u of %u failed with %d in round %u", i, pairs,
                     all[i].failed, atomic_load(&all[i].rounds));
        rounds += atomic_load(&all[i].rounds);
        shutdown(all[i].peer, SHUT_RDWR);
        pthread_join(all[i].answerer, NULL);
        close(all[i].peer);
    }
    fprintf(stderr, "%u pairs: %llu rounds\n", pairs, (unsigned long long)rounds);
    if (stuck)
        rig_busy_end(&busy);
    rig_close(&rig);
}

/* W1 */
Test(waiters, no_wake_up_is_missed_while_all_workers_are_stuck, .timeout = 3600)
{
    for (unsigned pairs = 1; pairs <= PAIRS_MAX; pairs *= 4)
        count_up(pairs, true, support_span_ms(900) / 3);
}

Test(waiters, no_wake_up_is_missed_beside_an_idle_worker, .timeout = 3600)
{
    for (unsigned pairs = 1; pairs <= PAIRS_MAX; pairs *= 4)
        count_up(pairs, false, support_span_ms(600) / 3);
}
