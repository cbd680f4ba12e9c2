/* inbound.pml: completion mode: the list of what a ring received for one stream, and the right to
 * receive that travels in it.
 *
 * Proves (design names): W1 and D4 for bytes that a ring received: the reader gets each unit once,
 * in order, and never stands still while something is there for it; one side at a time receives;
 * the mark is in the list once; no buffer is lost, and nobody waits for one to come back.
 *   kernel   units of data come. Armed: with a buffer in the ring the oldest becomes a completion;
 *            without one, -ENOBUFS: the receive has ended. A poll that is armed fires once, when
 *            there is data.
 *   owner    a completion: push the buffer; -ENOBUFS, cancelled, the poll fired: right off, push
 *            the mark. Then IN in the event word; a reader that sleeps is woken. More than CAP
 *            unread: cancel. When it comes by it takes buffers back, then commands: resume: right
 *            on; with a buffer in the ring arm the receive, else the poll. (That a hungry owner is
 *            rung makes it come by sooner; nothing here relies on it.)
 *   reader   clear IN; take: a buffer (kept as long as it likes, given back later); the mark: the
 *            right is here; list empty and the right here: receive one unit itself, or at EAGAIN
 *            push resume and ring. Nothing: sleep unless IN is set.
 *
 * The list is pushed by one RMW and taken whole by another, so it is modelled as a channel; so are
 * commands and the stack of buffers. The bell is a bit: owner asleep or not, decided by one RMW.
 *
 * Bounds: UNITS of data, BUFFERS, CAP; the reader may keep one buffer for ever (KEEPS), and may
 * begin late. */
#ifndef UNITS
#define UNITS 4
#endif
#ifndef BUFFERS
#define BUFFERS 1
#endif
#ifndef CAP
#define CAP 1
#endif
#ifndef KEEPS
#define KEEPS 0
#endif

#define MARK 255

byte socket;                            /* units that nobody has received */
byte next_out;                          /* the number of the oldest of them */
byte in_ring;                           /* buffers the kernel has */
byte returned;                          /* given back, not yet taken by the owner */
bit bell;                               /* the owner has been rung */
bit armed, poll_armed, cancelled;       /* requests of the owner that the kernel has */
chan done = [8] of { byte };            /* completions: a unit, or one of the following */
#define NOBUFS 254
#define CANCELED 253
#define FIRED 252

chan list = [8] of { byte };            /* units, MARK */
bit word_in, wait_in, woken;            /* the event word and the reader's sleep */
bit right = 1;                          /* the owner's own */
bit direct;                             /* the reader's own */
bit resume;                             /* the command, pushed and not yet taken */
byte put, taken, got;                   /* got: the number of the unit that is to come next */
byte kept;                              /* buffers the reader has */
byte marks;                             /* in the list */

/* What nobody's code holds. */
bit owner_busy = 1, reader_busy = 1;
byte sent;
bit W1_reader_stands_still_with_data = 1, buffer_lost = 1;

active proctype peer() {
    do
    :: sent < UNITS -> atomic { socket++; sent++ }
    :: sent == UNITS -> break
    od
}

/* Requests look at the level when they are armed and at each wake: one process that acts whenever
 * it can. */
active proctype kernel() {
end:
    do
    :: atomic { armed && socket > 0 && in_ring > 0 ->
        in_ring--; socket--; done!next_out; next_out++ }
    :: atomic { armed && socket > 0 && in_ring == 0 -> armed = 0; done!NOBUFS }
    :: atomic { armed && cancelled -> armed = 0; cancelled = 0; done!CANCELED }
    :: atomic { !armed && cancelled -> cancelled = 0 }      /* too late: it had ended */
    :: atomic { poll_armed && socket > 0 -> poll_armed = 0; done!FIRED }
    od
}

inline event() {
    atomic {
        word_in = 1;
        if
        :: wait_in -> wait_in = 0; woken = 1
        :: else
        fi
    }
}

inline arm() {
    if
#ifdef BUG_WAITS_FOR_BUFFERS
    :: in_ring > 0 -> armed = 1
    :: else -> skip
#else
    :: in_ring > 0 -> armed = 1
    :: else -> poll_armed = 1
#endif
    fi
}

