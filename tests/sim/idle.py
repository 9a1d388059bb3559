"""No client idles while work waits (protocol.md, FETCH): free messages go to a client that has nothing in hand.

A client idles from when it has acked all that it had until its next delivery; one whose process died has no next. A
message waits from when its last delivery ran out, or it was published, until it is delivered, or the run ends. Both at
once may last ``BOUND_S``: a client pauses before it asks again, and a server ends a hold later than the client does.
Asked only of histories in which no answer is lost, and nothing is rejected or left.
"""

from __future__ import annotations

from quorumq.history import Row
from sim.checkers.base import Checker, GroupKey, Key, group_messages, messages, name

BOUND_S = 1.0


class IdleClients(Checker):
    promise = "idle"

    def __init__(self) -> None:
        super().__init__()
        self.published: dict[Key, float] = {}
        self.free: dict[GroupKey, float] = {}  # since when, of what was delivered and not acked
        self.hands: dict[str, dict[GroupKey, None]] = {}
        self.idle: dict[tuple[str, str], float] = {}  # since when, by group and client
        self.healed_at = 0.0

    def on_phase(self, row: Row) -> None:
        if row["phase"] == "healed":
            self.healed_at = row["at"]

    def on_publish(self, row: Row) -> None:
        if row["outcome"] == "ok":
            self.published.update((key, row["at"]) for key in messages(row))

    def on_deliver(self, row: Row) -> None:
        hand = self.hands.setdefault(row["who"], {})
        for key in group_messages(row):
            self.waited(key, row["at"])
            self.free[key] = row["until"]
            hand[key] = None
        self.idle.pop((row["group"], row["who"]), None)

    def on_ack(self, row: Row) -> None:
        hand = self.hands[row["who"]]
        for key in group_messages(row):
            hand.pop(key, None)
            self.free.pop(key, None)
        if not hand:
            self.idle.setdefault((row["group"], row["who"]), row["at"])

    def on_list(self, row: Row) -> None:
        for key in group_messages(row):
            self.free.pop(key, None)

    def waited(self, key: GroupKey, at: float) -> None:
        """Report the clients that had nothing in hand while the message waited until now."""
        since = self.free.get(key, self.published.get(key[1:], at))
        for (group, who), idle in self.idle.items():
            if group == key[0] and (both := at - max(since, idle)) > BOUND_S:
                self.broken(f"{who} had nothing in hand for {both:.1f} s while {name(key)} waited", at)

    def end(self) -> None:
        for key in list(self.free):
            self.waited(key, self.healed_at)
