#include "support/rig.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <unistd.h>

#define PEER_MS 10000

static void on_log(enum weir_log_level level, const char *line, void *context)
{
    struct rig *rig = context;

    pthread_mutex_lock(&rig->lock);
    rig->lines[level]++;
    int room = (int)(sizeof rig->text - rig->used);
    int length = snprintf(rig->text + rig->used, (size_t)room, "%s\n", line);
    if (length > 0 && length < room)
        rig->used += (size_t)length;
    pthread_mutex_unlock(&rig->lock);
}

void rig_open_with(struct rig *rig, const weir_options *options)
{
    weir_options with = *options;

    memset(rig, 0, sizeof *rig);
    pthread_mutex_init(&rig->lock, NULL);
    rig->before = support_held();
    with.log = on_log;
    with.log_context = rig;
    with.log_level = WEIR_LOG_INFO;
    int r = weir_runtime_create(&rig->runtime, &with);
    cr_assert_eq(r, 0, "weir_runtime_create: %d", r);
}

void rig_open(struct rig *rig, unsigned workers)
{
    weir_options options = WEIR_OPTIONS_INIT;

    options.pollers = 1;
    options.workers = workers;
    options.workers_max = workers;
    rig_open_with(rig, &options);
}

void rig_close(struct rig *rig)
{
    weir_runtime_destroy(rig->runtime);
    rig->runtime = NULL;
    int threads = support_await_threads(rig->before.threads, 2000);
    cr_assert_leq(threads, rig->before.threads, "%d threads are left, %d were before", threads,
                  rig->before.threads);
    int fds = support_count_fds();
    cr_assert_eq(fds, rig->before.fds, "%d descriptors, %d were before", fds, rig->before.fds);
    pthread_mutex_destroy(&rig->lock);
}

unsigned rig_lines(struct rig *rig, enum weir_log_level level)
{
    pthread_mutex_lock(&rig->lock);
    unsigned lines = rig->lines[level];
    pthread_mutex_unlock(&rig->lock);
    return lines;
}

bool rig_logged(struct rig *rig, const char *part)
{
    pthread_mutex_lock(&rig->lock);
    bool found = strstr(rig->text, part) != NULL;
    pthread_mutex_unlock(&rig->lock);
    return found;
}

weir_stats rig_stats(struct rig *rig)
{
    weir_stats stats = {.size = sizeof stats};
    int r = weir_stats_get(rig->runtime, &stats);

    cr_assert_eq(r, 0, "weir_stats_get: %d", r);
    return stats;
}

/* ---- descriptors --------------------------------------------------------------------- */

void rig_tcp_pair(int ret_fds[2])
{
    const int buffer = 128 << 10;
    weir_address address;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    cr_assert_geq(listener, 0);
    cr_assert_eq(weir_address_parse(&address, "127.0.0.1:0"), 0);
    cr_assert_eq(bind(listener, (struct sockaddr *)&address.storage, address.length), 0);
    cr_assert_eq(listen(listener, 1), 0);
    cr_assert_eq(getsockname(listener, (struct sockaddr *)&address.storage, &address.length), 0);
    ret_fds[1] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    /* Fixed, or the kernel would let them grow to any size that a test calls big. */
    cr_assert_eq(setsockopt(ret_fds[1], SOL_SOCKET, SO_RCVBUF, &buffer, sizeof buffer), 0);
    cr_assert_eq(connect(ret_fds[1], (struct sockaddr *)&address.storage, address.length), 0);
    ret_fds[0] = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    cr_assert_geq(ret_fds[0], 0);
    cr_assert_eq(setsockopt(ret_fds[0], SOL_SOCKET, SO_SNDBUF, &buffer, sizeof buffer), 0);
    close(listener);
}

static int adopt_first(struct rig *rig, const int fds[2], const weir_socket_options *options,
                       weir_socket **ret_socket)
{
    int r = weir_adopt(rig->runtime, fds[0], options, ret_socket);

    cr_assert_eq(r, 0, "weir_adopt: %d", r);
    return fds[1];
}

int rig_tcp(struct rig *rig, const weir_socket_options *options, weir_socket **ret_socket)
{
    int fds[2];

    rig_tcp_pair(fds);
    return adopt_first(rig, fds, options, ret_socket);
}

int rig_unix(struct rig *rig, const weir_socket_options *options, weir_socket **ret_socket)
{
    int fds[2];

    cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    return adopt_first(rig, fds, options, ret_socket);
}

void rig_address(weir_listener *listener, char text[WEIR_ADDRESS_TEXT_MAX])
{
    weir_address address;

    cr_assert_eq(weir_listener_address(listener, &address), 0);
    cr_assert_gt(weir_address_format(&address, text, WEIR_ADDRESS_TEXT_MAX), 0);
}

