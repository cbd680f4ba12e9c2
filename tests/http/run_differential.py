#!/usr/bin/env python3
"""The sample server and Node's, asked the same: where they differ, the difference is known and stands here.

run_differential.py SERVER      ends with 77 when there is no node"""
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import tempfile

import harness
from harness import GET, HOST, Server, split
from run_http import CHUNKED, REFUSED, SHAPES, line, post

NODE = """
const http = require('http');
const routes = { '/plaintext': ['text/plain', 'Hello, World!'],
                 '/json': ['application/json', '{"message":"Hello, World!"}'] };
const server = http.createServer({ requireHostHeader: true }, (request, response) => {
    request.resume();
    request.on('end', () => {
        const path = request.url.replace(/^http:\\/\\/[^/]*/, '').replace(/\\?.*/, '');
        const route = routes[path];
        let status = 200, body = route ? route[1] : '';
        if (request.method === 'OPTIONS' && (route || path === '*')) body = '';
        else if (!route) { status = 404; body = 'Not Found'; }
        else if (request.method !== 'GET' && request.method !== 'HEAD') {
            status = 405; body = 'Method Not Allowed';
        }
        response.writeHead(status, { 'Content-Length': Buffer.byteLength(body) });
        response.end(request.method === 'HEAD' ? undefined : body);
    });
});
server.listen(0, '127.0.0.1', () => console.log('port ' + server.address().port));
"""

ACCEPTED = SHAPES + [
    b"OPTIONS * HTTP/1.1\r\n" + HOST + b"\r\n", b"GET http://h/json HTTP/1.1\r\n" + HOST + b"\r\n",
    b"GET /plaintext HTTP/1.0\r\n\r\n", line(b"GET /json HTTP/1.1\r\nConnection: x, close"),
    line(b"GET /json HTTP/1.1\r\nX-Empty:\r\nX-Tab: a\tb\r\nX-High: \xc3\xa4"),
    post(b"Content-Length: 0\r\n"), post(b"Content-Length: 003\r\n", b"abc"),
    post(CHUNKED, b"A\r\n0123456789\r\n0\r\n\r\n") + GET, post(CHUNKED, b"1;x=\"y z\"\r\na\r\n0\r\nT: u\r\n\r\n") + GET,
    line(b"HEAD /none HTTP/1.1") + GET, line(b"GET /json?x=y HTTP/1.1"),
]

# What Node lets through to its handler and we refuse, by the begin of the request, and why we do.
LENIENT = [
    (b"GET /\r\n", "no version: HTTP/0.9 has no headers"),
    (b"GET * ", "`*` is for OPTIONS alone"),
    (b"GET ftp://", "we are no proxy"),
    (b"\r\n\r\nGET", "one blank line is tolerated, not any number"),
    (b"GET / HTTP/1.1\r\nHost: b\r\nHost: a", "a second Host must be refused (RFC 9112, 3.2)"),
    (b"GET / HTTP/1.1\r\nHost: a b", "an invalid Host must be refused (RFC 9112, 3.2)"),
    (b"POST / HTTP/1.0\r\nTransfer-Encoding", "1.0 knows no chunks: its framing is faulty (RFC 9112, 6.1)"),
]


def statuses(port, request):
    """The statuses and bodies of all that comes until the end; a reset ends it too."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as sock:
        data = b""
        try:
            sock.sendall(request)
            sock.shutdown(socket.SHUT_WR)
            while part := sock.recv(65536):
                data += part
        except OSError:
            pass
    methods = re.findall(rb"(?:^|\r\n)(GET|HEAD|POST|OPTIONS) ", request)
    heads = [i for i, method in enumerate(methods) if method == b"HEAD"]
    if b"Content-Length" not in data:
        return [(int(status), None) for status in re.findall(rb"HTTP/1\.1 (\d+)", data)]
    return [(status, body) for status, _, body in split(data, heads)]


def main():
    if not shutil.which("node"):
        print("there is no node")
        return 77
    harness.SERVER = str(pathlib.Path(sys.argv[1]).resolve())
    failed = 0
    with tempfile.TemporaryDirectory() as folder, Server() as ours:
        script = pathlib.Path(folder, "server.js")
        script.write_text(NODE)
        node = subprocess.Popen(["node", script], stdout=subprocess.PIPE)
        try:
            port = int(node.stdout.readline().split()[1])
            for request in ACCEPTED:
                mine, theirs = statuses(ours.port, request), statuses(port, request)
                if [s for s, _ in mine] != [s for s, _ in theirs] or \
                        (mine[0][0] < 400 and [b for _, b in mine] != [b for _, b in theirs]):
                    failed += 1
                    print(f"DIFFERENT {request[:120]}: ours {mine}, Node's {theirs}")
            for _, request in REFUSED:
                mine = [status for status, _ in statuses(ours.port, request)]
                theirs = [status for status, _ in statuses(port, request)]
                through = any(status in (200, 404, 405) for status in theirs)
                if mine[0] < 400 or through != any(request.startswith(begin) for begin, _ in LENIENT):
                    failed += 1
                    print(f"DIFFERENT {request[:120]}: ours {mine}, Node's {theirs}")
        finally:
            node.terminate()
            node.wait()
            node.stdout.close()
    print(f"{len(ACCEPTED) + len(REFUSED)} requests, {failed} unknown differences")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
