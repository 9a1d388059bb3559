"""Parts that all checkers share: lines in, violations out, and messages named one by one."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, NamedTuple

from quorumq.core.values.names import begins_ms_of
from quorumq.history import Row

Key = tuple[int, str, int]
"""A message: partition number, producer id, sequence number. The partitions of its producer id
give its topic."""

GroupKey = tuple[str, int, str, int]
"""A message as one group sees it."""

Life = tuple[int, int]
"""Generation and redrive number."""

DEAD = "!dead"
"""Suffix of the name of a group's group of dead letters."""


class Violation(NamedTuple):
    """A broken promise: its name, the time when it showed (true seconds), and the event."""

    promise: str
    at: float
    text: str

    def __str__(self) -> str:
        return f"{self.promise} at {self.at:.4f} s: {self.text}"


class Checker:
    """Sees lines in order of time, then gives its verdict.

    A method `on_KIND` takes the lines of a kind in; those of other kinds are not shown to it.
    """

    kinds: ClassVar[dict[str, Callable[[Any, Row], None]]] = {}
    promise: ClassVar[str] = ""

    def __init_subclass__(cls) -> None:
        cls.kinds = {name[3:]: getattr(cls, name) for name in dir(cls) if name.startswith("on_")}

    def __init__(self) -> None:
        self.violations: list[Violation] = []
        self.at = 0.0

    def see(self, row: Row) -> None:
        """Take a line of one of the ``kinds`` in."""
        self.at = row["at"]
        self.kinds[row["kind"]](self, row)

    def broken(self, text: str, at: float | None = None) -> None:
        """Note a broken promise; if ``at`` is not given, at the time of the line that is being seen."""
        self.violations.append(Violation(self.promise, self.at if at is None else at, text))

    def end(self) -> None:
        """Check the end of the history, after the last line."""

    def verdict(self) -> list[Violation]:
        """Return all violations; called once, after the last line."""
        self.end()
        return self.violations


class DrainedChecker(Checker):
    """A checker that also looks at the end of a run that was drained."""

    def __init__(self) -> None:
        super().__init__()
        self.drained_at: float | None = None

    def on_phase(self, row: Row) -> None:
        if row["phase"] == "drained":
            self.drained_at = row["at"]

    def end(self) -> None:
        if self.drained_at is not None:
            self.at = self.drained_at
            self.drained()

    def drained(self) -> None:
        """Check the end of a drained run, after the last line."""


class PublishChecker(Checker):
    """Reads the publishes of each message: when the first was sent, by its clock too, and when one was confirmed."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: dict[Key, float] = {}
        self.published_ms: dict[Key, int] = {}
        self.confirmed: dict[Key, float] = {}

    def on_publish(self, row: Row) -> None:
        if row["outcome"] == "invoke":
            for key in messages(row):
                self.sent.setdefault(key, row["at"])
                self.published_ms.setdefault(key, begins_ms_of(key[1], row.get("published_ms", 0)))
        elif row["outcome"] == "ok":
            for key in messages(row):
                self.confirmed.setdefault(key, row["at"])


class SettingsChecker(Checker):
    """Reads the number of replicas, and if messages that no group needs are kept."""

    def __init__(self) -> None:
        super().__init__()
        self.rf = 0
        self.most_slots = 0  # size of the largest set that a layout has
        self.kept = True

    def on_settings(self, row: Row) -> None:
        self.rf = self.rf or row["settings"].get("rf", 0)
        self.kept = row["settings"].get("kept", self.kept)

    def on_layout(self, row: Row) -> None:
        self.most_slots = max(self.most_slots, len(row["nodes"]))

    @property
    def highest_rf(self) -> int:
        """Return the largest number of replicas that a partition had."""
        return max(self.rf, self.most_slots)


class TopicChecker(SettingsChecker):
    """Hears that from requests about the topic, too."""

    def on_set_topic(self, row: Row) -> None:
        # A creation names the topic's own RF, and what is called so has no other.
        self.rf = row.get("settings", {}).get("rf", self.rf)
        asked = row.get("defaults", {}) | row.get("settings", {})
        self.kept = self.kept and asked.get("retention_s") != 0  # else it may be the one that won


def messages(row: Row) -> Iterator[Key]:
    """Yield each message of a line."""
    partition = row["partition"]
    for producer_id, start, stop in row["spans"]:
        for seq in range(start, stop):
            yield (partition, producer_id, seq)


def crcs_of(row: Row) -> Iterator[tuple[Key, str]]:
    """Yield each message of a line with its checksum; none if the line has no checksums."""
    crcs = row.get("crcs")
    if crcs is not None:
        for at, key in enumerate(messages(row)):
            yield key, crcs[8 * at : 8 * at + 8]


def group_messages(row: Row) -> Iterator[GroupKey]:
    """Yield each message of a line, for the line's group."""
    group = row["group"]
    for key in messages(row):
        yield (group, *key)


