"""Groups read as they were asked to: generations, their starts, and purges (protocol.md, "group, generation").

The promise: once a rewind or a deletion was confirmed, no FETCH sent later delivers an older generation, but dead
letters, and redriven messages, if the new one leaves them out; a generation delivers nothing from before its start; it
counts attempts anew; a message published before a confirmed PURGE of it is not delivered later, unless the group was
rewound or the message redriven (payload that a majority had reclaimed before a rewind may be stored again, `kept:
false`: PURGE lists the messages of a majority); and in the end nothing is SKIPPED or PURGED without a request to
purge (or, of a dead letter, to ack), or to make a group that begins with messages published from now on: a request
for that skips messages sent before it was answered, or, if its outcome is unknown, before another one confirms the
group. A rewind to latest of unknown outcome is a PURGE, which may take effect at any later time.

That every message that a generation covers is delivered again is the part of the checker of loss.
"""

from __future__ import annotations

from quorumq.core.values.limits import INTERRUPTIONS_MAX
from quorumq.history import Row
from sim.checkers.base import (
    DEAD,
    GroupKey,
    Named,
    PublishChecker,
    Purges,
    SettingsChecker,
    Skips,
    dead_of,
    group_messages,
    name,
    naming,
    purged_by,
)


class GroupsAsAsked(SettingsChecker, PublishChecker):
    promise = "groups as asked"

    def __init__(self) -> None:
        super().__init__()
        # (group, generation) -> when, from_ms.
        self.first_known: dict[tuple[str, int], tuple[float, int]] = {}
        self.rewound: dict[str, list[tuple[int, float]]] = {}  # confirmed generations, and when
        self.deletions: dict[tuple[str, int], None] = {}  # generations that a deletion made, without readers
        self.purges = Purges()
        self.purged: dict[Named, list[tuple[float, float, int]]] = {}  # sent, confirmed, generation
        self.rejects: dict[tuple[GroupKey, int], int] = {}
        self.interruptions: dict[tuple[GroupKey, int], int] = {}
        self.dead_acked: dict[GroupKey, None] = {}
        self.hold_min = 0.0
        self.skips = Skips()

    def on_settings(self, row: Row) -> None:
        super().on_settings(row)
        self.hold_min = self.hold_min or row["settings"].get("hold_min", 0.0)

    def on_register(self, row: Row) -> None:
        self.skips.see(row)
        self.first_known.setdefault((row["group"], row["generation"]), (row["at"], row["from_ms"]))

    def on_fetch(self, row: Row) -> None:
        self.skips.see(row)

    def on_set_group(self, row: Row) -> None:
        self.on_fetch(row)
        if row["outcome"] == "ok" and row.get("rewind", True):
            self.rewound.setdefault(row["group"], []).append((row["generation"], row["at"]))

    def on_delete_group(self, row: Row) -> None:
        self.on_set_group(row)
        if row["outcome"] == "ok":
            self.deletions[(row["group"], row["generation"])] = None

    def on_purge(self, row: Row) -> None:
        sent = self.purges.see(row)
        if row["outcome"] == "ok":
            done = (sent, row["at"], self.newest(row["group"], sent))
            for named in purged_by(row):
                self.purged.setdefault(named, []).append(done)

    def newest(self, group: str, by: float) -> int:
        """Return the newest generation that was confirmed by then."""
        return max((generation for generation, at in self.rewound.get(group, ()) if at <= by), default=0)

    def on_reject(self, row: Row) -> None:
        if row["outcome"] == "invoke":
            counts = self.interruptions if row.get("interrupted") else self.rejects
            for key in group_messages(row):
                at = (key, row["generation"])
                counts[at] = counts.get(at, 0) + 1

    def on_ack(self, row: Row) -> None:
        if row["group"].endswith(DEAD) and row["outcome"] == "invoke":
            self.dead_acked.update(dict.fromkeys(group_messages(row)))

    def on_deliver(self, row: Row) -> None:
        group, generation, n = row["group"], row["generation"], row["n"]
        newest = self.newest(group.removesuffix(DEAD), row["asked"])
        known, from_ms = self.first_known.get((group, generation), (0.0, 0))
        newer = [
            start
            for (named, other), (_, start) in self.first_known.items()
            if named == group.removesuffix(DEAD) and other >= newest
        ]
        for key in group_messages(row):
            published = self.published_ms.get(key[1:], 0)
            left_out = n > 0 or group.endswith(DEAD)  # and stands if no newer generation covers it
            if generation < newest and (not left_out or published >= max(newer)):
                self.broken(
                    f"{name(key)} was delivered in generation {generation} to a FETCH sent after the rewind to "
                    f"{newest} was confirmed",
                )
            if (group.removesuffix(DEAD), generation) in self.deletions:
                self.broken(f"{name(key)} was delivered in generation {generation}, a deletion of the group")
            if group.endswith(DEAD):
                continue
            if n == 0 and published < from_ms:
                self.broken(f"{name(key)} lies before the start of generation {generation}")
            for sent, done, current in (it for named in naming(key) for it in self.purged.get(named, ())):
                known_by_then = self.confirmed.get(key[1:], sent) < sent
                if generation and not self.kept:
                    continue
                if n == 0 and generation == current and known_by_then and row["asked"] > done:
                    self.broken(f"{name(key)} was purged by {done:.4f} s and is delivered")
            if generation and self.hold_min:
                ended = self.rejects.get((key, generation), 0) + int(
                    (row["at"] - known) * 1.02 / self.hold_min
                )
                interrupted = self.interruptions.get((key, generation), 0)
                # One that a replica hears of before it ends there counts twice.
                ended += interrupted if self.highest_rf * interrupted > INTERRUPTIONS_MAX else 0
                if row["attempt"] > 1 + self.highest_rf * ended:
                    self.broken(
                        f"{name(key)} is said to be at attempt {row['attempt']} of generation {generation}, which is "
                        f"{row['at'] - known:.2f} s old",
                    )

    def on_list(self, row: Row) -> None:
        group, state = row["group"], row["state"]
        for key in group_messages(row):
            dead = dead_of(key)
            is_skipped = self.skips.until(group) >= self.sent.get(key[1:], 0.0) or self.is_before(group, key)
            if state == "skipped" and not is_skipped and not self.purges.may_be(key):
                self.broken(f"{name(key)} is skipped, and nobody purged it")
            acked = dead in self.dead_acked
            if state == "purged" and not self.purges.may_be(dead) and not acked:
                self.broken(f"{name(key)} is purged, and nobody purged or acked the dead letter")

    def is_before(self, group: str, key: GroupKey) -> bool:
        """Return True if the message lies before the start of the group's newest generation."""
        newest = max((at for at in self.first_known if at[0] == group), default=("", 0))
        _, from_ms = self.first_known.get(newest, (0.0, 0))
        return self.published_ms.get(key[1:], from_ms) < from_ms
