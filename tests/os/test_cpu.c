/* How many CPUs there really are, on fake roots of every kind that containers show. */
#include "os/cpu.h"

#include <errno.h>
#include <ftw.h>
#include <limits.h>
#include <sched.h>
#include <sys/stat.h>
#include <unistd.h>

#include "support/test.h"

#define V2_MOUNT "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
#define V1_MOUNT                                                                                   \
    "33 32 0:29 / /sys/fs/cgroup/cpu,cpuacct rw shared:11 - cgroup cgroup rw,cpu,cpuacct\n"
#define V1_OTHERS                                                                                  \
    "31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755\n"                          \
    "34 32 0:30 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n"
#define CFS "/sys/fs/cgroup/cpu,cpuacct"

static char root[64];

static void make_root(void)
{
    snprintf(root, sizeof root, "/tmp/weir-cpu-XXXXXX");
    cr_assert_not_null(mkdtemp(root));
}

static int remove_one(const char *path, const struct stat *status, int type, struct FTW *ftw)
{
    (void)status, (void)type, (void)ftw;
    return remove(path);
}

static void remove_root(void)
{
    (void)nftw(root, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

static void put(const char *name, const char *text)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s%s", root, name);
    for (char *at = path + strlen(root) + 1; (at = strchr(at, '/')) != NULL; at++) {
        *at = '\0';
        (void)mkdir(path, 0755);
        *at = '/';
    }
    FILE *file = fopen(path, "we");
    cr_assert_not_null(file, "%s", path);
    cr_assert_geq(fputs(text, file), 0);
    cr_assert_eq(fclose(file), 0);
}

static void put_where(const char *cgroup, const char *mountinfo)
{
    put("/proc/self/cgroup", cgroup);
    put("/proc/self/mountinfo", mountinfo);
}

/* The affinity is the machine's: what a test expects of a quota is capped by it. */
static unsigned capped(unsigned cpus, struct wr_cpu cpu)
{
    return cpus < cpu.affinity ? cpus : cpu.affinity;
}

static struct wr_cpu detect(void)
{
    struct wr_cpu cpu;
    errno = ENOENT;
    wr_cpu_detect(&cpu, root);
    cr_assert_eq(errno, ENOENT);
    return cpu;
}

static void expect_quota(double quota, unsigned usable)
{
    struct wr_cpu cpu = detect();
    cr_assert(cpu.limited);
    cr_assert_float_eq(cpu.quota, quota, 1e-9);
    cr_assert_eq(cpu.usable, capped(usable, cpu));
}

static void expect_no_quota(void)
{
    struct wr_cpu cpu = detect();
    cr_assert_not(cpu.limited);
    cr_assert_eq(cpu.usable, cpu.affinity);
}

#define CpuTest(name) Test(cpu, name, .init = make_root, .fini = remove_root, .timeout = 30)

CpuTest(v2_quotas_are_rounded_up_to_whole_cpus)
{
    put_where("0::/app\n", V2_MOUNT);
    put("/sys/fs/cgroup/app/cpu.max", "50000 100000\n");
    expect_quota(0.5, 1);
    put("/sys/fs/cgroup/app/cpu.max", "150000 100000\n");
    expect_quota(1.5, 2);
    put("/sys/fs/cgroup/app/cpu.max", "200000 100000\n");
    expect_quota(2, 2);
    put("/sys/fs/cgroup/app/cpu.max", "1000 1000000\n");
    expect_quota(0.001, 1);
}

CpuTest(v1_quotas_are_rounded_up_to_whole_cpus)
{
    put_where("4:memory:/other\n3:cpu,cpuacct:/app\n1:cpuset:/\n", V1_OTHERS V1_MOUNT);
    put(CFS "/app/cpu.cfs_period_us", "100000\n");
    put(CFS "/app/cpu.cfs_quota_us", "50000\n");
    expect_quota(0.5, 1);
    put(CFS "/app/cpu.cfs_quota_us", "150000\n");
    expect_quota(1.5, 2);
    put(CFS "/app/cpu.cfs_quota_us", "200000\n");
    expect_quota(2, 2);
}

CpuTest(a_quota_larger_than_the_affinity_is_known_and_does_not_limit)
{
    put_where("0::/app\n", V2_MOUNT);
    put("/sys/fs/cgroup/app/cpu.max", "18446744073709551615 1");
    struct wr_cpu cpu = detect();
    cr_assert(cpu.limited);
    cr_assert_eq(cpu.usable, cpu.affinity);
}

CpuTest(v2_the_smallest_quota_up_to_the_mount_point_wins)
{
    put_where("0::/a/b/c\n", V2_MOUNT);
    put("/sys/fs/cgroup/a/b/c/cpu.max", "max 100000\n");
    put("/sys/fs/cgroup/a/b/cpu.max", "300000 100000\n");
    put("/sys/fs/cgroup/a/cpu.max", "70000 100000\n");
    expect_quota(0.7, 1);
    put("/sys/fs/cgroup/cpu.max", "20000 100000\n");
    expect_quota(0.2, 1);
    put("/sys/fs/cgroup/a/b/c/cpu.max", "10000 100000\n");
    expect_quota(0.1, 1);
}

CpuTest(v1_the_smallest_quota_up_to_the_mount_point_wins)
{
    put_where("3:cpu,cpuacct:/a/b\n", V1_OTHERS V1_MOUNT);
    put(CFS "/a/b/cpu.cfs_period_us", "100000\n");
    put(CFS "/a/b/cpu.cfs_quota_us", "-1\n");
    put(CFS "/a/cpu.cfs_period_us", "50000\n");
    put(CFS "/a/cpu.cfs_quota_us", "35000\n");
    expect_quota(0.7, 1);
    put(CFS "/cpu.cfs_period_us", "100000\n");
    put(CFS "/cpu.cfs_quota_us", "30000\n");
    expect_quota(0.3, 1);
}

CpuTest(above_the_mount_point_nothing_is_looked_for)
{
    put_where("0::/app\n", V2_MOUNT);
    put("/sys/fs/cpu.max", "10000 100000\n");
    put("/cpu.max", "10000 100000\n");
    put("/sys/fs/cgroup/app/cpu.max", "max 100000\n");
    expect_no_quota();
}

CpuTest(a_neighbours_quota_does_not_limit)
{
    put_where("0::/app\n", V2_MOUNT);
    put("/sys/fs/cgroup/app2/cpu.max", "10000 100000\n");
    put("/sys/fs/cgroup/app/child/cpu.max", "10000 100000\n");
    expect_no_quota();
}

CpuTest(max_and_minus_one_do_not_limit)
{
    put_where("3:cpu,cpuacct:/app\n0::/app\n", V2_MOUNT V1_MOUNT);
    put("/sys/fs/cgroup/app/cpu.max", "max 100000\n");
    put(CFS "/app/cpu.cfs_period_us", "100000\n");
    put(CFS "/app/cpu.cfs_quota_us", "-1\n");
    expect_no_quota();
}

CpuTest(garbled_files_do_not_limit)
{
    static const char *const maxima[] = {
        "", "\n", "50000", "50000 ", " 50000 100000", "50000 0", "0 100000", "50000 100000x",
        "0x5000 100000", "-5 100000", "+5 100000", "5e4 100000", "50000\t100000", "50000 -1",
        "99999999999999999999999 100000", "50000  100000", "fifty thousand",
    };
    put_where("0::/app\n", V2_MOUNT);
    for (size_t i = 0; i < sizeof maxima / sizeof *maxima; i++) {
        put("/sys/fs/cgroup/app/cpu.max", maxima[i]);
        cr_assert_not(detect().limited, "\"%s\" limits", maxima[i]);
    }
    put_where("3:cpu,cpuacct:/app\n", V1_MOUNT);
    put(CFS "/app/cpu.cfs_quota_us", "50000\n");
    expect_no_quota();                              /* no period */
    put(CFS "/app/cpu.cfs_period_us", "0\n");
    expect_no_quota();
    put(CFS "/app/cpu.cfs_period_us", "many\n");
    expect_no_quota();
}

CpuTest(missing_and_garbled_maps_of_the_hierarchy_do_not_limit)
{
    static const char *const cgroups[] = {
        "", "\n\n", "0", "0:", "0::", "0::app\n", ":::\n", "0:cpu\n", "\x01\xff\n", "cpu:0:/app\n",
    };
    static const char *const mounts[] = {
        "", "\n", "30\n", "30 23 0:26 / \n", "30 23 0:26 / /sys/fs/cgroup rw -\n",
        "30 23 0:26 / /sys/fs/cgroup rw cgroup2 cgroup2 rw\n", " - cgroup2 \n", "- - - - - - - -\n",
        "a b c d e f - cgroup2 g h\n",
    };
    put("/sys/fs/cgroup/app/cpu.max", "50000 100000\n");
    expect_no_quota();                              /* no /proc at all */
    put("/proc/self/mountinfo", V2_MOUNT);
    expect_no_quota();
    for (size_t i = 0; i < sizeof cgroups / sizeof *cgroups; i++) {
        put("/proc/self/cgroup", cgroups[i]);
        cr_assert_not(detect().limited, "cgroup \"%s\"", cgroups[i]);
    }
    put("/proc/self/cgroup", "0::/app\n");
    for (size_t i = 0; i < sizeof mounts / sizeof *mounts; i++) {
        put("/proc/self/mountinfo", mounts[i]);
        cr_assert_not(detect().limited, "mountinfo \"%s\"", mounts[i]);
    }
    put("/proc/self/mountinfo", V2_MOUNT);          /* and now all of it is right */
    expect_quota(0.5, 1);
}

CpuTest(hybrid_the_controller_may_be_in_either_hierarchy)
{
    put_where("3:cpu,cpuacct:/app\n0::/init\n",
              V1_OTHERS V1_MOUNT
              "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n");
    put(CFS "/app/cpu.cfs_period_us", "100000\n");
    put(CFS "/app/cpu.cfs_quota_us", "50000\n");
    put("/sys/fs/cgroup/unified/init/cgroup.procs", "1\n");
    expect_quota(0.5, 1);
    put("/sys/fs/cgroup/unified/init/cpu.max", "25000 100000\n");
    expect_quota(0.25, 1);
}

CpuTest(in_a_container_the_mount_shows_only_our_part)
{
    /* Without a namespace of its own: the path is the host's, the mount's root a part of it. */
    put_where("0::/docker/abc/sub\n",
              "30 23 0:26 /docker/abc /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
    put("/sys/fs/cgroup/sub/cpu.max", "40000 100000\n");
    put("/sys/fs/cgroup/cpu.max", "60000 100000\n");
    expect_quota(0.4, 1);
    /* A root that only begins alike is somebody else's: what can be seen is the mount point. */
    put_where("0::/docker/abcdef\n",
              "30 23 0:26 /docker/abc /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
    expect_quota(0.6, 1);
    /* Moved out of the namespace. */
    put_where("0::/../sub\n", V2_MOUNT);
    expect_quota(0.6, 1);
    put_where("0::/..\n", V2_MOUNT);
    expect_quota(0.6, 1);
    put_where("0::/\n", V2_MOUNT);
    expect_quota(0.6, 1);
}

CpuTest(blanks_in_paths_and_colons_in_groups_are_understood)
{
    put_where("0::/a b:c\n", "30 23 0:26 / /mnt/c\\040g rw - cgroup2 cgroup2 rw\n");
    put("/mnt/c g/a b:c/cpu.max", "50000 100000\n");
    expect_quota(0.5, 1);
}

CpuTest(a_missing_group_leaves_its_parents_quota)
{
    put_where("0::/app/gone (deleted)\n", V2_MOUNT);
    put("/sys/fs/cgroup/app/cpu.max", "50000 100000\n");
    expect_quota(0.5, 1);
}

CpuTest(long_lines_are_passed_over_and_the_last_needs_no_newline)
{
    /* A line's tail that looks like a mount, at a multiple of any likely size of a buffer. */
    static char mounts[40000];
    const size_t lead = 16384;
    memset(mounts, '/', lead);
    snprintf(mounts + lead, sizeof mounts - lead,
             "30 23 0:26 / /tail rw - cgroup2 cgroup2 rw\n%.*s", (int)strlen(V2_MOUNT) - 1,
             V2_MOUNT);
    put("/tail/app/cpu.max", "10000 100000");
    put_where("0::/app", mounts);
    put("/sys/fs/cgroup/app/cpu.max", "50000 100000");
    expect_quota(0.5, 1);
    memset(mounts, ' ', sizeof mounts - 1);
    put("/proc/self/mountinfo", mounts);
    expect_no_quota();
}

CpuTest(an_affinity_of_one_cpu_is_one_usable_cpu)
{
    cpu_set_t all, one;
    cr_assert_eq(sched_getaffinity(0, sizeof all, &all), 0);
    cr_assert_eq(detect().affinity, (unsigned)CPU_COUNT(&all));
    size_t cpu = 0;
    while (!CPU_ISSET(cpu, &all))
        cpu++;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    cr_assert_eq(sched_setaffinity(0, sizeof one, &one), 0);
    cr_assert_eq(detect().affinity, 1);
    cr_assert_eq(detect().usable, 1);
    put_where("0::/app\n", V2_MOUNT);
    put("/sys/fs/cgroup/app/cpu.max", "150000 100000\n");
    expect_quota(1.5, 1);
}

Test(cpu, the_real_system_has_at_least_one, .timeout = 30)
{
    struct wr_cpu cpu;
    wr_cpu_detect(&cpu, "");
    cr_assert_geq(cpu.affinity, 1);
    cr_assert_geq(cpu.usable, 1);
    cr_assert_leq(cpu.usable, cpu.affinity);
}
