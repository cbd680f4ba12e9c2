#include "asleep.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#define LOOKS_MAX 10000

static void pause_a_little(void)
{
    struct timespec pause = { .tv_nsec = 1000000 };
    (void)nanosleep(&pause, NULL);
}

static bool asleep(int tid)
{
    char path[64], line[512] = "";
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", tid);
    FILE *file = fopen(path, "re");
    if (!file)
        return false;
    char *got = fgets(line, sizeof line, file);
    (void)fclose(file);
    /* The name stands in parentheses and may hold anything. */
    char *end = got ? strrchr(line, ')') : NULL;
    return end && end[1] == ' ' && end[2] == 'S';
}

bool await_asleep(const _Atomic int *tid)
{
    for (int i = 0; i < LOOKS_MAX; i++) {
        /* acquire: pairs with the sleeper's store of its id */
        int id = atomic_load_explicit(tid, memory_order_acquire);
        if (id && asleep(id))
            return true;
        pause_a_little();
    }
    return false;
}

bool await_count(const _Atomic int *count, int least)
{
    for (int i = 0; i < LOOKS_MAX; i++) {
        /* acquire: pairs with the release by which a thread counts itself */
        if (atomic_load_explicit(count, memory_order_acquire) >= least)
            return true;
        pause_a_little();
    }
    return false;
}
