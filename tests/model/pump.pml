/* pump.pml: the ready queue, the event words of its sources and the self-replicating pump.
 *
 * Proves (design names): D1 in its strong form, D2, D3, D4, D5.
 *   poller   for each event: CAS sets the event's bit and LINKED in the source's word; was it not
 *            linked: push. Once a batch, if anything was pushed: kick.
 *   kick     old = exchange(requested, 1); old == 0: post a copy of the pump to the pool.
 *   copy     exchange(requested, 0); pop; none: return. Queue not empty: kick. Only then handle.
 *            Go on until the queue is empty or the slice is over, then just return.
 *   turn     takes the bits (fetch_and), handles them (MAY BLOCK FOR EVER), then one CAS: no bits:
 *            LINKED goes; bits: LINKED stays and the source is posted to the pool as an item of its
 *            own. With -DRELINK_QUEUE it goes to the back of the ready queue instead, and kick.
 *
 * Store buffers: the poller's push is a plain store of the ring's tail. It stays in the poller's
 * buffer until the drain process lets it out; an RMW of that poller waits until its buffer is
 * empty. Workers have no plain store in the protocol; the variants that give them one give them a
 * buffer.
 *
 * Bounds: WORKERS, SOURCES, EVENTS (event k belongs to source k % SOURCES), POLLERS (events are
 * divided among them). A batch ends after any event.
 * 0.3 million states as it stands, 7.1 million with 4 workers and 4 sources. */
#ifndef WORKERS
#define WORKERS 3
#endif
#ifndef SOURCES
#define SOURCES 2
#endif
#ifndef EVENTS
#define EVENTS 4
#endif
#ifndef POLLERS
#define POLLERS 1
#endif

#define BITS 3                          /* two kinds of event, IN and OUT */
#define LINKED 4

#if defined(BUG_PLAIN_STORE_CLEAR) || defined(BUG_UNLINK_STORE)
#define WORKER_BUFFERS
#endif

byte word[SOURCES];                     /* the event words */
bit requested;
chan queue = [SOURCES] of { byte };     /* what is visible to all */
chan pushes[POLLERS] = [2] of { byte }; /* store buffers: pushes that are not visible yet */
byte posted;                            /* copies in the pool, not started */
#ifndef RELINK_QUEUE
bit own[SOURCES];                       /* the source's own item is in the pool */
#endif

/* What nobody's code holds: for the invariants alone. */
byte publishing;                        /* threads between linking and the end of their kick */
byte deciding;                          /* workers between taking a copy and deciding on the next */
byte unseen[SOURCES];                   /* event bits that no turn has taken yet */
bit turn[SOURCES];                      /* a turn of the source is running */
bit held[SOURCES];                      /* in the queue, or on its way to it */

bit D1_nothing_stranded = 1, D4_nothing_lost = 1;       /* names for the monitor's verdicts */

#ifdef WORKER_BUFFERS
byte stores[WORKERS];                   /* one slot: 0 empty, 1 requested = 0, 2 + s: word[s] = 0 */
#define FENCE(me) stores[me] == 0
#else
#define FENCE(me) true
#endif

inline post_copy() {
    atomic { posted++; assert(posted <= 1) }                    /* D2 */
}

/* The ring cannot be full and holds a source once (D4). */
inline enqueue(s) {
    assert(nfull(queue));
    queue!s
}

active proctype drain() {
    byte s;
    end: do
    :: atomic { pushes[0]?s -> enqueue(s); s = 0 }
#if POLLERS > 1
    :: atomic { pushes[1]?s -> enqueue(s); s = 0 }
#endif
#ifdef WORKER_BUFFERS
    :: atomic { stores[0] == 1 -> requested = 0; stores[0] = 0 }
    :: atomic { stores[1] == 1 -> requested = 0; stores[1] = 0 }
    :: atomic { stores[0] > 1 -> word[stores[0] - 2] = 0; stores[0] = 0 }
    :: atomic { stores[1] > 1 -> word[stores[1] - 2] = 0; stores[1] = 0 }
#if WORKERS > 2
    :: atomic { stores[2] == 1 -> requested = 0; stores[2] = 0 }
    :: atomic { stores[2] > 1 -> word[stores[2] - 2] = 0; stores[2] = 0 }
#endif
#endif
    od
}

