/* watch.h: readiness of a descriptor that belongs to somebody else (libpq, hiredis, libcurl,
 * c-ares). */
#ifndef WEIR_WATCH_H
#define WEIR_WATCH_H

#include <weir/base.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct weir_watch weir_watch;

enum weir_interest { WEIR_READABLE = 1, WEIR_WRITABLE = 2 };

/**
 * Runs on a worker, once for each weir_watch_set() at most.
 * @param events  what is ready, out of what was asked for; a hang-up or an error counts as both.
 * @param status  0; -EIO an error is pending on the descriptor (a connection that was reset, a pipe
 *                without a reader): its owner's next call on it says which. A descriptor that its
 *                owner closed reports nothing: weir_watch_set() tells.
 */
typedef void weir_watch_fn(weir_watch *watch, unsigned events, int status, void *context);

/** Runs on a worker when nothing of the watch will be touched or called any more. */
typedef void weir_watch_closed_fn(void *context);

/**
 * Watch `fd`; nothing is reported before weir_watch_set(). The descriptor stays the caller's: it is
 * never read, written, changed or closed by us.
 * @return 0; -EINVAL NULL or fd < 0; -EBADF no such descriptor; -EPERM it cannot be polled (a
 * file); -EEXIST this descriptor is watched already; -ENOMEM; -ENOSPC, -ENFILE too many sources;
 *         -ESHUTDOWN.
 * Threads: any.   Blocks: no.   Owner: the library; until weir_watch_close() the caller may use it.
 */
WEIR_API int weir_watch_open(weir_watch **ret_watch, weir_runtime *runtime, int fd,
                             weir_watch_fn *run, void *context);

/**
 * Ask to hear once when one of `interest` holds; replaces what was asked before. 0 asks for
 * nothing.
 * @return 0; -EINVAL NULL or unknown bits; -EBADF the descriptor is gone; -ENOMEM the kernel's:
 *         nothing is asked for now; -ESHUTDOWN, -ECANCELED closed.
 * Threads: any, also its own callback.   Blocks: no.
 */
WEIR_API int weir_watch_set(weir_watch *watch, unsigned interest);

/**
 * Stop watching. The descriptor may have been closed by its owner before.
 * @param closed  NULL, or called once on a worker; afterwards the pointer is dead and run() cannot
 * come.
 * @return 0; -EALREADY closing; -EINVAL NULL.
 * Threads: any, also its own callback.   Blocks: no.
 */
WEIR_API int weir_watch_close(weir_watch *watch, weir_watch_closed_fn *closed, void *context);

#ifdef __cplusplus
}
#endif

#endif
