/* assert.c: the end of a process that found a mistake of ours. Debug builds only. */
#include "base/assert.h"

#include <stdio.h>
#include <stdlib.h>

#ifdef WEIR_ASSERTS

void wr_assert_failed(const char *condition, const char *file, int line)
{
    /* One call, so that the line stays whole when several threads fail at once. */
    fprintf(stderr, "weir: %s:%d: assertion failed: %s\n", file, line, condition);
    abort();
}

#endif
