"""An operator declares that the trusted nodes are all that is left.

If more directories are lost than a resync can do without, the nodes that lost theirs wait for each other for ever:
no node can say what was promised by votes that only they had. An operator can say that these are gone for good. Then
each of them goes on with the answers of all survivors (core/recovery/resync.py), and forgets what none of them knows.

It is not a decision of the cluster, so it needs no majority: it is a statement about directories that are gone, sent
to the nodes that have new ones. What it rests on is asked of every node of the list first: every node answers, is
either trusted or resyncing, and has durably seen the newest start of every resyncing node. So no directory is counted
as lost that a node may still vote with (two nodes that are merely cut off make no second cluster), and no vote of a
lost one counts any more, in any message. A learner's survivors last as long as its start, and it still hears
every survivor; so two declarations at once, or half a one, do no harm (docs/protocol.md, RECOVERY).
"""

from __future__ import annotations

from quorumq.core import messages as m
from quorumq.core.cluster.rounds import majority_of
from quorumq.core.messages.effects import Effect, Persist, Send
from quorumq.core.recovery.resync import Resync
from quorumq.core.requests.context import Context
from quorumq.core.requests.coordinator import Coordinator
from quorumq.core.values.errors import Code
from quorumq.core.values.types import Incarnation, NodeId, Now

WHY_CHARS_MAX = 1000


def answer_survivors(
    context: Context, resync: Resync | None, sender: NodeId, message: m.SurvivorsRequest
) -> list[Effect]:
    """Answer SURVIVORS-ASK: can this node be trusted, and which starts has it seen. A declaration counts from here
    on."""
    state = context.state
    if resync is not None and message.survivors:
        resync.survivors = message.survivors
    for replica in context.new_slots() if message.survivors else ():
        replica.survivors = message.survivors
    if message.survivors and state.voting_epoch < 0:
        context.survivors = message.survivors
    seen = [m.SeenStart(state.me, state.incarnation, state.directory), *context.peers.newest_starts()]
    reply = m.SurvivorsReply(
        message.round,
        state.trusted,
        resync.reason[:WHY_CHARS_MAX] if resync is not None else "",
        tuple(seen),
        resync.survivors if resync is not None else (),
    )
    return [Persist((), (Send(sender, reply),))]


