/* every.c: what poller.h promises, sentence by sentence, on every back end and on the double. */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>

#include "os/clock.h"
#include "rig.h"
#include "support/fake_poll.h"
#include "support/stress.h"

#define MS 1000000

/* ---- edge
 * ---------------------------------------------------------------------------------------- */

EVERY_BACKEND(an_edge_is_reported_once)
{
    int fd = rig_end(rig);

    cr_assert_eq(rig_attach(rig, fd, 7, WR_POLL_EDGE), 0);
    cr_assert_eq(rig_bits(rig, 7, NULL), WR_POLL_OUT);
    rig_feed(rig, fd);
    cr_assert_eq(rig_look(rig), 1);
    cr_assert_eq(rig->events[0].token, 7);
    cr_assert(rig->events[0].bits & WR_POLL_IN);
    cr_assert_not(rig->events[0].bits & WR_POLL_HUP);
    cr_assert_eq(rig_look(rig), 0, "the byte was not read, and its edge came a second time");
    rig_feed(rig, fd);
    cr_assert(rig_bits(rig, 7, NULL) & WR_POLL_IN, "more came and was not reported");
    rig_close_end(rig, fd);
}

EVERY_BACKEND(attach_reports_what_is_ready_already)
{
    int fd = rig_end(rig);

    rig_feed(rig, fd);
    cr_assert_eq(rig_attach(rig, fd, 7, WR_POLL_EDGE), 0);
    cr_assert_eq(rig_bits(rig, 7, NULL), WR_POLL_IN | WR_POLL_OUT);
    rig_close_end(rig, fd);
}

EVERY_BACKEND(a_half_close_is_a_hang_up_that_can_be_read)
{
    int fd = rig_end(rig);

    cr_assert_eq(rig_attach(rig, fd, 7, WR_POLL_EDGE), 0);
    rig_bits(rig, 7, NULL);
    rig_finish(rig, fd);
    uint32_t bits = rig_bits(rig, 7, NULL);
    cr_assert_eq(bits & (WR_POLL_IN | WR_POLL_HUP), WR_POLL_IN | WR_POLL_HUP, "bits %u", bits);
    cr_assert_eq(rig_look(rig), 0);
    rig_close_end(rig, fd);
}

EVERY_BACKEND(a_peer_that_is_gone_is_ready_for_everything)
{
    int fd = rig_end(rig);

    cr_assert_eq(rig_attach(rig, fd, 7, WR_POLL_EDGE), 0);
    rig_bits(rig, 7, NULL);
    rig_break(rig, fd);
    cr_assert_eq(rig_bits(rig, 7, NULL), WR_POLL_IN | WR_POLL_OUT | WR_POLL_HUP);
    cr_assert_eq(rig_look(rig), 0);
    rig_close_end(rig, fd);
}

EVERY_BACKEND(a_detached_descriptor_is_silent)
{
    int fd = rig_end(rig);

    cr_assert_eq(rig_attach(rig, fd, 7, WR_POLL_EDGE), 0);
    rig_feed(rig, fd);
    cr_assert_eq(rig_detach(rig, fd, 7), 0);
    rig_look(rig);              /* one stale event is allowed */
    rig_feed(rig, fd);
    cr_assert_eq(rig_look(rig), 0);
    cr_assert_eq(rig_detach(rig, fd, 7), -ENOENT);
    cr_assert_eq(rig_attach(rig, fd, 8, WR_POLL_EDGE), 0, "it could not be attached again");
    cr_assert(rig_bits(rig, 8, NULL) & WR_POLL_IN);
    rig_close_end(rig, fd);
}

