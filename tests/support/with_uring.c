/* with_uring.c: runs a test program where io_uring (and completion mode, if WEIR_RECV asks for it)
 * can be had; else says why not and exits with 77, which CTest counts as skipped.
 *     with_uring PROGRAM ARGUMENT... */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "poll/backends.h"

int main(int argc, char **argv)
{
    const struct wr_poll_ops *ops;
    char why[WR_WHY_MAX];

    if (argc < 2)
        return 2;
    if (wr_backend_choose(WEIR_BACKEND_IO_URING, &ops, why) < 0) {
        printf("skipped: %s\n", why);
        return 77;
    }
    const char *recv = getenv("WEIR_RECV");
    if (recv && strcmp(recv, "completion") == 0 && !wr_backend_receives(ops, why)) {
        printf("skipped: %s\n", why);
        return 77;
    }
    execv(argv[1], argv + 1);
    perror(argv[1]);
    return 127;
}
