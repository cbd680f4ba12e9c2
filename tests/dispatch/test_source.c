/* The moves of the event word (dispatch/source.h), one after the other, in every order that
 * matters. */
#include <errno.h>
#include <pthread.h>
#include <time.h>

#include "source_rig.h"
#include "support/test.h"

#define READY_FLAGS (WR_IN | WR_OUT | WR_HUP)

Test(source, an_edge_that_nobody_wants_is_kept, .timeout = 10)
{
    glass_start(4);
    struct probe *probe = glass_open();
    cr_assert_not(glass_event(&probe->source, WR_IN));
    cr_assert_eq(FLAGS(probe) & (READY_FLAGS | WR_LINKED), WR_IN);
    cr_assert_eq(glass_queued(), 0);
    wr_source_want(&probe->source, WR_OUT);
    cr_assert_eq(glass_queued(), 0, "the other direction");
    wr_source_want(&probe->source, WR_IN);
    cr_assert_eq(glass_queued(), 1, "readiness that is there already");
    cr_assert(glass_run());
    cr_assert_eq(probe->flags, WR_IN);
    cr_assert_eq(FLAGS(probe) & (READY_FLAGS | WR_LINKED), 0);
    cr_assert_eq(glass_queued(), 0);
    glass_end();
}

Test(source, edges_of_a_wanted_direction_are_pushed_once, .timeout = 10) /* (D4) */
{
    glass_start(4);
    struct probe *probe = glass_open();
    wr_source_want(&probe->source, WR_IN);
    cr_assert(glass_event(&probe->source, WR_IN), "pushed");
    cr_assert_not(glass_event(&probe->source, WR_IN), "it is queued");
    cr_assert_not(glass_event(&probe->source, WR_IN | WR_HUP));
    glass_pop(probe);
    cr_assert_eq(probe->turns, 1);
    cr_assert_eq(probe->flags, WR_IN | WR_HUP);
    cr_assert_eq(glass_queued(), 0, "one turn for all of them");
    cr_assert(glass_event(&probe->source, WR_IN), "pushed again after the turn");
    glass_pop(probe);
    cr_assert_eq(glass.posts, 0);
    glass_end();
}

static void edge_in_turn(struct probe *probe, uint32_t flags)
{
    (void)flags;
    probe->told = glass_event(&probe->source, WR_IN);
}

Test(source, an_edge_between_take_and_finish_brings_another_turn, .timeout = 10) /* (D1) */
{
    glass_start(4);
    struct probe *probe = glass_open();
    wr_source_want(&probe->source, WR_IN);
    cr_assert(glass_event(&probe->source, WR_IN));
    probe->act = edge_in_turn;
    glass_pop(probe);
    cr_assert_not(probe->told, "not pushed while its turn runs (D5)");
    cr_assert_eq(glass_queued(), 1, "to the back of the queue");
    cr_assert(FLAGS(probe) & WR_LINKED);
    cr_assert_not(glass_event(&probe->source, WR_IN), "nor while it is queued");
    cr_assert(glass_run());
    cr_assert_eq(probe->turns, 2);
    cr_assert_eq(probe->flags, WR_IN);
    cr_assert_not(FLAGS(probe) & WR_LINKED);
    cr_assert_not(glass_run());
    glass_end();
}

static void unwant_in_turn(struct probe *probe, uint32_t flags)
{
    (void)flags;
    wr_source_unwant(&probe->source, WR_IN);
    glass_event(&probe->source, WR_IN);
}

Test(source, an_edge_after_the_want_is_over_brings_no_turn, .timeout = 10)
{
    glass_start(4);
    struct probe *probe = glass_open();
    wr_source_want(&probe->source, WR_IN);
    cr_assert(glass_event(&probe->source, WR_IN));
    probe->act = unwant_in_turn;
    glass_pop(probe);
    cr_assert_eq(glass_queued(), 0);
    cr_assert_eq(FLAGS(probe) & (WR_IN | WR_LINKED), WR_IN, "kept for who wants it next");
    wr_source_want(&probe->source, WR_IN);
    cr_assert_eq(glass_queued(), 1);
    cr_assert(glass_run());
    glass_end();
}