EVERY_BACKEND(a_number_used_again_speaks_under_its_new_token_only)
{
    int fd = rig_end(rig);
    unsigned others;

    cr_assert_eq(rig_attach(rig, fd, 7, WR_POLL_EDGE), 0);
    rig_feed(rig, fd);
    cr_assert_eq(rig_detach(rig, fd, 7), 0);
    rig_close_end(rig, fd);
    rig_look(rig);
    int again = rig_end(rig);
    cr_assert_eq(again, fd, "the number was not used again: the test proves nothing");
    cr_assert_eq(rig_attach(rig, again, 8, WR_POLL_EDGE), 0);
    rig_feed(rig, again);
    cr_assert(rig_bits(rig, 8, &others) & WR_POLL_IN);
    cr_assert_eq(others, 0);
    rig_close_end(rig, again);
}

EVERY_BACKEND(a_wait_returns_no_more_than_it_is_asked_for_and_loses_none)
{
    enum { ENDS = 10 };
    int fds[ENDS];
    unsigned seen[ENDS] = { 0 };
    int total = 0;

    for (unsigned i = 0; i < ENDS; i++) {
        fds[i] = rig_end(rig);
        cr_assert_eq(rig_attach(rig, fds[i], i, WR_POLL_EDGE), 0);
    }
    for (int rounds = 0; total < ENDS && rounds < 20; rounds++) {
        int count = rig->ops->wait(rig->backend, rig->events, 4, 0);
        cr_assert(count >= 0 && count <= 4, "%d events", count);
        for (int i = 0; i < count; i++)
            seen[rig->events[i].token]++;
        total += count;
    }
    for (unsigned i = 0; i < ENDS; i++) {
        cr_assert_eq(seen[i], 1, "token %u came %u times", i, seen[i]);
        rig_close_end(rig, fds[i]);
    }
}

/* ---- one shot
 * ------------------------------------------------------------------------------------ */

EVERY_BACKEND(a_watch_starts_disarmed)
{
    int fd = rig_end(rig);

    rig_feed(rig, fd);
    cr_assert_eq(rig_attach(rig, fd, 7, WR_POLL_ONESHOT), 0);
    cr_assert_eq(rig_look(rig), 0);
    rig_feed(rig, fd);
    cr_assert_eq(rig_look(rig), 0);
    rig_close_end(rig, fd);
}

EVERY_BACKEND(a_watch_reports_once_and_hears_again_what_came_meanwhile)
{
    int fd = rig_end(rig);

    cr_assert_eq(rig_attach(rig, fd, 7, WR_POLL_ONESHOT), 0);
    cr_assert_eq(rig_rearm(rig, fd, 7, WR_POLL_IN), 0);
    cr_assert_eq(rig_look(rig), 0);
    rig_feed(rig, fd);
    cr_assert_eq(rig_bits(rig, 7, NULL), WR_POLL_IN);
    rig_drain(rig, fd);
    rig_feed(rig, fd);
    cr_assert_eq(rig_look(rig), 0, "it spoke without being asked");
    cr_assert_eq(rig_rearm(rig, fd, 7, WR_POLL_IN), 0);
    cr_assert_eq(rig_bits(rig, 7, NULL), WR_POLL_IN, "what came while it was disarmed is lost");
    rig_close_end(rig, fd);
}

EVERY_BACKEND(a_watch_reports_the_direction_it_was_asked_for)
{
    int fd = rig_end(rig);

    cr_assert_eq(rig_attach(rig, fd, 7, WR_POLL_ONESHOT), 0);
    cr_assert_eq(rig_rearm(rig, fd, 7, WR_POLL_IN), 0);
    cr_assert_eq(rig_look(rig), 0, "it is writable, and nobody asked");
    cr_assert_eq(rig_rearm(rig, fd, 7, WR_POLL_OUT), 0);
    cr_assert_eq(rig_bits(rig, 7, NULL), WR_POLL_OUT);
    rig_feed(rig, fd);
    cr_assert_eq(rig_rearm(rig, fd, 7, WR_POLL_IN | WR_POLL_OUT), 0);
    cr_assert_eq(rig_bits(rig, 7, NULL), WR_POLL_IN | WR_POLL_OUT);
    rig_close_end(rig, fd);
}

