"""No long waits: while nothing fails, no message waits for a client that waits for it, and no publish for its answer.

The bound is in the ``settings`` line, as ``wait_max`` seconds; without one nothing is checked. A message waits from the
OK of its publish, or the end of its last delivery, until its next delivery. A client has room from its ACK of all that
it had, or its first delivery, until its next delivery: it asks again and again. Both at once may last as long as the
bound. A message whose ACK was sent is not looked at any more.
"""

from __future__ import annotations

from quorumq.history import Row
from sim.checkers.base import Checker, GroupKey, Key, group_messages, messages, name

LINKED_S = 1.0
"""Seconds after its start within which a node has its links."""


class NoLongWaits(Checker):
    """Finds long waits.

    Args:
        bound: longest wait in seconds; 0: the ``settings`` line says it.
    """

    promise = "no long waits"

    def __init__(self, bound: float = 0.0) -> None:
        super().__init__()
        self.bound = bound
        self.published: dict[Key, float] = {}
        self.sent: dict[str, float] = {}  # when each batch was first sent
        self.free: dict[GroupKey, float] = {}  # since when, of messages that were delivered and not acked
        self.acked: dict[GroupKey, None] = {}
        self.hands: dict[str, dict[GroupKey, None]] = {}
        self.idle: dict[tuple[str, str], float] = {}  # since when a client has room, by group and client
        self.healed_at = 0.0
        self.up_at = 0.0  # since when all nodes are up, and have their links

    def on_settings(self, row: Row) -> None:
        self.bound = self.bound or row["settings"].get("wait_max", 0.0)

    def on_phase(self, row: Row) -> None:
        if row["phase"] == "healed":
            self.healed_at = row["at"]

    def on_start(self, row: Row) -> None:
        self.up_at = row["at"] + LINKED_S

    def on_publish(self, row: Row) -> None:
        batch = repr((row["partition"], row["spans"]))
        sent = self.sent.setdefault(batch, row["at"])
        if row["outcome"] == "ok" and self.bound:
            self.published.update((key, row["at"]) for key in messages(row) if key not in self.published)
            if row["at"] - max(sent, self.up_at) > self.bound:
                self.broken(
                    f"{name(next(messages(row)))} was confirmed {row['at'] - sent:.1f} s after its publish"
                )

    def on_deliver(self, row: Row) -> None:
        hand = self.hands.setdefault(row["who"], {})
        for key in group_messages(row):
            if key not in self.acked:
                self.waited(key, row["at"])
            self.free[key] = row["until"]
            hand[key] = None
        self.idle.pop((row["group"], row["who"]), None)

    def on_ack(self, row: Row) -> None:
        hand = self.hands.get(row["who"], {})
        for key in group_messages(row):
            hand.pop(key, None)
            self.free.pop(key, None)
            self.acked[key] = None
        if not hand:
            self.idle.setdefault((row["group"], row["who"]), row["at"])

    def on_list(self, row: Row) -> None:
        for key in group_messages(row):
            self.free.pop(key, None)

    def waited(self, key: GroupKey, at: float) -> None:
        """Report the clients that had room while the message waited until now."""
        since = self.free.get(key, self.published.get(key[1:], at))
        for (group, who), idle in self.idle.items():
            if self.bound and group == key[0] and (both := at - max(since, idle, self.up_at)) > self.bound:
                self.broken(f"{who} had nothing in hand for {both:.1f} s while {name(key)} waited", at)

    def end(self) -> None:
        for key in list(self.free):
            self.waited(key, self.healed_at)
