"""Time, the network and the history of one simulated run.

A queue of events: nothing happens but the events in it, in order of time, ties in order of scheduling. There
is one true time; every node and client has clocks of its own that run at other rates. All randomness is
from streams named after the seed and the concern. So one schedule gives one run, and `World.trace` is a
hash over all of it.

The network carries Python values. Each message may be lost, doubled, delayed and overtaken by others; with
`fifo` a connection keeps its order, and breaks if it loses something. Blocked pairs carry nothing, in
that direction.
"""

from __future__ import annotations

import hashlib
import math
import random
import struct
from collections import defaultdict
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any, Final
from zlib import crc32

from quorumq.core.values.types import Now
from quorumq.history import Row
from sim.schedule import Schedule

EPOCH_MS = 1_700_000_038_500
"""The true time of day when a run begins."""


class Refusal:
    """Answer of a machine without a node that answers: nothing was taken in."""


REFUSAL = Refusal()
RESET = None
"""Answer when a client's connection dies: the outcome is unknown."""

_STAMP = struct.Struct("<dI")

# Half of what ``Now(...)`` takes.
_new_now: Final[Callable[[type[Now], tuple[float, int]], Now]] = tuple.__new__

Action = Callable[[Any, Any], None]


class SimError(AssertionError):
    """The run did something that no fault explains: an invariant, a node that stopped itself, an exception."""


class Clock:
    """The clocks of one machine: a monotonic one with a rate and a zero point of its own, and a time of day."""

    __slots__ = ("last", "mono_at_zero", "rate", "wall_offset_ms")

    def __init__(self, rng: random.Random, rate_max: float, wall_offset: float) -> None:
        self.rate = 1.0 + rng.uniform(-rate_max, rate_max)
        self.mono_at_zero = rng.uniform(100.0, 10_000.0)
        self.wall_offset_ms = int(rng.uniform(-wall_offset, wall_offset) * 1000)
        self.last = 0.0

    def mono(self, time: float) -> float:
        """Return the monotonic clock at true time ``time``; never goes back."""
        value = self.mono_at_zero + time * self.rate
        if value > self.last:
            self.last = value
        return self.last

    def true_time(self, mono: float) -> float:
        """Return the true time when the monotonic clock shows ``mono``."""
        return (mono - self.mono_at_zero) / self.rate

    def now(self, time: float) -> Now:
        """Read both clocks."""
        rate = self.rate
        value = self.mono_at_zero + time * rate  # as in `mono`: there is one reading a step
        if value > self.last:
            self.last = value
        return _new_now(Now, (self.last, EPOCH_MS + int(time * 1000 * rate) + self.wall_offset_ms))

    def reboot(self, rng: random.Random, time: float) -> None:
        """Start the machine again: its monotonic clock begins elsewhere."""
        self.mono_at_zero = rng.uniform(100.0, 10_000.0) - time * self.rate
        self.last = 0.0


