/* receive.h: what a source in completion mode has received; the reader's side of poll/inbound.h. */
#ifndef WR_DISPATCH_RECEIVE_H
#define WR_DISPATCH_RECEIVE_H

#include "dispatch/dispatch.h"
#include "poll/inbound.h"

/* Where it is kept, so that a source in readiness mode is not larger by it. */
static inline struct wr_inbound **wr_source_inbound_place(const struct wr_source *source)
{
    return (struct wr_inbound **)(void *)((char *)(uintptr_t)source +
                                          source->poller->runtime->inbound_offset);
}

/* NULL: readiness, who reads asks the socket. One reader at a time; no more once it is detached. */
static inline struct wr_inbound *wr_source_inbound(const struct wr_source *source)
{
    return source->poller->runtime->inbound_offset ? *wr_source_inbound_place(source) : NULL;
}

/* The socket has nothing: the right to receive goes back to the poller. */
static inline void wr_source_resume(struct wr_source *source)
{
    source->poller->ops->resume(source->poller->backend, wr_source_inbound(source));
}

/* Any thread: a buffer that was taken is done with. */
static inline void wr_source_give(struct wr_source *source, struct wr_buffer *buffer)
{
    source->poller->ops->give(source->poller->backend, buffer);
}

#endif
