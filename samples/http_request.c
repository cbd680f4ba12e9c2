/* http_request.c: the parser. Strict, because what two programs on the way read differently is
 * how requests are smuggled: lines end in CRLF, nothing is folded, nothing is guessed, and a
 * length that is said twice or in two ways is refused.
 *
 * A head is read line by line. One scan finds the end of a line and proves at once that no
 * control character is in it; it remembers how far it came, so that a head that arrives byte by
 * byte costs no more than one that arrives whole. Limits cut the scan, hence the answer never
 * depends on how the bytes were split. */
#include "http_request.h"

#include <endian.h>
#include <string.h>

enum { TOKEN = 1, TARGET = 2, REG_NAME = 4 };

/* Which bytes may be part of a token, of a request target, of a registered name. Non-ASCII: of
 * none. A target is taken with any visible character except the four that must be encoded
 * everywhere. */
static const uint8_t char_class[256] = {
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    0, 7, 0, 1, 7, 7, 7, 7, 6, 6, 7, 7, 6, 7, 7, 2,  /* blank to / */
    7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 2, 6, 0, 6, 0, 2,  /* 0 to ? */
    2, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7,  /* @ to O */
    7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 2, 2, 2, 3, 7,  /* P to _ */
    3, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7,  /* ` to o */
    7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 2, 3, 2, 7, 0,  /* p to DEL */
};

/* Names of flags_. */
enum {
    HOST = 1, LENGTH = 2, CHUNKED = 4, CLOSE = 8, KEEP_ALIVE = 16, EXPECT = 32, BLANK_LINE = 64
};

enum stage {
    REQUEST_LINE, HEADER_LINE, HEAD_DONE,
    SIZE, EXTENSION, SIZE_LF, DATA, DATA_CR, DATA_LF,           /* of a chunk */
    TRAILER_FIRST, TRAILER_NAME, TRAILER_VALUE, TRAILER_LF, LAST_LF
};

void http_request_init(struct http_request *request, uint64_t body_max)
{
    *request = (struct http_request){ .body_max_ = body_max };
}

static bool is(unsigned char c, uint8_t class)
{
    return char_class[c] & class;
}

static bool is_digit(unsigned char c)
{
    return c >= '0' && c <= '9';
}

static bool is_content(unsigned char c)
{
    return (c >= 0x20 && c != 0x7f) || c == '\t';
}

/* The first byte that is no field content: the CR of the line's end, or an offence. Eight bytes
 * at a time: subtracting borrows into the top bit of bytes below 0x20, and of bytes that were
 * 0x7f before the exclusive or. A borrow may spoil bytes behind the first hit, hence only the
 * first one is believed. */
static const unsigned char *skip_content(const unsigned char *p, const unsigned char *end)
{
    const uint64_t ones = UINT64_C(0x0101010101010101);
    const uint64_t tops = ones << 7;
    while (end - p >= 8) {
        uint64_t word;
        memcpy(&word, p, sizeof word);
        word = le64toh(word);
        uint64_t del = word ^ (ones * 0x7f);
        uint64_t hit = (((word - ones * 0x20) & ~word) | ((del - ones) & ~del)) & tops;
        if (!hit) {
            p += 8;
            continue;
        }
        p += __builtin_ctzll(hit) / 8;
        if (*p != '\t')
            return p;
        p++;
    }
    while (p < end && is_content(*p))
        p++;
    return p;
}

/* Whether `text` is `word`, in any case. `word` is lower case, letters and hyphens, and no other
 * character of a token becomes one of these when its bit 5 is set. */
static bool same(const unsigned char *text, size_t length, const char *word)
{
    size_t i = 0;
    while (i < length && word[i] && (text[i] | 0x20) == word[i])
        i++;
    return i == length && !word[i];
}

/* host [ ":" port ], where host is a registered name, an IPv4 address or an IPv6 literal. */
static bool is_authority(const unsigned char *p, const unsigned char *end)
{
    const unsigned char *start = p;
    if (p < end && *p == '[') {
        for (p++; p < end && (is_digit(*p) || ((*p | 0x20) >= 'a' && (*p | 0x20) <= 'f') ||
                              *p == ':' || *p == '.'); p++) { }
        if (p == end || *p != ']' || p - start < 3)
            return false;
        p++;
    } else {
        while (p < end && is(*p, REG_NAME))
            p++;
        if (p == start)
            return false;
    }
    if (p < end && *p == ':')
        for (p++, start = p; p < end && is_digit(*p) && p - start < 5; p++) { }
    return p == end;
}

