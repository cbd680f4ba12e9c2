/* test_destroy_pending.c: destroy with a thousand things pending: each ends once, and nothing is
 * waited for that might never come. (G2, O1, N06) */
#include "support/rig.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "net/net.h"
#include "support/scarce.h"

enum { EACH = 80, RECEIVES = 2 * EACH, TIMERS = 100, JOBS = 100, BLOCKING = 60, WATCHES = 60 };
enum { WAITERS = 10, KINDS = 4, FDS_MAX = 1024, BIG = 4 << 20 };

static char big[BIG];

/* An operation, and a try to begin another one when it has ended. */
struct pending {
    weir_op op;
    struct crowd *crowd;
    weir_socket *socket;
    weir_socket *made;
    char buffer[16];
    weir_address from;
    _Atomic unsigned ended;
    ssize_t result;
};

struct waiting {
    pthread_t thread;
    struct crowd *crowd;
    weir_socket *socket;
    int kind;
    ssize_t result;
};

struct crowd {
    struct rig rig;
    struct scarce_memory memory;
    struct blackhole hole;
    struct pending accepts[EACH], connects[EACH], receives[RECEIVES], sends[EACH], vectors[EACH],
        files[EACH], datagrams[EACH];
    struct iovec pieces[2];
    weir_timer timers[TIMERS];
    weir_work jobs[JOBS], blocking[BLOCKING];
    weir_watch *watches[WATCHES];
    struct waiting waiting[KINDS][WAITERS];
    weir_listener *listener, *second;
    int file, fds[FDS_MAX], fd_count;
    _Atomic unsigned jobs_run, timers_run, watches_run, began_again;
};

static void on_ended(weir_op *op, ssize_t result, void *context)
{
    struct pending *pending = context;
    struct crowd *crowd = pending->crowd;

    pending->result = result;
    if (atomic_fetch_add(&pending->ended, 1) > 0)
        return;
    /* A host that knows of nothing would go on: that must not keep the runtime alive. */
    ssize_t r = pending->socket
                    ? weir_recv(pending->socket, op, pending->buffer, 1, WEIR_NEVER)
                    : weir_connect(crowd->rig.runtime, crowd->hole.address, NULL, op,
                                   &pending->made, WEIR_NEVER);
    if (r != -ECANCELED && r != -ESHUTDOWN)
        atomic_fetch_add(&crowd->began_again, 1);
}

static void begin(struct crowd *crowd, struct pending *pending)
{
    memset(pending, 0, sizeof *pending);
    pending->crowd = crowd;
    weir_op_init(&pending->op, on_ended, pending);
}

static void keep_fd(struct crowd *crowd, int fd)
{
    cr_assert_lt(crowd->fd_count, FDS_MAX);
    crowd->fds[crowd->fd_count++] = fd;
}

static weir_socket *pair(struct crowd *crowd)
{
    weir_socket *socket;

    keep_fd(crowd, rig_unix(&crowd->rig, NULL, &socket));
    return socket;
}

static void begin_accepts_and_connects(struct crowd *crowd)
{
    weir_runtime *runtime = crowd->rig.runtime;

    cr_assert_eq(weir_listen(runtime, "127.0.0.1:0", NULL, NULL, NULL, &crowd->listener), 0);
    cr_assert_eq(weir_listen(runtime, "127.0.0.1:0", NULL, NULL, NULL, &crowd->second), 0);
    for (int i = 0; i < EACH; i++) {
        struct pending *accepting = &crowd->accepts[i], *connecting = &crowd->connects[i];
        begin(crowd, accepting);
        int r = weir_accept(crowd->listener, &accepting->op, &accepting->made, WEIR_NEVER);
        cr_assert_eq(r, -EINPROGRESS, "accept: %d", r);
        begin(crowd, connecting);
        r = weir_connect(runtime, crowd->hole.address, NULL, &connecting->op, &connecting->made,
                         i % 2 ? WEIR_NEVER : weir_after_ms(3600000));
        cr_assert_eq(r, -EINPROGRESS, "connect: %d", r);
    }
}

static void begin_receives(struct crowd *crowd)
{
    for (int i = 0; i < RECEIVES; i++) {
        struct pending *pending = &crowd->receives[i];
        begin(crowd, pending);
        pending->socket = pair(crowd);
        ssize_t r = weir_recv(pending->socket, &pending->op, pending->buffer, 1,
                              i % 2 ? WEIR_NEVER : weir_after_ms(3600000));
        cr_assert_eq(r, -EINPROGRESS, "recv: %zd", r);
    }
    for (int i = 0; i < EACH; i++) {
        struct pending *pending = &crowd->datagrams[i];
        begin(crowd, pending);
        cr_assert_eq(
            weir_datagram_open(crowd->rig.runtime, "127.0.0.1:0", NULL, &pending->socket), 0);
        ssize_t r = weir_recvfrom(pending->socket, &pending->op, pending->buffer, 1,
                                  &pending->from, WEIR_NEVER);
        cr_assert_eq(r, -EINPROGRESS, "recvfrom: %zd", r);
    }
}

