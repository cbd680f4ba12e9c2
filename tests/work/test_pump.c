/* test_pump.c: the pump on a queue, a pool and a clock of the test's own. No threads, no time:
 * the pool is one slot, which also holds that at most one copy is posted; races are replayed by
 * the doubles. */
#include "support/test.h"

#include "work/pump.h"

#define ITEMS_MAX 64

struct rig {
    struct wr_pump pump;
    int queue[ITEMS_MAX];           /* values to be popped, 1 and up */
    unsigned head, tail;
    weir_work *posted;              /* the pool's only slot */
    unsigned posts, handled, depth, running;
    weir_time now, cost;            /* cost: of one handle */
    unsigned clock_reads, handled_at_read, handled_between_reads_max;
    /* what happens inside */
    bool push_on_empty;             /* a producer pushes and kicks after an empty look */
    bool run_other_copies;          /* a handler blocks for ever: others must do the rest */
    unsigned expect_posted;         /* in the first handler: is a copy posted? 1 no, 2 yes */
    unsigned refill_until;          /* each handle pushes and kicks, until so many */
    unsigned order[ITEMS_MAX];
};

static void push(struct rig *rig)
{
    cr_assert_lt(rig->tail, ITEMS_MAX);
    rig->queue[rig->tail] = (int)rig->tail + 1;
    rig->tail++;
}

static void push_and_kick(struct rig *rig, unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        push(rig);
    wr_pump_kick(&rig->pump);
}

static void run_posted(struct rig *rig)
{
    weir_work *work = rig->posted;
    rig->posted = NULL;
    work->run_(work, work->context_);
}

static bool pop(struct wr_pump *pump, void **ret_item)
{
    struct rig *rig = pump->context;
    if (rig->head < rig->tail) {
        *ret_item = &rig->queue[rig->head++];
        return true;
    }
    if (rig->push_on_empty) {
        rig->push_on_empty = false;
        push_and_kick(rig, 1);
    }
    return false;
}

static bool more(struct wr_pump *pump)
{
    struct rig *rig = pump->context;
    return rig->head < rig->tail;
}

static void handle(struct wr_pump *pump, void *item)
{
    struct rig *rig = pump->context;
    int value = *(int *)item;
    rig->order[rig->handled++] = (unsigned)value;
    rig->now += rig->cost;
    if (rig->expect_posted) {
        cr_assert_eq(rig->posted != NULL, rig->expect_posted == 2);
        rig->expect_posted = 0;
    }
    if (rig->tail < rig->refill_until)
        push_and_kick(rig, 1);
    if (rig->run_other_copies) {
        /* This handler "blocks": only other copies run from here to the end of the test. */
        rig->depth++;
        while (rig->posted)
            run_posted(rig);
        rig->depth--;
    }
}

static void post(struct wr_pump *pump, weir_work *work)
{
    struct rig *rig = pump->context;
    cr_assert_null(rig->posted, "two copies are posted");
    rig->posted = work;
    rig->posts++;
}

static struct rig *the_rig;

static weir_time now(void)
{
    struct rig *rig = the_rig;
    unsigned between = rig->handled - rig->handled_at_read;
    if (between > rig->handled_between_reads_max)
        rig->handled_between_reads_max = between;
    rig->handled_at_read = rig->handled;
    rig->clock_reads++;
    return rig->now;
}

static const struct wr_pump_ops ops = {
    .pop = pop, .more = more, .handle = handle, .post = post, .now = now
};

static void init(struct rig *rig)
{
    the_rig = rig;
    wr_pump_init(&rig->pump, &ops, 1000, rig);
}

static void run_all(struct rig *rig)
{
    while (rig->posted)
        run_posted(rig);
}

Test(pump, item_pushed_between_the_empty_look_and_leaving_is_handled)
{
    struct rig rig = { .push_on_empty = true };
    init(&rig);
    push_and_kick(&rig, 1);
    run_all(&rig);
    cr_assert_eq(rig.handled, 2);
    cr_assert_eq(rig.head, rig.tail);
}