inline poller_kick() {
    atomic { empty(pushes[me]) -> old = requested; requested = 1 }   /* RMW: buffer first */
    if
    :: old == 0 -> post_copy()
    :: else
    fi;
    old = 0
}

proctype poller(byte me) {
    byte event = me;
    byte s;
    bit old, fresh, pushed;

    do
    :: event >= EVENTS -> break
    :: else ->
        s = event % SOURCES;
#ifdef BUG_FLAG_BEFORE_PUBLISH
        atomic { publishing++; old = requested; requested = 1 }
        if
        :: old == 0 -> post_copy()
        :: else
        fi;
        old = 0;
#endif
#ifdef BUG_POLLER_PLAIN_OR
        fresh = !(word[s] & LINKED);            /* load, and only later a store */
        atomic {
            word[s] = word[s] | (1 << ((event / SOURCES) % 2)) | LINKED;
#else
        atomic {                                /* CAS loop: one step, it succeeds on what it saw */
            fresh = !(word[s] & LINKED);
            word[s] = word[s] | (1 << ((event / SOURCES) % 2)) | LINKED;
#endif
            unseen[s] = unseen[s] | (1 << ((event / SOURCES) % 2));
            if
            :: fresh ->
                assert(!held[s] && !turn[s]);   /* D4, D5 */
                held[s] = 1;
                if
                :: !pushed -> pushed = 1;
#ifndef BUG_FLAG_BEFORE_PUBLISH
                    publishing++
#endif
                :: else
                fi
            :: else
            fi
        };
        if
        :: fresh -> fresh = 0; pushes[me]!s     /* plain store: into the buffer */
        :: else
        fi;
        event = event + POLLERS;
#ifdef BUG_FLAG_BEFORE_PUBLISH
        atomic { empty(pushes[me]) -> publishing--; pushed = 0 }
#else
        if                                      /* the batch ends here, or goes on */
        :: pushed -> poller_kick(); atomic { pushed = 0; publishing-- }
        :: event < EVENTS
        :: event >= EVENTS && !pushed
        fi
#endif
    od
}

inline worker_kick() {
#ifdef BUG_KICK_NOT_RMW
    old = requested;
    requested = 1;
#else
    atomic { FENCE(me) -> old = requested; requested = 1 }
#endif
    if
    :: old == 0 -> post_copy()
    :: else
    fi;
    old = 0
}

/* Pop is a CAS when it gets something and two loads when it does not. */
#define POP(s) \
    atomic { FENCE(me) && nempty(queue) -> queue?s; \
             assert(held[s] && !turn[s]); held[s] = 0; turn[s] = 1 }

/* The source's own item. */
#define OWN(n) \
    atomic { FENCE(me) && own[n] -> own[n] = 0; s = n; \
             assert(held[n] && !turn[n]); held[n] = 0; turn[n] = 1 }

/* One turn of source s; control comes back only if the handler does. */
inline run_turn(s) {
#ifdef BUG_TAKE_STORE
    bits = word[s] & BITS;
    atomic { word[s] = LINKED;
#else
    atomic { FENCE(me) -> bits = word[s] & BITS; word[s] = word[s] & LINKED;
#endif
        assert((bits & unseen[s]) == bits);     /* D4: not one event twice */
        assert(bits != 0);                      /* nobody is sent for nothing */
        unseen[s] = unseen[s] & ~bits;
        bits = 0 };
    if                                          /* the handler */
    :: goto stuck                               /* for ever */
    :: skip
    fi;
#if defined(BUG_UNLINK_STORE)
    if
    :: (word[s] & BITS) == 0 -> atomic { stores[me] == 0 -> stores[me] = 2 + s; turn[s] = 0 }
    :: (word[s] & BITS) != 0 ->
#elif defined(BUG_UNLINK_BLIND)
    if
    :: atomic { true -> word[s] = word[s] & BITS; turn[s] = 0 }
    :: false ->
#else
    if
    :: atomic { FENCE(me) && (word[s] & BITS) == 0 -> word[s] = 0; turn[s] = 0 }
    :: (word[s] & BITS) != 0 ->
#endif
#ifdef RELINK_QUEUE
        atomic { FENCE(me) -> publishing++; turn[s] = 0; held[s] = 1; enqueue(s) };
#ifndef BUG_RELINK_WITHOUT_KICK
        worker_kick();
#endif
        publishing--
#else
        atomic { FENCE(me) -> turn[s] = 0; held[s] = 1; assert(!own[s]); own[s] = 1 }
#endif
    fi
}

proctype worker(byte me) {
    byte s, bits;
    bit old;

end:
    if                                          /* the pool: any worker, any order */
    :: atomic { posted > 0 -> posted--; deciding++ }
#ifndef RELINK_QUEUE
    :: OWN(0) -> run_turn(s); s = 0; goto end
#if SOURCES > 1
    :: OWN(1) -> run_turn(s); s = 0; goto end
#endif
#if SOURCES > 2
    :: OWN(2) -> run_turn(s); s = 0; goto end
#endif
#if SOURCES > 3
    :: OWN(3) -> run_turn(s); s = 0; goto end
#endif
#endif
    fi;
#ifdef BUG_PLAIN_STORE_CLEAR
    atomic { stores[me] == 0 -> stores[me] = 1 };
#elif !defined(BUG_LATE_CLEAR)
    requested = 0;                              /* an exchange whose old value nobody wants */
#endif
    if
    :: POP(s)
    :: empty(queue) ->
#ifdef BUG_LATE_CLEAR
        requested = 0;
#endif
        deciding--;
        goto end
    fi;
#ifdef BUG_LATE_CLEAR
    requested = 0;
#endif
#if !defined(BUG_NO_REPLICA) && !defined(BUG_REPLICA_AFTER_HANDLER)
    if
    :: nempty(queue) -> worker_kick()
    :: empty(queue)
    fi;
#endif
    deciding--;                                 /* D3: D1 does not count this worker from here on */
    do
    :: run_turn(s);
#ifdef BUG_REPLICA_AFTER_HANDLER
        if
        :: nempty(queue) -> worker_kick()
        :: empty(queue)
        fi;
#endif
        if
        :: POP(s)
        :: empty(queue) -> break
        :: true -> break                        /* the slice is over: just return */
        fi
    od;
    s = 0;
    goto end;

stuck:
end_stuck:
    false
}

/* Enabled only in a state that must not be. */
#define LOST(s) ((unseen[s] & word[s]) != unseen[s] || \
                 ((word[s] & BITS) && !(word[s] & LINKED)) || \
                 ((word[s] & LINKED) && !held[s] && !turn[s]))
#if SOURCES == 1
#define ANY_LOST LOST(0)
#elif SOURCES == 2
#define ANY_LOST (LOST(0) || LOST(1))
#elif SOURCES == 3
#define ANY_LOST (LOST(0) || LOST(1) || LOST(2))
#else
#define ANY_LOST (LOST(0) || LOST(1) || LOST(2) || LOST(3))
#endif
/* Strong: a worker in a handler never counts. */
#define STRANDED (len(queue) > 0 && publishing == 0 && posted == 0 && deciding == 0)
active proctype monitor() {
end:
    if
    :: atomic { STRANDED -> D1_nothing_stranded = 0; assert(D1_nothing_stranded) }
    :: atomic { ANY_LOST -> D4_nothing_lost = 0; assert(D4_nothing_lost) }
    fi
}

init {
    atomic {
        run poller(0);
#if POLLERS > 1
        run poller(1);
#endif
        run worker(0); run worker(1);
#if WORKERS > 2
        run worker(2);
#endif
#if WORKERS > 3
        run worker(3);
#endif
    }
}
