/* log.c: formats one line on the stack and hands it to the hook. Allocates nothing. */
#include "base/log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>

void wr_log(const struct wr_log *log, enum weir_log_level level, const char *format, ...)
{
    /* A line has a real level; "off" is only a threshold, so nothing can be said at it. */
    if (!log || !log->hook || level <= WEIR_LOG_OFF || level > log->level)
        return;

    int saved = errno;
    char line[WR_LOG_LINE_MAX + 1];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    if (length >= 0)
        log->hook(level, line, log->context);
    errno = saved;
}