EVERY_BACKEND(a_watch_hears_the_end_of_the_stream)
{
    int fd = rig_end(rig);

    cr_assert_eq(rig_attach(rig, fd, 7, WR_POLL_ONESHOT), 0);
    cr_assert_eq(rig_rearm(rig, fd, 7, WR_POLL_IN), 0);
    rig_finish(rig, fd);
    cr_assert_eq(rig_bits(rig, 7, NULL), WR_POLL_IN | WR_POLL_HUP);
    cr_assert_eq(rig_rearm(rig, fd, 7, WR_POLL_IN), 0);
    cr_assert_eq(rig_bits(rig, 7, NULL), WR_POLL_IN | WR_POLL_HUP);
    rig_close_end(rig, fd);
}

EVERY_BACKEND(a_disarmed_watch_is_silent)
{
    int fd = rig_end(rig);

    cr_assert_eq(rig_attach(rig, fd, 7, WR_POLL_ONESHOT), 0);
    cr_assert_eq(rig_rearm(rig, fd, 7, WR_POLL_IN | WR_POLL_OUT), 0);
    cr_assert_eq(rig_rearm(rig, fd, 7, 0), 0);
    rig_feed(rig, fd);
    cr_assert_eq(rig_look(rig), 0);
    cr_assert_eq(rig_rearm(rig, fd, 7, WR_POLL_IN), 0);
    cr_assert_eq(rig_bits(rig, 7, NULL), WR_POLL_IN);
    rig_close_end(rig, fd);
}

/* How often wait() comes back within 100 ms; it must report nothing. */
static unsigned returns_in_peace(struct rig *rig)
{
    weir_time deadline = wr_clock_now() + 100 * MS;
    unsigned returns = 0;

    while (wr_clock_now() < deadline) {
        cr_assert_eq(rig->ops->wait(rig->backend, rig->events, RIG_BATCH, deadline), 0);
        returns++;
    }
    return returns;
}

EVERY_BACKEND(a_hang_up_neither_speaks_nor_spins_while_disarmed)
{
    /* Never armed; armed and disarmed; disarmed after the hang-up; spent. */
    for (int kind = 0; kind < 4; kind++) {
        int fd = rig_end(rig);
        cr_assert_eq(rig_attach(rig, fd, 7, WR_POLL_ONESHOT), 0);
        if (kind == 1) {
            cr_assert_eq(rig_rearm(rig, fd, 7, WR_POLL_IN), 0);
            cr_assert_eq(rig_rearm(rig, fd, 7, 0), 0);
        }
        if (kind == 3) {
            cr_assert_eq(rig_rearm(rig, fd, 7, WR_POLL_OUT), 0);
            cr_assert_eq(rig_bits(rig, 7, NULL), WR_POLL_OUT);
        }
        rig_break(rig, fd);
        if (kind == 2)
            cr_assert_eq(rig_rearm(rig, fd, 7, 0), 0);
        unsigned returns = returns_in_peace(rig);
        cr_assert_leq(returns, 4, "kind %d: wait came back %u times", kind, returns);
        for (int again = 0; again < 2; again++) {
            cr_assert_eq(rig_rearm(rig, fd, 7, WR_POLL_IN), 0);
            uint32_t bits = rig_bits(rig, 7, NULL);
            cr_assert_eq(bits & (WR_POLL_IN | WR_POLL_HUP), WR_POLL_IN | WR_POLL_HUP,
                         "kind %d: the hang-up is forgotten", kind);
        }
        cr_assert_eq(rig_detach(rig, fd, 7), 0);
        rig_close_end(rig, fd);
    }
}

EVERY_BACKEND(a_watch_closed_by_its_owner_is_gone_without_harm)
{
    int fd = rig_end(rig);

    cr_assert_eq(rig_attach(rig, fd, 7, WR_POLL_ONESHOT), 0);
    rig_close_end(rig, fd);
    int result = rig_rearm(rig, fd, 7, WR_POLL_IN);
    cr_assert(result == -ENOENT || result == -EBADF, "%d", result);
    result = rig_detach(rig, fd, 7);
    cr_assert(result == -ENOENT || result == -EBADF, "%d", result);
    result = rig_detach(rig, fd, 7);
    cr_assert(result == -ENOENT || result == -EBADF, "%d", result);
    cr_assert_eq(rig_look(rig), 0);
}

