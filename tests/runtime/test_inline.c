/* test_inline.c: dedicated pollers whose own threads run callbacks (WEIR_INLINE=1): who runs what,
 * and who is served while such a callback does not return. */
#include "support/lease.h"

#include <dirent.h>
#include <errno.h>
#include <unistd.h>

#include "dispatch/dispatch.h"
#include "dispatch/inline.h"

#define CONNECTIONS_MAX 48

static struct connection connections[CONNECTIONS_MAX];

/* The first connections alternate between the pollers. */
static void open_with(struct rig *rig, unsigned pollers, unsigned workers, unsigned workers_max,
                      unsigned count)
{
    weir_options options = WEIR_OPTIONS_INIT;

    options.pollers = pollers;
    options.workers = workers;
    options.workers_max = workers_max ? workers_max : workers;
    options.poll = WEIR_POLL_DEDICATED;
    options.dispatch = WEIR_DISPATCH_PUMP;
    options.inline_callbacks = WEIR_INLINE_ON;
    rig_open_with(rig, &options);
    for (unsigned i = 0; i < count; i++)
        connection_open(rig, &connections[i]);
}

static unsigned heard_of(unsigned first, unsigned count)
{
    unsigned heard = 0;

    for (unsigned i = first; i < first + count; i++)
        heard += atomic_load(&connections[i].heard);
    return heard;
}

/* What is sent while the poller is in a callback comes to it as one batch. */
static void batch_begin(void)
{
    connection_hang(&connections[0], 'h');
}

static void batch_come(void)
{
    connection_let_go(&connections[0]);
}

/* ---- the budget ------------------------------------------------------------------------------ */

Test(inline, poller_runs_up_to_its_budget_and_workers_the_rest, .timeout = 60)
{
    struct rig rig;
    struct rig_busy busy;

    open_with(&rig, 1, 1, 0, 41);
    rig_busy_begin(&rig, &busy, 1);
    batch_begin();
    uint64_t before = rig_stats(&rig).inline_turns;
    for (unsigned i = 1; i <= 40; i++)
        connection_send(&connections[i], 'x');
    batch_come();
    cr_assert(RIG_UNTIL(heard_of(1, 40) > 0, 5000));
    rig_sleep_ms(rig_patience(30));
    unsigned heard = heard_of(1, 40);
    cr_expect_leq(heard, WR_INLINE_MAX, "%u callbacks of one batch", heard);
    rig_busy_end(&busy);
    cr_expect(RIG_UNTIL(heard_of(1, 40) == 40, 5000), "the rest is not run");
    uint64_t run = rig_stats(&rig).inline_turns - before;
    cr_expect_geq(run, 2); /* the first is of the batch before */
    cr_expect_leq(run, 1 + WR_INLINE_MAX);
    lease_close(&rig);
}

Test(inline, single_events_need_no_worker, .timeout = 60)
{
    struct rig rig;
    struct rig_busy busy;

    open_with(&rig, 1, 1, 0, 1);
    rig_busy_begin(&rig, &busy, 1);
    weir_stats before = rig_stats(&rig);
    for (unsigned i = 1; i <= 100; i++) {
        connection_send(&connections[0], 'x');
        cr_assert(connection_heard(&connections[0], i, 5000));
    }
    weir_stats after = rig_stats(&rig);
    cr_expect_eq(after.inline_turns - before.inline_turns, 100);
    cr_expect_eq(after.items_run - before.items_run, 100);
    cr_expect_eq(after.kicks, before.kicks);
    cr_expect_eq(after.posts, before.posts);
    rig_busy_end(&busy);
    lease_close(&rig);
}

/* ---- a callback that does not return --------------------------------------------------------- */

