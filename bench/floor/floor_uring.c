/* floor_uring.c: what a ring costs, way by way. One ring a thread, nothing shared (see floor.h).
 *
 *     floor_uring [-r multishot|single|poll|provide] [-s ring|call] [-f defer|coop|plain]
 *                 [-n buffers] [-m http|echo] [-t threads] [-a robin|reuseport] [-b bytes] port
 *
 * -r, how bytes are received: `single` asks for one receive at a time, which the kernel polls by
 * itself (a poll armed and disarmed each time); `poll` arms one multishot poll a connection and
 * receives by system calls; `multishot` arms one receive a connection, which takes its buffers
 * from a ring of them shared with the kernel; `provide` is `single` with buffers given back one
 * by one by PROVIDE_BUFFERS entries, as servers did before there were rings of buffers.
 * -s, how answers leave: as entries in the submission of the next wait, or by system calls.
 * -f, when the kernel completes: at any time, by interrupting us (`plain`); when we enter it
 * (`coop`); when we wait (`defer`). The latter two are SINGLE_ISSUER.
 *
 * A connection is freed when the kernel holds nothing of it: neither a receive nor a send. Its
 * descriptor is closed only then, so that no entry ever meets a stranger under its number. One
 * send a connection is out at a time: what leaves is in order, whatever is sent short. */
#include <errno.h>
#include <liburing.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "floor/floor.h"

enum {
    ENTRIES = 1024,
    COMPLETIONS = 8192,
    BUFFERS_MAX = 32768,
    NO_BUFFER = -1,
};

/* The low bits of user_data; the others are the connection's address, or an accepted descriptor. */
enum kind { IGNORED, ACCEPTED, ADOPTED, RECEIVED, POLLED, SENT, KINDS = 16 };

enum way { SINGLE, POLL, MULTISHOT, PROVIDE };

static struct {
    enum way way;
    bool send_calls;
    unsigned setup;
    unsigned buffers;
} options = {
    .way = MULTISHOT,
    .setup = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN,
    .buffers = 512,
};

struct connection {
    int fd;
    unsigned char matched;
    bool receiving;             /* a receive or a poll is armed */
    bool sending;               /* a send is out */
    bool ended;                 /* the peer has sent all: dropped when all is answered */
    bool closing;
    bool starved;               /* on the loop's list, until buffers come back */
    bool ready;                 /* an edge came while the own buffer was being sent */
    char *own;                  /* a buffer of its own, where buffers are not shared */
    struct connection *next;    /* starved */
    /* What is to be sent: http: so many bytes of answers; echo: the own buffer, or a chain of
     * shared ones. `at` bytes of the answer, or of the first buffer, have left. */
    size_t owed, at;
    int first, last;
};

struct loop {
    struct io_uring ring;
    unsigned index, turn;
    int listener;
    struct io_uring_buf_ring *shared;
    char *memory;
    int *after;                 /* a buffer's follower in its chain */
    size_t *lengths;            /* bytes in a buffer */
    unsigned given_back;        /* not yet published to the kernel */
    struct connection *starved;
    char *scratch;              /* what system calls receive into */
    struct floor_counts *counts;
};

static int rings[FLOOR_THREADS_MAX];
static pthread_barrier_t all_set_up;

static struct io_uring_sqe *entry(struct loop *loop)
{
    struct io_uring_sqe *free_entry = io_uring_get_sqe(&loop->ring);
    while (!free_entry) {
        int r = io_uring_submit(&loop->ring);
        if (r < 0 && r != -EINTR && r != -EAGAIN && r != -EBUSY)
            floor_die("io_uring_submit", r);
        free_entry = io_uring_get_sqe(&loop->ring);
    }
    return free_entry;
}

/* After preparing it: some versions of liburing clear the name then. */
static void name_entry(struct io_uring_sqe *sqe, void *what, enum kind kind)
{
    io_uring_sqe_set_data64(sqe, (uintptr_t)what | kind);
}

static bool own_buffers(void)
{
    return options.way == SINGLE || (options.way == POLL && !options.send_calls);
}

