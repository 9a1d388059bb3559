"""No loss (promise G1): what was published with OK is delivered and settled, or is a dead letter, once all is drained.

This is Jepsen's total-queue, with settling in place of taking out: an attempt with an unknown outcome may
come out or not, a confirmed one must. It says something only where the run was drained to the end.
"""

from __future__ import annotations

from quorumq.history import Row
from sim.checkers.base import Checker, GroupKey, Key, Violation, group_messages, messages, name


class NoLoss(Checker):
    kinds = ("publish", "deliver", "ack", "list", "phase")
    promise = "no loss"

    def __init__(self) -> None:
        self.confirmed: dict[Key, float] = {}
        self.groups: dict[str, None] = {}
        self.delivered: dict[GroupKey, None] = {}
        self.acked: dict[GroupKey, None] = {}  # an ACK was sent: its outcome may be unknown
        self.dead: dict[GroupKey, None] = {}
        self.conflicts: list[Violation] = []
        self.drained_at: float | None = None

    def see(self, row: Row) -> None:
        kind = row["kind"]
        if kind == "publish":
            if row["outcome"] == "ok":
                for key in messages(row):
                    self.confirmed.setdefault(key, row["at"])
            elif row.get("detail") == "conflict":
                text = f"{row['spans']} was refused as a conflict, and every retry has the same bytes"
                self.conflicts.append(Violation(self.promise, row["at"], text))
        elif kind == "phase":
            if row["phase"] == "drained":
                self.drained_at = row["at"]
        else:
            self.groups[row["group"]] = None
            if kind == "deliver":
                self.delivered.update(dict.fromkeys(group_messages(row)))
            elif kind == "ack":
                if row["outcome"] == "invoke":
                    self.acked.update(dict.fromkeys(group_messages(row)))
            elif row["state"] == "dead":
                self.dead.update(dict.fromkeys(group_messages(row)))

    def verdict(self) -> list[Violation]:
        found = list(self.conflicts)
        if self.drained_at is None:
            return found
        for key, at in self.confirmed.items():
            for group in self.groups:
                mine = (group, *key)
                if mine in self.dead:
                    continue
                if mine not in self.delivered:
                    text = f"{name(mine)}, confirmed at {at:.4f} s, was never delivered and is no dead letter"
                elif mine not in self.acked:
                    text = f"{name(mine)} was delivered, nobody acked it, and it is not a dead letter"
                else:
                    continue
                found.append(Violation(self.promise, self.drained_at, text))
        return found
