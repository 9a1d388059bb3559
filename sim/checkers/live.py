"""Liveness after healing (promise G4): everything is settled within a bound, and no message waits longer than that.

The bound is in the ``healed`` line, as ``seconds``: one quarantine, one hold, one delay and a few rounds.
"""

from __future__ import annotations

from quorumq.history import Row
from sim.checkers.base import Checker, GroupKey, Violation, group_messages, name


class Live(Checker):
    kinds = ("phase", "deliver")
    promise = "live after healing"

    def __init__(self) -> None:
        self.healed_at: float | None = None
        self.bound = 0.0
        self.drained_at: float | None = None
        self.ended_at: float | None = None
        self.missing = ""
        self.until: dict[GroupKey, float] = {}
        self.found: list[Violation] = []

    def see(self, row: Row) -> None:
        at = row["at"]
        if row["kind"] == "phase":
            if row["phase"] == "healed":
                self.healed_at, self.bound = at, row["seconds"]
            elif row["phase"] == "drained":
                self.drained_at = at
            elif row["phase"] == "end":
                self.ended_at = at
                self.missing = row.get("detail", "")
            return
        for key in group_messages(row):
            if self.healed_at is not None:
                free = max(self.healed_at, self.until.get(key, 0.0))
                if at > free + self.bound:
                    text = f"{name(key)} waited {at - free:.1f} s for its next delivery"
                    self.found.append(Violation(self.promise, at, text))
            self.until[key] = max(self.until.get(key, 0.0), row["until"])

    def verdict(self) -> list[Violation]:
        if self.healed_at is not None and self.drained_at is None and self.ended_at is not None:
            text = (
                f"healed at {self.healed_at:.2f} s, and after the {self.bound:.2f} s that it may take not every "
                f"message is settled on every replica: {self.missing or 'the history does not say what'}"
            )
            self.found.append(Violation(self.promise, self.ended_at, text))
        return self.found
