/* uring.c: what only the io_uring back end has to prove: that a close is a close, that a full or
 * lossy completion queue silences nobody, that no bell is lost, that lesser kernels will do. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <unistd.h>

#include "os/clock.h"
#include "os/fault.h"
#include "poll/uring_private.h"
#include "rig.h"
#include "support/stress.h"

#define MS 1000000

static int listen_on(struct sockaddr_in *address)
{
    socklen_t length = sizeof *address;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    cr_assert_eq(bind(fd, (struct sockaddr *)address, length), 0, "bind: errno %d", errno);
    cr_assert_eq(listen(fd, 8), 0);
    cr_assert_eq(getsockname(fd, (struct sockaddr *)address, &length), 0);
    return fd;
}

/* An owner that does nothing but wait. */
struct owner {
    struct rig *rig;
    pthread_t thread;
    _Atomic bool stop;
    _Atomic unsigned waits, events;
};

static void *own(void *argument)
{
    struct owner *owner = argument;

    rig_look(owner->rig);
    while (!atomic_load(&owner->stop)) {
        atomic_fetch_add(&owner->waits, 1);
        int count = owner->rig->ops->wait(owner->rig->backend, owner->rig->events, RIG_BATCH,
                                          WEIR_NEVER);
        cr_assert_geq(count, 0);
        atomic_fetch_add(&owner->events, (unsigned)count);
    }
    return NULL;
}

static void owner_start(struct owner *owner, struct rig *rig)
{
    owner->rig = rig;
    atomic_store(&owner->stop, false);
    atomic_store(&owner->waits, 0);
    atomic_store(&owner->events, 0);
    cr_assert_eq(pthread_create(&owner->thread, NULL, own, owner), 0);
    while (atomic_load(&owner->waits) == 0)
        sched_yield();
}

static void owner_stop(struct owner *owner)
{
    atomic_store(&owner->stop, true);
    owner->rig->ops->doorbell(owner->rig->backend);
    pthread_join(owner->thread, NULL);
}

/* ---- a close is a close ------------------------------------------------------------------ */

Test(uring, a_close_after_detach_is_heard_by_the_peer_at_once, .timeout = 30)
{
    static struct rig rig;
    struct owner owner;

    rig_open(&rig, rig_uring());
    owner_start(&owner, &rig);
    for (uint64_t round = 0; round < 200; round++) {
        int pair[2];
        cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
        unsigned events = atomic_load(&owner.events);
        cr_assert_eq(rig_attach(&rig, pair[0], round, WR_POLL_EDGE), 0);
        while (atomic_load(&owner.events) == events) /* that it is writable: it is armed */
            sched_yield();
        cr_assert_eq(rig_detach(&rig, pair[0], round), 0);
        close(pair[0]);
        struct pollfd peer = {.fd = pair[1], .events = POLLRDHUP};
        cr_assert_eq(poll(&peer, 1, 0), 1, "round %d: something holds it open", (int)round);
        close(pair[1]);
    }
    owner_stop(&owner);
    rig_close(&rig);
}

Test(uring, the_port_of_a_closed_listener_is_free_at_once, .timeout = 30)
{
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    static struct rig rig;
    struct owner owner;

    rig_open(&rig, rig_uring());
    owner_start(&owner, &rig);
    for (uint64_t round = 0; round < 200; round++) {
        int fd = listen_on(&address); /* the port of the round before */
        cr_assert_eq(rig_attach(&rig, fd, round, WR_POLL_EDGE), 0);
        cr_assert_eq(rig_detach(&rig, fd, round), 0);
        close(fd);
    }
    owner_stop(&owner);
    rig_close(&rig);
}

/* ---- batches ------------------------------------------------------------------------------- */

/* The kernel brings twenty completions a call. */
Test(uring, one_wait_brings_all_that_is_ready, .timeout = 30)
{
    enum { ENDS = 300 };
    static struct rig rig;
    static int fds[ENDS];

    rig_open(&rig, rig_uring());
    for (unsigned i = 0; i < ENDS; i++) {
        fds[i] = rig_end(&rig);
        cr_assert_eq(rig_attach(&rig, fds[i], i, WR_POLL_EDGE), 0);
    }
    while (rig_look(&rig) > 0)
        continue;
    for (unsigned i = 0; i < ENDS; i++)
        rig_feed(&rig, fds[i]);
    weir_time limit = wr_clock_now() + 3000 * (weir_time)MS;
    int count = rig.ops->wait(rig.backend, rig.events, RIG_BATCH, limit);
    cr_assert_eq(count, ENDS, "%d of %d", count, ENDS);
    for (unsigned i = 0; i < ENDS; i++) {
        cr_assert_eq(rig_detach(&rig, fds[i], i), 0);
        rig_close_end(&rig, fds[i]);
    }
    rig_look(&rig);
    rig_close(&rig);
}