static void begin_sends(struct crowd *crowd)
{
    crowd->pieces[0] = (struct iovec){big, BIG / 2};
    crowd->pieces[1] = (struct iovec){big + BIG / 2, BIG / 2};
    crowd->file = memfd_create("pending", MFD_CLOEXEC);
    keep_fd(crowd, crowd->file);
    cr_assert_eq(ftruncate(crowd->file, BIG), 0);
    for (int i = 0; i < EACH; i++) {
        struct pending *send = &crowd->sends[i], *vector = &crowd->vectors[i];
        struct pending *file = &crowd->files[i];
        begin(crowd, send);
        begin(crowd, vector);
        begin(crowd, file);
        send->socket = pair(crowd);
        vector->socket = pair(crowd);
        file->socket = pair(crowd);
        cr_assert_eq(weir_send(send->socket, &send->op, big, BIG, WEIR_NEVER), -EINPROGRESS);
        cr_assert_eq(weir_sendv(vector->socket, &vector->op, crowd->pieces, 2, WEIR_NEVER),
                     -EINPROGRESS);
        cr_assert_eq(weir_send_file(file->socket, &file->op, crowd->file, 0, BIG, WEIR_NEVER),
                     -EINPROGRESS);
        cr_assert_eq(weir_write(send->socket, big, 1000), 0); /* behind the operation */
    }
}

/* ---- timers, jobs, watches ------------------------------------------------------------------- */

static void on_timer(weir_timer *timer, uint64_t missed, void *context)
{
    struct crowd *crowd = context;

    (void)timer;
    (void)missed;
    atomic_fetch_add(&crowd->timers_run, 1);
}

static void on_job(weir_work *work, void *context)
{
    struct crowd *crowd = context;

    (void)work;
    rig_sleep_ms(1);
    atomic_fetch_add(&crowd->jobs_run, 1);
}

static void on_watch(weir_watch *watch, unsigned events, int status, void *context)
{
    struct crowd *crowd = context;

    (void)watch;
    (void)events;
    (void)status;
    atomic_fetch_add(&crowd->watches_run, 1);
}

static void begin_timers_and_watches(struct crowd *crowd)
{
    for (int i = 0; i < TIMERS; i++) {
        weir_timer_init(&crowd->timers[i], crowd->rig.runtime, on_timer, crowd);
        cr_assert_eq(weir_timer_set(&crowd->timers[i], weir_after_ms(3600000 + i), 1000000000,
                                    (enum weir_timer_mode)(i % 3)),
                     0);
    }
    for (int i = 0; i < WATCHES; i++) {
        int pipes[2];
        cr_assert_eq(pipe2(pipes, O_CLOEXEC | O_NONBLOCK), 0);
        keep_fd(crowd, pipes[0]);
        keep_fd(crowd, pipes[1]);
        cr_assert_eq(
            weir_watch_open(&crowd->watches[i], crowd->rig.runtime, pipes[0], on_watch, crowd), 0);
        cr_assert_eq(weir_watch_set(crowd->watches[i], WEIR_READABLE), 0);
    }
}

static void begin_jobs(struct crowd *crowd)
{
    for (int i = 0; i < JOBS; i++) {
        weir_work_init(&crowd->jobs[i], on_job, crowd);
        cr_assert_eq(weir_post(crowd->rig.runtime, &crowd->jobs[i]), 0);
    }
    for (int i = 0; i < BLOCKING; i++) {
        weir_work_init(&crowd->blocking[i], on_job, crowd);
        cr_assert_eq(weir_post_blocking(crowd->rig.runtime, &crowd->blocking[i]), 0);
    }
}

/* ---- threads that wait ----------------------------------------------------------------------- */

static void *wait_main(void *argument)
{
    struct waiting *waiting = argument;
    struct crowd *crowd = waiting->crowd;
    weir_socket *made;
    char byte;

    switch (waiting->kind) {
    case 0:
        waiting->result = weir_recv_wait(waiting->socket, &byte, 1, WEIR_NEVER);
        break;
    case 1:
        waiting->result = weir_send_wait(waiting->socket, big, BIG, WEIR_NEVER);
        break;
    case 2:
        waiting->result = weir_accept_wait(crowd->second, &made, WEIR_NEVER);
        break;
    default:
        waiting->result = weir_connect_wait(crowd->rig.runtime, crowd->hole.address, NULL, &made,
                                            WEIR_NEVER);
    }
    return NULL;
}

