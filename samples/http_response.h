/* http_response.h: answers, put together once, and written into one growing buffer of the
 * thread. */
#ifndef HTTP_RESPONSE_H
#define HTTP_RESPONSE_H

#include <stdbool.h>
#include <stddef.h>

#include "http_request.h"

/* An answer whose text never changes, but for the date and what becomes of the connection. */
struct http_answer {
    int status;
    size_t head_length;
    size_t body_length;
    const char *body;
    char head[160];             /* status line and headers, without Date and Connection */
};

/** Put an answer together. `headers` are complete lines ("Allow: GET\r\n") or "". `type` may be
 * NULL. */
void http_answer_init(struct http_answer *answer, int status, const char *headers, const char *type,
                      const char *body);
/** Put the answers to errors together; once, before http_error(). */
void http_errors_init(void);
/** The answer to an error of the parser, or to a timeout (408). */
const struct http_answer *http_error(int status);

/* Responses that leave together. */
struct http_output {
    char *bytes;
    size_t length;
    size_t capacity;
    bool failed;                /* out of memory: what is in `bytes` is incomplete */
    long second;                /* of `date` */
    char date[40];
};

/** The calling thread's output, emptied, with the date of now. */
struct http_output *http_output_begin(void);
/** Give back what the calling thread holds. */
void http_output_end(void);

/** Append a response to `request`, in the way its method and version want it. */
void http_respond(struct http_output *output, const struct http_request *request,
                  const struct http_answer *answer, bool keep_alive);
/** Append "100 Continue". */
void http_continue(struct http_output *output);

#endif
