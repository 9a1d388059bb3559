"""One wrong clock decides nothing: delays and TTL go by the majority of the replicas' clocks (section 2).

Judged are first lives (n = 0), in true time, give or take what clocks' rates differ by:

- a message is not delivered before it is due;
- it is not dead-lettered as expired before its time, by its own TTL, or else by the shortest that
  anybody gave the topic;
- it is not delivered to a FETCH that was sent after its time was over at every replica.

Unless too many clocks were wrong: a node's may be wrong for what it stores once its time of day was changed and it was
started again since, as nothing but a start asks the time of day. A node whose directory was lost, damaged or brought
back has no wrong clock: without the batch it does not say that it is due or expired, and what it fetches again is as
old as enough of the others say. But it cannot help to expire a message, either, that it has not fetched again. RECLAIM
is no fault and takes payload away as well (`kept: false`, or somebody creates the topic without retention): after a
rewind of the group, or for one that was made later than the message, a replica may lack a batch that it once stored,
so expiry is not judged there.
"""

from __future__ import annotations

from quorumq.history import Row
from sim.checkers.base import DEAD, Checker, Key, Violation, messages, name

LOSSES = ("wipe", "restore", "flip", "rot", "damage")
"""Faults that take something of a node's disk."""

RATE = 0.011
SLACK_S = 0.05


class OneWrongClock(Checker):
    kinds = (
        "settings",
        "set_topic",
        "set_group",
        "delete_group",
        "register",
        "publish",
        "store",
        "fault",
        "start",
        "deliver",
        "dead_letter",
    )
    promise = "one wrong clock"

    def __init__(self) -> None:
        self.made: dict[Key, tuple[float, float, float]] = {}  # when, delay, TTL
        self.stored: dict[Key, dict[str, float]] = {}  # when last, by node
        self.lost: dict[str, float] = {}  # when a node's directory was last lost or brought back
        self.changed: dict[str, None] = {}  # nodes whose time of day was changed
        self.wrong: dict[str, None] = {}  # those of them that were started since
        self.ttl_s: float | None = (
            None  # the shortest of the topic, 0 without one; None: the history does not say
        )
        self.rf = 0
        self.kept = True
        self.rewound: dict[str, None] = {}  # groups of which a rewind was asked for
        self.known: dict[str, float] = {}  # since when a node knows the group
        self.found: list[Violation] = []

    def see(self, row: Row) -> None:
        kind, at = row["kind"], row["at"]
        if kind == "settings":
            self.rf = self.rf or row["settings"].get("rf", 0)
            self.kept = row["settings"].get("kept", self.kept)
        elif kind == "publish":
            if row["outcome"] == "invoke":
                for key in messages(row):
                    self.made.setdefault(key, (at, row.get("delay", 0.0), row.get("ttl", 0.0)))
        elif kind in ("set_group", "delete_group"):
            if row.get("rewind", True):
                self.rewound[row["group"]] = None
        elif kind == "register":
            self.known.setdefault(row["group"], at)
        elif kind == "set_topic":  # a creation names the topic's own RF, and what is called so has no other
            self.rf = row.get("settings", {}).get("rf", self.rf)
            asked = row.get("settings", {}).get("ttl_s")
            if asked is not None:
                self.ttl_s = min(self.ttl_s or asked, asked or self.ttl_s or 0.0)
            made = row.get("defaults", {}) | row.get("settings", {})
            self.kept = self.kept and made.get("retention_s") != 0  # else it may be the one that won
        elif kind == "store":
            for key in messages(row):
                if key in self.made:
                    self.stored.setdefault(key, {})[row["who"]] = at
        elif kind == "fault":
            if row["fault"] in ("wall-jump", "wrong-clock"):
                self.changed.update(dict.fromkeys(f"node:{node}" for node in row["nodes"]))
            elif row["fault"] in LOSSES:
                self.lost.update(dict.fromkeys((f"node:{node}" for node in row["nodes"]), at))
        elif kind == "start":
            if row["who"] in self.changed:
                self.wrong[row["who"]] = None
        elif row["n"] == 0:
            self._judge(row)

    def _judge(self, row: Row) -> None:
        at = row["at"]
        for key in messages(row):
            if key not in self.made:
                continue
            began, delay, ttl = self.made[key]
            stored = self.stored.get(key, {})
            wrong = [node for node in stored if node in self.wrong]
            if 2 * len(wrong) >= self.rf:
                continue
            if row["kind"] == "deliver" and row["group"].endswith(DEAD):
                continue  # a dead letter is due at once, and does not expire
            if row["kind"] == "deliver":
                due = began + delay / (1 + RATE) - SLACK_S
                if delay and at < due:
                    self._found(
                        at, f"{name(key)}, to be delivered from {began + delay:.4f} s on, was delivered"
                    )
                right = [
                    when
                    for node, when in stored.items()
                    if node not in self.wrong and when > self.lost.get(node, 0.0)
                ]
                group = row["group"]
                if not self.kept and (
                    group in self.rewound or self.known.get(group, 0.0) > min(right, default=at)
                ):
                    continue
                if ttl and len(right) == self.rf and row["asked"] > max(right) + ttl * (1 + RATE) + SLACK_S:
                    text = f"{name(key)} was delivered, and had expired at all its replicas before that FETCH was sent"
                    self._found(at, text)
            elif row.get("reason") == "expired" and not ttl:
                if self.ttl_s is None:
                    continue
                if not self.ttl_s:
                    self._found(
                        at,
                        f"{name(key)} was dead-lettered as expired, and neither it nor the topic has a TTL",
                    )
                elif at < began + self.ttl_s / (1 + RATE) - SLACK_S:
                    text = f"the shortest TTL of the topic is {self.ttl_s} s"
                    self._found(
                        at,
                        f"{name(key)} was dead-lettered as expired, and {text}: it was made at {began:.4f} s",
                    )
            elif row.get("reason") == "expired" and at < began + ttl / (1 + RATE) - SLACK_S:
                self._found(
                    at, f"{name(key)}, which lives until {began + ttl:.4f} s, was dead-lettered as expired"
                )

    def _found(self, at: float, text: str) -> None:
        self.found.append(Violation(self.promise, at, text))

    def verdict(self) -> list[Violation]:
        return self.found
