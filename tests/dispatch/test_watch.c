/* Watches: a foreign descriptor is asked about once at a time, and never touched. */
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "dispatch/dispatch.h"
#include "os/fault.h"
#include "support/rig.h"
#include "support/stress.h"

struct seen {
    _Atomic unsigned calls, closed;
    _Atomic unsigned events;
    _Atomic int status;
    unsigned again; /* asks for this from the callback */
    bool close_it;
    _Atomic unsigned after;
};

static void on_closed(void *context)
{
    atomic_fetch_add(&((struct seen *)context)->closed, 1);
}

static void on_ready(weir_watch *watch, unsigned events, int status, void *context)
{
    struct seen *seen = context;

    if (atomic_load(&seen->closed))
        atomic_fetch_add(&seen->after, 1);
    atomic_store(&seen->events, events);
    atomic_store(&seen->status, status);
    if (seen->again) {
        int r = weir_watch_set(watch, seen->again);
        cr_assert(r == 0 || r == -ECANCELED, "%d", r); /* the end of the test is near */
    }
    if (seen->close_it) {
        cr_assert_eq(weir_watch_close(watch, on_closed, seen), 0);
        cr_assert_eq(weir_watch_close(watch, on_closed, seen), -EALREADY);
        cr_assert_eq(weir_watch_set(watch, WEIR_READABLE), -ECANCELED);
    }
    atomic_fetch_add(&seen->calls, 1);
}

struct watched {
    struct rig rig;
    int fds[2]; /* ours, the other end */
    weir_watch *watch;
    struct seen seen;
};

static void watched_open(struct watched *watched)
{
    memset(watched, 0, sizeof *watched);
    rig_open(&watched->rig, 2);
    cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, watched->fds), 0);
    int r = weir_watch_open(&watched->watch, watched->rig.runtime, watched->fds[0], on_ready,
                            &watched->seen);
    cr_assert_eq(r, 0, "weir_watch_open: %d", r);
}

static void watched_end(struct watched *watched)
{
    cr_assert_eq(weir_watch_close(watched->watch, on_closed, &watched->seen), 0);
    cr_assert(RIG_UNTIL(atomic_load(&watched->seen.closed) == 1, 5000));
    for (int i = 0; i < 2; i++)
        if (watched->fds[i] >= 0)
            close(watched->fds[i]);
    rig_close(&watched->rig);
    cr_assert_eq(atomic_load(&watched->seen.after), 0);
    cr_assert_eq(atomic_load(&watched->seen.closed), 1);
}

static bool called(struct watched *watched, unsigned calls)
{
    return RIG_UNTIL(atomic_load(&watched->seen.calls) == calls, 5000);
}

Test(watch, it_tells_once_for_each_set, .timeout = 30)
{
    struct watched watched;
    char byte;

    watched_open(&watched);
    rig_peer_send(watched.fds[1], "ab", 2);
    rig_sleep_ms(20);
    cr_assert_eq(atomic_load(&watched.seen.calls), 0, "nothing before set");
    cr_assert_eq(weir_watch_set(watched.watch, WEIR_READABLE), 0);
    cr_assert(called(&watched, 1));
    cr_assert_eq(atomic_load(&watched.seen.events), WEIR_READABLE);
    cr_assert_eq(atomic_load(&watched.seen.status), 0);
    rig_peer_send(watched.fds[1], "c", 1);
    rig_sleep_ms(20);
    cr_assert_eq(atomic_load(&watched.seen.calls), 1, "once");
    cr_assert_eq(weir_watch_set(watched.watch, WEIR_READABLE), 0);
    cr_assert(called(&watched, 2), "what is there already counts");
    for (int i = 0; i < 3; i++)
        cr_assert_eq(read(watched.fds[0], &byte, 1), 1, "nothing was read by us");
    cr_assert_eq(weir_watch_set(watched.watch, WEIR_READABLE | WEIR_WRITABLE), 0);
    cr_assert(called(&watched, 3));
    cr_assert_eq(atomic_load(&watched.seen.events), WEIR_WRITABLE, "of both what holds");
    cr_assert_eq(weir_watch_set(watched.watch, WEIR_READABLE), 0);
    cr_assert_eq(weir_watch_set(watched.watch, 0), 0, "nothing any more");
    rig_peer_send(watched.fds[1], "d", 1);
    rig_sleep_ms(20);
    cr_assert_eq(atomic_load(&watched.seen.calls), 3);
    cr_assert_eq(weir_watch_set(watched.watch, 4), -EINVAL);
    cr_assert_eq(weir_watch_set(NULL, WEIR_READABLE), -EINVAL);
    cr_assert_eq(fcntl(watched.fds[0], F_GETFL) & O_NONBLOCK, 0, "its flags are as they were");
    watched_end(&watched);
}

