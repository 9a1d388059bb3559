"""Members of the cluster: the next layout of the cluster is chosen, and written to a majority of the voters.

The voters stay the same, so no majority depends on the layout that a node knows: it says which nodes may link, serve
and get partitions (docs/protocol.md, MEMBERS). It is chosen because a number is to have one content, and a member's
number one node.
"""

from __future__ import annotations

from quorumq.core import messages as m
from quorumq.core.cluster.members import (
    Members,
    addressed,
    check_leaving,
    check_member,
    is_present,
    with_member,
)
from quorumq.core.messages.effects import Effect, Send
from quorumq.core.requests.context import Context
from quorumq.core.requests.coordinator import Coordinator
from quorumq.core.requests.proposing import PROPOSALS_MAX, Proposer
from quorumq.core.values.errors import Code
from quorumq.core.values.types import (
    ClusterLayout,
    Incarnation,
    Instance,
    Member,
    MemberState,
    NodeId,
    Now,
    Stamp,
    Topic,
)

CHANGES = ("add", "drain", "remove")

STATES = {"drain": MemberState.DRAINING, "remove": MemberState.REMOVED}
"""State of a node after each change but "add"."""

CHANGES_MAX = 8
"""Layouts of others that may come before ours, until the caller is asked to try again."""


def member_of(request: m.ChangeMembers, known: Members) -> Member:
    """Return the member that a request names. A present one keeps its peer address and machine if none is named."""
    old = next((it for it in known.layout.members if is_present(it, request.node)), Member(request.node))
    peer_address, machine = request.peer_address or old.peer_address, request.machine or old.machine
    return Member(request.node, request.address, peer_address, machine)


def check_change(context: Context, request: m.ChangeMembers) -> str:
    """Return why a change cannot be made to the layout that is known here, or ""."""
    catalogue, config = context.catalogue, context.config
    known = catalogue.cluster
    if request.change != "add":
        return check_leaving(request.change, request.node, known, catalogue.live())
    all_addresses = Members(addressed(known.layout, config.addresses, config.peer_addresses))
    return check_member(member_of(request, known), all_addresses)


class MembersCoordinator(Coordinator):
    """CHANGE-MEMBERS: a node is added, drained, removed, or gets another address. Asked again, it answers the same."""

    __slots__ = ("layout", "proposer", "request", "tries")

    layout: ClusterLayout  # as written in this round

    def __init__(self, key: int, request: m.ChangeMembers) -> None:
        super().__init__(key)
        self.request = request
        self.proposer: Proposer | None = None
        self.tries = 0

    def concerns(self, topic: bytes) -> bool:
        return False

    def on_deleted(self, context: Context, topic: Topic, now: Now) -> list[Effect]:
        return []

    def start(self, context: Context, now: Now) -> list[Effect]:
        """Write the layout that is known here, if it is as wanted; else propose the next one."""
        self.close_rounds(context)
        if self.is_done(context):
            self.layout = context.catalogue.cluster.layout
            round_ = self.open_register_round(context, now)
            return [Send(node, m.PutCluster(round_.number, self.layout)) for node in round_.members]
        problem = check_change(context, self.request)
        if problem:
            return self.fail(context, Code.CONFLICT, problem)
        instance = Instance(b"", "", context.catalogue.cluster.layout.number + 1)
        if self.proposer is None or self.proposer.instance != instance:
            self.proposer = Proposer(instance)
            self.tries += 1
        if self.proposer.proposals >= PROPOSALS_MAX or self.tries > CHANGES_MAX:
            detail = (
                "members of the cluster are changed elsewhere at the same time: look at them, then try again"
            )
            return self.fail(context, Code.OUTCOME_UNKNOWN, detail)
        return self.proposer.propose(self, context, now)

    def is_done(self, context: Context) -> bool:
        """Return True if the layout that is known here is as the request wants it."""
        cluster = context.catalogue.cluster
        known = cluster.member(self.request.node)
        if self.request.change != "add":
            return known is not None and known.state >= STATES[self.request.change]
        return known == member_of(self.request, cluster)

    def own_value(self, context: Context, ballot: Stamp) -> ClusterLayout:
        """Return the layout after the known one, with the member as the request wants it."""
        config = context.config
        layout = addressed(context.catalogue.cluster.layout, config.addresses, config.peer_addresses)
        member = member_of(self.request, context.catalogue.cluster)
        if self.request.change != "add":
            known = next(it for it in layout.members if is_present(it, self.request.node))
            state = STATES[self.request.change]
            member = (
                Member(known.node, state=state)
                if state == MemberState.REMOVED
                else known._replace(state=state)
            )
        return with_member(layout, member, ballot)

    def on_reply(
        self, context: Context, sender: NodeId, incarnation: Incarnation, message: m.PeerMessage, now: Now
    ) -> list[Effect]:
        if isinstance(message, m.PutReply):
            round_ = self.rounds[message.round]
            round_.hear(sender, incarnation)
            if context.catalogue.cluster.layout != self.layout:  # others are ahead
                return self.start(context, now)
            done = round_.is_majority(round_.valid(context.state))
            return self.finish(context, m.ChangeMembersReply(self.layout)) if done else []
        assert isinstance(message, m.ProposalReply)
        assert self.proposer is not None
        effects, look = self.proposer.on_reply(self, context, sender, incarnation, message, now)
        return effects + (self.proposer.retry(self, context, now) if look else [])

    def on_timeout(self, context: Context, number: int, now: Now) -> list[Effect]:
        round_ = self.rounds[number]
        answered = round_.valid(context.state).bit_count()
        detail = f"node {self.request.node!r}: it may have happened, or may yet happen: do it again"
        return self.fail(context, Code.OUTCOME_UNKNOWN, detail, round_.majority, answered)
