/* heads.h: what servers without a parser count, in C and in C++. */
#ifndef BENCH_SUPPORT_HEADS_H
#define BENCH_SUPPORT_HEADS_H

#include <stddef.h>
#include <string.h>

/* How many heads of requests end in `data`; `*matched`, 0 at first, carries an unfinished end over
 * to the next call. */
static inline size_t bench_count_heads(unsigned char *matched, const char *data, size_t length)
{
    static const char end[4] = { '\r', '\n', '\r', '\n' };
    unsigned char seen = *matched;
    size_t heads = 0;

    for (size_t i = 0; i < length; i++) {
        if (seen == 0) {
            const char *cr = (const char *)memchr(data + i, '\r', length - i);
            if (!cr)
                break;
            i = (size_t)(cr - data);
            seen = 1;
        } else if (data[i] != end[seen]) {
            seen = data[i] == '\r';
        } else if (++seen == sizeof end) {
            heads++;
            seen = 0;
        }
    }
    *matched = seen;
    return heads;
}

#endif
