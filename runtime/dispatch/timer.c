/* timer.c: the pairing heap behind timer.h.
 *
 * A heap-ordered tree: child_ is the first child, next_ the next sibling, prev_ the previous
 * sibling or, for a first child, the parent. Only the root and nodes that do not hang have no
 * prev_: that is how an armed node is told. Insert and move to later are O(1); taking out is O(log
 * n) amortised, without recursion (a tree of n nodes can be n deep).
 *
 * Invariants, under the lock: a node's key_ is not below its parent's; key_ <= when_; an armed node
 * has when_ < WEIR_NEVER; nothing hangs once closed. All fields of nodes and timers are the lock's,
 * whose acquire and release order everything here; but `wake` is also written without it. */
#include "dispatch/timer.h"

#include <stddef.h>

#include "base/assert.h"

/* Not asleep: before it sleeps it will look, so that nobody needs to ring. */
#define AWAKE INT64_MIN

static bool is_armed(const struct wr_timers *timers, const struct weir_deadline_ *node)
{
    return node->prev_ != NULL || timers->root == node;
}

/* Two trees, their roots free of siblings, become one. */
static struct weir_deadline_ *meld(struct weir_deadline_ *a, struct weir_deadline_ *b)
{
    if (b->key_ < a->key_) {
        struct weir_deadline_ *swap = a;
        a = b;
        b = swap;
    }
    b->prev_ = a;
    b->next_ = a->child_;
    if (b->next_ != NULL)
        b->next_->prev_ = b;
    a->child_ = b;
    return a;
}

/* Takes the first tree off a row of siblings. */
static struct weir_deadline_ *shift(struct weir_deadline_ **row)
{
    struct weir_deadline_ *node = *row;

    *row = node->next_;
    node->next_ = NULL;
    node->prev_ = NULL;
    return node;
}

/* A row of siblings becomes one tree (NULL of none): pairs from left to right, then all from right
 * to left. */
static struct weir_deadline_ *meld_row(struct weir_deadline_ *row)
{
    struct weir_deadline_ *pairs = NULL;
    struct weir_deadline_ *tree = NULL;

    while (row != NULL) {
        struct weir_deadline_ *pair = shift(&row);
        if (row != NULL)
            pair = meld(pair, shift(&row));
        pair->next_ = pairs;
        pairs = pair;
    }
    while (pairs != NULL) {
        struct weir_deadline_ *pair = shift(&pairs);
        tree = tree != NULL ? meld(tree, pair) : pair;
    }
    return tree;
}

static void hang(struct wr_timers *timers, struct weir_deadline_ *node, weir_time when)
{
    WR_ASSERT(!is_armed(timers, node) && node->child_ == NULL && when != WEIR_NEVER);
    node->key_ = when;
    node->when_ = when;
    timers->root = timers->root != NULL ? meld(timers->root, node) : node;
}

static void unhang(struct wr_timers *timers, struct weir_deadline_ *node)
{
    WR_ASSERT(is_armed(timers, node));
    struct weir_deadline_ *below = meld_row(node->child_);

    if (timers->root == node) {
        timers->root = below;
    } else {
        if (node->prev_->child_ == node)
            node->prev_->child_ = node->next_;
        else
            node->prev_->next_ = node->next_;
        if (node->next_ != NULL)
            node->next_->prev_ = node->prev_;
        if (below != NULL)
            timers->root = meld(timers->root, below);
    }
    node->child_ = NULL;
    node->next_ = NULL;
    node->prev_ = NULL;
}

/* Hangs or moves under the lock; true when the doorbell must be rung. */
static bool place(struct wr_timers *timers, struct weir_deadline_ *node, weir_time when)
{
    bool armed = is_armed(timers, node);

    if (armed && when >= node->key_ && when != WEIR_NEVER) {
        node->when_ = when;             /* later: it stays where it hangs until its key comes up */
        return false;
    }
    if (armed)
        unhang(timers, node);
    node->when_ = when;
    if (when == WEIR_NEVER || wr_timers_closed(timers))
        return false;
    hang(timers, node, when);
    if (when >= atomic_load_explicit(&timers->wake, memory_order_relaxed))
        return false;
    /* as it will be, once the caller has rung */
    atomic_store_explicit(&timers->wake, when, memory_order_relaxed);
    return true;
}

