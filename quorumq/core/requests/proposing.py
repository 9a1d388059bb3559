"""Single-decree Paxos: one value is chosen in one instance: the first register of a topic, each of a group, a layout.

Two registers that say different things cannot be merged if one has been confirmed: one of them stands, and the other
never was. Refusing the later one is not enough, because no node knows the order. So each listed node is an acceptor,
a majority of the list decides, and the value is the whole register. A proposed or accepted register is in
`Catalogue.decisions`, not among the topics and groups; only a chosen one is taken in, and spreads.

Instances follow each other. An acceptor that knows the register of an instance, or of a later one, answers with that.

The lowest ballot of all, zero, needs no PREPARE. Only one register is proposed in it, because all proposers make it
alike. So all acceptors that accept it there accept the same.
"""

from __future__ import annotations

from quorumq.core.cluster.drained import contradiction
from quorumq.core.cluster.rounds import Round
from quorumq.core.messages import Accept, Prepare, ProposalReply, PutTopic
from quorumq.core.messages.effects import Effect, Persist, Send
from quorumq.core.messages.records import DecisionPut
from quorumq.core.requests import merging
from quorumq.core.requests.context import Context
from quorumq.core.requests.coordinator import Coordinator
from quorumq.core.values.errors import Code
from quorumq.core.values.types import (
    STAMP_ZERO,
    ClusterLayout,
    Decision,
    Group,
    Incarnation,
    Instance,
    Layout,
    NodeId,
    Now,
    Stamp,
    Topic,
    Value,
    instance_of,
)

PAUSE_FIRST_S = 0.01
PAUSE_MAX_S = 1.0
"""Longest pause in seconds before a proposal that met a higher ballot is made again. Pauses are random, up to twice as
long each time, beginning with as long as the last one took. Short ones would fail others' proposals for ever."""

TURN_S = 0.05
"""Seconds between looks if another request of this node still proposes the next change of the same register."""

UNSTAMPED_S = 1.0
"""Seconds that a proposal waits at most for the clock's reserve to be durable; then it is tried again."""

PROPOSALS_MAX = 8
"""Proposals in one instance before the caller is asked to try again."""


# ------------------------------------------------------------------------------- an acceptor


def vote(context: Context, sender: NodeId, message: Prepare | Accept, now: Now) -> list[Effect]:
    """Answer PREPARE or ACCEPT once the promise or acceptance is durable, if this node is trusted."""
    instance = message.instance
    effects: list[Effect] = []
    if instance.topic:
        topic = context.catalogue.topics.get(instance.topic)
        if topic is None:
            return [Send(sender, ProposalReply(message.round, None, None, None, (), Code.UNKNOWN_TOPIC))]
        if topic.deleted or is_refused(message, topic):
            return [Persist((), (Send(sender, _reply(context, message.round, None, topic, None)),))]
        if isinstance(message, Prepare) and message.base is not None:
            effects = merging.take_in_group(context, message.base, now)
    chosen = context.catalogue.outcome_of(instance)
    if chosen is not None:
        topic = chosen if isinstance(chosen, Topic) else None
        group = chosen if isinstance(chosen, Group) else None
        reply = _reply(context, message.round, None, topic, group)
        if isinstance(chosen, ClusterLayout):
            reply = reply._replace(cluster=chosen)
        return [*effects, Persist((), (Send(sender, reply),))]
    ours = context.catalogue.decisions.get(instance) or Decision(instance)
    after = ours
    if isinstance(message, Accept):
        if contradiction(context.catalogue, message.value, stands=message.stands):
            reply = _reply(context, message.round, None, None, None)
            return [*effects, Send(sender, reply._replace(error=Code.CONFLICT))]
        if message.ballot >= ours.promised:
            values = (message.topic, message.group, message.layout, message.cluster)
            after = Decision(instance, message.ballot, message.ballot, *values)
    elif message.ballot > ours.promised:
        after = ours._replace(promised=message.ballot)
    records = (DecisionPut(after),) if after != ours else ()
    if records:
        context.catalogue.decisions[instance] = after
    reply = _reply(context, message.round, after, None, None)
    return [*effects, Persist(records, (Send(sender, reply),))]


def is_refused(message: Prepare | Accept, topic: Topic) -> bool:
    """Return True if a FETCH proposes the first register of a group and ``topic`` has ``auto_create_groups`` off.

    Why: acceptors decide it, because a majority of them knows an ALTER that was confirmed; the coordinator of the
    FETCH need not know it.
    """
    return message.implicit and not message.instance.number and not topic.auto_create_groups


def _reply(
    context: Context, number: int, decision: Decision | None, topic: Topic | None, group: Group | None
) -> ProposalReply:
    state = context.state
    reply = ProposalReply(number, decision, topic, group, state.register_vector())
    return reply._replace(epoch=state.voting_epoch)


