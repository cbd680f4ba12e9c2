/* test_dlclose.c: a plug-in with weir inside is loaded, used, unloaded, a hundred times: no thread,
 * descriptor, map or byte stays, and its code is gone. Unloaded while its runtime is there, it
 * stays until that has been destroyed. (P08, G2) */
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

static bool loaded(const char *name)
{
    void *still = dlopen(name, RTLD_NOW | RTLD_NOLOAD);

    return still && dlclose(still) == 0;
}

struct calls {
    int (*begin)(void);
    unsigned (*ticks)(void);
    int (*end)(void);
};

static void *load(const char *name, struct calls *ret_calls)
{
    void *plugin = dlopen(name, RTLD_NOW | RTLD_LOCAL);

    cr_assert_not_null(plugin, "%s", dlerror());
    *(void **)&ret_calls->begin = dlsym(plugin, "plugin_begin");
    *(void **)&ret_calls->ticks = dlsym(plugin, "plugin_ticks");
    *(void **)&ret_calls->end = dlsym(plugin, "plugin_end");
    cr_assert(ret_calls->begin && ret_calls->ticks && ret_calls->end);
    return plugin;
}

static void unload_while_it_runs(const char *name)
{
    struct calls calls;
    void *plugin = load(name, &calls);

    cr_assert_eq(calls.begin(), 0);
    cr_assert_eq(dlclose(plugin), 0);
    cr_assert(loaded(name), "%s is gone, and its threads run", name);
    unsigned ticks = calls.ticks();
    cr_assert(RIG_UNTIL(calls.ticks() > ticks + 3, 5000), "its callbacks do not come any more");
    cr_assert_eq(calls.end(), 0);
    /* What nobody refers to any more goes with the next dlclose() of the process: loaded()'s. */
    loaded(name);
    cr_expect_not(loaded(name), "%s stays loaded after the end", name);
}

Test(dlclose, a_plug_in_whose_runtime_is_there_is_not_unloaded_until_its_end, .timeout = 300)
{
    for (unsigned i = support_rounds(50); i > 0; i--)
        unload_while_it_runs(PLUGIN);
}

#ifdef PLUGIN_BESIDE
/* Its own code is not the library's: the callbacks are in it. */
Test(dlclose, a_plug_in_beside_the_library_is_not_unloaded_until_its_end, .timeout = 300)
{
    for (unsigned i = support_rounds(50); i > 0; i--)
        unload_while_it_runs(PLUGIN_BESIDE);
}
#endif
