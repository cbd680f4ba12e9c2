/* thread.c: starts threads that a host does not notice: no signal runs on one of them but the
 * faults that it causes itself. */
#include "os/thread.h"

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include "base/assert.h"
#include "os/fault.h"

/* A burst of exits elsewhere in the process makes -EAGAIN pass within milliseconds. */
#define TRIES_MAX 4
#define RETRY_NS 1000000

/* Raised by what a thread itself does. A blocked one kills the process at once, and the host's
 * crash handler, sanitizer or system call filter never hears of it. */
static const int synchronous[] = { SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS };

static void *enter(void *argument)
{
    struct wr_thread *thread = argument;
    /* Done here and not by the parent, so that run() never sees the name missing. */
    (void)pthread_setname_np(pthread_self(), thread->name);
    return thread->run(thread->argument);
}

static size_t whole_stack(size_t size)
{
    size_t least = (size_t)PTHREAD_STACK_MIN;
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    if (size < least)
        size = least;
    size_t over = size % page;
    return over ? size + (page - over) : size;
}

static sigset_t blocked(void)
{
    sigset_t mask;
    sigfillset(&mask);
    for (size_t i = 0; i < sizeof synchronous / sizeof *synchronous; i++)
        sigdelset(&mask, synchronous[i]);
    return mask;
}

static int create(struct wr_thread *thread, const pthread_attr_t *attributes)
{
    for (unsigned tries = 1;; tries++) {
        int error = wr_fault(WR_FAULT_THREAD);
        if (!error)
            error = pthread_create(&thread->handle, attributes, enter, thread);
        if (error != EAGAIN || tries == TRIES_MAX)
            return error;
        struct timespec pause = { .tv_nsec = RETRY_NS };
        (void)nanosleep(&pause, NULL);
    }
}

int wr_thread_start(struct wr_thread *thread, const char *name, size_t stack_size,
                    void *(*run)(void *), void *argument)
{
    int saved = errno;
    snprintf(thread->name, sizeof thread->name, "%s", name);
    thread->run = run;
    thread->argument = argument;

    pthread_attr_t attributes;
    int error = pthread_attr_init(&attributes);
    if (!error) {
        error = pthread_attr_setstacksize(&attributes, whole_stack(stack_size));
        if (!error) {
            /* The mask is inherited: blocked before, or a signal could hit the thread's start. */
            sigset_t mask = blocked(), before;
            (void)pthread_sigmask(SIG_SETMASK, &mask, &before);
            error = create(thread, &attributes);
            (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
        }
        (void)pthread_attr_destroy(&attributes);
    }
    errno = saved;
    return -error;
}

void wr_thread_join(struct wr_thread *thread)
{
    int error = pthread_join(thread->handle, NULL);
    WR_ASSERT(error == 0);
    (void)error;
}

int wr_thread_id(void)
{
    static _Thread_local int id;
    if (id == 0)
        id = (int)gettid();
    return id;
}
