/* rate_load.c: HTTP load at a fixed rate, with times that no stall can hide.
 *
 *     rate_load --port N [--rate N] [--connections N] [--threads N] [--seconds N] [--warm-ms N]
 *               [--start-ns N] [--from-ms N --to-ms N] [--closed] [--hold]
 *
 * A closed loop sends its next request when the last answer came: while the server stalls it asks
 * nothing, and a stall of a second counts as one slow request ("coordinated omission"). Here the
 * schedule is fixed before the first byte: request i is due at start + i / rate, on connection
 * i % connections, whatever happened before. A request whose connection still waits for the answer
 * before it is sent once that came, and its time counts from when it was due.
 *
 * Each connection begins with one exchange, from which the length of an answer is learnt; later
 * ones must begin with the same status and have this length. Requests due in the first --warm-ms
 * are sent and not counted. --from-ms and --to-ms, from the start, single out a part of the run;
 * --start-ns, on the monotonic clock, lets several of these begin together.
 *
 * --closed makes it a closed loop after all (no schedule: each answer is followed by the next
 * request), for what it costs to serve many connections. With --hold it says "ready" when its
 * connections stand, begins when a line comes on stdin, and keeps them until stdin ends: so that
 * opening and closing can be told from serving.
 *
 * Prints one JSON line; status 1 when an answer was wrong or missing. Beside the times: `service`
 * counts from when a request was sent (what a closed loop sees), `late` is what this program itself
 * was late with requests whose connection was free. Only 127.0.0.1. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "support/bench.h"

enum {
    CONNECTIONS_MAX = 16384,
    THREADS_MAX = 64,
    RATE_MAX = 10000000,
    SECONDS_MAX = 600,
    REQUESTS_MAX = 200 * 1000 * 1000,
    EVENTS_MAX = 256,
    BUFFER_SIZE = 16384,
    PATIENCE_S = 10,            /* for the answers that are missing when the schedule is over */
    UNANSWERED = -1,
};

static const char request[] = "GET /plaintext HTTP/1.1\r\nHost: localhost\r\n\r\n";
static const char status_line[] = "HTTP/1.1 200";
enum { REQUEST_LENGTH = sizeof request - 1, STATUS_LENGTH = sizeof status_line - 1 };

struct connection {
    int fd;
    bool waiting;               /* for an answer */
    size_t slot;                /* of the request that is next, or waits for its answer */
    size_t due;                 /* slots of this connection that have passed and are not answered */
    size_t answer_length;
    size_t got;
    int64_t sent_at;
};

/* One thread has every connection whose number is its own modulo the number of threads. */
struct thread {
    pthread_t thread;
    unsigned number;
    int epoll;
    size_t next_slot;           /* the next one of this thread that is not due yet */
    size_t open;                /* connections that wait for an answer */
    uint64_t answered;          /* closed loop: so many, in these times */
    struct bench_histogram histogram;
    const char *error;
};

static struct {
    uint16_t port;
    unsigned connections, threads;
    uint64_t rate;
    bool closed, hold;
    int64_t start, length, warm, from, to;      /* all but the first from the start */
    size_t slots;
} config;

static struct connection *connections;
static int64_t *times, *services, *lates;       /* by slot; each is written by one thread */

static int64_t due_at(size_t slot)
{
    return config.start + (int64_t)((double)slot * 1e9 / (double)config.rate);
}

/* ---- opening --------------------------------------------------------------------------------- */

/* The length of a whole answer that begins at `text`; 0: not there yet, or not understood. */
static size_t whole_answer(const char *text, size_t length)
{
    static const char field[] = "content-length:";
    const char *end = memmem(text, length, "\r\n\r\n", 4);

    if (!end)
        return 0;
    for (const char *line = text; line < end; line++) {
        if (strncasecmp(line, field, sizeof field - 1) == 0) {
            size_t whole = (size_t)(end - text) + 4 + strtoul(line + sizeof field - 1, NULL, 10);
            return length >= whole ? whole : 0;
        }
        line = memchr(line, '\n', (size_t)(end + 2 - line));
        if (!line)
            break;
    }
    return 0;
}

