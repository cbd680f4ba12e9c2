/* pool.pml: posting, taking, parking and waking on the pool's I/O lane, and the tick that watches
 * it.
 *
 * Proves (design names): P1 (with workers that never come back), P2's chain of wakes, and that the
 * tick is armed whenever items wait and all workers are in callbacks (P4).
 *   post     push; request is 1: done. Else request <- 1; it was 0: take one worker out of `idle`,
 *            wake it; nobody is there: watching <- 1, and watch() if that was 0
 *   take     pop; before the callback (MAY BLOCK FOR EVER): is request 0, and may more be there: as
 *            a post without the push
 *   park     publish in `idle`; request <- 0; pop; an item: leave `idle`, and if somebody has taken
 *            this worker out meanwhile, request <- 0 once more; nothing: sleep until taken out
 *   woken    request <- 0, then as one who comes from a callback
 *   spin     request <- 1, look for a while; something: request <- 0, and take; nothing: park
 *   retire   the deadline of a sleep: still in `idle`: leave it and end; taken out: woken all the
 *            same
 *   tick     something queued: go on ticking (what it does then is more than is needed here).
 *            Nothing: watching <- 0, request <- 0, look; something: watching <- 1, post without the
 *            push
 * The queue is the real one's shape: a stack that is pushed on, a list that is popped under a lock
 * that is only tried; between them items are in the hands of the lock's holder.
 *
 * Store buffers: `request` and `watching` are moved by RMWs only; the variants with a plain store
 * put it in a buffer that an RMW of the same thread drains first (pop's try of the lock is one).
 *
 * Bounds: WORKERS (2-3), POSTERS (1-2), ITEMS in all; LOOK_MAYBE: the look of a parking worker is
 * wr_inject_maybe() instead of a pop; LOOK_FIRST: every pop is behind such a look; SPIN, RETIRE,
 * TICK switch those parts on.
 * 2.8 million states as it stands, 19 million with 3 workers. */
#ifndef WORKERS
#define WORKERS 2
#endif
#ifndef POSTERS
#define POSTERS 2
#endif
#ifndef ITEMS
#define ITEMS 3
#endif

#define RUNNING 0
#define PARKED 1
#define WOKEN 2

bit request, watching;
byte stack, list;                       /* items pushed; items in order */
bit taking;                             /* the take lock */
byte word[WORKERS];                     /* PARKED: in `idle` */
bit tick_wanted, ticking;

/* What nobody's code holds. */
byte awake;                             /* threads in a post, woken, or awake outside callbacks */
byte sleeping;                          /* workers asleep and not taken out */
bit P1_no_item_waits_for_a_sleeper = 1, P4_tick_is_armed = 1;

#if defined(BUG_PLAIN_CLEAR) || defined(BUG_TICK_PLAIN_CLEAR)
#define BUFFERS
bit stores[WORKERS + 1];                /* request = 0 on its way; the last one is the tick's */
#define FENCE(me) !stores[me]
#define REQUEST(me) (request && !stores[me])            /* a thread sees its own store at once */
active proctype drain() {
    byte i;
end:
    do
    :: atomic { stores[0] -> stores[0] = 0; request = 0 }
    :: atomic { stores[1] -> stores[1] = 0; request = 0 }
    :: atomic { stores[2] -> stores[2] = 0; request = 0 }
#if WORKERS > 2
    :: atomic { stores[3] -> stores[3] = 0; request = 0 }
#endif
    od
}
#else
#define FENCE(me) true
#define REQUEST(me) request
#endif

/* Waking: `idle` is under a lock, so that this is one step. Any parked one may be the latest. */
#define TAKE_OUT(i) \
    word[i] == PARKED -> word[i] = WOKEN; awake++; sleeping = sleeping - asleep[i]; asleep[i] = 0
bit asleep[WORKERS];

