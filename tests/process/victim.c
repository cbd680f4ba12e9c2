/* victim.c: a host process with one habit, run by test_host.c: each case is a process of its own,
 * so that it may exit, crash and be limited as it likes. The exit code tells; 77: it cannot be
 * tried here. */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <weir/weir.h>

enum { FINE = 0, WRONG = 1, CAUGHT = 42, SKIP = 77 };

static weir_runtime *runtime; /* reachable until the end: nothing of it is a leak */
static _Atomic unsigned running, lines;
static char last_line[512];

static void sleep_ms(int milliseconds)
{
    struct timespec span = {milliseconds / 1000, milliseconds % 1000 * 1000000L};
    nanosleep(&span, NULL);
}

/* Past the leak check of a sanitizer, which wakes all threads and wants /proc and a thread. */
static int leave(int code)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    fflush(NULL);
    _exit(code);
#endif
    return code;
}

static void on_log(enum weir_log_level level, const char *line, void *context)
{
    (void)context;
    if (level > WEIR_LOG_WARN)
        return;
    atomic_fetch_add(&lines, 1);
    snprintf(last_line, sizeof last_line, "%s", line);
    fprintf(stderr, "%s\n", line);
}

static int create(const weir_options *options)
{
    weir_options with = *options;

    with.log = on_log;
    with.log_level = WEIR_LOG_WARN;
    return weir_runtime_create(&runtime, &with);
}

static void create_or_die(void)
{
    weir_options options = WEIR_OPTIONS_INIT;

    options.workers = 2;
    if (create(&options) < 0)
        _exit(WRONG);
}

static void post(weir_work_fn *run, bool blocking)
{
    static weir_work works[64];
    static unsigned used;
    weir_work *work = &works[used++];

    weir_work_init(work, run, NULL);
    if ((blocking ? weir_post_blocking : weir_post)(runtime, work) < 0)
        _exit(WRONG);
}

static void await_running(unsigned count)
{
    while (atomic_load(&running) < count)
        sleep_ms(1);
}

/* ---- ends without a destroy ------------------------------------------------------------------ */

static void run_for_ever(weir_work *work, void *context)
{
    (void)work;
    (void)context;
    atomic_fetch_add(&running, 1);
    for (;;)
        sleep_ms(1);
}

static void post_again(weir_work *work, void *context)
{
    (void)context;
    atomic_fetch_add(&running, 1);
    weir_post(runtime, work);
}

static void tick_once(weir_work *work, void *context)
{
    (void)work;
    (void)context;
    atomic_fetch_add(&running, 1);
}

static void run_a_little(weir_work *work, void *context)
{
    sleep_ms(2);
    tick_once(work, context);
}

static void tick(weir_timer *timer, uint64_t missed, void *context)
{
    (void)timer;
    (void)missed;
    (void)context;
    atomic_fetch_add(&running, 1);
}

static void keep_busy(void)
{
    static weir_timer timer;

    create_or_die();
    post(post_again, false);
    post(run_for_ever, true);
    weir_timer_init(&timer, runtime, tick, NULL);
    if (weir_timer_set(&timer, weir_now(), 1000000, WEIR_TIMER_RATE) < 0)
        _exit(WRONG);
    await_running(100);
}

static int exit_while_jobs_run(void)
{
    keep_busy();
    exit(FINE);
}

static int return_without_destroy(void)
{
    keep_busy();
    return FINE;
}

/* A heap of the host's own, gone before the process is. */
static char *heap;
static _Atomic size_t heap_used;
enum { HEAP = 64 << 20 };

static void *from_heap(size_t size, void *context)
{
    (void)context;
    size_t at = atomic_fetch_add(&heap_used, (size + 63) & ~(size_t)63);
    return at + size <= HEAP ? heap + at : NULL;
}

static void to_heap(void *memory, size_t size, void *context)
{
    (void)context;
    memset(memory, 0xdd, size);
}

static void drop_heap(void)
{
    munmap(heap, HEAP);
    sleep_ms(50); /* whoever still moves would be caught now */
    leave(FINE);
}

