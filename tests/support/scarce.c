#include "support/scarce.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

#include "support/test.h"

/* ---- memory ---------------------------------------------------------------------------------- */

/* Before each block: its size. Sixteen bytes, so that the block is aligned as malloc() does. */
union header {
    size_t size;
    unsigned char room[16];
};

static void *allocate(size_t size, void *context)
{
    struct scarce_memory *memory = context;
    unsigned call = atomic_fetch_add(&memory->calls, 1) + 1;
    unsigned first = atomic_load(&memory->fail_at);

    if (first > 0 && call >= first && call - first < atomic_load(&memory->fail_count)) {
        atomic_fetch_add(&memory->failed, 1);
        return NULL;
    }
    union header *block = malloc(sizeof *block + size);
    if (!block)
        return NULL;
    block->size = size;
    atomic_fetch_add(&memory->blocks, 1);
    atomic_fetch_add(&memory->bytes, (long long)size);
    return block + 1;
}

static void release(void *data, size_t size, void *context)
{
    struct scarce_memory *memory = context;
    union header *block = (union header *)data - 1;

    if (block->size != size)
        atomic_fetch_add(&memory->wrong, 1);
    atomic_fetch_sub(&memory->blocks, 1);
    atomic_fetch_sub(&memory->bytes, (long long)block->size);
    free(block);
}

void scarce_memory_init(struct scarce_memory *memory)
{
    memset(memory, 0, sizeof *memory);
    memory->allocator = (weir_allocator){allocate, release, memory};
}

void scarce_memory_fail(struct scarce_memory *memory, unsigned k, unsigned count)
{
    atomic_store(&memory->fail_count, count);
    atomic_store(&memory->fail_at, k > 0 ? atomic_load(&memory->calls) + k : 0);
}

/* ---- system calls ---------------------------------------------------------------------------- */

#ifdef WEIR_FAULTS
static enum wr_fault_call fault_call;
static int fault_error;
static unsigned fault_first, fault_count;
static _Atomic unsigned fault_uses, fault_failed;

static int on_call(enum wr_fault_call call)
{
    if (call != fault_call)
        return 0;
    unsigned use = atomic_fetch_add(&fault_uses, 1) + 1;
    if (use < fault_first || use - fault_first >= fault_count)
        return 0;
    atomic_fetch_add(&fault_failed, 1);
    return fault_error;
}

void scarce_call_fail(enum wr_fault_call call, int error, unsigned k, unsigned count)
{
    fault_call = call;
    fault_error = error;
    fault_first = k;
    fault_count = count;
    atomic_store(&fault_uses, 0);
    atomic_store(&fault_failed, 0);
    wr_fault_hook = on_call;
}

void scarce_call_clear(void)
{
    wr_fault_hook = NULL;
}

unsigned scarce_call_failed(void)
{
    return atomic_load(&fault_failed);
}
#endif

/* ---- a peer that never answers --------------------------------------------------------------- */

void blackhole_open(struct blackhole *hole)
{
    weir_address address;

    cr_assert_eq(weir_address_parse(&address, "127.0.0.1:0"), 0);
    hole->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    cr_assert_eq(bind(hole->listener, (struct sockaddr *)&address.storage, address.length), 0);
    cr_assert_eq(listen(hole->listener, 0), 0);
    cr_assert_eq(getsockname(hole->listener, (struct sockaddr *)&address.storage, &address.length),
                 0);
    weir_address_format(&address, hole->address, sizeof hole->address);
    struct pollfd last = {.events = POLLOUT};
    for (unsigned i = 0; i < sizeof hole->fillers / sizeof hole->fillers[0]; i++) {
        hole->fillers[i] = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        cr_assert_geq(hole->fillers[i], 0);
        int r = connect(hole->fillers[i], (struct sockaddr *)&address.storage, address.length);
        cr_assert(r == 0 || errno == EINPROGRESS);
        last.fd = hole->fillers[i];
    }
    if (poll(&last, 1, 50) != 0)
        cr_skip_test("a full backlog does not keep connections out here");
}

void blackhole_close(struct blackhole *hole)
{
    for (unsigned i = 0; i < sizeof hole->fillers / sizeof hole->fillers[0]; i++)
        close(hole->fillers[i]);
    close(hole->listener);
}
