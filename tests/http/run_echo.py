#!/usr/bin/env python3
"""End to end: the echo sample, asynchronous and with --sync. run_echo.py SERVER"""
import concurrent.futures
import os
import random
import signal
import socket
import sys
import tempfile
import threading
import time

import harness
from harness import Server, check, read_to_end, wait_until


def exchange(address, data, step):
    """Sends all, says FIN, and reads what comes back until the end."""
    with socket.socket(socket.AF_UNIX if isinstance(address, str) else socket.AF_INET) as sock:
        sock.settimeout(20)
        sock.connect(address)

        def send():
            for at in range(0, len(data), step):
                sock.sendall(data[at:at + step])
            sock.shutdown(socket.SHUT_WR)
        sender = threading.Thread(target=send)
        sender.start()
        back = read_to_end(sock)
        sender.join()
        check(back == data, f"{len(back)} of {len(data)} bytes came back, or not the same")


def everything_comes_back_in_order(mode):
    seed = time.time_ns()
    print(f"seed {seed}")
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        with Server(*mode, listen=("127.0.0.1:0", f"unix:{folder}/sock")) as server:
            before = server.fds()
            with concurrent.futures.ThreadPoolExecutor(30) as pool:
                jobs = [pool.submit(exchange, (f"{folder}/sock", ("127.0.0.1", server.port))[i % 2],
                                    rng.randbytes(rng.choice((0, 1, 1000, 300_000, 2_000_000))),
                                    rng.choice((100, 4096, 65536, 1_000_000))) for i in range(60)]
                for job in jobs:
                    job.result()
            wait_until(lambda: server.fds() <= before, 5, "descriptors leaked")


def peer_that_reads_late_gets_everything_and_costs_little(mode):
    data = random.Random(1).randbytes(1 << 20) * 64
    with Server(*mode) as server, server.connect(20) as sock:
        sock.sendall(b"x")
        check(sock.recv(1) == b"x", "it echoes")
        before, sent = server.rss(), 0
        sock.settimeout(0.5)
        try:
            while sent < len(data):
                sent += sock.send(data[sent:sent + 65536])
        except socket.timeout:
            pass
        check(sent < len(data), "it stops reading when its peer does not read")
        check(server.rss() - before < 16 << 20, f"it grew by {(server.rss() - before) >> 20} MiB")
        sock.settimeout(20)
        got = b""
        parts = []
        while sum(map(len, parts)) < sent:
            part = sock.recv(1 << 20)
            check(part, "it ended too early")
            parts.append(part)
        got = b"".join(parts)
        check(got == data[:sent], "not the same bytes")
        sock.sendall(b"y")
        check(sock.recv(1) == b"y", "and goes on")


def sigterm_ends_idle_connections(mode):
    with Server(*mode) as server:
        socks = [server.connect() for _ in range(20)]
        for sock in socks:
            sock.sendall(b"x")
            check(sock.recv(1) == b"x", "it echoes")
        start = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        for sock in socks:
            check(sock.recv(1) == b"", "an idle connection ends")
            sock.close()
        check(server.process.wait(10) == 0 and time.monotonic() - start < 2, "clean and soon")


def stuck_connection_is_given_up(mode):
    with Server(*mode, "--drain", "0.5", code=1) as server, server.connect() as sock:
        sock.setblocking(False)
        end = time.monotonic() + 1
        while time.monotonic() < end:
            try:
                sock.send(b"x" * 65536)
            except BlockingIOError:
                time.sleep(0.05)
        start = time.monotonic()
        check(server.end() == 1, "exit code 1")
        check(0.4 < time.monotonic() - start < 3, f"after {time.monotonic() - start:.1f} s")
        check("gave up 1 connection" in server.said(), server.said())


def resets_leave_nothing(mode):
    with Server(*mode) as server:
        before = server.fds()
        for i in range(300):
            with server.connect() as sock:
                if i % 2:
                    sock.sendall(b"x" * 100_000)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        wait_until(lambda: server.fds() <= before, 5, f"{server.fds() - before} descriptors leaked")


def main():
    harness.SERVER = os.path.abspath(sys.argv[1])
    failed = 0
    for mode in ((), ("--sync",)):
        for function in (everything_comes_back_in_order, peer_that_reads_late_gets_everything_and_costs_little,
                         sigterm_ends_idle_connections, stuck_connection_is_given_up, resets_leave_nothing):
            start, verdict = time.monotonic(), "ok"
            try:
                function(mode)
            except (AssertionError, OSError) as error:
                failed += 1
                verdict = f"FAILED: {type(error).__name__}: {str(error)[:1000]}"
            print(f"{function.__name__} {' '.join(mode)} ({time.monotonic() - start:.1f} s) {verdict}", flush=True)
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
