"""Deleted for good (protocol.md, DELETE): once a DELETE is confirmed, nothing of that topic succeeds any more.

What must hold: no FETCH sent after that delivers anything of it, and no PUBLISH, ACK, REJECT or EXTEND sent after that
succeeds; in the end of a drained run no node has a register, a group or a record of it, whoever was down meanwhile. A
topic that is created again under the name is another one, and its lines name it otherwise (docs/history.md).

What else is asked of a topic in the end is not asked of one that was deleted, or may have been: it is never drained.
"""

from __future__ import annotations

from collections.abc import Iterable

from quorumq.history import Row
from sim.checkers.base import Checker, Violation

SETTLED = ("ok", "acked", "acked_after_expiry", "acked_unproven")


def deleted_topics(rows: Iterable[Row]) -> dict[str, None]:
    """Topics for which a DELETE was sent that did not fail."""
    calls = {}
    for row in rows:
        if row["kind"] == "delete_topic":
            calls[(row["who"], row["op"])] = (row["topic"], row["outcome"])
    return dict.fromkeys(topic for topic, outcome in calls.values() if outcome != "fail")


class DeletedForGood(Checker):
    kinds = (
        "delete_topic",
        "publish",
        "deliver",
        "ack",
        "reject",
        "dead_letter",
        "extend",
        "topic",
        "register",
        "list",
        "phase",
    )
    promise = "deleted for good"

    def __init__(self) -> None:
        self.deleted: dict[str, float] = {}  # when that was first confirmed
        self.sent: dict[tuple[str, int], float] = {}
        self.drained = False
        self.found: list[Violation] = []

    def see(self, row: Row) -> None:
        kind, at = row["kind"], row["at"]
        if kind == "phase":
            self.drained = self.drained or row["phase"] == "drained"
            return
        topic, outcome = row["topic"], row.get("outcome")
        if outcome == "invoke":
            self.sent[(row["who"], row["op"])] = at
            return
        if kind == "delete_topic":
            if outcome == "ok":
                self.deleted.setdefault(topic, at)
            return
        when = self.deleted.get(topic)
        if when is None:
            return
        if kind in ("topic", "register", "list"):
            if self.drained:
                self._found(
                    row, f"{row['who']} still has a {kind} line of topic {topic}, deleted at {when:.4f} s"
                )
        elif kind == "deliver":
            if row["asked"] > when:
                self._found(row, f"{row['spans']} of topic {topic}, deleted at {when:.4f} s, was delivered")
        elif outcome in SETTLED and self.sent.get((row["who"], row.get("op", 0)), 0.0) > when:
            self._found(
                row, f"{kind} of {row['spans']} of topic {topic}, deleted at {when:.4f} s, heard {outcome}"
            )

    def _found(self, row: Row, text: str) -> None:
        self.found.append(Violation(self.promise, row["at"], text))

    def verdict(self) -> list[Violation]:
        return self.found
