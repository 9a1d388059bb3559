"""One start of a node: its own state, and its knowledge of its peers.

Replicas and coordinators of one node share this object. It knows which incarnations are superseded, so that their
replies do not count, and if this node is trusted. Quarantine is the replica's (core/partition/replica.py).
"""

from __future__ import annotations

import functools
import hashlib
import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import chain
from typing import Final, Literal

from quorumq.core.cluster.buckets import Bucket
from quorumq.core.cluster.catalogue import Catalogue
from quorumq.core.cluster.promises import Promises, RegisterKey
from quorumq.core.messages import Released, Starts
from quorumq.core.messages.diskroom import WRITTEN, Shortage, Written, bare, is_written, why_full
from quorumq.core.messages.records import BatchStored, DelaysSet
from quorumq.core.values import limits
from quorumq.core.values.clock import HybridClock
from quorumq.core.values.errors import UsageError
from quorumq.core.values.fairqueue import Caller
from quorumq.core.values.types import (
    STAMP_ZERO,
    ClusterLayout,
    Incarnation,
    Machines,
    MemberState,
    NodeId,
    Now,
    Owner,
    PartitionId,
    ProducerId,
    Record,
    Span,
    Stamp,
)

NEVER = Incarnation(0, 0)
NO_END = float("inf")

Timer = (
    tuple[Literal["round"], int]  # the round with this number has waited long enough
    | tuple[Literal["anew"], int]  # the request of that round begins again
    | tuple[Literal["advance", "gathered", "again"], int]  # the request with this key goes on
    | tuple[Literal["forget"], int]  # drop the results of the FETCH with this key
    | tuple[Literal["release"], Caller, tuple[Released, ...]]  # the rest of the holds to give back
    | tuple[Literal["close"], Caller, ProducerId, tuple[PartitionId, ...]]  # the rest of a session
    # A hold of the group with this name, by that owner.
    | tuple[Literal["expire"], PartitionId, str, Span, Owner]
    | tuple[Literal["refresh"], PartitionId, str, Span]  # look at the messages available to that group
    | tuple[Literal["due"], PartitionId, int]  # the delay of the batch with this number is over
    | tuple[Literal["batch"], PartitionId, int, int]  # look at that batch, from this index on
    | tuple[Literal["tokens"], bytes, str]  # parked FETCHes of that topic and group have tokens again
    | tuple[Literal["look"]]  # groups that begin look at more
    | tuple[Literal["compare"]]  # anti-entropy goes on
    | tuple[Literal["sweep"]]  # RECLAIM goes on
    | tuple[Literal["serve"]]  # costly work has its turn
    | tuple[Literal["recover"], NodeId, int]  # ask a peer again, under this round
    | tuple[Literal["sync"], NodeId]
    | tuple[Literal["bury", "heartbeat", "join", "reclaim", "resync"]]
)
"""A node's next action at a time. Plain tuples: a message sets several, and a class would cost a call for each."""

GrantTimer = tuple[float, str, Span, Owner]
"""A hold: the time it lasts until, its group, its messages, and its owner."""


BURY_S: Final = 0.05
"""Seconds after something is out of deliveries until a node looks if it is the one to bury it."""


