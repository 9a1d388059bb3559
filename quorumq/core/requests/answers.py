"""Answers in chunks to what a learning node asks of its peers: about registers, or about one partition.

Each question has a number of its own, and is repeated until its answer is complete.
"""

from __future__ import annotations

from quorumq.core.messages import ResyncReply
from quorumq.core.values.types import NodeId, PartitionId

Part = tuple[NodeId, PartitionId | None]
"""One peer's part of what is learned: its registers (None), or what it has of one partition."""


class Answers:
    """Complete answers, and those still awaited.

    Attributes:
        complete: parts whose answers are here.
        asked: number of the question that an answer to a part counts for.
    """

    __slots__ = ("_at", "_chunks", "asked", "complete")

    def __init__(self) -> None:
        self.complete: dict[Part, None] = {}
        self.asked: dict[Part, int] = {}
        self._at: dict[Part, int] = {}  # the place to go on from
        self._chunks: dict[Part, dict[int, None]] = {}

    def ask(self, part: Part, number: int) -> int:
        """Note that question ``number`` asks for the rest of a part, and return the place to go on from."""
        self.asked[part] = number
        self._chunks[part] = {}
        return self._at.get(part, 0)

    def take(self, sender: NodeId, message: ResyncReply) -> bool:
        """Count a chunk; return True if it is the last one of the answer to an open question."""
        part = (sender, message.partition)
        if self.asked.get(part) != message.round:
            return False
        chunks = self._chunks[part]
        chunks[message.chunk] = None
        if len(chunks) < message.chunks:
            return False
        del self.asked[part]
        if message.following:
            self._at[part] = message.following
        else:
            self.complete[part] = None
        return True

    def discard(self, partition: PartitionId) -> None:
        """Drop all about a partition: its replica set is another one now."""
        tables: tuple[dict[Part, object], ...] = (self.complete, self.asked, self._at, self._chunks)  # type: ignore[assignment]
        for table in tables:
            for part in [part for part in table if part[1] == partition]:
                del table[part]
