/* faults.c: the epoll back end when the kernel refuses. Needs a build with the fault seam. */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include "os/clock.h"
#include "os/fault.h"
#include "poll/backends.h"
#include "rig.h"
#include "support/fds.h"

#define MS 1000000

#ifdef WEIR_FAULTS

static struct {
    enum wr_fault_call call;
    int error;
    unsigned from;                  /* the use, counted from 1, that fails first */
    unsigned until;                 /* and last */
    unsigned uses;
} plan;

static int planned(enum wr_fault_call call)
{
    if (call != plan.call)
        return 0;
    plan.uses++;
    return plan.uses >= plan.from && plan.uses <= plan.until ? plan.error : 0;
}

static void plan_fault(enum wr_fault_call call, int error, unsigned from, unsigned until)
{
    plan.call = call;
    plan.error = error;
    plan.from = from;
    plan.until = until;
    plan.uses = 0;
    wr_fault_hook = planned;
}

Test(epoll_faults, open_fails_without_a_trace, .timeout = 10)
{
    static const enum wr_fault_call calls[] = { WR_FAULT_EPOLL_CREATE, WR_FAULT_EVENTFD,
                                                WR_FAULT_EPOLL_CTL };
    static const int errors[] = { EMFILE, ENFILE, ENOMEM };
    struct wr_poller_backend *backend = NULL;
    struct wr_alloc alloc;
    int before = support_count_fds();

    wr_alloc_init(&alloc, NULL);
    for (unsigned i = 0; i < 9; i++) {
        plan_fault(calls[i / 3], errors[i % 3], 1, 1);
        errno = 4711;
        cr_assert_eq(wr_poll_epoll.open(&backend, &alloc, 16), -errors[i % 3]);
        cr_assert_eq(errno, 4711);
        cr_assert_null(backend, "written without success");
        cr_assert_eq(alloc.bytes, 0);
        cr_assert_eq(support_count_fds(), before);
    }
}

struct meagre {
    unsigned left;
};

static void *meagre_allocate(size_t size, void *context)
{
    struct meagre *meagre = context;

    return meagre->left-- > 0 ? malloc(size) : NULL;
}

static void meagre_release(void *memory, size_t size, void *context)
{
    (void)size;
    (void)context;
    free(memory);
}

Test(epoll_faults, every_allocation_may_fail, .timeout = 10)
{
    int before = support_count_fds();
    int result = -ENOMEM;
    unsigned budget;

    for (budget = 0; result == -ENOMEM && budget < 20; budget++) {
        struct meagre meagre = { budget };
        const weir_allocator source = { meagre_allocate, meagre_release, &meagre };
        struct wr_poller_backend *backend = NULL;
        struct wr_alloc alloc;
        wr_alloc_init(&alloc, &source);
        result = wr_poll_epoll.open(&backend, &alloc, 16);
        if (result == 0) {
            int pipes[2];
            cr_assert_eq(pipe(pipes), 0);
            result = wr_poll_epoll.attach(backend, pipes[0], 7, WR_POLL_EDGE);
            cr_assert(result == 0 || result == -ENOMEM, "%d", result);
            wr_poll_epoll.close(backend);
            close(pipes[0]);
            close(pipes[1]);
        }
        cr_assert_eq(alloc.bytes, 0, "budget %u", budget);
        cr_assert_eq(support_count_fds(), before);
    }
    cr_assert_eq(result, 0);
    cr_assert_geq(budget, 4, "instance, events and table: three allocations could fail");
}

