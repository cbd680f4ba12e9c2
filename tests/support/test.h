/* test.h: the one include of every test.
 *
 * Criterion, except in a TSan build: its runner aborts under ThreadSanitizer, so there the same
 * names are a registry in a linker section, run by tests/support/tsan_main.c with a process and a
 * deadline for each test. WEIR_TESTS_PLAIN asks for that runner elsewhere: it forks and never
 * executes again, which valgrind follows cheaply. Tests use only what both have. */
#ifndef WEIR_TESTS_SUPPORT_TEST_H
#define WEIR_TESTS_SUPPORT_TEST_H

#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if !defined(WEIR_TSAN) && !defined(WEIR_TESTS_PLAIN)

#include <criterion/criterion.h>
#include <criterion/logging.h>

#else

#include <math.h>

struct support_test {
    const char *suite;
    const char *name;
    void (*run)(void);
    void (*init)(void);
    void (*fini)(void);
    double timeout;                 /* seconds; 0: the default of the runner */
    int signal;                     /* the test must die of this signal */
    int exit_code;                  /* the test must end with this code */
    bool disabled;
    const char *description;
    char end_;
};

/* Prints one line; when `fatal`, ends the test's process. From any thread of it. */
void support_failed(bool fatal, const char *file, int line, const char *what, const char *format,
                    ...);
void support_note(const char *format, ...);
void support_skip(const char *format, ...) __attribute__((noreturn));

#define Test(Suite, ...) SUPPORT_TEST_(Suite, __VA_ARGS__, .end_ = 0)
#define SUPPORT_TEST_(Suite, Name, ...) \
    static void Suite##_##Name##_run_(void); \
    static const struct support_test Suite##_##Name##_test_ = { \
        .suite = #Suite, .name = #Name, .run = Suite##_##Name##_run_, __VA_ARGS__}; \
    __attribute__((used, section("support_tests"))) static const struct support_test \
        *const Suite##_##Name##_entry_ = &Suite##_##Name##_test_; \
    static void Suite##_##Name##_run_(void)

/* A check takes its message as optional printf arguments: the "" at the end stands for a message
 * that is missing and is one unused argument after a message that is there. */
#define SUPPORT_CHECK_(Fatal, What, Good, ...) \
    ((Good) ? (void)0 : support_failed(Fatal, __FILE__, __LINE__, What, __VA_ARGS__))
#define SUPPORT_TRUE_(Fatal, A, ...) SUPPORT_CHECK_(Fatal, #A, (A), __VA_ARGS__)
#define SUPPORT_FALSE_(Fatal, A, ...) SUPPORT_CHECK_(Fatal, "not " #A, !(A), __VA_ARGS__)
#define SUPPORT_SET_(Fatal, A, ...) \
    SUPPORT_CHECK_(Fatal, #A " != NULL", (A) != NULL, __VA_ARGS__)
#define SUPPORT_OP_(Fatal, Op, A, B, ...) \
    SUPPORT_CHECK_(Fatal, #A " " #Op " " #B, (A) Op (B), __VA_ARGS__)
#define SUPPORT_STR_(Fatal, Op, A, B, ...) \
    SUPPORT_CHECK_(Fatal, "strcmp(" #A ", " #B ") " #Op " 0", strcmp((A), (B)) Op 0, __VA_ARGS__)
#define SUPPORT_MEM_(Fatal, Op, A, B, Size, ...) \
    SUPPORT_CHECK_(Fatal, "memcmp(" #A ", " #B ") " #Op " 0", memcmp((A), (B), (Size)) Op 0, \
                   __VA_ARGS__)
#define SUPPORT_FLOAT_(Fatal, A, B, Within, ...) \
    SUPPORT_CHECK_(Fatal, #A " ~ " #B, fabs((double)(A) - (double)(B)) <= (double)(Within), \
                   __VA_ARGS__)

#define cr_assert(...) SUPPORT_TRUE_(true, __VA_ARGS__, "")
#define cr_assert_not(...) SUPPORT_FALSE_(true, __VA_ARGS__, "")
#define cr_assert_eq(...) SUPPORT_OP_(true, ==, __VA_ARGS__, "")
#define cr_assert_neq(...) SUPPORT_OP_(true, !=, __VA_ARGS__, "")
#define cr_assert_lt(...) SUPPORT_OP_(true, <, __VA_ARGS__, "")
#define cr_assert_leq(...) SUPPORT_OP_(true, <=, __VA_ARGS__, "")
#define cr_assert_gt(...) SUPPORT_OP_(true, >, __VA_ARGS__, "")
#define cr_assert_geq(...) SUPPORT_OP_(true, >=, __VA_ARGS__, "")
#define cr_assert_null(...) SUPPORT_FALSE_(true, __VA_ARGS__, "")
#define cr_assert_not_null(...) SUPPORT_SET_(true, __VA_ARGS__, "")
#define cr_assert_str_eq(...) SUPPORT_STR_(true, ==, __VA_ARGS__, "")
#define cr_assert_str_neq(...) SUPPORT_STR_(true, !=, __VA_ARGS__, "")
#define cr_assert_arr_eq(...) SUPPORT_MEM_(true, ==, __VA_ARGS__, "")
#define cr_assert_arr_neq(...) SUPPORT_MEM_(true, !=, __VA_ARGS__, "")
#define cr_assert_float_eq(...) SUPPORT_FLOAT_(true, __VA_ARGS__, "")
#define cr_assert_fail(...) support_failed(true, __FILE__, __LINE__, "reached", "" __VA_ARGS__)

#define cr_expect(...) SUPPORT_TRUE_(false, __VA_ARGS__, "")
#define cr_expect_not(...) SUPPORT_FALSE_(false, __VA_ARGS__, "")
#define cr_expect_eq(...) SUPPORT_OP_(false, ==, __VA_ARGS__, "")
#define cr_expect_neq(...) SUPPORT_OP_(false, !=, __VA_ARGS__, "")
#define cr_expect_lt(...) SUPPORT_OP_(false, <, __VA_ARGS__, "")
#define cr_expect_leq(...) SUPPORT_OP_(false, <=, __VA_ARGS__, "")
#define cr_expect_gt(...) SUPPORT_OP_(false, >, __VA_ARGS__, "")
#define cr_expect_geq(...) SUPPORT_OP_(false, >=, __VA_ARGS__, "")
#define cr_expect_null(...) SUPPORT_FALSE_(false, __VA_ARGS__, "")
#define cr_expect_not_null(...) SUPPORT_SET_(false, __VA_ARGS__, "")
#define cr_expect_str_eq(...) SUPPORT_STR_(false, ==, __VA_ARGS__, "")
#define cr_expect_str_neq(...) SUPPORT_STR_(false, !=, __VA_ARGS__, "")
#define cr_expect_arr_eq(...) SUPPORT_MEM_(false, ==, __VA_ARGS__, "")
#define cr_expect_arr_neq(...) SUPPORT_MEM_(false, !=, __VA_ARGS__, "")
#define cr_expect_float_eq(...) SUPPORT_FLOAT_(false, __VA_ARGS__, "")
#define cr_expect_fail(...) support_failed(false, __FILE__, __LINE__, "reached", "" __VA_ARGS__)

#define cr_skip_test(...) support_skip("" __VA_ARGS__)
#define cr_log_info(...) support_note(__VA_ARGS__)
#define cr_log_warn(...) support_note(__VA_ARGS__)
#define cr_log_error(...) support_note(__VA_ARGS__)

#endif

#endif