class DeclareCoordinator(Coordinator):
    """DECLARE: ask every node how it is, then send those that learn the survivors.

    Args:
        request: the survivors as the operator knows them; with none, only the question is asked.
    """

    __slots__ = ("plan", "replies", "request")

    def __init__(self, key: int, request: m.DeclareSurvivors) -> None:
        super().__init__(key)
        self.request = request
        self.replies: dict[NodeId, tuple[Incarnation, m.SurvivorsReply]] = {}
        self.plan: m.DeclareSurvivorsReply | None = None

    def start(self, context: Context, now: Now) -> list[Effect]:
        away = [
            node
            for node in context.catalogue.cluster.present
            if node != context.state.me and node not in context.state.links
        ]
        if away:
            return self.refuse(
                context, f"{_cannot(away, 'be reached')} from {context.state.me}: {_bring_back(away)}"
            )
        return self.ask_all(context, context.catalogue.cluster.present, (), now)

    def ask_all(
        self, context: Context, nodes: tuple[NodeId, ...], survivors: tuple[NodeId, ...], now: Now
    ) -> list[Effect]:
        """Begin a round of SURVIVORS-ASK among ``nodes``."""
        self.replies.clear()
        round_ = self.open_round(context, nodes, now)
        return [Send(node, m.SurvivorsRequest(round_.number, survivors)) for node in nodes]

    def on_reply(
        self, context: Context, sender: NodeId, incarnation: Incarnation, message: m.PeerMessage, now: Now
    ) -> list[Effect]:
        assert isinstance(message, m.SurvivorsReply)
        round_ = self.rounds[message.round]
        if round_.hear(sender, incarnation):
            self.replies[sender] = (incarnation, message)
        if not round_.everyone:
            return []
        self.close_round(context, message.round)
        if self.plan is not None:
            return self.finish(context, self.plan)
        if round_.members != context.catalogue.cluster.present:  # they changed meanwhile
            return self.start(context, now)
        plan = self.decide(context)
        if isinstance(plan, m.Failed):
            return self.finish(context, plan)
        if not self.request.survivors:
            return self.finish(context, plan)
        if sorted(self.request.survivors) != sorted(plan.survivors):
            detail = (
                f"these nodes are trusted now: {', '.join(plan.survivors)}, and these were declared to be all that is "
                f"left: {', '.join(self.request.survivors)}. Look again"
            )
            return self.fail(context, Code.CONFLICT, detail)
        self.plan = plan
        return self.ask_all(context, context.catalogue.cluster.present, plan.survivors, now)

    def decide(self, context: Context) -> m.DeclareSurvivorsReply | m.Failed:
        """Return the survivors and the learners, once all nodes have answered; or why nothing can be declared."""
        survivors = tuple(node for node in context.catalogue.cluster.present if self.replies[node][1].trusted)
        others = [node for node in context.catalogue.cluster.present if node not in survivors]
        waiting = [node for node in others if not self.replies[node][1].why]
        if waiting:  # new, or about to be trusted: with what it has, it is no node that learns
            return _refused(
                f"{', '.join(waiting)} is not trusted yet, and does not resync: its status says what it waits for"
            )
        if not self.is_needed(context, survivors):
            rest = f"; these learn from them: {', '.join(others)}" if others else ""
            detail = f"nothing has to be declared. These nodes are trusted: {', '.join(survivors)}{rest}"
            return m.Failed(Code.USAGE, detail)
        for learner in others:
            own = m.SeenStart(learner, self.replies[learner][0], self.replies[learner][1].seen[0].directory)
            unseen = [
                node for node in context.catalogue.cluster.present if own not in self.replies[node][1].seen
            ]
            if unseen:
                detail = (
                    f"{', '.join(unseen)} has not seen start {own.incarnation.n} of {learner} yet: is there a way "
                    "between them? Try again in a moment"
                )
                return _refused(detail)
        return m.DeclareSurvivorsReply(
            survivors, tuple(m.Learner(node, self.replies[node][1].why) for node in others)
        )

    def is_needed(self, context: Context, survivors: tuple[NodeId, ...]) -> bool:
        """Return True if a learner waits for more than the survivors have."""
        topics = context.catalogue.topics.values()
        cluster = context.catalogue.cluster
        sets = [cluster.voters, *(members for topic in topics for members in topic.replicas)]
        counts = [(sum(node in survivors for node in nodes), len(nodes), 1) for nodes in sets]
        if any(node not in survivors for node in cluster.new_voters) or context.state.voting_epoch < 0:
            voters = [slot.node for slot in cluster.layout.before]
            counts.append((sum(node in survivors for node in voters), len(voters), 0))
        for topic in topics:  # a new slot hears the set before, in which it has no part
            for placement in topic.layout.placements if topic.layout is not None else ():
                before = placement.nodes_before
                counts.append((sum(node in survivors for node in before), len(before), 0))
        return any(
            size and remaining < min(size - majority_of(size) + 1, size - own)
            for remaining, size, own in counts
        )

    def on_timeout(self, context: Context, number: int, now: Now) -> list[Effect]:
        silent = [node for node in self.rounds[number].members if node not in self.replies]
        if self.plan is None:
            return self.refuse(context, f"{_cannot(silent, 'be heard')}: {_bring_back(silent)}")
        detail = f"{', '.join(silent)} did not answer, and may have been told or not: do it again"
        answered = len(context.catalogue.cluster.present) - len(silent)
        return self.fail(
            context, Code.OUTCOME_UNKNOWN, detail, len(context.catalogue.cluster.present), answered
        )

    def refuse(self, context: Context, detail: str) -> list[Effect]:
        """Answer that nothing was declared."""
        return self.finish(context, _refused(detail))


def _refused(detail: str) -> m.Failed:
    return m.Failed(Code.NOT_STORED, f"nothing was declared: {detail}")


def _cannot(nodes: list[NodeId], action: str) -> str:
    return f"{'node' if len(nodes) == 1 else 'nodes'} {', '.join(nodes)} cannot {action}"


def _bring_back(nodes: list[NodeId]) -> str:
    it, its = ("it", "its") if len(nodes) == 1 else ("them", "their")
    return f"start {it}, with {its} own directory if that still exists, else with an empty one"
