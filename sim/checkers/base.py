"""What all checkers share: lines in, violations out, and messages named one by one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, NamedTuple

from quorumq.history import Row

Key = tuple[int, str, int]
"""A message: partition number, origin, sequence number. Topics are told apart by their origins' partitions."""

GroupKey = tuple[str, int, str, int]
"""A message as one group sees it."""


DEAD = "!dead"
"""What the name of a group's group of dead letters ends in."""


class Violation(NamedTuple):
    """A broken promise: which, when it showed (true seconds), and what happened."""

    promise: str
    at: float
    text: str

    def __str__(self) -> str:
        return f"{self.promise} at {self.at:.4f} s: {self.text}"


class Checker:
    """Sees the lines of its ``kinds`` in order of time, then gives its verdict."""

    kinds: ClassVar[tuple[str, ...]] = ()
    promise: ClassVar[str] = ""

    def see(self, row: Row) -> None:
        """Take a line in."""
        raise NotImplementedError

    def verdict(self) -> list[Violation]:
        """Everything that was broken; called once, after the last line."""
        raise NotImplementedError


def messages(row: Row) -> Iterator[Key]:
    """Each message of a line."""
    partition = row["partition"]
    for origin, start, stop in row["spans"]:
        for seq in range(start, stop):
            yield (partition, origin, seq)


def group_messages(row: Row) -> Iterator[GroupKey]:
    """Each message of a line, for the line's group."""
    group, partition = row["group"], row["partition"]
    for origin, start, stop in row["spans"]:
        for seq in range(start, stop):
            yield (group, partition, origin, seq)


Named = tuple[str, int] | GroupKey
"""What a purge names: all that a group has in a partition, or a message."""


def purged_by(row: Row) -> Iterator[Named]:
    """What a PURGE's line names."""
    if row.get("spans"):
        yield from group_messages(row)
    else:
        yield row["group"], row["partition"]


def naming(key: GroupKey) -> tuple[Named, Named]:
    """What a purge may have named to settle this message."""
    return key[:2], key


def name(key: Key | GroupKey) -> str:
    """A message as people read it."""
    *group, partition, origin, seq = key
    return f"{origin}[{seq}] of partition {partition}" + (f" for group {group[0]}" if group else "")
