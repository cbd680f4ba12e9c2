/* close.pml: the end of a source while others still use it, and the next owner of its slot.
 *
 * Proves (design names): O5, O6, and what the header promises of closed():
 * the fd is closed once and no system call uses it afterwards; a thread that waits leaves at once,
 * without a worker; every operation ends before closed(), which comes once and last; the slot is
 * not given away while a waiting call, a user's call or a turn can still touch it; a stale event
 * changes nothing of the next owner.
 *   close    any thread, under the locks: the first sets `closing`, ends all operations (who waits
 *            is woken), asks for a turn (CTL). A reset after it is legal until closed() has been
 *            called.
 *   turn     serves, reports what has ended; closing: detach; under the locks close the fd, fd =
 *            none; dead; gives the own pin back: it was the last: last; else the turn ends and
 *            LINKED stays
 *   last     closed() (the user's), then release: generation + 1, all flags 0, the slot is free
 *   waiter   pins the source while it is inside; who gives the last pin back posts the last turn
 *   event    the poller's CAS compares the generation with the one in the event's token
 * The user keeps the rule "after closed() the pointer is dead": calls run under a lock of the
 * user's that closed() takes too. Waiting calls, which closing ends, do not; but from their
 * beginning to the refusal or the pin they are not overtaken by the whole of an end: no pointer
 * could survive it.
 *
 * Bounds: two closers, one call that asks the fd's name, one waiter, one asynchronous operation,
 * two workers, EVENTS harvested by the poller at any time while the owner is attached. Both
 * directions' locks are one here. All moves of the word are RMWs, all else stands under the lock:
 * no store buffer.
 * 5.8 million states. */
#ifndef EVENTS
#define EVENTS 2
#endif

#define IN 1
#define WAIT 2
#define WANT 4
#define LINKED 8
#define CTL 16

byte gen = 1, word = WANT;              /* one word: all its moves are atomic steps */
byte seq;                               /* futex word */
byte refs = 1;                          /* pins */
bit lock, closing, dead;
bit has_fd = 1;                         /* what the source thinks */
bit attached = 1;
bit freed;                              /* the slot is in the free list */
byte turns;                             /* posted, not started */
byte op = 1;                            /* asynchronous: 0 none, 1 pending, 2 ended, 3 reported */
byte waiting;                           /* the waiter's operation: 0 none, 1 pending, 2 ended */
bit asleep;

/* What nobody's code holds. */
byte owner = 1;                         /* who lives in the slot */
byte fd_of = 1;                         /* whose file has the number: 0 closed */
byte calls;                             /* users inside a call */
bit told;                               /* closed() has been called */
bit inside;                             /* the waiter is between its pin and its unpin */
bit O5_waiter_leaves_at_once = 1, O5_ends = 1;

inline take_lock() {
    atomic { !lock -> lock = 1 }
}

/* One RMW. */
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

inline call_begins() {
    atomic { !told -> calls++ }
}

proctype closer(bit reset) {
    if
    :: call_begins()
    :: told -> goto out
    fi;
    take_lock();
    assert(owner == 1);                 /* not a stranger's socket */
    if
    :: closing && !reset
    :: !closing || reset ->
#ifdef BUG_CLOSER_CLOSES_FD
        if
        :: !closing -> fd_of = 0; has_fd = 0
        :: else
        fi;
#endif
        atomic {
            closing = 1;
            if
            :: op == 1 -> op = 2; word = word & ~WANT
            :: else
            fi;
            if
#ifndef BUG_WAITER_NOT_WOKEN
            :: waiting == 1 -> waiting = 2; seq++; asleep = 0
#endif
            :: else
            fi
        };
        set_and_link(CTL)
    fi;
    lock = 0;
    calls--;
out:
    skip
}

/* A call that uses the descriptor without asking whether the socket is closing. */
active proctype name() {
    if
    :: call_begins()
    :: told -> goto out
    fi;
    take_lock();
    if
    :: has_fd -> assert(fd_of == 1 && owner == 1)
    :: else
    fi;
    lock = 0;
    calls--;
out:
    skip
}

