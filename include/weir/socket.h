/* socket.h: listeners, sockets, and what can be done with them.
 *
 * What every call keeps: it is legal on any thread at any time, also inside any callback; callbacks
 * of one socket come one after the other, and each sees what the one before wrote; no callback
 * comes inside the call that started it. A call on a socket that is closing answers -ECANCELED.
 *
 * Addresses as text: "127.0.0.1:80", "[::1]:80", "unix:/path", "unix:@abstract". Names are not
 * looked up (that blocks: use the blocking lane); port 0 lets the kernel choose. */
#ifndef WEIR_SOCKET_H
#define WEIR_SOCKET_H

#include <stdbool.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <weir/base.h>
#include <weir/buffer.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct weir_socket weir_socket;
typedef struct weir_listener weir_listener;
typedef struct weir_op weir_op;

/** An address. */
typedef struct weir_address {
    socklen_t length;
    struct sockaddr_storage storage;
} weir_address;

/** Room for any address as text. */
#define WEIR_ADDRESS_TEXT_MAX 128

/**
 * Read an address from text (forms above).
 * @return 0; -EINVAL malformed, or NULL.   Threads: any.   Blocks: no.
 */
WEIR_API int weir_address_parse(weir_address *ret_address, const char *text);

/**
 * Write an address as text.
 * @return the length; -EINVAL NULL; -ENOSPC `size` is too small; -EAFNOSUPPORT another family.
 * Threads: any.   Blocks: no.
 */
WEIR_API int weir_address_format(const weir_address *address, char *buffer, size_t size);

/* ---- settings ------------------------------------------------------------------------ */

/** Settings of a socket. Begin with WEIR_SOCKET_OPTIONS_INIT; 0 means the default. */
typedef struct weir_socket_options {
    size_t size;
    size_t write_high;  /* bytes that may wait to be sent; default 1 MiB */
    size_t write_low;   /* below this on_drain is called; default a quarter of write_high */
    unsigned linger_ms; /* how long a graceful close may take; default 2000 */
    bool no_nodelay;    /* leave Nagle's algorithm on */
    void *user;         /* first value of weir_socket_user() */
} weir_socket_options;

#define WEIR_SOCKET_OPTIONS_INIT { .size = sizeof(weir_socket_options) }

/** Settings of a listener. Begin with WEIR_LISTEN_OPTIONS_INIT; 0 means the default. */
typedef struct weir_listen_options {
    size_t size;
    unsigned backlog;           /* default 4096; the kernel caps it at net.core.somaxconn */
    bool dual_stack;            /* an IPv6 wildcard also takes IPv4 (default: IPv6 only, so that
                                   0.0.0.0 and [::] can be listened on side by side) */
    bool reuse_port;            /* SO_REUSEPORT */
    weir_socket_options socket; /* of accepted sockets; `size` may stay 0 */
} weir_listen_options;

#define WEIR_LISTEN_OPTIONS_INIT { .size = sizeof(weir_listen_options) }

/* ---- callbacks ----------------------------------------------------------------------- */

/** A connection was accepted; it is the callback's to keep or close. Calls of one listener do not
 * overlap. */
typedef void weir_accept_fn(weir_listener *listener, weir_socket *socket, void *context);

/**
 * Bytes came in, or the end.
 * @param view    never NULL; gone when the callback returns unless kept (weir_view_keep).
 *                length 0 with status 0: a stream's peer has finished; sending still works.
 * @param status  0, or a negative errno; reading has ended then, except after -ETIMEDOUT, which
 *                reports a passed weir_read_deadline(), and -ENOMEM.
 */
typedef void weir_read_fn(weir_socket *socket, const weir_view *view, int status, void *context);

/**
 * What was written is below the low mark again, after it was above the high one: once a crossing.
 * @param status  0, or a negative errno: the stream broke and what was written is lost.
 */
typedef void weir_drain_fn(weir_socket *socket, int status, void *context);

/** The peer of a stream has finished sending, or is gone. What it sent before can still be read. */
typedef void weir_peer_closed_fn(weir_socket *socket, void *context);

/** Nothing of the socket (or listener) will be touched or called any more; its pointer is dead. */
typedef void weir_closed_fn(void *context);

