/* lease.pml: polling as a lease that idle workers take, and the guarantor beside them.
 *
 * Proves (design names): D1 and W1 in the form of the lease: what is pending in the kernel never
 * waits for callbacks, which may not return; P1 for a worker that waits in the kernel; the tick is
 * armed (P4); what is at rest: a worker in the kernel, the guarantor asleep without a deadline.
 *   take     idle worker: lease FREE -> WAITING, or none
 *   park     publish in `idle` (who has a lease is taken out last); without a lease, ask: GUARD ->
 *            WANTED and the bell; request <- 0; pop; an item: leave `idle`, a lease goes back
 *            unused
 *   wait     with a lease: in the kernel until an event or the bell; polls + 1
 *   finish   leave `idle` (taken out meanwhile: request <- 0); lease <- WORKING; guarantor ASLEEP:
 *            wake it; deliver: keep one, post the others; lease <- FREE; is more queued: request;
 *            then the kept one's callback, which MAY BLOCK FOR EVER, announced or not
 *   block    announced, lease FREE: wake a sleeper; there is none: guard | CALLED, wake
 *   look     guarantor, each tick: FREE, and no polls since the look before or CALLED: take over
 *   over     wake a sleeper, who will take the lease; there is none: FREE -> GUARD; wake a sleeper
 *            (one may have parked meanwhile), or poll, once at least, until WANTED; lease <- FREE;
 *            wake a sleeper
 *   sleep    WAITING, whoever has polled since: guard | ASLEEP; look again: WAITING: sleep
 *   rest     the same on the alarm (REST): alarm off; guard | RESTING; look again; wait for it.
 *            finish sets the alarm, or wakes; wait takes it back; either looks at RESTING behind
 *            that, and lets the alarm go off if it is gone. Whoever wakes: RESTING off, then the
 *            alarm goes off
 *   watch    a post that finds nobody: tick_wanted <- 1; wake the guarantor; GUARD: the bell
 *   stop     stop <- 1; wake the guarantor; the bell; it has ended: all workers out of `idle`, bell
 *
 * `polls` is a bit that the guarantor's look takes. Posting and parking are those of pool.pml, with
 * a queue of one step. Store buffers: lease <- FREE is a plain store that comes out at any time
 * later; an RMW or a lock of the same thread waits for it.
 *
 * Bounds: WORKERS (1-2), EVENTS, POSTS from outside; TICK: the watch over the pool; STOP. */
#ifndef WORKERS
#define WORKERS 2
#endif
#ifndef EVENTS
#define EVENTS 2
#endif
#ifndef POSTS
#define POSTS 0
#endif

#define FREE 0
#define WAITING 1
#define WORKING 2
#define GUARD 3
#define WANTED 4

#define RUNNING 0
#define PARKED 1
#define WOKEN 2

byte lease;
bit asleep, called;                     /* the bits of `guard` */
#ifdef REST
bit resting, alarmed;                   /* the third; the holder has set the alarm */
bit alarm;                              /* is set: it may go off at any time, or has */
bit moving;                              /* the holder has moved it and not looked */
byte kicks;                             /* threads between RESTING off and the alarm */
bit guard_rests;
#define OVERSLEEPS (guard_rests && alarm == 0 && kicks == 0 && !moving)
#else
#define OVERSLEEPS 0
#endif
bit polls;
bit request;
byte items;                             /* posted, not taken */
byte pending;                           /* events in the kernel */
bit bell;
byte word[WORKERS];                     /* PARKED: in `idle` */
bit leased[WORKERS];
bit stop, stopping;
#ifdef TICK
bit watching, tick_wanted, ticking;
#else
#define ticking 0
#define tick_wanted 0
#endif

