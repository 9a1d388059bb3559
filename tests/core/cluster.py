"""A whole cluster of node cores in one process, with a perfect network: the smallest driver there is.

Every message arrives, in order, as fast as it is sent, or ``delay`` seconds later; every Persist is durable at once;
time moves only when a test moves it. Faults are the simulator's business; this is for reading what one exchange does.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable, Iterable

from quorumq.core.cluster.state import NodeConfig
from quorumq.core.messages import ClientReply, CreateTopic, Envelope, Failed, PeerMessage, Store, Welcome
from quorumq.core.messages.effects import (
    CleanStop,
    Done,
    Effect,
    HelloRefused,
    LinkDown,
    LinkUp,
    Raised,
    Received,
    Request,
    Restart,
    SendStored,
    Stop,
)
from quorumq.core.messages.records import BatchStored, JournalRecord
from quorumq.core.node.nodecore import NodeCore
from quorumq.core.values.types import Batch, NodeId, Now, PartitionId, ProducerId, Topic
from quorumq.driver import Driver
from quorumq.wire.batch import Message, build_batch

WALL_MS = 1_700_000_000_000
FREELY_CHECKED = 16
"""Runs of messages, times groups, whose check costs no more than a few steps; where there are four more, it waits for
one step more."""

CHECKED_EVERY = 8
"""So many steps of a node apart at least: what a step breaks mostly stays so. 1 shows which step it was."""


class Cluster:
    """``count`` nodes named a, b, c … that talk to each other; call methods, then read ``replies``."""

    def __init__(self, count: int = 3, seed: int = 1, **settings: object) -> None:
        self.rng = random.Random(seed)
        self.time = 100.0
        self.names = tuple("abcdefghi"[:count])
        self.settings = {"hold_time_max": 60.0, "auto_create_topics": True, **settings}
        self.newest = False
        """An operator's word at the next starts that the directory is the newest, wherever it lies."""
        self.disks: list[list[JournalRecord]] = []  # every list that a node was started from: its place
        self.journals: dict[NodeId, list[JournalRecord]] = {name: [] for name in self.names}
        self.forgotten: dict[NodeId, set[int]] = {name: set() for name in self.names}
        self.unreadable: dict[NodeId, set[int]] = {name: set() for name in self.names}  # damaged batches
        self.nodes: dict[NodeId, NodeCore] = {}
        self.drivers: dict[NodeId, Driver] = {}
        self.queue: deque[tuple[NodeId, object]] = deque()
        self.replies: dict[int, ClientReply] = {}
        self.keys = 0
        self.stopped: dict[NodeId, str] = {}
        self.restarts: list[tuple[NodeId, str]] = []
        self.wall_off_ms: dict[NodeId, int] = {}
        self.boots: dict[NodeId, int] = {}  # of the machines; 0: not known
        self.checks = True  # whether steps are followed by the check of all invariants
        self.unchecked: dict[NodeId, int] = {}  # steps that each node may yet take until the next check
        self.drop: Callable[[NodeId, NodeId, object], bool] = lambda sender, to, message: False
        self.delay = 0.0  # seconds from one node to another
        self.underway: list[tuple[float, int, NodeId, Received]] = []
        self.sent = 0
        for name in self.names:
            self.start(name)

    # ------------------------------------------------------------------ driving

    @property
    def now(self) -> Now:
        return Now(self.time, WALL_MS + int(self.time * 1000))

    def clocks(self, name: NodeId) -> Now:
        """What the clocks of a node show: its time of day may be wrong, by ``wall_off_ms``."""
        return self.now._replace(wall_ms=self.now.wall_ms + self.wall_off_ms.get(name, 0))

    def checked_at(self, name: NodeId) -> Now:
        """The time at which the invariants of a node are to hold."""
        return self.now

    def start(self, name: NodeId) -> None:
        """Start (again) from the journal, and link to everyone who is up."""
        config = NodeConfig(node=name, nodes=self.names, **self.settings)  # type: ignore[arg-type]
        nonce, directory = self.rng.getrandbits(64), self.rng.getrandbits(64)
        journal = [
            record
            for record in self.journals[name]
            if not (isinstance(record, BatchStored) and record.number in self.forgotten[name])
        ]
        bad = [
            record
            for record in journal
            if isinstance(record, BatchStored) and record.number in self.unreadable[name]
        ]
        journal = [record for record in journal if record not in bad]
        core = NodeCore(
            config,
            journal,
            nonce=nonce,
            directory=directory,
            now=self.clocks(name),
            rng=self.rng,
            place=self.place_of(self.journals[name]),
            boot=self.boots.get(name, 0),
            newest=self.newest,
        )
        core.take_position(len(self.journals[name]))
        core.load_damaged(bad, self.clocks(name))
        core.state.next_batch = 1 + sum(isinstance(record, BatchStored) for record in self.journals[name])
        self.nodes[name] = core
        self.drivers[name] = Watched(self, name)
        self.drivers[name].start()
        self.run()
        for peer in self.names:
            if peer != name and peer in self.nodes:
                self.link(name, peer)
                self.link(peer, name)
        self.run()

    def place_of(self, journal: list[JournalRecord]) -> int:
        """The disk is the list object: a copy of a list is a copy of a directory, and lies elsewhere."""
        for place, disk in enumerate(self.disks, 1):
            if disk is journal:
                return place
        self.disks.append(journal)
        return len(self.disks)

    def link(self, dialler: NodeId, acceptor: NodeId) -> None:
        if dialler in self.stopped or acceptor in self.stopped:
            return
        core = self.nodes[dialler]
        answer = self.ask(acceptor, core.hello(self.clocks(dialler)))
        if isinstance(answer, Failed):
            self.feed(dialler, HelloRefused(acceptor, answer.code, answer.detail, answer.needed))
            return
        assert isinstance(answer, Welcome), answer
        up = LinkUp(
            acceptor,
            answer.incarnation,
            answer.stamp,
            answer.seen,
            answer.position,
            answer.position_by,
        )
        self.queue.append((dialler, up))
        self.run()

    def kill(self, name: NodeId) -> None:
        """kill -9: what is in memory is gone; what was persisted is there."""
        del self.nodes[name], self.drivers[name]
        self.queue = deque(item for item in self.queue if item[0] != name)
        for peer in self.nodes:
            self.queue.append((peer, LinkDown(name)))
        self.run()

    def stop(self, name: NodeId) -> None:
        """A clean stop."""
        self.feed(name, CleanStop())
        self.kill(name)

    def feed(self, name: NodeId, *events: object) -> None:
        self.queue.extend((name, event) for event in events)
        self.run()

    def run(self) -> None:
        """Deliver everything that is under way."""
        steps = 0
        for driver in list(self.drivers.values()):
            if driver.events:
                driver.feed()
        while self.queue:
            name, event = self.queue.popleft()
            if isinstance(event, Restart):
                self.restarts.append((name, event.reason))
                self.kill(name)
                self.start(name)
            elif name in self.drivers:
                self.drivers[name].feed(event)  # type: ignore[arg-type]
            steps += 1
            assert steps < 100_000, "the cluster does not come to rest"
        for name in self.nodes:
            self.check(name)

    def check(self, name: NodeId) -> None:
        """Check all invariants of a node: every few steps where it has little, else so often that steps are the cost.

        A check looks at every run of messages of every group, where a step looks at a few.
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
        """What a step of a node led to, or what waited for one of these."""
        Driver.carry_out(self.drivers[name], effects)
        self.check(name)

    def send(self, sender: NodeId, to: NodeId, message: object) -> None:
        core, peer = self.nodes[sender], self.nodes.get(to)
        if peer is None or to not in core.state.links or self.drop(sender, to, message):
            return
        envelope = Envelope(
            sender,
            core.state.incarnation,
            to,
            peer.state.incarnation,
            core.state.clock.value,
            message,  # type: ignore[arg-type]
        )
        if self.delay:
            self.sent += 1
            heapq.heappush(self.underway, (self.time + self.delay, self.sent, to, Received(envelope)))
        else:
            self.queue.append((to, Received(envelope)))

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
            for driver in list(self.drivers.values()):
                driver.feed()
            while self.underway and self.underway[0][0] <= self.time:
                *_, to, received = heapq.heappop(self.underway)
                self.queue.append((to, received))
            self.run()
        self.time = until

    # ----------------------------------------------------------------- requests

    def submit(self, name: NodeId, request: object) -> int:
        """Send a client's request; its key. The reply may come later."""
        self.keys += 1
        self.feed(name, Request(self.keys, request))  # type: ignore[arg-type]
        return self.keys

    def ask(self, name: NodeId, request: object) -> ClientReply:
        """Send a client's request that is answered without time passing."""
        key = self.submit(name, request)
        assert key in self.replies, f"{request} was not answered"
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
        """A batch; ``published_ms`` is what its producer's time of day says, where that is not the right one."""
        records = [Message(payload) for payload in payloads]
        where = PartitionId(topic.id, partition)
        made = self.now.wall_ms if published_ms is None else published_ms
        return build_batch(where, producer_id, first, made, records, delay_ms=delay_ms, ttl_ms=ttl_ms)


