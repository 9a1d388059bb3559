"""A node's votes: requests of a quorum go to the replica that they are about, or are refused.

These gates decide if a vote is cast:

- trust, of the node (`NodeState.trusted`) and of its slot (`Replica.is_trusted`): all but a STORE of round 0 need both;
- epoch, of the replica set (`VoteRouter.is_refused`): it is that of the layout that the replica has adopted;
- quarantine, of the replica (`Replica.may_vote`): HOLD and EXTEND need it to be over;
- the reserve of the clock, for a ballot (`Replica.abstains`): a HOLD needs a ballot at or below what is durable;
- the group: a paused one gets no holds (`GroupView.paused`), and a stale generation is refused (`Replica.is_stale`).

Whether a vote counts that was cast is the coordinator's question: not if a later start of its sender is known
(`Round.valid`).
"""

from __future__ import annotations

from quorumq.core import messages as m
from quorumq.core.messages.effects import Done, Effect, Persist, Send
from quorumq.core.messages.records import BatchStored
from quorumq.core.partition.replica import Replica
from quorumq.core.requests.context import Context
from quorumq.core.requests.sources import is_copied
from quorumq.core.values.deadnames import source_of
from quorumq.core.values.errors import Code
from quorumq.core.values.types import Incarnation, NodeId, Now, PartitionId, Topic

PartitionRequest = (
    m.Hold | m.Extend | m.Ack | m.Reject | m.Merge | m.ReplicaList | m.CloseRequest | m.SlotRequest
)
"""Requests of a quorum that are about one partition."""


