/* test_slow_reader.c: peers that do not read: what waits for them is bounded, the writer is told
 * once when it may go on, and nothing is lost or doubled on the way. */
#include "support/rig.h"

#include <errno.h>
#include <unistd.h>

#define PIECE 16384

struct writer {
    weir_socket *socket;
    int peer;
    _Atomic unsigned drains;
    _Atomic size_t pending_at_drain;
    uint32_t next; /* of the words that are written: each one more than the one before */
};

static void on_drain(weir_socket *socket, int status, void *context)
{
    struct writer *writer = context;

    if (status != 0)
        return;
    atomic_store(&writer->pending_at_drain, weir_write_pending(socket));
    atomic_fetch_add(&writer->drains, 1);
}

static void writer_open(struct rig *rig, struct writer *writer, size_t high, size_t low)
{
    weir_socket_options options = WEIR_SOCKET_OPTIONS_INIT;

    memset(writer, 0, sizeof *writer);
    options.write_high = high;
    options.write_low = low;
    writer->peer = rig_unix(rig, &options, &writer->socket);
    cr_assert_eq(weir_on_drain(writer->socket, on_drain, writer), 0);
}

static int write_piece(struct writer *writer)
{
    uint32_t words[PIECE / sizeof(uint32_t)];

    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        words[i] = writer->next + (uint32_t)i;
    int r = weir_write(writer->socket, words, sizeof words);
    if (r == 0)
        writer->next += sizeof words / sizeof words[0];
    return r;
}

/* Until the writer is refused; how many pieces were taken. */
static unsigned fill_up(struct writer *writer)
{
    unsigned taken = 0;
    int r;

    while ((r = write_piece(writer)) == 0)
        cr_assert_lt(++taken, 100000, "nobody stops the writer");
    cr_assert_eq(r, -EAGAIN);
    return taken;
}

/* The peer reads up to `length` in steps of `step`, checking the words; returns what is to come. */
static uint32_t read_words(struct writer *writer, uint32_t expected, size_t length, size_t step)
{
    unsigned char bytes[sizeof(uint32_t)];
    size_t have = 0;

    for (size_t got = 0; got < length;) {
        unsigned char buffer[PIECE];
        size_t want = step < length - got ? step : length - got;
        rig_peer_receive(writer->peer, buffer, want);
        for (size_t i = 0; i < want; i++) {
            bytes[have++] = buffer[i];
            if (have < sizeof bytes)
                continue;
            uint32_t word;
            memcpy(&word, bytes, sizeof word);
            cr_assert_eq(word, expected, "word %u came in place of %u", word, expected);
            expected++;
            have = 0;
        }
        got += want;
    }
    return expected;
}

/* (M01) */
Test(slow_reader, what_waits_for_a_peer_that_does_not_read_is_bounded, .timeout = 30)
{
    struct rig rig;
    struct writer writer;
    const size_t high = 256 * 1024, buffers = 3 * 132 * 1024; /* two workers, a poller */

    rig_open(&rig, 2);
    writer_open(&rig, &writer, high, 64 * 1024);
    uint64_t memory = rig_stats(&rig).memory;
    fill_up(&writer);
    size_t pending = weir_write_pending(writer.socket);
    cr_expect_geq(pending, high);
    cr_expect_lt(pending, high + PIECE);
    for (unsigned i = 0; i < 1000; i++)
        cr_assert_eq(write_piece(&writer), -EAGAIN);
    cr_expect_eq(weir_write_pending(writer.socket), pending, "a refused write took something");
    weir_stats stats = rig_stats(&rig);
    cr_expect_eq(stats.write_pending, pending);
    cr_expect_leq(stats.memory - memory, high + high / 4 + buffers);
    rig_sleep_ms(20);
    cr_expect_eq(atomic_load(&writer.drains), 0);
    read_words(&writer, 0, writer.next * sizeof(uint32_t), PIECE);
    cr_expect(RIG_UNTIL(rig_stats(&rig).memory <= memory + buffers, 2000));
    cr_expect_eq(rig_stats(&rig).write_pending, 0);
    close(writer.peer);
    rig_close(&rig);
}

/* (M01) The sum over all sockets is bounded as well, each may have one write wait, and who was
 * refused is told when it may go on. */
