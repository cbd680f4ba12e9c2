/* tokens.h: which token a descriptor number was attached under last.
 *
 * epoll_ctl names a descriptor by its number. The number of a watched descriptor that its owner has
 * closed may be in use again, attached under another token; a late rearm() or detach() under the
 * old token would then hit the newcomer. This table is looked at first, under the lock that is held
 * across the system call, so that the look and the call are one step for that number.
 *
 * Numbers are small and dense (the kernel hands out the lowest free one), hence plain arrays, one a
 * stripe. They grow in attach() and never shrink. */
#ifndef WR_POLL_TOKENS_H
#define WR_POLL_TOKENS_H

#include <stddef.h>
#include <stdint.h>

#include "base/alloc.h"
#include "os/lock.h"

#define WR_TOKENS_STRIPES 16

struct wr_tokens_stripe {
    struct wr_lock lock;
    size_t count;                   /* slots there are */
    uint64_t *slots;                /* WR_POLL_TOKEN_NONE: nothing is attached under this number */
};

struct wr_tokens {
    struct wr_alloc *alloc;
    struct wr_tokens_stripe stripes[WR_TOKENS_STRIPES];
};

void wr_tokens_init(struct wr_tokens *tokens, struct wr_alloc *alloc);
/* Nobody may hold a lock of it any more. */
void wr_tokens_fini(struct wr_tokens *tokens);

/* Any thread. The lock of `fd`'s stripe, held across one epoll_ctl. `fd` >= 0 in all three. */
void wr_tokens_lock(struct wr_tokens *tokens, int fd);
void wr_tokens_unlock(struct wr_tokens *tokens, int fd);
/* Under the lock: the slot of `fd`; NULL when there is none yet. Valid until the unlock. */
uint64_t *wr_tokens_find(struct wr_tokens *tokens, int fd);
/* Under the lock: as wr_tokens_find(), making room. NULL: out of memory. */
uint64_t *wr_tokens_make(struct wr_tokens *tokens, int fd);

#endif
