/* http_peer.h: what the peers in C and C++ share: the answer, a listener of their own for each
 * thread, and arguments.
 *
 *     http_NAME port threads
 */
#ifndef BENCH_PEERS_HTTP_PEER_H
#define BENCH_PEERS_HTTP_PEER_H

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "../support/heads.h"

enum { PEER_THREADS_MAX = 256, PEER_BACKLOG = 4096, PEER_ANSWERS_AT_ONCE = 64 };

/* As many bytes as the sample of weir sends: a peer must not win by sending less. The date is
 * dead; making one each second costs nothing that could be seen. */
#define PEER_ANSWER                                                                                \
    "HTTP/1.1 200 OK\r\n"                                                                          \
    "Server: peer\r\n"                                                                             \
    "Date: Thu, 01 Jan 1970 00:00:00 GMT\r\n"                                                      \
    "Content-Type: text/plain\r\n"                                                                 \
    "Content-Length: 13\r\n"                                                                       \
    "\r\n"                                                                                         \
    "Hello, World!"
enum { PEER_ANSWER_LENGTH = sizeof PEER_ANSWER - 1 };

struct peer_arguments {
    uint16_t port;
    unsigned threads;
};

static inline struct peer_arguments peer_arguments(int argc, char **argv)
{
    long port = argc == 3 ? strtol(argv[1], NULL, 10) : 0;
    long threads = argc == 3 ? strtol(argv[2], NULL, 10) : 0;
    struct peer_arguments arguments;

    if (port < 1 || port > UINT16_MAX || threads < 1 || threads > PEER_THREADS_MAX) {
        fprintf(stderr, "usage: %s port threads\n", argv[0]);
        exit(2);
    }
    signal(SIGPIPE, SIG_IGN);
    arguments.port = (uint16_t)port;
    arguments.threads = (unsigned)threads;
    return arguments;
}

/* A listening socket of this thread alone; the kernel spreads the connections. What is accepted
 * inherits TCP_NODELAY: a library that forgets it would be measured waiting for delayed ACKs. */
static inline int peer_listen(uint16_t port)
{
    int on = 1;
    struct sockaddr_in address;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

    memset(&address, 0, sizeof address);
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
        setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &on, sizeof on) != 0 ||
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) != 0 ||
        bind(fd, (struct sockaddr *)&address, sizeof address) != 0 ||
        listen(fd, PEER_BACKLOG) != 0) {
        perror("listen");
        exit(1);
    }
    return fd;
}

/* PEER_ANSWERS_AT_ONCE answers in a row, so that a batch leaves in one write. */
static inline char *peer_answers(void)
{
    char *answers = (char *)malloc((size_t)PEER_ANSWERS_AT_ONCE * PEER_ANSWER_LENGTH);

    if (!answers) {
        perror("malloc");
        exit(1);
    }
    for (size_t i = 0; i < PEER_ANSWERS_AT_ONCE; i++)
        memcpy(answers + i * PEER_ANSWER_LENGTH, PEER_ANSWER, PEER_ANSWER_LENGTH);
    return answers;
}

#endif
