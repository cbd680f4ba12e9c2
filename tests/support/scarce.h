/* scarce.h: what runs out: memory from a counted allocator, calls of the system, room in a backlog.
 */
#ifndef WEIR_TESTS_SUPPORT_SCARCE_H
#define WEIR_TESTS_SUPPORT_SCARCE_H

#include <stdatomic.h>
#include <stdbool.h>

#include <weir/weir.h>

/* ---- memory ---------------------------------------------------------------------------------- */

/* An allocator that counts, and has nothing at the calls it is told to fail. */
struct scarce_memory {
    weir_allocator allocator; /* give a pointer to it to the runtime */
    _Atomic unsigned calls;   /* of allocate() */
    _Atomic unsigned fail_at; /* the first call that fails, counted from 1; 0: none */
    _Atomic unsigned fail_count;
    _Atomic unsigned failed; /* how many did */
    _Atomic long blocks;     /* allocated and not released */
    _Atomic long long bytes;
    _Atomic unsigned wrong; /* releases with another size than was allocated */
};

void scarce_memory_init(struct scarce_memory *memory);
/* From now on the k-th call fails, and the `count` - 1 behind it. */
void scarce_memory_fail(struct scarce_memory *memory, unsigned k, unsigned count);

/* ---- system calls (builds with WEIR_FAULTS) -------------------------------------------------- */

#ifdef WEIR_FAULTS
#include "os/fault.h"

/* The k-th use of `call`, and the `count` - 1 behind it, get `error`. One setting at a time; set it
 * while no thread of a runtime runs. */
void scarce_call_fail(enum wr_fault_call call, int error, unsigned k, unsigned count);
void scarce_call_clear(void);
/* How many uses failed so far. */
unsigned scarce_call_failed(void);
#endif

/* ---- a peer that never answers --------------------------------------------------------------- */

/* A listener whose backlog is full: whoever connects to it stays in SYN-SENT. */
struct blackhole {
    int listener;
    int fillers[8];
    char address[WEIR_ADDRESS_TEXT_MAX];
};

void blackhole_open(struct blackhole *hole);
void blackhole_close(struct blackhole *hole);

#endif
