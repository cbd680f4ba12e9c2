/* The clock of all deadlines, and sums on it that saturate. */
#include "os/clock.h"

#include <errno.h>
#include <time.h>

#include "support/test.h"

#define YEAR_MS ((int64_t)365 * 24 * 3600 * 1000)

static weir_time monotonic(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (weir_time)now.tv_sec * 1000000000 + now.tv_nsec;
}

Test(clock, now_is_the_monotonic_clock_in_nanoseconds, .timeout = 20)
{
    weir_time before = monotonic();
    weir_time now = weir_now();
    weir_time after = monotonic();
    cr_assert_leq(before, now);
    cr_assert_leq(now, after);
}

Test(clock, coarse_clock_is_the_same_clock_a_little_behind, .timeout = 20)
{
    for (int i = 0; i < 20; i++) {
        weir_time coarse = wr_clock_coarse();
        cr_assert_leq(coarse, wr_clock_now());
        weir_time now = wr_clock_now();
        cr_assert_geq(wr_clock_coarse(), now - 10000000);
        nanosleep(&(struct timespec) { .tv_nsec = 1300000 }, NULL);
    }
}

Test(clock, sums_saturate_at_both_ends, .timeout = 20)
{
    static const struct { weir_time a; int64_t b; weir_time sum; } rows[] = {
        { 1, 2, 3 }, { 5, -7, -2 }, { 0, 0, 0 },
        { WEIR_NEVER, 1, WEIR_NEVER }, { WEIR_NEVER, INT64_MAX, WEIR_NEVER },
        { WEIR_NEVER - 1, 1, WEIR_NEVER }, { WEIR_NEVER - 1, 2, WEIR_NEVER },
        { 1, INT64_MAX, WEIR_NEVER }, { WEIR_NEVER, INT64_MIN, -1 },
        { INT64_MIN, -1, INT64_MIN }, { -2, INT64_MIN, INT64_MIN },
        { INT64_MIN, INT64_MAX, -1 },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        cr_assert_eq(wr_clock_add(rows[i].a, rows[i].b), rows[i].sum, "row %zu", i);
}

Test(clock, spans_count_in_their_unit, .timeout = 20)
{
    weir_time before = weir_now();
    weir_time ms = weir_after_ms(1500), us = weir_after_us(1500);
    weir_time after = weir_now();
    cr_assert_leq(before + 1500000000, ms);
    cr_assert_leq(ms, after + 1500000000);
    cr_assert_leq(before + 1500000, us);
    cr_assert_leq(us, after + 1500000);
}

Test(clock, a_span_that_does_not_fit_is_never, .timeout = 20)
{
    cr_assert_eq(weir_after_ms(INT64_MAX), WEIR_NEVER);
    cr_assert_eq(weir_after_us(INT64_MAX), WEIR_NEVER);
    cr_assert_eq(weir_after_ms(INT64_MAX / 1000000 + 1), WEIR_NEVER);
    cr_assert_eq(weir_after_us(INT64_MAX / 1000 + 1), WEIR_NEVER);
    /* The product fits and the sum does not. */
    cr_assert_eq(weir_after_us(INT64_MAX / 1000), WEIR_NEVER);
    cr_assert_neq(weir_after_ms(100 * YEAR_MS), WEIR_NEVER);
}

Test(clock, a_negative_span_has_passed, .timeout = 20)
{
    weir_time now = weir_now();
    cr_assert_lt(weir_after_ms(-60000), now);
    cr_assert_lt(weir_after_us(-60000000), now);
    cr_assert_lt(weir_after_ms(INT64_MIN), 0);
    cr_assert_lt(weir_after_us(INT64_MIN), 0);
}

Test(clock, errno_is_left_alone, .timeout = 20)
{
    errno = ENOENT;
    (void)weir_now();
    (void)weir_after_ms(1);
    cr_assert_eq(errno, ENOENT);
}

Test(clock, the_version_is_the_one_of_the_header, .timeout = 20)
{
    char text[32];
    snprintf(text, sizeof text, "%d.%d.%d", WEIR_VERSION_MAJOR, WEIR_VERSION_MINOR,
             WEIR_VERSION_PATCH);
    cr_assert_str_eq(weir_version(), text);
    cr_assert_str_eq(weir_version(), WEIR_VERSION);
}
