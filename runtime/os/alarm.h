/* alarm.h: a timer that one thread sleeps on and others set: unlike a futex's deadline it can be
 * moved, and taken back, without waking the sleeper. */
#ifndef WR_OS_ALARM_H
#define WR_OS_ALARM_H

#include <weir/base.h>

/* Returns an alarm that is not set (a descriptor, closed on exec); -EMFILE, -ENFILE, -ENOMEM, or
 * what a sandbox answers instead. */
int wr_alarm_open(void);
void wr_alarm_close(int alarm);

/* It goes off `after` nanoseconds from now, whatever was set before; 0: not at all, and an alarm
 * that has gone off and was not waited for yet is forgotten. Any thread. */
void wr_alarm_set(int alarm, int64_t after);

/* Sleeps until the alarm goes off, or has gone off since the wait before; a signal may end it
 * early. */
void wr_alarm_wait(int alarm);

#endif
