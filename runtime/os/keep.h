/* keep.h: code that must not be unloaded while a thread of ours runs it. */
#ifndef WR_OS_KEEP_H
#define WR_OS_KEEP_H

/* Keeps the shared object that `address` lies in loaded until the calling thread has ended, however
 * often it is dlclose()d meanwhile; called by that thread. What was closed meanwhile goes with the
 * next dlclose() in the process, never by itself: nobody returns into code that has gone.
 *
 * glibc keeps an object that has registered a destructor for the end of a thread. Where the C
 * library has no such thing (musl, whose dlclose() unloads nothing) this does nothing. */
void wr_keep_loaded(const void *address);

#endif
