"""Answers in chunks to the questions of a learning node: about registers, or about one partition.

Each question has a number of its own, and is repeated until its answer is complete. An answer to an earlier question
counts as well. If answers take longer than the pause between questions, the last question never has one in time.
"""

from __future__ import annotations

from typing import Final

from quorumq.core.messages import ResyncReply
from quorumq.core.values.types import NodeId, PartitionId

Subject = tuple[NodeId, PartitionId | None]
"""One peer's part of an answer: its registers (None), or its state of one partition."""

QUESTIONS_MAX: Final = 16
"""Questions about one part, in a row, whose answers count."""


class ResyncAnswers:
    """Complete answers, and those still awaited.

    Attributes:
        complete: parts whose answers are here.
        asked: received chunks of open parts, by the number of the question that they answer.
    """

    __slots__ = ("_at", "asked", "complete")

    def __init__(self) -> None:
        self.complete: dict[Subject, None] = {}
        self.asked: dict[Subject, dict[int, dict[int, None]]] = {}
        self._at: dict[Subject, int] = {}  # the place to go on from

    def ask(self, part: Subject, number: int) -> int:
        """Note that question ``number`` asks for the rest of a part, and return the place to go on from."""
        questions = self.asked.setdefault(part, {})
        questions[number] = {}
        if len(questions) > QUESTIONS_MAX:
            del questions[next(iter(questions))]
        return self._at.get(part, 0)

    def take(self, sender: NodeId, message: ResyncReply) -> bool:
        """Count a chunk; return True if it is the last one of the answer to an open question."""
        part = (sender, message.partition)
        chunks = self.asked.get(part, {}).get(message.round)
        if chunks is None:
            return False
        chunks[message.chunk] = None
        if len(chunks) < message.chunks:
            return False
        del self.asked[part]
        if message.following:
            self._at[part] = message.following
        else:
            self.complete[part] = None
        return True

    def reopen(self, part: Subject) -> None:
        """Drop a complete answer: the next repetition of the question asks for it from the beginning."""
        del self.complete[part]
        self._at.pop(part, None)
        self.asked[part] = {}

    def discard(self, partition: PartitionId | None) -> None:
        """Drop all about a partition, or the registers (None): their set of nodes is another one now."""
        tables: tuple[dict[Subject, object], ...] = (self.complete, self.asked, self._at)  # type: ignore[assignment]
        for table in tables:
            for part in [part for part in table if part[1] == partition]:
                del table[part]
