/* source.h: anything a poller watches, and the one word by which threads agree about it.
 *
 * The event word holds the generation in its upper half and flags in its lower half. Every move is
 * a read-modify-write of this one word, hence all moves are totally ordered; that order is the
 * whole argument, and no fence is needed anywhere.
 *
 *   IN OUT      readiness: set by the poller with each edge, cleared by whoever is about to try
 *   HUP         the peer has finished or failed; stays (so WANT_HUP is good for one turn)
 *   ERROR       an error is pending on the descriptor; as HUP, but nobody can want it
 *   CTL TIMER   a turn is asked for: control (close, cancel, ended operations), a passed deadline
 *   LINKED      the source is in a queue, or a worker is in its turn (never both, never twice:
 *               D4, D5)
 *   WANT_x      an asynchronous reader or writer wants a turn when x is set
 *   WAIT_x      a thread sleeps in a synchronous call until x is set
 *
 *   event    poller      set IN/OUT/HUP; clear WAIT_x of what was set and wake it; if WANT_x
 *                        matches and not LINKED: set LINKED and push on the ready queue
 *   take     worker      first act of a turn: clear CTL TIMER and those of IN OUT that are wanted;
 *                        WANT_HUP if HUP is set
 *   finish   worker      last act of a turn: LINKED off when nothing wanted is set, else queue
 *                        again
 *   want     any thread  set WANT_x; if x is set already and not LINKED: set LINKED and post
 *   wait     any thread  fails when x is set; else sets WAIT_x: no edge fits between look and
 *                        sleep (W1)
 *   schedule any thread  set CTL/TIMER/IN/OUT; if not LINKED: set LINKED and post
 *
 * Why no edge is lost: a reader clears x, then tries. An edge after the clear sets x again, and
 * `finish`, `want` or `wait`, being RMWs of the same word, see it; an edge before it brought data
 * that the try sees. Why turns do not overlap and see each other: LINKED is set by one RMW that
 * found it clear, and finish (release) is read by it (acquire), directly or through RMWs between,
 * which continue the release sequence. */
#ifndef WR_DISPATCH_SOURCE_H
#define WR_DISPATCH_SOURCE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include <weir/base.h>
#include <weir/work.h>

struct wr_poller;

enum wr_source_flags {
    WR_IN = 1 << 0,             /* equal to WR_POLL_IN, WR_POLL_OUT, WR_POLL_HUP */
    WR_OUT = 1 << 1,
    WR_HUP = 1 << 2,
    WR_CTL = 1 << 3,
    WR_TIMER = 1 << 4,
    WR_ERROR = 1 << 5,          /* equal to WR_POLL_ERROR */
    WR_LINKED = 1 << 8,
    WR_LIVE = 1 << 9,               /* attached once, not released: destroy and drain find it */
    WR_WANT_IN = 1 << 12,       /* IN << 12 */
    WR_WANT_OUT = 1 << 13,
    WR_WANT_HUP = 1 << 14,      /* HUP << 12 */
    WR_WAIT_IN = 1 << 16,       /* IN << 16 */
    WR_WAIT_OUT = 1 << 17
};
#define WR_WANT_SHIFT 12
#define WR_WAIT_SHIFT 16
#define WR_GENERATION_SHIFT 32

enum wr_turn { WR_TURN_DONE, WR_TURN_GONE };

/* What a source is, for the one who opened it: an index of runtime->turn. Zero are watches. */
enum { WR_KIND_WATCH = 0, WR_KINDS = 4 };

/* A struct wr_source stands first in what it is part of. It leaves room in its cache line for what
 * its owner needs in each turn. */
struct wr_source {
    _Atomic uint64_t word;
    _Atomic uint32_t wake[2];           /* futex words of waiters, in and out */
    uint32_t slot;
    _Atomic uint32_t refs;              /* 1 for being open, 1 for each call inside; 0: free */
    void *link;                         /* zeroed from here on for a new owner; in the queue of
                                           turns (turns.h), which owns it, or of free slots */
    struct wr_poller *poller;
    int fd;                             /* -1: none */
    uint8_t kind;
    uint8_t stage;                      /* the owner's, in its turns only */
};

/* One turn on a worker, with what take() returned. GONE: the source must not be touched. */
typedef enum wr_turn wr_turn_fn(struct wr_source *source, uint32_t flags);

/* The name under which a back end knows it. */
uint64_t wr_source_token(const struct wr_source *source);

/* The owning poller: one event. True: push it on the ready queue. *ret_source is set then. */
bool wr_source_event(struct wr_poller *poller, uint64_t token, uint32_t bits,
                     struct wr_source **ret_source);

/* A worker: one whole turn, from take to finish. */
void wr_source_run(struct wr_source *source);

/* Any thread. `flags` of CTL, TIMER, IN, OUT. */
void wr_source_schedule(struct wr_source *source, uint32_t flags);
/* Any thread. `bits` of IN, OUT, HUP. */
void wr_source_want(struct wr_source *source, uint32_t bits);
void wr_source_unwant(struct wr_source *source, uint32_t bits);
/* Whoever is about to try (and alone tries in that direction): clears readiness. */
void wr_source_clear(struct wr_source *source, uint32_t bits);
/* False: readiness has come since the clear: try again. */
bool wr_source_wait(struct wr_source *source, uint32_t bit);
void wr_source_unwait(struct wr_source *source, uint32_t bit);
/* Wakes all threads that sleep for `bit`, whatever the flags say. */
void wr_source_wake(struct wr_source *source, uint32_t bit);
uint32_t wr_source_flags(struct wr_source *source);

/* Keeps the slot from being given away. False: it is going already, or nobody lives there. Who
 * lives there may be another than the caller thought of. Any thread. */
bool wr_source_pin(struct wr_source *source);
/* Gives a pin back. Who gives the last one back of a source that has ended posts its last turn. */
void wr_source_unpin(struct wr_source *source);
/* The turn that ended the source gives back the open source's own pin. True: that was the last:
 * release it. False: return WR_TURN_GONE and touch nothing; a last turn will come. */
bool wr_source_unpin_own(struct wr_source *source);

/* The source whose turn runs on this thread, or NULL. */
struct wr_source *wr_source_current(void);

#endif
