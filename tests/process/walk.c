#include "walk.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

enum { SMALL = 1000, BIG = 1 << 20, FILE_LENGTH = 100000 };

static char big[BIG];

static bool excused(struct walk *walk)
{
    unsigned failed = walk->failed(walk);

    if (failed <= walk->excused)
        return false;
    walk->excused = failed;
    return true;
}

#define WALK_STEP(walk, what, call) \
    do { \
        ssize_t r_; \
        do \
            r_ = (call); \
        while (r_ < 0 && excused(walk)); \
        cr_assert_geq(r_, 0, "%s, use %u: %s: %zd", (walk)->name, (walk)->k, what, r_); \
    } while (0)

static weir_time soon(void)
{
    return weir_after_ms(rig_patience(2000));
}

/* ---- the server's side: 'b' asks for BIG bytes back, other bytes come back as they are ------- */

static void on_read(weir_socket *socket, const weir_view *view, int status, void *context)
{
    (void)context;
    if (status < 0 || view->length == 0) {
        weir_close(socket, NULL, NULL);
        return;
    }
    weir_kept *kept = weir_view_keep(view);
    const unsigned char *data = kept ? kept->data : view->data;
    int r = data[0] == 'b' ? weir_write(socket, big, BIG)
                           : weir_write(socket, data, view->length);
    weir_view_release(kept);
    if (r < 0)
        weir_reset(socket);
}

static void on_accept(weir_listener *listener, weir_socket *socket, void *context)
{
    (void)listener;
    if (weir_read_start(socket, on_read, context) < 0)
        weir_reset(socket);
}

static int listen_at(struct walk *walk, const char *address, weir_listener **ret_listener)
{
    weir_listen_options options = WEIR_LISTEN_OPTIONS_INIT;

    options.socket.linger_ms = 100;
    return weir_listen(walk->runtime, address, &options, on_accept, walk, ret_listener);
}

/* ---- the client's side ----------------------------------------------------------------------- */

static ssize_t receive_all(weir_socket *socket, size_t length)
{
    static char buffer[65536];
    size_t received = 0;

    while (received < length) {
        ssize_t n = weir_recv_wait(socket, buffer, sizeof buffer, soon());
        if (n <= 0)
            return n < 0 ? n : -ECONNRESET;
        received += (size_t)n;
    }
    return 0;
}

static ssize_t talk(struct walk *walk, weir_socket *socket)
{
    char small[SMALL] = "a";

    ssize_t r = weir_send_wait(socket, small, SMALL, soon());
    if (r >= 0)
        r = r == SMALL ? receive_all(socket, SMALL) : -EPIPE;
    if (r >= 0)
        r = weir_send_wait(socket, "b", 1, soon());
    if (r >= 0)
        r = receive_all(socket, BIG);
    if (r >= 0)
        r = weir_send_file_wait(socket, walk->file, 0, FILE_LENGTH, soon());
    if (r >= 0)
        r = r == FILE_LENGTH ? receive_all(socket, FILE_LENGTH) : -EPIPE;
    return r;
}

static ssize_t exchange(struct walk *walk, const char *address)
{
    weir_socket_options options = WEIR_SOCKET_OPTIONS_INIT;
    weir_socket *socket;

    options.linger_ms = 100;
    ssize_t r = weir_connect_wait(walk->runtime, address, &options, &socket, soon());
    if (r < 0)
        return r;
    r = talk(walk, socket);
    int closed = weir_close_wait(socket);
    return r < 0 ? r : closed;
}

/* Operations with callbacks on both ends. */
static ssize_t meet(struct walk *walk, weir_listener *listener)
{
    struct rig_op accepting, connecting;
    weir_socket *accepted = NULL, *connected = NULL;
    char address[WEIR_ADDRESS_TEXT_MAX];
    weir_address bound;

    ssize_t r = weir_listener_address(listener, &bound);
    if (r < 0)
        return r;
    weir_address_format(&bound, address, sizeof address);
    rig_op_init(&accepting);
    rig_op_init(&connecting);
    ssize_t a = weir_accept(listener, &accepting.op, &accepted, soon());
    r = weir_connect(walk->runtime, address, NULL, &connecting.op, &connected, soon());
    if (r == -EINPROGRESS) {
        cr_assert(rig_op_await(&connecting, 20000), "connect does not end");
        r = connecting.result;
    }
    if (a == -EINPROGRESS) {
        /* The connection may have been dropped for want of something: the accept waits for another.
         */
        if (r < 0 || !rig_op_await(&accepting, rig_patience(200)))
            weir_cancel(&accepting.op);
        cr_assert(rig_op_await(&accepting, 20000), "accept does not end");
        a = accepting.result;
    }
    if (a == 0)
        weir_reset(accepted);
    if (r == 0)
        weir_reset(connected);
    return r < 0 ? r : a;
}

/* ---- the rest -------------------------------------------------------------------------------- */

static void on_work(weir_work *work, void *context)
{
    struct walk *walk = context;

    (void)work;
    atomic_fetch_add(&walk->ran, 1);
}

static void on_timer(weir_timer *timer, uint64_t missed, void *context)
{
    (void)timer;
    (void)missed;
    on_work(NULL, context);
}

static void on_watch(weir_watch *watch, unsigned events, int status, void *context)
{
    (void)watch;
    (void)events;
    (void)status;
    on_work(NULL, context);
}

static void on_closed(void *context)
{
    on_work(NULL, context);
}

