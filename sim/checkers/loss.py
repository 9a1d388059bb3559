"""No loss (promise G1): what was published with OK is delivered and settled, or is a dead letter, once all is drained.

This is Jepsen's total-queue, with settling in place of taking out: an attempt with an unknown outcome may
come out or not, a confirmed one must. It is judged once the run was drained to the end.

Losing nothing in one run proves little where no disk is lost, so the cause is judged as well: when a publish
is confirmed, a majority of the replicas must have written that its messages are durable there. (Judged where
the first line says `rf`.)
"""

from __future__ import annotations

from quorumq.history import Row
from sim.checkers.base import Checker, GroupKey, Key, Violation, group_messages, messages, name


class NoLoss(Checker):
    kinds = ("settings", "publish", "store", "deliver", "ack", "list", "phase")
    promise = "no loss"

    def __init__(self) -> None:
        self.confirmed: dict[Key, float] = {}
        self.groups: dict[str, None] = {}
        self.delivered: dict[GroupKey, None] = {}
        self.acked: dict[GroupKey, None] = {}  # an ACK was sent: its outcome may be unknown
        self.dead: dict[GroupKey, None] = {}
        self.found: list[Violation] = []
        self.rf = 0
        self.stored: dict[Key, dict[str, None]] = {}
        self.drained_at: float | None = None

    def see(self, row: Row) -> None:
        kind = row["kind"]
        if kind == "publish":
            if row["outcome"] == "ok":
                for key in messages(row):
                    self.confirmed.setdefault(key, row["at"])
                self._judge_stored(row)
            elif row.get("detail") == "conflict":
                text = f"{row['spans']} was refused as a conflict, and every retry has the same bytes"
                self.found.append(Violation(self.promise, row["at"], text))
        elif kind == "store":
            if self.rf:
                for key in messages(row):
                    self.stored.setdefault(key, {})[row["who"]] = None
        elif kind == "settings":
            self.rf = self.rf or row["settings"].get("rf", 0)
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

    def _judge_stored(self, row: Row) -> None:
        if not self.rf:
            return
        for key in messages(row):
            nodes = self.stored.get(key, {})
            if len(nodes) <= self.rf // 2:
                text = f"{name(key)} is confirmed, and durable on {', '.join(nodes) or 'no node'} of {self.rf} replicas"
                self.found.append(Violation(self.promise, row["at"], text))
                return

    def verdict(self) -> list[Violation]:
        found = self.found
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