inline ask(me) {
    if
    :: REQUEST(me) -> old = 1                   /* a load */
    :: atomic { !REQUEST(me) && FENCE(me) -> old = request; request = 1 }
    fi;
    if
    :: old -> skip
    :: else ->
        atomic {
            if
            :: TAKE_OUT(0)
            :: TAKE_OUT(1)
#if WORKERS > 2
            :: TAKE_OUT(2)
#endif
            :: else -> old = 1
            fi
        };
        if
        :: old -> atomic { old = watching; watching = 1 };
            if
            :: !old -> tick_wanted = 1          /* watch() */
            :: else
            fi
        :: else
        fi
    fi;
    old = 0
}

/* LOOK_FIRST: a look, and the lock only when something may be there, as the code does. */
inline pop(me) {
#ifdef LOOK_FIRST
    look();
    if
    :: got -> got = 0; pop_locked(me)
    :: else
    fi
#else
    pop_locked(me)
#endif
}

inline pop_locked(me) {
#ifdef BUG_UNCERTAIN_IS_EMPTY
    if
    :: taking -> got = 0
    :: atomic { FENCE(me) && !taking -> taking = 1 };
#else
    if                                          /* uncertain: look again, that is, wait here */
    :: atomic { FENCE(me) && !taking -> taking = 1 };
#endif
        if
        :: list > 0 -> list--; got = 1
        :: list == 0 ->
            if
            :: stack == 0 -> got = 0
            :: atomic { stack > 0 -> hand = stack; stack = 0 };
                atomic { list = hand - 1; hand = 0; got = 1 }
            fi
        fi;
        taking = 0
    fi
}

/* wr_inject_maybe(): a look at the list that counts when it finds something, and then three loads,
 * in the order in which items travel. */
inline look() {
    if
    :: list > 0 -> got = 1
    :: list == 0 -> look_in_order()
    fi
}

inline look_in_order() {
    if
    :: stack > 0 -> got = 1
    :: stack == 0 ->
        if
        :: taking -> got = 1
        :: !taking -> got = list > 0
        fi
    fi
}

inline ask_if_more(me) {
    if
    :: REQUEST(me) -> skip                      /* a load, then the look */
    :: !REQUEST(me) -> look();
        if
        :: got -> ask(me)
        :: else
        fi
    fi;
    got = 0
}

proctype poster(byte n) {
    bit old;
    do
    :: n > 0 ->
#ifdef BUG_LOAD_BEFORE_PUSH
        atomic { awake++; n--; old = request };
        atomic { stack++ };
        if
        :: old -> old = 0
        :: else -> ask(0)
        fi;
#else
        atomic { awake++; stack++; n-- };
        ask(0);                                 /* posters have no plain store: 0 stands for none */
#endif
        awake--
    :: n == 0 -> break
    od
}

inline clear(me) {
#ifdef BUG_PLAIN_CLEAR
    atomic { FENCE(me) -> stores[me] = 1 }
#else
    if
    :: !request
    :: request -> request = 0                   /* a load, then an exchange */
    fi
#endif
}

