/* options.c: turns what code and environment ask for into settings, or into one line that says
 * what is wrong. Numbers and words each have one table-driven reader, so that every setting is
 * parsed, checked and complained about in the same way. */
#include "options.h"

#include <errno.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/sysinfo.h>

#define CPUS_PER_POLLER 30
#define POLLERS_MAX 64
#define WORKERS_MAX 1024
#define THREADS_MAX 4096
#define WORKERS_SPARE 64            /* how many more than at rest, when workers block */
#define SOURCES_LEAST 1024
#define SOURCES_MOST (1024 * 1024)
#define STACK_DEFAULT ((size_t)256 * 1024)
#define STACK_LEAST ((size_t)32 * 1024)
#define STACK_MOST ((size_t)1024 * 1024 * 1024)
#define SPIN_US 20
#define SPIN_CPUS_LEAST 3           /* with fewer a spinning thread stands in the others' way */
#define OPTIONS_SIZE_MAX 4096       /* a greater weir_options.size is garbage, not a newer caller */
#define SHOWN_MAX 64                /* how much of a bad value is repeated in the error line */

/* A whole number: in code 0 means "not set", so spin_us is kept there as one more than it is. */
struct number {
    const char *option;
    const char *variable;
    size_t from;                    /* in weir_options */
    size_t to;                      /* in struct wr_options */
    unsigned bias;
    unsigned least, most;
};

#define NUMBER(field, variable, least, most) \
    { #field, variable, offsetof(weir_options, field), offsetof(struct wr_options, field), 0, \
      least, most }

static const struct number workers_number = NUMBER(workers, "WEIR_WORKERS", 1, WORKERS_MAX);
static const struct number workers_max_number
    = NUMBER(workers_max, "WEIR_WORKERS_MAX", 1, THREADS_MAX);
static const struct number numbers[] = {
    NUMBER(pollers, "WEIR_POLLERS", 1, POLLERS_MAX),
    NUMBER(blocking_max, "WEIR_BLOCKING_MAX", 1, THREADS_MAX),
    NUMBER(batch, "WEIR_BATCH", 1, 4096),
    NUMBER(slice_us, "WEIR_SLICE_US", 10, 1000000),
    { "spin_us_plus_one - 1", "WEIR_SPIN_US", offsetof(weir_options, spin_us_plus_one),
      offsetof(struct wr_options, spin_us), 1, 0, 1000 },
    NUMBER(sources_max, "WEIR_SOURCES_MAX", 64, 16777216),
    NUMBER(recv_buffers, "WEIR_RECV_BUFFERS", 1, 32768),
};

struct word {
    const char *text;
    unsigned value;
    bool absent;                    /* a word of the language, but not in this build */
};

#define WORDS_MAX 5

struct choice {
    const char *option;             /* NULL: has no option in code */
    const char *variable;
    struct word words[WORDS_MAX];
};

static const struct choice log_choice = { "log_level", "WEIR_LOG", {
    { "off", WEIR_LOG_OFF, false }, { "error", WEIR_LOG_ERROR, false },
    { "warn", WEIR_LOG_WARN, false }, { "info", WEIR_LOG_INFO, false },
    { "debug", WEIR_LOG_DEBUG, false } } };
static const struct choice backend_choice = { "backend", "WEIR_BACKEND", {
    { "auto", WEIR_BACKEND_AUTO, false }, { "epoll", WEIR_BACKEND_EPOLL, false },
    { "io_uring", WEIR_BACKEND_IO_URING, false } } };
static const struct choice dispatch_choice = { "dispatch", "WEIR_DISPATCH", {
    { "pump", WEIR_DISPATCH_PUMP, false }, { "per-event", WEIR_DISPATCH_PER_EVENT, false } } };

static const struct choice poll_choice = { "poll", "WEIR_POLL", {
    { "dedicated", WEIR_POLL_DEDICATED, false }, { "lease", WEIR_POLL_LEASE, false } } };

static const struct choice recv_choice = { "recv", "WEIR_RECV", {
    { "readiness", WEIR_RECV_READINESS, false }, { "completion", WEIR_RECV_COMPLETION, false },
    { "zerocopy", UINT_MAX, true } } };

static const struct choice inline_choice = { "inline_callbacks", "WEIR_INLINE", {
    { "0", WEIR_INLINE_OFF, false }, { "1", WEIR_INLINE_ON, false } } };

/* What is being read, and where complaints go. */
struct source {
    weir_options user;
    struct wr_log log;
};

struct shown {
    char text[SHOWN_MAX + 1];
};

/* A value from outside, fit to stand in a log line. */
static struct shown show(const char *text)
{
    struct shown shown;
    size_t i;
    for (i = 0; i < SHOWN_MAX && text[i]; i++) {
        unsigned char byte = (unsigned char)text[i];
        shown.text[i] = byte < ' ' || byte == 0x7f ? '?' : text[i];
    }
    shown.text[i] = '\0';
    return shown;
}

