/* test_host.c: hosts with bad habits and small limits; what each does stands in victim.c. (P06,
 * P07, E01, E03, E07, and the faults of P04) */
#include "support/rig.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { FINE = 0, CAUGHT = 42, SKIP = 77, KILLED = -1, LATE = -2 };

/* What the new process does to itself before it becomes the victim. */
struct limits {
    rlim_t stack;              /* 0: as it is */
    int cpus;                  /* 0: all; else the first so many of those allowed */
    const char *group;         /* a cgroup to be in, or NULL */
    const char *name, *value;  /* a variable */
};

static void write_text(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    ssize_t written = fd < 0 ? -1 : write(fd, text, strlen(text));

    close(fd);
    if (written < 0)
        _exit(SKIP);
}

static void limit(const struct limits *limits)
{
    cpu_set_t all, some;

    CPU_ZERO(&all);
    CPU_ZERO(&some);
    sched_getaffinity(0, sizeof all, &all);
    int left = limits->cpus;
    for (size_t cpu = 0; cpu < CPU_SETSIZE && left > 0; cpu++) {
        if (CPU_ISSET(cpu, &all)) {
            CPU_SET(cpu, &some);
            left--;
        }
    }
    if (limits->cpus && sched_setaffinity(0, sizeof some, &some) < 0)
        _exit(SKIP);
    struct rlimit stack = {limits->stack, limits->stack};
    if (limits->stack && setrlimit(RLIMIT_STACK, &stack) < 0)
        _exit(SKIP);
    if (limits->group)
        write_text(limits->group, "0");
    if (limits->name)
        setenv(limits->name, limits->value, 1);
}

