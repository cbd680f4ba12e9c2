/* test_promises.c: what always holds of dispatch and pool, seen on a whole runtime: nothing is
 * stranded, the next copy comes first, slices end, no edge is lost, pollers survive, idle is
 * idle. */
#include "support/rig.h"

#include <dirent.h>
#include <errno.h>
#include <unistd.h>

#include "os/fault.h"
#include "queue/inject.h"
#include "support/stress.h"

#define SOCKETS_MAX 100

struct crowd {
    weir_socket *sockets[SOCKETS_MAX];
    int peers[SOCKETS_MAX];
    unsigned count;
    _Atomic unsigned inside, heard, meet; /* meet: how many wait for each other inside; 0: none */
    _Atomic unsigned late;                /* calls that waited in vain */
    unsigned busy_us;
};

static void hear(weir_socket *socket, const weir_view *view, int status, void *context)
{
    struct crowd *crowd = context;

    (void)socket;
    if (status < 0 || view->length == 0)
        return;
    atomic_fetch_add(&crowd->inside, 1);
    if (crowd->meet && !RIG_UNTIL(atomic_load(&crowd->inside) >= crowd->meet, 5000))
        atomic_fetch_add(&crowd->late, 1);
    for (weir_time end = weir_now() + crowd->busy_us * 1000LL; weir_now() < end;)
        ;
    atomic_fetch_add(&crowd->heard, (unsigned)view->length);
}

static void crowd_open(struct rig *rig, struct crowd *crowd, unsigned count)
{
    crowd->count = count;
    for (unsigned i = 0; i < count; i++) {
        crowd->peers[i] = rig_unix(rig, NULL, &crowd->sockets[i]);
        cr_assert_eq(weir_read_start(crowd->sockets[i], hear, crowd), 0);
    }
}

static void crowd_close(struct rig *rig, struct crowd *crowd)
{
    for (unsigned i = 0; i < crowd->count; i++)
        close(crowd->peers[i]);
    rig_close(rig);
}

/* A byte for each; returns when whoever polls has harvested them all, one by one. */
static void make_ready(struct rig *rig, struct crowd *crowd)
{
    uint64_t events = rig_stats(rig).events;

    for (unsigned i = 0; i < crowd->count; i++) {
        rig_peer_send(crowd->peers[i], "x", 1);
        cr_assert(RIG_UNTIL(rig_stats(rig).events > events + i, 5000));
    }
}

static void open_slices(struct rig *rig, unsigned workers, unsigned slice_us)
{
    weir_options options = WEIR_OPTIONS_INIT;

    options.pollers = 1;
    options.workers = options.workers_max = workers;
    options.slice_us = slice_us;
    rig_open_with(rig, &options);
}

/* ---- D: dispatch --------------------------------------------------------------------------- */

/* D1, D3: each call waits inside until four are inside. */
Test(promises, as_many_callbacks_run_at_once_as_there_are_workers, .timeout = 30)
{
    struct rig rig;
    struct rig_busy busy;
    static struct crowd crowd;

    rig_open(&rig, 4);
    crowd_open(&rig, &crowd, 4);
    crowd.meet = 4;
    rig_busy_begin(&rig, &busy, 4);
    make_ready(&rig, &crowd);
    rig_busy_end(&busy);
    cr_expect(RIG_UNTIL(atomic_load(&crowd.heard) == 4, 10000), "%u of 4 were heard",
              atomic_load(&crowd.heard));
    cr_expect_eq(atomic_load(&crowd.late), 0, "one stood in the way of another");
    crowd_close(&rig, &crowd);
}

/* D2, D4: all workers are busy while a hundred sockets become ready, one at a time. */
Test(promises, one_copy_of_the_pump_waits_however_much_becomes_ready, .timeout = 30)
{
    struct rig rig;
    struct rig_busy busy;
    static struct crowd crowd;

    rig_open(&rig, 2);
    crowd_open(&rig, &crowd, 100);
    rig_busy_begin(&rig, &busy, 2);
    weir_stats before = rig_stats(&rig);
    make_ready(&rig, &crowd);
    weir_stats after = rig_stats(&rig);
    rig_busy_end(&busy);
    cr_expect(RIG_UNTIL(atomic_load(&crowd.heard) == 100, 5000), "%u of 100 were heard",
              atomic_load(&crowd.heard));
    cr_expect_leq(after.kicks - before.kicks, 1);
    cr_expect(after.pushes == before.pushes || after.pushes - before.pushes == 100);
    crowd_close(&rig, &crowd);
    cr_expect_eq(atomic_load(&crowd.heard), 100, "heard twice");
}

