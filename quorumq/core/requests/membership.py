"""Members of the cluster: the next layout of the cluster is chosen, and written to a majority of the voters.

It says which nodes may link, serve and get partitions, and which are voters (docs/layouts.md, MEMBERS). It is chosen
by the voters of the layout before, because a number is to have one content, and a member's number one node.
"""

from __future__ import annotations

from quorumq.core import messages as m
from quorumq.core.cluster.members import (
    Members,
    addressed,
    apart,
    check_count,
    check_leaving,
    check_member,
    check_voter,
    is_present,
    next_voters,
    with_member,
    with_voter,
    with_voters,
)
from quorumq.core.cluster.rounds import Round
from quorumq.core.messages.effects import Effect, Send
from quorumq.core.requests.context import Context
from quorumq.core.requests.coordinator import Coordinator
from quorumq.core.requests.moving import LEAVER_WAIT
from quorumq.core.requests.promising import overtaken
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
    instance_of,
)

OF_VOTERS = ("move-voter", "raise-voters")
"""Changes after which other nodes are voters."""

ASKED = ("remove", *OF_VOTERS)
"""Changes that are proposed only after the voters have answered."""

CHANGES = ("add", "drain", *ASKED)

STATES = {"drain": MemberState.DRAINING, "remove": MemberState.REMOVED}
"""State of a node after each change that has it leave."""

CHANGES_MAX = 8
"""Layouts of others that may be chosen before ours, until the caller is asked to try again."""

AGAIN_S = 0.05
"""Seconds between looks if a layout waits for the disk, or a new voter does not vote yet."""


def member_of(request: m.ChangeMembers, known: Members) -> Member:
    """Return the member that a request names. A present one keeps its peer address and machine if none is named."""
    old = next((it for it in known.layout.members if is_present(it, request.node)), Member(request.node))
    peer_address, machine = request.peer_address or old.peer_address, request.machine or old.machine
    return Member(request.node, request.address, peer_address, machine)


def check_change(context: Context, request: m.ChangeMembers) -> str:
    """Return why a change cannot be made to the layout that is known here, or ""."""
    catalogue, config = context.catalogue, context.config
    known = catalogue.cluster
    if request.change not in CHANGES:
        return f"change is {request.change[:50]!r}: it must be {' or '.join(CHANGES)}"
    if request.change == "move-voter":
        return check_voter(request.node, request.to, known)
    if request.change == "raise-voters":
        return check_count(request.voters, known)
    if request.change != "add":
        return check_leaving(request.change, request.node, known, catalogue.live())
    all_addresses = Members(addressed(known.layout, config.addresses, config.peer_addresses))
    return check_member(member_of(request, known), all_addresses)


