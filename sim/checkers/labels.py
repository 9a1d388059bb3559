"""Labels as written (registers.md, LABELS): each label of a topic is a register that goes to its last writer.

The promise, for each label: a read that returned shows a text that was written by a change sent before the read
returned, or none if there was no label. No change that was confirmed lies wholly between that change and the read, and
no later read shows an older text. A change whose outcome is unknown never ends. Nothing is promised if the directories
of a majority are lost, and an operator declares the survivors.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from quorumq.history import Row
from sim.checkers.base import Checker

NEVER = -math.inf


class Write(NamedTuple):
    """One change of one label: when it was sent, and when it was confirmed."""

    began: float
    ended: float
    text: str | None


class LabelsAsWritten(Checker):
    promise = "labels as written"

    def __init__(self) -> None:
        super().__init__()
        self.sent: dict[tuple[str, int], tuple[float, dict[str, Any]]] = {}
        self.ended: dict[tuple[str, int], float] = {}
        self.failed: dict[tuple[str, int], None] = {}
        self.asked: dict[tuple[str, int], float] = {}
        self.reads: list[tuple[float, float, dict[str, Any]]] = []  # sent, answered, labels
        self.bereaved = False

    def on_fault(self, row: Row) -> None:
        self.bereaved |= row["fault"] == "bereave"

    def on_set_labels(self, row: Row) -> None:
        op = (row["who"], row["op"])
        if row["outcome"] == "invoke":
            self.sent[op] = (row["at"], row["settings"])
        elif row["outcome"] == "ok":
            self.ended[op] = row["at"]
        elif row["outcome"] == "fail":
            self.failed[op] = None

    def on_labels(self, row: Row) -> None:
        op = (row["who"], row["op"])
        if row["outcome"] == "invoke":
            self.asked[op] = row["at"]
        elif row["outcome"] == "ok":
            self.reads.append((self.asked[op], row["at"], row["settings"]))

    def end(self) -> None:
        if self.bereaved:
            return
        names = dict.fromkeys(name for _, labels in self.sent.values() for name in labels)
        for _, at, labels in self.reads:
            for name in labels:
                if name not in names:
                    self.broken(f"label {name!r} was read, and nobody wrote it", at)
        for name in names:
            self._check(name)

    def _check(self, name: str) -> None:
        writes = [Write(NEVER, NEVER, None)]
        writes += [
            Write(began, self.ended.get(op, math.inf), labels[name])
            for op, (began, labels) in self.sent.items()
            if name in labels and op not in self.failed
        ]
        seen: list[
            tuple[float, float]
        ] = []  # times of each read: its answer, and the begin of the first change to its text
        for asked, at, labels in sorted(self.reads, key=lambda read: read[0]):
            text = labels.get(name)
            before = [write.began for write in writes if write.ended < asked]
            before += [began for answered, began in seen if answered < asked]
            bound = max(before, default=NEVER)
            mine = [write for write in writes if write.text == text and write.began < at]
            fits = [write for write in mine if write.ended >= bound]
            if not fits:
                why = "nobody had written that" if not mine else "it had been written again before"
                self.broken(f"label {name!r} was read as {text!r}, asked for at {asked:.4f} s: {why}", at)
            else:
                seen.append((at, min(write.began for write in fits)))
