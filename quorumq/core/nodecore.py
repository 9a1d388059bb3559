"""One node's whole protocol, as one pure state machine.

Four drivers run this same class: the trio shell on real sockets and disks, the event heap and the explorer of the
simulator, and the trio shell in virtual time. A driver gives it the records of the journal, then events with one
reading of the clocks each, and carries out the effects (core/effects.py lists the driver's duties). Everything that
the node has promised is in the journal; everything else may be lost at any moment.

Here messages are routed to replicas and coordinators, timers run, links come and go. What a HOLD or an ACK means is
in core/partition; how answers are counted, in core/rounds.py and the coordinators.
"""

from __future__ import annotations

import difflib
import hashlib
import heapq
import random
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Union

from quorumq.core import limits
from quorumq.core.clock import RESERVE_STEP, HybridClock
from quorumq.core.closing import ORIGINS_PER_ROUND, CloseCoordinator
from quorumq.core.coordinator import (
    Coordinator,
    PeekCoordinator,
    PublishCoordinator,
)
from quorumq.core.creation import CreateTopicCoordinator, vote
from quorumq.core.effects import (
    CleanStop,
    Damaged,
    DiskFull,
    Done,
    Durable,
    Effect,
    Event,
    Forget,
    Gone,
    HelloRefused,
    LinkDown,
    LinkUp,
    Persist,
    Received,
    Reply,
    Request,
    Restart,
    Send,
    Stop,
    Unposted,
    Unsent,
)
from quorumq.core.fetch import FetchCoordinator
from quorumq.core.finding import FindCoordinator, tell_registers, to_find
from quorumq.core.groups import GroupCoordinator, PurgeCoordinator, SurveyCoordinator
from quorumq.core.latency import Latency
from quorumq.core.messages import (
    VERSIONS,
    Accept,
    Ack,
    AckRequest,
    AlterTopic,
    ClientRequest,
    CloseAsk,
    CloseSession,
    CloseTold,
    CreateTopic,
    DeclareSurvivors,
    DeleteTopic,
    Envelope,
    Extend,
    Extended,
    ExtendRequest,
    Failed,
    Fetch,
    Freed,
    GroupsAsk,
    GroupsTold,
    Heartbeat,
    Hello,
    Hold,
    HoldReply,
    HoldsAsk,
    HoldsTold,
    LeaveRequest,
    Left,
    Merge,
    Merged,
    Metadata,
    MetadataReply,
    NodeInfo,
    OpenSession,
    PeekAsk,
    PeekPage,
    PeekReply,
    PeekRequest,
    PeerMessage,
    Prepare,
    Publish,
    PurgeRequest,
    Put,
    PutGroup,
    PutTopic,
    RedriveRequest,
    RegistersAsk,
    RegistersTold,
    Reject,
    Rejected,
    RejectRequest,
    Release,
    Released,
    RemoteFetch,
    RemoteFetched,
    RemoteGone,
    ResyncAsk,
    ResyncTold,
    SessionClosed,
    SessionOpened,
    SetGroup,
    StatusAsk,
    StatusReply,
    Store,
    Stored,
    Survey,
    Surveyed,
    SurvivorsAsk,
    SurvivorsTold,
    SyncOffer,
    SyncPull,
    SyncState,
    SyncTopics,
    Tombed,
    TopicCreated,
    Voted,
    Welcome,
)
from quorumq.core.partition.group import DEAD_LETTER_TOPIC, DEAD_SUFFIX, dead_letter_names
from quorumq.core.partition.replica import PartitionRecord, Replica
from quorumq.core.records import (
    BatchStored,
    CleanStopped,
    ClusterMade,
    CreationPut,
    DirectoryMade,
    GroupPut,
    JournalRecord,
    MemoryAtStop,
    OriginsClosed,
    PeerPosition,
    PeerSeen,
    Placed,
    Reclaimed,
    Reserved,
    Started,
    TopicPut,
    Vouched,
    VouchingLost,
)
from quorumq.core.recovery import Recovery, tell
from quorumq.core.registers import AlterTopicCoordinator, DeleteTopicCoordinator
from quorumq.core.remote import LegCoordinator, SplitCoordinator, free_slice
from quorumq.core.resync import ASK_AGAIN_S, GROUPS_PER_PIECE, Resync, far_above
from quorumq.core.resync import tell as tell_all
from quorumq.core.rounds import majority_of
from quorumq.core.settle import AckCoordinator, ExtendCoordinator, RedriveCoordinator, RejectCoordinator
from quorumq.core.state import NodeConfig, NodeState
from quorumq.core.survivors import DeclareCoordinator
from quorumq.core.survivors import tell as tell_standing
from quorumq.core.topics import (
    check_alteration,
    check_topic_request,
    closed,
    is_pattern,
    matching,
    merge_creations,
    merge_topics,
    rank,
)
from quorumq.core.types import (
    NODES_MAX,
    STAMP_ZERO,
    Creation,
    Group,
    Incarnation,
    Kind,
    NodeId,
    Now,
    Origin,
    PartitionId,
    Span,
    Topic,
    generation_of,
)

GROUPS_ASK_S = 60.0
"""How long an answer to a GroupsAsk is waited for."""

GROUPS_ASK_TOPICS = 64
"""Topics in one GroupsAsk."""

SOFTWARE = "quorumq"

TOKEN_STARTED = -1
TOKEN_VOUCHED = -2
TOKEN_LOST = -3
TOKEN_POSITION = -4
TOKEN_RESERVE = -(1 << 62)
"""Tokens from here up to 0 name a reserve: the token is TOKEN_RESERVE + the time reserved >> 16."""

POSITIONS_EVERY_S = 5.0
"""How often the positions of the peers are journaled at most."""

FORGET_MAX = 10_000
"""Batches in one Forget."""

BALLOTS_AT_STOP_MAX = 10_000
"""Ballots that a clean stop keeps; of the groups that have more, a later ACK may hear `acked_unproven`."""

IF_ALL_WERE_RESTORED = (
    "if the whole cluster was restored from a backup, what was acked since that was taken is delivered again"
)

ASKED_MAX = 1024
"""Rounds of HOLD whose answers are timed; what answers an older one is too late to matter."""

QUORUM_REQUESTS = (Store, Hold, Extend, Ack, Reject, Merge, Survey, CloseAsk)
QUORUM_REPLIES = (
    Stored, HoldReply, Extended, Tombed, Rejected, Merged, Surveyed, CloseTold, Put, PeekReply, RemoteFetched,
    RegistersTold, SurvivorsTold, Voted,
)  # fmt: skip


QuorumReply = Union[
    Stored, HoldReply, Extended, Tombed, Rejected, Merged, Surveyed, CloseTold, Put, PeekReply, RemoteFetched,
    RegistersTold, SurvivorsTold, Voted,
]  # fmt: skip


class GroupsAsked(NamedTuple):
    """A GroupsAsk: when the question was asked (monotonic seconds), of which topics."""

    at: float
    topics: tuple[bytes, ...]


