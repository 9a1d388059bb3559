"""A node that is not trusted learns from the others what it may have promised.

A directory that was wiped, or brought back from a backup, may lack tombstones that were promised from another copy of
it. So nothing that this node answers may count before it knows everything that a majority with its old votes can
have decided (docs/protocol.md, RECOVERY). Any `RF - majority + 1` other replicas have a member, besides us, of every
such majority. Any `voters - majority + 1` other voters have one of every majority that wrote a register.
A peer answers after HELLO made our new incarnation durable there. A later decision supersedes our old votes: the peer's
reply names our new incarnation.

Everything is asked for in requests with a number of their own, repeated until answered; chunks are merged in
any order, since merging never harms. Payload is not part of it: once the node is trusted, anti-entropy brings that.
"""

from __future__ import annotations

from itertools import zip_longest

from quorumq.core.cluster.deleted_names import PAGES, DeletedNames
from quorumq.core.cluster.rounds import majority_of
from quorumq.core.cluster.topics import with_layout
from quorumq.core.messages import (
    PutCluster,
    PutTopic,
    ResyncReply,
    ResyncRequest,
    SyncState,
    SyncTopics,
)
from quorumq.core.messages.effects import Effect, Persist, Send
from quorumq.core.messages.records import DecisionPut
from quorumq.core.partition.hold_recovery import knows_slot_before
from quorumq.core.partition.replica import Replica
from quorumq.core.recovery import voterslots
from quorumq.core.requests import merging
from quorumq.core.requests.answers import Subject
from quorumq.core.requests.context import Context
from quorumq.core.requests.placing import ClusterAdopted
from quorumq.core.values import limits
from quorumq.core.values.chunks import chunks_of
from quorumq.core.values.types import FIRST_LAYOUT, Decision, Group, NodeId, Now, PartitionId, Topic

ASK_AGAIN_S = 0.5

PRODUCER_IDS_MAX = 2048
"""Producer ids of one answer, about; each counts once for each group."""

REGISTERS_PER_CHUNK = 50
PARTITIONS_PER_CHUNK = 4096
"""Replica sets, placements and labels in these registers: each has some 500 bytes, or a label 1.2 KiB, at most."""

PACKED_MAX = 1 << 20
"""Bytes of packed registers of deleted names in one answer, about."""

Answer = tuple[SyncTopics, SyncState | None, tuple[Decision, ...]]


