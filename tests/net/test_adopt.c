/* Adopting descriptors: what is taken is ours to close, what is refused stays as it was. */
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "support/rig.h"

static int flags_of(int fd)
{
    return fcntl(fd, F_GETFL) & O_NONBLOCK;
}

Test(adopt, what_is_taken_is_made_non_blocking_and_closed, .timeout = 30)
{
    struct rig rig;
    weir_socket *socket;
    int fds[2];

    rig_open(&rig, 1);
    rig_tcp_pair(fds);
    cr_assert_eq(weir_adopt(rig.runtime, fds[0], NULL, &socket), 0);
    cr_assert_eq(flags_of(fds[0]), O_NONBLOCK);
    cr_assert_eq(weir_socket_runtime(socket), rig.runtime);
    cr_assert_null(weir_socket_user(socket));
    weir_socket_set_user(socket, &rig);
    cr_assert_eq(weir_socket_user(socket), &rig);
    shutdown(fds[1], SHUT_WR);
    cr_assert_eq(weir_close_wait(socket), 0);
    cr_assert_eq(fcntl(fds[0], F_GETFD), -1);
    close(fds[1]);
    rig_close(&rig);
}

Test(adopt, what_is_refused_stays_as_it_was, .timeout = 30)
{
    struct rig rig;
    weir_socket *mine = NULL, *again = NULL;
    weir_socket_options wrong = WEIR_SOCKET_OPTIONS_INIT;
    int fds[2], pipes[2];

    rig_open(&rig, 1);
    rig_tcp_pair(fds);
    cr_assert_eq(pipe2(pipes, O_CLOEXEC), 0);
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    cr_assert_eq(listen(listener, 1), 0);
    int raw = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    cr_assert_eq(weir_adopt(NULL, fds[0], NULL, &mine), -EINVAL);
    cr_assert_eq(weir_adopt(rig.runtime, -1, NULL, &mine), -EINVAL);
    cr_assert_eq(weir_adopt(rig.runtime, fds[0], NULL, NULL), -EINVAL);
    cr_assert_eq(weir_adopt(rig.runtime, 1000000, NULL, &mine), -EBADF);
    cr_assert_eq(weir_adopt(rig.runtime, pipes[0], NULL, &mine), -ENOTSOCK);
    cr_assert_eq(weir_adopt(rig.runtime, listener, NULL, &mine), -EINVAL);
    cr_assert_eq(weir_adopt(rig.runtime, raw, NULL, &mine), -EINVAL);
    wrong.write_low = 2;
    wrong.write_high = 1;
    cr_assert_eq(weir_adopt(rig.runtime, fds[0], &wrong, &mine), -EINVAL);
    cr_assert_null(mine);
    int all[] = {fds[0], pipes[0], listener, raw};
    for (int i = 0; i < 4; i++)
        cr_assert_eq(flags_of(all[i]), 0, "%d", i);
    cr_assert_eq(weir_adopt(rig.runtime, fds[0], NULL, &mine), 0);
    cr_assert_eq(weir_adopt(rig.runtime, fds[0], NULL, &again), -EEXIST, "twice");
    cr_assert_null(again);
    cr_assert_eq(rig_stats(&rig).sources, 1);
    for (int i = 1; i < 4; i++)
        close(all[i]);
    close(pipes[1]);
    close(fds[1]);
    rig_close(&rig);
}

Test(adopt, a_runtime_that_is_full_says_so, .timeout = 30)
{
    struct rig rig;
    weir_options options = WEIR_OPTIONS_INIT;
    weir_socket *sockets[65];
    int fds[2], peers[64];

    options.sources_max = 64;
    rig_open_with(&rig, &options);
    for (int i = 0; i < 64; i++)
        peers[i] = rig_unix(&rig, NULL, &sockets[i]);
    cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    cr_assert_eq(weir_adopt(rig.runtime, fds[0], NULL, &sockets[64]), -ENOSPC);
    cr_assert_eq(flags_of(fds[0]), 0, "and leaves it as it was");
    shutdown(peers[0], SHUT_WR);
    cr_assert_eq(weir_close_wait(sockets[0]), 0);
    cr_assert(RIG_UNTIL(weir_adopt(rig.runtime, fds[0], NULL, &sockets[64]) == 0, 1000));
    for (int i = 0; i < 64; i++)
        close(peers[i]);
    close(fds[1]);
    rig_close(&rig);
}
