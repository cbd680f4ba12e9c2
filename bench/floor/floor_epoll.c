/* floor_epoll.c: what system calls alone cost. One epoll loop a thread, each doing nothing but
 * receive, count, answer: no parser, no timers, no queues, no hand-off. It bounds from below what
 * a server on epoll can spend on a request on this machine, so that figures of other servers can
 * be read as "so much above the floor". It is no server: it trusts its client and waits for a slow
 * one.
 *
 *     floor_epoll [-m http|echo] [-t threads] [-a robin|reuseport] [-b bytes] port
 *
 * http counts "\r\n\r\n" in the byte stream and sends as many canned answers in one go; echo sends
 * back what it got. `robin` places connections in turn (the first loop accepts for all),
 * `reuseport` leaves the choice to the kernel's hash, which with few connections loads the loops
 * unevenly. */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    THREADS_MAX = 256,
    EVENTS_MAX = 512,
    BACKLOG = 4096,
    ANSWERS_AT_ONCE = 64,
    SEND_PATIENCE_MS = 1000,    /* a client that does not read for so long is dropped */
};

/* The date is as dead as the rest: making it is a server's work, not the system's. */
static const char answer[] = "HTTP/1.1 200 OK\r\n"
                             "Server: floor\r\n"
                             "Date: Thu, 01 Jan 1970 00:00:00 GMT\r\n"
                             "Content-Type: text/plain\r\n"
                             "Content-Length: 13\r\n"
                             "\r\n"
                             "Hello, World!";
#define ANSWER_LENGTH (sizeof answer - 1)

static char answers[ANSWERS_AT_ONCE * ANSWER_LENGTH];

static struct {
    bool echo;
    bool reuse_port;
    uint16_t port;
    size_t buffer_size;
    unsigned threads;
    int epolls[THREADS_MAX];
    unsigned char *matched;     /* one byte a descriptor: how much of "\r\n\r\n" has been seen */
    size_t matched_count;
} config;

static void die(const char *what)
{
    perror(what);
    exit(1);
}

static int listen_on(uint16_t port)
{
    int on = 1;
    struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(port) };
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);

    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        die("socket");
    if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0)
        die("SO_REUSEADDR");
    if (config.reuse_port && setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &on, sizeof on) != 0)
        die("SO_REUSEPORT");
    if (bind(fd, (struct sockaddr *)&address, sizeof address) != 0)
        die("bind");
    if (listen(fd, BACKLOG) != 0)
        die("listen");
    return fd;
}

static void watch(int epoll, int fd, uint32_t events)
{
    struct epoll_event event = { .events = events, .data.fd = fd };
    if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) != 0)
        die("epoll_ctl");
}

/* How many heads end in `data`; `*matched` carries an unfinished end over to the next read. */
static size_t count_heads(unsigned char *matched, const char *data, size_t length)
{
    static const char end[] = { '\r', '\n', '\r', '\n' };
    unsigned char seen = *matched;
    size_t heads = 0;

    for (size_t i = 0; i < length; i++) {
        if (seen == 0) {
            const char *cr = memchr(data + i, '\r', length - i);
            if (!cr)
                break;
            i = (size_t)(cr - data);
            seen = 1;
        } else if (data[i] != end[seen]) {
            seen = data[i] == '\r';
        } else if (++seen == sizeof end) {
            heads++;
            seen = 0;
        }
    }
    *matched = seen;
    return heads;
}

