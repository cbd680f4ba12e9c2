/* cpu.c: affinity and cgroup quota, the smaller of which is what a process can really use.
 *
 * A quota is found by the way of a line: /proc/self/cgroup says where we are in a hierarchy,
 * /proc/self/mountinfo where that hierarchy can be seen, and then each directory from our own up
 * to the mount point may hold a limit. Both versions are looked at always: on a hybrid system the
 * cpu controller belongs to either. All of it is text from outside: what does not parse exactly is
 * passed over. */
#include "os/cpu.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Room for 65536 CPUs: a mask smaller than the kernel's is refused, a larger one costs nothing. */
#define AFFINITY_SETS 64
/* Longer lines are passed over; those of cgroup mounts are short. */
#define LINE_SIZE 4096
#define NUMBER_SIZE 64

struct reader {
    int fd;
    size_t start, end;
    bool skipping;              /* inside a line that was too long */
    bool finished;
    char buffer[LINE_SIZE];
};

/* Where we are: paths inside the hierarchies, "" when not a member. */
struct membership {
    char v1[LINE_SIZE];
    char v2[LINE_SIZE];
};

static ssize_t read_some(int fd, char *buffer, size_t size)
{
    ssize_t r;
    do
        r = read(fd, buffer, size);
    while (r < 0 && errno == EINTR);
    return r;
}

static bool reader_open(struct reader *reader, const char *root, const char *name)
{
    char path[LINE_SIZE];
    int length = snprintf(path, sizeof path, "%s%s", root, name);
    if (length < 0 || (size_t)length >= sizeof path)
        return false;
    reader->start = reader->end = 0;
    reader->skipping = reader->finished = false;
    reader->fd = open(path, O_RDONLY | O_CLOEXEC);
    return reader->fd >= 0;
}

/* The next line without its newline, or NULL. Valid until the next call. */
static char *reader_line(struct reader *reader)
{
    for (;;) {
        char *line = reader->buffer + reader->start;
        char *newline = memchr(line, '\n', reader->end - reader->start);
        if (newline) {
            *newline = '\0';
            reader->start = (size_t)(newline - reader->buffer) + 1;
            if (!reader->skipping)
                return line;
            reader->skipping = false;
            continue;
        }
        if (reader->finished)
            return NULL;
        reader->end -= reader->start;
        memmove(reader->buffer, line, reader->end);
        reader->start = 0;
        if (reader->end == sizeof reader->buffer) {
            reader->skipping = true;
            reader->end = 0;
        }
        ssize_t got = read_some(reader->fd, reader->buffer + reader->end,
                                sizeof reader->buffer - reader->end);
        if (got > 0) {
            reader->end += (size_t)got;
            continue;
        }
        reader->finished = true;
        /* A last line without a newline is given one; the buffer is never full here. */
        if (reader->end > 0)
            reader->buffer[reader->end++] = '\n';
    }
}

/* Is `word` one of the comma-separated words of `list`? */
static bool has_word(const char *list, const char *word)
{
    size_t length = strlen(word);
    for (const char *at = list;; at++) {
        if (strncmp(at, word, length) == 0 && (at[length] == ',' || at[length] == '\0'))
            return true;
        at = strchr(at, ',');
        if (!at)
            return false;
    }
}

static bool parse_number(const char **text, uint64_t *ret_number)
{
    const char *at = *text;
    uint64_t number = 0;
    if (*at < '0' || *at > '9')
        return false;
    for (; *at >= '0' && *at <= '9'; at++)
        if (__builtin_mul_overflow(number, 10U, &number)
            || __builtin_add_overflow(number, (unsigned)(*at - '0'), &number))
            return false;
    *text = at;
    *ret_number = number;
    return true;
}

static void apply_quota(struct wr_cpu *cpu, uint64_t quota, uint64_t period)
{
    if (quota == 0 || period == 0)
        return;
    double cpus = (double)quota / (double)period;
    if (cpu->limited && cpus >= cpu->quota)
        return;
    cpu->limited = true;
    cpu->quota = cpus;
}

/* The first line of a small file, as text. */
static bool read_value(const char *directory, const char *name, char *value, size_t size)
{
    char path[LINE_SIZE];
    int length = snprintf(path, sizeof path, "%s/%s", directory, name);
    if (length < 0 || (size_t)length >= sizeof path)
        return false;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    ssize_t got = read_some(fd, value, size - 1);
    (void)close(fd);
    if (got <= 0)
        return false;
    value[got] = '\0';
    value[strcspn(value, "\n")] = '\0';
    return true;
}

static bool read_number(const char *directory, const char *name, uint64_t *ret_number)
{
    char value[NUMBER_SIZE];
    const char *at = value;
    /* "-1" is how v1 says that there is no quota: not a number here, hence no limit. */
    return read_value(directory, name, value, sizeof value) && parse_number(&at, ret_number)
           && *at == '\0';
}

static void look_v1(struct wr_cpu *cpu, const char *directory)
{
    uint64_t quota, period;
    if (read_number(directory, "cpu.cfs_quota_us", &quota)
        && read_number(directory, "cpu.cfs_period_us", &period))
        apply_quota(cpu, quota, period);
}