Test(slow_reader, writers_below_their_marks_are_refused_when_the_budget_of_all_is_used_up,
     .timeout = 60)
{
    enum { WRITERS = 32 };
    const size_t budget = 1 << 20;
    struct rig rig;
    struct writer writers[WRITERS];
    weir_options options = WEIR_OPTIONS_INIT;

    options.workers = options.workers_max = 2;
    options.write_budget = budget;
    rig_open_with(&rig, &options);
    for (unsigned i = 0; i < WRITERS; i++) {
        writer_open(&rig, &writers[i], 4 << 20, 2 << 20);
        unsigned pieces = fill_up(&writers[i]);
        cr_expect_gt(pieces, 0);
        cr_expect_gt(weir_write_pending(writers[i].socket), 0, "writer %u has nothing to wait for",
                     i);
        cr_expect_lt(weir_write_pending(writers[i].socket), 4 << 20);
    }
    weir_stats stats = rig_stats(&rig);
    cr_expect_eq(stats.write_budget_set, budget);
    cr_expect_geq(stats.write_pending, budget);
    cr_expect_leq(stats.write_pending, budget + WRITERS * PIECE);

    /* The others keep the budget used up: the one is told when all of its own has left. */
    struct writer *last = &writers[WRITERS - 1];
    read_words(last, 0, last->next * sizeof(uint32_t), PIECE);
    cr_expect(RIG_UNTIL(atomic_load(&last->drains) == 1, 5000), "it is never told");
    cr_expect_eq(atomic_load(&last->pending_at_drain), 0);
    uint32_t read = last->next;
    cr_expect_eq(write_piece(last), 0, "the kernel has room, and it is refused");
    read_words(last, read, PIECE, PIECE);
    for (unsigned i = 0; i < WRITERS - 1; i++)
        cr_expect_eq(atomic_load(&writers[i].drains), 0);

    /* What the first one keeps is most of it: it is told as soon as the sum is below the budget. */
    for (read = 0; rig_stats(&rig).write_pending >= budget;) {
        cr_expect_eq(atomic_load(&writers[0].drains), 0, "told with the budget used up");
        read = read_words(&writers[0], read, PIECE / 4, PIECE);
        rig_sleep_ms(2);
    }
    read = read_words(&writers[0], read, 64 * 1024, PIECE);
    cr_expect(RIG_UNTIL(atomic_load(&writers[0].drains) == 1, 5000), "it is not told");
    cr_expect_gt(weir_write_pending(writers[0].socket), 0);
    for (unsigned i = 0; i < WRITERS - 1; i++) {
        read = read_words(&writers[i], i ? 0 : read,
                          (writers[i].next - (i ? 0 : read)) * sizeof(uint32_t), PIECE);
        cr_expect(RIG_UNTIL(atomic_load(&writers[i].drains) == 1, 5000), "writer %u", i);
    }
    cr_expect(RIG_UNTIL(rig_stats(&rig).write_pending == 0, 2000));
    for (unsigned i = 0; i < WRITERS; i++)
        close(writers[i].peer);
    rig_close(&rig);
}

/* Until what waits has reached the mark; the writer is not refused. */
static void fill_to(struct writer *writer, size_t high)
{
    for (unsigned taken = 0; weir_write_pending(writer->socket) < high; taken++) {
        cr_assert_lt(taken, 100000, "nobody counts");
        cr_assert_eq(write_piece(writer), 0);
    }
}

static uint32_t read_until_told(struct writer *writer, uint32_t read, unsigned drains)
{
    /* Between the marks. */
    read = read_words(writer, read, 512 * 1024, PIECE);
    cr_assert(RIG_UNTIL(weir_write_pending(writer->socket) < 768 * 1024, 2000));
    cr_assert_gt(weir_write_pending(writer->socket), 64 * 1024);
    rig_sleep_ms(5);
    cr_expect_eq(atomic_load(&writer->drains), drains, "told above the low mark");
    read = read_words(writer, read, 4096, 1);
    read = read_words(writer, read, (writer->next - read) * sizeof(uint32_t), PIECE);
    cr_expect(RIG_UNTIL(atomic_load(&writer->drains) > drains, 5000), "not told");
    rig_sleep_ms(5);
    cr_expect_eq(atomic_load(&writer->drains), drains + 1, "told again");
    cr_expect_leq(atomic_load(&writer->pending_at_drain), 64 * 1024);
    return read;
}