Test(pump, item_pushed_after_an_empty_first_look_is_handled)
{
    struct rig rig = { .push_on_empty = true };
    init(&rig);
    wr_pump_kick(&rig.pump);            /* for an item that another copy has taken meanwhile */
    run_all(&rig);
    cr_assert_eq(rig.handled, 1);
}

Test(pump, next_copy_is_posted_before_the_first_callback)
{
    struct rig rig = { .expect_posted = 2 };
    init(&rig);
    push_and_kick(&rig, 2);
    run_all(&rig);
    cr_assert_eq(rig.handled, 2);
    cr_assert_eq(rig.expect_posted, 0, "no callback looked");
}

Test(pump, no_copy_is_posted_when_nothing_else_is_there)
{
    struct rig rig = { .expect_posted = 1 };
    init(&rig);
    push_and_kick(&rig, 1);
    run_all(&rig);
    cr_assert_eq(rig.handled, 1);
    cr_assert_eq(rig.posts, 1);
}

/* The one-slot pool fails the test at a second copy. */
Test(pump, at_most_one_copy_is_posted_however_often_it_is_kicked)
{
    struct rig rig = { .refill_until = 40 };
    init(&rig);
    for (int i = 0; i < 10; i++)
        push_and_kick(&rig, 1);
    cr_assert_eq(rig.posts, 1);
    cr_assert_eq(atomic_load(&rig.pump.kicks), 1);
    run_all(&rig);
    cr_assert_eq(rig.handled, 40);
    cr_assert_eq(atomic_load(&rig.pump.kicks), rig.posts);
}

Test(pump, copies_handle_the_rest_while_every_handler_blocks)
{
    struct rig rig = { .run_other_copies = true };
    init(&rig);
    push_and_kick(&rig, 8);
    run_posted(&rig);
    /* Each handler ran the other copies from its inside, as if it never came back itself. */
    cr_assert_eq(rig.handled, 8);
    for (unsigned i = 0; i < 8; i++)
        cr_assert_eq(rig.order[i], i + 1);
}

Test(pump, push_while_all_copies_block_is_handled)
{
    struct rig rig = { .run_other_copies = true, .refill_until = 20 };
    init(&rig);
    push_and_kick(&rig, 1);
    run_posted(&rig);
    cr_assert_eq(rig.handled, 20);
}

Test(pump, slice_gives_the_pool_back_and_strands_nothing)
{
    struct rig rig = { .cost = 400 };
    init(&rig);
    push_and_kick(&rig, 20);
    run_posted(&rig);
    cr_assert_eq(rig.handled, 3, "a slice of 1000 holds three of 400, not %u", rig.handled);
    cr_assert_eq(atomic_load(&rig.pump.slices_expired), 1);
    cr_assert_not_null(rig.posted, "what is left has a copy");
    cr_assert_eq(rig.posts, 2, "and the end of the slice posts none of its own");
    run_all(&rig);
    cr_assert_eq(rig.handled, 20);
}

/* The copy posted before the first callback has begun, found nothing and gone before the slice
 * ends: the kicks of what came later cover it. */
Test(pump, slice_that_ends_after_the_other_copy_has_gone_strands_nothing)
{
    struct rig rig = { .cost = 1000, .refill_until = 12 };
    init(&rig);
    push_and_kick(&rig, 1);
    run_all(&rig);
    cr_assert_eq(rig.handled, 12);
    cr_assert_gt(atomic_load(&rig.pump.slices_expired), 0);
}

Test(pump, slow_items_do_not_overrun_the_slice_and_short_ones_do_not_read_the_clock_each)
{
    struct rig slow = { .cost = 300 };
    init(&slow);
    push_and_kick(&slow, 16);
    run_posted(&slow);
    cr_assert_eq(slow.handled, 4);

    struct rig quick = { .cost = 1 };
    init(&quick);
    push_and_kick(&quick, 60);
    run_posted(&quick);
    cr_assert_eq(quick.handled, 60);
    cr_assert_leq(quick.handled_between_reads_max, 8);
    cr_assert_leq(quick.clock_reads, 2 + 60 / 8 + 1);
}
