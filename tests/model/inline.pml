/* inline.pml: callbacks on the thread that polled: who sees to what it has harvested and not begun.
 *
 * Default: a dedicated poller and its watchdog (dispatch/watchdog.c). Proves: while the poller is in a
 * callback that never returns, and the queue holds something that is not kicked for, the watchdog does
 * not sleep without a deadline, and its second look from then on kicks.
 *   enter    poller     section + 1, then look at `word`; ASLEEP: CALLED, wake
 *   leave    poller     section + 1
 *   look     watchdog   section odd and as at the look before: kick if the queue holds something
 *   sleep    watchdog   section even and unchanged: ASLEEP; look again; as it was: sleep until CALLED
 * -DNAP: a waiting call on a poller's thread and who lets it go (dispatch/inline.c). Proves: it does not
 * sleep in the kernel when the word has changed and nobody is about to ring.
 *   sleeper  napping <- 1 (RMW); look at the word; unchanged: wait for events; look again
 *   waker    change the word; look at napping (RMW); 1: ring
 * -DLEASE: workers that poll in turn. Proves: nobody waits in the kernel under the lease while the queue
 * holds something that is not kicked for.
 *   take     worker     lease FREE -> HELD; look at the queue: something: no sleep
 *   finish   worker     push, lease <- FREE, then pop and call, which may last for ever; enough: kick
 *
 * Store buffers: enter's store of `section`, ASLEEP, `napping` and the word where they are plain stores.
 * A kick is never undone here: a posted copy of the pump covers the queue (pump.pml).
 *
 * Bounds: BATCHES of 1 or 2 sources, a budget of 2; 3 workers, 4 events. */
#ifndef BATCHES
#define BATCHES 3
#endif

byte queue;
bit kicked;                             /* since the queue was last empty */

inline kick() {
    kicked = 1
}

#define POP atomic { queue > 0 -> queue--; kicked = (queue == 0 -> 0 : kicked) }

#if !defined(NAP) && !defined(LEASE)

byte section, section_store;            /* what others see; what is in the poller's buffer */
bit section_stored;
bit asleep, called, asleep_stored;

bit stuck, passing;                     /* the poller: in a callback for ever; between enter and it */
bit resting;                            /* the watchdog sleeps without a deadline */
byte looks;                             /* of the watchdog, begun since the poller is stuck */
bit D1_watchdog_is_up = 1, D1_second_look_kicks = 1;

active proctype drain() {
end:
    do
    :: atomic { section_stored -> section_stored = 0; section = section_store }
    :: atomic { asleep_stored -> asleep_stored = 0; asleep = 1 }
    od
}

active proctype poller() {
    byte batches, left, mine;
    bit dog;

    do
    :: batches == BATCHES -> break
    :: batches < BATCHES ->
        batches++;
        atomic {
            if
            :: queue = queue + 1
            :: queue = queue + 2
            fi
        };
        mine = (mine + 1) % 8;
#ifdef BUG_LOOKS_BEFORE_IT_ENTERS
        dog = asleep;
#endif
#ifdef BUG_ENTER_PLAIN_STORE
        atomic { !section_stored -> section_store = mine; section_stored = 1 };
#else
        atomic { !section_stored -> section = mine };           /* seq_cst */
#endif
#ifndef BUG_LOOKS_BEFORE_IT_ENTERS
        dog = asleep;
#endif
        if
        :: dog -> called = 1
        :: else
        fi;
        left = 2;
        do
        :: left > 0 && queue > 0 ->
            POP; left--;
            if
            :: skip                                             /* it returns */
            :: stuck = 1; goto for_ever
            fi
        :: left == 0 || queue == 0 -> break
        od;
        if
        :: queue > 0 -> kick()
        :: else
        fi;
        mine = (mine + 1) % 8;
        atomic { !section_stored -> section_store = mine; section_stored = 1 }
    od;
for_ever:
end:
    false
}

