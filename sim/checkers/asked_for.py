"""Groups that somebody asked for (section 1, settings): where `auto_create_groups` is false, no FETCH makes a group.

Judged while no request for the topic, of whatever outcome, has asked for anything else, or left it to the node. Only a
line of a creation that names the RF says how the topic begins, so a history of real clients is not judged.
"""

from __future__ import annotations

from quorumq.history import Row
from sim.checkers.base import DEAD, Checker, Violation


class GroupsAskedFor(Checker):
    kinds = ("set_topic", "set_group", "register", "deliver")
    promise = "groups asked for"

    def __init__(self) -> None:
        self.settings: list[bool] = []  # all that were asked for
        self.created = False  # the topic, by a request in this history
        self.groups: dict[str, None] = {}  # that somebody asked for, or that were found without
        self.found: list[Violation] = []

    def see(self, row: Row) -> None:
        if row["kind"] == "set_topic":
            if row["outcome"] == "invoke":
                named = {**row.get("settings", {}), **row.get("defaults", {})}
                self.created = self.created or "rf" in named
                self.settings += [bool(named[name]) for name in ("auto_create_groups",) if name in named]
            return
        group = row["group"].removesuffix(DEAD)
        if (
            row["kind"] != "set_group"
            and group not in self.groups
            and self.created
            and not any(self.settings)
        ):
            text = f"group {group} reads the topic, which makes none by itself, and nobody created it"
            self.found.append(Violation(self.promise, row["at"], text))
        self.groups[group] = None

    def verdict(self) -> list[Violation]:
        return self.found
