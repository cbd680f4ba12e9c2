/* planted_leak.c: a leak on purpose: the build whose sanitizer does not report it is blind. */
#include "support/test.h"

static void *volatile lost;

Test(planted, leak, .timeout = 30)
{
    lost = malloc(100);
    cr_assert_not_null(lost);
    lost = NULL;
}