@functools.lru_cache(maxsize=1024)
def hash_of(nodes: tuple[NodeId, ...]) -> int:
    """Return the hash that names the nodes of a vector."""
    return int.from_bytes(hashlib.blake2b("\0".join(nodes).encode(), digest_size=4).digest(), "big")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConfig:
    """Settings of a node at its start; the same on all nodes but for ``node`` and the times marked so.

    Args:
        nodes: the ids of all nodes that the cluster was made with; five at most begin as voters.
        layout: a layout of the cluster with this node, if it is none of them.
        cluster_id: name that the cluster was made with.
        addresses: (node id, "host:port" for clients) pairs, for METADATA.
        peer_addresses: those for the other nodes, where they differ.
        machines: the machine of each node, if several nodes share one: no machine has two replicas of a partition.
        hold_time_max: longest hold that may be granted, in seconds; the same everywhere.
        request_timeout: longest quorum round, in seconds (may differ).
        auto_create_topics: True if a publish to an unknown topic creates it (may differ).
        heartbeat: seconds between heartbeats (may differ).
        sync_interval: mean seconds between digests sent to one peer (may differ).
        sync_grace: seconds for which a message must have been missing before it is pulled (may differ).
        steal_after: seconds after which a message ranked to another coordinator is anyone's (may differ).
        session_idle: seconds after which an idle producer's session may be closed, with nothing left of it (may
            differ).
        move_bytes_per_s: bytes a second of payload that the node gives to moves; 0: no limit (may differ).
        moves_at_once: partitions that it gives payload to at a time, as they move; 0: no limit (may differ).
        registers_key: secret of the cluster for digests of registers.
        packed_above: count of the newest one-message batches that a partition keeps as objects (may differ).
        deleted_unpacked: count of deleted names whose registers are not packed (may differ).
    """

    node: NodeId
    nodes: tuple[NodeId, ...]
    cluster_id: str = "cluster"
    addresses: tuple[tuple[NodeId, str], ...] = ()
    peer_addresses: tuple[tuple[NodeId, str], ...] = ()
    machines: Machines = ()
    layout: ClusterLayout | None = None
    hold_time_max: float = limits.HOLD_TIME_MAX_DEFAULT_S
    request_timeout: float = limits.REQUEST_TIMEOUT_S
    auto_create_topics: bool = False
    heartbeat: float = 0.5
    sync_interval: float = 2.0
    sync_grace: float = 2.0
    steal_after: float = 0.05
    session_idle: float = limits.SESSION_IDLE_S
    packed_above: int = limits.PACKED_ABOVE
    deleted_unpacked: int = limits.DELETED_UNPACKED_MAX
    move_bytes_per_s: int = 0
    moves_at_once: int = 0
    registers_key: bytes = field(default=b"", repr=False)

    def __post_init__(self) -> None:
        if self.node not in self.nodes and self.layout is None:
            raise UsageError(f"node {self.node!r} is not in the node list {', '.join(self.nodes)}")
        if self.hold_time_max < limits.HOLD_TIME_MIN_S:
            raise UsageError(f"hold_time_max is {self.hold_time_max} s, below {limits.HOLD_TIME_MIN_S} s")

    def check_same(self, nodes: tuple[NodeId, ...], hold_time_max: float, machines: Machines) -> None:
        """See that the cluster was made with the same nodes and machines, in any order, and ``hold_time_max``.

        Raises:
            UsageError: naming both values, and what to do.
        """
        if sorted(nodes) != sorted(self.nodes):
            raise UsageError(
                f"the cluster was made with nodes {', '.join(sorted(nodes))}, and node {self.node!r} is configured "
                f"with nodes {', '.join(sorted(self.nodes))}: which nodes have a message depends on the list, so "
                "it cannot change so. Put the old list back, and add nodes by `quorumq nodes add`; another list is "
                "another cluster, with empty data directories"
            )
        if sorted(machines) != sorted(self.machines):
            raise UsageError(
                f"the cluster was made with {_spread(machines)}, and node {self.node!r} is configured with "
                f"{_spread(self.machines)}: which nodes have a message depends on it, so it cannot change. Put the old "
                "machines back; others are another cluster, with empty data directories"
            )
        if hold_time_max != self.hold_time_max:
            raise UsageError(
                f"the cluster was made with hold_time_max = {hold_time_max} s, and node {self.node!r} is configured "
                f"with {self.hold_time_max} s: a node that starts waits for so long until every hold has run out, "
                "so it cannot change. Put the old value back; another value is another cluster, with empty "
                "data directories"
            )


def _spread(machines: Machines) -> str:
    if not machines:
        return "no machines (each node has its own)"
    return "machines " + ", ".join(f"{node} = {machine!r}" for node, machine in sorted(machines))


