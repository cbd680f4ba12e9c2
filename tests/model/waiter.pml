/* waiter.pml: one direction of a source: synchronous waiters and asynchronous operations in one
 * line, the poller, and workers that may be stuck.
 *
 * Proves (design names): W1, W2, W3, O3; D4 for the asynchronous reader.
 *   event    poller: one CAS: IN on, WAIT off; LINKED on if WANT is set (then a turn is posted).
 *            WAIT was set: seq++, futex wake of all who sleep on seq.
 *   look     the head of the line alone, under the direction's lock: clear IN, then recv.
 *   waiter   head: look; EAGAIN: s = seq; one CAS: IN set again: look again; else WAIT on; unlock;
 *            sleep while seq == s. Not head: s = seq, unlock, sleep. Woken: lock, begin again.
 *            Timeout: lock, leave the line; was it the head: pass on.
 *   pass on  next is a thread: seq++, wake. Next is asynchronous: WANT on; IN is set, or the one
 *            before took data (there may be more, and no edge for it): a turn is posted.
 *   turn     worker: take; lock; head asynchronous: look; then callback (MAY BLOCK FOR EVER)
 *            after passing on and unlocking; finish: wanted again: post, else LINKED off.
 *   TAKE_WANTED (the default of a turn's take): IN goes only where WANT is set; TAKE_NOTHING: only
 *            the look clears IN. Clearing IN unasked is BUG_TAKE_ALL: it erases an edge that a
 *            waiter needs.
 *
 * The kernel: data comes, then its edge; edges merge. Store buffers: only BUG_WAIT_PLAIN_STORE has
 * a plain store; in the protocol all moves are RMWs of one word or stand under the lock.
 *
 * Bounds: SYNC waiters (1-2), ASYNC operations (0-1), WORKERS (0-1), ARRIVALS units of data; each
 * operation takes one unit; each wait may time out or be woken by a signal; the asynchronous
 * operation may be cancelled; with a worker, one turn may be asked for by something else (CTL).
 * 3.7 million states with all of them. */
#ifndef SYNC
#define SYNC 1
#endif
#ifndef ASYNC
#define ASYNC 0
#endif
#ifndef WORKERS
#define WORKERS 0
#endif
#ifndef ARRIVALS
#define ARRIVALS 2
#endif

#define IN 1
#define WAIT 2
#define WANT 4
#define LINKED 8
#define CTL 16

byte word;                              /* the event word */
byte seq;                               /* the futex word of the direction */
bit lock;                               /* the direction's lock */
byte l0, l1, l2;                        /* the line; operations 1..SYNC wait, SYNC + 1.. do not */
byte turns;                             /* posted, not started */
bit asleep[3];                          /* in the kernel, on seq; by number of operation - 1 */
byte data;                              /* in the socket */
bit edge;                               /* in the back end, not harvested */

/* What nobody's code holds. */
bit arriving;                           /* data is in the socket and its edge is about to come */
bit harvesting;                         /* the poller has an event in its hands */
byte passing;                           /* waiters on their way to sleep or back to the lock */
bit W1_waiter_woken = 1, W3_next_in_line_looks = 1;

#ifdef BUG_CALLBACK_BEFORE_PASS
bit decided;                            /* the head has its data and has not left the line */
#endif

#ifdef BUG_WAIT_PLAIN_STORE
bit stores[3];                          /* WAIT, in the store buffer of a waiter */
active proctype drain() {
end:
    do
    :: atomic { stores[0] -> stores[0] = 0; word = word | WAIT }
    :: atomic { stores[1] -> stores[1] = 0; word = word | WAIT }
    od
}
#endif

#define IS_SYNC(op) (op >= 1 && op <= SYNC)
#define IS_ASYNC(op) (op > SYNC)

inline append(op) {
    if
    :: l0 == 0 -> l0 = op
    :: l0 != 0 && l1 == 0 -> l1 = op
    :: else -> l2 = op
    fi
}

inline leave_line(op) {
    if
    :: l0 == op -> l0 = l1; l1 = l2; l2 = 0
    :: l0 != op && l1 == op -> l1 = l2; l2 = 0
    :: else -> l2 = 0
    fi
}

inline wake_all() {
    atomic { asleep[0] = 0; asleep[1] = 0; asleep[2] = 0 }
}

