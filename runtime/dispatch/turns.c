/* turns.c: see turns.h. */
#include "dispatch/turns.h"

#include "base/list.h"
#include "dispatch/dispatch.h"
#include "os/clock.h"
#include "os/thread.h"

/* How often an uncertain look is repeated before the CPU is offered to who makes it so. */
#define LOOKS_MAX 64

static bool pop(struct wr_pump *pump, void **ret_item)
{
    struct wr_turns *turns = pump->context;
    weir_work *link;

    for (unsigned looks = 0;; looks++) {
        enum wr_take take = wr_inject_pop(turns->queue, &link);
        if (take == WR_TAKE_EMPTY)
            return false;
        if (take == WR_TAKE_ITEM)
            break;
        if (looks < LOOKS_MAX)
            wr_cpu_relax();
        else
            wr_thread_yield();
    }
    *ret_item = WR_CONTAINER_OF(link, struct wr_source, link);
    return true;
}

static bool more(struct wr_pump *pump)
{
    struct wr_turns *turns = pump->context;
    return wr_inject_maybe(turns->queue);
}

static void handle(struct wr_pump *pump, void *item)
{
    (void)pump;
    wr_source_run(item);
}

static void post(struct wr_pump *pump, weir_work *work)
{
    struct wr_turns *turns = pump->context;
    wr_pool_post_own(turns->runtime->pool, work);
}

static const struct wr_pump_ops ops = {
    .pop = pop,
    .more = more,
    .handle = handle,
    .post = post,
    .now = wr_clock_now,
};

int wr_turns_init(struct wr_turns *turns, weir_runtime *runtime, weir_time slice_ns)
{
    turns->runtime = runtime;
    wr_pump_init(&turns->pump, &ops, slice_ns, turns);
    return wr_inject_create(&turns->queue, &runtime->alloc);
}

void wr_turns_fini(struct wr_turns *turns)
{
    wr_inject_destroy(turns->queue);
    turns->queue = NULL;
}

void wr_turns_post(struct wr_turns *turns, struct wr_source *source)
{
    /* The queue touches the link of what it is given and nothing else. */
    wr_inject_push(turns->queue, WR_CLASS_IO, (weir_work *)(void *)&source->link);
    wr_pump_kick(&turns->pump);
}
