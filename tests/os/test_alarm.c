/* test_alarm.c: a timer that others set. */
#include "support/test.h"

#include <errno.h>
#include <poll.h>
#include <time.h>

#include <weir/base.h>

#include "os/alarm.h"
#include "os/clock.h"
#include "os/fault.h"
#include "os/thread.h"

static bool has_gone_off(int alarm, int ms)
{
    return poll(&(struct pollfd) {.fd = alarm, .events = POLLIN}, 1, ms) == 1;
}

Test(alarm, goes_off_when_it_is_due_and_not_before, .timeout = 10)
{
    int alarm = wr_alarm_open();
    cr_assert_geq(alarm, 0);
    cr_expect_not(has_gone_off(alarm, 0));
    weir_time before = wr_clock_now();
    wr_alarm_set(alarm, 20000000);
    wr_alarm_wait(alarm);
    cr_expect_geq(wr_clock_now() - before, 20000000);
    cr_expect_not(has_gone_off(alarm, 0));
    wr_alarm_close(alarm);
}

Test(alarm, that_is_taken_back_is_forgotten_even_if_it_has_gone_off, .timeout = 10)
{
    int alarm = wr_alarm_open();
    cr_assert_geq(alarm, 0);
    wr_alarm_set(alarm, 1);
    cr_assert(has_gone_off(alarm, 1000));
    wr_alarm_set(alarm, 0);
    cr_expect_not(has_gone_off(alarm, 0));
    wr_alarm_set(alarm, 5000000);
    wr_alarm_set(alarm, 0);
    cr_expect_not(has_gone_off(alarm, 20));
    wr_alarm_close(alarm);
}

Test(alarm, later_setting_replaces_the_one_before, .timeout = 10)
{
    int alarm = wr_alarm_open();
    cr_assert_geq(alarm, 0);
    wr_alarm_set(alarm, 3600LL * 1000000000);
    wr_alarm_set(alarm, 1);
    cr_expect(has_gone_off(alarm, 1000));
    wr_alarm_close(alarm);
}

static void *set_soon(void *alarm)
{
    nanosleep(&(struct timespec) {.tv_nsec = 10000000}, NULL);
    wr_alarm_set(*(int *)alarm, 1);
    return NULL;
}

Test(alarm, set_by_another_thread_wakes_who_sleeps_on_it, .timeout = 10)
{
    struct wr_thread thread;
    int alarm = wr_alarm_open();
    cr_assert_geq(alarm, 0);
    cr_assert_eq(wr_thread_start(&thread, "setter", 0, set_soon, &alarm), 0);
    wr_alarm_wait(alarm);
    wr_thread_join(&thread);
    wr_alarm_close(alarm);
}

#ifdef WEIR_FAULTS
static int refuse(enum wr_fault_call call)
{
    return call == WR_FAULT_TIMERFD ? EMFILE : 0;
}

Test(alarm, that_cannot_be_had_says_why)
{
    wr_fault_hook = refuse;
    cr_expect_eq(wr_alarm_open(), -EMFILE);
    wr_fault_hook = NULL;
}
#endif
