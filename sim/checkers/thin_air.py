"""No thin air (promise G5): what is delivered was published before, byte for byte."""

from __future__ import annotations

from quorumq.history import Row
from sim.checkers.base import Checker, Key, Violation, messages, name


class NoThinAir(Checker):
    kinds = ("publish", "deliver")
    promise = "no thin air"

    def __init__(self) -> None:
        self.published: dict[Key, str] = {}
        self.found: list[Violation] = []

    def see(self, row: Row) -> None:
        crcs = row.get("crcs")
        if crcs is None:
            return
        for index, key in enumerate(messages(row)):
            crc = crcs[8 * index : 8 * index + 8]
            if row["kind"] == "publish":
                before = self.published.setdefault(key, crc)
                if before != crc:
                    self._found(row, f"{name(key)} was published as {before} and as {crc}")
            else:
                expected = self.published.get(key)
                if expected is None:
                    self._found(row, f"{name(key)} was delivered and never published")
                elif expected != crc:
                    self._found(
                        row, f"{name(key)} was published as {expected} and delivered as {crc or 'nothing'}"
                    )

    def _found(self, row: Row, text: str) -> None:
        self.found.append(Violation(self.promise, row["at"], text))

    def verdict(self) -> list[Violation]:
        return self.found
