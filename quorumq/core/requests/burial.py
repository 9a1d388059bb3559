"""Burial: undeliverable messages become dead letters, whether or not a consumer reads the group.

A message is *dying* here when its deliveries are used up, or when its time to live is over by our clock. A FETCH that
meets one makes a dead letter of it. But no consumer fetches from a group whose last worker is gone. Its dying messages
would be ready for ever, an autoscaler would start workers for nothing, and no alert for dead letters would fire. So
every node looks now and then, and holds dying messages as a FETCH would, in runs. A majority of the voters decides, as
for a FETCH. A message that they do not call dead is released, and counts no attempt.

One node of a replica set does it for a group at a time: the first live one, as the group's name ranks them. Any other
one joins in by chance, because the first may be in quarantine, or may not know.
"""

from __future__ import annotations

from typing import Final

from quorumq.core import messages as m
from quorumq.core.messages.effects import Effect
from quorumq.core.partition.attempts import NO_ATTEMPTS, Attempts
from quorumq.core.partition.choice import OVERDUE
from quorumq.core.partition.fate import EXHAUSTED
from quorumq.core.partition.group import GroupView
from quorumq.core.partition.hashing import mix, salt_of
from quorumq.core.partition.replica import Replica
from quorumq.core.requests.context import Context
from quorumq.core.requests.fetch import FetchCoordinator
from quorumq.core.requests.holdround import HoldRound
from quorumq.core.values import limits
from quorumq.core.values.types import Now, PartitionId, Span

HOLD_S: Final = 5.0
"""Seconds for which dying messages are held during a burial, at most."""

ROUNDS: Final = 16
"""Rounds of HOLD that one burial has, before the others of its node have a turn."""

LOOKS: Final = 2048
"""Groups of partitions that one round of upkeep looks at, about. Clients leave groups behind: there may be 50,000."""

UNDER_WAY: Final = 64
"""Burials of one node at a time."""

CHANCE: Final = 1 / 8
"""Probability that a node buries although it is not the first of its replica set."""


class Burial(FetchCoordinator):
    """Holds the dying messages of one group in one partition, and makes dead letters of them. No client waits for it.

    Args:
        key: a negative number, because no client's key is negative.
        why: `EXHAUSTED` or `OVERDUE`.
    """

    __slots__ = ("rounds_begun", "why")

    def __init__(self, key: int, replica: Replica, group: str, why: int, hold_time: float, now: Now) -> None:
        most = limits.FETCH_MESSAGES_MAX
        request = m.Fetch((replica.topic.name,), group, most, 1 << 40, 1, 0.0, hold_time, now.mono)
        super().__init__(key, request, (replica.partition,), 0, now)
        self.why = why
        self.rounds_begun = 0  # rounds

    def start(self, context: Context, now: Now) -> list[Effect]:
        return self.advance(context, now)

    def advance(self, context: Context, now: Now) -> list[Effect]:
        """Begin the next round once the last one is decided, until nothing is dying or all rounds are used up."""
        effects: list[Effect] = []
        (partition,) = self.partitions
        while not (self.done or self.rounds):
            replica = context.replicas[partition]
            view = replica.views.groups.get(self.request.group)
            ballot = None
            if (
                view is not None
                and self.rounds_begun < ROUNDS
                and not self.conflict
                and replica.may_vote(now)
            ):
                picked = replica.choice.choose_dying(view, now, self.why, limits.RUNS_PER_STEP)
                if picked.wants:
                    ballot = context.state.clock.fresh(now)
            if ballot is None:
                return effects + self.finish(context, None)
            self.rounds_begun += 1
            effects += self._hold(context, replica, picked, ballot, now)
        return effects

    def _win(
        self, context: Context, round_: HoldRound, span: Span, attempts: Attempts, now: Now
    ) -> list[Effect]:
        """Give the message back, with the voters' count of its attempts, because they do not call it dead."""
        effects = round_.learn(self.request.group, span, attempts, now) if attempts != NO_ATTEMPTS else []
        self.conflict = True  # stop here: the same message would be chosen again
        return effects + context.releases.everywhere(
            [m.Released(round_.partition, self.request.group, round_.owner, (span,))], now
        )


def bury(context: Context, now: Now) -> list[Effect]:
    """Begin to bury the dying messages of some groups here, if this node is the one to do it.

    Rounds of upkeep go through the partitions in turn.
    """
    waiting = context.state.burying
    if not waiting:
        waiting.update(dict.fromkeys(context.replicas))
    effects: list[Effect] = []
    under_way = _under_way(context)
    looks = LOOKS
    while waiting and looks > 0 and len(under_way) < UNDER_WAY:
        partition = next(iter(waiting))
        del waiting[partition]
        replica = context.replicas.get(partition)
        if replica is None:
            continue  # its topic was deleted meanwhile
        looks -= 1
        for view in list(replica.views.groups.values()):
            looks -= replica.choice.cost_of_overdue(view, now)
            effects += _bury_group(context, replica, view, under_way, now)
    return effects


def bury_exhausted(context: Context, now: Now) -> list[Effect]:
    """Begin to bury the dying messages of the groups that ran out of deliveries since the last look."""
    effects: list[Effect] = []
    under_way = _under_way(context)
    noted, context.state.exhausted = context.state.exhausted, {}
    for partition, name in noted:
        replica = context.replicas.get(partition)
        view = replica.views.groups.get(name) if replica is not None else None
        if len(under_way) >= UNDER_WAY:
            context.state.bury_soon(partition, name, now)
        elif replica is not None and view is not None:
            effects += _bury_group(context, replica, view, under_way, now)
    return effects


def _under_way(context: Context) -> set[tuple[PartitionId, str]]:
    """Return partition and group of each burial that has not ended."""
    return {
        (pending.partitions[0], pending.request.group)
        for pending in context.requests.values()
        if isinstance(pending, Burial)
    }


def _bury_group(
    context: Context, replica: Replica, view: GroupView, under_way: set[tuple[PartitionId, str]], now: Now
) -> list[Effect]:
    effects: list[Effect] = []
    at = (replica.partition, view.name)
    for why in reasons(replica, view, now):
        if at not in under_way and is_first(context, replica, view.name):
            hold_time = min(HOLD_S, context.config.hold_time_max)
            made = Burial(context.next_key(), replica, view.name, why, hold_time, now)
            effects += context.begin(made, now)
            if not made.done:
                under_way.add(at)
    return effects


def reasons(replica: Replica, view: GroupView, now: Now) -> list[int]:
    """Return the reasons for which messages of the group are dying here."""
    if view.skipping or view.paused or view.source is not None:
        return []
    whys = [EXHAUSTED] if view.kept.count(EXHAUSTED) else []
    if replica.choice.overdue(view, now):
        whys.append(OVERDUE)
    return whys


def is_first(context: Context, replica: Replica, group: str) -> bool:
    """Return True if this node is to bury for the group: it is the first live member, or wins by chance.

    A node without a slot, such as a learner, has no vote, and maybe a link to none that has one.
    """
    if context.state.me not in replica.members:
        return False
    salt = salt_of(f"{group}/{replica.partition.number}")
    alive = [name for name in replica.members if name == context.state.me or name in context.state.links]
    first = max(alive, key=lambda name: (mix(replica.choice.salts[name] ^ salt), name))
    return first == context.state.me or context.rng.random() < CHANCE
