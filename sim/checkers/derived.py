"""Derived once (protocol.md, section 2): consume, process, publish derived, ack: each output exactly once.

What must hold at the end of a drained run: an input whose ACK succeeded for a group that derived outputs from it has
each of them in the other topic: delivered there, or a dead letter. Under one id, whoever derived it and however often,
with the same bytes; and nothing is delivered there that nobody derived. That what is acked there does not come again is
the judge of finality's part.
"""

from __future__ import annotations

from quorumq.history import Row
from sim.checkers.base import DEAD, Checker, Key, Violation, messages, name

Output = tuple[str, Key]
"""A topic and a message in it."""

Place = tuple[str, str, Key, str, int]
"""Which output of which input: its topic, its group, itself; the output's topic and index."""


class DerivedOnce(Checker):
    kinds = ("derive", "ack", "deliver", "list", "phase")
    promise = "derived once"

    def __init__(self) -> None:
        self.outputs: dict[Place, tuple[Output, str]] = {}  # under which id, with which bytes
        self.bytes: dict[Output, str] = {}
        self.into: dict[str, None] = {}  # topics that outputs are published to
        self.acked: dict[tuple[str, str, Key], float] = {}
        self.delivered: dict[Output, tuple[float, str]] = {}  # first, with which bytes
        self.dead: dict[Output, None] = {}
        self.drained_at: float | None = None
        self.found: list[Violation] = []

    def see(self, row: Row) -> None:
        kind = row["kind"]
        if kind == "phase":
            if row["phase"] == "drained":
                self.drained_at = row["at"]
        elif kind == "derive":
            self._derive(row)
        elif kind == "ack":
            if row["outcome"].startswith("acked") and not row["group"].endswith(DEAD):
                for key in messages(row):
                    self.acked.setdefault((row["topic"], row["group"], key), row["at"])
        elif kind == "list":
            if row["state"] == "dead":
                self.dead.update(((row["topic"], key), None) for key in messages(row))
        elif "crcs" in row:
            for at, key in enumerate(messages(row)):
                self.delivered.setdefault((row["topic"], key), (row["at"], row["crcs"][8 * at : 8 * at + 8]))

    def _derive(self, row: Row) -> None:
        into = row["into"]
        self.into[into["topic"]] = None
        for at, (key, output) in enumerate(zip(messages(row), messages(into), strict=True)):
            crc = row.get("crcs", "")[8 * at : 8 * at + 8]
            named = (into["topic"], output)
            place = (row["topic"], row["group"], key, into["topic"], into.get("index", 0))
            before = self.outputs.setdefault(place, (named, crc))
            if before != (named, crc):
                text = f"{name(key)}: output {place[4]} is {name(output)} with {crc}, and was {before}"
                self.found.append(Violation(self.promise, row["at"], text))
            if self.bytes.setdefault(named, crc) != crc:
                text = f"{name(output)} is an output of two inputs, the second {name(key)}"
                self.found.append(Violation(self.promise, row["at"], text))

    def verdict(self) -> list[Violation]:
        for (topic, key), (at, crc) in self.delivered.items():
            if topic not in self.into:
                continue
            if (topic, key) not in self.bytes:
                self._found(at, f"{name(key)} was delivered in {topic}, and nobody derived it")
            elif self.bytes[(topic, key)] not in ("", crc):
                self._found(
                    at, f"{name(key)} was derived as {self.bytes[(topic, key)]} and delivered as {crc}"
                )
        if self.drained_at is None:
            return self.found
        for (topic, group, key, into, index), (output, _) in self.outputs.items():
            when = self.acked.get((topic, group, key))
            if when is not None and output not in self.delivered and output not in self.dead:
                text = f"{name(key)} was acked for group {group} at {when:.4f} s, and its output {index}"
                self._found(self.drained_at, f"{text}, {name(output[1])} of {into}, was never delivered")
        return self.found

    def _found(self, at: float, text: str) -> None:
        self.found.append(Violation(self.promise, at, text))
