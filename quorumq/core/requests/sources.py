"""Nodes whose payload is copied: those that left a partition's replica set, and slots while there are learners.

A source asks each slot which of its messages that one lacks, and each slot pulls these. Once every slot, trusted in the
set, lacks nothing, the source has a layout chosen that releases it (core/requests/layout_steps.py). Slots ask learners
so, too, and again in every interval, because a learner may lose its disk before it gets a slot
(core/cluster/raising.py).
"""

from __future__ import annotations

from quorumq.core.messages import SourceReply, SourceRequest, SyncPull
from quorumq.core.messages.effects import Effect, Send
from quorumq.core.partition.handoff import Handoff
from quorumq.core.partition.replica import Replica
from quorumq.core.requests.context import Context
from quorumq.core.values.limits import SPANS_PER_REQUEST_MAX
from quorumq.core.values.spanlists import subtract
from quorumq.core.values.types import FIRST_LAYOUT, NodeId, Now, PartitionId, Placement, Span


def lackers(replica: Replica) -> tuple[NodeId, ...]:
    """Return the nodes that are to have what this node keeps: the slots if it left, else the learners.

    A learner has none.
    """
    members: tuple[NodeId, ...] = replica.members
    placement: Placement | None = replica.placement
    if not (replica.slot_layout or replica.learns):
        return members
    return placement.learners if placement is not None and replica.slot_layout else ()


def ask_lackers(context: Context, replica: Replica, now: Now) -> list[Effect]:
    """Ask these nodes how many of the next messages they lack, unless their answers are under way."""
    handoff = replica.handoff = replica.handoff or Handoff()
    if handoff.is_open(now) or (handoff.is_over and not replica.slot_layout):
        return []
    if handoff.is_over:
        handoff.begin_anew()
    nodes = tuple(node for node in lackers(replica) if node in context.state.links)
    spans, beyond = next_question(replica, handoff)
    # The same question keeps its number: an answer after its repetition counts.
    number = handoff.number if handoff.number and handoff.spans == spans else context.state.next_round()
    until = now.mono + context.config.request_timeout
    handoff.ask(number, spans, nodes, until, beyond)
    request = SourceRequest(number, replica.partition, replica.epoch, spans)
    return [Send(node, request) for node in nodes]


def next_question(replica: Replica, handoff: Handoff) -> tuple[tuple[Span, ...], int]:
    """Return the messages to ask about, and the number of later ones.

    Learners are asked about the same ones until all have them. Why: they get what is published meanwhile by comparisons
    only, so under load they always lack some.
    """
    if replica.slot_layout and handoff.spans and handoff.released_to != handoff.spans[-1]:
        return handoff.spans, handoff.beyond
    remaining = remaining_spans(replica)
    later = remaining[SPANS_PER_REQUEST_MAX:]
    return tuple(remaining[:SPANS_PER_REQUEST_MAX]), sum(span.size for span in later)


def remaining_spans(replica: Replica) -> list[Span]:
    """Return the messages to ask about: those from where every slot has said that it lacks nothing."""
    present = sorted(replica.batches.present.items())
    after = replica.handoff.released_to if replica.handoff is not None else None
    return present if after is None else [span for span in present if span > after]


def answer(context: Context, sender: NodeId, message: SourceRequest, now: Now) -> list[Effect]:
    """Answer how many of a source's messages are lacking here, or not on disk yet, and pull those that are lacking."""
    replica = context.replicas.get(message.partition)
    in_set = replica is not None and replica.epoch == message.epoch
    if replica is None or not (in_set and (replica.is_trusted or replica.learns) and context.state.trusted):
        return [Send(sender, SourceReply(message.round, message.partition, message.epoch, -1))]
    batches = replica.batches
    gaps = [
        part
        for span in message.spans
        if span.producer_id not in batches.closed
        for gap in batches.index.gaps(span)
        for part in batches.worth_storing(gap)
    ]
    effects = replica.sync.pull(sender, batches.note_offered(sender, gaps, now), ends_one=False, now=now)
    stored = [each for span in message.spans for each in batches.index.within(span)]
    unsynced = sum(part.size for part, slot in stored if not batches.stored[slot.number].durable)
    # A message that was reclaimed here is not lacking, even if a rewound group may read it. Else one that the rewind
    # does not cover would be pulled from the source, and be reclaimed again, for ever.
    absent = [part for gap in gaps for part in subtract(gap, batches.reclaimed.within(gap))]
    lacking = sum(part.size for part in absent) + unsynced
    return [*effects, Send(sender, SourceReply(message.round, message.partition, message.epoch, lacking))]


def on_pull(context: Context, sender: NodeId, message: SyncPull, now: Now) -> list[Effect]:
    """Send a peer the batches that it lacks: to a learner, or a slot that is new, as the limits of moves allow."""
    replica = context.kept(message.partition)
    if replica is None:
        return []
    placement = replica.placement
    if not (message.spans and placement is not None and (placement.sources or placement.learners)):
        return replica.sync.on_pull(sender, message, now)
    return replica.sync.on_pull(
        sender, message, now, context.throttle if copies_for_move(placement, sender) else None
    )


def copies_for_move(placement: Placement, node: NodeId) -> bool:
    """Return True if a node copies a partition's payload because the partition moves, or gets more slots."""
    is_new = placement.since_of(node) > FIRST_LAYOUT and bool(placement.sources)
    return is_new or node in placement.learners


def on_answer(context: Context, sender: NodeId, message: SourceReply, now: Now) -> list[Effect]:
    """Count a node that lacks none of the messages asked about; once all do, ask about the rest.

    Learners get nothing that is published meanwhile but by comparisons, so the messages of one moment are enough.
    """
    replica = context.kept(message.partition)
    handoff = replica.handoff if replica is not None else None
    if (
        replica is None
        or handoff is None
        or (message.round, message.epoch) != (handoff.number, replica.epoch)
    ):
        return []
    handoff.lacking[sender] = message.lacking
    handoff.is_over = handoff.is_over and not message.lacking
    nodes = lackers(replica)
    handoff.count(nodes, now)
    if not handoff.has_all(nodes):
        return []
    if not handoff.spans or (replica.slot_layout and not handoff.beyond):
        handoff.is_over = True
        return []
    handoff.released_to, handoff.until = handoff.spans[-1], 0.0
    return ask_lackers(context, replica, now)


def is_copied(context: Context, replica: Replica) -> bool:
    """Return True if each learner is up, and has all that this slot had at a moment since the last interval or so."""
    linked = all(node in context.state.links for node in lackers(replica))
    return linked and replica.handoff is not None and replica.handoff.is_over


def needless(context: Context) -> list[PartitionId]:
    """Return the partitions that this node is a source of, and whose payload every slot has."""
    me = context.state.me
    return [
        partition
        for partition, replica in sorted(context.sources.items())
        if replica.placement is not None and me in replica.placement.sources and is_needless(replica)
    ]


def is_needless(replica: Replica) -> bool:
    """Return True if no slot lacks anything of a source's, or the source was wiped, and has nothing."""
    wiped = not (replica.trusted_slot_layout or replica.batches.stored)
    return wiped or (replica.handoff is not None and replica.handoff.is_over)