class VoteRouter:
    """Routes quorum requests to replicas, whose votes are the answers."""

    __slots__ = ("context",)

    def __init__(self, context: Context) -> None:
        self.context = context

    def on_request(
        self, sender: NodeId, incarnation: Incarnation, message: m.QuorumRequest, now: Now
    ) -> list[Effect]:
        if isinstance(message, m.Hold):
            reply, effects, waits = self._on_hold(sender, incarnation, message, now)
            vote = Send(sender, reply)
            return [*effects, Persist((), (vote,)) if waits else vote]
        if not self.context.state.trusted:
            return self._refuse_untrusted(sender, incarnation, message, now)
        if isinstance(message, m.Store):
            return self._on_store(sender, incarnation, message, now)
        if message.round and self.context.completions:
            subject = (message.partition, message.epoch)
            if waiting := self.context.wait_to_adopt(*subject, sender, incarnation, message):
                return waiting
        replica = self.context.replicas.get(message.partition)
        if replica is None or (message.epoch != replica.epoch and self.is_refused(message)):
            error, effects = self._why_not_asked(sender, message, replica)
            return effects + self._refuse(sender, message, error)
        if isinstance(message, m.SlotRequest):
            error = "" if replica.is_trusted else Code.NOT_TRUSTED
            if message.copied and not is_copied(self.context, replica):
                error = (
                    error or Code.CONFLICT
                )  # learners lack some of its payload, or have not said otherwise yet
            return [Send(sender, m.SlotReply(message.round, error, replica.vector()))]
        if not replica.is_trusted:
            return self._refuse_untrusted(sender, incarnation, message, now)
        if isinstance(message, m.CloseRequest):
            return replica.on_close_ask(sender, message, now)
        if message.group not in replica.views.groups and replica.views.is_deleted(message.group):
            deletion = self._deletion(sender, replica, message.group)
            return deletion + self._refuse(sender, message, Code.NOT_FOUND)
        match message:
            case m.Extend():
                extended, persist = replica.on_extend(message, now)
                said = Send(sender, extended)
                if persist is None and replica.registered_by <= self.context.state.registers_durable:
                    return [said]
                return [(persist or Persist(()))._replace(then=(said,))]
            case m.Ack():
                return replica.on_ack(sender, message, now)
            case m.Reject():
                return replica.on_reject(sender, message, now)
            case m.Merge():
                return replica.on_merge(sender, message, now)
            case m.ReplicaList():
                return [Send(sender, replica.on_replica_list(message, now))]

    def _on_hold(
        self, sender: NodeId, incarnation: Incarnation, message: m.Hold, now: Now
    ) -> tuple[m.HoldReply, list[Effect], bool]:
        """Return the votes on a HOLD, the effects before them, and True if they wait for the topic's record on disk.

        Why they wait: no journal has holds, and a start that finds no record of a topic has no quarantine in it.
        """
        state = self.context.state
        if message.released:
            self.context.releases.here(message.released, now)
        replica = self.context.replicas.get(message.partition)
        if replica is None or (message.epoch != replica.epoch and self.is_refused(message)):
            error, effects = self._why_not_asked(sender, message, replica)
            return m.refusal(message, error), effects, False
        if message.group not in replica.views.groups and replica.views.is_deleted(message.group):
            return m.refusal(message, Code.NOT_FOUND), self._deletion(sender, replica, message.group), False
        key = (message.partition, message.group, sender)
        state.active[key] = now.mono
        if message.parked:
            state.parked[key] = now.mono
        else:
            state.parked.pop(key, None)
        reply, effects = replica.on_hold(sender, incarnation, message, now)
        if message.released:
            effects.append(Send(sender, m.ReleaseReply(message.released)))
        return reply, effects, replica.registered_by > state.registers_durable

    def _on_store(self, sender: NodeId, incarnation: Incarnation, message: m.Store, now: Now) -> list[Effect]:
        """Answer a STORE: keep, or refuse, each of its batches. STORED goes once all that was kept is durable.

        The reply for a batch that is present already waits for the journal as well, because a retry may arrive before
        the first copy is durable.
        """
        effects: list[Effect] = []
        records: list[BatchStored] = []
        problems: list[m.Problem] = []
        members: tuple[NodeId, ...] = ()
        parts: tuple[m.Store | m.Part, ...] = (message, *message.more)
        for part in parts if message.round and self.context.completions else ():
            subject, later = (part.batch.header.partition, part.epoch), message._replace(hold=None)
            if waits := self.context.wait_to_adopt(*subject, sender, incarnation, later):
                if message.hold is not None:  # it does not wait: its RELEASE must not be handled before it
                    waits.append(Send(sender, m.refusal(message.hold, Code.WRONG_EPOCH)))
                return waits
        for at, part in enumerate(parts):
            partition = part.batch.header.partition
            replica = self.context.replicas.get(partition)
            detail = ""
            if replica is None:
                error, others = self._why_no_replica(sender, partition)
                effects += others
            elif message.round and not replica.is_trusted:
                if len(parts) == 1:
                    return self._refuse_untrusted(sender, incarnation, message, now)
                error = Code.NOT_TRUSTED  # the others are kept: their slots vote
            else:
                record, error, detail = replica.storing.take(
                    sender, part, replica.topic, now, asked=message.round > 0
                )
                if error == Code.WRONG_EPOCH:
                    effects += self._newer(sender, replica.topic, part.epoch < replica.epoch)
                else:
                    members = members or replica.members
                if record is not None:
                    records.append(record)
            if error:
                problems.append(m.Problem(at, error, detail))
        then: list[Send | Done] = []
        if message.round:
            votes, hold = None, message.hold
            if hold is not None:
                votes, others = self.on_piggybacked(
                    sender, incarnation, hold, now, problems[0].error if problems else ""
                )
                effects += others
            known = self.context.state.vector(tuple(sorted(members)))
            then.append(Send(sender, m.StoreReply(message.round, tuple(problems), known, votes=votes)))
            if len(problems) == len(parts):  # nothing is promised
                return [*effects, *then]  # type: ignore[list-item]
        if records:
            then.append(Done(records[-1].number))
        return [*effects, Persist(tuple(records), tuple(then))] if then else effects

    def _refuse_untrusted(
        self, sender: NodeId, incarnation: Incarnation, message: m.QuorumRequest, now: Now
    ) -> list[Effect]:
        """Refuse, as the promises of this directory, or of its slot, are not known yet: the answer would be no vote.

        Why not in silence: if too few of the set vote, the client is to ask again, and not to wait for the timeout. The
        slot may vote after some round trips. For a SlotRequest or a CloseRequest no client waits.
        """
        if isinstance(message, m.SlotRequest | m.CloseRequest) or not message.round:
            return []
        if not isinstance(message, m.Store):
            return self._refuse(sender, message, Code.NOT_TRUSTED)
        problems = tuple(m.Problem(at, Code.NOT_TRUSTED, "") for at in range(1 + len(message.more)))
        votes, effects = None, list[Effect]()
        if message.hold is not None:
            votes, effects = self.on_piggybacked(sender, incarnation, message.hold, now, "")
        return [*effects, Send(sender, m.StoreReply(message.round, problems, m.NO_STARTS, votes=votes))]

    def is_refused(self, message: PartitionRequest) -> bool:
        """Return True: a question or write in another layout than the adopted one is refused.

        Why a method: the simulator leaves this rule out.
        """
        return True

    def on_piggybacked(
        self, sender: NodeId, incarnation: Incarnation, hold: m.Hold, now: Now, refused: str
    ) -> tuple[m.HoldReply, list[Effect]]:
        """Return the votes, as on any HOLD, for one that is piggybacked; none if the STORE is ``refused``, for that
        reason."""
        if refused:
            return m.refusal(hold, refused), []
        votes, effects, _ = self._on_hold(sender, incarnation, hold, now)  # STORED waits, too
        return votes, effects

    def _refuse(self, sender: NodeId, message: PartitionRequest, error: str) -> list[Effect]:
        """Refuse: nothing is done. Requests of anti-entropy are not answered."""
        if not message.round and isinstance(message, m.Merge):
            return []
        return [Send(sender, m.refusal(message, error))]

    def on_release(self, sender: NodeId, released: tuple[m.Released, ...], now: Now) -> list[Effect]:
        """Remove holds that a peer gives back. Give those of our own rounds back at all replicas once more.

        Why: the peer's RELEASE may overtake our HOLD on its way to another replica, which would hold for no client.
        """
        me = (self.context.state.me, self.context.state.incarnation)
        self.context.releases.here(tuple(item for item in released if item.owner[:2] != me), now)
        ours = self.context.releases.everywhere([item for item in released if item.owner[:2] == me], now)
        return [Send(sender, m.ReleaseReply(released)), *ours]

    def _why_not_asked(
        self, sender: NodeId, message: PartitionRequest, replica: Replica | None
    ) -> tuple[str, list[Effect]]:
        """Return why no replica is asked (there is none, or it is in another layout), and the news before that."""
        if replica is None:
            return self._why_no_replica(sender, message.partition)
        return Code.WRONG_EPOCH, self._newer(sender, replica.topic, message.epoch < replica.epoch)

    def _deletion(self, sender: NodeId, replica: Replica, group: str) -> list[Effect]:
        """Return the register of a deleted group: here, too, the sender hears it before our refusal."""
        register = self.context.catalogue.group(replica.partition.topic, source_of(group))
        assert register is not None, "it is known to be deleted"
        return [Send(sender, m.PutGroup(0, register))]

    def _why_no_replica(self, sender: NodeId, partition: PartitionId) -> tuple[str, list[Effect]]:
        """Return why there is no replica: an unknown topic, a set without this node, or a deletion.

        The sender hears of a deletion before it hears our answer, so that it asks no other node again.
        """
        topic = self.context.catalogue.topics.get(partition.topic)
        if topic is not None and topic.deleted:
            return Code.NOT_FOUND, [Send(sender, m.PutTopic(0, topic))]
        if topic is not None and partition.number < topic.partitions:
            return Code.WRONG_EPOCH, self._newer(sender, topic, topic.layout is not None)
        return Code.UNKNOWN_TOPIC, []

    def _newer(self, sender: NodeId, topic: Topic, newer: bool) -> list[Effect]:
        """Return our register, for a sender whose layout is older than ours: it is sent before our refusal."""
        return [Send(sender, m.PutTopic(0, topic))] if newer else []

    def on_durable(self, last: int, now: Now) -> None:
        """Note that batch ``last`` is durable, and so are those of lower numbers: they are journaled in that order."""
        unwritten = self.context.state.unwritten
        while unwritten and (number := next(iter(unwritten))) <= last:
            partition = unwritten.pop(number)
            replica = self.context.replicas.get(partition) or self.context.sources.get(partition)
            if replica is not None:
                replica.storing.on_durable(number, now)