Test(inline, waiting_threads_are_woken_before_the_callbacks_of_their_batch, .timeout = 60)
{
    struct rig rig;
    static struct waiter waiter;

    open_with(&rig, 1, 2, 0, 4);
    waiter_open(&rig, &waiter);
    unsigned served = atomic_load(&waiter.served);
    batch_begin();
    for (unsigned i = 1; i < 4; i++)
        connection_send(&connections[i], 'h');
    rig_peer_send(waiter.peer, "x", 1);
    batch_come();
    cr_expect(RIG_UNTIL(atomic_load(&waiter.served) == served + 1, 5000),
              "a thread waits behind a callback");
    for (unsigned i = 1; i < 4; i++) {
        cr_expect_eq(atomic_load(&connections[i].heard), 0);
        connection_let_go(&connections[i]);
    }
    waiter_close(&waiter);
    lease_close(&rig);
}

Test(inline, what_came_with_a_stuck_callback_is_run_by_workers, .timeout = 60)
{
    struct rig rig;

    open_with(&rig, 1, 1, 0, 9);
    batch_begin();
    connection_send(&connections[1], 'h');
    for (unsigned i = 2; i < 9; i++)
        connection_send(&connections[i], 'x');
    batch_come();
    cr_expect(RIG_UNTIL(heard_of(2, 7) == 7, 5000), "%u of 7 heard", heard_of(2, 7));
    cr_expect_eq(atomic_load(&connections[1].heard), 0);
    connection_let_go(&connections[1]);
    cr_expect(connection_heard(&connections[1], 1, 5000));
    lease_close(&rig);
}

/* The watchdog would need ten milliseconds. */
Test(inline, what_came_with_an_announced_block_is_run_at_once, .timeout = 60)
{
    struct rig rig;
    unsigned soon = 0;

    open_with(&rig, 1, 1, 0, 9);
    for (unsigned round = 1; round <= 20; round++) {
        batch_begin();
        unsigned inside = atomic_load(&connections[1].inside);
        atomic_store(&connections[1].let_go, false);
        connection_send(&connections[1], 'b');
        for (unsigned i = 2; i < 9; i++)
            connection_send(&connections[i], 'x');
        batch_come();
        cr_assert(RIG_UNTIL(heard_of(2, 7) == 7 * round, 5000));
        cr_assert(RIG_UNTIL(atomic_load(&connections[1].inside) > inside, 5000));
        weir_time last = 0;
        for (unsigned i = 2; i < 9; i++)
            if (atomic_load(&connections[i].heard_at) > last)
                last = atomic_load(&connections[i].heard_at);
        soon += last - atomic_load(&connections[1].heard_at) < 8000000;
        connection_let_go(&connections[1]);
        cr_assert(connection_heard(&connections[1], round, 5000));
    }
    cr_expect_geq(soon, 10, "%u of 20 rounds", soon);
    lease_close(&rig);
}

Test(inline, stuck_callback_is_named_with_its_poller_and_descriptor, .timeout = 60)
{
    struct rig rig;
    char descriptor[64];

    open_with(&rig, 1, 1, 0, 2);
    rig_sleep_ms(600); /* the watchdog sleeps */
    int fd = ((struct wr_source *)(void *)connections[1].socket)->fd;
    connection_hang(&connections[1], 'h');
    cr_expect(RIG_UNTIL(rig_logged(&rig, "callbacks do not return: poller weir-p0 for "), 5000),
              "not named: %s", rig.text);
    snprintf(descriptor, sizeof descriptor, "ms in descriptor %d", fd);
    cr_expect(rig_logged(&rig, descriptor), "%s", rig.text);
    connection_let_go(&connections[1]);
    cr_expect(connection_heard(&connections[1], 1, 5000));
    lease_close(&rig);
}

Test(inline, other_pollers_go_on_beside_a_stuck_one, .timeout = 60)
{
    struct rig rig;
    static struct waiter waiter;

    open_with(&rig, 2, 1, 0, 3); /* 0 and 2 at one, 1 at the other */
    waiter_open(&rig, &waiter);
    struct wr_poller *stuck = ((struct wr_source *)(void *)connections[0].socket)->poller;
    struct wr_poller *other = ((struct wr_source *)(void *)connections[1].socket)->poller;
    cr_assert_neq(stuck, other);
    connection_hang(&connections[0], 'h');
    for (unsigned i = 1; i <= 50; i++) {
        connection_send(&connections[1], 'x');
        cr_assert(connection_heard(&connections[1], i, 5000));
    }
    if (((struct wr_source *)(void *)waiter.socket)->poller == other)
        cr_expect_geq(waiter_time(&waiter), 0);
    connection_let_go(&connections[0]);
    cr_expect(connection_heard(&connections[0], 1, 5000));
    waiter_close(&waiter);
    lease_close(&rig);
}

