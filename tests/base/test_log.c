/* One line to the host's hook: filtered, cut, and without a trace in errno. */
#include "base/log.h"

#include <errno.h>

#include "support/test.h"

struct heard {
    unsigned lines;
    enum weir_log_level level;
    char line[4 * WR_LOG_LINE_MAX];
};

static void hear(enum weir_log_level level, const char *line, void *context)
{
    struct heard *heard = context;
    heard->lines++;
    heard->level = level;
    snprintf(heard->line, sizeof heard->line, "%s", line);
    errno = EIO;                    /* a hook that writes to a broken log */
}

Test(log, a_line_is_formatted_and_handed_over_with_its_level, .timeout = 20)
{
    struct heard heard = { 0 };
    struct wr_log log = { hear, &heard, WEIR_LOG_DEBUG };
    wr_log(&log, WEIR_LOG_WARN, "%s of %d", "two", 3);
    cr_assert_eq(heard.lines, 1);
    cr_assert_eq(heard.level, WEIR_LOG_WARN);
    cr_assert_str_eq(heard.line, "two of 3");
}

Test(log, lines_above_the_level_are_dropped, .timeout = 20)
{
    for (int level = WEIR_LOG_DEFAULT; level <= WEIR_LOG_DEBUG; level++) {
        struct heard heard = { 0 };
        struct wr_log log = { hear, &heard, (enum weir_log_level)level };
        for (int said = WEIR_LOG_ERROR; said <= WEIR_LOG_DEBUG; said++)
            wr_log(&log, (enum weir_log_level)said, "x");
        unsigned expected = level >= WEIR_LOG_ERROR ? (unsigned)level - WEIR_LOG_ERROR + 1 : 0;
        cr_assert_eq(heard.lines, expected, "level %d let %u lines pass", level, heard.lines);
    }
}

Test(log, nothing_can_be_said_at_the_level_off, .timeout = 20)
{
    struct heard heard = { 0 };
    struct wr_log log = { hear, &heard, WEIR_LOG_DEBUG };
    wr_log(&log, WEIR_LOG_OFF, "x");
    wr_log(&log, WEIR_LOG_DEFAULT, "x");
    cr_assert_eq(heard.lines, 0);
}

Test(log, without_a_log_or_a_hook_nothing_happens, .timeout = 20)
{
    struct wr_log log = { NULL, NULL, WEIR_LOG_DEBUG };
    wr_log(NULL, WEIR_LOG_ERROR, "x");
    wr_log(&log, WEIR_LOG_ERROR, "x");
}

Test(log, a_line_is_cut_at_the_maximum_and_not_before, .timeout = 20)
{
    char text[2 * WR_LOG_LINE_MAX];
    memset(text, 'a', sizeof text);
    for (int length = WR_LOG_LINE_MAX - 1; length <= WR_LOG_LINE_MAX + 2; length++) {
        struct heard heard = { 0 };
        struct wr_log log = { hear, &heard, WEIR_LOG_DEBUG };
        wr_log(&log, WEIR_LOG_ERROR, "%.*s", length, text);
        size_t expected = length < WR_LOG_LINE_MAX ? (size_t)length : WR_LOG_LINE_MAX;
        cr_assert_eq(strlen(heard.line), expected);
        cr_assert_eq(heard.lines, 1);
    }
}

Test(log, errno_is_left_alone_even_when_the_hook_changes_it, .timeout = 20)
{
    struct heard heard = { 0 };
    struct wr_log log = { hear, &heard, WEIR_LOG_DEBUG };
    errno = ENOENT;
    wr_log(&log, WEIR_LOG_ERROR, "x");
    cr_assert_eq(errno, ENOENT);
    cr_assert_eq(heard.lines, 1);
}
