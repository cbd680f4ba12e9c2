/* rig.h: one back end under test and, whatever it is, descriptors whose state a test controls. */
#ifndef WEIR_TESTS_CONTRACT_RIG_H
#define WEIR_TESTS_CONTRACT_RIG_H

#include <stdbool.h>
#include <stdint.h>

#include "base/alloc.h"
#include "poll/poller.h"
#include "support/test.h"

#define RIG_BATCH 1024
#define RIG_FDS 4096

struct rig {
    const struct wr_poll_ops *ops;
    struct wr_alloc alloc;
    struct wr_poller_backend *backend;
    bool fake;
    int fds_before;
    _Atomic int peers[RIG_FDS];     /* by fd: the other end, -1: gone; atomic, because only the
                                       kernel orders a close before the number's next use */
    struct wr_poll_event events[RIG_BATCH];
};

void rig_open(struct rig *rig, const struct wr_poll_ops *ops);
/* Checks that nothing is left: no byte, no descriptor. */
void rig_close(struct rig *rig);

/* A connected stream end: writable, not readable. Any thread (as the rest, each on its own end). */
int rig_end(struct rig *rig);
/* Something that cannot be polled. */
int rig_file(struct rig *rig);
void rig_close_end(struct rig *rig, int fd);
void rig_feed(struct rig *rig, int fd);         /* the peer sends one byte */
void rig_drain(struct rig *rig, int fd);        /* all that came is read */
void rig_finish(struct rig *rig, int fd);       /* the peer says FIN, and could still read */
void rig_break(struct rig *rig, int fd);        /* the peer is gone altogether */

int rig_attach(struct rig *rig, int fd, uint64_t token, enum wr_poll_mode mode);
int rig_rearm(struct rig *rig, int fd, uint64_t token, uint32_t bits);
int rig_detach(struct rig *rig, int fd, uint64_t token);

/* Harvests without sleeping. The result of wait(). */
int rig_look(struct rig *rig);
/* As rig_look(), until nothing is left; the bits that came for `token`; `ret_others` counts all
 * else. */
uint32_t rig_bits(struct rig *rig, uint64_t token, unsigned *ret_others);
/* Waits (up to two seconds) for an event of `token`; its bits, 0 when none came. */
uint32_t rig_await(struct rig *rig, uint64_t token);

#define RIG_ON_(Suite, Name, Ops)                                                                  \
    Test(Suite, Name, .timeout = 30)                                                               \
    {                                                                                              \
        static struct rig rig;                                                                     \
        rig_open(&rig, Ops);                                                                       \
        Name##_on(&rig);                                                                           \
        rig_close(&rig);                                                                           \
    }

#ifdef WEIR_URING
/* The table, or the test is skipped: this kernel does not let us. */
const struct wr_poll_ops *rig_uring(void);
#define RIG_ON_URING_(Name) RIG_ON_(io_uring, Name, rig_uring())
#else
#define RIG_ON_URING_(Name)
#endif

/* A test of every back end: the body gets an open rig. */
#define EVERY_BACKEND(Name)                                                                        \
    static void Name##_on(struct rig *rig);                                                        \
    RIG_ON_(epoll, Name, &wr_poll_epoll)                                                           \
    RIG_ON_URING_(Name)                                                                            \
    RIG_ON_(fake, Name, &wr_poll_fake)                                                             \
    static void Name##_on(struct rig *rig)

/* A test of what only a kernel can do. */
#define EVERY_KERNEL_BACKEND(Name)                                                                 \
    static void Name##_on(struct rig *rig);                                                        \
    RIG_ON_(epoll, Name, &wr_poll_epoll)                                                           \
    RIG_ON_URING_(Name)                                                                            \
    static void Name##_on(struct rig *rig)

#endif
