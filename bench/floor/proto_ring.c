/* proto_ring.c: one poller for several workers, who keep the connections between them: what a ring
 * costs under a polling lease, beside epoll and beside a poller with a thread of its own. (A ring a
 * thread, where every callback runs on the ring's owner, is floor_uring.)
 *
 *     proto_ring [-e epoll|poll|recv] [-w lease|owner] [-f plain|coop|defer] [-n buffers]
 *                [-m http|echo] [-t workers] [-b bytes] port
 *
 * -e, what brings events: an epoll set, multishot polls of a ring, or multishot receives into a
 * ring of buffers. -w, who waits for them: whichever worker finds nothing to do (`lease`), or one
 * more thread. -f, when the kernel completes; `defer` needs an owner. Workers send by calls: only
 * the holder of the lease may touch the ring, and a call of its own to submit costs what send does.
 *
 * Protocol. The lease is a word: 0 free, 1 held. The holder alone touches the ring (or the set),
 * the starved and the dropped; it keeps the first connection that needs a turn, queues the others,
 * gives the lease back, and only then runs its turn. A guard looks every
 * millisecond and wakes a sleeper when all who are awake are stuck in their turns.
 *   word of a connection: IDLE nobody has it | RUNNING a worker has it, or it is queued, and all
 *   that came is taken | EDGE something came | n >= 0 the newest of a chain of filled buffers
 *   note  IDLE -> EDGE|n: to be queued, by the holder; any other -> EDGE|n: its worker will see it
 *   take  any -> RUNNING          acquire: all that was noted, also by holders before
 *   leave RUNNING -> IDLE         release; fails when something was noted meanwhile: take again
 * A worker that is done with a connection does not leave: it pushes it to the closers, and the
 * holder frees it once the kernel has nothing armed. So a connection is queued at most once, and
 * the queue never overflows. */
#include <errno.h>
#include <liburing.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "floor/floor.h"
#include "floor/queue.h"

enum {
    EVENTS_MAX = 256,
    ENTRIES = 1024,
    COMPLETIONS = 8192,
    BUFFERS_MAX = 32768,
};

enum { IDLE = -1, RUNNING = -2, EDGE = -3, NONE = -4 };
enum engine { EPOLL, POLL, RECV };
enum kind { IGNORED, ACCEPTED, BELL, CONNECTION, KINDS = 16 };

struct connection {
    int fd;
    unsigned char matched;          /* its worker's */
    _Atomic int word;
    atomic_bool ends;               /* the peer has sent all; set before a note */
    bool armed, dropped, starved;   /* the holder's */
    struct connection *next_starved;
    struct connection *next_closer; /* its worker's, until the holder has taken the closers */
};

static struct {
    enum engine engine;
    bool owner;
    unsigned setup, buffers;
} options = { .engine = RECV, .buffers = 512, .setup = IORING_SETUP_COOP_TASKRUN };

static _Alignas(64) atomic_uint lease;

static struct {
    int epoll, listener, bell;
    struct io_uring ring;
    unsigned connections;
    struct connection *starved;
    _Atomic(struct connection *) closers;
    struct io_uring_buf_ring *shared;
    char *memory;
    int after[BUFFERS_MAX];
    size_t lengths[BUFFERS_MAX];
    pthread_mutex_t returns;        /* buffers come back from any worker */
    atomic_uint out;                /* buffers that are not the kernel's */
    atomic_bool starving, fed;
} poller = { .returns = PTHREAD_MUTEX_INITIALIZER };

/* ---- what the holder does ------------------------------------------------------------------ */

static struct io_uring_sqe *entry(void)
{
    struct io_uring_sqe *sqe;
    while (!(sqe = io_uring_get_sqe(&poller.ring))) {
        int r = io_uring_submit(&poller.ring);
        if (r < 0 && r != -EINTR && r != -EAGAIN && r != -EBUSY)
            floor_die("io_uring_submit", r);
    }
    return sqe;
}

static void name_entry(struct io_uring_sqe *sqe, void *what, enum kind kind)
{
    io_uring_sqe_set_data64(sqe, (uintptr_t)what | kind);
}

