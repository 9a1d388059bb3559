"""A node's state from the journal, and back: what a start replays, a snapshot holds, and a clean stop adds."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from quorumq.core.cluster.catalogue import Catalogue
from quorumq.core.cluster.deleted_names import KEY_BYTES, entries_of
from quorumq.core.cluster.members import VOTERS, first_layout
from quorumq.core.cluster.peers import StartsSeen, seen_last
from quorumq.core.cluster.state import NodeConfig, NodeState
from quorumq.core.messages import records as r
from quorumq.core.partition.recall import PartitionRecord
from quorumq.core.recovery.trust import Trust
from quorumq.core.requests import merging
from quorumq.core.requests.context import Context
from quorumq.core.values import limits
from quorumq.core.values.clock import HybridClock
from quorumq.core.values.errors import UsageError
from quorumq.core.values.types import Decision, Group, Incarnation, NodeId, Now, PartitionId, Topic

BALLOTS_AT_STOP_MAX = 10_000
"""Ballots that a clean stop keeps; of the groups that have more, a later ACK may hear `acked_unproven`."""


MOVED_MS: Final = 60_000
DOUBT_S: Final = 600.0
"""If the time of day has moved by more seconds than this since the journal's last record, nothing is buried for its age
for the same time: the node was away for long, or the clock was wrong, then or now, and may be put right yet."""


class Replay:
    """A journal, read once. Its records of partitions wait until their topics are known.

    Args:
        trust: component that takes in the journal's records about the directory.
        journal: the journal's records in order; a BatchStored may be without its body. A damaged batch is left out.
        directory: the number of the data directory, used if the journal names none.

    Attributes:
        is_new: True if the journal names no directory.
        is_noted: True if the journal has a ClusterMade.
        void: batches on disk that are not needed: reclaimed before a crash, or no use.
        orphans: batches of topics that are not known here.

    Raises:
        ValueError: the journal is another node's, or of a cluster that was made otherwise than ``config`` says.
    """

    def __init__(
        self, config: NodeConfig, trust: Trust, journal: Iterable[r.JournalRecord], directory: int
    ) -> None:
        self.config = config
        self.trust = trust
        self.catalogue = Catalogue(
            config.node, config.registers_key, first_layout(config.nodes, config.machines)
        )
        if config.layout is not None:
            self.catalogue.take_cluster(config.layout)
        self.directory = directory
        self.is_new = True
        self.is_noted = False
        self.starts = 0
        self.last = Incarnation(0, 0)
        self.reserve = 0
        self.seen: StartsSeen = {}
        self.positions: dict[NodeId, tuple[int, int]] = {}
        self.stop: r.CleanStopped | None = None
        self.topics: list[Topic] = []
        self.pages: list[r.DeletedPage] = []
        self.noted: list[bytes] = []
        self.groups: list[Group] = []
        self.decisions: list[Decision] = []
        self.slots: dict[PartitionId, int] = {}
        self.last_dropped = 0
        self.partitioned: list[r.BatchStored | PartitionRecord] = []
        self.void: list[int] = []
        self.orphans: list[int] = []
        for record in journal:
            self.stop = None
            self._take(record)
        self._take_names()

    def _take_names(self) -> None:
        """Take in the registers of topics, and all packed ones first: pages are loaded whole.

        A page may have names that were made again since, or groups of a topic that was deleted since: these go.
        """
        deleted = self.catalogue.deleted
        for page in self.pages:
            deleted.load(page)
        for entry in (entry for packed in self.noted for entry in entries_of(packed)):
            merged = deleted.merged(entry)
            if merged is not None:
                index = deleted.index_of(entry[:KEY_BYTES])
                deleted.put(index, (merged,))
                deleted.note(index, merged)
        for topic in self.topics:
            self.catalogue.take_topic(topic)
        for gone in [gone for gone in deleted.groups if gone not in self.catalogue.topics]:
            deleted.drop(gone)
        for gone in [gone for gone in deleted.groups if self.catalogue.is_deleted(gone)]:
            deleted.drop(gone)

    def _take(self, record: r.JournalRecord) -> None:
        match record:
            case r.DirectoryMade(node, cluster_id, directory):
                if (node, cluster_id) != (self.config.node, self.config.cluster_id):
                    raise UsageError(
                        f"the data directory belongs to node {node!r} of cluster {cluster_id!r}, "
                        f"not to node {self.config.node!r} of cluster {self.config.cluster_id!r}"
                    )
                self.directory, self.is_new = directory, False
            case r.ClusterMade(nodes, hold_time_max, machines):
                self.config.check_same(nodes, hold_time_max, machines)
                self.is_noted = True
            case r.ClusterPut(layout):
                self.catalogue.take_cluster(layout)
            case r.Started(incarnation):
                self.starts, self.last = max(self.starts, incarnation.n), incarnation
                self.trust.note_start(record)
            case r.PartitionTrusted(partition, since):
                self.slots[partition] = since
            case r.PartitionDropped(partition):
                self._drop(partition)
            case r.Trusted() | r.TrustLost() | r.DirectoryLocation():
                if isinstance(record, r.TrustLost):
                    self.slots = {}
                self.starts = self.trust.replay(record, self.starts)
            case r.PeerSeen(node, _, directory):
                known = self.seen.get(node, ())
                if known and known[-1].directory != directory:
                    self.positions.pop(node, None)
                self.seen[node] = seen_last(known, record)
            case r.PeerPosition(node, directory, position, start):
                if node in self.seen and self.seen[node][-1].directory == directory:
                    self.positions[node] = (position, start)
            case r.Reserved(time):
                self.reserve = max(self.reserve, time)
            case r.TopicPut(topic):
                self.topics.append(topic)
            case r.DeletedPage():
                self.pages.append(record)
            case r.DeletedNoted(packed):
                self.noted.append(packed)
            case r.DecisionPut(decision):
                self.decisions.append(decision)
            case r.GroupPut(group):
                self.groups.append(group)
            case r.CleanStopped():
                self.stop = record
            case _:
                self.partitioned.append(record)

    def _drop(self, partition: PartitionId) -> None:
        """Leave out the records of a partition so far."""
        self.slots.pop(partition, None)
        kept: list[r.BatchStored | PartitionRecord] = []
        for record in self.partitioned:
            if not isinstance(record, r.BatchStored):
                kept += [record] if record.partition != partition else []
            elif record.batch.header.partition != partition:
                kept.append(record)
            else:
                self.orphans.append(record.number)
                self.last_dropped = max(self.last_dropped, record.number)
        self.partitioned = kept

    def state(self, nonce: int, now: Now, boot: int, *, newest: bool) -> NodeState:
        """Return the node's identity, clock and other state in this start."""
        starts, trusted = self.trust.begin(self.starts, newest=newest)
        if starts + 1 >= limits.STARTS_MAX:
            raise UsageError(
                f"node {self.config.node!r} would be at start {starts + 1}, and no start count reaches "
                f"{limits.STARTS_MAX}: this node id is used up. Make another cluster, and take the messages there"
            )
        incarnation = Incarnation(starts + 1, nonce)
        if self.stop is not None and (self.stop.incarnation != self.last or self.trust.is_elsewhere):
            self.stop = None  # it names another start, or another copy of the directory
        quarantine = limits.QUARANTINE_SHARE * self.config.hold_time_max if self.trust.was_trusted else 0.0
        if self.stop is not None:
            quarantine = self.stop.quarantine_s
        state = NodeState(
            config=self.config,
            catalogue=self.catalogue,
            incarnation=incarnation,
            directory=self.directory,
            clock=HybridClock(self.config.node, self.reserve, self.reserve),
            trusted=trusted,
            quarantine_until=now.mono + quarantine,
            # A reply may wait, for a disk or a parked FETCH, while we are started again, and be sent over the new
            # link: only the number says that it answers a question of the old start. So no two starts use one number.
            round_count=incarnation.n << 32,
            once_lost=self.trust.was_lost,
            joins=self.trust.resync is not None and self.trust.resync.is_first,
            voter_since=self.slots.get(VOTERS, 0),
        )
        started = self.trust.starts if boot else ()
        others = {
            start.incarnation.n for start in started if start.boot != boot
        }  # a copy of the directory may have used such a number, too
        state.same_boot = frozenset(start.incarnation.n for start in started) - others
        state.known[self.config.node] = incarnation
        for node, seen in self.seen.items():
            state.learn(node, seen[-1].incarnation)
        for group in self.groups:
            self.catalogue.take_group(group)
        for decision in self.decisions:
            self.catalogue.take_decision(decision)
        return state

    def fill(self, context: Context, now: Now) -> None:
        """Make the replicas, with all that the journal says of them."""
        context.slots = self.slots
        context.state.next_batch = max(context.state.next_batch, self.last_dropped + 1)
        merging.make_replicas(context, context.catalogue.topics.values(), now)
        replicas = {**context.sources, **context.replicas}
        self._note_clocks(context.state, now)
        # Reclaimed messages are first: a batch that is not void was stored after that, as it was wanted again.
        # Closed producer ids are next: nothing is stored of them any more.
        reclaimed = [record for record in self.partitioned if isinstance(record, r.Reclaimed)]
        over: list[PartitionRecord] = [
            record for record in self.partitioned if isinstance(record, r.SessionsClosed)
        ]
        absent = [record for record in self.partitioned if isinstance(record, r.AbsentNoted)]
        void = dict.fromkeys(number for record in reclaimed for number in record.numbers)
        for gone in [*reclaimed, *over]:
            if gone.partition in replicas:
                replicas[gone.partition].recall.replay(gone, now)
        for record in self.partitioned:
            if isinstance(record, r.BatchStored):
                self._load(context, record, now, void)
            elif (
                not isinstance(record, r.Reclaimed | r.SessionsClosed | r.AbsentNoted)
                and record.partition in replicas
            ):
                replicas[record.partition].recall.replay(record, now)
        for missing in absent:  # the journal may have brought some of it
            if missing.partition in replicas:
                replicas[missing.partition].recall.replay(missing, now)
        if self.stop is not None:
            restore(context, self.stop, now)
        for replica in replicas.values():
            replica.views.refresh_all(now)
        if context.state.trusted and not self.trust.declared:
            context.state.note_earlier()

    def _note_clocks(self, state: NodeState, now: Now) -> None:
        """Note how far the time of day has moved, and whether ages go by it that may be wrong.

        Since a record of this boot the monotonic clock says by how much. Else all that time may have passed, or not.
        The first record of this boot shows if an earlier start was uncertain: this one is for the rest of that time.
        """
        known: list[tuple[float, int]] = []  # monotonic clock and time of day of records of this boot
        aged: list[int] = []  # time of day of the others: their ages go by that
        for record in self.partitioned:
            if not isinstance(record, r.BatchStored | r.DelaysSet):
                continue
            wall_ms = record.received_ms if isinstance(record, r.BatchStored) else record.at_ms
            if record.start in state.same_boot and record.mono_ms <= 1000 * now.mono:
                known.append((record.mono_ms, wall_ms))
                continue
            aged.append(wall_ms)
            if isinstance(record, r.BatchStored):
                state.uncertain_below = max(state.uncertain_below, record.number + 1)
        if known:
            mono_ms, wall_ms = max(known)
            moved_ms = now.wall_ms - wall_ms - (1000 * now.mono - mono_ms)
            if abs(moved_ms) > MOVED_MS:
                state.moved_s = moved_ms / 1000
                state.uncertain_until = now.mono + DOUBT_S
        mono_ms, wall_ms = min(known, default=(1000 * now.mono, now.wall_ms))
        if abs(wall_ms - max(aged, default=wall_ms)) > MOVED_MS:
            state.uncertain_until = max(state.uncertain_until, mono_ms / 1000 + DOUBT_S)

    def _load(self, context: Context, record: r.BatchStored, now: Now, void: dict[int, None]) -> None:
        context.state.next_batch = max(context.state.next_batch, record.number + 1)
        replica = context.kept(record.batch.header.partition)
        if record.number in void:
            self.void.append(record.number)
        elif replica is None:
            self.orphans.append(record.number)
        else:
            replica.storing.load(record, replica.topic.ttl_s, now)
            if record.number not in replica.batches.stored:
                self.void.append(record.number)