static const char *open_one(struct connection *connection)
{
    char buffer[BUFFER_SIZE];
    size_t got = 0;

    connection->fd = bench_connect(config.port, PATIENCE_S);
    if (connection->fd < 0)
        return "cannot connect";
    if (send(connection->fd, request, REQUEST_LENGTH, MSG_NOSIGNAL) != REQUEST_LENGTH)
        return "cannot send the first request";
    while (connection->answer_length == 0) {
        ssize_t n = got < sizeof buffer - 1
                  ? recv(connection->fd, buffer + got, sizeof buffer - 1 - got, 0) : 0;
        if (n <= 0)
            return "no answer to the first request";
        got += (size_t)n;
        buffer[got] = '\0';
        connection->answer_length = whole_answer(buffer, got);
    }
    if (connection->answer_length != got || memcmp(buffer, status_line, STATUS_LENGTH) != 0)
        return "a wrong answer to the first request";
    return fcntl(connection->fd, F_SETFL, O_NONBLOCK) == 0 ? NULL : "fcntl";
}

/* ---- the run --------------------------------------------------------------------------------- */

static const char *send_next(struct thread *self, struct connection *connection, int64_t now,
                             bool was_free)
{
    ssize_t n = send(connection->fd, request, REQUEST_LENGTH, MSG_NOSIGNAL);
    if (n != REQUEST_LENGTH)
        return "cannot send";
    if (was_free)
        lates[connection->slot] = now - due_at(connection->slot);
    connection->sent_at = now;
    connection->waiting = true;
    connection->got = 0;
    self->open++;
    return NULL;
}

/* Everything that is due by now: sent, or counted on its connection when that is not free. */
static const char *send_due(struct thread *self, int64_t now)
{
    while (self->next_slot < config.slots && due_at(self->next_slot) <= now) {
        struct connection *connection = &connections[self->next_slot % config.connections];
        connection->due++;
        if (!connection->waiting) {
            const char *error = send_next(self, connection, bench_now_ns(), true);
            if (error)
                return error;
        }
        do
            self->next_slot++;
        while (self->next_slot % config.connections % config.threads != self->number);
    }
    return NULL;
}

/* The closed loop's part of read_answer(). */
static const char *ask_again(struct thread *self, struct connection *connection, int64_t now)
{
    self->answered++;
    bench_record(&self->histogram, now - connection->sent_at);
    connection->waiting = false;
    self->open--;
    return now < config.start + config.length ? send_next(self, connection, now, false) : NULL;
}

static const char *read_answer(struct thread *self, struct connection *connection)
{
    char buffer[BUFFER_SIZE];
    ssize_t n = recv(connection->fd, buffer, sizeof buffer, 0);

    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return NULL;
    if (n <= 0)
        return "the server has closed a connection";
    size_t known = (size_t)n < STATUS_LENGTH ? (size_t)n : STATUS_LENGTH;
    if (!connection->waiting ||
        (connection->got == 0 && memcmp(buffer, status_line, known) != 0))
        return "a wrong answer";
    connection->got += (size_t)n;
    if (connection->got > connection->answer_length)
        return "an answer that is too long";
    if (connection->got < connection->answer_length)
        return NULL;
    int64_t now = bench_now_ns();
    if (config.closed)
        return ask_again(self, connection, now);
    times[connection->slot] = now - due_at(connection->slot);
    services[connection->slot] = now - connection->sent_at;
    connection->slot += config.connections;
    connection->due--;
    connection->waiting = false;
    self->open--;
    return connection->due > 0 ? send_next(self, connection, now, false) : NULL;
}

static int wait_until(const struct thread *self, int64_t when, struct epoll_event *events)
{
    int64_t left = when - bench_now_ns();
    if (left < 0)
        left = 0;
    struct timespec timeout = { .tv_sec = left / 1000000000, .tv_nsec = left % 1000000000 };
    return epoll_pwait2(self->epoll, events, EVENTS_MAX, &timeout, NULL);
}

static const char *run(struct thread *self)
{
    struct epoll_event events[EVENTS_MAX];
    int64_t end = due_at(config.slots) + (int64_t)PATIENCE_S * 1000000000;

    self->next_slot = self->number;
    while (self->next_slot < config.slots || self->open > 0) {
        int64_t now = bench_now_ns();
        if (now > end)
            return "answers are missing";
        const char *error = send_due(self, now);
        int64_t next = self->next_slot < config.slots ? due_at(self->next_slot) : end;
        int count = error ? 0 : wait_until(self, next, events);
        if (count < 0 && errno != EINTR)
            return "epoll_pwait2";
        for (int i = 0; i < count && !error; i++)
            error = read_answer(self, events[i].data.ptr);
        if (error)
            return error;
    }
    return NULL;
}

static const char *run_closed(struct thread *self)
{
    struct epoll_event events[EVENTS_MAX];
    int64_t end = config.start + config.length + (int64_t)PATIENCE_S * 1000000000;
    const char *error = NULL;

    while (bench_now_ns() < config.start)
        wait_until(self, config.start, events);
    for (unsigned i = self->number; i < config.connections && !error; i += config.threads)
        error = send_next(self, &connections[i], bench_now_ns(), false);
    while (self->open > 0 && !error) {
        int count = wait_until(self, end, events);
        if (count == 0)
            return "answers are missing";
        for (int i = 0; i < count && !error; i++)
            error = read_answer(self, events[i].data.ptr);
    }
    return error;
}

