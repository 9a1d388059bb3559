"""A request that failed for certain has done nothing (protocol.md, section 6: "nothing was done").

The promise: a message is never delivered if every try to publish it failed. A group is read by no client and known
to no node if every creation and every first FETCH of it failed. Nothing lives again by redrives that all failed; and no
dead letter is there because of a REJECT if all REJECTs of that message failed. One request with an unknown outcome, or
that was OK, explains any of these. That a purge, a change of a topic, a rewind, a deletion or an ACK that failed has
done nothing is part of the checkers of groups, settings, standing and loss: they leave out failed requests.
"""

from __future__ import annotations

from quorumq.history import Row
from sim.checkers.base import DEAD, Checker, GroupKey, Key, group_messages, messages, name

Asked = dict[tuple[str, int], bool]
"""Requests by (client, op): True for each that failed."""


class FailedIsNo(Checker):
    promise = "failed for certain"

    def __init__(self) -> None:
        super().__init__()
        self.published: dict[Key, Asked] = {}
        self.delivered: dict[Key, float] = {}  # when first
        self.made: dict[str, Asked] = {}
        self.groups: dict[str, tuple[float, str]] = {}  # that exist: time, and node that says so
        # A message and redrive number at which it was a dead letter.
        self.redrives: dict[tuple[GroupKey, int], Asked] = {}
        self.again: dict[tuple[GroupKey, int], float] = {}
        # A message, generation and redrive number.
        self.rejects: dict[tuple[GroupKey, int, int], Asked] = {}
        self.rejected: dict[tuple[GroupKey, int, int], float] = {}

    def on_publish(self, row: Row) -> None:
        for key in messages(row):
            note(self.published.setdefault(key, {}), row)

    def on_set_group(self, row: Row) -> None:
        if not row.get("rewind", False):
            note(self.made.setdefault(row["group"], {}), row)

    on_fetch = on_set_group

    def on_register(self, row: Row) -> None:
        self.groups.setdefault(row["group"].removesuffix(DEAD), (row["at"], row["who"]))

    def on_deliver(self, row: Row) -> None:
        self.on_register(row)
        for key in messages(row):
            self.delivered.setdefault(key, row["at"])
        if row["n"] and not row["group"].endswith(DEAD):
            for mine in group_messages(row):
                self.again.setdefault((mine, row["n"] - 1), row["at"])

    def on_redrive(self, row: Row) -> None:
        for mine in group_messages(row):
            note(self.redrives.setdefault((mine, row["n"]), {}), row)

    def on_dead_letter(self, row: Row) -> None:
        if row["who"].startswith("client:"):
            for mine in group_messages(row):
                note(self.rejects.setdefault((mine, row["generation"], row["n"]), {}), row)

    def on_list(self, row: Row) -> None:
        if row["state"] == "dead" and row.get("reason") == "rejected":
            for mine in group_messages(row):
                self.rejected.setdefault((mine, row.get("generation", 0), row.get("n", 0)), row["at"])

    def end(self) -> None:
        for key, at in self.delivered.items():
            if all_failed(self.published.get(key)):
                self.broken(f"{name(key)} was delivered, and every try to publish it had failed", at)
        for group, (at, who) in self.groups.items():
            if all_failed(self.made.get(group)):
                self.broken(f"{who} has group {group}, and everything that may have made it had failed", at)
        for (mine, n), at in self.again.items():
            if all_failed(self.redrives.get((mine, n))):
                self.broken(
                    f"{name(mine)} is delivered at n = {n + 1}, and each redrive at {n} had failed", at
                )
        for (mine, generation, n), at in self.rejected.items():
            if all_failed(self.rejects.get((mine, generation, n))):
                self.broken(f"{name(mine)} is a dead letter at n = {n}, and each REJECT of it had failed", at)


def note(asked: Asked, row: Row) -> None:
    """Note a line of a request: its first, or its outcome for some of its messages."""
    asked[(row["who"], row["op"])] = row["outcome"] == "fail"


def all_failed(asked: Asked | None) -> bool:
    """Return True if something was asked for, and all of it failed."""
    return bool(asked) and all(asked.values())  # type: ignore[union-attr]
