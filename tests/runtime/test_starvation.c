/* test_starvation.c: workers that are all blocked, for ever or on each other: threads that wait in
 * synchronous calls are served all the same, and jobs that wait for jobs get ahead. */
#include "support/rig.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "support/latency.h"
#include "support/stress.h"

/* ---- all workers blocked for ever ---------------------------------------------------------- */

#define STUCK 4

struct stuck {
    struct rig_busy busy;
    weir_socket *socket;
    int peer;
    _Atomic unsigned inside, open;
};

static void stay(weir_socket *socket, const weir_view *view, int status, void *context)
{
    struct stuck *stuck = context;

    (void)socket;
    if (status < 0 || view->length == 0)
        return;
    atomic_fetch_add(&stuck->inside, 1);
    while (!atomic_load(&stuck->open))
        rig_sleep_ms(1);
}

/* One worker stays in the callback of a socket, the others in posted jobs; none says so. */
static void stuck_begin(struct rig *rig, struct stuck *stuck)
{
    memset(stuck, 0, sizeof *stuck);
    rig_open(rig, STUCK);
    stuck->peer = rig_unix(rig, NULL, &stuck->socket);
    cr_assert_eq(weir_read_start(stuck->socket, stay, stuck), 0);
    rig_peer_send(stuck->peer, "x", 1);
    cr_assert(RIG_UNTIL(atomic_load(&stuck->inside) == 1, 5000));
    rig_busy_begin(rig, &stuck->busy, STUCK - 1);
    cr_assert_eq(rig_stats(rig).workers, STUCK);
}

static void stuck_end(struct rig *rig, struct stuck *stuck)
{
    cr_assert_eq(rig_stats(rig).workers, STUCK, "a worker was added");
    atomic_store(&stuck->open, 1);
    rig_busy_end(&stuck->busy);
    close(stuck->peer);
    rig_close(rig);
}

#define WAITERS 256

/* What the machine does to a thread that waits in recv(2): the measure for the others. */
#define PLAIN 16

struct waiter {
    weir_socket *socket; /* NULL: waits in recv(2), on `fd` */
    int fd, peer;
    pthread_t thread;
    _Atomic unsigned served, sent;
    int failed; /* what else than data and the end came */
};

static struct waiter waiters[WAITERS + PLAIN];
static struct latency latency, plain;

static void *wait_for_data(void *context)
{
    struct waiter *waiter = context;
    weir_time sent;

    for (;;) {
        ssize_t n = waiter->socket
                        ? weir_recv_wait(waiter->socket, &sent, sizeof sent, WEIR_NEVER)
                        : recv(waiter->fd, &sent, sizeof sent, 0);
        if (n != sizeof sent) {
            waiter->failed = (int)n;
            return NULL;
        }
        latency_add(waiter->socket ? &latency : &plain, weir_now() - sent);
        atomic_fetch_add(&waiter->served, 1);
    }
}

static bool all_served(void)
{
    for (unsigned i = 0; i < WAITERS + PLAIN; i++)
        if (atomic_load(&waiters[i].served) < atomic_load(&waiters[i].sent))
            return false;
    return true;
}

static void send_stamp(struct waiter *waiter)
{
    weir_time now = weir_now();
    rig_peer_send(waiter->peer, &now, sizeof now);
    atomic_fetch_add(&waiter->sent, 1);
}

static void waiters_open(struct rig *rig)
{
    for (unsigned i = 0; i < WAITERS + PLAIN; i++) {
        struct waiter *waiter = &waiters[i];
        int fds[2];
        cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
        waiter->fd = fds[0];
        waiter->peer = fds[1];
        if (i < WAITERS)
            cr_assert_eq(weir_adopt(rig->runtime, fds[0], NULL, &waiter->socket), 0);
        cr_assert_eq(pthread_create(&waiter->thread, NULL, wait_for_data, waiter), 0);
    }
    for (unsigned i = 0; i < WAITERS + PLAIN; i++)
        send_stamp(&waiters[i]);
    cr_assert(RIG_UNTIL(all_served(), 10000)); /* all threads are at it */
    atomic_store(&latency.count, 0);
    atomic_store(&plain.count, 0);
}

