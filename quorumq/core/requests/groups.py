"""Changes of groups: a creation, rewind or deletion is the next change of a register, and chosen
(core/requests/proposing.py).

So two changes at once are made one after the other, and only a requested change stands above a register that was
confirmed. A rewind makes a new generation, which reads anew. From its OK on no delivery of the old generation can be
won, because any HOLD majority meets a replica that refuses it as stale. Nothing is swept: records of older generations
are void if the new one covers the message (core/partition/group.py). A rewind to messages published from now on changes
no register: it skips the messages that are there.
"""

from __future__ import annotations

from quorumq.core import messages as m
from quorumq.core.cluster.rounds import Round
from quorumq.core.messages.effects import Effect
from quorumq.core.requests.context import Context
from quorumq.core.requests.proposing import PROPOSALS_MAX, TURN_S, Proposer
from quorumq.core.requests.purge import not_here
from quorumq.core.requests.registration import GroupChange
from quorumq.core.requests.skipping import Skipping
from quorumq.core.values.errors import Code
from quorumq.core.values.limits import NUMBERS_END
from quorumq.core.values.types import STAMP_ZERO, Group, Incarnation, Instance, Latest, NodeId, Now, Stamp


class GroupCoordinator(GroupChange):
    """SETGROUP: the change is chosen, then its register is written to all partitions (core/requests/registration.py).

    A creation that finds the group there changes nothing, and answers once the register there is written.

    Attributes:
        change: register that the answer is about: the one that was chosen for us, or that was there.
        changes: number of proposals of the next change.
        own: True if ``change`` was chosen for this request.
    """

    __slots__ = ("began", "change", "changes", "own", "proposer", "skipping")

    def __init__(self, key: int, request: m.SetGroup | m.DeleteGroup, topic: bytes) -> None:
        super().__init__(key, request, topic)
        self.proposer: Proposer | None = None
        self.skipping: Skipping | None = None
        self.change: Group | None = None
        self.changes = 0
        self.own = False
        self.began = float("inf")

    # --------------------------------------------------------------------- what to propose

    def start(self, context: Context, now: Now) -> list[Effect]:
        """Answer from the register that this node knows, or propose the change that follows it.

        Why: a change is numbered by the generation that it makes, so it can only be proposed after the one that is
        known. Two coordinators that know the same register compete in one Paxos instance.
        """
        self.began = min(self.began, now.mono)
        known = self.known(context)
        ours = self.proposer.ours_as_chosen(context) if self.proposer is not None else None
        if ours is not None:
            assert isinstance(ours, Group)
            self.change, self.own = ours, True
        if self.change is not None:
            return self.write(context, now)
        if self.finds_none(known):
            return self.finish(context, context.catalogue.no_group(self.request.topic, self.request.group))
        if known is not None and self.is_late(known):
            return self.refuse_late(context, known)
        if known is not None and self.is_fine(known):
            self.change = known
            return self.write(context, now)
        if known is not None and known.generation + 1 >= NUMBERS_END:
            detail = (
                f"group {self.request.group!r} was changed {known.generation} times, as some node says: choose "
                "another name"
            )
            return self.fail(context, Code.CONFLICT, detail)
        number = known.generation + 1 if known is not None else 0
        instance = Instance(self.topic, self.request.group, number)
        if self.follows_another(context, instance):
            if now.mono >= self.began + context.config.request_timeout:
                return self.fail_unknown(context)
            context.state.at(now.mono + TURN_S, ("again", self.key))
            return []
        if self.proposer is None or self.proposer.instance != instance:
            self.changes += 1
            alike = self.wish(known, STAMP_ZERO) == Group(self.topic, self.request.group, 0)
            self.release_instance(context)
            context.proposing[instance] = self.key
            self.proposer = Proposer(instance, alike=alike, base=known)
        if self.changes > PROPOSALS_MAX or self.proposer.proposals >= PROPOSALS_MAX:
            detail = f"group {self.request.group!r} is being changed by others all the time: try again"
            return self.fail(context, Code.OUTCOME_UNKNOWN, detail, 1)
        return self.proposer.propose(self, context, now)

    def follows_another(self, context: Context, instance: Instance) -> bool:
        """Return True if an earlier request of this node proposes in the same instance.

        Why: all requests of a node would compete with each other, and with those of other nodes, in one instance. If
        a round trip is long, nothing would ever be chosen.
        """
        return context.proposing.get(instance, self.key) != self.key

    def release_instance(self, context: Context) -> None:
        """Let others of this node propose in the instance of this request."""
        if self.proposer is not None:
            context.proposing.pop(self.proposer.instance, None)

    def finish(self, context: Context, reply: m.ClientReply | None) -> list[Effect]:
        self.release_instance(context)
        return super().finish(context, reply)

    def finds_none(self, known: Group | None) -> bool:
        """Return True if the request changes a group that does not exist.

        Why: ``known`` is enough to say so, because the other nodes were asked before (core/requests/finding.py).
        """
        return self.request.rewind and (known is None or known.deleted)

    def is_late(self, known: Group) -> bool:
        """Return True if the group was changed since; for a creation, if it was deleted."""
        return super().is_late(known) and (self.request.rewind or known.deleted)

    def refuse_late(self, context: Context, known: Group) -> list[Effect]:
        """Fail; the outcome is unknown if our own proposal may have been chosen, with other changes above it.

        A first register that all nodes propose alike is no change of this request.
        """
        proposer = self.proposer
        if proposer is not None and not (proposer.alike or proposer.has_lost(known)):
            return self.fail_unknown(context)
        return super().refuse_late(context, known)

    def is_fine(self, known: Group) -> bool:
        """Return True if the register ``known`` already is what the request asks for."""
        return not known.deleted and (not self.request.rewind or self.request.start == "latest")

    def own_value(self, context: Context, ballot: Stamp) -> Group:
        assert self.proposer is not None
        return self.wish(self.proposer.base, ballot)

    def wish(self, known: Group | None, ballot: Stamp) -> Group:
        """Return the register that the request asks for, on top of ``known``."""
        request = self.request
        from_ms = request.from_ms if request.start == "time" else 0
        latest = Latest.SKIPPING if request.start == "latest" else Latest.NO
        wish = Group(self.topic, request.group, 0, from_ms, 0, latest)
        if known is not None:
            return wish._replace(generation=known.generation + 1, buried=known.buried, made=ballot)
        return wish._replace(made=ballot) if from_ms or latest else wish

    # ------------------------------------------------------------------------ its result

    def on_reply(
        self, context: Context, sender: NodeId, incarnation: Incarnation, message: m.PeerMessage, now: Now
    ) -> list[Effect]:
        if not isinstance(message, m.ProposalReply):
            return super().on_reply(context, sender, incarnation, message, now)
        assert self.proposer is not None
        return self.proposer.on_reply(self, context, sender, incarnation, message, now)

    def on_answer(
        self, context: Context, round_: Round, sender: NodeId, bit: int, message: m.PeerMessage, now: Now
    ) -> list[Effect]:
        assert self.skipping is not None
        effects = self.skipping.on_answer(context, round_, sender, bit, message, now)
        if not self.skipping.done:
            return effects
        if self.skipping.unclear:
            detail = f"group {self.request.group!r}: {not_here(self.skipping.unclear)}: do it again"
            return effects + self.fail(context, Code.OUTCOME_UNKNOWN, detail, 1)
        assert self.change is not None
        return effects + self.answer(context, self.change)

    def on_registered(self, context: Context, topic: bytes, now: Now) -> list[Effect]:
        newest = self.known(context)
        assert newest is not None
        assert self.change is not None
        if self.is_late(newest) and not self.own:
            return self.refuse_late(context, newest)
        if self.is_undone(newest):
            self.change = None
            return self.start(context, now)
        if newest.generation == self.change.generation or not (self.own or newest.deleted):
            self.change = newest  # the group may have been deleted and made again since this request
        request = self.request
        if isinstance(request, m.SetGroup) and request.rewind and request.start == "latest":
            self.skipping = Skipping(self, context.catalogue.topics[topic], newest._replace(latest=Latest.NO))
            return self.skipping.start(context, now)
        return self.answer(context, self.change)

    def is_undone(self, newest: Group) -> bool:
        """Return True if the group existed when it was looked up and was deleted before this request was answered.

        Why: a request that proposed nothing has not created the group, so it must start again and create it.
        """
        assert self.change is not None
        return newest.deleted and newest.generation > self.change.generation and self.proposer is None


class DeleteGroupCoordinator(GroupCoordinator):
    """DELETEGROUP: a change after which no client reads the group until it is created again.

    It is proposed again if the group is deleted already: it ends a creation that was left half done before it.
    """

    __slots__ = ()

    def finds_none(self, known: Group | None) -> bool:
        return known is None

    def is_fine(self, known: Group) -> bool:
        return GroupChange.is_late(self, known)

    def is_late(self, known: Group) -> bool:
        """Return True if the group was made again, or rewound, since; if it is deleted, that is as wanted."""
        return self.is_fine(known) and not known.deleted

    def wish(self, known: Group | None, ballot: Stamp) -> Group:
        assert known is not None
        number = known.generation + 1
        return Group(self.topic, known.name, number, buried=number, made=ballot)

    def is_undone(self, newest: Group) -> bool:
        return False
