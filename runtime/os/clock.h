/* clock.h: the monotonic clock. */
#ifndef WR_OS_CLOCK_H
#define WR_OS_CLOCK_H

#include <weir/base.h>

weir_time wr_clock_now(void);

/* a + b, clamped to [INT64_MIN, WEIR_NEVER]. */
weir_time wr_clock_add(weir_time a, int64_t b);

#endif
