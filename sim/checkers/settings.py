"""Settings as written (protocol.md, "settings"): all nodes end with one register, of each setting the last write.

What must hold at the end of a drained run: every node that says what it has of the topic says the same; each setting
has a value that somebody wrote, and no write of that setting that was confirmed began after that one had ended (a
write whose outcome is unknown never ends). Partitions only become more: there are as many as some request asked for,
and no fewer than were ever confirmed. What a CREATE left to the node may have been written.
"""

from __future__ import annotations

import math
from typing import Any

from quorumq.history import Row
from sim.checkers.base import Checker, Violation

FAILED = -1.0


class SettingsAsWritten(Checker):
    kinds = ("set_topic", "topic", "phase")
    promise = "settings as written"

    def __init__(self) -> None:
        self.writes: dict[tuple[str, int], tuple[float, dict[str, Any]]] = {}  # when sent, and what
        self.left: list[tuple[str, Any]] = []  # settings that a CREATE did not name, and what they get then
        self.ended: dict[tuple[str, int], float] = {}  # when confirmed; FAILED: nothing was written
        self.registers: dict[str, dict[str, Any]] = {}  # by node
        self.drained_at: float | None = None
        self.found: list[Violation] = []

    def see(self, row: Row) -> None:
        if row["kind"] == "phase":
            if row["phase"] == "drained":
                self.drained_at = row["at"]
        elif row["kind"] == "topic":
            self.registers[row["who"]] = row["settings"]
        elif row["outcome"] == "invoke":
            self.writes[(row["who"], row["op"])] = (row["at"], row["settings"])
            self.left += row.get("defaults", {}).items()
        elif row["outcome"] != "unknown":
            self.ended[(row["who"], row["op"])] = row["at"] if row["outcome"] == "ok" else FAILED

    def verdict(self) -> list[Violation]:
        if self.drained_at is None or not self.registers or not self.writes:
            return self.found
        first, register = next(iter(self.registers.items()))
        for who, other in self.registers.items():
            if other != register:
                self._found(f"{who} has {other}, and {first} has {register}")
        for name, value in register.items():
            self._judge(name, value)
        return self.found

    def _judge(self, name: str, value: Any) -> None:
        writes = [
            (began, self.ended.get(request, math.inf), named[name])
            for request, (began, named) in self.writes.items()
            if name in named and self.ended.get(request) != FAILED
        ]
        confirmed = [write for write in writes if write[1] < math.inf]
        if name == "partitions":
            least = max((asked for _, _, asked in confirmed), default=0)
            if (
                value not in [asked for _, _, asked in writes] and (name, value) not in self.left
            ) or value < least:
                self._found(f"partitions is {value}; {least} were confirmed, and {writes} asked for")
            return
        last = max((began for began, _, _ in confirmed), default=0.0)
        mine = [ended for _, ended, asked in writes if asked == value]
        mine += [math.inf for left in self.left if left == (name, value)]
        if not mine:
            self._found(f"{name} is {value!r}, and nobody wrote that")
        elif max(mine) < last:
            self._found(
                f"{name} is {value!r}, confirmed at {max(mine):.4f} s, and was written again since: {writes}"
            )

    def _found(self, text: str) -> None:
        assert self.drained_at is not None
        self.found.append(Violation(self.promise, self.drained_at, text))