static void look_v2(struct wr_cpu *cpu, const char *directory)
{
    char value[NUMBER_SIZE];
    const char *at = value;
    uint64_t quota, period;
    /* "max 100000": not a number, hence no limit. */
    if (read_value(directory, "cpu.max", value, sizeof value) && parse_number(&at, &quota)
        && *at++ == ' ' && parse_number(&at, &period) && *at == '\0')
        apply_quota(cpu, quota, period);
}

static void find_membership(struct membership *where, const char *root)
{
    struct reader reader;
    where->v1[0] = where->v2[0] = '\0';
    if (!reader_open(&reader, root, "/proc/self/cgroup"))
        return;
    for (char *line; (line = reader_line(&reader)) != NULL;) {
        /* hierarchy:controllers:path, where the path may hold colons */
        char *rest = line;
        const char *hierarchy = strsep(&rest, ":");
        const char *controllers = strsep(&rest, ":");
        if (!rest || rest[0] != '/')
            continue;
        if (strcmp(hierarchy, "0") == 0 && controllers[0] == '\0')
            memcpy(where->v2, rest, strlen(rest) + 1);
        else if (has_word(controllers, "cpu"))
            memcpy(where->v1, rest, strlen(rest) + 1);
    }
    (void)close(reader.fd);
}

/* mountinfo writes blanks and backslashes as \ooo. */
static void unescape(char *text)
{
    char *to = text;
    for (const char *at = text; *at; at++, to++) {
        if (at[0] == '\\' && at[1] >= '0' && at[1] <= '3' && at[2] >= '0' && at[2] <= '7'
            && at[3] >= '0' && at[3] <= '7') {
            *to = (char)((at[1] - '0') * 64 + (at[2] - '0') * 8 + (at[3] - '0'));
            at += 3;
        } else {
            *to = *at;
        }
    }
    *to = '\0';
}

/* What of `path` is below `mount_root`; "" when it is not: then the mount point itself is the
 * nearest thing to our own group that can be seen from here (as in a container). */
static const char *below(const char *path, const char *mount_root)
{
    size_t length = strcmp(mount_root, "/") == 0 ? 0 : strlen(mount_root);
    if (strncmp(path, mount_root, length) != 0 || (path[length] != '/' && path[length] != '\0'))
        return "";
    /* Our group is outside of the namespace whose root is mounted. */
    if (strstr(path, "/../") || (strlen(path) >= 3 && strcmp(path + strlen(path) - 3, "/..") == 0))
        return "";
    return strcmp(path + length, "/") == 0 ? "" : path + length;
}

static void walk(struct wr_cpu *cpu, const char *root, const char *mount_point, const char *rest,
                 void (*look)(struct wr_cpu *cpu, const char *directory))
{
    char directory[LINE_SIZE];
    int length = snprintf(directory, sizeof directory, "%s%s%s", root, mount_point, rest);
    if (length < 0 || (size_t)length >= sizeof directory)
        return;
    size_t top = strlen(root) + strlen(mount_point);
    for (;;) {
        look(cpu, directory);
        char *slash = strrchr(directory + top, '/');
        if (!slash)
            return;
        *slash = '\0';
    }
}

static void find_quota(struct wr_cpu *cpu, const char *root, const struct membership *where)
{
    enum { ROOT = 3, POINT = 4, OPTIONAL = 6 };     /* fields of a line, counted from 0 */
    struct reader reader;
    if (!reader_open(&reader, root, "/proc/self/mountinfo"))
        return;
    for (char *line; (line = reader_line(&reader)) != NULL;) {
        char *rest = line, *mount_root = NULL, *mount_point = NULL, *field;
        for (int i = 0; (field = strsep(&rest, " ")) != NULL; i++) {
            if (i == ROOT)
                mount_root = field;
            else if (i == POINT)
                mount_point = field;
            else if (i >= OPTIONAL && strcmp(field, "-") == 0)
                break;
        }
        const char *type = strsep(&rest, " ");
        (void)strsep(&rest, " ");                   /* the source says nothing here */
        const char *options = strsep(&rest, " ");
        if (!type || !mount_root || !mount_point)
            continue;
        unescape(mount_root);
        unescape(mount_point);
        if (strcmp(type, "cgroup2") == 0 && where->v2[0])
            walk(cpu, root, mount_point, below(where->v2, mount_root), look_v2);
        else if (strcmp(type, "cgroup") == 0 && where->v1[0] && options && has_word(options, "cpu"))
            walk(cpu, root, mount_point, below(where->v1, mount_root), look_v1);
    }
    (void)close(reader.fd);
}

static unsigned count_affinity(void)
{
    cpu_set_t mask[AFFINITY_SETS];
    if (sched_getaffinity(0, sizeof mask, mask) == 0) {
        int count = CPU_COUNT_S(sizeof mask, mask);
        return count > 0 ? (unsigned)count : 1;
    }
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    return online > 0 && online < INT_MAX ? (unsigned)online : 1;
}

void wr_cpu_detect(struct wr_cpu *ret_cpu, const char *root)
{
    int saved = errno;
    struct wr_cpu cpu = { .affinity = count_affinity() };
    struct membership where;
    find_membership(&where, root);
    find_quota(&cpu, root, &where);

    cpu.usable = cpu.affinity;
    if (cpu.limited && cpu.quota < cpu.affinity) {
        cpu.usable = (unsigned)cpu.quota;
        if (cpu.usable < cpu.quota)
            cpu.usable++;
    }
    *ret_cpu = cpu;
    errno = saved;
}