static bool send_all(int fd, const char *data, size_t length)
{
    while (length > 0) {
        ssize_t sent = send(fd, data, length, MSG_NOSIGNAL);
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

static bool send_answers(int fd, size_t count)
{
    while (count > 0) {
        size_t now = count < ANSWERS_AT_ONCE ? count : ANSWERS_AT_ONCE;
        if (!send_all(fd, answers, now * ANSWER_LENGTH))
            return false;
        count -= now;
    }
    return true;
}

/* One event of a connection. A read that does not fill the buffer has emptied the socket, which
 * saves the read that would say EAGAIN; the edge of what comes later is a new event. */
static void serve(int fd, char *buffer)
{
    for (;;) {
        ssize_t got = recv(fd, buffer, config.buffer_size, 0);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0 && errno == EAGAIN)
            return;
        if (got <= 0)
            break;
        size_t length = (size_t)got;
        bool alive;
        if (config.echo)
            alive = send_all(fd, buffer, length);
        else
            alive = send_answers(fd, count_heads(&config.matched[fd], buffer, length));
        if (!alive)
            break;
        if (length < config.buffer_size)
            return;
    }
    close(fd);
}

static void accept_all(int listener, unsigned own, unsigned *turn)
{
    for (;;) {
        int on = 1;
        int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0)
            return;
        if ((size_t)fd >= config.matched_count) {
            close(fd);
            continue;
        }
        config.matched[fd] = 0;
        (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        unsigned loop = config.reuse_port ? own : (*turn)++ % config.threads;
        /* The end of the peer is an edge of its own (RDHUP): the read it causes returns 0. */
        watch(config.epolls[loop], fd, EPOLLIN | EPOLLRDHUP | EPOLLET);
    }
}

static void *run_loop(void *argument)
{
    unsigned own = (unsigned)(uintptr_t)argument;
    unsigned turn = 0;
    int listener = config.reuse_port || own == 0 ? listen_on(config.port) : -1;
    int epoll = config.epolls[own];
    char *buffer = malloc(config.buffer_size);
    struct epoll_event events[EVENTS_MAX];

    if (!buffer)
        die("malloc");
    if (listener >= 0)
        watch(epoll, listener, EPOLLIN);
    for (;;) {
        int count = epoll_wait(epoll, events, EVENTS_MAX, -1);
        for (int i = 0; i < count; i++) {
            if (events[i].data.fd == listener)
                accept_all(listener, own, &turn);
            else
                serve(events[i].data.fd, buffer);
        }
    }
    return NULL;
}

static void usage(const char *name)
{
    fprintf(stderr, "usage: %s [-m http|echo] [-t threads] [-a robin|reuseport] [-b bytes] port\n",
            name);
    exit(2);
}

static unsigned long number(const char *text, unsigned long max, const char *name)
{
    char *end;
    errno = 0;
    unsigned long value = strtoul(text, &end, 10);
    if (errno != 0 || *end != '\0' || end == text || value == 0 || value > max)
        usage(name);
    return value;
}

static void read_arguments(int argc, char **argv)
{
    long cpus = sysconf(_SC_NPROCESSORS_ONLN);
    config.threads = cpus < 1 ? 1 : cpus > THREADS_MAX ? THREADS_MAX : (unsigned)cpus;
    config.buffer_size = 16384;

    for (int option; (option = getopt(argc, argv, "m:t:a:b:")) != -1;) {
        if (option == 'm' && (!strcmp(optarg, "http") || !strcmp(optarg, "echo")))
            config.echo = !strcmp(optarg, "echo");
        else if (option == 't')
            config.threads = (unsigned)number(optarg, THREADS_MAX, argv[0]);
        else if (option == 'a' && (!strcmp(optarg, "robin") || !strcmp(optarg, "reuseport")))
            config.reuse_port = !strcmp(optarg, "reuseport");
        else if (option == 'b')
            config.buffer_size = number(optarg, 1UL << 24, argv[0]);
        else
            usage(argv[0]);
    }
    if (optind != argc - 1)
        usage(argv[0]);
    config.port = (uint16_t)number(argv[optind], UINT16_MAX, argv[0]);
}

int main(int argc, char **argv)
{
    struct rlimit files;

    read_arguments(argc, argv);
    for (size_t i = 0; i < ANSWERS_AT_ONCE; i++)
        memcpy(answers + i * ANSWER_LENGTH, answer, ANSWER_LENGTH);
    if (getrlimit(RLIMIT_NOFILE, &files) != 0)
        die("getrlimit");
    config.matched_count = files.rlim_cur < (1UL << 20) ? files.rlim_cur : 1UL << 20;
    config.matched = calloc(config.matched_count, 1);
    if (!config.matched)
        die("calloc");
    for (unsigned i = 0; i < config.threads; i++) {
        config.epolls[i] = epoll_create1(EPOLL_CLOEXEC);
        if (config.epolls[i] < 0)
            die("epoll_create1");
    }
    for (unsigned i = 1; i < config.threads; i++) {
        pthread_t thread;
        int r = pthread_create(&thread, NULL, run_loop, (void *)(uintptr_t)i);
        if (r != 0) {
            errno = r;
            die("pthread_create");
        }
    }
    run_loop(NULL);
    return 0;
}
