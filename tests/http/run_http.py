#!/usr/bin/env python3
"""End to end: starts the sample server and talks to it as friends, strangers and vandals would.

run_http.py SERVER [--only TEXT] [--full]"""
import concurrent.futures
import contextlib
import email.utils
import http.client
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

import bad_company  # noqa: F401, registers its tests
import harness
from harness import (DATE, GET, HALF, HOST, JSON, PLAIN, Server, check, read_response, read_to_end,
                     split, test, wait_until)

# ---- what is asked and answered ------------------------------------------------------------------

@test
def required_headers_and_bodies():
    with Server() as server, server.connect() as sock:
        for path, kind, body in (("/plaintext", "text/plain", PLAIN), ("/json", "application/json", JSON),
                                 ("/plaintext?a=b", "text/plain", PLAIN)):
            sock.sendall(f"GET {path} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
            status, headers, got = read_response(sock)
            check((status, got) == (200, body), f"{path}: {status} {got}")
            check(headers["Server"] and headers["Date"], "Server and Date are there")
            check(headers["Content-Type"] == kind, headers["Content-Type"])
            check(headers["Content-Length"] == str(len(body)), headers["Content-Length"])
            check(headers["Connection"] is None, "1.1 says nothing when it stays open")
        sock.sendall(b"GET /nope HTTP/1.1\r\nHost: a\r\n\r\n")
        check(read_response(sock)[0] == 404, "404, and the connection stays")
        sock.sendall(b"DELETE /json HTTP/1.1\r\nHost: a\r\n\r\n")
        status, headers, _ = read_response(sock)
        check(status == 405 and "GET" in headers["Allow"] and "HEAD" in headers["Allow"], "405 with Allow")
        sock.sendall(b"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n")
        status, headers, _ = read_response(sock)
        check(status == 200 and "GET" in headers["Allow"], "OPTIONS *")
        sock.sendall(b"GET http://elsewhere/json HTTP/1.1\r\nHost: a\r\n\r\n")
        check(read_response(sock)[2] == JSON, "absolute form")


@test
def curl_over_v4_v6_and_unix():
    if not shutil.which("curl"):
        return "no curl"
    with tempfile.TemporaryDirectory() as folder:
        path = folder + "/sock"
        with Server(listen=("127.0.0.1:0", "[::1]:0", "unix:" + path)) as server:
            four, six, _ = server.ports
            for arguments in ([f"http://127.0.0.1:{four}/json"], [f"http://[::1]:{six}/json"],
                              ["--unix-socket", path, "http://localhost/json"],
                              ["--http1.0", f"http://127.0.0.1:{four}/json"]):
                out = subprocess.run(["curl", "-sS", "-g", "--max-time", "5", *arguments], capture_output=True)
                check(out.stdout == JSON, f"{arguments}: {out}")
            body = folder + "/body"
            pathlib.Path(body).write_bytes(b"x" * 2_000_000)
            start = time.monotonic()
            out = subprocess.run(["curl", "-sS", "-X", "GET", "-H", "Expect: 100-continue", "--max-time", "10",
                                  "--data-binary", "@" + body, f"http://127.0.0.1:{four}/plaintext"],
                                 capture_output=True)
            check(out.stdout == PLAIN, f"2 MB with Expect: {out}")
            check(time.monotonic() - start < 0.9, "curl did not wait its second for the 100")
        check(not os.path.exists(path), "the unix socket's file is removed")


@test
def ipv4_and_ipv6_wildcards_side_by_side():
    with socket.socket() as probe:
        probe.bind(("0.0.0.0", 0))
        port = probe.getsockname()[1]
    with Server(listen=(f"0.0.0.0:{port}", f"[::]:{port}")):
        for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
            with socket.socket(family) as sock:
                sock.connect((address, port))
                sock.sendall(GET)
                check(read_response(sock)[2] == PLAIN, address)


SHAPES = [
    GET,
    b"GET /json HTTP/1.1\r\nhost: a\r\nuser-agent: x\r\naccept: */*\r\naccept-language: en\r\ncookie: a=b; c=d\r\n\r\n",
    b"POST /plaintext HTTP/1.1\r\n" + HOST + b"Content-Length: 11\r\n\r\nhello world",
    b"GET /plaintext HTTP/1.1\r\n" + HOST + b"content-length: 3\r\n\r\n\r\nx",
    b"POST /json HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    b"GET /json HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n"
    + b"5;a=b\r\nhello\r\n1\r\nx\r\n0\r\nT: u\r\n\r\n",
    GET + b"GET /json HTTP/1.1\r\n" + HOST + b"\r\n",
    b"HEAD /json HTTP/1.1\r\n" + HOST + b"\r\n" + GET,
    b"\r\nGET /none HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n",
    b"GET /plaintext HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
    b"GET /plaintext HTTP/1.1\r\nHost : a\r\n\r\n",
]


def converse(server, pieces_of, pause):
    """Many connections at once: each sends its pieces with pauses, then its end; what each was answered."""
    socks = [server.connect() for _ in pieces_of]
    try:
        for step in range(max(len(pieces) for pieces in pieces_of)):
            for sock, pieces in zip(socks, pieces_of):
                if step < len(pieces) and pieces[step]:
                    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                        sock.sendall(pieces[step])
            time.sleep(pause)
        for sock in socks:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_WR)
        return [DATE.sub(b"", read_to_end(sock)) for sock in socks]
    finally:
        for sock in socks:
            sock.close()


