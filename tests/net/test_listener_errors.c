/* Accepting when something is short or goes wrong: it pauses, goes on, serves who can be served. */
#include <dirent.h>
#include <errno.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <unistd.h>

#include "net/net.h"
#include "support/rig.h"
#include "support/scarce.h"

enum { CLIENTS = 30, SPARE = 6 };

/* ---- out of descriptors (N01) ---------------------------------------------------------------- */

/* CPU time of the threads of the runtime, in nanoseconds. */
static uint64_t cpu_time(void)
{
    DIR *tasks = opendir("/proc/self/task");
    uint64_t sum = 0;

    for (struct dirent *entry = readdir(tasks); entry; entry = readdir(tasks)) {
        char path[300], name[32] = "";
        snprintf(path, sizeof path, "/proc/self/task/%s/comm", entry->d_name);
        FILE *file = fopen(path, "re");
        if (file && !fgets(name, sizeof name, file))
            name[0] = 0;
        if (file)
            fclose(file);
        snprintf(path, sizeof path, "/proc/self/task/%s/schedstat", entry->d_name);
        file = strncmp(name, "weir-", 5) == 0 ? fopen(path, "re") : NULL;
        unsigned long long spent = 0;
        if (file && fscanf(file, "%llu", &spent) == 1)
            sum += spent;
        if (file)
            fclose(file);
    }
    closedir(tasks);
    return sum;
}

struct few {
    struct rig rig;
    weir_listener *listener;
    weir_address address;
    int clients[CLIENTS];
    weir_socket *accepted[CLIENTS];
    _Atomic unsigned count;
    struct rlimit before;
};

static void keep(weir_listener *listener, weir_socket *socket, void *context)
{
    struct few *few = context;

    (void)listener;
    unsigned at = atomic_load(&few->count);
    few->accepted[at] = socket;
    atomic_store(&few->count, at + 1);
}

/* Room for SPARE connections, and CLIENTS that want one. */
static void few_open(struct few *few, weir_accept_fn *on_accept)
{
    memset(few, 0, sizeof *few);
    rig_open(&few->rig, 2);
    cr_assert_eq(
        weir_listen(few->rig.runtime, "127.0.0.1:0", NULL, on_accept, few, &few->listener), 0);
    cr_assert_eq(weir_listener_address(few->listener, &few->address), 0);
    int last = 0;
    for (int i = 0; i < CLIENTS; i++)
        last = few->clients[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    cpu_time(); /* what it opens is below the limit, too */
    cr_assert_eq(getrlimit(RLIMIT_NOFILE, &few->before), 0);
    struct rlimit files = few->before;
    files.rlim_cur = (rlim_t)last + 1 + SPARE;
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &files), 0);
}

static void few_knock(struct few *few)
{
    for (int i = 0; i < CLIENTS; i++)
        cr_assert_eq(connect(few->clients[i], (struct sockaddr *)&few->address.storage,
                             few->address.length),
                     0, "connect: errno %d", errno);
}

static void few_close(struct few *few)
{
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &few->before), 0);
    for (int i = 0; i < CLIENTS; i++)
        close(few->clients[i]);
    rig_close(&few->rig);
}

Test(listener_errors, without_descriptors_accepting_rests_and_goes_on, .timeout = 60)
{
    static struct few few;

    few_open(&few, keep);
    few_knock(&few);
    cr_assert(RIG_UNTIL(rig_logged(&few.rig, "accepting pauses"), 5000));
    unsigned before = atomic_load(&few.count);
    cr_expect_leq(before, SPARE);
    int64_t start = rig_now_ms();
    rig_sleep_ms(1200);
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &few.before), 0); /* room for the looks of this test */
    uint64_t cpu = cpu_time();
    unsigned lines = rig_lines(&few.rig, WEIR_LOG_WARN) + rig_lines(&few.rig, WEIR_LOG_ERROR);
    int64_t span = rig_now_ms() - start;
    cr_expect_leq(lines, 1 + (unsigned)(span / 1000) + 1, "%u lines", lines);
    cr_assert(RIG_UNTIL(atomic_load(&few.count) == CLIENTS, rig_patience(3000)), "%u of %d",
              atomic_load(&few.count), CLIENTS);
    cr_expect_lt(cpu, (uint64_t)rig_patience(60) * 1000000, "%llu ms of CPU",
                 (unsigned long long)cpu / 1000000);
    cr_expect_gt(rig_stats(&few.rig).accept_errors, 0);
    few_close(&few);
}

/* A descriptor is given back: the next connection is taken without anything else happening. */
Test(listener_errors, a_descriptor_given_back_is_used, .timeout = 60)
{
    static struct few few;

    few_open(&few, keep);
    few_knock(&few);
    cr_assert(RIG_UNTIL(rig_logged(&few.rig, "accepting pauses"), 5000));
    unsigned taken = atomic_load(&few.count);
    for (unsigned i = 0; i < CLIENTS; i++) {
        cr_assert(RIG_UNTIL(atomic_load(&few.count) > i, rig_patience(3000)), "%u of %d", i,
                  CLIENTS);
        cr_expect_eq(weir_reset(few.accepted[i]), 0);
    }
    cr_expect_lt(taken, CLIENTS);
    few_close(&few);
}

