/* test_dlclose.c: a plug-in with weir inside is loaded, used, unloaded, a hundred times: no thread,
 * descriptor, map or byte stays, and its code is gone. (P08, G2) */
#include <dlfcn.h>

#include "support/rig.h"
#include "support/stress.h"

static void load_use_unload(void)
{
    void *plugin = dlopen(PLUGIN, RTLD_NOW | RTLD_LOCAL);

    cr_assert_not_null(plugin, "%s", dlerror());
    int (*run)(void) = NULL;
    *(void **)&run = dlsym(plugin, "plugin_run");
    cr_assert_not_null(run, "%s", dlerror());
    int r = run();
    cr_assert_eq(r, 0, "plugin_run: %d", r);
    cr_assert_eq(dlclose(plugin), 0);
    void *still = dlopen(PLUGIN, RTLD_NOW | RTLD_NOLOAD);
    cr_assert_null(still, "the plug-in stays loaded");
}

Test(dlclose, a_plug_in_comes_and_goes_a_hundred_times, .timeout = 300)
{
    unsigned count = support_rounds(100);

    for (int i = 0; i < 5; i++) /* what libc keeps for itself is there now */
        load_use_unload();
    support_await_threads(1, 1000);
    struct support_held before = support_held();
    for (unsigned i = 0; i < count; i++)
        load_use_unload();
    cr_expect_leq(support_await_threads(before.threads, 2000), before.threads);
    struct support_held after = support_held();
    cr_expect_eq(after.fds, before.fds);
    int slack = 16;
#ifdef __SANITIZE_ADDRESS__
    slack += (int)count / 2; /* its own maps come and go with threads; ours would be one a turn */
#endif
    cr_expect_leq(after.maps, before.maps + slack, "%d maps, %d before", after.maps, before.maps);
}