static void note_ran(weir_work *work, void *context)
{
    (void)work;
    atomic_fetch_add((_Atomic unsigned *)context, 1);
}

/* Without inline callbacks poller 0 ticks for the pool. */
static void replaces_workers(bool stuck)
{
    struct rig rig;
    struct rig_busy busy;
    weir_work work;
    _Atomic unsigned ran = 0;

    open_with(&rig, 1, 1, 2, 1);
    if (stuck)
        connection_hang(&connections[0], 'h');
    else
        rig_sleep_ms(600); /* the watchdog sleeps */
    rig_busy_begin(&rig, &busy, 1);
    weir_work_init(&work, note_ran, &ran);
    cr_assert_eq(weir_post(rig.runtime, &work), 0);
    cr_expect(RIG_UNTIL(atomic_load(&ran) == 1, 5000), "nobody ticks");
    rig_busy_end(&busy);
    connection_let_go(&connections[0]);
    lease_close(&rig);
}

Test(inline, blocked_workers_are_replaced_while_the_poller_is_stuck, .timeout = 60)
{
    replaces_workers(true);
}

Test(inline, blocked_workers_are_replaced_while_the_poller_is_idle, .timeout = 60)
{
    replaces_workers(false);
}

/* ---- waiting calls in inline callbacks (W12) ------------------------------------------------- */

struct asker {
    weir_socket *other;
    weir_time timeout;
    ssize_t result;
    _Atomic unsigned inside, ended;
};

static void ask_and_wait(weir_socket *socket, const weir_view *view, int status, void *context)
{
    struct asker *asker = context;
    char byte;

    (void)socket;
    if (status < 0 || view->length == 0)
        return;
    atomic_fetch_add(&asker->inside, 1);
    asker->result = weir_recv_wait(asker->other, &byte, 1,
                                   asker->timeout ? weir_now() + asker->timeout : WEIR_NEVER);
    atomic_fetch_add(&asker->ended, 1);
}

struct asking {
    struct asker asker;
    int peer, other;
};

static void ask(struct rig *rig, struct asking *asking, weir_time timeout)
{
    weir_socket *socket;

    memset(asking, 0, sizeof *asking);
    asking->asker.timeout = timeout;
    asking->other = rig_unix(rig, NULL, &asking->asker.other);
    asking->peer = rig_unix(rig, NULL, &socket);
    cr_assert_eq(weir_read_start(socket, ask_and_wait, &asking->asker), 0);
    rig_peer_send(asking->peer, "?", 1);
    cr_assert(RIG_UNTIL(atomic_load(&asking->asker.inside) == 1, 5000));
    rig_sleep_ms(3); /* it sleeps by now */
}

static void answered(struct asking *asking, ssize_t result)
{
    cr_assert(RIG_UNTIL(atomic_load(&asking->asker.ended) == 1, 5000), "it waits for ever");
    cr_expect_eq(asking->asker.result, result, "%zd", asking->asker.result);
    close(asking->peer);
    close(asking->other);
}

Test(inline, waiting_call_polls_for_its_own_answer_and_for_others, .timeout = 60)
{
    struct rig rig;
    struct asking asking;

    open_with(&rig, 1, 1, 0, 1);
    ask(&rig, &asking, 0);
    for (unsigned i = 1; i <= 20; i++) {
        connection_send(&connections[0], 'x');
        cr_assert(connection_heard(&connections[0], i, 5000), "others wait as well");
    }
    rig_sleep_ms(300);
    cr_expect_not(rig_logged(&rig, "do not return"), "it is not stuck: %s", rig.text);
    rig_peer_send(asking.other, "!", 1);
    answered(&asking, 1);
    lease_close(&rig);
}