class World:
    """One run: the events, the network, the sightings, and the history.

    Attributes:
        messages: network messages delivered, peers' and clients'.
        sent: number of messages of each kind that nodes sent to each other, and clients to nodes.
        seen: number of times that each of the things in sim/sometimes.py happened.
    """

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.options = schedule.options
        self.time = 0.0
        self.heap: list[tuple[float, int, Action, Any, Any]] = []
        self.order = 0
        self.events = 0
        self.messages = 0
        self.sent: defaultdict[str, int] = defaultdict(int)
        self.seen: dict[str, int] = {}
        self.rows: list[Row] = []
        self.run_name = f"sim-{schedule.profile}-{schedule.seed}"
        self.net_rng = self.stream("net")
        self.blocked: dict[tuple[str, str], int] = {}
        self.healed = False
        self.loss = self.options.loss
        self.duplicate = self.options.duplicate
        self.spikes = self.options.spikes
        self.late = self.options.late
        self.fifo = self.options.fifo
        self.latency = self.options.latency
        self.distance = self.options.distance
        self.nodes = self.options.node_names
        self.lines: dict[tuple[str, str], float] = {}  # fifo: when the last message of a pair arrives
        self.on_broken: Callable[[str, str], None] = lambda source, target: None
        self.crc = 0

    def stream(self, name: str) -> random.Random:
        """Return the random stream of one concern: the same for any draws of the others."""
        return random.Random(f"{self.schedule.seed}/{name}")

    # ------------------------------------------------------------------- time

    def at(self, time: float, action: Action, one: Any = None, two: Any = None) -> None:
        """Do ``action(one, two)`` at true time ``time``."""
        self.order = order = self.order + 1
        heappush(self.heap, (time, order, action, one, two))

    def after(self, seconds: float, action: Action, one: Any = None, two: Any = None) -> None:
        """Do ``action(one, two)`` in ``seconds``."""
        self.order = order = self.order + 1
        heappush(self.heap, (self.time + seconds, order, action, one, two))

    def run(self, until: float, done: Callable[[], bool] | None = None) -> bool:
        """Let events happen until true time ``until``, or until ``done``, which is asked every quarter second.

        Returns True if ``done`` said so.
        """
        heap, pack = self.heap, _STAMP.pack
        ask_at = self.time if done is not None else math.inf
        while heap and (time := heap[0][0]) <= until:
            if time >= ask_at and done is not None:
                self.time = max(self.time, min(ask_at, time))
                if done():
                    return True
                ask_at = self.time + 0.25
            self.time, order, action, one, two = heappop(heap)
            self.events += 1
            self.crc = crc32(pack(time, order & 0xFFFFFFFF), self.crc)
            action(one, two)
        self.time = until
        return done is not None and done()

    # ----------------------------------------------------------------- network

    def transmit(self, source: str, target: str, action: Action, one: Any, two: Any = None) -> None:
        """Carry something from ``source`` to ``target``: ``action(one, two)`` happens there, never, or twice."""
        if self.blocked and source != target and (source, target) in self.blocked:
            return
        draw = self.net_rng.random
        if self.loss and draw() < self.loss:
            if self.fifo:
                self.on_broken(source, target)
            return
        delay = self.latency * (0.3 - math.log(1.0 - draw()) / 1.4)  # `random.expovariate`, without the call
        if self.spikes and draw() < self.spikes:
            delay += draw() * self.late
        if self.distance and source != target and source in self.nodes and target in self.nodes:
            delay += self.distance
        time = self.time + delay
        if self.fifo:
            pair = (source, target)
            time = self.lines[pair] = max(time, self.lines.get(pair, 0.0) + 1e-7)
        elif self.duplicate and draw() < self.duplicate:
            self.at(time + draw() ** 3 * self.late, action, one, two)
        self.order = order = self.order + 1
        heappush(self.heap, (time, order, action, one, two))

    def draw(self, low: float, high: float, kind: str, source: str, target: str) -> float:
        """Draw a number for a pair of machines, as when one of them notices that their connection is broken."""
        return self.net_rng.uniform(low, high)

    def block(self, links: tuple[tuple[str, str], ...]) -> None:
        """Block these directed pairs until `unblock`; counted, as partitions may overlap."""
        for pair in links:
            self.blocked[pair] = self.blocked.get(pair, 0) + 1

    def unblock(self, links: tuple[tuple[str, str], ...]) -> None:
        """Undo one `block`."""
        for pair in links:
            if pair in self.blocked:
                self.blocked[pair] -= 1
                if not self.blocked[pair]:
                    del self.blocked[pair]

    def heal_network(self) -> None:
        """Heal the network: nothing is lost, doubled or held back any more; packets under way are still delivered."""
        self.blocked.clear()
        self.loss = self.duplicate = self.spikes = 0.0
        self.healed = True

    # ----------------------------------------------------------------- history

    def note(self, who: str, kind: str, **fields: object) -> Row:
        """Write a line of history at this time. ``wall_ms`` is the true time of day."""
        row: Row = {
            "run": self.run_name,
            "who": who,
            "at": self.time,
            "wall_ms": EPOCH_MS + int(self.time * 1000),
            "within": 0.0,
            "kind": kind,
            **fields,
        }
        self.rows.append(row)
        return row

    def count(self, kind: str) -> None:
        """Count a message of this kind that was sent."""
        self.sent[kind] += 1

    def saw(self, name: str) -> None:
        """Note that one of the sightings of a campaign happened."""
        self.seen[name] = self.seen.get(name, 0) + 1

    def trace(self) -> str:
        """Return a hash over every event's time and order and every line of the history."""
        digest = hashlib.blake2b(repr((self.crc, self.events, self.messages)).encode(), digest_size=16)
        for row in self.rows:
            digest.update(repr(row).encode())
        return digest.hexdigest()
