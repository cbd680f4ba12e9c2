/* tsan.h: tells ThreadSanitizer of orderings that it cannot see.
 *
 * Concurrency Kit orders by inline assembly. The files that call it (queue/ready.c, queue/inject.c)
 * are compiled without instrumentation in a TSan build and say here, in words TSan understands,
 * what the structure promises: what happened before a push is seen after the pop that got it. */
#ifndef WR_BASE_TSAN_H
#define WR_BASE_TSAN_H

#if defined(WEIR_TSAN)
void __tsan_acquire(void *address);
void __tsan_release(void *address);
#define WR_TSAN_ACQUIRE(address) __tsan_acquire((void *)(address))
#define WR_TSAN_RELEASE(address) __tsan_release((void *)(address))
#else
#define WR_TSAN_ACQUIRE(address) ((void)(address))
#define WR_TSAN_RELEASE(address) ((void)(address))
#endif

#endif
