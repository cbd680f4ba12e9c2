/* base.h: words that every header of weir shares: export, version, time, limits.
 *
 * Results everywhere: a value >= 0, or a negative errno. `errno` itself is left untouched.
 * Outputs are `ret_` parameters and are written on success only. */
#ifndef WEIR_BASE_H
#define WEIR_BASE_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define WEIR_API __attribute__((visibility("default")))
#else
#define WEIR_API
#endif

#define WEIR_VERSION_MAJOR 0
#define WEIR_VERSION_MINOR 1
#define WEIR_VERSION_PATCH 0
#define WEIR_VERSION "0.1.0"

/** Nanoseconds on the monotonic clock (CLOCK_MONOTONIC). Every deadline is an absolute weir_time.
 */
typedef int64_t weir_time;

/** The deadline that never comes. */
#define WEIR_NEVER INT64_MAX

typedef struct weir_runtime weir_runtime;

/**
 * The version of the library that is linked, as "major.minor.patch".
 * Threads: any.   Blocks: no.   Owner: static text, never freed.
 */
WEIR_API const char *weir_version(void);

/**
 * The time now on the clock of all deadlines, read at this call and never cached.
 * Threads: any.   Blocks: no.
 */
WEIR_API weir_time weir_now(void);

/**
 * The deadline that lies `milliseconds` after now; WEIR_NEVER when the sum does not fit.
 * A negative span gives a deadline that has passed.
 * Threads: any.   Blocks: no.
 */
WEIR_API weir_time weir_after_ms(int64_t milliseconds);

/** The deadline that lies `microseconds` after now; as weir_after_ms().   Threads: any.   Blocks:
 * no. */
WEIR_API weir_time weir_after_us(int64_t microseconds);

/* Private: the node by which something with a deadline hangs in a poller's timer heap. The fields
 * belong to the library; they stand here so that callers can embed what contains them. */
struct weir_deadline_ {
    struct weir_deadline_ *child_;
    struct weir_deadline_ *next_;
    struct weir_deadline_ *prev_;
    weir_time key_;                                   /* where it hangs in the heap */
    weir_time when_;                                  /* when it is due: never before key_ */
    void (*expire_)(struct weir_deadline_ *deadline); /* called by the poller, must not block */
};

#ifdef __cplusplus
}
#endif

#endif
