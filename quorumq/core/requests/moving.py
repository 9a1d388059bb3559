"""Moves of partitions: the next layout of a topic is chosen, announced to a majority of the nodes, then adopted.

A layout is one value that wins whole. It is built on the one before, which this node has adopted, and chosen as any
first register is (core/requests/proposing.py). No node adopts it before a majority of the nodes has it durably as
chosen: a node that learns the registers anew hears of it then (docs/layouts.md, LAYOUTS).
"""

from __future__ import annotations

from quorumq.core import messages as m
from quorumq.core.cluster.raising import present_placement
from quorumq.core.cluster.rounds import Round
from quorumq.core.cluster.topics import check_move, with_layout
from quorumq.core.messages.effects import Effect
from quorumq.core.requests import merging
from quorumq.core.requests.context import Context
from quorumq.core.requests.promising import overtaken
from quorumq.core.requests.proposing import PROPOSALS_MAX, TURN_S, Proposer
from quorumq.core.requests.registers import TopicCoordinator
from quorumq.core.values.errors import Code
from quorumq.core.values.types import (
    Incarnation,
    Instance,
    Kind,
    Layout,
    NodeId,
    Now,
    PartitionId,
    Placement,
    ReplicaSlot,
    Stamp,
    Topic,
)

LEAVER_WAIT = 0.5
"""Share of a request's time in which a node that leaves may say that its slot is trusted."""

SOURCES_MAX = 8
"""Sources of one partition. More of them say that earlier moves do not end: their payload is not copied."""


