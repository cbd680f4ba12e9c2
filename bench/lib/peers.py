"""Other servers that answer /plaintext: how to get, build and start each.

Programs of ours are in bench/peers/ and are built by hand into BUILD/bench/peers: neither the library nor its
packages need any of this. What cannot be built, or answers wrongly, is left out with the reason.
"""
import getpass
import os
import shutil
import subprocess
from dataclasses import dataclass

from . import machine
from .server import Running, Server, ServerError

SOURCES = os.path.join(machine.ROOT, "bench", "peers")
BUILD_SECONDS = 600
C_FLAGS = ["-O2", "-g", "-D_GNU_SOURCE", "-Wall", "-Wextra"]
GOPATH = "/usr/share/gocode"
CRATES = "/usr/share/cargo/registry"

# `user` must not be set for a plain user and is not needed by root: the workers fall to nobody.
NGINX = """
daemon off;
worker_processes THREADS;
pid {dir}/pid;
error_log {dir}/error.log warn;
events { worker_connections 16384; }
http {
    access_log off;
    server_tokens off;
    default_type text/plain;
    tcp_nodelay on;
    keepalive_requests 1000000000;
    keepalive_timeout 600s;
    client_body_temp_path {dir}/body;
    proxy_temp_path {dir}/proxy;
    fastcgi_temp_path {dir}/fastcgi;
    uwsgi_temp_path {dir}/uwsgi;
    scgi_temp_path {dir}/scgi;
    server {
        listen 127.0.0.1:{port} reuseport backlog=4096;
        location = /plaintext { return 200 "Hello, World!"; }
    }
}
"""

# Root would become nobody, who may not read {dir}; hence the user is said.
H2O = """
user: USER
num-threads: THREADS
max-connections: 65536
listen: { host: 127.0.0.1, port: {port} }
hosts:
  default:
    paths:
      /:
        file.dir: {dir}
        file.mime.setdefaulttype: text/plain
        file.etag: OFF
"""

CARGO = """[package]
name = "http_hyper"
version = "0.0.0"
edition = "2021"

[dependencies]
hyper = { version = "0.14", features = ["http1", "server", "tcp", "runtime"] }
tokio = { version = "1", features = ["rt-multi-thread", "net"] }

[profile.release]
debug = 1
"""
CARGO_SOURCE = f"""[source.crates-io]
replace-with = "distribution"
[source.distribution]
directory = "{CRATES}"
"""


def nginx(threads):
    return Server("nginx", ["nginx", "-e", "{dir}/error.log", "-p", "{dir}", "-c", "{dir}/nginx.conf"],
                  files={"nginx.conf": NGINX.replace("THREADS", str(threads))})


def h2o(threads):
    text = H2O.replace("THREADS", str(threads)).replace("USER", getpass.getuser())
    return Server("h2o", ["h2o", "-c", "{dir}/h2o.conf"], files={"h2o.conf": text, "plaintext": "Hello, World!"})


class LeftOut(Exception):
    """Why a peer takes no part."""


@dataclass
class Peer:
    name: str
    packages: tuple
    does: str                   # what its threads are, and how much of HTTP it parses
    build: object = None        # function(source, program); None: installed as it is
    configured: object = None   # function(threads) -> Server, for what is installed
    source: str = ""

    def program(self, build):
        return os.path.join(build, "bench", "peers", f"http_{self.name}")

    def server(self, build, threads):
        if self.configured:
            return self.configured(threads)
        return Server(self.name, [self.program(build), "{port}", str(threads)])


def _run(argv, cwd=None, **env):
    try:
        done = subprocess.run(argv, cwd=cwd, capture_output=True, text=True, stdin=subprocess.DEVNULL,
                              timeout=BUILD_SECONDS, env={**os.environ, **env})
    except FileNotFoundError:
        raise LeftOut(f"{argv[0]} is missing") from None
    except subprocess.TimeoutExpired:
        raise LeftOut(f"{argv[0]} took more than {BUILD_SECONDS} s") from None
    if done.returncode != 0:
        lines = [line for line in (done.stderr + done.stdout).splitlines() if line.strip()]
        errors = [line for line in lines if "error" in line.lower()] or lines or [f"status {done.returncode}"]
        raise LeftOut(f"does not build: {errors[0].strip()}")
    return done.stdout


def _c(*libraries, packages=()):
    def build(source, program):
        found = _run(["pkg-config", "--cflags", "--libs", *packages]).split() if packages else []
        _run(["cc", "-std=c11", *C_FLAGS, source, "-o", program, *found, *libraries, "-pthread"])
    return build


def _cpp(source, program):
    _run(["c++", "-std=c++17", *C_FLAGS, source, "-o", program, "-pthread"])


