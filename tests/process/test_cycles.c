/* test_cycles.c: created and destroyed again and again, from wherever: nothing stays. (G2) */
#include "support/rig.h"

#include <errno.h>
#include <unistd.h>

#include "support/scarce.h"
#include "support/stress.h"

/* WEIR_CYCLES asks for another number. */
static unsigned cycles(void)
{
    const char *asked = getenv("WEIR_CYCLES");
    return asked ? (unsigned)atoi(asked) : support_rounds(1000);
}

static void nothing(weir_work *work, void *context)
{
    (void)work;
    (void)context;
}

static void on_accept(weir_listener *listener, weir_socket *socket, void *context)
{
    (void)listener;
    (void)context;
    weir_close(socket, NULL, NULL);
}

/* A little of everything that holds a descriptor, a thread or memory. */
static void live_a_little(weir_runtime *runtime, weir_work *works)
{
    weir_listener *listener;
    weir_socket *socket;
    char address[WEIR_ADDRESS_TEXT_MAX];

    weir_work_init(&works[0], nothing, NULL);
    weir_work_init(&works[1], nothing, NULL);
    cr_assert_eq(weir_post(runtime, &works[0]), 0);
    cr_assert_eq(weir_post_blocking(runtime, &works[1]), 0);
    cr_assert_eq(weir_listen(runtime, "127.0.0.1:0", NULL, on_accept, NULL, &listener), 0);
    rig_address(listener, address);
    cr_assert_eq(weir_connect_wait(runtime, address, NULL, &socket, weir_after_ms(10000)), 0);
}

static void cycle(struct scarce_memory *memory, bool lively)
{
    weir_options options = WEIR_OPTIONS_INIT;
    weir_runtime *runtime;
    weir_work works[2];

    options.workers = 2;
    options.sources_max = 64;
    options.allocator = &memory->allocator;
    int r = weir_runtime_create(&runtime, &options);
    cr_assert_eq(r, 0, "weir_runtime_create: %d", r);
    if (lively)
        live_a_little(runtime, works);
    weir_runtime_destroy(runtime);
    cr_assert_eq(atomic_load(&memory->blocks), 0, "%ld blocks left", atomic_load(&memory->blocks));
    cr_assert_eq(atomic_load(&memory->wrong), 0, "a release named another size");
}

Test(cycles, a_thousand_runtimes_leave_nothing_behind, .timeout = 600)
{
    struct scarce_memory memory;
    unsigned count = cycles();

    scarce_memory_init(&memory);
    for (unsigned i = 0; i < 16; i++) /* what libc keeps for itself is there now */
        cycle(&memory, i % 2);
    support_await_threads(1, 1000);
    struct support_held before = support_held();
    for (unsigned i = 0; i < count; i++)
        cycle(&memory, i % 8 == 0);
    int threads = support_await_threads(before.threads, 2000);
    struct support_held after = support_held();
    cr_expect_leq(threads, before.threads);
    cr_expect_eq(after.fds, before.fds);
    int slack = 16;
#ifdef __SANITIZE_ADDRESS__
    slack += (int)count / 2; /* its own maps come and go with threads; ours would be one a turn */
#endif
    cr_expect_leq(after.maps, before.maps + slack, "%d maps, %d before", after.maps, before.maps);
    cr_expect_eq(atomic_load(&memory.bytes), 0);
}

Test(cycles, two_runtimes_live_side_by_side, .timeout = 30)
{
    struct scarce_memory memory[2];
    weir_options options = WEIR_OPTIONS_INIT;
    weir_runtime *runtimes[2];
    weir_work works[2];

    struct support_held before = support_held();
    for (int i = 0; i < 2; i++) {
        scarce_memory_init(&memory[i]);
        options.allocator = &memory[i].allocator;
        options.workers = 2;
        cr_assert_eq(weir_runtime_create(&runtimes[i], &options), 0);
    }
    weir_runtime_destroy(runtimes[0]);
    live_a_little(runtimes[1], works);
    weir_runtime_destroy(runtimes[1]);
    cr_expect_eq(atomic_load(&memory[0].blocks), 0);
    cr_expect_eq(atomic_load(&memory[1].blocks), 0);
    cr_expect_leq(support_await_threads(before.threads, 2000), before.threads);
    cr_expect_eq(support_count_fds(), before.fds);
}

Test(cycles, destroying_null_is_fine, .timeout = 30)
{
    errno = 77;
    weir_runtime_destroy(NULL);
    cr_assert_eq(errno, 77);
}

/* ---- from a callback ------------------------------------------------------------------------- */

struct inside {
    struct rig *rig;
    weir_work work, after;
    weir_timer timer;
    _Atomic unsigned tried, ran_after;
};

static void destroy_inside(weir_work *work, void *context)
{
    struct inside *inside = context;

    (void)work;
    weir_runtime_destroy(inside->rig->runtime);
    atomic_fetch_add(&inside->tried, 1);
}

static void destroy_in_timer(weir_timer *timer, uint64_t missed, void *context)
{
    (void)timer;
    (void)missed;
    destroy_inside(NULL, context);
}

static void destroy_in_read(weir_socket *socket, const weir_view *view, int status, void *context)
{
    (void)socket;
    (void)view;
    (void)status;
    destroy_inside(NULL, context);
}

static void count_after(weir_work *work, void *context)
{
    struct inside *inside = context;

    (void)work;
    atomic_fetch_add(&inside->ran_after, 1);
}

Test(cycles, destroy_in_a_callback_says_so_and_does_nothing, .timeout = 60)
{
    struct rig rig;
    struct inside inside = {.rig = &rig};
    weir_socket *socket;

    rig_open(&rig, 2);
    weir_work_init(&inside.work, destroy_inside, &inside);
    cr_assert_eq(weir_post(rig.runtime, &inside.work), 0);
    cr_assert(RIG_UNTIL(atomic_load(&inside.tried) == 1, 5000), "a job");
    cr_assert_eq(weir_post_blocking(rig.runtime, &inside.work), 0);
    cr_assert(RIG_UNTIL(atomic_load(&inside.tried) == 2, 5000), "a blocking job");
    weir_timer_init(&inside.timer, rig.runtime, destroy_in_timer, &inside);
    cr_assert_eq(weir_timer_set(&inside.timer, weir_now(), 0, WEIR_TIMER_ONCE), 0);
    cr_assert(RIG_UNTIL(atomic_load(&inside.tried) == 3, 5000), "a timer");
    int peer = rig_unix(&rig, NULL, &socket);
    cr_assert_eq(weir_read_start(socket, destroy_in_read, &inside), 0);
    rig_peer_send(peer, "x", 1);
    cr_assert(RIG_UNTIL(atomic_load(&inside.tried) == 4, 5000), "a reader");

    cr_expect_eq(rig_lines(&rig, WEIR_LOG_ERROR), 4, "%u lines", rig_lines(&rig, WEIR_LOG_ERROR));
    cr_expect(rig_logged(&rig, "weir_runtime_destroy"));
    weir_work_init(&inside.after, count_after, &inside);
    cr_assert_eq(weir_post(rig.runtime, &inside.after), 0, "the runtime goes on");
    cr_assert(RIG_UNTIL(atomic_load(&inside.ran_after) == 1, 5000), "the runtime goes on");
    weir_timer_fini(&inside.timer);
    close(peer);
    rig_close(&rig);
}