static void *thread_main(void *argument)
{
    struct thread *self = argument;
    prctl(PR_SET_TIMERSLACK, 1UL);      /* else the kernel may wake us 50 us late */
    self->error = config.closed ? run_closed(self) : run(self);
    return NULL;
}

/* ---- what it says ---------------------------------------------------------------------------- */

static int compare(const void *left, const void *right)
{
    int64_t a = *(const int64_t *)left, b = *(const int64_t *)right;
    return (a > b) - (a < b);
}

/* The values of the slots due in [from, to), sorted into `into`; unanswered ones are left out. */
static size_t take(const int64_t *values, int64_t from, int64_t to, int64_t *into)
{
    size_t count = 0;
    for (size_t slot = 0; slot < config.slots; slot++) {
        int64_t due = due_at(slot) - config.start;
        if (due >= from && due < to && values[slot] != UNANSWERED)
            into[count++] = values[slot];
    }
    qsort(into, count, sizeof *into, compare);
    return count;
}

static double at_us(const int64_t *sorted, size_t count, double share)
{
    size_t index = (size_t)(share * (double)count);
    if (count == 0)
        return 0;
    return (double)sorted[index < count ? index : count - 1] / 1e3;
}

/* p50, p90, p99, p99.9 and the largest, each as "<prefix>p.._us". */
static size_t print_times(const char *prefix, const int64_t *values, int64_t from, int64_t to,
                          int64_t *room)
{
    size_t count = take(values, from, to, room);
    printf(", \"%srequests\": %zu, \"%sp50_us\": %.3f, \"%sp90_us\": %.3f, \"%sp99_us\": %.3f"
           ", \"%sp999_us\": %.3f, \"%smax_us\": %.3f",
           prefix, count, prefix, at_us(room, count, 0.5), prefix, at_us(room, count, 0.9), prefix,
           at_us(room, count, 0.99), prefix, at_us(room, count, 0.999), prefix,
           at_us(room, count, 1.0));
    return count;
}

static const char *error_of(const struct thread *threads)
{
    for (unsigned i = 0; i < config.threads; i++)
        if (threads[i].error)
            return threads[i].error;
    return NULL;
}

static int report_closed(const struct thread *threads)
{
    static struct bench_histogram all;
    static const struct {
        const char *name;
        double share;
    } shares[] = { { "p50", 0.5 }, { "p90", 0.9 }, { "p99", 0.99 }, { "p999", 0.999 },
                   { "max", 1 } };
    const char *error = error_of(threads);
    uint64_t answered = 0;

    for (unsigned i = 0; i < config.threads; i++) {
        answered += threads[i].answered;
        bench_merge(&all, &threads[i].histogram);
    }
    printf("{\"all_requests\": %llu, \"missing\": 0, \"error\": \"%s\", \"rate\": %.1f",
           (unsigned long long)answered, error ? error : "",
           (double)answered * 1e9 / (double)config.length);
    for (size_t i = 0; i < sizeof shares / sizeof shares[0]; i++)
        printf(", \"%s_us\": %.3f", shares[i].name,
               (double)bench_percentile(&all, shares[i].share) / 1e3);
    printf("}\n");
    return error ? 1 : 0;
}

static int report(const struct thread *threads, int64_t *room)
{
    const char *error = error_of(threads);
    size_t missing = 0;
    int64_t end = due_at(config.slots) - config.start;

    for (size_t slot = 0; slot < config.slots; slot++)
        missing += times[slot] == UNANSWERED;
    if (missing > 0 && !error)
        error = "answers are missing";
    printf("{\"asked_rate\": %llu, \"all_requests\": %zu, \"missing\": %zu, \"error\": \"%s\"",
           (unsigned long long)config.rate, config.slots - missing, missing, error ? error : "");
    size_t count = print_times("", times, config.warm, end, room);
    printf(", \"rate\": %.1f", (double)count * 1e9 / (double)(end - config.warm));
    print_times("service_", services, config.warm, end, room);
    print_times("late_", lates, config.warm, end, room);
    if (config.to > 0) {
        print_times("window_", times, config.from, config.to, room);
        print_times("window_late_", lates, config.from, config.to, room);
    }
    printf("}\n");
    return error ? 1 : 0;
}

/* ---- the program ----------------------------------------------------------------------------- */

