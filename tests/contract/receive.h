/* receive.h: streams that a ring receives, and a reader who checks each byte of them. */
#ifndef WEIR_TESTS_CONTRACT_RECEIVE_H
#define WEIR_TESTS_CONTRACT_RECEIVE_H

#include "poll/uring_private.h"
#include "rig.h"

#define STREAMS_MAX 640

struct stream {
    struct rig *rig;
    int fd;
    uint64_t token;
    struct wr_inbound *inbound;
    uint64_t sent, received;        /* bytes */
    int result;                     /* what the end was; WR_INBOUND_NOTHING: none yet */
};

/* As rig_open(), in completion mode; skips the test where that cannot be had. `entries`: of the
 * submission queue, 0: as many as usual. */
void receive_open(struct rig *rig, unsigned buffers, unsigned entries, unsigned flags_fewer);
/* Checks that all buffers are with the kernel, then as rig_close(). */
void receive_close(struct rig *rig);

void stream_open(struct stream *stream, struct rig *rig, uint64_t token);
/* Detached and closed; the owner looks once where that takes a look. */
void stream_close(struct stream *stream);
/* So many bytes, each of which tells its place and its stream; as many as fit. Returns how many. */
size_t stream_send(struct stream *stream, size_t count);
/* One step of a reader; every byte is checked. Returns bytes read, or 0: nothing more now, or the
 * end. A buffer goes to *ret_kept, if given, and is then to be given back by the caller. */
size_t stream_read(struct stream *stream, size_t most, struct wr_buffer **ret_kept);
/* All that is there. */
size_t stream_read_all(struct stream *stream);

struct wr_poll_receive_stats receive_stats(struct rig *rig);

#endif
