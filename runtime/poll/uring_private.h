/* uring_private.h: one poller's ring, between the files of the io_uring back end.
 *
 * Who may touch what: only the owner (the thread that waits) touches the ring, the list of watches
 * and the fields of a watch below `link`. Other threads go through `commands` and `bell`. */
#ifndef WR_POLL_URING_PRIVATE_H
#define WR_POLL_URING_PRIVATE_H

#include <liburing.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/alloc.h"
#include "base/cpu_relax.h"
#include "base/list.h"
#include "poll/backends.h"
#include "poll/epoll.h"
#include "poll/inbound.h"
#include "poll/poller.h"
#include "poll/tokens.h"

/* What the owner sleeps behind; every move is an exchange or a compare-and-exchange. */
enum wr_uring_bell { WR_BELL_AWAKE, WR_BELL_ASLEEP, WR_BELL_RUNG };

/* user_data of what is not a watch; a request of a watch goes by the watch's address, and in the
 * lowest bits which of its requests it is. */
enum wr_uring_name { WR_URING_BELL = 1, WR_URING_FOREIGN = 2, WR_URING_CANCEL = 3 };

/* The requests of a watch. */
enum wr_uring_request {
    WR_URING_POLL = 0,              /* multishot poll; of a stream for all but IN */
    WR_URING_RECEIVE = 1,           /* multishot receive */
    WR_URING_LOOK = 2,              /* one-shot poll for IN, in place of the receive */
    WR_URING_REQUESTS = 3
};
#define WR_URING_REQUEST_MASK ((uint64_t)3)
#define WR_URING_BIT(request) (1u << (request))

struct wr_uring_watch;

/* A request to the owner; which one, its place in the watch says. */
struct wr_uring_command {
    struct wr_uring_command *next;
    struct wr_uring_watch *watch;
};

/* What a watch in completion mode has besides: the other end of its list. */
struct wr_uring_stream {
    struct wr_inbound inbound;      /* stands first */
    struct wr_uring_command resume;
    bool right;                     /* the owner has the right to receive (inbound.h) */
    bool useless;                   /* receiving by the ring is not to be had: look instead */
};

/* A descriptor of ours that is watched edge by edge. Freed by the owner. */
struct wr_uring_watch {
    struct wr_uring_command attach, detach;
    uint64_t token;
    int fd;
    _Atomic uint32_t *waiter;       /* futex word of a thread in detach(); NULL: nobody waits */
    struct wr_uring_stream *stream; /* NULL: readiness */
    struct wr_list link;
    uint8_t armed;                  /* bits of requests of which one more final CQE comes */
    uint8_t cancelled;              /* of these: the cancel is in the ring */
    bool closing;                   /* it is detached */
    bool lost;                      /* detached, and whether the kernel still names it is unknown */
    uint8_t owed;                   /* bits of an event that nobody could be told yet */
};

/* The buffers of one ring. Only the owner touches it, but for what others give back. */
struct wr_uring_pool {
    struct io_uring_buf_ring *ring; /* NULL: readiness mode */
    void *memory;                   /* of ring and buffers */
    size_t memory_size;
    struct wr_buffer *buffers;      /* by id */
    unsigned count;                 /* a power of two */
    unsigned low;                   /* with fewer than that in the ring no receive is armed */
    unsigned cap;                   /* unread buffers a stream may have before it is stopped */
    _Atomic uint32_t inside;        /* in the ring, as far as completions were seen */
    _Atomic uint64_t starved, handed_over, rearmed;
    /* Others give back here; HUNGRY in place of an empty stack: the owner sleeps without any */
    WR_ALIGN_LINE _Atomic(struct wr_buffer *) returned;
};

struct wr_poller_backend {
    struct io_uring ring;
    struct wr_poller_backend *foreign;  /* epoll, with all ONESHOT descriptors in it */
    struct wr_alloc *alloc;
    struct wr_tokens watches;           /* by fd: the watch, as a number */
    int bell_fd;
    unsigned enter_flags;
    bool open;                          /* there is a ring */
    /* the owner's */
    WR_ALIGN_LINE bool enabled, bell_armed, foreign_armed;
    bool foreign_ready;                 /* the epoll set may hold events that nobody took */
    bool starved;                       /* something is to be tried again at `retry` */
    weir_time retry;
    bool owing;                         /* a watch has something owed */
    struct wr_list all;
    struct wr_uring_pool pool;
    /* everybody's */
    WR_ALIGN_LINE _Atomic(struct wr_uring_command *) commands;
    _Atomic uint32_t bell;
    _Atomic int owner;                  /* thread id; 0: nobody has waited yet */
    _Atomic uint64_t overflows;         /* times the completion queue was found full */
};

extern const struct wr_poll_ops wr_poll_uring;

