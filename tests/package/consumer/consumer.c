/* consumer.c: a host that knows the installed package only: one posted item must run. C and C++. */
#include <weir/weir.h>

#include <stdio.h>
#include <string.h>

struct job {
    weir_work work;
    int ran;
};

static void run(weir_work *work, void *context)
{
    (void)work;
    *(int *)context = 1;
}

int main(void)
{
    weir_runtime *runtime = NULL;
    struct job job;
    int r;

    if (strcmp(weir_version(), WEIR_VERSION) != 0) {
        fprintf(stderr, "header %s, library %s\n", WEIR_VERSION, weir_version());
        return 1;
    }
    r = weir_runtime_create(&runtime, NULL);
    if (r < 0) {
        fprintf(stderr, "weir_runtime_create: %s\n", strerror(-r));
        return 1;
    }
    job.ran = 0;
    weir_work_init(&job.work, run, &job.ran);
    r = weir_post(runtime, &job.work);
    weir_runtime_destroy(runtime);
    if (r < 0 || !job.ran) {
        fprintf(stderr, "weir_post: %d, the item ran: %d\n", r, job.ran);
        return 1;
    }
    printf("weir %s: the item ran\n", weir_version());
    return 0;
}
