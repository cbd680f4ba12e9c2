/* The persistent reader: every byte, then the end; pauses lose nothing; hang-ups do not spin. */
#include <errno.h>
#include <unistd.h>

#include "net/net.h"
#include "rig_wait.h"

enum { TAIL = 100 << 10 };

struct reader {
    pthread_mutex_t lock;
    size_t received, calls, limit;
    unsigned ends, timeouts, calls_after_stop;
    int status;
    bool stop_each, stopped, wrong;
    _Atomic bool ended;
};

static unsigned char byte_at(size_t index)
{
    return (unsigned char)(index * 131 >> 4);
}

static void on_read(weir_socket *socket, const weir_view *view, int status, void *context)
{
    struct reader *reader = context;

    pthread_mutex_lock(&reader->lock);
    reader->calls++;
    if (reader->stopped)
        reader->calls_after_stop++;
    for (size_t i = 0; i < view->length; i++)
        if (view->data[i] != byte_at(reader->received + i))
            reader->wrong = true;
    reader->received += view->length;
    if (status == -ETIMEDOUT) {
        reader->timeouts++;
    } else if (status < 0 || view->length == 0) {
        reader->ends++;
        reader->status = status;
    }
    if (reader->stop_each && reader->ends == 0) {
        reader->stopped = true;
        cr_assert_eq(weir_read_stop(socket), 0);
    }
    pthread_mutex_unlock(&reader->lock);
    if (reader->ends > 0)
        atomic_store(&reader->ended, true);
}

static void reader_init(struct reader *reader)
{
    memset(reader, 0, sizeof *reader);
    pthread_mutex_init(&reader->lock, NULL);
}

static size_t get(struct reader *reader, const size_t *field)
{
    pthread_mutex_lock(&reader->lock);
    size_t value = *field;
    pthread_mutex_unlock(&reader->lock);
    return value;
}

static void send_tail(int peer)
{
    static unsigned char bytes[TAIL];

    for (size_t i = 0; i < TAIL; i++)
        bytes[i] = byte_at(i);
    rig_peer_send(peer, bytes, TAIL);
    shutdown(peer, SHUT_WR);
}

Test(read, every_byte_comes_before_the_end, .timeout = 30) /* (F13) */
{
    struct rig rig;
    struct reader reader;
    weir_socket *socket;
    char byte;

    rig_open(&rig, 2);
    for (int round = 0; round < 20; round++) {
        reader_init(&reader);
        int peer = rig_tcp(&rig, NULL, &socket);
        if (round % 2)
            cr_assert_eq(weir_read_start(socket, on_read, &reader), 0);
        send_tail(peer);
        if (round % 2 == 0)
            cr_assert_eq(weir_read_start(socket, on_read, &reader), 0);
        cr_assert(RIG_UNTIL(atomic_load(&reader.ended), 5000), "%zu bytes came", reader.received);
        cr_assert_eq(reader.received, TAIL);
        cr_assert_not(reader.wrong);
        cr_assert_eq(reader.status, 0);
        cr_assert_eq(weir_write(socket, "x", 1), 0, "sending still works");
        rig_peer_receive(peer, &byte, 1);
        close(peer);
        cr_assert_eq(weir_close_wait(socket), 0);
        cr_assert_eq(reader.ends, 1);
    }
    rig_close(&rig);
}

Test(read, a_pause_after_each_call_loses_nothing, .timeout = 30) /* (F13) */
{
    struct rig rig;
    struct reader reader;
    weir_socket *socket;

    rig_open(&rig, 2);
    reader_init(&reader);
    reader.stop_each = true;
    int peer = rig_unix(&rig, NULL, &socket);
    cr_assert_eq(weir_read_start(socket, on_read, &reader), 0);
    send_tail(peer);
    while (!atomic_load(&reader.ended)) {
        bool called = RIG_UNTIL(get(&reader, &reader.calls) > 0, 5000);
        cr_assert(called, "%zu bytes came, then nothing", reader.received);
        pthread_mutex_lock(&reader.lock);
        reader.calls = 0;
        reader.stopped = false;
        pthread_mutex_unlock(&reader.lock);
        if (!atomic_load(&reader.ended))
            (void)weir_read_start(socket, on_read, &reader); /* -EBUSY when it has not stopped */
        rig_sleep_ms(1);
    }
    cr_assert_eq(reader.received, TAIL);
    cr_assert_not(reader.wrong);
    cr_assert_eq(reader.calls_after_stop, 0);
    cr_assert_eq(weir_read_stop(socket), -EALREADY);
    close(peer);
    rig_close(&rig);
}