/* ---- numbers used again (F03, U12) --------------------------------------------------------- */

static struct {
    struct rig rig;
    _Atomic uint64_t released; /* the token detached last */
    _Atomic bool done;
} reuse;

static void *use_a_number_again(void *unused)
{
    uint64_t rounds = support_rounds(100000);

    (void)unused;
    for (uint64_t token = 1; token <= rounds; token++) {
        int pair[2];
        cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
        cr_assert_eq(rig_attach(&reuse.rig, pair[0], token, WR_POLL_EDGE), 0);
        cr_assert_eq(send(pair[1], "x", 1, MSG_NOSIGNAL), 1);
        cr_assert_eq(rig_detach(&reuse.rig, pair[0], token), 0);
        atomic_store(&reuse.released, token);
        close(pair[0]);
        close(pair[1]);
    }
    atomic_store(&reuse.done, true);
    reuse.rig.ops->doorbell(reuse.rig.backend);
    return NULL;
}

Test(uring, a_number_used_a_hundred_thousand_times_never_speaks_under_an_old_token, .timeout = 110)
{
    pthread_t thread;
    uint64_t heard = 0;

    rig_open(&reuse.rig, rig_uring());
    rig_look(&reuse.rig);
    cr_assert_eq(pthread_create(&thread, NULL, use_a_number_again, NULL), 0);
    while (!atomic_load(&reuse.done)) {
        uint64_t released = atomic_load(&reuse.released);
        int count = reuse.rig.ops->wait(reuse.rig.backend, reuse.rig.events, RIG_BATCH, WEIR_NEVER);
        cr_assert_geq(count, 0);
        for (int i = 0; i < count; i++) {
            cr_assert_gt(reuse.rig.events[i].token, released, "detached before the wait began");
            heard++;
        }
    }
    pthread_join(thread, NULL);
    cr_assert_gt(heard, 0);
    rig_close(&reuse.rig);
}

/* ---- what a host would notice (U04, U10) ----------------------------------------------------- */

Test(uring, no_kernel_thread_spins_for_us_and_waiting_is_not_for_a_disk, .timeout = 30)
{
    struct io_uring_params params = {.flags = 0};
    struct io_uring ring;
    static struct rig rig;

    rig_open(&rig, rig_uring());
    cr_expect_eq(rig.backend->ring.flags & IORING_SETUP_SQPOLL, 0);
    cr_assert_eq(io_uring_queue_init_params(4, &ring, &params), 0);
    io_uring_queue_exit(&ring);
    /* By number: kernel 6.15 has them, the headers may be older. */
    bool can = params.features & 1u << 17, does = rig.backend->enter_flags & 1u << 7;
    cr_expect_eq(does, can);
    rig_close(&rig);
}

/* ---- bells (U08) --------------------------------------------------------------------------- */

static struct {
    struct rig rig;
    _Atomic uint64_t asked, answered;
} bells;

static void *ask(void *unused)
{
    uint64_t rounds = support_rounds(100000);

    (void)unused;
    for (uint64_t round = 1; round <= rounds; round++) {
        atomic_store(&bells.asked, round);
        bells.rig.ops->doorbell(bells.rig.backend);
        while (atomic_load(&bells.answered) != round)
            if (round % 3)
                sched_yield();
    }
    atomic_store(&bells.asked, UINT64_MAX);
    bells.rig.ops->doorbell(bells.rig.backend);
    return NULL;
}

Test(uring, no_bell_is_lost_between_the_look_and_the_sleep, .timeout = 60)
{
    pthread_t thread;
    uint64_t asked = 0;

    rig_open(&bells.rig, rig_uring());
    cr_assert_eq(pthread_create(&thread, NULL, ask, NULL), 0);
    while (asked != UINT64_MAX) {
        cr_assert_eq(bells.rig.ops->wait(bells.rig.backend, bells.rig.events, RIG_BATCH,
                                         WEIR_NEVER), 0);
        asked = atomic_load(&bells.asked);
        atomic_store(&bells.answered, asked);
    }
    pthread_join(thread, NULL);
    rig_close(&bells.rig);
}

#ifdef WEIR_FAULTS

/* The owner has decided to sleep and is about to: now somebody rings, or attaches. */
static struct {
    struct rig *rig;
    int fd; /* -1: only the doorbell */
    bool now;
} late;