static char *buffer(struct loop *loop, int number)
{
    return loop->memory + (size_t)number * floor_options.buffer_size;
}

/* ---- buffers ------------------------------------------------------------------------------- */

static void give_back(struct loop *loop, int number)
{
    if (number == NO_BUFFER)
        return;
    loop->given_back++;
    floor_count(&loop->counts->armed, 1);
    if (options.way == PROVIDE) {
        struct io_uring_sqe *sqe = entry(loop);
        io_uring_prep_provide_buffers(sqe, buffer(loop, number), (int)floor_options.buffer_size, 1,
                                      0, number);
        name_entry(sqe, NULL, IGNORED);
        return;
    }
    io_uring_buf_ring_add(loop->shared, buffer(loop, number), (unsigned)floor_options.buffer_size,
                          (unsigned short)number, io_uring_buf_ring_mask(options.buffers),
                          (int)loop->given_back - 1);
}

static void publish_buffers(struct loop *loop)
{
    if (loop->shared && loop->given_back > 0)
        io_uring_buf_ring_advance(loop->shared, (int)loop->given_back);
    loop->given_back = 0;
}

static void set_up_buffers(struct loop *loop)
{
    unsigned count = options.buffers;

    loop->memory = floor_map(count * floor_options.buffer_size);
    loop->after = calloc(count, sizeof *loop->after);
    loop->lengths = calloc(count, sizeof *loop->lengths);
    if (!loop->after || !loop->lengths)
        floor_die("calloc", ENOMEM);
    if (options.way == MULTISHOT) {
        struct io_uring_buf_reg reg = { .ring_entries = count };
        loop->shared = floor_map(count * sizeof(struct io_uring_buf));
        reg.ring_addr = (uintptr_t)loop->shared;
        int r = io_uring_register_buf_ring(&loop->ring, &reg, 0);
        if (r < 0)
            floor_die("io_uring_register_buf_ring", r);
        io_uring_buf_ring_init(loop->shared);
    }
    for (unsigned i = 0; i < count; i++)
        give_back(loop, (int)i);
    publish_buffers(loop);
}

/* ---- a connection -------------------------------------------------------------------------- */

static void forget_starved(struct loop *loop, struct connection *c)
{
    for (struct connection **at = &loop->starved; *at; at = &(*at)->next) {
        if (*at == c) {
            *at = c->next;
            break;
        }
    }
    c->starved = false;
}

static void free_if_over(struct loop *loop, struct connection *c)
{
    if (!c->closing || c->receiving || c->sending)
        return;
    for (int number = c->first; number != NO_BUFFER; number = loop->after[number])
        give_back(loop, number);
    if (c->starved)
        forget_starved(loop, c);
    close(c->fd);
    free(c->own);
    free(c);
}

/* The shutdown ends a receive and a send; a poll has to be cancelled. */
static void drop(struct loop *loop, struct connection *c)
{
    if (c->closing)
        return;
    c->closing = true;
    shutdown(c->fd, SHUT_RDWR);
    if (c->receiving) {
        struct io_uring_sqe *sqe = entry(loop);
        io_uring_prep_cancel64(sqe, (uintptr_t)c | (options.way == POLL ? POLLED : RECEIVED), 0);
        name_entry(sqe, NULL, IGNORED);
    }
}

/* The peer has sent its last. What it is still owed leaves first. */
static void end(struct loop *loop, struct connection *c)
{
    c->ended = true;
    if (!c->sending)
        drop(loop, c);
}

static bool own_buffer_is_out(const struct connection *c)
{
    return c->own && floor_options.echo && c->sending;
}

