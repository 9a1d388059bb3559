"""Counts of records in data directories: this node's own, which it reports, and those that its peers reported.

If a node finds fewer records than it once reported to a peer, it has an older copy of its directory (docs/protocol.md,
RECOVERY). So it reports its count of durable records with STORED, TOMBED and heartbeats, and each peer journals it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from quorumq.core.messages import AckReply, StoreReply
from quorumq.core.messages.effects import Effect, Persist, Send
from quorumq.core.messages.records import PeerPosition, PeerSeen
from quorumq.core.values.types import NodeId, Now

_new: Any = tuple.__new__

POSITIONED: Final = {kind: kind._fields.index("position") for kind in (StoreReply, AckReply)}
"""Messages with the position of their sender's directory, and the field's index in them."""

POSITIONS_EVERY_S = 5.0
"""Shortest interval between journal records of the peers' positions, in seconds."""


class Positions:
    """Counts of records, of this directory and of the peers'.

    Attributes:
        counting: True if the driver counts the records of the directory at all.
        at_start: records that this start found.
        appended: records found, and those that this start has appended.
        durable: records that are durable, by the driver's last report.
        reported: each peer's last report, and the start that made it.
    """

    __slots__ = ("appended", "at_start", "counting", "due", "durable", "fresh", "quiet", "reported")

    def __init__(self, reported: dict[NodeId, tuple[int, int]]) -> None:
        self.counting = False
        self.at_start = 0
        self.appended = 0
        self.durable = 0
        self.reported = reported
        self.fresh: dict[NodeId, None] = {}  # those that are not in the journal yet
        self.due = 0.0  # not to be journaled before
        self.quiet = 0  # nor before something else was

    def begin(self, records: int) -> None:
        """Note that this start found ``records`` records, and that the driver goes on counting."""
        self.counting = True
        self.at_start = self.appended = self.durable = records

    def count(self, effects: list[Effect]) -> list[Effect]:
        """Count the records, and have STORED and TOMBED say how many are durable once they may be sent.

        So a peer that relied on one knows it if a later start of this node finds fewer.
        """
        if self.counting:
            for at, effect in enumerate(effects):
                if type(effect) is Persist:
                    self.appended += len(effect.records)
                    for index, item in enumerate(effect.then):
                        if type(item) is Send and type(item.message) in POSITIONED:
                            message: Any = item.message
                            there = POSITIONED[type(message)]
                            fields = (*message[:there], self.appended, *message[there + 1 :])
                            said = _new(Send, (item.to, _new(type(message), fields)))
                            then = (*effect.then[:index], said, *effect.then[index + 1 :])
                            effects[at] = effect = _new(Persist, (effect.records, then))
        return effects

    def on_durable(self, position: int) -> None:
        """Note that ``position`` records of this directory are durable."""
        if self.counting and position > self.durable:
            self.durable = position

    def discard(self, node: NodeId) -> None:
        """Drop the position of a peer that has another directory now."""
        self.reported.pop(node, None)
        self.fresh.pop(node, None)

    def records(self, seen: Mapping[NodeId, tuple[PeerSeen, ...]], now: Now) -> tuple[PeerPosition, ...]:
        """Return the peers' reported positions to journal: now and then, if anything else was written since.

        Otherwise two idle nodes would keep journalling each other's growing counts.
        """
        if now.mono < self.due or self.durable <= self.quiet or not self.fresh:
            return ()
        records = tuple(
            PeerPosition(node, seen[node][-1].directory, *self.reported[node]) for node in sorted(self.fresh)
        )
        self.fresh.clear()
        self.due = now.mono + POSITIONS_EVERY_S
        self.quiet = self.durable + len(records)
        return records

    def check(self) -> None:
        assert self.durable <= self.appended, "the driver counts what was never appended"
