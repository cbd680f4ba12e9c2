/* Settings: code wins over the environment, which wins over the default; one line for a bad one. */
#include "options.h"

#include <errno.h>
#include <limits.h>
#include <sched.h>
#include <stdint.h>
#include <sys/resource.h>

#include "support/test.h"

#define LINES_MAX 8

struct heard {
    unsigned lines;
    enum weir_log_level levels[LINES_MAX];
    char text[LINES_MAX][WR_LOG_LINE_MAX + 1];
};

static struct heard heard;

static void hear(enum weir_log_level level, const char *line, void *context)
{
    struct heard *to = context;
    if (to->lines < LINES_MAX) {
        to->levels[to->lines] = level;
        snprintf(to->text[to->lines], sizeof to->text[0], "%s", line);
    }
    to->lines++;
}

static const char *const variables[] = {
    "WEIR_BACKEND", "WEIR_DISPATCH", "WEIR_POLLERS", "WEIR_WORKERS", "WEIR_WORKERS_MAX",
    "WEIR_BLOCKING_MAX", "WEIR_BATCH", "WEIR_SLICE_US", "WEIR_SPIN_US", "WEIR_SOURCES_MAX",
    "WEIR_LOG", "WEIR_POLL", "WEIR_INLINE", "WEIR_RECV", "WEIR_WRITE_BUDGET",
    "WEIR_RECV_BUFFERS",
};

/* What runs the tests may have set some of them. */
static void clear(void)
{
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++)
        (void)unsetenv(variables[i]);
    memset(&heard, 0, sizeof heard);
}

#define OptionsTest(name) Test(options, name, .init = clear, .timeout = 30)

static weir_options listening(void)
{
    weir_options options = WEIR_OPTIONS_INIT;
    options.log = hear;
    options.log_context = &heard;
    return options;
}

static int resolve(struct wr_options *ret, const weir_options *user)
{
    memset(&heard, 0, sizeof heard);
    errno = ENOENT;
    int r = wr_options_resolve(ret, user);
    cr_assert_eq(errno, ENOENT);
    return r;
}

static struct wr_options resolved(const weir_options *user)
{
    struct wr_options options;
    int r = resolve(&options, user);
    cr_assert_eq(r, 0, "%d: %s", r, heard.text[0]);
    return options;
}

/* -EINVAL, nothing written, and exactly one error line that has all of `first` and `second`. */
static void expect_refused(const weir_options *user, const char *first, const char *second)
{
    static const unsigned char untouched = 0x5a;
    struct wr_options options;
    memset(&options, untouched, sizeof options);
    cr_assert_eq(resolve(&options, user), -EINVAL, "%s %s was taken", first, second);
    for (size_t i = 0; i < sizeof options; i++)
        cr_assert_eq(((unsigned char *)&options)[i], untouched);
    cr_assert_eq(heard.lines, 1, "%s: %u lines", first, heard.lines);
    cr_assert_eq(heard.levels[0], WEIR_LOG_ERROR);
    cr_assert_not_null(strstr(heard.text[0], first), "no %s in: %s", first, heard.text[0]);
    cr_assert_not_null(strstr(heard.text[0], second), "no %s in: %s", second, heard.text[0]);
}

static void expect_variable_refused(const char *variable, const char *value, const char *range)
{
    weir_options user = listening();
    char shown[128];
    cr_assert_eq(setenv(variable, value, 1), 0);
    snprintf(shown, sizeof shown, "%s=\"%s\"", variable, value);
    expect_refused(&user, shown, range);
    cr_assert_eq(unsetenv(variable), 0);
}

OptionsTest(without_options_there_are_defaults)
{
    struct wr_options options = resolved(NULL);
    cr_assert_str_eq(options.name, "weir");
    cr_assert_eq(options.backend, WEIR_BACKEND_AUTO);
    cr_assert_eq(options.dispatch, WEIR_DISPATCH_PUMP);
    cr_assert_eq(options.workers_max, options.workers + 64);
    cr_assert_eq(options.blocking_max, 64);
    cr_assert_eq(options.batch, 256);
    cr_assert_eq(options.slice_us, 2000);
    cr_assert_eq(options.stack_size, 256 * 1024);
    cr_assert_eq(options.log.level, WEIR_LOG_WARN);
    cr_assert_null(options.log.hook);
    cr_assert_not(options.has_allocator);
    cr_assert_null(options.thread_start);
}

