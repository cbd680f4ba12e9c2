"""Servers under test: started once a run on a free port of 127.0.0.1, checked, and ended by us alone."""
import ctypes
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from dataclasses import dataclass, field

PR_SET_PDEATHSIG = 1
HOST = "127.0.0.1"
BODY = b"Hello, World!"
PATIENCE = 5        # seconds for one answer
REQUEST = b"GET /plaintext HTTP/1.1\r\nHost: localhost\r\n\r\n"


class ServerError(Exception):
    pass


@dataclass
class Server:
    """How to start one. `argv` and the texts of `files` may hold {port} and {dir}, a folder of its own."""
    name: str
    argv: list
    kind: str = "http"                              # or "echo"
    env: dict = field(default_factory=dict)
    files: dict = field(default_factory=dict)       # name in {dir} -> text
    says: tuple = ()                                # what it must have printed when it listens
    counts: bool = False                            # it writes its counters when it gets SIGUSR1

    def available(self):
        return shutil.which(self.argv[0]) is not None


def free_port():
    """A port below the range from which the kernel takes ports of outgoing connections."""
    for _ in range(200):
        port = random.randrange(20000, 32000)
        with socket.socket() as probe:
            try:
                probe.bind((HOST, port))
                return port
            except OSError:
                continue
    raise ServerError("no free port")


def _in_child():
    """A process group of its own, by which it is accounted and ended; and it must not outlive us.

    It stays in our session: with autogroup scheduling a session of its own would have half the
    machine for itself, whatever the client does.
    """
    os.setpgid(0, 0)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


class Running:
    """A started server; a context manager that ends it."""

    def __init__(self, server, prefix=()):
        self.server = server
        self.dir = tempfile.mkdtemp(prefix="weir-bench-")
        self.process = None
        self.answer_bytes = None
        self.last_output = ""
        try:
            self._start(list(prefix))
            self._check_output()
            check = check_http if server.kind == "http" else check_echo
            self.answer_bytes = check(self.port)
        except BaseException:
            self.stop()
            raise

    def _start(self, prefix):
        for attempt in range(3):
            self.port = free_port()
            words = {"port": self.port, "dir": self.dir}
            for name, text in self.server.files.items():
                with open(os.path.join(self.dir, name), "w") as file:
                    file.write(text.replace("{port}", str(self.port)).replace("{dir}", self.dir))
            argv = prefix + [word.format(**words) for word in self.server.argv]
            self.log = os.path.join(self.dir, "output")
            with open(self.log, "wb") as output:
                self.process = subprocess.Popen(
                    argv, env={**os.environ, **self.server.env}, stdin=subprocess.DEVNULL, stdout=output,
                    stderr=output, preexec_fn=_in_child)
            if self._wait_until_up():
                return
            self._end_processes()
        raise ServerError(f"{self.server.name} does not listen: {' '.join(argv)}\n{self.output()}")

    def _wait_until_up(self, patience=10.0):
        end = time.monotonic() + patience
        while time.monotonic() < end and self.process.poll() is None:
            with socket.socket() as probe:
                if probe.connect_ex((HOST, self.port)) == 0:
                    return True
            time.sleep(0.02)
        return False

    def _check_output(self):
        for words in self.server.says:
            if not re.search(rf"(?<!\S){re.escape(words)}(?!\S)", self.output(100000)):
                raise ServerError(f"{self.server.name} was to run with {words} and does not say so:\n{self.output()}")

    @property
    def group(self):
        return self.process.pid

    def alive(self):
        return self.process.poll() is None

    def statistics(self, patience=1.0):
        """The counters of this moment by name; none of a server that has none to tell."""
        if not self.server.counts or not self.alive():
            return {}
        place, end = os.path.getsize(self.log), time.monotonic() + patience
        os.kill(self.process.pid, signal.SIGUSR1)
        while time.monotonic() < end:
            with open(self.log, "rb") as file:
                file.seek(place)
                found = re.search(r"statistics:\n(.*?)\n\n", file.read().decode(errors="replace"), re.DOTALL)
            if found:
                return {name: int(value) for name, value in re.findall(r"^(\w+) (\d+)$", found[1], re.MULTILINE)}
            time.sleep(0.005)
        return {}

    def output(self, length=2000):
        try:
            with open(self.log, "rb") as file:
                return file.read()[-length:].decode(errors="replace")
        except OSError:
            return ""

    def _end_processes(self):
        if not self.process or self.process.returncode is not None:
            return      # it has been reaped: its number may belong to somebody else by now
        for number, patience in ((signal.SIGTERM, 3.0), (signal.SIGKILL, 3.0)):
            try:
                os.killpg(self.process.pid, number)
            except ProcessLookupError:
                pass
            try:
                self.process.wait(patience)
                return
            except subprocess.TimeoutExpired:
                continue

    def stop(self):
        if self.process:
            self._end_processes()
            self.last_output = self.output()
        shutil.rmtree(self.dir, ignore_errors=True)

    def ending(self):
        """What was wrong with the way it ended after SIGTERM; "" when nothing was."""
        if self.process.returncode in (0, -signal.SIGTERM, 128 + signal.SIGTERM):
            return ""
        return f"ended with {self.process.returncode}: {self.last_output[-500:]}"

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.stop()


def _connect(port):
    return socket.create_connection((HOST, port), timeout=PATIENCE)


def _receive_until(connection, done):
    data = b""
    while not done(data):
        more = connection.recv(65536)
        if not more:
            break
        data += more
    return data


def check_http(port, depth=16):
    """One request and `depth` in one write are answered in full, or it is not worth measuring.

    Returns the length of one answer: servers that send more have more to do.
    """
    with _connect(port) as connection:
        connection.sendall(REQUEST)
        one = _receive_until(connection, lambda data: data.endswith(BODY))
        if not one.startswith(b"HTTP/1.1 200") or not one.endswith(BODY):
            raise ServerError(f"wrong answer to GET /plaintext: {one[:200]!r}")
        connection.sendall(REQUEST * depth)
        many = _receive_until(connection, lambda data: data.count(BODY) >= depth)
        if many.count(b"HTTP/1.1 200") != depth or many.count(BODY) != depth:
            raise ServerError(f"{depth} requests in one write were answered wrongly")
    return len(one)


def check_echo(port):
    packet = bytes(range(256)) * 8
    with _connect(port) as connection:
        connection.sendall(packet)
        back = _receive_until(connection, lambda data: len(data) >= len(packet))
    if back != packet:
        raise ServerError("the echo differs from what was sent")
    return len(packet)