class LayoutCoordinator(TopicCoordinator):
    """One change of a topic's layout: chosen, announced, adopted by a majority of the nodes.

    Args:
        topic: the register as this node has it.
        partition: number of the partition to change.

    Attributes:
        turn: stands for all layouts of the topic. One request of a node at a time makes one.
        until: time at which it stops to wait for its turn, and to propose again (monotonic seconds).
    """

    __slots__ = ("partition", "proposer", "required", "turn", "until")

    def __init__(self, key: int, topic: Topic, partition: int) -> None:
        super().__init__(key, topic.name)
        self.topic = topic
        self.partition = partition
        self.turn = Instance(topic.id, "", 0)
        self.until = 0.0
        self.proposer: Proposer | None = None
        self.required: tuple[
            NodeId, ...
        ] = ()  # nodes whose slots have to be trusted before the next proposal

    def concerns(self, topic: bytes) -> bool:
        return self.topic.id == topic

    def on_deleted(self, context: Context, topic: Topic, now: Now) -> list[Effect]:
        return self.on_replaced(context, now)

    # -------------------------------------------------------------------------- the change

    def is_done(self, topic: Topic) -> bool:
        """Return True if the adopted layout is as the request wants it."""
        raise NotImplementedError

    def is_late(self, topic: Topic) -> bool:
        """Return True if the layout was changed since the client looked, in a way that the request would undo."""
        return False

    def change(self, topic: Topic) -> Placement | str:
        """Return the partition's next placement, but for its epoch and slots' since; or why there is none."""
        raise NotImplementedError

    # ------------------------------------------------------------------------------- the steps

    def start(self, context: Context, now: Now) -> list[Effect]:
        """Do the next step, by the register here. A change that another node began is finished first.

        Why in turns: all requests of a node would compete in each instance, with several times the rounds.
        """
        self.close_rounds(context)
        self.until = self.until or now.mono + context.config.request_timeout
        topic = self.topic = context.catalogue.topics[self.topic.id]
        if topic.deleted:
            return self.on_replaced(context, now)
        if context.proposing.setdefault(self.turn, self.key) != self.key:
            if now.mono >= self.until:
                return self.give_up(context)
            self.step = "turn"
            context.state.at(now.mono + TURN_S, ("again", self.key))
            return []
        if topic.next_layout is not None:
            return self.write(context, "announce", topic, now)
        if self.is_done(topic):
            return self.write(context, "confirm", topic, now)
        is_late, placement = self.is_late(topic), self.change(topic)
        if is_late or isinstance(placement, str):
            problem = m.Failed(Code.CONFLICT, str(placement))
            return self.refuse(context, overtaken(f"topic {self.name!r}") if is_late else problem)
        if now.mono >= self.until:
            return self.give_up(context)
        return self.check_slots(context, topic, placement, now)

    def refuse(self, context: Context, refusal: m.Failed) -> list[Effect]:
        """Refuse; if our own layout may have been chosen, the outcome is unknown."""
        if self.proposer is not None and not self.proposer.has_lost(self.topic.layout):
            return super().give_up(context)
        return self.finish(context, refusal)

    def give_up(self, context: Context) -> list[Effect]:
        """Answer that others change the layout all the time. Nothing was done, unless it was proposed."""
        detail = f"topic {self.name!r} gets layouts by other requests all the time: try again"
        return self.refuse(context, m.Failed(Code.TOO_FEW_REPLICAS, detail))

    def finish(self, context: Context, reply: m.ClientReply | None) -> list[Effect]:
        if context.proposing.get(self.turn) == self.key:
            del context.proposing[self.turn]
        return super().finish(context, reply)

    def check_slots(self, context: Context, topic: Topic, placement: Placement, now: Now) -> list[Effect]:
        """Ask if every slot is trusted in the present set, before the next set is proposed.

        Why: a new slot learns promises from the set before. A slot of it that was never trusted knows none, so that one
        lost disk would leave too few. Only a node that leaves and is silent is passed over: it may be gone for good.
        """
        self.step = "slots"
        self.stored = 0
        nodes = topic.replicas[self.partition]
        self.required = tuple(node for node in nodes if node in placement.nodes) or nodes
        wait = LEAVER_WAIT * context.config.request_timeout
        round_ = self.open_round(context, nodes, now, wait)
        partition = PartitionId(topic.id, self.partition)
        return self.ask(
            context,
            round_,
            partition,
            m.SlotRequest(round_.number, partition, topic.epoch_of(self.partition)),
            now,
        )

    def propose(self, context: Context, topic: Topic, now: Now) -> list[Effect]:
        self.close_rounds(context)
        self.step = "propose"
        instance = Instance(topic.id, "", topic.layout_number + 1)
        if self.proposer is None or self.proposer.instance != instance:
            self.proposer = Proposer(instance)
        if self.proposer.proposals >= PROPOSALS_MAX:
            return self.give_up(context)
        return self.proposer.propose(self, context, now)

    def own_value(self, context: Context, ballot: Stamp) -> Layout:
        """Return the layout after the adopted one, with this partition as the request wants it."""
        topic, number = self.topic, self.topic.layout_number + 1
        placement = self.change(topic)
        assert isinstance(placement, Placement)
        before, rf = (topic.layout.placements, topic.layout.rf) if topic.layout is not None else ((), 0)
        next_placement = numbered(topic, placement, number)
        others = [each for each in before if each.partition != self.partition]
        return Layout(topic.id, number, ballot, tuple(sorted([*others, next_placement])), rf)

    def on_reply(
        self, context: Context, sender: NodeId, incarnation: Incarnation, message: m.PeerMessage, now: Now
    ) -> list[Effect]:
        if isinstance(message, m.ProposalReply):
            assert self.proposer is not None
            return self.proposer.on_reply(self, context, sender, incarnation, message, now)
        if isinstance(message, m.SlotReply):
            context.state.learn_vector(self.rounds[message.round].members, message.known)
            if message.error == Code.WRONG_EPOCH and (message.round, sender) not in self.taught:
                return self.teach(context, message.round, sender)
            return self.on_slot(context, sender, incarnation, message, now)
        return super().on_reply(context, sender, incarnation, message, now)

    def on_slot(
        self, context: Context, sender: NodeId, incarnation: Incarnation, message: m.SlotReply, now: Now
    ) -> list[Effect]:
        """Count a slot that is trusted. Go on once all are, or refuse."""
        round_ = self.rounds[message.round]
        if message.error:
            return self.refuse_slots(context, f"{sender} says {message.error}")
        self.stored |= round_.hear(sender, incarnation)
        return (
            self.propose(context, self.topic, now)
            if self.may_propose(context, round_, round_.members)
            else []
        )

    def may_propose(self, context: Context, round_: Round, nodes: tuple[NodeId, ...]) -> bool:
        """Return True if the slots of these nodes are trusted, as each has said."""
        return not round_.bits_of(nodes) & ~(self.stored & round_.valid(context.state))

    def refuse_slots(self, context: Context, why: str) -> list[Effect]:
        """Answer that the partition's last move is not over, or a slot is away."""
        detail = (
            f"partition {self.partition} of topic {self.name!r} cannot be moved now: every slot that stays has to be "
            f"up and to know the promises of its slot ({why}); try again"
        )
        members = len(self.topic.replicas[self.partition])
        return self.refuse(context, m.Failed(Code.TOO_FEW_REPLICAS, detail, members))

    def on_written(self, context: Context, now: Now) -> list[Effect]:
        """Adopt a layout that a majority of the nodes has as chosen; answer once a majority has adopted it."""
        merged = self.merged
        if self.step != "announce" and not merged.deleted:
            return self.finish(context, m.TopicReply(merged))
        if not merged.deleted and merged.layout_known == self.topic.layout_known:  # else others are ahead
            merged = with_layout(merged, self.topic.next_layout)._replace(next_layout=None)
        effects = merging.take_in_topic(context, merged, now)  # a deletion ends this request
        return effects + ([] if self.done else self.start(context, now))

    def on_moved(self, context: Context, moved: tuple[PartitionId, ...], now: Now) -> list[Effect]:
        if self.step != "slots" or not self.rounds or not any(self.concerns(each.topic) for each in moved):
            return []
        self.close_rounds(context)
        context.state.at(now.mono, ("again", self.key))
        return []

    def on_timeout(self, context: Context, number: int, now: Now) -> list[Effect]:
        if self.step == "slots":
            round_: Round = self.rounds[number]
            if self.may_propose(context, round_, self.required):
                return self.propose(context, self.topic, now)
            silent = [node for node in self.required if node not in round_.answered_by]
            return self.refuse_slots(context, f"{', '.join(silent)} did not answer")
        return super().on_timeout(context, number, now)


