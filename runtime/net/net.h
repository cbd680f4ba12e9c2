/* net.h: what a socket is made of. Private to the net layer, but for the few functions at the end.
 *
 * A socket has two lines, in and out: queues of operations, served first come, first served. A
 * line's lock is held during the try of an operation (a system call that does not block) and never
 * across a callback. Lock order: in.lock, out.lock, then the timers of the poller.
 *
 * Who serves a line: while its head is asynchronous, the turn of the socket (WANT_x is set); while
 * its head is a sleeping call, that thread itself (WAIT_x is set while it sleeps). Whoever takes
 * the head away settles the line: the next head is woken, or its turn scheduled with a try, so that
 * no edge is lost. */
#ifndef WR_NET_NET_H
#define WR_NET_NET_H

#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>

#include <weir/socket.h>

#include "dispatch/dispatch.h"

enum wr_op_kind { /* in: */ WR_OP_RECV,
                  WR_OP_RECVFROM,
                  WR_OP_ACCEPT,
                  /* out: */ WR_OP_CONNECT,
                  WR_OP_SEND,
                  WR_OP_SENDV,
                  WR_OP_FILE,
                  WR_OP_SENDTO,
                  WR_OP_WRITE };

/* weir_op.state_, under the line's lock */
enum wr_op_state { WR_OP_IDLE = 0, WR_OP_PENDING = 1, WR_OP_ENDED = 2 };

/* weir_op.flags_ */
enum wr_op_flags { WR_OP_SYNC = 1, WR_OP_TIMED = 2 };

/* 16 bytes. */
struct wr_line {
    struct wr_lock lock;
    uint32_t limit; /* set once; in: how long a close may take, ms; out: the high mark, bytes */
    weir_op *head;  /* its prev_ is the last one, whose next_ is NULL */
};

/* source.kind: watches are 0 */
enum wr_socket_kind { WR_STREAM = 1, WR_DATAGRAM, WR_LISTENER };

/* What only a listener has. */
struct wr_listening {
    weir_socket_options accepted; /* of accepted sockets */
    weir_time backoff;            /* pause after the next error of scarcity */
    weir_time logged;             /* when scarcity was last logged */
    char path[108];               /* of a unix socket, to be removed; "" none */
};

/* source.stage, only in a turn */
enum wr_stage { WR_STAGE_DEAD = 1, WR_STAGE_LINGERING = 2, WR_STAGE_DROPPING = 4 };

/* What an idle connection costs is this, and nothing else: three cache lines, the first two of
 * which one turn needs. What a socket needs only while it is closing shares the place of what it
 * needs only before: `closing` (or DROPPING) tells which is there. */
struct weir_socket {
    struct wr_source source; /* stands first */
    struct wr_line in, out;
    _Atomic(weir_op *) ended; /* asynchronous ones whose callback is to come in a turn, the last
                                 one that ended first */
    union {
        weir_read_fn *on_read;     /* under in.lock */
        weir_accept_fn *on_accept; /* set once, before the listener is attached */
    };
    union {
        void *in_context;
        size_t dropped; /* DROPPING: bytes read and dropped, only in a turn */
    };
    size_t pending; /* bytes written and not taken by the kernel: under out.lock */
    union {
        void *user;
        struct wr_listening *listening; /* of a listener */
    };
    uint32_t write_low;
    _Atomic bool closing; /* under both locks to write, under either to read and rely on it */
    struct {              /* under in.lock */
        bool reading : 1;
        bool end_seen : 1; /* the peer's end of stream */
        bool touched : 1;  /* somebody has read: an edge may have been spent */
    };
    struct {             /* under out.lock */
        bool corked : 1; /* bytes wait in the scratch of the thread that is in its turn */
        bool above : 1, drained : 1; /* marks: above high; fell below low and is to be told */
        bool fin_wanted : 1, fin_sent : 1;
        bool reset : 1; /* under both locks to write */
    };
    uint8_t write_errno; /* positive: why the stream broke; under out.lock */
    struct weir_deadline_ deadline; /* of reading; of accepting again; of lingering */
    union {
        weir_drain_fn *on_drain; /* under out.lock; by wr_drain_get(): see peer.c */
        weir_closed_fn *closed;  /* closing: under both locks */
    };
    void *end_context; /* of either */
};

_Static_assert(sizeof(struct weir_socket) <= 192, "bytes an idle connection costs");
_Static_assert(offsetof(struct weir_socket, out) == WR_CACHE_LINE &&
                   offsetof(struct weir_socket, deadline) == (size_t)2 * WR_CACHE_LINE,
               "what an event, a turn, and neither of them touches");

