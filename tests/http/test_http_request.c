/* The parser of the sample server: what it takes, what it refuses and with which status, and
 * that none of it depends on how the bytes arrive. */
#include "support/test.h"

#include <stdint.h>
#include <time.h>

#include "requests.h"
#include "transcript.h"

static struct transcript whole, pieces;

/* Reads `bytes` in steps of `step` (0: all at once) into `t`. */
static const char *read_by(struct transcript *t, const char *bytes, size_t length, size_t step)
{
    transcript_init(t);
    for (size_t at = 0; at < length && !t->over; at += step) {
        step = step && step < length - at ? step : length - at;
        transcript_feed(t, bytes + at, step);
    }
    transcript_fini(t);
    return t->text;
}

Test(http_request, every_row_of_the_table_gets_its_answer, .timeout = 20)
{
    for (size_t i = 0; i < row_count; i++) {
        const char *text = read_by(&whole, rows[i].bytes, rows[i].length, 0);
        cr_expect_str_eq(text, rows[i].expected, "%s: got \"%s\", expected \"%s\"", rows[i].name,
                         text, rows[i].expected);
    }
}

Test(http_request, a_cut_at_any_offset_changes_nothing, .timeout = 60)
{
    for (size_t i = 0; i < row_count; i++) {
        for (size_t cut = 1; cut < rows[i].length; cut++) {
            transcript_init(&pieces);
            transcript_feed(&pieces, rows[i].bytes, cut);
            transcript_feed(&pieces, rows[i].bytes + cut, rows[i].length - cut);
            transcript_fini(&pieces);
            cr_assert_str_eq(pieces.text, rows[i].expected, "%s cut at %zu: got \"%s\"",
                             rows[i].name, cut, pieces.text);
        }
    }
}

Test(http_request, dribbles_of_1_3_and_7_bytes_change_nothing, .timeout = 60)
{
    for (size_t i = 0; i < row_count; i++) {
        for (size_t step = 1; step <= 7; step += step + 1) {
            const char *text = read_by(&pieces, rows[i].bytes, rows[i].length, step);
            cr_assert_str_eq(text, rows[i].expected, "%s by %zu: got \"%s\"", rows[i].name, step,
                             text);
        }
    }
}

static uint64_t next_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

/* Rows one behind the other, some bytes spoiled. Returns the length. */
static size_t make_stream(char *stream, size_t size, uint64_t *random)
{
    size_t length = 0;
    for (uint64_t n = 1 + next_random(random) % 4; n > 0; n--) {
        const struct row *row = &rows[next_random(random) % row_count];
        if (length + row->length <= size) {
            memcpy(stream + length, row->bytes, row->length);
            length += row->length;
        }
    }
    for (uint64_t n = next_random(random) % 4; n > 1 && length > 0; n--) {
        static const char spoil[] = "\r\n\t :;,0aF\x00\x7f\xff*/";
        stream[next_random(random) % length] = spoil[next_random(random) % (sizeof spoil - 1)];
    }
    return length;
}

Test(http_request, random_streams_cut_at_random_are_read_as_unsplit, .timeout = 60)
{
    const char *given = getenv("SEED");
    uint64_t seed = given ? strtoull(given, NULL, 0) : (uint64_t)time(NULL) * 2654435761U;
    uint64_t random = seed | 1;
    static char stream[16 * 1024];
    cr_log_info("SEED=%llu", (unsigned long long)seed);
    for (int round = 0; round < 4000; round++) {
        size_t length = make_stream(stream, sizeof stream, &random);
        read_by(&whole, stream, length, 0);
        transcript_init(&pieces);
        for (size_t at = 0, step; at < length; at += step) {
            step = 1 + next_random(&random) % (next_random(&random) % 2 ? 8 : 200);
            step = step < length - at ? step : length - at;
            transcript_feed(&pieces, stream + at, step);
        }
        transcript_fini(&pieces);
        cr_assert_str_eq(pieces.text, whole.text, "SEED=%llu round %d: \"%s\" but unsplit \"%s\"",
                         (unsigned long long)seed, round, pieces.text, whole.text);
    }
}

/* `before`, then `count` times `unit`, then `after`, whole and in pieces. */
static void check_large(const char *name, const char *before, const char *unit, size_t count,
                        const char *after, const char *expected)
{
    static const size_t steps[] = {0, 1, 1009};
    size_t b = strlen(before), u = strlen(unit), a = strlen(after);
    char *bytes = malloc(b + u * count + a);
    cr_assert_not_null(bytes);
    memcpy(bytes, before, b);
    for (size_t i = 0; i < count; i++)
        memcpy(bytes + b + i * u, unit, u);
    memcpy(bytes + b + u * count, after, a);
    for (size_t s = 0; s < 3; s++) {
        const char *text = read_by(&pieces, bytes, b + u * count + a, steps[s]);
        cr_expect_str_eq(text, expected, "%s by %zu: got \"%s\"", name, steps[s], text);
    }
    free(bytes);
}

#define V11 " HTTP/1.1\r\n" H "\r\n"