/* What nobody's code holds. */
byte awake = WORKERS;                   /* threads in a post, woken, or outside callbacks */
byte ringing;                           /* about to ring the bell */
bit in_futex[WORKERS], in_kernel[WORKERS];
bit guard_sleeps, guard_ticks, guard_polls, guard_gone, told;
bit owed;                               /* the guarantor was called and nobody took the lease */
byte looks;                             /* in a row that found FREE, and nobody waited meanwhile */
bit polled_since_look;
bit D1_somebody_polls = 1, D1_called_guarantor_looks = 1, D1_asked_guarantor_hears = 1,
    P1_no_item_waits = 1, P1_wake_is_heard = 1, P4_tick_is_armed = 1, rest_is_a_worker = 1,
    stop_is_heard = 1;

/* ---- store buffers: a value of the lease on its way --------------------------------------- */

#define THE_GUARD WORKERS
#define OUTSIDE (WORKERS + 1)           /* has no plain store */
byte buffer[WORKERS + 2];               /* value + 1 */
bit guard_buffer;                       /* ASLEEP, in BUG_ASLEEP_PLAIN_STORE */
#define DRAINED(me) (buffer[me] == 0)
#define LEASE(me) (buffer[me] -> buffer[me] - 1 : lease)
#if WORKERS > 1
#define ALL_DRAINED (!buffer[0] && !buffer[1] && !buffer[2] && !guard_buffer)
#else
#define ALL_DRAINED (!buffer[0] && !buffer[1] && !guard_buffer)
#endif

inline move(to) {
    lease = to;
    owed = owed && lease == FREE
}
inline store(me, to) {
    atomic { DRAINED(me) -> buffer[me] = to + 1 }
}
active proctype drain() {
end:
    do
    :: atomic { buffer[0] -> move(buffer[0] - 1); buffer[0] = 0 }
    :: atomic { buffer[1] -> move(buffer[1] - 1); buffer[1] = 0 }
#if WORKERS > 1
    :: atomic { buffer[2] -> move(buffer[2] - 1); buffer[2] = 0 }
#endif
    :: atomic { guard_buffer -> guard_buffer = 0; asleep = 1 }
#ifdef REST
    :: atomic { kicks > 0 -> kicks--; alarm = 1 }
#endif
    od
}

/* ---- the pool ----------------------------------------------------------------------------- */

#define SLEEPS(i) (word[i] == PARKED && !leased[i])
#define WAITS(i) (word[i] == PARKED && leased[i])
#define TAKE_OUT(i) word[i] = WOKEN; awake++; in_futex[i] = 0
#if WORKERS > 1
#define ANY_SLEEPS (SLEEPS(0) || SLEEPS(1))
#else
#define ANY_SLEEPS SLEEPS(0)
#endif

/* Under the lock. hit: 0 nobody; 1; 2 the bell is to be rung. */
inline take_out(leased_too) {
    if
    :: SLEEPS(0) -> TAKE_OUT(0); hit = 1
    :: leased_too && WAITS(0) && !ANY_SLEEPS -> TAKE_OUT(0); hit = 2; ringing++
#if WORKERS > 1
    :: SLEEPS(1) -> TAKE_OUT(1); hit = 1
    :: leased_too && WAITS(1) && !ANY_SLEEPS -> TAKE_OUT(1); hit = 2; ringing++
#endif
    :: else -> hit = 0
    fi
}

inline ring() {
    bell = 1; ringing--
}

/* An RMW, and the futex call if it was asleep. */
inline wake_guard() {
#ifdef BUG_WAKE_ERASES_CALL
    called = 0;
#endif
#ifdef REST
    kicks = kicks + resting; resting = 0;
#endif
    asleep = 0; guard_sleeps = 0
}

#ifdef REST
/* The holder; two steps. */
inline move_alarm(to) {
    atomic { alarm = to; alarmed = (to == 1); moving = 1 };
#ifdef BUG_ALARM_UNDOES_WAKE
    moving = 0
#else
    atomic { alarm = alarm || !resting; moving = 0 }
#endif
}
#endif

