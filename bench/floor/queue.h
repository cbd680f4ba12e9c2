/* queue.h: what the prototype's workers take from, one queue with one producer at a time, and where
 * they sleep when it is empty. */
#ifndef BENCH_FLOOR_QUEUE_H
#define BENCH_FLOOR_QUEUE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* What is queued at once, at most; nobody looks. A power of two. */
enum { QUEUE_MAX = 1 << 16 };

struct sleeper {
    _Atomic uint32_t rung;
    struct sleeper *next;
};

/* One thread at a time; what orders the producers is theirs. */
void queue_push(void *item);
/* Any thread. NULL: it is empty. */
void *queue_pop(void);
bool queue_is_empty(void);

/* Wakes one sleeper, if there is one, after a push. */
void wake_one(void);
/* Sleeps until woken, unless the queue is not empty or `other_work()` says that there is some. */
void park(struct sleeper *own, bool (*other_work)(void));

/* Starts a thread that looks every millisecond and wakes a sleeper when nobody polls. */
void start_guard(bool (*nobody_polls)(void));

#endif
