"""Exclusive holds (promise G2): no two deliveries of a message to a group are inside their holds at one moment.

A delivery lasts from when the application gets it until its deadline by the client's clock, which an EXTEND that was
granted moves, or until the client itself asks to REJECT it (an EXTEND still under way changes nothing then), unless all
such requests failed for certain. An ACK ends nothing here: once it was sent, no other client may get the message before
the deadline, with any outcome. But a rewind may open an acked message at once, and a redrive a dead letter:
a delivery whose own client has sent an ACK is not in the way of one of a newer generation, nor, of a dead letter, of
one at a higher redrive number, though an EXTEND that was asked before is answered later. Any other is, with any
rewind. Times are true times: the simulator writes ``until`` as the true moment at which
the client's clock shows its deadline.

In a history of real processes both clocks are the machines' own: ``within`` widens the tolerance.
"""

from __future__ import annotations

from quorumq.history import Row
from sim.checkers.base import Checker, GroupKey, Life, group_messages, life_of, name


class Exclusive(Checker):
    promise = "exclusive holds"

    def __init__(self) -> None:
        super().__init__()
        self.held: dict[GroupKey, dict[str, list[float]]] = {}  # message -> owner -> [from, until]
        self.acked: dict[tuple[GroupKey, str], Life] = {}  # by its own client
        self.lives: dict[tuple[GroupKey, str], Life] = {}  # life of each delivery
        # REJECTs of a delivery that have not failed, and until when its hold went before the first of all.
        self.given_up: dict[tuple[GroupKey, str], dict[tuple[str, int], None]] = {}
        self.before: dict[tuple[GroupKey, str], tuple[float, float]] = {}

    def on_deliver(self, row: Row) -> None:
        at, owner, life = row["at"], row["owner"], life_of(row)
        for key in group_messages(row):
            holds = self.held.setdefault(key, {})
            for other, (start, until) in holds.items():
                done = self.acked.get((key, other), life) < life
                if other != owner and start <= at < until - row["within"] and not done:
                    self.broken(
                        f"{name(key)} was delivered as {owner} while {other}, delivered at {start:.4f} s, was "
                        f"inside its hold until {until:.4f} s"
                    )
            holds.setdefault(owner, [at, row["until"]])
            self.lives.setdefault((key, owner), life)

    def on_ack(self, row: Row) -> None:
        if row["outcome"] == "invoke":
            owned = ((key, row["owner"]) for key in group_messages(row))
            self.acked.update(dict.fromkeys(owned, life_of(row)))

    def on_extend(self, row: Row) -> None:
        if row["outcome"] != "ok":
            return
        owner = row["owner"]
        for key in group_messages(row):
            hold = self.held.get(key, {}).get(owner)
            if hold is None or row["until"] <= hold[1] or self.given_up.get((key, owner)):
                continue
            for other, (start, until) in self.held[key].items():
                its = self.lives[(key, other)]
                if (
                    other != owner
                    and not self.acked.get((key, owner), its) < its
                    and start < row["until"]
                    and until > max(hold[1], hold[0])
                    and start > hold[0]
                ):
                    self.broken(
                        f"{name(key)}: {owner} was extended to {row['until']:.4f} s, and {other} was delivered "
                        f"at {start:.4f} s"
                    )
            hold[1] = row["until"]

    def on_reject(self, row: Row) -> None:
        if not row["who"].startswith("client:"):
            return
        which, owner = (row["who"], row["op"]), row["owner"]
        for key in group_messages(row):
            hold = self.held.get(key, {}).get(owner)
            mine = self.given_up.setdefault((key, owner), {})
            if row["outcome"] == "invoke":
                if hold is not None and not mine:
                    self.before[(key, owner)] = row["at"], hold[1]
                    hold[1] = min(hold[1], row["at"])
                mine[which] = None
            elif row["outcome"] == "fail" and which in mine:
                del mine[which]
                if hold is not None and not mine:
                    self._gives_up_nothing(key, owner, hold)

    on_dead_letter = on_reject

    def _gives_up_nothing(self, key: GroupKey, owner: str, hold: list[float]) -> None:
        """Extend the hold of a delivery whose REJECTs all failed, and report other deliveries inside it."""
        sent, hold[1] = self.before[(key, owner)]
        for other, (start, _) in self.held[key].items():
            if other != owner and sent < start < hold[1]:
                self.broken(
                    f"{name(key)} was delivered as {other} at {start:.4f} s: {owner} was inside its hold until "
                    f"{hold[1]:.4f} s, and its REJECT failed"
                )
