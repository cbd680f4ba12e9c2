"""Load generators: what one cell of a table runs, and what it says afterwards."""
import json
import os
import re
import socket
import subprocess
import tempfile
import threading
from dataclasses import dataclass

from .server import HOST

PIPELINE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "pipeline.lua")
HELD = ("rate", "closed")       # tools that tell opening and closing from serving
PATIENCE = 20       # seconds a generator may take beyond what it was asked for


@dataclass(frozen=True)
class Cell:
    """One workload: a column of a table."""
    connections: int
    depth: int = 1              # requests in one write, before the answers are waited for
    tool: str = "wrk"           # wrk, h2load, rate, closed, echo
    size: int = 0               # bytes of a packet (echo)
    rate: int = 0               # requests a second (rate)

    @property
    def kind(self):
        return "echo" if self.tool == "echo" else "http"

    @property
    def name(self):
        if self.tool == "echo":
            return f"{self.size} B, {self.connections} clients"
        tool = {"wrk": "", "closed": "", "rate": f", {self.rate:,}/s"}.get(self.tool, f", {self.tool}")
        return f"{self.connections} connections" + (f", {self.depth} deep" if self.depth > 1 else "") + tool


@dataclass
class Load:
    requests: int = 0
    rate: float = 0.0
    p50_us: float = None
    p90_us: float = None
    p99_us: float = None
    error: str = ""
    p999_us: float = None
    max_us: float = None
    late_p99_us: float = None   # by how much the generator itself was late (rate)


@dataclass
class Generator:
    """How load is made in this run."""
    threads: int = 2
    prefix: tuple = ()          # e.g. taskset, to keep client and server apart
    echo_load: str = "echo_load"
    rate_load: str = "rate_load"

    def tools(self, cells):
        """The programs that these cells need."""
        ours = {"echo": self.echo_load, "rate": self.rate_load, "closed": self.rate_load}
        return {ours.get(cell.tool, cell.tool) for cell in cells}

    def argv(self, cell, port, seconds, log=None):
        url = f"http://{HOST}:{port}/plaintext"
        threads = str(min(self.threads, cell.connections))
        if cell.tool == "echo":
            argv = [self.echo_load, "--clients", str(cell.connections), "--bytes", str(cell.size),
                    "--seconds", str(seconds), "--port", str(port)]
        elif cell.tool in HELD:
            how = ["--closed"] if cell.tool == "closed" else ["--rate", str(cell.rate), "--warm-ms", "200"]
            argv = [self.rate_load, "--hold", "--connections", str(cell.connections), "--threads", threads, *how,
                    "--seconds", str(seconds), "--port", str(port)]
        elif cell.tool == "h2load":
            argv = ["h2load", "--h1", "-c", str(cell.connections), "-t", threads, "-m", str(cell.depth),
                    "-D", str(seconds)] + (["--log-file", log] if log else []) + [url]
        else:
            script = ["-s", PIPELINE] if cell.depth > 1 else []
            depth = ["--", str(cell.depth)] if cell.depth > 1 else []
            argv = ["wrk", "--latency", "-t", threads, "-c", str(cell.connections), "-d", str(seconds),
                    *script, url, *depth]
        return [*self.prefix, *argv]

    def run(self, cell, port, seconds, mark=None):
        """One load. `mark(name, pid)` is called at the "begin" and the "end" of what is to be accounted, where that
        is not all of it: rate_load opens its connections before, and closes them after."""
        if cell.tool in HELD:
            return self._run_held(cell, port, seconds, mark or (lambda _name, _pid: None))
        with tempfile.TemporaryDirectory(prefix="weir-bench-") as folder:
            log = os.path.join(folder, "log")
            try:
                done = subprocess.run(self.argv(cell, port, seconds, log), capture_output=True, text=True,
                                      stdin=subprocess.DEVNULL, timeout=seconds + PATIENCE)
            except subprocess.TimeoutExpired:
                return Load(error="the load generator did not end in time")
            read = {"wrk": _read_wrk, "h2load": _read_h2load, "echo": _read_echo}[cell.tool]
            load = read(done.stdout, log)
        if cell.tool == "wrk" and cell.depth > 1:
            # wrk "corrects" its times by the mean interval between answers, which inside a batch is far
            # shorter than the time of the batch: what it prints then is no time of anything.
            load.p50_us = load.p90_us = load.p99_us = None
        if done.returncode != 0 and not load.error:
            load.error = f"{cell.tool} ended with {done.returncode}: {done.stderr.strip()[-200:]}"
        if load.requests == 0 and not load.error:
            load.error = "no request was answered"
        return load

    def _run_held(self, cell, port, seconds, mark):
        client = subprocess.Popen(self.argv(cell, port, seconds), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                  text=True, preexec_fn=lambda: os.setpgid(0, 0))
        # A pipe cannot be read with a timeout; the end of the client ends the reading.
        guard = threading.Timer(seconds + 2 * PATIENCE, client.kill)
        guard.start()
        try:
            text = client.stdout.readline()
            if text == "ready\n":
                mark("begin", client.pid)
                client.stdin.write("\n")
                client.stdin.flush()
                text = client.stdout.readline()
                mark("end", client.pid)
        except OSError:
            text = ""
        finally:
            client.kill()
            client.wait()
            guard.cancel()
            client.stdout.close()
            client.stdin.close()
        load = read_rate(text)
        if load.requests == 0 and not load.error:
            load.error = "rate_load said nothing"
        return load

    def seen_depth(self, cell):
        """How many requests a client really has in its first write: asked of a socket of our own."""
        seen = []
        with socket.create_server((HOST, 0)) as listener:
            listener.settimeout(5)

            def look():
                try:
                    while not seen:     # wrk begins with a connection on which it says nothing
                        connection, _ = listener.accept()
                        with connection:
                            connection.settimeout(5)
                            if data := connection.recv(1 << 20):
                                seen.append(data.count(b"\r\n\r\n"))
                except OSError:
                    pass

            thread = threading.Thread(target=look)
            thread.start()
            client = subprocess.Popen(self.argv(cell, listener.getsockname()[1], 2),
                                      stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                      stderr=subprocess.DEVNULL)
            thread.join()
            client.kill()
            client.wait()
        return seen[0] if seen else 0


