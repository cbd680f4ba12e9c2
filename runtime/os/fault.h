/* fault.h: the seam by which tests make the k-th use of a system call fail.
 * Compiled in with WEIR_FAULTS; otherwise it is the constant 0. */
#ifndef WR_OS_FAULT_H
#define WR_OS_FAULT_H

enum wr_fault_call {
    WR_FAULT_SOCKET, WR_FAULT_BIND, WR_FAULT_LISTEN, WR_FAULT_ACCEPT, WR_FAULT_CONNECT,
    WR_FAULT_RECV, WR_FAULT_SEND, WR_FAULT_SENDFILE, WR_FAULT_EPOLL_CREATE, WR_FAULT_EPOLL_CTL,
    WR_FAULT_EPOLL_WAIT, WR_FAULT_EVENTFD, WR_FAULT_TIMERFD, WR_FAULT_THREAD, WR_FAULT_FCNTL,
    WR_FAULT_SOCKOPT,       /* getsockopt(2), setsockopt(2) */
    WR_FAULT_NAME,          /* getsockname(2), getpeername(2) */
    WR_FAULT_SHUTDOWN,
    WR_FAULT_CLOSE,         /* the descriptor is closed all the same, as the kernel does */
    WR_FAULT_URING_SETUP, WR_FAULT_URING_ENTER,
    WR_FAULT_URING_COMPLETION,  /* any errno: this completion is lost */
    WR_FAULT_URING_BUFFERS,     /* registering a ring of buffers */
    WR_FAULT_URING_ENTRIES,     /* no errno: so many entries has the submission queue */
    WR_FAULT_CALLS
};

#ifdef WEIR_FAULTS
/* Set by tests before any thread runs: returns 0 (go on) or a positive errno that the call then
 * "got". NULL: no faults. */
extern int (*wr_fault_hook)(enum wr_fault_call call);
static inline int wr_fault(enum wr_fault_call call)
{
    return wr_fault_hook ? wr_fault_hook(call) : 0;
}
#else
static inline int wr_fault(enum wr_fault_call call)
{
    (void)call;
    return 0;
}
#endif

#endif
