"""Progress of a copy: which slots lack payload that a node which left has, or which learners lack a slot's."""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

from quorumq.core.values.types import NodeId, Now, Span

PROGRESS_KEPT: Final = 16
"""Counts of one copy that are kept for its rate."""

PROGRESS_STEP_S: Final = 1.0
"""Seconds between counts that are kept. Answers may be more frequent, and a rate over less would be noise."""


class Progress(NamedTuple):
    """Progress of a copy: the number of messages to go, messages a second, and seconds left; None if unknown."""

    messages_left: int | None = None
    messages_per_s: float | None = None
    seconds_left: float | None = None


class Handoff:
    """The question that a source has open to the slots of its set, and their answers.

    Attributes:
        number: number of the question, also if it is repeated; answers to another one do not count.
        spans: messages that it is about.
        asked: the nodes that got it.
        until: monotonic seconds until which their answers are awaited.
        lacking: number of messages that a node lacks of those asked about; -1 if it cannot know.
        released_to: the last message up to which every slot lacks nothing.
        is_over: True if no node that was asked lacks anything.
        beyond: number of messages after those that the question is about.
        counts: the last numbers of messages to go, each with its time (monotonic seconds).
    """

    __slots__ = ("asked", "beyond", "counts", "is_over", "lacking", "number", "released_to", "spans", "until")

    def __init__(self) -> None:
        self.number = 0
        self.spans: tuple[Span, ...] = ()
        self.asked: tuple[NodeId, ...] = ()
        self.until = 0.0
        self.lacking: dict[NodeId, int] = {}
        self.released_to: Span | None = None
        self.is_over = False
        self.beyond = 0
        self.counts: deque[tuple[float, int]] = deque(maxlen=PROGRESS_KEPT)

    def is_open(self, now: Now) -> bool:
        """Return True if an answer may be under way. The question is not repeated then, or no slow answer counts."""
        return now.mono < self.until and any(node not in self.lacking for node in self.asked)

    def ask(
        self, number: int, spans: tuple[Span, ...], nodes: tuple[NodeId, ...], until: float, beyond: int
    ) -> None:
        """Note that these nodes are asked about the next messages, and not about ``beyond`` later ones."""
        self.number, self.spans, self.asked, self.until = number, spans, nodes, until
        self.lacking, self.beyond = {}, beyond

    def begin_anew(self) -> None:
        """Ask about all messages again. Until an answer says otherwise, none is lacking."""
        self.number, self.spans, self.released_to = 0, (), None

    def count(self, nodes: tuple[NodeId, ...], now: Now) -> None:
        """Note how many messages are to go, once each of these nodes has said how many it lacks."""
        lacking = [self.lacking.get(node, -1) for node in nodes]
        if min(lacking) < 0:
            return
        messages, counts = max(lacking) + self.beyond, self.counts
        if counts and messages > counts[-1][1]:
            counts.clear()  # a slot has lost its disk: the copy begins anew
        elif len(counts) > 1 and now.mono < counts[-2][0] + PROGRESS_STEP_S:
            counts.pop()
        counts.append((now.mono, messages))

    def progress(self, now: Now) -> Progress:
        """Return what is to go by the last answers, and the rate since the oldest count that is kept."""
        if not self.counts:
            return Progress()
        (begin, most), (_, messages) = self.counts[0], self.counts[-1]
        if now.mono < begin + PROGRESS_STEP_S:
            return Progress(messages)
        rate = (most - messages) / (now.mono - begin)
        return Progress(messages, round(rate, 1), round(messages / rate, 1) if rate else None)

    def has_all(self, nodes: tuple[NodeId, ...]) -> bool:
        """Return True if each of these nodes has answered that it lacks nothing."""
        return all(self.lacking.get(node) == 0 for node in nodes)
