"""The model: threads on cores, cache lines that one core owns at a time, and three ways of dispatch.

per-event: a poller posts each event to the pool as a work item. pump: it pushes the batch to a ring and posts at most
one item, which posts the next copy of itself before it handles its first event. lease: a worker that finds nothing
polls for itself, keeps one event, pushes the rest; "lease, early": it does so as well while less than a batch is
queued. The pool is either that of the published comparison ("2020": a post
and a take write three lines besides the queue and may wake as many workers as there are cores) or weir's ("weir": one
line, one wake at a time, and whoever is woken asks for the next).

Time is in nanoseconds. A thread is a generator: it yields how long it is busy, or None to wait until somebody resumes
it. Everything is deterministic under the seed.
"""
import heapq
import random
from collections import deque
from dataclasses import dataclass


@dataclass
class Machine:
    """Costs in ns: measured by bench/micro/line.c on the machine named in bench/README.md, or assumed."""
    cores: int = 12
    sockets: int = 1
    local: float = 5            # measured: a read-modify-write of a line that is ours
    transfer: float = 43        # measured: load and read-modify-write of a line another core wrote
    cross: float = 5.0          # assumed: the same from another socket costs so many times as much
    sharer: float = 40          # assumed: for each core that spins on the line that is written
    wake: float = 6900          # measured: waking a sleeper, for him who wakes
    latency: float = 14000      # measured: from there to his first instruction
    switch: float = 1500        # assumed: a core turns to another thread
    epoll: float = 98           # measured: entering epoll_wait
    harvest: float = 300        # assumed: for each event it brings
    spin: float = 40000         # assumed: a worker that finds nothing looks on for so long before it sleeps
    slice: float = 1e6          # a copy of the pump gives the worker back after so long
    quantum: float = 50000      # the scheduler's time slice, when others wait for a core
    batch: int = 64             # events a wait, at most
    service: float = 20000      # one event: receive, handle, send
    wire: float = 0             # one answer on the link and in the client, one after the other
    client: float = 30000       # from the answer to the next request


class Line:
    """A cache line: who writes it waits until it is free, then for its transfer from the core that wrote last."""

    def __init__(self, sim):
        self.sim, self.free, self.owner = sim, 0.0, None

    def touch(self, core, watchers=0):
        machine = self.sim.machine
        cost = machine.local
        if self.owner is not None and self.owner != core:
            far = machine.sockets > 1 and core % machine.sockets != self.owner % machine.sockets
            cost = machine.transfer * (machine.cross if far else 1)
        watcher = machine.sharer * (1 + machine.cross) / 2 if machine.sockets > 1 else machine.sharer
        self.free = max(self.sim.now, self.free) + cost + watchers * watcher
        self.owner = core
        return self.free - self.sim.now


class Thread:
    def __init__(self, sim, core, body):
        self.sim, self.core, self.busy_since = sim, core, None
        self.parks = 0
        self.body = body(self)


