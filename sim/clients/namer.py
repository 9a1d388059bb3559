"""Client that publishes messages under names of its own, as others do: each name is to be one message."""

from __future__ import annotations

from typing import Any

from quorumq.core.messages import Failed, FindName, FindNameReply, PublishReply
from quorumq.core.values.errors import Code
from quorumq.core.values.names import number_at
from quorumq.core.values.types import NAMED, Batch, PartitionId, ProducerId
from quorumq.wire.batch import Message, build_batch
from sim.clients.client import Answer, Client

NAMES = 3
WINDOWS_S = (0, 60, 60, 3600)
"""Windows that names are drawn from; a minute ends 1.5 s after each run begins (`EPOCH_MS`)."""
APART_MS = 4000
"""Time by which tries of one name are made earlier than they are sent, at most: replicas keep copies of either."""


class Namer(Client):
    """Asks for the id of one of a few names, and publishes under it; the same batch until its outcome is known."""

    def begin(self, _: object = None, __: object = None) -> None:
        if self.world.healed:
            return
        if self.topics.created:
            window_s = self.rng.choice(WINDOWS_S)
            self.find(window_s, window_s + self.rng.randrange(NAMES))
        self.later(self.rng.random() * 0.8, self.begin)

    def find(self, window_s: int, name: int) -> None:
        """Ask for the id of a name, once; without a window it is known."""
        topic = self.topics.current
        assert topic is not None
        partition = PartitionId(topic.id, name % topic.born)
        asked = self.world.time
        published_ms = self.wall_ms - self.rng.randrange(APART_MS)

        def then(answer: Answer, _: Any) -> None:
            if isinstance(answer, FindNameReply):
                if answer.known:
                    self.world.saw("a name was known")
                    if answer.producer_id.k != number_at(window_s, self.wall_ms):
                        self.world.saw("a name was known from another window")
                text = Message(b"named %d" % name)
                batch = build_batch(partition, answer.producer_id, name, published_ms, [text])
                self.publish(batch, asked, "")

        if window_s:
            self.ask(self.node(), FindName(partition, window_s, 0, name), self.timeout, then)
        else:
            then(FindNameReply(ProducerId(NAMED, 0, 0, 0), False), None)

    def publish(self, batch: Batch, asked: float, tried: str) -> None:
        """Publish it through a node, another than the one just tried."""
        node = self.node(tried)

        def then(answer: Answer, _: Any) -> None:
            conflict = isinstance(answer, Failed) and answer.code == Code.CONFLICT
            if not (isinstance(answer, PublishReply) or conflict):
                self.later(0.02 + self.rng.random() * 0.1, self.publish, batch, asked, node)

        self.send_batch(batch, node, 0, then, asked=asked)
