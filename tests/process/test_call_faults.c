/* test_call_faults.c: each system call fails at its k-th use, for every k: an error is answered or
 * the trouble is got over, nothing is lost, the next call works. (M02, M04) */
#include <errno.h>
#include <unistd.h>

#include "walk.h"

#ifdef WEIR_FAULTS

/* Uses beyond it are more of the same. */
enum { USES_MAX = 24 };

static unsigned calls_failed(struct walk *walk)
{
    (void)walk;
    return scarce_call_failed();
}

static void begin(struct walk *walk, const char *name, unsigned k)
{
    memset(walk, 0, sizeof *walk);
    walk->name = name;
    walk->k = k;
    walk->failed = calls_failed;
    scarce_memory_init(&walk->memory);
}

/* What this call may answer, each at every use of it. `times`: how often in a row. */
static void walk_with(const char *name, enum wr_fault_call call, const int *errors, unsigned times)
{
    struct walk walk;
    unsigned most = 0;

    scarce_call_fail(call, 0, 1, 0);
    begin(&walk, name, 0);
    walk.before = support_held();
    walk_run(&walk); /* what libc keeps open is open now */
    struct support_held before = support_held();
    for (int i = 0; errors[i]; i++) {
        unsigned k = 0, missed = 0;
        while (missed < 2 && k < USES_MAX) {
            begin(&walk, name, ++k);
            walk.before = before;
            scarce_call_fail(call, errors[i], k, times);
            walk_run(&walk);
            missed = scarce_call_failed() ? 0 : missed + 1;
        }
        most = k - missed > most ? k - missed : most;
    }
    scarce_call_clear();
    cr_assert_gt(most, 0, "%s is not used", name);
}

#define CALL_TEST(name, call, times, ...) \
    Test(calls, name##_may_fail, .timeout = 240) \
    { \
        static const int errors[] = {__VA_ARGS__, 0}; \
        walk_with(#name, call, errors, times); \
    }

CALL_TEST(socket, WR_FAULT_SOCKET, 1, EMFILE)
CALL_TEST(bind, WR_FAULT_BIND, 1, EADDRINUSE)
CALL_TEST(listen, WR_FAULT_LISTEN, 1, EADDRINUSE)
CALL_TEST(accept, WR_FAULT_ACCEPT, 1, EMFILE, ECONNABORTED)
CALL_TEST(connect, WR_FAULT_CONNECT, 1, ECONNREFUSED, EINTR)
CALL_TEST(recv, WR_FAULT_RECV, 1, ECONNRESET)
CALL_TEST(send, WR_FAULT_SEND, 1, ENOBUFS)
CALL_TEST(sendfile, WR_FAULT_SENDFILE, 1, EIO)
CALL_TEST(epoll_create, WR_FAULT_EPOLL_CREATE, 1, EMFILE)
CALL_TEST(epoll_ctl, WR_FAULT_EPOLL_CTL, 1, ENOSPC)
CALL_TEST(epoll_wait, WR_FAULT_EPOLL_WAIT, 1, EINTR, EBADF)
CALL_TEST(eventfd, WR_FAULT_EVENTFD, 1, EMFILE)
CALL_TEST(fcntl, WR_FAULT_FCNTL, 1, EINVAL)
CALL_TEST(sockopt, WR_FAULT_SOCKOPT, 1, ENOBUFS)
CALL_TEST(name, WR_FAULT_NAME, 1, ENOBUFS)
CALL_TEST(shutdown, WR_FAULT_SHUTDOWN, 1, ENOTCONN)
CALL_TEST(close, WR_FAULT_CLOSE, 1, EIO)
/* A short EAGAIN is waited out, a long one is final. */
CALL_TEST(thread, WR_FAULT_THREAD, 1, EAGAIN, ENOMEM)
CALL_TEST(thread_for_long, WR_FAULT_THREAD, 4, EAGAIN)

/* ---- a write that was taken and cannot be sent ----------------------------------------------- */

static _Atomic unsigned reader_ends;

static void echo(weir_socket *socket, const weir_view *view, int status, void *context)
{
    (void)context;
    if (status < 0 || view->length == 0)
        atomic_fetch_add(&reader_ends, 1);
    else
        weir_write(socket, view->data, view->length); /* sent when this returns */
}

/* The kernel has nothing to tell the reader about: both ends would wait for each other. */
Test(calls, a_write_that_fails_when_the_callback_is_over_is_heard_at_both_ends, .timeout = 30)
{
    static const int errors[] = {ENOBUFS, ENOMEM, EHOSTUNREACH};

    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++) {
        struct rig rig;
        weir_socket *socket;
        char byte = 0;

        scarce_call_fail(WR_FAULT_SEND, errors[i], 1, 1);
        atomic_store(&reader_ends, 0);
        rig_open(&rig, 1);
        int peer = rig_tcp(&rig, NULL, &socket);
        cr_assert_eq(weir_read_start(socket, echo, NULL), 0);
        rig_peer_send(peer, "x", 1);
        int end = rig_peer_end(peer, rig_patience(3000));
        cr_expect(end == 0 || end == -ECONNRESET, "errno %d: the peer waits", errors[i]);
        cr_expect(RIG_UNTIL(atomic_load(&reader_ends) == 1, 3000), "errno %d: the reader waits",
                  errors[i]);
        cr_expect_eq(weir_write(socket, &byte, 1), -errors[i]);
        close(peer);
        rig_close(&rig);
    }
    scarce_call_clear();
}

#else

Test(calls, need_a_build_with_faults, .timeout = 30)
{
    cr_skip_test("built without WEIR_FAULTS");
}

#endif
