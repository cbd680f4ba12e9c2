/* cpu.h: how many CPUs this process may really use: affinity and cgroup quota (v1 and v2). */
#ifndef WR_OS_CPU_H
#define WR_OS_CPU_H

#include <stdbool.h>

struct wr_cpu {
    unsigned affinity;      /* CPUs in the affinity mask, at least 1 */
    bool limited;           /* a quota is in force */
    double quota;           /* CPUs of it, e.g. 0.5 */
    unsigned usable;        /* min(affinity, ceil(quota)), at least 1 */
};

/* `root` stands for "/" (tests give a fake one): reads root/proc/self/cgroup,
 * root/proc/self/mountinfo and below root/sys/fs/cgroup (or wherever mountinfo points). Every level
 * of the hierarchy counts, the smallest quota wins. Whatever cannot be read does not limit. Never
 * fails, allocates nothing. */
void wr_cpu_detect(struct wr_cpu *ret_cpu, const char *root);

#endif