#define IT_POLLS(me) (LEASE(me) == GUARD || LEASE(me) == WANTED)
#define RING_IF_IT_POLLS(me) bell = bell || IT_POLLS(me)

inline watch_pool(me) {
#ifdef TICK
    atomic { DRAINED(me) -> hit = watching; watching = 1 };
    if
    :: hit
    :: !hit ->
#ifdef BUG_WATCH_RINGS_FIRST
        RING_IF_IT_POLLS(me);
        tick_wanted = 1;
        atomic { wake_guard() }
#else
        tick_wanted = 1;                /* seq_cst */
        atomic { wake_guard() };
        RING_IF_IT_POLLS(me)
#endif
    fi
#else
    skip
#endif
}

inline ask(me) {
    atomic { DRAINED(me) -> hit = request; request = 1 };
    if
    :: hit -> hit = 0
    :: !hit ->
        atomic { take_out(1) };
        if
        :: hit == 2 -> atomic { ring(); hit = 0 }
        :: hit == 1 -> hit = 0
        :: hit == 0 -> watch_pool(me); hit = 0
        fi
    fi
}

#ifdef BUG_NO_REQUEST_MORE
#define ASK_IF_MORE(me) skip
#else
#define ASK_IF_MORE(me) if :: items > 0 && !request -> ask(me) :: else fi
#endif

/* Taken out it counts as awake twice. */
inline leave_idle() {
    atomic {
        awake = awake - (word[me] == WOKEN);
        if
#ifndef BUG_SWALLOWED_WAKE
        :: word[me] == WOKEN -> word[me] = RUNNING; old = 1
#endif
        :: else -> word[me] = RUNNING
        fi
    };
    if
    :: atomic { old && DRAINED(me) -> old = 0; request = 0 }
    :: !old
    fi
}

/* ---- a worker ----------------------------------------------------------------------------- */

inline ask_back() {
    atomic {
        DRAINED(me) ->
        if
        :: !mine && lease == GUARD -> move(WANTED); hit = 1; ringing++
        :: else
        fi
    };
#ifdef BUG_ASKS_WITHOUT_BELL
    if
    :: atomic { hit -> hit = 0; ringing-- }
    :: !hit
    fi
#else
    if
    :: atomic { hit -> hit = 0; ring() }
    :: !hit
    fi
#endif
}

#ifdef REST
inline look_at_guard() {
    if
#ifndef BUG_ALARM_NOT_SET
    :: resting -> move_alarm(1)
#endif
    :: else
    fi
}
#define LOOK_AT_GUARD look_at_guard()
#else
#define LOOK_AT_GUARD if :: atomic { asleep -> wake_guard() } :: !asleep fi
#endif

/* finish */
inline give_back() {
    atomic { assert(LEASE(me) == WAITING); mine = 0 };
#if defined(BUG_GUARD_CHECKED_FIRST)
    LOOK_AT_GUARD;
    atomic { DRAINED(me) -> move(WORKING) };
#elif defined(BUG_WORKING_PLAIN_STORE)
    store(me, WORKING);
    LOOK_AT_GUARD;
#else
    atomic { DRAINED(me) -> move(WORKING) };            /* seq_cst */
    LOOK_AT_GUARD;
#endif
#ifdef BUG_BACK_AFTER_CALLBACK
    if
    :: hand > 0 -> awake--;
        if
        :: goto stays
        :: awake++
        fi
    :: else
    fi;
#endif
    if
    :: atomic { hand > 1 -> items = items + hand - 1; hand = 1 }; ask(me)
    :: else
    fi;
    store(me, FREE)
}