static void begin_waiting(struct crowd *crowd, int kinds, int each)
{
    for (int kind = 0; kind < kinds; kind++) {
        for (int i = 0; i < each; i++) {
            struct waiting *waiting = &crowd->waiting[kind][i];
            waiting->crowd = crowd;
            waiting->kind = kind;
            waiting->socket = kind < 2 ? pair(crowd) : NULL;
            cr_assert_eq(pthread_create(&waiting->thread, NULL, wait_main, waiting), 0);
        }
    }
}

/* A call that has not begun would meet a runtime that is gone; one that has may not sleep yet. The
 * connects are counted twice. */
static void await_inside(struct crowd *crowd, unsigned each)
{
    weir_runtime *runtime = crowd->rig.runtime;

    cr_assert(RIG_UNTIL(wr_shard_sum(runtime, WR_SHARD_INSIDE) == (KINDS + 1) * each, 10000),
              "%u are inside", (unsigned)wr_shard_sum(runtime, WR_SHARD_INSIDE));
}

static void join_waiting(struct crowd *crowd, int kinds, int each)
{
    for (int kind = 0; kind < kinds; kind++) {
        for (int i = 0; i < each; i++) {
            struct waiting *waiting = &crowd->waiting[kind][i];
            pthread_join(waiting->thread, NULL);
            ssize_t r = waiting->result;
            bool partly = kind == 1 && r > 0 && r < BIG;
            cr_expect(r == -ECANCELED || partly || (kind == 3 && r == -ESHUTDOWN),
                      "a waiting call of kind %d: %zd", kind, r);
        }
    }
}

/* ---- the tests ------------------------------------------------------------------------------- */

static void open_crowd(struct crowd *crowd)
{
    weir_options options = WEIR_OPTIONS_INIT;
    struct rlimit files;

    memset(crowd, 0, sizeof *crowd);
    cr_assert_eq(getrlimit(RLIMIT_NOFILE, &files), 0);
    files.rlim_cur = files.rlim_max < 4096 ? files.rlim_max : 4096;
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &files), 0);
    blackhole_open(&crowd->hole);
    scarce_memory_init(&crowd->memory);
    options.allocator = &crowd->memory.allocator;
    options.workers = 2;
    options.blocking_max = 4;
    options.sources_max = 2048;
    rig_open_with(&crowd->rig, &options);
}

static void close_crowd(struct crowd *crowd)
{
    weir_runtime_destroy(crowd->rig.runtime);
    cr_expect_eq(atomic_load(&crowd->memory.blocks), 0);
    cr_expect_eq(atomic_load(&crowd->memory.wrong), 0);
    crowd->rig.runtime = NULL;
}

static void end_crowd(struct crowd *crowd)
{
    for (int i = 0; i < crowd->fd_count; i++)
        close(crowd->fds[i]);
    rig_close(&crowd->rig);
    blackhole_close(&crowd->hole);
}

static void expect_ended(const char *kind, struct pending *pending, int count)
{
    for (int i = 0; i < count; i++) {
        unsigned ended = atomic_load(&pending[i].ended);
        cr_expect_eq(ended, 1, "%s %d ended %u times", kind, i, ended);
        cr_expect_eq(pending[i].result, -ECANCELED, "%s %d: %zd", kind, i, pending[i].result);
        cr_expect_null(pending[i].made);
    }
}

Test(destroy, a_thousand_things_pending_end_once_each, .timeout = 120)
{
    struct crowd *crowd = malloc(sizeof *crowd);

    open_crowd(crowd);
    begin_accepts_and_connects(crowd);
    begin_receives(crowd);
    begin_sends(crowd);
    begin_timers_and_watches(crowd);
    begin_waiting(crowd, KINDS, WAITERS);
    await_inside(crowd, WAITERS);
    rig_sleep_ms(20); /* most of them sleep now */
    begin_jobs(crowd);
    int64_t start = rig_now_ms();
    close_crowd(crowd);
    cr_expect_lt(rig_now_ms() - start, rig_patience(3000), "destroy took %lld ms",
                 (long long)(rig_now_ms() - start));
    expect_ended("accept", crowd->accepts, EACH);
    expect_ended("connect", crowd->connects, EACH);
    expect_ended("recv", crowd->receives, RECEIVES);
    expect_ended("send", crowd->sends, EACH);
    expect_ended("sendv", crowd->vectors, EACH);
    expect_ended("send_file", crowd->files, EACH);
    expect_ended("recvfrom", crowd->datagrams, EACH);
    cr_expect_eq(atomic_load(&crowd->jobs_run), JOBS + BLOCKING, "posted work runs");
    cr_expect_eq(atomic_load(&crowd->timers_run), 0);
    cr_expect_eq(atomic_load(&crowd->watches_run), 0);
    cr_expect_eq(atomic_load(&crowd->began_again), 0, "something was begun again");
    for (int i = 0; i < TIMERS; i++)
        weir_timer_fini(&crowd->timers[i]);
    join_waiting(crowd, KINDS, WAITERS);
    end_crowd(crowd);
    free(crowd);
}