/** An operation has ended. `result` is a value >= 0 or a negative errno; `op` is the caller's
 * again. */
typedef void weir_op_fn(weir_op *op, ssize_t result, void *context);

/** An operation, embedded by the caller. The fields are the library's while it is pending. */
struct weir_op {
    weir_op_fn *done_;
    void *context_;
    weir_op *next_;
    weir_op *prev_;
    struct weir_deadline_ deadline_;
    void *socket_;
    void *data_;
    void *extra_;
    size_t length_;
    size_t moved_;
    int64_t offset_;
    ssize_t result_;
    uint32_t state_;
    uint16_t kind_;
    uint16_t flags_;
    int32_t fd_;
    uint32_t expired_;
};

/* ---- listeners ----------------------------------------------------------------------- */

/**
 * Listen on `address`. Out of descriptors or memory, accepting pauses and resumes by itself.
 * @param on_accept     called for each connection; NULL: connections are taken with weir_accept().
 * @param ret_listener  set before the first on_accept() can come.
 * @return 0; -EINVAL NULL or malformed address or option; -EADDRINUSE, -EADDRNOTAVAIL, -EACCES and
 *         what else socket(2), bind(2) and listen(2) say; -EMFILE; -ENOMEM; -ENOSPC more sources
 * than sources_max; -ESHUTDOWN draining or being destroyed. Threads: any.   Blocks: no.   Owner:
 * the library; to be closed, at the latest by destroy. A unix socket's stale file (nobody listens)
 * is replaced; the file is removed on close.
 */
WEIR_API int weir_listen(weir_runtime *runtime, const char *address,
                         const weir_listen_options *options, weir_accept_fn *on_accept,
                         void *context, weir_listener **ret_listener);

/** The address in force (with the port that the kernel chose).   @return 0; -EINVAL; -ECANCELED
 * closed. Threads: any.   Blocks: no. */
WEIR_API int weir_listener_address(weir_listener *listener, weir_address *ret_address);

/**
 * Stop listening; pending weir_accept() operations end with -ECANCELED.
 * @param closed  NULL, or called once on a worker; afterwards the pointer is dead.
 * @return 0; -EALREADY closing; -EINVAL NULL.   Threads: any, also callbacks.   Blocks: no.
 */
WEIR_API int weir_listener_close(weir_listener *listener, weir_closed_fn *closed, void *context);

/**
 * Take the next connection.
 * @param ret_socket  written before the operation ends with 0, and only then.
 * @return 0 accepted on the spot; -EINPROGRESS op->done comes once; -EBUSY the listener has an
 *         on_accept; -ECANCELED closing; -EINVAL; the callback may also bring -ETIMEDOUT,
 * -ECANCELED. Threads: any.   Blocks: no.   Owner: op is the library's while pending.
 */
WEIR_API int weir_accept(weir_listener *listener, weir_op *op, weir_socket **ret_socket,
                         weir_time deadline);
/** As weir_accept(), waiting for it; -ETIMEDOUT, -ECANCELED.   Threads: any.   Blocks: until the
 * deadline. */
WEIR_API int weir_accept_wait(weir_listener *listener, weir_socket **ret_socket,
                              weir_time deadline);

/* ---- sockets: how they come to be ---------------------------------------------------- */

/**
 * Connect a stream.
 * @param ret_socket  written before the operation ends with 0, and only then. On any other result
 *                    nothing is left open.
 * @return 0 connected on the spot; -EINPROGRESS op->done comes once (0, or what connect(2) says,
 *         -ETIMEDOUT, -ECANCELED); any other error is final: -EINVAL, -EMFILE, -ENOMEM, -ENOSPC,
 * -ESHUTDOWN. Threads: any.   Blocks: no.   Owner: op is the library's while pending.
 */
WEIR_API int weir_connect(weir_runtime *runtime, const char *address,
                          const weir_socket_options *options, weir_op *op, weir_socket **ret_socket,
                          weir_time deadline);
/** As weir_connect(), waiting for it.   Threads: any.   Blocks: until the deadline at most. */
WEIR_API int weir_connect_wait(weir_runtime *runtime, const char *address,
                               const weir_socket_options *options, weir_socket **ret_socket,
                               weir_time deadline);