@test
def a_cut_at_every_offset_changes_no_answer():
    with Server() as server:
        for shape in SHAPES:
            expected = converse(server, [[shape]], 0.01)[0]
            check(expected.startswith(b"HTTP/1.1 "), f"{shape}: {expected}")
            cuts = [[shape[:cut], shape[cut:]] for cut in range(1, len(shape))]
            for pieces, got in zip(cuts, converse(server, cuts, 0.02)):
                check(got == expected, f"{pieces}: {got}, unsplit {expected}")


@test
def dribbles_change_no_answer():
    with Server() as server:
        for step in (1, 3, 7):
            pieces = [[shape[at:at + step] for at in range(0, len(shape), step)] for shape in SHAPES]
            expected = converse(server, [[shape] for shape in SHAPES], 0.01)
            for shape, want, got in zip(SHAPES, expected, converse(server, pieces, 0.003)):
                check(got == want, f"{shape} by {step}: {got}, unsplit {want}")


@test
def pipelined_requests_are_answered_in_order():
    mix = [(b"GET", b"/plaintext", PLAIN), (b"GET", b"/json", JSON), (b"HEAD", b"/json", b""),
           (b"GET", b"/none", b"Not Found"), (b"POST", b"/json", b"Method Not Allowed"), (b"HEAD", b"/none", b"")]
    rounds = 2000 if harness.FULL else 200
    with Server() as server, server.connect() as sock:
        stream = sock.makefile("rb")
        for turn in range(rounds):
            batch = [mix[(turn + i * i) % len(mix)] for i in range(16)]
            sock.sendall(b"".join(method + b" " + path + b" HTTP/1.1\r\n" + HOST + b"\r\n"
                                  for method, path, _ in batch))
            for method, path, body in batch:
                response = http.client.HTTPResponse(Unclosed(stream), method=method.decode())
                response.begin()
                got = response.read()
                check(got == body, f"round {turn} {method} {path}: {got}")


class Unclosed:
    """Lets several http.client responses read one after the other from one buffered stream."""

    def __init__(self, stream):
        self.stream = stream

    def makefile(self, _):
        return self

    def close(self):
        pass

    def flush(self):
        pass

    def __getattr__(self, name):
        return getattr(self.stream, name)


@test
def head_in_a_pipeline_does_not_shift_the_next():
    with Server() as server:
        data = server.ask(b"HEAD /plaintext HTTP/1.1\r\n" + HOST + b"\r\nHEAD /none HTTP/1.1\r\n" + HOST + b"\r\n"
                          + b"GET /json HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n")
        first, second, third = split(data, heads=(0, 1))
        check(b"Content-Length: 13" in first[1] and second[0] == 404 and third[2] == JSON, data)


@test
def http_1_0_closes_unless_asked_and_then_says_so():
    with Server() as server:
        (status, head, body), = split(server.ask(b"GET /plaintext HTTP/1.0\r\n\r\n"))
        check(status == 200 and body == PLAIN and b"Connection: close\r\n" in head, head)
        with server.connect() as sock:
            for _ in range(3):
                sock.sendall(b"GET /plaintext HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n")
                status, headers, body = read_response(sock)
                check(status == 200 and headers["Connection"] == "keep-alive" and body == PLAIN, headers)
            sock.sendall(b"GET /plaintext HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\n")
            time.sleep(0.1)
            sock.sendall(b"x")
            check([status for status, _, _ in split(read_to_end(sock))] == [200], "no 100 for 1.0")


# ---- errors: the whole response, then the end ----------------------------------------------------

def post(headers, body=b""):
    return b"POST /plaintext HTTP/1.1\r\n" + HOST + headers + b"\r\n" + body


def line(text):
    return text + b"\r\n" + HOST + b"\r\n"


