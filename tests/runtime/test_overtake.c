/* test_overtake.c: what I/O brings does not wait behind jobs that were posted and sleep. */
#include "support/rig.h"

#include <errno.h>
#include <unistd.h>

#define JOBS 50

/* One of many: they sleep, without saying so, for some time or until the reader is done. */
static struct {
    weir_work works[JOBS];
    _Atomic unsigned begun, ended;
    int sleep_ms;           /* 0: until `reader_done` */
    int peer;               /* the first to begin writes there what the reader waits for */
    _Atomic unsigned reader_done;
    unsigned begun_before;  /* how many had begun when the reader was done */
} crowd;

static void sleep_or_wait(weir_work *work, void *context)
{
    (void)work, (void)context;
    if (atomic_fetch_add(&crowd.begun, 1) == 0)
        rig_peer_send(crowd.peer, "x", 1);
    if (crowd.sleep_ms > 0)
        rig_sleep_ms(crowd.sleep_ms);
    while (crowd.sleep_ms == 0 && !atomic_load(&crowd.reader_done))
        rig_sleep_ms(1);
    atomic_fetch_add(&crowd.ended, 1);
}

static void on_read(weir_op *op, ssize_t result, void *context)
{
    (void)op, (void)context;
    cr_assert_eq(result, 1);
    crowd.begun_before = atomic_load(&crowd.begun);
    atomic_store(&crowd.reader_done, 1);
}

/* A read is pending; the jobs are posted, and the first to run brings what is read. */
static void read_beside_jobs(unsigned workers_max)
{
    struct rig rig;
    weir_options options = WEIR_OPTIONS_INIT;
    weir_socket *socket;
    weir_op op;
    char byte;

    options.workers = 2;
    options.workers_max = workers_max;
    rig_open_with(&rig, &options);
    crowd.peer = rig_unix(&rig, NULL, &socket);
    weir_op_init(&op, on_read, NULL);
    cr_assert_eq(weir_recv(socket, &op, &byte, 1, WEIR_NEVER), -EINPROGRESS);
    for (unsigned i = 0; i < JOBS; i++) {
        weir_work_init(&crowd.works[i], sleep_or_wait, NULL);
        cr_assert_eq(weir_post(rig.runtime, &crowd.works[i]), 0);
    }
    cr_expect(RIG_UNTIL(atomic_load(&crowd.reader_done) == 1, 10000), "the read is not served");
    atomic_store(&crowd.reader_done, 1);
    cr_assert(RIG_UNTIL(atomic_load(&crowd.ended) == JOBS, 20000));
    close(crowd.peer);
    rig_close(&rig);
}

/* (W14) */
Test(overtake, read_is_served_by_the_first_worker_that_is_free, .timeout = 60)
{
    crowd.sleep_ms = 20;
    read_beside_jobs(2);
    cr_expect_leq(crowd.begun_before, JOBS / 2, "%u of %u jobs came first", crowd.begun_before,
                  JOBS);
}

Test(overtake, read_is_served_while_all_workers_sleep_in_jobs, .timeout = 60)
{
    read_beside_jobs(10);
    cr_expect_leq(crowd.begun_before, 10);
}
