/* tsan_main.c: the runner where Criterion cannot be: a process and a deadline for each test.
 *
 * --filter PATTERN runs what matches suite/name (a shell pattern); --list names the tests. Other
 * arguments are Criterion's and are ignored, so that one command line serves both builds. */
#include "support/test.h"

#include <errno.h>
#include <fnmatch.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define TIMEOUT_DEFAULT 60.0
#define EXIT_SKIPPED 77
#define LINE_MAX_BYTES 1024

extern const struct support_test *const __start_support_tests[];
extern const struct support_test *const __stop_support_tests[];

static atomic_int failures;         /* of the test that this process runs */

/* One write a line: lines of several threads stay whole. */
static void line(const char *prefix, const char *format, va_list arguments)
{
    char text[LINE_MAX_BYTES];
    int used = snprintf(text, sizeof text, "%s", prefix);
    int more = vsnprintf(text + used, sizeof text - (size_t)used - 1, format, arguments);
    size_t length = strlen(text);
    (void)more;
    if (length > 0 && text[length - 1] != '\n')
        text[length++] = '\n';
    ssize_t written = write(STDERR_FILENO, text, length);
    (void)written;
}

void support_failed(bool fatal, const char *file, int number, const char *what, const char *format,
                    ...)
{
    char prefix[LINE_MAX_BYTES / 2];
    va_list arguments;

    snprintf(prefix, sizeof prefix, "%s:%d: failed: %s: ", file, number, what);
    va_start(arguments, format);
    line(prefix, format, arguments);
    va_end(arguments);
    atomic_fetch_add_explicit(&failures, 1, memory_order_relaxed);
    if (fatal)
        _exit(EXIT_FAILURE);
}

void support_note(const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    line("note: ", format, arguments);
    va_end(arguments);
}

void support_skip(const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    line("skipped: ", format, arguments);
    va_end(arguments);
    _exit(EXIT_SKIPPED);
}

static void *do_nothing(void *context)
{
    return context;
}

/* ThreadSanitizer starts a thread of its own with the first one of ours. It starts it here, so that
 * a test which counts threads before and after counts it both times. */
static void start_sanitizer_thread(void)
{
    pthread_t thread;

    if (pthread_create(&thread, NULL, do_nothing, NULL) == 0)
        pthread_join(thread, NULL);
}

static void run_in_child(const struct support_test *test, const sigset_t *mask)
{
    setpgid(0, 0);
    sigprocmask(SIG_SETMASK, mask, NULL);
    start_sanitizer_thread();
    if (test->init)
        test->init();
    test->run();
    if (test->fini)
        test->fini();
    int failed = atomic_load_explicit(&failures, memory_order_relaxed);
    /* exit, not _exit: ThreadSanitizer makes the code its own when it has reported something. */
    exit(failed > 0 ? EXIT_FAILURE : EXIT_SUCCESS);
}

static long long now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_nsec + now.tv_sec * 1000000000LL;
}

/* The status of the child, or -1 when its time was over. SIGCHLD is blocked: none is missed. */
static int wait_for(pid_t child, double seconds)
{
    long long deadline = now_ns() + (long long)(seconds * 1e9);
    sigset_t set;
    int status = 0;

    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    while (waitpid(child, &status, WNOHANG) != child) {
        long long left = deadline - now_ns();
        if (left <= 0) {
            kill(-child, SIGKILL);
            kill(child, SIGKILL);
            waitpid(child, &status, 0);
            return -1;
        }
        struct timespec rest = {
            .tv_sec = (time_t)(left / 1000000000LL), .tv_nsec = (long)(left % 1000000000LL)};
        sigtimedwait(&set, NULL, &rest);
    }
    return status;
}

enum outcome { PASSED, FAILED, SKIPPED };

static enum outcome run(const struct support_test *test, const sigset_t *mask)
{
    double seconds = test->timeout > 0 ? test->timeout : TIMEOUT_DEFAULT;

    if (test->disabled) {
        printf("[SKIP] %s::%s: disabled\n", test->suite, test->name);
        return SKIPPED;
    }
    fflush(NULL);
    pid_t child = fork();
    if (child < 0) {
        printf("[FAIL] %s::%s: fork: %s\n", test->suite, test->name, strerror(errno));
        return FAILED;
    }
    if (child == 0)
        run_in_child(test, mask);
    int status = wait_for(child, seconds);
    if (status == -1) {
        printf("[FAIL] %s::%s: not done after %.1f s\n", test->suite, test->name, seconds);
        return FAILED;
    }
    if (WIFSIGNALED(status) ? WTERMSIG(status) == test->signal
                            : test->signal == 0 && WEXITSTATUS(status) == test->exit_code) {
        printf("[PASS] %s::%s\n", test->suite, test->name);
        return PASSED;
    }
    if (WIFEXITED(status) && WEXITSTATUS(status) == EXIT_SKIPPED) {
        printf("[SKIP] %s::%s\n", test->suite, test->name);
        return SKIPPED;
    }
    printf("[FAIL] %s::%s: %s %d\n", test->suite, test->name,
           WIFSIGNALED(status) ? "signal" : "exit code",
           WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
    return FAILED;
}

static bool matches(const struct support_test *test, const char *pattern, bool list)
{
    char name[256];

    snprintf(name, sizeof name, "%s/%s", test->suite, test->name);
    if (fnmatch(pattern, name, 0) != 0)
        return false;
    if (list)
        printf("%s\n", name);
    return !list;
}

int main(int argc, char **argv)
{
    const char *pattern = "*";
    bool list = false;
    int counts[3] = {0, 0, 0};
    sigset_t set, before;

    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--filter") == 0 && i + 1 < argc)
            pattern = argv[++i];
        else if (strncmp(argv[i], "--filter=", 9) == 0)
            pattern = argv[i] + 9;
        else if (strcmp(argv[i], "--list") == 0)
            list = true;
    }
    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    sigprocmask(SIG_BLOCK, &set, &before);
    for (const struct support_test *const *at = __start_support_tests; at < __stop_support_tests;
         at++) {
        if (matches(*at, pattern, list))
            counts[run(*at, &before)]++;
    }
    if (!list)
        printf("[====] Tested: %d | Passing: %d | Failing: %d | Skipped: %d\n",
               counts[PASSED] + counts[FAILED] + counts[SKIPPED], counts[PASSED], counts[FAILED],
               counts[SKIPPED]);
    return counts[FAILED] > 0 ? EXIT_FAILURE : EXIT_SUCCESS;
}
