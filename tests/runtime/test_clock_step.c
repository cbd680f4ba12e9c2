/* test_clock_step.c: somebody sets the wall clock: no timer, deadline or sleep of ours notices.
 *
 * The program brings a wall clock of its own that a test can step, in place of the C library's; and
 * a filter that refuses to sleep by the kernel's wall clock, which no test may step. */
#include "support/rig.h"

#include <errno.h>
#include <linux/filter.h>
#include <linux/futex.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

static _Atomic int64_t wall_offset; /* seconds */

int clock_gettime(clockid_t clock, struct timespec *ret_now)
{
    long r = syscall(SYS_clock_gettime, clock, ret_now);

    if (r == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        ret_now->tv_sec += (time_t)atomic_load(&wall_offset);
    return (int)r;
}

int gettimeofday(struct timeval *restrict ret_now, void *restrict zone)
{
    struct timespec now;

    (void)zone;
    int r = clock_gettime(CLOCK_REALTIME, &now);
    ret_now->tv_sec = now.tv_sec;
    ret_now->tv_usec = now.tv_nsec / 1000;
    return r;
}

time_t time(time_t *ret_now)
{
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    if (ret_now)
        *ret_now = now.tv_sec;
    return now.tv_sec;
}

#define FIELD(name) ((uint32_t)offsetof(struct seccomp_data, name))
#define LOAD(offset) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, (offset))
#define UNLESS_EQUAL(value, skip) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (value), 0, (skip))

/* Refuses futex(2) with a time on the wall clock, and timers on it. 0 or -errno. */
static int refuse_the_wall_clock(void)
{
    struct sock_filter steps[] = {
        LOAD(FIELD(nr)),
        UNLESS_EQUAL(SYS_futex, 6),
        LOAD(FIELD(args[1])),
        BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, FUTEX_CLOCK_REALTIME, 0, 8),
        LOAD(FIELD(args[3])), /* without a time the clock does not matter */
        UNLESS_EQUAL(0, 5),
        LOAD(FIELD(args[3]) + 4),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0, 4, 3),
        UNLESS_EQUAL(SYS_timerfd_create, 3),
        LOAD(FIELD(args[0])),
        UNLESS_EQUAL(CLOCK_REALTIME, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOTSUP),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {.len = sizeof steps / sizeof steps[0], .filter = steps};

    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 ||
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) < 0)
        return -errno;
    return 0;
}

struct ring {
    weir_timer timer;
    _Atomic int64_t at; /* milliseconds */
};

static void note(weir_timer *timer, uint64_t missed, void *context)
{
    struct ring *ring = context;

    (void)timer;
    (void)missed;
    atomic_store(&ring->at, rig_now_ms());
}

struct waiter {
    weir_socket *socket;
    pthread_t thread;
    ssize_t result;
    int64_t at;
};

static void *wait_until_deadline(void *context)
{
    struct waiter *waiter = context;
    char byte;

    waiter->result = weir_recv_wait(waiter->socket, &byte, 1, weir_after_ms(300));
    waiter->at = rig_now_ms();
    return NULL;
}

static void count_run(weir_work *work, void *context)
{
    (void)work;
    atomic_fetch_add((_Atomic unsigned *)context, 1);
}

/* Workers are parked, a timer and a deadline of 300 ms are pending. */
static void step_by(int64_t first, int64_t second)
{
    struct rig rig;
    struct ring ring = {0};
    struct waiter waiter;
    weir_work work;
    _Atomic unsigned ran = 0;

    rig_open(&rig, 2);
    int peer = rig_unix(&rig, NULL, &waiter.socket);
    weir_timer_init(&ring.timer, rig.runtime, note, &ring);
    int64_t begin = rig_now_ms();
    cr_assert_eq(weir_timer_set(&ring.timer, weir_after_ms(300), 0, WEIR_TIMER_ONCE), 0);
    cr_assert_eq(pthread_create(&waiter.thread, NULL, wait_until_deadline, &waiter), 0);
    rig_sleep_ms(50);
    atomic_fetch_add(&wall_offset, first);
    rig_sleep_ms(50);
    atomic_fetch_add(&wall_offset, second);
    weir_work_init(&work, count_run, &ran);
    cr_assert_eq(weir_post(rig.runtime, &work), 0);
    cr_expect(RIG_UNTIL(atomic_load(&ran) == 1, 2000), "a parked worker does not wake");
    cr_expect(RIG_UNTIL(atomic_load(&ring.at) != 0, 5000), "the timer does not ring");
    pthread_join(waiter.thread, NULL);
    cr_expect_eq(waiter.result, -ETIMEDOUT);
    cr_expect_geq(atomic_load(&ring.at) - begin, 300);
    cr_expect_geq(waiter.at - begin, 300);
    cr_expect_leq(atomic_load(&ring.at) - begin, 300 + rig_patience(200));
    cr_expect_leq(waiter.at - begin, 300 + rig_patience(200));
    weir_timer_fini(&ring.timer);
    close(peer);
    rig_close(&rig);
}

/* (T06) */
Test(clock_step, wall_clock_set_forward_and_back_moves_nothing, .timeout = 30)
{
    step_by(3600, -7200);
}

/* (T06) */
Test(clock_step, wall_clock_set_back_and_forward_moves_nothing, .timeout = 30)
{
    step_by(-3600, 7200);
}

/* (T06) A sleep by the wall clock would not end when that is set back: there is none. */
Test(clock_step, nothing_sleeps_by_the_wall_clock, .timeout = 30)
{
    int r = refuse_the_wall_clock();

    if (r < 0)
        cr_skip_test("no filter can be installed here\n");
    step_by(0, 0);
}
