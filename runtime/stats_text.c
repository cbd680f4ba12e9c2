/* stats_text.c: one table of what a snapshot holds, and the two forms it is written in. */
#include "stats_text.h"

#include <errno.h>
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

enum kind { COUNTER, GAUGE };

struct row {
    const char *name;
    enum kind kind;
    size_t offset;
    const char *help;
};

#define ROW(kind, field, help) { #field, kind, offsetof(weir_stats, field), help }

static const struct row rows[] = {
    ROW(COUNTER, waits, "Returns of the pollers' wait call."),
    ROW(COUNTER, events, "Events harvested by the pollers."),
    ROW(COUNTER, stale_drops, "Events for a source that was gone."),
    ROW(COUNTER, sync_wakes, "Synchronous waiters woken by a poller."),
    ROW(COUNTER, doorbells, "Times a poller was woken by another thread."),
    ROW(COUNTER, timers_expired, "Timers that came due."),
    ROW(COUNTER, poll_errors, "Wait calls that failed with something else than EINTR."),
    ROW(COUNTER, pushes, "Sources pushed on a ready queue."),
    ROW(COUNTER, kicks, "Copies of a pump posted."),
    ROW(COUNTER, turns, "Turns of a source run on a worker."),
    ROW(COUNTER, slices_expired, "Pumps that gave the worker back while more was ready."),
    ROW(GAUGE, queue_age_ns, "Age in nanoseconds of the oldest work item not yet started."),
    ROW(COUNTER, posts, "Work items posted."),
    ROW(COUNTER, items_run, "Work items run."),
    ROW(COUNTER, wakes, "Parked workers woken."),
    ROW(COUNTER, parks, "Times a worker parked."),
    ROW(GAUGE, workers, "Threads of the I/O lane."),
    ROW(GAUGE, workers_blocked, "Workers inside an announced block."),
    ROW(GAUGE, workers_parked, "Workers that are parked."),
    ROW(COUNTER, compensations, "Workers started or woken because others were blocked."),
    ROW(GAUGE, blocking_threads, "Threads of the blocking lane."),
    ROW(GAUGE, blocking_queued, "Work items waiting in the blocking lane."),
    ROW(GAUGE, sources, "Sockets, listeners and watches."),
    ROW(COUNTER, accepts, "Connections accepted."),
    ROW(COUNTER, accept_errors, "Accepts that failed for want of descriptors or memory."),
    ROW(COUNTER, bytes_received, "Bytes received."),
    ROW(COUNTER, bytes_sent, "Bytes sent."),
    ROW(GAUGE, memory, "Bytes taken from the allocator."),
    ROW(GAUGE, write_pending, "Bytes written and not yet taken by the kernel."),
    ROW(GAUGE, pollers_set, "Setting in force: pollers."),
    ROW(GAUGE, workers_set, "Setting in force: workers at rest."),
    ROW(GAUGE, workers_max_set, "Setting in force: most workers."),
    ROW(GAUGE, blocking_max_set, "Setting in force: most threads of the blocking lane."),
    ROW(GAUGE, batch_set, "Setting in force: events a wait."),
    ROW(GAUGE, slice_us_set, "Setting in force: time slice of a pump in microseconds."),
    ROW(GAUGE, spin_us_set, "Setting in force: spin before sleep in microseconds."),
    ROW(GAUGE, sources_max_set, "Setting in force: most sources."),
    ROW(GAUGE, write_budget_set, "Setting in force: bytes that may wait to be sent."),
    ROW(GAUGE, recv_buffers, "Receive buffers of completion mode."),
    ROW(GAUGE, recv_buffers_out, "Receive buffers that are not with the kernel."),
    ROW(COUNTER, recv_starved, "Receives that ended because no buffer was left."),
    ROW(COUNTER, recv_handed_over, "Times a reader had to receive by itself."),
    ROW(COUNTER, recv_rearmed, "Receives armed, the first of each stream included."),
    ROW(COUNTER, inline_turns, "Turns run by the thread that harvested them."),
};

#define ROWS (sizeof rows / sizeof *rows)

_Static_assert(sizeof(weir_stats) == offsetof(weir_stats, waits) + ROWS * sizeof(uint64_t),
               "every field of weir_stats has its row");

static int print_row(const struct row *row, uint64_t value, enum weir_stats_format format,
                     char *buffer, size_t size)
{
    if (format == WEIR_STATS_TEXT)
        return snprintf(buffer, size, "%s %" PRIu64 "\n", row->name, value);
    const char *suffix = row->kind == COUNTER ? "_total" : "";
    const char *type = row->kind == COUNTER ? "counter" : "gauge";
    return snprintf(buffer, size,
                    "# HELP weir_%s%s %s\n# TYPE weir_%s%s %s\nweir_%s%s %" PRIu64 "\n", row->name,
                    suffix, row->help, row->name, suffix, type, row->name, suffix, value);
}

int wr_stats_print(const weir_stats *stats, enum weir_stats_format format, char *buffer,
                   size_t size)
{
    if (!stats || (!buffer && size > 0)
        || (format != WEIR_STATS_TEXT && format != WEIR_STATS_PROMETHEUS))
        return -EINVAL;

    int saved = errno;
    size_t length = 0;
    if (size > 0)
        buffer[0] = '\0';
    for (size_t i = 0; i < ROWS; i++) {
        uint64_t value;
        if (rows[i].offset + sizeof value > stats->size)
            break;
        memcpy(&value, (const char *)stats + rows[i].offset, sizeof value);
        /* When the buffer is full the rest is measured only. */
        char *at = length < size ? buffer + length : NULL;
        int r = print_row(&rows[i], value, format, at, at ? size - length : 0);
        if (r > 0)
            length += (size_t)r;
    }
    errno = saved;
    return (int)length;
}