# ------------------------------------------------------------------------------- a proposer


class Proposer:
    """A coordinator's way to the outcome of one instance.

    Args:
        instance: the instance to decide.
        alike: propose the owner's own value of the ballot zero first, without PREPARE: all nodes make the same there.
        base: the register that a group's change is made to; None for a topic.
        implicit: True if a FETCH asks.

    Attributes:
        ours: the owner's own value (`Coordinator.own_value`), as it was first proposed; the same in each proposal.
        sent: True if something was proposed, which a later proposer may find and choose.
        proposals: count of proposals so far.
    """

    __slots__ = (
        "accepted", "alike", "asked_at", "ballot", "base", "implicit", "instance", "ours", "proposals", "question",
        "refused", "refusing", "round", "sent", "value", "without",
    )  # fmt: skip

    def __init__(
        self, instance: Instance, *, alike: bool = False, base: Group | None = None, implicit: bool = False
    ) -> None:
        self.instance = instance
        self.alike = alike
        self.base = base
        self.implicit = implicit
        self.ballot = STAMP_ZERO
        self.accepted: Decision | None = None  # the highest that was heard of in answers to PREPARE
        self.value: Value | None = None  # proposed in ACCEPT; None while answers to PREPARE are awaited
        self.ours: Value | None = None
        self.refused: Value | None = None  # the last value that too many acceptors refused
        self.refusing = 0  # bits of those that refuse the value of this round
        self.without = 0  # bits of those that have promised, and have not accepted the refused value
        self.round: Round | None = None
        self.question: Prepare | Accept | None = None  # that the round asks
        self.sent = False
        self.proposals = 0
        self.asked_at = 0.0  # monotonic seconds, when the last question was sent

    def propose(self, owner: Coordinator, context: Context, now: Now) -> list[Effect]:
        """Ask for promises, under a ballot of our own above all that are known here.

        Without a ballot, because a higher reserve of the clock must become durable first, the owner goes on then.
        """
        self.close(owner, context)
        self.accepted = self.value = None
        if self.alike and not self.proposals:
            self.proposals += 1
            return self.accept(owner, context, now)
        ballot = context.state.clock.fresh(now)
        self.proposals += 1
        if ballot is None:
            return wait_for_stamp(owner, context, now)
        self.ballot = ballot
        return self._ask(owner, context, Prepare(0, self.instance, ballot, self.base, self.implicit), now)

    def accept(self, owner: Coordinator, context: Context, now: Now) -> list[Effect]:
        """Propose, after a majority's promise, the value that may have been chosen already, or else our own."""
        if self.accepted is not None:
            self.value = self.accepted.value
        else:
            self.value = self.ours = self.ours or owner.own_value(context, self.ballot)
        assert self.value is not None
        self.sent = True
        # If too few say that the refused value was not chosen, it may have been. Then acceptors are not to refuse it.
        stands = self.accepted is not None and self.value == self.refused
        message = accept_of(self.value, self.ballot, implicit=self.implicit, stands=stands)
        return self._ask(owner, context, message, now)

    def _ask(self, owner: Coordinator, context: Context, message: Prepare | Accept, now: Now) -> list[Effect]:
        self.close(owner, context)
        self.asked_at, self.refusing, self.without = now.mono, 0, 0
        self.round = round_ = owner.open_voter_round(context, now)
        self.question = message._replace(round=round_.number)
        linked = (context.state.me, *context.state.links)
        round_.unreachable = round_.bits_of([node for node in round_.members if node not in linked])
        return [Send(node, self.question) for node in round_.members]

    def close(self, owner: Coordinator, context: Context) -> None:
        """End the round that is open: its answers no longer matter."""
        if self.round is not None:
            owner.close_round(context, self.round.number)
            self.round = None

    def on_reply(
        self,
        owner: Coordinator,
        context: Context,
        sender: NodeId,
        incarnation: Incarnation,
        message: ProposalReply,
        now: Now,
    ) -> list[Effect]:
        """Take in an answer. The owner starts again once the outcome is known, or another proposer is ahead."""
        effects, look = self._hear(owner, context, sender, incarnation, message, now)
        return effects + self._retry(owner, context, now) if look else effects

    def _hear(
        self,
        owner: Coordinator,
        context: Context,
        sender: NodeId,
        incarnation: Incarnation,
        message: ProposalReply,
        now: Now,
    ) -> tuple[list[Effect], bool]:
        """Count an answer, and take in a chosen register.

        Returns:
            the effects; and True if the owner is to look again.
        """
        round_ = self.round
        if round_ is None or message.round != round_.number:
            return [], False
        if message.error == Code.UNKNOWN_TOPIC:
            return self._teach(owner, context, round_, sender), False
        if message.cluster is not None:
            self.close(owner, context)
            return merging.take_in_cluster(context, message.cluster, now), not owner.done
        if message.topic is not None or message.group is not None:
            self.close(owner, context)
            effects = merging.take_in_topic(context, message.topic, now) if message.topic is not None else []
            if message.group is not None:
                effects += merging.take_in_group(context, message.group, now)
            return effects, not owner.done
        theirs = message.decision
        if message.error == Code.CONFLICT:
            return [], self._is_refused(owner, context, round_, sender)
        bit = round_.hear(sender, incarnation) if theirs is not None else 0
        if theirs is None or not bit:  # a node that is not trusted has no vote
            return [], False
        if theirs.promised > self.ballot:
            context.state.clock.merge(theirs.promised.time)
            self.close(owner, context)
            return [], True
        if self.value is None and theirs.value is not None:
            highest = self.accepted
            self.accepted = theirs if highest is None or theirs.ballot > highest.ballot else highest
        self.without |= bit if theirs.value != self.refused else 0
        if not round_.is_majority(round_.valid(context.state)):
            return [], False
        if self.value is None:
            return self._on_promised(owner, context, round_, now), False
        self.close(owner, context)
        return merging.take_in_chosen(context, self.value, now), not owner.done

    def _on_promised(self, owner: Coordinator, context: Context, round_: Round, now: Now) -> list[Effect]:
        """Propose, or wait for more promises if the value to propose was refused.

        It is passed over if a majority has promised without having accepted it. Why: then it was never chosen, nor was
        another one under a lower ballot.
        """
        if self.accepted is not None and self.accepted.value == self.refused:
            if round_.is_majority(self.without & round_.valid(context.state)):
                self.accepted = None
            elif not round_.everyone:
                return []
        return self.accept(owner, context, now)

    def _is_refused(self, owner: Coordinator, context: Context, round_: Round, sender: NodeId) -> bool:
        """Count a refusal of our value. Return True if no majority is left of those that can be reached, so that the
        owner is to look again."""
        self.refusing |= round_.bits_of([sender])
        if not round_.cannot_win(self.refusing):
            return False
        self.refused = self.value
        self.close(owner, context)
        return True

    def _teach(self, owner: Coordinator, context: Context, round_: Round, sender: NodeId) -> list[Effect]:
        """Send the group's topic to ``sender``, which does not know it, and ask again, once."""
        topic = context.catalogue.topics.get(self.instance.topic)
        if topic is None or (round_.number, sender) in owner.taught:
            return []
        owner.taught[(round_.number, sender)] = None
        assert self.question is not None
        return [Send(sender, PutTopic(0, topic)), Send(sender, self.question)]

    def ours_as_chosen(self, context: Context) -> Topic | Group | ClusterLayout | None:
        """Return our own value if it was chosen; None if another value was, or nothing yet."""
        chosen = context.catalogue.outcome_of(self.instance)
        mine = chosen is not None and self.ours is not None and chosen.made == self.ours.made
        return chosen if mine and instance_of(chosen) == self.instance else None  # type: ignore[arg-type]

    def has_lost(self, value: Layout | ClusterLayout | Group | None) -> bool:
        """Return True if our own value was never proposed, or this one was chosen in its place."""
        if self.ours is None:
            return True
        return value is not None and instance_of(value) == self.instance and value.made != self.ours.made

    def pause_s(self, context: Context, now: Now) -> float:
        """Return a random time to wait before the next proposal, in seconds; 0.0 the first time."""
        if self.proposals <= 1:
            return 0.0
        took = max(PAUSE_FIRST_S, now.mono - self.asked_at)
        longest: float = min(PAUSE_MAX_S, took * 2 ** (self.proposals - 1))
        share: float = context.rng.random()
        return share * longest

    def _retry(self, owner: Coordinator, context: Context, now: Now) -> list[Effect]:
        """Start the owner again: at once if the instance is decided, else after a pause."""
        chosen = context.catalogue.outcome_of(self.instance) is not None
        pause = 0.0 if chosen else self.pause_s(context, now)
        if not pause:
            return owner.start(context, now)
        context.state.at(now.mono + pause, ("again", owner.key))
        return []


def wait_for_stamp(owner: Coordinator, context: Context, now: Now) -> list[Effect]:
    """Start the owner again once a higher reserve of the clock is durable, so that there is a stamp."""
    owner.close_rounds(context)
    context.unstamped[owner.key] = None
    context.state.at(now.mono + UNSTAMPED_S, ("again", owner.key))
    return []


def accept_of(value: Value, ballot: Stamp, *, implicit: bool, stands: bool) -> Accept:
    """Return the ACCEPT of a value, of no round yet."""
    return Accept(
        0,
        ballot,
        topic=value if isinstance(value, Topic) else None,
        group=value if isinstance(value, Group) else None,
        implicit=implicit,
        layout=value if isinstance(value, Layout) else None,
        cluster=value if isinstance(value, ClusterLayout) else None,
        stands=stands,
    )
