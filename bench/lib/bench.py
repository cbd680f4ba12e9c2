"""What the executables of bench/ have in common: arguments, the run, and what is written at the end."""
import argparse
import json
import os
import shutil
import signal
import subprocess
import sys

from . import machine, table
from .load import Generator
from .run import Plan, Runner, say
from .server import Server, ServerError

SKIP = 77       # CTest takes this exit status for "skipped"
FAIL = 1
PACKAGES = {"wrk": "wrk", "h2load": "nghttp2-client", "nginx": "nginx", "strace": "strace", "h2o": "h2o",
            "gnuplot": "gnuplot-nox"}


os.environ["PATH"] += os.pathsep + "/usr/sbin"      # where nginx lives, and what a plain user's PATH lacks


def parser(description, rounds=7, seconds=2):
    new = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    new.set_defaults(normal_rounds=rounds, normal_seconds=seconds)
    new.add_argument("--rounds", type=int, help=f"default {rounds}")
    new.add_argument("--seconds", type=int, help=f"length of one turn, default {seconds}")
    new.add_argument("--smoke", action="store_true", help="the smallest run that touches everything; no figures")
    new.add_argument("--build", default=os.path.join(machine.ROOT, "build", "release"), help="default build/release")
    new.add_argument("--json", metavar="FILE", help="write every turn")
    new.add_argument("--markdown", metavar="FILE", help="write the section that is printed")
    new.add_argument("--max-seconds", type=float, help="no turn begins later; default twice the expected time")
    new.add_argument("--wait-quiet", type=float, default=60, help="seconds to wait, all in all, while others are busy")
    new.add_argument("--install", action="store_true", help="install missing tools (apt-get, as root or by sudo)")
    new.add_argument("--client-threads", type=int, default=2)
    new.add_argument("--client-cpus", help="CPU list for the clients (taskset)")
    new.add_argument("--server-cpus", help="CPU list for the servers (taskset)")
    return new


def taskset(cpus):
    return ("taskset", "-c", cpus) if cpus else ()


def sizes(args):
    """(rounds, seconds)"""
    rounds = args.rounds or (1 if args.smoke else args.normal_rounds)
    return rounds, args.seconds or (1 if args.smoke else args.normal_seconds)


def in_build(args, *path):
    return os.path.join(os.path.abspath(args.build), *path)


def weir(args, name, sample="plaintext", words=(), **env):
    """A sample program as a server. Settings are given as WEIR_<name>=value; that they are in force is seen in what
    it logs at its start."""
    return Server(name, [in_build(args, "samples", sample), "--listen", "127.0.0.1:{port}", "--quiet", *words],
                  kind="echo" if sample == "echo" else "http",
                  env={"WEIR_LOG": "info"} | {f"WEIR_{key.upper()}": str(value) for key, value in env.items()},
                  says=tuple(f"{key}={value}" for key, value in env.items()), counts=True)


def floor(args, kind="http", name="floor"):
    return Server(name, [in_build(args, "bench", "floor_epoll"), "-m", kind, "{port}"], kind=kind)


def end_by_signal():
    """SIGTERM and SIGINT unwind the stack, so that servers are ended."""
    def leave(number, _frame):
        sys.exit(128 + number)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, leave)


def new_generator(args):
    return Generator(args.client_threads, taskset(args.client_cpus), in_build(args, "bench", "echo_load"),
                     in_build(args, "bench", "rate_load"))


def measure(args, servers, groups, cells):
    """Run, or leave with a reason."""
    end_by_signal()
    generator = new_generator(args)
    need(args, *[server.argv[0] for server in servers], *generator.tools(cells))
    for cell in cells:
        if cell.tool == "wrk" and cell.depth > 1 and (depth := generator.seen_depth(cell)) != cell.depth:
            say(f"the client was asked for {cell.depth} requests a write and sends {depth}")
            sys.exit(FAIL)
    rounds, seconds = sizes(args)
    plan = Plan(servers, groups, cells, rounds, seconds, warm_up=0 if args.smoke else 1,
                wait_quiet=0 if args.smoke else args.wait_quiet, server_prefix=taskset(args.server_cpus))
    plan.max_seconds = args.max_seconds or 2 * plan.expected_seconds() + plan.wait_quiet + 10
    say(f"{plan.turns()} turns, about {plan.expected_seconds() / 60:.1f} minutes")
    try:
        return Runner(plan, generator).run()
    except ServerError as error:
        say(str(error))
        sys.exit(FAIL)


def method(args, result):
    rounds, seconds = sizes(args)
    return (f"{rounds} round{'s' if rounds > 1 else ''} of {seconds} s a turn, "
            f"{result.elapsed / 60:.0f} minutes in all. {table.noise(result.rows)}")


def finish(args, title, body, result, programs, **more):
    """Print the section, write the files; the exit status says whether every turn was sound. `more` goes into the
    JSON; its `kind` tells bench/plot what to draw."""
    about = machine.describe(programs)
    failures = [f"- **failed**: {row['server']}, {row['cell']}, round {row['round'] + 1}: {row['error']}"
                for row in result.failed()]
    failures += [f"- **failed**: {name} {text}" for name, text in result.endings.items()]
    if not result.complete:
        failures.append("- **cut short**: the time was up")
    if args.smoke:
        failures.append("- a smoke run: the figures mean nothing")
    text = "\n".join([f"### {title}", "", *machine.lines(about), *failures, "", *body]) + "\n"
    print(text, end="")
    if args.markdown:
        with open(args.markdown, "w") as file:
            file.write(text)
    if args.json:
        with open(args.json, "w") as file:
            json.dump({"kind": "compare", "title": title, "machine": about, "complete": result.complete,
                       "smoke": args.smoke, "rows": result.rows, "answer_bytes": result.answer_bytes,
                       "server_output": result.outputs} | more, file, indent=1)
            file.write("\n")
    return FAIL if result.failed() or result.endings or not result.complete or not result.rows else 0


def install(packages):
    """By the distribution's own means; whether it worked is seen by who needs them."""
    script = '. tools/lib/packages.sh; sudo=; [ "$(id -u)" -eq 0 ] || sudo=sudo; packages_install "$sudo" "$*"'
    if packages:
        subprocess.run(["bash", "-c", script, "bash", *sorted(packages)], cwd=machine.ROOT)


def need(args, *programs):
    """Leave, as skipped, when one of them is missing."""
    missing = sorted({program for program in programs if shutil.which(program) is None})
    packages = [PACKAGES[program] for program in missing if program in PACKAGES]
    if packages and args.install:
        install(packages)
        missing = [program for program in missing if shutil.which(program) is None]
    if missing:
        say("missing: " + ", ".join(missing) + (f"; try --install (apt-get install {' '.join(packages)})" if packages
                                                else ""))
        sys.exit(SKIP)
