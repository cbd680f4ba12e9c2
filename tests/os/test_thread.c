/* Threads that a host does not notice: no signals but faults of their own, a name, a stack of a
 * known size. */
#include "os/thread.h"

#include <errno.h>
#include <limits.h>
#include <unistd.h>

#include "os/fault.h"
#include "support/test.h"

struct seen {
    sigset_t mask;
    char name[64];
    size_t stack;
    int id, id_again;
    pid_t tid;
};

static void *look(void *argument)
{
    struct seen *seen = argument;
    pthread_attr_t attributes;
    (void)pthread_sigmask(SIG_SETMASK, NULL, &seen->mask);
    (void)pthread_getname_np(pthread_self(), seen->name, sizeof seen->name);
    if (pthread_getattr_np(pthread_self(), &attributes) == 0) {
        (void)pthread_attr_getstacksize(&attributes, &seen->stack);
        (void)pthread_attr_destroy(&attributes);
    }
    seen->id = wr_thread_id();
    seen->id_again = wr_thread_id();
    seen->tid = gettid();
    return NULL;
}

static struct seen start_and_look(const char *name, size_t stack)
{
    struct seen seen = { 0 };
    struct wr_thread thread;
    cr_assert_eq(wr_thread_start(&thread, name, stack, look, &seen), 0);
    wr_thread_join(&thread);
    return seen;
}

/* The two that cannot be blocked, and those that the C library keeps for itself. */
static bool blockable(int number)
{
    return number != SIGKILL && number != SIGSTOP && (number < 32 || number >= SIGRTMIN);
}

static int same_mask(const sigset_t *a, const sigset_t *b)
{
    for (int i = 1; i <= SIGRTMAX; i++)
        if (blockable(i) && sigismember(a, i) != sigismember(b, i))
            return 0;
    return 1;
}

/* What the thread does to itself: blocked, it would kill the process past the host's handler. */
static bool synchronous(int number)
{
    static const int faults[] = { SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS };
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++)
        if (faults[i] == number)
            return true;
    return false;
}

Test(thread, all_signals_but_synchronous_faults_are_blocked_in_our_threads, .timeout = 30)
{
    struct seen seen = start_and_look("worker", 256 * 1024);
    for (int i = 1; i <= SIGRTMAX; i++)
        if (blockable(i))
            cr_assert_eq(sigismember(&seen.mask, i), !synchronous(i), "signal %d", i);
}

Test(thread, a_fault_the_host_blocks_stays_blocked_in_the_host_alone, .timeout = 30)
{
    sigset_t faults;
    sigemptyset(&faults);
    sigaddset(&faults, SIGSEGV);
    (void)pthread_sigmask(SIG_BLOCK, &faults, NULL);
    struct seen seen = start_and_look("worker", 256 * 1024);
    cr_assert_eq(sigismember(&seen.mask, SIGSEGV), 0);
    (void)pthread_sigmask(SIG_SETMASK, NULL, &faults);
    cr_assert_eq(sigismember(&faults, SIGSEGV), 1);
}

Test(thread, the_callers_mask_is_as_it_was, .timeout = 30)
{
    sigset_t some, after;
    sigemptyset(&some);
    sigaddset(&some, SIGHUP);
    sigaddset(&some, SIGRTMIN + 3);
    (void)pthread_sigmask(SIG_SETMASK, &some, NULL);
    (void)start_and_look("worker", 256 * 1024);
    (void)pthread_sigmask(SIG_SETMASK, NULL, &after);
    cr_assert(same_mask(&some, &after));
}

Test(thread, a_thread_has_its_name_when_it_begins, .timeout = 30)
{
    struct seen seen = start_and_look("weir.poller.0", 256 * 1024);
    cr_assert_str_eq(seen.name, "weir.poller.0");
}

Test(thread, a_long_name_is_cut, .timeout = 30)
{
    struct seen seen = start_and_look("12345678.blocking.99", 256 * 1024);
    cr_assert_str_eq(seen.name, "12345678.blocki");
}

Test(thread, the_stack_has_the_size_asked_for, .timeout = 30)
{
    struct seen seen = start_and_look("worker", 1024 * 1024 + 1);
    cr_assert_geq(seen.stack, 1024 * 1024 + 1);
    cr_assert_lt(seen.stack, 2 * 1024 * 1024);
}

Test(thread, a_stack_that_is_too_small_is_raised, .timeout = 30)
{
    struct seen seen = start_and_look("worker", 1);
    cr_assert_geq(seen.stack, (size_t)PTHREAD_STACK_MIN);
    seen = start_and_look("worker", 0);
    cr_assert_geq(seen.stack, (size_t)PTHREAD_STACK_MIN);
}

Test(thread, the_id_is_the_kernels, .timeout = 30)
{
    struct seen seen = start_and_look("worker", 256 * 1024);
    cr_assert_eq(seen.id, seen.tid);
    cr_assert_eq(seen.id_again, seen.tid);
    cr_assert_eq(wr_thread_id(), gettid());
    cr_assert_neq(seen.id, wr_thread_id());
}

#ifdef WEIR_FAULTS

static int fault_error;
static unsigned fault_times, fault_seen;

static int fail_threads(enum wr_fault_call call)
{
    if (call != WR_FAULT_THREAD)
        return 0;
    return fault_seen++ < fault_times ? fault_error : 0;
}

static void fail_with(int error, unsigned times)
{
    fault_error = error;
    fault_times = times;
    fault_seen = 0;
    wr_fault_hook = fail_threads;
}

Test(thread, a_passing_shortage_is_sat_out, .timeout = 30)
{
    fail_with(EAGAIN, 2);
    struct seen seen = start_and_look("worker", 256 * 1024);
    cr_assert_str_eq(seen.name, "worker");
    cr_assert_eq(fault_seen, 3);
}

Test(thread, a_lasting_shortage_is_reported_and_changes_nothing, .timeout = 30)
{
    struct wr_thread thread;
    struct seen seen;
    sigset_t before, after;
    (void)pthread_sigmask(SIG_SETMASK, NULL, &before);
    fail_with(EAGAIN, UINT_MAX);
    errno = ENOENT;
    cr_assert_eq(wr_thread_start(&thread, "worker", 256 * 1024, look, &seen), -EAGAIN);
    cr_assert_eq(errno, ENOENT);
    cr_assert_gt(fault_seen, 1);
    cr_assert_lt(fault_seen, 10);
    (void)pthread_sigmask(SIG_SETMASK, NULL, &after);
    cr_assert(same_mask(&before, &after));
}

Test(thread, other_failures_are_not_tried_again, .timeout = 30)
{
    struct wr_thread thread;
    struct seen seen;
    fail_with(ENOMEM, UINT_MAX);
    cr_assert_eq(wr_thread_start(&thread, "worker", 256 * 1024, look, &seen), -ENOMEM);
    cr_assert_eq(fault_seen, 1);
}

#endif
