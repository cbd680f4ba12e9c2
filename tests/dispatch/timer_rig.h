/* timer_rig.h: a runtime made of glass for weir_timer: a clock that stands, two pollers that turn
 * when told to, a pool that runs one item at a time when told to. Every call that the timer makes
 * of its surroundings can be made to let something else happen first: that is how races are
 * replayed. */
#ifndef WEIR_TESTS_DISPATCH_TIMER_RIG_H
#define WEIR_TESTS_DISPATCH_TIMER_RIG_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include <weir/timer.h>

#include "dispatch/timer.h"

#define RIG_SHARDS 2

/* Run once: taken off before it is called, so that what it does may come by again. */
typedef void rig_hook(void);

struct timer_rig {
    struct wr_timers timers[RIG_SHARDS];
    _Atomic weir_time now;
    weir_time step;                     /* the clock moves by so much each time it is read */
    _Atomic uint32_t shard;             /* of whoever asks */
    _Atomic bool stopping;
    bool gone;                          /* destroyed: whoever asks anything fails the test */
    _Atomic unsigned rings, blocks, unblocks;
    pthread_mutex_t lock;               /* of the queue */
    weir_work *first, *last;
    rig_hook *on_timers, *on_shard, *on_ring, *on_clock, *on_block;
};

extern struct timer_rig rig;

void rig_start(void);
weir_runtime *rig_runtime(void);
/* Both pollers: what is due at `now` expires; then they sleep. The clock only moves forward. */
void rig_turn(weir_time now);
unsigned rig_queued(void);
/* A worker: runs the oldest item. False: there is none. */
bool rig_run(void);
void rig_run_all(void);
/* Runs posted items of the test's own. */
void rig_post(weir_work *work);
void rig_destroy(void);

#define CALLS_MAX 64

/* A timer, what its callback does, and what it saw. */
struct probe {
    weir_timer timer;
    void (*act)(struct probe *probe);
    unsigned calls;
    weir_time at[CALLS_MAX];
    uint64_t missed[CALLS_MAX];
    bool inside;
    weir_time takes[CALLS_MAX];         /* how long each call takes */
    int result;                         /* of what act() called */
};

extern struct probe probe, second;

void on_timer(weir_timer *timer, uint64_t missed, void *probe);
/* A rig, and both probes made ready. */
void start(void);
void finish(void);
/* One turn of everything: pollers, then workers. */
void step(weir_time now);
/* Pollers only, at the time that it is. */
void turn_now(void);

#endif
