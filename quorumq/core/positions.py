"""How many records a data directory has: what this node tells of its own, and what its peers told of theirs.

A node that finds fewer records than it once told a peer has an older copy of its directory (docs/protocol.md,
RECOVERY). So it says how many are durable with what promises something, and each peer writes down what it was told.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from quorumq.core.effects import Effect, Persist, Send
from quorumq.core.messages import AckReply, StoreReply
from quorumq.core.records import PeerPosition, PeerSeen
from quorumq.core.types import NodeId, Now

_new: Any = tuple.__new__

POSITIONED: Final = {kind: kind._fields.index("position") for kind in (StoreReply, AckReply)}
"""Messages with the position of their sender's directory: at which place in them."""

POSITIONS_EVERY_S = 5.0
"""How often the positions of the peers are journaled at most."""


class Positions:
    """Counts of records, of this directory and of the peers'.

    Attributes:
        counting: whether the driver counts the records of the directory at all.
        found: how many of them this start found.
        appended: how many there are with those that this start has appended.
        durable: how many are durable, as far as we were told.
        told: what each peer told last, and which start of it.
    """

    __slots__ = ("appended", "counting", "due", "durable", "found", "fresh", "quiet", "told")

    def __init__(self, told: dict[NodeId, tuple[int, int]]) -> None:
        self.counting = False
        self.found = 0
        self.appended = 0
        self.durable = 0
        self.told = told
        self.fresh: dict[NodeId, None] = {}  # those that are not in the journal yet
        self.due = 0.0  # not to be journaled before
        self.quiet = 0  # nor before something else was

    def begin(self, found: int) -> None:
        """So many records were found by this start, and the driver goes on counting."""
        self.counting = True
        self.found = self.appended = self.durable = found

    def count(self, effects: list[Effect]) -> list[Effect]:
        """Count the records, and have STORED and TOMBED say how many are durable once they may be sent.

        So a peer that relied on one knows it, should a later start of ours find fewer.
        """
        if self.counting:
            for at, effect in enumerate(effects):
                if type(effect) is Persist:
                    self.appended += len(effect.records)
                    for place, item in enumerate(effect.then):
                        if type(item) is Send and type(item.message) in POSITIONED:
                            message: Any = item.message
                            there = POSITIONED[type(message)]
                            fields = (*message[:there], self.appended, *message[there + 1 :])
                            said = _new(Send, (item.to, _new(type(message), fields)))
                            then = (*effect.then[:place], said, *effect.then[place + 1 :])
                            effects[at] = effect = _new(Persist, (effect.records, then))
        return effects

    def on_durable(self, position: int) -> None:
        """So many records of this directory are durable."""
        if self.counting and position > self.durable:
            self.durable = position

    def forget(self, node: NodeId) -> None:
        """The peer has another directory now."""
        self.told.pop(node, None)
        self.fresh.pop(node, None)

    def records(self, seen: Mapping[NodeId, tuple[PeerSeen, ...]], now: Now) -> tuple[PeerPosition, ...]:
        """What the peers told of theirs, to be journaled: now and then, where anything else was written since.

        Else two idle nodes would go on writing down each other's writing.
        """
        if now.mono < self.due or self.durable <= self.quiet or not self.fresh:
            return ()
        records = tuple(
            PeerPosition(node, seen[node][-1].directory, *self.told[node]) for node in sorted(self.fresh)
        )
        self.fresh.clear()
        self.due = now.mono + POSITIONS_EVERY_S
        self.quiet = self.durable + len(records)
        return records

    def check(self) -> None:
        """Assert what holds between any two steps."""
        assert self.durable <= self.appended, "the driver counts what was never appended"