static void arm(struct connection *c)
{
    if (options.engine == EPOLL) {
        struct epoll_event event = { .events = EPOLLIN | EPOLLRDHUP | EPOLLET, .data.ptr = c };
        if (epoll_ctl(poller.epoll, EPOLL_CTL_ADD, c->fd, &event) != 0)
            floor_die("epoll_ctl", errno);
        return;
    }
    struct io_uring_sqe *sqe = entry();
    if (options.engine == POLL) {
        io_uring_prep_poll_multishot(sqe, c->fd, POLLIN | POLLRDHUP);
    } else {
        io_uring_prep_recv_multishot(sqe, c->fd, NULL, 0, 0);
        sqe->flags |= IOSQE_BUFFER_SELECT;
        sqe->buf_group = 0;
    }
    name_entry(sqe, c, CONNECTION);
    c->armed = true;
}

static void arm_own(int fd, enum kind kind)
{
    struct io_uring_sqe *sqe = entry();
    if (kind == ACCEPTED)
        io_uring_prep_multishot_accept(sqe, fd, NULL, NULL, SOCK_CLOEXEC);
    else
        io_uring_prep_poll_multishot(sqe, fd, POLLIN);
    name_entry(sqe, NULL, kind);
}

static void adopt(int fd)
{
    int on = 1;
    struct connection *c = poller.connections < QUEUE_MAX ? aligned_alloc(64, 64) : NULL;

    _Static_assert(sizeof *c <= 64, "a connection is one line");
    if (!c) {
        close(fd);
        return;
    }
    memset(c, 0, sizeof *c);
    c->fd = fd;
    atomic_init(&c->word, IDLE);
    poller.connections++;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    arm(c);
}

static void forget(struct connection *c)
{
    close(c->fd);
    free(c);
    poller.connections--;
}

static void feed_starved(void)
{
    struct connection *c = poller.starved;

    poller.starved = NULL;
    atomic_store_explicit(&poller.starving, false, memory_order_relaxed);
    atomic_store_explicit(&poller.fed, false, memory_order_relaxed);
    while (c) {
        struct connection *next = c->next_starved;
        c->starved = false;
        if (c->dropped)
            forget(c);
        else
            arm(c);
        c = next;
    }
}

/* Tells the connection that something came: an edge, or a filled buffer. True: it needs a turn. */
static bool note(struct connection *c, int buffer)
{
    int old = atomic_load_explicit(&c->word, memory_order_relaxed), new;
    do {
        if (buffer != NONE)
            poller.after[buffer] = old >= 0 ? old : NONE;
        new = buffer != NONE ? buffer : old >= 0 ? old : EDGE;
        /* Release: pairs with the acquire in take(), for `after`, `lengths` and `ends`. */
    } while (!atomic_compare_exchange_weak_explicit(&c->word, &old, new, memory_order_release,
                                                    memory_order_relaxed));
    return old == IDLE;
}

static void give_back(int buffer)
{
    /* Pairs with the ones in starve() (who comes second sees the other) and in completed() (whoever
     * gets the buffer next sees that we are done with it). */
    atomic_fetch_sub_explicit(&poller.out, 1, memory_order_acq_rel);
    pthread_mutex_lock(&poller.returns);
    io_uring_buf_ring_add(poller.shared, poller.memory + (size_t)buffer * floor_options.buffer_size,
                          (unsigned)floor_options.buffer_size, (unsigned short)buffer,
                          io_uring_buf_ring_mask(options.buffers), 0);
    io_uring_buf_ring_advance(poller.shared, 1);
    pthread_mutex_unlock(&poller.returns);
    if (atomic_load_explicit(&poller.starving, memory_order_relaxed)) {
        atomic_store_explicit(&poller.fed, true, memory_order_relaxed);
        (void)eventfd_write(poller.bell, 1);
    }
}

/* No buffer was left for it. It is armed again when one has come back, maybe already. */
static void starve(struct connection *c)
{
    c->starved = true;
    c->next_starved = poller.starved;
    poller.starved = c;
    atomic_store_explicit(&poller.starving, true, memory_order_relaxed);
    /* Pairs with the one in give_back(). */
    if (atomic_fetch_add_explicit(&poller.out, 0, memory_order_acq_rel) < options.buffers)
        atomic_store_explicit(&poller.fed, true, memory_order_relaxed);
}

/* Those with whom the workers are done: freed once nothing is armed. */
static void drop_closers(void)
{
    /* Acquire: pairs with the release in finish(); the connection is the holder's from here. */
    struct connection *c = atomic_load_explicit(&poller.closers, memory_order_relaxed)
        ? atomic_exchange_explicit(&poller.closers, NULL, memory_order_acquire) : NULL;

    while (c) {
        struct connection *next = c->next_closer;
        int left = atomic_load_explicit(&c->word, memory_order_relaxed);
        c->dropped = true;
        for (; left >= 0; left = poller.after[left])
            give_back(left);        /* noted after its worker was done with it */
        if (!c->armed && !c->starved) {
            forget(c);
        } else if (options.engine == POLL) {
            struct io_uring_sqe *sqe = entry();
            io_uring_prep_cancel64(sqe, (uintptr_t)c | CONNECTION, 0);
            name_entry(sqe, NULL, IGNORED);
        }
        c = next;
    }
}

