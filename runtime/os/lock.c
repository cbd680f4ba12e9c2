/* lock.c: the slow ways through the lock of lock.h.
 *
 * States of the word: 0 free, 1 held, 2 held and somebody may sleep.
 *   lock     0 -> 1              the fast way
 *   slow     any -> 2            by exchange; who finds 0 has the lock, others sleep on 2
 *   unlock   1|2 -> 0            wakes one sleeper if it found 2
 * Invariant: a thread sleeps only while the word is 2, or a wake for it is on its way. A thread
 * that got the lock in the slow way cannot know whether others sleep, so it leaves 2 behind: one
 * wake too many at the end of a contended stretch, and never one too few. */
#include "os/lock.h"

#include "base/cpu_relax.h"
#include "os/futex.h"

/* The sections are short: the holder is likely gone before a sleep and a wake would be done. */
#define SPINS_MAX 64

void wr_lock_slow(struct wr_lock *lock)
{
    for (unsigned i = 0; i < SPINS_MAX; i++) {
        /* Looking first keeps the line shared among those who spin. */
        if (atomic_load_explicit(&lock->word, memory_order_relaxed) == 0 && wr_trylock(lock))
            return;
        wr_cpu_relax();
    }
    /* acquire: pairs with the release in wr_unlock */
    while (atomic_exchange_explicit(&lock->word, 2, memory_order_acquire) != 0)
        (void)wr_futex_wait(&lock->word, 2, WEIR_NEVER);
}

void wr_unlock_slow(struct wr_lock *lock)
{
    (void)wr_futex_wake(&lock->word, 1);
}