proctype worker(byte me) {
    bit old, mine;
    byte hand, hit;

loop:
    atomic {                                            /* pop */
        DRAINED(me) ->
        if
        :: items > 0 -> items--; goto serve
        :: else
        fi
    };
    atomic {                                            /* take */
        DRAINED(me) ->
        if
        :: lease == FREE -> mine = 1; move(WAITING)
        :: else
        fi
    };
#ifdef BUG_ASKS_BEFORE_IT_PARKS
    ask_back();
#endif
    atomic {                                            /* publish */
        if
        :: stopping -> goto leave
        :: else -> word[me] = PARKED; leased[me] = mine
        fi
    };
#ifndef BUG_ASKS_BEFORE_IT_PARKS
    ask_back();
#endif
    atomic { DRAINED(me) -> request = 0 };
    atomic {
        if
        :: items > 0 -> items--; goto found
        :: items == 0 && mine -> awake--; in_kernel[me] = 1; goto wait
        :: else -> awake--; in_futex[me] = (word[me] == PARKED)
        fi
    };
end_asleep:
    atomic { word[me] == WOKEN -> word[me] = RUNNING; request = 0; goto loop };

wait:
#ifdef REST
    if
    :: alarmed -> move_alarm(0)
    :: !alarmed
    fi;
#endif
end_wait:
    atomic {
        bell || pending > 0 ->
        hand = pending; pending = 0; bell = 0; in_kernel[me] = 0; awake++
    };
    atomic {
#ifndef BUG_POLLS_NOT_COUNTED
        polls = 1;                                      /* RMW */
#endif
        looks = 0; polled_since_look = 1
    };
    leave_idle();
    give_back();
    if
    :: hand > 0 -> hand = 0; goto serve
    :: else -> goto loop
    fi;
found:
    leave_idle();
#ifdef BUG_UNUSED_LEASE_COUNTS
    polls = polls || mine;
#endif
    if
    :: mine -> give_back()
    :: !mine
    fi;
serve:
    ASK_IF_MORE(me);
    awake--;
    if                                                  /* the callback */
    :: goto stays
    :: atomic { awake++; goto loop }
#ifdef ANNOUNCE
    :: awake++
#endif
    fi;
#ifdef ANNOUNCE
    if
    :: LEASE(me) == FREE ->
        atomic { DRAINED(me) -> take_out(0) };          /* wr_pool_wake() */
        if
        :: hit -> hit = 0
        :: !hit -> atomic {
                called = 1; guard_ticks = 0; guard_sleeps = 0; owed = lease == FREE;
#ifdef REST
                kicks = kicks + resting; resting = 0
#endif
            }
        fi
    :: else
    fi;
    awake--;
    if
    :: goto stays
    :: atomic { awake++; goto loop }
    fi;
#endif
leave:
    if
    :: mine -> give_back()
    :: !mine
    fi;
    atomic { awake--; goto out };
stays:
end_stuck:
    false;
out:
    skip
}

/* ---- the guarantor ------------------------------------------------------------------------ */

/* Ticking ends when nothing is queued. */
inline look_after_the_pool() {
#ifdef TICK
    if
    :: atomic { tick_wanted -> tick_wanted = 0; ticking = 1 }
    :: !tick_wanted
    fi;
    if
    :: ticking && items == 0 ->
        watching = 0;
        atomic { DRAINED(THE_GUARD) -> request = 0 };
        atomic {
            if
            :: items > 0 -> watching = 1; awake++; hand = 1
            :: items == 0 -> ticking = 0
            fi
        };
        if
        :: hand > 0 -> hand = 0; ask(THE_GUARD); awake--
        :: else
        fi
    :: else
    fi
#else
    skip
#endif
}

