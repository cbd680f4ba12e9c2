/* backends.c: the choice. It is made once a runtime and its reason is kept: see
 * weir_runtime_backend(). */
#include "poll/backends.h"

#include <errno.h>
#include <stdio.h>

#include "base/assert.h"

int wr_backend_choose(enum weir_backend wanted, const struct wr_poll_ops **ret_ops,
                      char ret_why[WR_WHY_MAX])
{
    WR_ASSERT(wanted != WEIR_BACKEND_DEFAULT);
    switch (wanted) {
    case WEIR_BACKEND_DEFAULT:
    case WEIR_BACKEND_AUTO:
        snprintf(ret_why, WR_WHY_MAX, "auto: io_uring is not in this build");
        break;
    case WEIR_BACKEND_EPOLL:
        snprintf(ret_why, WR_WHY_MAX, "asked for");
        break;
    case WEIR_BACKEND_IO_URING:
        snprintf(ret_why, WR_WHY_MAX, "io_uring was asked for and is not in this build");
        return -ENOSYS;
    default:
        snprintf(ret_why, WR_WHY_MAX, "no such back end: %d", (int)wanted);
        return -EINVAL;
    }
    *ret_ops = &wr_poll_epoll;
    return 0;
}