def _number(pattern, text):
    found = re.search(pattern, text)
    return float(found[1]) if found else None


def _wrk_time(percent, text):
    found = re.search(rf"^\s+{percent}%\s+([\d.]+)(us|ms|s|m)$", text, re.MULTILINE)
    return float(found[1]) * {"us": 1, "ms": 1e3, "s": 1e6, "m": 6e7}[found[2]] if found else None


def _read_wrk(text, _log):
    wrong = re.findall(r"^\s*(Socket errors:.*|Non-2xx.*)$", text, re.MULTILINE)
    return Load(int(_number(r"(\d+) requests in", text) or 0), _number(r"Requests/sec:\s+([\d.]+)", text) or 0,
                _wrk_time(50, text), _wrk_time(90, text), _wrk_time(99, text), "; ".join(wrong))


def _read_h2load(text, log):
    done = re.search(r"requests: .* (\d+) succeeded, (\d+) failed, (\d+) errored, (\d+) timeout", text)
    codes = re.search(r"status codes: (\d+) 2xx, (\d+) 3xx, (\d+) 4xx, (\d+) 5xx", text)
    load = Load(int(done[1]) if done else 0, _number(r"finished in [\d.]+m?s, ([\d.]+) req/s", text) or 0)
    if done and any(int(x) for x in done.groups()[1:]):
        load.error = done[0]
    elif codes and any(int(x) for x in codes.groups()[1:]):
        load.error = codes[0]
    if os.path.exists(log):
        with open(log) as file:
            times = sorted(int(line.split()[2]) for line in file)
        if times:
            load.p50_us, load.p90_us, load.p99_us = (
                float(times[min(len(times) - 1, int(len(times) * share))]) for share in (0.5, 0.9, 0.99))
    return load


def _read_echo(text, _log):
    try:
        said = json.loads(text)
    except ValueError:
        return Load()
    error = f"{said['failed']} clients failed: {said['error']}" if said["failed"] else ""
    return Load(said["requests"], said["rate"], said["p50_us"], said["p90_us"], said["p99_us"], error)


def read_rate(text, _log=None):
    try:
        said = json.loads(text)
    except ValueError:
        return Load()
    if said["error"]:
        return Load(error=f"{said['error']} ({said['missing']} requests without an answer)")
    return Load(said["all_requests"], said["rate"], said["p50_us"], said["p90_us"], said["p99_us"], "",
                said["p999_us"], said["max_us"], said.get("late_p99_us"))