static void waiters_close(void)
{
    unsigned least = UINT32_MAX;

    for (unsigned i = 0; i < WAITERS + PLAIN; i++)
        close(waiters[i].peer);
    for (unsigned i = 0; i < WAITERS + PLAIN; i++) {
        pthread_join(waiters[i].thread, NULL);
        cr_expect_eq(waiters[i].failed, 0);
        cr_expect_eq(waiters[i].served, waiters[i].sent);
        least = waiters[i].sent < least ? waiters[i].sent : least;
        if (!waiters[i].socket)
            close(waiters[i].fd);
    }
    cr_expect_gt(least, 1);
}

/* WEIR_STRESS_SECONDS=30 is the long run. */
Test(starvation, every_thread_in_a_waiting_call_is_served_while_all_workers_are_blocked,
     .timeout = 600)
{
    struct rig rig;
    struct stuck stuck;
    struct support_random random = support_random(support_seed(), 0);

    stuck_begin(&rig, &stuck);
    waiters_open(&rig);
    for (int64_t end = rig_now_ms() + support_span_ms(3000); rig_now_ms() < end;) {
        for (unsigned burst = 1 + support_below(&random, 3); burst > 0; burst--)
            send_stamp(&waiters[support_below(&random, WAITERS)]);
        send_stamp(&waiters[WAITERS + support_below(&random, PLAIN)]);
        rig_sleep_ms(1);
    }
    cr_expect(RIG_UNTIL(all_served(), 5000), "somebody waits for data that is there");
    waiters_close();
    latency_sort(&plain, "from data to thread in recv(2)");
    latency_sort(&latency, "from data to waiting thread, workers blocked");
    /* A busy machine holds everybody up now and then, for some 100 ms. */
    cr_expect_leq(latency_us(&latency, 950),
                  rig_patience(10) * 1000L + 2 * latency_us(&plain, 990));
    cr_expect_leq(latency_us(&latency, 1000),
                  rig_patience(500) * 1000L + 2 * latency_us(&plain, 1000));
    stuck_end(&rig, &stuck);
}

/* ---- the other waiting calls --------------------------------------------------------------- */

Test(starvation, waiting_calls_time_out_in_time_while_all_workers_are_blocked, .timeout = 30)
{
    struct rig rig;
    struct stuck stuck;
    weir_socket *socket, *none;
    weir_listener *listener;
    char buffer[8];

    stuck_begin(&rig, &stuck);
    int peer = rig_unix(&rig, NULL, &socket);
    cr_assert_eq(weir_listen(rig.runtime, "127.0.0.1:0", NULL, NULL, NULL, &listener), 0);
    int64_t begin = rig_now_ms();
    cr_expect_eq(weir_recv_wait(socket, buffer, sizeof buffer, weir_after_ms(50)), -ETIMEDOUT);
    cr_expect_eq(weir_accept_wait(listener, &none, weir_after_ms(50)), -ETIMEDOUT);
    int64_t took = rig_now_ms() - begin;
    cr_expect_geq(took, 99);
    cr_expect_leq(took, rig_patience(300), "%lld ms", (long long)took);
    close(peer);
    stuck_end(&rig, &stuck);
}

struct closer {
    weir_socket *socket;
    pthread_t thread;
};

static void *close_soon(void *context)
{
    struct closer *closer = context;

    rig_sleep_ms(20);
    weir_close(closer->socket, NULL, NULL);
    return NULL;
}

Test(starvation, closing_ends_a_waiting_call_at_once_while_all_workers_are_blocked, .timeout = 30)
{
    struct rig rig;
    struct stuck stuck;
    struct closer closer;
    char buffer[8];

    stuck_begin(&rig, &stuck);
    int peer = rig_unix(&rig, NULL, &closer.socket);
    int64_t begin = rig_now_ms();
    cr_assert_eq(pthread_create(&closer.thread, NULL, close_soon, &closer), 0);
    cr_expect_eq(weir_recv_wait(closer.socket, buffer, sizeof buffer, weir_after_ms(10000)),
                 -ECANCELED);
    cr_expect_leq(rig_now_ms() - begin, rig_patience(200));
    pthread_join(closer.thread, NULL);
    close(peer);
    stuck_end(&rig, &stuck);
}

struct later {
    weir_listener *listener;
    int fd;
    size_t length;
    pthread_t thread;
};

static void *connect_later(void *context)
{
    struct later *later = context;

    rig_sleep_ms(20);
    later->fd = rig_connect(later->listener);
    return NULL;
}

static void *read_later(void *context)
{
    struct later *later = context;
    char *bytes = malloc(later->length);

    rig_sleep_ms(20);
    rig_peer_receive(later->fd, bytes, later->length);
    free(bytes);
    return NULL;
}

