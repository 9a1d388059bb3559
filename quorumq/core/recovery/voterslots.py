"""Voters of registers change: a layout of the cluster is adopted, and a new voter learns from the voters before.

It is as with a partition's slot (core/recovery/joining.py). The layout is announced by its choice: a majority of the
voters before has accepted it durably. So a node that learns the registers anew hears of it from one of them, and waits
until it is decided (docs/layouts.md, MEMBERS).
"""

from __future__ import annotations

from quorumq.core.cluster.drained import undecided_on
from quorumq.core.cluster.members import VOTERS
from quorumq.core.cluster.rounds import RegisterRound, majority_of
from quorumq.core.messages import PutCluster, PutReply, ResyncRequest
from quorumq.core.messages.effects import Effect, Persist, Send
from quorumq.core.messages.records import PartitionTrusted
from quorumq.core.requests import merging
from quorumq.core.requests.context import Context
from quorumq.core.requests.placing import ClusterAdopted, Joined
from quorumq.core.values.errors import Code
from quorumq.core.values.types import Layout, NodeId, Now, Topic


def put_cluster(context: Context, sender: NodeId, message: PutCluster, now: Now) -> list[Effect]:
    """Take over a layout of the cluster, in a round, or as news (round 0). A sender behind gets the newer one."""
    number, layout = message
    effects = merging.take_in_cluster(context, layout, now)
    ours = context.catalogue.cluster.layout
    if ours.number > layout.number:
        effects.append(Send(sender, PutCluster(0, ours)))
    if number and layout in context.adopting:
        effects.append(Persist((), (context.when_durable(ClusterAdopted(layout, sender, number)),)))
    elif number:
        effects.append(Persist((), (Send(sender, _reply(context, number)),)))
    return effects


def _reply(context: Context, number: int) -> PutReply:
    """Say that the layout is durable here, and if a drained node may get a partition yet."""
    state, catalogue = context.state, context.catalogue
    known = (state.register_vector(), state.voting_epoch)
    undecided = undecided_on(catalogue, catalogue.cluster.drained)
    if not undecided:
        return PutReply(number, "", "", None, None, *known)
    topics = [catalogue.topics[it.topic] if isinstance(it, Layout) else it for it in undecided]
    names = [repr(topic.name) for topic in topics if isinstance(topic, Topic)]
    detail = (
        f"partitions of {', '.join(names)} may be placed on {', '.join(catalogue.cluster.drained)} yet, as "
        f"{state.me} says: repeat the creation or the move that had no answer, then try again"
    )
    return PutReply(number, Code.CONFLICT, detail, None, None, *known)


def check_epoch(context: Context, sender: NodeId, number: int, epoch: int) -> None:
    """Leave an answer about registers out of the count of its round if it was given in another epoch."""
    pending = context.rounds.get(number)
    round_ = pending.rounds[number] if pending is not None else None
    if isinstance(round_, RegisterRound):
        round_.check_epoch(sender, epoch)


def adopt(context: Context, adopted: ClusterAdopted, now: Now) -> list[Effect]:
    """Act upon a durable layout with other voters: end the rounds of the epoch before, and send peers our state."""
    effects: list[Effect] = []
    layout, sender, number = adopted
    if context.catalogue.is_newer(layout):
        effects += merging.use_cluster(context, layout, now)
        context.resync_answers.discard(None)
        context.survivors = ()
        context.join_soon(now)
        effects += [Send(peer, PutCluster(0, layout)) for peer in context.state.links]
        for pending in dict.fromkeys(context.rounds.values()):
            counted = [it for it in pending.rounds.values() if isinstance(it, RegisterRound)]
            if not pending.done and counted:
                effects += pending.on_voters_changed(context, now)
    return [*effects, Send(sender, _reply(context, number))] if number else effects


# ----------------------------------------------------------------------------------- to send, and to learn


def may_tell(context: Context, epoch: int) -> bool:
    """Return True if a node that learns may count our answer: we are of its epoch, and know all promises of our slot.

    The slot is ours now, or was until the last layout that changed voters. A node that is no voter, and was none then,
    sends nothing.
    """
    state, cluster = context.state, context.catalogue.cluster
    if epoch != cluster.epoch:
        return False
    if state.me in cluster.voters:
        return state.voting_epoch == epoch
    slots = {slot.node: slot.since for slot in cluster.layout.before}
    return slots.get(state.me, -1) in (0, state.voter_since)


def question(context: Context, peer: NodeId, start: int, number: int) -> list[Effect]:
    """Ask a voter for its registers; it hears of a layout that it may not know first."""
    cluster = context.catalogue.cluster
    news = [Send(peer, PutCluster(0, cluster.layout))] if cluster.epoch else []
    return [
        *news,
        Send(peer, ResyncRequest(number, None, start, cluster.epoch, cluster.since(context.state.me))),
    ]


def go_on(context: Context, *, afresh: bool) -> list[Effect]:
    """Vote in a new slot if enough nodes have sent their state. Ask the others, again only if ``afresh``."""
    state, answers = context.state, context.resync_answers
    if state.voting_epoch >= 0:
        return []
    if has_enough(context):
        return _join(context)
    effects: list[Effect] = []
    for peer in context.catalogue.cluster.tellers(state.me):
        part = (peer, None)
        if peer == state.me or peer not in state.links or part in answers.complete:
            continue
        if afresh or part not in answers.asked:
            number = state.next_round()
            effects += question(context, peer, answers.ask(part, number), number)
    return effects


def has_enough(context: Context) -> bool:
    """Return True if a majority of the voters before has sent its state, each in the new epoch.

    Why: a request that completed in the epoch before has a majority of them, and one of those has sent. Too few are
    left in that epoch to complete or to read anything there.
    """
    answered = [node for node, partition in context.resync_answers.complete if partition is None]
    cluster, me = context.catalogue.cluster, context.state.me
    survivors = [node for node in cluster.tellers(me) if node in context.survivors and node != me]
    if context.survivors and all(node in answered for node in survivors):
        return True  # the others have lost their directories
    before = [slot.node for slot in cluster.layout.before]
    return sum(node in answered for node in before) >= majority_of(len(before))


def _join(context: Context) -> list[Effect]:
    """Make durable that all promises of the slot are here."""
    since = context.catalogue.cluster.since(context.state.me)
    joined = Joined(VOTERS, since, 0)
    if joined in context.completions.values():
        return []
    context.slots[VOTERS] = since
    return [Persist((PartitionTrusted(VOTERS, since),), (context.when_durable(joined),))]


def begin_to_vote(context: Context, since: int) -> None:
    """Count this node's answers about registers: the record of its slot is durable."""
    context.state.voter_since = max(since, context.state.voter_since)
    context.state.promises.make_all(context.state.clock.highest)  # those of the voters before are below
    if context.state.voting_epoch >= 0:
        context.resync_answers.discard(None)
        context.survivors = ()
