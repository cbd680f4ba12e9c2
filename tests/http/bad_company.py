"""Of run_http.py: peers that do not read, reset, come by the thousand; want of descriptors; idleness."""
import contextlib
import os
import shutil
import socket
import struct
import threading
import time

import harness
from harness import (GET, HALF, HOST, JSON, PLAIN, Server, check, context_switches, read_response, test, wait_until)


@test
def peer_that_does_not_read_costs_bounded_memory_and_is_given_up():
    with Server("--write-timeout", "1") as server:
        with server.connect() as warm:
            warm.sendall(GET * 100)
            time.sleep(0.1)
        before = server.rss()
        socks = [server.connect() for _ in range(4)]
        for sock in socks:
            sock.setblocking(False)
        request, peak, gone = GET * 100, 0, set()
        end = time.monotonic() + 20
        while len(gone) < len(socks) and time.monotonic() < end:
            for sock in socks:
                try:
                    if sock not in gone:
                        sock.send(request)
                except BlockingIOError:
                    pass
                except OSError:
                    gone.add(sock)
            peak = max(peak, server.rss() - before)
            time.sleep(0.001)
        check(len(gone) == len(socks), f"{len(socks) - len(gone)} peers that do not read are still there")
        limit = (24 << 20) * server.bytes_for_one()
        check(peak < limit, f"the server grew by {peak >> 20} MiB")
        for sock in socks:
            sock.close()
        check(server.ask(GET.replace(b"1.1", b"1.0")).endswith(PLAIN), "others are served")


@test
def peers_that_do_not_read_share_a_budget():
    os.environ["WEIR_WRITE_BUDGET"] = str(2 << 20)
    try:
        server = Server("--write-timeout", "30")
    finally:
        del os.environ["WEIR_WRITE_BUDGET"]
    with server, server.connect() as warm:
        for sock in (socks := [socket.socket() for _ in range(96)]):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 32 * 1024)     # what waits, waits in the server
            sock.connect(("127.0.0.1", server.port))
            sock.setblocking(False)
        before, request, last, end = server.rss(), GET * 100, time.monotonic(), time.monotonic() + 20
        while time.monotonic() < min(last + 0.5, end):     # until nobody takes anything any more
            for sock in socks:
                with contextlib.suppress(BlockingIOError):
                    if sock.send(request) > 0:
                        last = time.monotonic()
            time.sleep(0.001)
        # Beside the budget each may have one write that waits and one that was refused.
        grown, limit = server.rss() - before, (2 << 20) + 96 * (280 << 10)
        check(grown < limit * server.bytes_for_one(), f"the server grew by {grown >> 20} MiB")
        warm.sendall(GET)
        check(read_response(warm)[2] == PLAIN, "who reads is served")
        for sock in socks:
            sock.close()


@test
def peer_that_reads_late_gets_every_response_in_order():
    count = 200_000 if harness.FULL else 60_000
    paths = (b"/plaintext", b"/json", b"/none")
    stream = b"".join(b"GET " + paths[i % 3] + b" HTTP/1.1\r\n" + HOST + b"\r\n" for i in range(count))
    with Server() as server, socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 256 * 1024)
        sock.settimeout(30)
        sock.connect(("127.0.0.1", server.port))
        sender = threading.Thread(target=sock.sendall, args=(stream,))
        sender.start()
        time.sleep(0.5)
        reader, expected = sock.makefile("rb"), (PLAIN, JSON, b"Not Found")
        for i in range(count):
            length = None
            while (text := reader.readline()) != b"\r\n":
                check(text, f"ended at response {i}")
                if text.startswith(b"Content-Length: "):
                    length = int(text[16:])
            body = reader.read(length)
            check(body == expected[i % 3], f"response {i}: {body}")
        sender.join()


@test
def connect_and_reset_by_the_thousand_leaves_nothing():
    count = 10_000 if harness.FULL else 1000
    with Server() as server, server.connect() as steady:
        steady.sendall(GET)
        read_response(steady)
        before = server.fds()
        for i in range(count):
            sock = server.connect()
            if i % 3 == 1:
                sock.sendall(GET)
            elif i % 3 == 2:
                sock.sendall(HALF)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            sock.close()
            if i % 50 == 0:
                steady.sendall(GET)
                check(read_response(steady)[2] == PLAIN, "a steady client")
        wait_until(lambda: server.fds() <= before, 5, f"{server.fds() - before} descriptors leaked")
        check(server.said() == "", f"nothing to say about resets: {server.said()[:300]}")


@test
def out_of_descriptors_it_waits_quietly_and_resumes():
    if not shutil.which("prlimit"):
        return "no prlimit"
    with Server(prefix=("prlimit", "--nofile=64")) as server:
        socks = []
        for _ in range(150):
            sock = socket.socket()
            sock.setblocking(False)
            sock.connect_ex(("127.0.0.1", server.port))
            socks.append(sock)
        time.sleep(0.5)
        cpu = server.cpu()
        time.sleep(2)
        cpu = server.cpu() - cpu
        check(cpu < 0.2, f"{cpu:.2f} s of CPU in 2 s of want")
        lines = server.said().count("\n")
        check(lines <= 5, f"{lines} lines of log: {server.said()[:500]}")
        for sock in socks[:120]:
            sock.close()
        with server.connect(5) as sock:
            sock.sendall(GET)
            check(read_response(sock)[2] == PLAIN, "served as soon as there is room")
        for sock in socks:
            sock.close()


@test
def idle_server_uses_no_cpu():
    with Server() as server, server.connect() as sock:
        sock.sendall(GET)
        read_response(sock)
        time.sleep(0.3)
        cpu = server.cpu()
        switches = context_switches(server.pid)
        time.sleep(2)
        check(server.cpu() - cpu <= 0.01, f"{server.cpu() - cpu} s in 2 s")
        check(context_switches(server.pid) - switches <= 4, f"woke {context_switches(server.pid) - switches} times")
