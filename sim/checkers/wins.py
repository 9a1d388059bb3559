"""Exclusive wins (promise G2): no node wins a message inside of the hold that another attempt has won, by nodes' lines.

A hold lasts from when a node began to write it until its `until`, by the node's clock, or until the first line that
says that it may be given back: a `release` or `leave`, or a client's REJECT. So it is for messages that no client wrote
of. Judged is one life of a message: a rewind or a redrive may open an acked message at once.
"""

from __future__ import annotations

from quorumq.history import Row
from sim.checkers.base import Checker, GroupKey, group_messages, name


class ExclusiveWins(Checker):
    promise = "exclusive holds"

    def __init__(self) -> None:
        super().__init__()
        # By message, generation and redrive number, by owner: from when until when.
        self.won: dict[tuple[GroupKey, int, int], dict[str, tuple[float, float]]] = {}
        self.given_back: dict[tuple[GroupKey, str], None] = {}

    def on_hold_won(self, row: Row) -> None:
        at: float = row["at"]
        owner = row["owner"]
        for key in group_messages(row):
            holds = self.won.setdefault((key, row["generation"], row["n"]), {})
            if owner in holds:
                continue
            for other, (start, until) in holds.items():
                inside = start <= at < until - row["within"]
                if inside and (key, other) not in self.given_back:
                    self.broken(
                        f"{name(key)} was won as {owner} while {other}, won at {start:.4f} s, was inside its hold "
                        f"until {until:.4f} s"
                    )
            holds[owner] = (at, row.get("until", at))

    def on_release(self, row: Row) -> None:
        self.given_back.update(dict.fromkeys((key, row["owner"]) for key in group_messages(row)))

    on_leave = on_hold_lost = on_release

    def on_reject(self, row: Row) -> None:
        if row["who"].startswith("client:"):
            self.on_release(row)

    on_dead_letter = on_reject