int rig_connect(weir_listener *listener)
{
    weir_address address;

    cr_assert_eq(weir_listener_address(listener, &address), 0);
    int fd = socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    cr_assert_geq(fd, 0);
    int r = connect(fd, (struct sockaddr *)&address.storage, address.length);
    cr_assert_eq(r, 0, "connect: errno %d", errno);
    return fd;
}

/* Milliseconds left. */
static int left_until(int64_t deadline)
{
    int64_t left = deadline - rig_now_ms();
    return left > 0 ? (int)left : 0;
}

static bool ready(int fd, short events, int64_t deadline)
{
    struct pollfd entry = {.fd = fd, .events = events};
    int r;

    do
        r = poll(&entry, 1, left_until(deadline));
    while (r < 0 && errno == EINTR);
    return r > 0;
}

void rig_peer_send(int fd, const void *data, size_t length)
{
    int64_t deadline = rig_now_ms() + PEER_MS;
    size_t sent = 0;

    while (sent < length) {
        cr_assert(ready(fd, POLLOUT, deadline), "the peer could send %zu of %zu", sent, length);
        ssize_t n = send(fd, (const char *)data + sent, length - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
        cr_assert(n >= 0 || errno == EAGAIN, "peer send: errno %d", errno);
        sent += n > 0 ? (size_t)n : 0;
    }
}

void rig_peer_receive(int fd, void *buffer, size_t length)
{
    int64_t deadline = rig_now_ms() + PEER_MS;
    size_t received = 0;

    while (received < length) {
        cr_assert(ready(fd, POLLIN, deadline), "the peer received %zu of %zu", received, length);
        ssize_t n = recv(fd, (char *)buffer + received, length - received, MSG_DONTWAIT);
        cr_assert_gt(n, 0, "the peer received %zu of %zu, then %zd", received, length, n);
        received += (size_t)n;
    }
}

int rig_peer_end(int fd, int milliseconds)
{
    int64_t deadline = rig_now_ms() + milliseconds;
    char buffer[4096];

    while (ready(fd, POLLIN, deadline)) {
        ssize_t n = recv(fd, buffer, sizeof buffer, MSG_DONTWAIT);
        if (n == 0)
            return 0;
        if (n < 0)
            return -errno;
    }
    return -EAGAIN;
}

/* ---- workers, time, operations ------------------------------------------------------- */

static void stay_busy(weir_work *work, void *context)
{
    struct rig_busy *busy = context;

    (void)work;
    atomic_fetch_add(&busy->inside, 1);
    while (!atomic_load(&busy->leave))
        rig_sleep_ms(1);
    atomic_fetch_sub(&busy->inside, 1);
}

void rig_busy_begin(struct rig *rig, struct rig_busy *busy, unsigned workers)
{
    memset(busy, 0, sizeof *busy);
    cr_assert_leq(workers, RIG_BUSY_MAX);
    for (unsigned i = 0; i < workers; i++) {
        weir_work_init(&busy->work[i], stay_busy, busy);
        cr_assert_eq(weir_post(rig->runtime, &busy->work[i]), 0);
    }
    cr_assert(RIG_UNTIL(atomic_load(&busy->inside) == workers, 5000), "the workers are not busy");
}

void rig_busy_end(struct rig_busy *busy)
{
    atomic_store(&busy->leave, 1);
    cr_assert(RIG_UNTIL(atomic_load(&busy->inside) == 0, 5000), "the workers stay busy");
}

static bool set_to(const char *variable, const char *value)
{
    const char *text = getenv(variable);
    return text && strcmp(text, value) == 0;
}

bool rig_pollers_call(void)
{
    return set_to("WEIR_INLINE", "1") && !set_to("WEIR_DISPATCH", "per-event") &&
           (set_to("WEIR_POLL", "dedicated") || set_to("WEIR_BACKEND", "io_uring"));
}

void rig_sleep_ms(int milliseconds)
{
    const struct timespec span = {.tv_sec = milliseconds / 1000,
                                  .tv_nsec = milliseconds % 1000 * 1000000L};
    nanosleep(&span, NULL);
}

int64_t rig_now_ms(void)
{
    return weir_now() / 1000000;
}

int rig_patience(int milliseconds)
{
#if defined(WEIR_TSAN)
    return milliseconds * 5;
#elif defined(__SANITIZE_ADDRESS__)
    return milliseconds * 2;
#else
    return milliseconds;
#endif
}

static void op_ended(weir_op *op, ssize_t result, void *context)
{
    struct rig_op *mine = context;

    mine->result = result;
    mine->moved = weir_op_moved(op);
    atomic_fetch_add(&mine->ended, 1);
}

void rig_op_init(struct rig_op *op)
{
    memset(op, 0, sizeof *op);
    weir_op_init(&op->op, op_ended, op);
}

bool rig_op_await(struct rig_op *op, int milliseconds)
{
    return RIG_UNTIL(atomic_load(&op->ended) > 0, milliseconds);
}
