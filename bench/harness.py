#!/usr/bin/env python3
"""Compare any servers in turns.

    bench/harness.py --server weir='build/release/samples/plaintext 127.0.0.1:{port}' \\
                     --server floor='build/release/bench/floor_epoll {port}' \\
                     --cell wrk:64 --cell wrk:64:16 --cell h2load:64

The first server is the reference. A cell is wrk:CONNECTIONS[:DEPTH], h2load:CONNECTIONS[:DEPTH] or
echo:CLIENTS:BYTES. {port} stands for the port the server has to take on 127.0.0.1; words of the form
NAME=VALUE before the program are its environment.
"""
import re
import shlex
import sys

sys.dont_write_bytecode = True

from lib import bench, table
from lib.load import Cell
from lib.run import Group
from lib.server import Server


def cell(text):
    tool, *numbers = text.split(":")
    numbers = [int(each) for each in numbers]
    if tool == "echo" and len(numbers) == 2:
        return Cell(numbers[0], tool=tool, size=numbers[1])
    if tool in ("wrk", "h2load") and len(numbers) in (1, 2):
        return Cell(*numbers, tool=tool)
    raise ValueError(text)


def server(text, kind):
    name, _, command = text.partition("=")
    words, env = shlex.split(command), {}
    while words and re.fullmatch(r"[A-Za-z_]\w*=.*", words[0]):
        key, _, env[key] = words.pop(0).partition("=")
    if not name or not words:
        raise ValueError(text)
    return Server(name, words, kind, env)


def main():
    parser = bench.parser(__doc__)
    parser.add_argument("--server", action="append", required=True, metavar="NAME=COMMAND")
    parser.add_argument("--cell", action="append", type=cell, metavar="CELL")
    args = parser.parse_args()
    cells = args.cell or [Cell(64)]
    kinds = {each.kind for each in cells}
    if len(kinds) > 1:
        parser.error("echo and http cells cannot be mixed")
    try:
        servers = [server(text, *kinds) for text in args.server]
    except ValueError as error:
        parser.error(f"not NAME=COMMAND: {error}")
    names = [each.name for each in servers]
    if len(set(names)) < len(names):
        parser.error("two servers have the same name")
    group = Group(names[0], names[1:])
    result = bench.measure(args, servers, [group], cells)
    body = table.comparison(result.rows, [each.name for each in cells], group)
    return bench.finish(args, "Comparison of " + ", ".join(names), body + ["", bench.method(args, result)], result,
                        [each.argv[0] for each in servers])


if __name__ == "__main__":
    sys.exit(main())
