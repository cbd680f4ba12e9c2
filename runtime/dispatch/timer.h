/* timer.h: the deadlines of one poller: a pairing heap under a short lock.
 *
 * A node hangs at key_ and is due at when_ >= key_: moving it to later only writes when_; when its
 * key comes up early it is hung anew. Moving it to earlier takes it out and hangs it again. Nothing
 * here calls the system; the caller rings the doorbell when told to. */
#ifndef WR_DISPATCH_TIMER_H
#define WR_DISPATCH_TIMER_H

#include <stdatomic.h>
#include <stdbool.h>

#include <weir/base.h>

#include "os/lock.h"

struct wr_timers {
    struct wr_lock lock;
    struct weir_deadline_ *root;
    _Atomic weir_time wake;         /* until when the poller sleeps at most, as it last said;
                                       INT64_MIN: it is awake and will ask before it sleeps */
    _Atomic bool closed;            /* destroy: nothing can be armed any more; written
                                       under the lock */
};

void wr_timers_init(struct wr_timers *timers);
void wr_deadline_init(struct weir_deadline_ *deadline, void (*expire)(struct weir_deadline_ *));

/* Arms or moves. Any thread. Returns true when the poller sleeps too long now: ring its doorbell
 * (the promise to ring is taken into account: a set for a later time then returns false).
 * WEIR_NEVER disarms. Nothing happens when the timers are closed. */
bool wr_timers_set(struct wr_timers *timers, struct weir_deadline_ *deadline, weir_time when);
/* Moves one that is armed; false, and nothing happens, when it is not. *ret_ring as wr_timers_set()
 * returns. */
bool wr_timers_move(struct wr_timers *timers, struct weir_deadline_ *deadline, weir_time when,
                    bool *ret_ring);
/* True: was armed and is not any more. False: expired (its expire() has been, or is being, called)
 * or was not armed. After it returned, expire() is not running: expire() runs under the lock. */
bool wr_timers_cancel(struct wr_timers *timers, struct weir_deadline_ *deadline);
/* True, once: it is not armed any more because its time had come by `now`. Moved or disarmed since:
 * false. */
bool wr_timers_take_due(struct wr_timers *timers, struct weir_deadline_ *deadline, weir_time now);
bool wr_timers_armed(struct wr_timers *timers, struct weir_deadline_ *deadline);

/* The poller, after each wait: takes out all that are due at `now`, looking at `max` at most,
 * calling expire() of each (under the lock: expire() must not call back into these timers and must
 * not block). Returns how many. What is left over for the bound makes wr_timers_sleep() answer a
 * time that has passed. */
unsigned wr_timers_expire(struct wr_timers *timers, weir_time now, unsigned max);
/* The poller, after a wait, in place of an expiry when nothing can be due: it is awake. */
void wr_timers_awake(struct wr_timers *timers);
/* The poller, right before it waits: the time to wake at the latest, remembered for
 * wr_timers_set(). */
weir_time wr_timers_sleep(struct wr_timers *timers);

/* Destroy: takes all out without calling expire(); calls drop() (NULL is fine; under the lock, as
 * expire()) of each. Nothing can be armed any more. Once; other calls stay legal, also later. */
void wr_timers_close(struct wr_timers *timers, void (*drop)(struct weir_deadline_ *));
/* False after an arming call: it was effective. True may come while wr_timers_close() is still at
 * work; any other call here waits for its end. */
bool wr_timers_closed(struct wr_timers *timers);

#endif
