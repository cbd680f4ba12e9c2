/* Our own mistakes end the process with one line; release builds do not even look. */
#include "base/assert.h"

#include <stdint.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/test.h"

#ifdef WEIR_ASSERTS

/* Runs WR_ASSERT(value == 1) in a child; its standard error ends up in `said`. */
static int status_of_assert(int value, char *said, size_t size)
{
    int ends[2];
    cr_assert_eq(pipe(ends), 0);
    pid_t child = fork();
    cr_assert_geq(child, 0);
    if (child == 0) {
        struct rlimit none = { 0, 0 };
        (void)setrlimit(RLIMIT_CORE, &none);
        (void)signal(SIGABRT, SIG_DFL);
        (void)dup2(ends[1], STDERR_FILENO);
        WR_ASSERT(value == 1);
        _exit(0);
    }
    (void)close(ends[1]);
    size_t used = 0;
    for (ssize_t got; (got = read(ends[0], said + used, size - 1 - used)) > 0;)
        used += (size_t)got;
    said[used] = '\0';
    (void)close(ends[0]);
    int status = 0;
    cr_assert_eq(waitpid(child, &status, 0), child);
    return status;
}

Test(assert, a_false_condition_prints_one_line_and_aborts, .timeout = 20)
{
    char said[1024];
    int status = status_of_assert(2, said, sizeof said);
    cr_assert(WIFSIGNALED(status));
    cr_assert_eq(WTERMSIG(status), SIGABRT);
    cr_assert_not_null(strstr(said, "test_assert.c:"));
    cr_assert_not_null(strstr(said, "value == 1"));
    cr_assert_eq(strchr(said, '\n'), said + strlen(said) - 1, "not one line: %s", said);
}

Test(assert, a_true_condition_says_nothing, .timeout = 20)
{
    char said[1024];
    cr_assert_eq(status_of_assert(1, said, sizeof said), 0);
    cr_assert_str_eq(said, "");
}

#else

Test(assert, release_builds_do_not_evaluate_the_condition, .timeout = 20)
{
    int looked = 0;
    WR_ASSERT(looked++ == 5);
    cr_assert_eq(looked, 0);
}

#endif
