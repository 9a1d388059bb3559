"""Groups need a request (protocol.md, "group, generation" 2): if `auto_create_groups` is false, no FETCH makes a group.

A FETCH may make its group unless the topic, when the FETCH is sent, is certain to make none. It is certain if it
was created so, or a creation or a change to false was OK, and no write of true, or of the node's default, is under
way or may still take effect. A group must not exist if no creation of it was sent, failed ones aside, and each FETCH
that may have made it was sent at such a time. Only a line of a creation that names the RF says how the topic begins.
If a history has no lines of a group's FETCHes, the group is judged while no request, with any outcome, has asked for
true.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from quorumq.history import Row
from sim.checkers.base import DEAD, Checker


@dataclass(slots=True)
class Write:
    """A request that may set `auto_create_groups`."""

    value: bool  # value that it writes; true, too, if it leaves it to the node
    creates: bool
    sent: float
    ended: float = math.inf  # if it was OK
    failed: bool = False


class GroupsAskedFor(Checker):
    promise = "groups asked for"

    def __init__(self) -> None:
        super().__init__()
        self.writes: dict[tuple[str, int], Write] = {}
        self.creations: dict[str, dict[tuple[str, int], bool]] = {}  # by group: whether each failed
        self.fetches: dict[str, list[float]] = {}  # when each was sent
        self.groups: dict[str, float] = {}  # since when one is there

    def on_set_topic(self, row: Row) -> None:
        which = (row["who"], row["op"])
        if row["outcome"] == "invoke":
            named = {**row.get("settings", {}), **row.get("defaults", {})}
            if "rf" in named or "auto_create_groups" in named:
                value = bool(named.get("auto_create_groups", True))
                self.writes[which] = Write(value, "rf" in named, row["at"])
        elif which in self.writes and row["outcome"] == "ok":
            self.writes[which].ended = row["at"]
        elif which in self.writes and row["outcome"] == "fail":
            self.writes[which].failed = True

    def on_set_group(self, row: Row) -> None:
        if not row.get("rewind", False):
            mine = self.creations.setdefault(row["group"].removesuffix(DEAD), {})
            mine[(row["who"], row["op"])] = row["outcome"] == "fail"

    def on_fetch(self, row: Row) -> None:
        if row["outcome"] == "invoke":
            self.fetches.setdefault(row["group"], []).append(row["at"])

    def on_deliver(self, row: Row) -> None:
        self.groups.setdefault(row["group"].removesuffix(DEAD), row["at"])

    on_register = on_deliver

    def end(self) -> None:
        writes = [write for write in self.writes.values() if not write.failed]
        created = any(write.creates for write in writes)
        for group, at in self.groups.items():
            if any(not failed for failed in self.creations.get(group, {}).values()):
                continue
            sent = self.fetches.get(group)
            if sent is None:
                closed = created and not any(write.value for write in self.writes.values())
            else:
                closed = all(is_closed(writes, when) for when in sent)
            if closed:
                self.broken(
                    f"group {group} reads the topic, which makes none by itself, and nobody created it", at
                )


def is_closed(writes: list[Write], when: float) -> bool:
    """Return True if the topic surely makes no groups, then and for as long as a request may take.

    A request that is sent while the topic is open, or may be, may be served later.
    """
    shut = [write for write in writes if not write.value and write.ended < when]
    before = [write for write in writes if write.creates and not write.value]
    if not shut and (not before or any(write.value for write in writes)):
        return False
    began = max((write.sent for write in shut), default=-1.0)
    return not any(write.value and write.ended >= began for write in writes)
