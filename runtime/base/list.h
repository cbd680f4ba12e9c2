/* list.h: an intrusive doubly linked list with a head. No locking: its owner says who may touch
 * it. */
#ifndef WR_BASE_LIST_H
#define WR_BASE_LIST_H

#include <stdbool.h>
#include <stddef.h>

struct wr_list {
    struct wr_list *next;
    struct wr_list *prev;
};

#define WR_CONTAINER_OF(pointer, type, member) \
    ((type *)(void *)((char *)(pointer) - offsetof(type, member)))

static inline void wr_list_init(struct wr_list *list)
{
    list->next = list;
    list->prev = list;
}

static inline bool wr_list_empty(const struct wr_list *list)
{
    return list->next == list;
}

static inline void wr_list_add_tail(struct wr_list *list, struct wr_list *node)
{
    node->next = list;
    node->prev = list->prev;
    list->prev->next = node;
    list->prev = node;
}

static inline void wr_list_add_head(struct wr_list *list, struct wr_list *node)
{
    wr_list_add_tail(list->next, node);
}

/* Leaves the node pointing to itself: removing it again does nothing. */
static inline void wr_list_remove(struct wr_list *node)
{
    node->prev->next = node->next;
    node->next->prev = node->prev;
    wr_list_init(node);
}

static inline struct wr_list *wr_list_pop(struct wr_list *list)
{
    if (wr_list_empty(list))
        return NULL;
    struct wr_list *node = list->next;
    wr_list_remove(node);
    return node;
}

#endif
