/* uring_private.h: one poller's ring, between the three files of the io_uring back end.
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
#include "poll/poller.h"
#include "poll/tokens.h"

/* What the owner sleeps behind; every move is an exchange or a compare-and-exchange. */
enum wr_uring_bell { WR_BELL_AWAKE, WR_BELL_ASLEEP, WR_BELL_RUNG };

/* user_data of what is not a watch; a watch goes by its address. */
enum wr_uring_name { WR_URING_BELL = 1, WR_URING_FOREIGN = 2, WR_URING_CANCEL = 3 };

struct wr_uring_watch;

/* A request to the owner; stands in the watch it is about. */
struct wr_uring_command {
    struct wr_uring_command *next;
    struct wr_uring_watch *watch;
    bool detach;
};

/* A descriptor of ours that is watched edge by edge. Freed by the owner. */
struct wr_uring_watch {
    struct wr_uring_command attach, detach;
    uint64_t token;
    int fd;
    _Atomic uint32_t *waiter;       /* futex word of a thread in detach(); NULL: nobody waits */
    struct wr_list link;
    bool armed;                     /* the kernel has a poll of it: one more final CQE comes */
    bool closing, cancelled;        /* it is detached; its cancel is in the ring */
    bool lost;                      /* detached, and whether the kernel still names it is unknown */
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
    struct wr_list all;
    /* everybody's */
    WR_ALIGN_LINE _Atomic(struct wr_uring_command *) commands;
    _Atomic uint32_t bell;
    _Atomic int owner;                  /* thread id; 0: nobody has waited yet */
    _Atomic uint64_t overflows;         /* times the completion queue was found full */
};

extern const struct wr_poll_ops wr_poll_uring;

/* ---- uring_ring.c: the ring itself. All but setup: the owner. 0 or -errno. */

/* A disabled ring: the thread that enables it will be its owner. */
int wr_uring_setup(struct wr_poller_backend *backend, unsigned batch_max);
int wr_uring_enable(struct wr_poller_backend *backend);
/* Arm, or note that it has to be tried again. */
void wr_uring_arm(struct wr_poller_backend *backend, struct wr_uring_watch *watch);
void wr_uring_arm_own(struct wr_poller_backend *backend);
void wr_uring_cancel(struct wr_poller_backend *backend, struct wr_uring_watch *watch);
/* All polls end, whatever they belong to. */
int wr_uring_cancel_all(struct wr_poller_backend *backend);
/* Something could not be done: try it again in a while. */
void wr_uring_starve(struct wr_poller_backend *backend);
/* Hands over what is prepared. */
int wr_uring_submit(struct wr_poller_backend *backend);
/* Into the kernel: `sleep` until a completion or the deadline. */
int wr_uring_enter(struct wr_poller_backend *backend, bool sleep, weir_time deadline);
/* The kernel has completions that only an enter brings. */
bool wr_uring_has_more(struct wr_poller_backend *backend);

/* ---- uring_probe.c: a small ring is made, used and dropped. 0, or -errno and the reason. */
int wr_uring_probe(char ret_why[WR_WHY_MAX]);

#endif
