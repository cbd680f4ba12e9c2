/* The lock of four bytes: excludes, and never forgets a sleeper. */
#include "os/lock.h"

#include <pthread.h>
#include <sched.h>

#include "asleep.h"
#include "os/thread.h"
#include "support/stress.h"
#include "support/test.h"

#define THREADS 4

static struct wr_lock lock;
static long counter;                    /* guarded by lock */
static _Atomic int done;

struct waiter {
    pthread_t thread;
    _Atomic int tid;
};

static void *lock_once(void *argument)
{
    struct waiter *waiter = argument;
    int tid = wr_thread_id();
    /* release: pairs with the acquire in await_asleep() */
    atomic_store_explicit(&waiter->tid, tid, memory_order_release);
    wr_lock(&lock);
    counter++;
    wr_unlock(&lock);
    /* release: pairs with the acquire in await_count() */
    atomic_fetch_add_explicit(&done, 1, memory_order_release);
    return NULL;
}

static void start_asleep(struct waiter *waiter)
{
    cr_assert_eq(pthread_create(&waiter->thread, NULL, lock_once, waiter), 0);
    cr_assert(await_asleep(&waiter->tid));
}

Test(lock, a_held_lock_cannot_be_had, .timeout = 30)
{
    cr_assert(wr_trylock(&lock));
    cr_assert_not(wr_trylock(&lock));
    wr_unlock(&lock);
    cr_assert(wr_trylock(&lock));
    wr_unlock(&lock);
}

Test(lock, unlock_wakes_who_sleeps, .timeout = 60)
{
    static struct waiter waiter;
    wr_lock(&lock);
    start_asleep(&waiter);
    cr_assert_eq(counter, 0);
    wr_unlock(&lock);
    cr_assert(await_count(&done, 1), "the sleeper was not woken");
    cr_assert_eq(pthread_join(waiter.thread, NULL), 0);
}

/* Each of them is woken by the one before, which must not take the lock as if it were alone. */
Test(lock, one_unlock_lets_all_sleepers_through, .timeout = 60)
{
    static struct waiter waiters[THREADS];
    wr_lock(&lock);
    for (int i = 0; i < THREADS; i++)
        start_asleep(&waiters[i]);
    wr_unlock(&lock);
    cr_assert(await_count(&done, THREADS), "only %d of %d came through", done, THREADS);
    for (int i = 0; i < THREADS; i++)
        cr_assert_eq(pthread_join(waiters[i].thread, NULL), 0);
    cr_assert_eq(counter, THREADS);
}

static unsigned rounds;

static void *count_up(void *argument)
{
    (void)argument;
    for (unsigned i = 0; i < rounds; i++) {
        wr_lock(&lock);
        long seen = counter;
        /* Long enough now and then for the others to spin, sleep and queue up. */
        if (i % 512 == 0)
            (void)sched_yield();
        counter = seen + 1;
        wr_unlock(&lock);
    }
    return NULL;
}

Test(lock, counts_right_under_contention, .timeout = 60)
{
    pthread_t threads[THREADS];
    rounds = support_rounds(100000);
    for (int i = 0; i < THREADS; i++)
        cr_assert_eq(pthread_create(&threads[i], NULL, count_up, NULL), 0);
    for (int i = 0; i < THREADS; i++)
        cr_assert_eq(pthread_join(threads[i], NULL), 0);
    cr_assert_eq(counter, (long)rounds * THREADS);
    cr_assert(wr_trylock(&lock), "the lock is not free at the end");
}
