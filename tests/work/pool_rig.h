/* pool_rig.h: a pool for a test, who ticks it, gates that callbacks wait at, and bounded
 * waiting. */
#ifndef WEIR_TESTS_POOL_RIG_H
#define WEIR_TESTS_POOL_RIG_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "work/pool.h"

struct rig {
    struct wr_pool *pool;
    struct wr_pool_options options;     /* what the test sets; the rest is filled in */
    struct wr_alloc alloc;
    struct wr_log log;
    bool ticks;                         /* a thread ticks after watch(), as a poller does */
    pthread_t ticker;
    _Atomic bool end;
    _Atomic bool wanted;
    _Atomic unsigned watches;           /* calls of watch() */
    _Atomic unsigned lines;             /* log lines */
    char last_line[200];
    int threads_before;
};

/* workers == 0: 2; workers_max == 0: workers + 8; blocking_max == 0: 4. */
void rig_start(struct rig *rig);
/* Destroys the pool and checks that all memory and all threads are back. */
void rig_stop(struct rig *rig);
/* As rig_start(), and gives what wr_pool_create() answers. */
int rig_try(struct rig *rig);
struct wr_pool_stats rig_stats(struct rig *rig);
/* Waits until that many workers are parked (in the idle list; a moment later they sleep). */
bool rig_await_parked(struct rig *rig, unsigned parked);
/* Waits until *value >= least, for 5 s at most. */
bool await_at_least(_Atomic unsigned *value, unsigned least);
bool await_at_least_ms(_Atomic unsigned *value, unsigned least, int milliseconds);
void sleep_ms(int milliseconds);

/* A place where callbacks stay until it is opened. */
struct gate {
    _Atomic unsigned waiting;           /* how many have come, in all */
    _Atomic bool open;
};
void gate_wait(struct gate *gate);
void gate_open(struct gate *gate);

/* An item that counts, then waits at a gate if it has one, announced if it says so. */
struct job {
    weir_work work;
    _Atomic unsigned *ran;
    struct gate *gate;
    bool announced;
    _Atomic unsigned *done;
};
void job_init(struct job *job, _Atomic unsigned *ran, struct gate *gate, bool announced);

#endif