Test(epoll_faults, a_failed_wait_says_so_and_the_next_goes_on, .timeout = 10)
{
    static const int errors[] = { EBADF, EINVAL, EFAULT, ENOMEM };
    static struct rig rig;

    rig_open(&rig, &wr_poll_epoll);
    int fd = rig_end(&rig);
    cr_assert_eq(rig_attach(&rig, fd, 7, WR_POLL_EDGE), 0);
    for (unsigned i = 0; i < 4; i++) {
        plan_fault(WR_FAULT_EPOLL_WAIT, errors[i], 1, 1);
        errno = 4711;
        cr_assert_eq(rig_look(&rig), -errors[i]);
        cr_assert_eq(errno, 4711);
    }
    plan_fault(WR_FAULT_EPOLL_WAIT, EINTR, 1, 1);
    cr_assert_eq(rig_look(&rig), 0);
    cr_assert_eq(rig_bits(&rig, 7, NULL), WR_POLL_OUT, "the event was lost with the error");
    rig_close_end(&rig, fd);
    rig_close(&rig);
}

Test(epoll_faults, a_failed_control_call_changes_nothing, .timeout = 10)
{
    static struct rig rig;

    rig_open(&rig, &wr_poll_epoll);
    int fd = rig_end(&rig);
    plan_fault(WR_FAULT_EPOLL_CTL, ENOSPC, 1, 1);
    cr_assert_eq(rig_attach(&rig, fd, 7, WR_POLL_ONESHOT), -ENOSPC);
    cr_assert_eq(rig_rearm(&rig, fd, 7, WR_POLL_OUT), -ENOENT);
    cr_assert_eq(rig_attach(&rig, fd, 7, WR_POLL_ONESHOT), 0);
    plan_fault(WR_FAULT_EPOLL_CTL, ENOMEM, 1, 2);
    cr_assert_eq(rig_rearm(&rig, fd, 7, WR_POLL_OUT), -ENOMEM);
    cr_assert_eq(rig_detach(&rig, fd, 7), -ENOMEM);
    cr_assert_eq(rig_rearm(&rig, fd, 7, WR_POLL_OUT), 0, "the failed detach forgot the token");
    cr_assert_eq(rig_bits(&rig, 7, NULL), WR_POLL_OUT);
    cr_assert_eq(rig_detach(&rig, fd, 7), 0);
    rig_close_end(&rig, fd);
    rig_close(&rig);
}

/* A detach that has looked the token up and not yet called the kernel; meanwhile the owner's number
 * is used again and attached under another token. */
static struct {
    struct rig *rig;
    pthread_t thread;
    _Atomic bool started, attached;
    int number;
} newcomer;

static void *take_the_number(void *unused)
{
    (void)unused;
    newcomer.number = rig_end(newcomer.rig);
    newcomer.started = true;
    cr_assert_eq(rig_attach(newcomer.rig, newcomer.number, 8, WR_POLL_EDGE), 0);
    newcomer.attached = true;
    return NULL;
}

static int let_the_newcomer_in(enum wr_fault_call call)
{
    if (call != WR_FAULT_EPOLL_CTL || newcomer.started)
        return 0;
    weir_time limit = wr_clock_now() + 100 * MS;
    pthread_create(&newcomer.thread, NULL, take_the_number, NULL);
    while (!newcomer.started || (!newcomer.attached && wr_clock_now() < limit))
        sched_yield();
    return 0;
}

Test(epoll_faults, a_number_taken_in_the_middle_of_a_detach_stays_attached, .timeout = 10)
{
    static struct rig rig;

    rig_open(&rig, &wr_poll_epoll);
    int fd = rig_end(&rig);
    cr_assert_eq(rig_attach(&rig, fd, 7, WR_POLL_ONESHOT), 0);
    rig_close_end(&rig, fd);
    newcomer.rig = &rig;
    wr_fault_hook = let_the_newcomer_in;
    int result = rig_detach(&rig, fd, 7);
    pthread_join(newcomer.thread, NULL);
    wr_fault_hook = NULL;
    cr_assert_eq(newcomer.number, fd, "the number was not used again: the test proves nothing");
    cr_assert_eq(result, -ENOENT);
    rig_bits(&rig, 8, NULL);
    rig_feed(&rig, fd);
    cr_assert(rig_bits(&rig, 8, NULL) & WR_POLL_IN, "the newcomer was detached");
    rig_close_end(&rig, fd);
    rig_close(&rig);
}

