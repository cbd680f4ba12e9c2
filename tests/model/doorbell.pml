/* doorbell.pml: deadlines, commands and the poller's sleep.
 *
 * Proves: a poller never sleeps past a deadline that was set, nor with a command it has not seen;
 * no deadline passes early; an expired one fires once.
 *   set      any thread, under the timers' lock: later than the node's key: only `when` is written;
 *            else it is hung at `when`; earlier than `wake`: wake = when, unlock, ring
 *   sleep    poller, under the lock: wake = the smallest key, or NEVER; unlock; wait until then
 *   expire   poller, under the lock: wake = AWAKE; keys that have come up: due: fires; moved to
 *            later meanwhile: hung anew at `when`. Not called if the sleep had no end.
 *   command  any thread: a flag is stored, then the bell is rung; the poller takes the flag (RMW)
 *            before it computes its sleep
 *   bell     an eventfd, edge-triggered, never read: each write is an edge, taken by the wait
 *   With -DRING_IF_ASLEEP commands ring only when the poller has said, by RMW, that it sleeps, and
 *   looks once more after that: the form for a back end in which a doorbell is dear.
 *
 * Store buffers: a command is a plain store, which the ring (a system call) or an RMW drains; in
 * BUG_ASLEEP_PLAIN_STORE the poller's "I sleep" is one too.
 *
 * Bounds: NODES deadlines, each set OPS times to any of 1..3 or NEVER while the clock goes to 3;
 * COMMANDS 0-1; a wait may end for nothing at any time (an event, a signal).
 * 1.2 million states. */
#ifndef NODES
#define NODES 2
#endif
#ifndef OPS
#define OPS 2
#endif
#ifndef COMMANDS
#define COMMANDS 0
#endif

#define AWAKE 0
#define NEVER 9
#define TIME_MAX 3

bit lock;
byte key[NODES], when[NODES];
bit armed[NODES];
byte wake = AWAKE;
byte until = AWAKE;
byte now;
bit edge;                               /* of the eventfd, not taken by a wait */
bit wanted, asleep;

/* What nobody's code holds. */
byte ringing;                           /* threads between their change and the ring */
bit waiting;                            /* the poller has made up its mind to sleep until `until` */
bit blind;                              /* it has looked for commands for the last time before */
bit never_oversleeps = 1, command_is_seen = 1;

bit stores[2];                          /* 0: the commander's `wanted`; 1: the poller's `asleep` */
#if COMMANDS > 0
active proctype drain() {
end:
    do
    :: atomic { stores[0] -> stores[0] = 0; wanted = 1 }
    :: atomic { stores[1] -> stores[1] = 0; asleep = 1 }
    od
}
#endif

active proctype clock() {
    do
    :: now < TIME_MAX -> now++
    :: now == TIME_MAX -> break
    od
}

inline ring() {
    atomic { edge = 1; ringing-- }
}

/* Under the lock. */
inline place(me) {
#ifdef BUG_EARLIER_WRITES_WHEN_ONLY
    if
    :: armed[me] && time != NEVER -> when[me] = time
#else
    if
    :: armed[me] && time >= key[me] && time != NEVER -> when[me] = time
#endif
    :: else ->
        armed[me] = 0;
        if
        :: time == NEVER
        :: else ->
            armed[me] = 1; key[me] = time; when[me] = time;
            if
            :: time >= wake
            :: else -> wake = time; must_ring = 1
            fi
        fi
    fi
}

proctype setter(byte me) {
    byte n, time;
    bit must_ring;

    do
    :: n == OPS -> break
    :: n < OPS ->
        if
        :: time = 1
        :: time = 2
        :: time = 3
        :: time = NEVER
        fi;
#ifdef BUG_RING_BEFORE_SET
        if
        :: time < wake && time != NEVER -> edge = 1
        :: else
        fi;
        atomic { !lock -> place(me); must_ring = 0; n++; time = 0 }
#else
        atomic { !lock -> place(me); ringing = ringing + must_ring; n++; time = 0 };
        if
        :: must_ring -> must_ring = 0; ring()
        :: else
        fi
#endif
    od
}

