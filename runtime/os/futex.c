/* futex.c: the futex system call. FUTEX_WAIT_BITSET is used because its deadline is absolute, so
 * that a wait which is begun anew after a spurious wake needs no arithmetic and does not drift. */
#include "os/futex.h"

#include <errno.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/assert.h"

#define NS_PER_SECOND 1000000000

_Static_assert(sizeof(time_t) == sizeof(long), "futex(2) takes the kernel's old timespec");

int wr_futex_wait(_Atomic uint32_t *word, uint32_t expected, weir_time deadline)
{
    struct timespec at = { 0 };
    /* A negative time is -EINVAL to the kernel; time 0 has passed just as well. */
    if (deadline > 0) {
        at.tv_sec = (time_t)(deadline / NS_PER_SECOND);
        at.tv_nsec = (long)(deadline % NS_PER_SECOND);
    }
    int saved = errno;
    long r = syscall(SYS_futex, word, FUTEX_WAIT_BITSET | FUTEX_PRIVATE_FLAG, expected,
                     deadline == WEIR_NEVER ? NULL : &at, NULL, FUTEX_BITSET_MATCH_ANY);
    int error = r < 0 ? errno : 0;
    errno = saved;
    WR_ASSERT(error == 0 || error == EAGAIN || error == EINTR || error == ETIMEDOUT);
    return error == ETIMEDOUT ? -ETIMEDOUT : 0;
}

int wr_futex_wake(_Atomic uint32_t *word, int count)
{
    int saved = errno;
    long r = syscall(SYS_futex, word, FUTEX_WAKE | FUTEX_PRIVATE_FLAG, count, NULL, NULL, 0);
    errno = saved;
    /* Who unlocks wakes after it has let go, so the word may be gone by now: -EFAULT is nobody. */
    return r < 0 ? 0 : (int)r;
}