static void *come_late(void *unused)
{
    (void)unused;
    if (late.fd >= 0)
        cr_assert_eq(rig_attach(late.rig, late.fd, 7, WR_POLL_EDGE), 0);
    else
        late.rig->ops->doorbell(late.rig->backend);
    return NULL;
}

static int before_enter(enum wr_fault_call call)
{
    pthread_t thread;

    if (call != WR_FAULT_URING_ENTER || !late.now)
        return 0;
    late.now = false;
    pthread_create(&thread, NULL, come_late, NULL);
    pthread_join(thread, NULL);
    return 0;
}

Test(uring, who_rings_or_attaches_just_before_the_sleep_is_heard, .timeout = 30)
{
    static struct rig rig;

    rig_open(&rig, rig_uring());
    rig_look(&rig);
    late.rig = &rig;
    wr_fault_hook = before_enter;
    for (int round = 0; round < 4; round++) {
        late.fd = round % 2 ? rig_end(&rig) : -1;
        late.now = true;
        weir_time limit = wr_clock_now() + 3000 * (weir_time)MS;
        int count = rig.ops->wait(rig.backend, rig.events, RIG_BATCH, limit);
        cr_assert_eq(late.now, false);
        cr_assert_lt(wr_clock_now(), limit, "the bell was lost");
        if (late.fd < 0)
            continue;
        cr_assert(count == 1 || rig_await(&rig, 7) != 0, "the command was lost");
        cr_assert_eq(rig_detach(&rig, late.fd, 7), 0);
        rig_look(&rig);
        rig_close_end(&rig, late.fd);
    }
    wr_fault_hook = NULL;
    rig_close(&rig);
}

/* ---- a kernel that refuses, falls short, or loses ------------------------------------------- */

static struct {
    enum wr_fault_call call;
    int error;
    _Atomic unsigned times; /* the next uses that fail */
    _Atomic unsigned uses;
} plan;

static unsigned entries; /* of the submission queue; 0: as usual */

static int planned(enum wr_fault_call call)
{
    if (call == WR_FAULT_URING_ENTRIES)
        return (int)entries;
    if (call != plan.call)
        return 0;
    atomic_fetch_add(&plan.uses, 1);
    if (atomic_load(&plan.times) == 0)
        return 0;
    atomic_fetch_sub(&plan.times, 1);
    return plan.error;
}

static void plan_fault(enum wr_fault_call call, int error, unsigned times)
{
    plan.call = call;
    plan.error = error;
    atomic_store(&plan.uses, 0);
    atomic_store(&plan.times, times);
    wr_fault_hook = planned;
}

Test(uring, kernels_that_know_fewer_flags_will_do, .timeout = 30)
{
    for (unsigned steps = 1; steps <= 4; steps++) {
        static struct rig rig;
        const struct wr_poll_ops *ops = rig_uring();
        plan_fault(WR_FAULT_URING_SETUP, EINVAL, steps);
        rig_open(&rig, ops);
        cr_assert_eq(atomic_load(&plan.uses), steps + 1);
        int fd = rig_end(&rig);
        cr_assert_eq(rig_attach(&rig, fd, 7, WR_POLL_EDGE), 0);
        cr_assert(rig_await(&rig, 7) & WR_POLL_OUT, "%u flags fewer", steps);
        rig_feed(&rig, fd);
        cr_assert(rig_await(&rig, 7) & WR_POLL_IN, "%u flags fewer", steps);
        cr_assert_eq(rig_detach(&rig, fd, 7), 0);
        rig_look(&rig);
        rig_close_end(&rig, fd);
        rig_close(&rig);
    }
    plan_fault(WR_FAULT_URING_SETUP, EINVAL, 5);
    struct wr_poller_backend *backend = NULL;
    struct wr_alloc alloc;
    wr_alloc_init(&alloc, NULL);
    cr_assert_eq(wr_poll_uring.open(&backend, &alloc, 16), -ENOSYS);
    cr_assert_null(backend);
    cr_assert_eq(alloc.bytes, 0);
}

Test(uring, a_smaller_ring_is_tried_when_memory_is_short, .timeout = 30)
{
    struct wr_poller_backend *backend = NULL;
    struct wr_alloc alloc;

    wr_alloc_init(&alloc, NULL);
    rig_uring();
    plan_fault(WR_FAULT_URING_SETUP, ENOMEM, 4);
    cr_assert_eq(wr_poll_uring.open(&backend, &alloc, 256), 0);
    cr_assert_eq(backend->ring.sq.ring_entries, 16);
    wr_poll_uring.close(backend);
    backend = NULL;
    plan_fault(WR_FAULT_URING_SETUP, ENOMEM, 100);
    cr_assert_eq(wr_poll_uring.open(&backend, &alloc, 256), -ENOMEM);
    cr_assert_null(backend);
    cr_assert_eq(alloc.bytes, 0);
}

