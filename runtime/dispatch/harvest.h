/* harvest.h: one turn of a poller, for whoever polls. One thread at a time. */
#ifndef WR_DISPATCH_HARVEST_H
#define WR_DISPATCH_HARVEST_H

#include "dispatch/dispatch.h"

/* Sleeps until events, the next deadline, the doorbell, or `until`. Returns how many events, or an
 * error, for wr_harvest_deliver(). */
int wr_harvest_wait(struct wr_poller *poller, weir_time until);
/* Expires deadlines, moves the events to their sources. With `ret_kept` one source that wants a
 * turn is handed to the caller, who runs it; the others go to the ready queue, and the pump is
 * kicked. */
void wr_harvest_deliver(struct wr_poller *poller, int count, struct wr_source **ret_kept);
/* The same without the kick. Returns how many were pushed; the caller sees to them. */
unsigned wr_harvest_collect(struct wr_poller *poller, int count, struct wr_source **ret_kept);
/* The watch over the pool, by one thread: ticks when that is due. Returns when the
 * next tick is, WEIR_NEVER when the pool needs none. */
weir_time wr_harvest_watch(struct wr_poller *poller);

#endif
