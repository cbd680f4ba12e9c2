/* view.c: keeping the bytes of a view beyond its callback. */
#include "net/view.h"

#include <errno.h>
#include <string.h>

#include <weir/buffer.h>

#include "base/list.h"

/* One allocation: this, then the bytes. */
struct kept {
    weir_kept face;
    struct wr_alloc *alloc;
    size_t size;
    unsigned char bytes[];
};

weir_kept *weir_view_keep(const weir_view *view)
{
    if (!view || !view->private_)
        return NULL;
    const struct wr_view_origin *origin = view->private_;
    size_t size = sizeof(struct kept) + view->length;
    struct kept *kept = wr_alloc_raw(origin->alloc, size);

    if (!kept)
        return NULL;
    kept->alloc = origin->alloc;
    kept->size = size;
    kept->face.data = kept->bytes;
    kept->face.length = view->length;
    memcpy(kept->bytes, view->data, view->length);
    return &kept->face;
}

void weir_view_release(weir_kept *face)
{
    if (!face)
        return;
    struct kept *kept = WR_CONTAINER_OF(face, struct kept, face);
    wr_alloc_release(kept->alloc, kept, kept->size);
}

int weir_view_from(const weir_view *view, weir_address *ret_address)
{
    if (!view || !view->private_ || !ret_address)
        return -EINVAL;
    const struct wr_view_origin *origin = view->private_;
    if (!origin->datagram)
        return -ENOTCONN;
    *ret_address = origin->from;
    return 0;
}