Test(http_request, a_head_that_is_too_large_is_refused_with_its_status, .timeout = 60)
{
    check_large("target of 100 KB", "GET /", "a", 100000, V11, "error 414\n");
    check_large("target without an end", "GET /", "a", 100000, "", "error 414\n");
    check_large("method of 100 KB", "", "G", 100000, " /" V11, E400);
    check_large("method of 33 bytes", "", "G", HTTP_METHOD_MAX + 1, " /" V11, E400);
    check_large("method of 32 bytes", "", "G", HTTP_METHOD_MAX, " /" V11, "other / keep +0\n");
    check_large("value of 100 KB", "GET / HTTP/1.1\r\nX: ", "a", 100000, "\r\n" H "\r\n",
                "error 431\n");
    check_large("name of 100 KB", "GET / HTTP/1.1\r\n", "a", 100000, ": b\r\n\r\n", "error 431\n");
    check_large("10000 headers", GET, "A: b\r\n", 10000, "\r\n", "error 431\n");
    check_large("100 headers", GET, "A: b\r\n", HTTP_HEADERS_MAX - 1, "\r\n", KEEP);
    check_large("101 headers", GET, "A: b\r\n", HTTP_HEADERS_MAX, "\r\n", "error 431\n");
    check_large("100 KB of blank lines", "", "\r\n", 50000, GET "\r\n", E400);
}

Test(http_request, a_body_that_is_too_large_is_refused_with_its_status, .timeout = 60)
{
    check_large("1 MB of chunk extension", CHUNKED "5;", "x", 1000000, "\r\nhello\r\n0\r\n\r\n",
                BODY " " E400);
    check_large("extensions of many chunks", CHUNKED, "1;xxxxxxxxxxxxxxx\r\na\r\n", 1000,
                "0\r\n\r\n", BODY " " E400);
    check_large("trailers of 100 KB", CHUNKED "0\r\n", "A: b\r\n", 20000, "\r\n",
                BODY " error 431\n");
    check_large("a chunk beyond the limit", CHUNKED "1\r\na\r\n", "", 0, "F4240\r\n",
                BODY " error 413\n");
    check_large("20000 chunks", CHUNKED, "1\r\na\r\n", 20000, "0\r\n\r\n", BODY " +120005\n");
    check_large("the largest body", POST "Content-Length: 1000000\r\n\r\n", "a", 1000000, "",
                BODY " +1000000\n");
    check_large("the largest chunk", CHUNKED "F4240\r\n", "a", 1000000, "\r\n0\r\n\r\n",
                BODY " +1000014\n");
}

/* The last byte that fits, and one more. */
Test(http_request, limits_of_line_and_head_are_exact, .timeout = 20)
{
    size_t line = HTTP_LINE_MAX - strlen("HEAD / HTTP/1.0\r\n");
    static char expected[HTTP_LINE_MAX + 64];
    snprintf(expected, sizeof expected, "HEAD /%0*d close +0\n", (int)line, 0);
    check_large("longest line", "HEAD /", "0", line, " HTTP/1.0\r\n\r\n", expected);
    check_large("one more", "HEAD /", "0", line + 1, " HTTP/1.0\r\n\r\n", "error 414\n");
    check_large("longest line behind a blank one", "\r\nHEAD /", "0", line, " HTTP/1.0\r\n\r\n",
                expected);

    size_t head = HTTP_HEAD_MAX - strlen(GET "X: \r\n\r\n");
    check_large("longest head", GET "X: ", "a", head, "\r\n\r\n", KEEP);
    check_large("one more", GET "X: ", "a", head + 1, "\r\n\r\n", "error 431\n");
}

/* How far a head was looked at is remembered: a byte is not looked at again when more comes.
 * Were it not so, this would take some 1.3e8 looks for each head instead of 1.6e4, and run into
 * its timeout. */
Test(http_request, a_dribbled_head_costs_no_more_than_its_length, .timeout = 10)
{
    static char head[HTTP_HEAD_MAX];
    size_t start = strlen(GET "X: ");
    memcpy(head, GET "X: ", start);
    memset(head + start, 'a', sizeof head - start - 4);
    memcpy(head + sizeof head - 4, "\r\n\r\n", 4);
    for (int round = 0; round < 2000; round++) {
        struct http_request request;
        http_request_init(&request, 0);
        for (size_t length = 1; length < sizeof head; length++)
            cr_assert_eq(http_head(&request, head, length), 0);
        cr_assert_eq(http_head(&request, head, sizeof head), (ssize_t)sizeof head);
    }
}

/* An error after the method is answered in the manner of the method: no body behind HEAD. */
Test(http_request, the_method_is_known_when_a_later_line_is_wrong)
{
    struct http_request request;
    static const char text[] = "HEAD / HTTP/1.1\r\nHost : a\r\n\r\n";
    http_request_init(&request, 0);
    cr_assert_eq(http_head(&request, text, sizeof text - 1), -400);
    cr_assert_eq(request.method, HTTP_HEAD);
}
