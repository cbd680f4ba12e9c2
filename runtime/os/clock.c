/* clock.c: the monotonic clock and arithmetic on it that saturates instead of wrapping round. */
#include "os/clock.h"

#include <time.h>

#include "base/assert.h"

#define NS_PER_SECOND 1000000000
#define NS_PER_MS 1000000
#define NS_PER_US 1000

const char *weir_version(void)
{
    return WEIR_VERSION;
}

static weir_time read_clock(clockid_t clock)
{
    struct timespec now;
    int r = clock_gettime(clock, &now);
    WR_ASSERT(r == 0);
    (void)r;
    return (weir_time)now.tv_sec * NS_PER_SECOND + now.tv_nsec;
}

weir_time wr_clock_now(void)
{
    return read_clock(CLOCK_MONOTONIC);
}

weir_time wr_clock_coarse(void)
{
    return read_clock(CLOCK_MONOTONIC_COARSE);
}

weir_time wr_clock_add(weir_time a, int64_t b)
{
    weir_time sum;
    if (__builtin_add_overflow(a, b, &sum))
        return b > 0 ? WEIR_NEVER : INT64_MIN;
    return sum;
}

static weir_time after(int64_t span, int64_t unit)
{
    int64_t ns;
    if (__builtin_mul_overflow(span, unit, &ns))
        ns = span > 0 ? INT64_MAX : INT64_MIN;
    return wr_clock_add(wr_clock_now(), ns);
}

weir_time weir_now(void)
{
    return wr_clock_now();
}

weir_time weir_after_ms(int64_t milliseconds)
{
    return after(milliseconds, NS_PER_MS);
}

weir_time weir_after_us(int64_t microseconds)
{
    return after(microseconds, NS_PER_US);
}