def restore(context: Context, stop: r.CleanStopped, now: Now) -> None:
    """Take in the holds and ballots that the start before kept for this one."""
    replicas = {**context.sources, **context.replicas}
    for kept in stop.memory:
        if kept.partition in replicas:
            replicas[kept.partition].group(kept.group).restore_memory(kept.min_ballot, kept.ballots)
    for held in stop.holds:
        if held.partition in replicas:
            replicas[held.partition].recall.restore_hold(held, now)
    for partition in stop.recovered:
        if partition in replicas:
            replicas[partition].end_quarantine([], now)


def at_stop(context: Context, now: Now) -> list[tuple[r.JournalRecord, ...]]:
    """Return the records of a clean stop, if any: they save the next start its quarantine, and cost room."""
    able = context.state.trusted and not context.state.no_capacity(r.CleanStopped)
    return [(clean_stop(context, now),)] if able else []


def clean_stop(context: Context, now: Now) -> r.CleanStopped:
    """Return the holds and ballots that this start keeps for the next one.

    It speaks for no replica in quarantine: holds that were granted before this start may be live, and are unknown here.
    While the node's quarantine lasts, it speaks for no partition without a replica here either: a crash may have lost
    the topic's register.
    """
    trusted = [replica for replica in context.replicas.values() if replica.is_trusted]
    trusted += [replica for replica in context.sources.values() if replica.trusted_slot_layout]
    able = [replica for replica in trusted if not replica.in_quarantine(now)]
    granted = context.state.grants([replica.partition for replica in able], now)
    holds = [
        held for replica in able for held in replica.recall.holds_at_stop(now, granted[replica.partition])
    ]
    memory: list[r.MemoryAtStop] = []
    most = BALLOTS_AT_STOP_MAX
    for replica in able:
        kept = replica.recall.memory_at_stop(most)
        most -= sum(len(group.ballots) for group in kept)
        memory += kept
    ends = [context.state.quarantine_until, *(replica.quarantine_until for replica in trusted)]
    remaining = max(0.0, max(ends) - now.mono)
    return r.CleanStopped(
        incarnation=context.state.incarnation,
        holds=tuple(holds),
        quarantine_s=remaining,
        recovered=tuple(replica.partition for replica in able) if remaining else (),
        memory=tuple(memory),
    )


