/* epoll.h: what another back end may ask an epoll back end that it keeps inside. */
#ifndef WR_POLL_EPOLL_H
#define WR_POLL_EPOLL_H

#include <stdbool.h>

#include "poll/poller.h"

/* Readable while events wait in it. */
int wr_poll_epoll_fd(const struct wr_poller_backend *backend);
/* Is this descriptor (not merely its number) attached? Any thread; `fd` >= 0. */
bool wr_poll_epoll_holds(struct wr_poller_backend *backend, int fd);

#endif
