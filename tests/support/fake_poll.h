/* fake_poll.h: a back end without a kernel: the same table, over descriptors that a test invents.
 *
 * A fake descriptor is a small number with a level: the WR_POLL_ bits that hold for it right now.
 * Raising bits is an edge, also when they are up already. Any thread. */
#ifndef WEIR_TESTS_SUPPORT_FAKE_POLL_H
#define WEIR_TESTS_SUPPORT_FAKE_POLL_H

#include <stdbool.h>
#include <stdint.h>

#include "poll/poller.h"

/* How many fake descriptors one back end has at most. */
#define FAKE_POLL_FDS 2048

extern const struct wr_poll_ops wr_poll_fake;

/* The lowest number that is free, as the kernel does it; `pollable` false: as a regular file. */
int fake_poll_open_fd(struct wr_poller_backend *backend, bool pollable);
/* Its owner closes it: whatever was attached under the number is forgotten. */
void fake_poll_close_fd(struct wr_poller_backend *backend, int fd);

void fake_poll_raise(struct wr_poller_backend *backend, int fd, uint32_t bits);
void fake_poll_lower(struct wr_poller_backend *backend, int fd, uint32_t bits);

/* Hands out an event for any token, attached or not: a stale one, for instance. */
void fake_poll_inject(struct wr_poller_backend *backend, uint64_t token, uint32_t bits);
/* The next wait answers -error (a positive errno) without sleeping. */
void fake_poll_fail_wait(struct wr_poller_backend *backend, int error);

#endif