/**
 * Take over a connected stream or a datagram descriptor; it is made non-blocking and closed by us.
 * @return 0; -EINVAL NULL, fd < 0, or it is a listener; -ENOTSOCK; -ENOMEM; -ENOSPC; -ESHUTDOWN; on
 *         failure the descriptor stays the caller's, with its flags as they were.
 * Threads: any.   Blocks: no.
 */
WEIR_API int weir_adopt(weir_runtime *runtime, int fd, const weir_socket_options *options,
                        weir_socket **ret_socket);

/**
 * Open a datagram socket bound to `address` (UDP, or unix datagram). weir_read_start() then
 * delivers one datagram a view; weir_recvfrom() and weir_sendto() are the operations.
 * @return 0, or as weir_listen().   Threads: any.   Blocks: no.
 */
WEIR_API int weir_datagram_open(weir_runtime *runtime, const char *address,
                                const weir_socket_options *options, weir_socket **ret_socket);

/** The sender of a datagram view.   @return 0; -EINVAL; -ENOTCONN the view is a stream's.
 * Threads: inside the callback given the view.   Blocks: no. */
WEIR_API int weir_view_from(const weir_view *view, weir_address *ret_address);

/** A pointer of the caller's that goes with the socket.   Threads: any; the caller orders set
 * against get. Blocks: no. */
WEIR_API void *weir_socket_user(const weir_socket *socket);
/** Set what weir_socket_user() answers.   Threads: any; the caller orders set against get. Blocks:
 * no. */
WEIR_API void weir_socket_set_user(weir_socket *socket, void *user);
/** The runtime of a socket.   Threads: any.   Blocks: no. */
WEIR_API weir_runtime *weir_socket_runtime(const weir_socket *socket);
/** Our own address.   @return 0; -EINVAL; -ECANCELED closed; -errno of getsockname(2).   Threads:
 * any.   Blocks: no. */
WEIR_API int weir_socket_address(weir_socket *socket, weir_address *ret_address);
/** The peer's address.   @return 0; -EINVAL; -ECANCELED closed; -ENOTCONN.   Threads: any. Blocks:
 * no. */
WEIR_API int weir_socket_peer(weir_socket *socket, weir_address *ret_address);

/* ---- reading with views, writing with marks ------------------------------------------ */

/**
 * Deliver what comes in to `on_read` until the end, an error, or weir_read_stop().
 * @return 0; -EBUSY it is started already or a receive operation is pending; -ECANCELED; -EINVAL.
 * Threads: any, also callbacks.   Blocks: no.
 */
WEIR_API int weir_read_start(weir_socket *socket, weir_read_fn *on_read, void *context);

/**
 * Pause reading; weir_read_start() resumes and nothing is lost between. From the socket's own
 * callback no further on_read comes; from elsewhere one may be running.
 * @return 0; -EALREADY not reading; -ECANCELED; -EINVAL.   Threads: any, also callbacks.   Blocks:
 * no.
 */
WEIR_API int weir_read_stop(weir_socket *socket);

/**
 * Call on_read (of the last weir_read_start()) with -ETIMEDOUT when this time passes, whatever is
 * read until then, also while reading is paused; once. Set anew at will (to later: no system call);
 * WEIR_NEVER takes it back.
 * @return 0; -ECANCELED; -EINVAL.   Threads: any, also callbacks.   Blocks: no.
 */
WEIR_API int weir_read_deadline(weir_socket *socket, weir_time deadline);

/**
 * Be told, without reading, when the peer of a stream has finished or is gone: once for each call,
 * at once if that was before. Where the peer's end is seen only behind unread bytes (WEIR_RECV
 * other than readiness) it is told as soon as it is seen. NULL: not any more.
 * @return 0; -ECANCELED; -ENOMEM; -EINVAL NULL or not a stream.
 * Threads: any, also callbacks.   Blocks: no.
 */
WEIR_API int weir_on_peer_closed(weir_socket *socket, weir_peer_closed_fn *on_peer_closed,
                                 void *context);