/* (R06) */
Test(slow_reader, writer_is_told_once_for_each_time_the_marks_were_crossed, .timeout = 60)
{
    struct rig rig;
    struct writer writer;
    uint32_t read = 0;

    rig_open(&rig, 2);
    writer_open(&rig, &writer, 1 << 20, 64 * 1024);
    fill_up(&writer);
    read = read_until_told(&writer, read, 0);
    fill_to(&writer, 1 << 20); /* crossed, and never refused */
    read = read_until_told(&writer, read, 1);
    fill_up(&writer);
    read_until_told(&writer, read, 2);
    close(writer.peer);
    rig_close(&rig);
}

/* (R06) Below the high mark nothing is told, however often it empties. */
Test(slow_reader, writer_that_was_never_refused_is_told_nothing, .timeout = 30)
{
    struct rig rig;
    struct writer writer;
    uint32_t read = 0;

    rig_open(&rig, 2);
    writer_open(&rig, &writer, 4 << 20, 1 << 20);
    for (unsigned round = 0; round < 5; round++) {
        for (unsigned i = 0; i < 40; i++) /* more than the kernel takes, less than the mark */
            cr_assert_eq(write_piece(&writer), 0);
        read = read_words(&writer, read, (writer.next - read) * sizeof(uint32_t), PIECE);
    }
    cr_expect(RIG_UNTIL(weir_write_pending(writer.socket) == 0, 2000));
    rig_sleep_ms(10);
    cr_expect_eq(atomic_load(&writer.drains), 0);
    close(writer.peer);
    rig_close(&rig);
}

static void write_until_refused(weir_socket *socket, const weir_view *view, int status,
                                void *context)
{
    struct writer *writer = context;
    int r = 0;

    (void)socket;
    if (status < 0 || view->length == 0)
        return;
    for (unsigned i = 0; i < 100 && r == 0; i++)
        r = write_piece(writer);
}

/* (R06) What a callback wrote crosses the mark, and all of it leaves when the callback returns. */
Test(slow_reader, mark_crossed_and_left_within_one_callback_is_told_once, .timeout = 30)
{
    struct rig rig;
    struct writer writer;

    rig_open(&rig, 2);
    writer_open(&rig, &writer, 2 * PIECE, PIECE);
    cr_assert_eq(weir_read_start(writer.socket, write_until_refused, &writer), 0);
    for (unsigned round = 1; round <= 3; round++) {
        rig_peer_send(writer.peer, "x", 1);
        cr_expect(RIG_UNTIL(atomic_load(&writer.drains) == round, 2000), "round %u: %u times told",
                  round, atomic_load(&writer.drains));
        rig_sleep_ms(5);
        cr_expect_eq(atomic_load(&writer.drains), round);
        read_words(&writer, (round - 1) * 2 * PIECE / 4, 2 * PIECE, PIECE);
    }
    close(writer.peer);
    rig_close(&rig);
}

/* ---- a server whose client asks and does not read ------------------------------------------ */

#define REQUEST 16
#define ANSWER 256

struct server {
    _Atomic unsigned paused, resumed;
    unsigned char rest[REQUEST * 65536];
    size_t have;
    weir_socket *socket;
};

static void serve(weir_socket *socket, const weir_view *view, int status, void *context);

/* Answers what is there, until the marks say no; then pauses reading. */
static void answer_all(struct server *server)
{
    size_t at = 0;
    int r = 0;

    while (server->have - at >= REQUEST && r == 0) {
        unsigned char answer[ANSWER] = {0};
        memcpy(answer, server->rest + at, REQUEST);
        r = weir_write(server->socket, answer, sizeof answer);
        if (r == 0)
            at += REQUEST;
    }
    memmove(server->rest, server->rest + at, server->have - at);
    server->have -= at;
    if (r == -EAGAIN && weir_read_stop(server->socket) == 0)
        atomic_fetch_add(&server->paused, 1);
}

static void serve(weir_socket *socket, const weir_view *view, int status, void *context)
{
    struct server *server = context;

    (void)socket;
    if (status < 0 || view->length == 0)
        return;
    memcpy(server->rest + server->have, view->data, view->length);
    server->have += view->length;
    answer_all(server);
}

