"""Deleted for good (registers.md, DELETE): once a DELETE is confirmed, nothing of that topic succeeds any more.

The promise: no FETCH sent after that delivers anything of it, and no PUBLISH, ACK, REJECT or EXTEND sent after that
succeeds; in the end of a drained run no node has a register, a group or a record of it, even one that was down. A
topic that is created again under the name is another one, and its lines name it otherwise (docs/history.md).

Other promises at the end do not bind a topic that was deleted, or may have been: it is never drained.
"""

from __future__ import annotations

from collections.abc import Iterable

from quorumq.history import Row
from sim.checkers.base import DrainedChecker

SETTLED = ("ok", "acked", "acked_after_expiry", "acked_unproven")


def deleted_topics(rows: Iterable[Row]) -> dict[str, None]:
    """Return topics for which a DELETE was sent that did not fail."""
    calls = {}
    for row in rows:
        if row["kind"] == "delete_topic":
            calls[(row["who"], row["op"])] = (row["topic"], row["outcome"])
    return dict.fromkeys(topic for topic, outcome in calls.values() if outcome != "fail")


class DeletedForGood(DrainedChecker):
    promise = "deleted for good"

    def __init__(self) -> None:
        super().__init__()
        self.deleted: dict[str, float] = {}  # when that was first confirmed
        self.sent: dict[tuple[str, int], float] = {}

    def on_delete_topic(self, row: Row) -> None:
        if row["outcome"] == "ok":
            self.deleted.setdefault(row["topic"], row["at"])

    def on_publish(self, row: Row) -> None:
        outcome, when = row.get("outcome"), self.deleted.get(row["topic"])
        if outcome == "invoke":
            self.sent[(row["who"], row["op"])] = row["at"]
        elif (
            when is not None
            and outcome in SETTLED
            and self.sent.get((row["who"], row.get("op", 0)), 0.0) > when
        ):
            text = f"{row['kind']} of {row['spans']} of topic {row['topic']}, deleted at {when:.4f} s, heard {outcome}"
            self.broken(text)

    on_ack = on_reject = on_dead_letter = on_extend = on_publish

    def on_deliver(self, row: Row) -> None:
        when = self.deleted.get(row["topic"])
        if when is not None and row["asked"] > when:
            self.broken(f"{row['spans']} of topic {row['topic']}, deleted at {when:.4f} s, was delivered")

    def on_topic(self, row: Row) -> None:
        when = self.deleted.get(row["topic"])
        if when is not None and self.drained_at is not None:
            text = f"{row['who']} still has a {row['kind']} line of topic {row['topic']}, deleted at {when:.4f} s"
            self.broken(text)

    on_register = on_list = on_topic
