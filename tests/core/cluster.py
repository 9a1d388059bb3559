"""A whole cluster of node cores in one process, with a perfect network: the smallest driver there is.

`quorumq.testing.Nodes`, whose time moves only when a test moves it, with the check of all invariants, and with damage
to disks. Every message arrives as fast as it is sent, or ``delay`` seconds later.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Iterable
from typing import Any

from quorumq.core.cluster.state import NodeConfig
from quorumq.core.messages import CreateTopic, Fetch
from quorumq.core.messages.effects import Done, Effect, Received, Request
from quorumq.core.messages.records import BatchStored, JournalRecord
from quorumq.core.node.nodecore import NodeCore
from quorumq.core.requests.remote import LOOK_S
from quorumq.core.values.types import Batch, NodeId, Now, PartitionId, ProducerId, Topic
from quorumq.testing.network import WALL_MS as WALL_MS
from quorumq.testing.nodes import Nodes
from quorumq.wire.batch import Message, build_batch

FREELY_CHECKED = 16
"""Runs of messages, times groups, whose check costs no more than a few steps. Four more make it wait for
one step more."""

CHECKED_EVERY = 8
"""Least number of a node's steps between checks. A broken invariant mostly stays broken. 1 shows which step it was."""


class Cluster(Nodes):
    """``count`` nodes named a, b, c … that talk to each other; call methods, then read ``replies``."""

    def __init__(self, count: int = 3, seed: int = 1, *, checks: bool = True, **settings: object) -> None:
        self.time = 100.0
        self.newest = False
        """An operator's word at the next starts that the directory is the newest, wherever it lies."""
        self.disks: list[list[JournalRecord]] = []  # every list that a node was started from: its place
        self.unreadable: dict[NodeId, set[int]] = {}  # damaged batches
        self.wall_off_ms: dict[NodeId, int] = {}
        self.boots: dict[NodeId, int] = {}  # boots of the machines; 0: not known
        self.checks = checks  # whether steps are followed by the check of all invariants
        self.unchecked: dict[NodeId, int] = {}  # steps that each node may yet take until the next check
        self.drop: Callable[[NodeId, NodeId, object], bool] = lambda sender, to, message: False
        self.delay = 0.0  # seconds from one node to another
        self.underway: list[tuple[float, int, NodeId, Received]] = []
        self.sent = 0
        super().__init__(count, random.Random(seed), **{"hold_time_max": 60.0, **settings})

    # ------------------------------------------------------------------ driving

    @property
    def now(self) -> Now:
        return Now(self.time, WALL_MS + int(self.time * 1000))

    def clocks(self, name: NodeId) -> Now:
        """Return the clocks of a node: its time of day may be wrong, by ``wall_off_ms``."""
        return self.now._replace(wall_ms=self.now.wall_ms + self.wall_off_ms.get(name, 0))

    def checked_at(self, name: NodeId) -> Now:
        """The time at which the invariants of a node are to hold."""
        return self.now

    def make(self, name: NodeId, config: NodeConfig) -> NodeCore:
        nonce, directory = self.rng.getrandbits(64), self.rng.getrandbits(64)
        records = self.records_of(name)
        bad = [
            record
            for record in records
            if isinstance(record, BatchStored) and record.number in self.unreadable.get(name, ())
        ]
        core = NodeCore(
            config,
            [record for record in records if record not in bad],
            nonce=nonce,
            directory=directory,
            now=self.clocks(name),
            rng=self.rng,
            location=self.location_of(self.journals[name]),
            boot=self.boots.get(name, 0),
            newest=self.newest,
        )
        core.load_damaged(bad, self.clocks(name))
        self.number(name, core)
        return core

    def location_of(self, journal: list[JournalRecord]) -> int:
        """The disk is the list object: a copy of a list is a copy of a directory, and lies elsewhere."""
        for location, disk in enumerate(self.disks, 1):
            if disk is journal:
                return location
        self.disks.append(journal)
        return len(self.disks)

    def check(self, name: NodeId) -> None:
        """Check all invariants of a node after a step: every few of a small node, and less often of a large one.

        A check looks at every run of messages of every group; a step looks at a few.
        """
        self.unchecked[name] = self.unchecked.get(name, 0) - 1
        if self.checks and self.unchecked[name] < 0:
            core = self.nodes[name]
            core.check(self.checked_at(name))
            replicas = core.context.replicas.values()
            cost = sum(
                (1 + len(list(it.batches.index.items()))) * (1 + len(it.views.groups)) for it in replicas
            )
            self.unchecked[name] = max(CHECKED_EVERY - 1, (cost - FREELY_CHECKED) // 4)

    def carry_out(self, name: NodeId, effects: Iterable[Effect | Done]) -> None:
        super().carry_out(name, effects)
        self.check(name)

    def send(self, sender: NodeId, to: NodeId, message: object) -> None:
        received = self.envelope(sender, to, message)
        if received is None or self.drop(sender, to, message):
            return
        if self.delay:
            self.sent += 1
            heapq.heappush(self.underway, (self.time + self.delay, self.sent, to, received))
        else:
            self.queue.append((to, received))

    def kill(self, names: Iterable[NodeId], seconds: float = 0.0) -> None:
        """Kill nodes, named by one character each, and let time pass."""
        for name in names:
            super().kill(name)
        self.wait(seconds)

    def start(self, names: Iterable[NodeId], seconds: float = 0.0) -> None:
        """Start nodes, named by one character each, and let time pass."""
        for name in names:
            super().start(name)
        self.wait(seconds)

    def crash(self, names: Iterable[NodeId], seconds: float = 0.0) -> None:
        """Kill nodes, start them again, and let time pass."""
        self.kill(names)
        self.start(names, seconds)

    def hear_all(self, seconds: float = 0.0) -> None:
        """Drop no message from now on, and let time pass."""
        self.drop = lambda sender, to, message: False
        self.wait(seconds)

    def wait(self, seconds: float) -> None:
        """Let time pass; after 0.0 seconds nothing that is due has happened."""
        if seconds:
            self.advance(seconds)

    def advance(self, seconds: float) -> None:
        """Let time pass, waking every node at each of its deadlines."""
        until = self.time + seconds
        while True:
            deadlines = [core.next_deadline() for core in self.nodes.values()]
            deadlines += [time for time, *_ in self.underway[:1]]
            first = min((deadline for deadline in deadlines if deadline is not None), default=until)
            if first > until:
                break
            self.time = max(self.time, first)
            self.wake_due()
            while self.underway and self.underway[0][0] <= self.time:
                *_, to, received = heapq.heappop(self.underway)
                self.queue.append((to, received))
            self.run()
        self.time = until

    # ----------------------------------------------------------------- requests

    def submit(self, name: NodeId, request: object) -> int:
        """Send a client's request; return its key. The reply may be later."""
        self.keys += 1
        self.feed(name, Request(self.keys, request))  # type: ignore[arg-type]
        return self.keys

    def ask(self, name: NodeId, request: object, seconds: float = 0.0, *, of: type = object) -> Any:
        """Send a client's request, let time pass, and return its reply by then: one ``of`` that class.

        A FETCH that does not wait has all the time in which it may give up replicas that are cut off.
        """
        key = self.submit(name, request)
        self.wait(seconds)
        if isinstance(request, Fetch) and not request.max_wait and key not in self.replies:
            self.advance(4 * LOOK_S)
        assert key in self.replies, f"{request} was not answered"
        assert isinstance(self.replies[key], of), self.replies[key]
        return self.replies[key]

    def topic(self, name: str = "jobs", rf: int = 3, partitions: int = 1, **more: object) -> Topic:
        reply = self.ask(next(iter(self.nodes)), CreateTopic(name, rf, partitions, **more))  # type: ignore[arg-type]
        return reply.topic  # type: ignore[union-attr]

    def batch(
        self,
        topic: Topic,
        producer_id: ProducerId,
        first: int,
        payloads: list[bytes],
        partition: int = 0,
        *,
        delay_ms: int = 0,
        ttl_ms: int = 0,
        published_ms: int | None = None,
    ) -> Batch:
        """A batch; ``published_ms`` is the time of day of its producer, if that is wrong."""
        records = [Message(payload) for payload in payloads]
        where = PartitionId(topic.id, partition)
        made = self.now.wall_ms if published_ms is None else published_ms
        return build_batch(where, producer_id, first, made, records, delay_ms=delay_ms, ttl_ms=ttl_ms)
