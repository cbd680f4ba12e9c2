/* assert.h: checks of our own mistakes. A caller's mistake is never asserted: it is -EINVAL.
 * In builds without WEIR_ASSERTS the operands stay "used" and cost nothing. */
#ifndef WR_BASE_ASSERT_H
#define WR_BASE_ASSERT_H

#include <assert.h>

#ifdef WEIR_ASSERTS
/* One line to stderr, then abort(): the state is wrong and going on would spread it. */
void wr_assert_failed(const char *condition, const char *file, int line)
    __attribute__((noreturn, cold));
#define WR_ASSERT(condition) \
    ((condition) ? (void)0 : wr_assert_failed(#condition, __FILE__, __LINE__))
#else
#define WR_ASSERT(condition) ((void)sizeof((condition) ? 1 : 0))
#endif

#endif