OptionsTest(workers_are_the_cpus_that_are_usable)
{
    cpu_set_t all, one;
    int cpu = 0;
    cr_assert_eq(sched_getaffinity(0, sizeof all, &all), 0);
    CPU_ZERO(&one);
    while (!CPU_ISSET((size_t)cpu, &all))
        cpu++;
    CPU_SET((size_t)cpu, &one);
    cr_assert_leq(resolved(NULL).workers, (unsigned)CPU_COUNT(&all));
    cr_assert_eq(sched_setaffinity(0, sizeof one, &one), 0);
    struct wr_options options = resolved(NULL);
    cr_assert_eq(options.workers, 1);
    cr_assert_eq(options.workers_max, 65);
    cr_assert_eq(options.pollers, 1);
    cr_assert_eq(options.spin_us, 0);
}

OptionsTest(defaults_follow_the_size_of_the_machine)
{
    static const struct {
        struct wr_cpu cpu;
        unsigned pollers, workers, spin_us;
    } rows[] = {
        { { 1, false, 0, 1 }, 1, 1, 0 },
        { { 2, false, 0, 2 }, 1, 2, 0 },
        { { 3, false, 0, 3 }, 1, 3, 20 },
        { { 8, true, 2.5, 3 }, 1, 3, 0 },
        { { 8, true, 8, 8 }, 1, 8, 20 },
        { { 8, true, 100, 8 }, 1, 8, 20 },
        { { 44, false, 0, 44 }, 1, 44, 20 },
        { { 45, false, 0, 45 }, 2, 45, 20 },
        { { 75, false, 0, 75 }, 3, 75, 20 },
        { { 4096, false, 0, 4096 }, 64, 1024, 20 },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct wr_options options;
        wr_options_default(&options, &rows[i].cpu, 5000);
        cr_assert_eq(options.pollers, rows[i].pollers, "row %zu", i);
        cr_assert_eq(options.workers, rows[i].workers, "row %zu", i);
        cr_assert_eq(options.workers_max, rows[i].workers + 64, "row %zu", i);
        cr_assert_eq(options.spin_us, rows[i].spin_us, "row %zu", i);
        cr_assert_eq(options.sources_max, 5000);
    }
}

OptionsTest(sources_follow_the_limit_of_open_files)
{
    struct wr_cpu cpu = { .affinity = 1, .usable = 1 };
    struct wr_options options;
    wr_options_default(&options, &cpu, 20);
    cr_assert_eq(options.sources_max, 1024);
    wr_options_default(&options, &cpu, RLIM_INFINITY);
    cr_assert_eq(options.sources_max, 1048576);
    struct rlimit files;
    cr_assert_eq(getrlimit(RLIMIT_NOFILE, &files), 0);
    if (files.rlim_max < 2000)
        cr_skip_test("no room below the hard limit of open files");
    files.rlim_cur = 2000;
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &files), 0);
    cr_assert_eq(resolved(NULL).sources_max, 2000);
}

/* All that is a whole number: where it is, and its range. */
static const struct number {
    const char *variable, *option, *range;
    size_t user, effective;
    unsigned bias, least, most;
} numbers[] = {
#define ROW(field, variable, least, most)                                                          \
    { variable, #field, #least ".." #most, offsetof(weir_options, field),                          \
      offsetof(struct wr_options, field), 0, least, most }
    ROW(pollers, "WEIR_POLLERS", 1, 64),
    ROW(workers, "WEIR_WORKERS", 1, 1024),
    ROW(workers_max, "WEIR_WORKERS_MAX", 1, 4096),
    ROW(blocking_max, "WEIR_BLOCKING_MAX", 1, 4096),
    ROW(batch, "WEIR_BATCH", 1, 4096),
    ROW(slice_us, "WEIR_SLICE_US", 10, 1000000),
    { "WEIR_SPIN_US", "spin_us_plus_one", "0..1000", offsetof(weir_options, spin_us_plus_one),
      offsetof(struct wr_options, spin_us), 1, 0, 1000 },
    ROW(sources_max, "WEIR_SOURCES_MAX", 64, 16777216),
#undef ROW
};