void wr_timers_init(struct wr_timers *timers)
{
    *timers = (struct wr_timers){ .root = NULL, .wake = AWAKE };
}

void wr_deadline_init(struct weir_deadline_ *deadline, void (*expire)(struct weir_deadline_ *))
{
    *deadline = (struct weir_deadline_){ .when_ = WEIR_NEVER, .expire_ = expire };
}

bool wr_timers_set(struct wr_timers *timers, struct weir_deadline_ *deadline, weir_time when)
{
    WR_ASSERT(deadline->expire_ != NULL);
    wr_lock(&timers->lock);
    bool ring = place(timers, deadline, when);
    wr_unlock(&timers->lock);
    return ring;
}

bool wr_timers_move(struct wr_timers *timers, struct weir_deadline_ *deadline, weir_time when,
                    bool *ret_ring)
{
    wr_lock(&timers->lock);
    bool armed = is_armed(timers, deadline);
    if (armed)
        *ret_ring = place(timers, deadline, when);
    wr_unlock(&timers->lock);
    return armed;
}

bool wr_timers_cancel(struct wr_timers *timers, struct weir_deadline_ *deadline)
{
    wr_lock(&timers->lock);
    bool armed = is_armed(timers, deadline);
    if (armed)
        unhang(timers, deadline);
    wr_unlock(&timers->lock);
    return armed;
}

bool wr_timers_armed(struct wr_timers *timers, struct weir_deadline_ *deadline)
{
    wr_lock(&timers->lock);
    bool armed = is_armed(timers, deadline);
    wr_unlock(&timers->lock);
    return armed;
}

bool wr_timers_take_due(struct wr_timers *timers, struct weir_deadline_ *deadline, weir_time now)
{
    wr_lock(&timers->lock);
    bool due = !is_armed(timers, deadline) && deadline->when_ <= now;
    if (due)
        deadline->when_ = WEIR_NEVER;
    wr_unlock(&timers->lock);
    return due;
}

unsigned wr_timers_expire(struct wr_timers *timers, weir_time now, unsigned max)
{
    unsigned expired = 0;

    wr_lock(&timers->lock);
    wr_timers_awake(timers);
    for (unsigned looked = 0; looked < max; looked++) {
        struct weir_deadline_ *node = timers->root;
        if (node == NULL || node->key_ > now)
            break;
        unhang(timers, node);
        if (node->when_ > now) {
            hang(timers, node, node->when_);
            continue;
        }
        expired++;
        node->expire_(node);            /* from here on the node is its owner's: it may be gone */
    }
    wr_unlock(&timers->lock);
    return expired;
}

/* relaxed, and without the lock: a setter that sees the time before rings once for nothing. It may
 * also write its own time over this: the poller is awake all the same, and its next
 * wr_timers_sleep(), which takes the lock, comes later and sees what was hung. */
void wr_timers_awake(struct wr_timers *timers)
{
    atomic_store_explicit(&timers->wake, AWAKE, memory_order_relaxed);
}

weir_time wr_timers_sleep(struct wr_timers *timers)
{
    wr_lock(&timers->lock);
    weir_time wake = timers->root != NULL ? timers->root->key_ : WEIR_NEVER;
    atomic_store_explicit(&timers->wake, wake, memory_order_relaxed);
    wr_unlock(&timers->lock);
    return wake;
}

void wr_timers_close(struct wr_timers *timers, void (*drop)(struct weir_deadline_ *))
{
    wr_lock(&timers->lock);
    atomic_store_explicit(&timers->closed, true, memory_order_relaxed);
    while (timers->root != NULL) {
        struct weir_deadline_ *node = timers->root;
        unhang(timers, node);
        if (drop != NULL)
            drop(node);
    }
    wr_unlock(&timers->lock);
}

/* relaxed: who armed something took the lock after, or before, the close that wrote it. */
bool wr_timers_closed(struct wr_timers *timers)
{
    return atomic_load_explicit(&timers->closed, memory_order_relaxed);
}
