/* keep.c: an object stays loaded while a destructor of it waits for a thread to end. A reference of
 * dlopen()'s would do as well, but must be given back by code that it keeps from being unloaded. */
#include "os/keep.h"

#include <dlfcn.h>
#include <link.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Weak: a C library may lack the first; the second would drag the dynamic loader into a static
 * program. */
int __cxa_thread_atexit_impl(void (*destroy)(void *), void *object, void *symbol)
    __attribute__((weak));
#pragma weak dladdr1

static void nothing(void *object)
{
    (void)object;
}

/* The program itself has no name among the loaded objects, and cannot be unloaded. */
static bool in_program(const void *address)
{
    Dl_info info;
    struct link_map *map = NULL;

    return dladdr1 && dladdr1(address, &info, (void **)&map, RTLD_DL_LINKMAP) && map &&
           map->l_name[0] == '\0';
}

void wr_keep_loaded(const void *address)
{
    if (__cxa_thread_atexit_impl && !in_program(address))
        (void)__cxa_thread_atexit_impl(nothing, NULL, (void *)(uintptr_t)address);
}