#define NUMBERS (sizeof numbers / sizeof *numbers)

static unsigned effective(const struct wr_options *options, const struct number *number)
{
    unsigned value;
    memcpy(&value, (const char *)options + number->effective, sizeof value);
    return value;
}

static void set_in_code(weir_options *user, const struct number *number, unsigned value)
{
    value += number->bias;
    memcpy((char *)user + number->user, &value, sizeof value);
}

static void set_variable(const char *variable, unsigned value)
{
    char text[16];
    snprintf(text, sizeof text, "%u", value);
    cr_assert_eq(setenv(variable, text, 1), 0);
}

OptionsTest(numbers_are_taken_from_the_environment_up_to_both_ends_of_the_range)
{
    for (size_t i = 0; i < NUMBERS; i++) {
        const unsigned values[] = { numbers[i].least, numbers[i].least + 1, numbers[i].most };
        for (size_t v = 0; v < 3; v++) {
            weir_options user = listening();
            set_variable(numbers[i].variable, values[v]);
            struct wr_options options = resolved(&user);
            cr_assert_eq(effective(&options, &numbers[i]), values[v], "%s", numbers[i].variable);
        }
        (void)unsetenv(numbers[i].variable);
    }
}

OptionsTest(numbers_in_code_win_over_the_environment)
{
    for (size_t i = 0; i < NUMBERS; i++) {
        const unsigned values[] = { numbers[i].least, numbers[i].most };
        cr_assert_eq(setenv(numbers[i].variable, "not even a number", 1), 0);
        for (size_t v = 0; v < 2; v++) {
            weir_options user = listening();
            set_in_code(&user, &numbers[i], values[v]);
            struct wr_options options = resolved(&user);
            cr_assert_eq(effective(&options, &numbers[i]), values[v], "%s", numbers[i].option);
        }
        (void)unsetenv(numbers[i].variable);
    }
}

OptionsTest(numbers_in_the_environment_are_decimal_and_nothing_else)
{
    static const char *const bad[] = {
        "", " ", "many", "0x10", "1e2", "-1", "+70", " 70", "70 ", "70k", "70.0", "7_0", "\xd9\xa3",
        "4294967360", "18446744073709551680", "99999999999999999999999999999999",
    };
    for (size_t i = 0; i < NUMBERS; i++)
        for (size_t b = 0; b < sizeof bad / sizeof *bad; b++)
            expect_variable_refused(numbers[i].variable, bad[b], numbers[i].range);
    set_variable("WEIR_WORKERS", 5);
    cr_assert_eq(setenv("WEIR_BATCH", "0100", 1), 0);
    cr_assert_eq(resolved(NULL).batch, 100);
}

OptionsTest(numbers_out_of_range_are_refused)
{
    for (size_t i = 0; i < NUMBERS; i++) {
        char value[16];
        snprintf(value, sizeof value, "%u", numbers[i].most + 1);
        expect_variable_refused(numbers[i].variable, value, numbers[i].range);
        weir_options user = listening();
        set_in_code(&user, &numbers[i], numbers[i].most + 1);
        char shown[64];
        snprintf(shown, sizeof shown, "%u is out of range, %s", numbers[i].most + 1,
                 numbers[i].range);
        expect_refused(&user, numbers[i].option, shown);
        if (numbers[i].least == 0)
            continue;
        snprintf(value, sizeof value, "%u", numbers[i].least - 1);
        expect_variable_refused(numbers[i].variable, value, numbers[i].range);
    }
    weir_options user = listening();
    user.slice_us = 9;
    expect_refused(&user, "slice_us", "9 is out of range, 10..1000000");
    user = listening();
    user.sources_max = 63;
    expect_refused(&user, "sources_max", "63 is out of range, 64..16777216");
}