def numbered(topic: Topic, placement: Placement, number: int) -> Placement:
    """Return a placement of layout ``number``: slots that stay keep the layout since which their node has them.

    If the set changes, it also gets the set before, which is the present one.
    """
    present = present_placement(topic, placement.partition)
    if placement.nodes == present.nodes:
        return placement._replace(epoch=present.epoch, slots=present.slots)
    since = dict(present.slots)
    slots = tuple(ReplicaSlot(node, since.get(node, number)) for node in placement.nodes)
    return placement._replace(epoch=number, slots=slots, before=present.slots)


class MoveCoordinator(LayoutCoordinator):
    """MOVE: one slot of a partition goes from one node to another. Asked again, it answers the same."""

    __slots__ = ("request",)

    def __init__(self, key: int, request: m.MovePartition, topic: Topic) -> None:
        super().__init__(key, topic, request.partition)
        self.request = request

    def is_done(self, topic: Topic) -> bool:
        nodes = topic.replicas[self.partition]
        return self.request.to in nodes and self.request.source not in nodes

    def is_late(self, topic: Topic) -> bool:
        return self.request.epoch is not None and topic.epoch_of(self.partition) > self.request.epoch

    def change(self, topic: Topic) -> Placement | str:
        request, nodes = self.request, topic.replicas[self.partition]
        if request.source not in nodes or request.to in nodes:
            return (
                f"partition {self.partition} of topic {self.name!r} is on {', '.join(nodes)} by now: it has no slot to "
                f"move from {request.source} to {request.to}"
            )
        old = topic.placement(self.partition)
        sources = [node for node in (old.sources if old is not None else ()) if node != request.to]
        if len(sources) >= SOURCES_MAX:
            return (
                f"partition {self.partition} of topic {self.name!r} was moved {len(sources)} times, and its payload "
                f"was not copied yet: {', '.join(sources)} still keep it. Have every slot of it run"
            )
        slots = tuple(ReplicaSlot(request.to if node == request.source else node, 0) for node in nodes)
        learners = tuple(node for node in topic.learners_of(self.partition) if node != request.to)
        return Placement(self.partition, 0, slots, (), (*sources, request.source), learners)


