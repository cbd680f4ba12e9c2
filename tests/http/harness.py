"""What the end-to-end scripts share: a running server, reading responses, running tests one by one.

Nothing but the Python standard library."""
import argparse
import contextlib
import http.client
import os
import pathlib
import re
import resource
import signal
import socket
import subprocess
import tempfile
import time

PLAIN = b"Hello, World!"
JSON = b'{"message":"Hello, World!"}'
HOST = b"Host: a\r\n"
GET = b"GET /plaintext HTTP/1.1\r\n" + HOST + b"\r\n"
HALF = b"GET /plaintext HTTP/1.1\r\nHost: "
DATE = re.compile(rb"Date: (\w{3}, \d\d \w{3} \d{4} \d\d:\d\d:\d\d GMT)\r\n")
TESTS = []
SERVER = None
FULL = False


def test(function):
    TESTS.append(function)
    return function


def check(good, what):
    if not good:
        raise AssertionError(what)


# ---- the server ----------------------------------------------------------------------------------

class Server(contextlib.AbstractContextManager):
    """A running server. Leaving the block ends it with SIGTERM and checks that it ended clean."""

    def __init__(self, *arguments, listen=("127.0.0.1:0",), code=0, prefix=()):
        self.code, self.ports, self.errors = code, [], tempfile.TemporaryFile()
        command = [*prefix, SERVER, *arguments]
        for address in listen:
            command += ["--listen", address]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self.errors)
        for line in self.process.stdout:
            if match := re.search(rb"listening on (\S+)", line):
                port = match.group(1).rsplit(b":", 1)[1]
                self.ports.append(int(port) if port.isdigit() else port.decode())
            if b": try " in line:
                break
        else:
            self.process.wait()
            raise AssertionError(f"{command} did not start: {self.said()}")
        self.port = self.ports[0]
        self.pid = self.process.pid

    def said(self):
        self.errors.seek(0)
        return self.errors.read().decode(errors="replace")

    def end(self, *signals, within=15):
        for number in signals or (signal.SIGTERM,):
            self.process.send_signal(number)
        try:
            code = self.process.wait(within)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"still running {within} s after the signal; said: {self.said()}") from None
        return code

    def __exit__(self, kind, *_):
        if self.process.poll() is None:
            code = self.end()
            if kind is None:
                check(code == self.code, f"exit code {code}, expected {self.code}; said: {self.said()}")
        elif kind is None and self.process.returncode != self.code:
            raise AssertionError(f"died with {self.process.returncode}; said: {self.said()}")
        self.process.stdout.close()
        self.errors.close()

    def connect(self, timeout=10):
        return socket.create_connection(("127.0.0.1", self.port), timeout=timeout)

    def ask(self, data):
        """All that comes until the end, which must be an EOF and not a reset."""
        with self.connect() as sock:
            sock.sendall(data)
            return read_to_end(sock)

    def fds(self):
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def rss(self):
        return int(re.search(r"VmRSS:\s+(\d+)", pathlib.Path(f"/proc/{self.pid}/status").read_text()).group(1)) * 1024

    def bytes_for_one(self):
        """ThreadSanitizer keeps many bytes of its own for each of the server's, AddressSanitizer what was freed."""
        program = pathlib.Path(f"/proc/{self.pid}/exe").read_bytes()
        return 20 if b"__tsan_init" in program else 2 if b"__asan_init" in program else 1

    def cpu(self):
        fields = pathlib.Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def read_to_end(sock):
    data = b""
    while part := sock.recv(65536):
        data += part
    return data


def read_response(sock, method="GET"):
    """One response by a parser that is not ours: (status, headers, body)."""
    response = http.client.HTTPResponse(sock, method=method)
    response.begin()
    body = response.read()
    return response.status, response.headers, body


def split(data, heads=()):
    """The responses in `data`: [(status, head, body)]. Indices in `heads` answer HEAD and have no body."""
    found = []
    while data:
        head, sep, data = data.partition(b"\r\n\r\n")
        check(sep, f"a head without an end: {head[:80]}")
        check(re.match(rb"HTTP/1\.1 \d{3} [^\r\n]+\r\n", head + b"\r\n"), f"status line: {head[:80]}")
        status, body = int(head[9:12]), b""
        if status != 100:
            length = int(re.search(rb"Content-Length: (\d+)", head).group(1))
            if len(found) not in heads:
                body, data = data[:length], data[length:]
                check(len(body) == length, f"body of {len(body)} bytes, said {length}")
        found.append((status, head + b"\r\n", body))
    return found


def wait_until(condition, within, what):
    end = time.monotonic() + within
    while not condition():
        check(time.monotonic() < end, what)
        time.sleep(0.02)


def context_switches(pid):
    """Of the main thread and the library's: a sanitizer has one that does not sleep."""
    total = 0
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        if task.name == str(pid) or (task / "comm").read_text().startswith("weir"):
            total += sum(map(int, re.findall(r"ctxt_switches:\s+(\d+)", (task / "status").read_text())))
    return total


# ---- running tests -------------------------------------------------------------------------------

def run(description):
    """Runs what is registered with @test; the exit code. The first argument is the server."""
    global SERVER, FULL
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("server")
    parser.add_argument("--only", default="", help="those whose name contains this")
    parser.add_argument("--full", action="store_true", help="more rounds")
    options = parser.parse_args()
    SERVER, FULL = os.path.abspath(options.server), options.full
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 20000), hard))
    failed = 0
    for function in TESTS:
        if options.only not in function.__name__:
            continue
        start = time.monotonic()
        try:
            skipped = function()
            verdict = f"skipped: {skipped}" if skipped else "ok"
        except (AssertionError, OSError, http.client.HTTPException, ValueError) as error:
            failed += 1
            verdict = f"FAILED: {type(error).__name__}: {str(error)[:2000]}"
        print(f"{function.__name__} ({time.monotonic() - start:.1f} s) {verdict}", flush=True)
    print(f"{failed} failed")
    return failed > 0