CHUNKED = b"Transfer-Encoding: chunked\r\n"
REFUSED = [
    (400, line(b"GET /")), (400, line(b"GET / HTTP/1.1x")), (400, line(b"GET / http/1.1")),
    (505, line(b"GET / HTTP/9.9")), (505, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    (501, line(b"CONNECT h:1 HTTP/1.1")), (400, line(b"GET * HTTP/1.1")), (400, line(b"GET ftp://h/ HTTP/1.1")),
    (400, b"GET /\n\n"), (400, b"GET / HTTP/1.1\nHost: a\n\n"), (400, b"\r\n\r\n" + GET),
    (400, b"GET / HTTP/1.1\r\n\r\n"), (400, line(b"GET / HTTP/1.1\r\nHost: b")),
    (400, b"GET / HTTP/1.1\r\nHost: a b\r\n\r\n"), (400, b"GET / HTTP/1.1\r\nHost : a\r\n\r\n"),
    (400, line(b"GET / HTTP/1.1\r\n: x")), (400, line(b"GET / HTTP/1.1\r\nX[]: y")),
    (400, line(b"GET / HTTP/1.1\r\nnocolon")), (400, line(b"GET / HTTP/1.1\r\nX: a\r\n folded")),
    (400, line(b"GET / HTTP/1.1\r\nX: a\rY: b")), (400, line(b"GET / HTTP/1.1\r\nX: a\0b")),
    (400, line(b"GET /\x07 HTTP/1.1")), (400, b"\x16\x03\x01\x02\x00"),
    (400, post(b"Content-Length: 5\r\n" + CHUNKED, b"0\r\n\r\n")),
    (400, post(CHUNKED + b"Content-Length: 5\r\n", b"0\r\n\r\n")),
    (400, post(b"Content-Length: 5\r\nContent-Length: 6\r\n", b"hello")), (400, post(b"Content-Length: 5, 5\r\n")),
    (400, post(b"Content-Length: +1\r\n", b"a")), (400, post(b"Content-Length: 99999999999999999999\r\n")),
    (400, post(b"Transfer-Encoding: chunked, identity\r\n")), (501, post(b"Transfer-Encoding: gzip, chunked\r\n")),
    (501, post(b"Transfer-Encoding: xchunked\r\n")),
    (400, b"POST / HTTP/1.0\r\n" + CHUNKED + b"\r\n0\r\n\r\n"),
    (400, post(CHUNKED, b"10000000000000000\r\n")), (400, post(CHUNKED, b"0x10\r\n")), (400, post(CHUNKED, b"\r\n")),
    (400, post(CHUNKED, b"5\nhello\r\n0\r\n\r\n")), (400, post(CHUNKED, b"5\r\nhello0\r\n\r\n")),
    (400, post(CHUNKED, b"5;" + b"x" * 1_000_000 + b"\r\n")),
    (413, post(b"Content-Length: 99999999999\r\n", b"x" * 100_000)), (413, post(CHUNKED, b"FFFFFFFFFFFFFFFF\r\n")),
    (414, line(b"GET /" + b"a" * 100_000 + b" HTTP/1.1")), (400, line(b"G" * 100_000 + b" / HTTP/1.1")),
    (431, line(b"GET / HTTP/1.1\r\nX: " + b"a" * 100_000)),
    (431, line(b"GET / HTTP/1.1\r\n" + b"n" * 100_000 + b": v")),
    (431, b"GET / HTTP/1.1\r\n" + HOST + b"A: b\r\n" * 10_000 + b"\r\n"), (400, b"\r\n" * 50_000),
    (417, post(b"Expect: tea\r\nContent-Length: 1\r\n", b"x")),
]


@test
def every_refusal_is_whole_says_close_and_ends_in_eof():
    with Server() as server:
        before = server.fds()
        for status, request in REFUSED:
            for behind in (b"", GET):       # what comes behind an error is never a request
                try:
                    found = split(server.ask(request + behind))
                except OSError as error:
                    raise AssertionError(f"{request[:80]}: {error!r} instead of {status} and EOF") from error
                check([one[0] for one in found] == [status], f"{request[:80]}: {[one[0] for one in found]}")
                check(b"Connection: close\r\n" in found[0][1], f"{request[:80]}: says close")
        wait_until(lambda: server.fds() <= before, 5, f"{server.fds() - before} descriptors leaked")


@test
def refusal_while_the_body_is_still_sent_arrives_whole():
    """Closing with unread input would be a reset that destroys the response."""
    with Server("--body-max", "1000") as server:
        for head in (post(b"Content-Length: 2000000\r\n"), post(CHUNKED, b"1E8480\r\n"),
                     b"GET / HTTP/1.1\r\nX: \x01\r\n\r\n"):
            with server.connect() as sock:
                sock.sendall(head)
                for _ in range(100):
                    sock.sendall(b"x" * 20_000)
                    time.sleep(0.0005)
                (status, headers, _), = split(read_to_end(sock))
                check(status in (400, 413) and b"Connection: close" in headers, status)


@test
def expect_100_continue():
    want = b"GET /plaintext HTTP/1.1\r\n" + HOST + b"Expect: 100-continue\r\nContent-Length: 5\r\n\r\n"
    with Server("--body-max", "1000") as server:
        with server.connect() as sock:
            for _ in range(2):
                sock.sendall(want)
                check(sock.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n", "100, and nothing else yet")
                sock.sendall(b"hello")
                check(read_response(sock)[2] == PLAIN, "the answer after the body")
            for request in (want + b"hello", want.replace(b" 5", b" 0")):
                sock.sendall(request)       # http.client would pass over a 100
                data = b""
                while not data.endswith(PLAIN):
                    data += sock.recv(1000)
                check([one[0] for one in split(data)] == [200], f"no 100 is owed: {data}")
        check([one[0] for one in split(server.ask(want.replace(b" 5", b" 1001")))] == [413], "413 and no 100")
        found = split(server.ask(want.replace(b"GET", b"POST")))
        check([one[0] for one in found] == [405] and b"Connection: close" in found[0][1], "405 and no 100")


@test
def body_is_not_taken_for_a_request():
    with Server() as server:
        inner = GET * 3
        data = server.ask(post(b"Content-Length: %d\r\n" % len(inner), inner)
                          + post(CHUNKED, b"%x\r\n%b\r\n0\r\nA: b\r\n\r\n" % (len(inner), inner))
                          + b"GET /json HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n")
        check([one[0] for one in split(data)] == [405, 405, 200], data)


# ---- time ----------------------------------------------------------------------------------------

@test
def date_is_right_and_moves():
    with Server() as server:
        dates = []
        for pause in (0, 2.1, 1.0):
            time.sleep(pause)
            data = server.ask(b"GET /plaintext HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n")
            text = DATE.search(data).group(1).decode()
            when = email.utils.parsedate_to_datetime(text)
            check(text == email.utils.format_datetime(when, usegmt=True), f"IMF-fixdate: {text}")
            check(abs(when.timestamp() - time.time()) < 1.1, f"{text} at {time.time()}")
            dates.append(text)
        check(len(set(dates)) == 3, f"it moves: {dates}")


def dribble(sock, data, pause):
    """Sends byte by byte until answered; (seconds until then, what came). None: was it a reset?"""
    start = time.monotonic()
    sock.settimeout(pause)
    for at in range(len(data)):
        try:
            sock.sendall(data[at:at + 1])
            got = sock.recv(65536)
            return time.monotonic() - start, got
        except socket.timeout:
            continue
    raise AssertionError("was never answered")


@test
def slow_heads_and_bodies_are_cut_by_a_total_deadline():
    with Server("--header-timeout", "0.6", "--body-timeout", "0.6") as server:
        def slow(data):
            with server.connect() as sock:
                took, got = dribble(sock, data, 0.05)
                sock.settimeout(5)
                return took, got + read_to_end(sock)
        head = GET[:-2] + b"X: " + b"y" * 200
        body = post(b"Content-Length: 1000\r\n") + b"x" * 100
        with concurrent.futures.ThreadPoolExecutor(20) as pool:
            running = [pool.submit(slow, head) for _ in range(10)]
            running += [pool.submit(slow_body, server, body) for _ in range(10)]
            with server.connect() as sock:      # others are unaffected
                worst = 0
                for _ in range(50):
                    start = time.monotonic()
                    sock.sendall(GET)
                    check(read_response(sock)[2] == PLAIN, "a quick client")
                    worst = max(worst, time.monotonic() - start)
                    time.sleep(0.01)
                check(worst < 0.5, f"a quick client waited {worst:.2f} s")
            for one in running:
                took, got = one.result()
                check([s for s, _, _ in split(got)] == [408] and b"Connection: close" in got, got)
                check(0.5 < took < 2.5, f"cut after {took:.2f} s")
    with Server("--body-timeout", "0.6") as server, server.connect() as sock:
        sock.sendall(post(b"Content-Length: 400000\r\n"))
        for _ in range(20):                     # slow, yet faster than the least: 2 s in all
            sock.sendall(b"x" * 20000)
            time.sleep(0.1)
        check(read_response(sock, "POST")[0] == 405, "a body that goes on is not cut")


def slow_body(server, data):
    with server.connect() as sock:
        head, _, body = data.partition(b"\r\n\r\n")
        sock.sendall(head + b"\r\n\r\n")
        took, got = dribble(sock, body, 0.05)
        sock.settimeout(5)
        return took, got + read_to_end(sock)


@test
def idle_connections_are_closed_and_busy_ones_are_not():
    with Server("--idle-timeout", "0.6") as server:
        with server.connect() as silent, server.connect() as once, server.connect() as busy:
            start = time.monotonic()
            once.sendall(GET)
            read_response(once)
            for _ in range(10):
                busy.sendall(GET)
                check(read_response(busy)[2] == PLAIN, "a busy connection stays")
                time.sleep(0.16)
            check(silent.recv(1) == b"" and once.recv(1) == b"", "an idle one ends without a word")
            check(busy.recv(1) == b"", "and so does the busy one when it falls idle")
            check(1.9 < time.monotonic() - start < 4, f"after {time.monotonic() - start:.2f} s")


# ---- the end -------------------------------------------------------------------------------------

def refused(server):
    try:
        server.connect(1).close()
    except OSError:
        return True
    return False


@test
def sigterm_finishes_what_is_begun_and_closes_what_is_idle():
    with Server("--drain", "10") as server:
        busy = [server.connect() for _ in range(50)]
        idle = [server.connect() for _ in range(50)]
        for sock in busy[::2]:
            sock.sendall(HALF)
        for sock in busy[1::2]:
            sock.sendall(post(b"Content-Length: 10\r\n") + b"12345")
        for sock in idle[::2]:
            sock.sendall(GET)
            read_response(sock)
        time.sleep(0.3)
        server.process.send_signal(signal.SIGTERM)
        start = time.monotonic()
        for sock in idle:
            check(sock.recv(1) == b"", "idle ones end at once")
        check(time.monotonic() - start < 2, f"idle ones took {time.monotonic() - start:.1f} s")
        # The listener is closed in a turn of its own, which may come behind those of the idle ones.
        wait_until(lambda: refused(server), 1, "new connections are still taken")
        time.sleep(0.3)
        check(server.process.poll() is None, "it waits for what is begun")
        for i, sock in enumerate(busy):
            sock.sendall(b"67890" if i % 2 else b"a\r\n\r\n")
        for i, sock in enumerate(busy):
            (status, head, _), = split(read_to_end(sock))
            check(status == (405 if i % 2 else 200) and b"Connection: close" in head, head)
        check(server.process.wait(5) == 0, f"exit code {server.process.returncode}")
        for sock in busy + idle:
            sock.close()


@test
def drain_has_a_deadline_and_tells_what_was_given_up():
    with Server("--drain", "0.7", code=1) as server, server.connect() as sock, server.connect() as other:
        sock.sendall(HALF)
        other.sendall(HALF)
        time.sleep(0.2)
        start = time.monotonic()
        check(server.end() == 1, "exit code 1")
        check(0.6 < time.monotonic() - start < 3, f"after {time.monotonic() - start:.1f} s")
        check("gave up 2 connections" in server.said(), server.said())


@test
def second_signal_means_now():
    with Server("--drain", "30", code=1) as server, server.connect() as sock:
        sock.sendall(HALF)
        time.sleep(0.2)
        server.process.send_signal(signal.SIGINT)
        time.sleep(0.3)
        check(server.process.poll() is None, "it waits for what is begun")
        start = time.monotonic()
        check(server.end() == 1 and time.monotonic() - start < 2, "and ends at the second")


@test
def port_that_is_taken_is_named():
    with Server() as server:
        for address, word in ((f"127.0.0.1:{server.port}", "Address already in use"),
                              ("192.0.2.1:80", "Cannot assign requested address"), ("nonsense", "Invalid argument")):
            out = subprocess.run([harness.SERVER, "--listen", "127.0.0.1:0", "--listen", address], capture_output=True,
                                 text=True, timeout=10)
            check(out.returncode == 1, f"{address}: exit code {out.returncode}")
            check(out.stderr.count("\n") == 1 and address in out.stderr and word in out.stderr, out.stderr)
    for arguments in (["--help"], ["--nonsense"], ["--drain"], ["--drain", "x"], ["--body-max", "-1"]):
        out = subprocess.run([harness.SERVER, *arguments], capture_output=True, text=True, timeout=10)
        check(out.returncode == (0 if arguments == ["--help"] else 2), f"{arguments}: {out}")
        check(("--listen" in out.stdout) if arguments == ["--help"] else arguments[0] in out.stderr, out)


if __name__ == "__main__":
    sys.exit(harness.run(__doc__))
