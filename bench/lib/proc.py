"""CPU time and context switches of running processes, from the kernel's own books under /proc.

CPU time is read for each thread from schedstat, in nanoseconds: the ticks of /proc/PID/stat are too
coarse for a run of one second. A thread that ends takes its figures with it; then the ticks of its
process, which outlive it, stand in, and the result says that it is not exact.
"""
import os
import resource
import time
from dataclasses import dataclass, field

TICKS = os.sysconf("SC_CLK_TCK")
SCHEDSTAT = os.path.exists("/proc/self/schedstat")      # else ticks have to do


@dataclass
class Usage:
    """What the processes of one group had used up at one moment."""
    threads: dict = field(default_factory=dict)     # (pid, tid) -> (CPU ns, context switches)
    ticks: dict = field(default_factory=dict)       # pid -> utime + stime, ended threads included


@dataclass
class Spent:
    cpu_us: float = 0.0
    switches: int = 0
    ended: int = 0      # threads that ended meanwhile: their context switches are not counted


def _read(path):
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:     # it has ended since it was listed
        return b""


def _stat(pid):
    return _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()


def members(group):
    """The processes of a process group."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            fields = _stat(name)
            if fields and int(fields[2]) == group:
                found.append(int(name))
    return sorted(found)


def _thread(pid, tid):
    schedstat = _read(f"/proc/{pid}/task/{tid}/schedstat").split()
    status = _read(f"/proc/{pid}/task/{tid}/status")
    if not status or (SCHEDSTAT and not schedstat):
        return None
    switches = sum(int(line.split()[1]) for line in status.splitlines()
                   if line.startswith((b"voluntary_ctxt", b"nonvoluntary_ctxt")))
    return int(schedstat[0]) if schedstat else 0, switches


def usage(group):
    now = Usage()
    for pid in members(group):
        fields = _stat(pid)
        if fields:
            now.ticks[pid] = int(fields[11]) + int(fields[12])
        try:
            tids = os.listdir(f"/proc/{pid}/task")
        except OSError:
            continue
        for tid in tids:
            figures = _thread(pid, tid)
            if figures:
                now.threads[pid, int(tid)] = figures
    return now


def spent(before, after):
    result = Spent()
    ended = [thread for thread in before.threads if thread not in after.threads]
    inexact = {pid for pid, _ in ended} if SCHEDSTAT else set(after.ticks)
    result.ended = len(ended)
    for (pid, tid), (cpu, switches) in after.threads.items():
        cpu_before, switches_before = before.threads.get((pid, tid), (0, 0))
        result.switches += switches - switches_before
        if pid not in inexact:
            result.cpu_us += (cpu - cpu_before) / 1e3
    for pid in inexact & after.ticks.keys():        # not those that ended: what they had is lost
        result.cpu_us += (after.ticks[pid] - before.ticks.get(pid, 0)) * 1e6 / TICKS
    return result


def pss_bytes(pid):
    """Proportional memory of a process: what it has for itself and its part of what is shared."""
    for line in _read(f"/proc/{pid}/smaps_rollup").splitlines():
        if line.startswith(b"Pss:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/{pid}/smaps_rollup cannot be read")


def _rusage(who):
    used = resource.getrusage(who)
    return used.ru_utime + used.ru_stime


@dataclass
class Machine:
    """CPU seconds of the whole machine at one moment, and what of them was ours."""
    clock: float
    cpus: int
    idle: float
    steal: float
    client: float       # ended children: the load generators
    harness: float

    @staticmethod
    def now():
        lines = _read("/proc/stat").splitlines()
        total = [int(x) / TICKS for x in lines[0].split()[1:]]
        cpus = sum(1 for line in lines if line.startswith(b"cpu")) - 1
        return Machine(time.monotonic(), cpus, total[3] + total[4], total[7], _rusage(resource.RUSAGE_CHILDREN),
                       _rusage(resource.RUSAGE_SELF))


def shares(before, after, servers_us):
    """(foreign, stolen) CPU time as percentages of the machine between two moments.

    Foreign is what was neither idle nor stolen nor used by servers, clients or the harness: taken as the
    difference, so that a compiler that began and ended in between counts as well. Interrupts that
    belong to nobody are in it.
    """
    capacity = (after.clock - before.clock) * after.cpus
    if capacity <= 0:
        return 0.0, 0.0
    stolen = after.steal - before.steal
    ours = (after.client - before.client) + (after.harness - before.harness) + servers_us / 1e6
    foreign = capacity - (after.idle - before.idle) - stolen - ours
    return max(0.0, 100 * foreign / capacity), max(0.0, 100 * stolen / capacity)
