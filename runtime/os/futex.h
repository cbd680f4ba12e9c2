/* futex.h: sleep on a word until somebody wakes it or an absolute monotonic deadline passes. */
#ifndef WR_OS_FUTEX_H
#define WR_OS_FUTEX_H

#include <stdatomic.h>
#include <stdint.h>

#include <weir/base.h>

/* Sleeps while *word == expected. Returns 0 woken or the word differed (or a spurious wake; EINTR
 * counts as one), -ETIMEDOUT. WEIR_NEVER: no deadline. */
int wr_futex_wait(_Atomic uint32_t *word, uint32_t expected, weir_time deadline);

/* Wakes up to `count` sleepers; returns how many. */
int wr_futex_wake(_Atomic uint32_t *word, int count);

#endif
