"""The group coordinator: the members, their generation, and the group's offsets.

The text: "All members send a JoinGroup request. Once all have, the coordinator chooses one consumer as leader, and
sends it the members; the leader makes the assignment and puts it into its SyncGroup; the coordinator puts it into the
answers of all." "As soon as it believes a consumer to be dead it opens a new rebalance, and adds
REBALANCE_IN_PROGRESS to the other consumers' heartbeat answers." "Group management allows members to provide
persistent entity ids: membership remains unchanged based on those, thus no rebalance."
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sim.rivals.log.wire import (
    ILLEGAL_GENERATION,
    REBALANCE,
    UNKNOWN_MEMBER,
    Assigned,
    Beat,
    Commit,
    Join,
    Joined,
    Sync,
)

SESSION_S = 2.0
"""Seconds without a sign after which a member is dead; as long as a hold of the other designs."""

REBALANCE_S = 2.0
"""Seconds that the others may take to join again."""

FIRST_S = 0.3
"""The first rebalance waits for more members."""


class Member:
    """A consumer, as the coordinator knows it."""

    def __init__(self, instance: str) -> None:
        self.instance = instance
        self.owned: tuple[int, ...] = ()
        self.joining: int | None = None  # the request that is kept until all have joined
        self.syncing: int | None = None
        self.heard = 0.0
        self.assigned: tuple[int, ...] = ()


class Group:
    """The state of the group; lost with the process but for what `restore` gets.

    Args:
        keep: makes generation and members durable, then goes on.
    """

    def __init__(
        self,
        now: Callable[[], float],
        after: Callable[..., None],
        reply: Callable[[int, Any], None],
        keep: Callable[[Any, Callable[[], None]], None],
    ) -> None:
        self.now = now
        self.after = after
        self.reply = reply
        self.keep = keep
        self.generation = 0
        self.members: dict[str, Member] = {}
        self.leader = ""
        self.state = "empty"  # preparing (members join), awaiting (the leader's assignment), stable
        self.made = 0
        self.rebalances = 0
        self.patient = False  # more members may come: the first rebalance waits its time
        self.over = False
        after(0.2, self.tick)

    def restore(self, kept: tuple[int, tuple[tuple[str, str, tuple[int, ...]], ...]]) -> None:
        """Go on where the last coordinator was: members have another session from now on."""
        self.generation, members = kept
        for name, instance, assigned in members:
            self.members[name] = member = Member(instance)
            member.assigned, member.heard = assigned, self.now()
            self.made = max(self.made, int(name.rsplit("-", 1)[1]))
        self.state = "stable" if self.members else "empty"

    def tick(self) -> None:
        """Drop members whose sessions are over: they are dead."""
        if self.over:
            return
        self.after(0.2, self.tick)
        for name, member in list(self.members.items()):
            if member.joining is None and self.now() > member.heard + SESSION_S:
                self.remove(name)

    def remove(self, name: str) -> None:
        """Remove a member: the others divide its partitions."""
        del self.members[name]
        if not self.members:
            self.state, self.generation = "empty", self.generation + 1
        elif self.state == "preparing":
            self.complete_if_all()
        else:
            self.prepare(REBALANCE_S)

    def prepare(self, seconds: float) -> None:
        """Wait until all members have joined again."""
        self.state = "preparing"
        self.patient = seconds == FIRST_S
        self.rebalances += 1
        for member in self.members.values():
            if member.syncing is not None:
                self.reply(member.syncing, REBALANCE)
                member.syncing = None
        self.after(seconds, self.on_time, self.rebalances)

    def on_time(self, rebalance: int) -> None:
        """Drop the members that have not joined by now."""
        if self.state == "preparing" and rebalance == self.rebalances and not self.over:
            self.members = {name: m for name, m in self.members.items() if m.joining is not None}
            if self.members:
                self.complete()
            else:
                self.state = "empty"

    def complete_if_all(self) -> None:
        """Go on as soon as everyone has joined again."""
        if not self.patient and all(member.joining is not None for member in self.members.values()):
            self.complete()

    def complete(self) -> None:
        """Begin the next generation, as all have joined."""
        self.generation += 1
        self.state = "awaiting"
        if self.leader not in self.members:
            self.leader = next(iter(self.members))
        owned = {name: member.owned for name, member in self.members.items()}
        for name, member in self.members.items():
            assert member.joining is not None
            mine = owned if name == self.leader else {}
            self.reply(member.joining, Joined(self.generation, name, self.leader, mine))
            member.joining, member.heard, member.assigned = None, self.now(), ()

    def on_request(self, key: int, request: Any) -> None:
        """Handle a member's request."""
        if isinstance(request, Join):
            self.on_join(key, request)
            return
        member = self.members.get(request.member)
        if member is None:
            self.reply(key, UNKNOWN_MEMBER)
            return
        member.heard = self.now()
        if isinstance(request, Beat | Sync) and request.generation != self.generation:
            self.reply(key, ILLEGAL_GENERATION)
        elif isinstance(request, Beat):
            self.reply(key, REBALANCE if self.state == "preparing" else True)
        elif isinstance(request, Sync):
            self.on_sync(key, request, member)

    def may_commit(self, request: Commit) -> Any:
        """Return True, or the reason why the commit is refused. While others join, members may still commit."""
        member = self.members.get(request.member)
        if member is None:
            return UNKNOWN_MEMBER
        if request.generation != self.generation:
            return ILLEGAL_GENERATION
        member.heard = self.now()
        return True

    def on_join(self, key: int, request: Join) -> None:
        name = request.member
        if request.instance and name not in self.members:
            old = next((n for n, m in self.members.items() if m.instance == request.instance), "")
            if old and self.state == "stable":  # it was started again: it gets what it had
                member = self.members.pop(old)
                self.made += 1
                name = f"{request.instance}-{self.made}"
                self.members[name] = member
                member.heard = self.now()
                self.leader = name if self.leader == old else self.leader
                self.reply(key, Joined(self.generation, name, "", {}))
                return
            if old:
                del self.members[old]
        if name not in self.members:
            self.made += 1
            name = f"{request.instance or 'member'}-{self.made}"
            self.members[name] = Member(request.instance)
        member = self.members[name]
        member.owned, member.heard = request.owned, self.now()
        if member.joining is not None:
            self.reply(member.joining, REBALANCE)
        member.joining = key
        if self.state == "empty":
            self.prepare(FIRST_S)
        elif self.state != "preparing":
            self.prepare(REBALANCE_S)
        self.complete_if_all()

    def on_sync(self, key: int, request: Sync, member: Member) -> None:
        if self.state == "preparing":
            self.reply(key, REBALANCE)
        elif self.state == "stable":
            self.reply(key, Assigned(member.assigned))
        else:
            member.syncing = key
            if request.member == self.leader:
                for name, partitions in request.assignment.items():
                    if name in self.members:
                        self.members[name].assigned = partitions
                kept = tuple((n, m.instance, m.assigned) for n, m in self.members.items())
                generation = self.generation
                self.keep((generation, kept), lambda: self.on_kept(generation))

    def on_kept(self, generation: int) -> None:
        """Give members the assignment, as it is durable."""
        if self.state != "awaiting" or generation != self.generation:
            return
        self.state = "stable"
        for member in self.members.values():
            if member.syncing is not None:
                self.reply(member.syncing, Assigned(member.assigned))
                member.syncing = None
