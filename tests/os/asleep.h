/* asleep.h: waits until a thread sleeps in the kernel, so that a test need not guess when. */
#ifndef WEIR_TESTS_OS_ASLEEP_H
#define WEIR_TESTS_OS_ASLEEP_H

#include <stdatomic.h>
#include <stdbool.h>

/* *tid is 0 until the thread has nothing left to do but to fall asleep. False after ten seconds. */
bool await_asleep(const _Atomic int *tid);

/* *count has reached `least`. False after ten seconds. */
bool await_count(const _Atomic int *count, int least);

#endif