OptionsTest(write_budget_counts_bytes_and_has_a_word_for_no_limit)
{
    static const char *const bad[] = { "", "-1", "64k", "18446744073709551616" };
    size_t unset = resolved(NULL).write_budget;
    cr_expect_gt(unset, 1 << 20, "a quarter of this machine's memory");
    cr_expect_lt(unset, SIZE_MAX);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        expect_variable_refused("WEIR_WRITE_BUDGET", bad[i], "0 (no limit)..");
    cr_assert_eq(setenv("WEIR_WRITE_BUDGET", "8589934592", 1), 0);
    cr_expect_eq(resolved(NULL).write_budget, (size_t)8589934592);
    weir_options user = listening();
    user.write_budget = 1;
    cr_expect_eq(resolved(&user).write_budget, 1);
    user.write_budget = SIZE_MAX;
    cr_expect_eq(resolved(&user).write_budget, SIZE_MAX);
    cr_assert_eq(setenv("WEIR_WRITE_BUDGET", "0", 1), 0);
    cr_expect_eq(resolved(NULL).write_budget, SIZE_MAX);
}

OptionsTest(the_cap_of_workers_is_not_below_the_workers_asked_for)
{
    weir_options user = listening();
    user.workers = 8;
    user.workers_max = 7;
    expect_refused(&user, "workers_max", "7 is out of range, 8..4096");
    user.workers_max = 0;
    cr_assert_eq(setenv("WEIR_WORKERS_MAX", "7", 1), 0);
    expect_refused(&user, "WEIR_WORKERS_MAX=\"7\"", "8..4096");
    user.workers_max = 8;
    cr_assert_eq(resolved(&user).workers_max, 8);
    (void)unsetenv("WEIR_WORKERS_MAX");
    user.workers_max = 0;
    cr_assert_eq(resolved(&user).workers_max, 72);
}

OptionsTest(workers_nobody_asked_for_yield_to_the_cap)
{
    weir_options user = listening();
    user.workers_max = 1;
    struct wr_options options = resolved(&user);
    cr_assert_eq(options.workers, 1);
    cr_assert_eq(options.workers_max, 1);
}

OptionsTest(words_are_taken_as_they_are_written)
{
    static const struct { const char *text; enum weir_backend value; } backends[] = {
        { "auto", WEIR_BACKEND_AUTO }, { "epoll", WEIR_BACKEND_EPOLL },
        { "io_uring", WEIR_BACKEND_IO_URING } };
    for (size_t i = 0; i < 3; i++) {
        weir_options user = listening();
        cr_assert_eq(setenv("WEIR_BACKEND", backends[i].text, 1), 0);
        cr_assert_eq(resolved(&user).backend, backends[i].value);
        user.backend = WEIR_BACKEND_EPOLL;
        cr_assert_eq(resolved(&user).backend, WEIR_BACKEND_EPOLL);
    }
    weir_options user = listening();
    cr_assert_eq(setenv("WEIR_DISPATCH", "per-event", 1), 0);
    cr_assert_eq(resolved(&user).dispatch, WEIR_DISPATCH_PER_EVENT);
    user.dispatch = WEIR_DISPATCH_PUMP;
    cr_assert_eq(resolved(&user).dispatch, WEIR_DISPATCH_PUMP);
    cr_assert_eq(resolved(&user).recv, WEIR_RECV_READINESS);
    cr_assert_eq(setenv("WEIR_RECV", "completion", 1), 0);
    cr_assert_eq(resolved(&user).recv, WEIR_RECV_COMPLETION);
    user.recv = WEIR_RECV_READINESS;
    cr_assert_eq(resolved(&user).recv, WEIR_RECV_READINESS);
    cr_assert_eq(resolved(&user).inline_callbacks, WEIR_INLINE_OFF);
    cr_assert_eq(setenv("WEIR_INLINE", "1", 1), 0);
    cr_assert_eq(resolved(&user).inline_callbacks, WEIR_INLINE_ON);
    user.inline_callbacks = WEIR_INLINE_OFF;
    cr_assert_eq(resolved(&user).inline_callbacks, WEIR_INLINE_OFF);
}

