/* echo_load.c: load for echo servers: N threads with one blocking connection each, all doing
 * nothing but write a packet and read it back. With one packet in flight a connection, the rate is
 * bounded by round trips, and what a server saves on a wake-up or a system call shows at once.
 *
 *     echo_load [--clients N] [--bytes N] [--seconds N] --port N
 *
 * Prints one JSON line; status 1 when an echo was wrong, late or missing. Only 127.0.0.1. */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "support/bench.h"

enum {
    CLIENTS_MAX = 4096,
    BYTES_MAX = 1 << 20,
    SECONDS_MAX = 600,
    PATIENCE_S = 5,
    STACK = 128 << 10,
};

struct client {
    pthread_t thread;
    int fd;
    unsigned char fill;
    uint64_t echoes;
    const char *error;
    struct bench_histogram times;
};

static size_t packet_size;
static atomic_bool stop;

static const char *exchange(int fd, const unsigned char *packet, unsigned char *back)
{
    for (size_t done = 0; done < packet_size;) {
        ssize_t n = send(fd, packet + done, packet_size - done, MSG_NOSIGNAL);
        if (n <= 0)
            return "send failed";
        done += (size_t)n;
    }
    for (size_t done = 0; done < packet_size;) {
        ssize_t n = recv(fd, back + done, packet_size - done, 0);
        if (n == 0)
            return "closed by the server";
        if (n < 0)
            return errno == EAGAIN ? "no echo in time" : "receive failed";
        done += (size_t)n;
    }
    return memcmp(packet, back, packet_size) == 0 ? NULL : "wrong bytes";
}

static void *run_client(void *argument)
{
    struct client *client = argument;
    unsigned char *packet = malloc(packet_size);
    unsigned char *back = malloc(packet_size);

    if (!packet || !back)
        client->error = "out of memory";
    else
        memset(packet, client->fill, packet_size);
    while (!client->error && !atomic_load_explicit(&stop, memory_order_relaxed)) {
        int64_t begin = bench_now_ns();
        client->error = exchange(client->fd, packet, back);
        if (client->error)
            break;
        bench_record(&client->times, bench_now_ns() - begin);
        client->echoes++;
        packet[client->echoes % packet_size]++;     /* an echo of the packet before is noticed */
    }
    free(packet);
    free(back);
    return NULL;
}

/* All connections stand before the first packet, so that connecting is not part of the rate. */
static bool connect_all(struct client *clients, unsigned count, uint16_t port)
{
    for (unsigned i = 0; i < count; i++) {
        clients[i].fill = (unsigned char)i;
        clients[i].fd = bench_connect(port, PATIENCE_S);
        if (clients[i].fd < 0) {
            fprintf(stderr, "echo_load: cannot connect: %s\n", strerror(errno));
            return false;
        }
    }
    return true;
}

static bool start_all(struct client *clients, unsigned count)
{
    pthread_attr_t attributes;

    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, STACK);
    for (unsigned i = 0; i < count; i++) {
        int r = pthread_create(&clients[i].thread, &attributes, run_client, &clients[i]);
        if (r != 0) {
            fprintf(stderr, "echo_load: cannot start a thread: %s\n", strerror(r));
            return false;
        }
    }
    pthread_attr_destroy(&attributes);
    return true;
}

/* Joins the clients and prints the line; returns how many failed. */
static unsigned report(struct client *clients, unsigned count, int64_t begin)
{
    static struct bench_histogram times;
    uint64_t echoes = 0;
    unsigned failed = 0;
    const char *error = "";

    for (unsigned i = 0; i < count; i++) {
        pthread_join(clients[i].thread, NULL);
        echoes += clients[i].echoes;
        failed += clients[i].error != NULL;
        error = clients[i].error ? clients[i].error : error;
        bench_merge(&times, &clients[i].times);
    }
    double elapsed = (double)(bench_now_ns() - begin) / 1e9;
    printf("{\"requests\": %llu, \"seconds\": %.3f, \"rate\": %.1f, ", (unsigned long long)echoes,
           elapsed, (double)echoes / elapsed);
    printf("\"p50_us\": %.1f, \"p90_us\": %.1f, \"p99_us\": %.1f, ",
           (double)bench_percentile(&times, 0.5) / 1e3, (double)bench_percentile(&times, 0.9) / 1e3,
           (double)bench_percentile(&times, 0.99) / 1e3);
    printf("\"failed\": %u, \"error\": \"%s\"}\n", failed, error);
    return failed;
}

int main(int argc, char **argv)
{
    static const char *const known[] = { "--clients=", "--bytes=", "--seconds=", "--port=", NULL };
    bench_only(argc, argv, known);
    uint64_t count = bench_argument(argc, argv, "--clients", 10);
    uint64_t seconds = bench_argument(argc, argv, "--seconds", 2);
    uint64_t port = bench_argument(argc, argv, "--port", 0);
    packet_size = bench_argument(argc, argv, "--bytes", 128);
    if (count - 1 >= CLIENTS_MAX || packet_size - 1 >= BYTES_MAX || seconds - 1 >= SECONDS_MAX
        || port - 1 >= UINT16_MAX) {
        fprintf(stderr, "usage: %s [--clients 1..%d] [--bytes 1..%d] [--seconds 1..%d] --port N\n",
                argv[0], CLIENTS_MAX, BYTES_MAX, SECONDS_MAX);
        return 2;
    }

    struct client *clients = calloc(count, sizeof *clients);
    if (!clients || !connect_all(clients, (unsigned)count, (uint16_t)port))
        return 1;
    int64_t begin = bench_now_ns();
    if (!start_all(clients, (unsigned)count))
        return 1;
    sleep((unsigned)seconds);
    atomic_store_explicit(&stop, true, memory_order_relaxed);

    unsigned failed = report(clients, (unsigned)count, begin);
    for (uint64_t i = 0; i < count; i++)
        close(clients[i].fd);
    free(clients);
    return failed > 0;
}
