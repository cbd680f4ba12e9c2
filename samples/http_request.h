/* http_request.h: a strict parser of HTTP/1.0 and 1.1 requests that copies and allocates nothing.
 *
 * A request is read in two steps, each of which can stop at any byte and go on with the next call:
 *   http_head()  wants the bytes from the first one of the request, again and with more behind them
 *                when it asked for more (where they lie may change); no byte is looked at twice.
 *   http_body()  wants each byte once: a body is checked and skipped, and needs no buffer.
 * An error is a negative HTTP status. What follows an error has no meaning: answer it and close. */
#ifndef HTTP_REQUEST_H
#define HTTP_REQUEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum {
    HTTP_METHOD_MAX = 32,           /* longer is 400 */
    HTTP_LINE_MAX = 8192,           /* request line with its CRLF; longer is 414 */
    HTTP_HEAD_MAX = 16384,          /* request line, headers and the blank line; longer is 431 */
    HTTP_HEADERS_MAX = 100,         /* more is 431 */
    HTTP_EXTENSION_MAX = 4096,      /* bytes of chunk extensions in one body; more is 400 */
    HTTP_TRAILER_MAX = 4096         /* bytes of trailers; more is 431 */
};

enum http_method { HTTP_OTHER, HTTP_GET, HTTP_HEAD, HTTP_OPTIONS };

struct http_request {
    /* What the head said, from the moment http_head() has returned its length. */
    enum http_method method;    /* known earlier: an error after it is answered in its manner */
    const char *path;           /* in the bytes given to http_head(); without the query; "*" */
    size_t path_length;
    bool keep_alive;            /* the connection may stay open after the answer */
    bool explicit_keep_alive;   /* HTTP/1.0 that asked for it: the answer must say so */
    bool expect_continue;       /* the client waits for "100 Continue" before it sends the body */
    bool body_pending;          /* http_body() has not seen the end of the body yet */

    /* Where parsing stands. */
    uint64_t body_max_;
    uint64_t body_left_;        /* of the body, or of this chunk; then the size of the next */
    uint64_t body_seen_;
    uint32_t line_;             /* offset of the line being read */
    uint32_t scanned_;          /* offset up to which that line is known to hold no control */
    uint32_t path_at_;
    uint32_t extra_;            /* bytes of chunk extensions or trailers so far */
    uint8_t headers_;
    uint8_t stage_;
    uint8_t minor_;             /* of the version */
    uint8_t flags_;
    uint8_t digits_;            /* of the chunk size */
};

/** Begin a request whose body may have `body_max` bytes (more is 413). */
void http_request_init(struct http_request *request, uint64_t body_max);

/**
 * Read the head.
 * @param data    from the first byte of the request.
 * @param length  all that is there by now, not only what is new.
 * @return the length of the head, once; 0 more bytes are needed; a negative HTTP status.
 */
ssize_t http_head(struct http_request *request, const char *data, size_t length);

/**
 * Check and skip the body, after http_head() has returned a length. Without a body it takes
 * nothing.
 * @param data  what follows the bytes taken so far.
 * @return how many bytes were taken: all of them, or those up to the end of the body
 *         (body_pending is false then); a negative HTTP status.
 */
ssize_t http_body(struct http_request *request, const char *data, size_t length);

#endif