/* Find the path in the target: "/path?query", "http://host/path?query", or "*". */
static int target(struct http_request *request, const unsigned char *base, const unsigned char *p,
                  const unsigned char *end)
{
    if (end - p == 1 && *p == '*') {
        if (request->method != HTTP_OPTIONS)
            return -400;
    } else if (*p != '/') {
        size_t scheme = same(p, end - p < 4 ? 0 : 4, "http") ? 4 : 0;
        if (scheme && end - p > 4 && (p[4] | 0x20) == 's')
            scheme = 5;
        if (!scheme || end - p < (ptrdiff_t)scheme + 3 || memcmp(p + scheme, "://", 3) != 0)
            return -400;
        const unsigned char *authority = p + scheme + 3;
        for (p = authority; p < end && *p != '/' && *p != '?'; p++) { }
        if (!is_authority(authority, p))
            return -400;
        if (p == end || *p == '?')
            end = p;                    /* no path: stands for "/", and for the server itself */
    }
    const unsigned char *query = memchr(p, '?', (size_t)(end - p));
    request->path_at_ = (uint32_t)(p - base);
    request->path_length = (size_t)((query ? query : end) - p);
    return 0;
}

static int request_line(struct http_request *request, const unsigned char *base,
                        const unsigned char *p, const unsigned char *end)
{
    const unsigned char *method = p;
    while (p < end && is(*p, TOKEN))
        p++;
    size_t length = (size_t)(p - method);
    if (length == 0 || length > HTTP_METHOD_MAX || p == end || *p != ' ')
        return -400;
    if (length == 3 && memcmp(method, "GET", 3) == 0)
        request->method = HTTP_GET;
    else if (length == 4 && memcmp(method, "HEAD", 4) == 0)
        request->method = HTTP_HEAD;
    else if (length == 7 && memcmp(method, "OPTIONS", 7) == 0)
        request->method = HTTP_OPTIONS;

    const unsigned char *start = ++p;
    while (p < end && is(*p, TARGET))
        p++;
    if (p == start || p == end || *p != ' ')
        return -400;
    const unsigned char *version = p + 1;
    if (end - version != 8 || memcmp(version, "HTTP/", 5) != 0 || !is_digit(version[5]) ||
        version[6] != '.' || !is_digit(version[7]))
        return -400;
    if (version[5] != '1' || version[7] > '1')
        return -505;
    request->minor_ = (uint8_t)(version[7] - '0');
    if (length == 7 && memcmp(method, "CONNECT", 7) == 0)
        return -501;
    return target(request, base, start, p);
}

/* Digits and nothing else. A second one is refused even when it is equal: somebody else may not. */
static int content_length(struct http_request *request, const unsigned char *p,
                          const unsigned char *end)
{
    if (p == end || (request->flags_ & LENGTH))
        return -400;
    request->flags_ |= LENGTH;
    uint64_t length = 0;
    for (; p < end; p++) {
        if (!is_digit(*p) || length > (UINT64_MAX - 9) / 10)
            return -400;
        length = length * 10 + (uint64_t)(*p - '0');
    }
    request->body_left_ = length;
    return 0;
}

/* The next element of a comma-separated list, without the blanks around it. Moves `*p` behind
 * its comma, or to NULL when it was the last. */
static size_t element(const unsigned char **p, const unsigned char *end, const unsigned char **ret)
{
    const unsigned char *comma = memchr(*p, ',', (size_t)(end - *p));
    const unsigned char *first = *p;
    const unsigned char *last = comma ? comma : end;
    *p = comma ? comma + 1 : NULL;
    while (first < last && (*first == ' ' || *first == '\t'))
        first++;
    while (last > first && (last[-1] == ' ' || last[-1] == '\t'))
        last--;
    *ret = first;
    return (size_t)(last - first);
}