static void arm(struct loop *loop, struct connection *c)
{
    if (c->receiving || c->closing || c->ended || c->starved)
        return;
    if (options.way != POLL && own_buffer_is_out(c))
        return;
    struct io_uring_sqe *sqe = entry(loop);
    enum kind kind = RECEIVED;
    if (options.way == POLL) {
        io_uring_prep_poll_multishot(sqe, c->fd, POLLIN | POLLRDHUP);
        kind = POLLED;
    } else if (options.way == SINGLE) {
        io_uring_prep_recv(sqe, c->fd, c->own, floor_options.buffer_size, 0);
    } else if (options.way == MULTISHOT) {
        io_uring_prep_recv_multishot(sqe, c->fd, NULL, 0, 0);
    } else {
        io_uring_prep_recv(sqe, c->fd, NULL, floor_options.buffer_size, 0);
    }
    if (options.way == MULTISHOT || options.way == PROVIDE) {
        sqe->flags |= IOSQE_BUFFER_SELECT;
        sqe->buf_group = 0;
    }
    name_entry(sqe, c, kind);
    c->receiving = true;
    floor_count(&loop->counts->armed, 1);
}

/* Sends what is to be sent next, unless a send is out already. */
static void send_next(struct loop *loop, struct connection *c)
{
    const char *data;
    size_t length;

    if (c->sending || c->closing || c->owed == 0)
        return;
    if (!floor_options.echo) {
        size_t whole = FLOOR_ANSWERS_AT_ONCE * floor_answer_length - c->at;
        data = floor_answers + c->at;
        length = c->owed < whole ? c->owed : whole;
    } else if (c->own) {
        data = c->own + c->at;
        length = c->owed;
    } else {
        data = buffer(loop, c->first) + c->at;
        length = loop->lengths[c->first] - c->at;
    }
    struct io_uring_sqe *sqe = entry(loop);
    io_uring_prep_send(sqe, c->fd, data, length, MSG_NOSIGNAL);
    name_entry(sqe, c, SENT);
    c->sending = true;
    floor_count(&loop->counts->sends, 1);
}

static void sent(struct loop *loop, struct connection *c, int result)
{
    c->sending = false;
    if (result == -EINTR || result == -EAGAIN)
        result = 0;
    if (result < 0) {
        drop(loop, c);
        return;
    }
    c->at += (size_t)result;
    c->owed -= (size_t)result;
    if (!floor_options.echo) {
        c->at %= floor_answer_length;
    } else if (!c->own) {
        if (c->at == loop->lengths[c->first]) {
            int done = c->first;
            c->first = loop->after[done];
            c->at = 0;
            give_back(loop, done);
        }
    }
    send_next(loop, c);
    if (c->ended && !c->sending)
        drop(loop, c);
}

/* Answers what came: by calls, or by putting it in the line of what is to be sent. `number` is the
 * shared buffer in which it came. False: the connection is to be dropped. */
static bool answer(struct loop *loop, struct connection *c, char *data, size_t length, int number)
{
    size_t heads = floor_options.echo ? 0 : bench_count_heads(&c->matched, data, length);

    floor_stick(data);
    if (options.send_calls) {
        floor_count(&loop->counts->sends, 1);
        bool good = floor_options.echo ? floor_send_all(c->fd, data, length)
                                       : floor_send_answers(c->fd, heads);
        give_back(loop, number);
        return good;
    }
    if (!floor_options.echo) {
        give_back(loop, number);
        c->owed += heads * floor_answer_length;
    } else {
        c->owed += length;
        if (c->own) {
            c->at = 0;
        } else {
            loop->lengths[number] = length;
            loop->after[number] = NO_BUFFER;
            if (c->first == NO_BUFFER)
                c->first = number;
            else
                loop->after[c->last] = number;
            c->last = number;
        }
    }
    send_next(loop, c);
    return true;
}

static void received(struct loop *loop, struct connection *c, const struct io_uring_cqe *cqe)
{
    bool has_buffer = cqe->flags & IORING_CQE_F_BUFFER;
    int number = has_buffer ? (int)(cqe->flags >> IORING_CQE_BUFFER_SHIFT) : NO_BUFFER;
    int result = cqe->res;

    if (!(cqe->flags & IORING_CQE_F_MORE))
        c->receiving = false;
    floor_count(&loop->counts->receives, 1);
    if (result > 0 && !c->closing) {
        char *data = has_buffer ? buffer(loop, number) : c->own;
        if (!answer(loop, c, data, (size_t)result, number))
            drop(loop, c);
    } else {
        give_back(loop, number);
        if (result == -ENOBUFS && !c->closing) {
            c->starved = true;
            c->next = loop->starved;
            loop->starved = c;
        } else if (result == 0) {
            end(loop, c);
        } else if (result != -EINTR && result != -EAGAIN) {
            drop(loop, c);
        }
    }
}

