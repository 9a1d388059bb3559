"""CREATE: which first register a name gets is consensus.

Two creations of one name with other replication factors, partitions or settings cannot be merged: one of them is the
topic, and the other never was. Refusing the later one is not enough, as nobody knows which that is: with two nodes
having written the one, two the other, and the fifth away, neither could ever be told to have failed. So it is
single-decree Paxos per (name, how often it was deleted), on disk. All nodes of the list are acceptors; the value is
the whole first register. What is proposed or accepted is in `Catalogue.creations`, where nobody looks for a topic; only
what is chosen is taken in as a register, and spreads like one.

Instances follow each other: who proposes the next one has seen to it that the topic of this one is deleted, as DELETE
does. So where a name has a newer topic, the deletion of the older one is complete.
"""

from __future__ import annotations

from quorumq.core.context import Context
from quorumq.core.effects import Effect, Persist, Send
from quorumq.core.errors import Code
from quorumq.core.limits import NUMBERS_END
from quorumq.core.messages import (
    Accept,
    CreateTopic,
    CreateTopicReply,
    PeerMessage,
    Prepare,
    ProposalReply,
)
from quorumq.core.records import CreationPut
from quorumq.core.registers import ChangeCoordinator
from quorumq.core.topics import as_change, difference, first_topic
from quorumq.core.types import STAMP_ZERO, Creation, Incarnation, NodeId, Now, Topic

PAUSE_FIRST_S = 0.01
PAUSE_MAX_S = 0.5
"""Before a proposal that met a higher ballot is made again: at random, up to twice as long each time."""


def vote(context: Context, sender: NodeId, message: Prepare | Accept) -> list[Effect]:
    """PREPARE and ACCEPT: what is promised or accepted is durable before it is said. Only if this node can vouch."""
    if isinstance(message, Accept):
        name, deletions = message.topic.name, message.topic.deletions
    else:
        name, deletions = message.name, message.deletions
    known = context.catalogue.register_named(name)
    if known is not None and known.deletions >= deletions:
        return [Persist((), (Send(sender, _voted(context, message.round, None, known)),))]
    ours = context.catalogue.creations.get((name, deletions)) or Creation(name, deletions, STAMP_ZERO)
    now = ours
    if isinstance(message, Accept):
        if message.ballot >= ours.promised:
            now = Creation(name, deletions, message.ballot, message.ballot, message.topic)
    elif message.ballot > ours.promised:
        now = ours._replace(promised=message.ballot)
    records = (CreationPut(now),) if now != ours else ()
    context.catalogue.creations[(name, deletions)] = now
    return [Persist(records, (Send(sender, _voted(context, message.round, now, None)),))]


def _voted(context: Context, number: int, creation: Creation | None, chosen: Topic | None) -> ProposalReply:
    return ProposalReply(number, creation, chosen, context.state.vector(context.config.nodes))