/* A completion of a connection. True: it needs a turn. */
static bool completed(struct connection *c, const struct io_uring_cqe *cqe)
{
    int buffer = NONE;

    if (!(cqe->flags & IORING_CQE_F_MORE))
        c->armed = false;
    if (cqe->flags & IORING_CQE_F_BUFFER)
        buffer = (int)(cqe->flags >> IORING_CQE_BUFFER_SHIFT);
    if (buffer != NONE)     /* Pairs with the one in give_back(). */
        atomic_fetch_add_explicit(&poller.out, 1, memory_order_acq_rel);
    if (c->dropped) {
        if (buffer != NONE)
            give_back(buffer);
        if (!c->armed)
            forget(c);
        return false;
    }
    bool ends = options.engine == RECV
        ? cqe->res <= 0 && cqe->res != -ENOBUFS && cqe->res != -EINTR && cqe->res != -EAGAIN
        : cqe->res < 0 || (cqe->res & (POLLRDHUP | POLLHUP | POLLERR));
    if (ends)   /* Release: pairs with the acquire in turn(); all data was noted before. */
        atomic_store_explicit(&c->ends, true, memory_order_release);
    if (buffer != NONE)
        poller.lengths[buffer] = cqe->res > 0 ? (size_t)cqe->res : 0;
    bool turn = (buffer != NONE || ends || options.engine == POLL) && note(c, buffer);
    if (!c->armed && cqe->res == -ENOBUFS)
        starve(c);
    else if (!c->armed && !ends)
        arm(c);
    return turn;
}

static struct connection *schedule(struct connection *first, struct connection *c)
{
    if (!first && !options.owner)
        return c;
    queue_push(c);
    return first;
}

static struct connection *harvest_epoll(struct floor_counts *counts)
{
    struct epoll_event events[EVENTS_MAX];
    struct connection *first = NULL;
    int count = epoll_wait(poller.epoll, events, EVENTS_MAX, -1);

    floor_count(&counts->events, count > 0 ? (unsigned)count : 0);
    for (int i = 0; i < count; i++) {
        struct connection *c = events[i].data.ptr;
        eventfd_t value;
        if (events[i].data.ptr == &poller.bell) {
            (void)eventfd_read(poller.bell, &value);
            continue;
        }
        if (!c) {
            for (int fd; (fd = accept4(poller.listener, NULL, NULL, SOCK_CLOEXEC)) >= 0;)
                adopt(fd);
            continue;
        }
        if (events[i].events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR))
            atomic_store_explicit(&c->ends, true, memory_order_relaxed);
        if (note(c, NONE))
            first = schedule(first, c);
    }
    return first;
}

static void handle_own(const struct io_uring_cqe *cqe)
{
    enum kind kind = (enum kind)(cqe->user_data % KINDS);
    eventfd_t value;

    if (kind == ACCEPTED && cqe->res >= 0)
        adopt(cqe->res);
    if (kind == BELL)
        (void)eventfd_read(poller.bell, &value);
    if (kind != IGNORED && !(cqe->flags & IORING_CQE_F_MORE))
        arm_own(kind == ACCEPTED ? poller.listener : poller.bell, kind);
}

static struct connection *harvest_ring(struct floor_counts *counts)
{
    struct connection *first = NULL;
    struct io_uring_cqe *cqe;
    unsigned head, count = 0;

    int r = io_uring_submit_and_wait(&poller.ring, 1);
    if (r < 0 && r != -EINTR && r != -EAGAIN && r != -EBUSY)
        floor_die("io_uring_submit_and_wait", r);
    io_uring_for_each_cqe(&poller.ring, head, cqe) {
        struct connection *c = (struct connection *)(uintptr_t)(cqe->user_data / KINDS * KINDS);
        count++;
        if (!c)
            handle_own(cqe);
        else if (completed(c, cqe))
            first = schedule(first, c);
    }
    io_uring_cq_advance(&poller.ring, count);
    floor_count(&counts->events, count);
    return first;
}

