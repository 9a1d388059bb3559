"""Groups that somebody asked for (section 1, settings): where `auto_create_groups` is false, no FETCH makes a group.

Judged while no request for the topic, of whatever outcome, has asked for anything else, or left it to the node. Only a
line of a creation that names the RF says how the topic begins, so a history of real clients is not judged.
"""

from __future__ import annotations

from quorumq.history import Row
from sim.checkers.base import DEAD, Checker


class GroupsAskedFor(Checker):
    promise = "groups asked for"

    def __init__(self) -> None:
        super().__init__()
        self.settings: list[bool] = []  # all that were asked for
        self.created = False  # the topic, by a request in this history
        self.groups: dict[str, None] = {}  # that somebody asked for, or that were found without

    def on_set_topic(self, row: Row) -> None:
        if row["outcome"] == "invoke":
            named = {**row.get("settings", {}), **row.get("defaults", {})}
            self.created = self.created or "rf" in named
            self.settings += [bool(named[name]) for name in ("auto_create_groups",) if name in named]

    def on_set_group(self, row: Row) -> None:
        self.groups[row["group"].removesuffix(DEAD)] = None

    def on_deliver(self, row: Row) -> None:
        group = row["group"].removesuffix(DEAD)
        if group not in self.groups and self.created and not any(self.settings):
            self.broken(f"group {group} reads the topic, which makes none by itself, and nobody created it")
        self.groups[group] = None

    on_register = on_deliver