static void *ring_in_a_while(void *argument)
{
    struct rig *rig = argument;

    nanosleep(&(struct timespec){.tv_nsec = 20 * MS}, NULL);
    rig->ops->doorbell(rig->backend);
    return NULL;
}

static void expect_a_bell(struct rig *rig)
{
    weir_time limit = wr_clock_now() + 5000 * (weir_time)MS;
    pthread_t thread;

    cr_assert_eq(pthread_create(&thread, NULL, ring_in_a_while, rig), 0);
    cr_assert_eq(rig->ops->wait(rig->backend, rig->events, RIG_BATCH, limit), 0);
    cr_assert_lt(wr_clock_now(), limit, "the bell is dead");
    pthread_join(thread, NULL);
}

/* 600 descriptors, a completion queue of 128, and 16 events a wait (U05). Without DEFER_TASKRUN the
 * kernel fills the queue by itself. */
static uint64_t count_overflows(unsigned flags_fewer)
{
    enum { ENDS = 600 };
    static struct rig rig;
    static bool seen[ENDS];
    static int fds[ENDS];
    const struct wr_poll_ops *ops = rig_uring();
    const uint64_t one = 1;

    plan_fault(WR_FAULT_URING_SETUP, EINVAL, flags_fewer);
    rig_open(&rig, ops);
    ops->close(rig.backend);
    plan_fault(WR_FAULT_URING_SETUP, EINVAL, flags_fewer);
    cr_assert_eq(ops->open(&rig.backend, &rig.alloc, 1), 0);
    for (unsigned i = 0; i < ENDS; i++) {
        fds[i] = rig_end(&rig);
        cr_assert_eq(rig_attach(&rig, fds[i], i, WR_POLL_EDGE), 0);
    }
    for (int pass = 0; pass < 3; pass++) {
        unsigned total = 0;
        memset(seen, 0, sizeof seen);
        for (unsigned i = 0; pass > 0 && i < ENDS; i++)
            rig_feed(&rig, fds[i]);
        /* The bell's completion finds no room either. */
        cr_assert_eq(write(rig.backend->bell_fd, &one, sizeof one), (ssize_t)sizeof one);
        weir_time limit = wr_clock_now() + 5000 * (weir_time)MS;
        while (total < ENDS && wr_clock_now() < limit) {
            int count = ops->wait(rig.backend, rig.events, 16, limit);
            cr_assert_geq(count, 0, "%d", count);
            for (int i = 0; i < count; i++) {
                uint64_t token = rig.events[i].token;
                if (pass > 0 && !(rig.events[i].bits & WR_POLL_IN))
                    continue;
                total += !seen[token];
                seen[token] = true;
            }
        }
        cr_assert_eq(total, ENDS, "pass %d: %u of %d were heard", pass, total, ENDS);
        while (rig_look(&rig) > 0)
            continue;
    }
    expect_a_bell(&rig);
    uint64_t overflows = atomic_load(&rig.backend->overflows);
    for (unsigned i = 0; i < ENDS; i++) {
        rig_detach(&rig, fds[i], i);
        rig_close_end(&rig, fds[i]);
    }
    while (rig_look(&rig) > 0)
        continue;
    rig_close(&rig);
    return overflows;
}

Test(uring, a_small_completion_queue_silences_nobody, .timeout = 60)
{
    (void)count_overflows(0);
    cr_assert_gt(count_overflows(2), 0, "it never overflowed: the test proves nothing");
}

/* Each request is a submission of its own, and sixteen completions are all there is room for. */
Test(uring, a_ring_of_one_entry_silences_nobody, .timeout = 60)
{
    entries = 1;
    cr_assert_gt(count_overflows(2), 0, "it never overflowed: the test proves nothing");
    entries = 0;
}

