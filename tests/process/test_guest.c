/* test_guest.c: what a host can see of us: signals, thread names, hooks, output, memory of what
 * rests. (G1, P04, P05) */
#include "support/rig.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "support/scarce.h"

/* ---- signals --------------------------------------------------------------------------------- */

static const int signals[] = {SIGUSR1, SIGTERM, SIGPROF, SIGHUP, SIGCHLD, SIGALRM, SIGURG};
enum { SIGNALS = sizeof signals / sizeof *signals, EACH = 150 };

static _Atomic int receiver; /* the one thread of the host that takes signals */
static _Atomic unsigned received, elsewhere;

static void on_signal(int number)
{
    (void)number;
    if ((int)syscall(SYS_gettid) == atomic_load(&receiver))
        atomic_fetch_add(&received, 1);
    else
        atomic_fetch_add(&elsewhere, 1);
}

static _Atomic bool receiver_stop;

static void *receive(void *argument)
{
    sigset_t none;

    (void)argument;
    sigemptyset(&none);
    pthread_sigmask(SIG_SETMASK, &none, NULL);
    atomic_store(&receiver, (int)syscall(SYS_gettid));
    while (!atomic_load(&receiver_stop))
        rig_sleep_ms(1);
    return NULL;
}

static void block_all(void)
{
    sigset_t all;

    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, NULL);
}

/* The main thread blocks them, so the kernel may choose among all others: only one of them, the
 * host's, is open to signals. */
Test(guest, signals_of_the_host_run_on_threads_of_the_host, .timeout = 60)
{
    struct rig rig;
    struct rig_busy busy;
    pthread_t thread;
    struct sigaction action = {.sa_handler = on_signal};

    for (int i = 0; i < SIGNALS; i++)
        cr_assert_eq(sigaction(signals[i], &action, NULL), 0);
    rig_open(&rig, 4);
    rig_busy_begin(&rig, &busy, 2); /* some of ours run, some sleep */
    block_all();
    cr_assert_eq(pthread_create(&thread, NULL, receive, NULL), 0);
    cr_assert(RIG_UNTIL(atomic_load(&receiver) != 0, 5000));
    for (int round = 0; round < EACH; round++) {
        for (int i = 0; i < SIGNALS; i++)
            kill(getpid(), signals[i]);
        if (round % 10 == 0)
            rig_sleep_ms(1);
    }
    cr_assert(RIG_UNTIL(atomic_load(&received) + atomic_load(&elsewhere) > SIGNALS, 5000));
    rig_sleep_ms(20);
    cr_expect_eq(atomic_load(&elsewhere), 0, "%u signals on threads of ours",
                 atomic_load(&elsewhere));
    atomic_store(&receiver_stop, true);
    pthread_join(thread, NULL);
    rig_busy_end(&busy);
    rig_close(&rig);
}

Test(guest, no_signal_disposition_is_touched, .timeout = 60)
{
    struct rig rig;
    struct sigaction before[65], now;
    weir_socket *socket;

    for (int i = 1; i <= SIGRTMAX; i++)
        if (sigaction(i, NULL, &before[i]) < 0)
            before[i].sa_handler = SIG_ERR;
    rig_open(&rig, 2);
    int peer = rig_unix(&rig, NULL, &socket);
    close(peer); /* a write would raise SIGPIPE */
    while (weir_send_wait(socket, "x", 1, weir_after_ms(5000)) >= 0)
        ;
    for (int i = 1; i <= SIGRTMAX; i++)
        if (sigaction(i, NULL, &now) == 0)
            cr_expect_eq(now.sa_handler, before[i].sa_handler, "signal %d", i);
    rig_close(&rig);
}

/* ---- names and hooks ------------------------------------------------------------------------- */

enum { NAMES_MAX = 64, NAME = 32 };

/* Of all threads but the calling one. */
static unsigned thread_names(char names[NAMES_MAX][NAME])
{
    DIR *tasks = opendir("/proc/self/task");
    unsigned count = 0;

    cr_assert_not_null(tasks);
    struct dirent *entry;
    while (count < NAMES_MAX && (entry = readdir(tasks))) {
        char path[300];
        snprintf(path, sizeof path, "/proc/self/task/%s/comm", entry->d_name);
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        ssize_t length = fd < 0 ? 0 : read(fd, names[count], NAME - 1);
        close(fd);
        if (entry->d_name[0] == '.' || length <= 0 || atoi(entry->d_name) == getpid())
            continue;
        names[count][length - 1] = 0; /* the newline */
        count++;
    }
    closedir(tasks);
    return count;
}

