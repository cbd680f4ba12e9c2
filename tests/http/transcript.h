/* transcript.h: what a server would make of a stream of bytes, as text, however the stream is
 * cut.
 *
 * It drives the parser as the sample server does: an unfinished head is kept and given again
 * with more behind it (at another place in memory), bytes of a body are given once. A request
 * is one line:
 *   METHOD path keep|keep!|close [expect] +bytes-of-body
 * and an error is "error STATUS" instead of what would have come. */
#ifndef WEIR_TESTS_HTTP_TRANSCRIPT_H
#define WEIR_TESTS_HTTP_TRANSCRIPT_H

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "http_request.h"

enum { TRANSCRIPT_MAX = 64 * 1024, TRANSCRIPT_BODY_MAX = 1000000 };

struct transcript {
    char text[TRANSCRIPT_MAX];
    size_t length;
    bool over;                  /* an error was met: the rest has no meaning */
    bool in_body;
    struct http_request request;
    char *kept;                 /* an unfinished head, in memory of exactly its size for ASan */
    size_t kept_length;
    size_t body_bytes;
};

static void transcript_init(struct transcript *t)
{
    memset(t, 0, sizeof *t);
    http_request_init(&t->request, TRANSCRIPT_BODY_MAX);
}

static void transcript_fini(struct transcript *t)
{
    free(t->kept);
    t->kept = NULL;
}

__attribute__((format(printf, 2, 3)))
static void transcript_say(struct transcript *t, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    int n = vsnprintf(t->text + t->length, TRANSCRIPT_MAX - t->length, format, arguments);
    va_end(arguments);
    if (n > 0 && (size_t)n < TRANSCRIPT_MAX - t->length)
        t->length += (size_t)n;
}

/* The transcript is wrong by its own measure: tell, and fail whatever test runs it. */
static void transcript_require(bool good, const char *what)
{
    if (!good) {
        fprintf(stderr, "transcript: broken promise: %s\n", what);
        abort();
    }
}

static ssize_t transcript_head(struct transcript *t, const char *data, size_t length)
{
    static const char *const methods[] = {"other", "GET", "HEAD", "OPTIONS"};
    struct http_request *request = &t->request;
    ssize_t n = http_head(request, data, length);
    if (n <= 0)
        return n;
    transcript_require((size_t)n <= length && n <= HTTP_HEAD_MAX,
                       "the head is within the bytes and limits");
    transcript_say(t, "%s %.*s %s%s%s", methods[request->method], (int)request->path_length,
                   request->path, request->keep_alive ? "keep" : "close",
                   request->explicit_keep_alive ? "!" : "",
                   request->expect_continue ? " expect" : "");
    t->in_body = true;
    t->body_bytes = 0;
    return n;
}

static ssize_t transcript_body(struct transcript *t, const char *data, size_t length)
{
    ssize_t n = http_body(&t->request, data, length);
    if (n < 0)
        return n;
    transcript_require((size_t)n <= length, "the body is within the bytes");
    transcript_require(!t->request.body_pending || (size_t)n == length,
                       "an unfinished body takes all");
    t->body_bytes += (size_t)n;
    if (!t->request.body_pending) {
        transcript_say(t, " +%zu\n", t->body_bytes);
        t->in_body = false;
        http_request_init(&t->request, TRANSCRIPT_BODY_MAX);
    }
    return n;
}

/* Read what can be read of `data`; returns how much. */
static size_t transcript_read(struct transcript *t, const char *data, size_t length)
{
    size_t used = 0;
    while (used < length) {
        ssize_t n = 0;
        if (!t->in_body) {
            n = transcript_head(t, data + used, length - used);
            if (n == 0)
                break;
            used += n > 0 ? (size_t)n : 0;
        }
        if (n >= 0) {
            n = transcript_body(t, data + used, length - used);
            used += n > 0 ? (size_t)n : 0;
        }
        if (n < 0) {
            transcript_say(t, "%serror %d\n", t->in_body ? " " : "", (int)-n);
            t->over = true;
            return length;
        }
    }
    return used;
}

/* Feed one piece. */
static void transcript_feed(struct transcript *t, const char *piece, size_t length)
{
    size_t all = t->kept_length + length;
    if (t->over || length == 0)
        return;
    char *data = malloc(all);
    transcript_require(data, "memory");
    if (t->kept_length > 0)
        memcpy(data, t->kept, t->kept_length);
    memcpy(data + t->kept_length, piece, length);
    size_t used = transcript_read(t, data, all);
    free(t->kept);
    t->kept = NULL;
    t->kept_length = all - used;
    if (t->kept_length > 0) {
        t->kept = malloc(t->kept_length);
        transcript_require(t->kept, "memory");
        memcpy(t->kept, data + used, t->kept_length);
    }
    free(data);
}

#endif