static const char *variable_text(const struct source *source, const char *variable)
{
    return source->user.ignore_env ? NULL : getenv(variable);
}

/* Decimal digits and nothing else. */
static bool parse_number(const char *text, size_t *ret_number)
{
    size_t number = 0;
    if (!*text)
        return false;
    for (; *text; text++)
        if (*text < '0' || *text > '9' || __builtin_mul_overflow(number, 10U, &number)
            || __builtin_add_overflow(number, (size_t)(*text - '0'), &number))
            return false;
    *ret_number = number;
    return true;
}

/* 1 set, 0 nobody set it (the default stays), -EINVAL. */
static int take_number(const struct source *source, const struct number *number, unsigned least,
                       struct wr_options *out)
{
    unsigned value;
    memcpy(&value, (const char *)&source->user + number->from, sizeof value);
    if (value != 0) {
        value -= number->bias;
        if (value < least || value > number->most) {
            wr_log(&source->log, WEIR_LOG_ERROR, "option %s: %u is out of range, %u..%u",
                   number->option, value, least, number->most);
            return -EINVAL;
        }
    } else {
        const char *text = variable_text(source, number->variable);
        if (!text)
            return 0;
        size_t parsed;
        if (!parse_number(text, &parsed) || parsed < least || parsed > number->most) {
            wr_log(&source->log, WEIR_LOG_ERROR,
                   "%s=\"%s\": must be a whole decimal number, %u..%u", number->variable,
                   show(text).text, least, number->most);
            return -EINVAL;
        }
        value = (unsigned)parsed;
    }
    memcpy((char *)out + number->to, &value, sizeof value);
    return 1;
}

struct listing {
    char text[96];
};

/* The words of a choice that this build has, as "a, b, c". */
static struct listing list_words(const struct choice *choice)
{
    struct listing listing = { "" };
    size_t at = 0;
    for (size_t i = 0; i < WORDS_MAX && choice->words[i].text; i++) {
        if (choice->words[i].absent)
            continue;
        int length = snprintf(listing.text + at, sizeof listing.text - at, "%s%s",
                              at ? ", " : "", choice->words[i].text);
        if (length < 0 || (size_t)length >= sizeof listing.text - at)
            break;
        at += (size_t)length;
    }
    return listing;
}

static const char *word_of(const struct choice *choice, unsigned value)
{
    for (size_t i = 0; i < WORDS_MAX && choice->words[i].text; i++)
        if (choice->words[i].value == value)
            return choice->words[i].text;
    return NULL;
}

/* `code` 0: not set in code. 1 set, 0 nobody set it, -EINVAL. */
static int take_word(const struct source *source, const struct choice *choice, unsigned code,
                     unsigned *ret_value)
{
    if (code != 0) {
        if (!word_of(choice, code)) {
            wr_log(&source->log, WEIR_LOG_ERROR, "option %s: %u is none of its values (%s)",
                   choice->option, code, list_words(choice).text);
            return -EINVAL;
        }
        *ret_value = code;
        return 1;
    }
    const char *text = variable_text(source, choice->variable);
    if (!text)
        return 0;
    for (size_t i = 0; i < WORDS_MAX && choice->words[i].text; i++) {
        if (strcmp(text, choice->words[i].text) != 0)
            continue;
        if (choice->words[i].absent) {
            wr_log(&source->log, WEIR_LOG_ERROR, "%s=\"%s\": not in this build, which has: %s",
                   choice->variable, text, list_words(choice).text);
            return -EINVAL;
        }
        *ret_value = choice->words[i].value;
        return 1;
    }
    wr_log(&source->log, WEIR_LOG_ERROR, "%s=\"%s\": must be one of: %s", choice->variable,
           show(text).text, list_words(choice).text);
    return -EINVAL;
}

/* First of all, so that complaints about the others can be heard. */
static int take_log(struct source *source)
{
    unsigned level = WEIR_LOG_WARN;
    source->log = (struct wr_log){ source->user.log, source->user.log_context, WEIR_LOG_WARN };
    int r = take_word(source, &log_choice, (unsigned)source->user.log_level, &level);
    source->log.level = (enum weir_log_level)level;
    return r;
}

