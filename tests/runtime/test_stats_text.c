/* A snapshot as text: every field once, in both forms, cut as snprintf() cuts. */
#include "stats_text.h"

#include <errno.h>
#include <stdint.h>

#include "support/test.h"

#define FIELDS ((sizeof(weir_stats) - offsetof(weir_stats, waits)) / sizeof(uint64_t))
#define TEXT_MAX 16384

/* The i-th number is i + 1, so that no two are alike. */
static weir_stats snapshot(void)
{
    weir_stats stats = { .size = sizeof stats };
    for (uint64_t i = 0; i < FIELDS; i++) {
        uint64_t value = i + 1;
        memcpy((char *)&stats + offsetof(weir_stats, waits) + i * sizeof value, &value,
               sizeof value);
    }
    return stats;
}

static unsigned count(const char *text, const char *what)
{
    unsigned found = 0;
    for (const char *at = text; (at = strstr(at, what)) != NULL; at += strlen(what))
        found++;
    return found;
}

Test(stats_text, text_has_a_line_for_every_field, .timeout = 30)
{
    static char text[TEXT_MAX];
    weir_stats stats = snapshot();
    int length = wr_stats_print(&stats, WEIR_STATS_TEXT, text, sizeof text);
    cr_assert_eq((size_t)length, strlen(text));
    cr_assert_eq(count(text, "\n"), FIELDS);
    cr_assert_eq(strncmp(text, "waits 1\nevents 2\n", 17), 0);
    char last[64];
    snprintf(last, sizeof last, "\ninline_turns %zu\n", FIELDS);
    cr_assert_str_eq(text + strlen(text) - strlen(last), last);
    for (size_t i = 1; i <= FIELDS; i++) {
        char value[32];
        snprintf(value, sizeof value, " %zu\n", i);
        cr_assert_eq(count(text, value), 1, "value %zu", i);
    }
}

Test(stats_text, names_stand_beside_their_own_values, .timeout = 30)
{
    static char text[TEXT_MAX];
    weir_stats stats = { .size = sizeof stats, .queue_age_ns = 11, .workers_parked = 22,
                         .bytes_sent = UINT64_MAX, .write_pending = 44, .spin_us_set = 55 };
    (void)wr_stats_print(&stats, WEIR_STATS_TEXT, text, sizeof text);
    cr_assert_not_null(strstr(text, "\nqueue_age_ns 11\n"));
    cr_assert_not_null(strstr(text, "\nworkers_parked 22\n"));
    cr_assert_not_null(strstr(text, "\nbytes_sent 18446744073709551615\n"));
    cr_assert_not_null(strstr(text, "\nwrite_pending 44\n"));
    cr_assert_not_null(strstr(text, "\nspin_us_set 55\n"));
    cr_assert_not_null(strstr(text, "\nbytes_received 0\n"));
}

Test(stats_text, prometheus_has_help_and_type_and_totals, .timeout = 30)
{
    static char text[TEXT_MAX];
    weir_stats stats = snapshot();
    int length = wr_stats_print(&stats, WEIR_STATS_PROMETHEUS, text, sizeof text);
    cr_assert_eq((size_t)length, strlen(text));
    cr_assert_eq(count(text, "\n"), 3 * FIELDS);
    cr_assert_eq(count(text, "# HELP weir_"), FIELDS);
    cr_assert_eq(count(text, "# TYPE weir_"), FIELDS);
    cr_assert_eq(count(text, " counter\n") + count(text, " gauge\n"), FIELDS);
    cr_assert_not_null(strstr(text, "\n# TYPE weir_waits_total counter\nweir_waits_total 1\n"));
    cr_assert_not_null(strstr(text, "# TYPE weir_workers gauge\nweir_workers 17\n"));
    cr_assert_not_null(strstr(text, "# TYPE weir_memory gauge\nweir_memory "));
    cr_assert_not_null(strstr(text, "# TYPE weir_bytes_sent_total counter\n"));
    cr_assert_not_null(strstr(text, "# TYPE weir_pollers_set gauge\n"));
}

Test(stats_text, every_size_cuts_as_snprintf_does, .timeout = 30)
{
    static char whole[TEXT_MAX], cut[TEXT_MAX];
    static const enum weir_stats_format formats[] = { WEIR_STATS_TEXT, WEIR_STATS_PROMETHEUS };
    weir_stats stats = snapshot();
    for (size_t f = 0; f < 2; f++) {
        int length = wr_stats_print(&stats, formats[f], whole, sizeof whole);
        cr_assert_gt(length, 0);
        cr_assert_lt(length, TEXT_MAX - 8);
        for (size_t size = 0; size <= (size_t)length + 2; size++) {
            memset(cut, '#', sizeof cut);
            cr_assert_eq(wr_stats_print(&stats, formats[f], cut, size), length);
            cr_assert_eq(cut[size], '#', "wrote beyond %zu", size);
            if (size == 0)
                continue;
            size_t kept = size <= (size_t)length ? size - 1 : (size_t)length;
            cr_assert_eq(strlen(cut), kept);
            cr_assert_arr_eq(cut, whole, kept);
        }
        cr_assert_eq(wr_stats_print(&stats, formats[f], NULL, 0), length);
    }
}

Test(stats_text, fields_beyond_the_size_are_left_out, .timeout = 30)
{
    static char text[TEXT_MAX];
    weir_stats stats = snapshot();
    stats.size = offsetof(weir_stats, stale_drops);
    (void)wr_stats_print(&stats, WEIR_STATS_TEXT, text, sizeof text);
    cr_assert_str_eq(text, "waits 1\nevents 2\n");
    stats.size = offsetof(weir_stats, waits);
    cr_assert_eq(wr_stats_print(&stats, WEIR_STATS_TEXT, text, sizeof text), 0);
    cr_assert_str_eq(text, "");
}

Test(stats_text, mistakes_of_the_caller_are_einval, .timeout = 30)
{
    char text[16] = "kept";
    weir_stats stats = snapshot();
    errno = ENOENT;
    cr_assert_eq(wr_stats_print(NULL, WEIR_STATS_TEXT, text, sizeof text), -EINVAL);
    cr_assert_eq(wr_stats_print(&stats, WEIR_STATS_TEXT, NULL, 16), -EINVAL);
    cr_assert_eq(wr_stats_print(&stats, (enum weir_stats_format)2, text, sizeof text), -EINVAL);
    cr_assert_eq(errno, ENOENT);
    cr_assert_str_eq(text, "kept");
}