static void note_heard(weir_work *work, void *context)
{
    struct crowd *crowd = context;

    (void)work;
    atomic_store(&crowd->late, 1 + atomic_load(&crowd->heard));
}

/* D6: fifty sockets of a millisecond each are ready; a job is posted behind them. Copies of the
 * pump overtake it (P6), so many in a row and no more, of a slice each. */
#define SLICE_SOCKETS 3
Test(promises, pump_gives_the_worker_back_after_its_slice, .timeout = 30)
{
    struct rig rig;
    struct rig_busy busy;
    static struct crowd crowd;
    weir_work work;

    open_slices(&rig, 1, SLICE_SOCKETS * 1000);
    crowd_open(&rig, &crowd, 50);
    crowd.busy_us = 1000;
    rig_busy_begin(&rig, &busy, 1);
    make_ready(&rig, &crowd);
    weir_work_init(&work, note_heard, &crowd);
    cr_assert_eq(weir_post(rig.runtime, &work), 0);
    bool pump = rig_stats(&rig).pushes > 0;
    rig_busy_end(&busy);
    cr_expect(RIG_UNTIL(atomic_load(&crowd.heard) == 50, 5000));
    cr_expect(RIG_UNTIL(atomic_load(&crowd.late) != 0, 5000));
    if (pump) { /* without one each event is an item of its own, and the job is the last of them */
        unsigned before = atomic_load(&crowd.late) - 1;
        cr_expect_leq(before, (WR_INJECT_IO_MAX + 1) * SLICE_SOCKETS,
                      "the job came after %u of 50 sockets", before);
        cr_expect_geq(rig_stats(&rig).slices_expired, 1);
    }
    crowd_close(&rig, &crowd);
}

/* ---- edges that come in the middle --------------------------------------------------------- */

#ifdef WEIR_FAULTS
static struct {
    struct rig *rig;
    int peer;
    _Atomic unsigned armed;
} edge;

/* The next try finds nothing; right after it has looked, before it says so, a byte comes and
 * whoever polls has harvested it. */
static int byte_after_the_look(enum wr_fault_call call)
{
    if (call != WR_FAULT_RECV || !atomic_exchange(&edge.armed, 0))
        return 0;
    weir_stats stats = {.size = sizeof stats};
    weir_stats_get(edge.rig->runtime, &stats);
    uint64_t events = stats.events;
    if (send(edge.peer, "x", 1, MSG_NOSIGNAL) != 1)
        return 0;
    for (unsigned i = 0; i < 5000 && stats.events == events; i++) {
        rig_sleep_ms(1);
        weir_stats_get(edge.rig->runtime, &stats);
    }
    return EAGAIN;
}

/* D4 */
Test(promises, edge_between_the_try_of_an_operation_and_its_wait_is_seen, .timeout = 30)
{
    struct rig rig;
    weir_socket *socket;
    struct rig_op op;
    char byte;

    wr_fault_hook = byte_after_the_look;
    rig_open(&rig, 2);
    edge.rig = &rig;
    edge.peer = rig_unix(&rig, NULL, &socket);
    for (unsigned round = 0; round < 3; round++) {
        rig_op_init(&op);
        atomic_store(&edge.armed, 1);
        cr_assert_eq(weir_recv(socket, &op.op, &byte, 1, WEIR_NEVER), -EINPROGRESS);
        cr_expect(rig_op_await(&op, 2000), "the edge is lost");
        cr_expect_eq(op.result, 1);
    }
    close(edge.peer);
    rig_close(&rig);
}

/* D4 */
Test(promises, edge_while_a_turn_finds_nothing_is_seen, .timeout = 30)
{
    struct rig rig;
    static struct crowd crowd;

    wr_fault_hook = byte_after_the_look;
    rig_open(&rig, 2);
    crowd_open(&rig, &crowd, 1);
    edge.rig = &rig;
    edge.peer = crowd.peers[0];
    for (unsigned round = 1; round <= 3; round++) {
        atomic_store(&edge.armed, 1);
        rig_peer_send(crowd.peers[0], "y", 1); /* the turn of this one meets the other */
        cr_expect(RIG_UNTIL(atomic_load(&crowd.heard) == 2 * round, 2000), "the edge is lost");
    }
    crowd_close(&rig, &crowd);
}

