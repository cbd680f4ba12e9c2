/* planted_freed.c: a read of freed memory on purpose: what does not report it is blind. */
#include "support/test.h"

Test(planted, freed, .timeout = 30)
{
    char *bytes = calloc(8, 1);

    cr_assert_not_null(bytes);
    volatile char *volatile kept = bytes;
    free(bytes);
    volatile char freed = kept[1];
    (void)freed;
}
