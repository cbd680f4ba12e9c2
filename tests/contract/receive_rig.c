#include <errno.h>
#include <sys/socket.h>
#include <unistd.h>

#include "os/fault.h"
#include "poll/backends.h"
#include "receive.h"

#ifdef WEIR_FAULTS
static struct {
    unsigned entries, flags_fewer;
} forced;

static int force(enum wr_fault_call call)
{
    if (call == WR_FAULT_URING_ENTRIES)
        return (int)forced.entries;
    if (call == WR_FAULT_URING_SETUP && forced.flags_fewer > 0) {
        forced.flags_fewer--;
        return EINVAL;
    }
    return 0;
}
#endif

void receive_open(struct rig *rig, unsigned buffers, unsigned entries, unsigned flags_fewer)
{
    char why[WR_WHY_MAX] = "";
    const struct wr_poll_ops *ops = rig_uring();

    if (!wr_backend_receives(ops, why))
        cr_skip_test("%s", why);
#ifdef WEIR_FAULTS
    forced.entries = entries;
    forced.flags_fewer = flags_fewer;
    wr_fault_hook = force;
#else
    if (entries > 0 || flags_fewer > 0)
        cr_skip_test("this build has no seam");
#endif
    rig_open(rig, ops);
#ifdef WEIR_FAULTS
    wr_fault_hook = NULL;
#endif
    cr_assert_eq(ops->provide(rig->backend, buffers), 0);
    cr_assert_geq(receive_stats(rig).buffers, buffers);
}

void receive_close(struct rig *rig)
{
    /* What is in the queue still is taken, then what was given back is put in. */
    for (int looks = 0; looks < 3 || (looks < 50 && receive_stats(rig).out > 0); looks++)
        rig_look(rig);
    cr_assert_eq(receive_stats(rig).out, 0, "%u buffers have leaked",
                 (unsigned)receive_stats(rig).out);
    rig_close(rig);
}

void stream_open(struct stream *stream, struct rig *rig, uint64_t token)
{
    memset(stream, 0, sizeof *stream);
    stream->rig = rig;
    stream->token = token;
    stream->result = WR_INBOUND_NOTHING;
    stream->fd = rig_end(rig);
    cr_assert_eq(rig->ops->attach_receive(rig->backend, stream->fd, token, WR_POLL_RECEIVE,
                                          &stream->inbound), 0);
    cr_assert_not_null(stream->inbound);
}

void stream_close(struct stream *stream)
{
    cr_assert_eq(rig_detach(stream->rig, stream->fd, stream->token), 0);
    rig_look(stream->rig);
    rig_close_end(stream->rig, stream->fd);
}

static unsigned char byte_at(const struct stream *stream, uint64_t place)
{
    return (unsigned char)(place * 7 + place / 251 + stream->token * 31);
}

size_t stream_send(struct stream *stream, size_t count)
{
    unsigned char bytes[8192];
    size_t sum = 0;

    while (sum < count) {
        size_t left = count - sum < sizeof bytes ? count - sum : sizeof bytes;
        for (size_t i = 0; i < left; i++)
            bytes[i] = byte_at(stream, stream->sent + i);
        ssize_t n = send(stream->rig->peers[stream->fd], bytes, left,
                         MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n < 0)
            break;
        stream->sent += (size_t)n;
        sum += (size_t)n;
    }
    return sum;
}

static void check(struct stream *stream, const unsigned char *bytes, size_t count)
{
    for (size_t i = 0; i < count; i++, stream->received++)
        cr_assert_eq(bytes[i], byte_at(stream, stream->received), "stream %u: byte %u is another",
                     (unsigned)stream->token, (unsigned)stream->received);
}

static size_t read_directly(struct stream *stream, size_t most)
{
    unsigned char bytes[4096];
    ssize_t n = recv(stream->fd, bytes, most < sizeof bytes ? most : sizeof bytes, MSG_DONTWAIT);

    if (n < 0 && errno == EAGAIN)
        stream->rig->ops->resume(stream->rig->backend, stream->inbound);
    else if (n <= 0)
        stream->result = n < 0 ? -errno : 0;
    if (n > 0)
        check(stream, bytes, (size_t)n);
    return n > 0 ? (size_t)n : 0;
}

size_t stream_read(struct stream *stream, size_t most, struct wr_buffer **ret_kept)
{
    struct wr_buffer *buffer;
    int result;

    switch (wr_inbound_take(stream->inbound, &buffer, &result)) {
    case WR_INBOUND_BUFFER:
        break;
    case WR_INBOUND_RESULT:
        stream->result = result;
        return 0;
    case WR_INBOUND_DIRECT:
        return stream->result == WR_INBOUND_NOTHING ? read_directly(stream, most) : 0;
    case WR_INBOUND_EMPTY:
        return 0;
    }
    size_t count = buffer->length < most ? buffer->length : most;
    check(stream, buffer->data, count);
    buffer->data += count;
    buffer->length -= (uint32_t)count;
    if (buffer->length > 0)
        wr_inbound_put_back(stream->inbound, buffer);
    else if (ret_kept)
        *ret_kept = buffer;
    else
        stream->rig->ops->give(stream->rig->backend, buffer);
    return count;
}

size_t stream_read_all(struct stream *stream)
{
    size_t sum = 0, n;

    while ((n = stream_read(stream, SIZE_MAX, NULL)) > 0)
        sum += n;
    return sum;
}

struct wr_poll_receive_stats receive_stats(struct rig *rig)
{
    struct wr_poll_receive_stats stats;

    rig->ops->receive_stats(rig->backend, &stats);
    return stats;
}