/* ---- D7: the wait call fails --------------------------------------------------------------- */

static _Atomic int wait_error;
static _Atomic unsigned wait_every; /* each n-th call fails; 0: none */
static _Atomic unsigned wait_calls;

static int fail_waits(enum wr_fault_call call)
{
    unsigned every = atomic_load(&wait_every);

    if (call != WR_FAULT_EPOLL_WAIT || every == 0)
        return 0;
    return atomic_fetch_add(&wait_calls, 1) % every == 0 ? atomic_load(&wait_error) : 0;
}

static void expect_service(struct rig *rig, struct crowd *crowd, int64_t limit_ms)
{
    _Atomic unsigned before = atomic_load(&crowd->heard);
    int64_t begin = rig_now_ms();

    for (unsigned i = 0; i < crowd->count; i++)
        rig_peer_send(crowd->peers[i], "x", 1);
    cr_expect(RIG_UNTIL(atomic_load(&crowd->heard) == before + crowd->count, 5000),
              "%u of %u were heard", atomic_load(&crowd->heard) - before, crowd->count);
    cr_expect_leq(rig_now_ms() - begin, limit_ms);
    cr_expect_eq(rig_stats(rig).sources, crowd->count);
}

static void survive(int error)
{
    struct rig rig;
    static struct crowd crowd;

    wr_fault_hook = fail_waits;
    atomic_store(&wait_error, error);
    rig_open(&rig, 2);
    if (strcmp(weir_runtime_backend(rig.runtime, NULL), "epoll") != 0)
        cr_skip_test("the seam is epoll's\n");
    crowd.count = 0;
    atomic_store(&crowd.heard, 0);
    crowd_open(&rig, &crowd, 4);
    atomic_store(&wait_every, 3);
    for (unsigned i = 0; i < 5; i++)
        expect_service(&rig, &crowd, rig_patience(200));
    cr_expect_geq(rig_stats(&rig).poll_errors, 1);
    cr_expect(rig_logged(&rig, "waiting for events failed"));

    /* For ever: nothing is heard, and nothing spins. */
    atomic_store(&wait_every, 1);
    rig_peer_send(crowd.peers[0], "x", 1);
    rig_sleep_ms(50);
    uint64_t waits = rig_stats(&rig).waits;
    rig_sleep_ms(200);
    waits = rig_stats(&rig).waits - waits;
    cr_expect_leq(waits, 60, "%llu failed waits in 200 ms", (unsigned long long)waits);
    cr_expect_geq(waits, 1, "it has given up");
    atomic_store(&wait_every, 0);
    cr_expect(RIG_UNTIL(atomic_load(&crowd.heard) == 5 * 4 + 1, 2000));
    expect_service(&rig, &crowd, rig_patience(200));
    crowd_close(&rig, &crowd);
}

Test(promises, poller_survives_a_wait_that_fails_with_eagain, .timeout = 30)
{
    survive(EAGAIN);
}

Test(promises, poller_survives_a_wait_that_fails_with_enomem, .timeout = 30)
{
    survive(ENOMEM);
}

Test(promises, poller_survives_a_wait_that_fails_with_ebadf, .timeout = 30)
{
    survive(EBADF);
}
#endif

/* ---- D7: no allocation an event ------------------------------------------------------------ */

static _Atomic unsigned allocations;

static void *allocate(size_t size, void *context)
{
    (void)context;
    atomic_fetch_add(&allocations, 1);
    return malloc(size);
}

static void release(void *memory, size_t size, void *context)
{
    (void)size;
    (void)context;
    free(memory);
}

static void answer(weir_socket *socket, const weir_view *view, int status, void *context)
{
    hear(socket, view, status, context);
    if (status == 0 && view->length > 0)
        weir_write(socket, view->data, view->length);
}

static void ping(struct crowd *crowd, unsigned rounds)
{
    char byte;

    for (unsigned i = 0; i < rounds; i++) {
        rig_peer_send(crowd->peers[i % crowd->count], "x", 1);
        rig_peer_receive(crowd->peers[i % crowd->count], &byte, 1);
    }
}

