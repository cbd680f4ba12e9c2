/* watchdog.h: who looks after pollers whose own threads run callbacks. The protocol stands on top
 * of watchdog.c. */
#ifndef WR_DISPATCH_WATCHDOG_H
#define WR_DISPATCH_WATCHDOG_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <weir/base.h>

#include "os/thread.h"

struct wr_poller;

struct wr_watchdog {
    weir_runtime *runtime;
    struct wr_thread thread;
    bool running;
    _Atomic uint32_t stop;
    _Atomic uint32_t word;      /* ASLEEP, CALLED */
};

/* 0; -EAGAIN; -ENOMEM. */
int wr_watchdog_start(struct wr_watchdog *watchdog, weir_runtime *runtime, const char *name,
                      size_t stack_size);
/* When the pollers' threads have ended. Fine when it was never started. */
void wr_watchdog_stop(struct wr_watchdog *watchdog);
/* Makes it look at once. Any thread. */
void wr_watchdog_call(struct wr_watchdog *watchdog);

/* The poller's thread: it is about to run callbacks; it runs none any more. */
void wr_watchdog_enter(struct wr_poller *poller);
void wr_watchdog_leave(struct wr_poller *poller);

#endif
