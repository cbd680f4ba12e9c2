/* view.h: where the bytes of a view come from. */
#ifndef WR_NET_VIEW_H
#define WR_NET_VIEW_H

#include <stdbool.h>

#include <weir/socket.h>

#include "base/alloc.h"

struct wr_view_origin {
    struct wr_alloc *alloc; /* for a copy that is kept */
    bool datagram;
    weir_address from;
};

#endif