proctype worker(byte me) {
    bit got, old;
    byte hand;

loop:
    pop(me);
    if
    :: got -> got = 0; goto serve
    :: else
    fi;
#ifdef SPIN
    if
    :: skip
    :: atomic { FENCE(me) -> request = 1 };     /* an exchange */
        look();
        if
        :: got -> got = 0; clear(me); goto loop
        :: else
        fi
    fi;
#endif
#ifdef BUG_PUBLISH_AFTER_LOOK
    clear(me);
    pop(me);
    if
    :: got -> got = 0; goto serve
    :: else
    fi;
    atomic { FENCE(me) -> word[me] = PARKED };
    goto sleep;
#endif
    atomic { FENCE(me) -> word[me] = PARKED };  /* under the lock */
#ifndef BUG_CLEAR_AFTER_LOOK
    clear(me);
#endif
#ifdef BUG_NO_RECHECK
    goto sleep;
#endif
#ifdef LOOK_MAYBE
    look();
#else
    pop(me);
#endif
#ifdef BUG_CLEAR_AFTER_LOOK
    clear(me);
#endif
    if
    :: got -> got = 0;
        atomic { FENCE(me) -> old = (word[me] == WOKEN); word[me] = RUNNING; awake = awake - old };
#ifndef BUG_SWALLOWED_WAKE
        if
        :: old -> old = 0; clear(me)
        :: else
        fi;
#endif
        old = 0;
#ifdef LOOK_MAYBE
        goto loop
#else
        goto serve
#endif
    :: else
    fi;

sleep:
    atomic {
        awake--;
        if
        :: word[me] == PARKED -> asleep[me] = 1; sleeping++
        :: else
        fi
    };
end_asleep:
    if
    :: atomic { word[me] == WOKEN -> word[me] = RUNNING }
#ifdef RETIRE
    /* Woken it counts as awake already, through who took it out. */
    :: me > 0 ->
        if
#ifdef BUG_RETIRE_IGNORES_WAKE
        :: atomic { word[me] == WOKEN -> awake-- }; goto out
#else
        :: atomic { word[me] == WOKEN -> word[me] = RUNNING }
#endif
        :: atomic { word[me] == PARKED -> word[me] = RUNNING; asleep[me] = 0; sleeping-- }; goto out
        fi
#endif
    fi;
#ifndef BUG_WOKEN_KEEPS_REQUEST
    clear(me);
#endif
    goto loop;

serve:
#if !defined(BUG_NO_REQUEST_MORE) && !defined(BUG_REQUEST_AFTER_CALLBACK)
    ask_if_more(me);
#endif
    awake--;
    if                                          /* the callback */
    :: goto stuck
    :: awake++
    fi;
#ifdef BUG_REQUEST_AFTER_CALLBACK
    ask_if_more(me);
#endif
    goto loop;
stuck:
end_stuck:
    false;
out:
    skip
}

#ifdef TICK
#ifdef BUG_TICK_PLAIN_CLEAR
#define TICK_FENCE FENCE(WORKERS)
#else
#define TICK_FENCE true
#endif
active proctype tick() {
    bit got, old;
end:
    if
    :: atomic { tick_wanted -> tick_wanted = 0; ticking = 1 }
    :: ticking
    fi;
    /* That its first look finds nothing is allowed at any time: more than can happen. */
#ifdef BUG_TICK_CLEARS_REQUEST_FIRST
    request = 0;
    watching = 0;
#else
    atomic { TICK_FENCE -> watching = 0 };
#ifdef BUG_TICK_PLAIN_CLEAR
    stores[WORKERS] = 1;
#elif !defined(BUG_TICK_KEEPS_REQUEST)
    request = 0;
#endif
#endif
    look();
    if
    :: got -> got = 0;
        atomic { TICK_FENCE -> watching = 1 };
        atomic { awake++ };
#ifdef BUG_TICK_PLAIN_CLEAR
        ask(WORKERS);
#else
        ask(0);
#endif
        awake--
    :: else -> ticking = 0
    fi;
    goto end
}
#endif

#define QUEUED (stack + list > 0 && awake == 0)
active proctype monitor() {
end:
    if
    :: atomic { QUEUED && sleeping > 0 ->
        P1_no_item_waits_for_a_sleeper = 0; assert(P1_no_item_waits_for_a_sleeper) }
#ifdef TICK
    /* All workers are in callbacks. */
    :: atomic { QUEUED && sleeping == 0 && !ticking && !tick_wanted ->
        P4_tick_is_armed = 0; assert(P4_tick_is_armed) }
#endif
    fi
}

init {
    atomic {
        awake = WORKERS;
        run worker(0); run worker(1);
#if WORKERS > 2
        run worker(2);
#endif
#if POSTERS > 1
        run poster(ITEMS / 2); run poster(ITEMS - ITEMS / 2)
#else
        run poster(ITEMS)
#endif
    }
}
