/* backends.c: the choice. It is made once a runtime and its reason is kept: see
 * weir_runtime_backend().
 *
 * auto is epoll and looks no further: where a system call is answered by killing the process, only
 * who asks for io_uring may make one. */
#include "poll/backends.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#ifdef WEIR_URING
#include "poll/uring_private.h"

#define NOT_CHOSEN "auto: epoll; io_uring is in this build, WEIR_BACKEND=io_uring uses it"

static int choose_uring(const struct wr_poll_ops **ret_ops, char ret_why[WR_WHY_MAX])
{
    int r = wr_uring_probe(ret_why);

    if (r == 0)
        *ret_ops = &wr_poll_uring;
    return r == 0 || r == -ENOMEM || r == -EMFILE || r == -ENFILE ? r : -ENOSYS;
}

static bool probe_receive(const struct wr_poll_ops *ops, char ret_why[WR_WHY_MAX])
{
    if (ops == &wr_poll_uring)
        return wr_uring_probe_receive(ret_why) == 0;
    snprintf(ret_why, WR_WHY_MAX, "only the io_uring back end has it");
    return false;
}

#else
#define NOT_CHOSEN "auto: epoll; io_uring is not in this build"

static int choose_uring(const struct wr_poll_ops **ret_ops, char ret_why[WR_WHY_MAX])
{
    (void)ret_ops;
    snprintf(ret_why, WR_WHY_MAX, "io_uring was asked for and is not in this build");
    return -ENOSYS;
}

static bool probe_receive(const struct wr_poll_ops *ops, char ret_why[WR_WHY_MAX])
{
    (void)ops;
    snprintf(ret_why, WR_WHY_MAX, "only the io_uring back end has it");
    return false;
}

#endif

bool wr_backend_receives(const struct wr_poll_ops *ops, char why[WR_WHY_MAX])
{
    char detail[WR_WHY_MAX] = "";
    size_t length = strnlen(why, WR_WHY_MAX);
    bool receives = probe_receive(ops, detail);

    if (receives)
        snprintf(why + length, WR_WHY_MAX - length, "; recv: completion, asked for");
    else
        snprintf(why + length, WR_WHY_MAX - length,
                 "; recv: readiness, though completion was asked for: %s", detail);
    return receives;
}

int wr_backend_choose(enum weir_backend wanted, const struct wr_poll_ops **ret_ops,
                      char ret_why[WR_WHY_MAX])
{
    WR_ASSERT(wanted != WEIR_BACKEND_DEFAULT);
    switch (wanted) {
    case WEIR_BACKEND_DEFAULT:
    case WEIR_BACKEND_AUTO:
        snprintf(ret_why, WR_WHY_MAX, NOT_CHOSEN);
        break;
    case WEIR_BACKEND_EPOLL:
        snprintf(ret_why, WR_WHY_MAX, "asked for");
        break;
    case WEIR_BACKEND_IO_URING:
        return choose_uring(ret_ops, ret_why);
    default:
        snprintf(ret_why, WR_WHY_MAX, "no such back end: %d", (int)wanted);
        return -EINVAL;
    }
    *ret_ops = &wr_poll_epoll;
    return 0;
}
