"""Exclusive holds (promise G2): no two deliveries of a message to a group are inside their holds at one moment.

A delivery lasts from when the application gets it until its deadline by the client's clock, which an EXTEND
that was granted moves, or until the client itself asks to REJECT it (an EXTEND still under way changes
nothing then). An ACK ends nothing here: once it was sent, nobody else may get the message before the
deadline, whatever came of it. But a rewind may open again at once what was acked, and a redrive a dead letter that was:
a delivery whose own client has sent an ACK is not in the way of one of a newer generation, nor, of a dead letter, of
one at a higher redrive number, though an EXTEND that was asked before is answered later. Any other is, whatever was
rewound. Times are true times: the
simulator writes ``until`` as the true moment at which the client's clock shows its deadline.

In a history of real processes both clocks are the machines' own: ``within`` widens what is tolerated.
"""

from __future__ import annotations

from quorumq.history import Row
from sim.checkers.base import DEAD, Checker, GroupKey, Violation, group_messages, name


class Exclusive(Checker):
    kinds = ("deliver", "ack", "extend", "reject", "dead_letter")
    promise = "exclusive holds"

    def __init__(self) -> None:
        self.held: dict[GroupKey, dict[str, list[float]]] = {}  # message -> owner -> [from, until]
        # Generation, n of what its own client acked.
        self.acked: dict[tuple[GroupKey, str], tuple[int, int]] = {}
        self.lives: dict[tuple[GroupKey, str], tuple[int, int]] = {}  # the same of each delivery
        self.given_up: dict[tuple[GroupKey, str], None] = {}
        self.found: list[Violation] = []

    def see(self, row: Row) -> None:
        kind, at = row["kind"], row["at"]
        owner = row["owner"]
        life = (row["generation"], row["n"] if row["group"].endswith(DEAD) else 0)
        if kind == "deliver":
            for key in group_messages(row):
                holds = self.held.setdefault(key, {})
                for other, (start, until) in holds.items():
                    done = self.acked.get((key, other), life) < life
                    if other != owner and start <= at < until - row["within"] and not done:
                        self._found(
                            at,
                            f"{name(key)} was delivered as {owner} while {other}, delivered at {start:.4f} s, was "
                            f"inside its hold until {until:.4f} s",
                        )
                holds.setdefault(owner, [at, row["until"]])
                self.lives.setdefault((key, owner), life)
        elif kind == "ack":
            if row["outcome"] == "invoke":
                self.acked.update(dict.fromkeys(((key, owner) for key in group_messages(row)), life))
        elif kind == "extend":
            if row["outcome"] == "ok":
                for key in group_messages(row):
                    hold = self.held.get(key, {}).get(owner)
                    if hold is None or row["until"] <= hold[1] or (key, owner) in self.given_up:
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
                            self._found(
                                at,
                                f"{name(key)}: {owner} was extended to {row['until']:.4f} s, and {other} was delivered "
                                f"at {start:.4f} s",
                            )
                    hold[1] = row["until"]
        elif row["outcome"] == "invoke" and row["who"].startswith("client:"):
            for key in group_messages(row):
                self.given_up[(key, owner)] = None
                hold = self.held.get(key, {}).get(owner)
                if hold is not None:
                    hold[1] = min(hold[1], at)

    def _found(self, at: float, text: str) -> None:
        self.found.append(Violation(self.promise, at, text))

    def verdict(self) -> list[Violation]:
        return self.found