/* ---- uring_command.c: see poller.h */
void wr_uring_doorbell(struct wr_poller_backend *backend);
int wr_uring_attach(struct wr_poller_backend *backend, int fd, uint64_t token,
                    enum wr_poll_mode mode);
int wr_uring_attach_receive(struct wr_poller_backend *backend, int fd, uint64_t token,
                            enum wr_poll_mode mode, struct wr_inbound **ret_inbound);
int wr_uring_rearm(struct wr_poller_backend *backend, int fd, uint64_t token, uint32_t bits);
int wr_uring_detach(struct wr_poller_backend *backend, int fd, uint64_t token);
void wr_uring_resume(struct wr_poller_backend *backend, struct wr_inbound *inbound);
void wr_uring_watch_free(struct wr_poller_backend *backend, struct wr_uring_watch *watch);

/* ---- uring_ring.c: the ring itself. All but setup: the owner. 0 or -errno. */

/* A disabled ring: the thread that enables it will be its owner. */
int wr_uring_setup(struct wr_poller_backend *backend, unsigned batch_max);
int wr_uring_enable(struct wr_poller_backend *backend);
/* Arm what is not armed and should be, or note that it has to be tried again. */
void wr_uring_arm(struct wr_poller_backend *backend, struct wr_uring_watch *watch);
bool wr_uring_unarmed(const struct wr_uring_watch *watch);
void wr_uring_arm_own(struct wr_poller_backend *backend);
/* Those requests of `bits` that are armed and not yet cancelled. */
void wr_uring_cancel(struct wr_poller_backend *backend, struct wr_uring_watch *watch,
                     unsigned bits);
/* All polls end, whatever they belong to. */
int wr_uring_cancel_all(struct wr_poller_backend *backend);
/* Something could not be done: try it again in a while. */
void wr_uring_starve(struct wr_poller_backend *backend);
/* Not at once: what is armed while the completion queue is full ends at once, for ever. */
void wr_uring_arm_later(struct wr_poller_backend *backend, bool failed);
/* Hands over what is prepared. */
int wr_uring_submit(struct wr_poller_backend *backend);
/* Into the kernel: `sleep` until a completion or the deadline. */
int wr_uring_enter(struct wr_poller_backend *backend, bool sleep, weir_time deadline);
/* The kernel has completions that only an enter brings. */
bool wr_uring_has_more(struct wr_poller_backend *backend);

/* ---- uring_receive.c: completion mode. The owner, but for what poller.h says of any thread. */
int wr_uring_provide(struct wr_poller_backend *backend, unsigned buffers);
/* The ring is gone. */
void wr_uring_pool_fini(struct wr_poller_backend *backend);
struct wr_uring_stream *wr_uring_stream_make(struct wr_poller_backend *backend,
                                             struct wr_uring_watch *watch, bool later);
/* Unread buffers go back. */
void wr_uring_stream_drop(struct wr_poller_backend *backend, struct wr_uring_stream *stream);
void wr_uring_stream_resume(struct wr_uring_stream *stream);
/* Which of its requests a stream whose right is here should have: RECEIVE or LOOK. */
enum wr_uring_request wr_uring_stream_request(struct wr_poller_backend *backend,
                                              const struct wr_uring_stream *stream);
/* One completion of RECEIVE or LOOK; `armed` is as it is after it. Returns bits to report. */
uint32_t wr_uring_stream_complete(struct wr_poller_backend *backend, struct wr_uring_watch *watch,
                                  enum wr_uring_request request,
                                  const struct io_uring_cqe *completion);
/* The poll of a stream has brought these: what is to be reported of them. */
uint32_t wr_uring_stream_polled(struct wr_poller_backend *backend, struct wr_uring_watch *watch,
                                uint32_t bits);
/* A completion was dropped and all requests are cancelled: what it brought is lost. */
void wr_uring_stream_broken(struct wr_poller_backend *backend, struct wr_uring_watch *watch);
int wr_uring_pool_restart(struct wr_poller_backend *backend);
/* What was given back goes into the ring. */
void wr_uring_refill(struct wr_poller_backend *backend);
/* The owner is about to sleep. False: something was given back. */
bool wr_uring_sleep_hungry(struct wr_poller_backend *backend);
void wr_uring_give(struct wr_poller_backend *backend, struct wr_buffer *buffer);
void wr_uring_receive_stats(struct wr_poller_backend *backend, struct wr_poll_receive_stats *ret);

/* ---- uring_probe.c: a small ring is made, used and dropped. 0, or -errno and the reason. */
int wr_uring_probe(char ret_why[WR_WHY_MAX]);
/* The same of completion mode; the ring itself can be had. */
int wr_uring_probe_receive(char ret_why[WR_WHY_MAX]);

#endif
