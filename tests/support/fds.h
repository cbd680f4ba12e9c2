/* fds.h: counts what this process holds, so that a test can see what was not given back. */
#ifndef WEIR_TESTS_SUPPORT_FDS_H
#define WEIR_TESTS_SUPPORT_FDS_H

struct support_held {
    int fds;
    int threads;
    int maps;                       /* the allocator may move it by a few */
};

/* Each returns a count (a negative errno on failure) and leaves out what it opens itself. */
int support_count_fds(void);
int support_count_threads(void);
int support_count_maps(void);
struct support_held support_held(void);

/* Waits until no more than `threads` threads are left (a joined thread leaves /proc a moment
 * later); returns the count when that happened or when `milliseconds` were over. */
int support_await_threads(int threads, int milliseconds);

#endif