/* The right goes to the reader, behind all that was pushed. */
inline hand_over() {
    right = 0;
#ifdef BUG_RIGHT_WITHOUT_MARK
    direct = 1
#else
    atomic { assert(marks == 0); list!MARK; marks++ }
#endif
}

inline take_back() {
    atomic { in_ring = in_ring + returned; returned = 0 }
}

active proctype owner() {
    byte c;
    atomic { in_ring = BUFFERS; arm(); owner_busy = 0 };
end:
    do
    :: atomic { bell -> bell = 0; owner_busy = 1 };
       take_back();
       if
       :: atomic { resume -> resume = 0 };
          assert(!right);
          right = 1; arm()
       :: else
       fi;
       owner_busy = 0
    :: atomic { done?c -> owner_busy = 1 };
       take_back();
       if
       :: c < FIRED ->
#ifdef BUG_EVENT_BEFORE_PUSH
          event();
#endif
          atomic { put++; list!c };
          if
          :: put - taken > CAP && armed && !cancelled -> cancelled = 1;
#ifdef BUG_CANCEL_IS_THE_END
             hand_over()
#endif
          :: else
          fi;
#ifndef BUG_EVENT_BEFORE_PUSH
          event()
#endif
#ifdef BUG_NOBUFS_IS_DROPPED
       :: c == NOBUFS -> skip
       :: c == CANCELED || c == FIRED -> hand_over(); event()
#else
#ifdef BUG_CANCEL_IS_THE_END
       :: c == CANCELED || (c == NOBUFS && !right) -> skip
       :: c == FIRED || (c == NOBUFS && right) ->
#else
       :: c >= FIRED ->
#endif
#ifdef BUG_EVENT_BEFORE_MARK
          event(); hand_over()
#else
          hand_over(); event()
#endif
#ifdef BUG_ARMED_AGAIN_BY_THE_WAY
          ; take_back(); arm()
#endif
#endif
       fi;
       owner_busy = 0
    od
}

inline receive_unit(n) {
    assert(n == got);                   /* in order, each once */
    got++
}

active proctype reader() {
    byte c;
    do
    :: got == UNITS -> break
    :: else ->
        word_in = 0;
        do
        :: atomic { list?c ->
            if
            :: c == MARK -> marks--; direct = 1
            :: else -> taken++; receive_unit(c); kept++
            fi }
#ifdef BUG_RIGHT_WITHOUT_MARK
        /* What is looked at first may not be so any more when the other is. */
        :: empty(list) ->
            if
            :: atomic { direct && socket > 0 -> socket--; c = next_out; next_out++ };
               receive_unit(c)
            :: atomic { direct && socket == 0 -> direct = 0; resume = 1; bell = 1 }
            :: !direct -> break
            fi
#else
        :: atomic { empty(list) && direct && socket > 0 ->
            assert(!armed); assert(!poll_armed);
            socket--; c = next_out; next_out++ };
            receive_unit(c)
        :: atomic { empty(list) && direct && socket == 0 ->
            direct = 0; resume = 1; bell = 1 }
#ifndef BUG_SLEEPS_WITH_THE_RIGHT
        :: empty(list) && !direct -> break
#else
        :: empty(list) -> break
#endif
#endif
        :: atomic { kept > KEEPS -> kept--; returned++ }
        od;
#ifdef BUG_CLEAR_AFTER_LOOK
        word_in = 0;
#endif
        if
        :: got == UNITS -> break
        :: else
        fi;
        atomic {
            if
            :: word_in -> skip
            :: else -> wait_in = 1; woken = 0; reader_busy = 0
            fi
        };
        if
        :: reader_busy
        :: !reader_busy -> atomic { woken -> reader_busy = 1 }
        fi
    od;
    reader_busy = 0
}

/* At rest with something owed. */
active proctype monitor() {
end:
    do
    :: atomic { !reader_busy && !woken && !owner_busy && empty(done) && !bell && got < UNITS &&
                sent == UNITS && !(armed && (socket > 0 || cancelled)) &&
                !(poll_armed && socket > 0) -> assert(!W1_reader_stands_still_with_data) }
    :: atomic { !reader_busy && got == UNITS && !owner_busy && empty(done) && empty(list) &&
                in_ring + returned + kept != BUFFERS -> assert(!buffer_lost) }
    od
}