active proctype guarantor() {
    bit polled, really;                 /* `polled`: or was called */
    byte hand, hit, saw;

top:
#ifdef STOP
    if
    :: stop -> goto gone
    :: !stop
    fi;
#endif
    look_after_the_pool();
    atomic {                            /* RMWs; that the two are one step loses nothing */
        polled = polls; polls = 0; really = polled_since_look; polled_since_look = 0;
#ifdef ANNOUNCE
        if
        :: called -> called = 0; polled = 0; really = 0
        :: !called
        fi
#endif
    };
    atomic {
        saw = LEASE(THE_GUARD);
        looks = (saw == FREE && !polled_since_look -> looks + 1 : 0);
        assert(looks <= 2);             /* D1: two ticks at most */
        if
        :: saw == FREE && !polled -> assert(!really); saw = 0; goto over
        :: saw == WAITING && !ticking -> polled = 0; saw = 0; really = 0; goto sleep
        :: saw != FREE || polled -> polled = 0; saw = 0; really = 0
        fi
    };
tick:
#ifdef ANNOUNCE
    guard_ticks = !called && !stop;
    guard_ticks = 0;                    /* the time is over, or it was woken */
#endif
    goto top;

sleep:
#ifdef REST
    goto rest;
#endif
#ifdef BUG_ASLEEP_PLAIN_STORE
    guard_buffer = 1;
#else
    atomic { DRAINED(THE_GUARD) -> asleep = 1 };        /* RMW */
#endif
#ifndef BUG_SLEEPS_WITHOUT_LOOK
    if
    :: LEASE(THE_GUARD) != WAITING -> goto woken
    :: else
    fi;
#endif
#if defined(STOP) || defined(TICK)
    if
    :: stop || tick_wanted -> goto woken
    :: else
    fi;
#endif
    atomic {                            /* the futex call looks once more */
        !guard_buffer -> guard_sleeps = asleep && !called
    };
end_asleep:
    !guard_sleeps;
woken:
    atomic { !guard_buffer -> asleep = 0; goto top };   /* RMW */

#ifdef REST
rest:
    alarm = 0;
    atomic { DRAINED(THE_GUARD) -> resting = 1; hit = called };     /* RMW */
#ifndef BUG_RESTS_WITHOUT_LOOK
    if
    :: LEASE(THE_GUARD) != WAITING -> goto rested
    :: else
    fi;
#endif
    if
    :: stop || tick_wanted || hit -> goto rested
    :: else
    fi;
    guard_rests = 1;
end_rests:
    atomic { alarm -> alarm = 0; guard_rests = 0 };
rested:
    atomic { resting = 0; hit = 0; goto top };          /* RMW */
#endif

over:
    atomic {
        DRAINED(THE_GUARD) -> take_out(0);
        if
        :: hit -> hit = 0; owed = 0; looks = 0; goto tick
        :: !hit
        fi
    };
    atomic {
        DRAINED(THE_GUARD) ->
        if
        :: lease == FREE -> move(GUARD)
        :: else -> looks = 0; goto tick                 /* a worker has taken it */
        fi
    };
#ifndef BUG_NO_LOOK_AFTER_TAKING
    atomic {
        take_out(0);
        if
        :: hit -> hit = 0; looks = 0; goto back
        :: !hit
        fi
    };
#endif
poll:
    look_after_the_pool();
    atomic {
        if
#ifndef BUG_STOP_CHECKED_BEHIND_THE_WAIT
        :: stop -> goto back
#endif
#ifdef BUG_GIVES_BACK_UNPOLLED
        :: lease != GUARD -> goto back
#endif
        :: else -> guard_polls = !ticking               /* ticking: with a deadline */
        fi
    };
end_polls:
    atomic {
        bell || pending > 0 || ticking ->
        hand = pending; items = items + pending; pending = 0; bell = 0; guard_polls = 0;
        looks = 0;
        if
        :: hand > 0 -> hand = 0; awake++
        :: else -> goto polled_once
        fi
    };
    ask(THE_GUARD);
    awake--;
polled_once:
    if
    :: stop || lease != GUARD -> goto back
    :: else -> goto poll
    fi;
back:
    assert(lease == GUARD || lease == WANTED);
    store(THE_GUARD, FREE);
    atomic { DRAINED(THE_GUARD) -> take_out(0); hit = 0 };
    goto tick;
gone:
    guard_gone = 1
}

/* ---- the world ---------------------------------------------------------------------------- */