/* Without epoll_pwait2 (old kernel, or a filter that answers EPERM) whole milliseconds must do. */
Test(epoll_faults, without_nanoseconds_it_rounds_up_and_does_not_spin, .timeout = 10)
{
    static const int errors[] = { ENOSYS, EPERM };
    static struct rig rig;

    for (unsigned i = 0; i < 2; i++) {
        rig_open(&rig, &wr_poll_epoll);
        plan_fault(WR_FAULT_EPOLL_WAIT, errors[i], 1, 1);
        cr_assert_eq(rig_look(&rig), 0, "the first wait did not try the other way");
        cr_assert_eq(plan.uses, 2);
        cr_assert_eq(rig_look(&rig), 0);
        cr_assert_eq(plan.uses, 3);
        weir_time soon = wr_clock_now() + MS / 10;
        cr_assert_eq(rig.ops->wait(rig.backend, rig.events, RIG_BATCH, soon), 0);
        cr_assert_gt(wr_clock_now() - soon, MS / 2, "what is decided must not be tried again");
        for (int span = 100000; span < 2 * MS; span += 300000) {
            plan.uses = 1;
            weir_time deadline = wr_clock_now() + span;
            while (wr_clock_now() < deadline)
                cr_assert_eq(rig.ops->wait(rig.backend, rig.events, RIG_BATCH, deadline), 0);
            cr_assert_leq(plan.uses, 3, "%u system calls for %d ns", plan.uses - 1, span);
        }
        int fd = rig_end(&rig);
        cr_assert_eq(rig_attach(&rig, fd, 7, WR_POLL_EDGE), 0);
        cr_assert_eq(rig.ops->wait(rig.backend, rig.events, RIG_BATCH, WEIR_NEVER), 1);
        rig.ops->doorbell(rig.backend);
        cr_assert_eq(rig.ops->wait(rig.backend, rig.events, RIG_BATCH, WEIR_NEVER - 1), 0);
        rig_close_end(&rig, fd);
        rig_close(&rig);
    }
}

#endif

Test(backends, auto_is_epoll_and_says_why, .timeout = 10)
{
    const struct wr_poll_ops *ops = NULL;
    char why[WR_WHY_MAX] = "";

    cr_assert_eq(wr_backend_choose(WEIR_BACKEND_AUTO, &ops, why), 0);
    cr_assert_eq(ops, &wr_poll_epoll);
#ifdef WEIR_URING
    cr_assert_not_null(strstr(why, "WEIR_BACKEND=io_uring uses it"), "%s", why);
#else
    cr_assert_not_null(strstr(why, "io_uring is not in this build"), "%s", why);
#endif
}

Test(backends, epoll_is_epoll, .timeout = 10)
{
    const struct wr_poll_ops *ops = NULL;
    char why[WR_WHY_MAX] = "";

    cr_assert_eq(wr_backend_choose(WEIR_BACKEND_EPOLL, &ops, why), 0);
    cr_assert_eq(ops, &wr_poll_epoll);
    cr_assert_str_eq(why, "asked for");
}

Test(backends, what_is_not_there_is_refused_with_the_reason, .timeout = 10)
{
    const struct wr_poll_ops *ops = NULL;
    char why[WR_WHY_MAX] = "";

#ifndef WEIR_URING
    cr_assert_eq(wr_backend_choose(WEIR_BACKEND_IO_URING, &ops, why), -ENOSYS);
    cr_assert_null(ops, "written without success");
    cr_assert_not_null(strstr(why, "io_uring"), "%s", why);
#endif
    cr_assert_eq(wr_backend_choose((enum weir_backend)99, &ops, why), -EINVAL);
    cr_assert_null(ops);
}
