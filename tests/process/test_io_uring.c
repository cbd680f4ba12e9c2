/* test_io_uring.c: a machine that does not let us, and what the choice of io_uring changes. */
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <netinet/in.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "os/fault.h"
#include "poll/backends.h"
#include "support/rig.h"

/* From here on these calls of this thread, and of threads it makes, are answered with `action`. */
static void forbid(const unsigned *calls, unsigned count, unsigned action)
{
    enum { MOST = 4 };
    struct sock_filter code[2 + 2 * MOST];
    unsigned short length = 0;

    cr_assert_leq(count, MOST);
    code[length++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS,
                                                  offsetof(struct seccomp_data, nr));
    for (unsigned i = 0; i < count; i++) {
        code[length++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, calls[i], 0, 1);
        code[length++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, action);
    }
    code[length++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    const struct sock_fprog program = {.len = length, .filter = code};
    cr_assert_eq(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
    cr_assert_eq(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program), 0, "errno %d", errno);
}

static void on_read(weir_socket *socket, const weir_view *view, int status, void *context)
{
    (void)context;
    if (status == 0 && view->length > 0)
        weir_write(socket, view->data, view->length);
    else
        weir_close(socket, NULL, NULL);
}

static void echo_once(struct rig *rig)
{
    weir_socket *socket;
    char answer[5];

    int peer = rig_tcp(rig, NULL, &socket);
    cr_assert_eq(weir_read_start(socket, on_read, NULL), 0);
    rig_peer_send(peer, "hello", 5);
    rig_peer_receive(peer, answer, 5);
    cr_assert_eq(memcmp(answer, "hello", 5), 0);
    close(peer);
}

/* (U02) */
static void live_without(enum weir_backend backend)
{
    static const unsigned calls[] = {SYS_io_uring_setup, SYS_io_uring_enter,
                                     SYS_io_uring_register};
    weir_options options = WEIR_OPTIONS_INIT;
    struct rig rig;

    forbid(calls, 3, SECCOMP_RET_KILL_PROCESS);
    options.backend = backend;
    rig_open_with(&rig, &options);
    echo_once(&rig);
    cr_assert_str_eq(weir_runtime_backend(rig.runtime, NULL), "epoll");
    rig_close(&rig);
}

Test(io_uring, with_epoll_no_io_uring_call_is_made, .timeout = 30)
{
    live_without(WEIR_BACKEND_EPOLL);
}

Test(io_uring, with_auto_no_io_uring_call_is_made, .timeout = 30)
{
    live_without(WEIR_BACKEND_AUTO);
}

#ifdef WEIR_URING

static char said[1024];

static void on_log(enum weir_log_level level, const char *line, void *context)
{
    (void)context;
    if (level == WEIR_LOG_ERROR)
        snprintf(said, sizeof said, "%s", line);
}

static int create(weir_runtime **ret_runtime)
{
    weir_options options = WEIR_OPTIONS_INIT;

    options.backend = WEIR_BACKEND_IO_URING;
    options.log = on_log;
    said[0] = '\0';
    return weir_runtime_create(ret_runtime, &options);
}

static void skip_unless_available(void)
{
    const struct wr_poll_ops *ops;
    char why[WR_WHY_MAX];

    if (wr_backend_choose(WEIR_BACKEND_IO_URING, &ops, why) < 0)
        cr_skip_test("%s", why);
}

/* (U01) */
static void be_refused(unsigned call, int error, const char *reason)
{
    weir_runtime *runtime = NULL;
    struct support_held before = support_held();

    forbid(&call, 1, SECCOMP_RET_ERRNO | (unsigned)error);
    int r = create(&runtime);
    cr_assert_eq(r, -ENOSYS, "%d", r);
    cr_assert_null(runtime);
    cr_assert_not_null(strstr(said, reason), "said: %s", said);
    cr_assert_eq(support_count_fds(), before.fds);
    cr_assert_leq(support_await_threads(before.threads, 2000), before.threads);
}

#define REFUSED(name, call, error, reason) \
    Test(io_uring, name, .timeout = 30) \
    { \
        be_refused(call, error, reason); \
    }

REFUSED(a_filter_at_setup_is_named, SYS_io_uring_setup, EPERM, "seccomp")
REFUSED(the_switch_of_the_system_is_named, SYS_io_uring_setup, EPERM, "kernel.io_uring_disabled")
REFUSED(a_kernel_without_it_is_named, SYS_io_uring_setup, ENOSYS, "this kernel")
REFUSED(a_security_module_is_named, SYS_io_uring_setup, EACCES, "security module")
REFUSED(a_filter_at_enter_is_found_before_it_matters, SYS_io_uring_enter, EPERM, "seccomp")
REFUSED(a_filter_at_register_is_found_before_it_matters, SYS_io_uring_register, EPERM, "seccomp")

/* (U03) */
Test(io_uring, a_memory_limit_is_named_with_its_value, .timeout = 30)
{
    const struct rlimit none = {0, 0};
    weir_runtime *runtime = NULL;

    skip_unless_available();
    cr_assert_eq(setrlimit(RLIMIT_MEMLOCK, &none), 0);
    if (geteuid() == 0)
        cr_assert_eq(setresuid(65534, 65534, 65534), 0);
    int r = create(&runtime);
    if (r == 0)
        cr_skip_test("this kernel does not charge rings to the limit");
    cr_assert_eq(r, -ENOMEM, "%d", r);
    cr_assert_not_null(strstr(said, "RLIMIT_MEMLOCK is 0 bytes"), "said: %s", said);
}

Test(io_uring, the_lease_becomes_dedicated_and_the_log_says_so, .timeout = 30)
{
    weir_options options = WEIR_OPTIONS_INIT;
    struct rig rig;

    skip_unless_available();
    options.backend = WEIR_BACKEND_IO_URING;
    options.poll = WEIR_POLL_LEASE;
    rig_open_with(&rig, &options);
    cr_assert(rig_logged(&rig, "dedicated, not leased"));
    cr_assert_str_eq(weir_runtime_backend(rig.runtime, NULL), "io_uring");
    echo_once(&rig);
    rig_close(&rig);
}

/* Completion mode was asked for and is not to be had: said once, and everything works. */
static void read_by_readiness(enum weir_backend backend, const char *reason)
{
    weir_options options = WEIR_OPTIONS_INIT;
    struct rig rig;
    const char *why;

    options.backend = backend;
    options.recv = WEIR_RECV_COMPLETION;
    options.poll = WEIR_POLL_DEDICATED;
    rig_open_with(&rig, &options);
    weir_runtime_backend(rig.runtime, &why);
    cr_expect_not_null(strstr(why, "recv: readiness, though completion was asked for"), "%s", why);
    cr_expect_not_null(strstr(why, reason), "%s", why);
    cr_expect_eq(rig_lines(&rig, WEIR_LOG_WARN), 1);
    cr_expect(rig_logged(&rig, reason));
    cr_expect_eq(rig_stats(&rig).recv_buffers, 0);
    echo_once(&rig);
    rig_close(&rig);
}

Test(io_uring, completion_on_epoll_is_readiness_with_a_warning, .timeout = 30)
{
    read_by_readiness(WEIR_BACKEND_EPOLL, "only the io_uring back end has it");
}

#ifdef WEIR_FAULTS
static int no_buffer_rings(enum wr_fault_call call)
{
    return call == WR_FAULT_URING_BUFFERS ? EINVAL : 0;
}

Test(io_uring, completion_on_a_kernel_without_it_is_readiness_with_a_warning, .timeout = 30)
{
    skip_unless_available();
    wr_fault_hook = no_buffer_rings;
    read_by_readiness(WEIR_BACKEND_IO_URING, "this kernel has no multishot receive");
}
#endif

static void on_accept(weir_listener *listener, weir_socket *socket, void *context)
{
    (void)listener;
    (void)context;
    weir_close(socket, NULL, NULL);
}

static void on_closed(void *context)
{
    atomic_store((_Atomic unsigned *)context, 1);
}

/* A ring that still polled it would keep the port. */
Test(io_uring, the_port_is_free_when_the_listener_is_closed, .timeout = 30)
{
    weir_options options = WEIR_OPTIONS_INIT;
    struct rig rig;

    skip_unless_available();
    options.backend = WEIR_BACKEND_IO_URING;
    options.workers = 2;
    rig_open_with(&rig, &options);
    for (int round = 0; round < 50; round++) {
        weir_listener *listener;
        weir_address address;
        _Atomic unsigned closed = 0;
        cr_assert_eq(weir_listen(rig.runtime, "127.0.0.1:0", NULL, on_accept, NULL, &listener), 0);
        cr_assert_eq(weir_listener_address(listener, &address), 0);
        cr_assert_eq(weir_listener_close(listener, on_closed, (void *)&closed), 0);
        while (!atomic_load(&closed))
            sched_yield();
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        cr_assert_eq(bind(fd, (struct sockaddr *)&address.storage, address.length), 0,
                     "round %d: errno %d", round, errno);
        close(fd);
    }
    rig_close(&rig);
}

#endif
