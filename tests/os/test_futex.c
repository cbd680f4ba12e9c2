/* Sleeping on a word: absolute deadlines that are never early, wakes that are counted. */
#include "os/futex.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>

#include "asleep.h"
#include "os/clock.h"
#include "os/thread.h"
#include "support/test.h"

#define SLEEPERS 3
#define MS 1000000

static _Atomic uint32_t word;

struct sleeper {
    pthread_t thread;
    _Atomic int tid;
    _Atomic int done;
    int result;
    int errno_after;
};

static void *sleep_on_word(void *argument)
{
    struct sleeper *sleeper = argument;
    int tid = wr_thread_id();
    errno = ENOENT;
    /* release: pairs with the acquire in await_asleep() */
    atomic_store_explicit(&sleeper->tid, tid, memory_order_release);
    sleeper->result = wr_futex_wait(&word, 0, WEIR_NEVER);
    sleeper->errno_after = errno;
    /* release: pairs with the acquire in await_count() */
    atomic_store_explicit(&sleeper->done, 1, memory_order_release);
    return NULL;
}

static void start_asleep(struct sleeper *sleeper)
{
    cr_assert_eq(pthread_create(&sleeper->thread, NULL, sleep_on_word, sleeper), 0);
    cr_assert(await_asleep(&sleeper->tid));
}

Test(futex, a_deadline_is_never_early, .timeout = 30)
{
    for (int i = 0; i < 40; i++) {
        weir_time deadline = wr_clock_now() + i * MS / 8;
        cr_assert_eq(wr_futex_wait(&word, 0, deadline), -ETIMEDOUT);
        cr_assert_geq(wr_clock_now(), deadline);
    }
}

/* Were it taken as a span, the time since boot would be slept and the test's time be over. */
Test(futex, a_deadline_is_absolute, .timeout = 30)
{
    weir_time deadline = wr_clock_now() + 20 * MS;
    cr_assert_eq(wr_futex_wait(&word, 0, deadline), -ETIMEDOUT);
    cr_assert_eq(wr_futex_wait(&word, 0, deadline), -ETIMEDOUT);
}

Test(futex, a_deadline_that_has_passed_ends_at_once, .timeout = 30)
{
    cr_assert_eq(wr_futex_wait(&word, 0, wr_clock_now() - 1), -ETIMEDOUT);
    cr_assert_eq(wr_futex_wait(&word, 0, 0), -ETIMEDOUT);
    cr_assert_eq(wr_futex_wait(&word, 0, -1), -ETIMEDOUT);
    cr_assert_eq(wr_futex_wait(&word, 0, INT64_MIN), -ETIMEDOUT);
}

Test(futex, a_word_that_differs_is_not_slept_on, .timeout = 30)
{
    atomic_store(&word, 7);
    cr_assert_eq(wr_futex_wait(&word, 0, WEIR_NEVER), 0);
    cr_assert_eq(wr_futex_wait(&word, 6, 0), 0);
}

Test(futex, a_wake_wakes_as_many_as_it_says, .timeout = 60)
{
    static struct sleeper sleepers[SLEEPERS];
    cr_assert_eq(wr_futex_wake(&word, INT_MAX), 0);
    for (int i = 0; i < SLEEPERS; i++)
        start_asleep(&sleepers[i]);
    cr_assert_eq(wr_futex_wake(&word, 1), 1);
    cr_assert_eq(wr_futex_wake(&word, INT_MAX), SLEEPERS - 1);
    for (int i = 0; i < SLEEPERS; i++) {
        cr_assert(await_count(&sleepers[i].done, 1));
        cr_assert_eq(pthread_join(sleepers[i].thread, NULL), 0);
        cr_assert_eq(sleepers[i].result, 0);
        cr_assert_eq(sleepers[i].errno_after, ENOENT);
    }
}

static void on_signal(int number)
{
    (void)number;
}

Test(futex, a_signal_is_a_spurious_wake, .timeout = 60)
{
    static struct sleeper sleeper;
    struct sigaction action = { .sa_handler = on_signal };
    cr_assert_eq(sigaction(SIGUSR1, &action, NULL), 0);
    start_asleep(&sleeper);
    cr_assert_eq(pthread_kill(sleeper.thread, SIGUSR1), 0);
    cr_assert(await_count(&sleeper.done, 1));
    cr_assert_eq(pthread_join(sleeper.thread, NULL), 0);
    cr_assert_eq(sleeper.result, 0);
}

Test(futex, errno_is_left_alone, .timeout = 30)
{
    errno = ENOENT;
    (void)wr_futex_wait(&word, 1, WEIR_NEVER);
    (void)wr_futex_wait(&word, 0, 0);
    (void)wr_futex_wake(&word, 1);
    cr_assert_eq(errno, ENOENT);
}
