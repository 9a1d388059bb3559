"""A cluster of node cores in one process, on a network that is perfect but for the cuts that a test makes.

A message between nodes arrives at once and in order, and a record is durable at once. The cores and their drivers are
those of a node process; only sockets, disks and clocks are missing.
"""

from __future__ import annotations

import random
from abc import abstractmethod
from collections import defaultdict, deque
from collections.abc import Iterable
from typing import Final

from quorumq.core.cluster.state import NodeConfig
from quorumq.core.messages import ClientReply, Envelope, Failed, PeerMessage, Store, Welcome
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
from quorumq.core.messages.records import NUMBERED, BatchStored, JournalRecord
from quorumq.core.node.nodecore import NodeCore
from quorumq.core.values.types import ClusterLayout, NodeId, Now
from quorumq.driver import Driver

NAMES: Final = "abcdefghi"
"""Names of nodes, one character each."""

STEPS_MAX: Final = 100_000
"""Steps of all nodes between two moments of time, at most; more are a circle of messages."""


class Nodes:
    """Cores that talk to each other.

    Attributes:
        journals: durable records of each node, also of a killed one.
        dropped: numbers of the batches whose bytes each node has dropped.
        layouts: layout of the cluster that each node was let in by that was added; ``names`` has these, too.
        isolated: nodes that no message reaches or leaves.
        stopped: reasons of the nodes that have ended by themselves.
    """

    def __init__(self, count: int, rng: random.Random, **settings: object) -> None:
        self.rng = rng
        self.names = tuple(NAMES[:count])
        self.layouts: dict[NodeId, ClusterLayout] = {}
        self.settings = {"auto_create_topics": True, **settings}
        self.journals: dict[NodeId, list[JournalRecord]] = {name: [] for name in self.names}
        self.dropped: defaultdict[NodeId, set[int]] = defaultdict(set)
        self.nodes: dict[NodeId, NodeCore] = {}
        self.drivers: dict[NodeId, Driver] = {}
        self.queue: deque[tuple[NodeId, object]] = deque()
        self.replies: dict[int, ClientReply] = {}
        self.keys = 0
        self.stopped: dict[NodeId, str] = {}
        self.restarts: list[tuple[NodeId, str]] = []
        self.isolated: set[NodeId] = set()
        for name in self.names:
            self.start(name)

    @abstractmethod
    def clocks(self, name: NodeId) -> Now:
        """Return both clocks of a node."""

    # ------------------------------------------------------------------------ nodes

    def start(self, name: NodeId) -> None:
        """Start a node from its journal, and link it to every node that it reaches."""
        founders = tuple(other for other in self.names if other not in self.layouts)
        config = NodeConfig(node=name, nodes=founders, layout=self.layouts.get(name), **self.settings)  # type: ignore[arg-type]
        self.nodes[name] = self.make(name, config)
        self.drivers[name] = NodeDriver(self, name)
        self.drivers[name].start()
        self.run()
        self.join(name)

    def make(self, name: NodeId, config: NodeConfig) -> NodeCore:
        """Return a new core with the records of its journal."""
        core = NodeCore(
            config,
            self.records_of(name),
            nonce=self.rng.getrandbits(64),
            directory=self.rng.getrandbits(64),
            now=self.clocks(name),
            rng=self.rng,
            location=1 + self.names.index(name),
        )
        self.number(name, core)
        return core

    def number(self, name: NodeId, core: NodeCore) -> None:
        """Have a new core go on with the position and the batch numbers of its journal."""
        core.take_position(len(self.journals[name]))
        core.state.next_batch = 1 + sum(isinstance(record, NUMBERED) for record in self.journals[name])

    def records_of(self, name: NodeId) -> list[JournalRecord]:
        """Return the records of a node's journal, without batches whose bytes were dropped."""
        dropped = self.dropped[name]
        return [it for it in self.journals[name] if not (isinstance(it, NUMBERED) and it.number in dropped)]

    def join(self, name: NodeId) -> None:
        """Link a node to every node that it reaches, both ways."""
        for peer in self.names:
            if peer != name and peer in self.nodes:
                self.link(name, peer)
                self.link(peer, name)
        self.run()

    def link(self, dialler: NodeId, acceptor: NodeId) -> None:
        """Have one node dial another."""
        if self.unreachable(dialler) or self.unreachable(acceptor):
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

    def unreachable(self, name: NodeId) -> bool:
        """Return True if the node has ended by itself or is cut off."""
        return name in self.stopped or name in self.isolated

    def kill(self, name: NodeId) -> None:
        """End a node at once: memory is lost, the journal stays."""
        del self.nodes[name], self.drivers[name]
        self.queue = deque(item for item in self.queue if item[0] != name)
        for peer in self.nodes:
            self.queue.append((peer, LinkDown(name)))
        self.run()

    def stop(self, name: NodeId) -> None:
        """End a node cleanly, as a service manager does."""
        self.feed(name, CleanStop())
        self.kill(name)

    def cut(self, name: NodeId) -> None:
        """Cut a node off: it runs, and no message reaches it or leaves it."""
        self.isolated.add(name)
        for peer in self.nodes:
            if peer != name:
                self.queue += ((peer, LinkDown(name)), (name, LinkDown(peer)))
        self.run()

    def mend(self, name: NodeId) -> None:
        """End the cut of a node."""
        self.isolated.discard(name)
        if name in self.nodes:
            self.join(name)

    # ---------------------------------------------------------------------- driving

    def feed(self, name: NodeId, *events: object) -> None:
        """Give events to a node, and carry out all that follows."""
        self.queue.extend((name, event) for event in events)
        self.run()

    def run(self) -> None:
        """Deliver all messages that are under way."""
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
            assert steps < STEPS_MAX, "the cluster does not come to rest"

    def wake_due(self) -> None:
        """Have each node take a step if its deadline is due."""
        for name, driver in list(self.drivers.items()):
            due = driver.next_deadline()
            if due is not None and due <= self.clocks(name).mono:
                driver.feed()

    def carry_out(self, name: NodeId, effects: Iterable[Effect | Done]) -> None:
        Driver.carry_out(self.drivers[name], effects)

    def envelope(self, sender: NodeId, to: NodeId, message: object) -> Received | None:
        """Return a message as its receiver gets it; None if it does not arrive."""
        core, peer = self.nodes[sender], self.nodes.get(to)
        if peer is None or to not in core.state.links or {sender, to} & self.isolated:
            return None
        return Received(
            Envelope(
                sender,
                core.state.incarnation,
                to,
                peer.state.incarnation,
                core.state.clock.value,
                message,  # type: ignore[arg-type]
            )
        )

    def send(self, sender: NodeId, to: NodeId, message: object) -> None:
        received = self.envelope(sender, to, message)
        if received is not None:
            self.queue.append((to, received))

    def batch_of(self, name: NodeId, number: int) -> BatchStored:
        for record in reversed(self.journals[name]):
            if isinstance(record, BatchStored) and record.number == number:
                return record
        raise AssertionError(f"{name} has no batch {number}")

    # --------------------------------------------------------------------- requests

    def ask(self, name: NodeId, request: object) -> ClientReply:
        """Return the answer to a request that is answered without time passing."""
        self.keys += 1
        key = self.keys
        self.feed(name, Request(key, request))  # type: ignore[arg-type]
        assert key in self.replies, f"{request} was not answered"
        return self.replies.pop(key)

    def take_reply(self, key: int, reply: ClientReply) -> None:
        assert key not in self.replies, f"request {key} was answered twice"
        self.replies[key] = reply