/**
 * Write, copying what is not sent at once. What one callback of the socket writes leaves in one
 * system call when it returns (or announces a block); a write from elsewhere leaves at once. Order
 * is kept.
 * @return 0 all of it is taken; -EAGAIN above the high mark: nothing is taken, on_drain will come
 *         (a write that starts below the mark is taken whole); -EPIPE, -ECONNRESET the peer is gone
 *         or weir_shutdown() was called; -ECANCELED; -ENOMEM; -EINVAL; -EMSGSIZE a datagram too
 * long. Threads: any, also callbacks.   Blocks: no.   Owner: `data` stays the caller's.
 *
 * When what waits on all sockets together has reached the runtime's write_budget, each socket on
 * which something waits counts as above its mark; on_drain comes when what waits on it has left, or
 * is below its low mark with the budget kept again. So a socket can always have one write wait.
 */
WEIR_API int weir_write(weir_socket *socket, const void *data, size_t length);
/** As weir_write(), from any number of pieces (also more than IOV_MAX).   Threads: any.   Blocks:
 * no. */
WEIR_API int weir_writev(weir_socket *socket, const struct iovec *pieces, size_t count);
/** Be told when what waits falls below the low mark after it was above the high one, or a write was
 * refused. NULL: no more.
 * @return 0; -ECANCELED; -EINVAL.   Threads: any, also callbacks.   Blocks: no. */
WEIR_API int weir_on_drain(weir_socket *socket, weir_drain_fn *on_drain, void *context);
/** Bytes written that the kernel has not taken yet.   Threads: any.   Blocks: no. */
WEIR_API size_t weir_write_pending(weir_socket *socket);

/* ---- operations ---------------------------------------------------------------------- */
/* A start call that returns anything but -EINPROGRESS has ended the operation: its return value is
 * the result and no callback comes. -EINPROGRESS: done comes exactly once, on a worker. The buffer
 * must stay until then. Results: -ETIMEDOUT, -ECANCELED (cancelled, or the socket was closed),
 * -EBUSY (the socket is read with weir_read_start), -EINVAL, or what the system call says.
 * Operations of one direction are served first come, first served. */

/**
 * Make `op` ready to be started. Never while it is pending.
 * Threads: any.   Blocks: no.   Owner: the caller; free again when done is entered.
 */
WEIR_API void weir_op_init(weir_op *op, weir_op_fn *done, void *context);

/** Receive up to `length` bytes. @return bytes, 0 at the end of the stream, or as above.
 * Threads: any.   Blocks: no.   Owner: op and buffer are the library's while pending. */
WEIR_API ssize_t weir_recv(weir_socket *socket, weir_op *op, void *buffer, size_t length,
                           weir_time deadline);
/** As weir_recv(), waiting. The poller itself wakes the thread: no worker is needed. -ETIMEDOUT.
 * Threads: any; a worker is replaced meanwhile.   Blocks: until the deadline at most. */
WEIR_API ssize_t weir_recv_wait(weir_socket *socket, void *buffer, size_t length,
                                weir_time deadline);

/** Send all of `length` bytes. @return `length`, or as above (weir_op_moved() says how much has
 * left). Threads: any.   Blocks: no.   Owner: op and data are the library's while pending. */
WEIR_API ssize_t weir_send(weir_socket *socket, weir_op *op, const void *data, size_t length,
                           weir_time deadline);
/** As weir_send(), waiting. On failure after some bytes it returns their number; the next call
 * fails. Threads: any; a worker is replaced meanwhile.   Blocks: until the deadline at most. */
WEIR_API ssize_t weir_send_wait(weir_socket *socket, const void *data, size_t length,
                                weir_time deadline);

/** Send all of `pieces` (any number; the array must stay too). @return the sum of lengths, or as
 * above. Threads: any.   Blocks: no.   Owner: op, pieces and data are the library's while pending.
 */
WEIR_API ssize_t weir_sendv(weir_socket *socket, weir_op *op, const struct iovec *pieces,
                            size_t count, weir_time deadline);
/** As weir_sendv(), waiting.   Threads: any.   Blocks: until the deadline at most. */
WEIR_API ssize_t weir_sendv_wait(weir_socket *socket, const struct iovec *pieces, size_t count,
                                 weir_time deadline);