class Watched(Driver):
    """The driver of one node of a cluster, and what it drives the core with: everything is durable at once."""

    def __init__(self, cluster: Cluster, name: NodeId) -> None:
        super().__init__(cluster.nodes[name], self, self, cluster.rng)
        self.cluster = cluster
        self.name = name

    def carry_out(self, effects: Iterable[Effect | Done]) -> None:
        self.cluster.carry_out(self.name, effects)

    # ------------------------------------------------------------------------- port

    def now(self) -> Now:
        return self.cluster.clocks(self.name)

    def send(self, to: NodeId, message: PeerMessage) -> None:
        self.cluster.send(self.name, to, message)

    def send_stored(self, effect: SendStored) -> None:
        to, epoch, number, age_ms = effect
        assert number not in self.cluster.forgotten[self.name], f"batch {number} was forgotten"
        for record in self.cluster.journals[self.name]:
            if isinstance(record, BatchStored) and record.number == number:
                self.send(to, Store(0, epoch, record.batch, age_ms))

    def reply(self, key: int, reply: ClientReply) -> None:
        assert key not in self.cluster.replies, f"request {key} was answered twice"
        self.cluster.replies[key] = reply

    def kept(self, records: tuple[JournalRecord, ...]) -> None:
        pass

    def end(self, effect: Stop | Restart) -> None:
        if isinstance(effect, Restart):
            self.cluster.queue.append((self.name, effect))
        else:
            self.cluster.stopped[self.name] = effect.reason

    def raised(self, effect: Raised) -> None:
        raise effect.error

    def flush(self) -> None:
        pass

    # ---------------------------------------------------------------------- journal

    written = durable = 0
    needs_sync = False

    @property
    def position(self) -> int:
        return len(self.cluster.journals[self.name])

    def append(self, records: tuple[JournalRecord, ...]) -> int:
        self.cluster.journals[self.name] += records
        return 0

    def forget(self, numbers: tuple[int, ...]) -> None:
        self.cluster.forgotten[self.name].update(numbers)

    def begin_sync(self, here: bool) -> None:
        pass