/* Receives by system calls until the socket is empty: the edge of what comes later is a new
 * completion. When the peer ends, the 0 has to be read as well. */
static void read_all(struct loop *loop, struct connection *c, bool ends)
{
    char *data = c->own ? c->own : loop->scratch;

    for (c->ready = false; !c->closing;) {
        if (own_buffer_is_out(c)) {
            c->ready = true;
            return;
        }
        ssize_t got = recv(c->fd, data, floor_options.buffer_size, MSG_DONTWAIT);
        floor_count(&loop->counts->receives, 1);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0 && errno == EAGAIN)
            return;
        if (got == 0) {
            end(loop, c);
            return;
        }
        if (got < 0 || !answer(loop, c, data, (size_t)got, NO_BUFFER))
            drop(loop, c);
        else if ((size_t)got < floor_options.buffer_size && !ends)
            return;
    }
}

static void polled(struct loop *loop, struct connection *c, const struct io_uring_cqe *cqe)
{
    if (!(cqe->flags & IORING_CQE_F_MORE))
        c->receiving = false;
    if (cqe->res < 0)
        drop(loop, c);
    else
        read_all(loop, c, cqe->res & (POLLRDHUP | POLLHUP | POLLERR));
}

/* ---- connections come ---------------------------------------------------------------------- */

static void adopt(struct loop *loop, int fd)
{
    int on = 1;
    /* Aligned so that the low bits of its address are free for the kind. */
    struct connection *c = aligned_alloc(64, (sizeof *c + 63) / 64 * 64);
    if (!c)
        floor_die("aligned_alloc", ENOMEM);
    *c = (struct connection){ .fd = fd, .first = NO_BUFFER, .last = NO_BUFFER };
    if (own_buffers() && !(c->own = malloc(floor_options.buffer_size)))
        floor_die("malloc", ENOMEM);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    arm(loop, c);
}

static void arm_accept(struct loop *loop)
{
    struct io_uring_sqe *sqe = entry(loop);
    io_uring_prep_multishot_accept(sqe, loop->listener, NULL, NULL, SOCK_CLOEXEC);
    name_entry(sqe, NULL, ACCEPTED);
}

/* Another loop's connection goes there as a completion in its ring. */
static void accepted(struct loop *loop, const struct io_uring_cqe *cqe)
{
    int fd = cqe->res;

    if (fd >= 0) {
        unsigned to = floor_options.reuse_port ? loop->index : loop->turn++ % floor_options.threads;
        if (to == loop->index) {
            adopt(loop, fd);
        } else {
            struct io_uring_sqe *sqe = entry(loop);
            io_uring_prep_msg_ring(sqe, rings[to], 0, (uint64_t)fd * KINDS | ADOPTED, 0);
            name_entry(sqe, NULL, IGNORED);
        }
    }
    if (!(cqe->flags & IORING_CQE_F_MORE))
        arm_accept(loop);
}

/* ---- the loop ------------------------------------------------------------------------------ */

static void handle(struct loop *loop, const struct io_uring_cqe *cqe)
{
    enum kind kind = (enum kind)(cqe->user_data % KINDS);
    struct connection *c = (struct connection *)(uintptr_t)(cqe->user_data - kind);

    switch (kind) {
    case ACCEPTED:
        accepted(loop, cqe);
        return;
    case ADOPTED:
        adopt(loop, (int)(cqe->user_data / KINDS));
        return;
    case RECEIVED:
        received(loop, c, cqe);
        break;
    case POLLED:
        polled(loop, c, cqe);
        break;
    case SENT:
        sent(loop, c, cqe->res);
        if (c->ready)
            read_all(loop, c, true);
        break;
    case IGNORED:
    case KINDS:
        return;
    }
    arm(loop, c);
    free_if_over(loop, c);
}