Test(watch, a_callback_may_ask_again, .timeout = 30)
{
    struct watched watched;

    watched_open(&watched);
    watched.seen.again = WEIR_READABLE;
    rig_peer_send(watched.fds[1], "x", 1);
    cr_assert_eq(weir_watch_set(watched.watch, WEIR_READABLE), 0);
    cr_assert(RIG_UNTIL(atomic_load(&watched.seen.calls) > 100, 5000), "it is readable still");
    watched_end(&watched);
}

Test(watch, readiness_of_an_earlier_set_is_forgotten, .timeout = 30)
{
    struct watched watched;
    struct rig_busy busy;
    char byte;

    watched_open(&watched);
    struct wr_source *source = (struct wr_source *)(void *)watched.watch;
    rig_busy_begin(&watched.rig, &busy, 2);
    cr_assert_eq(weir_watch_set(watched.watch, WEIR_READABLE), 0);
    rig_peer_send(watched.fds[1], "x", 1);
    cr_assert(RIG_UNTIL(wr_source_flags(source) & WR_IN, 5000));
    cr_assert_eq(weir_watch_set(watched.watch, 0), 0, "taken back in time");
    cr_assert_eq(read(watched.fds[0], &byte, 1), 1);
    cr_assert_eq(weir_watch_set(watched.watch, WEIR_READABLE), 0);
    rig_busy_end(&busy);
    rig_sleep_ms(20);
    cr_assert_eq(atomic_load(&watched.seen.calls), 0, "there is nothing to read");
    rig_peer_send(watched.fds[1], "y", 1);
    cr_assert(called(&watched, 1));
    watched_end(&watched);
}

Test(watch, closing_it_in_its_callback_is_the_end, .timeout = 30) /* (F07) */
{
    struct watched watched;

    watched_open(&watched);
    watched.seen.close_it = true;
    rig_peer_send(watched.fds[1], "x", 1);
    cr_assert_eq(weir_watch_set(watched.watch, WEIR_READABLE | WEIR_WRITABLE), 0);
    cr_assert(RIG_UNTIL(atomic_load(&watched.seen.closed) == 1, 5000));
    rig_peer_send(watched.fds[1], "x", 1);
    rig_sleep_ms(20);
    close(watched.fds[0]);
    close(watched.fds[1]);
    rig_close(&watched.rig);
    cr_assert_eq(atomic_load(&watched.seen.calls), 1);
    cr_assert_eq(atomic_load(&watched.seen.closed), 1);
}

/* A hang-up is reported whatever is asked for. */
static void hang_up_with(unsigned interest, unsigned calls)
{
    struct watched watched;
    struct rig_busy busy;

    watched_open(&watched);
    if (interest) {
        cr_assert_eq(weir_watch_set(watched.watch, interest), 0);
        cr_assert(RIG_UNTIL(interest != WEIR_WRITABLE || atomic_load(&watched.seen.calls) == 1,
                            5000));
    }
    close(watched.fds[1]);
    watched.fds[1] = -1;
    rig_sleep_ms(30);
    weir_stats before = rig_stats(&watched.rig);
    rig_sleep_ms(100);
    weir_stats after = rig_stats(&watched.rig);
    cr_assert_leq(after.waits, before.waits + 1, "%llu waits in vain",
                  (unsigned long long)(after.waits - before.waits));
    cr_assert_eq(atomic_load(&watched.seen.calls), calls);
    if (calls)
        cr_assert_eq(atomic_load(&watched.seen.events), interest, "no more than was asked for");
    rig_busy_begin(&watched.rig, &busy, 2);
    cr_assert_eq(weir_watch_set(watched.watch, WEIR_READABLE), 0);
    cr_assert_eq(weir_watch_set(watched.watch, WEIR_WRITABLE), 0, "in place of that");
    rig_busy_end(&busy);
    cr_assert(called(&watched, calls + 1), "who asks is told");
    cr_assert_eq(atomic_load(&watched.seen.events), WEIR_WRITABLE);
    watched_end(&watched);
}

