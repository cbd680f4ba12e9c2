"""What a figure must carry with it to mean anything later: where, when, of what, by which command."""
import datetime
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def _output(*argv):
    try:
        done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=10,
                              stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return (done.stdout + done.stderr).strip()


def _cpu_model():
    try:
        with open("/proc/cpuinfo") as file:
            for line in file:
                if line.lower().startswith(("model name", "cpu model", "hardware")):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.machine()


def _commit():
    commit = _output("git", "rev-parse", "--short=12", "HEAD")
    if not commit or " " in commit:
        return "unknown"
    return commit + ("+changes" if _output("git", "status", "--porcelain", "-uno") else "")


def _digest(path):
    path = shutil.which(path)
    if not path:
        return None
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()[:16]


def describe(programs=()):
    """`programs` are the files that were measured: named with a digest, for a commit says nothing about
    when they were built."""
    command = [os.path.relpath(os.path.abspath(sys.argv[0]), ROOT)] + sys.argv[1:]
    tools = {"wrk": ("wrk", "-v"), "h2load": ("h2load", "--version"), "nginx": ("nginx", "-v"),
             "h2o": ("h2o", "-v"), "go": ("go", "version"), "gnuplot": ("gnuplot", "--version")}
    return {
        "command": shlex.join(command),
        "commit": _commit(),
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "kernel": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpu": _cpu_model(),
        "cores_online": os.cpu_count(),
        "cores_usable": len(os.sched_getaffinity(0)),
        "load_average": os.getloadavg(),
        "tools": {name: _output(*argv).split("\n")[0] for name, argv in tools.items() if shutil.which(name)},
        "programs": {name: _digest(name) for name in sorted(set(programs))},
        "environment": {name: value for name, value in sorted(os.environ.items()) if name.startswith("WEIR_")},
    }


def lines(machine):
    """The same as a list in Markdown."""
    environment = " ".join(f"{name}={value}" for name, value in machine["environment"].items())
    rows = [f"- command: `{(environment + ' ') if environment else ''}{machine['command']}`",
            f"- commit {machine['commit']}, {machine['date']}",
            f"- {machine['kernel']}, {machine['cpu']}, {machine['cores_usable']} usable of "
            f"{machine['cores_online']} cores"]
    if machine["tools"]:
        rows.append("- tools: " + "; ".join(text.strip() for text in machine["tools"].values()))
    return rows