/* One RMW: LINKED goes on where the word asks for a turn, and whoever put it on posts the turn. */
inline set_and_link(bits) {
    atomic {
        word = word | (bits);
        if
        :: !(word & LINKED) && ((word & CTL) || ((word & WANT) && (word & IN))) ->
            word = word | LINKED; turns++
        :: else
        fi
    }
}

/* Under the lock, after the head has left. `more`: there may be data without an edge for it. */
inline pass_on(more) {
    if
    :: IS_SYNC(l0) -> seq++; wake_all()
    :: IS_ASYNC(l0) -> set_and_link(WANT | (more -> IN : 0))
    :: l0 == 0
    fi
}

/* recv of one unit; `got` tells. O3: only the head of the line may. */
inline receive(op) {
    atomic {
        assert(l0 == op);
        if
        :: data > 0 -> data--; got = 1
        :: else -> got = 0
        fi
    }
}

active proctype kernel() {
    byte n;
    do
    :: n < ARRIVALS -> atomic { data++; arriving = 1 }; atomic { edge = 1; arriving = 0; n++ }
    :: n == ARRIVALS -> break
    od
}

active proctype poller() {
    bit was_wait;
end:
    atomic { edge -> edge = 0; harvesting = 1 };
#if defined(BUG_LOOK_THEN_SET)
    was_wait = (word & WAIT) != 0;
    atomic { word = word & ~WAIT };
    set_and_link(IN);
#elif defined(BUG_POOL_SETS_IN)
    atomic {
        was_wait = (word & WAIT) != 0;
        if
        :: was_wait -> word = (word & ~WAIT) | IN
        :: else
        fi
    };
    set_and_link(CTL);                  /* the turn will set IN */
#else
    atomic {
        was_wait = (word & WAIT) != 0;
        word = word & ~WAIT;
        set_and_link(IN)
    };
#endif
    if
    :: was_wait -> seq++; wake_all()
    :: else
    fi;
    atomic { was_wait = 0; harvesting = 0 };
    goto end
}

proctype waiter(byte me) {
    byte s;
    bit got, head;

    atomic { !lock -> lock = 1; append(me) };
again:
    if
    :: l0 == me -> head = 1
#ifdef BUG_BARGE
    :: l0 != me -> head = 1
#else
    :: l0 != me -> head = 0; s = seq; goto sleep
#endif
    fi;
look:
#ifndef BUG_LATE_CLEAR
    word = word & ~IN;                  /* RMW */
#endif
    receive(me);
    if
    :: got -> goto done
    :: else
    fi;
#ifdef BUG_LATE_CLEAR
    word = word & ~IN;
#endif
#ifndef BUG_SEQ_AFTER_PUBLISH
    s = seq;
#endif
#if defined(BUG_NO_RECHECK)
    word = word | WAIT;
#elif defined(BUG_WAIT_PLAIN_STORE)
    stores[me - 1] = 1;
    if
    :: word & IN -> (!stores[me - 1]); goto look
    :: else
    fi;
#else
    if                                  /* one CAS */
    :: atomic { (word & IN) == 0 -> word = word | WAIT }
    :: (word & IN) != 0 -> goto look
    fi;
#endif
#ifdef BUG_SEQ_AFTER_PUBLISH
    s = seq;
#endif
sleep:
#ifdef BUG_WAIT_PLAIN_STORE
    atomic { !stores[me - 1] -> passing++; lock = 0 };          /* an exchange: buffer first */
#else
    atomic { passing++; lock = 0 };
#endif
    atomic {                            /* futex: compare and go to sleep are one step */
        if
        :: seq == s -> asleep[me - 1] = 1
        :: else
        fi;
        s = 0;
        passing--
    };
end_asleep:
    if
    :: atomic { !asleep[me - 1] -> passing++ }
    :: atomic { asleep[me - 1] -> asleep[me - 1] = 0; passing++ }       /* a signal */
    :: atomic { asleep[me - 1] -> asleep[me - 1] = 0; passing++ };      /* the deadline */
        atomic { !lock -> lock = 1; passing-- };
        goto timeout_
    fi;
    atomic { !lock -> lock = 1; passing-- };
    goto again;
timeout_:
    atomic { head = (l0 == me); leave_line(me) };
    if
    :: head -> word = word & ~WAIT;     /* RMW */
#ifndef BUG_TIMEOUT_SWALLOWS
        /* Made head while the deadline passed, it has not looked: data may be there. */
        pass_on(1)
#endif
    :: else
    fi;
    lock = 0;
    goto out;
done:
    atomic { leave_line(me); got = 0 };
#ifdef BUG_SUCCESS_PASSES_NO_LOOK
    pass_on(0);
#else
    pass_on(1);
#endif
    lock = 0;
out:
    skip
}