active proctype kernel() {
    byte n;
    do
    :: n < EVENTS -> atomic { pending++; n++ }
    :: n == EVENTS -> break
    od
}

#if POSTS > 0
active proctype poster() {
    byte n, hit;
    do
    :: n < POSTS -> atomic { awake++; items++; n++ }; ask(OUTSIDE); awake--
    :: n == POSTS -> break
    od
}
#endif

#ifdef STOP
active proctype stopper() {
    byte hit;

    stop = 1;
#ifndef BUG_STOP_WAKES_NOBODY
    atomic { guard_ticks = 0; wake_guard() };
#endif
    atomic { bell = 1; told = 1 };
    guard_gone;
    atomic { stopping = 1; hit = 1 };
    do
    :: hit -> atomic { take_out(1) };
        if
        :: atomic { hit == 2 -> ring() }
        :: else
        fi
    :: !hit -> break
    od
}
#endif

#if WORKERS > 1
#define ANY(flag) (flag[0] || flag[1])
#define UNHEARD(i) (word[i] == WOKEN && in_kernel[i])
#define ANY_UNHEARD (UNHEARD(0) || UNHEARD(1))
#define ANY_LISTED (word[0] == PARKED || word[1] == PARKED)
#else
#define ANY(flag) (flag[0])
#define ANY_UNHEARD (word[0] == WOKEN && in_kernel[0])
#define ANY_LISTED (word[0] == PARKED)
#endif
#define NOBODY_RINGS (!bell && ringing == 0)
#define HELD (lease == WAITING || lease == WORKING)

active proctype monitor() {
end:
    if
    :: atomic { lease == FREE && guard_sleeps ->
        D1_somebody_polls = 0; assert(D1_somebody_polls) }
#ifdef REST
    :: atomic { lease == FREE && guard_rests && alarm == 0 && kicks == 0 ->
        D1_somebody_polls = 0; assert(D1_somebody_polls) }
    :: atomic { told && OVERSLEEPS -> stop_is_heard = 0; assert(stop_is_heard) }
#endif
    :: atomic { HELD && awake == 0 && ALL_DRAINED && !ANY(in_kernel) ->
        D1_somebody_polls = 0; assert(D1_somebody_polls) }
    :: atomic { owed && guard_ticks && !called ->
        D1_called_guarantor_looks = 0; assert(D1_called_guarantor_looks) }
    :: atomic { lease == WANTED && guard_polls && NOBODY_RINGS ->
        D1_asked_guarantor_hears = 0; assert(D1_asked_guarantor_hears) }
    /* An item and an idle worker, who sleeps or waits in the kernel. */
    :: atomic { items > 0 && awake == 0 && ALL_DRAINED && ANY_LISTED ->
        P1_no_item_waits = 0; assert(P1_no_item_waits) }
    :: atomic { ANY_UNHEARD && NOBODY_RINGS && pending == 0 ->
        P1_wake_is_heard = 0; assert(P1_wake_is_heard) }
#ifdef TICK
    :: atomic { items > 0 && awake == 0 && ALL_DRAINED && !ANY_LISTED && !guard_gone && !ticking &&
            (!tick_wanted || guard_sleeps || OVERSLEEPS || (guard_polls && NOBODY_RINGS)) ->
        P4_tick_is_armed = 0; assert(P4_tick_is_armed) }
#endif
    :: atomic { guard_polls && lease == GUARD && NOBODY_RINGS && pending == 0 && awake == 0 &&
            ANY(in_futex) -> rest_is_a_worker = 0; assert(rest_is_a_worker) }
    :: atomic { told && !guard_gone && (guard_sleeps || (guard_polls && NOBODY_RINGS)) ->
        stop_is_heard = 0; assert(stop_is_heard) }
    fi
}

init {
    atomic {
        run worker(0);
#if WORKERS > 1
        run worker(1)
#endif
    }
}
