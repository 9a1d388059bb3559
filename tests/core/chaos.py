"""A cluster of node cores whose messages arrive late, in any order, twice or never, drawn from a seed.

`tests/core/cluster.py` with a network that a test can be random about. The test defines the steps; this
knows how to cut nodes off, to start them again, to wipe one, and to make everything well in the end.
"""

from __future__ import annotations

import itertools
import random

from quorumq.core.messages.effects import LinkDown
from quorumq.core.values.types import NodeId
from tests.core.cluster import Cluster


class Chaos(Cluster):
    """``count`` nodes; until `heal`, their messages wait in ``flying`` for `deliver`."""

    def __init__(self, count: int, seed: int, **settings: object) -> None:
        self.flying: list[tuple[NodeId, object]] = []
        self.calm = True
        self.apart: set[frozenset[NodeId]] = set()
        self.wiped = 0
        super().__init__(count, seed, **settings)
        self.draw = random.Random(seed)
        self.drop = lambda sender, to, message: frozenset((sender, to)) in self.apart

    def send(self, sender: NodeId, to: NodeId, message: object) -> None:
        before = len(self.queue)
        super().send(sender, to, message)
        if len(self.queue) > before and not self.calm and sender != to:
            self.flying.append(self.queue.pop())

    def link(self, dialler: NodeId, acceptor: NodeId) -> None:
        if frozenset((dialler, acceptor)) not in self.apart:
            super().link(dialler, acceptor)

    def deliver(self) -> None:
        """One message arrives; now and then it is lost, or another copy of it stays on the way."""
        if not self.flying:
            self.advance(0.02)
            return
        at = self.draw.randrange(len(self.flying))
        fate = self.draw.random()
        item = self.flying[at] if fate > 0.9 else self.flying.pop(at)
        if fate > 0.05 and item[0] in self.nodes:
            self.queue.append(item)
            self.run()

    def cut(self) -> None:
        """Some nodes cannot reach the others any more."""
        side = self.draw.sample(self.names, self.draw.randint(1, len(self.names) // 2))
        self.apart = {
            frozenset(pair)
            for pair in itertools.combinations(self.names, 2)
            if (pair[0] in side) != (pair[1] in side)
        }
        for one, other in itertools.permutations(self.names, 2):
            if frozenset((one, other)) in self.apart and one in self.nodes:
                self.feed(one, LinkDown(other))

    def rejoin(self) -> None:
        """There are ways between all of them again."""
        self.apart = set()
        for one, other in itertools.permutations(self.names, 2):
            if one in self.nodes and other in self.nodes and other not in self.nodes[one].state.links:
                self.link(one, other)

    def restart(self) -> None:
        """kill -9, and a start."""
        name = self.draw.choice(self.names)
        self.kill(name)
        self.start(name)

    def wipe(self) -> None:
        """One node loses its disk, once, while all others are trusted."""
        name = self.draw.choice(self.names)
        if self.wiped or not all(core.state.trusted for core in self.nodes.values()):
            return
        self.wiped += 1
        self.kill(name)
        self.journals[name] = []
        self.dropped[name] = set()
        self.start(name)

    def heal(self) -> None:
        """No more faults; messages under way arrive."""
        self.calm = True
        self.rejoin()
        for item in self.flying:
            if item[0] in self.nodes:
                self.queue.append(item)
        self.flying = []
        self.run()
        self.advance(15.0)