OptionsTest(words_that_do_not_exist_are_refused)
{
    static const char *const bad[] = { "", "kqueue", "Epoll", "epoll ", "1", "auto,epoll" };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        expect_variable_refused("WEIR_BACKEND", bad[i], "auto, epoll, io_uring");
        expect_variable_refused("WEIR_DISPATCH", bad[i], "pump, per-event");
        expect_variable_refused("WEIR_LOG", bad[i], "off, error, warn, info, debug");
        expect_variable_refused("WEIR_POLL", bad[i], "dedicated");
        expect_variable_refused("WEIR_RECV", bad[i], "readiness, completion");
    }
    expect_variable_refused("WEIR_INLINE", "", "0, 1");
    expect_variable_refused("WEIR_INLINE", "yes", "0, 1");
    weir_options user = listening();
    user.backend = (enum weir_backend)4;
    expect_refused(&user, "option backend: 4", "auto, epoll, io_uring");
    user = listening();
    user.dispatch = (enum weir_dispatch)3;
    expect_refused(&user, "option dispatch: 3", "pump, per-event");
    user = listening();
    user.recv = (enum weir_recv)3;
    expect_refused(&user, "option recv: 3", "readiness, completion");
    user = listening();
    user.inline_callbacks = (enum weir_inline)3;
    expect_refused(&user, "option inline_callbacks: 3", "0, 1");
    user = listening();
    user.log_level = (enum weir_log_level)6;
    expect_refused(&user, "option log_level: 6", "off, error, warn, info, debug");
}

OptionsTest(what_this_build_lacks_is_said_to_be_lacking)
{
    static const struct { const char *variable, *has, *all, *lacks[2]; } rows[] = {
        { "WEIR_RECV", "completion", "readiness, completion", { "zerocopy", NULL } },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        for (size_t l = 0; l < 2 && rows[i].lacks[l]; l++) {
            char range[64];
            snprintf(range, sizeof range, "not in this build, which has: %s", rows[i].all);
            expect_variable_refused(rows[i].variable, rows[i].lacks[l], range);
        }
        cr_assert_eq(setenv(rows[i].variable, rows[i].has, 1), 0);
    }
    (void)resolved(NULL);
}

OptionsTest(ignoring_the_environment_reads_none_of_it)
{
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++)
        cr_assert_eq(setenv(variables[i], "nonsense", 1), 0);
    weir_options user = listening();
    cr_assert_eq(resolve(&(struct wr_options){ 0 }, &user), -EINVAL);
    user.ignore_env = true;
    struct wr_options options = resolved(&user);
    cr_assert_eq(options.batch, 256);
    cr_assert_eq(heard.lines, 0);
}

OptionsTest(the_log_level_is_in_force_before_the_rest_is_read)
{
    weir_options user = listening();
    cr_assert_eq(setenv("WEIR_BATCH", "0", 1), 0);
    cr_assert_eq(setenv("WEIR_LOG", "off", 1), 0);
    cr_assert_eq(resolve(&(struct wr_options){ 0 }, &user), -EINVAL);
    cr_assert_eq(heard.lines, 0);
    cr_assert_eq(setenv("WEIR_LOG", "error", 1), 0);
    expect_refused(&user, "WEIR_BATCH=\"0\"", "1..4096");
    user.log_level = WEIR_LOG_OFF;
    cr_assert_eq(resolve(&(struct wr_options){ 0 }, &user), -EINVAL);
    cr_assert_eq(heard.lines, 0);
    /* With two bad ones the level is what is complained about. */
    user.log_level = WEIR_LOG_DEFAULT;
    cr_assert_eq(setenv("WEIR_LOG", "loud", 1), 0);
    expect_refused(&user, "WEIR_LOG=\"loud\"", "off, error, warn, info, debug");
}

OptionsTest(effective_values_are_said_at_info)
{
    weir_options user = listening();
    user.log_level = WEIR_LOG_INFO;
    user.batch = 77;
    cr_assert_eq(setenv("WEIR_SPIN_US", "13", 1), 0);
    (void)resolved(&user);
    cr_assert_geq(heard.lines, 1);
    cr_assert_leq(heard.lines, 2);
    cr_assert_eq(heard.levels[heard.lines - 1], WEIR_LOG_INFO);
    cr_assert_not_null(strstr(heard.text[heard.lines - 1], " batch=77 "));
    cr_assert_not_null(strstr(heard.text[heard.lines - 1], " spin_us=13 "));
    cr_assert_not_null(strstr(heard.text[heard.lines - 1], " backend=auto "));
    cr_assert_not_null(strstr(heard.text[heard.lines - 1], " log=info"));
    user.log_level = WEIR_LOG_WARN;
    (void)resolved(&user);
    cr_assert_eq(heard.lines, 0);
}

