/* test_traffic.c: echo over many sockets while somebody pauses them, moves their deadlines, posts
 * and blocks: every byte comes back once and in order, callbacks of one socket never overlap. */
#include "support/rig.h"

#include <errno.h>
#include <unistd.h>

#include "support/stress.h"

#define LANES 24
#define CLIENTS 2
#define OUTSTANDING_MAX 65536

/* A lane that sends only when all has come back is stranded by a single edge that is lost. */
enum kind { ASKS, ASKS_AND_IS_PAUSED, STREAMS_AND_IS_PAUSED, KINDS };

struct lane {
    enum kind kind;
    weir_socket *socket;
    int peer;
    uint64_t sent, received; /* bytes; the n-th is byte_at(n) */
    _Atomic unsigned inside;
    uint64_t calls; /* not atomic: each call must see what the one before wrote */
    _Atomic uint64_t calls_counted;
};

struct traffic {
    struct rig rig;
    struct lane lanes[LANES];
    _Atomic unsigned stop, overlaps, refused, wrong;
    uint64_t seed;
};

static unsigned char byte_at(uint64_t n)
{
    return (unsigned char)(n * 0x9e3779b97f4a7c15u >> 56);
}

static struct traffic traffic;

static void echo(weir_socket *socket, const weir_view *view, int status, void *context)
{
    struct lane *lane = context;

    if (atomic_exchange(&lane->inside, 1))
        atomic_fetch_add(&traffic.overlaps, 1);
    lane->calls++;
    atomic_fetch_add(&lane->calls_counted, 1);
    if (status == 0 && view->length > 0 && weir_write(socket, view->data, view->length) != 0)
        atomic_fetch_add(&traffic.refused, 1);
    atomic_store(&lane->inside, 0);
}

static void send_some(struct lane *lane, struct support_random *random)
{
    unsigned char bytes[4096];
    size_t length = 1 + support_below(random, sizeof bytes);

    if (lane->sent - lane->received > (lane->kind == STREAMS_AND_IS_PAUSED ? OUTSTANDING_MAX : 0))
        return;
    for (size_t i = 0; i < length; i++)
        bytes[i] = byte_at(lane->sent + i);
    ssize_t n = send(lane->peer, bytes, length, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n > 0)
        lane->sent += (uint64_t)n;
}

static void receive_some(struct lane *lane)
{
    unsigned char bytes[8192];
    ssize_t n = recv(lane->peer, bytes, sizeof bytes, MSG_DONTWAIT);

    for (ssize_t i = 0; i < n; i++)
        if (bytes[i] != byte_at(lane->received + (uint64_t)i))
            atomic_fetch_add(&traffic.wrong, 1);
    if (n > 0)
        lane->received += (uint64_t)n;
}

struct client {
    pthread_t thread;
    unsigned number;
};

/* Sends and receives on its share of the lanes; at the end until all has come back. */
static void *be_client(void *context)
{
    const struct client *client = context;
    struct support_random random = support_random(traffic.seed, client->number);

    while (!atomic_load(&traffic.stop)) {
        struct lane *lane =
            &traffic.lanes[support_below(&random, LANES / CLIENTS) * CLIENTS + client->number];
        if (support_below(&random, 2))
            send_some(lane, &random);
        receive_some(lane);
        if (support_below(&random, 16) == 0)
            support_yield(&random);
    }
    for (unsigned i = client->number; i < LANES; i += CLIENTS) {
        struct lane *lane = &traffic.lanes[i];
        for (weir_time end = weir_after_ms(10000);
             lane->received < lane->sent && weir_now() < end;) {
            receive_some(lane);
            sched_yield();
        }
    }
    return NULL;
}

struct job {
    weir_work work;
    bool announced;
};

static void block_shortly(weir_work *work, void *context)
{
    struct job *job = context;
    const struct timespec span = {.tv_nsec = 300000};

    (void)work;
    if (job->announced)
        weir_blocking_begin();
    nanosleep(&span, NULL);
    if (job->announced)
        weir_blocking_end();
}

