"""Replicas of one node as layouts place them: made, moved to a new set, left as sources, discarded.

A layout counts here once it is durable (docs/layouts.md, LAYOUTS). Until then replicas answer as members of the set
before. A replica that is left keeps its payload as a source until a later layout releases it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import starmap
from typing import Final, NamedTuple

from quorumq.core.cluster.state import NodeState
from quorumq.core.messages import PeerMessage
from quorumq.core.messages.effects import Done, DropBatches, Effect, Persist
from quorumq.core.messages.records import PartitionDropped, PartitionTrusted, TopicPut
from quorumq.core.partition.hold_recovery import HoldRecovery
from quorumq.core.partition.move_throttle import MoveThrottle
from quorumq.core.partition.replica import Replica
from quorumq.core.requests.answers import ResyncAnswers
from quorumq.core.values.chunks import chunks_of
from quorumq.core.values.types import (
    FIRST_LAYOUT,
    ClusterLayout,
    Incarnation,
    NodeId,
    Now,
    PartitionId,
    ReplicaSlot,
    Topic,
)

DROPPED_MAX = 10_000
"""Batches in one DropBatches."""

JOIN_AGAIN_S: Final = 0.5
"""Seconds after which questions about a slot that is new here are repeated."""

WAITING_MAX: Final = 1024
"""Completions beyond which no message waits for a layout: it is answered as one of another layout."""

ADOPTED_KEPT: Final = 256
"""Adopted layouts that are kept for the log, if no driver takes them out."""

TOKEN_COMPLETED: Final = -(1 << 61)
"""Tokens from here up to half of it name completions."""

TOKEN_TOPIC: Final = -5
"""Token of the oldest register with new partitions that is not known to be durable: they are written in order."""


class Joined(NamedTuple):
    """All that was promised from a slot is here: the replica may vote in it, above ``min_ballot``."""

    partition: PartitionId
    since: int
    min_ballot: int


class ClusterAdopted(NamedTuple):
    """A layout of the cluster with other voters is durable: this node acts upon it.

    It answers ``sender`` in ``round``, if that is not 0.
    """

    layout: ClusterLayout
    sender: NodeId = ""
    round: int = 0


class WaitingMessage(NamedTuple):
    """A peer's question or write in a layout that waits for the disk here: it is taken in once that is adopted."""

    sender: NodeId
    incarnation: Incarnation
    message: PeerMessage


Completion = Topic | Joined | ClusterAdopted | WaitingMessage