OptionsTest(a_hostile_value_cannot_forge_a_log_line)
{
    weir_options user = listening();
    char value[1001];
    memset(value, 'x', sizeof value - 1);
    value[sizeof value - 1] = '\0';
    memcpy(value, "1\nERROR \x1b[2J", 12);
    cr_assert_eq(setenv("WEIR_BATCH", value, 1), 0);
    expect_refused(&user, "WEIR_BATCH=\"1?ERROR ?[2Jxx", "1..4096");
    cr_assert_null(strchr(heard.text[0], '\n'));
    cr_assert_lt(strlen(heard.text[0]), 200);
}

OptionsTest(names_have_one_to_eight_bytes)
{
    char name[] = "12345678";
    weir_options user = listening();
    user.name = name;
    struct wr_options options = resolved(&user);
    memset(name, 'x', sizeof name);                 /* copied: the caller's may change */
    cr_assert_str_eq(options.name, "12345678");
    user.name = "123456789";
    expect_refused(&user, "option name: \"123456789\"", "1..8");
    user.name = "";
    expect_refused(&user, "option name: \"\"", "1..8");
}

OptionsTest(stacks_have_a_size_that_can_be)
{
    weir_options user = listening();
    user.stack_size = 32 * 1024;
    cr_assert_eq(resolved(&user).stack_size, 32 * 1024);
    user.stack_size = 32 * 1024 - 1;
    expect_refused(&user, "option stack_size: 32767", "32768..1073741824");
    user.stack_size = SIZE_MAX;
    expect_refused(&user, "option stack_size: 18446744073709551615", "32768..1073741824");
}

static void *allocate(size_t size, void *context)
{
    (void)context;
    return malloc(size);
}

static void release(void *memory, size_t size, void *context)
{
    (void)size, (void)context;
    free(memory);
}

static void on_thread(const char *name, void *context)
{
    (void)name, (void)context;
}

OptionsTest(hooks_are_copied_and_an_allocator_must_be_whole)
{
    int context;
    weir_allocator allocator = { allocate, release, &context };
    weir_options user = listening();
    user.allocator = &allocator;
    user.thread_start = user.thread_stop = on_thread;
    user.thread_context = &context;
    struct wr_options options = resolved(&user);
    cr_assert(options.has_allocator);
    cr_assert_eq(options.allocator.allocate, allocate);
    cr_assert_eq(options.allocator.release, release);
    cr_assert_eq(options.allocator.context, &context);
    cr_assert_eq(options.thread_start, on_thread);
    cr_assert_eq(options.thread_stop, on_thread);
    cr_assert_eq(options.thread_context, &context);
    cr_assert_eq(options.log.hook, hear);
    cr_assert_eq(options.log.context, &heard);
    allocator.release = NULL;
    expect_refused(&user, "option allocator", "release");
    allocator = (weir_allocator){ NULL, release, NULL };
    expect_refused(&user, "option allocator", "allocate");
}

OptionsTest(an_older_callers_options_end_where_its_size_says)
{
    weir_options user = listening();
    user.batch = 77;
    user.slice_us = 1;                              /* bad, and beyond the end */
    user.size = offsetof(weir_options, slice_us);
    struct wr_options options;
    cr_assert_eq(resolve(&options, &user), 0);
    cr_assert_eq(options.batch, 77);
    cr_assert_eq(options.slice_us, 2000);
    cr_assert_null(options.log.hook);
}

OptionsTest(a_newer_callers_options_must_not_be_set)
{
    struct { weir_options known; unsigned char newer[40]; } user = { .known = listening() };
    user.known.size = sizeof user;
    user.known.batch = 77;
    cr_assert_eq(resolved(&user.known).batch, 77);
    user.newer[39] = 1;
    expect_refused(&user.known, "option size", "beyond");
    user.newer[39] = 0;
    user.newer[0] = 1;
    expect_refused(&user.known, "option size", "beyond");
    user.known.size = sizeof user.known;
    cr_assert_eq(resolved(&user.known).batch, 77);
}

OptionsTest(a_size_that_was_never_set_is_refused)
{
    struct wr_options options;
    weir_options user = listening();
    user.size = 0;
    cr_assert_eq(resolve(&options, &user), -EINVAL);
    user.size = sizeof(size_t) - 1;
    cr_assert_eq(resolve(&options, &user), -EINVAL);
    user.size = SIZE_MAX;
    expect_refused(&user, "option size", "out of range");
}
