/* guest.c: threads that are not the pool's and run items all the same: pollers whose callbacks are
 * inline. Announced blocks, notes and the naming of callbacks that do not return work on them as on
 * workers. They take nothing from the queue, and are no part of the numbers by which the pool tells
 * that its workers are stuck: a busy guest must not hide that. */
#include <errno.h>
#include <stdio.h>

#include "work/pool_private.h"

int wr_pool_guest_add(struct wr_pool *pool, const char *name, void (*block)(void *context),
                      void *context, struct wr_worker **ret_guest)
{
    struct wr_worker *guest = wr_alloc_lines(pool->options.alloc, sizeof *guest);

    if (!guest)
        return -ENOMEM;
    guest->pool = pool;
    guest->lease = -1;
    guest->guest_block = block;
    guest->guest_context = context;
    snprintf(guest->thread.name, sizeof guest->thread.name, "%s", name);
    wr_lock(&pool->io.lock);
    wr_list_add_tail(&pool->guests, &guest->node);
    wr_unlock(&pool->io.lock);
    *ret_guest = guest;
    return 0;
}

void wr_pool_guest_remove(struct wr_worker *guest)
{
    if (!guest)
        return;
    struct wr_pool *pool = guest->pool;
    wr_lock(&pool->io.lock);
    wr_list_remove(&guest->node);
    wr_unlock(&pool->io.lock);
    wr_alloc_release_lines(pool->options.alloc, guest, sizeof *guest);
}

/* A guest is not replaced: its own block() sees to what it leaves behind. */
void wr_guest_blocking_begin(struct wr_worker *guest)
{
    void (*hook)(void *) = atomic_load_explicit(&guest->pool->block_hook, memory_order_relaxed);

    if (hook)
        hook(guest->pool->block_context);
    if (guest->block_depth++ == 0)
        guest->guest_block(guest->guest_context);
}