Test(watch, a_hang_up_that_nobody_asked_for_keeps_the_poller_asleep, .timeout = 30) /* (F11) */
{
    hang_up_with(0, 0);
}

Test(watch, a_hang_up_after_the_answer_keeps_the_poller_asleep, .timeout = 30) /* (F11) */
{
    hang_up_with(WEIR_WRITABLE, 1);
}

Test(watch, a_hang_up_that_is_waited_for_is_told_once, .timeout = 30) /* (F11) */
{
    hang_up_with(WEIR_READABLE, 1);
}

Test(watch, a_descriptor_that_its_owner_closed_is_told_and_forgotten, .timeout = 30)
{
    struct watched watched;
    struct seen seen = {.calls = 0};
    weir_watch *newcomer;
    int fds[2];

    watched_open(&watched);
    int number = watched.fds[0];
    close(number);
    cr_assert_eq(weir_watch_set(watched.watch, WEIR_READABLE), -EBADF);
    cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    cr_assert_eq(fds[0], number, "the number is used again");
    cr_assert_eq(weir_watch_set(watched.watch, WEIR_READABLE), -EBADF, "that is another file");
    cr_assert_eq(weir_watch_open(&newcomer, watched.rig.runtime, fds[0], on_ready, &seen), 0);
    cr_assert_eq(weir_watch_set(watched.watch, WEIR_READABLE), -EBADF);
    cr_assert_eq(weir_watch_set(newcomer, WEIR_READABLE), 0);
    cr_assert_eq(weir_watch_close(watched.watch, on_closed, &watched.seen), 0);
    cr_assert(RIG_UNTIL(atomic_load(&watched.seen.closed) == 1, 5000));
    rig_peer_send(fds[1], "x", 1);
    cr_assert(RIG_UNTIL(atomic_load(&seen.calls) == 1, 5000), "the newcomer was taken out");
    cr_assert_eq(atomic_load(&watched.seen.calls), 0);
    cr_assert_eq(weir_watch_close(newcomer, on_closed, &seen), 0);
    cr_assert(RIG_UNTIL(atomic_load(&seen.closed) == 1, 5000));
    close(fds[0]);
    close(fds[1]);
    close(watched.fds[1]);
    rig_close(&watched.rig);
    cr_assert_eq(atomic_load(&seen.closed), 1);
}

Test(watch, a_closed_one_leaves_the_descriptor_to_others, .timeout = 30) /* (F02) */
{
    struct watched watched;
    struct seen seen = {.calls = 0};
    weir_watch *next;

    watched_open(&watched);
    cr_assert_eq(weir_watch_set(watched.watch, WEIR_READABLE), 0);
    cr_assert_eq(weir_watch_close(watched.watch, on_closed, &watched.seen), 0);
    cr_assert(RIG_UNTIL(atomic_load(&watched.seen.closed) == 1, 5000));
    weir_stats before = rig_stats(&watched.rig);
    rig_peer_send(watched.fds[1], "x", 1);
    rig_sleep_ms(20);
    weir_stats after = rig_stats(&watched.rig);
    cr_assert_eq(after.events, before.events, "it is asked about still");
    cr_assert_eq(weir_watch_open(&next, watched.rig.runtime, watched.fds[0], on_ready, &seen), 0);
    cr_assert_eq(weir_watch_set(next, WEIR_READABLE), 0);
    cr_assert(RIG_UNTIL(atomic_load(&seen.calls) == 1, 5000));
    watched.watch = next;
    atomic_store(&watched.seen.closed, 0);
    watched_end(&watched);
}

