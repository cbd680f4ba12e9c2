/* test_lifecycle.c: a runtime ends promptly whatever it is doing: nothing at all, a lot, or waiting
 * for itself; and what races with the end is refused or ended, never left behind. */
#include "support/rig.h"

#include <errno.h>
#include <unistd.h>

#include "support/stress.h"

/* Destroys and checks how long that took. */
static void close_within(struct rig *rig, int milliseconds)
{
    int64_t begin = rig_now_ms();

    rig_close(rig);
    int64_t took = rig_now_ms() - begin;
    cr_expect_leq(took, milliseconds, "destroy took %lld ms", (long long)took);
}

/* ---- nothing to do ------------------------------------------------------------------------- */

/* (W04) Destroyed before its threads have come anywhere. */
Test(lifecycle, destroy_right_after_create_ends_it, .timeout = 60)
{
    unsigned rounds = support_rounds(50);

    for (unsigned i = 0; i < rounds; i++) {
        struct rig rig;
        rig_open(&rig, 1 + i % 4);
        close_within(&rig, rig_patience(500));
    }
}

static void *destroy(void *context)
{
    weir_runtime_destroy(context);
    return NULL;
}

/* (W05) Nothing is watched, no timer runs: all threads sleep without a time to wake at. */
Test(lifecycle, destroy_from_another_thread_wakes_a_runtime_that_sleeps, .timeout = 30)
{
    struct rig rig;
    pthread_t thread;

    rig_open(&rig, 2);
    rig_sleep_ms(100);
    int64_t begin = rig_now_ms();
    cr_assert_eq(pthread_create(&thread, NULL, destroy, rig.runtime), 0);
    pthread_join(thread, NULL);
    cr_expect_leq(rig_now_ms() - begin, rig_patience(50));
    rig.runtime = NULL;
    rig_close(&rig);
}

Test(lifecycle, drain_of_a_runtime_with_nothing_returns_at_once, .timeout = 30)
{
    struct rig rig;

    rig_open(&rig, 2);
    int64_t begin = rig_now_ms();
    cr_expect_eq(weir_runtime_drain(rig.runtime, weir_after_ms(10000)), 0);
    cr_expect_leq(rig_now_ms() - begin, rig_patience(50));
    close_within(&rig, rig_patience(500));
}

/* ---- under load ---------------------------------------------------------------------------- */

#define PAIRS 16

struct load {
    struct rig rig;
    weir_listener *listener;
    weir_socket *sockets[PAIRS];
    int peers[PAIRS];
    pthread_t threads[2];
    _Atomic unsigned stop, echoed;
    weir_work work;
    _Atomic unsigned runs;
    weir_timer timers[4];
    _Atomic unsigned rang;
};

static void echo(weir_socket *socket, const weir_view *view, int status, void *context)
{
    struct load *load = context;

    if (status == 0 && view->length > 0 && weir_write(socket, view->data, view->length) == 0)
        atomic_fetch_add(&load->echoed, 1);
}

static void run_again(weir_work *work, void *context)
{
    struct load *load = context;

    atomic_fetch_add(&load->runs, 1);
    weir_post(load->rig.runtime, work);
}

static void ring(weir_timer *timer, uint64_t missed, void *context)
{
    struct load *load = context;

    (void)timer;
    (void)missed;
    atomic_fetch_add(&load->rang, 1);
}

static void on_accept(weir_listener *listener, weir_socket *socket, void *context)
{
    (void)listener;
    weir_read_start(socket, echo, context);
}

/* Asks all sockets in turn, whether they answer or not. */
static void *ask_on(void *context)
{
    struct load *load = context;
    char bytes[512] = {0};

    while (!atomic_load(&load->stop)) {
        for (unsigned i = 0; i < PAIRS; i++) {
            (void)!send(load->peers[i], bytes, 64, MSG_NOSIGNAL | MSG_DONTWAIT);
            (void)!recv(load->peers[i], bytes, sizeof bytes, MSG_DONTWAIT);
        }
        sched_yield();
    }
    return NULL;
}

static void load_begin(struct load *load, unsigned workers)
{
    memset(load, 0, sizeof *load);
    rig_open(&load->rig, workers);
    cr_assert_eq(
        weir_listen(load->rig.runtime, "127.0.0.1:0", NULL, on_accept, load, &load->listener), 0);
    for (unsigned i = 0; i < PAIRS; i++) {
        load->peers[i] = rig_unix(&load->rig, NULL, &load->sockets[i]);
        cr_assert_eq(weir_read_start(load->sockets[i], echo, load), 0);
    }
    for (unsigned i = 0; i < 4; i++) {
        weir_timer_init(&load->timers[i], load->rig.runtime, ring, load);
        cr_assert_eq(weir_timer_set(&load->timers[i], weir_now(), 500000 + i * 100000,
                                    i % 2 ? WEIR_TIMER_RATE : WEIR_TIMER_DELAY),
                     0);
    }
    weir_work_init(&load->work, run_again, load);
    cr_assert_eq(weir_post(load->rig.runtime, &load->work), 0);
    for (unsigned i = 0; i < 2; i++)
        cr_assert_eq(pthread_create(&load->threads[i], NULL, ask_on, load), 0);
    cr_assert(RIG_UNTIL(atomic_load(&load->echoed) > 100 && atomic_load(&load->rang) > 10, 5000));
}

static void load_end(struct load *load)
{
    atomic_store(&load->stop, 1);
    for (unsigned i = 0; i < 2; i++)
        pthread_join(load->threads[i], NULL);
    for (unsigned i = 0; i < PAIRS; i++)
        close(load->peers[i]);
    for (unsigned i = 0; i < 4; i++)
        weir_timer_fini(&load->timers[i]);
}

