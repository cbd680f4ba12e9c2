"""What others notice while callbacks hang: load at a fixed rate on a server some of whose workers are put to sleep.

Two generators begin together: one on connections that callbacks serve, one on connections each of which has a thread in
a waiting call. Then as many requests as workers are to hang are sent at once. What counts is the window from that
moment to the time at which the hanging callbacks return.
"""
import json
import socket
import subprocess
import time
from dataclasses import dataclass

from .load import PATIENCE
from .server import HOST, REQUEST, Running, Server, ServerError, free_port

BEFORE, AFTER = 1.0, 1.0            # seconds of load before the stall and after it
HEAD_START = 1.0                    # for the generators to open their connections


@dataclass
class Case:
    name: str
    stuck: int                      # workers that hang
    workers: int
    served: bool = True             # whether callbacks of others can be served at all
    env: tuple = ()


def cases(workers):
    alone = (("WEIR_WORKERS_MAX", str(workers)),)
    return [Case("none", 0, workers), Case("one worker", 1, workers), Case("all workers", workers, workers),
            Case("all workers, and none may be added", workers, workers, False, alone)]


def _load(generator, port, case_rate, connections, start_ns, stall_s, errors):
    window = [int(BEFORE * 1000), int((BEFORE + stall_s) * 1000)]
    argv = [*generator.prefix, generator.rate_load, "--port", port, "--rate", case_rate, "--connections", connections,
            "--threads", 1, "--seconds", -int(-(BEFORE + stall_s + AFTER) // 1), "--warm-ms", 200,
            "--start-ns", start_ns, "--from-ms", window[0], "--to-ms", window[1]]
    return subprocess.Popen([str(each) for each in argv], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                            stderr=errors, text=True)


def _said(client, seconds):
    try:
        text, _ = client.communicate(timeout=seconds + PATIENCE)
        return json.loads(text)
    except (subprocess.TimeoutExpired, ValueError):
        return {"error": "the load generator said nothing"}
    finally:
        client.kill()
        client.wait()


def _hang(connections, at_ns, stall_s):
    """Send the requests that hang; wait for their answers. The seconds each took."""
    request = REQUEST.replace(b"/plaintext", b"/stall?ms=%d" % (stall_s * 1000))
    time.sleep(max(0, at_ns - time.monotonic_ns()) / 1e9)
    begin = time.monotonic()
    for connection in connections:
        connection.sendall(request)
    took = []
    for connection in connections:
        connection.settimeout(stall_s + 5)
        if not connection.recv(4096).startswith(b"HTTP/1.1 200"):
            raise ServerError("a request that was to hang was not answered")
        took.append(time.monotonic() - begin)
    return took


def _stuck(port, count):
    """Connections that the server has accepted and answered on."""
    connections = [socket.create_connection((HOST, port), timeout=5) for _ in range(count)]
    for connection in connections:
        connection.sendall(REQUEST)
        if not connection.recv(4096).startswith(b"HTTP/1.1 200"):
            raise ServerError("no answer before the stall")
    return connections


def turn(program, case, generator, rate, waiting_rate, stall_s, prefix=()):
    """One stall; a row with the figures of the window, callbacks' and waiting threads'."""
    waiting_port = free_port()
    env = {"WEIR_LOG": "info", "WEIR_WORKERS": str(case.workers), **dict(case.env)}
    server = Server("stall", [program, "{port}", str(waiting_port)], env=env, says=(f"workers={case.workers}",))
    row = {"case": case.name, "stuck": case.stuck, "rate": rate, "waiting_rate": waiting_rate, "stall_s": stall_s,
           "error": ""}
    with Running(server, prefix) as running:
        stuck = _stuck(running.port, case.stuck)
        start_ns = time.monotonic_ns() + int(HEAD_START * 1e9)
        clients = {"waiting": _load(generator, waiting_port, waiting_rate, 4, start_ns, stall_s, None)}
        if case.served:
            clients["callbacks"] = _load(generator, running.port, rate, 32, start_ns, stall_s, None)
        took = []
        try:
            took = _hang(stuck, start_ns + int(BEFORE * 1e9), stall_s)
        except OSError as error:
            row["error"] = f"the stall went wrong: {error}"
        finally:
            said = {name: _said(client, BEFORE + stall_s + AFTER) for name, client in clients.items()}
            for connection in stuck:
                connection.close()
        said_by_server = running.output(4000)
    if any(not stall_s <= each < 1.8 * stall_s for each in took):
        row["error"] = "the callbacks did not hang side by side: " + ", ".join(f"{each:.2f} s" for each in took)
    for name, answer in said.items():
        if answer["error"]:
            row["error"] = f"{name}: {answer['error']}"
        row[name] = {key: value for key, value in answer.items() if key.startswith("window_")}
    row["server_said"] = said_by_server
    return row
