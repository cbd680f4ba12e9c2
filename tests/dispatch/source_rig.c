#include "source_rig.h"

#include "support/test.h"

struct glass glass;

/* ---- doubles of the layer below ------------------------------------------------------ */

void weir_work_init(weir_work *work, weir_work_fn *run, void *context)
{
    memset(work, 0, sizeof *work);
    work->run_ = run;
    work->context_ = context;
}

void wr_pool_post_own(struct wr_pool *pool, weir_work *work)
{
    cr_assert_eq(pool, glass.runtime.pool);
    for (const weir_work *queued = glass.first; queued; queued = queued->next_)
        cr_assert_neq(queued, work, "an item that is queued is posted again");
    work->next_ = NULL;
    *(glass.last ? &glass.last->next_ : &glass.first) = work;
    glass.last = work;
    glass.posts++;
}

bool wr_dispatch_stopping(const weir_runtime *runtime)
{
    return atomic_load(&runtime->stopping);
}

void wr_pool_note(int subject)
{
    (void)subject;
}

static int attach(struct wr_poller_backend *backend, int fd, uint64_t token, enum wr_poll_mode mode)
{
    (void)backend;
    (void)fd;
    (void)token;
    (void)mode;
    glass.attached++;
    return 0;
}

static int detach(struct wr_poller_backend *backend, int fd, uint64_t token)
{
    (void)backend;
    (void)fd;
    (void)token;
    glass.detached++;
    return 0;
}

static const struct wr_poll_ops ops = {.name = "glass", .attach = attach, .detach = detach};

/* ---- the rig ------------------------------------------------------------------------- */

void glass_start(uint32_t sources_max)
{
    memset(&glass, 0, sizeof glass);
    wr_alloc_init(&glass.runtime.alloc, NULL);
    cr_assert_eq(wr_slots_init(&glass.runtime.slots, &glass.runtime.alloc, sizeof(struct probe),
                               sources_max),
                 0);
    glass.runtime.pollers = &glass.poller;
    glass.runtime.poller_count = 1;
    glass.runtime.pool = (struct wr_pool *)(void *)&glass; /* a name, never looked into */
    glass.poller.runtime = &glass.runtime;
    glass.poller.ops = &ops;
}

void glass_end(void)
{
    wr_slots_fini(&glass.runtime.slots);
    cr_assert_eq(atomic_load(&glass.runtime.alloc.bytes), 0);
}

static enum wr_turn probe_turn(struct wr_source *source, uint32_t flags)
{
    struct probe *probe = (struct probe *)(void *)source;

    if (probe->inside)
        probe->overlapped = true;
    probe->inside = true;
    probe->turns++;
    probe->flags = flags;
    probe->current = wr_source_current();
    void (*act)(struct probe *, uint32_t) = probe->act;
    probe->act = NULL; /* once */
    enum wr_turn answer = probe->answer;
    if (act)
        act(probe, flags);
    if (answer == WR_TURN_DONE)
        probe->inside = false;
    return answer;
}

struct probe *glass_open(void)
{
    struct wr_source *source = NULL;

    cr_assert_eq(wr_source_open(&glass.runtime, 7, probe_turn, &source), 0);
    cr_assert_eq(wr_source_attach(source, WR_POLL_EDGE), 0);
    return (struct probe *)(void *)source;
}

unsigned glass_queued(void)
{
    unsigned count = 0;

    for (const weir_work *work = glass.first; work; work = work->next_)
        count++;
    return count;
}

bool glass_run(void)
{
    weir_work *work = glass.first;

    if (!work)
        return false;
    glass.first = work->next_;
    if (!glass.first)
        glass.last = NULL;
    work->run_(work, work->context_);
    return true;
}

bool glass_event_named(uint64_t token, uint32_t bits)
{
    struct wr_source *source = NULL;
    return wr_source_event(&glass.poller, token, bits, &source);
}

bool glass_event(struct wr_source *source, uint32_t bits)
{
    return glass_event_named(wr_source_token(source), bits);
}

void glass_pop(struct probe *probe)
{
    wr_source_run(&probe->source);
}
