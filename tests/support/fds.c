#include "support/fds.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <time.h>

static int count_entries(const char *path, int own)
{
    DIR *directory = opendir(path);
    int count = 0;

    if (!directory)
        return -errno;
    for (const struct dirent *entry = readdir(directory); entry; entry = readdir(directory))
        count += entry->d_name[0] != '.';
    closedir(directory);
    return count - own;
}

int support_count_fds(void)
{
    return count_entries("/proc/self/fd", 1);
}

int support_count_threads(void)
{
    return count_entries("/proc/self/task", 0);
}

int support_count_maps(void)
{
    FILE *maps = fopen("/proc/self/maps", "re");
    int count = 0;

    if (!maps)
        return -errno;
    for (int byte = fgetc(maps); byte != EOF; byte = fgetc(maps))
        count += byte == '\n';
    fclose(maps);
    return count;
}

struct support_held support_held(void)
{
    return (struct support_held){
        .fds = support_count_fds(),
        .threads = support_count_threads(),
        .maps = support_count_maps(),
    };
}

int support_await_threads(int threads, int milliseconds)
{
    const struct timespec pause = {.tv_nsec = 1000000};
    int count = support_count_threads();

    for (int i = 0; count > threads && i < milliseconds; i++) {
        nanosleep(&pause, NULL);
        count = support_count_threads();
    }
    return count;
}