/* Waits for events, queues who needs a turn; returns one of them, unless the owner calls. */
static struct connection *harvest(struct floor_counts *counts)
{
    drop_closers();
    if (poller.starved && atomic_load_explicit(&poller.fed, memory_order_relaxed))
        feed_starved();
    floor_count(&counts->waits, 1);
    return options.engine == EPOLL ? harvest_epoll(counts) : harvest_ring(counts);
}

/* ---- what workers do ----------------------------------------------------------------------- */

static bool answer(struct connection *c, const char *data, size_t length)
{
    floor_stick(data);
    if (floor_options.echo)
        return floor_send_all(c->fd, data, length);
    return floor_send_answers(c->fd, bench_count_heads(&c->matched, data, length));
}

/* False: the connection is over. */
static bool read_all(struct connection *c, char *scratch)
{
    for (;;) {
        ssize_t got = recv(c->fd, scratch, floor_options.buffer_size, MSG_DONTWAIT);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0 && errno == EAGAIN)
            return true;
        if (got <= 0 || !answer(c, scratch, (size_t)got))
            return false;
        if ((size_t)got < floor_options.buffer_size &&
            !atomic_load_explicit(&c->ends, memory_order_relaxed))
            return true;
    }
}

/* Answers a chain of buffers, oldest first. False: the connection is over. */
static bool answer_chain(struct connection *c, int newest)
{
    int oldest = NONE;
    bool good = true;

    while (newest >= 0) {
        int next = poller.after[newest];
        poller.after[newest] = oldest;
        oldest = newest;
        newest = next;
    }
    while (oldest >= 0) {
        int next = poller.after[oldest];
        char *data = poller.memory + (size_t)oldest * floor_options.buffer_size;
        good = good && answer(c, data, poller.lengths[oldest]);
        give_back(oldest);
        oldest = next;
    }
    return good;
}

/* What the kernel still holds of it ends by the shutdown, or by the holder's cancel. */
static void finish(struct connection *c)
{
    if (options.engine == EPOLL)
        epoll_ctl(poller.epoll, EPOLL_CTL_DEL, c->fd, NULL);
    shutdown(c->fd, SHUT_RDWR);
    struct connection *old = atomic_load_explicit(&poller.closers, memory_order_relaxed);
    do {
        c->next_closer = old;
        /* Release: pairs with the acquire in drop_closers(). */
    } while (!atomic_compare_exchange_weak_explicit(&poller.closers, &old, c, memory_order_release,
                                                    memory_order_relaxed));
    (void)eventfd_write(poller.bell, 1);        /* the holder may sleep: it is to free it now */
}

static void turn(struct connection *c, char *scratch)
{
    int expected;
    do {
        /* Acquire: pairs with the release in completed(). Looked at before taking, lest data that
         * is noted between the two be left behind. */
        bool ends = atomic_load_explicit(&c->ends, memory_order_acquire);
        /* Take. Acquire: pairs with the release in note(). */
        int top = atomic_exchange_explicit(&c->word, RUNNING, memory_order_acquire);
        bool good = options.engine == RECV ? answer_chain(c, top) && !ends : read_all(c, scratch);
        if (!good) {
            finish(c);
            return;
        }
        expected = RUNNING;
        /* Leave. Release: pairs with the next worker's acquire above; the note between continues
         * the release sequence. */
    } while (!atomic_compare_exchange_strong_explicit(&c->word, &expected, IDLE,
                                                      memory_order_release, memory_order_relaxed));
}

static bool lease_is_free(void)
{
    return !options.owner && !atomic_load_explicit(&lease, memory_order_relaxed);
}

static bool take_lease(void)
{
    unsigned expected = 0;
    /* Acquire: pairs with the release in run_worker(): what the holder before left is ours. */
    return lease_is_free() &&
           atomic_compare_exchange_strong_explicit(&lease, &expected, 1,
                                                   memory_order_acquire, memory_order_relaxed);
}

/* The guard's: between two looks nobody began to poll, and nobody waits in the kernel. */
static bool nobody_polls(void)
{
    static unsigned long long last;
    unsigned long long now = 0;

    for (unsigned i = 0; i < floor_options.threads; i++)
        now += atomic_load_explicit(&floor_counts[i].waits, memory_order_relaxed);
    bool none = now == last && lease_is_free();
    last = now;
    return none;
}