/** Send `length` bytes of the file `fd` from `offset`. @return bytes sent (less at the end of the
 * file), or as above.   Threads: any.   Blocks: on the file at most.   Owner: fd must stay open
 * while pending. */
WEIR_API ssize_t weir_send_file(weir_socket *socket, weir_op *op, int fd, int64_t offset,
                                size_t length, weir_time deadline);
/** As weir_send_file(), waiting.   Threads: any.   Blocks: until the deadline at most. */
WEIR_API ssize_t weir_send_file_wait(weir_socket *socket, int fd, int64_t offset, size_t length,
                                     weir_time deadline);

/** Receive one datagram; a longer one is cut. @param ret_from may be NULL; written with a result >=
 * 0.
 * @return bytes, or as above.   Threads: any.   Blocks: no.   Owner: as weir_recv(), and ret_from.
 */
WEIR_API ssize_t weir_recvfrom(weir_socket *socket, weir_op *op, void *buffer, size_t length,
                               weir_address *ret_from, weir_time deadline);
/** As weir_recvfrom(), waiting.   Threads: any.   Blocks: until the deadline at most. */
WEIR_API ssize_t weir_recvfrom_wait(weir_socket *socket, void *buffer, size_t length,
                                    weir_address *ret_from, weir_time deadline);
/** Send one datagram. @param to NULL on a connected socket; must stay while pending.
 * @return `length`, or as above.   Threads: any.   Blocks: no.   Owner: as weir_send(). */
WEIR_API ssize_t weir_sendto(weir_socket *socket, weir_op *op, const void *data, size_t length,
                             const weir_address *to, weir_time deadline);
/** As weir_sendto(), waiting.   Threads: any.   Blocks: until the deadline at most. */
WEIR_API ssize_t weir_sendto_wait(weir_socket *socket, const void *data, size_t length,
                                  const weir_address *to, weir_time deadline);

/**
 * End a pending operation early.
 * @return 0 it will end as -ECANCELED; -EALREADY it has ended or is ending with a result of its
 * own; -EINVAL NULL.   Threads: any, also callbacks, while the op's memory is there.   Blocks: no.
 */
WEIR_API int weir_cancel(weir_op *op);

/** How many bytes the operation moved, whatever its result.
 * Threads: any, after it ended.   Blocks: no. */
WEIR_API size_t weir_op_moved(const weir_op *op);

/* ---- ending -------------------------------------------------------------------------- */

/**
 * Say FIN after what is written (and after pending send operations); receiving goes on.
 * @return 0; -EALREADY done before; -ENOTCONN; -ECANCELED closing; -EINVAL.
 * Threads: any, also callbacks.   Blocks: no.
 */
WEIR_API int weir_shutdown(weir_socket *socket);

/**
 * Close gracefully: pending operations end with -ECANCELED (waiting calls at once); what
 * weir_write() took is sent, then FIN, then what the peer still sends is read and dropped until it
 * finishes; all of it within linger_ms, after which the connection is reset.
 * @param closed  NULL, or called once on a worker when everything of the socket has ended.
 * @return 0; -EALREADY closing; -EINVAL NULL.   Threads: any, also callbacks.   Blocks: no.
 */
WEIR_API int weir_close(weir_socket *socket, weir_closed_fn *closed, void *context);

/** As weir_close(), waiting until everything of the socket has ended. @return 0; -EALREADY;
 * -EINVAL; -EDEADLK from a callback of this very socket.   Threads: any.   Blocks: for linger_ms at
 * most, and for callbacks of the socket that are running. */
WEIR_API int weir_close_wait(weir_socket *socket);

/**
 * Close at once with RST: what is written and not sent is dropped. Legal after weir_close(), which
 * it cuts short. There is no callback of its own: without a weir_close() before, the pointer is
 * dead from here on for whoever does not know of the end otherwise.
 * @return 0; -EALREADY it is being reset; -EINVAL.   Threads: any, also callbacks.   Blocks: no.
 */
WEIR_API int weir_reset(weir_socket *socket);

#ifdef __cplusplus
}
#endif

#endif
