/* sock.h: system calls on sockets: results >= 0 or -errno, EINTR retried, never SIGPIPE, everything
 * CLOEXEC and non-blocking, errno left alone. Any thread; none of them blocks (sendfile may, on the
 * file). Outputs are written on success only. */
#ifndef WR_OS_SOCK_H
#define WR_OS_SOCK_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>

/* socket(2); the fd */
int wr_sock_open(int family, int type);
int wr_sock_bind(int fd, const struct sockaddr *address, socklen_t length);
int wr_sock_listen(int fd, int backlog);
/* accept4(2); outputs may be NULL (both of them) */
int wr_sock_accept(int fd, struct sockaddr_storage *ret_from, socklen_t *ret_length);
/* 0 or -EINPROGRESS (also when a signal came in: it goes on in the background), ... */
int wr_sock_connect(int fd, const struct sockaddr *address, socklen_t length);
/* SO_ERROR as 0 or -errno */
int wr_sock_error(int fd);

ssize_t wr_sock_recv(int fd, void *buffer, size_t length);
/* Outputs may be NULL (both of them). A sender without a name has length 0 and AF_UNSPEC. */
ssize_t wr_sock_recvfrom(int fd, void *buffer, size_t length, struct sockaddr_storage *ret_from,
                         socklen_t *ret_length);
ssize_t wr_sock_send(int fd, const void *data, size_t length);
ssize_t wr_sock_sendto(int fd, const void *data, size_t length, const struct sockaddr *to,
                       socklen_t to_length);
/* at most IOV_MAX are looked at */
ssize_t wr_sock_sendv(int fd, const struct iovec *pieces, size_t count);
/* sendfile(2), SIGPIPE kept away; advances *offset */
ssize_t wr_sock_send_file(int fd, int file, int64_t *offset, size_t length);

int wr_sock_shutdown(int fd, int how);
/* never retried on EINTR, which is no error: the fd is gone */
int wr_sock_close(int fd);
/* the next close sends RST */
int wr_sock_set_linger_reset(int fd);
int wr_sock_set_nodelay(int fd);
int wr_sock_set_reuse(int fd, bool port_too);
int wr_sock_set_v6only(int fd, bool only);
/* returns the former state (0, 1) or -errno */
int wr_sock_set_nonblocking(int fd, bool on);
/* two ends of a stream */
int wr_sock_pair(int ret_fds[2]);
/* SOCK_STREAM, ... or -ENOTSOCK, ... */
int wr_sock_type(int fd);
/* 0, 1 or -errno */
int wr_sock_is_listening(int fd);
int wr_sock_name(int fd, struct sockaddr_storage *ret, socklen_t *ret_length);
int wr_sock_peer(int fd, struct sockaddr_storage *ret, socklen_t *ret_length);
/* an fd to be given up when there are none left */
int wr_sock_reserve_fd(void);

#endif