active proctype waiter() {
    byte s;
    bit last;

    if                                  /* one step: see above; refused when it is closing */
    :: atomic { !told && !lock && !closing -> lock = 1 }
    :: closing || told -> goto out
    fi;
#ifdef BUG_NO_PIN
    atomic { inside = 1; waiting = 1 };
#else
    atomic { assert(refs > 0); refs++; inside = 1; waiting = 1 };
#endif
    do
    :: waiting == 1 ->
        word = word & ~IN;              /* RMW */
        assert(fd_of == 1 && owner == 1);       /* recv: nothing there, or done */
        if
        :: waiting = 2; break
        :: s = seq
        fi;
        if                              /* one CAS */
        :: atomic { !(word & IN) -> word = word | WAIT }
        :: word & IN -> s = 0; goto next
        fi;
        lock = 0;
        atomic {
            if
            :: seq == s -> asleep = 1
            :: else
            fi;
            s = 0
        };
end_asleep:
        !asleep;
        take_lock();
        assert(owner == 1);
next:
        skip
    :: waiting == 2 -> break
    od;
    lock = 0;
#ifdef BUG_NO_PIN
    assert(owner == 1);                 /* it looks at its source once more */
    inside = 0;
#else
    atomic { assert(owner == 1 && refs > 0); refs--; last = (refs == 0); inside = 0 };
#ifndef BUG_LAST_PIN_POSTS_NOTHING
    if
    :: last -> turns++
    :: else
    fi;
#endif
#endif
out:
    skip
}

active proctype poller() {
    byte n, token;
    bit was_wait, fresh;

end:
    do
    :: atomic { attached && n < EVENTS -> token = owner; n++ };         /* harvested */
        atomic {
            if
#ifndef BUG_NO_GENERATION
            :: token != gen             /* stale: dropped */
#endif
            :: else ->
                assert(token == owner); /* O6 */
                was_wait = (word & WAIT) != 0;
                word = (word & ~WAIT) | IN;
                if
                :: !(word & LINKED) && (word & WANT) -> word = word | LINKED; fresh = 1
                :: else
                fi
            fi;
            token = 0
        };
        if
        :: was_wait -> atomic { was_wait = 0; seq++; asleep = 0 }
        :: else
        fi;
        if
        :: fresh -> atomic { fresh = 0; turns++ }
        :: else
        fi
    od
}

inline report() {
    if
    :: op == 2 -> atomic { assert(!told); op = 3 }      /* its callback */
    :: else
    fi
}

/* closed() takes the user's lock, hence waits for the calls that run. */
inline tell() {
    atomic { calls == 0 -> assert(!told && !inside && op != 1 && op != 2); told = 1 }
}

inline release() {
    atomic {
        assert(owner == 1 && !lock);
        gen++; word = 0; owner = 0; freed = 1
    }
}

proctype worker() {
    bit taken, is_last, was_closing;

end:
    atomic { turns > 0 -> turns--; assert(owner == 1) };
    if
    :: dead -> goto last
    :: else
    fi;
    atomic {
        taken = (word & WANT) && (word & IN);
        word = word & ~(CTL | (word & WANT -> IN : 0))
    };
    take_lock();
    if
    :: op == 1 && taken ->
        assert(fd_of == 1 && owner == 1);               /* recv */
        if
        :: atomic { op = 2; word = word & ~WANT }
        :: skip
        fi
    :: else
    fi;
    atomic { taken = 0; lock = 0 };
    assert(fd_of == 1 && owner == 1);                   /* a reader's recv, without the lock */
    report();
    atomic { !lock -> was_closing = closing };
    if
    :: !was_closing ->
        atomic {                                        /* finish */
            if
            :: (word & CTL) || ((word & WANT) && (word & IN)) -> turns++
            :: else -> word = word & ~LINKED
            fi
        };
        goto end
    :: else -> was_closing = 0
    fi;
    report();
    assert(!dead);
    attached = 0;
#ifdef BUG_CLOSED_OUTSIDE_THE_LOCK
    fd_of = 0;
    has_fd = 0;
#elif !defined(BUG_CLOSER_CLOSES_FD)
    take_lock();
    assert(fd_of == 1);                                 /* closed once */
    fd_of = 0;
    has_fd = 0;
    lock = 0;
#endif
    dead = 1;
#ifdef BUG_UNLINKED_AT_THE_END
    word = word & ~LINKED;
#endif
    atomic { refs--; is_last = (refs == 0) };
    if
    :: !is_last -> goto end
    :: else -> is_last = 0
    fi;
last:
#ifdef BUG_RELEASED_BEFORE_CLOSED
    release();
    tell();
#else
    tell();
    release();
#endif
    goto end
}

/* The slot's next owner; its descriptor may have the same number. */
active proctype opener() {
end:
    atomic {
        freed -> freed = 0;
        assert(!lock && !asleep);
        owner = 2; fd_of = 2; has_fd = 1; refs = 1; closing = 0; dead = 0; waiting = 0; attached = 1
    }
}

active proctype monitor() {
end:
    if
    :: atomic { owner == 1 && closing && !lock && asleep ->
        O5_waiter_leaves_at_once = 0; assert(O5_waiter_leaves_at_once) }
    /* Closing, and nobody left who would go on: it must have come to its end. */
    :: atomic { timeout && closing && !told -> O5_ends = 0; assert(O5_ends) }
    fi
}

init {
    atomic { run closer(0); run closer(1); run worker(); run worker() }
}