static void create_on_heap(void)
{
    static const weir_allocator allocator = {from_heap, to_heap, NULL};
    weir_options options = WEIR_OPTIONS_INIT;

    heap = mmap(NULL, HEAP, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    options.workers = 2;
    options.sources_max = 64;
    options.allocator = &allocator;
    if (heap == MAP_FAILED || create(&options) < 0)
        _exit(WRONG);
    post(tick_once, false);
    await_running(1);
}

/* An idle runtime touches nothing: the heap may go. */
static int heap_gone_while_idle(void)
{
    create_on_heap();
    sleep_ms(50);
    atexit(drop_heap);
    exit(FINE);
}

static void destroy_at_exit(void)
{
    weir_runtime_destroy(runtime);
}

/* An explicit end joins everything, also this late and whatever runs. */
static int destroy_in_an_exit_handler(void)
{
    create_on_heap();
    for (int i = 0; i < 20; i++)
        post(run_a_little, i % 2);
    atexit(drop_heap);
    atexit(destroy_at_exit);
    exit(FINE);
}

/* ---- faults ---------------------------------------------------------------------------------- */

static char *forbidden;

static void on_fault(int number, siginfo_t *info, void *context)
{
    (void)number;
    (void)context;
    _exit(forbidden && info->si_addr != (void *)forbidden ? WRONG : CAUGHT);
}

static void touch(weir_work *work, void *context)
{
    (void)work;
    (void)context;
    *(volatile char *)forbidden = 1;
}

static void give_up(weir_work *work, void *context)
{
    (void)work;
    (void)context;
    abort();
}

static int fault(int number, weir_work_fn *run, bool blocking)
{
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO};

    if (run == touch)
        forbidden = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    sigaction(number, &action, NULL);
    create_or_die();
    post(run, blocking);
    sleep_ms(10000);
    return WRONG;
}

static int segv_in_a_callback(void)
{
    return fault(SIGSEGV, touch, false);
}

static int segv_in_a_blocking_job(void)
{
    return fault(SIGSEGV, touch, true);
}

static int abort_in_a_callback(void)
{
    return fault(SIGABRT, give_up, false);
}

/* ---- small limits ---------------------------------------------------------------------------- */

/* 200 KiB of stack, every page of it. */
__attribute__((noinline)) static void use_stack(weir_work *work, void *context)
{
    volatile char room[200 << 10];

    (void)work;
    (void)context;
    for (size_t i = 0; i < sizeof room; i += 512)
        room[i] = (char)i;
    atomic_fetch_add(&running, room[512] == 0);
}

/* What the host's own stack limit is does not matter to our threads. (set before this started) */
static int deep_callback_under_a_small_stack_limit(void)
{
    create_or_die();
    post(use_stack, false);
    post(use_stack, true);
    await_running(2);
    weir_runtime_destroy(runtime);
    return FINE;
}

__attribute__((noinline)) static void use_big_stack(weir_work *work, void *context)
{
    volatile char room[3 << 20];

    (void)work;
    (void)context;
    for (size_t i = 0; i < sizeof room; i += 512)
        room[i] = (char)i;
    atomic_fetch_add(&running, room[512] == 0);
}

static int stack_as_big_as_asked_for(void)
{
    weir_options options = WEIR_OPTIONS_INIT;

    options.workers = 2;
    options.stack_size = 4 << 20;
    if (create(&options) < 0)
        return WRONG;
    post(use_big_stack, false);
    post(use_big_stack, true);
    await_running(2);
    weir_runtime_destroy(runtime);
    return FINE;
}

static void on_accept(weir_listener *listener, weir_socket *socket, void *context)
{
    (void)listener;
    (void)context;
    atomic_fetch_add(&running, 1);
    weir_close(socket, NULL, NULL);
}

/* Serves one connection, as far as the limits allow. */
static int serve_one(void)
{
    weir_listener *listener;
    weir_socket *socket;
    weir_address address;
    char text[WEIR_ADDRESS_TEXT_MAX];

    int r = weir_listen(runtime, "127.0.0.1:0", NULL, on_accept, NULL, &listener);
    if (r == 0)
        r = weir_listener_address(listener, &address);
    if (r == 0) {
        weir_address_format(&address, text, sizeof text);
        r = weir_connect_wait(runtime, text, NULL, &socket, weir_after_ms(10000));
    }
    if (r < 0)
        return WRONG;
    await_running(1);
    weir_runtime_destroy(runtime);
    return FINE;
}

/* Twenty descriptors: it starts and serves; what does not fit is refused with a word. */
static int few_descriptors(void)
{
    struct rlimit files = {20, 20};
    int pairs[32], count = 0;

    if (setrlimit(RLIMIT_NOFILE, &files) < 0)
        return SKIP;
    create_or_die();
    while (count < 32 && (pairs[count] = dup(0)) >= 0)
        count++;
    weir_listener *listener;
    int r = weir_listen(runtime, "127.0.0.1:0", NULL, on_accept, NULL, &listener);
    while (count > 0)
        close(pairs[--count]);
    return r == -EMFILE ? serve_one() : WRONG;
}