static inline bool wr_closing(const weir_socket *socket)
{
    return atomic_load_explicit(&socket->closing, memory_order_relaxed);
}

static inline uint32_t wr_line_bit(const weir_socket *socket, const struct wr_line *line)
{
    return line == &socket->out ? WR_OUT : WR_IN;
}

struct weir_listener {
    struct weir_socket socket;
};

/* ---- line.c */
enum { WR_TRY_AGAIN = -EAGAIN, WR_TRY_YIELD = -EALREADY };
void wr_line_append(struct wr_line *line, weir_op *op);
void wr_line_push_head(struct wr_line *line, weir_op *op);
/* Takes a pending op out and decides it. Asynchronous: its callback comes with wr_report(). */
void wr_line_end(weir_socket *socket, struct wr_line *line, weir_op *op, ssize_t result);
/* After the head changed: the next one is woken or gets a turn; behind the last one FIN may go. */
void wr_line_settle(weir_socket *socket, struct wr_line *line);
/* The turn: tries from the head on until the kernel has no more. Takes the lock. */
void wr_line_service(weir_socket *socket, struct wr_line *line);
/* The turn: ends what has passed its deadline. Takes the lock. */
void wr_line_expire(weir_socket *socket, struct wr_line *line);
/* The turn: callbacks of what has ended, in both lines. No lock. */
void wr_report(weir_socket *socket);
/* Ends all but written bytes. */
void wr_line_abort(weir_socket *socket, struct wr_line *line, int error);
struct wr_line *wr_line_of(weir_socket *socket, const weir_op *op);

/* ---- op.c: the body of every operation */
/* Where a test stops a thread, to replay a race. */
enum wr_net_seam { WR_SEAM_UNPINNED /* a waiting call keeps its socket no more, and is not out */ };
#ifdef WEIR_FAULTS
/* Set by tests before any runtime exists; NULL: nothing. */
extern void (*wr_net_seam_hook)(enum wr_net_seam seam);
#define WR_NET_SEAM(seam) (wr_net_seam_hook ? wr_net_seam_hook(seam) : (void)0)
#else
#define WR_NET_SEAM(seam) ((void)(seam))
#endif
bool wr_op_bad(const weir_socket *socket, const void *data, size_t length);
bool wr_op_bad_start(const weir_socket *socket, const weir_op *op, const void *data, size_t length);
ssize_t wr_op_start(weir_socket *socket, weir_op *op, weir_time deadline);
ssize_t wr_op_wait(weir_socket *socket, weir_op *op, weir_time deadline);
void wr_op_prepare(weir_op *op, enum wr_op_kind kind, void *data, size_t length);
void wr_op_prepare_wait(weir_op *op, enum wr_op_kind kind, void *data, size_t length);

/* ---- attempt.c: one try; result, -EAGAIN, or WR_TRY_YIELD (there is more to do, but others want a
 * turn) */
ssize_t wr_attempt(weir_socket *socket, weir_op *op);

/* What is left of pieces to send: what has left is not looked at again. */
struct wr_pieces {
    const struct iovec *first;
    size_t count;
    size_t skip; /* of the first one */
};
#define WR_PIECES_MAX 64
/* The next ones for one call of the system, without the empty ones. Returns how many. */
size_t wr_pieces_next(const struct wr_pieces *pieces, struct iovec ret_next[WR_PIECES_MAX]);
void wr_pieces_sent(struct wr_pieces *pieces, size_t sent);

/* ---- scratch.c: what a thread keeps for the turns it runs */
#define WR_SCRATCH_IN 65536
#define WR_SCRATCH_OUT 65536
struct wr_scratch {
    weir_socket *corking; /* whose turn runs on this thread */
    size_t corked;        /* bytes in out */
    struct wr_alloc *alloc;
    unsigned char in[WR_SCRATCH_IN];
    unsigned char out[WR_SCRATCH_OUT];
};
/* The calling thread's; NULL when there is no memory. */
struct wr_scratch *wr_scratch_get(struct wr_alloc *alloc);
struct wr_scratch *wr_scratch_peek(void);

/* ---- write.c */
/* Sends what the running callback has written. Takes out.lock. */
void wr_cork_flush(weir_socket *socket, struct wr_scratch *scratch);
/* The turn: the low mark's callback, if it is due. */
void wr_write_notify(weir_socket *socket);
/* Under out.lock: FIN if it is wanted and nothing waits before it. */
void wr_write_fin(weir_socket *socket);
/* Under out.lock: a WRITE op is done with. */
void wr_write_free(weir_socket *socket, weir_op *op);
/* Under out.lock: drops all that is written. */
void wr_write_drop(weir_socket *socket);
/* Under out.lock: the stream is broken: what is written is dropped, later writes fail with `error`.
 */
