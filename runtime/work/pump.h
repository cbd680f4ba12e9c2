/* pump.h: the self-replicating work item that drains a ready queue on the pool.
 * The protocol and its proof stand on top of pump.c. */
#ifndef WR_WORK_PUMP_H
#define WR_WORK_PUMP_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include <weir/base.h>
#include <weir/work.h>

struct wr_pump;

/* What a pump needs of the world; tests give their own. */
struct wr_pump_ops {
    bool (*pop)(struct wr_pump *pump, void **ret_item);        /* many threads */
    bool (*more)(struct wr_pump *pump);     /* false: all pushed before the call has been popped */
    void (*handle)(struct wr_pump *pump, void *item);          /* may block for ever */
    void (*post)(struct wr_pump *pump, weir_work *work);       /* a copy to the pool; cannot fail */
    weir_time (*now)(void);
};

struct wr_pump {
    const struct wr_pump_ops *ops;
    void *context;                          /* the owner's */
    weir_time slice_ns;
    weir_work work;
    _Atomic uint32_t requested;             /* 1: a copy is posted and has not started */
    _Atomic uint64_t kicks, slices_expired; /* counters, relaxed */
};

void wr_pump_init(struct wr_pump *pump, const struct wr_pump_ops *ops, weir_time slice_ns,
                  void *context);
/* After a push, once a batch. Any thread. */
void wr_pump_kick(struct wr_pump *pump);

#endif
