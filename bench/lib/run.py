"""Runs servers in turns and writes down one row for each turn.

The speed of a machine drifts by more than what is to be told apart, so only things that ran next to each
other are compared: every server is started once, then each round visits each cell, and in it each group
of servers: first the reference, then the contenders in an order that changes with the round, and the
reference again after every third and at the end. A contender's ratio is taken to the mean of the
reference before and after it. Of two servers alone every second round turns the roles round, lest the
one in the middle always be the same one.
"""
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from statistics import mean

from . import proc
from .server import Running

REFERENCE_EVERY = 3
SETTLE = 0.05           # after a load: servers close its connections on their own account
QUIET_PERCENT = 5.0
RATIOS = ("rate", "cpu_us", "switches", "p50_us", "p99_us", "p999_us")


@dataclass
class Group:
    """Servers that are compared with one of them."""
    reference: str
    contenders: list
    name: str = ""

    def sequence(self, turn):
        if len(self.contenders) == 1 and turn % 2 == 1:
            return [self.contenders[0], self.reference, self.contenders[0]]
        shift = turn % len(self.contenders) if self.contenders else 0
        order = self.contenders[shift:] + self.contenders[:shift]
        names = [self.reference]
        for i, name in enumerate(order):
            names.append(name)
            if i % REFERENCE_EVERY == REFERENCE_EVERY - 1 or i == len(order) - 1:
                names.append(self.reference)
        return names


@dataclass
class Plan:
    servers: list
    groups: list
    cells: list
    rounds: int
    seconds: int
    warm_up: int            # seconds of load before the first round
    wait_quiet: float       # seconds to wait, all in all, for other processes to fall silent
    server_prefix: tuple = ()
    max_seconds: float = float("inf")       # no turn begins after so long

    def turns(self):
        return self.rounds * len(self.cells) * sum(len(group.sequence(0)) for group in self.groups)

    def expected_seconds(self):
        return self.turns() * (self.seconds + 0.3) + len(self.servers) * (self.warm_up + 0.5)


@dataclass
class Result:
    rows: list
    complete: bool
    answer_bytes: dict
    outputs: dict
    elapsed: float
    endings: dict = field(default_factory=dict)     # server -> how it ended, if not well

    def failed(self):
        return [row for row in self.rows if row["error"]]


class Runner:
    def __init__(self, plan, generator):
        self.plan = plan
        self.generator = generator
        self.running = {}
        self.rows = []
        self.wait_left = plan.wait_quiet
        self.start = time.monotonic()

    def run(self):
        """Ends every server it started, whatever happens."""
        complete = True
        with ExitStack() as stack:
            for server in self.plan.servers:
                self.running[server.name] = stack.enter_context(Running(server, self.plan.server_prefix))
            self._warm_up()
            for number in range(self.plan.rounds):
                if not self._round(number):
                    complete = False
                    break
            answer_bytes = {name: running.answer_bytes for name, running in self.running.items()}
        outputs = {name: running.last_output for name, running in self.running.items()}
        endings = {name: running.ending() for name, running in self.running.items() if running.ending()}
        return Result(self.rows, complete, answer_bytes, outputs, time.monotonic() - self.start, endings)

    def _warm_up(self):
        for running in self.running.values():
            if self.plan.warm_up > 0:
                self.generator.run(self.plan.cells[0], running.port, self.plan.warm_up)

    def _round(self, number):
        for cell in self.plan.cells:
            for shift in range(len(self.plan.groups)):
                group = self.plan.groups[(number + shift) % len(self.plan.groups)]
                rows = []
                for name in group.sequence(number):
                    if time.monotonic() - self.start > self.plan.max_seconds:
                        say("time is up: what follows is left out")
                        return False
                    rows.append(self._turn(number, cell, group, name))
                relate(rows)
                self.rows += rows
            say(f"round {number + 1}/{self.plan.rounds}: {cell.name}, {time.monotonic() - self.start:.0f} s")
        return True

    def _usages(self):
        return {name: proc.usage(running.group) for name, running in self.running.items()}

    def _turn(self, number, cell, group, name):
        self._wait_until_quiet()
        running = self.running[name]
        marks = {}

        def mark(name, client=None):
            marks[name] = proc.Machine.now(), self._usages(), proc.usage(client) if client else proc.Usage()

        counters = running.statistics()
        mark("begin")
        load = self.generator.run(cell, running.port, self.plan.seconds, mark)
        if "end" not in marks:
            time.sleep(SETTLE)
            mark("end")
        counters_after = running.statistics()
        before, usages, client = marks["begin"]
        after, usages_after, client_after = marks["end"]
        spent = {each: proc.spent(usages[each], usages_after[each]) for each in usages}
        alive_us = proc.spent(client, client_after).cpu_us      # of a client that has not been reaped
        foreign, stolen = proc.shares(before, after, sum(each.cpu_us for each in spent.values()) + alive_us)
        if not running.alive() and not load.error:
            load.error = f"the server has ended: {running.output(300)}"
        row = {"round": number, "cell": cell.name, "group": group.name, "server": name,
               "role": "reference" if name == group.reference else "contender",
               "at_s": round(before.clock - self.start, 3), "requests": load.requests, "error": load.error,
               "rate": load.rate, "p50_us": load.p50_us, "p90_us": load.p90_us, "p99_us": load.p99_us,
               "p999_us": load.p999_us, "max_us": load.max_us, "late_p99_us": load.late_p99_us,
               "foreign_percent": foreign, "stolen_percent": stolen, "threads_ended": spent[name].ended,
               "cpu_us": None, "switches": None, "client_us": None}
        if load.requests > 0:
            row["cpu_us"] = spent[name].cpu_us / load.requests
            row["switches"] = spent[name].switches / load.requests
            row["client_us"] = ((after.client - before.client) * 1e6 + alive_us) / load.requests
        if running.server.counts and not (counters and counters_after) and not load.error:
            row["error"] = load.error = "the server does not tell its counters"
        if counters and counters_after:
            grown = {key: counters_after[key] - counters.get(key, 0) for key in ("waits", "events")}
            row["events_per_wait"] = grown["events"] / grown["waits"] if grown["waits"] else None
        if load.error:
            say(f"FAILED {name}, {cell.name}: {load.error}")
        return row

    def _wait_until_quiet(self):
        while self.wait_left > 0:
            before, usages = proc.Machine.now(), self._usages()
            time.sleep(0.1)
            after, usages_after = proc.Machine.now(), self._usages()
            ours = sum(proc.spent(usages[name], usages_after[name]).cpu_us for name in usages)
            if proc.shares(before, after, ours)[0] < QUIET_PERCENT:
                return
            self.wait_left -= 0.1


def relate(rows):
    """Give each contender of one group's turns in one round its ratios: its mean to that of the
    references next to it. They are put down in the first of its rows."""
    for name in {row["server"] for row in rows if row["role"] == "contender"}:
        own = [row for row in rows if row["server"] == name]
        near = [each for row in own for each in _references_around(rows, rows.index(row))]
        if any(row["error"] for row in own + near):
            continue
        for key in RATIOS:
            mine, theirs = ([row[key] for row in side if row.get(key) is not None] for side in (own, near))
            if mine and theirs and mean(theirs) > 0:
                own[0][key + "_ratio"] = mean(mine) / mean(theirs)


def _references_around(rows, place):
    before = [row for row in rows[:place] if row["role"] == "reference"]
    behind = [row for row in rows[place + 1:] if row["role"] == "reference"]
    return before[-1:] + behind[:1]


def say(text):
    print(text, file=sys.stderr, flush=True)