Test(watch, what_cannot_be_watched_is_refused, .timeout = 30)
{
    struct watched watched;
    weir_watch *watch = NULL;
    weir_runtime *runtime;

    watched_open(&watched);
    runtime = watched.rig.runtime;
    int file = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    cr_assert_geq(file, 0);
    cr_assert_eq(weir_watch_open(NULL, runtime, 0, on_ready, NULL), -EINVAL);
    cr_assert_eq(weir_watch_open(&watch, NULL, 0, on_ready, NULL), -EINVAL);
    cr_assert_eq(weir_watch_open(&watch, runtime, -1, on_ready, NULL), -EINVAL);
    cr_assert_eq(weir_watch_open(&watch, runtime, watched.fds[1], NULL, NULL), -EINVAL);
    cr_assert_eq(weir_watch_open(&watch, runtime, 1000000, on_ready, NULL), -EBADF);
    cr_assert_eq(weir_watch_open(&watch, runtime, watched.fds[0], on_ready, NULL), -EEXIST);
    close(file);
    file = open("/tmp", O_RDONLY | O_CLOEXEC);
    cr_assert_eq(weir_watch_open(&watch, runtime, file, on_ready, NULL), -EPERM);
    cr_assert_null(watch);
    cr_assert_eq(rig_stats(&watched.rig).sources, 1, "nothing is left of them");
    cr_assert_eq(weir_watch_close(NULL, NULL, NULL), -EINVAL);
    close(file);
    watched_end(&watched);
}

/* ---- many ---------------------------------------------------------------------------- */

struct churner {
    pthread_t thread;
    weir_runtime *runtime;
    unsigned number, rounds;
    _Atomic bool wrong;
};

struct ticket {
    int fd;
    unsigned char expected;
    _Atomic unsigned calls, closed;
    _Atomic bool wrong;
};

static void read_ticket(weir_watch *watch, unsigned events, int status, void *context)
{
    struct ticket *ticket = context;
    unsigned char byte = 0;

    (void)watch;
    if (status != 0 || !(events & WEIR_READABLE) || read(ticket->fd, &byte, 1) != 1 ||
        byte != ticket->expected)
        atomic_store(&ticket->wrong, true);
    atomic_fetch_add(&ticket->calls, 1);
}

static void close_ticket(void *context)
{
    atomic_fetch_add(&((struct ticket *)context)->closed, 1);
}

static void *churn_main(void *argument)
{
    struct churner *churner = argument;

    for (unsigned i = 0; i < churner->rounds && !atomic_load(&churner->wrong); i++) {
        struct ticket ticket = {.expected = (unsigned char)(churner->number * 31 + i)};
        weir_watch *watch;
        int fds[2];
        if (pipe2(fds, O_CLOEXEC) != 0)
            break;
        ticket.fd = fds[0];
        bool good = weir_watch_open(&watch, churner->runtime, fds[0], read_ticket, &ticket) == 0;
        good = good && weir_watch_set(watch, WEIR_READABLE) == 0 &&
               write(fds[1], &ticket.expected, 1) == 1 &&
               (i % 4 == 3 || RIG_UNTIL(atomic_load(&ticket.calls) == 1, 10000)) &&
               weir_watch_close(watch, close_ticket, &ticket) == 0 &&
               RIG_UNTIL(atomic_load(&ticket.closed) == 1, 10000) && !atomic_load(&ticket.wrong) &&
               atomic_load(&ticket.calls) <= 1;
        if (!good)
            atomic_store(&churner->wrong, true);
        close(fds[0]);
        close(fds[1]);
    }
    return NULL;
}

