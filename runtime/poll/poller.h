/* poller.h: what a back end must do. One const table each; dispatch knows nothing else of them.
 *
 * Tokens are opaque to a back end; one value is reserved for its own use. Events of one descriptor
 * may be merged. After detach() a token may still come out of the wait that is running or one more:
 * dispatch tells stale ones by generation. rearm() and detach() under a token whose descriptor was
 * closed and whose number was attached anew under another token leave the newcomer alone. */
#ifndef WR_POLL_POLLER_H
#define WR_POLL_POLLER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <weir/base.h>

#include "base/alloc.h"

struct wr_poller_backend;           /* one instance: what a poller waits in */
struct wr_inbound;                  /* inbound.h */
struct wr_buffer;

/* Never given to attach(): a back end's own descriptors and disarmed watches go by it. */
#define WR_POLL_TOKEN_NONE UINT64_MAX

enum wr_poll_bits {
    WR_POLL_IN = 1,         /* readable, or the end of the stream, or an error */
    WR_POLL_OUT = 2,        /* writable, or an error */
    WR_POLL_HUP = 4,        /* the peer has finished (half or whole) or failed; comes with IN */
    WR_POLL_ERROR = 32      /* ONESHOT: an error is pending on the descriptor; comes with all */
};

struct wr_poll_event {
    uint64_t token;
    uint32_t bits;
};

/* How a descriptor is watched. */
enum wr_poll_mode {
    WR_POLL_EDGE,           /* IN|OUT|HUP, each edge once, until detach (sockets, listeners) */
    WR_POLL_ONESHOT,        /* what rearm() asks for, once */
    WR_POLL_RECEIVE,        /* streams, completion mode: OUT as EDGE; what comes in is received */
    WR_POLL_RECEIVE_LATER   /* the same, from the first resume() on: not yet connected */
};

/* Of completion mode: numbers of one moment. */
struct wr_poll_receive_stats {
    uint64_t buffers, out;  /* that there are; of these not with the kernel now */
    uint64_t starved;       /* receives that ended because there was no buffer */
    uint64_t handed_over;   /* times a reader was told to receive by itself, for any reason */
    uint64_t rearmed;       /* receives armed again */
};

struct wr_poll_ops {
    const char *name;
    /* wait() is for one thread from the first call on: no lease. */
    bool owner_waits;
    /* 0; -ENOSYS, -EPERM not to be had here; -EMFILE, -ENFILE, -ENOMEM. */
    int (*open)(struct wr_poller_backend **ret_backend, struct wr_alloc *alloc, unsigned batch_max);
    void (*close)(struct wr_poller_backend *backend);
    /* Any thread. 0; -EBADF; -EPERM cannot be polled; -EEXIST; -ENOMEM, -ENOSPC. ONESHOT starts
     * disarmed. */
    int (*attach)(struct wr_poller_backend *backend, int fd, uint64_t token,
                  enum wr_poll_mode mode);
    /* Any thread; ONESHOT only. `bits` of IN|OUT; 0 disarms. 0; -ENOENT not attached (closed by its
     * owner); -EBADF. */
    int (*rearm)(struct wr_poller_backend *backend, int fd, uint64_t token, uint32_t bits);
    /* Any thread, before the descriptor is closed. 0; -ENOENT, -EBADF it was gone. Called by a
     * thread that does not wait itself: the kernel has let go of the descriptor when this returns,
     * so that a close() is one; it may have to wait for a turn of the owner. */
    int (*detach)(struct wr_poller_backend *backend, int fd, uint64_t token);
    /* The owning thread. Sleeps until an event, the doorbell or the deadline (absolute; WEIR_NEVER;
     * one that has passed: does not sleep). Returns the number of events (0: deadline, doorbell,
     * EINTR) or -errno. The doorbell is not reported as an event. */
    int (*wait)(struct wr_poller_backend *backend, struct wr_poll_event *ret_events, size_t max,
                weir_time deadline);
    /* Any thread: the wait that runs, or the next one, returns soon. Never blocks, never fails. */
    void (*doorbell)(struct wr_poller_backend *backend);

    /* ---- completion mode; all NULL where there is none. The protocol stands in inbound.h. */
    /* Before the first attach() and wait(): makes `buffers` (rounded up to a power of two) for the
     * kernel to fill. 0; -ENOMEM; -ENOSYS not in this kernel. Without it RECEIVE is EDGE. */
    int (*provide)(struct wr_poller_backend *backend, unsigned buffers);
    /* attach() in a mode of RECEIVE. *ret_inbound is set before the first event comes, and valid
     * until detach(). */
    int (*attach_receive)(struct wr_poller_backend *backend, int fd, uint64_t token,
                          enum wr_poll_mode mode, struct wr_inbound **ret_inbound);
    /* The reader, which has the right to receive and found nothing there: it gives it back. */
    void (*resume)(struct wr_poller_backend *backend, struct wr_inbound *inbound);
    /* Any thread: a buffer taken from a list is done with. */
    void (*give)(struct wr_poller_backend *backend, struct wr_buffer *buffer);
    void (*receive_stats)(struct wr_poller_backend *backend, struct wr_poll_receive_stats *ret);
};

extern const struct wr_poll_ops wr_poll_epoll;

#endif
