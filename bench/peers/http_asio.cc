// http_asio.cc: Asio (stand-alone) as a thread pool: one io_context that all threads run, the shape
// nearest to weir's. Raw: it counts the ends of heads and sends canned answers in one write.
#include "http_peer.h"

#include <asio.hpp>
#include <memory>
#include <thread>
#include <vector>

namespace {

char *answers;

// One operation of a connection is pending at any time, so that its callbacks need no strand.
class Connection : public std::enable_shared_from_this<Connection> {
public:
    explicit Connection(asio::ip::tcp::socket socket) : socket_(std::move(socket)) {}

    void read()
    {
        auto done = [self = shared_from_this()](std::error_code error, size_t got) {
            if (error)
                return;
            self->due_ += bench_count_heads(&self->matched_, self->buffer_, got);
            self->answer();
        };
        socket_.async_read_some(asio::buffer(buffer_), std::move(done));
    }

private:
    void answer()
    {
        if (due_ == 0) {
            read();
            return;
        }
        size_t now = due_ < PEER_ANSWERS_AT_ONCE ? due_ : size_t(PEER_ANSWERS_AT_ONCE);
        due_ -= now;
        auto done = [self = shared_from_this()](std::error_code error, size_t) {
            if (!error)
                self->answer();
        };
        asio::async_write(socket_, asio::buffer(answers, now * PEER_ANSWER_LENGTH), std::move(done));
    }

    asio::ip::tcp::socket socket_;
    size_t due_ = 0;
    unsigned char matched_ = 0;
    char buffer_[16384];
};

void accept(asio::ip::tcp::acceptor &acceptor)
{
    acceptor.async_accept([&acceptor](std::error_code error, asio::ip::tcp::socket socket) {
        if (!error) {
            socket.set_option(asio::ip::tcp::no_delay(true), error);
            std::make_shared<Connection>(std::move(socket))->read();
        }
        accept(acceptor);
    });
}

}

int main(int argc, char **argv)
{
    struct peer_arguments arguments = peer_arguments(argc, argv);
    asio::io_context context(int(arguments.threads));
    asio::ip::tcp::acceptor acceptor(context, asio::ip::tcp::v4(), peer_listen(arguments.port));
    std::vector<std::thread> threads;

    answers = peer_answers();
    accept(acceptor);
    for (unsigned i = 1; i < arguments.threads; i++)
        threads.emplace_back([&context] { context.run(); });
    context.run();
    return 0;
}
