/* clock.h: the monotonic clock. */
#ifndef WR_OS_CLOCK_H
#define WR_OS_CLOCK_H

#include <weir/base.h>

weir_time wr_clock_now(void);
/* The same clock as it stood at the kernel's last tick: behind by one tick at most (1 to 10 ms), at
 * a fifth of the price. */
weir_time wr_clock_coarse(void);

/* a + b, clamped to [INT64_MIN, WEIR_NEVER]. */
weir_time wr_clock_add(weir_time a, int64_t b);

#endif