#ifdef WEIR_FAULTS
static _Atomic int on_the_way_out, held_up;

static void hold_up(enum wr_net_seam seam)
{
    if (seam != WR_SEAM_UNPINNED)
        return;
    atomic_fetch_add(&on_the_way_out, 1);
    rig_sleep_ms(10);
    atomic_fetch_add(&held_up, 1);
    atomic_fetch_sub(&on_the_way_out, 1);
}

/* Nothing keeps the sockets any more when a waiting call is about to leave; the runtime has to stay
 * until it has. */
Test(destroy, threads_that_wait_leave_before_the_runtime_goes, .timeout = 120)
{
    struct crowd *crowd = malloc(sizeof *crowd);

    wr_net_seam_hook = hold_up;
    open_crowd(crowd);
    cr_assert_eq(weir_listen(crowd->rig.runtime, "127.0.0.1:0", NULL, NULL, NULL, &crowd->second),
                 0);
    begin_waiting(crowd, KINDS, 3);
    cr_assert(RIG_UNTIL(rig_stats(&crowd->rig).sources == 1 + 3 * 3, 5000));
    await_inside(crowd, 3);
    rig_sleep_ms(50);
    close_crowd(crowd);
    cr_expect_eq(atomic_load(&on_the_way_out), 0, "%d threads are still inside",
                 atomic_load(&on_the_way_out));
    join_waiting(crowd, KINDS, 3);
    cr_expect_geq(atomic_load(&held_up), 3, "the race was not replayed");
    end_crowd(crowd);
    free(crowd);
}
#endif

Test(destroy, threads_that_wait_and_destroy_may_race, .timeout = 120)
{
    struct crowd *crowd = malloc(sizeof *crowd);

    for (int round = 0; round < 30; round++) {
        open_crowd(crowd);
        cr_assert_eq(
            weir_listen(crowd->rig.runtime, "127.0.0.1:0", NULL, NULL, NULL, &crowd->second), 0);
        begin_waiting(crowd, KINDS, 3);
        cr_assert(RIG_UNTIL(rig_stats(&crowd->rig).sources == 1 + 3 * 3, 5000));
        await_inside(crowd, 3);
        rig_sleep_ms(round % 4);
        close_crowd(crowd);
        join_waiting(crowd, KINDS, 3);
        end_crowd(crowd);
    }
    free(crowd);
}

static _Atomic unsigned closed_calls;

static void *close_main(void *argument)
{
    int r = weir_close_wait(argument);
    cr_expect(r == 0, "weir_close_wait: %d", r);
    atomic_fetch_add(&closed_calls, 1);
    return NULL;
}

/* The peer neither reads nor finishes: only the reset of destroy ends these. */
Test(destroy, threads_that_wait_for_a_close_are_let_go, .timeout = 120)
{
    struct rig rig;
    pthread_t threads[8];
    int peers[8];
    weir_socket_options options = WEIR_SOCKET_OPTIONS_INIT;

    options.linger_ms = 3600000;
    rig_open(&rig, 2);
    for (int i = 0; i < 8; i++) {
        weir_socket *socket;
        peers[i] = rig_unix(&rig, &options, &socket);
        cr_assert_eq(weir_write(socket, big, 900000), 0);
        cr_assert_eq(pthread_create(&threads[i], NULL, close_main, socket), 0);
        cr_assert(RIG_UNTIL(wr_closing(socket), 5000));
    }
    rig_sleep_ms(50);
    cr_assert_eq(atomic_load(&closed_calls), 0);
    weir_runtime_destroy(rig.runtime);
    rig.runtime = NULL;
    for (int i = 0; i < 8; i++) {
        pthread_join(threads[i], NULL);
        close(peers[i]);
    }
    rig_close(&rig);
}
