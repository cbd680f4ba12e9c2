/* watch.c: a foreign descriptor: asked about, once at a time, never read, written or closed.
 *
 * The back end reports once for each rearm (one-shot). `interest` is what the user waits for; a
 * turn that finds readiness takes it and calls run(). */
#include "dispatch/watch.h"

#include <errno.h>

#include <weir/watch.h>

#include "base/list.h"
#include "os/lock.h"

struct weir_watch {
    struct wr_source source; /* stands first */
    struct wr_lock lock;     /* guards what follows */
    unsigned interest;
    bool closing;
    weir_watch_fn *run;
    void *context;
    weir_watch_closed_fn *closed;
    void *closed_context;
};

#define BOTH (WEIR_READABLE | WEIR_WRITABLE)

_Static_assert((int)WEIR_READABLE == (int)WR_IN && (int)WEIR_WRITABLE == (int)WR_OUT,
               "one set of bits");

/* closed() first: until it is called the pointer is alive. */
static enum wr_turn last_turn(weir_watch *watch)
{
    if (watch->closed)
        watch->closed(watch->closed_context);
    wr_source_release(&watch->source);
    return WR_TURN_GONE;
}

enum wr_turn wr_watch_turn(struct wr_source *source, uint32_t flags)
{
    weir_watch *watch = WR_CONTAINER_OF(source, weir_watch, source);

    if (source->fd < 0)
        return last_turn(watch);
    wr_lock(&watch->lock);
    bool closing = watch->closing;
    unsigned events = flags & watch->interest;
    if (events)
        watch->interest = 0;
    wr_unlock(&watch->lock);
    if (closing) {
        wr_source_detach(source);
        source->fd = -1;
        return wr_source_unpin_own(source) ? last_turn(watch) : WR_TURN_GONE;
    }
    if (events)
        watch->run(watch, events, flags & WR_ERROR ? -EIO : 0, watch->context);
    return WR_TURN_DONE;
}

int weir_watch_open(weir_watch **ret_watch, weir_runtime *runtime, int fd, weir_watch_fn *run,
                    void *context)
{
    struct wr_source *source;

    if (!ret_watch || !runtime || fd < 0 || !run)
        return -EINVAL;
    int r = wr_source_open(runtime, fd, WR_KIND_WATCH, &source);
    if (r < 0)
        return r;
    weir_watch *watch = WR_CONTAINER_OF(source, weir_watch, source);
    watch->run = run;
    watch->context = context;
    r = wr_source_attach(source, WR_POLL_ONESHOT);
    if (r < 0) {
        wr_source_release(source);
        return r;
    }
    wr_source_want(source, BOTH);
    *ret_watch = watch;
    return 0;
}

int weir_watch_set(weir_watch *watch, unsigned interest)
{
    if (!watch || interest & ~(unsigned)BOTH)
        return -EINVAL;
    struct wr_source *source = &watch->source;

    wr_lock(&watch->lock);
    int r = watch->closing ? -ECANCELED : 0;
    if (r == 0) {
        watch->interest = interest;
        /* What an earlier set found is stale: the rearm makes the kernel look anew. */
        wr_source_clear(source, BOTH | WR_HUP | WR_ERROR);
        r = wr_source_rearm(source, interest);
        if (r < 0)
            watch->interest = 0;
        if (r == -ENOENT)
            r = -EBADF;
    }
    wr_unlock(&watch->lock);
    return r;
}

static int close_watch(weir_watch *watch, weir_watch_closed_fn *closed, void *context)
{
    wr_lock(&watch->lock);
    int r = watch->closing ? -EALREADY : 0;
    if (r == 0) {
        watch->closing = true;
        watch->interest = 0;
        watch->closed = closed;
        watch->closed_context = context;
        wr_source_schedule(&watch->source, WR_CTL);
    }
    wr_unlock(&watch->lock);
    return r;
}

int weir_watch_close(weir_watch *watch, weir_watch_closed_fn *closed, void *context)
{
    return watch ? close_watch(watch, closed, context) : -EINVAL;
}

size_t wr_watch_size(void)
{
    return sizeof(weir_watch);
}

bool wr_watch_is(const struct wr_source *source)
{
    return source->kind == WR_KIND_WATCH;
}

void wr_watch_end(struct wr_source *source)
{
    close_watch(WR_CONTAINER_OF(source, weir_watch, source), NULL, NULL);
}
