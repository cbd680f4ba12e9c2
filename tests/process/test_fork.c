/* test_fork.c: a host that forks while the runtime is at work: the child may destroy, and the
 * parent notices nothing. (P01, P02, P03, G1) */
#include "support/rig.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/scarce.h"

/* The exit code of the child; -1 killed or not done in time. */
static int await_child(pid_t child)
{
    int status = 0;

    cr_assert_geq(child, 0, "fork: errno %d", errno);
    if (!RIG_UNTIL(waitpid(child, &status, WNOHANG) == child, rig_patience(10000))) {
        kill(child, SIGKILL);
        waitpid(child, &status, 0);
        return -1;
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void echo(weir_socket *socket, const weir_view *view, int status, void *context)
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
    weir_read_start(socket, echo, context);
}

static void expect_echo(int peer)
{
    char back[2] = "";

    rig_peer_send(peer, "hi", 2);
    rig_peer_receive(peer, back, 2);
    cr_assert(back[0] == 'h' && back[1] == 'i');
}

/* Without malloc(), whose state in a child is anybody's guess under a sanitizer. */
static int open_fds(void)
{
    int count = 0;

    for (int fd = 0; fd < 4096; fd++)
        count += fcntl(fd, F_GETFD) >= 0;
    return count;
}

/* ---- at rest --------------------------------------------------------------------------------- */

enum { IDLE = 20 };

/* Everything that holds a descriptor, and readers that wait. */
struct rest {
    struct rig rig;
    weir_listener *listener, *local;
    int peers[IDLE];
    char path[64];
};

static void rest_open(struct rest *rest, const weir_options *options)
{
    char address[96];

    rig_open_with(&rest->rig, options);
    snprintf(rest->path, sizeof rest->path, "/tmp/weir-test-fork-%d", (int)getpid());
    snprintf(address, sizeof address, "unix:%s", rest->path);
    weir_runtime *runtime = rest->rig.runtime;
    cr_assert_eq(weir_listen(runtime, "127.0.0.1:0", NULL, on_accept, NULL, &rest->listener), 0);
    cr_assert_eq(weir_listen(runtime, address, NULL, on_accept, NULL, &rest->local), 0);
    for (int i = 0; i < IDLE; i++) {
        weir_socket *socket;
        rest->peers[i] = rig_unix(&rest->rig, NULL, &socket);
        cr_assert_eq(weir_read_start(socket, echo, NULL), 0);
        expect_echo(rest->peers[i]);
    }
}

static void rest_close(struct rest *rest)
{
    for (int i = 0; i < IDLE; i++)
        close(rest->peers[i]);
    rig_close(&rest->rig);
}

Test(fork, a_child_closes_what_it_inherited_and_the_parent_hears_on, .timeout = 60)
{
    static const weir_options defaults = WEIR_OPTIONS_INIT;
    struct rest rest;

    int held = open_fds() + IDLE; /* the peers are the test's own */
    rest_open(&rest, &defaults);
    pid_t child = fork();
    if (child == 0) {
        weir_runtime_destroy(rest.rig.runtime);
        _exit(open_fds() == held && access(rest.path, F_OK) == 0 ? 0 : 1);
    }
    cr_expect_eq(await_child(child), 0);
    cr_expect_eq(access(rest.path, F_OK), 0, "the child removed the parent's socket file");
    for (int i = 0; i < IDLE; i++) /* the set that both shared is what it was */
        expect_echo(rest.peers[i]);
    int peer = rig_connect(rest.listener);
    expect_echo(peer);
    close(peer);
    rest_close(&rest);
}

Test(fork, descriptors_do_not_outlive_an_exec, .timeout = 60)
{
    static const weir_options defaults = WEIR_OPTIONS_INIT;
    struct rest rest;
    int open_across = 0;

    rest_open(&rest, &defaults);
    for (int fd = 3; fd < 1024; fd++) {
        int flags = fcntl(fd, F_GETFD);
        open_across += flags >= 0 && !(flags & FD_CLOEXEC);
    }
    rest_close(&rest);
    for (int fd = 3; fd < 1024; fd++) {
        int flags = fcntl(fd, F_GETFD);
        open_across -= flags >= 0 && !(flags & FD_CLOEXEC);
    }
    cr_expect_eq(open_across, 0, "%d descriptors without CLOEXEC", open_across);
}

/* ---- locks of threads that are not there in the child ---------------------------------------- */

static pthread_mutex_t heap_lock = PTHREAD_MUTEX_INITIALIZER;

static void *locked_allocate(size_t size, void *context)
{
    (void)context;
    pthread_mutex_lock(&heap_lock);
    void *memory = malloc(size);
    pthread_mutex_unlock(&heap_lock);
    return memory;
}

static void locked_release(void *memory, size_t size, void *context)
{
    (void)size;
    (void)context;
    pthread_mutex_lock(&heap_lock);
    free(memory);
    pthread_mutex_unlock(&heap_lock);
}

static _Atomic bool heap_held, heap_let_go;

static void *hold_heap(void *argument)
{
    (void)argument;
    pthread_mutex_lock(&heap_lock);
    atomic_store(&heap_held, true);
    while (!atomic_load(&heap_let_go))
        rig_sleep_ms(1);
    pthread_mutex_unlock(&heap_lock);
    return NULL;
}

/* Another thread is inside the host's allocator at the moment of the fork: for ever, in the child.
 */
Test(fork, a_child_waits_for_no_thread_that_it_does_not_have, .timeout = 60)
{
    static const weir_allocator allocator = {locked_allocate, locked_release, NULL};
    weir_options options = WEIR_OPTIONS_INIT;
    struct rest rest;
    pthread_t holder;

    options.allocator = &allocator;
    rest_open(&rest, &options);
    cr_assert_eq(pthread_create(&holder, NULL, hold_heap, NULL), 0);
    cr_assert(RIG_UNTIL(atomic_load(&heap_held), 5000));
    pid_t child = fork();
    if (child == 0) {
        weir_runtime_destroy(rest.rig.runtime);
        _exit(0);
    }
    int code = await_child(child);
    atomic_store(&heap_let_go, true);
    pthread_join(holder, NULL);
    cr_expect_eq(code, 0, "destroy in the child does not return");
    rest_close(&rest);
}

/* ---- a descriptor between two owners --------------------------------------------------------- */

#ifdef WEIR_FAULTS
static struct rest *closing;
static _Atomic int hosts = -1, hosts_child;

/* Right behind the close of a socket: the number is the host's next. */
static int take_number(enum wr_fault_call call)
{
    if (call != WR_FAULT_CLOSE || atomic_load(&hosts) >= 0)
        return 0;
    atomic_store(&hosts, dup(STDIN_FILENO));
    pid_t child = fork();
    if (child == 0) {
        weir_runtime_destroy(closing->rig.runtime);
        _exit(fcntl(atomic_load(&hosts), F_GETFD) >= 0 ? 0 : 1);
    }
    atomic_store(&hosts_child, child);
    return 0;
}

Test(fork, a_child_leaves_a_number_alone_that_is_the_hosts_by_now, .timeout = 60)
{
    static const weir_options defaults = WEIR_OPTIONS_INIT;
    struct rest rest;

    wr_fault_hook = take_number;
    closing = &rest;
    rest_open(&rest, &defaults);
    close(rest.peers[0]); /* its reader closes the socket */
    cr_assert(RIG_UNTIL(atomic_load(&hosts_child) != 0, 5000));
    cr_expect_eq(await_child(atomic_load(&hosts_child)), 0, "the child closed the host's");
    close(atomic_load(&hosts));
    rest.peers[0] = dup(STDIN_FILENO); /* to be closed with the others */
    rest_close(&rest);
}
#endif

/* ---- under load ------------------------------------------------------------------------------ */

struct client {
    pthread_t thread;
    weir_listener *listener;
    _Atomic bool stop;
    _Atomic unsigned rounds;
};

static void *client_main(void *argument)
{
    struct client *client = argument;

    while (!atomic_load(&client->stop)) {
        int peer = rig_connect(client->listener);
        for (int i = 0; i < 20; i++)
            expect_echo(peer);
        close(peer);
        atomic_fetch_add(&client->rounds, 1);
    }
    return NULL;
}

Test(fork, a_parent_under_load_notices_nothing, .timeout = 120)
{
    static const weir_options defaults = WEIR_OPTIONS_INIT;
    struct rest rest;
    struct client clients[2] = {0};

    rest_open(&rest, &defaults);
    for (int i = 0; i < 2; i++) {
        clients[i].listener = rest.listener;
        cr_assert_eq(pthread_create(&clients[i].thread, NULL, client_main, &clients[i]), 0);
    }
    for (int i = 0; i < 20; i++) {
        pid_t child = fork();
        if (child == 0) {
            weir_runtime_destroy(rest.rig.runtime);
            _exit(0);
        }
        unsigned before = atomic_load(&clients[0].rounds);
        cr_expect_eq(await_child(child), 0, "child %d", i);
        cr_assert(RIG_UNTIL(atomic_load(&clients[0].rounds) > before, rig_patience(10000)),
                  "the parent stands still after child %d", i);
    }
    for (int i = 0; i < 2; i++) {
        atomic_store(&clients[i].stop, true);
        pthread_join(clients[i].thread, NULL);
    }
    for (int i = 0; i < IDLE; i++)
        expect_echo(rest.peers[i]);
    rest_close(&rest);
}

/* ---- a runtime of the child's own ------------------------------------------------------------ */

static int serve_in_child(weir_runtime *inherited)
{
    weir_options options = WEIR_OPTIONS_INIT;
    weir_runtime *runtime;
    weir_listener *listener;
    weir_socket *socket;
    weir_address address;
    char text[WEIR_ADDRESS_TEXT_MAX], back[2] = "";

    weir_runtime_destroy(inherited);
    options.workers = 2;
    if (weir_runtime_create(&runtime, &options) < 0 ||
        weir_listen(runtime, "127.0.0.1:0", NULL, on_accept, NULL, &listener) < 0 ||
        weir_listener_address(listener, &address) < 0)
        return 1;
    weir_address_format(&address, text, sizeof text);
    weir_time soon = weir_after_ms(5000);
    if (weir_connect_wait(runtime, text, NULL, &socket, soon) < 0 ||
        weir_send_wait(socket, "hi", 2, soon) != 2 || weir_recv_wait(socket, back, 2, soon) != 2)
        return 2;
    weir_runtime_destroy(runtime);
    return back[1] == 'i' ? 0 : 3;
}

Test(fork, a_child_may_make_a_runtime_of_its_own, .timeout = 60)
{
    static const weir_options defaults = WEIR_OPTIONS_INIT;
    struct rest rest;

#if defined(WEIR_TSAN) || defined(__SANITIZE_ADDRESS__)
    cr_skip_test("a sanitizer allows no threads in the child of a threaded process");
#endif
    rest_open(&rest, &defaults);
    pid_t child = fork();
    if (child == 0)
        _exit(serve_in_child(rest.rig.runtime));
    cr_expect_eq(await_child(child), 0);
    expect_echo(rest.peers[0]);
    rest_close(&rest);
}

/* ---- from a callback ------------------------------------------------------------------------- */

struct forking {
    struct rest *rest;
    int held; /* descriptors that are not the runtime's */
    weir_work work;
    _Atomic int child;
};

static void fork_inside(weir_work *work, void *context)
{
    struct forking *forking = context;

    (void)work;
    pid_t child = fork();
    if (child == 0) {
        weir_runtime_destroy(forking->rest->rig.runtime);
        _exit(open_fds() == forking->held && access(forking->rest->path, F_OK) == 0 ? 0 : 1);
    }
    atomic_store(&forking->child, child);
}

Test(fork, a_callback_may_fork, .timeout = 60)
{
    static const weir_options defaults = WEIR_OPTIONS_INIT;
    struct rest rest;
    struct forking forking = {.rest = &rest, .held = open_fds() + IDLE};

    rest_open(&rest, &defaults);
    weir_work_init(&forking.work, fork_inside, &forking);
    cr_assert_eq(weir_post(rest.rig.runtime, &forking.work), 0);
    cr_assert(RIG_UNTIL(atomic_load(&forking.child) != 0, 5000));
    cr_expect_eq(await_child(atomic_load(&forking.child)), 0);
    expect_echo(rest.peers[0]);
    rest_close(&rest);
}