Test(read, small_receives_get_every_byte_before_the_end, .timeout = 30) /* (F13) */
{
    struct rig rig;
    weir_socket *socket;
    unsigned char piece[4096];
    size_t received = 0;

    rig_open(&rig, 1);
    int peer = rig_tcp(&rig, NULL, &socket);
    send_tail(peer);
    for (;;) {
        ssize_t n = weir_recv_wait(socket, piece, sizeof piece, weir_after_ms(5000));
        cr_assert_geq(n, 0);
        if (n == 0)
            break;
        for (ssize_t i = 0; i < n; i++)
            cr_assert_eq(piece[i], byte_at(received + (size_t)i));
        received += (size_t)n;
        if (received % 5 == 0)
            rig_sleep_ms(1);
    }
    cr_assert_eq(received, TAIL);
    cr_assert_eq(weir_recv_wait(socket, piece, 1, weir_after_ms(5000)), 0, "the end stays");
    close(peer);
    rig_close(&rig);
}

/* A hang-up is always reported by the kernel: a socket that nobody reads must not spin by it. */
Test(read, a_hang_up_while_paused_keeps_the_poller_asleep, .timeout = 30) /* (F11) */
{
    struct rig rig;
    struct reader reader;
    struct linger linger = {.l_onoff = 1};
    weir_socket *socket, *other;

    rig_open(&rig, 1);
    reader_init(&reader);
    int peer = rig_unix(&rig, NULL, &socket);
    int resetting = rig_tcp(&rig, NULL, &other);
    cr_assert_eq(weir_read_start(socket, on_read, &reader), 0);
    cr_assert_eq(weir_read_stop(socket), 0);
    unsigned char first = byte_at(0);
    rig_peer_send(peer, &first, 1);
    close(peer);
    setsockopt(resetting, SOL_SOCKET, SO_LINGER, &linger, sizeof linger);
    close(resetting);
    rig_sleep_ms(30);
    weir_stats before = rig_stats(&rig);
    rig_sleep_ms(100);
    weir_stats after = rig_stats(&rig);
    cr_assert_leq(after.waits, before.waits + 1, "%llu waits in vain",
                  (unsigned long long)(after.waits - before.waits));
    cr_assert_leq(after.turns, before.turns + 1);
    cr_assert_eq(weir_read_start(socket, on_read, &reader), 0);
    cr_assert(RIG_UNTIL(atomic_load(&reader.ended), 5000));
    cr_assert_eq(reader.received, 1, "what was sent is there still");
    rig_close(&rig);
}

Test(read, a_reset_is_told_once, .timeout = 30)
{
    struct rig rig;
    struct reader reader;
    struct linger linger = {.l_onoff = 1};
    weir_socket *socket;
    char byte;

    rig_open(&rig, 1);
    reader_init(&reader);
    int peer = rig_tcp(&rig, NULL, &socket);
    cr_assert_eq(weir_read_start(socket, on_read, &reader), 0);
    setsockopt(peer, SOL_SOCKET, SO_LINGER, &linger, sizeof linger);
    close(peer);
    cr_assert(RIG_UNTIL(atomic_load(&reader.ended), 5000));
    cr_assert_eq(reader.status, -ECONNRESET);
    cr_assert_eq(weir_read_stop(socket), -EALREADY, "reading has ended");
    cr_assert_leq(weir_recv_wait(socket, &byte, 1, weir_after_ms(1000)), 0);
    rig_sleep_ms(10);
    rig_close(&rig);
    cr_assert_eq(reader.ends, 1);
}

Test(read, the_deadline_is_told_once_and_reading_goes_on, .timeout = 30)
{
    struct rig rig;
    struct reader reader;
    weir_socket *socket;

    rig_open(&rig, 1);
    reader_init(&reader);
    int peer = rig_unix(&rig, NULL, &socket);
    cr_assert_eq(weir_read_start(socket, on_read, &reader), 0);
    int64_t before = rig_now_ms();
    cr_assert_eq(weir_read_deadline(socket, weir_after_ms(50)), 0);
    cr_assert(RIG_UNTIL(get(&reader, &reader.calls) == 1, 5000));
    cr_assert_geq(rig_now_ms() - before, 49);
    cr_assert_eq(reader.timeouts, 1);
    unsigned char first = byte_at(0);
    rig_peer_send(peer, &first, 1);
    cr_assert(RIG_UNTIL(get(&reader, &reader.received) == 1, 5000));
    cr_assert_eq(weir_read_deadline(socket, weir_after_ms(40)), 0);
    cr_assert_eq(weir_read_deadline(socket, weir_after_ms(10000)), 0, "later");
    rig_sleep_ms(80);
    cr_assert_eq(weir_read_deadline(socket, weir_after_ms(40)), 0, "sooner");
    cr_assert_eq(weir_read_deadline(socket, WEIR_NEVER), 0, "taken back");
    rig_sleep_ms(80);
    close(peer);
    rig_close(&rig);
    cr_assert_eq(reader.timeouts, 1);
}
