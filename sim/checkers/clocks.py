"""One wrong clock decides nothing: delays and TTL go by the majority of the replicas' clocks (section 2).

Judged are first lives (n = 0), in true time, give or take the difference of the clocks' rates:

- a message is not delivered before it is due;
- it is not dead-lettered as expired before its time, by its own TTL, or if it has none, by the shortest that
  any request gave the topic;
- if a FETCH was sent when the message's time was over at every replica, the message is not delivered to it.

If too many clocks were wrong, this is not judged. If a node's time of day was changed, and it was started again since,
its clock may be wrong for messages that it stores then, because only a start asks the time of day. If its directory was
lost, damaged or brought back, its clock is not wrong: without the batch it does not say that it is due or expired, and
a copy that it fetches is as old as enough of the others say. But it cannot help to expire a message, either, that it
has not fetched again. RECLAIM is no fault and takes payload away as well (`kept: false`, or a CREATE of the topic
without retention). If the group was rewound, or made later than the message, a replica may lack a batch that it once
stored, so expiry is not judged. If a partition was moved, every node that ever had a slot counts as a replica.
"""

from __future__ import annotations

from collections.abc import Iterator

from quorumq.history import Row
from sim.checkers.base import DEAD, Key, TopicChecker, messages, name

LOSSES = ("wipe", "restore", "flip", "rot", "damage")
"""Faults that take something off a node's disk."""

RATE = 0.011
SLACK_S = 0.05


class OneWrongClock(TopicChecker):
    promise = "one wrong clock"

    def __init__(self) -> None:
        super().__init__()
        self.made: dict[Key, tuple[float, float, float]] = {}  # when, delay, TTL
        self.stored: dict[Key, dict[str, float]] = {}  # when last, by node
        self.lost: dict[str, float] = {}  # when a node's directory was last lost or brought back
        self.changed: dict[str, None] = {}  # nodes whose time of day was changed
        self.wrong: dict[str, None] = {}  # those of them that were started since
        # The shortest TTL of the topic, 0 without one; None: the history does not say.
        self.ttl_s: float | None = None
        self.rewound: dict[str, None] = {}  # groups with a request for a rewind
        self.known: dict[str, float] = {}  # since when a node knows the group
        self.sets: dict[int, dict[str, None]] = {}  # nodes that ever had a slot of a moved partition
        self.departed: dict[tuple[int, str], float] = {}  # when a node last left the set of a partition

    def on_publish(self, row: Row) -> None:
        if row["outcome"] == "invoke":
            for key in messages(row):
                self.made.setdefault(key, (row["at"], row.get("delay", 0.0), row.get("ttl", 0.0)))

    def on_layout(self, row: Row) -> None:
        self.sets.setdefault(row["partition"], {}).update(dict.fromkeys(row["nodes"]))
        if row["who"].removeprefix("node:") not in row["nodes"]:  # its payload goes some time later
            self.departed[(row["partition"], row["who"])] = row["at"]

    def on_set_group(self, row: Row) -> None:
        if row.get("rewind", True):
            self.rewound[row["group"]] = None

    on_delete_group = on_set_group

    def on_register(self, row: Row) -> None:
        self.known.setdefault(row["group"], row["at"])

    def on_set_topic(self, row: Row) -> None:
        super().on_set_topic(row)
        default = row.get("defaults", {}).get("ttl_s") or None  # to the node, which may have written it
        asked = row.get("settings", {}).get("ttl_s", default)
        if asked is not None:
            self.ttl_s = min(self.ttl_s or asked, asked or self.ttl_s or 0.0)

    def on_store(self, row: Row) -> None:
        for key in messages(row):
            if key in self.made:
                self.stored.setdefault(key, {})[row["who"]] = row["at"]

    def on_fault(self, row: Row) -> None:
        nodes = [f"node:{node}" for node in row.get("nodes", ())]
        if row["fault"] in ("wall-jump", "wrong-clock"):
            self.changed.update(dict.fromkeys(nodes))
        elif row["fault"] in LOSSES:
            self.lost.update((node, row["at"]) for node in nodes)

    def on_start(self, row: Row) -> None:
        if row["who"] in self.changed:
            self.wrong[row["who"]] = None

    def judged(self, row: Row) -> Iterator[tuple[Key, dict[str, float]]]:
        """Yield the messages of a line that can be judged, with the time each node stored them last."""
        for key in messages(row) if row["n"] == 0 else ():
            stored = self.stored.get(key, {})
            if key in self.made and 2 * sum(node in self.wrong for node in stored) < self.rf:
                yield key, stored

    def on_deliver(self, row: Row) -> None:
        at, group = row["at"], row["group"]
        if group.endswith(DEAD):
            return  # a dead letter is due at once, and does not expire
        for key, stored in self.judged(row):
            began, delay, ttl = self.made[key]
            if delay and at < began + delay / (1 + RATE) - SLACK_S:
                self.broken(f"{name(key)}, to be delivered from {began + delay:.4f} s on, was delivered")
            right = [
                when
                for node, when in stored.items()
                if node not in self.wrong
                and when > self.lost.get(node, 0.0)
                and when > self.departed.get((key[0], node), -1.0)
            ]
            if not self.kept and (
                group in self.rewound or self.known.get(group, 0.0) > min(right, default=at)
            ):
                continue
            replicas = max(self.rf, len(self.sets.get(key[0], ())))
            if ttl and len(right) >= replicas and row["asked"] > max(right) + ttl * (1 + RATE) + SLACK_S:
                self.broken(
                    f"{name(key)} was delivered, and had expired at all its replicas before that FETCH was sent"
                )

    def on_dead_letter(self, row: Row) -> None:
        for key, _ in self.judged(row) if row.get("reason") == "expired" else ():
            began, _, ttl = self.made[key]
            early = row["at"] < began + (ttl or self.ttl_s or 0.0) / (1 + RATE) - SLACK_S
            expired = f"{name(key)} was dead-lettered as expired"
            if ttl:
                if early:
                    self.broken(
                        f"{name(key)}, which lives until {began + ttl:.4f} s, was dead-lettered as expired"
                    )
            elif self.ttl_s == 0:
                self.broken(f"{expired}, and neither it nor the topic has a TTL")
            elif self.ttl_s is not None and early:
                self.broken(
                    f"{expired}, and the shortest TTL of the topic is {self.ttl_s} s: it was made at {began:.4f} s"
                )
