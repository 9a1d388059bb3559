"""Finality after ACK (promise G3), and fencing tokens that rise.

After ``acked`` was heard the message is not delivered again; after any other successful ACK no FETCH sent
later delivers it; at most one delivery of a message ever hears ``acked``; and the tokens of successive
deliveries of a message to a group strictly increase.

All but the tokens is per generation of the group: a rewind opens the message again. In a group of dead letters an ACK
settles the dead letter at its generation and redrive number.
"""

from __future__ import annotations

from quorumq.history import Row
from sim.checkers.base import Checker, GroupKey, Life, group_messages, life_of, name


class FinalAfterAck(Checker):
    promise = "final after ack"

    def __init__(self) -> None:
        super().__init__()
        self.acked: dict[tuple[GroupKey, Life], tuple[float, str]] = {}
        self.settled: dict[tuple[GroupKey, Life], tuple[float, str]] = {}
        self.tokens: dict[GroupKey, str] = {}

    def on_ack(self, row: Row) -> None:
        at, owner, outcome = row["at"], row["owner"], row["outcome"]
        if not outcome.startswith("acked"):
            return
        for key in group_messages(row):
            life = (key, life_of(row))
            self.settled.setdefault(life, (at, outcome))
            if outcome == "acked":
                first = self.acked.setdefault(life, (at, owner))
                if first[1] != owner:
                    self.broken(
                        f"{name(key)}: {owner} heard acked, and so did {first[1]} at {first[0]:.4f} s"
                    )

    def on_deliver(self, row: Row) -> None:
        for key in group_messages(row):
            life = (key, life_of(row))
            if life in self.acked:
                self.broken(
                    f"{name(key)} was delivered as {row['owner']} after {self.acked[life][1]} heard acked"
                )
            elif life in self.settled and row["asked"] > self.settled[life][0]:
                when, outcome = self.settled[life]
                self.broken(
                    f"{name(key)} was delivered to a FETCH sent at {row['asked']:.4f} s, after an ACK had heard "
                    f"{outcome} at {when:.4f} s"
                )
            last = self.tokens.get(key)
            # A reply that was held up may be handed over after a later one only if its own deadline is past, so never.
            if last is not None and row["token"] <= last:
                self.broken(f"{name(key)} was delivered with token {row['token']} after {last}")
            self.tokens[key] = row["token"]
