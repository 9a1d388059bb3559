"""Settings as written (registers.md, SETTINGS): all nodes end with one register, and each setting with its last write.

The promise at the end of a drained run: all nodes that answer have the same register of the topic; each setting
has a value that was written, and no write of that setting that was confirmed began after that one had ended (a
write whose outcome is unknown never ends). Partitions only become more: there are as many as some request asked for,
and no fewer than were ever confirmed. Values that a CREATE left to the node may have been written.
"""

from __future__ import annotations

import math
from typing import Any

from quorumq.history import Row
from sim.checkers.base import DrainedChecker

FAILED = -1.0


class SettingsAsWritten(DrainedChecker):
    promise = "settings as written"

    def __init__(self) -> None:
        super().__init__()
        self.writes: dict[tuple[str, int], tuple[float, dict[str, Any]]] = {}  # when sent, and what
        self.defaults: list[
            tuple[str, Any]
        ] = []  # settings that a CREATE did not name, and what they get then
        self.ended: dict[tuple[str, int], float] = {}  # when confirmed; FAILED: nothing was written
        self.registers: dict[str, dict[str, Any]] = {}  # by node

    def on_topic(self, row: Row) -> None:
        self.registers[row["who"]] = row["settings"]

    def on_set_topic(self, row: Row) -> None:
        if row["outcome"] == "invoke":
            self.writes[(row["who"], row["op"])] = (row["at"], row["settings"])
            self.defaults += row.get("defaults", {}).items()
        elif row["outcome"] != "unknown":
            self.ended[(row["who"], row["op"])] = row["at"] if row["outcome"] == "ok" else FAILED

    def drained(self) -> None:
        if not self.registers or not self.writes:
            return
        first, register = next(iter(self.registers.items()))
        for who, other in self.registers.items():
            if other != register:
                self.broken(f"{who} has {other}, and {first} has {register}")
        for name, value in register.items():
            self._checker(name, value)

    def _checker(self, name: str, value: Any) -> None:
        writes = [
            (began, self.ended.get(request, math.inf), named[name])
            for request, (began, named) in self.writes.items()
            if name in named and self.ended.get(request) != FAILED
        ]
        confirmed = [write for write in writes if write[1] < math.inf]
        if name == "partitions":
            least = max((asked for _, _, asked in confirmed), default=0)
            if (
                value not in [asked for _, _, asked in writes] and (name, value) not in self.defaults
            ) or value < least:
                self.broken(f"partitions is {value}; {least} were confirmed, and {writes} asked for")
            return
        last = max((began for began, _, _ in confirmed), default=0.0)
        mine = [ended for _, ended, asked in writes if asked == value]
        mine += [math.inf for default in self.defaults if default == (name, value)]
        if not mine:
            self.broken(f"{name} is {value!r}, and nobody wrote that")
        elif max(mine) < last:
            self.broken(
                f"{name} is {value!r}, confirmed at {max(mine):.4f} s, and was written again since: {writes}"
            )
