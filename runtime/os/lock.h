/* lock.h: a lock of four bytes for short sections: spins a little, then sleeps in the kernel.
 * Zero-initialised is unlocked. Never held across a callback. States: 0 free, 1 held, 2 held and
 * somebody may sleep. The exchange to 0 (release) in unlock pairs with the acquire in lock. */
#ifndef WR_OS_LOCK_H
#define WR_OS_LOCK_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct wr_lock {
    _Atomic uint32_t word;
};

void wr_lock_slow(struct wr_lock *lock);
void wr_unlock_slow(struct wr_lock *lock);

static inline bool wr_trylock(struct wr_lock *lock)
{
    uint32_t free = 0;
    /* acquire: pairs with the release in wr_unlock */
    return atomic_compare_exchange_strong_explicit(&lock->word, &free, 1, memory_order_acquire,
                                                   memory_order_relaxed);
}

static inline void wr_lock(struct wr_lock *lock)
{
    if (!wr_trylock(lock))
        wr_lock_slow(lock);
}

static inline void wr_unlock(struct wr_lock *lock)
{
    /* release: pairs with the acquire in wr_trylock and wr_lock_slow */
    if (atomic_exchange_explicit(&lock->word, 0, memory_order_release) == 2)
        wr_unlock_slow(lock);
}

#endif