static void *run_worker(void *argument)
{
    struct floor_counts *counts = &floor_counts[(uintptr_t)argument];
    struct sleeper sleeper = { .next = NULL };
    char *scratch = malloc(floor_options.buffer_size);

    if (!scratch)
        floor_die("malloc", ENOMEM);
    for (;;) {
        struct connection *c = queue_pop();
        if (!c && take_lease()) {
            c = harvest(counts);
            /* Release: pairs with the acquire in take_lease(). */
            atomic_store_explicit(&lease, 0, memory_order_release);
        } else if (!c) {
            park(&sleeper, lease_is_free);
            continue;
        }
        if (!queue_is_empty())
            wake_one();
        if (c) {
            floor_count(&counts->receives, 1);
            turn(c, scratch);
        }
    }
    return NULL;
}

/* ---- setting up ---------------------------------------------------------------------------- */

static void set_up_ring(void)
{
    struct io_uring_params params = {
        .flags = options.setup | IORING_SETUP_CQSIZE | IORING_SETUP_CLAMP,
        .cq_entries = COMPLETIONS,
    };
    struct io_uring_buf_reg reg = { .ring_entries = options.buffers };

    int r = io_uring_queue_init_params(ENTRIES, &poller.ring, &params);
    if (r < 0)
        floor_die("io_uring_queue_init_params", r);
    poller.listener = floor_listen(0);
    arm_own(poller.listener, ACCEPTED);
    arm_own(poller.bell, BELL);
    if (options.engine != RECV)
        return;
    poller.memory = floor_map(options.buffers * floor_options.buffer_size);
    poller.shared = floor_map(options.buffers * sizeof(struct io_uring_buf));
    reg.ring_addr = (uintptr_t)poller.shared;
    r = io_uring_register_buf_ring(&poller.ring, &reg, 0);
    if (r < 0)
        floor_die("io_uring_register_buf_ring", r);
    io_uring_buf_ring_init(poller.shared);
    atomic_init(&poller.out, options.buffers);
    for (unsigned i = 0; i < options.buffers; i++)
        give_back((int)i);
}

static void set_up(void)
{
    struct epoll_event event = { .events = EPOLLIN };
    struct epoll_event bell = { .events = EPOLLIN, .data.ptr = &poller.bell };

    poller.bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (options.engine != EPOLL) {
        set_up_ring();
        return;
    }
    poller.epoll = epoll_create1(EPOLL_CLOEXEC);
    poller.listener = floor_listen(SOCK_NONBLOCK);
    if (poller.epoll < 0 || epoll_ctl(poller.epoll, EPOLL_CTL_ADD, poller.bell, &bell) != 0 ||
        epoll_ctl(poller.epoll, EPOLL_CTL_ADD, poller.listener, &event) != 0)
        floor_die("epoll", errno);
}

/* With an owner the last thread is the poller: a ring belongs to the thread that makes it. */
static void *run(void *argument)
{
    uintptr_t index = (uintptr_t)argument;

    if (!options.owner)
        return run_worker(argument);
    if (index + 1 < floor_options.threads)
        return run_worker(argument);
    set_up();
    for (;;) {
        harvest(&floor_counts[index]);
        if (!queue_is_empty())
            wake_one();
    }
    return NULL;
}

static bool take(int option, const char *value)
{
    unsigned long number = 0;
    bool good;

    switch (option) {
    case 'e':
        options.engine = !strcmp(value, "epoll") ? EPOLL : !strcmp(value, "poll") ? POLL : RECV;
        return options.engine != RECV || !strcmp(value, "recv");
    case 'w':
        options.owner = !strcmp(value, "owner");
        return options.owner || !strcmp(value, "lease");
    case 'n':
        good = floor_number(value, BUFFERS_MAX, &number) && (number & (number - 1)) == 0;
        options.buffers = (unsigned)number;
        return good;
    default:
        options.setup = !strcmp(value, "coop")    ? IORING_SETUP_COOP_TASKRUN
                        : !strcmp(value, "defer") ? IORING_SETUP_SINGLE_ISSUER |
                                                        IORING_SETUP_DEFER_TASKRUN
                                                  : 0;
        return options.setup || !strcmp(value, "plain");
    }
}

int main(int argc, char **argv)
{
    floor_options.buffer_size = 4096;
    floor_arguments(argc, argv, "e:w:f:n:", take,
                    " [-e epoll|poll|recv] [-w lease|owner] [-f plain|coop|defer] [-n buffers]");
    if (options.owner) {
        floor_options.threads++;
    } else {
        set_up();
        start_guard(nobody_polls);
    }
    floor_run(run);
}
