/* rig.h: a whole runtime under test, what it logged, and plain peers that block. */
#ifndef WEIR_TESTS_SUPPORT_RIG_H
#define WEIR_TESTS_SUPPORT_RIG_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <time.h>

#include <weir/weir.h>

#include "support/fds.h"
#include "support/test.h"

#define RIG_TEXT_MAX 8192

struct rig {
    weir_runtime *runtime;
    struct support_held before; /* what the process held when the rig was opened */
    pthread_mutex_t lock;
    unsigned lines[WEIR_LOG_DEBUG + 1]; /* log lines a level */
    char text[RIG_TEXT_MAX];            /* the lines, one after the other */
    size_t used;
};

/* A runtime with exactly `workers` workers: none is added when they block. */
void rig_open(struct rig *rig, unsigned workers);
/* As `options` say; log level and hook are the rig's. */
void rig_open_with(struct rig *rig, const weir_options *options);
/* Destroys it and checks that threads and descriptors are as many as before. */
void rig_close(struct rig *rig);
bool rig_logged(struct rig *rig, const char *part);
/* How many lines so far, while others may log. */
unsigned rig_lines(struct rig *rig, enum weir_log_level level);
weir_stats rig_stats(struct rig *rig);

/* A connected pair: a socket of the runtime, and the descriptor of its blocking peer. */
int rig_tcp(struct rig *rig, const weir_socket_options *options, weir_socket **ret_socket);
int rig_unix(struct rig *rig, const weir_socket_options *options, weir_socket **ret_socket);
/* The same, both ends plain descriptors. */
void rig_tcp_pair(int ret_fds[2]);
/* A plain blocking socket connected to where `listener` listens. */
int rig_connect(weir_listener *listener);
void rig_address(weir_listener *listener, char text[WEIR_ADDRESS_TEXT_MAX]);

/* A peer: all of it within 10 s, or the test fails. */
void rig_peer_send(int fd, const void *data, size_t length);
void rig_peer_receive(int fd, void *buffer, size_t length);
/* Reads and drops until the end: 0 the other side said FIN, -ECONNRESET, ...; -EAGAIN: neither
 * within `milliseconds`. */
int rig_peer_end(int fd, int milliseconds);

/* Keeps workers busy until they are let go, without announcing a block. */
#define RIG_BUSY_MAX 8
struct rig_busy {
    weir_work work[RIG_BUSY_MAX];
    _Atomic unsigned inside, leave;
};
void rig_busy_begin(struct rig *rig, struct rig_busy *busy, unsigned workers);
void rig_busy_end(struct rig_busy *busy);

/* The settings of this run make pollers' own threads run callbacks: busy workers hold up none. */
bool rig_pollers_call(void);

void rig_sleep_ms(int milliseconds);
int64_t rig_now_ms(void);
/* A factor for what is measured in time: sanitizers make everything slower. */
int rig_patience(int milliseconds);

/* Looks until the condition holds; false when it did not within the time. */
#define RIG_UNTIL(condition, milliseconds) \
    __extension__({ \
        int64_t rig_until_ = rig_now_ms() + (milliseconds); \
        bool rig_holds_; \
        while (!(rig_holds_ = (condition)) && rig_now_ms() < rig_until_) \
            rig_sleep_ms(1); \
        rig_holds_; \
    })

/* An operation and how it ended. */
struct rig_op {
    weir_op op;
    _Atomic unsigned ended; /* callbacks */
    ssize_t result;         /* valid once `ended` is seen */
    size_t moved;
};
void rig_op_init(struct rig_op *op);
bool rig_op_await(struct rig_op *op, int milliseconds);

#endif
