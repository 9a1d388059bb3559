"""Liveness after healing (promise G4): everything is settled within a bound, and no message waits longer than that.

The bound is in the ``healed`` line, as ``seconds``: one quarantine, one hold, one delay and a few rounds. Without one,
for example if a machine may be slow, only messages that are never settled count.
"""

from __future__ import annotations

import math

from quorumq.history import Row
from sim.checkers.base import DrainedChecker, GroupKey, group_messages, name


class Live(DrainedChecker):
    promise = "live after healing"

    def __init__(self) -> None:
        super().__init__()
        self.healed_at: float | None = None
        self.bound = 0.0
        self.ended_at: float | None = None
        self.missing = ""
        self.until: dict[GroupKey, float] = {}

    def on_phase(self, row: Row) -> None:
        super().on_phase(row)
        if row["phase"] == "healed":
            self.healed_at, self.bound = row["at"], row.get("seconds", math.inf)
        elif row["phase"] == "end":
            self.ended_at = row["at"]
            self.missing = row.get("detail", "")

    def on_deliver(self, row: Row) -> None:
        for key in group_messages(row):
            if self.healed_at is not None:
                free = max(self.healed_at, self.until.get(key, 0.0))
                if self.at > free + self.bound:
                    self.broken(f"{name(key)} waited {self.at - free:.1f} s for its next delivery")
            self.until[key] = max(self.until.get(key, 0.0), row["until"])

    def end(self) -> None:
        if self.healed_at is not None and self.drained_at is None and self.ended_at is not None:
            may = f" after the {self.bound:.2f} s that it may take" if self.bound < math.inf else ""
            text = (
                f"healed at {self.healed_at:.2f} s, and{may} not every "
                f"message is settled on every replica: {self.missing or 'the history does not say what'}"
            )
            self.broken(text, self.ended_at)
