/* pump.c: the work item that drains a ready queue and posts the next copy of itself.
 *
 * `requested`: 1 a copy is posted and has not started; 0 promises nothing. Moved by exchange only,
 * all of them acq_rel, so that they make one order in which each sees what happened before those in
 * front of it.
 *
 *   kick   a producer, after its push   requested <- 1; it was 0: post
 *   run    a copy, first of all         requested <- 0
 *          then                         pop; nothing: return
 *          then, once                   more there: kick, BEFORE the first handle
 *          then                         handle, pop, handle ... until nothing is there or the slice
 *                                       is over; return
 *
 * At most one copy is posted and not started: only who turned 0 into 1 posts, and only a copy that
 * has been taken and has begun turns 1 into 0. So `work` is never posted while it is pending.
 *
 * Nothing is stranded. Let Z be in the queue, K the exchange of the kick that followed its push,
 * R the last exchange to 0 so far, made by the run r.
 *   K after R: the first exchange to 1 after R posted a copy, and it has not begun, since R is the
 *     last to 0. A copy is posted.
 *   K before R: r's looks see Z. Its pop is not empty-handed, for "empty" is linearized and Z is
 *     there; it got something else. Then more() sees Z (it overlooks nothing that happened before),
 *     so r kicks: it, or somebody before it and after R, turned 0 into 1 and posted. Until that
 *     point r is between taking a copy and having decided, in no callback.
 *   There is no R yet: the first exchange to 1 of all posted a copy that has not begun.
 * Nowhere in this does it matter what a run does after its decision: it may block in a callback for
 * ever, and it may return when its slice is over with the queue full, without posting again. Those
 * who return earlier because they find nothing owe nothing either.
 *
 * Idle is not the same as `requested` 0: earlier copies may still handle. Who tears down waits for
 * the pool. */
#include "work/pump.h"

/* Items between two readings of the clock when they are short. */
#define CLOCK_EVERY 8

void wr_pump_kick(struct wr_pump *pump)
{
    /* acq_rel: pairs with the exchange in run(): the push is seen by the looks that follow it */
    if (atomic_exchange_explicit(&pump->requested, 1, memory_order_acq_rel) != 0)
        return;
    atomic_fetch_add_explicit(&pump->kicks, 1, memory_order_relaxed);
    pump->ops->post(pump, &pump->work);
}

/* How many items fit before the next reading: as many as would take what is left of the slice if
 * they are like those before, so that eight slow ones do not overrun it eight times. */
static unsigned until_next(weir_time elapsed, weir_time left, unsigned handled)
{
    if (elapsed <= 0 || left >= elapsed * CLOCK_EVERY)
        return CLOCK_EVERY;
    weir_time fit = left * handled / elapsed;
    return fit < 1 ? 1 : fit > CLOCK_EVERY ? CLOCK_EVERY : (unsigned)fit;
}

static void run(weir_work *work, void *context)
{
    struct wr_pump *pump = context;
    const struct wr_pump_ops *ops = pump->ops;
    void *item;
    (void)work;     /* may be posted again from the next line on */

    /* acq_rel: pairs with the exchange in wr_pump_kick(); never a store, which would forget a kick
     * without having seen its push */
    atomic_exchange_explicit(&pump->requested, 0, memory_order_acq_rel);
    if (!ops->pop(pump, &item))
        return;
    if (ops->more(pump))
        wr_pump_kick(pump);

    weir_time start = ops->now();
    unsigned handled = 0, next = 1;
    do {
        ops->handle(pump, item);
        if (++handled < next || !ops->more(pump))
            continue;
        weir_time elapsed = ops->now() - start;
        if (elapsed >= pump->slice_ns) {
            atomic_fetch_add_explicit(&pump->slices_expired, 1, memory_order_relaxed);
            return;
        }
        next = handled + until_next(elapsed, pump->slice_ns - elapsed, handled);
    } while (ops->pop(pump, &item));
}

void wr_pump_init(struct wr_pump *pump, const struct wr_pump_ops *ops, weir_time slice_ns,
                  void *context)
{
    *pump = (struct wr_pump) { .ops = ops, .context = context, .slice_ns = slice_ns };
    weir_work_init(&pump->work, run, pump);
}
