/* pool_libuv.c: uv_queue_work(). It is called on the loop's thread only, and its callback on that
 * thread is part of it: so an item has not ended before that came, and none posts from inside. */
#include <uv.h>

#include "pool_peer.h"

struct request {
    uv_work_t work;
    peer_function *run;
    void *argument;
};

static struct request requests[PEER_ITEMS_MAX];
static unsigned pending;

static void run(uv_work_t *work)
{
    struct request *request = work->data;
    if (request->run == peer_note)
        request->run(request->argument);
}

static void after(uv_work_t *work, int status)
{
    struct request *request = work->data;
    (void)status;
    pending--;
    if (request->run != peer_note)
        request->run(request->argument);
}

static void peer_post(unsigned index, peer_function *function, void *argument)
{
    struct request *request = &requests[index];
    *request = (struct request) { .run = function, .argument = argument, .work.data = request };
    pending++;
    if (uv_queue_work(uv_default_loop(), &request->work, run, after) != 0)
        _exit(1);
}

static void peer_open(unsigned workers)
{
    char text[16];
    snprintf(text, sizeof text, "%u", workers);
    setenv("UV_THREADPOOL_SIZE", text, 1);
}

static int peer_posts_inside(void)
{
    return 0;
}

static void peer_wait(uint32_t *word, uint32_t value)
{
    (void)word, (void)value;
    if (pending > 0)
        uv_run(uv_default_loop(), UV_RUN_ONCE);
}

int main(int argc, char **argv)
{
    return peer_main("libuv", argc, argv);
}
