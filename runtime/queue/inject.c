/* inject.c: the pool's work queue: for each class a ck_stack that producers push on, and a list in
 * the order of arrival that consumers pop from, one at a time, under a lock that is only tried.
 *
 *   push --> pushed (newest first) --[turned round by the holder]--> first (oldest first) --> pop
 *
 * Who holds `taking` owns `first` and the way from `pushed` to it. "Empty" is said by a holder
 * alone, who saw list and stack of one class empty, and then those of the other: since nobody else
 * takes meanwhile, the other was empty before as well, and at the look at the first stack nothing
 * was in the queue. Whoever fails to take the lock says "uncertain".
 *
 * wr_inject_maybe() looks without the lock and promises one thing only: if it answers 0, then
 * every item whose push happened before the call has been popped. It reads stacks, lock, lists,
 * which is the way items go: an item that has left the stack is with a holder (the lock is seen
 * held) or in the list (the lock's release is acquired, so the list is seen), or popped.
 *
 * A push orders the loads behind it, and wr_inject_before_look() orders a look behind an exchange:
 * both cost nothing where an RMW is a full barrier (x86), and a fence on arm64. So of two threads,
 * one that pushes and then reads a word, and one that changes that word and then looks, one sees
 * the other (`request` in work/pool.c).
 *
 * Pushes are counted by who turns the stack round, and walks it anyway: a counter that producers
 * write would be one more line that travels.
 *
 * The link is touched through Concurrency Kit's type only, here and nowhere else. This file is
 * compiled without ThreadSanitizer and tells it of the order itself (base/tsan.h). */
#include "queue/inject.h"

#include <errno.h>
#include <stdatomic.h>

#include <ck_pr.h>
#include <ck_stack.h>

#include "base/assert.h"
#include "base/cpu_relax.h"
#include "base/tsan.h"

/* How often wr_inject_oldest() tries the lock before it repeats what it said last. */
#define OLDEST_TRIES_MAX 64

_Static_assert(offsetof(weir_work, next_) == 0, "the link is the item");
_Static_assert(sizeof(ck_stack_entry_t) == sizeof(weir_work *), "the link is one pointer");

struct pushed {
    WR_ALIGN_LINE struct ck_stack stack;
};

struct list {
    _Atomic(ck_stack_entry_t *) first;          /* written by the holder; others peek */
    ck_stack_entry_t *last;                     /* the holder's; of the list, unless it is empty */
};

struct wr_inject {
    struct pushed pushed[WR_CLASSES];           /* a line each: producers alone write it */
    WR_ALIGN_LINE _Atomic uint32_t taking;      /* the take lock: 1 held */
    unsigned io_in_a_row;                       /* the holder's: popped since the last job */
    struct list list[WR_CLASSES];
    _Atomic uint64_t pushes;                    /* written by the holder: those turned round */
    _Atomic weir_time oldest;                   /* what wr_inject_oldest() said last */
    struct wr_alloc *alloc;
};

static ck_stack_entry_t *entry_of(weir_work *work)
{
    return (ck_stack_entry_t *)(void *)work;
}

static weir_work *work_of(ck_stack_entry_t *entry)
{
    return (weir_work *)(void *)entry;
}

int wr_inject_create(struct wr_inject **ret_inject, struct wr_alloc *alloc)
{
    struct wr_inject *inject = wr_alloc_lines(alloc, sizeof *inject);
    if (!inject)
        return -ENOMEM;
    ck_stack_init(&inject->pushed[WR_CLASS_IO].stack);
    ck_stack_init(&inject->pushed[WR_CLASS_JOB].stack);
    atomic_init(&inject->oldest, WEIR_NEVER);
    inject->alloc = alloc;
    *ret_inject = inject;
    return 0;
}

void wr_inject_destroy(struct wr_inject *inject)
{
    if (inject)
        wr_alloc_release_lines(inject->alloc, inject, sizeof *inject);
}

void wr_inject_push(struct wr_inject *inject, enum wr_class class, weir_work *work)
{
    WR_TSAN_RELEASE(work);
    ck_stack_push_upmc(&inject->pushed[class].stack, entry_of(work));
    /* Pairs with the fence in wr_inject_before_look(). */
    ck_pr_fence_atomic_load();
}

void wr_inject_before_look(void)
{
    /* Pairs with the fence in wr_inject_push(). */
    ck_pr_fence_atomic_load();
}

static bool try_take(struct wr_inject *inject)
{
    /* Looking first keeps the line shared among those who come too late. */
    if (atomic_load_explicit(&inject->taking, memory_order_relaxed))
        return false;
    /* acquire: pairs with the release in give_back() */
    if (atomic_exchange_explicit(&inject->taking, 1, memory_order_acquire))
        return false;
    /* Pairs with the load fence in wr_inject_maybe(): who sees the stack emptied must see the
     * lock held. An acquire alone does not keep the stack's update behind the lock's own store
     * on arm64. */
    ck_pr_fence_store_atomic();
    return true;
}

