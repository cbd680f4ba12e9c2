/* planted_undefined.c: an overflow of int, on purpose: what does not report it is blind. */
#include <limits.h>

#include "support/test.h"

Test(planted, undefined, .timeout = 30)
{
    volatile int most = INT_MAX;
    volatile int more = most + 1;
    (void)more;
}
