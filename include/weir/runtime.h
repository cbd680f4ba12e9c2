/* runtime.h: options, create, drain, destroy; which back end was chosen and why. */
#ifndef WEIR_RUNTIME_H
#define WEIR_RUNTIME_H

#include <stdbool.h>

#include <weir/base.h>
#include <weir/log.h>

#ifdef __cplusplus
extern "C" {
#endif

/** What waits for readiness. */
enum weir_backend {
    WEIR_BACKEND_DEFAULT = 0,
    WEIR_BACKEND_AUTO = 1,
    WEIR_BACKEND_EPOLL = 2,
    WEIR_BACKEND_IO_URING = 3
};

/** How events reach the workers: by the pump, or one work item an event (kept for comparison). */
enum weir_dispatch {
    WEIR_DISPATCH_DEFAULT = 0,
    WEIR_DISPATCH_PUMP = 1,
    WEIR_DISPATCH_PER_EVENT = 2
};

/** Who waits for events: threads of their own, or idle workers, with a guarantor behind them. */
enum weir_poll { WEIR_POLL_DEFAULT = 0, WEIR_POLL_DEDICATED = 1, WEIR_POLL_LEASE = 2 };

/** Who receives what comes in on a stream: who reads it, or the ring of its poller. */
enum weir_recv { WEIR_RECV_DEFAULT = 0, WEIR_RECV_READINESS = 1, WEIR_RECV_COMPLETION = 2 };

/** Who runs the callbacks of what a poller harvested: workers, or first the thread that polled, up
 * to 16 sources or 200 microseconds a batch; the rest goes to the workers. With dedicated pollers
 * (and with io_uring) ON is for callbacks that are short: while one of them does not return, the
 * sockets of its poller wait, and the log names it. A waiting call of weir's in such a callback
 * goes on polling meanwhile. */
enum weir_inline { WEIR_INLINE_DEFAULT = 0, WEIR_INLINE_OFF = 1, WEIR_INLINE_ON = 2 };

/** A memory source. Both functions must be set. `context` is handed to both. */
typedef struct weir_allocator {
    void *(*allocate)(size_t size, void *context); /* as malloc(); NULL: out of memory */
    void (*release)(void *memory, size_t size, void *context); /* never NULL; the size allocated */
    void *context;
} weir_allocator;

/**
 * Settings. Begin with WEIR_OPTIONS_INIT; a field that stays 0 means: the environment variable
 * named beside it, else the default. A value set in code wins. Values out of range fail the
 * creation with -EINVAL and one log line that names the option (or variable), the value and the
 * range.
 */
typedef struct weir_options {
    size_t size;                 /* sizeof(weir_options), set by WEIR_OPTIONS_INIT */
    const char *name;            /* prefix of thread names, at most 8 bytes; default "weir" */
    bool ignore_env;             /* read no environment variable at all */
    enum weir_backend backend;   /* WEIR_BACKEND: auto, epoll, io_uring; default auto */
    enum weir_dispatch dispatch; /* WEIR_DISPATCH: pump, per-event; default pump */
    enum weir_poll poll;         /* WEIR_POLL: lease, dedicated; default lease */
    unsigned pollers;            /* WEIR_POLLERS: 1..64; default one per 30 usable CPUs */
    unsigned workers;            /* WEIR_WORKERS: 1..1024; default the usable CPUs, as far
                                    as workers_max allows */
    unsigned workers_max;        /* WEIR_WORKERS_MAX: workers..4096; default workers + 64 */
    unsigned blocking_max;       /* WEIR_BLOCKING_MAX: 1..4096; default 64 */
    unsigned batch;              /* WEIR_BATCH: events a wait, 1..4096; default 256 */
    unsigned slice_us;         /* WEIR_SLICE_US: time slice of a pump, 10..1000000; default 2000 */
    unsigned spin_us_plus_one; /* WEIR_SPIN_US + 1 (so that 0 can be asked for): 0..1000 us */
    unsigned sources_max;      /* WEIR_SOURCES_MAX: sockets, listeners and watches at once,
                                  64..16777216; default the limit of open files */
    size_t stack_size;         /* bytes a thread of ours, 32 KiB..1 GiB; default 256 KiB */
    enum weir_log_level log_level; /* WEIR_LOG: off, error, warn, info, debug; default warn */
    weir_log_fn *log;              /* NULL: nothing is said anywhere */
    void *log_context;
    const weir_allocator *allocator;                       /* copied; NULL: malloc and free */
    void (*thread_start)(const char *name, void *context); /* first act of each thread of ours */
    void (*thread_stop)(const char *name, void *context);  /* last act of each thread of ours */
    void *thread_context;
    size_t write_budget; /* WEIR_WRITE_BUDGET: bytes that may wait to be sent, over all sockets
                            (see weir_write()); default a quarter of the machine's memory: where
                            less may be used, set it. No limit: SIZE_MAX, in the environment 0 */
    enum weir_recv recv;       /* WEIR_RECV: readiness, completion (io_uring only, see below);
                                  default readiness */
    unsigned recv_buffers;     /* WEIR_RECV_BUFFERS: of 4 KiB each, a poller, for completion:
                                  1..32768, rounded up to a power of two; default 1024 */
    enum weir_inline inline_callbacks; /* WEIR_INLINE: 0, 1; default 0. Not with per-event */
} weir_options;

#define WEIR_OPTIONS_INIT { .size = sizeof(weir_options) }

/**
 * Start a runtime: its pollers and workers run when this returns. With `recv` completion on a back
 * end or kernel that has no such thing it reads by readiness, says so in one warning and in the
 * reason of weir_runtime_backend().
 * @param ret_runtime  set on success only.
 * @param options      copied; NULL: all defaults.
 * @return 0; -EINVAL a bad option or variable (the log line names it); -ENOMEM; -EAGAIN not one
 * worker or poller thread could be started (fewer workers than asked for: a warning, and success);
 *         -EMFILE, -ENFILE no descriptor; -ENOSYS the back end asked for is not in this build or
 * kernel. Threads: any.   Blocks: until the threads run.   Owner: the caller, until
 * weir_runtime_destroy().
 */
WEIR_API int weir_runtime_create(weir_runtime **ret_runtime, const weir_options *options);

/**
 * End gracefully: listeners close, sockets whose reader is idle (nothing to be written, no
 * operation pending) are closed, others may finish and are closed when they fall idle. From then on
 * new listeners, connections and adopted sockets are refused with -ESHUTDOWN; timers and work go
 * on.
 * @param deadline  absolute; when it passes the rest stays as it is, to be ended by destroy.
 * @return 0 no socket and no listener is left; -ETIME some are left; -EDEADLK called from a
 * callback; -EINVAL NULL. Threads: any that is not the runtime's.   Blocks: until the deadline at
 * most.
 */
WEIR_API int weir_runtime_drain(weir_runtime *runtime, weir_time deadline);

/**
 * End everything: what is pending ends with -ECANCELED (each callback comes), posted work runs,
 * threads are joined, all memory and every descriptor is given back. NULL is fine. A callback that
 * never returns makes this wait for it. From a callback it does nothing but log an error. In a
 * child after fork(): closes what the child inherited, ends nothing, waits for nothing. Threads:
 * any that is not the runtime's, once.   Blocks: yes.
 *
 * Until then neither the library nor the plug-in that called weir_runtime_create() can be unloaded:
 * a dlclose() before is remembered, and done by the first dlclose() of anything after destroy. So
 * destroy returns to code that is there, if no other thread calls dlclose() meanwhile.
 */
WEIR_API void weir_runtime_destroy(weir_runtime *runtime);

/**
 * The back end in use ("epoll"), and in `*ret_why` (may be NULL) one line that says why it was
 * chosen. Threads: any.   Blocks: no.   Owner: the runtime; the texts live as long as it does.
 */
WEIR_API const char *weir_runtime_backend(const weir_runtime *runtime, const char **ret_why);

#ifdef __cplusplus
}
#endif

#endif