/* Requests, answers, timers and posts on connections that stand. */
Test(promises, nothing_is_allocated_once_a_connection_stands, .timeout = 30)
{
    struct rig rig;
    static struct crowd crowd;
    weir_options options = WEIR_OPTIONS_INIT;
    const weir_allocator allocator = {.allocate = allocate, .release = release};
    struct rig_op op;
    char byte;

    options.pollers = 1;
    options.workers = options.workers_max = 2;
    options.allocator = &allocator;
    rig_open_with(&rig, &options);
    crowd.count = 8;
    for (unsigned i = 0; i < 8; i++) {
        crowd.peers[i] = rig_unix(&rig, NULL, &crowd.sockets[i]);
        cr_assert_eq(weir_read_start(crowd.sockets[i], answer, &crowd), 0);
    }
    atomic_store(&crowd.meet, 2); /* both workers have had a turn, and hence their buffers */
    rig_peer_send(crowd.peers[0], "x", 1);
    rig_peer_send(crowd.peers[1], "x", 1);
    rig_peer_receive(crowd.peers[0], &byte, 1);
    rig_peer_receive(crowd.peers[1], &byte, 1);
    atomic_store(&crowd.meet, 0);
    ping(&crowd, 1000);
    unsigned before = atomic_load(&allocations);
    ping(&crowd, 1000);
    cr_assert_eq(weir_read_stop(crowd.sockets[0]), 0);
    for (unsigned i = 0; i < 100; i++) {
        rig_op_init(&op);
        cr_assert_eq(weir_recv(crowd.sockets[0], &op.op, &byte, 1, weir_after_ms(5000)),
                     -EINPROGRESS);
        rig_peer_send(crowd.peers[0], "x", 1);
        cr_assert(rig_op_await(&op, 5000));
    }
    cr_expect_eq(atomic_load(&allocations) - before, 0);
    crowd_close(&rig, &crowd);
}

/* ---- P3: idle ------------------------------------------------------------------------------ */

/* Times the threads of the process but this one have gone to sleep or were woken. */
static uint64_t switches(void)
{
    DIR *tasks = opendir("/proc/self/task");
    uint64_t sum = 0;

    cr_assert_not_null(tasks);
    for (const struct dirent *task; (task = readdir(tasks));) {
        char path[300], line[256];
        unsigned long long count;
        if (task->d_name[0] == '.' || atoi(task->d_name) == (int)gettid())
            continue;
        snprintf(path, sizeof path, "/proc/self/task/%s/status", task->d_name);
        FILE *status = fopen(path, "re");
        bool ours = false;
        while (status && fgets(line, sizeof line, status)) {
            ours = ours || strncmp(line, "Name:\tweir", 10) == 0;
            if (ours && sscanf(line, "voluntary_ctxt_switches: %llu", &count) == 1)
                sum += count;
        }
        if (status)
            fclose(status);
    }
    closedir(tasks);
    return sum;
}

static void block_shortly(weir_work *work, void *context)
{
    (void)work;
    (void)context;
    rig_sleep_ms(15);
}

Test(promises, idle_runtime_neither_wakes_nor_calls_the_system, .timeout = 30)
{
    struct rig rig;
    static struct crowd crowd;
    weir_options options = WEIR_OPTIONS_INIT;
    weir_work works[8];

    options.workers = 2;
    rig_open_with(&rig, &options);
    crowd_open(&rig, &crowd, 10);
    make_ready(&rig, &crowd); /* has been busy, also with blocks that the detector saw */
    for (unsigned i = 0; i < 8; i++) {
        weir_work_init(&works[i], block_shortly, NULL);
        cr_assert_eq(weir_post(rig.runtime, &works[i]), 0);
    }
    cr_assert(RIG_UNTIL(rig_stats(&rig).items_run >= 8, 5000));
    rig_sleep_ms(300); /* under the lease: until the last look for callbacks that do not return */
    uint64_t waits = rig_stats(&rig).waits, before = switches();
    rig_sleep_ms(500);
    cr_expect_eq(rig_stats(&rig).waits - waits, 0);
    uint64_t after = switches();
    cr_expect_eq(after - before, 0, "%llu wake-ups in half a second of nothing",
                 (unsigned long long)(after - before));
    crowd_close(&rig, &crowd);
}