class MembersCoordinator(Coordinator):
    """CHANGE-MEMBERS: a node is added, drained, removed, or gets another address, or others are voters.

    Asked again, it answers the same.

    Attributes:
        layout: layout that was written in this round, or that the proposal is built on.
        asked: instance for which the voters have said that their slots are trusted.
        to: nodes that get voters' slots.
        until: end time (monotonic seconds); a new voter is waited for until then.
    """

    __slots__ = ("asked", "layout", "proposer", "request", "to", "tries", "until")

    layout: ClusterLayout

    def __init__(self, key: int, request: m.ChangeMembers) -> None:
        super().__init__(key)
        self.request = request
        self.proposer: Proposer | None = None
        self.tries = 0
        self.asked: Instance | None = None
        self.to: tuple[NodeId, ...] = ()
        self.until = 0.0

    def concerns(self, topic: bytes) -> bool:
        return False

    def on_deleted(self, context: Context, topic: Topic, now: Now) -> list[Effect]:
        return []

    def start(self, context: Context, now: Now) -> list[Effect]:
        """Write the layout that is known here, if it is as wanted; else propose the next one."""
        self.close_rounds(context)
        if self.request.change == "remove" and self.request.node == context.state.me:
            # The others refuse this node as soon as they know, so it could not count who does.
            return self.fail(context, Code.NOT_STORED, "a node cannot remove itself: ask another one")
        self.until = self.until or now.mono + context.config.request_timeout
        if context.adopting and now.mono < self.until:
            return self.look_later(context, now)
        if self.is_done(context):
            return self.write(context, now)
        is_late, problem = self.is_late(context), check_change(context, self.request)
        if is_late or problem:
            if self.proposer is not None and not self.proposer.has_lost(context.catalogue.cluster.layout):
                return self.give_up(context)
            refusal = m.Failed(Code.CONFLICT, problem)
            return self.finish(context, overtaken("the list of members") if is_late else refusal)
        instance = Instance(b"", "", context.catalogue.cluster.layout.number + 1)
        if self.request.change in ASKED and self.asked != instance:
            return self.ask_voters(context, instance, now)
        return self.propose(context, instance, now)

    def look_later(self, context: Context, now: Now) -> list[Effect]:
        context.state.at(now.mono + AGAIN_S, ("again", self.key))
        return []

    def write(self, context: Context, now: Now, timeout: float | None = None) -> list[Effect]:
        """Write the layout that is known here to all members."""
        self.layout = context.catalogue.cluster.layout
        round_ = self.open_register_round(context, now, timeout)
        return [Send(node, m.PutCluster(round_.number, self.layout)) for node in round_.members]

    def ask_voters(self, context: Context, instance: Instance, now: Now) -> list[Effect]:
        """Ask if the slot of every voter is trusted, before one of them goes to another node, or slots are added.

        Why: a new voter learns from those before. If one of these never learned, one lost disk would leave too few.
        Only the one that leaves is passed over if it is silent: it may be gone for good.

        Before a removal ask if a voter has accepted a value that places a partition on the node. Why: no voter accepts
        both. If each is accepted somewhere, and a voter resyncs, it learns both, and none is ever chosen.
        """
        self.asked = instance
        cluster = context.catalogue.cluster
        if self.request.change == "remove":
            return self.write(context, now, LEAVER_WAIT * context.config.request_timeout)
        able = next_voters(cluster, self.request.node)
        linked = [node for node in able if node in (context.state.me, *context.state.links)]
        chosen = [self.request.to] if self.request.to else apart([*linked, *able], cluster.machines)
        self.to = tuple(chosen[: max(1, self.request.voters - len(cluster.voters))])
        return self.write(context, now, LEAVER_WAIT * context.config.request_timeout)

    def lacking(self, context: Context, round_: Round) -> list[NodeId]:
        """Return the nodes that have not said yet that they know the layout, and all promises of their slots."""
        bits, voters = round_.valid(context.state), context.catalogue.cluster.voters
        if self.request.change == "remove":
            linked = (context.state.me, *context.state.links)
            return [node for node in voters if round_.awaits(node) and node in linked]
        stay = [node for node in voters if node != self.request.node and not round_.is_counted(bits, node)]
        return stay + [node for node in self.to if not round_.bits_of([node]) & bits]

    def propose(self, context: Context, instance: Instance, now: Now) -> list[Effect]:
        if self.proposer is None or self.proposer.instance != instance:
            self.proposer = Proposer(instance)
            self.tries += 1
        if self.proposer.proposals >= PROPOSALS_MAX or self.tries > CHANGES_MAX:
            return self.give_up(context)
        self.layout = context.catalogue.cluster.layout
        return self.proposer.propose(self, context, now)

    def give_up(self, context: Context) -> list[Effect]:
        detail = "members of the cluster are changed elsewhere at the same time: look at them, then try again"
        return self.fail(context, Code.OUTCOME_UNKNOWN, detail)

    def is_late(self, context: Context) -> bool:
        """Return True if there is a later layout than the client knows."""
        seen = self.request.layout
        return seen is not None and context.catalogue.cluster.layout.number > seen

    def is_done(self, context: Context) -> bool:
        """Return True if the layout that is known here is as the request wants it."""
        cluster = context.catalogue.cluster
        known = cluster.member(self.request.node)
        if self.request.change == "move-voter":
            return known is not None and self.request.node not in cluster.voters
        if self.request.change == "raise-voters":
            return len(cluster.voters) >= self.request.voters
        if self.request.change != "add":
            return known is not None and known.state >= STATES[self.request.change]
        return known == member_of(self.request, cluster)

    def own_value(self, context: Context, ballot: Stamp) -> ClusterLayout:
        """Return the layout after the one that was known when votes were asked for, as the request wants it.

        Why: there may be a newer one since, and its next layout is another instance, which no node has promised.
        """
        config = context.config
        layout = addressed(self.layout, config.addresses, config.peer_addresses)
        if self.request.change == "move-voter":
            return with_voter(layout, self.request.node, self.to[0], ballot)
        if self.request.change == "raise-voters":
            return with_voters(layout, self.to, ballot)
        member = member_of(self.request, Members(self.layout))
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
            if message.refused and self.request.change == "remove" and not self.is_done(context):
                return self.fail(context, Code.TOO_FEW_REPLICAS, message.detail)
            round_ = self.rounds[message.round]
            round_.hear(sender, incarnation)
            if context.catalogue.cluster.layout != self.layout:  # others are ahead
                return self.start(context, now)
            return self.on_known(context, round_, now)
        assert isinstance(message, m.ProposalReply)
        assert self.proposer is not None
        return self.proposer.on_reply(self, context, sender, incarnation, message, now)

    def on_known(self, context: Context, round_: Round, now: Now) -> list[Effect]:
        """Go on if enough nodes know the layout: all voters before they change; else a majority, and each new voter.

        Why: a new voter that answered before it votes does not answer this round again.
        """
        bits, instance = round_.valid(context.state), self.asked
        if not self.is_done(context):
            remove = self.request.change == "remove"
            waits = not round_.is_majority(bits) if remove else round_.awaits(self.request.node)
            everyone = not waits and not self.lacking(context, round_)
            assert instance is not None
            return self.propose_now(context, instance, now) if everyone else []
        new = context.catalogue.cluster.new_voters if self.request.change in OF_VOTERS else []
        learning = [node for node in new if not round_.is_counted(bits, node)]
        if round_.is_majority(bits) and not learning:
            return self.finish(context, m.ChangeMembersReply(self.layout))
        if not learning or any(round_.awaits(node) for node in learning):
            return []
        if now.mono >= self.until:
            detail = f"{', '.join(learning)}: a voter now, and does not know all settings yet: try again"
            return self.fail(context, Code.OUTCOME_UNKNOWN, detail)
        self.close_rounds(context)
        return self.look_later(context, now)

    def propose_now(self, context: Context, instance: Instance, now: Now) -> list[Effect]:
        self.close_rounds(context)
        return self.propose(context, instance, now)

    def on_timeout(self, context: Context, number: int, now: Now) -> list[Effect]:
        round_ = self.rounds[number]
        asks = self.request.change == "remove" and self.proposer is None
        if asks and self.asked is not None and round_.is_majority(round_.valid(context.state)):
            return self.propose_now(context, self.asked, now)
        if self.request.change in OF_VOTERS and self.proposer is None and not self.is_done(context):
            silent = self.lacking(context, round_)
            if not silent and self.asked is not None:
                return self.propose_now(context, self.asked, now)
            subject = f"the settings that {self.request.node} keeps" if self.request.node else "settings"
            to = ", ".join(self.to)
            detail = (
                f"{subject} cannot go to {to} now: every other voter, and {to}, has to be up and to know all settings "
                f"({', '.join(silent)} did not say so); try again"
            )
            return self.fail(context, Code.TOO_FEW_REPLICAS, detail, round_.majority)
        answered = round_.valid(context.state).bit_count()
        subject = f"node {self.request.node!r}" if self.request.node else self.request.change
        detail = f"{subject}: it may have happened, or may yet happen: do it again"
        return self.fail(context, Code.OUTCOME_UNKNOWN, detail, round_.majority, answered)


