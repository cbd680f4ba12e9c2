/* plugin.c: a plug-in that has weir inside (or beside it, a library of its own): start, work, stop;
 * or start and leave it running. Loaded and unloaded by test_dlclose.c. */
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#include <weir/weir.h>

#define EXPORTED __attribute__((visibility("default")))

EXPORTED int plugin_run(void);
EXPORTED int plugin_begin(void);
EXPORTED unsigned plugin_ticks(void);
EXPORTED int plugin_end(void);

static _Atomic unsigned ran;
static _Atomic long blocks;

static void *allocate(size_t size, void *context)
{
    (void)context;
    void *memory = malloc(size);
    if (memory)
        atomic_fetch_add(&blocks, 1);
    return memory;
}

static void release(void *memory, size_t size, void *context)
{
    (void)size;
    (void)context;
    atomic_fetch_sub(&blocks, 1);
    free(memory);
}

static void on_work(weir_work *work, void *context)
{
    (void)work;
    (void)context;
    atomic_fetch_add(&ran, 1);
}

static void on_timer(weir_timer *timer, uint64_t missed, void *context)
{
    (void)timer;
    (void)missed;
    on_work(NULL, context);
}

static void on_read(weir_socket *socket, const weir_view *view, int status, void *context)
{
    (void)context;
    if (status < 0 || view->length == 0)
        weir_close(socket, NULL, NULL);
    else
        weir_write(socket, view->data, view->length);
}

static void on_accept(weir_listener *listener, weir_socket *socket, void *context)
{
    (void)listener;
    weir_read_start(socket, on_read, context);
}

static int talk(weir_runtime *runtime)
{
    weir_listener *listener;
    weir_socket *socket;
    weir_address address;
    char text[WEIR_ADDRESS_TEXT_MAX], back[2];
    weir_time soon = weir_after_ms(20000);

    if (weir_listen(runtime, "127.0.0.1:0", NULL, on_accept, NULL, &listener) < 0 ||
        weir_listener_address(listener, &address) < 0 ||
        weir_address_format(&address, text, sizeof text) < 0 ||
        weir_connect_wait(runtime, text, NULL, &socket, soon) < 0)
        return 1;
    if (weir_send_wait(socket, "hi", 2, soon) != 2 || weir_recv_wait(socket, back, 2, soon) < 1)
        return 2;
    return 0;
}

int plugin_run(void)
{
    static const weir_allocator allocator = {allocate, release, NULL};
    weir_options options = WEIR_OPTIONS_INIT;
    weir_runtime *runtime;
    weir_work work, job;
    weir_timer timer;

    atomic_store(&ran, 0);
    options.allocator = &allocator;
    options.workers = 2;
    options.sources_max = 64;
    if (weir_runtime_create(&runtime, &options) < 0)
        return 3;
    weir_work_init(&work, on_work, NULL);
    weir_work_init(&job, on_work, NULL);
    weir_timer_init(&timer, runtime, on_timer, NULL);
    if (weir_post(runtime, &work) < 0 || weir_post_blocking(runtime, &job) < 0 ||
        weir_timer_set(&timer, weir_now(), 0, WEIR_TIMER_ONCE) < 0)
        return 4;
    int r = talk(runtime);
    while (r == 0 && atomic_load(&ran) < 3)
        nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
    weir_runtime_destroy(runtime);
    weir_timer_fini(&timer);
    return r == 0 && atomic_load(&blocks) != 0 ? 5 : r;
}

/* ---- a runtime that is left running ---- */

static weir_runtime *left;
static weir_timer ticker;

static void on_tick(weir_timer *timer, uint64_t missed, void *context)
{
    (void)timer;
    (void)missed;
    (void)context;
    atomic_fetch_add(&ran, 1);
}

int plugin_begin(void)
{
    static const weir_allocator allocator = {allocate, release, NULL};
    weir_options options = WEIR_OPTIONS_INIT;

    atomic_store(&ran, 0);
    options.allocator = &allocator;
    options.workers = 2;
    options.sources_max = 64;
    int r = weir_runtime_create(&left, &options);
    if (r < 0)
        return r;
    weir_timer_init(&ticker, left, on_tick, NULL);
    return weir_timer_set(&ticker, weir_now(), 1000000, WEIR_TIMER_RATE);
}

unsigned plugin_ticks(void)
{
    return atomic_load(&ran);
}

int plugin_end(void)
{
    weir_runtime_destroy(left);
    weir_timer_fini(&ticker);
    return atomic_load(&blocks) != 0;
}
