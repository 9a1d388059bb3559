"""A node that is new in a partition's replica set learns the promises of its slot, and begins to vote.

Its slot was another node's, whose votes may have decided something; or it was added to a set whose requests had fewer
votes than they need now. So it hears `n - majority + 1` slots of the set before, the one that left included, or as many
others of the present set. Each of them has adopted the new layout before it answers. One of them knows each request
that completed before that; later ones complete without this slot's vote (docs/layouts.md, LAYOUTS).
"""

from __future__ import annotations

from quorumq.core.cluster.members import VOTERS
from quorumq.core.cluster.rounds import majority_of
from quorumq.core.messages import PutTopic, ResyncReply, ResyncRequest
from quorumq.core.messages.effects import Done, Effect, Persist, Send
from quorumq.core.messages.records import PartitionTrusted, Reserved
from quorumq.core.partition.replica import Replica
from quorumq.core.recovery import voterslots
from quorumq.core.recovery.resync import take_in
from quorumq.core.recovery.trust import Trust
from quorumq.core.requests import merging
from quorumq.core.requests.context import Context
from quorumq.core.requests.placing import ClusterAdopted, Joined
from quorumq.core.values import limits
from quorumq.core.values.clock import RESERVE_STEP, reserve_token
from quorumq.core.values.types import Kind, NodeId, Now, Topic


def go_on(context: Context, now: Now, *, afresh: bool) -> list[Effect]:
    """Vote in slots about which enough nodes have answered. Ask about the others, again only if ``afresh``."""
    if not context.state.trusted:
        return []  # it hears the present sets, as it lost its directory
    effects = voterslots.go_on(context, afresh=afresh)
    sent: dict[tuple[NodeId, bytes], None] = {}
    for replica in context.new_slots():
        if may_join(context, replica):
            effects += join(context, replica)
            continue
        topic = context.catalogue.topics[replica.partition.topic]
        for peer in replica.tellers:
            part = (peer, replica.partition)
            waits = part in context.resync_answers.asked and not afresh
            if peer not in context.state.links or part in context.resync_answers.complete or waits:
                continue
            number = context.state.next_round()
            start = context.resync_answers.ask(part, number)
            if (peer, topic.id) not in sent:  # a layout has all partitions of its topic: once is enough
                sent[peer, topic.id] = None
                effects.append(Send(peer, PutTopic(0, topic)))
            ask = ResyncRequest(number, replica.partition, start, replica.epoch, replica.slot_layout)
            effects.append(Send(peer, ask))
    return effects


def may_join(context: Context, replica: Replica) -> bool:
    """Return True if one of the nodes that have answered knows each request that completed without the slot."""
    assert replica.placement is not None
    if replica.closing.dropping:
        return False  # a vote for a message that is to be dropped would count
    answered = [node for node, partition in context.resync_answers.complete if partition == replica.partition]
    remaining = [node for node in replica.tellers if node in replica.survivors and node != replica.node.me]
    if replica.survivors and all(node in answered for node in remaining):
        return True  # the others have lost their directories
    return any(
        sum(node in answered for node in nodes if node != replica.node.me)
        >= len(nodes) - majority_of(len(nodes)) + 1
        for nodes in (replica.placement.nodes_before, replica.members)
        if nodes
    )


def on_answer(context: Context, trust: Trust, sender: NodeId, message: ResyncReply, now: Now) -> list[Effect]:
    """Take in a chunk of an answer to a learner. If the disk is full, it does not count, and is asked for again."""
    if context.state.no_capacity(Kind.ACKED):
        return []
    if context.state.trusted:
        return on_slot_reply(context, sender, message, now)
    if trust.resync is None:
        return []
    return trust.resync.on_resync_reply(context, sender, message, now) + trust.end_resync(context, now)


def on_completed(context: Context, trust: Trust, number: int, now: Now) -> list[Effect]:
    """Adopt a layout, or vote in a slot: the records before it are durable."""
    action = context.completions.pop(number)
    if isinstance(action, Joined):
        return begin_to_vote(context, action, now)
    if isinstance(action, ClusterAdopted):
        effects = voterslots.adopt(context, action, now)
    else:
        assert isinstance(action, Topic), "the node takes in messages that waited"
        effects = merging.adopt(context, action, now)
    if trust.resync is None:
        return effects
    return effects + [
        effect
        for peer in context.state.links
        for effect in trust.resync.ask(context, peer, now, afresh=False)
    ]


def on_slot_reply(context: Context, sender: NodeId, message: ResyncReply, now: Now) -> list[Effect]:
    """Take in a chunk of an answer; vote in the slot once enough is here and durable."""
    effects = take_in(context, sender, message, now)
    if not context.resync_answers.take(sender, message):
        return effects
    return effects + go_on(context, now, afresh=False)


def join(context: Context, replica: Replica) -> list[Effect]:
    """Make durable that all promises of the slot are here. A node that answered knows each ballot that won by it."""
    clock = context.state.clock
    joined = Joined(replica.partition, replica.slot_layout, clock.highest)
    under_way = [each for each in context.completions.values() if isinstance(each, Joined)]
    if any(each[:2] == joined[:2] for each in under_way):
        return []
    reserve = clock.requested_reserve = max(clock.highest + RESERVE_STEP, clock.requested_reserve)
    done = (Done(reserve_token(reserve)), context.when_durable(joined))
    absent = replica.recall.note_absent()
    return [
        Persist((Reserved(reserve), *absent, PartitionTrusted(replica.partition, replica.slot_layout)), done)
    ]


def begin_to_vote(context: Context, joined: Joined, now: Now) -> list[Effect]:
    """Begin to vote in a slot, in quarantine: the node that had it, or the set before, may have granted holds."""
    if joined.partition == VOTERS:
        voterslots.begin_to_vote(context, joined.since)
        return []
    replica = context.replicas.get(joined.partition)
    if replica is None or replica.slot_layout != joined.since or replica.is_trusted:
        return []
    assert replica.placement is not None
    before = replica.placement.nodes_before
    leavers = tuple(node for node in before if node not in replica.members)
    former = leavers if len(leavers) == 1 else () if leavers else before
    until = now.mono + limits.QUARANTINE_SHARE * context.config.hold_time_max
    replica.begin_to_vote(joined.min_ballot, former, until)
    context.resync_answers.discard(replica.partition)
    context.hold_recovery.await_holds(replica, now)
    effects = [
        effect
        for peer in context.state.links
        for effect in context.hold_recovery.ask_soon(context.state, context.replicas, peer, now)
    ]
    # The payload is needed at once, because a client may wait here alone. A comparison finds what was published since
    # the answers, whose STOREs were refused here.
    replica.sync.compare_soon(replica.tellers, now)
    return effects + [
        effect
        for peer in replica.tellers
        if peer in context.state.links
        for effect in replica.sync.ask_absent(peer, now)
    ]