/* Sockets, timers and an item that posts itself again go on until the end. */
Test(lifecycle, destroy_ends_a_runtime_under_load, .timeout = 60)
{
    for (unsigned round = 0; round < 5; round++) {
        static struct load load;
        load_begin(&load, 1 + round % 3);
        load.rig.before.fds += PAIRS; /* the peers end later, and who asks them */
        load.rig.before.threads += 2;
        close_within(&load.rig, rig_patience(2000));
        load_end(&load);
    }
}

Test(lifecycle, drain_keeps_its_deadline_under_load_and_ends_when_that_is_over, .timeout = 60)
{
    static struct load load;
    weir_socket *late;
    weir_listener *refused;
    int fds[2];

    load_begin(&load, 2);
    int64_t begin = rig_now_ms();
    int r = weir_runtime_drain(load.rig.runtime, weir_after_ms(100));
    int64_t took = rig_now_ms() - begin;
    cr_expect(r == 0 || r == -ETIME, "drain: %d", r);
    cr_expect_leq(took, 100 + rig_patience(200), "%lld ms", (long long)took);
    cr_expect_eq(weir_listen(load.rig.runtime, "127.0.0.1:0", NULL, on_accept, &load, &refused),
                 -ESHUTDOWN);
    cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    cr_expect_eq(weir_adopt(load.rig.runtime, fds[0], NULL, &late), -ESHUTDOWN);
    close(fds[0]);
    close(fds[1]);
    unsigned runs = atomic_load(&load.runs), rang = atomic_load(&load.rang);
    cr_expect(RIG_UNTIL(atomic_load(&load.runs) > runs && atomic_load(&load.rang) > rang, 2000),
              "work and timers go on");
    load_end(&load);
    cr_expect_eq(weir_runtime_drain(load.rig.runtime, weir_after_ms(10000)), 0);
    cr_expect_eq(rig_stats(&load.rig).sources, 0);
    close_within(&load.rig, rig_patience(1000));
}

/* ---- waiting for itself -------------------------------------------------------------------- */

struct sleeper {
    weir_work work;
    weir_socket *socket;
    int peer;
    _Atomic int result;
};

static void sleep_in_receive(weir_work *work, void *context)
{
    struct sleeper *sleeper = context;
    char byte;

    (void)work;
    ssize_t n = weir_recv_wait(sleeper->socket, &byte, 1, WEIR_NEVER);
    atomic_store(&sleeper->result, (int)n);
}

/* All workers sleep in calls that only the end can end. */
Test(lifecycle, destroy_frees_workers_that_wait_for_ever, .timeout = 30)
{
    struct rig rig;
    struct sleeper sleepers[2];

    rig_open(&rig, 2);
    for (unsigned i = 0; i < 2; i++) {
        atomic_init(&sleepers[i].result, 1);
        sleepers[i].peer = rig_unix(&rig, NULL, &sleepers[i].socket);
        weir_work_init(&sleepers[i].work, sleep_in_receive, &sleepers[i]);
        cr_assert_eq(weir_post(rig.runtime, &sleepers[i].work), 0);
    }
    cr_assert(RIG_UNTIL(rig_stats(&rig).workers_blocked == 2, 5000));
    rig.before.fds += 2;
    close_within(&rig, rig_patience(500));
    for (unsigned i = 0; i < 2; i++) {
        cr_expect_eq(sleepers[i].result, -ECANCELED);
        close(sleepers[i].peer);
    }
}

/* ---- what races with the end --------------------------------------------------------------- */

struct opener {
    weir_work work;
    weir_runtime *runtime;
    _Atomic unsigned opened, refused, other;
    unsigned spin;
};

static void ignore(weir_socket *socket, const weir_view *view, int status, void *context)
{
    (void)socket;
    (void)view;
    (void)status;
    (void)context;
}

/* Opens a socket and posts itself again, until it is refused. */
static void open_more(weir_work *work, void *context)
{
    struct opener *opener = context;
    weir_socket *socket;
    int fds[2];

    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) < 0)
        return;
    close(fds[1]);
    int r = weir_adopt(opener->runtime, fds[0], NULL, &socket);
    if (r == 0) {
        atomic_fetch_add(&opener->opened, 1);
        weir_read_start(socket, ignore, opener); /* and leaves it to the end of the runtime */
    } else {
        atomic_fetch_add(r == -ESHUTDOWN ? &opener->refused : &opener->other, 1);
        close(fds[0]);
    }
    weir_post(opener->runtime, work);
}

Test(lifecycle, sockets_opened_while_the_runtime_ends_are_refused_or_closed, .timeout = 60)
{
    unsigned rounds = support_rounds(60), opened = 0;

    for (unsigned round = 0; round < rounds; round++) {
        struct rig rig;
        struct opener openers[2] = {0};
        rig_open(&rig, 2);
        for (unsigned i = 0; i < 2; i++) {
            openers[i].runtime = rig.runtime;
            weir_work_init(&openers[i].work, open_more, &openers[i]);
            cr_assert_eq(weir_post(rig.runtime, &openers[i].work), 0);
        }
        /* A moment, and long enough for one to be opened at all. */
        weir_time end = weir_after_us(100 + round % 400), late = weir_after_ms(50);
        while (weir_now() < end || (atomic_load(&openers[0].opened) == 0 && weir_now() < late))
            ;
        close_within(&rig, rig_patience(1000)); /* and every descriptor is back */
        for (unsigned i = 0; i < 2; i++) {
            cr_assert_eq(openers[i].other, 0);
            opened += atomic_load(&openers[i].opened);
        }
    }
    cr_expect_gt(opened, 0, "the race was never near");
}
