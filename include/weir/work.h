/* work.h: work items, the two lanes of the pool, and announcing that a callback is about to block.
 */
#ifndef WEIR_WORK_H
#define WEIR_WORK_H

#include <weir/base.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct weir_work weir_work;

/** Runs on a worker. `work` is the caller's again from the moment this is entered. */
typedef void weir_work_fn(weir_work *work, void *context);

/** A work item, embedded by the caller: no allocation happens when it is posted. */
struct weir_work {
    weir_work *next_;
    weir_work_fn *run_;
    void *context_;
    weir_time posted_;
    uint32_t state_;
    uint32_t lane_;
};

/**
 * Make `work` ready to be posted. Never on an item that is pending.
 * Threads: any.   Blocks: no.   Owner: the caller, before and after; nothing needs to be undone.
 */
WEIR_API void weir_work_init(weir_work *work, weir_work_fn *run, void *context);

/**
 * Post to the I/O lane: short jobs that do not block. First come, first served among jobs; what
 * sockets and timers bring goes before them, up to eight times in a row. Never coalesced: each
 * accepted post runs exactly once. A job that posts itself or its successor again and again stays
 * on its worker; when a callback has posted it and then does not return, and has not announced a
 * block, another worker takes it after 10 ms.
 * @return 0; -EALREADY the item is pending already: the run to come sees what this thread wrote
 * before; -ESHUTDOWN the runtime is being destroyed;
 *         -EINVAL a NULL argument or an item without a function.
 * Threads: any, also callbacks.   Blocks: no.   Owner: the library, until run() is entered.
 */
WEIR_API int weir_post(weir_runtime *runtime, weir_work *work);

/**
 * Post to the blocking lane, which has threads and a cap (WEIR_BLOCKING_MAX) of its own: I/O never
 * waits behind it. Items beyond the cap wait in order.
 * @return as weir_post(); also -EAGAIN no thread could be started and none exists (nothing was
 * queued). Threads: any, also callbacks.   Blocks: no.   Owner: the library, until run() is
 * entered.
 */
WEIR_API int weir_post_blocking(weir_runtime *runtime, weir_work *work);

/**
 * Say that the running callback is about to block, so that the pool replaces this worker now; and
 * that it goes on. Calls nest. What the callback has written so far leaves before it blocks. On a
 * poller's own thread (see weir_inline) what the poller has harvested goes to the workers, but
 * nobody polls in its place. On a thread that is neither that nor a worker of the I/O lane both do
 * nothing. The library's own `_wait` calls announce themselves.
 * Threads: any.   Blocks: begin may start a thread; end: no.
 */
WEIR_API void weir_blocking_begin(void);
/** The counterpart of weir_blocking_begin().   Threads: the one that began.   Blocks: no. */
WEIR_API void weir_blocking_end(void);

#ifdef __cplusplus
}
#endif

#endif