Test(inline, waiting_call_is_let_go_by_another_thread, .timeout = 60)
{
    struct rig rig;
    struct asking asking;

    for (unsigned i = 0; i < 20; i++) {
        open_with(&rig, 1, 1, 0, 0);
        ask(&rig, &asking, 0);
        weir_close(asking.asker.other, NULL, NULL);
        answered(&asking, -ECANCELED);
        lease_close(&rig);
    }
}

Test(inline, waiting_call_is_ended_by_destroy, .timeout = 60)
{
    struct rig rig;
    struct asking asking;

    open_with(&rig, 1, 1, 0, 0);
    ask(&rig, &asking, 0);
    weir_runtime_destroy(rig.runtime);
    rig.runtime = NULL;
    answered(&asking, -ECANCELED);
    lease_close(&rig);
}

Test(inline, waiting_call_keeps_its_deadline, .timeout = 60)
{
    struct rig rig;
    struct asking asking;

    open_with(&rig, 1, 1, 0, 0);
    ask(&rig, &asking, 30000000);
    answered(&asking, -ETIMEDOUT);
    lease_close(&rig);
}

static void close_and_wait(weir_socket *socket, const weir_view *view, int status, void *context)
{
    struct asker *asker = context;

    (void)socket;
    if (status < 0 || view->length == 0)
        return;
    asker->result = weir_close_wait(asker->other);
    atomic_fetch_add(&asker->ended, 1);
}

/* Its end needs events of the peer, and a worker's turn. */
Test(inline, close_that_waits_in_a_callback_comes_to_its_end, .timeout = 60)
{
    struct rig rig;
    struct asker asker = {0};
    weir_socket *socket;

    open_with(&rig, 1, 1, 0, 0);
    int other = rig_tcp(&rig, NULL, &asker.other), peer = rig_unix(&rig, NULL, &socket);
    cr_assert_eq(weir_read_start(socket, close_and_wait, &asker), 0);
    rig_peer_send(peer, "?", 1);
    cr_assert_eq(rig_peer_end(other, 5000), 0);
    close(other);
    cr_expect(RIG_UNTIL(atomic_load(&asker.ended) == 1, 5000), "it waits for ever");
    cr_expect_eq(asker.result, 0);
    close(peer);
    lease_close(&rig);
}

struct finisher {
    weir_timer timer;
    _Atomic bool rings, go, ended;
};

static void ring_long(weir_timer *timer, uint64_t missed, void *context)
{
    struct finisher *finisher = context;

    (void)timer;
    (void)missed;
    atomic_store(&finisher->rings, true);
    while (!atomic_load(&finisher->go))
        rig_sleep_ms(1);
}

static void finish_timer(weir_socket *socket, const weir_view *view, int status, void *context)
{
    struct finisher *finisher = context;

    (void)socket;
    if (status < 0 || view->length == 0)
        return;
    weir_timer_fini(&finisher->timer);
    atomic_store(&finisher->ended, true);
}

/* No event comes with the end of what it waits for: who ends it rings the doorbell. */
Test(inline, call_that_waits_for_a_timer_of_a_worker_is_told, .timeout = 60)
{
    struct rig rig;
    static struct finisher finisher;
    weir_socket *socket;

    open_with(&rig, 1, 1, 0, 0);
    int peer = rig_unix(&rig, NULL, &socket);
    cr_assert_eq(weir_read_start(socket, finish_timer, &finisher), 0);
    weir_timer_init(&finisher.timer, rig.runtime, ring_long, &finisher);
    cr_assert_eq(weir_timer_set(&finisher.timer, weir_now(), 0, WEIR_TIMER_ONCE), 0);
    cr_assert(RIG_UNTIL(atomic_load(&finisher.rings), 5000));
    rig_peer_send(peer, "?", 1);
    rig_sleep_ms(30);
    cr_expect_not(atomic_load(&finisher.ended));
    atomic_store(&finisher.go, true);
    cr_expect(RIG_UNTIL(atomic_load(&finisher.ended), 5000), "it waits for ever");
    close(peer);
    lease_close(&rig);
}

