/* queue.c: see queue.h. */
#include "floor/queue.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include "support/bench.h"

static struct {
    _Alignas(64) atomic_ulong head;
    _Alignas(64) atomic_ulong tail;
    _Alignas(64) _Atomic(void *) slots[QUEUE_MAX];
} queue;

/* The count is read without the lock. */
static struct {
    pthread_mutex_t lock;
    struct sleeper *first;
    atomic_uint count;
} parked = { .lock = PTHREAD_MUTEX_INITIALIZER };

bool queue_is_empty(void)
{
    return atomic_load_explicit(&queue.head, memory_order_relaxed) ==
           atomic_load_explicit(&queue.tail, memory_order_relaxed);
}

void queue_push(void *item)
{
    unsigned long tail = atomic_load_explicit(&queue.tail, memory_order_relaxed);
    atomic_store_explicit(&queue.slots[tail % QUEUE_MAX], item, memory_order_relaxed);
    /* Release: pairs with the acquire in queue_pop(), for the slot. */
    atomic_store_explicit(&queue.tail, tail + 1, memory_order_release);
}

void *queue_pop(void)
{
    unsigned long head = atomic_load_explicit(&queue.head, memory_order_relaxed);
    for (;;) {
        /* Acquire: pairs with the release in queue_push(). */
        if (head == atomic_load_explicit(&queue.tail, memory_order_acquire))
            return NULL;
        void *item = atomic_load_explicit(&queue.slots[head % QUEUE_MAX], memory_order_relaxed);
        if (atomic_compare_exchange_weak_explicit(&queue.head, &head, head + 1,
                                                  memory_order_relaxed, memory_order_relaxed))
            return item;
    }
}

void wake_one(void)
{
    /* Both sides are read-modify-writes of the count (release and acquire, they pair): either this
     * one comes second and sees the sleeper, or the sleeper's does and he sees the push. */
    if (atomic_fetch_add_explicit(&parked.count, 0, memory_order_acq_rel) == 0)
        return;
    pthread_mutex_lock(&parked.lock);
    struct sleeper *sleeper = parked.first;
    if (sleeper) {
        parked.first = sleeper->next;
        atomic_fetch_sub_explicit(&parked.count, 1, memory_order_relaxed);
    }
    pthread_mutex_unlock(&parked.lock);
    if (sleeper) {
        atomic_store_explicit(&sleeper->rung, 1, memory_order_relaxed);
        bench_futex_wake(&sleeper->rung);
    }
}

void park(struct sleeper *own, bool (*other_work)(void))
{
    atomic_store_explicit(&own->rung, 0, memory_order_relaxed);
    pthread_mutex_lock(&parked.lock);
    /* Pairs with the one in wake_one(). */
    atomic_fetch_add_explicit(&parked.count, 1, memory_order_acq_rel);
    if (!queue_is_empty() || other_work()) {
        atomic_fetch_sub_explicit(&parked.count, 1, memory_order_relaxed);
        pthread_mutex_unlock(&parked.lock);
        return;
    }
    own->next = parked.first;
    parked.first = own;
    pthread_mutex_unlock(&parked.lock);
    while (!atomic_load_explicit(&own->rung, memory_order_relaxed))
        bench_futex_wait(&own->rung, 0, -1);
}

static bool (*is_unguarded)(void);

static void *run_guard(void *unused)
{
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, NULL);     /* they are for the thread that waits for them */
    for (;;) {
        usleep(1000);
        if (is_unguarded())
            wake_one();
    }
    return unused;
}

void start_guard(bool (*nobody_polls)(void))
{
    pthread_t thread;

    is_unguarded = nobody_polls;
    if (pthread_create(&thread, NULL, run_guard, NULL) != 0)
        exit(1);
}