/* Not even those that a start needs. */
static int no_descriptors(void)
{
    struct rlimit files = {20, 20};
    weir_options options = WEIR_OPTIONS_INIT;
    int fds[32], count = 0;

    if (setrlimit(RLIMIT_NOFILE, &files) < 0)
        return SKIP;
    while (count < 32 && (fds[count] = dup(0)) >= 0)
        count++;
    for (int left = 0; left < 2; left++) { /* one for each of the poller's two */
        if (create(&options) != -EMFILE || atomic_load(&lines) != (unsigned)left + 1)
            return WRONG;
        close(fds[--count]);
    }
    return FINE;
}

static int no_threads(void)
{
    struct rlimit threads = {1, 1};
    weir_options options = WEIR_OPTIONS_INIT;

    /* The limit does not hold for the super-user. */
    if (setrlimit(RLIMIT_NPROC, &threads) < 0 || (getuid() == 0 && setresuid(65533, 65533, 65533)))
        return SKIP;
    options.workers = 4;
    return leave(create(&options) == -EAGAIN && atomic_load(&lines) > 0 ? FINE : WRONG);
}

static int no_locked_memory(void)
{
    struct rlimit locked = {0, 0};

    if (setrlimit(RLIMIT_MEMLOCK, &locked) < 0 ||
        (getuid() == 0 && setresuid(65533, 65533, 65533)))
        return SKIP;
    create_or_die();
    return serve_one();
}

/* Neither /proc nor /sys: the number of CPUs comes from the affinity mask alone. */
static int no_proc_and_no_sys(void)
{
    if (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
        mount("none", "/proc", "tmpfs", MS_RDONLY, NULL) < 0 ||
        mount("none", "/sys", "tmpfs", MS_RDONLY, NULL) < 0)
        return SKIP;
    create_or_die();
    return leave(serve_one());
}

/* ---- how many workers ------------------------------------------------------------------------ */

/* The exit code is the number. */
static int workers_by_default(void)
{
    weir_options options = WEIR_OPTIONS_INIT;
    weir_stats stats = {.size = sizeof stats};

    if (create(&options) < 0 || weir_stats_get(runtime, &stats) < 0)
        return 100;
    weir_runtime_destroy(runtime);
    return stats.workers == stats.workers_set ? (int)stats.workers : 101;
}

/* WEIR_WORKERS is set: that many, or -EINVAL and one line that names variable, value and range. */
static int workers_by_variable(void)
{
    weir_options options = WEIR_OPTIONS_INIT;
    weir_stats stats = {.size = sizeof stats};
    const char *value = getenv("WEIR_WORKERS");

    int r = create(&options);
    if (r == 0 && weir_stats_get(runtime, &stats) == 0) {
        weir_runtime_destroy(runtime);
        return stats.workers == (unsigned)atoi(value) ? FINE : WRONG;
    }
    bool named = strstr(last_line, "WEIR_WORKERS") && strstr(last_line, value) &&
                 strstr(last_line, "1024") && atomic_load(&lines) == 1;
    return r == -EINVAL && named ? CAUGHT : WRONG;
}

static const struct {
    const char *name;
    int (*run)(void);
} cases[] = {
#define CASE(name) {#name, name}
    CASE(exit_while_jobs_run),
    CASE(return_without_destroy),
    CASE(heap_gone_while_idle),
    CASE(destroy_in_an_exit_handler),
    CASE(segv_in_a_callback),
    CASE(segv_in_a_blocking_job),
    CASE(abort_in_a_callback),
    CASE(deep_callback_under_a_small_stack_limit),
    CASE(stack_as_big_as_asked_for),
    CASE(few_descriptors),
    CASE(no_descriptors),
    CASE(no_threads),
    CASE(no_locked_memory),
    CASE(no_proc_and_no_sys),
    CASE(workers_by_default),
    CASE(workers_by_variable),
};

int main(int argc, char **argv)
{
    for (size_t i = 0; argc == 2 && i < sizeof cases / sizeof *cases; i++)
        if (strcmp(argv[1], cases[i].name) == 0)
            return cases[i].run();
    return 99;
}