/* `chunked`, once and last. Codings that we do not know are 501, what cannot be right is 400. */
static int transfer_encoding(struct http_request *request, const unsigned char *p,
                             const unsigned char *end)
{
    bool unknown = false;
    while (p) {
        const unsigned char *coding;
        size_t length = element(&p, end, &coding);
        if (length == 0 || (request->flags_ & CHUNKED))
            return -400;
        if (same(coding, length, "chunked"))
            request->flags_ |= CHUNKED;
        else
            unknown = true;
    }
    return unknown ? -501 : 0;
}

static void connection(struct http_request *request, const unsigned char *p,
                       const unsigned char *end)
{
    while (p) {
        const unsigned char *option;
        size_t length = element(&p, end, &option);
        if (same(option, length, "close"))
            request->flags_ |= CLOSE;
        else if (same(option, length, "keep-alive"))
            request->flags_ |= KEEP_ALIVE;
    }
}

static int header_line(struct http_request *request, const unsigned char *name,
                       const unsigned char *end)
{
    const unsigned char *p = name;
    while (p < end && is(*p, TOKEN))
        p++;
    size_t length = (size_t)(p - name);
    if (length == 0 || p == end || *p != ':')
        return -400;                    /* also a folded line, which begins with a blank */
    if (++request->headers_ > HTTP_HEADERS_MAX)
        return -431;
    for (p++; p < end && (*p == ' ' || *p == '\t'); p++) { }
    while (end > p && (end[-1] == ' ' || end[-1] == '\t'))
        end--;

    switch (length) {
    case 4:
        if (!same(name, length, "host"))
            return 0;
        if ((request->flags_ & HOST) || !is_authority(p, end))
            return -400;
        request->flags_ |= HOST;
        return 0;
    case 6:
        if (!same(name, length, "expect") || request->minor_ == 0)
            return 0;
        if (!same(p, (size_t)(end - p), "100-continue"))
            return -417;
        request->flags_ |= EXPECT;
        return 0;
    case 10:
        if (same(name, length, "connection"))
            connection(request, p, end);
        return 0;
    case 14:
        return same(name, length, "content-length") ? content_length(request, p, end) : 0;
    case 17:
        return same(name, length, "transfer-encoding") ? transfer_encoding(request, p, end) : 0;
    default:
        return 0;
    }
}

/* The blank line: what the headers mean together. */
static int end_of_head(struct http_request *request, const unsigned char *base)
{
    uint8_t flags = request->flags_;
    if (request->minor_ == 1 && !(flags & HOST))
        return -400;
    if ((flags & CHUNKED) && ((flags & LENGTH) || request->minor_ == 0))
        return -400;                    /* how long is it? Two answers are no answer */
    if (request->body_left_ > request->body_max_)
        return -413;
    if (request->path_length > 0)
        request->path = (const char *)base + request->path_at_;
    else {
        request->path = request->method == HTTP_OPTIONS ? "*" : "/";
        request->path_length = 1;
    }
    request->keep_alive = !(flags & CLOSE) && (request->minor_ == 1 || (flags & KEEP_ALIVE));
    request->explicit_keep_alive = request->keep_alive && request->minor_ == 0;
    request->body_pending = (flags & CHUNKED) || request->body_left_ > 0;
    request->expect_continue = (flags & EXPECT) && request->body_pending;
    request->stage_ = (flags & CHUNKED) ? SIZE : HEAD_DONE;
    return 0;
}

static int line(struct http_request *request, const unsigned char *base, const unsigned char *end)
{
    const unsigned char *start = base + request->line_;
    if (request->stage_ == HEADER_LINE)
        return start < end ? header_line(request, start, end) : end_of_head(request, base);
    if (start < end) {
        request->stage_ = HEADER_LINE;
        return request_line(request, base, start, end);
    }
    if (request->flags_ & BLANK_LINE)   /* one blank line before a request is tolerated */
        return -400;
    request->flags_ |= BLANK_LINE;
    return 0;
}

static int too_long(const struct http_request *request, const unsigned char *base)
{
    if (request->stage_ == HEADER_LINE)
        return -431;
    return memchr(base + request->line_, ' ', HTTP_METHOD_MAX + 1) ? -414 : -400;
}

