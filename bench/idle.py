#!/usr/bin/env python3
"""What idle connections cost a server: memory for each, and nothing else.

    bench/idle.py [-n CONNECTIONS] [-s SECONDS] [--server 'PROGRAM ARGUMENTS {port}']

Opens the connections, has one request answered on each, and then measures while nothing happens:
  1. user memory for each connection: growth of the server's PSS;
  2. context switches of every thread of the server over SECONDS: must be 0;
  3. system calls over another SECONDS, seen by strace: must be 0.
Exit status: 0 nothing moved; 1 something did, or the server misbehaved; 77 strace is missing or may not attach.
"""
import argparse
import os
import re
import resource
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True

from lib import bench, machine, proc
from lib.run import say
from lib.server import HOST, REQUEST, Running, Server, ServerError

ATTACH = 5.0        # seconds strace may take to attach to all threads
AFTER_ATTACH = 0.5  # calls that attaching interrupted are made anew: they are strace's, not the server's


def connect(port, count):
    """Connections on each of which one request was answered."""
    connections = []
    for _ in range(count):
        connection = socket.create_connection((HOST, port), timeout=5)
        connection.sendall(REQUEST)
        if not connection.recv(4096).startswith(b"HTTP/1.1 200"):
            raise ServerError(f"no answer on connection {len(connections)}")
        connections.append(connection)
    return connections


def memory(group):
    return sum(proc.pss_bytes(pid) for pid in proc.members(group))


def switches(group, seconds):
    """{thread: context switches in this time}, for threads that had some, began or ended."""
    before = proc.usage(group).threads
    time.sleep(seconds)
    after = proc.usage(group).threads
    moved = {}
    for thread in before.keys() | after.keys():
        counts = [each.get(thread, (0, 0))[1] for each in (before, after)]
        if counts[0] != counts[1] or thread not in before or thread not in after:
            moved[thread] = counts[1] - counts[0]
    return moved


def thread_name(pid, tid):
    try:
        with open(f"/proc/{pid}/task/{tid}/comm") as file:
            return file.read().strip()
    except OSError:
        return "ended"


class NoTrace(Exception):
    pass


def _attached(tracer, group):
    """Wait until strace traces every thread of the server."""
    end = time.monotonic() + ATTACH
    while time.monotonic() < end and tracer.poll() is None:
        tracers = set()
        for pid, tid in proc.usage(group).threads:
            try:
                with open(f"/proc/{pid}/task/{tid}/status") as file:
                    tracers.add(int(re.search(r"^TracerPid:\s+(\d+)", file.read(), re.MULTILINE)[1]))
            except OSError:
                continue
        if tracers and 0 not in tracers:
            return True
        time.sleep(0.05)
    return False


def system_calls(group, seconds):
    """The lines strace wrote in a window of this length. -c would count the calls that attaching and detaching
    interrupt as well, so lines with times are taken instead, and only those inside the window."""
    if shutil.which("strace") is None:
        raise NoTrace("strace is missing")
    with tempfile.TemporaryDirectory(prefix="weir-idle-") as folder:
        path = os.path.join(folder, "calls")
        pids = [word for pid in proc.members(group) for word in ("-p", str(pid))]
        with open(os.path.join(folder, "said"), "w+") as said:
            tracer = subprocess.Popen(["strace", "-f", "-ttt", "-o", path, *pids], stdin=subprocess.DEVNULL,
                                      stdout=said, stderr=said)
            try:
                if not _attached(tracer, group):
                    said.seek(0)
                    raise NoTrace("strace cannot attach: " + said.read().strip()[-200:])
                time.sleep(AFTER_ATTACH)
                begin = time.time()
                time.sleep(seconds)
                end = time.time()
            finally:
                if tracer.poll() is None:
                    tracer.send_signal(signal.SIGINT)       # it detaches and leaves the server running
                    tracer.wait(10)
        lines = []
        with open(path) as file:
            for line in file:
                found = re.match(r"\d+\s+(\d+\.\d+) ", line)
                if found and begin <= float(found[1]) <= end:
                    lines.append(line.strip())
        return lines


def raise_limit(count):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + 256
    if hard != resource.RLIM_INFINITY and wanted > hard:
        sys.exit(f"{count} connections need {wanted} descriptors, the limit is {hard}")
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def report(args, growth, before, moved, calls, group):
    """The section, and whether nothing moved."""
    each = growth / args.connections
    lines = ["### Idle connections", "", *machine.lines(machine.describe())[:3], "",
             "| connections | user bytes a connection | PSS before, KiB | context switches | system calls | seconds |",
             "|---|---|---|---|---|---|",
             f"| {args.connections} | {each:.0f} | {before // 1024} | {sum(moved.values())} | "
             f"{'not proven' if calls is None else len(calls)} | {args.seconds:g} |"]
    for (pid, tid), count in sorted(moved.items()):
        lines.append(f"- thread {tid} ({thread_name(pid, tid)}): {count} context switches")
    lines += [f"- `{line[:160]}`" for line in (calls or [])[:20]]
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", "--connections", type=int, default=1000)
    parser.add_argument("-s", "--seconds", type=float, default=10)
    parser.add_argument("--settle", type=float, default=1.0, help="seconds between the last answer and the first look")
    parser.add_argument("--build", default=os.path.join(machine.ROOT, "build", "release"))
    parser.add_argument("--server", help="a command with {port}; default: the plaintext sample of the build")
    parser.add_argument("--bytes-max", type=int, help="fail when a connection costs more user memory")
    parser.add_argument("--markdown", metavar="FILE")
    args = parser.parse_args()
    bench.end_by_signal()
    raise_limit(args.connections)
    server = Server("server", shlex.split(args.server)) if args.server else bench.weir(
        args, "plaintext", words=("--idle-timeout", str(int(60 + 4 * args.seconds))))
    if not server.available():
        say(f"missing: {server.argv[0]}")
        return bench.SKIP
    try:
        with Running(server) as running:
            for connection in connect(running.port, 16):    # what the first ones allocate is nobody's in particular
                connection.close()
            time.sleep(0.2)
            before = memory(running.group)
            connections = connect(running.port, args.connections)
            time.sleep(args.settle)
            growth = memory(running.group) - before
            moved = switches(running.group, args.seconds)
            try:
                calls, refused = system_calls(running.group, args.seconds), None
            except NoTrace as reason:
                calls, refused = None, str(reason)
            text = report(args, growth, before, moved, calls, running.group)
            for connection in connections:                  # they were not simply lost
                connection.sendall(REQUEST)
                if not connection.recv(4096).startswith(b"HTTP/1.1 200"):
                    raise ServerError("a connection did not answer after its rest")
    except (ServerError, OSError) as error:
        say(f"{type(error).__name__}: {error}")
        return bench.FAIL
    if running.ending():
        say(running.ending())
        return bench.FAIL
    print(text, end="")
    if args.markdown:
        with open(args.markdown, "w") as file:
            file.write(text)
    if args.bytes_max is not None and growth > args.bytes_max * args.connections:
        say(f"more than {args.bytes_max} bytes a connection")
        return bench.FAIL
    if moved or calls:
        say("not idle")
        return bench.FAIL
    if refused:
        say(refused)
        return bench.SKIP
    return 0


if __name__ == "__main__":
    sys.exit(main())