class GiveUpCoordinator(MoveCoordinator):
    """MOVE to no node: one that left, and is dead for good, is a source no longer. What it alone had is given up."""

    __slots__ = ()

    def is_done(self, topic: Topic) -> bool:
        return not is_source(topic, self.partition, self.request.source)

    def change(self, topic: Topic) -> Placement | str:
        return without_source(topic, self.partition, self.request.source)


def begin_move(context: Context, key: int, request: m.MovePartition) -> MoveCoordinator | m.ClientReply:
    """Return the coordinator of a MOVE, or the answer if it is a dry run, or the new node is away or not trusted.

    Raises:
        RequestRefused: it cannot be.
    """
    context.catalogue.partition_named(request.name, request.partition)
    topic, cluster, state = context.catalogue.named(request.name), context.catalogue.cluster, context.state
    members, there = topic.replicas[request.partition], (*state.links, state.me)
    if request.source not in cluster.names:
        problem = f"from is {request.source!r}: there never was such a node; {', '.join(cluster.present)} are members"
    elif not request.to:
        problem = check_giving_up(request, topic, there)
    else:
        problem = check_move(request, topic, cluster.joined, cluster.machines)
    m.refuse_if(problem)
    if request.to and request.to not in (*members, *there):
        detail = (
            f"node {request.to!r} cannot be reached from {state.me}, and a replica that moves there would be away: "
            "start it, then try again"
        )
        return m.Failed(Code.TOO_FEW_REPLICAS, detail, len(members))
    if request.to not in members and not context.peers.is_trusted(request.to):
        # The slot would not vote, and no later MOVE of the partition could be made.
        detail = (
            f"node {request.to!r} is not trusted yet, and a replica that moves there would not vote: try again once "
            "`quorumq status` shows that it is, or move the partition to another node"
        )
        return m.Failed(Code.TOO_FEW_REPLICAS, detail, len(members))
    has_payload = request.to in members or is_source(topic, request.partition, request.to)
    full = "" if has_payload or not request.to else context.peers.full(request.to)
    if full:
        detail = f"to is {request.to!r}: {full}; or move the partition to another node"
        m.refuse_if(detail, Code.STORAGE_FULL)
    if request.dry_run:
        return m.TopicReply(topic)
    m.refuse_if(state.no_capacity(Kind.OPEN), Code.STORAGE_FULL)
    return (MoveCoordinator if request.to else GiveUpCoordinator)(key, request, topic)


def check_giving_up(request: m.MovePartition, topic: Topic, there: tuple[NodeId, ...]) -> str:
    """Return why a source cannot be given up, or ""; ``there``: the nodes that are up, as far as this one knows."""
    where = f"partition {request.partition} of topic {topic.name!r}"
    if request.source in topic.replicas[request.partition]:
        return f"node {request.source!r} has a replica of {where}: move that first"
    if request.source in there and is_source(topic, request.partition, request.source):
        return f"node {request.source!r} is up, and gives {where} to the others: it keeps nothing once they have all"
    return ""


def is_source(topic: Topic, partition: int, node: NodeId) -> bool:
    """Return True if a node left a partition, and keeps its payload."""
    placement = topic.placement(partition)
    return placement is not None and node in placement.sources


def without_source(topic: Topic, partition: int, node: NodeId) -> Placement:
    """Return a partition's placement without one of its sources. The set before goes with the last of them."""
    placement = topic.placement(partition)
    assert placement is not None
    sources = tuple(each for each in placement.sources if each != node)
    return placement._replace(sources=sources, before=placement.before if sources else ())