static void go_on(weir_socket *socket, int status, void *context)
{
    struct server *server = context;

    if (status != 0)
        return;
    atomic_fetch_add(&server->resumed, 1);
    weir_read_start(socket, serve, server);
    answer_all(server);
}

struct client {
    int fd;
    unsigned requests;
    pthread_t thread;
    _Atomic unsigned sent;
};

static void *ask(void *context)
{
    struct client *client = context;

    for (unsigned i = 0; i < client->requests; i++) {
        unsigned char request[REQUEST] = {0};
        memcpy(request, &i, sizeof i);
        if (send(client->fd, request, sizeof request, MSG_NOSIGNAL) != sizeof request)
            break;
        atomic_fetch_add(&client->sent, 1);
    }
    return NULL;
}

/* (M01) A hundred thousand requests in a row, and nobody reads the answers at first. */
Test(slow_reader, server_pauses_for_a_client_that_asks_and_does_not_read, .timeout = 60)
{
    struct rig rig;
    static struct server server;
    struct client client = {.requests = 100000};
    weir_socket_options options = WEIR_SOCKET_OPTIONS_INIT;

    rig_open(&rig, 2);
    options.write_high = 128 * 1024;
    client.fd = rig_unix(&rig, &options, &server.socket);
    cr_assert_eq(weir_on_drain(server.socket, go_on, &server), 0);
    cr_assert_eq(weir_read_start(server.socket, serve, &server), 0);
    cr_assert_eq(pthread_create(&client.thread, NULL, ask, &client), 0);
    cr_assert(RIG_UNTIL(atomic_load(&server.paused) > 0, 5000), "it never pauses");
    rig_sleep_ms(100); /* the client goes on until nobody takes its requests */
    cr_expect_lt(atomic_load(&client.sent), client.requests);
    cr_expect_leq(weir_write_pending(server.socket), 128 * 1024 + ANSWER);
    for (unsigned i = 0; i < client.requests; i++) {
        unsigned char reply[ANSWER];
        unsigned number;
        rig_peer_receive(client.fd, reply, sizeof reply);
        memcpy(&number, reply, sizeof number);
        cr_assert_eq(number, i, "answer %u came in place of %u", number, i);
    }
    pthread_join(client.thread, NULL);
    /* The last call may still be on its way; a mark crossed without a refusal is told, too. */
    cr_expect(RIG_UNTIL(atomic_load(&server.resumed) >= atomic_load(&server.paused), 2000));
    cr_expect(RIG_UNTIL(weir_write_pending(server.socket) == 0, 2000));
    close(client.fd);
    rig_close(&rig);
}

static void count_closed(void *context)
{
    atomic_fetch_add((_Atomic unsigned *)context, 1);
}

/* (M01) A hundred peers that never read: bounded each, and gone when their time is over. */
Test(slow_reader, stalled_peers_are_closed_when_their_linger_is_over, .timeout = 60)
{
    struct rig rig;
    static struct writer writers[100];
    weir_socket_options options = WEIR_SOCKET_OPTIONS_INIT;
    _Atomic unsigned closed = 0;

    rig_open(&rig, 2);
    options.write_high = 64 * 1024;
    options.linger_ms = 100;
    uint64_t memory = rig_stats(&rig).memory;
    for (unsigned i = 0; i < 100; i++) {
        memset(&writers[i], 0, sizeof writers[i]);
        writers[i].peer = rig_unix(&rig, &options, &writers[i].socket);
        fill_up(&writers[i]);
    }
    cr_expect_leq(rig_stats(&rig).memory - memory, 100 * (64 + 2 * 16 + 8) * 1024ULL);
    int64_t begin = rig_now_ms();
    for (unsigned i = 0; i < 100; i++)
        cr_assert_eq(weir_close(writers[i].socket, count_closed, &closed), 0);
    cr_expect(RIG_UNTIL(atomic_load(&closed) == 100, 10000), "%u of 100 are closed",
              atomic_load(&closed));
    int64_t took = rig_now_ms() - begin;
    cr_expect_geq(took, 99);
    cr_expect_leq(took, 100 + rig_patience(400), "%lld ms", (long long)took);
    cr_expect_eq(rig_stats(&rig).write_pending, 0);
    cr_expect_eq(rig_stats(&rig).sources, 0);
    for (unsigned i = 0; i < 100; i++)
        close(writers[i].peer);
    rig_close(&rig);
}
