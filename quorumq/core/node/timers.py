"""A node's timers, as `NodeState.at` sets them, and their actions."""

from __future__ import annotations

import heapq
from typing import Final

from quorumq.core.cluster.state import Timer
from quorumq.core.messages.effects import Effect
from quorumq.core.node.request_router import RequestRouter
from quorumq.core.node.upkeep import Upkeep
from quorumq.core.partition.lease import NO_OWNER
from quorumq.core.partition.replica import Replica
from quorumq.core.recovery import joining, resync
from quorumq.core.recovery.trust import Trust
from quorumq.core.requests import costs
from quorumq.core.requests.burial import bury_exhausted
from quorumq.core.requests.context import Context
from quorumq.core.requests.fetch import FetchCoordinator
from quorumq.core.requests.placing import JOIN_AGAIN_S
from quorumq.core.requests.remote import SplitCoordinator
from quorumq.core.values import limits
from quorumq.core.values.fairqueue import NO_CALLER
from quorumq.core.values.types import Now, PartitionId

TIMERS_PER_STEP = 128
"""Timers that one step runs of all that are due: a thousand holds may run out at once."""

LASTING = frozenset(("heartbeat", "reclaim", "sync"))
"""Timers that always have something to do."""

ABOUT: Final = {
    **dict.fromkeys(("round", "anew"), "rounds"),
    **dict.fromkeys(("advance", "gathered", "again"), "requests"),
}
"""Timers with nothing left to do once what they name is not in that table of the `Context`."""


class Timers:
    """The timers of one node.

    Args:
        trust: component that asks others for promises that the directory lacks.
        upkeep: component of the regular work.
        router: closes sessions, in as many steps as it takes.
    """

    __slots__ = ("context", "router", "trust", "upkeep")

    def __init__(self, context: Context, trust: Trust, upkeep: Upkeep, router: RequestRouter) -> None:
        self.context = context
        self.trust = trust
        self.upkeep = upkeep
        self.router = router

    def take_due(self, now: Now) -> list[Timer]:
        """Take the timers that are due, but no more than one step has time for.

        Each is carried out before the next one runs: a message to this node may end what that would send a HOLD for.
        """
        timers = self.context.state.timers
        due: list[Timer] = []
        while timers and timers[0][0] <= now.mono and len(due) < TIMERS_PER_STEP:
            due.append(heapq.heappop(timers)[2])
        return due

    def is_stale(self, timer: Timer) -> bool:
        """Return True if a timer has nothing left to do, and so is to wake no node."""
        table = ABOUT.get(timer[0])
        if table is not None:
            return timer[1] not in getattr(self.context, table)  # type: ignore[misc]
        match timer:
            case ("forget", key):
                return key not in self.context.releases.unsent
            case (_, PartitionId() as partition, *_) if (
                partition not in self.context.replicas and partition not in self.context.sources
            ):
                return True  # its topic was deleted, or it was moved away
            case ("tokens", topic, group):
                return (topic, group) not in self.context.state.buckets
            case ("recover", peer, number):
                return not self.context.hold_recovery.is_current(peer, number)
            case ("expire", partition, name, span, _):
                kept = self.context.replicas.get(partition) or self.context.sources[partition]
                leases = kept.group(name).leases
                return not [lease for _, lease in leases.within(span) if lease.held is not None]
        return False

    def _kept(self, partition: PartitionId) -> Replica:
        """Return the replica of a partition that a timer is about: also one that was moved away has things due."""
        return self.context.replicas.get(partition) or self.context.sources[partition]

    def on_timer(self, timer: Timer, now: Now, *, waits: bool = True) -> list[Effect]:
        """Run a timer's action. ``waits``: for its turn, if it is costly."""
        context, state = self.context, self.context.state
        if self.is_stale(timer):
            return []
        match timer:
            case ("expire", partition, name, span, owner):
                kept = context.replicas.get(partition) or context.sources[partition]
                return kept.on_expire(name, span, owner, now)
            case ("refresh", partition, name, span):
                replica = self._kept(partition)
                view = replica.group(name)
                ended = replica.on_expire(name, span, NO_OWNER, now) if view.claims else []
                replica.views.refresh(view, span, now)
                return ended
            case ("due", partition, number):
                self._kept(partition).storing.on_due(number, now)
            case ("round", number):
                return context.rounds[number].on_timeout(context, number, now)
            case ("anew", number):
                return context.rounds[number].on_voters_changed(context, now)
            case ("advance" | "again", key) if waits and context.queue_if_costly(
                context.requests[key], timer
            ):
                pass  # for its turn
            case ("again", key):
                return context.requests[key].go_on(context, now)
            case ("advance", key):
                fetch = context.requests[key]
                return fetch.advance(context, now) if isinstance(fetch, FetchCoordinator) else []
            case ("gathered", key):
                split = context.requests[key]
                return split.on_gathered(context, now) if isinstance(split, SplitCoordinator) else []
            case ("release" | "close", caller, *_) if waits:
                context.costly.put(caller, costs.runs(len(timer[-1])), timer)
            case ("close", caller, producer_id, partitions):
                return self.router.close_session(caller, producer_id, partitions, now)
            case ("look" | "compare" | "sweep",) | ("batch", *_) if waits:
                context.costly.put(NO_CALLER, limits.COSTLY_PER_STEP, timer, timer)
            case ("batch", partition, number, first):
                self._kept(partition).storing.refresh_rest(number, first, now)
            case ("tokens", topic, group):
                context.limiting.wake(topic, group, context.parking.lines)
            case ("look",):
                return self._look(now)
            case ("sweep",):
                return self.upkeep.go_on_reclaiming(now)
            case ("compare",):
                return self.upkeep.go_on_comparing(now)
            case ("release", caller, released):
                return context.releases.in_steps(caller, released, now)
            case ("forget", key):
                del context.releases.unsent[key]
            case ("recover", peer, _):
                return context.hold_recovery.ask(state, context.replicas, peer, now)
            case ("resync",) if self.trust.resync is not None:
                state.at(now.mono + resync.ASK_AGAIN_S, ("resync",))
                effects = [
                    effect
                    for peer in state.links
                    for effect in self.trust.resync.ask(context, peer, now, afresh=True)
                ]
                # The missing messages may be needed no more: the topic was deleted meanwhile.
                return effects + self.trust.end_resync(context, now)
            case ("join",):
                context.joins = context.is_new
                if context.joins:
                    state.at(now.mono + JOIN_AGAIN_S, ("join",))
                return joining.go_on(context, now, afresh=True)
            case ("heartbeat",):
                state.at(now.mono + context.config.heartbeat, ("heartbeat",))
                return self.upkeep.heartbeat(now)
            case ("bury",):
                return bury_exhausted(context, now)
            case ("reclaim",):
                state.at(now.mono + context.config.sync_interval, ("reclaim",))
                return self.upkeep.regular_work(now)
            case ("sync", peer) if context.catalogue.cluster.is_member(peer):
                pause = context.config.sync_interval * (0.5 + context.rng.random())
                state.at(now.mono + pause, ("sync", peer))
                if peer in state.links and state.trusted:
                    return self.upkeep.sync(peer, now)
        return []

    def _look(self, now: Now) -> list[Effect]:
        """Have groups that are behind look at more, until the step has no time left."""
        context, backfill = self.context, self.context.state.backfill
        for partition in list(backfill):
            if context.state.looks_left <= 0:
                break
            replica = context.kept(partition)
            if replica is None or replica.views.go_on(now):
                del backfill[partition]
        if backfill:
            context.state.at(now.mono, ("look",))
        return []