/* The exit code; KILLED by a signal; LATE: it did not end within the time. */
static int run_victim(const char *name, const struct limits *limits)
{
    int status = 0;
    pid_t child = fork();

    cr_assert_geq(child, 0);
    if (child == 0) {
        limit(limits);
        execl(VICTIM, VICTIM, name, (char *)NULL);
        _exit(98);
    }
    if (!RIG_UNTIL(waitpid(child, &status, WNOHANG) == child, 30000)) {
        kill(child, SIGKILL);
        waitpid(child, &status, 0);
        return LATE;
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : KILLED;
}

static void expect_with(const char *name, const struct limits *limits, int wanted)
{
    int code = run_victim(name, limits);

    if (code == SKIP)
        cr_skip_test("cannot be tried here");
    cr_assert_eq(code, wanted, "%s: %d", name, code);
}

static void expect(const char *name, int wanted)
{
    const struct limits none = {0};

    expect_with(name, &none, wanted);
}

#define HOST_TEST(name, wanted) \
    Test(host, name, .timeout = 60) \
    { \
        expect(#name, wanted); \
    }

HOST_TEST(exit_while_jobs_run, FINE)
HOST_TEST(return_without_destroy, FINE)
HOST_TEST(heap_gone_while_idle, FINE)
HOST_TEST(destroy_in_an_exit_handler, FINE)
HOST_TEST(segv_in_a_callback, CAUGHT)
HOST_TEST(segv_in_a_blocking_job, CAUGHT)
HOST_TEST(abort_in_a_callback, CAUGHT)
HOST_TEST(stack_as_big_as_asked_for, FINE)
HOST_TEST(few_descriptors, FINE)
HOST_TEST(no_descriptors, FINE)
HOST_TEST(no_threads, FINE)
HOST_TEST(no_proc_and_no_sys, FINE)

Test(host, no_locked_memory, .timeout = 60)
{
    const char *backend = getenv("WEIR_BACKEND");

    if (backend && strcmp(backend, "io_uring") == 0)
        cr_skip_test("a ring is locked memory; what is said then, test_io_uring.c has");
    expect("no_locked_memory", FINE);
}

Test(host, deep_callback_under_a_small_stack_limit, .timeout = 60)
{
    const struct limits limits = {.stack = 128 << 10};

#if defined(WEIR_TSAN) || defined(__SANITIZE_ADDRESS__)
    cr_skip_test("the sanitizer itself needs more than that");
#endif
    expect_with("deep_callback_under_a_small_stack_limit", &limits, FINE);
}

/* ---- how many workers (E01, E03) ------------------------------------------------------------- */

static int usable_cpus(void)
{
    cpu_set_t all;

    cr_assert_eq(sched_getaffinity(0, sizeof all, &all), 0);
    return CPU_COUNT(&all);
}

Test(host, affinity_bounds_the_workers, .timeout = 60)
{
    int all = usable_cpus();

    for (int cpus = 1; cpus <= all && cpus <= 4; cpus++) {
        const struct limits limits = {.cpus = cpus};
        int workers = run_victim("workers_by_default", &limits);
        cr_expect_leq(workers, cpus);
        cr_expect_geq(workers, 1);
        if (cpus < all) /* a quota of the machine's own may say less than all */
            cr_expect_eq(workers, cpus, "%d workers for %d CPUs", workers, cpus);
    }
}

/* A group below our own with this many CPUs in hundredths; false: groups cannot be made here. */
static bool make_group(char folder[128], char tasks[160], int hundredths)
{
    char path[192], text[64];
    bool unified = access("/sys/fs/cgroup/cgroup.controllers", F_OK) == 0;

    snprintf(folder, 128, "/sys/fs/cgroup/%sweir-test-%d", unified ? "" : "cpu/", (int)getpid());
    snprintf(tasks, 160, "%s/cgroup.procs", folder);
    snprintf(path, sizeof path, "%s/%s", folder, unified ? "cpu.max" : "cpu.cfs_quota_us");
    if (mkdir(folder, 0755) < 0)
        return false;
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    int length = snprintf(text, sizeof text, unified ? "%d 100000" : "%d", hundredths * 1000);
    bool made = fd >= 0 && write(fd, text, (size_t)length) == length;
    close(fd);
    if (!made)
        rmdir(folder);
    return made;
}

Test(host, a_cgroup_quota_bounds_the_workers, .timeout = 60)
{
    static const int hundredths[] = {50, 100, 150, 200};
    int all = usable_cpus();

    for (size_t i = 0; i < sizeof hundredths / sizeof *hundredths; i++) {
        char folder[128], tasks[160];
        int wanted = (hundredths[i] + 99) / 100;
        if (!make_group(folder, tasks, hundredths[i]))
            cr_skip_test("no cgroup can be made here");
        const struct limits limits = {.group = tasks};
        int workers = run_victim("workers_by_default", &limits);
        const struct limits both = {.group = tasks, .cpus = 1};
        int bound = run_victim("workers_by_default", &both);
        cr_expect(RIG_UNTIL(rmdir(folder) == 0, 5000), "rmdir: errno %d", errno);
        if (workers == SKIP)
            cr_skip_test("no process can be put into a cgroup here");
        cr_expect_eq(workers, wanted < all ? wanted : all, "%d workers for %d/100 of a CPU",
                     workers, hundredths[i]);
        cr_expect_eq(bound, 1, "%d workers on one CPU", bound);
    }
}

Test(host, a_variable_beats_what_is_detected_and_a_bad_one_is_named, .timeout = 60)
{
    static const struct {
        const char *value;
        int wanted;
    } values[] = {{"1", FINE},   {"5", FINE},      {"64", FINE},  {"0", CAUGHT},
                  {"-1", CAUGHT}, {"1025", CAUGHT}, {"two", CAUGHT}};

    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        const struct limits limits = {.name = "WEIR_WORKERS", .value = values[i].value, .cpus = 1};
        int code = run_victim("workers_by_variable", &limits);
        cr_expect_eq(code, values[i].wanted, "WEIR_WORKERS=%s: %d", values[i].value, code);
    }
}
