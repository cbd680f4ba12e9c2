/* inbound.c: the list of what a ring received for one stream; the protocol stands in inbound.h. */
#include "poll/inbound.h"

#include <string.h>

#include "base/assert.h"

void wr_inbound_init(struct wr_inbound *inbound, bool direct)
{
    memset(inbound, 0, sizeof *inbound);
    inbound->direct = direct;
}

static void append(struct wr_inbound *inbound, struct wr_buffer *buffer)
{
    struct wr_buffer *head = atomic_load_explicit(&inbound->arrived, memory_order_relaxed);

    do
        buffer->next = head;
    /* release: pairs with the acquire in refill() */
    while (!atomic_compare_exchange_weak_explicit(&inbound->arrived, &head, buffer,
                                                  memory_order_release, memory_order_relaxed));
}

void wr_inbound_push(struct wr_inbound *inbound, struct wr_buffer *buffer)
{
    inbound->put++;
    append(inbound, buffer);
}

void wr_inbound_hand_over(struct wr_inbound *inbound, int result)
{
    inbound->result = result;
    append(inbound, &inbound->mark);
}

uint32_t wr_inbound_unread(struct wr_inbound *inbound)
{
    return inbound->put - atomic_load_explicit(&inbound->taken, memory_order_relaxed);
}

/* All that has arrived, oldest first. */
static void refill(struct wr_inbound *inbound)
{
    struct wr_buffer *next, *buffer;

    if (!atomic_load_explicit(&inbound->arrived, memory_order_relaxed))
        return;
    /* acquire: pairs with the release in append() */
    buffer = atomic_exchange_explicit(&inbound->arrived, NULL, memory_order_acquire);
    for (; buffer; buffer = next) {
        next = buffer->next;
        buffer->next = inbound->first;
        inbound->first = buffer;
    }
}

enum wr_inbound_next wr_inbound_take(struct wr_inbound *inbound, struct wr_buffer **ret_buffer,
                                     int *ret_result)
{
    if (!inbound->first)
        refill(inbound);
    struct wr_buffer *buffer = inbound->first;
    if (!buffer)
        return inbound->direct ? WR_INBOUND_DIRECT : WR_INBOUND_EMPTY;
    inbound->first = buffer->next;
    if (buffer != &inbound->mark) {
        uint32_t taken = atomic_load_explicit(&inbound->taken, memory_order_relaxed);
        atomic_store_explicit(&inbound->taken, taken + 1, memory_order_relaxed);
        *ret_buffer = buffer;
        return WR_INBOUND_BUFFER;
    }
    WR_ASSERT(!inbound->first && !inbound->direct);
    inbound->direct = true;
    *ret_result = inbound->result;
    return inbound->result == WR_INBOUND_NOTHING ? WR_INBOUND_DIRECT : WR_INBOUND_RESULT;
}

void wr_inbound_put_back(struct wr_inbound *inbound, struct wr_buffer *buffer)
{
    uint32_t taken = atomic_load_explicit(&inbound->taken, memory_order_relaxed);

    atomic_store_explicit(&inbound->taken, taken - 1, memory_order_relaxed);
    buffer->next = inbound->first;
    inbound->first = buffer;
}

bool wr_inbound_has_bytes(struct wr_inbound *inbound)
{
    if (!inbound->first)
        refill(inbound);
    return inbound->first && inbound->first != &inbound->mark;
}

bool wr_inbound_empty(struct wr_inbound *inbound)
{
    return !inbound->first && !atomic_load_explicit(&inbound->arrived, memory_order_relaxed);
}
