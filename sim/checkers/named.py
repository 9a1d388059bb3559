"""Names kept (protocol.md, NAMES): a name that was asked for after a publish of it was confirmed is the same message.

Judged within one window and the next, in runs whose clocks differ by less than a window: others have no such client.
"""

from __future__ import annotations

from quorumq.history import Row
from sim.checkers.base import Checker

NODE = "~named."


class NamesKept(Checker):
    promise = "names kept"

    def __init__(self) -> None:
        super().__init__()
        self.asked: dict[tuple[str, int], float] = {}
        self.confirmed: dict[
            tuple[int, int], tuple[str, float]
        ] = {}  # by name: its first id, and when that was OK

    def on_publish(self, row: Row) -> None:
        ((producer_id, seq, _), *rest) = row["spans"]
        if rest or not producer_id.startswith(NODE):
            return
        op, name = (row["who"], row["op"]), (row["partition"], seq)
        if row["outcome"] == "invoke":
            self.asked[op] = row.get("asked", row["at"])
            return
        first, since = self.confirmed.get(name, (producer_id, row["at"]))
        if first != producer_id and since < self.asked[op]:
            self.broken(
                f"name {seq} of partition {row['partition']} is {producer_id}, asked for at {self.asked[op]:.4f} s: it "
                f"was published as {first}, which was confirmed at {since:.4f} s"
            )
        if row["outcome"] == "ok":
            self.confirmed.setdefault(name, (producer_id, row["at"]))
