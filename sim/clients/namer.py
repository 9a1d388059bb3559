"""Client that publishes messages under names of its own, as others do: each name is to be one message."""

from __future__ import annotations

from typing import Any

from quorumq.core.messages import Failed, FindName, FindNameReply, PublishReply
from quorumq.core.values.errors import Code
from quorumq.core.values.types import Batch, PartitionId
from quorumq.wire.batch import Message, build_batch
from sim.clients.client import Answer, Client
from sim.world import EPOCH_MS

NAMES = 3
WINDOW_S = 60
PUBLISHED_MS = EPOCH_MS
"""Time of day of every try: the checkers of rewinds take that of the first one for the message's."""


class Namer(Client):
    """Asks for the id of one of a few names, and publishes under it; the same batch until its outcome is known."""

    def begin(self, _: object = None, __: object = None) -> None:
        if self.world.healed:
            return
        if self.topics.current is not None:
            self.find(self.rng.randrange(NAMES))
        self.later(self.rng.random() * 0.8, self.begin)

    def find(self, name: int) -> None:
        """Ask for the id of a name, once."""
        topic = self.topics.current
        assert topic is not None
        partition = PartitionId(topic.id, name % topic.born)
        asked = self.world.time

        def then(answer: Answer, _: Any) -> None:
            if isinstance(answer, FindNameReply):
                if answer.known:
                    self.world.saw("a name was known")
                text = Message(b"named %d" % name)
                batch = build_batch(partition, answer.producer_id, name, PUBLISHED_MS, [text])
                self.publish(batch, asked, "")

        self.ask(self.node(), FindName(partition, WINDOW_S, 0, name), self.timeout, then)

    def publish(self, batch: Batch, asked: float, tried: str) -> None:
        """Publish it through a node, another than the one just tried."""
        node = self.node(tried)

        def then(answer: Answer, _: Any) -> None:
            conflict = isinstance(answer, Failed) and answer.code == Code.CONFLICT
            if not (isinstance(answer, PublishReply) or conflict):
                self.later(0.02 + self.rng.random() * 0.1, self.publish, batch, asked, node)

        self.send_batch(batch, node, 0, then, asked=asked)