/* The same for accepts that are asked for one by one: they wait as they do for a connection. */
Test(listener_errors, without_descriptors_an_accept_waits, .timeout = 60)
{
    static struct few few;
    struct rig_op op;
    weir_socket *socket = NULL, *none = NULL;

    few_open(&few, NULL);
    few_knock(&few);
    int r = 0;
    while (r == 0 && atomic_load(&few.count) < CLIENTS) {
        r = weir_accept_wait(few.listener, &socket, weir_after_ms(300));
        if (r == 0)
            keep(few.listener, socket, &few);
    }
    unsigned taken = atomic_load(&few.count);
    cr_expect_eq(r, -ETIMEDOUT, "a waiting accept without descriptors: %d", r);
    cr_expect_lt(taken, CLIENTS);
    rig_op_init(&op);
    r = weir_accept(few.listener, &op.op, &none, weir_after_ms(5000));
    cr_expect_eq(r, -EINPROGRESS, "a started accept without descriptors: %d", r);
    rig_sleep_ms(50);
    cr_expect_eq(atomic_load(&op.ended), 0, "%zd", op.result);
    cr_expect_eq(weir_reset(few.accepted[0]), 0);
    cr_expect(rig_op_await(&op, rig_patience(3000)), "a descriptor was given back");
    cr_expect_eq(op.result, 0, "%zd", op.result);
    cr_expect_eq(weir_reset(few.accepted[1]), 0);
    r = weir_accept_wait(few.listener, &socket, weir_after_ms(rig_patience(3000)));
    cr_expect_eq(r, 0, "a waiting accept: %d", r);
    cr_expect(rig_logged(&few.rig, "accepting pauses"));
    few_close(&few);
}

/* ---- errors of one connection, and errors that pass (N02) ------------------------------------ */

static _Atomic unsigned served;

static void serve(weir_listener *listener, weir_socket *socket, void *context)
{
    (void)listener;
    (void)context;
    atomic_fetch_add(&served, 1);
    weir_write(socket, "x", 1);
    weir_close(socket, NULL, NULL);
}

#ifdef WEIR_FAULTS
Test(listener_errors, an_error_of_accept_is_not_the_end, .timeout = 120)
{
    static const int errors[] = {ECONNABORTED, EINTR,    EPROTO,  ENETDOWN, EHOSTUNREACH,
                                 ENETUNREACH,  EHOSTDOWN, ENONET, EOPNOTSUPP, ENOPROTOOPT,
                                 EPERM,        ENFILE,   EMFILE,  ENOBUFS,  ENOMEM,
                                 EINVAL,       ENOSR,    ETIMEDOUT};

    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++) {
        struct rig rig;
        weir_listener *listener;
        char byte;

        scarce_call_fail(WR_FAULT_ACCEPT, errors[i], 1, 3);
        rig_open(&rig, 1);
        cr_assert_eq(weir_listen(rig.runtime, "127.0.0.1:0", NULL, serve, NULL, &listener), 0);
        for (int round = 0; round < 3; round++) {
            int peer = rig_connect(listener);
            rig_peer_receive(peer, &byte, 1); /* within 10 s, or the test fails */
            close(peer);
        }
        cr_expect_gt(scarce_call_failed(), 0);
        rig_close(&rig);
    }
    scarce_call_clear();
}
#endif

/* ---- reset before it is accepted (N03) ------------------------------------------------------- */

static _Atomic unsigned sessions, sessions_over, talks;

static void talk(weir_socket *socket, const weir_view *view, int status, void *context)
{
    (void)context;
    if (status == 0 && view->length > 0) {
        atomic_fetch_add(&talks, 1);
        weir_write(socket, view->data, view->length);
        return;
    }
    atomic_fetch_add(&sessions_over, 1);
    weir_close(socket, NULL, NULL);
}

static void begin_session(weir_listener *listener, weir_socket *socket, void *context)
{
    weir_address peer;

    (void)listener;
    int r = weir_socket_peer(socket, &peer); /* who hung up has none any more */
    cr_expect(r == 0 || r == -ENOTCONN || r == -EINVAL, "weir_socket_peer: %d", r);
    atomic_fetch_add(&sessions, 1);
    cr_expect_eq(weir_read_start(socket, talk, context), 0);
}

static void connect_and_reset(weir_listener *listener)
{
    const struct linger now = {.l_onoff = 1, .l_linger = 0};
    int fd = rig_connect(listener);

    setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
    close(fd);
}