class Sim:
    """One run: `connections` in a closed loop against one way of dispatch."""

    def __init__(self, machine, way, pool="weir", pollers=1, connections=512, seed=1):
        self.machine, self.way, self.seed = machine, way, seed
        self.random = random.Random(seed)
        self.now, self.count, self.heap = 0.0, 0, []
        self.free_cores, self.waiting = machine.cores, deque()
        self.ready = [deque() for _ in range(pollers)]          # in the kernel, by poller
        self.asleep = [None] * pollers                          # who waits there
        self.rings = [Ring(self) for _ in range(pollers)]
        self.pool = Pool(self, machine.cores, 3) if pool == "2020" else Pool(self, 1, 1)
        self.wire_free = 0.0
        self.arrived = self.done = self.busy = self.switches = self.wakes = 0
        self.since = [0.0] * connections
        self.times, self.threads = [], []
        self.measuring = False
        for i in range(machine.cores):
            self.start(i, self.leased if way.startswith("lease") else self.worker)
        if not way.startswith("lease"):
            for i in range(pollers):
                self.start(machine.cores + i, lambda me, i=i: self.poller(me, i))
        for connection in range(connections):
            self.after(self.random.random() * machine.client, self.arrive, connection)

    # ---- time, threads, cores

    def after(self, delay, call, argument):
        assert delay >= 0, "time runs forward"
        self.count += 1
        heapq.heappush(self.heap, (self.now + delay, self.count, call, argument))

    def start(self, core, body):
        thread = Thread(self, core, body)
        self.threads.append(thread)
        self.after(0, self.resume, thread)

    def resume(self, thread):
        """A thread that becomes able to run needs a core."""
        if self.free_cores > 0:
            self.free_cores -= 1
            self.run_on(thread)
        else:
            self.waiting.append(thread)

    def run_on(self, thread):
        thread.busy_since = self.now
        self.switches += 1
        self.busy += self.machine.switch
        self.after(self.machine.switch, self.step, thread)

    def step(self, thread):
        delay = next(thread.body)
        if delay is not None:
            self.busy += delay
            self.after(delay, self.step, thread)
            return
        if self.waiting:
            self.run_on(self.waiting.popleft())
        else:
            self.free_cores += 1

    def fair(self, me):
        """Between two events: whoever waits for a core comes first, after a time slice of the scheduler."""
        if self.waiting and self.now - me.busy_since > self.machine.quantum:
            self.after(0, self.resume, me)
            yield None

    def run(self, duration):
        end = self.now + duration
        while self.heap and self.heap[0][0] <= end:
            at, _, call, argument = heapq.heappop(self.heap)
            assert at >= self.now, "time runs forward"
            self.now = at
            call(argument)
        self.now = end

    def totals(self):
        return self.done, self.busy, self.switches, self.wakes

    # ---- events

    def arrive(self, connection):
        self.arrived += 1
        self.since[connection] = self.now
        poller = connection % len(self.ready)
        self.ready[poller].append(connection)
        if self.asleep[poller]:
            thread, self.asleep[poller] = self.asleep[poller], None
            self.after(self.machine.latency, self.resume, thread)

    def serve(self, me, connection):
        yield from self.fair(me)
        yield self.machine.service * (0.5 + self.random.expovariate(2))
        assert self.now >= self.since[connection], "an answer before its request"
        self.done += 1
        if self.measuring:
            self.times.append(self.now - self.since[connection])
        self.wire_free = max(self.now, self.wire_free) + self.machine.wire
        self.after(self.wire_free - self.now + self.machine.client, self.arrive, connection)

    def harvest(self, me, poller):
        """Up to a batch of events; the thread sleeps in the kernel until there is one."""
        while not self.ready[poller]:
            self.asleep[poller] = me
            yield None
        found = [self.ready[poller].popleft() for _ in range(min(len(self.ready[poller]), self.machine.batch))]
        yield self.machine.epoll + len(found) * self.machine.harvest
        return found

    # ---- the ways of dispatch

    def poller(self, me, index):
        ring = self.rings[index]
        while True:
            found = yield from self.harvest(me, index)
            if self.way.startswith("per-event"):
                for connection in found:
                    yield from self.pool.post(me, connection)
            else:
                yield from ring.push(me, found)
                yield ring.stage.touch(me.core)
                kicked, ring.state = ring.state, "queued"
                if kicked == "idle":
                    yield from self.pool.post(me, ring)
            yield from self.fair(me)

    def worker(self, me):
        while True:
            item = yield from self.pool.take(me)
            if isinstance(item, Ring):
                yield from self.copy(me, item)
            else:
                yield from self.serve(me, item)

    def copy(self, me, ring):
        """A copy of the pump: it posts the next one before it handles its first event."""
        while True:
            yield ring.stage.touch(me.core)
            ring.state = "probing"
            connection = yield from ring.pop(me)
            if connection is not None:
                break
            yield ring.stage.touch(me.core)
            if ring.state == "probing":
                ring.state = "idle"
                return
        yield ring.stage.touch(me.core)
        ring.state = "queued"
        yield from self.pool.post(me, ring)
        end = self.now + self.machine.slice
        while connection is not None:
            yield from self.serve(me, connection)
            if self.now > end:
                return
            connection = yield from ring.pop(me)

    def leased(self, me):
        """A worker that finds nothing polls for itself, if nobody does; otherwise it parks."""
        ring = self.rings[me.core % len(self.rings)]
        while True:
            early = (self.way == "lease, early" and self.ready[self.rings.index(ring)]
                     and len(ring.items) < self.machine.batch)
            if ring.items and not (early and ring.lease is None):
                connection = yield from ring.pop(me)
                if connection is None:
                    continue
            elif ring.lease is None:
                ring.lease = me         # the compare-and-swap decides at once, its cost follows
                yield ring.stage.touch(me.core)
                connection, *rest = yield from self.harvest(me, self.rings.index(ring))
                if rest:
                    yield from ring.push(me, rest)
                ring.lease = None
                yield ring.stage.touch(me.core)
            else:
                yield from ring.parked.park(me, lambda: ring.items or ring.lease is None)
                continue
            if ring.items:
                yield from ring.parked.wake_one(me)
            yield from self.serve(me, connection)