Test(starvation, accepting_and_sending_wait_without_a_worker, .timeout = 30)
{
    struct rig rig;
    struct stuck stuck;
    struct later later = {.length = 4 << 20};
    weir_socket *server;
    static char bytes[4 << 20];

    stuck_begin(&rig, &stuck);
    cr_assert_eq(weir_listen(rig.runtime, "127.0.0.1:0", NULL, NULL, NULL, &later.listener), 0);
    int64_t begin = rig_now_ms();
    cr_assert_eq(pthread_create(&later.thread, NULL, connect_later, &later), 0);
    cr_assert_eq(weir_accept_wait(later.listener, &server, weir_after_ms(10000)), 0);
    pthread_join(later.thread, NULL);
    cr_assert_eq(pthread_create(&later.thread, NULL, read_later, &later), 0);
    cr_assert_eq(weir_send_wait(server, bytes, sizeof bytes, weir_after_ms(10000)), sizeof bytes);
    pthread_join(later.thread, NULL);
    cr_expect_leq(rig_now_ms() - begin, rig_patience(1000));
    close(later.fd);
    stuck_end(&rig, &stuck);
}

/* ---- jobs that wait for jobs --------------------------------------------------------------- */

#define JOBS_MAX 64

struct job {
    weir_work work;
    weir_socket *socket; /* waits for a byte here */
    int peer;            /* a byte sent here reaches the socket */
    int answer_to;       /* having run, sends a byte there; -1: nowhere */
    _Atomic unsigned *done;
    _Atomic unsigned *open; /* waits for this, rather than for a socket */
    bool announced;
};

static void answer(struct job *job)
{
    if (job->answer_to >= 0 && send(job->answer_to, "x", 1, MSG_NOSIGNAL) != 1)
        return;
    atomic_fetch_add(job->done, 1);
}

static void wait_then_answer(weir_work *work, void *context)
{
    struct job *job = context;
    char byte;

    (void)work;
    if (!job->socket || weir_recv_wait(job->socket, &byte, 1, weir_after_ms(20000)) == 1)
        answer(job);
}

static void wait_at_gate(weir_work *work, void *context)
{
    struct job *job = context;

    (void)work;
    if (job->announced)
        weir_blocking_begin();
    while (!atomic_load(job->open))
        rig_sleep_ms(1);
    if (job->announced)
        weir_blocking_end();
    atomic_fetch_add(job->done, 1);
}

static void open_gate(weir_work *work, void *context)
{
    struct job *job = context;

    (void)work;
    atomic_store(job->open, 1);
    atomic_fetch_add(job->done, 1);
}

static void open_small(struct rig *rig, unsigned workers)
{
    weir_options options = WEIR_OPTIONS_INIT;

    options.pollers = 1;
    options.workers = workers; /* at rest; the cap is the default */
    rig_open_with(rig, &options);
}

static void expect_progress(_Atomic unsigned *done, unsigned jobs, int64_t begin, const char *what)
{
    bool all = RIG_UNTIL(atomic_load(done) == jobs, 10000);
    int64_t took = rig_now_ms() - begin;

    fprintf(stderr, "%s: %lld ms\n", what, (long long)took);
    cr_expect(all, "%s: %u of %u jobs ended", what, atomic_load(done), jobs);
    cr_expect_leq(took, rig_patience(100), "%s: %lld ms", what, (long long)took);
}

/* (W13) Four workers wait; the jobs that answer stand behind them. */
Test(starvation, jobs_that_wait_for_peers_let_the_jobs_run_that_answer, .timeout = 30)
{
    struct rig rig;
    static struct job jobs[8];
    _Atomic unsigned done = 0;

    open_small(&rig, 4);
    for (unsigned i = 0; i < 4; i++) {
        jobs[i] = (struct job){.answer_to = -1, .done = &done};
        jobs[i].peer = rig_unix(&rig, NULL, &jobs[i].socket);
        jobs[i + 4] = (struct job){.answer_to = jobs[i].peer, .done = &done};
    }
    int64_t begin = rig_now_ms();
    for (unsigned i = 0; i < 8; i++) {
        weir_work_init(&jobs[i].work, wait_then_answer, &jobs[i]);
        cr_assert_eq(weir_post(rig.runtime, &jobs[i].work), 0);
    }
    expect_progress(&done, 8, begin, "waiting for jobs that answer");
    cr_expect_geq(rig_stats(&rig).compensations, 1, "no counter shows it");
    for (unsigned i = 0; i < 4; i++)
        close(jobs[i].peer);
    rig_close(&rig);
}