static void sleep_a_little(weir_work *work, void *context)
{
    (void)work;
    (void)context;
    rig_sleep_ms(50);
}

Test(guest, each_thread_has_a_name_of_its_own, .timeout = 60)
{
    static const char *const wanted[] = {"hostname-w1", "hostname-w2", "hostname-w3", "hostname-p0",
                                         "hostname-p1", "hostname-b1"};
    struct rig rig;
    weir_options options = WEIR_OPTIONS_INIT;
    weir_work work;
    char names[NAMES_MAX][NAME];

    options.name = "hostname"; /* eight bytes: the longest prefix */
    options.workers = 3;
    options.workers_max = 3;
    options.pollers = 2;
    rig_open_with(&rig, &options);
    weir_work_init(&work, sleep_a_little, NULL);
    cr_assert_eq(weir_post_blocking(rig.runtime, &work), 0);
    rig_sleep_ms(20);
    unsigned count = thread_names(names);
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        unsigned found = 0;
        for (unsigned k = 0; k < count; k++)
            found += strcmp(names[k], wanted[i]) == 0;
        cr_expect_eq(found, 1, "%s: %u threads", wanted[i], found);
    }
    rig_close(&rig);
}

struct hooks {
    _Atomic unsigned started, stopped, misnamed;
    _Atomic int balance;
};

static void on_start(const char *name, void *context)
{
    struct hooks *hooks = context;
    char own[16];

    pthread_getname_np(pthread_self(), own, sizeof own);
    atomic_fetch_add(&hooks->misnamed, strcmp(own, name) != 0);
    atomic_fetch_add(&hooks->started, 1);
}

static void on_stop(const char *name, void *context)
{
    struct hooks *hooks = context;

    (void)name;
    atomic_fetch_add(&hooks->stopped, 1);
}

Test(guest, each_thread_tells_of_its_start_and_its_end, .timeout = 60)
{
    struct rig rig;
    struct hooks hooks = {0};
    weir_options options = WEIR_OPTIONS_INIT;
    weir_work work;

    options.workers = 3;
    options.workers_max = 3;
    options.pollers = 2;
    options.thread_start = on_start;
    options.thread_stop = on_stop;
    options.thread_context = &hooks;
    rig_open_with(&rig, &options);
    weir_work_init(&work, sleep_a_little, NULL);
    cr_assert_eq(weir_post_blocking(rig.runtime, &work), 0);
    cr_expect(RIG_UNTIL(atomic_load(&hooks.started) == 6, 5000), "%u starts",
              atomic_load(&hooks.started));
    cr_expect_eq(atomic_load(&hooks.stopped), 0);
    rig_close(&rig);
    cr_expect_eq(atomic_load(&hooks.stopped), 6, "%u ends", atomic_load(&hooks.stopped));
    cr_expect_eq(atomic_load(&hooks.misnamed), 0);
}

/* ---- output ---------------------------------------------------------------------------------- */

/* Without a hook nothing is said anywhere, whatever goes wrong and whatever WEIR_LOG asks for. */
Test(guest, without_a_hook_nothing_is_printed, .timeout = 60)
{
    weir_options options = WEIR_OPTIONS_INIT;
    weir_runtime *runtime;
    int pipes[2], saved[2];
    char text[256] = "";

    setenv("WEIR_LOG", "debug", 1);
    cr_assert_eq(pipe2(pipes, O_CLOEXEC | O_NONBLOCK), 0);
    for (int i = 0; i < 2; i++) {
        fflush(NULL);
        saved[i] = dup(1 + i);
        dup2(pipes[1], 1 + i);
    }
    int created = weir_runtime_create(&runtime, NULL);
    if (created == 0)
        weir_runtime_destroy(runtime);
    options.workers = 1000000; /* out of range */
    int refused = weir_runtime_create(&runtime, &options);
    for (int i = 0; i < 2; i++) {
        fflush(NULL);
        dup2(saved[i], 1 + i);
        close(saved[i]);
    }
    ssize_t length = read(pipes[0], text, sizeof text - 1);
    cr_expect_eq(length, -1, "printed: %s", text);
    cr_expect_eq(created, 0);
    cr_expect_eq(refused, -EINVAL);
    close(pipes[0]);
    close(pipes[1]);
}

/* ---- an idle connection ---------------------------------------------------------------------- */

static void on_read(weir_socket *socket, const weir_view *view, int status, void *context)
{
    (void)context;
    if (status == 0 && view->length > 0)
        weir_write(socket, view->data, view->length);
}