EVERY_BACKEND(a_number_that_is_a_file_now_is_not_the_watch)
{
    int fd = rig_end(rig);

    cr_assert_eq(rig_attach(rig, fd, 7, WR_POLL_ONESHOT), 0);
    rig_close_end(rig, fd);
    int file = rig_file(rig);
    cr_assert_eq(file, fd, "the number was not used again: the test proves nothing");
    cr_assert_eq(rig_rearm(rig, fd, 7, WR_POLL_IN), -ENOENT);
    cr_assert_eq(rig_detach(rig, fd, 7), -ENOENT);
    rig_close_end(rig, file);
}

EVERY_BACKEND(a_late_call_under_an_old_token_leaves_the_newcomer_alone)
{
    for (int mode = WR_POLL_EDGE; mode <= WR_POLL_ONESHOT; mode++) {
        int fd = rig_end(rig);
        cr_assert_eq(rig_attach(rig, fd, 7, WR_POLL_ONESHOT), 0);
        rig_close_end(rig, fd);
        int again = rig_end(rig);
        cr_assert_eq(again, fd, "the number was not used again: the test proves nothing");
        cr_assert_eq(rig_attach(rig, again, 8, (enum wr_poll_mode)mode), 0);
        if (mode == WR_POLL_ONESHOT)
            cr_assert_eq(rig_rearm(rig, again, 8, WR_POLL_IN), 0);
        cr_assert_eq(rig_rearm(rig, again, 7, WR_POLL_OUT), -ENOENT);
        cr_assert_eq(rig_detach(rig, again, 7), -ENOENT);
        rig_feed(rig, again);
        unsigned others;
        cr_assert(rig_bits(rig, 8, &others) & WR_POLL_IN, "the newcomer was silenced, mode %d",
                  mode);
        cr_assert_eq(others, 0);
        cr_assert_eq(rig_detach(rig, again, 8), 0);
        rig_close_end(rig, again);
    }
}

/* ---- errors
 * -------------------------------------------------------------------------------------- */

EVERY_BACKEND(attach_says_what_cannot_be)
{
    int fd = rig_end(rig);
    int file = rig_file(rig);

    cr_assert_eq(rig_attach(rig, fd, 7, WR_POLL_EDGE), 0);
    cr_assert_eq(rig_attach(rig, fd, 8, WR_POLL_EDGE), -EEXIST);
    cr_assert_eq(rig_attach(rig, fd, 8, WR_POLL_ONESHOT), -EEXIST);
    cr_assert_eq(rig_attach(rig, file, 9, WR_POLL_EDGE), -EPERM);
    cr_assert_eq(rig_attach(rig, file, 9, WR_POLL_ONESHOT), -EPERM);
    int result = rig_rearm(rig, 1999, 9, WR_POLL_IN);
    cr_assert(result == -ENOENT || result == -EBADF, "%d", result);
    result = rig_detach(rig, 1999, 9);
    cr_assert(result == -ENOENT || result == -EBADF, "%d", result);
    cr_assert_eq(rig_attach(rig, 1999, 9, WR_POLL_EDGE), -EBADF);
    cr_assert_eq(rig_attach(rig, -1, 9, WR_POLL_ONESHOT), -EBADF);
    cr_assert_eq(rig_rearm(rig, -1, 9, WR_POLL_IN), -EBADF);
    cr_assert_eq(rig_detach(rig, -1, 9), -EBADF);
    /* The one that was there first is as it was. */
    cr_assert_eq(rig_bits(rig, 7, NULL), WR_POLL_OUT);
    cr_assert_eq(rig_detach(rig, fd, 7), 0);
    rig_close_end(rig, fd);
    rig_close_end(rig, file);
}

