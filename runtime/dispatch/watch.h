/* watch.h: watches among the sources. */
#ifndef WR_DISPATCH_WATCH_H
#define WR_DISPATCH_WATCH_H

#include "dispatch/dispatch.h"

size_t wr_watch_size(void);
/* For runtime->turn. */
enum wr_turn wr_watch_turn(struct wr_source *source, uint32_t flags);
bool wr_watch_is(const struct wr_source *source);
/* As weir_watch_close(), for destroy. */
void wr_watch_end(struct wr_source *source);

#endif
