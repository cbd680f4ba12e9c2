/* inbound.h: completion mode: what a ring received for one stream, on its way to who reads it.
 *
 * At any time one side alone has the right to take bytes from the socket, so that their order is
 * the order of the list:
 *
 *   the owner   (who waits in the ring): a multishot receive is armed, or a one-shot poll
 *   the reader  (a turn, or a call under the in line's lock; one at a time): it receives by itself
 *               once the list is empty
 *
 * The right travels in the list, behind the bytes that came before it:
 *
 *   push       owner    appends a buffer
 *   hand over  owner    appends the mark, with a result that comes first (the end of the stream, an
 *                       error) or without: there was no buffer left, the reader is too slow, the
 *                       poll has found the socket readable. Nothing of ours is armed any more.
 *   take       reader   the next buffer; at the mark, its result; from then on the right is here
 *   resume     reader   after -EAGAIN from the socket: the right goes back, by a command of the
 *                       back end. What comes meanwhile is seen when the receive or the poll is
 *                       armed, because both look at the level first.
 *
 * So there is one mark a stream, and it is never in the list twice. No state waits for a buffer to
 * come back: who finds none reads by himself, and a stream whose buffers stay in a slow callback,
 * or with a reader who has paused, costs the others their buffers, never their turn.
 *
 * After push and hand over the owner sets IN in the event word, as with readiness: the list is what
 * the socket is there. The list: the owner pushes on a stack by compare-and-exchange (release), the
 * reader takes the whole of it (acquire) and turns it round. */
#ifndef WR_POLL_INBOUND_H
#define WR_POLL_INBOUND_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* A buffer that the kernel fills. Its owner is the ring, a list, or who took it from there. */
struct wr_buffer {
    struct wr_buffer *next;
    unsigned char *data;            /* what is not yet read */
    uint32_t length;
    uint16_t id;
    bool out;                       /* the owner's: not in the ring */
};

struct wr_inbound {
    _Atomic(struct wr_buffer *) arrived;    /* newest first */
    /* the owner's */
    uint32_t put;                   /* buffers pushed */
    /* the reader's */
    _Atomic uint32_t taken;         /* buffers taken; the owner looks at it */
    struct wr_buffer *first;        /* oldest first */
    bool direct;                    /* the right is here */
    /* who has not the right to it must not touch it */
    struct wr_buffer mark;
    int result;                     /* that comes with the mark */
};

/* A mark without a result. */
#define WR_INBOUND_NOTHING 1

/* `direct`: the reader has the right. */
void wr_inbound_init(struct wr_inbound *inbound, bool direct);

/* ---- the owner */
void wr_inbound_push(struct wr_inbound *inbound, struct wr_buffer *buffer);
/* `result`: WR_INBOUND_NOTHING; 0 the end of the stream; -errno. */
void wr_inbound_hand_over(struct wr_inbound *inbound, int result);
/* Buffers pushed and not taken. */
uint32_t wr_inbound_unread(struct wr_inbound *inbound);

/* ---- the reader; and the owner when there is no reader any more */
enum wr_inbound_next {
    WR_INBOUND_EMPTY,               /* nothing here, and not ours to receive */
    WR_INBOUND_BUFFER,              /* *ret_buffer is the caller's: to be given back */
    WR_INBOUND_RESULT,              /* *ret_result: 0 the end, or -errno; said once */
    WR_INBOUND_DIRECT               /* nothing here: ask the socket */
};
enum wr_inbound_next wr_inbound_take(struct wr_inbound *inbound, struct wr_buffer **ret_buffer,
                                     int *ret_result);
/* What the taker did not use up; before anything else is taken. */
void wr_inbound_put_back(struct wr_inbound *inbound, struct wr_buffer *buffer);
/* Neither a buffer nor the mark is there. */
bool wr_inbound_empty(struct wr_inbound *inbound);
/* A buffer comes next. */
bool wr_inbound_has_bytes(struct wr_inbound *inbound);

#endif