Test(listener_errors, who_hangs_up_before_the_accept_is_no_trouble, .timeout = 120)
{
    struct rig rig;
    weir_listener *listener;
    enum { RESETS = 2000 };
    char back[4];

    rig_open(&rig, 2);
    cr_assert_eq(weir_listen(rig.runtime, "127.0.0.1:0", NULL, begin_session, NULL, &listener), 0);
    int steady = rig_connect(listener);
    for (int i = 0; i < RESETS; i++) {
        connect_and_reset(listener);
        if (i % 50 == 0) {
            rig_peer_send(steady, "ping", 4);
            rig_peer_receive(steady, back, 4);
        }
    }
    close(steady);
    cr_assert(RIG_UNTIL(rig_stats(&rig).sources == 1, rig_patience(5000)), "%u sources are left",
              (unsigned)rig_stats(&rig).sources);
    cr_expect_eq(atomic_load(&sessions), atomic_load(&sessions_over));
    cr_expect(rig_lines(&rig, WEIR_LOG_ERROR) == 0 && !rig_logged(&rig, "accept"), "%s", rig.text);
    rig_close(&rig);
}

/* ---- both families on one port (N07) --------------------------------------------------------- */

static int try_connect(int family, in_port_t port)
{
    struct sockaddr_storage storage = {.ss_family = (sa_family_t)family};
    struct sockaddr_in *four = (struct sockaddr_in *)&storage;
    struct sockaddr_in6 *six = (struct sockaddr_in6 *)&storage;
    int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);

    four->sin_port = port; /* in the same place for both */
    if (family == AF_INET)
        four->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    else
        six->sin6_addr = in6addr_loopback;
    int r = connect(fd, (struct sockaddr *)&storage,
                    family == AF_INET ? sizeof *four : sizeof *six);
    int error = r < 0 ? -errno : 0;
    close(fd);
    return error;
}

static in_port_t port_of(weir_listener *listener)
{
    weir_address address;

    cr_assert_eq(weir_listener_address(listener, &address), 0);
    return ((struct sockaddr_in *)&address.storage)->sin_port;
}

Test(listener_errors, both_families_share_a_port, .timeout = 30)
{
    struct rig rig;
    weir_listener *six, *four, *both, *late;
    weir_listen_options dual = WEIR_LISTEN_OPTIONS_INIT;
    char text[64];

    dual.dual_stack = true;
    rig_open(&rig, 1);
    int r = weir_listen(rig.runtime, "[::]:0", NULL, serve, NULL, &six);
    if (r == -EAFNOSUPPORT || r == -EADDRNOTAVAIL)
        cr_skip_test("no IPv6 here");
    cr_assert_eq(r, 0);
    cr_expect_eq(try_connect(AF_INET, port_of(six)), -ECONNREFUSED, "IPv6 only by default");
    snprintf(text, sizeof text, "0.0.0.0:%d", ntohs(port_of(six)));
    cr_assert_eq(weir_listen(rig.runtime, text, NULL, serve, NULL, &four), 0);
    cr_expect_eq(try_connect(AF_INET, port_of(six)), 0);
    cr_expect_eq(try_connect(AF_INET6, port_of(six)), 0);

    cr_assert_eq(weir_listen(rig.runtime, "[::]:0", &dual, serve, NULL, &both), 0);
    cr_expect_eq(try_connect(AF_INET, port_of(both)), 0);
    cr_expect_eq(try_connect(AF_INET6, port_of(both)), 0);
    snprintf(text, sizeof text, "0.0.0.0:%d", ntohs(port_of(both)));
    cr_expect_eq(weir_listen(rig.runtime, text, NULL, serve, NULL, &late), -EADDRINUSE);
    rig_close(&rig);
}

/* ---- how connections are spread (N10) -------------------------------------------------------- */

Test(listener_errors, long_connections_are_spread_over_the_pollers, .timeout = 60)
{
    struct rig rig;
    weir_options options = WEIR_OPTIONS_INIT;
    enum { POLLERS = 4, LONG = 400 };
    static int peers[LONG];
    unsigned least = LONG, most = 0;

    options.pollers = POLLERS;
    options.workers = 2;
    rig_open_with(&rig, &options);
    weir_listener *listener;
    cr_assert_eq(weir_listen(rig.runtime, "127.0.0.1:0", NULL, begin_session, NULL, &listener), 0);
    for (int i = 0; i < LONG; i++)
        peers[i] = rig_connect(listener);
    for (int i = 0; i < LONG / 2; i++) /* the first half goes, and comes again */
        close(peers[i]);
    cr_assert(RIG_UNTIL(rig_stats(&rig).sources == LONG / 2 + 1, rig_patience(5000)));
    for (int i = 0; i < LONG / 2; i++)
        peers[i] = rig_connect(listener);
    cr_assert(RIG_UNTIL(rig_stats(&rig).sources == LONG + 1, rig_patience(5000)));
    for (unsigned i = 0; i < POLLERS; i++) {
        unsigned live = atomic_load(&rig.runtime->pollers[i].live);
        least = live < least ? live : least;
        most = live > most ? live : most;
    }
    cr_expect_leq(2 * most, 3 * least, "between %u and %u a poller", least, most);
    for (int i = 0; i < LONG; i++)
        close(peers[i]);
    rig_close(&rig);
}
