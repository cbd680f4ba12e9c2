#include "source_rig.h"

#include <limits.h>

#include "os/futex.h"
#include "support/test.h"

struct glass glass;

/* ---- doubles of the layer below ------------------------------------------------------ */

void wr_dispatch_post_turn(weir_runtime *runtime, struct wr_source *source)
{
    cr_assert_eq(runtime, &glass.runtime);
    for (const struct wr_source *queued = glass.first; queued; queued = queued->link)
        cr_assert_neq(queued, source, "a source that is queued is posted again");
    source->link = NULL;
    *(glass.last ? &glass.last->link : (void **)(void *)&glass.first) = source;
    glass.last = source;
    glass.posts++;
}

bool wr_dispatch_stopping(const weir_runtime *runtime)
{
    return atomic_load(&runtime->stopping);
}

void wr_dispatch_wake(weir_runtime *runtime, _Atomic uint32_t *word)
{
    cr_assert_eq(runtime, &glass.runtime);
    wr_futex_wake(word, INT_MAX);
}

void wr_shard_add(weir_runtime *runtime, unsigned value, uint64_t add)
{
    (void)runtime;
    (void)value;
    (void)add;
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

void glass_start(uint32_t sources_max)
{
    memset(&glass, 0, sizeof glass);
    wr_alloc_init(&glass.runtime.alloc, NULL);
    cr_assert_eq(wr_slots_init(&glass.runtime.slots, &glass.runtime.alloc, sizeof(struct probe),
                               sources_max),
                 0);
    glass.runtime.pollers = &glass.poller;
    glass.runtime.poller_count = 1;
    glass.runtime.turn[0] = probe_turn;
    glass.poller.runtime = &glass.runtime;
    glass.poller.ops = &ops;
}

void glass_end(void)
{
    wr_slots_fini(&glass.runtime.slots);
    cr_assert_eq(atomic_load(&glass.runtime.alloc.bytes), 0);
}

struct probe *glass_open(void)
{
    struct wr_source *source = NULL;

    cr_assert_eq(wr_source_open(&glass.runtime, 7, 0, &source), 0);
    cr_assert_eq(wr_source_attach(source, WR_POLL_EDGE), 0);
    return (struct probe *)(void *)source;
}

unsigned glass_queued(void)
{
    unsigned count = 0;

    for (const struct wr_source *source = glass.first; source; source = source->link)
        count++;
    return count;
}

bool glass_run(void)
{
    struct wr_source *source = glass.first;

    if (!source)
        return false;
    glass.first = source->link;
    if (!glass.first)
        glass.last = NULL;
    wr_source_run(source);
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