class Resync:
    """Answers that a node which is not trusted still needs, for its registers and each of its partitions.

    Attributes:
        survivors: the nodes that an operator has declared to be all that is left; no other is waited for.
        is_first: True if no start of this node was ever trusted: it has promised nothing in any partition.
        unclear: nodes whose answers have a layout with other voters that may be chosen: they are asked again.
    """

    __slots__ = ("is_first", "reason", "survivors", "unclear")

    def __init__(self, reason: str) -> None:
        self.reason = reason
        self.survivors: tuple[NodeId, ...] = ()
        self.is_first = False
        self.unclear: dict[NodeId, None] = {}

    # --------------------------------------------------------------------- what is needed

    def lacks(self, context: Context) -> bool:
        """Return True while an answer is missing. After that, the node may be trusted again."""
        return bool(self.missing(context))

    def missing(self, context: Context) -> list[str]:
        """Return the answers still missing, in words for people."""
        lacks: list[str] = []
        cluster = context.catalogue.cluster
        lacking = self.lacking(context, cluster.voters, None)
        if context.state.me in cluster.new_voters:
            before = tuple(slot.node for slot in cluster.layout.before)
            lacking = max(lacking, self.lacking(context, before, None, majority_of(len(before))))
        if lacking:
            undecided = (
                f", the voters ({', '.join(self.unclear)} has an undecided layout)" if self.unclear else ""
            )
            lacks.append(f"the registers of {lacking} more nodes{undecided}")
        if any(isinstance(action, Topic | ClusterAdopted) for action in context.completions.values()):
            lacks.append("layouts on the disk")  # the questions about their partitions follow
        if self.is_first:
            return lacks
        for partition, replica in context.replicas.items():
            if replica.learns:
                continue  # nothing was promised from it
            lacking = self.lacking(context, replica.members, partition)
            before = replica.placement.nodes_before if replica.placement is not None else ()
            if (
                before and replica.slot_layout == replica.epoch
            ):  # a new slot keeps the promises of the set before, too
                there = tuple(node for node in before if node not in context.catalogue.cluster.gone)
                needed = min(len(before) - majority_of(len(before)) + 1, len(there))
                lacking = max(lacking, self.lacking(context, there, partition, needed))
            if replica.closing.dropping:
                lacks.append(f"the end of closed producer ids of {replica.topic.name}/{partition.number}")
            if lacking:
                lacks.append(f"{replica.topic.name}/{partition.number} from {lacking} more replicas")
        return lacks

    def lacking(
        self,
        context: Context,
        members: tuple[NodeId, ...],
        partition: PartitionId | None,
        needed: int | None = None,
    ) -> int:
        """Return how many more of ``members`` must report what they have of a partition, or their registers."""
        silent = [member for member in members if (member, partition) not in context.resync_answers.complete]
        if needed is None:
            needed = self.needed(len(members)) if context.state.me in members else majority_of(len(members))
        lacking = max(0, needed - len(members) + len(silent))
        return min(lacking, sum(node in self.survivors for node in silent)) if self.survivors else lacking

    def needed(self, size: int) -> int:
        """Return how many of the ``size - 1`` others must report what they have, if this node is one of ``size``.

        If it is none of them, it needs a majority instead (`lacking`), so two resyncs of it have one of them in common.
        """
        return min(size - majority_of(size) + 1, size - 1)

    def explain(self, context: Context) -> str:
        """Return what is missing, and what would have it go on, for people."""
        lacks = self.missing(context)
        if not lacks:
            return "still missing nothing but its own disk"
        others = [node for node in context.catalogue.cluster.present if node != context.state.me]
        away = [node for node in others if node not in context.state.links]
        learning = [node for node in others if not context.peers.reported.get(node, {}).get("trusted", True)]
        if away:
            lacks.append(f"{', '.join(away)} cannot be reached")
        elif learning and all(peer in learning for peer, _ in context.resync_answers.asked):
            lacks.append(
                f"{', '.join(learning)} is not trusted either: where what they lost cannot be brought back, "
                "`quorumq survivors declare` lets them go on with what is left"
            )
        return f"still missing {'; '.join(lacks)}"

    # ------------------------------------------------------------------------------ asking

    def ask(self, context: Context, peer: NodeId, now: Now, *, afresh: bool) -> list[Effect]:
        """Ask ``peer`` for all that it has not sent yet; for parts asked for already only ``afresh``."""
        if peer not in context.state.links:
            return []
        tellers = context.catalogue.cluster.tellers(context.state.me)
        parts: list[Subject] = [(peer, None)] if peer in tellers else []
        parts += [
            (peer, partition)
            for partition, replica in context.replicas.items()
            if peer in replica.tellers and not replica.learns
        ]
        effects: list[Effect] = []
        answers = context.resync_answers
        for part in parts:
            if part not in answers.complete and (afresh or part not in answers.asked):
                number = context.state.next_round()
                start = answers.ask(part, number)
                if part[1] is None:
                    effects += voterslots.question(context, peer, start, number)
                    continue
                replica = context.replicas[part[1]]
                effects.append(
                    Send(peer, ResyncRequest(number, part[1], start, replica.epoch, replica.slot_layout))
                )
        return effects

    def on_resync_reply(
        self, context: Context, sender: NodeId, message: ResyncReply, now: Now
    ) -> list[Effect]:
        """Take in a chunk of an answer: merge it, and go on once all chunks are here.

        One with a layout that may be chosen does not count. Why: if it is, this directory may have adopted it, and the
        new voters have to answer.
        """
        effects = take_in(context, sender, message, now)
        if context.catalogue.undecided_voters(message.decisions) is not None:
            self.unclear[sender] = None
        if not context.resync_answers.take(sender, message):
            return effects
        if message.partition is None and not message.following and sender in self.unclear:
            del self.unclear[sender]
            if not self.survivors:  # else no node can decide the layout
                context.resync_answers.reopen((sender, None))
        for peer in context.catalogue.cluster.present:  # the registers may have new partitions
            effects += self.ask(context, peer, now, afresh=False)
        return effects


def take_in(context: Context, sender: NodeId, message: ResyncReply, now: Now) -> list[Effect]:
    """Merge a chunk of an answer."""
    effects = merging.take_in_cluster(context, message.cluster, now) if message.cluster is not None else []
    effects += context.peers.take_in(message.seen)
    effects += merging.take_in_registers(context, sender, message.registers, now)
    for decision in message.decisions:  # this directory may have made it, too, and lost it
        if context.catalogue.take_decision(decision):
            effects.append(Persist((DecisionPut(context.catalogue.decisions[decision.instance]),)))
    replica = context.replicas.get(message.partition) if message.partition is not None else None
    if replica is not None and message.state is not None:
        effects += replica.on_sync_state(sender, message.state, now, pull=False)
    return effects


def adopt_chosen(context: Context, now: Now) -> list[Effect]:
    """Adopt the layouts that are only known to be chosen: this directory may have adopted them, and lost that.

    Answers of the partitions' nodes as members of earlier sets do not count any more.
    """
    effects: list[Effect] = []
    for topic in context.catalogue.live():
        if topic.next_layout is not None:
            effects += merging.take_in_topic(
                context, with_layout(topic, topic.next_layout)._replace(next_layout=None), now
            )
    return effects