static void walk_work(struct walk *walk)
{
    weir_work work, job;
    weir_timer timer;

    atomic_store(&walk->ran, 0);
    weir_work_init(&work, on_work, walk);
    weir_work_init(&job, on_work, walk);
    weir_timer_init(&timer, walk->runtime, on_timer, walk);
    WALK_STEP(walk, "post", weir_post(walk->runtime, &work));
    WALK_STEP(walk, "post_blocking", weir_post_blocking(walk->runtime, &job));
    WALK_STEP(walk, "timer", weir_timer_set(&timer, weir_after_ms(1), 0, WEIR_TIMER_ONCE));
    cr_assert(RIG_UNTIL(atomic_load(&walk->ran) == 3, 20000), "%s, use %u: %u of 3 ran",
              walk->name, walk->k, atomic_load(&walk->ran));
    weir_timer_fini(&timer);
}

static void walk_watch(struct walk *walk)
{
    weir_watch *watch;
    int pipes[2];

    atomic_store(&walk->ran, 0);
    cr_assert_eq(pipe2(pipes, O_CLOEXEC | O_NONBLOCK), 0);
    cr_assert_eq(write(pipes[1], "x", 1), 1);
    WALK_STEP(walk, "watch", weir_watch_open(&watch, walk->runtime, pipes[0], on_watch, walk));
    WALK_STEP(walk, "watch_set", weir_watch_set(watch, WEIR_READABLE));
    cr_assert(RIG_UNTIL(atomic_load(&walk->ran) == 1, 20000), "%s, use %u: the watch is silent",
              walk->name, walk->k);
    cr_assert_eq(weir_watch_close(watch, on_closed, walk), 0);
    cr_assert(RIG_UNTIL(atomic_load(&walk->ran) == 2, 20000));
    close(pipes[0]);
    close(pipes[1]);
}

static ssize_t send_datagram(struct walk *walk)
{
    weir_socket *one = NULL, *two = NULL;
    weir_address to;
    char byte;

    ssize_t r = weir_datagram_open(walk->runtime, "127.0.0.1:0", NULL, &one);
    if (r >= 0)
        r = weir_datagram_open(walk->runtime, "127.0.0.1:0", NULL, &two);
    if (r >= 0)
        r = weir_socket_address(two, &to);
    if (r >= 0)
        r = weir_sendto_wait(one, "d", 1, &to, soon());
    if (r >= 0)
        r = weir_recvfrom_wait(two, &byte, 1, NULL, soon());
    if (one)
        weir_close(one, NULL, NULL);
    if (two)
        weir_close(two, NULL, NULL);
    return r;
}

static ssize_t adopt_and_drop(struct walk *walk)
{
    weir_socket *socket;
    int fds[2];

    cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    int r = weir_adopt(walk->runtime, fds[0], NULL, &socket);
    if (r < 0)
        close(fds[0]);
    else
        weir_close(socket, NULL, NULL);
    close(fds[1]);
    return r;
}

void walk_options(struct walk *walk, weir_options *ret_options)
{
    weir_options options = WEIR_OPTIONS_INIT;

    options.workers = 2;
    options.workers_max = 4;
    options.blocking_max = 2;
    options.sources_max = 256;
    options.allocator = &walk->memory.allocator;
    *ret_options = options;
}

void walk_expect_nothing_left(struct walk *walk)
{
    int threads = support_await_threads(walk->before.threads, 2000);
    int fds = support_count_fds();

    cr_expect_leq(threads, walk->before.threads, "%s, use %u: %d threads", walk->name, walk->k,
                  threads);
    cr_expect_eq(fds, walk->before.fds, "%s, use %u: %d descriptors, %d before", walk->name,
                 walk->k, fds, walk->before.fds);
    cr_expect_eq(atomic_load(&walk->memory.blocks), 0, "%s, use %u: %ld blocks", walk->name,
                 walk->k, atomic_load(&walk->memory.blocks));
    cr_expect_eq(atomic_load(&walk->memory.wrong), 0, "%s, use %u: a wrong size", walk->name,
                 walk->k);
}

void walk_run(struct walk *walk)
{
    weir_options options;
    weir_listener *tcp, *local, *plain;
    weir_address bound;
    char address[WEIR_ADDRESS_TEXT_MAX], name[64];

    walk->excused = 0;
    walk->file = memfd_create("walk", MFD_CLOEXEC);
    cr_assert_eq(ftruncate(walk->file, FILE_LENGTH), 0);
    walk_options(walk, &options);
    snprintf(name, sizeof name, "unix:@weir-walk-%d", (int)getpid());
    WALK_STEP(walk, "create", weir_runtime_create(&walk->runtime, &options));
    WALK_STEP(walk, "listen", listen_at(walk, "127.0.0.1:0", &tcp));
    WALK_STEP(walk, "listen", listen_at(walk, name, &local));
    WALK_STEP(walk, "listen",
              weir_listen(walk->runtime, "127.0.0.1:0", NULL, NULL, NULL, &plain));
    WALK_STEP(walk, "address", weir_listener_address(tcp, &bound));
    weir_address_format(&bound, address, sizeof address);
    WALK_STEP(walk, "exchange", exchange(walk, address));
    WALK_STEP(walk, "exchange", exchange(walk, name));
    WALK_STEP(walk, "meet", meet(walk, plain));
    WALK_STEP(walk, "adopt", adopt_and_drop(walk));
    WALK_STEP(walk, "datagram", send_datagram(walk));
    walk_work(walk);
    walk_watch(walk);
    WALK_STEP(walk, "exchange", exchange(walk, address));
    cr_assert_eq(weir_listener_close(local, NULL, NULL), 0);
    weir_runtime_destroy(walk->runtime);
    close(walk->file);
    walk_expect_nothing_left(walk);
}
