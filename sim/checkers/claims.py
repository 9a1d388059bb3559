"""Claims kept (protocol.md, CLAIMS): while a confirmed claim stands, no client gets the message.

It stands until its deadline by the client's clock, until its own client asks to settle the message, or until any client
acks it in that generation or a later one. Exceptions of the page are not judged: runs that lose a directory or set a
clock, and groups that were deleted.
"""

from __future__ import annotations

from quorumq.history import Row
from sim.checkers.base import Checker, GroupKey, Violation, group_messages, name

EXCEPTED = ("wipe", "restore", "flip", "rot", "damage", "bereave", "wall-jump", "wrong-clock")
"""Faults after which a claim may end early."""


class ClaimsKept(Checker):
    promise = "claims kept"

    def __init__(self) -> None:
        super().__init__()
        self.claims: dict[
            GroupKey, dict[str, tuple[float, float, int]]
        ] = {}  # by owner: confirmed when, until when, generation
        self.acked: dict[GroupKey, int] = {}  # highest generation in which an ack was sent
        self.over: dict[tuple[GroupKey, str], None] = {}  # the owner has asked to settle it
        self.deleted: dict[str, None] = {}  # groups
        self.excepted = False

    def on_fault(self, row: Row) -> None:
        self.excepted = self.excepted or row["fault"] in EXCEPTED

    def on_delete_group(self, row: Row) -> None:
        self.deleted[row["group"]] = None

    def on_claim(self, row: Row) -> None:
        if row["outcome"] == "ok":
            for key in group_messages(row):
                claims = self.claims.setdefault(key, {})
                _, until, _ = claims.get(row["owner"], (0.0, 0.0, 0))
                claims[row["owner"]] = row["at"], max(until, row["until"]), row["generation"]

    def on_ack(self, row: Row) -> None:
        self.on_reject(row)
        for key in group_messages(row):
            self.acked[key] = max(self.acked.get(key, -1), row["generation"])

    def on_reject(self, row: Row) -> None:
        for key in group_messages(row):
            self.over[(key, row["owner"])] = None

    on_dead_letter = on_reject

    def on_deliver(self, row: Row) -> None:
        for key in group_messages(row):
            for owner, (since, until, generation) in self.claims.get(key, {}).items():
                over = (key, owner) in self.over or self.acked.get(key, -1) >= generation
                stands = since < row["asked"] and row["at"] < until and not over
                if (
                    stands
                    and owner != row["owner"]
                    and row["group"].removesuffix("!dead") not in self.deleted
                ):
                    self.broken(
                        f"{name(key)} was delivered as {row['owner']}: {owner} had claimed it at {since:.4f} s "
                        f"until {until:.4f} s"
                    )

    def verdict(self) -> list[Violation]:
        return [] if self.excepted else super().verdict()
