/* System calls on sockets: what each wrapper promises on top of the kernel. */
#include "os/sock.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sys/un.h>
#include <unistd.h>

#include "support/fds.h"
#include "support/test.h"

#define PATIENCE_MS 10000

static struct sockaddr_in loopback(uint16_t port)
{
    return (struct sockaddr_in){ .sin_family = AF_INET, .sin_port = port,
                                 .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
}

static int listener(struct sockaddr_in *ret_at)
{
    socklen_t length;
    struct sockaddr_storage name;
    int fd = wr_sock_open(AF_INET, SOCK_STREAM);
    *ret_at = loopback(0);
    cr_assert_geq(fd, 0);
    cr_assert_eq(wr_sock_bind(fd, (struct sockaddr *)ret_at, sizeof *ret_at), 0);
    cr_assert_eq(wr_sock_listen(fd, 8), 0);
    cr_assert_eq(wr_sock_name(fd, &name, &length), 0);
    cr_assert_eq(length, sizeof *ret_at);
    memcpy(ret_at, &name, sizeof *ret_at);
    return fd;
}

static void await(int fd, short events)
{
    struct pollfd one = { .fd = fd, .events = events };
    cr_assert_eq(poll(&one, 1, PATIENCE_MS), 1);
}

struct pair {
    int listening, a, b;            /* a connected, b accepted */
    struct sockaddr_in at;
};

static struct pair tcp_pair(void)
{
    struct pair pair;
    pair.listening = listener(&pair.at);
    pair.a = wr_sock_open(AF_INET, SOCK_STREAM);
    int r = wr_sock_connect(pair.a, (struct sockaddr *)&pair.at, sizeof pair.at);
    cr_assert(r == 0 || r == -EINPROGRESS);
    await(pair.listening, POLLIN);
    pair.b = wr_sock_accept(pair.listening, NULL, NULL);
    cr_assert_geq(pair.b, 0);
    await(pair.a, POLLOUT);
    cr_assert_eq(wr_sock_error(pair.a), 0);
    return pair;
}

static void close_pair(struct pair *pair)
{
    (void)wr_sock_close(pair->a);
    (void)wr_sock_close(pair->b);
    (void)wr_sock_close(pair->listening);
}

static void expect_guest_fd(int fd)
{
    cr_assert_geq(fd, 0);
    cr_assert(fcntl(fd, F_GETFD) & FD_CLOEXEC);
    cr_assert(fcntl(fd, F_GETFL) & O_NONBLOCK);
}

Test(sock, every_descriptor_is_cloexec_and_nonblocking, .timeout = 30)
{
    struct pair pair = tcp_pair();
    int reserve = wr_sock_reserve_fd();
    expect_guest_fd(pair.listening);
    expect_guest_fd(pair.a);
    expect_guest_fd(pair.b);
    expect_guest_fd(reserve);
    cr_assert_eq(wr_sock_close(reserve), 0);
    close_pair(&pair);
}

Test(sock, bytes_go_through_every_way_of_sending, .timeout = 30)
{
    struct pair pair = tcp_pair();
    struct iovec pieces[2] = { { .iov_base = "cd", .iov_len = 2 },
                               { .iov_base = "e", .iov_len = 1 } };
    char got[16] = "";
    cr_assert_eq(wr_sock_send(pair.a, "a", 1), 1);
    cr_assert_eq(wr_sock_sendto(pair.a, "b", 1, NULL, 0), 1);
    cr_assert_eq(wr_sock_sendv(pair.a, pieces, 2), 3);
    cr_assert_eq(wr_sock_shutdown(pair.a, SHUT_WR), 0);
    size_t used = 0;
    for (ssize_t r; (await(pair.b, POLLIN), r = wr_sock_recv(pair.b, got + used, 16 - used)) > 0;)
        used += (size_t)r;
    cr_assert_str_eq(got, "abcde");
    close_pair(&pair);
}

Test(sock, pieces_beyond_the_systems_limit_are_left_for_the_next_call, .timeout = 30)
{
    static struct iovec pieces[IOV_MAX + 5];
    static char bytes[IOV_MAX + 5];
    struct pair pair = tcp_pair();
    for (size_t i = 0; i < IOV_MAX + 5; i++)
        pieces[i] = (struct iovec){ .iov_base = bytes + i, .iov_len = 1 };
    cr_assert_eq(wr_sock_sendv(pair.a, pieces, IOV_MAX + 5), IOV_MAX);
    close_pair(&pair);
}

/* A blocking descriptor would make this hang until the test's time is up. */
Test(sock, nothing_blocks_even_on_a_blocking_descriptor, .timeout = 30)
{
    static char block[65536];
    char byte;
    struct sockaddr_storage from;
    socklen_t length;
    struct pair pair = tcp_pair();
    cr_assert_eq(wr_sock_set_nonblocking(pair.a, false), 1);
    struct iovec piece = { .iov_base = block, .iov_len = sizeof block };
    cr_assert_eq(wr_sock_recv(pair.a, &byte, 1), -EAGAIN);
    cr_assert_eq(wr_sock_recvfrom(pair.a, &byte, 1, &from, &length), -EAGAIN);
    ssize_t r;
    while ((r = wr_sock_send(pair.a, block, sizeof block)) > 0) {
    }
    cr_assert_eq(r, -EAGAIN);
    cr_assert_eq(wr_sock_sendto(pair.a, block, sizeof block, NULL, 0), -EAGAIN);
    cr_assert_eq(wr_sock_sendv(pair.a, &piece, 1), -EAGAIN);
    cr_assert_eq(wr_sock_accept(pair.listening, NULL, NULL), -EAGAIN);
    close_pair(&pair);
}

static int file_of(const char *text)
{
    char path[] = "/tmp/weir-sock-XXXXXX";
    int file = mkostemp(path, O_CLOEXEC);
    cr_assert_geq(file, 0);
    cr_assert_eq(unlink(path), 0);
    cr_assert_eq(write(file, text, strlen(text)), (ssize_t)strlen(text));
    return file;
}

Test(sock, a_file_is_sent_from_its_offset_which_moves_on, .timeout = 30)
{
    char got[16] = "";
    struct pair pair = tcp_pair();
    int file = file_of("0123456789");
    int64_t offset = 4;
    cr_assert_eq(wr_sock_send_file(pair.a, file, &offset, 3), 3);
    cr_assert_eq(offset, 7);
    cr_assert_eq(wr_sock_send_file(pair.a, file, &offset, 100), 3);
    cr_assert_eq(wr_sock_send_file(pair.a, file, &offset, 100), 0);
    cr_assert_eq(offset, 10);
    cr_assert_eq(wr_sock_send_file(pair.a, -1, &offset, 1), -EBADF);
    cr_assert_eq(offset, 10);
    await(pair.b, POLLIN);
    cr_assert_gt(wr_sock_recv(pair.b, got, sizeof got), 0);
    cr_assert_eq(strncmp(got, "456", 3), 0);
    (void)close(file);
    close_pair(&pair);
}

static struct sockaddr_un unix_name(const char *name)
{
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    /* In the abstract space: nothing is left in the file system. */
    snprintf(address.sun_path + 1, sizeof address.sun_path - 1, "weir-%d-%s", (int)getpid(), name);
    return address;
}

Test(sock, a_datagram_comes_with_its_sender, .timeout = 30)
{
    char got[8];
    struct sockaddr_storage from = { 0 };
    struct sockaddr_in at = loopback(0), sender = loopback(0);
    socklen_t length = 0;
    int a = wr_sock_open(AF_INET, SOCK_DGRAM), b = wr_sock_open(AF_INET, SOCK_DGRAM);
    cr_assert_eq(wr_sock_bind(a, (struct sockaddr *)&sender, sizeof sender), 0);
    cr_assert_eq(wr_sock_bind(b, (struct sockaddr *)&at, sizeof at), 0);
    cr_assert_eq(wr_sock_name(b, &from, &length), 0);
    memcpy(&at, &from, sizeof at);
    cr_assert_eq(wr_sock_sendto(a, "hello", 5, (struct sockaddr *)&at, sizeof at), 5);
    await(b, POLLIN);
    cr_assert_eq(wr_sock_recvfrom(b, got, sizeof got, &from, &length), 5);
    cr_assert_eq(length, sizeof sender);
    struct sockaddr_storage name;
    cr_assert_eq(wr_sock_name(a, &name, &length), 0);
    cr_assert_arr_eq(&from, &name, sizeof sender);
    (void)wr_sock_close(a);
    (void)wr_sock_close(b);
}

Test(sock, a_sender_without_a_name_is_unspecified, .timeout = 30)
{
    char got[8];
    struct sockaddr_un at = unix_name("unnamed");
    struct sockaddr_storage from;
    socklen_t length = 99;
    int a = wr_sock_open(AF_UNIX, SOCK_DGRAM), b = wr_sock_open(AF_UNIX, SOCK_DGRAM);
    memset(&from, 0xff, sizeof from);
    cr_assert_eq(wr_sock_bind(b, (struct sockaddr *)&at, sizeof at), 0);
    cr_assert_eq(wr_sock_sendto(a, "x", 1, (struct sockaddr *)&at, sizeof at), 1);
    cr_assert_eq(wr_sock_recvfrom(b, got, sizeof got, &from, &length), 1);
    cr_assert_eq(length, 0);
    cr_assert_eq(from.ss_family, AF_UNSPEC);
    (void)wr_sock_close(a);
    (void)wr_sock_close(b);
}

Test(sock, outputs_are_written_on_success_only, .timeout = 30)
{
    char byte;
    struct sockaddr_storage from, untouched;
    socklen_t length = 77;
    struct sockaddr_in at;
    int fd = listener(&at), datagrams = wr_sock_open(AF_INET, SOCK_DGRAM);
    memset(&untouched, 0x5a, sizeof untouched);
    from = untouched;
    cr_assert_eq(wr_sock_accept(fd, &from, &length), -EAGAIN);
    cr_assert_eq(wr_sock_recvfrom(datagrams, &byte, 1, &from, &length), -EAGAIN);
    cr_assert_eq(wr_sock_peer(fd, &from, &length), -ENOTCONN);
    cr_assert_eq(wr_sock_name(-1, &from, &length), -EBADF);
    cr_assert_arr_eq(&from, &untouched, sizeof from);
    cr_assert_eq(length, 77);
    (void)wr_sock_close(fd);
    (void)wr_sock_close(datagrams);
}

Test(sock, accept_and_peer_name_the_other_end, .timeout = 30)
{
    struct sockaddr_in at;
    struct sockaddr_storage from, name;
    socklen_t length, name_length;
    int listening = listener(&at), a = wr_sock_open(AF_INET, SOCK_STREAM);
    int r = wr_sock_connect(a, (struct sockaddr *)&at, sizeof at);
    cr_assert(r == 0 || r == -EINPROGRESS);
    await(listening, POLLIN);
    int b = wr_sock_accept(listening, &from, &length);
    cr_assert_geq(b, 0);
    cr_assert_eq(wr_sock_name(a, &name, &name_length), 0);
    cr_assert_eq(length, name_length);
    cr_assert_arr_eq(&from, &name, sizeof at);
    cr_assert_eq(wr_sock_peer(b, &from, &length), 0);
    cr_assert_arr_eq(&from, &name, sizeof at);
    (void)wr_sock_close(a);
    (void)wr_sock_close(b);
    (void)wr_sock_close(listening);
}

Test(sock, a_refused_connection_is_its_error_once, .timeout = 30)
{
    struct sockaddr_in at;
    int listening = listener(&at);
    cr_assert_eq(wr_sock_close(listening), 0);
    int fd = wr_sock_open(AF_INET, SOCK_STREAM);
    int r = wr_sock_connect(fd, (struct sockaddr *)&at, sizeof at);
    if (r == -EINPROGRESS) {
        await(fd, POLLOUT);
        r = wr_sock_error(fd);
    }
    cr_assert_eq(r, -ECONNREFUSED);
    cr_assert_eq(wr_sock_error(fd), 0);
    (void)wr_sock_close(fd);
}

Test(sock, lingering_reset_makes_close_send_rst, .timeout = 30)
{
    char byte;
    struct pair pair = tcp_pair();
    cr_assert_eq(wr_sock_set_linger_reset(pair.b), 0);
    cr_assert_eq(wr_sock_close(pair.b), 0);
    await(pair.a, POLLIN);
    cr_assert_eq(wr_sock_recv(pair.a, &byte, 1), -ECONNRESET);
    (void)wr_sock_close(pair.a);
    (void)wr_sock_close(pair.listening);
}

static int option_of(int fd, int level, int option)
{
    int value = -1;
    socklen_t length = sizeof value;
    cr_assert_eq(getsockopt(fd, level, option, &value, &length), 0);
    return value;
}

Test(sock, options_arrive_in_the_kernel, .timeout = 30)
{
    int fd = wr_sock_open(AF_INET6, SOCK_STREAM);
    if (fd == -EAFNOSUPPORT)
        cr_skip_test("no IPv6 here");
    cr_assert_eq(wr_sock_set_nodelay(fd), 0);
    cr_assert_neq(option_of(fd, IPPROTO_TCP, TCP_NODELAY), 0);
    cr_assert_eq(wr_sock_set_reuse(fd, false), 0);
    cr_assert_eq(option_of(fd, SOL_SOCKET, SO_REUSEADDR), 1);
    cr_assert_eq(option_of(fd, SOL_SOCKET, SO_REUSEPORT), 0);
    cr_assert_eq(wr_sock_set_reuse(fd, true), 0);
    cr_assert_eq(option_of(fd, SOL_SOCKET, SO_REUSEPORT), 1);
    cr_assert_eq(wr_sock_set_v6only(fd, true), 0);
    cr_assert_eq(option_of(fd, IPPROTO_IPV6, IPV6_V6ONLY), 1);
    cr_assert_eq(wr_sock_set_v6only(fd, false), 0);
    cr_assert_eq(option_of(fd, IPPROTO_IPV6, IPV6_V6ONLY), 0);
    (void)wr_sock_close(fd);
}

Test(sock, nonblocking_tells_what_was_before, .timeout = 30)
{
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    cr_assert_eq(wr_sock_set_nonblocking(fd, true), 0);
    cr_assert(fcntl(fd, F_GETFL) & O_NONBLOCK);
    cr_assert_eq(wr_sock_set_nonblocking(fd, true), 1);
    cr_assert_eq(wr_sock_set_nonblocking(fd, false), 1);
    cr_assert_not(fcntl(fd, F_GETFL) & O_NONBLOCK);
    cr_assert_eq(wr_sock_set_nonblocking(fd, false), 0);
    cr_assert_eq(wr_sock_set_nonblocking(-1, true), -EBADF);
    (void)wr_sock_close(fd);
}

Test(sock, kinds_of_descriptors_are_told_apart, .timeout = 30)
{
    struct sockaddr_in at;
    int file = file_of(""), fd = listener(&at), datagrams = wr_sock_open(AF_INET, SOCK_DGRAM);
    int stream = wr_sock_open(AF_INET, SOCK_STREAM);
    cr_assert_eq(wr_sock_type(fd), SOCK_STREAM);
    cr_assert_eq(wr_sock_type(datagrams), SOCK_DGRAM);
    cr_assert_eq(wr_sock_type(file), -ENOTSOCK);
    cr_assert_eq(wr_sock_type(-1), -EBADF);
    cr_assert_eq(wr_sock_is_listening(fd), 1);
    cr_assert_eq(wr_sock_is_listening(stream), 0);
    cr_assert_eq(wr_sock_is_listening(file), -ENOTSOCK);
    cr_assert_eq(wr_sock_error(file), -ENOTSOCK);
    (void)close(file);
    (void)wr_sock_close(fd);
    (void)wr_sock_close(datagrams);
    (void)wr_sock_close(stream);
}

Test(sock, closing_gives_the_descriptor_back, .timeout = 30)
{
    int before = support_count_fds();
    struct pair pair = tcp_pair();
    cr_assert_eq(wr_sock_close(pair.a), 0);
    cr_assert_eq(wr_sock_close(pair.a), -EBADF);
    cr_assert_eq(wr_sock_close(pair.b), 0);
    cr_assert_eq(wr_sock_close(pair.listening), 0);
    cr_assert_eq(support_count_fds(), before);
}
