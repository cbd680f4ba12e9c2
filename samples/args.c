/* args.c: reads the command line. */
#include "args.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *value_name(enum arg_kind kind)
{
    return kind == ARG_SECONDS ? " SECONDS" : kind == ARG_BYTES ? " BYTES" : "";
}

static void help_line(const char *name, const char *value, const char *text)
{
    printf("  %s%-*s %s\n", name, (int)(26 - strlen(name)), value, text);
}

static int help(const struct serve *serve, const struct arg *args, size_t count)
{
    printf("Usage: %s [OPTION]...\n%s\n\n", serve->name, serve->about);
    help_line("--listen", " ADDRESS",
              "IPV4:PORT, [IPV6]:PORT or unix:PATH; may be repeated; port 0: any");
    printf("%27s (without it 127.0.0.1:%s and [::1]:%s)\n", "", serve->default_port,
           serve->default_port);
    help_line("--drain", " SECONDS", "how long work under way may take after SIGTERM (10)");
    for (size_t i = 0; i < count; i++)
        help_line(args[i].name, value_name(args[i].kind), args[i].help);
    help_line("--quiet", "", "say nothing but errors");
    help_line("--stats", "", "say the runtime's counters at the end; SIGUSR1: at any time");
    help_line("--help", "", "this text");
    printf("\nVariables set up the runtime, see weir(7): WEIR_WORKERS=2, WEIR_LOG=info, ...\n");
    printf("Its modes: WEIR_POLL=lease or dedicated; WEIR_BACKEND=io_uring, and with it\n");
    printf("WEIR_RECV=completion; WEIR_INLINE=1 with any of these.\n");
    printf("SIGTERM or SIGINT ends it when work under way is done, a second one at once.\n");
    return 0;
}

static int mistake(const struct serve *serve, const char *what, const char *argument)
{
    fprintf(stderr, "%s: %s: %s (--help lists what there is)\n", serve->name, argument, what);
    return 2;
}

/* A number with a fraction, as milliseconds, up to some 49 days. */
static int parse_seconds(const char *text, unsigned *ret_ms)
{
    char *end;
    double seconds = strtod(text, &end);
    if (end == text || *end || !(seconds >= 0 && seconds <= 4e6))
        return -1;
    *ret_ms = (unsigned)(seconds * 1000);
    return 0;
}

static int parse_bytes(const char *text, uint64_t *ret)
{
    char *end;
    unsigned long long bytes = strtoull(text, &end, 10);
    if (*text < '0' || *text > '9' || *end)
        return -1;
    *ret = bytes;
    return 0;
}

/* Takes one argument with its value (NULL: there is none). The number of words used, or -1. */
static int take(struct serve *serve, const struct arg *args, size_t count, const char *name,
                const char *value)
{
    if (strcmp(name, "--quiet") == 0) {
        serve->quiet = true;
        return 1;
    }
    if (strcmp(name, "--stats") == 0) {
        serve->stats = true;
        return 1;
    }
    if (strcmp(name, "--listen") == 0) {
        if (!value || serve->address_count == SERVE_ADDRESSES_MAX)
            return -1;
        serve->addresses[serve->address_count++] = value;
        return 2;
    }
    if (strcmp(name, "--drain") == 0)
        return value && parse_seconds(value, &serve->drain_ms) == 0 ? 2 : -1;
    for (size_t i = 0; i < count; i++) {
        if (strcmp(name, args[i].name) != 0)
            continue;
        switch (args[i].kind) {
        case ARG_SWITCH:
            *(bool *)args[i].target = true;
            return 1;
        case ARG_SECONDS:
            return value && parse_seconds(value, args[i].target) == 0 ? 2 : -1;
        case ARG_BYTES:
            return value && parse_bytes(value, args[i].target) == 0 ? 2 : -1;
        }
    }
    return 0;
}

int args_parse(struct serve *serve, const struct arg *args, size_t count, int argc, char **argv)
{
    for (int i = 1; i < argc;) {
        if (strcmp(argv[i], "--help") == 0)
            return help(serve, args, count);
        int used = take(serve, args, count, argv[i], i + 1 < argc ? argv[i + 1] : NULL);
        if (used == 0)
            return mistake(serve, "no such option", argv[i]);
        if (used < 0)
            return mistake(serve, "its value is missing, malformed or out of range", argv[i]);
        i += used;
    }
    return -1;
}