/* ---- waiting threads ----------------------------------------------------------------- */

static uint32_t wakes(const struct probe *probe, uint32_t bit)
{
    return atomic_load(&probe->source.wake[bit == WR_OUT]);
}

Test(source, an_edge_between_clear_and_wait_refuses_the_wait, .timeout = 10) /* (W1) */
{
    glass_start(4);
    struct probe *probe = glass_open();
    for (uint32_t bit = WR_IN; bit <= WR_OUT; bit <<= 1) {
        glass_event(&probe->source, bit);
        wr_source_clear(&probe->source, bit);
        cr_assert_not(FLAGS(probe) & bit);
        glass_event(&probe->source, bit);
        cr_assert_not(wr_source_wait(&probe->source, bit), "it would sleep on a byte");
        cr_assert_not(FLAGS(probe) & (bit << WR_WAIT_SHIFT));
        wr_source_clear(&probe->source, bit);
        cr_assert(wr_source_wait(&probe->source, bit));
        cr_assert_eq(wakes(probe, bit), 0, "no wake yet");
    }
    glass_end();
}

Test(source, an_edge_after_wait_wakes_once_and_takes_the_flag, .timeout = 10) /* (W1) */
{
    glass_start(4);
    struct probe *probe = glass_open();
    cr_assert(wr_source_wait(&probe->source, WR_IN));
    cr_assert(wr_source_wait(&probe->source, WR_OUT));
    cr_assert_not(glass_event(&probe->source, WR_IN), "no worker takes part");
    cr_assert_eq(wakes(probe, WR_IN), 1);
    cr_assert_eq(wakes(probe, WR_OUT), 0, "not for the other direction (W2)");
    cr_assert_not(FLAGS(probe) & WR_WAIT_IN);
    cr_assert(FLAGS(probe) & WR_WAIT_OUT);
    glass_event(&probe->source, WR_IN);
    cr_assert_eq(wakes(probe, WR_IN), 1, "the flag was taken with the first");
    cr_assert_eq(atomic_load(&glass.poller.sync_wakes), 1);
    glass_event(&probe->source, WR_IN | WR_OUT | WR_HUP);
    cr_assert_eq(wakes(probe, WR_OUT), 1);
    cr_assert_eq(atomic_load(&glass.poller.sync_wakes), 2);
    cr_assert_eq(glass.posts, 0);
    glass_end();
}

Test(source, a_waiter_that_left_is_not_woken, .timeout = 10)
{
    glass_start(4);
    struct probe *probe = glass_open();
    cr_assert(wr_source_wait(&probe->source, WR_IN));
    wr_source_unwait(&probe->source, WR_IN);
    glass_event(&probe->source, WR_IN);
    cr_assert_eq(wakes(probe, WR_IN), 0);
    cr_assert_eq(atomic_load(&glass.poller.sync_wakes), 0);
    glass_end();
}

Test(source, a_turn_leaves_readiness_that_nobody_wants, .timeout = 10) /* (W1) */
{
    glass_start(4);
    struct probe *probe = glass_open();
    wr_source_clear(&probe->source, WR_IN); /* a waiting call: it looks, finds nothing */
    glass_event(&probe->source, WR_IN);
    wr_source_want(&probe->source, WR_OUT);
    cr_assert(glass_event(&probe->source, WR_OUT));
    glass_pop(probe); /* a turn of the other direction */
    cr_assert_eq(probe->flags, WR_OUT);
    cr_assert_not(wr_source_wait(&probe->source, WR_IN), "the edge was taken from it");
    glass_end();
}

/* ---- turns that are asked for -------------------------------------------------------- */

Test(source, a_hang_up_is_told_with_every_turn, .timeout = 10)
{
    glass_start(4);
    struct probe *probe = glass_open();
    cr_assert_not(glass_event(&probe->source, WR_HUP));
    for (int i = 0; i < 3; i++) {
        wr_source_schedule(&probe->source, WR_CTL);
        cr_assert(glass_run());
        cr_assert_eq(probe->flags, WR_CTL | WR_HUP);
    }
    cr_assert_not(glass_run(), "but asks for none");
    glass_end();
}