def snapshot(context: Context, trust: Trust, now: Now) -> list[r.JournalRecord]:
    """Return everything durable but the batches, for the head of a journal segment."""
    state, catalogue = context.state, context.catalogue
    records: list[r.JournalRecord] = [
        r.DirectoryMade(state.me, state.config.cluster_id, state.directory),
        cluster_made(state.config),
        *trust.starts,
        r.Reserved(state.clock.requested_reserve),
    ]
    layout = max([catalogue.cluster.layout, *context.adopting])
    if layout.number:
        records.append(r.ClusterPut(layout))
    records += trust.snapshot(trusted=state.trusted)
    soon = {**context.trusted_soon(), **(trust.joined if trust.is_pending else {})}
    if voters := soon.get(VOTERS, context.slots.get(VOTERS)):
        records.append(r.PartitionTrusted(VOTERS, voters))
    records += context.peers.snapshot()
    records += [r.TopicPut(topic) for topic in catalogue.registers()]
    records += [r.DecisionPut(catalogue.decisions[key]) for key in sorted(catalogue.decisions)]
    records += map(r.GroupPut, catalogue.all_groups())
    records += catalogue.deleted.records()
    kept = {**context.sources, **context.replicas}
    for partition in sorted(kept):
        if since := soon.get(partition, kept[partition].trusted_slot_layout):
            records.append(r.PartitionTrusted(partition, since))
        records += kept[partition].recall.snapshot(now)
    return records


def cluster_made(config: NodeConfig) -> r.ClusterMade:
    """Return the record of the cluster's fixed settings."""
    return r.ClusterMade(tuple(sorted(config.nodes)), config.hold_time_max, tuple(sorted(config.machines)))