/* ---- doorbell and deadline
 * ----------------------------------------------------------------------- */

static void *ring_after_20_ms(void *argument)
{
    struct rig *rig = argument;
    struct timespec pause = { 0, 20 * MS };

    nanosleep(&pause, NULL);
    rig->ops->doorbell(rig->backend);
    return NULL;
}

EVERY_BACKEND(the_doorbell_wakes_a_wait_that_sleeps)
{
    weir_time best = WEIR_NEVER;

    /* The best of five: a busy machine may be late once. */
    for (int i = 0; i < 5; i++) {
        pthread_t ringer;
        weir_time start = wr_clock_now();
        cr_assert_eq(pthread_create(&ringer, NULL, ring_after_20_ms, rig), 0);
        cr_assert_eq(rig->ops->wait(rig->backend, rig->events, RIG_BATCH,
                                    start + 10000 * (weir_time)MS), 0);
        weir_time took = wr_clock_now() - start;
        best = took < best ? took : best;
        pthread_join(ringer, NULL);
        cr_assert_eq(rig_look(rig), 0);
    }
    cr_assert_lt(best, 70 * MS, "%lld ns", (long long)best);
}

EVERY_BACKEND(a_doorbell_before_the_wait_is_not_lost)
{
    weir_time start = wr_clock_now();

    rig->ops->doorbell(rig->backend);
    cr_assert_eq(rig->ops->wait(rig->backend, rig->events, RIG_BATCH, WEIR_NEVER), 0);
    cr_assert_lt(wr_clock_now() - start, 1000 * (weir_time)MS);
}

EVERY_BACKEND(many_doorbells_neither_block_nor_ring_on)
{
    for (int i = 0; i < 100000; i++)
        rig->ops->doorbell(rig->backend);
    cr_assert_eq(rig->ops->wait(rig->backend, rig->events, RIG_BATCH, WEIR_NEVER), 0);
    unsigned returns = returns_in_peace(rig);
    cr_assert_leq(returns, 3, "wait came back %u times", returns);
    rig->ops->doorbell(rig->backend);
    cr_assert_eq(rig->ops->wait(rig->backend, rig->events, RIG_BATCH, WEIR_NEVER), 0);
}

EVERY_BACKEND(the_doorbell_does_not_take_the_place_of_an_event)
{
    int fd = rig_end(rig);

    cr_assert_eq(rig_attach(rig, fd, 7, WR_POLL_EDGE), 0);
    rig->ops->doorbell(rig->backend);
    cr_assert_eq(rig_bits(rig, 7, NULL), WR_POLL_OUT);
    rig_close_end(rig, fd);
}

EVERY_BACKEND(a_deadline_that_has_passed_does_not_sleep)
{
    weir_time start = wr_clock_now();

    for (int i = 0; i < 100; i++) {
        cr_assert_eq(rig->ops->wait(rig->backend, rig->events, RIG_BATCH, INT64_MIN), 0);
        cr_assert_eq(rig->ops->wait(rig->backend, rig->events, RIG_BATCH, 0), 0);
        cr_assert_eq(rig->ops->wait(rig->backend, rig->events, RIG_BATCH, wr_clock_now() - 1), 0);
    }
    cr_assert_lt(wr_clock_now() - start, 1000 * (weir_time)MS);
}

EVERY_BACKEND(a_deadline_is_kept_without_spinning)
{
    static const weir_time spans[] = { 100000, 900000, 1500000, 20000000 };

    for (unsigned i = 0; i < sizeof(spans) / sizeof(spans[0]); i++) {
        weir_time deadline = wr_clock_now() + spans[i];
        unsigned returns = 0;
        while (wr_clock_now() < deadline) {
            cr_assert_eq(rig->ops->wait(rig->backend, rig->events, RIG_BATCH, deadline), 0);
            returns++;
        }
        cr_assert_leq(returns, 3, "%u returns for %lld ns", returns, (long long)spans[i]);
        cr_assert_lt(wr_clock_now() - deadline, 2000 * (weir_time)MS);
    }
}