def _go(source, program):
    cache = os.path.join(os.path.dirname(program), "go-cache")
    _run(["go", "build", "-o", program, source], GO111MODULE="off", GOPATH=GOPATH, GOFLAGS="", GOCACHE=cache,
         GOTOOLCHAIN="local")


def _cargo(source, program):
    """cargo wants a folder of its own; what it fetches it may fetch from the distribution's packages only."""
    folder = program + ".cargo"
    for name, text in (("Cargo.toml", CARGO), (os.path.join(".cargo", "config.toml"), CARGO_SOURCE)):
        path = os.path.join(folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as file:
            file.write(text)
    os.makedirs(os.path.join(folder, "src"), exist_ok=True)
    shutil.copyfile(source, os.path.join(folder, "src", "main.rs"))
    _run(["cargo", "build", "--release", "--offline"], cwd=folder, CARGO_HOME=os.path.join(folder, "home"),
         CARGO_TARGET_DIR=os.path.join(folder, "target"))
    shutil.copy2(os.path.join(folder, "target", "release", "http_hyper"), program)


PEERS = [
    Peer("nginx", ("nginx",), "full parser; processes, SO_REUSEPORT; a write for each answer", configured=nginx),
    Peer("h2o", ("h2o",), "full parser; threads; a 13-byte file; a write for each answer", configured=h2o),
    Peer("evhttp", ("libevent-dev", "pkg-config"),
         "libevent's evhttp, full parser; a base a thread, SO_REUSEPORT; a write for each answer",
         _c(packages=("libevent",)), source="http_evhttp.c"),
    Peer("libuv", ("libuv1-dev", "libhttp-parser-dev", "pkg-config"),
         "libuv with http_parser, which sees every byte, canned answer; a loop a thread, SO_REUSEPORT",
         _c("-lhttp_parser", packages=("libuv",)), source="http_libuv.c"),
    Peer("asio", ("libasio-dev", "g++"),
         "Asio, **raw** (counts heads, canned answer); one io_context run by all threads", _cpp, source="http_asio.cc"),
    Peer("gonet", ("golang-go",), "Go's net/http, full parser; GOMAXPROCS; a write for each answer", _go,
         source="http_gonet.go"),
    Peer("fasthttp", ("golang-go", "golang-github-valyala-fasthttp-dev"),
         "Go with fasthttp, full parser; GOMAXPROCS", _go, source="http_fasthttp.go"),
    Peer("hyper", ("cargo", "librust-hyper-dev", "librust-tokio-dev"),
         "hyper, full parser, on tokio's work-stealing pool", _cargo, source="http_hyper.rs"),
]


def missing_packages(peer):
    """Debian's word for it; nothing is said to be missing where there is no dpkg, or the tool came another way."""
    if not shutil.which("dpkg-query"):
        return []
    missing = []
    for package in peer.packages:
        done = subprocess.run(["dpkg-query", "-W", "-f", "${db:Status-Status}", package], capture_output=True,
                              text=True)
        if done.stdout != "installed" and not shutil.which(package):
            missing.append(package)
    return missing


def version(peer):
    """Of the package that makes the difference: the last one that is not a tool for building."""
    package = [name for name in peer.packages
               if name not in ("pkg-config", "g++", "librust-tokio-dev", "libhttp-parser-dev")][-1]
    try:
        done = subprocess.run(["dpkg-query", "-W", "-f", "${Package} ${Version}", package], capture_output=True,
                              text=True)
    except OSError:
        return package
    return done.stdout or package


def prepare(peer, build, make=True):
    """Build it unless it is up to date. Raises LeftOut."""
    missing = missing_packages(peer)
    if missing:
        raise LeftOut(f"not installed: {', '.join(missing)} (--install does it)")
    if not peer.build:
        return
    program, source = peer.program(build), os.path.join(SOURCES, peer.source)
    inputs = [source, os.path.join(SOURCES, "http_peer.h"), os.path.abspath(__file__)]
    if os.path.exists(program) and os.path.getmtime(program) >= max(os.path.getmtime(each) for each in inputs):
        return
    if not make:
        raise LeftOut("not built (bench/compare --build-peers does it)")
    os.makedirs(os.path.dirname(program), exist_ok=True)
    peer.build(source, program)
    os.utime(program)


def probe(server):
    """Start it once and see that it answers right. Raises LeftOut."""
    try:
        with Running(server) as running:
            pass
    except (ServerError, OSError) as error:
        raise LeftOut(f"does not serve: {' '.join(str(error).split())[-300:]}") from None
    if running.ending():
        raise LeftOut(f"does not end well: {running.ending()}")
