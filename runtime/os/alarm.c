/* alarm.c: timerfd(2). */
#include "os/alarm.h"

#include <errno.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "base/assert.h"
#include "os/fault.h"

#define NS_PER_SECOND 1000000000

int wr_alarm_open(void)
{
    int error = wr_fault(WR_FAULT_TIMERFD);
    if (error)
        return -error;
    int alarm = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC);
    return alarm < 0 ? -errno : alarm;
}

void wr_alarm_close(int alarm)
{
    if (alarm >= 0)
        close(alarm);
}

void wr_alarm_set(int alarm, int64_t after)
{
    struct itimerspec at = {
        .it_value = {.tv_sec = (time_t)(after / NS_PER_SECOND),
                     .tv_nsec = (long)(after % NS_PER_SECOND)},
    };
    int r = timerfd_settime(alarm, 0, &at, NULL);
    WR_ASSERT(r == 0);
    (void)r;
}

void wr_alarm_wait(int alarm)
{
    uint64_t times;
    ssize_t r = read(alarm, &times, sizeof times);
    WR_ASSERT(r == sizeof times || errno == EINTR);
    (void)r;
}