def life_of(row: Row) -> Life:
    """Return the life that an ACK settles: a generation, and for a dead letter its redrive number."""
    return (row["generation"], row["n"] if row["group"].endswith(DEAD) else 0)


Named = tuple[str, int] | GroupKey
"""Target of a purge: all messages of a group in a partition, or one message."""


def purged_by(row: Row) -> Iterator[Named]:
    """Yield the targets in a PURGE's line."""
    if row.get("spans"):
        yield from group_messages(row)
    else:
        yield row["group"], row["partition"]


def naming(key: GroupKey) -> tuple[Named, Named]:
    """Return the targets with which a purge may have settled this message."""
    return key[:2], key


def dead_of(key: GroupKey) -> GroupKey:
    """Return a message of a group, as its group of dead letters sees it."""
    return (key[0] + DEAD, *key[1:])


def name(key: Key | GroupKey) -> str:
    """Return a message as people read it."""
    *group, partition, producer_id, seq = key
    return f"{producer_id}[{seq}] of partition {partition}" + (f" for group {group[0]}" if group else "")


class Purges:
    """Requests to purge that did not fail, and until when each may work: for ever if its outcome is unknown."""

    def __init__(self) -> None:
        self.sent: dict[tuple[str, int], float] = {}
        self.ends: dict[Named, dict[tuple[str, int], float]] = {}

    def see(self, row: Row) -> float:
        """Take in a line of a PURGE; return when that was sent."""
        request = (row["who"], row["op"])
        for named in purged_by(row):
            ends = self.ends.setdefault(named, {})
            if row["outcome"] == "fail":
                ends.pop(request, None)
            else:
                ends[request] = row["at"] if row["outcome"] == "ok" else math.inf
        return self.sent.setdefault(request, row["at"])

    def until(self, key: GroupKey) -> float:
        """Return the time before which the message may be purged, in seconds; below every time if no client asked."""
        ends = (end for named in naming(key) for end in self.ends.get(named, {}).values())
        return max(ends, default=-math.inf)

    def may_be(self, key: GroupKey) -> bool:
        """Return True if a client asked to purge the message."""
        return self.until(key) > -math.inf


class Skips:
    """Ends of the times in which requests from latest may skip messages, by group.

    A request skips messages sent before it was answered. One of unknown outcome that makes the group is over once the
    group is confirmed by another request. One that rewinds is a PURGE, and may go on for ever if its outcome is
    unknown. While a request waits for its answer, others may be answered from before the change that it makes: that
    confirms nothing of it.
    """

    def __init__(self) -> None:
        self.ends: dict[str, dict[tuple[str, int], float]] = {}
        self.waiting: dict[tuple[str, int], None] = {}
        self.rewinds: dict[tuple[str, int], None] = {}

    def see(self, row: Row) -> None:
        """Take in a line of a FETCH, a SETGROUP or a register."""
        ends = self.ends.setdefault(row["group"], {})
        if row["kind"] == "register":
            if "latest" in row:  # only the register shows where a FETCH of a pattern has made a group
                ends.setdefault(("", 0), math.inf)
            return
        request = (row["who"], row["op"])
        if row["outcome"] == "invoke":
            if row.get("start") == "latest":
                ends[request] = math.inf
                self.waiting[request] = None
                if row.get("rewind"):
                    self.rewinds[request] = None
            return
        self.waiting.pop(request, None)
        if row["outcome"] == "ok" and row.get("messages", True):
            for other, end in ends.items():
                if other == request or (other not in self.waiting and other not in self.rewinds):
                    ends[other] = min(end, row["at"])

    def until(self, group: str) -> float:
        """Return the time before which messages sent may be skipped, in seconds; below every time if nothing may."""
        return max(self.ends.get(group, {}).values(), default=-math.inf)
