/* bench.c: see bench.h. */
#include "support/bench.h"

#include <errno.h>
#include <linux/futex.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

enum { SUB = 1 << BENCH_SUB_BITS };

int64_t bench_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

uint64_t bench_argument(int argc, char **argv, const char *name, uint64_t normal)
{
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], name) != 0)
            continue;
        const char *text = i + 1 < argc ? argv[i + 1] : "";
        char *end;
        errno = 0;
        unsigned long long value = strtoull(text, &end, 10);
        if (errno != 0 || end == text || *end != '\0' || *text == '-') {
            fprintf(stderr, "%s: %s needs a number\n", argv[0], name);
            exit(2);
        }
        return value;
    }
    return normal;
}

int bench_flag(int argc, char **argv, const char *name)
{
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], name) == 0)
            return 1;
    return 0;
}

/* 0: another name; 1: this one; 2: this one, and a value follows. */
static int match(const char *known, const char *argument)
{
    size_t length = strlen(argument);
    if (strncmp(known, argument, length) != 0)
        return 0;
    return known[length] == '\0' ? 1 : strcmp(known + length, "=") == 0 ? 2 : 0;
}

void bench_only(int argc, char **argv, const char *const *known)
{
    for (int i = 1; i < argc;) {
        int words = 0;
        for (const char *const *name = known; *name && words == 0; name++)
            words = match(*name, argv[i]);
        if (words == 0) {
            fprintf(stderr, "%s: unknown argument %s; known:", argv[0], argv[i]);
            for (const char *const *name = known; *name; name++)
                fprintf(stderr, " %s", *name);
            fprintf(stderr, "\n");
            exit(2);
        }
        i += words;
    }
}

/* Values below SUB have a bucket each; above, each power of two is cut into SUB buckets. */
static unsigned bucket_of(uint64_t value)
{
    if (value < SUB)
        return (unsigned)value;
    unsigned power = 63u - (unsigned)__builtin_clzll(value);
    unsigned shift = power - BENCH_SUB_BITS;
    return ((shift + 1) << BENCH_SUB_BITS) + (unsigned)((value >> shift) & (SUB - 1));
}

static uint64_t bucket_end(unsigned bucket)
{
    if (bucket < SUB)
        return bucket;
    unsigned shift = (bucket >> BENCH_SUB_BITS) - 1;
    return ((((uint64_t)bucket & (SUB - 1)) + SUB) << shift) + ((UINT64_C(1) << shift) - 1);
}

int bench_connect(uint16_t port, int patience_s)
{
    struct timeval patience = { .tv_sec = patience_s };
    struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(port) };
    int on = 1;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);

    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -1;
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (connect(fd, (struct sockaddr *)&address, sizeof address) != 0) {
        close(fd);
        return -1;
    }
    return fd;
}

void bench_record(struct bench_histogram *histogram, int64_t nanoseconds)
{
    histogram->count++;
    histogram->buckets[bucket_of(nanoseconds < 0 ? 0 : (uint64_t)nanoseconds)]++;
}

void bench_merge(struct bench_histogram *into, const struct bench_histogram *from)
{
    into->count += from->count;
    for (unsigned i = 0; i < BENCH_BUCKETS; i++)
        into->buckets[i] += from->buckets[i];
}

uint64_t bench_percentile(const struct bench_histogram *histogram, double share)
{
    uint64_t wanted = (uint64_t)(share * (double)histogram->count);
    uint64_t seen = 0;

    for (unsigned i = 0; i < BENCH_BUCKETS; i++) {
        seen += histogram->buckets[i];
        if (seen > wanted || (seen > 0 && seen == histogram->count))
            return bucket_end(i);
    }
    return 0;
}

void bench_futex_wait(_Atomic uint32_t *word, uint32_t value, int64_t timeout_ns)
{
    struct timespec timeout = {
        .tv_sec = timeout_ns / 1000000000,
        .tv_nsec = timeout_ns % 1000000000,
    };
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, timeout_ns < 0 ? NULL : &timeout, NULL, 0);
}

void bench_futex_wake(_Atomic uint32_t *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}
