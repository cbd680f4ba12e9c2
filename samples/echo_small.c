#include <stdio.h>
#include <unistd.h>
#include <weir/weir.h>

static void on_read(weir_socket *socket, const weir_view *view, int status, void *context)
{
    (void)context;
    if (status < 0 || view->length == 0) { /* error, or the peer has finished */
        weir_close(socket, NULL, NULL);
        return;
    }
    weir_write(socket, view->data, view->length); /* leaves when this callback returns */
}

static void on_accept(weir_listener *listener, weir_socket *socket, void *context)
{
    (void)listener;
    weir_read_start(socket, on_read, context);
}

int main(void)
{
    weir_runtime *runtime;
    weir_listener *listener;

    if (weir_runtime_create(&runtime, NULL) < 0 ||
        weir_listen(runtime, "[::1]:7777", NULL, on_accept, NULL, &listener) < 0)
        return 1;
    puts("echo on [::1]:7777, Enter ends");
    getchar();
    weir_runtime_destroy(runtime);
    return 0;
}
