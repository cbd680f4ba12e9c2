/* floor.c: see floor.h. */
#include "floor/floor.h"

#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum {
    BACKLOG = 4096,
    SEND_PATIENCE_MS = 1000,    /* a client that does not read for so long is dropped */
    BUFFER_SIZE_MAX = 1 << 24,
    STUCK_MAX_MS = 10000,
};

/* The date is as dead as the rest: making it is a server's work, not the system's. */
static const char answer[] = "HTTP/1.1 200 OK\r\n"
                             "Server: floor\r\n"
                             "Date: Thu, 01 Jan 1970 00:00:00 GMT\r\n"
                             "Content-Type: text/plain\r\n"
                             "Content-Length: 13\r\n"
                             "\r\n"
                             "Hello, World!";

static char answers[FLOOR_ANSWERS_AT_ONCE * (sizeof answer - 1)];
char *floor_answers = answers;
const size_t floor_answer_length = sizeof answer - 1;

struct floor_options floor_options = { .buffer_size = 16384 };
struct floor_counts floor_counts[FLOOR_THREADS_MAX];

_Noreturn void floor_die(const char *what, int error)
{
    fprintf(stderr, "%s: %s\n", what, strerror(error < 0 ? -error : error));
    _exit(1);       /* from any thread: there is nothing to be released in good order */
}

void *floor_map(size_t length)
{
    void *memory = mmap(NULL, length, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (memory == MAP_FAILED)
        floor_die("mmap", errno);
    return memory;
}

bool floor_number(const char *text, unsigned long max, unsigned long *ret_value)
{
    char *end;
    errno = 0;
    unsigned long value = strtoul(text, &end, 10);
    if (errno != 0 || *end != '\0' || end == text || value == 0 || value > max)
        return false;
    *ret_value = value;
    return true;
}

static bool take_common(int option, const char *value)
{
    unsigned long number = 0;

    switch (option) {
    case 'm':
        floor_options.echo = !strcmp(value, "echo");
        return floor_options.echo || !strcmp(value, "http");
    case 'a':
        floor_options.reuse_port = !strcmp(value, "reuseport");
        return floor_options.reuse_port || !strcmp(value, "robin");
    case 't':
        if (!floor_number(value, FLOOR_THREADS_MAX, &number))
            return false;
        floor_options.threads = (unsigned)number;
        return true;
    case 'b':
        if (!floor_number(value, BUFFER_SIZE_MAX, &number))
            return false;
        floor_options.buffer_size = number;
        return true;
    case 'z':
        if (!floor_number(value, STUCK_MAX_MS, &number))
            return false;
        floor_options.stuck_ms = (unsigned)number;
        return true;
    default:
        return false;
    }
}

void floor_arguments(int argc, char **argv, const char *more,
                     bool (*take)(int option, const char *value), const char *words)
{
    char known[64];
    unsigned long port = 0;
    long cpus = sysconf(_SC_NPROCESSORS_ONLN);
    bool good = true;

    floor_options.threads = cpus < 1                   ? 1
                            : cpus > FLOOR_THREADS_MAX ? FLOOR_THREADS_MAX
                                                       : (unsigned)cpus;
    snprintf(known, sizeof known, "m:t:a:b:z:%s", more);
    for (int option; good && (option = getopt(argc, argv, known)) != -1;) {
        bool common = strchr("mtabz", option) != NULL;
        good = option != '?' && (common ? take_common(option, optarg) : take(option, optarg));
    }
    if (!good || optind != argc - 1 || !floor_number(argv[optind], UINT16_MAX, &port)) {
        fprintf(stderr, "usage: %s [-m http|echo] [-t threads] [-a robin|reuseport] [-b bytes]"
                        " [-z ms]%s port\n", argv[0], words);
        exit(2);
    }
    floor_options.port = (uint16_t)port;
    for (size_t i = 0; i < FLOOR_ANSWERS_AT_ONCE; i++)
        memcpy(answers + i * floor_answer_length, answer, floor_answer_length);
}

int floor_listen(int socket_flags)
{
    int on = 1;
    struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(floor_options.port) };
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);

    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | socket_flags, 0);
    if (fd < 0)
        floor_die("socket", errno);
    if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0)
        floor_die("SO_REUSEADDR", errno);
    if (floor_options.reuse_port && setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &on, sizeof on) != 0)
        floor_die("SO_REUSEPORT", errno);
    if (bind(fd, (struct sockaddr *)&address, sizeof address) != 0)
        floor_die("bind", errno);
    if (listen(fd, BACKLOG) != 0)
        floor_die("listen", errno);
    return fd;
}

static unsigned long long sum(size_t offset)
{
    unsigned long long total = 0;
    for (unsigned i = 0; i < floor_options.threads; i++) {
        atomic_ullong *counter = (atomic_ullong *)(void *)((char *)&floor_counts[i] + offset);
        total += atomic_load_explicit(counter, memory_order_relaxed);
    }
    return total;
}

_Noreturn void floor_run(void *(*loop)(void *index))
{
    sigset_t ends;
    int number;

    sigemptyset(&ends);
    sigaddset(&ends, SIGTERM);
    sigaddset(&ends, SIGINT);
    pthread_sigmask(SIG_BLOCK, &ends, NULL);
    for (unsigned i = 0; i < floor_options.threads; i++) {
        pthread_t thread;
        int r = pthread_create(&thread, NULL, loop, (void *)(uintptr_t)i);
        if (r != 0)
            floor_die("pthread_create", r);
    }
    sigwait(&ends, &number);
    printf("counts waits=%llu events=%llu receives=%llu sends=%llu armed=%llu\n",
           sum(offsetof(struct floor_counts, waits)), sum(offsetof(struct floor_counts, events)),
           sum(offsetof(struct floor_counts, receives)), sum(offsetof(struct floor_counts, sends)),
           sum(offsetof(struct floor_counts, armed)));
    fflush(stdout);
    _exit(0);       /* the loops run on: nothing of theirs may be released under them */
}

void floor_stick(const char *data)
{
    if (floor_options.stuck_ms == 0 || data[0] != 'Z')
        return;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    long end = now.tv_sec * 1000 + now.tv_nsec / 1000000 + floor_options.stuck_ms;
    while (now.tv_sec * 1000 + now.tv_nsec / 1000000 < end)
        clock_gettime(CLOCK_MONOTONIC, &now);
}

bool floor_send_all(int fd, const char *data, size_t length)
{
    while (length > 0) {
        ssize_t sent = send(fd, data, length, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent >= 0) {
            data += sent;
            length -= (size_t)sent;
        } else if (errno == EAGAIN) {
            struct pollfd room = { .fd = fd, .events = POLLOUT };
            if (poll(&room, 1, SEND_PATIENCE_MS) <= 0)
                return false;
        } else if (errno != EINTR) {
            return false;
        }
    }
    return true;
}

bool floor_send_answers(int fd, size_t count)
{
    while (count > 0) {
        size_t now = count < FLOOR_ANSWERS_AT_ONCE ? count : FLOOR_ANSWERS_AT_ONCE;
        if (!floor_send_all(fd, answers, now * floor_answer_length))
            return false;
        count -= now;
    }
    return true;
}
