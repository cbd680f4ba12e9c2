/* tokens.c: the arrays behind tokens.h. Invariant: a slot of an array is NONE, or the token that
 * the last successful attach() of that number was given. */
#include "poll/tokens.h"

#include <string.h>

#include "base/assert.h"
#include "poll/poller.h"

#define SLOTS_MIN 16

static struct wr_tokens_stripe *stripe_of(struct wr_tokens *tokens, int fd)
{
    WR_ASSERT(fd >= 0);
    return &tokens->stripes[(unsigned)fd % WR_TOKENS_STRIPES];
}

static size_t slot_of(int fd)
{
    return (size_t)fd / WR_TOKENS_STRIPES;
}

void wr_tokens_init(struct wr_tokens *tokens, struct wr_alloc *alloc)
{
    memset(tokens, 0, sizeof(*tokens));
    tokens->alloc = alloc;
}

void wr_tokens_fini(struct wr_tokens *tokens)
{
    for (unsigned i = 0; i < WR_TOKENS_STRIPES; i++) {
        struct wr_tokens_stripe *stripe = &tokens->stripes[i];
        wr_alloc_release(tokens->alloc, stripe->slots, stripe->count * sizeof(uint64_t));
        stripe->slots = NULL;
        stripe->count = 0;
    }
}

void wr_tokens_lock(struct wr_tokens *tokens, int fd)
{
    wr_lock(&stripe_of(tokens, fd)->lock);
}

void wr_tokens_unlock(struct wr_tokens *tokens, int fd)
{
    wr_unlock(&stripe_of(tokens, fd)->lock);
}

uint64_t *wr_tokens_find(struct wr_tokens *tokens, int fd)
{
    struct wr_tokens_stripe *stripe = stripe_of(tokens, fd);
    size_t slot = slot_of(fd);

    return slot < stripe->count ? &stripe->slots[slot] : NULL;
}

uint64_t *wr_tokens_make(struct wr_tokens *tokens, int fd)
{
    struct wr_tokens_stripe *stripe = stripe_of(tokens, fd);
    size_t slot = slot_of(fd);

    if (slot >= stripe->count) {
        size_t count = stripe->count ? stripe->count : SLOTS_MIN;
        while (count <= slot)
            count *= 2;             /* a descriptor number is an int: this cannot overflow */
        uint64_t *slots = wr_alloc_raw(tokens->alloc, count * sizeof(uint64_t));
        if (slots == NULL)
            return NULL;
        if (stripe->count > 0)
            memcpy(slots, stripe->slots, stripe->count * sizeof(uint64_t));
        for (size_t i = stripe->count; i < count; i++)
            slots[i] = WR_POLL_TOKEN_NONE;
        wr_alloc_release(tokens->alloc, stripe->slots, stripe->count * sizeof(uint64_t));
        stripe->slots = slots;
        stripe->count = count;
    }
    return &stripe->slots[slot];
}