/* Copies what the caller's weir_options has; the rest of ours stays "not set". */
static int take_struct(struct source *source, const weir_options *user)
{
    memset(source, 0, sizeof *source);
    if (!user)
        return take_log(source);
    size_t size = user->size;
    /* Not even the log hook may be looked for in what was never initialised. */
    if (size < sizeof user->size)
        return -EINVAL;
    memcpy(&source->user, user, size < sizeof source->user ? size : sizeof source->user);
    int r = take_log(source);
    if (r < 0)
        return r;
    if (size > OPTIONS_SIZE_MAX) {
        wr_log(&source->log, WEIR_LOG_ERROR, "option size: %zu is out of range, %zu..%d", size,
               sizeof user->size, OPTIONS_SIZE_MAX);
        return -EINVAL;
    }
    for (size_t i = sizeof *user; i < size; i++) {
        if (((const unsigned char *)user)[i] != 0) {
            wr_log(&source->log, WEIR_LOG_ERROR,
                   "option size: %zu has options set beyond the %zu bytes of this version", size,
                   sizeof *user);
            return -EINVAL;
        }
    }
    return 0;
}

static int take_name(const struct source *source, struct wr_options *out)
{
    const char *name = source->user.name;
    if (!name)
        return 0;
    size_t length = strnlen(name, sizeof out->name);
    if (length == 0 || length > WR_OPTIONS_NAME_MAX) {
        wr_log(&source->log, WEIR_LOG_ERROR, "option name: \"%s\" must have 1..%d bytes",
               show(name).text, WR_OPTIONS_NAME_MAX);
        return -EINVAL;
    }
    memcpy(out->name, name, length);
    out->name[length] = '\0';
    return 1;
}

static int take_stack_size(const struct source *source, struct wr_options *out)
{
    size_t size = source->user.stack_size;
    if (size == 0)
        return 0;
    if (size < STACK_LEAST || size > STACK_MOST) {
        wr_log(&source->log, WEIR_LOG_ERROR, "option stack_size: %zu is out of range, %zu..%zu",
               size, STACK_LEAST, STACK_MOST);
        return -EINVAL;
    }
    out->stack_size = size;
    return 1;
}

/* Bytes, so more than the other numbers: SIZE_MAX in code, 0 in the environment for "no limit". */
static int take_write_budget(const struct source *source, struct wr_options *out)
{
    if (source->user.write_budget != 0) {
        out->write_budget = source->user.write_budget;
        return 1;
    }
    const char *text = variable_text(source, "WEIR_WRITE_BUDGET");
    size_t budget;
    if (!text)
        return 0;
    if (!parse_number(text, &budget)) {
        wr_log(&source->log, WEIR_LOG_ERROR,
               "WEIR_WRITE_BUDGET=\"%s\": must be a whole decimal number, 0 (no limit)..%zu",
               show(text).text, SIZE_MAX);
        return -EINVAL;
    }
    out->write_budget = budget ? budget : SIZE_MAX;
    return 1;
}

static int take_hooks(const struct source *source, struct wr_options *out)
{
    const weir_allocator *allocator = source->user.allocator;
    out->thread_start = source->user.thread_start;
    out->thread_stop = source->user.thread_stop;
    out->thread_context = source->user.thread_context;
    if (!allocator)
        return 0;
    if (!allocator->allocate || !allocator->release) {
        wr_log(&source->log, WEIR_LOG_ERROR,
               "option allocator: %s is NULL, both functions must be set",
               allocator->allocate ? "release" : "allocate");
        return -EINVAL;
    }
    out->allocator = *allocator;
    out->has_allocator = true;
    return 1;
}

/* The cap bounds the workers that were asked for. A number of workers that nobody asked for (the
 * CPUs of this machine) yields to the cap: the same settings must be good on a larger machine. */
static int take_workers(const struct source *source, struct wr_options *out)
{
    int workers = take_number(source, &workers_number, workers_number.least, out);
    if (workers < 0)
        return workers;
    unsigned least = workers ? out->workers : workers_max_number.least;
    int workers_max = take_number(source, &workers_max_number, least, out);
    if (workers_max < 0)
        return workers_max;
    if (!workers_max)
        out->workers_max = out->workers + WORKERS_SPARE;
    else if (out->workers > out->workers_max)
        out->workers = out->workers_max;
    return 0;
}

static int take_all(const struct source *source, struct wr_options *out)
{
    unsigned backend = out->backend, dispatch = out->dispatch, poll = out->poll;
    unsigned recv = out->recv;
    unsigned inline_callbacks = out->inline_callbacks;
    int r = take_name(source, out);
    if (r >= 0)
        r = take_word(source, &backend_choice, (unsigned)source->user.backend, &backend);
    if (r >= 0)
        r = take_word(source, &dispatch_choice, (unsigned)source->user.dispatch, &dispatch);
    if (r >= 0)
        r = take_word(source, &poll_choice, (unsigned)source->user.poll, &poll);
    if (r >= 0)
        r = take_word(source, &recv_choice, (unsigned)source->user.recv, &recv);
    if (r >= 0)
        r = take_word(source, &inline_choice, (unsigned)source->user.inline_callbacks,
                      &inline_callbacks);
    if (r >= 0)
        r = take_workers(source, out);
    for (size_t i = 0; r >= 0 && i < sizeof numbers / sizeof *numbers; i++)
        r = take_number(source, &numbers[i], numbers[i].least, out);
    if (r >= 0)
        r = take_stack_size(source, out);
    if (r >= 0)
        r = take_write_budget(source, out);
    if (r >= 0)
        r = take_hooks(source, out);
    out->backend = (enum weir_backend)backend;
    out->dispatch = (enum weir_dispatch)dispatch;
    out->poll = (enum weir_poll)poll;
    out->recv = (enum weir_recv)recv;
    out->inline_callbacks = (enum weir_inline)inline_callbacks;
    return r < 0 ? r : 0;
}