/* ---- threads
 * ------------------------------------------------------------------------------------- */

#define THREADS 4
#define ROUNDS 300

struct crowd {
    struct rig *rig;
    _Atomic uint32_t heard[THREADS];            /* the round that was heard last */
    _Atomic unsigned leavers;
};

struct member {
    struct crowd *crowd;
    uint32_t index;
};

/* Token: the member above, its round below. Waits for the event of each of its ends. */
static void *come_and_go(void *argument)
{
    struct member *member = argument;
    struct crowd *crowd = member->crowd;
    struct rig *rig = crowd->rig;
    unsigned rounds = support_rounds(ROUNDS);

    for (uint32_t round = 1; round <= rounds; round++) {
        uint64_t token = (uint64_t)member->index << 32 | round;
        enum wr_poll_mode mode = round % 2 ? WR_POLL_EDGE : WR_POLL_ONESHOT;
        int fd = rig_end(rig);
        cr_assert_eq(rig_attach(rig, fd, token, mode), 0);
        if (mode == WR_POLL_ONESHOT)
            cr_assert_eq(rig_rearm(rig, fd, token, WR_POLL_IN), 0);
        rig_feed(rig, fd);
        weir_time limit = wr_clock_now() + 5000 * (weir_time)MS;
        /* acquire: pairs with the release in the waiter below */
        while (atomic_load_explicit(&crowd->heard[member->index], memory_order_acquire) != round)
            cr_assert_lt(wr_clock_now(), limit, "round %u of %u was not heard", round,
                         member->index);
        cr_assert_eq(rig_detach(rig, fd, token), 0);
        rig_close_end(rig, fd);
    }
    atomic_fetch_add(&crowd->leavers, 1);
    rig->ops->doorbell(rig->backend);
    return NULL;
}

EVERY_BACKEND(attach_and_detach_from_four_threads_while_it_waits)
{
    static struct crowd crowd;
    struct member members[THREADS];
    pthread_t threads[THREADS];

    crowd.rig = rig;
    for (uint32_t i = 0; i < THREADS; i++) {
        members[i] = (struct member){ .crowd = &crowd, .index = i };
        cr_assert_eq(pthread_create(&threads[i], NULL, come_and_go, &members[i]), 0);
    }
    while (atomic_load(&crowd.leavers) < THREADS) {
        int count = rig->ops->wait(rig->backend, rig->events, RIG_BATCH, WEIR_NEVER);
        cr_assert_geq(count, 0);
        for (int i = 0; i < count; i++) {
            uint64_t token = rig->events[i].token;
            cr_assert_lt(token >> 32, THREADS, "a token that nobody gave");
            /* Of two rounds in one batch the older is stale. */
            if (!(rig->events[i].bits & WR_POLL_IN) ||
                (uint32_t)token <= atomic_load(&crowd.heard[token >> 32]))
                continue;
            /* release: pairs with the acquire in come_and_go() */
            atomic_store_explicit(&crowd.heard[token >> 32], (uint32_t)token, memory_order_release);
        }
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
}

/* ---- the double's own doors ------------------------------------------------------------------ */

Test(fake, hands_out_what_is_injected_and_fails_when_told, .timeout = 10)
{
    static struct rig rig;

    rig_open(&rig, &wr_poll_fake);
    fake_poll_inject(rig.backend, 4711, WR_POLL_IN);
    fake_poll_fail_wait(rig.backend, EIO);
    cr_assert_eq(rig_look(&rig), -EIO);
    cr_assert_eq(rig_look(&rig), 1);
    cr_assert_eq(rig.events[0].token, 4711);
    cr_assert_eq(rig.events[0].bits, WR_POLL_IN);
    cr_assert_eq(rig_look(&rig), 0);
    rig_close(&rig);
}
