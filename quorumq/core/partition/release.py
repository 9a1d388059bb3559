"""Progress of a node that left a replica set: which slots still lack some of its payload."""

from __future__ import annotations

from quorumq.core.values.types import NodeId, Now, Span


class Release:
    """The question that a source has open to the slots of its set, and their answers.

    Attributes:
        number: number of the question; answers to earlier ones do not count.
        asked: the nodes that got it.
        until: monotonic seconds until which their answers are awaited.
        lacking: number of messages that a node lacks of those asked about; -1 if it cannot know.
        released_to: the last message up to which every slot lacks nothing.
        is_over: True if no slot lacks anything.
    """

    __slots__ = ("asked", "is_over", "lacking", "number", "released_to", "until")

    def __init__(self) -> None:
        self.number = 0
        self.asked: tuple[NodeId, ...] = ()
        self.until = 0.0
        self.lacking: dict[NodeId, int] = {}
        self.released_to: Span | None = None
        self.is_over = False

    def is_open(self, now: Now) -> bool:
        """Return True if an answer may be under way. The question is not repeated then, or no slow answer counts."""
        return now.mono < self.until and any(node not in self.lacking for node in self.asked)

    def ask(self, number: int, nodes: tuple[NodeId, ...], until: float) -> None:
        """Note that these nodes are asked about the next messages."""
        self.number, self.asked, self.until, self.lacking = number, nodes, until, {}

    def has_all(self, nodes: tuple[NodeId, ...]) -> bool:
        """Return True if each of these nodes has answered that it lacks nothing."""
        return all(self.lacking.get(node) == 0 for node in nodes)
