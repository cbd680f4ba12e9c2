/* log.h: the library prints nothing by itself; what it has to say goes through one hook. */
#ifndef WEIR_LOG_H
#define WEIR_LOG_H

#include <weir/base.h>

#ifdef __cplusplus
extern "C" {
#endif

/** How much is said. The zero value stands for "environment, else default" in weir_options. */
enum weir_log_level {
    WEIR_LOG_DEFAULT = 0,
    WEIR_LOG_OFF = 1,
    WEIR_LOG_ERROR = 2, /* something was lost or given up */
    WEIR_LOG_WARN = 3,  /* works, with less than was asked for */
    WEIR_LOG_INFO = 4,  /* effective settings, choice of the back end, start and stop */
    WEIR_LOG_DEBUG = 5
};

/**
 * Receives one line, without a newline at its end.
 * @param line     valid during the call only.
 * @param context  as given in weir_options.log_context.
 * Threads: any thread of the runtime and any thread that calls into it; calls may overlap.
 * Blocks: should not; pollers wait for it. It must not call into the runtime.
 */
typedef void weir_log_fn(enum weir_log_level level, const char *line, void *context);

#ifdef __cplusplus
}
#endif

#endif
