/* pool_asio.cc: asio::post() to an asio::thread_pool. */
#define ASIO_STANDALONE 1
#include <asio/post.hpp>
#include <asio/thread_pool.hpp>

#include "pool_peer.h"

static asio::thread_pool *pool;

static void peer_post(unsigned index, peer_function *run, void *argument)
{
    (void)index;
    asio::post(*pool, [run, argument] { run(argument); });
}

static void peer_open(unsigned workers)
{
    pool = new asio::thread_pool(workers);
}

static int peer_posts_inside(void)
{
    return 1;
}

static void peer_wait(uint32_t *word, uint32_t value)
{
    if (value == 0)
        peer_futex_wait(word, value);
}

int main(int argc, char **argv)
{
    return peer_main("asio", argc, argv);
}