static uint64_t within(const char *what, uint64_t value, uint64_t low, uint64_t high)
{
    if (value < low || value > high) {
        fprintf(stderr, "rate_load: %s must be %llu to %llu\n", what, (unsigned long long)low,
                (unsigned long long)high);
        exit(2);
    }
    return value;
}

static void read_arguments(int argc, char **argv)
{
    static const char *const known[] = { "--port=", "--rate=", "--connections=", "--threads=",
                                         "--seconds=", "--warm-ms=", "--start-ns=", "--from-ms=",
                                         "--to-ms=", "--closed", "--hold", NULL };
    bench_only(argc, argv, known);
    config.port = (uint16_t)within("--port", bench_argument(argc, argv, "--port", 0), 1, 65535);
    config.rate = within("--rate", bench_argument(argc, argv, "--rate", 1000), 1, RATE_MAX);
    config.connections = (unsigned)within("--connections",
                                          bench_argument(argc, argv, "--connections", 64), 1,
                                          CONNECTIONS_MAX);
    config.threads = (unsigned)within("--threads", bench_argument(argc, argv, "--threads", 2), 1,
                                      THREADS_MAX);
    uint64_t seconds = within("--seconds", bench_argument(argc, argv, "--seconds", 2), 1,
                              SECONDS_MAX);
    if (config.threads > config.connections)
        config.threads = config.connections;
    config.closed = bench_flag(argc, argv, "--closed");
    config.hold = bench_flag(argc, argv, "--hold");
    config.length = (int64_t)seconds * 1000000000;
    config.slots = config.closed ? 1 : (size_t)within("--rate times --seconds",
                                                      config.rate * seconds, 1, REQUESTS_MAX);
    config.warm = (int64_t)within("--warm-ms", bench_argument(argc, argv, "--warm-ms", 0), 0,
                                  seconds * 1000 - 1) * 1000000;
    config.from = (int64_t)bench_argument(argc, argv, "--from-ms", 0) * 1000000;
    config.to = (int64_t)bench_argument(argc, argv, "--to-ms", 0) * 1000000;
    config.start = (int64_t)bench_argument(argc, argv, "--start-ns", 0);
}

static int64_t *by_slot(void)
{
    int64_t *values = malloc(config.slots * sizeof *values);
    if (!values) {
        perror("malloc");
        exit(1);
    }
    for (size_t slot = 0; slot < config.slots; slot++)
        values[slot] = UNANSWERED;      /* which also makes the kernel give the memory now */
    return values;
}

static void fail(const char *error)
{
    printf("{\"asked_rate\": 0, \"all_requests\": 0, \"missing\": 0, \"error\": \"%s\"}\n", error);
    exit(1);
}

static void open_all(struct thread *threads)
{
    connections = calloc(config.connections, sizeof *connections);
    if (!connections)
        fail("calloc");
    for (unsigned i = 0; i < config.threads; i++) {
        threads[i].number = i;
        threads[i].epoll = epoll_create1(EPOLL_CLOEXEC);
    }
    for (unsigned i = 0; i < config.connections; i++) {
        struct epoll_event event = { .events = EPOLLIN, .data.ptr = &connections[i] };
        const char *error = open_one(&connections[i]);
        connections[i].slot = i;
        if (!error && epoll_ctl(threads[i % config.threads].epoll, EPOLL_CTL_ADD,
                                connections[i].fd, &event) != 0)
            error = "epoll_ctl";
        if (error)
            fail(error);
    }
}

/* Until a line comes, or the end. */
static void wait_for_line(void)
{
    for (int c = getchar(); c != '\n' && c != EOF;)
        c = getchar();
}

int main(int argc, char **argv)
{
    static struct thread threads[THREADS_MAX];

    read_arguments(argc, argv);
    times = by_slot();
    services = by_slot();
    lates = by_slot();
    int64_t *room = by_slot();
    open_all(threads);
    if (config.hold) {
        puts("ready");
        fflush(stdout);
        wait_for_line();
    }
    if (config.start == 0)
        config.start = bench_now_ns() + 10000000;
    else if (bench_now_ns() > config.start)
        fail("--start-ns has passed before the connections stood");
    for (unsigned i = 0; i < config.threads; i++)
        if (pthread_create(&threads[i].thread, NULL, thread_main, &threads[i]) != 0)
            fail("pthread_create");
    for (unsigned i = 0; i < config.threads; i++)
        pthread_join(threads[i].thread, NULL);
    int status = config.closed ? report_closed(threads) : report(threads, room);
    if (config.hold) {
        fflush(stdout);
        wait_for_line();
    }
    return status;
}