Test(watch, threads_that_open_and_close_get_their_own_events, .timeout = 30) /* (F10) */
{
    struct rig rig;
    struct churner churners[8];

    rig_open(&rig, 3);
    for (unsigned i = 0; i < 8; i++) {
        churners[i] = (struct churner){
            .runtime = rig.runtime, .number = i, .rounds = support_rounds(300)};
        cr_assert_eq(pthread_create(&churners[i].thread, NULL, churn_main, &churners[i]), 0);
    }
    for (unsigned i = 0; i < 8; i++) {
        pthread_join(churners[i].thread, NULL);
        cr_assert_not(atomic_load(&churners[i].wrong), "thread %u", i);
    }
    cr_assert(RIG_UNTIL(rig_stats(&rig).sources == 0, 5000));
    rig_close(&rig);
}

/* Another descriptor in place of the first. */
static void watch_instead(struct watched *watched, int fd)
{
    cr_assert_eq(weir_watch_close(watched->watch, on_closed, &watched->seen), 0);
    cr_assert(RIG_UNTIL(atomic_exchange(&watched->seen.closed, 0) == 1, 5000));
    close(watched->fds[0]);
    watched->fds[0] = fd;
    int r = weir_watch_open(&watched->watch, watched->rig.runtime, fd, on_ready, &watched->seen);
    cr_assert_eq(r, 0, "weir_watch_open: %d", r);
}

Test(watch, an_error_that_is_pending_is_told_until_its_owner_has_heard_it, .timeout = 30)
{
    struct watched watched;
    int pair[2], error = 0;
    socklen_t length = sizeof error;
    struct linger now = {.l_onoff = 1};

    watched_open(&watched);
    rig_tcp_pair(pair);
    watch_instead(&watched, pair[0]);
    cr_assert_eq(setsockopt(pair[1], SOL_SOCKET, SO_LINGER, &now, sizeof now), 0);
    close(pair[1]);
    for (unsigned calls = 1; calls <= 2; calls++) { /* asking does not use it up */
        cr_assert_eq(weir_watch_set(watched.watch, WEIR_READABLE), 0);
        cr_assert(called(&watched, calls));
        cr_expect_eq(atomic_load(&watched.seen.status), -EIO);
        cr_expect_eq(atomic_load(&watched.seen.events), WEIR_READABLE);
    }
    cr_assert_eq(getsockopt(pair[0], SOL_SOCKET, SO_ERROR, &error, &length), 0);
    cr_expect_eq(error, ECONNRESET, "the owner's error was taken from it");
    cr_assert_eq(weir_watch_set(watched.watch, WEIR_READABLE), 0);
    cr_assert(called(&watched, 3));
    cr_expect_eq(atomic_load(&watched.seen.status), 0, "the old error is told again");
    watched_end(&watched);
}

Test(watch, a_pipe_without_a_reader_has_an_error, .timeout = 30)
{
    struct watched watched;
    int ends[2];

    watched_open(&watched);
    cr_assert_eq(pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
    watch_instead(&watched, ends[1]);
    close(ends[0]);
    cr_assert_eq(weir_watch_set(watched.watch, WEIR_WRITABLE), 0);
    cr_assert(called(&watched, 1));
    cr_expect_eq(atomic_load(&watched.seen.status), -EIO);
    cr_expect_eq(atomic_load(&watched.seen.events), WEIR_WRITABLE);
    watched_end(&watched);
}

#ifdef WEIR_FAULTS
static _Atomic bool scarce;

static int no_memory(enum wr_fault_call call)
{
    return call == WR_FAULT_EPOLL_CTL && atomic_load(&scarce) ? ENOMEM : 0;
}

Test(watch, what_the_kernel_says_to_a_set_is_answered, .timeout = 30)
{
    struct watched watched;

    wr_fault_hook = no_memory;
    watched_open(&watched);
    atomic_store(&scarce, true);
    cr_expect_eq(weir_watch_set(watched.watch, WEIR_WRITABLE), -ENOMEM);
    atomic_store(&scarce, false);
    rig_sleep_ms(5);
    cr_expect_eq(atomic_load(&watched.seen.calls), 0);
    cr_expect_eq(weir_watch_set(watched.watch, WEIR_WRITABLE), 0);
    cr_expect(called(&watched, 1));
    watched_end(&watched);
}
#endif
