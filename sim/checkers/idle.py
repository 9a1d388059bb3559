"""Nobody idles while work waits (protocol.md, FETCH): what is free goes to a client that has nothing in hand.

A client idles from when it has acked all that it had until its next delivery; one whose process died has no next. A
message waits from when its last delivery ran out, or it was published, until it is delivered, or the run ends. Both at
once may last ``BOUND_S``: a client pauses before it asks again, and a server ends a hold later than the client does.
Asked only of histories in which no answer is lost, and nothing is rejected or left.
"""

from __future__ import annotations

from quorumq.history import Row
from sim.checkers.base import Checker, GroupKey, Key, Violation, group_messages, messages, name

BOUND_S = 1.0


class NobodyIdles(Checker):
    kinds = ("publish", "deliver", "ack", "list", "phase")
    promise = "idle"

    def __init__(self) -> None:
        self.published: dict[Key, float] = {}
        self.free: dict[GroupKey, float] = {}  # since when, of what was delivered and not acked
        self.hands: dict[str, dict[GroupKey, None]] = {}
        self.idle: dict[tuple[str, str], float] = {}  # since when, by group and client
        self.healed_at = 0.0
        self.found: list[Violation] = []

    def see(self, row: Row) -> None:
        kind, who, at = row["kind"], row["who"], row["at"]
        if kind == "phase":
            if row["phase"] == "healed":
                self.healed_at = at
        elif kind == "publish":
            if row["outcome"] == "ok":
                self.published.update((key, at) for key in messages(row))
        elif kind == "deliver":
            hand = self.hands.setdefault(who, {})
            for key in group_messages(row):
                self.waited(key, at)
                self.free[key] = row["until"]
                hand[key] = None
            self.idle.pop((row["group"], who), None)
        elif kind == "ack":
            hand = self.hands[who]
            for key in group_messages(row):
                hand.pop(key, None)
                self.free.pop(key, None)
            if not hand:
                self.idle.setdefault((row["group"], who), at)
        else:
            for key in group_messages(row):
                self.free.pop(key, None)

    def waited(self, key: GroupKey, at: float) -> None:
        """The message waited until now: who could have had it before?"""
        since = self.free.get(key, self.published.get(key[1:], at))
        for (group, who), idle in self.idle.items():
            if group == key[0] and (both := at - max(since, idle)) > BOUND_S:
                text = f"{who} had nothing in hand for {both:.1f} s while {name(key)} waited"
                self.found.append(Violation(self.promise, at, text))

    def verdict(self) -> list[Violation]:
        for key in list(self.free):
            self.waited(key, self.healed_at)
        return self.found
