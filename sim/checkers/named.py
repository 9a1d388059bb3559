"""Names kept (protocol.md, NAMES): a name that was asked for after a publish of it was confirmed is the same message.

Callers that asked before that may have got another id, as one window ended between them: each of these ids counts.
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
        self.ids: dict[tuple[int, int], dict[str, None]] = {}  # by name: those that were asked for in time
        self.confirmed: dict[
            tuple[int, int], tuple[str, float]
        ] = {}  # by name: its first id, and when that was OK

    def on_publish(self, row: Row) -> None:
        ((producer_id, seq, _), *rest) = row["spans"]
        if rest or not producer_id.startswith(NODE):
            return
        name = (row["partition"], seq)
        if row["outcome"] == "ok":
            self.confirmed.setdefault(name, (producer_id, row["at"]))
        if row["outcome"] != "invoke":
            return
        at: float = row["at"]
        asked, ids = row.get("asked", at), self.ids.setdefault(name, {})
        first, since = self.confirmed.get(name, (producer_id, asked))
        if asked <= since:
            ids[producer_id] = None
        elif producer_id not in ids:
            self.broken(
                f"name {seq} of partition {row['partition']} is {producer_id}, asked for at {asked:.4f} s: it "
                f"was published as {first}, which was confirmed at {since:.4f} s"
            )