/* A quarter of the memory, which no clamp and no unit can overflow. */
static size_t default_write_budget(void)
{
    struct sysinfo machine;
    uint64_t bytes = 0;
    if (sysinfo(&machine) == 0)
        bytes = (uint64_t)machine.totalram * machine.mem_unit / 4;
    return bytes == 0 || bytes > SIZE_MAX ? SIZE_MAX : (size_t)bytes;
}

static unsigned clamp(unsigned long value, unsigned least, unsigned most)
{
    return value < least ? least : value > most ? most : (unsigned)value;
}

void wr_options_default(struct wr_options *ret, const struct wr_cpu *cpu, unsigned long files_max)
{
    /* A quota as large as the affinity can never be exceeded; below it a spin uses up what the
     * work itself needs. */
    bool throttled = cpu->limited && cpu->quota < cpu->affinity;
    unsigned workers = clamp(cpu->usable, 1, WORKERS_MAX);
    *ret = (struct wr_options){
        .name = "weir",
        .backend = WEIR_BACKEND_AUTO,
        .dispatch = WEIR_DISPATCH_PUMP,
        .poll = WEIR_POLL_LEASE,
        .recv = WEIR_RECV_READINESS,
        .recv_buffers = 1024,
        .inline_callbacks = WEIR_INLINE_OFF,
        .pollers = clamp((cpu->usable + CPUS_PER_POLLER / 2) / CPUS_PER_POLLER, 1, POLLERS_MAX),
        .workers = workers,
        .workers_max = workers + WORKERS_SPARE,
        .blocking_max = 64,
        .batch = 256,
        .slice_us = 2000,
        .spin_us = throttled || cpu->usable < SPIN_CPUS_LEAST ? 0 : SPIN_US,
        .sources_max = clamp(files_max, SOURCES_LEAST, SOURCES_MOST),
        .stack_size = STACK_DEFAULT,
        .write_budget = default_write_budget(),
        .log = { .level = WEIR_LOG_WARN },
    };
}

static void say_effective(const struct wr_options *options, const struct wr_cpu *cpu)
{
    char quota[32] = "none";
    if (cpu->limited)
        snprintf(quota, sizeof quota, "%.2f", cpu->quota);
    wr_log(&options->log, WEIR_LOG_INFO, "usable CPUs: %u (affinity %u, quota %s)", cpu->usable,
           cpu->affinity, quota);
    wr_log(&options->log, WEIR_LOG_INFO,
           "settings: name=%s backend=%s dispatch=%s poll=%s inline=%s recv=%s pollers=%u "
           "workers=%u workers_max=%u blocking_max=%u batch=%u slice_us=%u spin_us=%u "
           "sources_max=%u recv_buffers=%u stack_size=%zu write_budget=%zu log=%s",
           show(options->name).text, word_of(&backend_choice, options->backend),
           word_of(&dispatch_choice, options->dispatch), word_of(&poll_choice, options->poll),
           word_of(&inline_choice, options->inline_callbacks),
           word_of(&recv_choice, options->recv), options->pollers, options->workers,
           options->workers_max, options->blocking_max, options->batch, options->slice_us,
           options->spin_us, options->sources_max, options->recv_buffers, options->stack_size,
           options->write_budget,
           word_of(&log_choice, options->log.level));
}

int wr_options_resolve(struct wr_options *ret, const weir_options *user)
{
    struct source source;
    int r = take_struct(&source, user);
    if (r < 0)
        return r;

    int saved = errno;
    struct wr_cpu cpu;
    struct rlimit files = { .rlim_cur = 0 };
    struct wr_options options;
    wr_cpu_detect(&cpu, "");
    (void)getrlimit(RLIMIT_NOFILE, &files);
    wr_options_default(&options, &cpu, files.rlim_cur);
    errno = saved;

    options.log = source.log;
    r = take_all(&source, &options);
    if (r < 0)
        return r;
    say_effective(&options, &cpu);
    *ret = options;
    return 0;
}
