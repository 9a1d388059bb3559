"""No thin air (promise G5): a delivered message was published before, byte for byte; a retry has the same numbers."""

from __future__ import annotations

from quorumq.history import Row
from sim.checkers.base import Checker, Key, crcs_of, messages, name


class NoThinAir(Checker):
    promise = "no thin air"

    def __init__(self) -> None:
        super().__init__()
        self.published: dict[Key, str] = {}
        self.tries: dict[tuple[str, int], tuple[Key, ...]] = {}  # messages that the first try named

    def on_publish(self, row: Row) -> None:
        if row["outcome"] == "invoke":
            named = tuple(messages(row))
            op: int = row["op"]
            first = self.tries.setdefault((row["who"], row.get("retries", op)), named)
            if named != first:
                self.broken(f"{name(first[0])} was sent again by {row['who']} as {name(named[0])}")
        for key, crc in crcs_of(row):
            before = self.published.setdefault(key, crc)
            if before != crc:
                self.broken(f"{name(key)} was published as {before} and as {crc}")

    def on_deliver(self, row: Row) -> None:
        for key, crc in crcs_of(row):
            expected = self.published.get(key)
            if expected is None:
                self.broken(f"{name(key)} was delivered and never published")
            elif expected != crc:
                self.broken(f"{name(key)} was published as {expected} and delivered as {crc or 'nothing'}")
