/* buffer.h: receive views: bytes that came in, wherever they lie. An idle connection holds no
 * buffer. */
#ifndef WEIR_BUFFER_H
#define WEIR_BUFFER_H

#include <weir/base.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct weir_kept weir_kept;

/** Bytes received, valid until the callback they were given to returns. */
typedef struct weir_view {
    const unsigned char *data;
    size_t length; /* 0: the peer has finished (for a stream), or an empty datagram */
    void *private_;
} weir_view;

/** Bytes that outlive the callback. */
struct weir_kept {
    const unsigned char *data;
    size_t length;
};

/**
 * Keep the bytes of `view` beyond the callback: copies them, so that the worker's hot buffer, or in
 * completion mode the ring's, can be used again.
 * @return the kept bytes, NULL when out of memory (the view stays valid as before).
 * Threads: only inside the callback that was given the view.   Blocks: no.
 * Owner: the caller, until weir_view_release().
 */
WEIR_API weir_kept *weir_view_keep(const weir_view *view);

/** Give kept bytes back. NULL is fine.   Threads: any.   Blocks: no. */
WEIR_API void weir_view_release(weir_kept *kept);

#ifdef __cplusplus
}
#endif

#endif
