"""Derived once (protocol.md, section 2): consume, process, publish derived, ack: each output exactly once.

The promise at the end of a drained run: an input whose ACK succeeded for a group that derived outputs from it has
each of them in the other topic: delivered there, or a dead letter. Each is there under one id, with the same bytes,
for any number of derivations; and nothing is delivered there that was not derived. That an acked output is not
delivered again is the part of the checker of finality.
"""

from __future__ import annotations

from quorumq.history import Row
from sim.checkers.base import DEAD, DrainedChecker, Key, crcs_of, messages, name

Output = tuple[str, Key]
"""A topic and a message in it."""

OutputKey = tuple[str, str, Key, str, int]
"""Output of an input: the input's topic, group and key; the output's topic and index."""


class DerivedOnce(DrainedChecker):
    promise = "derived once"

    def __init__(self) -> None:
        super().__init__()
        self.outputs: dict[OutputKey, tuple[Output, str]] = {}  # under which id, with which bytes
        self.bytes: dict[Output, str] = {}
        self.into: dict[str, None] = {}  # topics that outputs are published to
        self.acked: dict[tuple[str, str, Key], float] = {}
        self.delivered: dict[Output, tuple[float, str]] = {}  # first, with which bytes
        self.dead: dict[Output, None] = {}

    def on_ack(self, row: Row) -> None:
        if row["outcome"].startswith("acked") and not row["group"].endswith(DEAD):
            for key in messages(row):
                self.acked.setdefault((row["topic"], row["group"], key), row["at"])

    def on_list(self, row: Row) -> None:
        if row["state"] == "dead":
            self.dead.update(((row["topic"], key), None) for key in messages(row))

    def on_deliver(self, row: Row) -> None:
        for key, crc in crcs_of(row):
            self.delivered.setdefault((row["topic"], key), (row["at"], crc))

    def on_derive(self, row: Row) -> None:
        into = row["into"]
        self.into[into["topic"]] = None
        for at, (key, output) in enumerate(zip(messages(row), messages(into), strict=True)):
            crc = row.get("crcs", "")[8 * at : 8 * at + 8]
            named = (into["topic"], output)
            output_key = (row["topic"], row["group"], key, into["topic"], into.get("index", 0))
            before = self.outputs.setdefault(output_key, (named, crc))
            if before != (named, crc):
                self.broken(
                    f"{name(key)}: output {output_key[4]} is {name(output)} with {crc}, and was {before}"
                )
            if self.bytes.setdefault(named, crc) != crc:
                self.broken(f"{name(output)} is an output of two inputs, the second {name(key)}")

    def end(self) -> None:
        for (topic, key), (at, crc) in self.delivered.items():
            if topic not in self.into:
                continue
            if (topic, key) not in self.bytes:
                self.broken(f"{name(key)} was delivered in {topic}, and nobody derived it", at)
            elif self.bytes[(topic, key)] not in ("", crc):
                text = f"{name(key)} was derived as {self.bytes[(topic, key)]} and delivered as {crc}"
                self.broken(text, at)
        super().end()

    def drained(self) -> None:
        for (topic, group, key, into, index), (output, _) in self.outputs.items():
            when = self.acked.get((topic, group, key))
            if when is not None and output not in self.delivered and output not in self.dead:
                text = f"{name(key)} was acked for group {group} at {when:.4f} s, and its output {index}"
                self.broken(f"{text}, {name(output[1])} of {into}, was never delivered")
