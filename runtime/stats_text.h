/* stats_text.h: a snapshot as text. */
#ifndef WR_STATS_TEXT_H
#define WR_STATS_TEXT_H

#include <stddef.h>

#include <weir/stats.h>

/* As weir_stats_format(), of a snapshot at hand. Fields beyond stats->size are left out; `buffer`
 * may be NULL when `size` is 0. Threads: any. Blocks: no. */
int wr_stats_print(const weir_stats *stats, enum weir_stats_format format, char *buffer,
                   size_t size);

#endif