def far_above(n: int) -> int:
    """Return the start count to begin again above if ``n`` is reported: no start of this node id has reached it.

    It is the second block after that of ``n``, because ``n`` may be one of many that only an absent peer has seen, or
    be from before the last resync (docs/protocol.md, RECOVERY).
    """
    return (n // limits.STARTS_FAR + 2) * limits.STARTS_FAR


def answer_resync(context: Context, sender: NodeId, message: ResyncRequest, now: Now) -> list[Effect]:
    """Answer RESYNC-ASK with a partition's contents from a place on, or registers, if this node is trusted."""
    if not context.state.trusted:
        return []
    catalogue = context.catalogue
    cluster = catalogue.cluster
    if message.partition is None and not voterslots.may_tell(context, message.epoch):
        newer = message.epoch < cluster.epoch
        return [Send(sender, PutCluster(0, cluster.layout))] if newer else []
    nothing = SyncTopics((), ())
    answers: list[Answer] = []
    following = 0
    if message.partition is None and message.start:
        answers, following = _packed_from(catalogue.deleted, message.start - 1)
    elif message.partition is None:
        following = 1 if len(catalogue.deleted) else 0
        topics = [catalogue.topics[key] for key in sorted(catalogue.topics)]
        answers += [(chunk, None, ()) for chunk in in_chunks(topics, catalogue.all_groups())]
        decisions = [catalogue.decisions[key] for key in sorted(catalogue.decisions)]
        answers += [(nothing, None, chunk) for chunk in chunks_of(decisions, REGISTERS_PER_CHUNK)]
    elif (replica := context.kept(message.partition)) is not None:
        topic = catalogue.topics[message.partition.topic]
        if not may_answer_resync(replica, message, sender):
            newer = replica.epoch > message.epoch
            return [Send(sender, PutTopic(0, topic))] if newer else []
        if not replica.sync.renew():
            context.state.compare_later(message.partition)
            return []  # it asks again
        states, following = replica.sync.everything(message.start, PRODUCER_IDS_MAX, now)
        registers: list[SyncTopics] = []
        if not message.start:
            states = beside_digests(replica) + states
            packed, _ = catalogue.deleted.of_topic(topic.id, 0, limits.DELETED_NAMES_MAX)
            registers = in_chunks([], catalogue.group_registers(topic.id), packed)
        answers += [(one or nothing, state, ()) for one, state in zip_longest(registers, states)]
    elif message.epoch > FIRST_LAYOUT:
        return []  # a node without the partition must not count as one that has answered
    answers = answers or [(nothing, None, ())]
    layout = cluster.layout if cluster.layout.number and message.partition is None else None
    seen = context.peers.newest_starts() if message.partition is None and not message.start else ()
    chunks = [
        ResyncReply(message.round, message.partition, at, len(answers), following, *answer, layout)
        for at, answer in enumerate(answers)
    ]
    return [Send(sender, chunk) for chunk in (chunks[0]._replace(seen=seen), *chunks[1:])]


def beside_digests(replica: Replica) -> list[SyncState]:
    """Return the part of a replica's state that a learner needs and replicas do not compare.

    It is promises to close producer ids; and messages that are known and not here: another node may have them alone,
    and a PURGE or a first group is about them, too.
    """
    here = (replica.partition, replica.epoch)
    promised = chunks_of(replica.closing.promised.items(), limits.SPANS_PER_REQUEST_MAX)
    absent = [span for span, _ in replica.batches.absent.items()]
    states = [SyncState(*here, (), (), promised=chunk) for chunk in promised]
    return states + [SyncState(*here, chunk, ()) for chunk in chunks_of(absent, limits.SPANS_PER_REQUEST_MAX)]


def may_answer_resync(replica: Replica, message: ResyncRequest, sender: NodeId) -> bool:
    """Return True if a node that learns may count our answer: it has adopted the same layout, and so have we.

    This node answers as a trusted member; or, to a new slot, as one that was trusted in the set before, and has left.
    """
    if replica.epoch != message.epoch or sender not in replica.members:
        return False
    if replica.slot_layout:
        return replica.is_trusted
    return message.since > FIRST_LAYOUT and knows_slot_before(replica)


def _packed_from(deleted: DeletedNames, index: int) -> tuple[list[Answer], int]:
    """Return packed registers from the page ``index`` on, and where to go on; 0 at the end."""
    packed = b""
    while index < PAGES and len(packed) < PACKED_MAX:
        packed += deleted.page(index)
        index += 1
    answers: list[Answer] = [(chunk, None, ()) for chunk in in_chunks([], [], packed)]
    return answers, index + 1 if index < PAGES else 0


def in_chunks(topics: list[Topic], groups: list[Group], packed: bytes = b"") -> list[SyncTopics]:
    """Return registers in chunks that fit a frame."""
    chunks: list[list[Topic]] = []
    size = 0
    for topic in topics:
        layouts = (topic.layout, topic.next_layout)
        sets = topic.partitions + sum(len(layout.placements) for layout in layouts if layout is not None)
        sets += len(topic.labels)
        size += sets
        if not chunks or size > PARTITIONS_PER_CHUNK or len(chunks[-1]) == REGISTERS_PER_CHUNK:
            chunks.append([])
            size = sets
        chunks[-1].append(topic)
    messages = [SyncTopics(tuple(chunk), ()) for chunk in chunks]
    messages += [SyncTopics((), chunk) for chunk in chunks_of(groups, limits.GROUPS_PER_CHUNK)]
    size = limits.GROUPS_PER_CHUNK * limits.DELETED_BYTES
    return messages + [SyncTopics((), (), packed[at : at + size]) for at in range(0, len(packed), size)]