ssize_t http_head(struct http_request *request, const char *data, size_t length)
{
    const unsigned char *base = (const unsigned char *)data;
    while (request->stage_ < HEAD_DONE) {
        size_t limit = request->stage_ == HEADER_LINE ? HTTP_HEAD_MAX
                                                      : request->line_ + (size_t)HTTP_LINE_MAX;
        size_t end = length < limit ? length : limit;
        const unsigned char *stop = skip_content(base + request->scanned_, base + end);
        request->scanned_ = (uint32_t)(stop - base);
        if (stop < base + end && *stop != '\r')
            return -400;
        if (base + end - stop < 2)      /* the end of the line is not there yet */
            return end == limit ? too_long(request, base) : 0;
        if (stop[1] != '\n')
            return -400;
        int status = line(request, base, stop);
        if (status < 0)
            return status;
        request->line_ = request->scanned_ = (uint32_t)(stop - base) + 2;
        if (request->stage_ >= HEAD_DONE)
            return (ssize_t)request->line_;
    }
    return 0;
}

static int hex(unsigned char c)
{
    if (is_digit(c))
        return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* The size is complete: `next` is EXTENSION or SIZE_LF. */
static int chunk_size(struct http_request *request, uint8_t next)
{
    if (request->digits_ == 0)
        return -400;
    if (request->body_left_ > request->body_max_ - request->body_seen_)
        return -413;
    request->body_seen_ += request->body_left_;
    request->stage_ = next;
    return 0;
}

static int expect_byte(struct http_request *request, bool right, enum stage next)
{
    request->stage_ = (uint8_t)next;
    return right ? 0 : -400;
}

/* One byte of the frame around chunks. */
static int frame(struct http_request *request, unsigned char c)
{
    switch ((enum stage)request->stage_) {
    case SIZE:
        if (c == '\r')
            return chunk_size(request, SIZE_LF);
        if (c == ';')
            return chunk_size(request, EXTENSION);
        if (hex(c) < 0 || ++request->digits_ > 16)  /* 16 digits fill 64 bits */
            return -400;
        request->body_left_ = request->body_left_ << 4 | (uint64_t)hex(c);
        return 0;
    case EXTENSION:
        if (c == '\r')
            return expect_byte(request, true, SIZE_LF);
        return is_content(c) && ++request->extra_ <= HTTP_EXTENSION_MAX ? 0 : -400;
    case SIZE_LF:
        request->digits_ = 0;
        if (request->body_left_ > 0)
            return expect_byte(request, c == '\n', DATA);
        request->extra_ = 0;
        return expect_byte(request, c == '\n', TRAILER_FIRST);
    case DATA_CR:
        return expect_byte(request, c == '\r', DATA_LF);
    case DATA_LF:
        return expect_byte(request, c == '\n', SIZE);
    case TRAILER_FIRST:
        if (c == '\r')
            return expect_byte(request, true, LAST_LF);
        return expect_byte(request, is(c, TOKEN), TRAILER_NAME);
    case TRAILER_NAME:
        if (c == ':')
            return expect_byte(request, true, TRAILER_VALUE);
        return expect_byte(request, is(c, TOKEN), TRAILER_NAME);
    case TRAILER_VALUE:
        if (c == '\r')
            return expect_byte(request, true, TRAILER_LF);
        return expect_byte(request, is_content(c), TRAILER_VALUE);
    case TRAILER_LF:
        return expect_byte(request, c == '\n', TRAILER_FIRST);
    case LAST_LF:
        request->body_pending = false;
        return expect_byte(request, c == '\n', HEAD_DONE);
    default:
        return -400;
    }
}

/* Take what is there of the body or chunk. */
static size_t skip_data(struct http_request *request, size_t length)
{
    size_t taken = request->body_left_ < length ? (size_t)request->body_left_ : length;
    request->body_left_ -= taken;
    return taken;
}

ssize_t http_body(struct http_request *request, const char *data, size_t length)
{
    if (request->body_pending && request->stage_ == HEAD_DONE) {
        size_t taken = skip_data(request, length);
        request->body_pending = request->body_left_ > 0;
        return (ssize_t)taken;
    }
    size_t used = 0;
    while (request->body_pending && used < length) {
        if (request->stage_ == DATA) {
            used += skip_data(request, length - used);
            if (request->body_left_ == 0)
                request->stage_ = DATA_CR;
            continue;
        }
        int status = frame(request, (unsigned char)data[used++]);
        if (status < 0)
            return status;
        if (request->stage_ >= TRAILER_FIRST && ++request->extra_ > HTTP_TRAILER_MAX)
            return -431;
    }
    return (ssize_t)used;
}
