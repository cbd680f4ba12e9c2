#include "rig.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "os/clock.h"
#include "poll/backends.h"
#include "support/fake_poll.h"
#include "support/fds.h"

#ifdef WEIR_URING

const struct wr_poll_ops *rig_uring(void)
{
    const struct wr_poll_ops *ops = NULL;
    char why[WR_WHY_MAX] = "";

    if (wr_backend_choose(WEIR_BACKEND_IO_URING, &ops, why) < 0)
        cr_skip_test("%s", why);
    return ops;
}

#endif

void rig_open(struct rig *rig, const struct wr_poll_ops *ops)
{
    memset(rig, 0, sizeof(*rig));
    rig->ops = ops;
    rig->fake = ops == &wr_poll_fake;
    rig->fds_before = support_count_fds();
    wr_alloc_init(&rig->alloc, NULL);
    for (int i = 0; i < RIG_FDS; i++)
        rig->peers[i] = -1;
    cr_assert_eq(ops->open(&rig->backend, &rig->alloc, RIG_BATCH), 0);
    cr_assert_gt(rig->alloc.bytes, 0);
}

void rig_close(struct rig *rig)
{
    rig->ops->close(rig->backend);
    cr_assert_eq(rig->alloc.bytes, 0, "%zu bytes were not given back", rig->alloc.bytes);
    cr_assert_eq(support_count_fds(), rig->fds_before);
}

int rig_end(struct rig *rig)
{
    int pair[2];

    if (rig->fake)
        return fake_poll_open_fd(rig->backend, true);
    cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair), 0);
    cr_assert_lt(pair[0], RIG_FDS);
    rig->peers[pair[0]] = pair[1];
    return pair[0];
}

int rig_file(struct rig *rig)
{
    if (rig->fake)
        return fake_poll_open_fd(rig->backend, false);
    int fd = open("/tmp", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (fd < 0)
        fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    cr_assert_geq(fd, 0);
    return fd;
}

void rig_close_end(struct rig *rig, int fd)
{
    if (rig->fake) {
        fake_poll_close_fd(rig->backend, fd);
        return;
    }
    /* Read before the close: afterwards the number may be another thread's. */
    int peer = rig->peers[fd];
    rig->peers[fd] = -1;
    close(fd);
    if (peer >= 0)
        close(peer);
}

void rig_feed(struct rig *rig, int fd)
{
    if (rig->fake)
        fake_poll_raise(rig->backend, fd, WR_POLL_IN);
    else
        cr_assert_eq(send(rig->peers[fd], "x", 1, MSG_NOSIGNAL), 1);
}

void rig_drain(struct rig *rig, int fd)
{
    char buffer[4096];

    if (rig->fake) {
        fake_poll_lower(rig->backend, fd, WR_POLL_IN);
        return;
    }
    while (recv(fd, buffer, sizeof(buffer), 0) > 0)
        continue;
}

void rig_finish(struct rig *rig, int fd)
{
    if (rig->fake)
        fake_poll_raise(rig->backend, fd, WR_POLL_IN | WR_POLL_HUP);
    else
        cr_assert_eq(shutdown(rig->peers[fd], SHUT_WR), 0);
}

void rig_break(struct rig *rig, int fd)
{
    if (rig->fake) {
        fake_poll_raise(rig->backend, fd, WR_POLL_IN | WR_POLL_OUT | WR_POLL_HUP);
        return;
    }
    close(rig->peers[fd]);
    rig->peers[fd] = -1;
}

int rig_attach(struct rig *rig, int fd, uint64_t token, enum wr_poll_mode mode)
{
    return rig->ops->attach(rig->backend, fd, token, mode);
}

int rig_rearm(struct rig *rig, int fd, uint64_t token, uint32_t bits)
{
    return rig->ops->rearm(rig->backend, fd, token, bits);
}

int rig_detach(struct rig *rig, int fd, uint64_t token)
{
    return rig->ops->detach(rig->backend, fd, token);
}

int rig_look(struct rig *rig)
{
    return rig->ops->wait(rig->backend, rig->events, RIG_BATCH, 0);
}

uint32_t rig_bits(struct rig *rig, uint64_t token, unsigned *ret_others)
{
    uint32_t bits = 0;
    unsigned others = 0;

    for (int rounds = 0; rounds < 100; rounds++) {
        int count = rig_look(rig);
        cr_assert_geq(count, 0);
        for (int i = 0; i < count; i++) {
            if (rig->events[i].token == token)
                bits |= rig->events[i].bits & ~(uint32_t)WR_POLL_ERROR; /* for ONESHOT alone */
            else
                others++;
        }
        if (count == 0 && rounds > 0)
            break;
        cr_assert_lt(rounds, 99, "events do not end");
    }
    if (ret_others != NULL)
        *ret_others = others;
    return bits;
}

uint32_t rig_await(struct rig *rig, uint64_t token)
{
    weir_time deadline = wr_clock_now() + 2000000000;

    while (wr_clock_now() < deadline) {
        int count = rig->ops->wait(rig->backend, rig->events, RIG_BATCH, deadline);
        cr_assert_geq(count, 0);
        for (int i = 0; i < count; i++) {
            if (rig->events[i].token == token)
                return rig->events[i].bits;
        }
    }
    return 0;
}
