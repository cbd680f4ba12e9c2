"""Other pools for bench/pool: short programs in bench/peers/ that measure what micro/pool.c does and print the same
lines. They are built by hand into BUILD/bench/peers; what cannot be built is left out with the reason."""
import os

from . import peers
from .peers import LeftOut

# name: (packages, build, what an item costs there)
PEERS = {
    "libuv": (("libuv1-dev",), peers._c(packages=("libuv",)),
              "uv_queue_work() on the loop's thread, and its callback there; nothing can be posted from inside"),
    "asio": (("g++", "libasio-dev"), peers._cpp, "asio::post() to an asio::thread_pool"),
    "go": (("golang-go",), peers._go, "a goroutine; its round trip may stay on one thread"),
}
ENDINGS = (".c", ".cc", ".go")


def program(build, name):
    """Builds what is older than its source."""
    base = os.path.join(peers.SOURCES, f"pool_{name}")
    source = next(base + ending for ending in ENDINGS if os.path.exists(base + ending))
    made = os.path.join(os.path.abspath(build), "bench", "peers", f"pool_{name}")
    newest = max(os.path.getmtime(source), os.path.getmtime(os.path.join(peers.SOURCES, "pool_peer.h")))
    if not os.path.exists(made) or os.path.getmtime(made) < newest:
        os.makedirs(os.path.dirname(made), exist_ok=True)
        PEERS[name][1](source, made)
    return made


def find(build, names):
    """({name: program}, {name: why it takes no part})"""
    found, left_out = {}, {}
    for name in names:
        try:
            found[name] = program(build, name)
        except LeftOut as why:
            left_out[name] = f"{why}; packages {' '.join(PEERS[name][0])}"
    return found, left_out
