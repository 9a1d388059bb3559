"""Holds that are given back: our own at all replicas (RELEASE or LEAVE), and those of any node at ours."""

from __future__ import annotations

from collections.abc import Iterable

from quorumq.core import messages as m
from quorumq.core.messages.effects import Effect, Send
from quorumq.core.requests.deliveries import released_of
from quorumq.core.requests.placing import Placing
from quorumq.core.values import limits
from quorumq.core.values.fairqueue import Caller
from quorumq.core.values.types import NodeId, Now


class Releases:
    """Releases of one node.

    Attributes:
        placing: the replicas of this node.
        unsent: end time (monotonic seconds) and messages of replies that may never have been written.
    """

    __slots__ = ("placing", "unsent")

    def __init__(self, placing: Placing) -> None:
        self.placing = placing
        self.unsent: dict[int, tuple[float, list[m.Released]]] = {}

    def everywhere(self, released: Iterable[m.Released], now: Now) -> list[Effect]:
        """Remove our holds (RELEASE or LEAVE) here, and send that to all other replicas.

        Until a member confirms, it gets it again with our next HOLD (`NodeState.owe_release`). A node that has left the
        set gets it, too: it reports to the new slot the holds that it has granted.
        """
        state, catalogue = self.placing.state, self.placing.state.catalogue
        others: dict[NodeId, list[m.Released]] = {}
        for item in released:
            members = catalogue.members_of(item.partition)
            for node in catalogue.holders_of(item.partition):
                if node == state.me:
                    self.here((item,), now)
                else:
                    if node in members:
                        state.owe_release(node, item, now)
                    others.setdefault(node, []).append(item)
        return [Send(member, m.Release(tuple(items))) for member, items in others.items()]

    def in_steps(self, caller: Caller, released: tuple[m.Released, ...], now: Now) -> list[Effect]:
        """Release everywhere. Messages beyond one step's share follow in later steps, in the caller's turn."""
        few, rest = released[: limits.RUNS_PER_STEP], released[limits.RUNS_PER_STEP :]
        if rest:
            self.placing.state.at(now.mono, ("release", caller, rest))
        return self.everywhere(few, now)

    def of_slices(self, slices: Iterable[m.Slice], now: Now) -> list[Effect]:
        """Give back deliveries of another node that certainly no client will work on."""
        return [effect for part in slices for effect in self.everywhere(released_of(part), now)]

    def here(self, released: tuple[m.Released, ...], now: Now) -> None:
        """Remove these holds from our own replicas, if the owner matches."""
        for item in released:
            replica = self.placing.kept(item.partition)
            if replica is not None:
                replica.on_release(item, now)
                if item.partition in self.placing.replicas and not replica.may_vote(now):
                    self.placing.hold_recovery.note_release(self.placing.replicas, item, now)

    def note_unsent(self, key: int, given: list[m.Released], until: float) -> None:
        """Remember the messages that reply ``key`` delivers, in case its write is never begun."""
        if given:
            self.unsent[key] = (until, given)
            self.placing.state.at(until, ("forget", key))

    def take_back(self, key: int, now: Now) -> list[Effect]:
        """Give back (LEAVE) a reply's messages: it was never begun, so certainly no client works on them."""
        _, given = self.unsent.pop(key, (0.0, []))
        return self.everywhere(given, now)
