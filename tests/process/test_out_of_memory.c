/* test_out_of_memory.c: the allocator has nothing at its k-th call, for every k: an error is
 * answered, nothing is lost, the next call works. (M02, M03) */
#include <errno.h>
#include <unistd.h>

#include "walk.h"

static unsigned memory_failed(struct walk *walk)
{
    return atomic_load(&walk->memory.failed);
}

static void begin(struct walk *walk, unsigned k)
{
    memset(walk, 0, sizeof *walk);
    walk->name = "memory";
    walk->k = k;
    walk->failed = memory_failed;
    scarce_memory_init(&walk->memory);
}

Test(memory, each_call_of_the_allocator_may_fail, .timeout = 240)
{
    struct walk walk;
    unsigned k = 0, missed = 0;

    begin(&walk, 0);
    walk.before = support_held();
    walk_run(&walk); /* what libc keeps open is open now */
    struct support_held before = support_held();
    while (missed < 3) { /* the number of calls differs a little from run to run */
        begin(&walk, ++k);
        walk.before = before;
        scarce_memory_fail(&walk.memory, k, 1);
        walk_run(&walk);
        missed = atomic_load(&walk.memory.failed) ? 0 : missed + 1;
    }
    cr_log_info("%u calls of the allocator", k - missed);
    cr_assert_gt(k, 20);
}

Test(memory, create_without_memory_from_the_k_th_call_on_fails_cleanly, .timeout = 60)
{
    struct walk walk;
    weir_options options;
    struct support_held before = support_held();

    for (unsigned k = 1;; k++) {
        begin(&walk, k);
        walk.before = before;
        walk_options(&walk, &options);
        scarce_memory_fail(&walk.memory, k, 1000000);
        weir_runtime *runtime = (weir_runtime *)&walk;
        int r = weir_runtime_create(&runtime, &options);
        if (r == 0)
            weir_runtime_destroy(runtime); /* what is left to fail comes later, and is coped with */
        walk_expect_nothing_left(&walk);
        if (r == 0)
            break;
        cr_expect(r == -ENOMEM || r == -EAGAIN, "call %u: %d", k, r);
        cr_expect_eq(runtime, (weir_runtime *)&walk, "set on failure");
    }
}

/* ---- views without memory (M03) -------------------------------------------------------------- */

struct reader {
    struct scarce_memory *memory;
    _Atomic unsigned bytes, refused, calls, ends;
};

static void on_read(weir_socket *socket, const weir_view *view, int status, void *context)
{
    struct reader *reader = context;

    (void)socket;
    atomic_fetch_add(&reader->calls, 1);
    if (status < 0 || view->length == 0) {
        atomic_fetch_add(&reader->ends, 1);
        return;
    }
    scarce_memory_fail(reader->memory, 1, 1000000);
    weir_kept *kept = weir_view_keep(view);
    if (!kept)
        atomic_fetch_add(&reader->refused, 1);
    weir_view_release(kept);
    for (size_t i = 0; i < view->length; i++)
        if (view->data[i] == 'v') /* as valid as before */
            atomic_fetch_add(&reader->bytes, 1);
    scarce_memory_fail(reader->memory, 0, 0);
}

Test(memory, a_view_that_cannot_be_kept_is_valid_all_the_same, .timeout = 30)
{
    struct rig rig;
    struct scarce_memory memory;
    struct reader reader = {.memory = &memory};
    weir_options options = WEIR_OPTIONS_INIT;
    weir_socket *socket;
    char data[5000];

    memset(data, 'v', sizeof data);
    scarce_memory_init(&memory);
    options.workers = 1;
    options.allocator = &memory.allocator;
    rig_open_with(&rig, &options);
    int peer = rig_unix(&rig, NULL, &socket);
    cr_assert_eq(weir_read_start(socket, on_read, &reader), 0);
    rig_peer_send(peer, data, sizeof data);
    cr_assert(RIG_UNTIL(atomic_load(&reader.bytes) == sizeof data, 5000));
    cr_expect_eq(atomic_load(&reader.refused), atomic_load(&reader.calls));
    close(peer);
    cr_assert(RIG_UNTIL(atomic_load(&reader.ends) == 1, 5000), "the end is heard");
    rig_close(&rig);
    cr_expect_eq(atomic_load(&memory.blocks), 0);
}

static void on_read_without_memory(weir_socket *socket, const weir_view *view, int status,
                                   void *context)
{
    struct reader *reader = context;

    (void)socket;
    atomic_fetch_add(&reader->calls, 1);
    if (status < 0 || view->length == 0)
        atomic_fetch_add(&reader->ends, 1);
    atomic_fetch_add(&reader->bytes, (unsigned)view->length);
}

/* No memory for the worker's own buffer, for as long as the connection lives: it is read all the
 * same, and the worker does not spin. */
Test(memory, a_worker_without_a_buffer_still_reads, .timeout = 60)
{
    struct rig rig;
    struct scarce_memory memory;
    struct reader reader = {.memory = &memory};
    weir_options options = WEIR_OPTIONS_INIT;
    weir_socket *socket;
    char data[100000] = "";

    scarce_memory_init(&memory);
    options.workers = 1;
    options.allocator = &memory.allocator;
    rig_open_with(&rig, &options);
    int peer = rig_unix(&rig, NULL, &socket);
    scarce_memory_fail(&memory, 1, 1000000);
    cr_assert_eq(weir_read_start(socket, on_read_without_memory, &reader), 0);
    rig_peer_send(peer, data, sizeof data);
    cr_assert(RIG_UNTIL(atomic_load(&reader.bytes) == sizeof data, 10000), "%u of %zu",
              atomic_load(&reader.bytes), sizeof data);
    uint64_t turns = rig_stats(&rig).turns;
    rig_sleep_ms(100);
    cr_expect_leq(rig_stats(&rig).turns, turns + 1, "turns go on without anything to read");
    close(peer);
    cr_assert(RIG_UNTIL(atomic_load(&reader.ends) == 1, 5000), "the end is heard");
    rig_close(&rig);
    cr_expect_eq(atomic_load(&memory.blocks), 0);
}
