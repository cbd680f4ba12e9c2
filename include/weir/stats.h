/* stats.h: counters of one moment, and the effective settings. */
#ifndef WEIR_STATS_H
#define WEIR_STATS_H

#include <weir/base.h>

#ifdef __cplusplus
extern "C" {
#endif

/**
 * One snapshot. Counters only grow, gauges go both ways. They are read one after the other without
 * stopping anything, so that sums of two of them may be off by what happened meanwhile.
 */
typedef struct weir_stats {
    size_t size; /* sizeof(weir_stats), set by the caller */
    /* pollers */
    uint64_t waits;       /* returns of the wait call */
    uint64_t events;      /* events harvested */
    uint64_t stale_drops; /* events for a source that was gone */
    uint64_t sync_wakes;  /* waiters woken by a poller */
    uint64_t doorbells;   /* times a poller was woken by another thread */
    uint64_t timers_expired;
    uint64_t poll_errors; /* wait calls that failed with something else than EINTR */
    /* pump */
    uint64_t pushes;         /* sources pushed on a ready queue */
    uint64_t kicks;          /* copies of a pump posted */
    uint64_t turns;          /* turns of a source run */
    uint64_t slices_expired; /* pumps that gave the worker back while more was ready */
    uint64_t queue_age_ns;   /* gauge: age of the oldest work item not yet started, to 10 ms */
    /* pool */
    uint64_t posts;
    uint64_t items_run;
    uint64_t wakes; /* parked workers woken */
    uint64_t parks;
    uint64_t workers;          /* gauge: I/O lane threads */
    uint64_t workers_blocked;  /* gauge: of these, inside an announced block */
    uint64_t workers_parked;   /* gauge */
    uint64_t compensations;    /* workers started or woken because others were blocked */
    uint64_t blocking_threads; /* gauge: blocking lane */
    uint64_t blocking_queued;  /* gauge */
    /* sources and bytes */
    uint64_t sources; /* gauge: sockets, listeners and watches */
    uint64_t accepts;
    uint64_t accept_errors; /* out of descriptors or memory; accepting backs off and resumes */
    uint64_t bytes_received;
    uint64_t bytes_sent;
    uint64_t memory;        /* gauge: bytes taken from the allocator */
    uint64_t write_pending; /* gauge: bytes written and not yet taken by the kernel */
    /* settings in force */
    uint64_t pollers_set, workers_set, workers_max_set, blocking_max_set;
    uint64_t batch_set, slice_us_set, spin_us_set, sources_max_set;
    uint64_t write_budget_set; /* UINT64_MAX: no limit */
    /* completion mode (WEIR_RECV=completion); all 0 in readiness mode */
    uint64_t recv_buffers;     /* gauge: receive buffers of all pollers */
    uint64_t recv_buffers_out; /* gauge: of these not with the kernel: unread, or in callbacks */
    uint64_t recv_starved;     /* receives that ended because no buffer was left (ENOBUFS) */
    uint64_t recv_handed_over; /* times a reader had to receive by itself: starved, too slow, end */
    uint64_t recv_rearmed;     /* receives armed, the first of each stream included */
    uint64_t inline_turns; /* of `turns`: run by the thread that harvested them (WEIR_INLINE) */
} weir_stats;

/**
 * Take a snapshot.
 * @param stats  `size` set by the caller; fields beyond it are not written.
 * @return 0; -EINVAL NULL or a size of 0.
 * Threads: any.   Blocks: no.
 */
WEIR_API int weir_stats_get(weir_runtime *runtime, weir_stats *stats);

enum weir_stats_format { WEIR_STATS_TEXT = 0, WEIR_STATS_PROMETHEUS = 1 };

/**
 * Write a snapshot as text ("name value" lines) or in the Prometheus text format into `buffer`.
 * @return the length of the whole text without its NUL, as snprintf() does: when it is >= `size`
 * the text was cut; -EINVAL NULL or an unknown format. Threads: any.   Blocks: no.
 */
WEIR_API int weir_stats_format(weir_runtime *runtime, enum weir_stats_format format, char *buffer,
                               size_t size);

#ifdef __cplusplus
}
#endif

#endif