class Parking:
    """Workers without work: they spin for a while, then sleep; at most `most` of them are being woken at a time. Asking
    for a worker writes `lines` lines, of which the last is the one that spinning workers look at."""

    def __init__(self, sim, most, lines=1):
        self.sim, self.most = sim, most
        self.word, self.others = Line(sim), [Line(sim) for _ in range(lines - 1)]
        self.spinning, self.sleeping, self.waking = [], [], 0

    def park(self, me, has_work):
        yield self.word.touch(me.core)
        if has_work():
            return
        me.parks += 1
        self.spinning.append(me)
        self.sim.after(self.sim.machine.spin, self.fall_asleep, (me, me.parks))
        yield None
        self.waking -= 1

    def fall_asleep(self, parked):
        thread, parks = parked
        if thread.parks == parks and thread in self.spinning:
            self.spinning.remove(thread)
            self.sleeping.append(thread)

    def wake_one(self, me):
        for line in self.others:
            yield line.touch(me.core)
        yield self.word.touch(me.core, len(self.spinning))
        if self.waking >= self.most or not (self.spinning or self.sleeping):
            return
        self.waking += 1
        if self.spinning:
            thread = self.spinning.pop()
            self.sim.after(self.sim.machine.transfer, self.sim.resume, thread)
            return
        thread = self.sleeping.pop()
        self.sim.wakes += 1
        self.sim.after(self.sim.machine.latency, self.sim.resume, thread)
        yield self.sim.machine.wake


class Pool:
    """One queue for all workers."""

    def __init__(self, sim, most, lines):
        self.items, self.line, self.parked = deque(), Line(sim), Parking(sim, most, lines)

    def post(self, me, item):
        yield self.line.touch(me.core)
        self.items.append(item)
        yield from self.parked.wake_one(me)

    def take(self, me):
        while True:
            yield self.line.touch(me.core)
            if self.items:
                item = self.items.popleft()
                if self.items:
                    yield from self.parked.wake_one(me)
                return item
            yield from self.parked.park(me, lambda: self.items)


class Ring:
    """A ready queue: one producer at a time writes the tail, consumers fight for the head."""

    def __init__(self, sim):
        self.items, self.head, self.tail, self.stage = deque(), Line(sim), Line(sim), Line(sim)
        self.state, self.lease, self.parked = "idle", None, Parking(sim, 1)

    def push(self, me, found):
        yield self.tail.touch(me.core) + self.tail.sim.machine.local * len(found)
        self.items.extend(found)

    def pop(self, me):
        yield self.head.touch(me.core)
        return self.items.popleft() if self.items else None