/* Those whom the pool had no buffer for ask again once there is one. */
static void feed_starved(struct loop *loop)
{
    struct connection *c = loop->starved;

    loop->starved = NULL;
    while (c) {
        struct connection *next = c->next;
        c->starved = false;
        arm(loop, c);
        c = next;
    }
}

static void set_up(struct loop *loop)
{
    struct io_uring_params params = {
        .flags = options.setup | IORING_SETUP_CQSIZE | IORING_SETUP_CLAMP,
        .cq_entries = COMPLETIONS,
    };
    int r = io_uring_queue_init_params(ENTRIES, &loop->ring, &params);
    if (r < 0)
        floor_die("io_uring_queue_init_params", r);
    r = io_uring_register_ring_fd(&loop->ring);
    if (r < 0)
        floor_die("io_uring_register_ring_fd", r);
    rings[loop->index] = loop->ring.ring_fd;
    if (options.way == MULTISHOT || options.way == PROVIDE)
        set_up_buffers(loop);
    loop->scratch = malloc(floor_options.buffer_size);
    if (!loop->scratch)
        floor_die("malloc", ENOMEM);
    pthread_barrier_wait(&all_set_up);
    if (floor_options.reuse_port || loop->index == 0) {
        loop->listener = floor_listen(0);
        arm_accept(loop);
    }
}

static void *run_loop(void *argument)
{
    unsigned index = (unsigned)(uintptr_t)argument;
    struct loop loop = { .index = index, .counts = &floor_counts[index] };

    set_up(&loop);
    for (;;) {
        struct io_uring_cqe *cqe;
        unsigned head, count = 0;
        int r = io_uring_submit_and_wait(&loop.ring, 1);
        if (r < 0 && r != -EINTR && r != -EAGAIN && r != -EBUSY)
            floor_die("io_uring_submit_and_wait", r);
        io_uring_for_each_cqe(&loop.ring, head, cqe) {
            handle(&loop, cqe);
            count++;
        }
        io_uring_cq_advance(&loop.ring, count);
        floor_count(&loop.counts->waits, 1);
        floor_count(&loop.counts->events, count);
        bool refilled = loop.given_back > 0;
        publish_buffers(&loop);
        if (refilled && loop.starved)
            feed_starved(&loop);
    }
    return NULL;
}

static int place_of(const char *word, const char *const *words)
{
    for (int i = 0; words[i]; i++)
        if (!strcmp(word, words[i]))
            return i;
    return -1;
}

static bool take(int option, const char *value)
{
    static const char *const ways[] = { "single", "poll", "multishot", "provide", NULL };
    static const char *const sends[] = { "ring", "call", NULL };
    static const char *const flags[] = { "plain", "coop", "defer", NULL };
    static const unsigned setups[] = {
        0,
        IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_COOP_TASKRUN,
        IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN,
    };
    unsigned long number = 0;
    int place = place_of(value, option == 'r' ? ways : option == 's' ? sends : flags);

    if (option == 'n') {
        bool good = floor_number(value, BUFFERS_MAX, &number) && (number & (number - 1)) == 0;
        options.buffers = (unsigned)number;
        return good;
    }
    if (place < 0)
        return false;
    if (option == 'r')
        options.way = (enum way)place;
    else if (option == 's')
        options.send_calls = place == 1;
    else
        options.setup = setups[place];
    return true;
}

int main(int argc, char **argv)
{
    floor_options.buffer_size = 4096;
    floor_arguments(argc, argv, "r:s:f:n:", take,
                    " [-r multishot|single|poll|provide] [-s ring|call] [-f defer|coop|plain]"
                    " [-n buffers]");
    pthread_barrier_init(&all_set_up, NULL, floor_options.threads);
    floor_run(run_loop);
}
