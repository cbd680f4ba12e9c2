/* compensate.pml: the counts of the I/O lane when workers announce that they are about to block.
 *
 * Proves (design name): P4's "compensated at once": while workers sit in announced blocks there are
 * still TARGET workers that are not blocked (or being started), or the cap is reached.
 *   begin    under the lock: blocked + 1; too few unblocked and below the cap: threads + 1, which
 *            is started after the unlock; then the block (MAY LAST FOR EVER)
 *   end      under the lock: blocked - 1
 *   retire   under the lock: more unblocked than TARGET: threads - 1, and the thread ends
 *   tick     somebody blocks without a word: threads + 1 below the cap
 * An atomic step stands for a section under the lane's lock.
 * 0.15 million states. */
#ifndef TARGET
#define TARGET 2
#endif
#ifndef MAX
#define MAX 5
#endif

byte threads = TARGET, blocked;
byte born;                              /* started, not yet running */
byte deciding;                          /* inside begin, where a variant splits it */
bit P4_replaced_at_once = 1;

#define MISSING (threads - blocked < TARGET && threads < MAX)

proctype worker(bit first) {
    bit missing;

    if
    :: first
    :: !first -> end_unborn: atomic { born > 0 -> born-- }
    fi;
end:
    do
    ::                                          /* announce a block */
#if defined(BUG_LOOKS_BEFORE_IT_COUNTS)
        atomic { deciding++; missing = (threads - blocked <= TARGET - 1 && threads < MAX) };
        atomic { deciding--; blocked++; threads = threads + missing };
#elif defined(BUG_COUNTS_OUTSIDE_THE_LOCK)
        atomic { deciding++; blocked++; missing = MISSING };
        atomic { deciding--; threads = threads + missing };
#else
        atomic { blocked++; missing = MISSING; threads = threads + missing };
#endif
        assert(threads <= MAX);
        if
        :: missing -> missing = 0; born++
        :: else
        fi;
        if
        :: goto stuck
        :: blocked--
        fi
    ::                                          /* leave */
#ifdef BUG_RETIRES_ON_AN_OLD_LOOK
        (threads - blocked > TARGET);
        threads--;
#else
        atomic { threads - blocked > TARGET -> threads-- };
#endif
        goto out
    od;
stuck:
end_stuck:
    false;
out:
    skip
}

active proctype tick() {
    bit missing;
end:
    atomic { missing = threads < MAX; threads = threads + missing };
    if
    :: missing -> born++
    :: else
    fi
}

active proctype monitor() {
end:
    atomic { MISSING && deciding == 0 -> P4_replaced_at_once = 0; assert(P4_replaced_at_once) }
}

init {
    atomic {
        run worker(1); run worker(1);
        run worker(0); run worker(0); run worker(0)
    }
}