/* Whatever is legal from another thread and changes nothing of what comes back. */
static void *torment(void *context)
{
    struct support_random random = support_random(traffic.seed, 77);
    static struct job jobs[4];

    (void)context;
    for (unsigned i = 0; i < 4; i++) {
        jobs[i].announced = i % 2;
        weir_work_init(&jobs[i].work, block_shortly, &jobs[i]);
    }
    while (!atomic_load(&traffic.stop)) {
        struct lane *lane = &traffic.lanes[support_below(&random, LANES)];
        switch (support_below(&random, 4)) {
        case 0:
            if (lane->kind != ASKS && weir_read_stop(lane->socket) == 0) {
                support_yield(&random);
                weir_read_start(lane->socket, echo, lane);
            }
            break;
        case 1:
            weir_read_deadline(lane->socket, weir_after_us(support_below(&random, 500)));
            break;
        case 2:
            weir_post(traffic.rig.runtime, &jobs[support_below(&random, 4)].work);
            break;
        default:
            weir_stats_get(traffic.rig.runtime, &(weir_stats){.size = sizeof(weir_stats)});
            break;
        }
        support_yield(&random);
    }
    return NULL;
}

static void check_lanes(void)
{
    uint64_t bytes = 0;

    for (unsigned i = 0; i < LANES; i++) {
        struct lane *lane = &traffic.lanes[i];
        cr_expect_eq(lane->received, lane->sent, "lane %u: %llu of %llu bytes came back", i,
                     (unsigned long long)lane->received, (unsigned long long)lane->sent);
        bytes += lane->received;
        close(lane->peer);
    }
    cr_expect_eq(atomic_load(&traffic.overlaps), 0);
    cr_expect_eq(atomic_load(&traffic.refused), 0);
    cr_expect_eq(atomic_load(&traffic.wrong), 0);
    rig_close(&traffic.rig);
    for (unsigned i = 0; i < LANES; i++)
        cr_expect_eq(traffic.lanes[i].calls, atomic_load(&traffic.lanes[i].calls_counted));
    fprintf(stderr, "%llu KiB came back\n", (unsigned long long)(bytes >> 10));
}

/* What goes back soon finds the socket full. */
static void open_lane(struct lane *lane, enum kind kind)
{
    int fds[2], room = 4096;

    lane->kind = kind;
    cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    setsockopt(fds[0], SOL_SOCKET, SO_SNDBUF, &room, sizeof room);
    cr_assert_eq(weir_adopt(traffic.rig.runtime, fds[0], NULL, &lane->socket), 0);
    lane->peer = fds[1];
    cr_assert_eq(weir_read_start(lane->socket, echo, lane), 0);
}

static void run_traffic(unsigned pollers, unsigned workers, int64_t milliseconds)
{
    struct client clients[CLIENTS];
    weir_options options = WEIR_OPTIONS_INIT;
    pthread_t tormentor;

    memset(&traffic, 0, sizeof traffic);
    traffic.seed = support_seed();
    options.pollers = pollers;
    options.workers = workers;
    options.workers_max = workers + 2;
    rig_open_with(&traffic.rig, &options);
    for (unsigned i = 0; i < LANES; i++)
        open_lane(&traffic.lanes[i], i % KINDS);
    cr_assert_eq(pthread_create(&tormentor, NULL, torment, NULL), 0);
    for (unsigned i = 0; i < CLIENTS; i++) {
        clients[i].number = i;
        cr_assert_eq(pthread_create(&clients[i].thread, NULL, be_client, &clients[i]), 0);
    }
    rig_sleep_ms((int)milliseconds);
    atomic_store(&traffic.stop, 1);
    pthread_join(tormentor, NULL);
    for (unsigned i = 0; i < CLIENTS; i++)
        pthread_join(clients[i].thread, NULL);
    check_lanes();
}

/* D1, D4, D5 */
Test(traffic, every_byte_comes_back_once_and_in_order, .timeout = 3600)
{
    int64_t span = support_span_ms(1200) / 4;

    run_traffic(1, 1, span);
    run_traffic(1, 2, span);
    run_traffic(2, 4, span);
    run_traffic(3, 8, span);
}
