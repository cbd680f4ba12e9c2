/* bench.h: what the C programs of bench/ share: a clock, a histogram, a bare futex, arguments. */
#ifndef BENCH_SUPPORT_BENCH_H
#define BENCH_SUPPORT_BENCH_H

#include <stdint.h>

/* Nanoseconds on the monotonic clock. */
int64_t bench_now_ns(void);

/* The number given for `name` ("--ops" and its value), else `normal`; malformed text ends the
 * program with usage on stderr and status 2. */
uint64_t bench_argument(int argc, char **argv, const char *name, uint64_t normal);

/* Whether `name` stands among the arguments. */
int bench_flag(int argc, char **argv, const char *name);

/* Ends the program with status 2 when an argument is none of `known` (a list that ends in NULL; a
 * name that ends in '=' takes a value). */
void bench_only(int argc, char **argv, const char *const *known);

/* A connection to 127.0.0.1, without Nagle's delay, whose calls end with an error after so many
 * seconds: a server that loses a packet must not hang the run. The descriptor, or -1 and errno. */
int bench_connect(uint16_t port, int patience_s);

/* A histogram of nanoseconds with buckets of 1/16 of their size (an error of 6 % at most), so that
 * recording is a handful of instructions and needs no memory. */
enum { BENCH_SUB_BITS = 4, BENCH_BUCKETS = (64 - BENCH_SUB_BITS + 1) << BENCH_SUB_BITS };

struct bench_histogram {
    uint64_t count;
    uint64_t buckets[BENCH_BUCKETS];
};

void bench_record(struct bench_histogram *histogram, int64_t nanoseconds);
void bench_merge(struct bench_histogram *into, const struct bench_histogram *from);

/* The upper end of the bucket that holds the given share (0.5, 0.99) of the values; 0: empty. */
uint64_t bench_percentile(const struct bench_histogram *histogram, double share);

/* FUTEX_WAIT while `*word` is `value`, at most `timeout_ns` (< 0: for ever); and FUTEX_WAKE of
 * one. */
void bench_futex_wait(_Atomic uint32_t *word, uint32_t value, int64_t timeout_ns);
void bench_futex_wake(_Atomic uint32_t *word);

#endif