@dataclass(slots=True, eq=False, repr=False)
class Placing:
    """The partitions that one node keeps.

    Attributes:
        replicas: the partitions in whose replica set this node is, or which it copies to get a slot.
        sources: partitions that were moved away, and whose payload is kept until the new set lacks nothing.
        completions: actions to take once a write is durable, by its number: adopt a layout, vote in a slot, or take in
            a message.
        writes: count of completions so far.
        slots: slots of this node that the journal calls trusted, by partition: the layout since which it has each.
        survivors: nodes that were declared to be all that is left, while this node's slot among the voters is new.
        joins: a timer is set for slots in which this node is new.
        join_is_due: this step asks for the promises of such slots.
        resync_answers: answers of peers about partitions whose slot here is new, or was in a lost directory.
        throttle: limits of the payload that this node gives to moves.
        adopted: topics whose layouts were adopted here lately, for the log; the driver takes them out.
    """

    state: NodeState
    hold_recovery: HoldRecovery = field(init=False, default_factory=HoldRecovery)
    replicas: dict[PartitionId, Replica] = field(init=False, default_factory=dict)
    sources: dict[PartitionId, Replica] = field(init=False, default_factory=dict)
    completions: dict[int, Completion] = field(init=False, default_factory=dict)
    writes: int = field(init=False, default=0)
    slots: dict[PartitionId, int] = field(init=False, default_factory=dict)
    survivors: tuple[NodeId, ...] = field(init=False, default=())
    joins: bool = field(init=False, default=False)
    join_is_due: bool = field(init=False, default=False)
    resync_answers: ResyncAnswers = field(init=False, default_factory=ResyncAnswers)
    throttle: MoveThrottle = field(init=False)
    adopted: deque[Topic] = field(init=False, default_factory=lambda: deque(maxlen=ADOPTED_KEPT))

    def kept(self, partition: PartitionId) -> Replica | None:
        """Return the replica of a partition, also of one that was moved away and is a source."""
        return self.replicas.get(partition) or self.sources.get(partition)

    def when_durable(self, action: Completion) -> Done:
        """Return the effect that has an action taken once the records before it are durable."""
        self.writes += 1
        self.completions[self.writes] = action
        return Done(TOKEN_COMPLETED + self.writes)

    def put_register(self, merged: Topic, before: Topic | None) -> list[Effect]:
        """Write a register. The votes in partitions that are new in it count once it is durable.

        Args:
            before: the register as it was here; None if there was none.
        """
        new = not merged.deleted and merged.partitions > (before.partitions if before is not None else 0)
        self.state.registers_put += new
        return [Persist((TopicPut(merged),), (Done(TOKEN_TOPIC),) if new else ())]

    def put_layout(self, merged: Topic) -> list[Effect]:
        """Have the register's layout adopted here once it is durable.

        With it goes a record of the leaving replicas that know all promises of their slots.
        """
        leaving = starmap(PartitionTrusted, self.leaving(merged).items())
        return [Persist((*leaving, TopicPut(merged)), (self.when_durable(merged),))]

    def leaving(self, topic: Topic) -> dict[PartitionId, int]:
        """Return the replicas that leave in the topic's layout, with those of their slots' layouts that they know all
        promises of, or 0."""
        slots: dict[PartitionId, int] = {}
        for number, members in enumerate(topic.replicas):
            replica = self.replicas.get(PartitionId(topic.id, number))
            if replica is not None and replica.slot_layout and self.state.me not in members:
                trusted = self.state.keeps_promises and replica.is_trusted
                slots[replica.partition] = replica.slot_layout if trusted else 0
        return slots

    def trusted_soon(self) -> dict[PartitionId, int]:
        """Return the slots whose trust is on its way to the disk, with its layout.

        Why: a segment of the journal that begins meanwhile has no record of it but this one.
        """
        slots: dict[PartitionId, int] = {}
        for each in self.completions.values():
            if isinstance(each, Joined):
                slots[each.partition] = each.since
            elif isinstance(each, Topic):
                slots |= self.leaving(each)
        return slots

    def take_layout(self, topic: Topic, now: Now) -> tuple[list[PartitionId], list[Effect]]:
        """Take over a topic's layout, which is durable: move its replicas here to their new sets.

        Returns:
            partitions that are left, whose requests are to end before anything else happens; and the effects.
        """
        self.adopted.append(topic)
        departed: list[PartitionId] = []
        effects: list[Effect] = []
        for number, members in enumerate(topic.replicas):
            partition = PartitionId(topic.id, number)
            replica = self.kept(partition)
            if replica is None:
                continue
            epoch, trusted_slot_layout = replica.epoch, replica.slot_layout if replica.is_trusted else 0
            partners = replica.batches.partners
            replica.use_set(topic)
            if (replica.epoch, replica.batches.partners) != (epoch, partners):
                replica.sync.discard_comparisons()  # with nodes of the set before
            if replica.epoch != epoch:
                self.resync_answers.discard(partition)
                self.hold_recovery.await_holds(replica, now)
                if replica.batches.refused and replica.is_trusted:
                    replica.sync.compare_soon(members, now)
            if self.state.me in members or replica.learns:
                self.replicas[partition] = replica
                self.sources.pop(partition, None)
                continue
            if partition in self.replicas:
                replica.trust_slot(trusted_slot_layout if self.state.keeps_promises else 0)
                departed.append(partition)
            if replica.placement is None or self.state.me not in replica.placement.sources:
                effects += [Persist((PartitionDropped(partition),)), *discarded(replica)]
                self.sources.pop(partition, None)
            else:
                self.sources[partition] = replica
        return departed, effects

    @property
    def adopting(self) -> list[ClusterLayout]:
        """Return the layouts of the cluster that wait for the disk."""
        return [each.layout for each in self.completions.values() if isinstance(each, ClusterAdopted)]

    def is_adopting(self, topic: Topic) -> bool:
        """Return True if a layout of the topic waits for the disk."""
        return any(isinstance(one, Topic) and one.id == topic.id for one in self.completions.values())

    def wait_to_adopt(
        self,
        partition: PartitionId,
        epoch: int,
        sender: NodeId,
        incarnation: Incarnation,
        message: PeerMessage,
    ) -> list[Effect]:
        """Have a message wait until its layout is adopted here; return nothing if it does not wait for the disk.

        Why: its sender asks once more after `wrong-epoch`. The second answer would be the same one, and no majority
        would be left in a set whose new slot does not vote yet.
        """
        if not 0 < len(self.completions) < WAITING_MAX:  # mostly there are none
            return []
        topic, replica = self.state.catalogue.topics.get(partition.topic), self.kept(partition)
        newer = epoch > (replica.epoch if replica is not None else 0)
        if topic is None or not newer or not self.is_adopting(topic):
            return []
        return [Persist((), (self.when_durable(WaitingMessage(sender, incarnation, message)),))]

    def make_source(self, topic: Topic, partition: PartitionId) -> bool:
        """Keep a replica of a partition as its source, and return True, if the adopted layout says so.

        A node that had its slot from the beginning, and never heard of it, promised nothing from it, and may say so.
        """
        placement = topic.placement(partition.number)
        if placement is None or self.state.me not in placement.sources:
            return False
        replica = self.sources[partition] = Replica(self.state, topic, partition)
        first = ReplicaSlot(self.state.me, FIRST_LAYOUT) in placement.before and not self.state.once_lost
        replica.trust_slot(self.slots.get(partition, FIRST_LAYOUT if first else 0))
        return True

    def join_soon(self, now: Now) -> None:
        """Ask in this step for the promises of slots that are new here, if there are any, and again after a pause."""
        self.join_is_due = self.is_new
        if self.join_is_due and not self.joins:
            self.joins = True
            self.state.at(now.mono + JOIN_AGAIN_S, ("join",))

    @property
    def is_new(self) -> bool:
        """Return True if a slot of this node is new: one among the voters, or in a partition's set."""
        return self.state.voting_epoch < 0 or bool(self.new_slots())

    def new_slots(self) -> list[Replica]:
        """Return the replicas that are new in their sets: they do not vote before they have heard enough."""
        return [each for each in self.replicas.values() if not (each.is_trusted or each.learns)]


def discarded(replica: Replica) -> list[Effect]:
    """Drop the batches of a replica that is no more."""
    node, batches, topic = replica.node, replica.batches, replica.partition.topic
    for counts, here in ((node.producer_ids, batches.sessions), (node.names, batches.names)):
        counts[topic] = counts.get(topic, 0) - here
    return drop_batches(sorted({*batches.stored, *batches.damaged}))


def drop_batches(numbers: list[int]) -> list[Effect]:
    """Drop these batches, in chunks of bounded size. The caller gives the reason, as in `DropBatches`."""
    return [DropBatches(chunk) for chunk in chunks_of(numbers, DROPPED_MAX)]