#if ASYNC > 0
proctype async_start(byte me) {
    bit got;

    atomic { !lock -> lock = 1; append(me) };
    if
    :: l0 != me                         /* its turn will come: it is passed on to */
    :: l0 == me ->
        word = word & ~IN;              /* RMW */
        receive(me);
        if
        :: got -> atomic { leave_line(me); got = 0 }; pass_on(1)
        :: else -> set_and_link(WANT)
        fi
    fi;
    lock = 0;

    /* Perhaps it is cancelled, at any time later. */
end:
    atomic { !lock -> lock = 1 };
    if
    :: l0 == me ->
        atomic { leave_line(me) };
#ifndef BUG_WANT_STAYS
        word = word & ~WANT;            /* RMW, before another becomes the head */
#endif
        pass_on(1)
    :: l0 != me && (l1 == me || l2 == me) -> atomic { leave_line(me) }
    :: l0 != me && l1 != me && l2 != me
    fi;
    lock = 0
}
#endif

#if WORKERS > 0
/* Something else asks for a turn: the other direction, a timer, a close. */
active proctype other() {
    set_and_link(CTL)
}

active proctype worker() {
    bit got, taken;
    byte op;

end:
    atomic { turns > 0 -> turns-- };
    atomic {                            /* take */
#if defined(BUG_TAKE_ALL)
        taken = 1;
        word = word & ~(CTL | IN)
#elif defined(TAKE_NOTHING)
        word = word & ~CTL
#else
        taken = ((word & WANT) && (word & IN));
        word = word & ~(CTL | (word & WANT -> IN : 0))
#endif
    };
#ifdef BUG_POOL_SETS_IN
    set_and_link(IN);
#endif
    atomic { !lock -> lock = 1; op = l0 };
    if
    :: IS_ASYNC(op) ->
        if
        :: taken -> taken = 0           /* cleared already */
        :: else -> word = word & ~IN    /* RMW */
        fi;
        receive(op);
        if
        :: got ->
#ifdef BUG_CALLBACK_BEFORE_PASS
            atomic { got = 0; decided = 1; lock = 0 };
            if
            :: goto stuck
            :: skip
            fi;
            atomic { !lock -> lock = 1; decided = 0 };
#endif
            atomic { leave_line(op); got = 0 };
            word = word & ~WANT;        /* RMW */
            pass_on(1);
            lock = 0;
            if                          /* the callback */
            :: goto stuck
            :: skip
            fi
        :: else -> set_and_link(WANT); lock = 0
        fi
    :: else -> atomic { taken = 0; lock = 0 }
    fi;
    op = 0;
    atomic {                            /* finish */
        if
        :: (word & CTL) || ((word & WANT) && (word & IN)) -> turns++
        :: else -> word = word & ~LINKED
        fi
    };
    goto end;
stuck:
end_stuck:
    false
}
#endif

/* The first operation in line that is not decided. */
#ifdef BUG_CALLBACK_BEFORE_PASS
#define HEAD (decided -> l1 : l0)
#else
#define HEAD l0
#endif
#define QUIET (data > 0 && !edge && !arriving && !harvesting && passing == 0 && !lock)
active proctype monitor() {
end:
    if
    /* W1: whatever the workers do or do not. */
    :: atomic { QUIET && IS_SYNC(HEAD) && asleep[HEAD - 1] ->
        W1_waiter_woken = 0; assert(W1_waiter_woken) }
    /* W3, D4: an asynchronous head; a turn that is posted or runs will look. */
    :: atomic { QUIET && IS_ASYNC(l0) && !(word & LINKED) ->
        W3_next_in_line_looks = 0; assert(W3_next_in_line_looks) }
    fi
}

init {
    atomic {
        run waiter(1);
#if SYNC > 1
        run waiter(2);
#endif
#if ASYNC > 0
        run async_start(SYNC + 1);
#endif
    }
}
