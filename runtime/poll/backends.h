/* backends.h: which back end is used, and why. */
#ifndef WR_POLL_BACKENDS_H
#define WR_POLL_BACKENDS_H

#include <weir/runtime.h>

#include "poll/poller.h"

#define WR_WHY_MAX 256

/* Chooses by `wanted` (never DEFAULT). 0, with the table and one line of reason; io_uring is
 * strict: -ENOSYS not to be had here; -ENOMEM, -EMFILE, -ENFILE (ret_why is written then, too). */
int wr_backend_choose(enum weir_backend wanted, const struct wr_poll_ops **ret_ops,
                      char ret_why[WR_WHY_MAX]);
/* Completion mode is wanted of what was chosen. True: it can be had. Either way the reason says so.
 */
bool wr_backend_receives(const struct wr_poll_ops *ops, char why[WR_WHY_MAX]);

#endif