enum { HALF = 512, IDLE = 64 + 2 * HALF, IDLE_BYTES_MAX = 256, RING_BYTES = 128,
       LIST_BYTES = 64 };

/* Each has been used: what the use took is given back. */
Test(guest, an_idle_connection_costs_at_most_256_bytes, .timeout = 60)
{
    struct rig rig;
    struct scarce_memory memory;
    weir_options options = WEIR_OPTIONS_INIT;
    static int peers[IDLE];

    scarce_memory_init(&memory);
    options.allocator = &memory.allocator;
    options.workers = 2;
    options.sources_max = 4096;
    rig_open_with(&rig, &options);
    uint64_t before = 0, middle = 0;
    for (int i = 0; i < IDLE; i++) {
        weir_socket *socket;
        char byte = 'x';
        peers[i] = rig_unix(&rig, NULL, &socket);
        cr_assert_eq(weir_read_start(socket, on_read, NULL), 0);
        rig_peer_send(peers[i], &byte, 1);
        rig_peer_receive(peers[i], &byte, 1);
        if (i == 63) /* the workers have their buffers, the first slots are there */
            before = rig_stats(&rig).memory;
        if (i == 63 + HALF)
            middle = rig_stats(&rig).memory;
    }
    /* A worker that has its first turn only now takes its buffer in one half, not in both. */
    uint64_t first = middle - before, second = rig_stats(&rig).memory - middle;
    uint64_t grown = first < second ? first : second;
    cr_log_info("%u bytes a connection", (unsigned)(grown / HALF));
    /* A ring keeps a note of its own of each poll in it; and in completion mode the list of what
     * was received. */
    const char *backend = getenv("WEIR_BACKEND");
    uint64_t most = IDLE_BYTES_MAX + (backend && strcmp(backend, "io_uring") == 0 ? RING_BYTES : 0);
    most += rig_stats(&rig).recv_buffers > 0 ? LIST_BYTES : 0;
    cr_expect_leq(grown, most * HALF, "%u bytes each",
                  (unsigned)(grown / HALF));
    cr_expect_eq(rig_stats(&rig).memory, (uint64_t)atomic_load(&memory.bytes),
                 "the figure is what the allocator gave");
    for (int i = 0; i < IDLE; i++)
        close(peers[i]);
    rig_close(&rig);
}

/* Of the threads whose names begin with `prefix`. */
static uint64_t switches(const char *prefix)
{
    DIR *tasks = opendir("/proc/self/task");
    uint64_t sum = 0;

    for (struct dirent *entry = readdir(tasks); entry; entry = readdir(tasks)) {
        char path[300], line[128];
        bool ours = false;
        snprintf(path, sizeof path, "/proc/self/task/%s/status", entry->d_name);
        FILE *status = fopen(path, "re");
        while (status && fgets(line, sizeof line, status)) {
            if (strncmp(line, "Name:\t", 6) == 0)
                ours = strncmp(line + 6, prefix, strlen(prefix)) == 0;
            if (ours && strstr(line, "voluntary_ctxt_switches:"))
                sum += strtoull(strchr(line, ':') + 1, NULL, 10);
        }
        if (status)
            fclose(status);
    }
    closedir(tasks);
    return sum;
}

/* Not one thread of ours moves, with connections that rest, with a timer far away. (P3) */
Test(guest, an_idle_runtime_does_not_move, .timeout = 60)
{
    struct rig rig;
    weir_socket *socket;
    char byte = 'x';

    rig_open(&rig, 4);
    int peer = rig_unix(&rig, NULL, &socket);
    cr_assert_eq(weir_read_start(socket, on_read, NULL), 0);
    cr_assert_eq(weir_read_deadline(socket, weir_after_ms(3600000)), 0);
    for (int i = 0; i < 100; i++) {
        rig_peer_send(peer, &byte, 1);
        rig_peer_receive(peer, &byte, 1);
    }
    rig_sleep_ms(100); /* whoever spun has stopped, the watch over the pool is over */
    uint64_t before = switches("weir-"), waits = rig_stats(&rig).waits;
    rig_sleep_ms(1000);
    uint64_t after = switches("weir-");
    cr_expect_gt(before, 0);
    cr_expect_eq(after, before, "%u context switches", (unsigned)(after - before));
    cr_expect_eq(rig_stats(&rig).waits, waits, "a poller woke up");
    close(peer);
    rig_close(&rig);
}