active proctype watchdog() {
    byte seen, now;

    do
    :: atomic {
            now = section;
            looks = (stuck && looks < 3 -> looks + 1 : looks)
        };
        if
#ifndef BUG_LOOKS_AND_DOES_NOT_KICK
        :: now % 2 == 1 && now == seen ->
            if
            :: queue > 0 -> kick()
            :: else
            fi
#endif
        :: else
        fi;
        atomic {
            D1_second_look_kicks = !(stuck && looks == 3 && queue > 0 && !kicked);
            assert(D1_second_look_kicks)
        };
        if
        :: now % 2 == 0 && now == seen ->
#ifdef BUG_ASLEEP_PLAIN_STORE
            asleep_stored = 1;
#else
            asleep = 1;                                         /* RMW */
#endif
#ifdef BUG_RESTS_WITHOUT_LOOK
            resting = 1;
#else
            if
            :: atomic { section == seen -> resting = 1 }
            :: atomic { section != seen -> skip }
            fi;
#endif
            if
            :: resting ->
end:            atomic { called -> resting = 0 }
            :: else
            fi;
            atomic { !asleep_stored -> asleep = 0; called = 0 }
        :: else -> seen = now
        fi
    od
}

active proctype monitor() {
end:
    if
    :: atomic { stuck && queue > 0 && !kicked && resting && !called ->
        D1_watchdog_is_up = 0; assert(D1_watchdog_is_up) }
    fi
}

#elif defined(NAP)

bit word, napping, edge, waiting, done;
bit word_stored, napping_stored;
bit sleeper_is_told = 1;

active proctype drain() {
end:
    do
    :: atomic { word_stored -> word_stored = 0; word = 1 }
    :: atomic { napping_stored -> napping_stored = 0; napping = 1 }
    od
}

active proctype sleeper() {
#ifdef BUG_LOOKS_BEFORE_IT_NAPS
    if
    :: word -> goto out
    :: else
    fi;
#endif
#ifdef BUG_NAPPING_PLAIN_STORE
    napping_stored = 1;
#else
    napping = 1;                                                /* RMW */
#endif
    do
#ifndef BUG_LOOKS_BEFORE_IT_NAPS
    :: atomic { word -> break }
    :: atomic { !word -> waiting = 1 }
#else
    :: waiting = 1
#endif
        ;
end:    if
        :: atomic { edge -> edge = 0; waiting = 0 }
        fi;
        if
        :: word -> break
        :: else
        fi
    od;
out:
    skip
}

active proctype waker() {
    bit is;

#ifdef BUG_LOOKS_BEFORE_IT_CHANGES
    is = napping;
    word = 1;
#else
    word_stored = 1;                                            /* a release store */
#ifdef BUG_LOOK_IS_A_LOAD
    is = napping;
#else
    atomic { !word_stored -> is = napping };                    /* RMW */
#endif
#endif
    if
    :: is -> edge = 1
    :: else
    fi;
    done = 1
}

active proctype monitor() {
end:
    if
    :: atomic { waiting && !edge && done -> sleeper_is_told = 0; assert(sleeper_is_told) }
    fi
}

#else

#define WORKERS 3
byte events = 4;
bit held, waits;                        /* the lease; its holder is in the kernel */
bit D1_nobody_sleeps_beside_the_queue = 1;

active [WORKERS] proctype worker() {
    byte left, mine;

again:
end_parked:
    atomic { !held -> held = 1 };
#ifndef BUG_WAITS_WITHOUT_LOOK
    if
    :: atomic { queue == 0 -> waits = 1 }
    :: queue > 0
    fi;
#else
    waits = 1;
#endif
    if
    :: waits ->
end:    atomic { events > 0 -> waits = 0 }
    :: else
    fi;
    atomic {
        if
        :: events > 1 -> mine = 2; events = events - 2
        :: events > 0 -> mine = 1; events--
        :: events == 0 -> mine = 0
        fi
    };
#ifdef BUG_PUSHES_AFTER_GIVING_BACK
    held = 0;
    queue = queue + mine;
#else
    queue = queue + mine;
    held = 0;
#endif
    mine = 0;
    left = 2;
    do
    :: left > 0 ->
        if
        :: POP; left--;
            if
            :: skip
            :: goto for_ever                                    /* in its callback */
            fi
        :: queue == 0 -> break
        fi
    :: left == 0 ->
        if
        :: queue > 0 -> kick()
        :: else
        fi;
        break
    od;
    goto again;
for_ever:
end_for_ever:
    false
}

active proctype monitor() {
end:
    if
    :: atomic { held && waits && queue > 0 && !kicked ->
        D1_nobody_sleeps_beside_the_queue = 0; assert(D1_nobody_sleeps_beside_the_queue) }
    fi
}

#endif
