/* options.h: the settings in force: an option in code wins, else the environment, else the
 * default. */
#ifndef WR_OPTIONS_H
#define WR_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>

#include <weir/runtime.h>

#include "base/log.h"
#include "os/cpu.h"

/* The rest of a thread's name is for what the thread is. */
#define WR_OPTIONS_NAME_MAX 8

/* Effective values; weir/runtime.h says what they mean. */
struct wr_options {
    char name[WR_OPTIONS_NAME_MAX + 1];
    enum weir_backend backend;          /* never WEIR_BACKEND_DEFAULT */
    enum weir_dispatch dispatch;        /* never WEIR_DISPATCH_DEFAULT */
    enum weir_poll poll;                /* never WEIR_POLL_DEFAULT */
    enum weir_recv recv;                /* never WEIR_RECV_DEFAULT */
    unsigned recv_buffers;
    enum weir_inline inline_callbacks;  /* never WEIR_INLINE_DEFAULT */
    unsigned pollers, workers, workers_max, blocking_max;
    unsigned batch, slice_us, spin_us, sources_max;
    size_t stack_size;
    size_t write_budget;                /* SIZE_MAX: no limit */
    struct wr_log log;
    weir_allocator allocator;           /* set when has_allocator */
    bool has_allocator;
    void (*thread_start)(const char *name, void *context);
    void (*thread_stop)(const char *name, void *context);
    void *thread_context;
};

/* Reads the environment (unless ignore_env), the machine and `user` (NULL: all defaults), and says
 * the result at info level. 0, or -EINVAL after one error line that names option or variable, value
 * and range; then *ret is as it was. */
int wr_options_resolve(struct wr_options *ret, const weir_options *user);

/* All defaults for a machine: its CPUs and how many files may be open. */
void wr_options_default(struct wr_options *ret, const struct wr_cpu *cpu, unsigned long files_max);

#endif
