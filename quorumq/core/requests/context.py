"""Interface between a coordinator and the node that it runs on.

It also applies changes of registers: replicas are made; those of a deleted topic end at once, and so do its requests.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from quorumq.core import messages as m
from quorumq.core.cluster.catalogue import Catalogue
from quorumq.core.cluster.labels import last_change
from quorumq.core.cluster.peer_groups import PeerGroups
from quorumq.core.cluster.peers import Peers
from quorumq.core.cluster.rounds import Round
from quorumq.core.cluster.state import NodeConfig, Timer
from quorumq.core.messages.effects import Again, Effect, Persist, Send
from quorumq.core.messages.records import ClusterPut, GroupPut
from quorumq.core.partition.move_throttle import MoveThrottle
from quorumq.core.partition.replica import Replica
from quorumq.core.requests.limiting import Limiting
from quorumq.core.requests.packing import keep_packed, pack_deleted
from quorumq.core.requests.parking import Parking
from quorumq.core.requests.placing import ClusterAdopted, Placing, discarded
from quorumq.core.requests.releases import Releases
from quorumq.core.values import limits
from quorumq.core.values.deadnames import source_of
from quorumq.core.values.errors import Code
from quorumq.core.values.fairqueue import Caller, FairQueue, Whose, whose
from quorumq.core.values.latency import ReplyTimes
from quorumq.core.values.types import (
    ClusterLayout,
    Group,
    Incarnation,
    Instance,
    MemberState,
    NodeId,
    Now,
    PartitionId,
    Span,
    Topic,
    Value,
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
        """End work about a deleted topic: nothing more can come of it."""
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
        proposing: request that proposes a change of a group, by instance; others of this node wait for it.
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

    # ------------------------------------------------------------------------ registers

    def take_in_group(self, group: Group, now: Now) -> list[Effect]:
        """Merge a group's register: each replica of its topic is read by it, or, if it is deleted, its reading ends."""
        merged = self.catalogue.take_group(group)
        if merged is None:
            return []
        self.state.clock.merge(merged.made.time)
        for number in range(self.catalogue.topics[group.topic].partitions):
            replica = self.kept(PartitionId(group.topic, number))
            if replica is not None:
                replica.views.on_register(merged, now)
        if merged.limit.per_second or (merged.topic, merged.name) in self.state.buckets:
            self.limiting.limit(merged, now, self.parking.lines)
        effects: list[Effect] = [Persist((GroupPut(merged),))]
        return effects + self.end_group(merged, now) + pack_deleted(self.state) if merged.deleted else effects

    def end_group(self, group: Group, now: Now) -> list[Effect]:
        """End the requests that are under way for a deleted group."""
        topic = self.catalogue.topics[group.topic]
        effects: list[Effect] = []
        self.state.drop_fetchers(lambda partition, name: (partition.topic, source_of(name)) == group[:2])
        for pending in dict.fromkeys([*self.requests.values(), *self.rounds.values()]):
            if not pending.done and pending.reads(group.topic, group.name):
                effects += pending.on_group_deleted(self, topic, now)
        return effects

    def take_in_topic(self, topic: Topic, now: Now) -> list[Effect]:
        """Merge a register that a peer has, and carry out its consequences: partitions begin, or end."""
        before = self.catalogue.register_named(topic.name)
        ours = self.catalogue.topics.get(topic.id)
        merged = self.catalogue.take_topic(topic)
        if merged is None:
            return []
        self.state.clock.merge(max(topic.stamp, last_change(topic.labels)).time)
        if not merged.deleted and merged.layout != (ours.layout if ours is not None else None):
            self.peer_groups.discard(topic.id)
            effects = self.put_layout(merged)
            effects += self.end_rounds(ours, merged, now) if ours is not None else []
        else:
            effects = self.put_register(merged, ours)
        there = before if before is not None and not before.deleted else merged
        for over in dict.fromkeys((there, merged)):
            if self.catalogue.is_deleted(over.id):
                effects += self.end_topic(over, now)
        effects += self.make_replicas((merged,), now)
        return effects + pack_deleted(self.state)

    def make_replicas(self, topics: Iterable[Topic], now: Now) -> list[Effect]:
        """Make a replica of each partition whose replica set, or list of sources, has this node.

        In quarantine, it asks for its holds. A layout that is not durable here yet counts once it is.
        """
        made = False
        for topic in topics:
            registers = self.catalogue.group_registers(topic.id)
            groups = dict.fromkeys([register.name for register in registers if not register.deleted])
            waits = self.is_adopting(topic)
            for register in registers:
                if register.limited is not None and not waits:
                    self.limiting.limit(register, now, self.parking.lines)
            for number, members in enumerate(topic.replicas):
                partition = PartitionId(topic.id, number)
                replica = self.kept(partition) if self.sources else self.replicas.get(partition)
                if replica is not None:
                    replica.alter(topic, now)
                elif waits:
                    continue
                elif self.state.me in members or (
                    topic.layout and self.state.me in topic.learners_of(number)
                ):
                    replica = self.replicas[partition] = Replica(self.state, topic, partition)
                    if partition in self.slots:
                        replica.trust_slot(self.slots[partition])
                    self.hold_recovery.await_holds(replica, now)
                    made = True
                    replica.views.begin(groups)
                elif topic.layout is not None and self.make_source(topic, partition):
                    self.sources[partition].views.begin(groups)
        self.join_soon(now)
        return self.ask_for_holds(now) if made and self.hold_recovery.awaited else []

    def take_in_cluster(self, layout: ClusterLayout, now: Now) -> list[Effect]:
        """Take over a layout that was chosen, if it is newer: one with other voters once it is durable here."""
        if not self.catalogue.is_newer(layout) or layout in self.adopting:
            return []
        if layout.epoch != self.catalogue.cluster.epoch:
            # After a crash this node's answers would count for the old voters again.
            return [Persist((ClusterPut(layout),), (self.when_durable(ClusterAdopted(layout)),))]
        return [*self.use_cluster(layout, now), Persist((ClusterPut(layout),))]

    def use_cluster(self, layout: ClusterLayout, now: Now) -> list[Effect]:
        """Act upon a layout of the cluster: peers come and go. One that is removed hears it before its link ends."""
        before = self.catalogue.cluster.present
        self.catalogue.take_cluster(layout)
        self.state.clock.merge(layout.made.time)
        self.departure_is_due = self.state.standing != MemberState.JOINED
        effects: list[Effect] = []
        for peer in before:
            if not self.catalogue.cluster.is_member(peer) and self.state.on_link_down(peer):
                effects.append(Send(peer, m.PutCluster(0, layout)))
        for peer in self.catalogue.cluster.present:
            if peer not in before and peer != self.state.me:
                self.state.at(now.mono + self.rng.random() * self.config.sync_interval, ("sync", peer))
        return effects

    def take_in_chosen(self, value: Value, now: Now) -> list[Effect]:
        """Take in a value that was just chosen. A layout is not adopted before a majority of the nodes has it."""
        if isinstance(value, Topic):
            return self.take_in_topic(value, now)
        if isinstance(value, Group):
            return self.take_in_group(value, now)
        if isinstance(value, ClusterLayout):
            return self.take_in_cluster(value, now)
        topic = self.catalogue.topics.get(value.topic)
        return self.take_in_topic(topic._replace(next_layout=value), now) if topic is not None else []

    def end_rounds(self, ours: Topic, merged: Topic, now: Now) -> list[Effect]:
        """End the rounds of requests about partitions whose slots have changed: fewer and fewer nodes answer them."""
        moved = tuple(
            PartitionId(ours.id, number)
            for number in range(ours.partitions)
            if ours.epoch_of(number) != merged.epoch_of(number)
        )
        effects: list[Effect] = []
        for pending in dict.fromkeys([*self.requests.values(), *self.rounds.values()]):
            if not pending.done and moved:
                effects += pending.on_moved(self, moved, now)
        return effects

    def adopt(self, topic: Topic, now: Now) -> list[Effect]:
        """Move this node's replicas to the sets of a layout that is durable here."""
        if self.catalogue.is_deleted(topic.id):
            return []
        departed, effects = self.take_layout(topic, now)
        for partition in departed:
            for pending in list(self.requests.values()):
                if not pending.done:
                    effects += pending.on_left(self, partition, now)
            self.replicas.pop(partition)
        self.state.drop_fetchers(lambda partition, _: partition in departed)
        effects += self.make_replicas((self.catalogue.topics[topic.id],), now)
        return effects + (self.ask_for_holds(now) if self.hold_recovery.awaited else [])

    def ask_for_holds(self, now: Now) -> list[Effect]:
        """Ask all peers for the holds of replicas in quarantine."""
        return [
            effect
            for peer in self.state.links
            for effect in self.hold_recovery.ask(self.state, self.replicas, peer, now, afresh=True)
        ]

    def end_topic(self, topic: Topic, now: Now) -> list[Effect]:
        """End requests and drop replicas (DELETE). The journal's records of them mean nothing from here on."""
        effects: list[Effect] = []
        for table in (self.replicas, self.sources):
            for partition in [each for each in table if each.topic == topic.id]:
                effects += discarded(table.pop(partition))
        self.state.producer_ids.pop(topic.id, None)
        self.state.names.pop(topic.id, None)
        self.catalogue.drop_groups(topic.id)
        self.peer_groups.discard(topic.id)
        self.limiting.drop(topic.id)
        self.state.drop_fetchers(lambda partition, _: partition.topic == topic.id)
        for pending in dict.fromkeys([*self.requests.values(), *self.rounds.values()]):
            if not pending.done and pending.concerns(topic.id):
                effects += pending.on_deleted(self, topic, now)
        return effects

    def put_topic(self, sender: NodeId, message: m.PutTopic, now: Now) -> list[Effect]:
        """Merge a topic's register and some groups' registers, to be kept (in a round), or as news (round 0).

        A sender behind the times gets the newer register.
        """
        number, topic, groups, _ = message
        newest = self.catalogue.register_named(topic.name)
        known, epoch = self.state.register_vector(), self.state.voting_epoch
        if newest is not None and newest.deletions > topic.deletions:
            if number:
                reply = m.PutReply(
                    number, Code.DELETED, f"topic {topic.name!r} was deleted", newest, None, known, epoch
                )
                return [Persist((), (Send(sender, reply),))]
            return [Send(sender, m.PutTopic(0, newest))]
        effects = self.take_in_topic(topic, now)
        effects += [effect for group in groups for effect in self.take_in_group(group, now)]
        effects += self.take_in_packed(message.packed, now)
        merged = self.catalogue.register_with(topic.id, topic.name)
        assert merged is not None, "it was merged a moment ago"
        if number:
            stamps = (topic.stamp, last_change(topic.labels))
            promised = self.state.promised((topic.id, ""), *stamps)
            more = merged if merged != topic else None
            reply = m.PutReply(number, "", "", more, None, known, epoch, promised)
            return [*effects, Persist((), (Send(sender, reply),))]
        if (merged.deleted and not topic.deleted) or merged.layout_known > topic.layout_known:
            return [*effects, Send(sender, m.PutTopic(0, merged))]
        return effects

    def put_group(self, sender: NodeId, message: m.PutGroup, now: Now) -> list[Effect]:
        """Merge a group's register, to be kept, or as news (round 0). An older one is answered with the newer one."""
        number, group, partitions, layout = message
        if not number:
            effects = self.take_in_group(group, now)
            merged = self.catalogue.group(group.topic, group.name) or group
            return effects if merged == group else [*effects, Send(sender, m.PutGroup(0, merged))]
        topic = self.catalogue.topics.get(group.topic)
        if topic is None or not self.state.trusted:
            code = Code.UNKNOWN_TOPIC if self.state.trusted else Code.NOT_TRUSTED
            return [Send(sender, m.PutReply(number, code, "", None, None))]
        known, epoch = self.state.register_vector(), self.state.voting_epoch
        if topic.deleted:
            reply = m.PutReply(number, Code.DELETED, "", topic, None, known, epoch)
            return [Persist((), (Send(sender, reply),))]
        effects = self.take_in_group(group, now)
        merged = self.catalogue.group(group.topic, group.name) or group
        more = topic if topic.all_partitions > partitions or topic.layout_known > layout else None
        promised = self.state.promised((group.topic, group.name), group.pause.stamp, group.limit.stamp)
        reply = m.PutReply(number, "", "", more, merged if merged != group else None, known, epoch, promised)
        return [*effects, Persist((), (Send(sender, reply),))]

    def take_in_registers(self, sender: NodeId, registers: m.SyncTopics, now: Now) -> list[Effect]:
        """Merge the registers that a peer has."""
        topics, groups, packed = registers
        effects = [effect for topic in topics for effect in self.put_topic(sender, m.PutTopic(0, topic), now)]
        effects += [effect for group in groups for effect in self.take_in_group(group, now)]
        return effects + self.take_in_packed(packed, now)

    def take_in_packed(self, packed: bytes, now: Now) -> list[Effect]:
        """Merge packed registers of deleted names that a peer has."""
        registers, effects = keep_packed(self.state, self.replicas, packed)
        for register in registers:
            if isinstance(register, Group):
                effects += self.take_in_group(register, now)
            else:
                effects += self.take_in_topic(register, now)
        return effects

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