class FinishCoordinator(MembersCoordinator):
    """A layout with other voters that was accepted is proposed again, until one is chosen. No client waits for it.

    Why: a node that resyncs waits for the outcome.
    """

    __slots__ = ("accepted",)

    def __init__(self, key: int, accepted: ClusterLayout) -> None:
        super().__init__(key, m.ChangeMembers("", ""))
        self.accepted = accepted

    def start(self, context: Context, now: Now) -> list[Effect]:
        self.close_rounds(context)
        if (
            context.adopting
            or context.catalogue.undecided_voters(context.catalogue.decisions.values()) is None
        ):
            return self.finish(context, None)
        return self.propose(context, instance_of(self.accepted), now)

    def own_value(self, context: Context, ballot: Stamp) -> ClusterLayout:
        return self.accepted


def finish_undecided(context: Context, now: Now) -> list[Effect]:
    """Go on with a layout with other voters that is not decided; one voter does at a time, on average."""
    catalogue = context.catalogue
    last = Instance(b"", "", catalogue.cluster.layout.number)
    following = [catalogue.decisions[it] for it in catalogue.decisions.irange(last, Instance(b"", "\0", 0))]
    accepted = catalogue.undecided_voters(following)
    if accepted is None or not context.state.trusted or context.adopting:
        return []
    if any(isinstance(each, FinishCoordinator) for each in context.requests.values()):
        return []
    if context.rng.random() * len(catalogue.cluster.voters) >= 1:
        return []
    return context.begin(FinishCoordinator(context.next_key(), accepted), now)
