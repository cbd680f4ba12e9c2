/* slot.pml: the slot of a worker, into which it puts what its callback posts, and the tick.
 *
 * Proves (design names): P7: an item is run once, whoever empties the slot; and while a slot is
 * filled and its owner is in a callback that never returns, somebody ticks or has been asked to,
 * so that the tick will take it out.
 *   keep     in a callback: slot <- item; watching is 1: done; else watching <- 1, it was 0: watch()
 *   spill    a second post, or a block that is announced: slot <- 0; got it: to the queue
 *   run      the callback has returned (IT MAY NEVER): slot <- 0; got it: run it
 *   tick     a slot is filled: seen before, its owner in the same callback still: slot <- 0; got
 *            it: to the queue. None is and the queue is empty: watching <- 0, look at the slots;
 *            filled: watching <- 1
 * What is in the queue is another model's (pool.pml): here another worker takes it at any time.
 *
 * Store buffers: `slot` and `watching` are moved by RMWs only. A variant with a plain store puts it
 * in a buffer, which an RMW of the same thread drains first.
 *
 * Bounds: OWNERS workers that keep, ITEMS that each posts in all. */
#ifndef OWNERS
#define OWNERS 2
#endif
#ifndef ITEMS
#define ITEMS 3
#endif

bit slot[OWNERS];
byte callback[OWNERS];                  /* which callback it is in, counted round */
bit stuck[OWNERS];
bit watching, tick_wanted, ticking;
byte queued, ran, posted;
byte calling;                           /* nobody's code holds it: threads about to call watch() */
bit P7_somebody_ticks = 1, P7_run_once = 1, P7_nothing_lost = 1;

#ifdef BUG_KEEP_PLAIN_STORE
bit stored[OWNERS];                     /* slot = 1 on its way */
#define FILL(me) atomic { stored[me] = 1 }
#define DRAINED(me) !stored[me]
active proctype drain() {
end:
    do
    :: atomic { stored[0] -> stored[0] = 0; slot[0] = 1 }
#if OWNERS > 1
    :: atomic { stored[1] -> stored[1] = 0; slot[1] = 1 }
#endif
    od
}
#else
#define FILL(me) atomic { assert(!slot[me]); slot[me] = 1 }
#define DRAINED(me) true
#endif

inline see_to_it_that_somebody_ticks(me) {
    if
    :: watching
    :: atomic { !watching && DRAINED(me) -> old = watching; watching = 1; calling = calling + !old };
        if
        :: atomic { !old -> tick_wanted = 1; calling-- }        /* watch() */
        :: else
        fi;
        old = 0
    fi
}

inline run_one() {
    atomic { ran++; P7_run_once = ran <= posted; assert(P7_run_once) }
}

/* What was in the slot, and nobody else has it. */
inline take_out(me) {
#ifdef BUG_TAKE_NOT_AN_EXCHANGE
    got = slot[me];
    slot[me] = 0
#else
    atomic { DRAINED(me) -> got = slot[me]; slot[me] = 0 }
#endif
}

proctype owner(byte me) {
    byte left = ITEMS;
    bit old, got;
    do
    :: left > 0 ->
        /* in a callback that keeps one */
        atomic { left--; posted++ };
#ifdef BUG_LOOKS_BEFORE_IT_FILLS
        see_to_it_that_somebody_ticks(me);
        FILL(me);
#else
        FILL(me);
#ifndef BUG_ASKS_NOBODY
        see_to_it_that_somebody_ticks(me);
#endif
#endif
        if
        :: stuck[me] = 1; goto hangs
        :: left > 0 ->                          /* posts a second one, or announces a block */
            take_out(me);
            if
            :: got -> queued++
            :: else
            fi;
            got = 0
        :: skip
        fi;
        callback[me] = 1 - callback[me];        /* it has returned; the next one begins */
        take_out(me);
        if
        :: got -> run_one()
        :: else
        fi;
        got = 0
    :: left == 0 -> break
    od;
    goto over;
hangs:
end_stuck:
    false;
over:
    skip
}

active proctype other() {
end:
    do
    :: atomic { queued > 0 -> queued--; ran++; P7_run_once = ran <= posted; assert(P7_run_once) }
    od
}

#if OWNERS > 1
#define FILLED (slot[0] || slot[1])
#else
#define FILLED slot[0]
#endif

inline look_at(i) {
    if
    :: !slot[i] -> seen[i] = 0
    :: slot[i] && !seen[i] -> atomic { seen[i] = 1; at[i] = callback[i] }; any = 1
    :: slot[i] && seen[i] && at[i] != callback[i] -> at[i] = callback[i]; any = 1
    :: slot[i] && seen[i] && at[i] == callback[i] ->
#ifdef BUG_TAKE_NOT_AN_EXCHANGE
        got = slot[i];
        slot[i] = 0;
#else
        atomic { got = slot[i]; slot[i] = 0 };
#endif
        seen[i] = 0;
        if
        :: got -> queued++; any = 1
        :: else
        fi;
        got = 0
    fi
}

active proctype tick() {
    bit seen[OWNERS], at[OWNERS], any, got;
end:
    if
    :: atomic { tick_wanted -> tick_wanted = 0; ticking = 1 }
    :: ticking
    fi;
    look_at(0);
#if OWNERS > 1
    look_at(1);
#endif
    if
    :: any || queued > 0 -> any = 0
    :: else ->
#ifdef BUG_LOOKS_BEFORE_IT_CLEARS
        if
        :: FILLED -> skip
        :: !FILLED -> watching = 0; ticking = 0
        fi
#else
        watching = 0;                           /* an exchange */
#ifdef BUG_LOOKS_AT_NO_SLOT
        ticking = 0
#else
        if
        :: FILLED -> watching = 1
        :: !FILLED -> ticking = 0
        fi
#endif
#endif
    fi;
    goto end
}

/* The owner hangs; its item is in the slot, and nobody will look. */
#define LEFT(i) (stuck[i] && slot[i] && !ticking && !tick_wanted && !calling)
active proctype monitor() {
end:
    if
    :: atomic { LEFT(0) -> P7_somebody_ticks = 0; assert(P7_somebody_ticks) }
#if OWNERS > 1
    :: atomic { LEFT(1) -> P7_somebody_ticks = 0; assert(P7_somebody_ticks) }
#endif
    /* Nobody has anything to do any more, and an item has vanished. */
    :: atomic { timeout -> P7_nothing_lost = ran == posted; assert(P7_nothing_lost) }
    fi
}

init {
    atomic {
        run owner(0);
#if OWNERS > 1
        run owner(1)
#endif
    }
}
