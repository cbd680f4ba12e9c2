/* scratch.c: the hot buffers of a thread: bytes that come in and go out during a turn lie here, so
 * that an idle connection holds none. Made at a thread's first turn, released when the thread ends.
 */
#include "net/net.h"

static _Thread_local struct wr_scratch *scratch;

struct wr_scratch *wr_scratch_peek(void)
{
    return scratch;
}

struct wr_scratch *wr_scratch_get(struct wr_alloc *alloc)
{
    if (!scratch) {
        scratch = wr_alloc_raw(alloc, sizeof *scratch);
        if (scratch) {
            scratch->corking = NULL;
            scratch->corked = 0;
            scratch->alloc = alloc;
        }
    }
    return scratch;
}

void wr_net_thread_stop(void)
{
    if (scratch)
        wr_alloc_release(scratch->alloc, scratch, sizeof *scratch);
    scratch = NULL;
}

void wr_net_block_hook(void)
{
    if (scratch && scratch->corking && scratch->corked > 0)
        wr_cork_flush(scratch->corking, scratch);
}