Test(source, requests_for_a_turn_coalesce, .timeout = 10)
{
    glass_start(4);
    struct probe *probe = glass_open();
    wr_source_schedule(&probe->source, WR_CTL);
    wr_source_schedule(&probe->source, WR_TIMER);
    glass_event(&probe->source, WR_IN);
    wr_source_want(&probe->source, WR_IN);
    cr_assert_not(glass_event(&probe->source, WR_IN));
    cr_assert_eq(glass_queued(), 1);
    cr_assert(glass_run());
    cr_assert_eq(probe->flags, WR_CTL | WR_TIMER | WR_IN);
    cr_assert_not(glass_run());
    cr_assert_eq(probe->turns, 1);
    glass_end();
}

static void schedule_in_turn(struct probe *probe, uint32_t flags)
{
    (void)flags;
    wr_source_schedule(&probe->source, WR_CTL);
    wr_source_schedule(&probe->source, WR_CTL);
    probe->told = glass_queued() == 0;
}

Test(source, a_request_made_in_a_turn_brings_one_more, .timeout = 10) /* (D5, D6) */
{
    glass_start(4);
    struct probe *probe = glass_open();
    probe->act = schedule_in_turn;
    wr_source_schedule(&probe->source, WR_CTL);
    cr_assert(glass_run());
    cr_assert(probe->told, "not before this one is over");
    cr_assert_eq(glass_queued(), 1);
    cr_assert(glass_run());
    cr_assert_not(glass_run());
    cr_assert_eq(probe->turns, 2);
    cr_assert_not(probe->overlapped);
    glass_end();
}

static void run_another(struct probe *probe, uint32_t flags)
{
    (void)flags;
    wr_source_schedule(&probe->other->source, WR_CTL);
    cr_assert(glass_run());
    probe->told = wr_source_current() == &probe->source;
}

Test(source, the_current_source_is_that_of_the_innermost_turn, .timeout = 10)
{
    glass_start(4);
    struct probe *probe = glass_open(), *other = glass_open();
    cr_assert_null(wr_source_current());
    probe->act = run_another;
    probe->other = other;
    wr_source_schedule(&probe->source, WR_CTL);
    cr_assert(glass_run());
    cr_assert_eq(probe->current, &probe->source);
    cr_assert_eq(other->current, &other->source);
    cr_assert(probe->told);
    cr_assert_null(wr_source_current());
    glass_end();
}

/* ---- names --------------------------------------------------------------------------- */

static void end_in_turn(struct probe *probe, uint32_t flags)
{
    (void)flags;
    wr_source_detach(&probe->source);
    if (wr_source_unpin_own(&probe->source))
        wr_source_release(&probe->source);
    else
        probe->told = true;
}

static void end_source(struct probe *probe)
{
    probe->act = end_in_turn;
    probe->answer = WR_TURN_GONE;
    wr_source_schedule(&probe->source, WR_CTL);
    cr_assert(glass_run());
}

Test(source, a_stale_event_is_dropped_and_counted, .timeout = 10) /* (F01, O6) */
{
    glass_start(1); /* the next one gets the same slot */
    struct probe *probe = glass_open();
    uint64_t old = wr_source_token(&probe->source);
    end_source(probe);
    cr_assert_not(glass_event_named(old, WR_IN), "nobody lives there");
    cr_assert_eq(atomic_load(&glass.poller.stale_drops), 1);
    struct probe *next = glass_open();
    cr_assert_eq(next, probe);
    cr_assert_neq(wr_source_token(&next->source), old);
    wr_source_want(&next->source, WR_IN);
    cr_assert(wr_source_wait(&next->source, WR_OUT));
    uint32_t before = FLAGS(next), woken = wakes(next, WR_OUT);
    cr_assert_not(glass_event_named(old, WR_IN | WR_OUT | WR_HUP), "another lives there");
    cr_assert_eq(FLAGS(next), before, "who is left alone");
    cr_assert_eq(wakes(next, WR_OUT), woken);
    cr_assert_eq(glass_queued(), 0);
    cr_assert_not(glass_event_named(UINT32_MAX - 1, WR_IN), "no such slot");
    cr_assert_eq(atomic_load(&glass.poller.stale_drops), 3);
    cr_assert_eq(atomic_load(&glass.poller.sync_wakes), 0);
    cr_assert(glass_event(&next->source, WR_IN));
    glass_end();
}