#if COMMANDS > 0
active proctype commander() {
    bit rings = 1;

    atomic { ringing++; stores[0] = 1 };                /* plain store */
#ifdef RING_IF_ASLEEP
#ifndef BUG_COMMAND_PLAIN_STORE
    !stores[0];                                         /* no: an RMW, after which it is empty */
#endif
    rings = asleep;
#endif
    if
    :: rings -> atomic { !stores[0] -> ring() }
    :: else -> ringing--
    fi
}
#endif

#define LEAST(a, b) (a < b -> a : b)
#define KEY(i) (armed[i] -> key[i] : NEVER)
#if NODES > 1
#define FIRST_KEY LEAST(KEY(0), KEY(1))
#else
#define FIRST_KEY KEY(0)
#endif

/* One node whose key has come up. */
inline expire_one(i) {
    if
    :: when[i] > now -> key[i] = when[i]
    :: else -> assert(armed[i] && when[i] <= now); armed[i] = 0; key[i] = 0; when[i] = 0
    fi
}

#if defined(RING_IF_ASLEEP) && !defined(BUG_ASLEEP_WITHOUT_LOOK)
#define LAST_LOOK skip
#else
#define LAST_LOOK blind = 1
#endif

active proctype poller() {
again:
#if COMMANDS > 0
    if
    :: atomic { wanted -> wanted = 0; LAST_LOOK }
    :: atomic { !wanted -> LAST_LOOK }
    fi;
#endif
#if defined(BUG_WAKE_STORED_LATE)
    until = FIRST_KEY;
    waiting = 1;
    wake = until;
#elif defined(BUG_WAKE_ONLY_LOWERED)
    atomic {
        !lock -> until = FIRST_KEY; waiting = 1;
        wake = (wake == AWAKE -> until : LEAST(wake, until))
    };
#else
    atomic { !lock -> until = FIRST_KEY; waiting = 1; wake = until };
#endif
#ifdef RING_IF_ASLEEP
#ifdef BUG_ASLEEP_PLAIN_STORE
    stores[1] = 1;
#else
    asleep = 1;                                         /* RMW */
#endif
#ifndef BUG_ASLEEP_WITHOUT_LOOK
    if
    :: wanted -> goto woken
    :: atomic { !wanted -> blind = 1 }
    fi;
#endif
#endif
#ifdef BUG_BELL_DRAINED_BEFORE_WAIT
    edge = 0;
#endif
end:
    if
    :: atomic { edge -> edge = 0; waiting = 0; blind = 0 }
    :: atomic { until != NEVER && now >= until -> waiting = 0; blind = 0 }
    :: atomic { now < TIME_MAX -> waiting = 0; blind = 0 }         /* anything else, for a while */
    fi;
woken:
    atomic { waiting = 0; blind = 0 };
#ifdef RING_IF_ASLEEP
#ifdef BUG_ASLEEP_PLAIN_STORE
    atomic { !stores[1] -> asleep = 0 };
#else
    asleep = 0;
#endif
#endif
    if
    :: until == NEVER
    :: else ->
        atomic { !lock -> lock = 1;
#ifndef BUG_WAKE_ONLY_LOWERED
            wake = AWAKE
#endif
        };
        do
        :: KEY(0) <= now -> expire_one(0)
#if NODES > 1
        :: KEY(1) <= now -> expire_one(1)
#endif
        :: FIRST_KEY > now -> break
        :: break                                        /* enough for one turn */
        od;
        lock = 0
    fi;
    goto again
}

#define DUE(i) (armed[i] && when[i] < until)
#if NODES > 1
#define OVERSLEEPS (DUE(0) || DUE(1))
#else
#define OVERSLEEPS DUE(0)
#endif
active proctype monitor() {
end:
    if
    :: atomic { waiting && !edge && ringing == 0 && OVERSLEEPS ->
        never_oversleeps = 0; assert(never_oversleeps) }
    :: atomic { blind && !edge && ringing == 0 && (wanted || stores[0]) ->
        command_is_seen = 0; assert(command_is_seen) }
    fi
}

init {
    atomic {
        run setter(0);
#if NODES > 1
        run setter(1)
#endif
    }
}