@dataclass(slots=True)
class NodeState:
    """Identity, clock, incarnations and timers of one start of a node, and what it knows of others.

    ``quarantine_until`` (monotonic seconds) is when every hold granted before this start must have run out; a replica
    may be out of its quarantine earlier (core/partition/hold_recovery.py).
    """

    config: NodeConfig
    catalogue: Catalogue
    incarnation: Incarnation
    directory: int
    clock: HybridClock
    trusted: bool
    quarantine_until: float
    once_lost: bool = False  # True if the directory lost trust in an earlier start
    # Count of partitions, proposed ones included, of each topic in which an earlier start may have voted; None: of any.
    earlier: dict[bytes, int] | None = None
    # Registers whose new partitions have a replica here, and those of them that are durable.
    registers_put: int = 0
    registers_durable: int = 0
    joins: bool = False  # True if the node was added, and no start of it was trusted before this one
    uncertain_until: float = float("-inf")  # until then it may not know how old these batches are:
    uncertain_below: int = 0  # the number above theirs
    same_boot: frozenset[int] = (
        frozenset()
    )  # the starts that the machine has made since it was booted, this one aside
    moved_s: float = (
        0.0  # seconds that this start found the time of day moved against the monotonic clock, since the last
    )
    # Groups with a message that is out of deliveries since the last look, and partitions whose groups wait for a look.
    exhausted: dict[tuple[PartitionId, str], None] = field(default_factory=dict)
    burying: dict[PartitionId, None] = field(default_factory=dict)
    known: dict[NodeId, Incarnation] = field(default_factory=dict)
    vectors: dict[tuple[NodeId, ...], Starts] = field(default_factory=dict)  # made of `known`
    links: dict[NodeId, Incarnation] = field(default_factory=dict)
    # Peers that have said something over a link to this start; and those with a link each way, which can answer.
    inbound: dict[NodeId, Incarnation] = field(default_factory=dict)
    answering: dict[NodeId, Incarnation] = field(default_factory=dict)
    parked: dict[tuple[PartitionId, str, NodeId], float] = field(default_factory=dict)
    active: dict[tuple[PartitionId, str, NodeId], float] = field(default_factory=dict)
    unconfirmed: dict[NodeId, dict[Released, float]] = field(default_factory=dict)
    timers: list[tuple[float, int, Timer]] = field(default_factory=list)
    ended_hold_timers: list[tuple[float, int, Timer]] = field(default_factory=list)
    timer_count: int = 0
    round_count: int = 0
    next_batch: int = 1
    # Producer ids with messages here, those of names aside, by topic: each once for each partition; and names.
    producer_ids: dict[bytes, int] = field(default_factory=dict)
    names: dict[bytes, int] = field(default_factory=dict)
    unwritten: dict[int, PartitionId] = field(default_factory=dict)  # batches that are not durable yet
    disk_shortage: Shortage = Shortage.NONE  # true if publishes are refused
    memory_full: str = ""  # reason why nothing new is taken in; "" if it is
    # Runs of messages that this step may still look at for groups that begin, and partitions with more of them.
    looks_left: float = NO_END
    backfill: dict[PartitionId, None] = field(default_factory=dict)
    # Digests, and parts of trees, that anti-entropy may still look at in this step, and partitions with more.
    compares_left: float = NO_END
    comparing: dict[PartitionId, None] = field(default_factory=dict)
    # Runs of messages that RECLAIM may still look at, each once for each group, and partitions with more.
    reclaims_left: float = NO_END
    reclaiming: dict[PartitionId, None] = field(default_factory=dict)
    # Groups of partitions with something newly available since the parked FETCHes last looked.
    newly_ready: dict[tuple[PartitionId, str], None] = field(default_factory=dict)
    buckets: dict[tuple[bytes, str], Bucket] = field(
        default_factory=dict
    )  # tokens of limited groups, by topic and name
    removed_in: int = 0  # number of the cluster layout without this node, as a peer that refused it says
    voter_since: int = 0  # layout since which this node has its voter's slot, if it knows all promises of it
    promises: Promises = field(default_factory=Promises)  # to changes of settings
    me: NodeId = field(init=False)  # this node's id

    def __post_init__(self) -> None:
        self.me = self.config.node

    def next_round(self) -> int:
        """Return a number for a request to others, used for nothing else in this start."""
        self.round_count += 1
        return self.round_count

    @property
    def standing(self) -> MemberState:
        """Return the state of this node as a member, as far as it knows.

        A peer that refused it may know a newer layout. If this node's name was given again since, its own is newer.
        """
        cluster = self.catalogue.cluster
        if cluster.layout.number < self.removed_in or self.me not in cluster.present:
            return MemberState.REMOVED
        return MemberState.JOINED if self.me in cluster.joined else MemberState.DRAINING

    @property
    def keeps_promises(self) -> bool:
        """Return True if this directory has all that was ever promised from it: a node that joins promised nothing."""
        return self.trusted or self.joins

    def note_earlier(self) -> None:
        """Note the topics in which an earlier start may have voted: those that are known here now, and no other.

        Why: votes wait for the topic's record. A hold is asked for in a group alone, which was chosen by a majority
        that knew the topic, and a resync hears one of each such majority.
        """
        self.earlier = {topic.id: topic.all_partitions for topic in self.catalogue.live()}

    # ------------------------------------------------------------ incarnations

    def learn(self, node: NodeId, incarnation: Incarnation) -> None:
        """Take note of an incarnation of ``node``; the highest start count stays."""
        if incarnation.n > self.known.get(node, NEVER).n:
            self.known[node] = incarnation
            self.vectors.clear()

    def superseded(self, node: NodeId, incarnation: Incarnation) -> bool:
        """Return True if a newer start of ``node`` is known than ``incarnation``."""
        return incarnation.n < self.known.get(node, NEVER).n

    def vector(self, nodes: tuple[NodeId, ...]) -> Starts:
        """Return the known incarnations of ``nodes``, in their order: sent with every reply of a replica."""
        vector = self.vectors.get(nodes)
        if vector is None:
            newest = tuple([self.known.get(node, NEVER) for node in nodes])
            vector = self.vectors[nodes] = Starts(hash_of(nodes), newest)
        return vector

    @property
    def voting_epoch(self) -> int:
        """Return the epoch of the voters in which our answers about registers count; -1 while our slot is new."""
        cluster = self.catalogue.cluster
        return cluster.epoch if cluster.since(self.me) in (0, self.voter_since) else -1

    def register_vector(self) -> tuple[Incarnation, ...]:
        """Return the known incarnations of the members, by number: sent with every reply about registers."""
        return self.vector(self.catalogue.cluster.names).newest

    def learn_register_vector(self, known: tuple[Incarnation, ...]) -> None:
        """Take note of a peer's vector of members. It may know fewer layouts, or more, and numbers stay the same."""
        for node, incarnation in zip(self.catalogue.cluster.names, known, strict=False):
            self.learn(node, incarnation)

    def learn_vector(self, nodes: tuple[NodeId, ...], known: Starts) -> None:
        """Take note of a peer's vector of ``nodes``. One of other nodes is from another epoch, and says nothing."""
        if known == self.vectors.get(nodes) or known.nodes != hash_of(nodes):
            return
        for node, incarnation in zip(nodes, known.newest, strict=False):
            self.learn(node, incarnation)

    def promised(self, register: RegisterKey, *stamps: Stamp) -> Stamp | None:
        """Return what was promised of a register whose settings have these stamps; None if nothing, or none is set."""
        highest = self.promises.of(register, self.clock.min_ballot)
        return highest if highest > STAMP_ZERO != max(stamps, default=STAMP_ZERO) else None

    # ------------------------------------------------------------------- links

    def on_link(self, peer: NodeId, incarnation: Incarnation) -> None:
        """Note that our link to a peer is up."""
        self.links[peer] = incarnation
        if self.inbound.get(peer) == incarnation:
            self.answering[peer] = incarnation

    def on_words(self, peer: NodeId, incarnation: Incarnation) -> None:
        """Note that a peer said something: its link to us is up."""
        self.inbound[peer] = incarnation
        if self.links.get(peer) == incarnation:
            self.answering[peer] = incarnation

    def on_dialled(self, peer: NodeId) -> None:
        """Note that a peer dials us: it cannot answer before it has said something over that link."""
        self.inbound.pop(peer, None)
        self.answering.pop(peer, None)

    def on_link_down(self, peer: NodeId) -> bool:
        """Note that our link to a peer is down; return True if it was up."""
        self.answering.pop(peer, None)
        return self.links.pop(peer, None) is not None

    # ------------------------------------------------------------------ timers

    def at(self, time: float, timer: Timer) -> None:
        """Have the node core act on ``timer`` at ``time`` (monotonic seconds)."""
        self.timer_count += 1
        heapq.heappush(self.timers, (time, self.timer_count, timer))

    def grants(self, partitions: Iterable[PartitionId], now: Now) -> dict[PartitionId, list[GrantTimer]]:
        """Return the holds whose time is not over, by partition: those that have ended, too."""
        granted: dict[PartitionId, list[GrantTimer]] = {partition: [] for partition in partitions}
        for time, _, timer in chain(self.timers, self.ended_hold_timers):
            if timer[0] == "expire" and time > now.mono and timer[1] in granted:
                granted[timer[1]].append((time, *timer[2:]))
        return granted

    def bucket_of(self, topic: bytes, group: str) -> Bucket | None:
        """Return the tokens of a group here; None if it has no limit."""
        return self.buckets.get((topic, group))

    def put_off(self, partition: PartitionId) -> None:
        """Have the next step go on with groups of ``partition``: they have more to do than this one has time for."""
        if not self.backfill:
            self.at(0.0, ("look",))
        self.backfill[partition] = None

    def compare_later(self, partition: PartitionId) -> None:
        """Have the next step go on with anti-entropy of ``partition``: it has more to do than this one has time for."""
        if not self.comparing:
            self.at(0.0, ("compare",))
        self.comparing[partition] = None

    def reclaim_later(self, partition: PartitionId) -> None:
        """Have the next step go on with RECLAIM of ``partition``: it has more to do than this one has time for."""
        if not self.reclaiming:
            self.at(0.0, ("sweep",))
        self.reclaiming[partition] = None

    # ------------------------------------------------------- who else is fetching

    def fetchers(
        self, partition: PartitionId, group: str, members: tuple[NodeId, ...], now: Now
    ) -> tuple[list[NodeId], list[NodeId]]:
        """Return the nodes to rank messages among: (those with a FETCH parked now, those that fetched in the last 2 s).

        This node is in both. What becomes available while a FETCH is parked here goes by the first, so that it
        never waits for a coordinator without a client to give it to; a backlog goes by the second.
        """
        since = now.mono - 2.0
        parked: list[NodeId] = []
        active: list[NodeId] = []
        for node in members:
            key = (partition, group, node)
            waits = node == self.config.node or self.parked.get(key, -1e18) >= since
            if waits:
                parked.append(node)
            if waits or self.active.get(key, -1e18) >= since:
                active.append(node)
        return parked, active

    def drop_fetchers(self, over: Callable[[PartitionId, str], bool]) -> None:
        """Drop what is known of other nodes' FETCHes for these partitions and groups."""
        for fetchers in (self.parked, self.active):
            for key in [key for key in fetchers if over(*key[:2])]:
                del fetchers[key]

    # ---------------------------------------------------------------- releases

    def owe_release(self, peer: NodeId, released: Released, now: Now) -> None:
        """Remember to repeat ``released`` in front of the next HOLD to ``peer``, until it confirms or no such hold can
        be live. Beyond 1,000 none is added, as it is a courtesy."""
        owed = self.unconfirmed.setdefault(peer, {})
        if len(owed) < 1000:
            owed[released] = now.mono + self.config.hold_time_max

    def releases_owed(self, peer: NodeId, now: Now, most: int = 50) -> tuple[Released, ...]:
        """Return up to ``most`` RELEASEs that ``peer`` has not confirmed and whose holds may still live."""
        owed = self.unconfirmed.get(peer)
        if not owed:
            return ()
        for released in [released for released, until in owed.items() if until <= now.mono]:
            del owed[released]
        return tuple(list(owed)[:most])

    def release_confirmed(self, peer: NodeId, released: tuple[Released, ...]) -> None:
        """Drop these RELEASEs: ``peer`` has taken them in."""
        owed = self.unconfirmed.get(peer)
        if owed:
            for item in released:
                owed.pop(item, None)

    def bury_soon(self, partition: PartitionId, group: str, now: Now) -> None:
        """Look for messages of a group that are out of deliveries in a moment, when the other nodes know as well."""
        if not self.exhausted:
            self.at(now.mono + BURY_S, ("bury",))
        self.exhausted[(partition, group)] = None

    def passed_s(self, record: BatchStored | DelaysSet, wall_ms: int, now: Now) -> float:
        """Return how many seconds ago this start's journal says that something was written; 0 at least.

        Args:
            record: journal record of the write.
            wall_ms: time of day then, in milliseconds since 1970.

        Why: within one boot the monotonic clock knows, even if the time of day is set. Over a boot only the time
        of day does; if that was set back, nothing has aged.
        """
        passed_ms = 1000 * now.mono - record.mono_ms
        if record.start in self.same_boot and passed_ms >= 0:
            return passed_ms / 1000
        return max(0, now.wall_ms - wall_ms) / 1000

    def is_uncertain(self, now: Now, number: int = 0) -> bool:
        """Return True if the age of a batch (0: of any) goes by the time of day, and that moved over a boot."""
        return number < self.uncertain_below and now.mono < self.uncertain_until

    # ---------------------------------------------------------------- capacity

    @property
    def disk_full(self) -> bool:
        """Return True if the disk has no more than its reserve left."""
        return self.disk_shortage > Shortage.NONE

    def no_capacity(self, kind: Written) -> str:
        """Return why this is not written now, and what to do; "" if it is."""
        if not is_written(kind, self.disk_shortage):
            return why_full(self.disk_shortage, self.me)
        return self.memory_full if WRITTEN[kind] == Shortage.NONE else ""

    def fitted(self, record: Record) -> Record:
        """Return the record as it is kept: if the node is full, with next to nothing of its death."""
        return (
            bare(record) if record.death is not None and (self.disk_shortage or self.memory_full) else record
        )

    def check(self) -> None:
        self.clock.check()
        for bucket in self.buckets.values():
            bucket.check()
        self.promises.check()
        assert self.known.get(self.config.node, self.incarnation) == self.incarnation or not self.trusted