Test(source, the_word_of_a_source_that_has_gone_is_left_alone, .timeout = 10)
{
    glass_start(1);
    struct probe *probe = glass_open();
    glass_event(&probe->source, WR_IN | WR_HUP);
    end_source(probe);
    cr_assert_eq(FLAGS(probe), 0, "no finish after the last turn, and nothing is inherited");
    struct probe *next = glass_open();
    cr_assert_eq(FLAGS(next), WR_LIVE);
    cr_assert_eq(glass_queued(), 0);
    glass_end();
}

/* ---- pins ---------------------------------------------------------------------------- */

static void last_turn(struct probe *probe, uint32_t flags)
{
    (void)flags;
    wr_source_release(&probe->source);
}

Test(source, the_last_pin_asks_for_the_last_turn, .timeout = 10) /* (O5) */
{
    glass_start(2);
    struct probe *probe = glass_open();
    cr_assert(wr_source_pin(&probe->source));
    cr_assert(wr_source_pin(&probe->source));
    end_source(probe);
    cr_assert(probe->told, "two are inside");
    cr_assert_eq(atomic_load(&glass.runtime.slots.live), 1);
    cr_assert(wr_source_pin(&probe->source), "as long as one is inside others may come");
    wr_source_unpin(&probe->source);
    cr_assert_not(glass_event(&probe->source, WR_IN), "nobody else can queue it");
    wr_source_schedule(&probe->source, WR_CTL);
    wr_source_unpin(&probe->source);
    cr_assert_eq(glass_queued(), 0);
    probe->act = last_turn;
    wr_source_unpin(&probe->source);
    cr_assert_eq(glass_queued(), 1);
    cr_assert_not(wr_source_pin(&probe->source), "it is going");
    cr_assert(glass_run());
    cr_assert_eq(atomic_load(&glass.runtime.slots.live), 0);
    cr_assert_not(wr_source_pin(&probe->source), "nobody lives there");
    glass_end();
}

Test(source, a_pin_given_back_while_it_is_open_does_nothing, .timeout = 10)
{
    glass_start(2);
    struct probe *probe = glass_open();
    cr_assert(wr_source_pin(&probe->source));
    wr_source_unpin(&probe->source);
    cr_assert_eq(glass_queued(), 0);
    end_source(probe);
    cr_assert_not(probe->told);
    cr_assert_eq(atomic_load(&glass.runtime.slots.live), 0);
    glass_end();
}

static void *release_main(void *source)
{
    wr_source_release(source);
    return NULL;
}

Test(source, one_that_was_never_watched_waits_for_a_mistaken_pin, .timeout = 10)
{
    struct wr_source *source;
    pthread_t thread;

    glass_start(1);
    cr_assert_eq(wr_source_open(&glass.runtime, 7, 0, &source), 0);
    cr_assert(wr_source_pin(source));
    cr_assert_eq(pthread_create(&thread, NULL, release_main, source), 0);
    struct timespec pause = {.tv_nsec = 20000000};
    nanosleep(&pause, NULL);
    cr_assert_eq(atomic_load(&glass.runtime.slots.live), 1, "the slot is not given away yet");
    wr_source_unpin(source);
    pthread_join(thread, NULL);
    cr_assert_eq(atomic_load(&glass.runtime.slots.live), 0);
    cr_assert_not(wr_source_pin(source));
    cr_assert_eq(glass_queued(), 0);
    glass_end();
}

Test(source, none_is_opened_once_destroy_has_begun, .timeout = 10)
{
    struct wr_source *source;

    glass_start(1);
    atomic_store(&glass.runtime.stopping, 1);
    cr_assert_eq(wr_source_open(&glass.runtime, 7, 0, &source), -ESHUTDOWN);
    glass_end();
}