/* (W13) Each job answers the one before once it has been answered by the one behind. */
Test(starvation, chain_of_jobs_that_wait_for_each_other_gets_to_its_end, .timeout = 30)
{
    struct rig rig;
    static struct job jobs[32];
    _Atomic unsigned done = 0;

    open_small(&rig, 2);
    for (unsigned i = 0; i < 32; i++) {
        jobs[i] = (struct job){.answer_to = i > 0 ? jobs[i - 1].peer : -1, .done = &done};
        if (i < 31)
            jobs[i].peer = rig_unix(&rig, NULL, &jobs[i].socket);
    }
    int64_t begin = rig_now_ms();
    for (unsigned i = 0; i < 32; i++) {
        weir_work_init(&jobs[i].work, wait_then_answer, &jobs[i]);
        cr_assert_eq(weir_post(rig.runtime, &jobs[i].work), 0);
    }
    expect_progress(&done, 32, begin, "chain of 32 jobs");
    for (unsigned i = 0; i < 31; i++)
        close(jobs[i].peer);
    rig_close(&rig);
}

static void block_all_then_open(unsigned workers, unsigned blocked, bool announced,
                                const char *what)
{
    struct rig rig;
    static struct job jobs[JOBS_MAX];
    _Atomic unsigned done = 0, open = 0;

    open_small(&rig, workers);
    for (unsigned i = 0; i <= blocked; i++) {
        jobs[i] = (struct job){.done = &done, .open = &open, .announced = announced};
        weir_work_init(&jobs[i].work, i < blocked ? wait_at_gate : open_gate, &jobs[i]);
    }
    int64_t begin = rig_now_ms();
    for (unsigned i = 0; i <= blocked; i++)
        cr_assert_eq(weir_post(rig.runtime, &jobs[i].work), 0);
    expect_progress(&done, blocked + 1, begin, what);
    weir_stats stats = rig_stats(&rig);
    cr_expect_geq(stats.compensations, 1);
    cr_expect_leq(stats.workers, stats.workers_max_set);
    rig_close(&rig);
}

/* (W13) */
Test(starvation, announced_blocks_are_made_up_for, .timeout = 30)
{
    block_all_then_open(4, 40, true, "behind 40 announced blocks");
}

/* (W13) */
Test(starvation, blocks_that_nobody_announced_are_made_up_for, .timeout = 30)
{
    block_all_then_open(4, 4, false, "behind 4 blocks not announced");
}

/* (W13) A pool that may not grow: what the kernel has for the waiting workers still reaches them,
 * a deadline frees them, and the log says what is the matter. */
Test(starvation, pool_at_its_cap_says_so_and_goes_on_at_the_deadline, .timeout = 30)
{
    struct rig rig;
    static struct job jobs[3];
    _Atomic unsigned done = 0, open = 0;

    rig_open(&rig, 2);
    for (unsigned i = 0; i < 2; i++) {
        jobs[i] = (struct job){.answer_to = -1, .done = &done};
        jobs[i].peer = rig_unix(&rig, NULL, &jobs[i].socket);
        weir_work_init(&jobs[i].work, wait_then_answer, &jobs[i]);
        cr_assert_eq(weir_post(rig.runtime, &jobs[i].work), 0);
    }
    jobs[2] = (struct job){.done = &done, .open = &open};
    weir_work_init(&jobs[2].work, open_gate, &jobs[2]);
    cr_assert_eq(weir_post(rig.runtime, &jobs[2].work), 0);
    cr_expect(RIG_UNTIL(rig_logged(&rig, "no more may be started"), 5000));
    cr_expect_eq(atomic_load(&open), 0, "a third worker ran");
    int64_t begin = rig_now_ms();
    rig_peer_send(jobs[0].peer, "x", 1);
    cr_expect(RIG_UNTIL(atomic_load(&open) == 1, 5000));
    cr_expect_leq(rig_now_ms() - begin, rig_patience(100));
    rig_peer_send(jobs[1].peer, "x", 1);
    cr_expect(RIG_UNTIL(atomic_load(&done) == 3, 5000));
    close(jobs[0].peer);
    close(jobs[1].peer);
    rig_close(&rig);
}