class CreateTopicCoordinator(ChangeCoordinator):
    """CREATE. Two creations at once are one topic, that of one of them.

    PREPARE, ACCEPT, and once a majority has accepted, a write of the register that was chosen, so that every node
    finds it. Its answers say how it was changed since.
    """

    __slots__ = ("accepted", "ballot", "changed", "deletions", "ours", "request", "value")

    def __init__(self, key: int, request: CreateTopic) -> None:
        super().__init__(key, request.name)
        self.request = request
        self.deletions = 0
        self.ballot = STAMP_ZERO
        self.accepted: Creation | None = None  # the highest that was heard of in answers to PREPARE
        self.value: Topic | None = None  # what ACCEPT asks for; None while answers to PREPARE are awaited
        self.ours: dict[int, Topic] = {}  # what we proposed, by how often the name had been deleted
        self.changed = False  # our settings were written over those of a topic that nobody had chosen any for

    def start(self, context: Context, now: Now) -> list[Effect]:
        known = context.catalogue.register_named(self.name)
        if known is None:
            self.deletions = 0
            return self.prepare(context, now)
        if known.deleted:
            return self.bury(context, known, now)
        return self.give_up(context) if self.is_crowded_out() else self.write(context, "found", known, now)

    def prepare(self, context: Context, now: Now) -> list[Effect]:
        """A ballot of our own, above all that we have heard of."""
        if self.is_crowded_out():
            return self.give_up(context)
        ballot = context.state.clock.fresh(now)
        if ballot is None:  # a higher reserve must become durable first
            return self.pause(context, now)
        this = self.begin(context, now)
        self.step, self.sets = "propose", ()
        self.ballot = ballot
        self.accepted = self.value = None
        message = Prepare(this.number, self.name, self.deletions, ballot)
        return [Send(node, message) for node in this.members]

    def pause(self, context: Context, now: Now) -> list[Effect]:
        """Look again, from the start, in a while."""
        self.close_rounds(context)
        longest = min(PAUSE_MAX_S, PAUSE_FIRST_S * 2**self.writes)
        context.state.at(now.mono + context.rng.random() * longest, ("again", self.key))
        return []

    def on_reply(
        self, context: Context, sender: NodeId, incarnation: Incarnation, message: PeerMessage, now: Now
    ) -> list[Effect]:
        if not isinstance(message, ProposalReply):
            return super().on_reply(context, sender, incarnation, message, now)
        if message.chosen is not None:
            return context.take_in_topic(message.chosen, now) + self.start(context, now)
        this = self.rounds[message.round]
        bit = this.hear(sender, incarnation)
        theirs = message.creation
        if not bit or theirs is None:
            return []
        if theirs.promised > self.ballot:
            context.state.clock.merge(theirs.promised.time)
            # Mostly that proposer is done or dead. Where it is not, one of us has to wait.
            return self.start(context, now) if self.writes == 1 else self.pause(context, now)
        self.stored |= bit
        if self.value is None and theirs.topic is not None:
            highest = self.accepted
            self.accepted = theirs if highest is None or theirs.ballot > highest.ballot else highest
        if not self.is_enough(context, this):
            return []
        if self.value is None:
            return self.accept(context, now)
        return context.take_in_topic(self.value, now) + self.start(context, now)

    def accept(self, context: Context, now: Now) -> list[Effect]:
        """A majority has promised: propose what may have been chosen already, or else what we were asked for."""
        if self.accepted is not None:
            self.value = self.accepted.topic
        else:
            config = context.config
            first = first_topic(self.request, config.nodes, self.deletions, self.ballot, config.machines)
            self.value = self.ours.setdefault(self.deletions, first)
        assert self.value is not None
        this = self.begin(context, now)
        return [Send(node, Accept(this.number, self.ballot, self.value)) for node in this.members]

    def on_written(self, context: Context, now: Now) -> list[Effect]:
        if self.step != "found" or self.merged.deleted:
            return super().on_written(context, now)
        merged = self.merged
        change = as_change(self.request)
        fits = merged.rf == self.request.rf and (change.partitions or merged.partitions) >= merged.partitions
        if (
            self.request.implicit
            or merged.stamp != STAMP_ZERO
            or not fits
            or not difference(self.request, merged)
        ):
            return self.on_changed(context, now)
        stamp = self.fresh_stamp(context, merged, now)
        if stamp is None:
            return self.pause(context, now)
        self.changed = True
        return self.change(context, merged, change, stamp, now)

    def on_changed(self, context: Context, now: Now) -> list[Effect]:
        ours = self.ours.get(self.merged.deletions)
        mine = ours is not None and ours.made == self.merged.made  # whatever was changed since
        differs = difference(self.request, self.merged)
        if mine or self.request.implicit or not differs:
            return self.finish(context, CreateTopicReply(self.merged))
        return self.refuse(context, differs)

    def on_buried(self, context: Context, now: Now) -> list[Effect]:
        if self.merged.deletions + 1 >= NUMBERS_END:
            detail = (
                f"topic {self.name!r} was deleted {self.merged.deletions} times, as some node says, and no count "
                f"reaches {NUMBERS_END}: choose another name"
            )
            return self.fail(context, Code.OUTCOME_UNKNOWN if self.ours else Code.CONFLICT, detail)
        self.deletions = self.merged.deletions + 1
        return self.prepare(context, now)

    def on_replaced(self, context: Context, now: Now) -> list[Effect]:
        return self.start(context, now)

    def refuse(self, context: Context, differs: str) -> list[Effect]:
        """The topic is another one than was asked for. A conflict is one only where nothing of ours may be served."""
        if self.changed or any(deletions < self.merged.deletions for deletions in self.ours):
            detail = (
                f"topic {self.name!r} was changed or deleted elsewhere at the same time, and has {differs}: "
                "look at it, then try again"
            )
            return self.fail(context, Code.OUTCOME_UNKNOWN, detail, 1)
        detail = (
            f"topic {self.name!r} exists with {differs}: use it as it is, change it (`quorumq topics set`), or "
            "choose another name"
        )
        return self.fail(context, Code.CONFLICT, detail)