class NodeDriver(Driver):
    """Driver of one node, and the world of its core: everything is durable at once."""

    def __init__(self, nodes: Nodes, name: NodeId) -> None:
        super().__init__(nodes.nodes[name], self, self, nodes.rng)
        self.world = nodes
        self.name = name

    def carry_out(self, effects: Iterable[Effect | Done]) -> None:
        self.world.carry_out(self.name, effects)

    # ------------------------------------------------------------------------- port

    def now(self) -> Now:
        return self.world.clocks(self.name)

    def send(self, to: NodeId, message: PeerMessage) -> None:
        self.world.send(self.name, to, message)

    def send_stored(self, effect: SendStored) -> None:
        to, epoch, number, age_ms = effect
        assert number not in self.world.dropped[self.name], f"batch {number} was dropped"
        self.send(to, Store(0, epoch, self.world.batch_of(self.name, number).batch, age_ms))

    def reply(self, key: int, reply: ClientReply) -> None:
        self.world.take_reply(key, reply)

    def kept(self, records: tuple[JournalRecord, ...]) -> None:
        pass

    def end(self, effect: Stop | Restart) -> None:
        if isinstance(effect, Restart):
            self.world.queue.append((self.name, effect))
        else:
            self.world.stopped[self.name] = effect.reason

    def raised(self, effect: Raised) -> None:
        raise effect.error

    def flush(self) -> None:
        pass

    # ---------------------------------------------------------------------- journal

    written = durable = 0
    needs_sync = False

    @property
    def position(self) -> int:
        return len(self.world.journals[self.name])

    def append(self, records: tuple[JournalRecord, ...]) -> int:
        self.world.journals[self.name] += records
        return 0

    def drop(self, numbers: tuple[int, ...]) -> None:
        self.world.dropped[self.name].update(numbers)

    def begin_sync(self, here: bool) -> None:
        pass