/* ---- as on a worker -------------------------------------------------------------------------- */

static void write_and_block(weir_socket *socket, const weir_view *view, int status, void *context)
{
    if (status < 0 || view->length == 0)
        return;
    weir_write(socket, "answer", 6);
    weir_blocking_begin();
    while (!atomic_load((_Atomic bool *)context))
        rig_sleep_ms(1);
    weir_blocking_end();
}

Test(inline, what_a_callback_wrote_leaves_before_it_blocks, .timeout = 60)
{
    struct rig rig;
    _Atomic bool go = false;
    weir_socket *socket;
    char answer[6];

    open_with(&rig, 1, 1, 0, 0);
    int peer = rig_unix(&rig, NULL, &socket);
    cr_assert_eq(weir_read_start(socket, write_and_block, &go), 0);
    rig_peer_send(peer, "?", 1);
    rig_peer_receive(peer, answer, 6);
    atomic_store(&go, true);
    close(peer);
    lease_close(&rig);
}

static void end_all(weir_socket *socket, const weir_view *view, int status, void *context)
{
    _Atomic int *result = context;

    if (status < 0 || view->length == 0)
        return;
    weir_runtime_destroy(weir_socket_runtime(socket));
    atomic_store(result, weir_runtime_drain(weir_socket_runtime(socket), WEIR_NEVER));
}

Test(inline, destroy_and_drain_are_refused_in_a_callback, .timeout = 60)
{
    struct rig rig;
    _Atomic int result = 1;
    weir_socket *socket;

    open_with(&rig, 1, 1, 0, 0);
    int peer = rig_unix(&rig, NULL, &socket);
    cr_assert_eq(weir_read_start(socket, end_all, &result), 0);
    rig_peer_send(peer, "?", 1);
    cr_assert(RIG_UNTIL(atomic_load(&result) != 1, 5000));
    cr_expect_eq(atomic_load(&result), -EDEADLK);
    cr_expect(rig_logged(&rig, "called from a callback; ignored"));
    close(peer);
    lease_close(&rig);
}

/* ---- at rest --------------------------------------------------------------------------------- */

/* Times the runtime's threads have gone to sleep. */
static uint64_t switches(void)
{
    DIR *tasks = opendir("/proc/self/task");
    uint64_t sum = 0;

    cr_assert_not_null(tasks);
    for (const struct dirent *task; (task = readdir(tasks));) {
        char path[300], line[256];
        unsigned long long count;
        bool ours = false;
        if (task->d_name[0] == '.')
            continue;
        snprintf(path, sizeof path, "/proc/self/task/%s/status", task->d_name);
        FILE *status = fopen(path, "re");
        while (status && fgets(line, sizeof line, status)) {
            ours = ours || strncmp(line, "Name:\tweir-", 11) == 0;
            if (ours && sscanf(line, "voluntary_ctxt_switches: %llu", &count) == 1)
                sum += count;
        }
        if (status)
            fclose(status);
    }
    closedir(tasks);
    return sum;
}

/* For a third of a second. */
static bool nobody_wakes(void)
{
    uint64_t before = switches();

    cr_assert_gt(before, 0);
    rig_sleep_ms(300);
    return switches() == before;
}

Test(inline, watchdog_comes_to_rest_and_is_woken_from_it, .timeout = 60)
{
    struct rig rig;

    open_with(&rig, 1, 2, 0, 1);
    for (unsigned i = 1; i <= 2; i++) {
        connection_send(&connections[0], 'x');
        cr_assert(connection_heard(&connections[0], i, 5000));
        cr_expect(RIG_UNTIL(nobody_wakes(), 10000), "somebody wakes again and again");
    }
    lease_close(&rig);
}
