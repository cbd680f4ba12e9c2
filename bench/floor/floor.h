/* floor.h: what the floors have in common: their options, the canned answer, counting requests,
 * sending by system calls, and what is counted and printed at the end.
 *
 * A floor does nothing but receive, count, answer: no parser, no timers, no queues. It bounds from
 * below what a server can spend on a request on this machine, so that figures of other servers can
 * be read as "so much above the floor". It is no server: it trusts its client. */
#ifndef BENCH_FLOOR_FLOOR_H
#define BENCH_FLOOR_FLOOR_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "support/heads.h"

enum {
    FLOOR_THREADS_MAX = 256,
    FLOOR_ANSWERS_AT_ONCE = 64,
};

/* What one loop did. Each is written by its loop alone and read by main() at the end. */
struct floor_counts {
    _Alignas(64) atomic_ullong waits;   /* times it entered the kernel to wait (and to submit) */
    atomic_ullong events;               /* events or completions that came back */
    atomic_ullong receives, sends;      /* asked for, as calls or as entries of a ring */
    atomic_ullong armed;                /* polls and receives given to a ring, buffers given back */
};

struct floor_options {
    bool echo;
    bool reuse_port;
    uint16_t port;
    size_t buffer_size;
    unsigned threads;
    unsigned stuck_ms;
};

extern struct floor_options floor_options;
extern struct floor_counts floor_counts[FLOOR_THREADS_MAX];

/* FLOOR_ANSWERS_AT_ONCE canned answers in a row; and the length of one. */
extern char *floor_answers;
extern const size_t floor_answer_length;

/* Prints why and ends the program. `error` is an errno, or a negative one. */
_Noreturn void floor_die(const char *what, int error);

/* Whole pages, present from the start, as a ring can share them. Never freed. */
void *floor_map(size_t length);

static inline void floor_count(atomic_ullong *counter, unsigned long long more)
{
    unsigned long long now = atomic_load_explicit(counter, memory_order_relaxed);
    atomic_store_explicit(counter, now + more, memory_order_relaxed);
}

/* Reads the options that all floors know, `-m -t -a -b -z` and the port, and those in `more` (as
 * for getopt), which go to `take`: false when the value is none. `words` is the usage line. */
void floor_arguments(int argc, char **argv, const char *more,
                     bool (*take)(int option, const char *value), const char *words);

/* True, with the value, when `text` is a number from 1 to `max`. */
bool floor_number(const char *text, unsigned long max, unsigned long *ret_value);

/* A listening socket on 127.0.0.1. */
int floor_listen(int socket_flags);

/* Runs `loop` on `floor_options.threads` threads until SIGTERM or SIGINT, then prints the counts
 * and ends the program. The argument of a loop is its index. */
_Noreturn void floor_run(void *(*loop)(void *index));

/* With `-z ms`, bytes that begin with Z keep the caller busy for so long, in user space. */
void floor_stick(const char *data);

/* System calls, whether the socket blocks or not. They wait for a slow client for a second, then
 * return false, as for any error. */
bool floor_send_all(int fd, const char *data, size_t length);
bool floor_send_answers(int fd, size_t count);

#endif
