/* log.h: one line to the host's hook. */
#ifndef WR_BASE_LOG_H
#define WR_BASE_LOG_H

#include <weir/log.h>

struct wr_log {
    weir_log_fn *hook;              /* NULL: silent */
    void *context;
    enum weir_log_level level;      /* lines above it are dropped */
};

/* A line longer than this is cut. */
#define WR_LOG_LINE_MAX 512

/* `log` may be NULL. Leaves errno alone. Any thread; blocks as the hook does. */
void wr_log(const struct wr_log *log, enum weir_log_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
