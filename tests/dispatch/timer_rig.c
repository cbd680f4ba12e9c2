#include "timer_rig.h"

#include <limits.h>

#include "dispatch/hub.h"
#include "dispatch/user_timer.h"
#include "os/clock.h"
#include "os/futex.h"
#include "support/test.h"
#include "work/pool.h"

struct timer_rig rig;

static void pass(rig_hook **hook)
{
    rig_hook *call = *hook;

    cr_assert_not(rig.gone, "the runtime is gone");
    if (call == NULL)
        return;
    *hook = NULL;
    call();
}

/* ---- what the timer sees -------------------------------------------------------------------- */

struct wr_timers *wr_dispatch_timers(weir_runtime *runtime, uint32_t shard)
{
    cr_assert_eq(runtime, rig_runtime());
    cr_assert_lt(shard, RIG_SHARDS);
    pass(&rig.on_timers);
    return &rig.timers[shard];
}

void wr_dispatch_doorbell(weir_runtime *runtime, uint32_t shard)
{
    cr_assert_eq(runtime, rig_runtime());
    cr_assert_lt(shard, RIG_SHARDS);
    rig.rings++;
    pass(&rig.on_ring);
}

uint32_t wr_dispatch_shard(weir_runtime *runtime)
{
    cr_assert_eq(runtime, rig_runtime());
    pass(&rig.on_shard);
    return rig.shard;
}

struct wr_pool *wr_dispatch_pool(weir_runtime *runtime)
{
    cr_assert_eq(runtime, rig_runtime());
    return (struct wr_pool *)(void *)&rig;
}

bool wr_dispatch_stopping(const weir_runtime *runtime)
{
    cr_assert_eq(runtime, rig_runtime());
    pass(&(rig_hook *){ NULL });
    return rig.stopping;
}

void wr_pool_post_own(struct wr_pool *pool, weir_work *work)
{
    cr_assert_eq((void *)pool, (void *)&rig);
    pthread_mutex_lock(&rig.lock);
    for (weir_work *item = rig.first; item != NULL; item = item->next_)
        cr_assert_neq(item, work, "posted twice");
    work->next_ = NULL;
    if (rig.last != NULL)
        rig.last->next_ = work;
    else
        rig.first = work;
    rig.last = work;
    pthread_mutex_unlock(&rig.lock);
}

int wr_dispatch_sleep(weir_runtime *runtime, _Atomic uint32_t *word, uint32_t seen,
                      weir_time deadline)
{
    cr_assert_eq(runtime, rig_runtime());
    rig.blocks++;
    pass(&rig.on_block);
    int r = wr_futex_wait(word, seen, deadline);
    rig.unblocks++;
    return r;
}

void wr_dispatch_wake(weir_runtime *runtime, _Atomic uint32_t *word)
{
    cr_assert_eq(runtime, rig_runtime());
    wr_futex_wake(word, INT_MAX);
}

void weir_work_init(weir_work *work, weir_work_fn *run, void *context)
{
    *work = (weir_work){ .run_ = run, .context_ = context };
}

/* os/clock.c's, under the name that this program is compiled with. */
weir_time wr_clock_now(void)
{
    pass(&rig.on_clock);
    return rig.step != 0 ? atomic_fetch_add(&rig.now, rig.step) : rig.now;
}

/* ---- what the test does --------------------------------------------------------------------- */

void rig_start(void)
{
    memset(&rig, 0, sizeof(rig));
    pthread_mutex_init(&rig.lock, NULL);
    for (unsigned i = 0; i < RIG_SHARDS; i++) {
        wr_timers_init(&rig.timers[i]);
        wr_timers_sleep(&rig.timers[i]);
    }
}

weir_runtime *rig_runtime(void)
{
    return (weir_runtime *)(void *)&rig;
}

void rig_turn(weir_time now)
{
    if (rig.now < now)
        rig.now = now;
    for (unsigned i = 0; i < RIG_SHARDS; i++) {
        wr_timers_expire(&rig.timers[i], rig.now, 256);
        wr_timers_sleep(&rig.timers[i]);
    }
}

unsigned rig_queued(void)
{
    unsigned count = 0;

    pthread_mutex_lock(&rig.lock);
    for (weir_work *item = rig.first; item != NULL; item = item->next_)
        count++;
    pthread_mutex_unlock(&rig.lock);
    return count;
}

bool rig_run(void)
{
    pthread_mutex_lock(&rig.lock);
    weir_work *work = rig.first;
    if (work != NULL) {
        rig.first = work->next_;
        if (rig.first == NULL)
            rig.last = NULL;
    }
    pthread_mutex_unlock(&rig.lock);
    if (work == NULL)
        return false;
    work->run_(work, work->context_);
    return true;
}

void rig_run_all(void)
{
    for (int i = 0; rig_run(); i++)
        cr_assert_lt(i, 1000, "work does not end");
}

void rig_post(weir_work *work)
{
    wr_pool_post_own((struct wr_pool *)(void *)&rig, work);
}

void rig_destroy(void)
{
    rig.stopping = true;
    for (unsigned i = 0; i < RIG_SHARDS; i++)
        wr_timers_close(&rig.timers[i], wr_user_timer_drop);
    rig_run_all();
    rig.gone = true;
}

/* ---- probes ---------------------------------------------------------------------------------- */

struct probe probe, second;

void on_timer(weir_timer *timer, uint64_t missed, void *context)
{
    struct probe *self = context;

    cr_assert_eq(timer, &self->timer);
    cr_assert_not(self->inside, "twice at once");
    cr_assert_lt(self->calls, CALLS_MAX);
    self->inside = true;
    self->at[self->calls] = rig.now;
    self->missed[self->calls] = missed;
    rig.now += self->takes[self->calls];
    self->calls++;
    if (self->act != NULL)
        self->act(self);
    self->inside = false;
}

void start(void)
{
    rig_start();
    probe = (struct probe){ .calls = 0 };
    second = (struct probe){ .calls = 0 };
    weir_timer_init(&probe.timer, rig_runtime(), on_timer, &probe);
    weir_timer_init(&second.timer, rig_runtime(), on_timer, &second);
}

void finish(void)
{
    rig_run_all();
    weir_timer_fini(&probe.timer);
    weir_timer_fini(&second.timer);
    cr_assert_eq(rig.blocks, rig.unblocks);
}

void step(weir_time now)
{
    rig_turn(now);
    rig_run_all();
}

void turn_now(void)
{
    rig_turn(rig.now);
}