Test(uring, after_a_dropped_completion_all_are_heard_again, .timeout = 30)
{
    static struct rig rig;

    rig_open(&rig, rig_uring());
    int fd = rig_end(&rig), foreign = rig_end(&rig);
    cr_assert_eq(rig_attach(&rig, fd, 7, WR_POLL_EDGE), 0);
    cr_assert_eq(rig_attach(&rig, foreign, 8, WR_POLL_ONESHOT), 0);
    cr_assert_eq(rig_bits(&rig, 7, NULL), WR_POLL_OUT);
    rig_feed(&rig, fd);
    rig_feed(&rig, foreign);
    cr_assert_eq(rig_rearm(&rig, foreign, 8, WR_POLL_IN), 0);
    plan_fault(WR_FAULT_URING_COMPLETION, 1, 2);
    cr_assert_eq(rig_look(&rig), 0);
    cr_assert_eq(atomic_load(&plan.times), 0, "the completions were not lost");
    plan_fault(WR_FAULT_URING_ENTER, EBADR, 1);
    cr_assert(rig_await(&rig, 7) & WR_POLL_IN);
    rig_bits(&rig, 8, NULL);
    rig_feed(&rig, fd);
    cr_assert(rig_bits(&rig, 7, NULL) & WR_POLL_IN, "it was armed once only");
    cr_assert_eq(rig_rearm(&rig, foreign, 8, WR_POLL_IN), 0);
    cr_assert_eq(rig_bits(&rig, 8, NULL), WR_POLL_IN);
    weir_time limit = wr_clock_now() + 3000 * (weir_time)MS;
    rig.ops->doorbell(rig.backend);
    cr_assert_eq(rig.ops->wait(rig.backend, rig.events, RIG_BATCH, limit), 0);
    cr_assert_lt(wr_clock_now(), limit, "the bell is dead");
    rig_detach(&rig, fd, 7);
    rig_look(&rig);
    rig_close_end(&rig, fd);
    rig_close_end(&rig, foreign);
    rig_close(&rig);
}

static _Atomic bool detached;

static void *detach_seven(void *argument)
{
    struct rig *rig = argument;

    cr_assert_eq(rig_detach(rig, (int)rig->events[0].bits, 7), 0);
    atomic_store(&detached, true);
    rig->ops->doorbell(rig->backend);
    return NULL;
}

Test(uring, a_detach_whose_last_completion_is_dropped_returns, .timeout = 30)
{
    static struct rig rig;
    pthread_t thread;

    rig_open(&rig, rig_uring());
    int fd = rig_end(&rig);
    cr_assert_eq(rig_attach(&rig, fd, 7, WR_POLL_EDGE), 0);
    rig_bits(&rig, 7, NULL);
    plan_fault(WR_FAULT_URING_COMPLETION, 1, 1000);
    rig.events[0].bits = (uint32_t)fd;
    cr_assert_eq(pthread_create(&thread, NULL, detach_seven, &rig), 0);
    weir_time until = wr_clock_now() + 50 * MS;
    while (wr_clock_now() < until)
        cr_assert_eq(rig.ops->wait(rig.backend, rig.events + 1, 1, until), 0);
    cr_assert_eq(atomic_load(&detached), false, "nothing was lost: the test proves nothing");
    atomic_store(&plan.times, 0);
    plan_fault(WR_FAULT_URING_ENTER, EBADR, 1);
    until = wr_clock_now() + 3000 * (weir_time)MS;
    while (!atomic_load(&detached) && wr_clock_now() < until)
        cr_assert_geq(rig.ops->wait(rig.backend, rig.events + 1, 1, until), 0);
    cr_assert(atomic_load(&detached), "it waits for ever");
    pthread_join(thread, NULL);
    rig_close_end(&rig, fd);
    rig_close(&rig);
}

Test(uring, a_failed_enter_says_so_and_the_next_goes_on, .timeout = 30)
{
    static const int errors[] = {EBADF, ENOMEM, EAGAIN, EPERM};
    static struct rig rig;

    rig_open(&rig, rig_uring());
    int fd = rig_end(&rig);
    rig_look(&rig);
    cr_assert_eq(rig_attach(&rig, fd, 7, WR_POLL_EDGE), 0);
    for (unsigned i = 0; i < 4; i++) {
        plan_fault(WR_FAULT_URING_ENTER, errors[i], 1);
        errno = 4711;
        cr_assert_eq(rig_look(&rig), -errors[i]);
        cr_assert_eq(errno, 4711);
    }
    plan_fault(WR_FAULT_URING_ENTER, EINTR, 1);
    cr_assert_eq(rig_look(&rig), 0);
    cr_assert_eq(rig_bits(&rig, 7, NULL), WR_POLL_OUT, "the event was lost with the error");
    rig_detach(&rig, fd, 7);
    rig_look(&rig);
    rig_close_end(&rig, fd);
    rig_close(&rig);
}

#endif
