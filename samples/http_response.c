/* http_response.c: the answers and the buffer they are written into. */
#include "http_response.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const char *reason(int status)
{
    switch (status) {
    case 200: return "OK";
    case 400: return "Bad Request";
    case 404: return "Not Found";
    case 405: return "Method Not Allowed";
    case 408: return "Request Timeout";
    case 413: return "Content Too Large";
    case 414: return "URI Too Long";
    case 417: return "Expectation Failed";
    case 431: return "Request Header Fields Too Large";
    case 501: return "Not Implemented";
    case 505: return "HTTP Version Not Supported";
    default: return "Internal Server Error";
    }
}

void http_answer_init(struct http_answer *answer, int status, const char *headers, const char *type,
                      const char *body)
{
    *answer = (struct http_answer){ .status = status, .body = body, .body_length = strlen(body) };
    int n = snprintf(answer->head, sizeof answer->head,
                     "HTTP/1.1 %d %s\r\nServer: weir\r\n%s%s%s%sContent-Length: %zu\r\n", status,
                     reason(status), headers, type ? "Content-Type: " : "", type ? type : "",
                     type ? "\r\n" : "", answer->body_length);
    answer->head_length = n > 0 && (size_t)n < sizeof answer->head ? (size_t)n : 0;
}

static struct http_answer errors[] = {
    { .status = 500 }, { .status = 400 }, { .status = 408 }, { .status = 413 }, { .status = 414 },
    { .status = 417 }, { .status = 431 }, { .status = 501 }, { .status = 505 }
};

enum { ERRORS = sizeof errors / sizeof errors[0] };

void http_errors_init(void)
{
    for (int i = 0; i < ERRORS; i++)
        http_answer_init(&errors[i], errors[i].status, "", "text/plain", reason(errors[i].status));
}

const struct http_answer *http_error(int status)
{
    for (int i = 1; i < ERRORS; i++)
        if (errors[i].status == status)
            return &errors[i];
    return &errors[0];
}

/* ---- the buffer ------------------------------------------------------------------------------ */

static _Thread_local struct http_output own_output;

/* The date line is made anew in the first callback of each second. It costs an idle server
 * nothing: there is no timer. The locale has no say in it, hence the names are ours. */
static void refresh_date(struct http_output *output)
{
    static const char days[] = "SunMonTueWedThuFriSat";
    static const char months[] = "JanFebMarAprMayJunJulAugSepOctNovDec";
    struct timespec now;
    clock_gettime(CLOCK_REALTIME_COARSE, &now);
    if (now.tv_sec == output->second)
        return;
    struct tm tm;
    gmtime_r(&now.tv_sec, &tm);
    snprintf(output->date, sizeof output->date, "Date: %.3s, %02u %.3s %04u %02u:%02u:%02u GMT\r\n",
             days + 3 * tm.tm_wday, (unsigned)tm.tm_mday % 100, months + 3 * tm.tm_mon,
             (unsigned)(tm.tm_year + 1900) % 10000, (unsigned)tm.tm_hour % 100,
             (unsigned)tm.tm_min % 100, (unsigned)tm.tm_sec % 100);
    output->second = now.tv_sec;
}

struct http_output *http_output_begin(void)
{
    struct http_output *output = &own_output;
    output->length = 0;
    output->failed = false;
    refresh_date(output);
    return output;
}

void http_output_end(void)
{
    free(own_output.bytes);
    own_output = (struct http_output){ .bytes = NULL };
}

/* Where `length` more bytes may be written; NULL when out of memory. */
static char *reserve(struct http_output *output, size_t length)
{
    if (output->capacity - output->length < length) {
        size_t capacity = output->capacity ? output->capacity : 16384;
        while (capacity - output->length < length)
            capacity *= 2;
        char *bytes = realloc(output->bytes, capacity);
        if (!bytes) {
            output->failed = true;
            return NULL;
        }
        output->bytes = bytes;
        output->capacity = capacity;
    }
    return output->bytes + output->length;
}

static char *put(char *to, const char *from, size_t length)
{
    memcpy(to, from, length);
    return to + length;
}

void http_respond(struct http_output *output, const struct http_request *request,
                  const struct http_answer *answer, bool keep_alive)
{
    static const char close[] = "Connection: close\r\n";
    static const char keep[] = "Connection: keep-alive\r\n";
    enum { DATE_LENGTH = sizeof "Date: Thu, 01 Jan 1970 00:00:00 GMT\r\n" - 1 };

    char *p = reserve(output, answer->head_length + answer->body_length + 128);
    if (!p)
        return;
    p = put(p, answer->head, answer->head_length);
    p = put(p, output->date, DATE_LENGTH);
    if (!keep_alive)
        p = put(p, close, sizeof close - 1);
    else if (request->explicit_keep_alive)
        p = put(p, keep, sizeof keep - 1);
    p = put(p, "\r\n", 2);
    if (request->method != HTTP_HEAD)
        p = put(p, answer->body, answer->body_length);
    output->length = (size_t)(p - output->bytes);
}

void http_continue(struct http_output *output)
{
    static const char text[] = "HTTP/1.1 100 Continue\r\n\r\n";
    char *p = reserve(output, sizeof text);
    if (p)
        output->length = (size_t)(put(p, text, sizeof text - 1) - output->bytes);
}
