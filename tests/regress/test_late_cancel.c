/* A cancel that comes late: the operation has ended, has been started anew elsewhere, its socket
 * has been closed and the slot belongs to another. Legal as long as the operation's memory is
 * there; it read the operation's fields without any order, and took a lock of whoever lived in the
 * slot. */
#include <errno.h>
#include <unistd.h>

#include "support/rig.h"

struct canceller {
    pthread_t thread;
    weir_op *op;
    _Atomic bool leave;
    unsigned hits;
};

static void *cancel_main(void *argument)
{
    struct canceller *canceller = argument;

    while (!atomic_load(&canceller->leave)) {
        int r = weir_cancel(canceller->op);
        cr_assert(r == 0 || r == -EALREADY, "%d", r);
        canceller->hits += r == 0;
        sched_yield();
    }
    return NULL;
}

struct round {
    weir_op op;
    _Atomic unsigned ended;
    _Atomic int result;
};

static void on_end(weir_op *op, ssize_t result, void *context)
{
    struct round *round = context;

    (void)op;
    atomic_store(&round->result, (int)result);
    atomic_fetch_add(&round->ended, 1);
}

/* True: it ended by itself. */
static bool receive_once(struct round *round, weir_socket *socket, int peer, char *byte)
{
    unsigned before = atomic_load(&round->ended);
    ssize_t r = weir_recv(socket, &round->op, byte, 1, WEIR_NEVER);

    cr_assert_eq(r, -EINPROGRESS);
    rig_peer_send(peer, "x", 1);
    cr_assert(RIG_UNTIL(atomic_load(&round->ended) > before, 5000), "never ended");
    cr_assert_eq(atomic_load(&round->ended), before + 1);
    int result = atomic_load(&round->result);
    cr_assert(result == 1 || result == -ECANCELED, "%d", result);
    return result == 1;
}

Test(late_cancel, finds_only_the_operation_that_is_pending, .timeout = 30)
{
    static char big[1 << 20];
    struct rig rig;
    struct round round = {.ended = 0};
    struct canceller canceller = {.op = &round.op};
    weir_options options = WEIR_OPTIONS_INIT;
    char byte;

    options.pollers = 1;
    options.workers = options.workers_max = 2;
    options.sources_max = 64; /* slots come round soon */
    rig_open_with(&rig, &options);
    weir_op_init(&round.op, on_end, &round);
    cr_assert_eq(pthread_create(&canceller.thread, NULL, cancel_main, &canceller), 0);
    for (unsigned i = 0; i < 400; i++) {
        weir_socket *socket;
        int peer = rig_unix(&rig, NULL, &socket);
        receive_once(&round, socket, peer, &byte);
        unsigned before = atomic_load(&round.ended);
        ssize_t r = weir_send(socket, &round.op, big, sizeof big, WEIR_NEVER);
        cr_assert_eq(r, -EINPROGRESS, "the other direction");
        cr_assert_eq(weir_reset(socket), 0);
        cr_assert(RIG_UNTIL(atomic_load(&round.ended) == before + 1, 5000));
        cr_assert_eq(atomic_load(&round.result), -ECANCELED);
        close(peer);
    }
    atomic_store(&canceller.leave, true);
    pthread_join(canceller.thread, NULL);
    rig_close(&rig);
}