static void give_back(struct wr_inject *inject)
{
    /* release: pairs with the acquire in try_take() and in wr_inject_maybe() */
    atomic_store_explicit(&inject->taking, 0, memory_order_release);
}

/* The holder: puts what was pushed at the end of the list. Returns the list. */
static ck_stack_entry_t *turn_round(struct wr_inject *inject, enum wr_class class)
{
    struct list *list = &inject->list[class];
    struct ck_stack *stack = &inject->pushed[class].stack;
    ck_stack_entry_t *first = atomic_load_explicit(&list->first, memory_order_relaxed);
    /* Looking before the exchange leaves the line with the producers while nothing is there. */
    if (!ck_pr_load_ptr(&stack->head))
        return first;
    ck_stack_entry_t *entry = ck_stack_batch_pop_upmc(stack);
    ck_stack_entry_t *last = entry, *batch = NULL;
    uint64_t count = atomic_load_explicit(&inject->pushes, memory_order_relaxed);
    for (; entry; count++) {
        ck_stack_entry_t *next = entry->next;
        entry->next = batch;
        batch = entry;
        entry = next;
    }
    if (first)
        list->last->next = batch;
    list->last = last;
    atomic_store_explicit(&inject->pushes, count, memory_order_relaxed);
    first = first ? first : batch;
    atomic_store_explicit(&list->first, first, memory_order_relaxed);
    return first;
}

/* The holder: takes the oldest of a class out. NULL: there is none. */
static ck_stack_entry_t *take(struct wr_inject *inject, enum wr_class class)
{
    struct list *list = &inject->list[class];
    ck_stack_entry_t *first = atomic_load_explicit(&list->first, memory_order_relaxed);
    if (!first)
        first = turn_round(inject, class);
    if (!first)
        return NULL;
    atomic_store_explicit(&list->first, first->next, memory_order_relaxed);
    inject->io_in_a_row = class == WR_CLASS_IO ? inject->io_in_a_row + 1 : 0;
    return first;
}

enum wr_take wr_inject_pop(struct wr_inject *inject, weir_work **ret_work)
{
    if (!try_take(inject))
        return WR_TAKE_UNCERTAIN;
    enum wr_class class = inject->io_in_a_row < WR_INJECT_IO_MAX ? WR_CLASS_IO : WR_CLASS_JOB;
    ck_stack_entry_t *entry = take(inject, class);
    if (!entry)
        entry = take(inject, class == WR_CLASS_IO ? WR_CLASS_JOB : WR_CLASS_IO);
    give_back(inject);
    if (!entry)
        return WR_TAKE_EMPTY;
    WR_TSAN_ACQUIRE(entry);
    *ret_work = work_of(entry);
    return WR_TAKE_ITEM;
}

static bool list_holds(const struct wr_inject *inject)
{
    return atomic_load_explicit(&inject->list[WR_CLASS_IO].first, memory_order_relaxed) ||
           atomic_load_explicit(&inject->list[WR_CLASS_JOB].first, memory_order_relaxed);
}

int wr_inject_maybe(const struct wr_inject *inject)
{
    /* "Maybe" needs no order. A list that holds something spares the producers' lines. */
    if (list_holds(inject))
        return 1;
    if (ck_pr_load_ptr(&inject->pushed[WR_CLASS_IO].stack.head) ||
        ck_pr_load_ptr(&inject->pushed[WR_CLASS_JOB].stack.head))
        return 1;
    /* Pairs with the store fence in try_take(). */
    ck_pr_fence_load();
    /* acquire: pairs with the release in give_back() */
    if (atomic_load_explicit(&inject->taking, memory_order_acquire))
        return 1;
    return list_holds(inject);
}

/* The holder. */
static weir_time oldest_of(struct wr_inject *inject, enum wr_class class)
{
    ck_stack_entry_t *entry = turn_round(inject, class);
    return entry ? work_of(entry)->posted_ : WEIR_NEVER;
}

weir_time wr_inject_oldest(struct wr_inject *inject)
{
    for (unsigned i = 0; i < OLDEST_TRIES_MAX; i++) {
        if (try_take(inject)) {
            weir_time oldest = oldest_of(inject, WR_CLASS_IO);
            weir_time job = oldest_of(inject, WR_CLASS_JOB);
            oldest = job < oldest ? job : oldest;
            atomic_store_explicit(&inject->oldest, oldest, memory_order_relaxed);
            give_back(inject);
            return oldest;
        }
        wr_cpu_relax();
    }
    return atomic_load_explicit(&inject->oldest, memory_order_relaxed);
}

uint64_t wr_inject_pushes(const struct wr_inject *inject)
{
    return atomic_load_explicit(&inject->pushes, memory_order_relaxed);
}

#ifdef WEIR_FAULTS
void wr_inject_hold(struct wr_inject *inject)
{
    while (!try_take(inject))
        wr_cpu_relax();
}

void wr_inject_let_go(struct wr_inject *inject)
{
    WR_ASSERT(atomic_load_explicit(&inject->taking, memory_order_relaxed));
    give_back(inject);
}
#endif