class NodeCore:
    """One start of one node.

    Args:
        config: what the node is told.
        journal: the journal's records in order; a BatchStored may come without its body. A damaged batch is left out.
        nonce: 64 random bits for this incarnation.
        directory: 64 random bits for the data directory, used if the journal names none.
        now: the clocks at this start.
        rng: for pauses and jitter only.
        place: where this start found the data directory, as a number that a copy of the directory does not have; 0
            where the driver cannot tell.
        newest: an operator says that this directory is the newest there is, wherever it lies.

    Raises:
        ValueError: the journal is another node's, or of a cluster that was made otherwise than ``config`` says.
    """

    def __init__(
        self,
        config: NodeConfig,
        journal: Iterable[JournalRecord],
        *,
        nonce: int,
        directory: int,
        now: Now,
        rng: random.Random,
        place: int = 0,
        newest: bool = False,
    ) -> None:
        self.config = config
        self.rng = rng
        self.topics: dict[bytes, Topic] = {}
        self.names: dict[str, bytes] = {}
        self.creations: dict[
            tuple[str, int], Creation
        ] = {}  # by name and deletions; not decided, as far as we know
        self.settled_groups: dict[
            tuple[PartitionId, str], None
        ] = {}  # known to be at a majority of its replicas
        self.replicas: dict[PartitionId, Replica] = {}
        self.requests: dict[int, Coordinator] = {}
        self.rounds: dict[int, Coordinator] = {}
        self.orphans: list[int] = []  # batches of deleted topics that the journal still had at this start
        self.hold_times = Latency()
        self.asked_at: dict[int, float] = {}  # when rounds of HOLD began, those that are over included
        self.round_count = 0
        self.sessions = 0
        self.fetches = 0
        self.remote_keys = 0
        self.legs: dict[tuple[NodeId, int], int] = {}  # a FETCH that another node asked for -> our key
        self.called_off: dict[int, None] = {}  # rounds of FETCHes that we asked others for and gave up
        self.batch_partitions: dict[int, PartitionId] = {}
        self.given: dict[int, tuple[float, list[Freed]]] = {}
        self.parked: dict[tuple[PartitionId, str], int] = {}
        self.announced: dict[tuple[PartitionId, str], None] = {}  # parked FETCHes that the peers know of
        self.peers: dict[NodeId, tuple[Incarnation, tuple[int, ...]]] = {}
        self.heard_at: dict[NodeId, float] = {}
        self.peer_facts: dict[NodeId, dict[str, object]] = {}
        self.vouchers: dict[NodeId, None] = {}
        self.recovery = Recovery()
        self.resync: Resync | None = None  # while this directory cannot vouch
        self.place = place
        self.placed: Placed | None = None  # what the journal says
        self.suspected = False  # it may be an old copy: no vote until every other node has been heard
        self.silenced = False  # waiting for the disk, to begin again
        self.vouching_floor = 0  # of ballots, once the resync is over
        self.resynced_above = 0  # the starts up to this one count as taken into account by its resyncs
        self.counting = False  # whether the driver counts the records of the directory (`take_position`)
        self.found = 0  # how many of them this start found
        self.appended = 0  # how many there are with those that this start has appended
        self.position = 0  # how many are durable, as far as we were told
        self.positions: dict[NodeId, tuple[int, int]] = {}  # what a peer told last, and which start of it
        self.positions_new: dict[NodeId, None] = {}  # those that are not in the journal yet
        self.positions_due = 0.0  # not to be journaled before
        self.positions_quiet = 0  # nor before something else was
        self.stopped = False
        self.started = False
        self.void: list[int] = []  # batches on disk that nobody needs: reclaimed before a crash, or no use
        self.groups_asked: dict[int, GroupsAsked] = {}  # RECLAIM: questions by number
        # By peer and topic: when the question was asked that it has answered.
        self.groups_heard: dict[tuple[NodeId, bytes], float] = {}
        self._load(journal, nonce, directory, now, newest=newest)

    # ---------------------------------------------------------------- start

    def _load(
        self, journal: Iterable[JournalRecord], nonce: int, directory: int, now: Now, *, newest: bool
    ) -> None:
        """Rebuild the durable state. Batches and per-partition records wait until their topic is known."""
        n = 0
        last = Incarnation(0, 0)
        reserve = 0
        vouched = False
        new = True
        stop: CleanStopped | None = None
        self.is_noted = False  # what the cluster was made with
        groups: list[Group] = []
        partitioned: list[BatchStored | PartitionRecord] = []
        for record in journal:
            stop = None
            if isinstance(record, DirectoryMade):
                if (record.node, record.cluster_id) != (self.config.node, self.config.cluster_id):
                    raise ValueError(
                        f"the data directory belongs to node {record.node!r} of cluster {record.cluster_id!r}, "
                        f"not to node {self.config.node!r} of cluster {self.config.cluster_id!r}"
                    )
                directory, new = record.directory, False
            elif isinstance(record, ClusterMade):
                self.config.check_same(record.nodes, record.hold_time_max)
                self.is_noted = True
            elif isinstance(record, Started):
                n, last = max(n, record.incarnation.n), record.incarnation
            elif isinstance(record, Vouched):
                vouched, self.resync = True, None
            elif isinstance(record, VouchingLost):
                vouched, self.resync = False, Resync(record.reason)
                self.resynced_above = max(self.resynced_above, record.above or far_above(n))
                n = max(n, self.resynced_above)
            elif isinstance(record, Placed):
                self.placed = record
            elif isinstance(record, PeerSeen):
                _, known = self.peers.get(record.node, (last, ()))
                if known[-1:] != (record.directory,):
                    self.positions.pop(record.node, None)
                self.peers[record.node] = (record.incarnation, seen_last(known, record.directory))
            elif isinstance(record, PeerPosition):
                if record.node in self.peers and self.peers[record.node][1][-1] == record.directory:
                    self.positions[record.node] = (record.position, record.start)
            elif isinstance(record, Reserved):
                reserve = max(reserve, record.time)
            elif isinstance(record, TopicPut):
                self._take_topic(record.topic)
            elif isinstance(record, CreationPut):
                self._take_creation(record.creation)
            elif isinstance(record, GroupPut):
                groups.append(record.group)
            elif isinstance(record, CleanStopped):
                stop = record
            else:
                partitioned.append(record)
        self.is_new = new
        self.was_vouched = vouched
        if self.is_elsewhere and self.resync is not None:
            self.resynced_above = n = far_above(n)  # an old copy may lack the last starts
        elif self.is_elsewhere and not newest:
            self.suspected, vouched = True, False
        if n + 1 >= limits.STARTS_MAX:
            raise ValueError(
                f"node {self.config.node!r} would be at start {n + 1}, and no start count reaches {limits.STARTS_MAX}: "
                "this node id is used up. Make another cluster, and take the messages there"
            )
        incarnation = Incarnation(n + 1, nonce)
        # A reply may wait, for a disk or a parked FETCH, while we are started again, and then come over the new link:
        # only the number says that it answers a question of the old start. So no two starts use one number.
        self.round_count = incarnation.n << 32
        clock = HybridClock(self.config.node, reserve, reserve)
        clean = stop is not None and stop.incarnation == last and not self.is_elsewhere
        quarantine = limits.QUARANTINE_SHARE * self.config.hold_time_max if self.was_vouched else 0.0
        if clean and stop is not None:
            quarantine = stop.quarantine_s
        self.state = NodeState(
            config=self.config,
            incarnation=incarnation,
            directory=directory,
            clock=clock,
            vouched=vouched,
            quarantine_until=now.mono + quarantine,
        )
        self.state.known[self.config.node] = incarnation
        for node, (seen, _) in self.peers.items():
            self.state.learn(node, seen)
        for group in groups:
            if not self.is_deleted(group.topic):
                self._take_group(group)
        self._make_replicas(now)
        self._load_partitions(partitioned, now)
        if clean and stop is not None:
            for kept in stop.memory:
                replica = self.replicas.get(kept.partition)
                if replica is not None:
                    replica.group(kept.group).holds.restore_memory(kept.floor, kept.ballots)
            for held in stop.holds:
                replica = self.replicas.get(held.partition)
                if replica is not None:
                    replica.restore_hold(held, now)
            for partition in stop.recovered:
                replica = self.replicas.get(partition)
                if replica is not None:
                    replica.end_quarantine([], now)
        for replica in self.replicas.values():
            replica.refresh_all(now)

    def _load_partitions(self, records: list[BatchStored | PartitionRecord], now: Now) -> None:
        # What was reclaimed comes first: a batch that is not void was stored after that, as it was wanted again.
        # Then what was closed: nothing is stored of it any more.
        reclaimed = [record for record in records if isinstance(record, Reclaimed)]
        over: list[PartitionRecord] = [record for record in records if isinstance(record, OriginsClosed)]
        void = dict.fromkeys(number for record in reclaimed for number in record.numbers)
        for gone in [*reclaimed, *over]:
            replica = self.replicas.get(gone.partition)
            if replica is not None:
                replica.replay(gone, now)
        for record in records:
            if isinstance(record, Reclaimed | OriginsClosed):
                continue
            if isinstance(record, BatchStored):
                self.state.next_batch = max(self.state.next_batch, record.number + 1)
                if record.number in void:
                    self.void.append(record.number)
                    continue
                replica = self.replicas.get(record.batch.header.partition)
                if replica is not None:
                    replica.load_batch(record, now)
                    if record.number not in replica.batches:
                        self.void.append(record.number)
                else:
                    self.orphans.append(record.number)
            else:
                replica = self.replicas.get(record.partition)
                if replica is not None:
                    replica.replay(record, now)

    def take_position(self, position: int) -> None:
        """How many records this start found in the directory. Before `start`; for a driver that counts them."""
        self.counting = True
        self.found = self.appended = self.position = position

    def load_damaged(self, records: Iterable[BatchStored], now: Now) -> None:
        """Batches of the journal that cannot be read. Before `start`: what is in them is known, and absent."""
        for record in records:
            self.state.next_batch = max(self.state.next_batch, record.number + 1)
            replica = self.replicas.get(record.batch.header.partition)
            if replica is not None:
                replica.load_damaged(record, now)
            else:
                self.orphans.append(record.number)

    @property
    def groups(self) -> dict[tuple[bytes, str], Group]:
        """The registers of groups by (topic id, name), which the replicas read by, too."""
        return self.state.registers

    def start(self, now: Now) -> list[Effect]:
        """The first effects. Until `Durable(TOKEN_STARTED)` is fed back, the node must not speak to anyone."""
        reserve = max(self.state.clock.floor, now.wall_ms << 16) + RESERVE_STEP
        self.state.clock.reserving = reserve
        records: list[JournalRecord] = []
        if self.is_new:
            records.append(DirectoryMade(self.config.node, self.config.cluster_id, self.state.directory))
        if not self.is_noted:
            records.append(self._cluster_made())
        records += [Started(self.state.incarnation), Reserved(reserve)]
        if self.resync is not None:
            self.state.at(now.mono + ASK_AGAIN_S, "resync")
            if self.is_elsewhere:
                records.append(VouchingLost(self.resynced_above, self.resync.reason))
        if not self.suspected:
            records += self._trust_place(
                "it could not vouch anyway, and resyncs"
                if self.resync is not None
                else "an operator said that it is the newest there is"
            )
        if len(self.config.nodes) == 1 and not self.state.vouched:
            records += [
                *self._trust_place(f"there is no other node to ask; {IF_ALL_WERE_RESTORED}"),
                Vouched(),
            ]
        for peer in self.config.nodes:
            if peer != self.config.node:
                self.state.at(now.mono + self.rng.random() * self.config.sync_interval, "sync", peer)
        self.state.at(now.mono + self.config.heartbeat, "heartbeat")
        self.state.at(now.mono + self.config.sync_interval, "reclaim")
        started = (Done(_reserve_token(reserve)), Done(TOKEN_STARTED))
        return self._count([Persist(tuple(records), started), *forget(self.void)])

    @property
    def is_elsewhere(self) -> bool:
        """Whether the data directory was found elsewhere than the journal says."""
        return bool(self.place) and self.placed is not None and self.placed.place != self.place

    def _trust_place(self, why: str) -> list[JournalRecord]:
        """What makes this start's place the one that later starts compare theirs with."""
        if not self.place or (self.placed is not None and self.placed.place == self.place):
            return []
        why = f"it was copied here, or restored from a backup; {why}" if self.placed is not None else ""
        self.placed = Placed(self.place, self.state.incarnation.n, why)
        return [self.placed]

    def unheard(self) -> list[NodeId]:
        """The other nodes that have not yet said what they know of this one."""
        return [node for node in self.config.nodes if node not in (*self.vouchers, self.config.node)]

    def explain_suspicion(self) -> str:
        """Why this node does not trust its directory yet, and what would have it go on; "" where it does."""
        if not self.suspected:
            return ""
        return (
            "the data directory lies elsewhere than at its last start: it was copied, or restored from a backup, and "
            "may lack what was promised since. Every other node has to say first what it knows: still missing "
            f"{', '.join(self.unheard()) or 'nothing but its own disk'}. Start these; or empty the directory, and the "
            "node learns from the others; or, if nothing has run from another copy of it since, start this node once "
            "with --directory-is-newest"
        )

    def _cluster_made(self) -> ClusterMade:
        return ClusterMade(tuple(sorted(self.config.nodes)), self.config.hold_time_max)

    # ----------------------------------------------------------------- step

    def step(self, events: Sequence[Event], now: Now, rng: random.Random) -> list[Effect]:
        """Take events in, in order, at one reading of the clocks; due timers run first.

        Args:
            events: what happened.
            now: the clocks; ``mono`` never goes back.
            rng: for pauses and jitter.

        Returns:
            the effects, to be carried out in order (core/effects.py).
        """
        self.rng = rng
        effects: list[Effect] = []
        if self.silenced:
            events = [event for event in events if isinstance(event, Durable)]
        if self.stopped or (self.silenced and not events):
            return effects
        self._absorb(self._run_timers(now), effects, now)
        for event in events:
            if self.stopped:
                break
            self._absorb(self._on_event(event, now), effects, now)
        self._absorb(self._advance_stirred(now), effects, now)
        reserve = None if self.stopped else self.state.clock.next_reserve(now)
        if reserve is not None:
            effects.append(Persist((Reserved(reserve),), (Done(_reserve_token(reserve)),)))
        self._drop_stale_timers()
        return self._count(effects)

    def _count(self, effects: list[Effect]) -> list[Effect]:
        """Count the records, and have STORED and TOMBED say how many are durable once they may be sent.

        So a peer that relied on one knows it, should a later start of ours find fewer. What waits for no fsync says
        nothing: a power cut may take it.
        """
        if self.counting:
            for at, effect in enumerate(effects):
                if isinstance(effect, Persist):
                    self.appended += len(effect.records)
                    if effect.then and effect.sync:
                        effects[at] = effect._replace(then=tuple(map(self._with_position, effect.then)))
        return effects

    def _with_position(self, item: Send | Reply | Done) -> Send | Reply | Done:
        if isinstance(item, Send) and isinstance(item.message, Stored | Tombed):
            return item._replace(message=item.message._replace(position=self.appended))
        return item

    def next_deadline(self) -> float | None:
        """When `step` should be called at the latest (monotonic seconds), events or not."""
        idle = self.stopped or self.silenced or not self.state.timers
        return None if idle else self.state.timers[0][0]

    def _absorb(self, new: list[Effect], effects: list[Effect], now: Now) -> None:
        """Append effects, feeding what is sent to ourselves back in at once, in order."""
        queue = list(new)
        at = 0
        while at < len(queue):
            effect = queue[at]
            at += 1
            if isinstance(effect, Send) and effect.to == self.config.node:
                queue[at:at] = self._on_message(self.config.node, self.state.incarnation, effect.message, now)
            else:
                effects.append(effect)
            if len(queue) > 4096:
                queue, at = queue[at:], 0

    def _advance_stirred(self, now: Now) -> list[Effect]:
        """Let the parked FETCHes look at what became available, the longest waiting first."""
        effects: list[Effect] = []
        for _ in range(8):  # one FETCH may give back what another one waits for
            if not self.state.stirred:
                break
            self.state.stirred = False
            for coordinator in list(self.requests.values()):
                if isinstance(coordinator, FetchCoordinator) and not coordinator.done:
                    effects += coordinator.advance(self, now)
        return effects

    def _on_event(self, event: Event, now: Now) -> list[Effect]:
        match event:
            case Received(envelope):
                return self._on_received(envelope, now)
            case Request(key, request):
                return self.on_request(key, request, now)
            case Durable(token, position):
                if self.counting:
                    self.position = max(self.position, position)
                return self._on_durable(token, now)
            case Unsent(key):
                return self._on_unsent(key, now)
            case Unposted(message):
                return [effect for part in message.slices for effect in free_slice(self, part, now)]
            case Gone(key):
                coordinator = self.requests.get(key)
                return coordinator.on_gone(self, now) if coordinator is not None else []
            case LinkUp():
                return self._on_link_up(event, now)
            case HelloRefused(peer, code, detail, seen_n):
                if code == "superseded" and seen_n:
                    return self._lose_vouching(seen_n, f"{peer} refuses this node: {detail}")
                if code == "superseded":
                    return self._stop(f"{peer} refuses this node: {detail}")
                return []
            case LinkDown(peer):
                self.state.links.pop(peer, None)
                return []
            case DiskFull(full):
                self.state.disk_full = full
                return []
            case Damaged(number):
                for replica in self.replicas.values():
                    if number in replica.batches:
                        replica.on_damaged(number, now)
                return []
            case CleanStop():
                return self._on_clean_stop(now)

    def _on_durable(self, token: int, now: Now) -> list[Effect]:
        if token == TOKEN_POSITION:
            return []
        if token == TOKEN_STARTED:
            self.started = True
            self.positions_quiet = self.position
            if len(self.config.nodes) == 1:
                self.state.vouched = self.was_vouched = True
                self.suspected = False
            if self.resync is not None:
                return []  # the topic may have been forgotten, not deleted: a later start knows
            orphans, self.orphans = self.orphans, []
            return forget(orphans)
        if token == TOKEN_LOST:
            self.stopped = True
            return [Restart(self.resync.reason if self.resync is not None else "")]
        if token == TOKEN_VOUCHED:
            return self._on_vouched(now)
        if token < 0:
            self.state.clock.reserved((token - TOKEN_RESERVE) << 16)
        else:
            partition = self.batch_partitions.pop(token, None)
            if partition in self.replicas:
                self.replicas[partition].on_durable(token, now)
        return []

    def _on_clean_stop(self, now: Now) -> list[Effect]:
        """CLEAN_STOP: the last record. Nothing is sent or answered after it.

        It speaks for no replica in quarantine: what was granted before this start may be live and is not in its table.
        Nor, while it lasts, for one that we have no record of yet: its register may have been lost by a crash.
        """
        self.stopped = True
        if not self.state.vouched:
            return []
        able = [replica for replica in self.replicas.values() if not replica.in_quarantine(now)]
        holds = [held for replica in able for held in replica.holds_at_stop(now)]
        memory: list[MemoryAtStop] = []
        most = BALLOTS_AT_STOP_MAX
        for replica in able:
            kept = replica.memory_at_stop(most)
            most -= sum(len(group.ballots) for group in kept)
            memory += kept
        left = max(0.0, self.state.quarantine_until - now.mono)
        recovered = tuple(replica.partition for replica in able) if left else ()
        record = CleanStopped(self.state.incarnation, tuple(holds), left, recovered, tuple(memory))
        return [Persist((record,))]

    def _stop(self, reason: str) -> list[Effect]:
        self.stopped = True
        return [Stop(reason)]

    # ---------------------------------------------------------------- links

    def _on_link_up(self, event: LinkUp, now: Now) -> list[Effect]:
        """HELLO was accepted: exchange registers, and offer what we have."""
        if event.seen_n > self.state.incarnation.n:
            return self._lose_vouching(
                event.seen_n,
                f"{event.peer} has seen start {event.seen_n} of node {self.config.node!r}, and this is start "
                f"{self.state.incarnation.n}: the data directory is an old copy",
            )
        newest = event.seen_directories[-1] if event.seen_directories else self.state.directory
        if newest != self.state.directory and event.seen_n > self.resynced_above:
            return self._lose_vouching(
                event.seen_n,
                f"{event.peer} knows node {self.config.node!r} by another data directory "
                f"({newest:016x}, this one is {self.state.directory:016x})",
            )
        told_before = self.resynced_above < event.position_by < self.state.incarnation.n
        if self.counting and self.resync is None and told_before and event.position > self.found:
            return self._lose_vouching(
                event.seen_n,
                f"start {event.position_by} of node {self.config.node!r} told {event.peer} of {event.position} "
                f"records, and this one found {self.found}: the data directory is an old copy",
            )
        self.state.links[event.peer] = event.incarnation
        self.state.learn(event.peer, event.incarnation)
        self.state.clock.merge(event.stamp)
        self.heard_at[event.peer] = now.mono
        effects = self._vouch(event.peer)
        if self.resync is not None:
            effects += self.resync.ask(self, event.peer, now, afresh=True)
        effects += self.recovery.ask(self, event.peer, now, afresh=True)
        effects += self._send_registers(event.peer)
        return effects + self._offer(event.peer)

    def _vouch(self, peer: NodeId) -> list[Effect]:
        """An empty directory is new once every other node has said that it knows no other under this id.

        Likewise one that may be an old copy is the newest once every other node has said that it knows of no more: each
        link that comes up compares starts, directories and positions first.
        """
        if self.state.vouched or self.resync is not None:
            return []
        self.vouchers[peer] = None
        if self.unheard():
            return []
        trusted = self._trust_place(
            f"every other node was heard, and none knew of more; {IF_ALL_WERE_RESTORED}"
        )
        return [Persist((*trusted, Vouched()), (Done(TOKEN_VOUCHED),))]

    def _lose_vouching(self, seen_n: int, reason: str) -> list[Effect]:
        """A peer has seen what this directory does not know: it may lack promises. Durable, then begin again above it.

        Far above: another peer, which is away, may have seen later starts of ours. Were one of their numbers used
        again, votes of that start would pass for ours, or ours for theirs. Nothing is said or counted any more in this
        start.
        """
        self.silenced = True
        self.state.vouched = False
        self.resync = Resync(reason)
        above = max(self.resynced_above, far_above(seen_n))
        records = [*self._trust_place(f"it was an old copy: {reason}"), VouchingLost(above, reason)]
        self.suspected = False
        return [Persist(tuple(records), (Done(TOKEN_LOST),))]

    def _resync_over(self) -> list[Effect]:
        """All has been heard: vouch again, behind all of it in the journal.

        Whatever ballot our old start granted and a majority won under, somebody who has told knows: it is in our
        clock by now, which is therefore the floor of what may have been granted here and forgotten.
        """
        if self.resync is None or self.state.vouched or self.resync.missing(self):
            return []
        floor = self.state.clock.wanted
        reserve = max(floor + RESERVE_STEP, self.state.clock.reserving)
        self.state.clock.reserving = reserve
        self.vouching_floor = floor
        done = (Done(_reserve_token(reserve)), Done(TOKEN_VOUCHED))
        return [Persist((Reserved(reserve), Vouched()), done)]

    def _on_vouched(self, now: Now) -> list[Effect]:
        """From here on what this node answers counts; after a resync its quarantine begins."""
        self.state.vouched = self.was_vouched = True
        self.suspected = False
        if self.resync is None:
            return []
        self.resync = None
        self.state.clock.floor = max(self.state.clock.floor, self.vouching_floor)
        until = now.mono + limits.QUARANTINE_SHARE * self.config.hold_time_max
        self.state.quarantine_until = until
        for replica in self.replicas.values():
            replica.quarantine_until = until
            replica.pulling_until = 0.0
            for view in replica.groups.values():
                view.holds.floor = self.state.clock.floor
            self.recovery.want(replica, now)
        effects: list[Effect] = []
        for peer in self.state.links:
            effects += self.recovery.ask(self, peer, now, afresh=True)
            effects += self._offer(peer)
        return effects

    def hello(self, now: Now) -> Hello:
        """What this node says first to a peer that it dials."""
        return Hello(
            VERSIONS,
            self.config.cluster_id,
            node_list_digest(self.config.nodes),
            self.config.hold_time_max,
            self.config.node,
            self.state.incarnation,
            self.state.directory,
            now.wall_ms,
            self.state.clock.value,
            SOFTWARE,
        )

    def _on_hello(self, key: int, hello: Hello, now: Now) -> list[Effect]:
        """Answer HELLO; what we have seen of a node is durable before it is welcome."""
        refusal = self._refuse_hello(hello, now)
        if refusal is not None:
            return [Reply(key, refusal)]
        seen, directories = self.peers.get(hello.node, (Incarnation(0, 0), ()))
        same = directories[-1:] == (hello.directory,)
        position, position_by = self.positions.get(hello.node, (0, 0)) if same else (0, 0)
        welcome = Welcome(
            min(hello.versions[1], VERSIONS[1]),
            self.config.cluster_id,
            self.config.node,
            self.state.incarnation,
            self.state.directory,
            now.wall_ms,
            self.state.clock.value,
            seen.n,
            directories,
            SOFTWARE,
            position,
            position_by,
        )
        if not hello.node:
            return [Reply(key, welcome)]
        self.recovery.on_hello(hello.node)
        self.state.clock.merge(hello.stamp)
        self.peer_facts.setdefault(hello.node, {})["clock_difference_s"] = (
            hello.wall_ms - now.wall_ms
        ) / 1000
        if seen == hello.incarnation and same:
            return [Persist((), (Reply(key, welcome),))]
        if not same:
            self.positions.pop(hello.node, None)
            self.positions_new.pop(hello.node, None)
        self.peers[hello.node] = (hello.incarnation, seen_last(directories, hello.directory))
        self.state.learn(hello.node, hello.incarnation)
        record = PeerSeen(hello.node, hello.incarnation, hello.directory)
        return [Persist((record,), (Reply(key, welcome),))]

    def _refuse_hello(self, hello: Hello, now: Now) -> Failed | None:
        lowest, highest = VERSIONS
        if hello.versions[0] > highest or hello.versions[1] < lowest:
            return Failed(
                "cluster-mismatch",
                f"protocol versions {hello.versions[0]} to {hello.versions[1]} are offered, node "
                f"{self.config.node!r} speaks {lowest} to {highest}: upgrade the older side",
            )
        if hello.cluster_id != self.config.cluster_id and (hello.node or hello.cluster_id):
            return Failed(
                "cluster-mismatch",
                f"the cluster here is {self.config.cluster_id!r}, the caller's is {hello.cluster_id!r}: "
                "check cluster_id in its configuration, or the address it was given",
            )
        if not hello.node:
            return None
        if hello.node not in self.config.nodes or hello.nodes != node_list_digest(self.config.nodes):
            return Failed(
                "cluster-mismatch",
                f"node {hello.node!r} has another node list than node {self.config.node!r}, whose list is "
                f"{', '.join(self.config.nodes)}: make `nodes` the same everywhere",
            )
        if hello.hold_time_max != self.config.hold_time_max:
            return Failed(
                "cluster-mismatch",
                f"node {hello.node!r} has hold_time_max = {hello.hold_time_max} s, node {self.config.node!r} has "
                f"{self.config.hold_time_max} s: make it the same everywhere",
            )
        if hello.node == self.config.node and hello.incarnation != self.state.incarnation:
            return Failed(
                "superseded", f"node id {hello.node!r} is this very node's: give each node its own id"
            )
        live = self.state.links.get(hello.node)
        if (
            live is not None
            and live != hello.incarnation
            and now.mono - self.heard_at.get(hello.node, -1e18) < 3.0
        ):
            return Failed(
                "not-stored",
                f"start {live.n} of node {hello.node!r} was heard from within the last 3 s: is it running twice? "
                "If it was just restarted, this passes by itself",
            )
        seen, known = self.peers.get(hello.node, (Incarnation(0, 0), ()))
        what = (
            "is an old copy, or runs twice" if hello.directory in known else "was emptied, or is an old copy"
        )
        if hello.incarnation.n < seen.n or (hello.incarnation.n == seen.n and hello.incarnation != seen):
            return Failed(
                "superseded",
                f"node {self.config.node!r} has seen start {seen.n} of node {hello.node!r}, and this is start "
                f"{hello.incarnation.n}: the data directory {what}",
                seen.n,
            )
        return None

    def _send_registers(self, peer: NodeId) -> list[Effect]:
        """Every topic and group that we know of, in pieces that fit a frame."""
        topics = self.registers()
        groups = [self.groups[found] for found in sorted(self.groups)]
        effects: list[Effect] = [
            Send(peer, SyncTopics(tuple(topics[at : at + 50]), ())) for at in range(0, len(topics), 50)
        ]
        for at in range(0, len(groups), GROUPS_PER_PIECE):
            effects.append(Send(peer, SyncTopics((), tuple(groups[at : at + GROUPS_PER_PIECE]))))
        return effects

    def _offer(self, peer: NodeId) -> list[Effect]:
        effects: list[Effect] = []
        for replica in self.replicas.values():
            if peer in replica.members:
                effects.append(Send(peer, replica.sync_offer()))
                ages = replica.ages_wanted(peer)
                if ages:
                    effects.append(Send(peer, SyncPull(replica.partition, (), ages)))
        return effects

    def _ask_absent(self, peer: NodeId, now: Now) -> list[Effect]:
        asked = [
            replica.ask_absent(peer, now) for replica in self.replicas.values() if peer in replica.members
        ]
        return [effect for effects in asked for effect in effects]

    def park(self, partitions: tuple[PartitionId, ...], group: str, now: Now) -> list[Effect]:
        """A FETCH is parked: the peers that fetch for the group leave to us what ranks first for us.

        They are told at once if they do not know it yet; where nobody else fetches, the next heartbeat is soon
        enough, as nobody else would take anything away.
        """
        fresh = False
        for partition in partitions:
            self.parked[(partition, group)] = self.parked.get((partition, group), 0) + 1
            if (partition, group) not in self.announced:
                _, active = self.state.fetchers(partition, group, self.members_of(partition), now)
                fresh = fresh or len(active) > 1
        return self._heartbeats(now) if fresh else []

    def unpark(self, partitions: tuple[PartitionId, ...], group: str) -> None:
        """A FETCH is parked no more. The peers hear it with our next HOLD or heartbeat."""
        for partition in partitions:
            self.parked[(partition, group)] -= 1
            if not self.parked[(partition, group)]:
                del self.parked[(partition, group)]

    def parks(self, partition: PartitionId, group: str) -> bool:
        """Whether a FETCH for the group is parked, as the HOLD that asks this will tell the peers."""
        if (partition, group) in self.parked:
            return True
        self.announced.pop((partition, group), None)
        return False

    def _heartbeats(self, now: Now) -> list[Effect]:
        self.announced = dict.fromkeys(self.parked)
        parked = tuple(self.parked)[: limits.SPANS_PER_REQUEST_MAX]
        beat = Heartbeat(
            parked, self.quarantine_left(now), position=self.position, vouched=self.state.vouched
        )
        return [Send(peer, beat) for peer in self.state.links]

    def _new_positions(self, now: Now) -> tuple[PeerPosition, ...]:
        """What the peers told of theirs, to be journaled: now and then, where anything else was written since.

        Else two idle nodes would go on writing down each other's writing.
        """
        if now.mono < self.positions_due or self.position <= self.positions_quiet or not self.positions_new:
            return ()
        records = tuple(
            PeerPosition(node, self.peers[node][1][-1], *self.positions[node])
            for node in sorted(self.positions_new)
        )
        self.positions_new.clear()
        self.positions_due = now.mono + POSITIONS_EVERY_S
        self.positions_quiet = self.position + len(records)
        return records

    def _note_position(self, sender: NodeId, incarnation: Incarnation, position: int) -> None:
        """A start of a peer says how many records of its directory are durable."""
        if position and self.peers.get(sender, (None,))[0] == incarnation:
            before, start = self.positions.get(sender, (0, 0))
            if start != incarnation.n or position > before:
                self.positions[sender] = (position, incarnation.n)
                self.positions_new[sender] = None

    def _on_heartbeat(self, sender: NodeId, incarnation: Incarnation, message: Heartbeat, now: Now) -> None:
        self._note_position(sender, incarnation, message.position)
        # What we have no replica of, as its topic was deleted, nobody would ever ask about, or forget.
        named = dict.fromkeys(found for found in message.waiting if found[0] in self.replicas)
        for key in [key for key in self.state.parked if key[2] == sender and key[:2] not in named]:
            del self.state.parked[key]
        for partition, group in named:
            self.state.parked[(partition, group, sender)] = now.mono
        facts = self.peer_facts.setdefault(sender, {})
        facts["quarantine_s"], facts["vouched"] = message.quarantine_s, message.vouched

    # --------------------------------------------------------------- timers

    def _run_timers(self, now: Now) -> list[Effect]:
        effects: list[Effect] = []
        timers = self.state.timers
        while timers and timers[0][0] <= now.mono:
            _, _, what = heapq.heappop(timers)
            effects += self._on_timer(what, now)
        return effects

    def _drop_stale_timers(self) -> None:
        """Forget timers at the head that have nothing left to do, so that they wake nobody.

        Nearly every round is over long before its timer: waking for those cost more than serving the rest.
        """
        timers = self.state.timers
        while timers and self._is_stale(timers[0][2]):
            heapq.heappop(timers)

    def _is_stale(self, what: tuple[object, ...]) -> bool:
        match what:
            case ("round", int(number)):
                return number not in self.rounds
            case ("advance" | "gathered" | "again", int(key)):
                return key not in self.requests
            case ("forget", int(key)):
                return key not in self.given
            case (_, PartitionId() as partition, *_) if partition not in self.replicas:
                return True  # its topic was deleted
            case ("recover", str(peer), int(number)):
                return not self.recovery.is_current(peer, number)
            case ("expire", PartitionId() as partition, str(name), Span() as span):
                return not self.replicas[partition].group(name).holds.holds.within(span)
        return False

    def _on_timer(self, what: tuple[object, ...], now: Now) -> list[Effect]:
        match what:
            case (_, PartitionId() as partition, *_) if partition not in self.replicas:
                return []  # its topic was deleted
            case ("expire", PartitionId() as partition, str(name), Span() as span):
                return self.replicas[partition].on_expire(name, span, now)
            case ("refresh", PartitionId() as partition, str(name), Span() as span):
                replica = self.replicas[partition]
                replica.refresh(replica.group(name), span, now)
            case ("due", PartitionId() as partition, int(number)):
                self.replicas[partition].on_due(number, now)
            case ("round", int(number)):
                coordinator = self.rounds.get(number)
                return coordinator.on_timeout(self, number, now) if coordinator is not None else []
            case ("advance", int(key)):
                coordinator = self.requests.get(key)
                if isinstance(coordinator, FetchCoordinator) and not coordinator.done:
                    return coordinator.advance(self, now)
            case ("gathered", int(key)):
                coordinator = self.requests.get(key)
                if isinstance(coordinator, SplitCoordinator) and not coordinator.done:
                    return coordinator.on_gathered(self, now)
            case ("again", int(key)):
                coordinator = self.requests.get(key)
                return coordinator.start(self, now) if coordinator is not None else []
            case ("forget", int(key)):
                self.given.pop(key, None)
            case ("recover", str(peer), int(number)) if self.recovery.is_current(peer, number):
                return self.recovery.ask(self, peer, now)
            case ("resync",):
                if self.resync is None:
                    return []
                self.state.at(now.mono + ASK_AGAIN_S, "resync")
                effects = [
                    effect
                    for peer in self.state.links
                    for effect in self.resync.ask(self, peer, now, afresh=True)
                ]
                # What was missing may be needed no more: the topic was deleted meanwhile.
                return effects + self._resync_over()
            case ("heartbeat",):
                self.state.at(now.mono + self.config.heartbeat, "heartbeat")
                effects = self._heartbeats(now)
                if self.counting:  # for the next ones
                    effects.append(Persist(self._new_positions(now), (Done(TOKEN_POSITION),)))
                return effects
            case ("reclaim",):
                self.state.at(now.mono + self.config.sync_interval, "reclaim")
                return self._reclaim(now)
            case ("sync", str(peer)):
                pause = self.config.sync_interval * (0.5 + self.rng.random())
                self.state.at(now.mono + pause, "sync", peer)
                if peer in self.state.links and self.state.vouched:
                    return self._send_registers(peer) + self._offer(peer) + self._ask_absent(peer, now)
        return []

    # -------------------------------------------------------------- RECLAIM

    def _reclaim(self, now: Now) -> list[Effect]:
        """Drop the payload that no group needs; ask which groups there are where that is what it waits for.

        Origins that are done with are looked at by one of the replicas at a time, on average.
        """
        effects: list[Effect] = []
        topics: dict[bytes, None] = {}
        for partition, replica in self.replicas.items():
            replica.sweep(now)
            effects += forget(replica.mended())
            if replica.settled and self.state.vouched:
                heard = self._heard_groups(replica, now)
                effects += replica.reclaim(heard, now)
                if replica.settled_last > heard:
                    topics[partition.topic] = None
            if replica.closable and self.state.vouched and self.rng.random() * len(replica.members) < 1:
                origins = replica.closing(now, ORIGINS_PER_ROUND)
                if origins:
                    effects += CloseCoordinator(partition, tuple(origins)).start(self, now)
        self.groups_asked = {
            number: asked for number, asked in self.groups_asked.items() if asked.at > now.mono - GROUPS_ASK_S
        }
        waiting = sorted(topics)
        for at in range(0, len(waiting), GROUPS_ASK_TOPICS):
            ask = self._ask_groups(GroupsAsked(now.mono, tuple(waiting[at : at + GROUPS_ASK_TOPICS])), "")
            effects += [Send(peer, ask) for peer in self.state.links]
        return effects

    def _ask_groups(self, asked: GroupsAsked, after: str) -> GroupsAsk:
        self.round_count += 1
        self.groups_asked[self.round_count] = asked
        return GroupsAsk(self.round_count, asked.topics, after)

    def _heard_groups(self, replica: Replica, now: Now) -> float:
        """When the oldest question was asked that a majority of the replica set, ourselves included, answered."""
        times = [
            now.mono
            if member == self.config.node
            else self.groups_heard.get((member, replica.partition.topic), -1e18)
            for member in replica.members
        ]
        return sorted(times, reverse=True)[majority_of(len(times)) - 1]

    def _on_groups_ask(self, sender: NodeId, message: GroupsAsk) -> list[Effect]:
        """Answer with what fits a frame; the rest is asked for, so that a page that is lost is missed."""
        wanted = dict.fromkeys(message.topics)
        found = sorted(key for key in self.groups if key[0] in wanted)
        if found and message.after:
            found = found[bisect_right(found, (message.topics[0], message.after)) :]
        groups = tuple(self.groups[key] for key in found[:GROUPS_PER_PIECE])
        return [Send(sender, GroupsTold(message.number, groups, len(found) > len(groups)))]

    def _on_groups_told(self, sender: NodeId, message: GroupsTold, now: Now) -> list[Effect]:
        """What a peer knows counts from when it was asked first, topic by topic, once all of it is here."""
        asked = self.groups_asked.get(message.number)
        if asked is None or (message.more and not message.groups):
            return []
        effects = [effect for group in message.groups for effect in self.merge_group(group, now)]
        rest: tuple[bytes, ...] = ()
        if message.more:
            last = message.groups[-1]
            rest = tuple(topic for topic in asked.topics if topic >= last.topic)
            effects.append(Send(sender, self._ask_groups(asked._replace(topics=rest), last.name)))
        for topic in asked.topics[: len(asked.topics) - len(rest)]:
            self.groups_heard[(sender, topic)] = max(
                asked.at, self.groups_heard.get((sender, topic), asked.at)
            )
        return effects

    # ------------------------------------------------------- messages of peers

    def accepts(self, envelope: Envelope) -> bool:
        """Whether a peer's message may be looked at: meant for this start, and not from a superseded one."""
        if envelope.to_incarnation != self.state.incarnation:
            return False
        return not self.state.superseded(envelope.sender, envelope.incarnation)

    def _on_received(self, envelope: Envelope, now: Now) -> list[Effect]:
        if not self.accepts(envelope):
            return []
        self.state.learn(envelope.sender, envelope.incarnation)
        self.state.clock.merge(envelope.stamp)
        self.heard_at[envelope.sender] = now.mono
        effects = self.recovery.on_words(self, envelope.sender, now)
        return effects + self._on_message(envelope.sender, envelope.incarnation, envelope.message, now)

    def _on_message(
        self, sender: NodeId, incarnation: Incarnation, message: PeerMessage, now: Now
    ) -> list[Effect]:
        if isinstance(message, QUORUM_REPLIES):
            return self._on_reply(sender, incarnation, message, now)
        if isinstance(message, QUORUM_REQUESTS):
            return self._on_quorum_request(sender, incarnation, message, now)
        match message:
            case Release(freed):
                self._take_freed(freed, now)
                return [Send(sender, Released(freed))]
            case Released(freed):
                self.state.release_confirmed(sender, freed)
            case Heartbeat():
                self._on_heartbeat(sender, incarnation, message, now)
            case PutTopic(number, topic, groups) if self.state.vouched or not number:
                return self._on_put_topic(sender, number, topic, groups, now)
            case Prepare() | Accept() if self.state.vouched:
                return vote(self, sender, message)
            case PutGroup(number, group, ask) if group.topic in self.topics and self.state.vouched:
                effects = [] if ask else self.merge_group(group, now)
                known = self.state.vector(self.config.nodes)
                reply = Put(number, "", "", None, self.groups.get((group.topic, group.name)), known)
                if self.is_deleted(group.topic):
                    reply = Put(number, "deleted", "", self.topics[group.topic], None, known)
                return [*effects, Persist((), (Send(sender, reply),))]
            case PutGroup(number):
                return [Send(sender, Put(number, "cannot-vouch", "", None, None))]
            case PeekRequest():
                replica = self.replicas.get(message.partition)
                if replica is None:
                    reply_peek = PeekReply(message.round, (), None, "unknown-topic")
                    return [Send(sender, reply_peek)]
                return [Send(sender, replica.on_peek(message, now))]
            case SyncTopics(topics, groups):
                return self.on_sync_topics(sender, topics, groups, now)
            case SyncOffer():
                replica = self.replicas.get(message.partition)
                return replica.on_sync_offer(sender, message, now) if replica is not None else []
            case SyncState():
                replica = self.replicas.get(message.partition)
                return replica.on_sync_state(sender, message, now) if replica is not None else []
            case SyncPull():
                replica = self.replicas.get(message.partition)
                return replica.on_sync_pull(sender, message, now) if replica is not None else []
            case GroupsAsk() if self.state.vouched:
                return self._on_groups_ask(sender, message)
            case RegistersAsk() if self.state.vouched:
                return tell_registers(self, sender, message)
            case GroupsTold():
                return self._on_groups_told(sender, message, now)
            case ResyncAsk():
                return tell_all(self, sender, message, now)
            case ResyncTold() if self.resync is not None and not self.state.vouched:
                return self.resync.on_told(self, sender, message, now) + self._resync_over()
            case SurvivorsAsk():
                return tell_standing(self, sender, message) + self._resync_over()
            case HoldsAsk():
                return tell(self, sender, message, now)
            case HoldsTold():
                self.recovery.on_told(self, sender, message, now)
            case RemoteFetch():
                return self._on_remote_fetch(sender, message, now)
            case RemoteGone(number):
                coordinator = self.requests.get(self.legs.pop((sender, number), 0))
                return coordinator.on_gone(self, now) if coordinator is not None else []
        return []

    def _take_freed(self, freed: tuple[Freed, ...], now: Now) -> None:
        for item in freed:
            replica = self.replicas.get(item.partition)
            if replica is not None:
                replica.on_release(item, now)

    def _on_reply(
        self,
        sender: NodeId,
        incarnation: Incarnation,
        message: QuorumReply,
        now: Now,
    ) -> list[Effect]:
        """A reply goes to its round; one whose round is over teaches what it can."""
        if isinstance(message, Put | Voted | RegistersTold):
            self.state.learn_vector(self.config.nodes, message.known)
        if isinstance(message, Stored | Tombed):
            self._note_position(sender, incarnation, message.position)
        if isinstance(message, Put) and message.refused == "deleted" and message.topic is not None:
            effects = self.take_in_topic(message.topic, now)  # ends what is under way for the topic
            coordinator = self.rounds.get(message.round)
            if coordinator is not None and coordinator.rounds[message.round].awaits(sender):
                effects += coordinator.on_reply(self, sender, incarnation, message, now)
            return effects
        if isinstance(message, Put) and message.refused == "cannot-vouch":
            coordinator = self.rounds.get(message.round)
            return (
                coordinator.on_cannot_vouch(self, message.round, sender, now)
                if coordinator is not None
                else []
            )
        if isinstance(message, HoldReply) and message.round in self.asked_at and sender != self.config.node:
            self.hold_times.note(now.mono - self.asked_at[message.round])
        coordinator = self.rounds.get(message.round)
        if coordinator is not None:
            if not coordinator.rounds[message.round].awaits(sender):
                return []  # a second copy: one answer counts once, whatever counts it
            return coordinator.on_reply(self, sender, incarnation, message, now)
        if isinstance(message, HoldReply):
            replica = self.replicas.get(message.partition)
            if replica is not None and message.resolved:
                return replica.repair(message.group, message.resolved, now)
        if isinstance(message, RemoteFetched) and message.round in self.called_off:
            # Called off, but it came all the same. Any other answer to a round that is over is a second copy of one
            # that a client may be working on: LEAVE is for what certainly nobody works on.
            del self.called_off[message.round]
            return [effect for part in message.slices for effect in free_slice(self, part, now)]
        return []

    def note_asked(self, number: int, now: Now) -> None:
        """A round of HOLD begins: its answers are timed, also those that come when it is over."""
        self.asked_at[number] = now.mono
        if len(self.asked_at) > ASKED_MAX:
            del self.asked_at[next(iter(self.asked_at))]

    def _on_remote_fetch(self, sender: NodeId, message: RemoteFetch, now: Now) -> list[Effect]:
        """Serve a FETCH for a node that has no replica of these partitions."""
        if (sender, message.round) in self.legs:
            return []  # a second copy: one leg is enough
        here = tuple(partition for partition in message.partitions if partition in self.replicas)
        problem = check_fetch(message.request, self.config.hold_time_max)
        if not self.state.vouched or not here:
            problem = problem or f"node {self.config.node} has no replica of what it was asked for"
        if problem:
            return [Send(sender, RemoteFetched(message.round, "too-few-replicas", problem, ()))]
        self.remote_keys -= 1
        leg = LegCoordinator(self.remote_keys, message.request, here, now, sender, message.round)
        self.legs[(sender, message.round)] = leg.key
        return self._coordinate(leg, now)

    def _on_quorum_request(
        self,
        sender: NodeId,
        incarnation: Incarnation,
        message: Store | Hold | Extend | Ack | Reject | Merge | Survey | CloseAsk,
        now: Now,
    ) -> list[Effect]:
        partition = message.batch.header.partition if isinstance(message, Store) else message.partition
        if not self.state.vouched and not isinstance(message, Hold):
            # What we answered would not count: this directory may not be all there ever was. But a HOLD is abstained
            # from, so that its round need not wait for us.
            return []
        if isinstance(message, Hold):
            self._take_freed(message.freed, now)
        replica = self.replicas.get(partition)
        if replica is None:
            return self._unknown(sender, message, partition)
        if isinstance(message, Hold):
            key = (partition, message.group, sender)
            self.state.active[key] = now.mono
            if message.parked:
                self.state.parked[key] = now.mono
            else:
                self.state.parked.pop(key, None)
        match message:
            case Store():
                effects = replica.on_store(sender, message, now)
                for effect in effects:
                    if isinstance(effect, Persist):
                        for record in effect.records:
                            if isinstance(record, BatchStored):
                                self.batch_partitions[record.number] = partition
                return effects
            case Hold():
                reply, effects = replica.on_hold(sender, incarnation, message, now)
                if message.freed:
                    effects.append(Send(sender, Released(message.freed)))
                return [*effects, Send(sender, reply)]
            case Extend():
                return [Send(sender, replica.on_extend(message, now))]
            case Ack():
                return replica.on_ack(sender, message, now)
            case Reject():
                return replica.on_reject(sender, message, now)
            case Merge():
                return replica.on_merge(sender, message, now)
            case Survey():
                return [Send(sender, replica.on_survey(message, now))]
            case CloseAsk():
                return replica.on_close_ask(sender, message, now)

    def _unknown(
        self,
        sender: NodeId,
        message: Store | Hold | Extend | Ack | Reject | Merge | Survey | CloseAsk,
        partition: PartitionId,
    ) -> list[Effect]:
        """We have no such replica: we have not heard of the topic, are not in its replica set, or it was deleted.

        Of a deletion the sender hears before it hears our answer, so that it asks nobody again.
        """
        topic = self.topics.get(partition.topic)
        if topic is not None and topic.deleted:
            refusal = self._refuse_quorum_request(sender, message, partition, "not-found")
            return [Send(sender, PutTopic(0, topic)), *refusal]
        known = topic is not None and partition.number < topic.partitions
        return self._refuse_quorum_request(
            sender, message, partition, "wrong-epoch" if known else "unknown-topic"
        )

    def _refuse_quorum_request(
        self,
        sender: NodeId,
        message: Store | Hold | Extend | Ack | Reject | Merge | Survey | CloseAsk,
        partition: PartitionId,
        error: str,
    ) -> list[Effect]:
        number = message.round
        match message:
            case Store():
                return [Send(sender, Stored(number, error, f"at {self.config.node}", ()))] if number else []
            case Hold():
                return [
                    Send(sender, HoldReply(number, partition, message.group, True, (), (), (), (), error, ()))
                ]
            case Extend():
                return [Send(sender, Extended(number, (), (), error, ()))]
            case Ack():
                return [Send(sender, Tombed(number, (), (), error, ()))]
            case Reject():
                return [Send(sender, Rejected(number, (), (), (), error, ()))]
            case Merge():
                return [Send(sender, Merged(number, (), (), error, ()))] if number else []
            case Survey():
                return [Send(sender, Surveyed(number, (), None, error, ()))]
            case CloseAsk():
                return [Send(sender, CloseTold(number, (), error, ()))]

    # ------------------------------------------------------------- registers

    def register_named(self, name: str) -> Topic | None:
        """The newest register of that name, deleted or not."""
        found = self.names.get(name)
        return self.topics[found] if found is not None else None

    def registers(self) -> list[Topic]:
        """Of each name the newest register: it says that all older ones are deleted."""
        return [self.topics[self.names[name]] for name in sorted(self.names)]

    def is_deleted(self, topic: bytes) -> bool:
        """Whether the topic of that id is known to be deleted."""
        return topic in self.topics and self.topics[topic].deleted

    def why_not_here(self, partition: PartitionId) -> str:
        """Why a request for a partition without a replica set fails."""
        topic = self.topics.get(partition.topic)
        if topic is not None and topic.deleted:
            return f"topic {topic.name!r} was deleted"
        return (
            f"no partition {partition} is known to node {self.config.node}: was its topic deleted long ago?"
        )

    def _take_topic(self, topic: Topic) -> Topic | None:
        """Merge a register; the merged one if it changed anything, else None.

        A topic whose name had been deleted more often has taken the place of the others: they are deleted, whether or
        not anybody has told us. Of two after equally many deletions one was chosen and then forgotten with the
        directories of a majority (RECOVERY); the later one stays.
        """
        ours = self.topics.get(topic.id)
        merged = merge_topics(ours, topic) if ours is not None else topic
        newest = self.register_named(topic.name)
        if newest is not None and newest.id != topic.id:
            if rank(newest) >= rank(topic):
                merged = closed(merged)
            else:
                self.topics[newest.id] = closed(newest)
        if merged == ours:
            return None
        self.topics[topic.id] = merged
        for key in [key for key in self.creations if key[0] == topic.name and key[1] <= topic.deletions]:
            del self.creations[key]
        if newest is None or rank(newest) < rank(topic):
            self.names[topic.name] = topic.id
        return merged

    def _take_creation(self, creation: Creation) -> bool:
        """Merge what was promised and accepted of a creation that is not decided; whether it changed anything."""
        key = (creation.name, creation.deletions)
        known = self.register_named(creation.name)
        ours = self.creations.get(key)
        merged = merge_creations(ours, creation) if ours is not None else creation
        if merged == ours or (known is not None and known.deletions >= creation.deletions):
            return False
        self.creations[key] = merged
        return True

    def merge_creations(self, creations: Iterable[Creation]) -> list[Effect]:
        """Make our own what others have promised and accepted: this directory may have done so, and forgotten it."""
        changed = [found for found in creations if self._take_creation(found)]
        return [Persist((CreationPut(self.creations[found[:2]]),)) for found in changed]

    def _take_group(self, group: Group) -> bool:
        ours = self.groups.get((group.topic, group.name))
        if self.is_deleted(group.topic) or (ours is not None and ours.generation >= group.generation):
            return False
        self.groups[(group.topic, group.name)] = group
        return True

    def _make_replicas(self, now: Now) -> list[Effect]:
        """A replica for each partition whose replica set names this node. One made in quarantine asks for its holds."""
        made = False
        for topic in self.topics.values():
            for number, members in enumerate(topic.replicas):
                partition = PartitionId(topic.id, number)
                if self.config.node in members:
                    replica = self.replicas.get(partition)
                    if replica is None:
                        replica = self.replicas[partition] = Replica(self.state, topic, partition)
                        self.recovery.want(replica, now)
                        made = True
                        for found, name in self.groups:
                            if found == topic.id:
                                replica.group(name)
                    else:
                        replica.topic = topic
        links = self.state.links if made and self.recovery.unheard else ()
        return [effect for peer in links for effect in self.recovery.ask(self, peer, now, afresh=True)]

    def take_in_topic(self, topic: Topic, now: Now) -> list[Effect]:
        """Merge a register that a peer has, and do what follows from it: partitions begin, or end."""
        before = self.register_named(topic.name)
        merged = self._take_topic(topic)
        if merged is None:
            return []
        self.state.clock.merge(topic.stamp.time)
        effects: list[Effect] = [Persist((TopicPut(merged),))]
        # Groups may have been heard of before their topic.
        there = before if before is not None and not before.deleted else merged
        for over in dict.fromkeys((there, merged)):
            if self.is_deleted(over.id):
                effects += self._end_topic(over, now)
        return effects + self._make_replicas(now)

    def _end_topic(self, topic: Topic, now: Now) -> list[Effect]:
        """DELETE: requests end, replicas go. What the journal has of them means nothing from here on."""
        effects: list[Effect] = []
        for found in [found for found in self.replicas if found.topic == topic.id]:
            replica = self.replicas.pop(found)
            effects += forget(sorted({**replica.batches, **replica.damaged}))
        for key in [key for key in self.groups if key[0] == topic.id]:
            del self.groups[key]
        for settled in [settled for settled in self.settled_groups if settled[0].topic == topic.id]:
            del self.settled_groups[settled]
        for heard in [heard for heard in self.groups_heard if heard[1] == topic.id]:
            del self.groups_heard[heard]
        for hints in (self.state.parked, self.state.active):
            for hint in [hint for hint in hints if hint[0].topic == topic.id]:
                del hints[hint]
        for coordinator in dict.fromkeys([*self.requests.values(), *self.rounds.values()]):
            if not coordinator.done and coordinator.concerns(topic.id):
                effects += coordinator.on_deleted(self, topic, now)
        return effects

    def merge_group(self, group: Group, now: Now) -> list[Effect]:
        """Merge a group's register: the newer generation stays, and every replica of its topic reads by it."""
        if group.topic not in self.topics or not self._take_group(group):
            return []  # of an unknown topic, it may be of one that was deleted: a peer tells both, the topic first
        self.state.clock.merge(group.generation // NODES_MAX)
        for partition, replica in self.replicas.items():
            if partition.topic == group.topic:
                replica.on_register(group, now)
        return [Persist((GroupPut(group),))]

    def next_generation(self, group: Group, from_ms: int, now: Now) -> Group | None:
        """``group`` in a generation above its own; None while the clock's reserve has to be raised for it."""
        self.state.clock.merge(group.generation // NODES_MAX)
        stamp = self.state.clock.fresh(now)
        if stamp is None:
            return None
        return group._replace(generation=generation_of(stamp, self.config.nodes), from_ms=from_ms)

    def _on_put_topic(
        self, sender: NodeId, number: int, topic: Topic, groups: tuple[Group, ...], now: Now
    ) -> list[Effect]:
        """A register, and some groups', to be kept (round ``number``), or just told (round 0).

        A sender behind the times is told.
        """
        newest = self.register_named(topic.name)
        known = self.state.vector(self.config.nodes)
        if newest is not None and newest.deletions > topic.deletions:
            if number:
                reply = Put(number, "deleted", f"topic {topic.name!r} was deleted", newest, None, known)
                return [Persist((), (Send(sender, reply),))]
            return [Send(sender, PutTopic(0, newest))]
        effects = self.take_in_topic(topic, now)
        effects += [effect for group in groups for effect in self.merge_group(group, now)]
        merged = self.topics[topic.id]
        if number:
            reply = Put(number, "", "", merged if merged != topic else None, None, known)
            return [*effects, Persist((), (Send(sender, reply),))]
        if merged.deleted and not topic.deleted:
            return [*effects, Send(sender, PutTopic(0, merged))]
        return effects

    def on_sync_topics(
        self, sender: NodeId, topics: tuple[Topic, ...], groups: tuple[Group, ...], now: Now
    ) -> list[Effect]:
        """Merge the registers that a peer has."""
        effects: list[Effect] = []
        for topic in topics:
            effects += self._on_put_topic(sender, 0, topic, (), now)
        for group in groups:
            effects += self.merge_group(group, now)
        return effects

    def may_coordinate(self, partition: PartitionId, now: Now) -> bool:
        """Whether a FETCH of ``partition`` may be coordinated here: by a replica that may vote."""
        replica = self.replicas.get(partition)
        return replica is not None and replica.may_vote(now)

    def quarantine_left(self, now: Now) -> float:
        """Seconds until the last of this node's replicas is out of quarantine at the latest; 0.0 when all are."""
        until = max((replica.quarantine_until for replica in self.replicas.values()), default=now.mono)
        return max(0.0, until - now.mono)

    def members_of(self, partition: PartitionId) -> tuple[NodeId, ...]:
        """The replica set of a partition; empty if it is not known here."""
        topic = self.topics.get(partition.topic)
        if topic is None or partition.number >= topic.partitions:
            return ()
        return topic.replicas[partition.number]

    # ------------------------------------------------------ requests of clients

    def on_request(self, key: int, request: ClientRequest, now: Now, *, looked: bool = False) -> list[Effect]:
        """A client's request. ``looked``: the others were asked for what it names and is not known here."""
        if isinstance(request, Hello):
            return self._on_hello(key, request, now)
        if isinstance(request, StatusAsk):
            return [Reply(key, StatusReply(self.status(now)))]
        wanted = None if looked else to_find(self, request)
        if isinstance(request, Metadata) and wanted is None:
            return self._on_metadata(key, request.topics)
        if not self.state.vouched:
            if self.resync is not None:
                detail = (
                    f"node {self.config.node} cannot vouch for its directory ({self.resync.reason}) and asks "
                    f"the others: {self.resync.explain(self)}"
                )
                return [Reply(key, Failed("not-stored", detail))]
            detail = (
                f"node {self.config.node} is new and waits until every other node has said that it never saw it: "
                f"still missing {', '.join(self.unheard()) or 'nothing but its own disk'}"
            )
            if self.suspected:
                detail = f"node {self.config.node} takes part in nothing yet: {self.explain_suspicion()}"
            return [Reply(key, Failed("not-stored", detail, len(self.config.nodes), len(self.vouchers) + 1))]
        if wanted is not None:
            return self._coordinate(FindCoordinator(key, request, wanted), now)
        match request:
            case OpenSession():
                self.sessions += 1
                inc = self.state.incarnation
                return [Reply(key, SessionOpened(Origin(self.config.node, inc.n, inc.nonce, self.sessions)))]
            case CloseSession():
                return self._on_close_session(key, request)
            case CreateTopic():
                return self._on_create_topic(key, request, now)
            case AlterTopic():
                return self._on_alter_topic(key, request, now)
            case DeleteTopic():
                return self._on_delete_topic(key, request, now)
            case Publish():
                return self._coordinate(PublishCoordinator(key, request), now)
            case Fetch():
                return self._on_fetch(key, request, now)
            case AckRequest():
                return self._coordinate(AckCoordinator(key, request), now)
            case RejectRequest():
                return self._on_reject_request(key, request, now)
            case ExtendRequest():
                return self._on_extend_request(key, request, now)
            case SetGroup():
                return self._on_set_group(key, request, now)
            case PurgeRequest():
                return self._on_purge(key, request, now)
            case LeaveRequest(items):
                effects: list[Effect] = []
                for receipt, spans in items:
                    effects += self.free(Freed(receipt.partition, receipt.group, receipt.owner, spans), now)
                return [*effects, Reply(key, Left())]
            case RedriveRequest():
                return self._on_redrive(key, request, now)
            case PeekAsk():
                return self._on_peek_ask(key, request, now)
            case DeclareSurvivors():
                return self._coordinate(DeclareCoordinator(key, request), now)
        return [Reply(key, Failed("usage", f"{type(request).__name__} is not a request"))]

    def _coordinate(self, coordinator: Coordinator, now: Now) -> list[Effect]:
        self.requests[coordinator.key] = coordinator
        return coordinator.start(self, now)

    def _not_found(self, name: str) -> Failed:
        """`not-found`: deleted, or with the closest name there is."""
        if name in self.names:
            return Failed("not-found", f"topic {name!r} was deleted; `create` makes a new one of that name")
        names = sorted(name for name, found in self.names.items() if not self.topics[found].deleted)
        close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
        hint = (
            f"did you mean {close[0]!r}?"
            if close
            else "publishing with auto_create_topics, or `create`, makes it"
        )
        return Failed("not-found", f"there is no topic {name!r}: {hint}")

    def topic_named(self, name: str) -> Topic | None:
        """The topic of that name, if there is one that is not deleted."""
        found = self.names.get(name)
        if found is None or self.topics[found].deleted:
            return None
        return self.topics[found]

    def _on_metadata(self, key: int, names: tuple[str, ...]) -> list[Effect]:
        topics: dict[bytes, Topic] = {}
        for name in names or ("*",):
            found = self._topics_matching(name)
            if not found and not is_pattern(name):
                return [Reply(key, self._not_found(name))]
            topics.update((topic.id, topic) for topic in found)
        groups = tuple(self.groups[key] for key in sorted(self.groups) if key[0] in topics)
        addresses = dict(self.config.addresses)
        nodes = tuple(
            NodeInfo(node, addresses.get(node, ""), node == self.config.node or node in self.state.links)
            for node in self.config.nodes
        )
        return [
            Reply(
                key,
                MetadataReply(
                    self.config.cluster_id,
                    self.config.node,
                    nodes,
                    tuple(topics.values()),
                    groups,
                    limits.MESSAGE_BYTES_MAX,
                    limits.BATCH_BYTES_MAX,
                    self.config.hold_time_max,
                ),
            )
        ]

    def _on_create_topic(self, key: int, request: CreateTopic, now: Now) -> list[Effect]:
        problem = check_topic_request(request, self.config.nodes)
        if problem:
            return [Reply(key, Failed("usage", problem))]
        known = self.topic_named(request.name)
        if known is not None and request.implicit:
            return [Reply(key, TopicCreated(known))]
        if request.implicit and not self.config.auto_create_topics:
            return [Reply(key, self._not_found(request.name))]
        return self._coordinate(CreateTopicCoordinator(key, request), now)

    def _on_alter_topic(self, key: int, request: AlterTopic, now: Now) -> list[Effect]:
        topic = self.topic_named(request.name)
        if topic is None:
            return [Reply(key, self._not_found(request.name))]
        problem = check_alteration(request, topic)
        if problem:
            return [Reply(key, Failed("usage", problem))]
        return self._coordinate(AlterTopicCoordinator(key, request, topic), now)

    def _on_delete_topic(self, key: int, request: DeleteTopic, now: Now) -> list[Effect]:
        topic = self.topics.get(request.id)
        if topic is None or topic.name != request.name:
            if self.topic_named(request.name) is None:
                return [Reply(key, self._not_found(request.name))]
            detail = (
                f"topic {request.name!r} with the id {request.id.hex()} is gone, or never was; another one has its "
                "name, and is left alone: delete again to delete that"
            )
            return [Reply(key, Failed("not-found", detail))]
        return self._coordinate(DeleteTopicCoordinator(key, request, topic), now)

    def _on_fetch(self, key: int, request: Fetch, now: Now) -> list[Effect]:
        topics, group = dead_letter_names(request.topics, request.group)
        request = request._replace(topics=topics, group=group)
        problem = check_fetch(request, self.config.hold_time_max)
        if problem:
            return [Reply(key, Failed("usage", problem))]
        asked: list[PartitionId] = []
        for name in request.topics:
            found = self._partitions_asked(name, request)
            if isinstance(found, Failed):
                return [Reply(key, found)]
            asked += found
        self.fetches += 1
        if len(asked) > limits.FETCH_PARTITIONS_MAX:
            start = self.fetches * limits.FETCH_PARTITIONS_MAX % len(asked)
            asked = (asked[start:] + asked[:start])[: limits.FETCH_PARTITIONS_MAX]
        partitions = [partition for partition in asked if self.may_coordinate(partition, now)]
        foreign = [partition for partition in asked if not self.may_coordinate(partition, now)]
        capped = request._replace(
            max_messages=min(request.max_messages, limits.FETCH_MESSAGES_MAX),
            max_bytes=min(request.max_bytes, limits.FETCH_BYTES_MAX),
        )
        if foreign:
            return self._coordinate(SplitCoordinator(key, capped, tuple(partitions + foreign), now), now)
        first = self.fetches % max(1, len(partitions))
        return self._coordinate(FetchCoordinator(key, capped, tuple(partitions), first, now), now)

    def _partitions_asked(self, name: str, request: Fetch) -> list[PartitionId] | Failed:
        """Those of the topic of that name, or of all that the pattern matches now: of none, if it matches none."""
        source = request.group.removesuffix(DEAD_SUFFIX)
        found: list[PartitionId] = []
        for topic in self._topics_matching(name):
            if source != request.group and (topic.id, source) not in self.groups:
                if is_pattern(name):
                    continue
                return self.no_group(name, source)
            for number in request.partitions or range(topic.partitions):
                if number < topic.partitions:
                    found.append(PartitionId(topic.id, number))
                elif not is_pattern(name):
                    detail = f"topic {name!r} has {topic.partitions} partitions: there is no {number}"
                    return Failed("not-found", detail)
        if not is_pattern(name) and self.topic_named(name) is None:
            return self._not_found(name)
        return found

    def _topics_matching(self, name: str) -> list[Topic]:
        """The topic of that name, or all that the pattern matches; without those that are deleted."""
        names = matching(name, self.names) if is_pattern(name) else [name]
        return [topic for topic in map(self.topic_named, names) if topic is not None]

    def no_group(self, topic: str, group: str) -> Failed:
        """`not-found`: with the groups that are known."""
        known = sorted(name for found, name in self.groups if found == self.names.get(topic))
        return Failed(
            "not-found",
            f"no group {group!r} reads topic {topic!r}: {', '.join(known[:20]) or 'none'} "
            f"do{'es' if len(known) == 1 else ''}",
        )

    def _on_close_session(self, key: int, request: CloseSession) -> list[Effect]:
        """Tell the replicas that may have something of the session. Nobody waits: closing takes its time anyway."""
        effects: list[Effect] = []
        for partition in request.partitions:
            topic = self.topics.get(partition.topic)
            ask = CloseAsk(0, partition, topic.epoch if topic is not None else 0, (request.origin,))
            effects += [Send(member, ask) for member in self.members_of(partition)]
        return [*effects, Reply(key, SessionClosed())]

    def _on_set_group(self, key: int, request: SetGroup, now: Now) -> list[Effect]:
        problem = check_group_name(request.group)
        if request.group.endswith(DEAD_SUFFIX):
            problem = f"group {request.group!r} is one of dead letters: redrive or purge them instead"
        if request.start not in ("earliest", "latest", "time"):
            problem = f"start is {request.start[:50]!r}: it must be 'earliest', 'latest' or 'time'"
        if problem:
            return [Reply(key, Failed("usage", problem))]
        topic = self.topic_named(request.topic)
        if topic is None:
            return [Reply(key, self._not_found(request.topic))]
        return self._coordinate(GroupCoordinator(key, request, topic.id), now)

    def _on_purge(self, key: int, request: PurgeRequest, now: Now) -> list[Effect]:
        topics, group = dead_letter_names((request.topic,), request.group)
        found = self._partition(topics[0], request.partition)
        if isinstance(found, Failed):
            return [Reply(key, found)]
        source = group.removesuffix(DEAD_SUFFIX)
        if (found.topic, source) not in self.groups:
            return [Reply(key, self.no_group(topics[0], source))]
        return self._coordinate(PurgeCoordinator(key, found, group), now)

    def _partition(self, name: str, number: int) -> PartitionId | Failed:
        """A partition of a topic by name, or what to answer where there is none."""
        topic = self.topic_named(name)
        if topic is None:
            return self._not_found(name)
        if number >= topic.partitions:
            detail = f"topic {name!r} has {topic.partitions} partitions: there is no {number}"
            return Failed("not-found", detail)
        return PartitionId(topic.id, number)

    def _on_reject_request(self, key: int, request: RejectRequest, now: Now) -> list[Effect]:
        if request.letter is not None and any(
            item.receipt.group.endswith(DEAD_SUFFIX) for item in request.items
        ):
            detail = "a dead letter cannot be dead-lettered again: ack it, or reject it without dead_letter"
            return [Reply(key, Failed("usage", detail))]
        if request.delay != limits.TOPIC_BACKOFF_S and not 0 <= request.delay <= limits.DELAY_MAX_S:
            detail = (
                f"delay is {request.delay} s: it must be from 0 to {limits.DELAY_MAX_S:.0f} s, or "
                f"{limits.TOPIC_BACKOFF_S} for the topic's backoff"
            )
            return [Reply(key, Failed("usage", detail))]
        if request.letter is not None:
            letter = request.letter._replace(died_ms=now.wall_ms, node=self.config.node)
            request = request._replace(letter=letter)
        return self._coordinate(RejectCoordinator(key, request), now)

    def _on_extend_request(self, key: int, request: ExtendRequest, now: Now) -> list[Effect]:
        problem = check_hold_time(request.hold_time, self.config.hold_time_max)
        if problem:
            return [Reply(key, Failed("usage", problem))]
        return self._coordinate(ExtendCoordinator(key, request), now)

    def _on_redrive(self, key: int, request: RedriveRequest, now: Now) -> list[Effect]:
        found = self._partition(request.topic, request.partition)
        if isinstance(found, Failed):
            return [Reply(key, found)]
        request = request._replace(group=request.group.removesuffix(DEAD_SUFFIX))
        if (found.topic, request.group) not in self.groups:
            return [Reply(key, self.no_group(request.topic, request.group))]
        return self._coordinate(RedriveCoordinator(key, request, found), now)

    def _on_peek_ask(self, key: int, request: PeekAsk, now: Now) -> list[Effect]:
        topics, group = dead_letter_names((request.topic,), request.group)
        partition = self._partition(topics[0], request.partition)
        if isinstance(partition, Failed):
            return [Reply(key, partition)]
        if request.complete:
            survey = SurveyCoordinator(key, partition, group, request.which, request.after, request.limit)
            return self._coordinate(survey, now)
        peek = PeekRequest(0, partition, group, request.which, request.cursor, request.limit, request.bodies)
        replica = self.replicas.get(partition)
        if replica is None:
            return self._coordinate(PeekCoordinator(key, peek), now)
        page = replica.on_peek(peek, now)
        return [Reply(key, PeekPage(partition, page.items, page.cursor, page.slices))]

    # ------------------------------------------------------- giving holds back

    def free(self, freed: Freed, now: Now) -> list[Effect]:
        """RELEASE or LEAVE: remove our hold, and tell all other replicas until they confirm."""
        effects: list[Effect] = []
        for member in self.members_of(freed.partition):
            if member == self.config.node:
                replica = self.replicas.get(freed.partition)
                if replica is not None:
                    replica.on_release(freed, now)
            else:
                self.state.owe_release(member, freed, now)
                effects.append(Send(member, Release((freed,))))
        return effects

    def remember_given(self, key: int, given: list[Freed], until: float) -> None:
        """What reply ``key`` delivers, in case its write is never begun."""
        if given:
            self.given[key] = (until, given)
            self.state.at(until, "forget", key)

    def _on_unsent(self, key: int, now: Now) -> list[Effect]:
        """LEAVE: the reply was never begun, so certainly nobody works on what it delivered."""
        _, given = self.given.pop(key, (0.0, []))
        return [effect for freed in given for effect in self.free(freed, now)]

    # -------------------------------------------------------- journal and facts

    def snapshot(self, now: Now) -> list[JournalRecord]:
        """Everything durable but the batches, for the head of a journal segment."""
        records: list[JournalRecord] = [
            DirectoryMade(self.config.node, self.config.cluster_id, self.state.directory),
            self._cluster_made(),
            Started(self.state.incarnation),
            Reserved(self.state.clock.reserving),
        ]
        if self.resynced_above or self.resync is not None:
            reason = self.resync.reason if self.resync is not None else "before the last resync"
            records.append(VouchingLost(self.resynced_above, reason))
        if self.state.vouched or (self.suspected and self.was_vouched):
            records.append(Vouched())
        if self.placed is not None:
            records.append(self.placed)
        for node in sorted(self.peers):
            incarnation, directories = self.peers[node]
            records += [PeerSeen(node, incarnation, directory) for directory in directories]
            if node in self.positions:  # of the last directory, which stands before it
                records.append(PeerPosition(node, directories[-1], *self.positions[node]))
        records += [TopicPut(topic) for topic in self.registers()]
        records += [CreationPut(self.creations[found]) for found in sorted(self.creations)]
        records += [GroupPut(self.groups[found]) for found in sorted(self.groups)]
        for partition in sorted(self.replicas):
            records += self.replicas[partition].snapshot(now)
        return records

    def status(self, now: Now) -> dict[str, object]:
        """What `quorumq status` shows of this node; plain values only (docs/operations.md)."""
        p99 = self.hold_times.p99()
        peers = {
            node: {
                "up": node in self.state.links,
                "incarnation": self.state.known[node].n if node in self.state.known else 0,
                "heard_s_ago": round(now.mono - self.heard_at[node], 3) if node in self.heard_at else None,
                **self.peer_facts.get(node, {}),
            }
            for node in self.config.nodes
            if node != self.config.node
        }
        partitions = [
            {
                "topic": replica.topic.name,
                "partition": partition.number,
                "replicas": list(replica.members),
                "messages": replica.present.messages,
                "missing": replica.absent.messages,
                "lost": replica.lost,
                "reclaimed": replica.reclaimed.messages,
                "batches": len(replica.batches),
                "groups": {
                    view.name: {
                        "available": view.available.messages,
                        "held": view.holds.holds.messages,
                        "tombstone_spans": view.records.spans,
                        "resolved": sum(
                            span.size for span, record in view.records.items() if record.kind != Kind.OPEN
                        ),
                        "dead": sum(
                            span.size for span, record in view.records.items() if record.letter is not None
                        ),
                    }
                    for view in replica.sorted_groups()
                },
            }
            for partition, replica in sorted(self.replicas.items())
        ]
        return {
            "node": self.config.node,
            "cluster_id": self.config.cluster_id,
            "incarnation": self.state.incarnation.n,
            "vouched": self.state.vouched,
            "resync": f"{self.resync.reason}; {self.resync.explain(self)}" if self.resync else "",
            "suspected": self.explain_suspicion(),
            "placed": self.placed.why if self.placed is not None else "",
            "placed_by": self.placed.n if self.placed is not None else 0,
            "quarantine_s": round(self.quarantine_left(now), 3),
            "hold_time_max": self.config.hold_time_max,
            "disk_full": self.state.disk_full,
            "requests": len(self.requests),
            "hold_reply_p99_ms": round(1000 * p99, 3) if p99 is not None else None,
            "slow_answers": self._slow_answers(p99),
            "peers": peers,
            "partitions": partitions,
        }

    def _slow_answers(self, p99: float | None) -> str:
        """What to know and do where peers answer HOLDs so late that deliveries suffer; "" where they do not."""
        if p99 is None or p99 <= min(self.config.hold_time_max / 10, self.config.request_timeout / 5):
            return ""
        return (
            f"its peers take up to {p99:.2g} s to answer a HOLD: each delivery takes as long, and a hold needs "
            f"{2.5 * p99:.2g} s or more. Let consumers ask for longer holds (hold_time, hold_time_max), or look for "
            "what is slow: the network, or nodes that have too much to do"
        )

    def check(self, now: Now) -> None:
        """Assert every invariant that holds between any two steps."""
        self.state.check()
        assert self.position <= self.appended, "the driver counts what was never appended"
        self.hold_times.check()
        for (name, deletions), creation in self.creations.items():
            known = self.register_named(name)
            assert known is None or known.deletions < deletions, f"{name!r} is decided"
            assert creation.promised >= creation.ballot, f"{name!r}: accepted below what was promised"
            assert (creation.topic is None) == (creation.ballot == STAMP_ZERO)
        for replica in self.replicas.values():
            replica.check(now)
        for number, coordinator in self.rounds.items():
            assert number in coordinator.rounds, f"round {number} is not its coordinator's"
        for key, coordinator in self.requests.items():
            assert not coordinator.done, f"request {key} was answered and is kept"


def forget(numbers: list[int]) -> list[Effect]:
    """Nobody needs these batches any more, in pieces of bounded size."""
    return [Forget(tuple(numbers[at : at + FORGET_MAX])) for at in range(0, len(numbers), FORGET_MAX)]


def seen_last(known: tuple[int, ...], directory: int) -> tuple[int, ...]:
    """The directories that a node was seen with, the last one last."""
    return (*(found for found in known if found != directory), directory)


def _reserve_token(reserve: int) -> int:
    return TOKEN_RESERVE + (reserve >> 16)


def node_list_digest(nodes: tuple[NodeId, ...]) -> bytes:
    """What HELLO carries of the node list: the same whatever the order in which it is written."""
    return hashlib.blake2b("\0".join(sorted(nodes)).encode(), digest_size=16).digest()


def check_hold_time(hold_time: float, most: float) -> str:
    """Why a hold time cannot be granted, or ""."""
    if not limits.HOLD_TIME_MIN_S <= hold_time <= most:
        return (
            f"hold_time is {hold_time} s: it must be from {limits.HOLD_TIME_MIN_S} s to this cluster's "
            f"hold_time_max, {most} s"
        )
    return ""


def check_fetch(request: Fetch, hold_time_max: float) -> str:
    """What is wrong with a FETCH, or ""."""
    problem = check_hold_time(request.hold_time, hold_time_max)
    if problem:
        return problem
    if not request.topics:
        return "no topic is named"
    if any(name.endswith(DEAD_LETTER_TOPIC) for name in request.topics):
        return "topics and their dead letters cannot be fetched in one request: make one for each"
    problem = check_group_name(request.group.removesuffix(DEAD_SUFFIX))
    if problem:
        return problem
    if request.start not in ("earliest", "latest"):
        return f"start is {request.start[:50]!r}: it must be 'earliest' or 'latest'"
    if request.max_messages < 1 or request.max_bytes < 1:
        return "max_messages and max_bytes must be at least 1"
    if not 0 <= request.max_wait <= limits.LONG_POLL_MAX_S:
        return f"max_wait is {request.max_wait} s: it must be from 0 to {limits.LONG_POLL_MAX_S} s"
    return ""


def check_group_name(group: str) -> str:
    """What is wrong with a group's name, or ""."""
    if not group or len(group.encode()) > limits.NAME_BYTES_MAX or "!" in group:
        return (
            f"group is {group[:50]!r}: it must have 1 to {limits.NAME_BYTES_MAX} bytes and no '!', but for the "
            f"{DEAD_SUFFIX!r} of a group's dead letters"
        )
    return ""