void wr_write_failed(weir_socket *socket, int error);
/* Under out.lock: `moved` bytes have left. */
void wr_write_moved(weir_socket *socket, size_t moved);

/* ---- receive.c: of a stream; under in.lock, or in the turn of a socket that closes */
struct wr_buffer;
/* As wr_sock_recv(), from wherever the bytes are. */
ssize_t wr_receive(weir_socket *socket, void *buffer, size_t size);
/* Completion mode only: bytes that were received stay where they are, in *ret_lent, which the
 * caller gives back (wr_source_give()); *ret_lent is NULL when they are in `buffer`. */
ssize_t wr_receive_lent(weir_socket *socket, void *buffer, size_t size,
                        struct wr_buffer **ret_lent);
/* It is connected: from now on there may be something to receive. */
void wr_receive_begin(weir_socket *socket);

/* ---- peer.c */
/* Under out.lock, not closing: what weir_on_drain() was given. */
weir_drain_fn *wr_drain_get(const weir_socket *socket, void **ret_context);
void wr_drain_set(weir_socket *socket, weir_drain_fn *on_drain, void *context);
/* Under both locks, just before it is closing. */
void wr_peer_forget(weir_socket *socket);
/* The turn, once HUP is seen: tells it if that was asked for. */
void wr_peer_notify(weir_socket *socket);

/* ---- read.c */
/* False: nobody reads by views, so that operations may be there. */
bool wr_read_turn(weir_socket *socket, struct wr_scratch *scratch, uint32_t flags);
void wr_read_timeout(weir_socket *socket);

/* ---- listener.c, connect.c */
void wr_accept_turn(weir_socket *listener);
/* Takes one connection. 0, -EAGAIN, or -errno: only errors of scarcity, others are retried. */
int wr_accept_one(weir_socket *listener, weir_socket **ret_socket);
/* The same for an operation, under in.lock: when something is scarce it waits for a connection, and
 * a turn will come that tries anew. */
int wr_accept_try(weir_socket *listener, weir_socket **ret_socket);
int wr_connect_check(int fd);

/* ---- socket.c */
/* For runtime->turn. */
enum wr_turn wr_socket_turn(struct wr_source *source, uint32_t flags);
/* A socket on `fd`, attached; on failure the fd is the caller's still. */
int wr_socket_open(weir_runtime *runtime, int fd, enum wr_socket_kind kind,
                   const weir_socket_options *options, weir_socket **ret_socket);
/* The same for a stream whose connecting goes on; then comes wr_receive_begin(). */
int wr_socket_open_connecting(weir_runtime *runtime, int fd, const weir_socket_options *options,
                              weir_socket **ret_socket);
int wr_socket_make(weir_runtime *runtime, int fd, enum wr_socket_kind kind,
                   const weir_socket_options *options, weir_socket **ret_socket);
bool wr_socket_options_valid(const weir_socket_options *options);
struct wr_alloc *wr_socket_alloc(weir_socket *socket);

/* ---- close.c */
void wr_close_init(weir_socket *socket);
enum wr_turn wr_close_turn(weir_socket *socket, struct wr_scratch *scratch, uint32_t flags);
enum wr_turn wr_close_last(weir_socket *socket);
int wr_close_begin(weir_socket *socket, bool reset, weir_closed_fn *closed, void *context);

/* ---- counters.c: bytes and accepts, summed on demand */
enum wr_counter {
    WR_COUNT_ACCEPTS = WR_SHARD_ABOVE,
    WR_COUNT_ACCEPT_ERRORS,
    WR_COUNT_RECEIVED,
    WR_COUNT_SENT,
    /* bytes that had to wait: put into memory, out again */ WR_COUNT_KEPT,
    WR_COUNT_FREED,
    WR_COUNTERS
};
void wr_count(weir_runtime *runtime, enum wr_counter counter, uint64_t add);
uint64_t wr_counted(weir_runtime *runtime, enum wr_counter counter);
/* Bytes that wait to be sent, on all sockets together. */
uint64_t wr_counted_waiting(weir_runtime *runtime);

/* ---- for runtime.c */
void wr_net_init(weir_runtime *runtime);
size_t wr_net_source_size(void);
/* For wr_pool_set_block_hook(), and the end of a worker. */
void wr_net_block_hook(void);
void wr_net_thread_stop(void);
/* Destroy: resets every socket and listener there is, ends watches. Drain: closes listeners and
 * idle sockets. Returns how many sockets and listeners there were. */
unsigned wr_net_sweep(weir_runtime *runtime, bool reset);
/* After a fork, in the child: closes the descriptors, nothing else. */
void wr_net_forget(weir_runtime *runtime);

#endif
