/* thread.h: threads of ours: named, all signals but synchronous faults blocked, an explicit stack.
 */
#ifndef WR_OS_THREAD_H
#define WR_OS_THREAD_H

#include <pthread.h>
#include <sched.h>
#include <stddef.h>

/* The kernel keeps 15 characters. */
#define WR_THREAD_NAME_MAX 16

struct wr_thread {
    pthread_t handle;
    char name[WR_THREAD_NAME_MAX];
    void *(*run)(void *argument);
    void *argument;
};

/* 0, -EAGAIN (also after a few short retries), -ENOMEM, -EINVAL. `thread` must stay until the join
 * (or until run() has been entered, if detached). A stack smaller than the system's least is
 * raised to it; a longer name is cut. The caller's signal mask is the same afterwards. */
int wr_thread_start(struct wr_thread *thread, const char *name, size_t stack_size,
                    void *(*run)(void *), void *argument);
void wr_thread_join(struct wr_thread *thread);
/* The kernel's id of the calling thread; costs no system call after the first time on a thread.
 * In a child after fork() a thread that had asked before still hears its parent's id. */
int wr_thread_id(void);

/* Gives the CPU to whoever waits for it: between two looks at what another thread is about to
 * end. */
static inline void wr_thread_yield(void)
{
    (void)sched_yield();
}

#endif
