"""Interface between a coordinator and the node that it runs on."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from quorumq.core import messages as m
from quorumq.core.cluster.catalogue import Catalogue
from quorumq.core.cluster.peer_groups import PeerGroups
from quorumq.core.cluster.peers import Peers
from quorumq.core.cluster.rounds import Round
from quorumq.core.cluster.state import NodeConfig, Timer
from quorumq.core.messages.effects import Again, Effect
from quorumq.core.partition.move_throttle import MoveThrottle
from quorumq.core.requests.limiting import Limiting
from quorumq.core.requests.parking import Parking
from quorumq.core.requests.placing import Placing
from quorumq.core.requests.releases import Releases
from quorumq.core.values import limits
from quorumq.core.values.fairqueue import Caller, FairQueue, Whose, whose
from quorumq.core.values.latency import ReplyTimes
from quorumq.core.values.types import (
    Incarnation,
    Instance,
    NodeId,
    Now,
    PartitionId,
    Span,
    Topic,
)

WAKING = ("advance", "gathered", "again")
"""Timers of requests, by their key."""

Costly = (
    Again
    | Timer
    | tuple[Literal["remote"], NodeId, m.RemoteFetch]
    | tuple[Literal["wake"], tuple[PartitionId, str], tuple[int, ...]]
)
"""Work that waits for its turn."""


class Pending:
    """A request that is under way, as the node sees it: core/requests/coordinator.py says how it goes on.

    Attributes:
        key: the client request to answer; 0 if no client waits.
        caller: the client in whose turn the request goes on, if going on is costly.
        done: True once it was answered.
        rounds: its open rounds, by number.
    """

    __slots__ = ("caller", "done", "key", "rounds")

    key: int
    caller: Caller
    done: bool
    rounds: dict[int, Round]

    def start(self, context: Context, now: Now) -> list[Effect]:
        """Begin, and return the effects to carry out."""
        raise NotImplementedError

    @property
    def cost(self) -> int:
        """Return the cost of going on (core/requests/costs.py)."""
        return 0

    def go_on(self, context: Context, now: Now) -> list[Effect]:
        """Go on after a pause, unless a round is open, or with work that did not fit one step."""
        return self.start(context, now) if not self.rounds else []

    def on_reply(
        self, context: Context, sender: NodeId, incarnation: Incarnation, message: m.PeerMessage, now: Now
    ) -> list[Effect]:
        """Take in a reply to one of its rounds."""
        raise NotImplementedError

    def on_not_trusted(self, context: Context, number: int, sender: NodeId, now: Now) -> list[Effect]:
        """Note that ``sender`` is not trusted now, so it does not count in round ``number``."""
        return []

    def on_timeout(self, context: Context, number: int, now: Now) -> list[Effect]:
        """End the wait of round ``number``: its time is over."""
        raise NotImplementedError

    def on_gone(self, context: Context, now: Now) -> list[Effect]:
        """Handle the end of the client. Messages may still take effect, and work goes on unless a subclass ends it."""
        return []

    @property
    def carried(self) -> Sequence[Pending]:
        """Return other requests that wait for rounds of this one."""
        return ()

    @property
    def awaited_by(self) -> Sequence[int]:
        """Return the keys of requests that wait for the outcome of this one."""
        return ()

    def concerns(self, topic: bytes) -> bool:
        """Return True if anything is under way for that topic."""
        raise NotImplementedError

    def on_deleted(self, context: Context, topic: Topic, now: Now) -> list[Effect]:
        """End work about a deleted topic: it cannot complete."""
        raise NotImplementedError

    def on_moved(self, context: Context, moved: tuple[PartitionId, ...], now: Now) -> list[Effect]:
        """Note that the replica sets of these partitions have changed, as a layout says that may be adopted."""
        return []

    def on_voters_changed(self, context: Context, now: Now) -> list[Effect]:
        """Begin again: nodes answer an open round about registers in another epoch from now on."""
        raise NotImplementedError

    def begin_again_soon(self, context: Context, number: int, now: Now) -> None:
        """Begin again after a pause: a node that does not count in the round may count by then."""

    def on_link(self, context: Context, number: int, peer: NodeId, now: Now) -> list[Effect]:
        """Go on with a round now that there is a link to a peer, ours or the one that it answers over."""
        return []

    def on_left(self, context: Context, partition: PartitionId, now: Now) -> list[Effect]:
        """Note that this node leaves the replica set of a partition."""
        return []

    def reads(self, topic: bytes, group: str) -> bool:
        """Return True if only messages that the group reads of that topic can answer the request."""
        return False

    def on_group_deleted(self, context: Context, topic: Topic, now: Now) -> list[Effect]:
        """Handle the deletion of the group that it reads ``topic`` as."""
        raise NotImplementedError

    def on_registered(self, context: Context, topic: bytes, now: Now) -> list[Effect]:
        """Go on, because the awaited group may be read in that topic (core/requests/registration.py)."""
        raise NotImplementedError

    def on_unregistered(
        self, context: Context, topic: bytes, problem: m.Failed | None, now: Now
    ) -> list[Effect]:
        """Handle a group that may not be read there, because of ``problem``; None if too few nodes are trusted now."""
        raise NotImplementedError


@dataclass(slots=True, eq=False, repr=False)
class Context(Placing):
    """State of one node that its coordinators use.

    Attributes:
        rng: for pauses and jitter; each step brings its own.
        config: settings given to the node at its start.
        catalogue: the topics and groups that are known here.
        requests: requests under way, by the client's key.
        rounds: requests under way, by number of round.
        fetches: FETCHes that clients have asked for here.
        unstamped: requests that wait for the clock's reserve, by key.
        proposing: request that proposes a change of a group, by instance, or a topic's layout; others of this node wait
            for it.
        keys: last key given to a request that is no client's.
        publishing: batches published in this step and not sent yet.
        parking: FETCHes that are parked here.
        woken: number of requests of each client that went on in this step without a turn of their own.
        registrations: registrations of groups in progress, by topic and name, with the requests that wait for them.
        sub_fetches: FETCHes that other nodes asked for, by node and round: our key.
        called_off: rounds of FETCHes that we asked others for and gave up.
        hold_times: times that answers to HOLD take.
        costly: requests, FETCHes of peers and timers that wait for their turn.
        departure_is_due: True if this node was drained or removed in this step.
    """

    peers: Peers
    rng: random.Random
    config: NodeConfig = field(init=False)
    catalogue: Catalogue = field(init=False)
    peer_groups: PeerGroups = field(init=False)
    limiting: Limiting = field(init=False)
    releases: Releases = field(init=False)
    requests: dict[int, Pending] = field(default_factory=dict)
    rounds: dict[int, Pending] = field(default_factory=dict)
    fetches: int = 0
    keys: int = 0
    unstamped: dict[int, None] = field(default_factory=dict)
    proposing: dict[Instance, int] = field(default_factory=dict)
    publishing: list[Pending] = field(default_factory=list)
    parking: Parking = field(default_factory=Parking)
    woken: dict[Whose, int] = field(default_factory=dict)
    registrations: dict[tuple[bytes, str], Pending] = field(default_factory=dict)
    sub_fetches: dict[tuple[NodeId, int], int] = field(default_factory=dict)
    called_off: dict[int, None] = field(default_factory=dict)
    hold_times: ReplyTimes = field(default_factory=ReplyTimes)
    costly: FairQueue[Costly] = field(default_factory=FairQueue)
    departure_is_due: bool = False

    def __post_init__(self) -> None:
        self.config, self.catalogue = self.state.config, self.state.catalogue
        self.peer_groups, self.throttle = PeerGroups(self.state), MoveThrottle(self.config)
        self.limiting, self.releases = Limiting(self.state, self.hold_times), Releases(self)

    def next_key(self) -> int:
        """Return a key for a request that is no client's: it is below 0."""
        self.keys -= 1
        return self.keys

    def begin(self, request: Pending, now: Now) -> list[Effect]:
        """Begin a request that is no client's."""
        self.requests[request.key] = request
        return request.start(self, now)

    # --------------------------------------------------------------------- who may vote

    def may_coordinate(self, partition: PartitionId, now: Now) -> bool:
        """Return True if a FETCH of ``partition`` may be coordinated here: its replica may vote."""
        replica = self.replicas.get(partition)
        return replica is not None and replica.may_vote(now)

    def quarantine_left(self, now: Now) -> float:
        """Return the seconds until the last replica here is out of quarantine at the latest; 0.0 if none is in it."""
        until = max((replica.quarantine_until for replica in self.replicas.values()), default=now.mono)
        return max(0.0, until - now.mono)

    def may_wake(self, caller: Caller) -> bool:
        """Return True if one more request of this client may go on in this step, without a turn of its own."""
        return not caller or self.woken.get(whose(caller), 0) < limits.WOKEN_PER_STEP

    def queue_if_costly(self, pending: Pending, timer: Timer) -> bool:
        """Queue the timer's work, and return True, if ``pending`` is costly or one of many of its client."""
        cost, caller = pending.cost, pending.caller
        if cost <= limits.CHEAP and (not caller or self.may_wake(caller)):
            if caller:
                self.woken[whose(caller)] = self.woken.get(whose(caller), 0) + 1
            return False
        self.costly.put(caller, max(cost, limits.WAKING_COST), timer, pending.key)
        return True

    # ------------------------------------------------------------------- parked FETCHes

    def park(self, key: int, partitions: tuple[PartitionId, ...], request: m.Fetch, now: Now) -> list[Effect]:
        """Park a FETCH: peers that fetch for the group leave to us the messages that rank first for us.

        Peers learn at once if they do not know it yet. If no other node fetches, the next heartbeat is soon enough,
        because no other node would take anything away.
        """
        fresh, group = False, request.group
        for partition in self.parking.park(key, partitions, request):
            members = self.catalogue.members_of(partition)
            _, active = self.state.fetchers(partition, group, members, now)
            fresh = fresh or len(active) > 1
        return self.heartbeats(now) if fresh else []

    def heartbeats(self, now: Now) -> list[Effect]:
        """Send all peers the groups for which a FETCH is parked here."""
        waiting = self.parking.announce()[: limits.SPANS_PER_REQUEST_MAX]
        return self.peers.heartbeats(waiting, self.quarantine_left(now))

    def cut(self, partition: PartitionId, group: str, span: Span) -> list[tuple[Span, int]]:
        """Split ``span`` into chunks that a replica votes on in one step, each with its number of runs of messages.

        Our own replica decides the split. Without one, the span stays whole and counts one run.
        """
        replica = self.replicas.get(partition)
        view = replica.views.find(group) if replica is not None else None
        return view.cut(span) if view is not None and span.size > 1 else [(span, 1)]

    def check(self, now: Now) -> None:
        self.state.check()
        self.catalogue.check()
        self.peers.positions.check()
        self.hold_times.check()
        self.costly.check()
        producer_ids, names = (dict.fromkeys(one, 0) for one in (self.state.producer_ids, self.state.names))
        for replica in (*self.replicas.values(), *self.sources.values()):
            replica.check(now)
            topic, batches = replica.partition.topic, replica.batches
            producer_ids[topic] = producer_ids.get(topic, 0) + batches.sessions
            names[topic] = names.get(topic, 0) + batches.names
        assert all(self.state.producer_ids.get(topic, 0) == count for topic, count in producer_ids.items())
        assert all(self.state.names.get(topic, 0) == count for topic, count in names.items())
        self.check_requests()

    def check_requests(self) -> None:
        """Assert that everything under way waits for an event, also while other timers are due."""
        for instance, key in self.proposing.items():
            assert key in self.requests, f"{instance} is left to request {key}, which is gone"
        for number, pending in self.rounds.items():
            assert number in pending.rounds, f"round {number} is not its coordinator's"
        awake = {timer[-1] for _, _, timer in self.state.timers if timer[0] in WAKING}
        carried = {one.key for pending in self.rounds.values() for one in pending.carried}
        carried |= {key for pending in self.registrations.values() for key in pending.awaited_by}
        for key, pending in self.requests.items():
            assert not pending.done, f"request {key} was answered and is kept"
            awaits = pending.rounds or key in awake or key in carried or self.costly.has(key)
            assert awaits, f"request {key} waits for nothing, and will never be answered"
