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
from quorumq.core.requests.context import Context, Pending
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

TOGETHER_MAX = 64
"""Partitions that are changed in one layout."""

SOURCES_MAX = 8
"""Sources of one partition. More of them say that earlier moves do not end: their payload is not copied."""


class LayoutCoordinator(TopicCoordinator):
    """One change of a topic's layout: chosen, announced, adopted by a majority of the nodes.

    Why several partitions in one: a layout has all placements of its topic, so that a layout for each partition costs
    its square.

    Args:
        topic: the register as this node has it.
        partition: number of the partition to change.

    Attributes:
        turn: stands for all layouts of the topic. One request of a node at a time makes one.
        until: time at which it stops to wait for its turn, and to propose again (monotonic seconds).
        placements: placements to propose, by partition.
        joined: waiting requests whose partitions are changed in the same layout, by partition.
        asked: partitions whose slots are asked, by the number of the round.
        answered: slots that said that they are trusted, as bits of the round, by its number.
        needed: nodes whose slots have to be trusted before the next proposal, by the number of the round.
    """

    __slots__ = (
        "answered", "asked", "joined", "needed", "partition", "placements", "proposer", "turn", "until",
    )  # fmt: skip

    def __init__(self, key: int, topic: Topic, partition: int) -> None:
        super().__init__(key, topic.name)
        self.topic = topic
        self.partition = partition
        self.turn = Instance(topic.id, "", 0)
        self.until = 0.0
        self.proposer: Proposer | None = None
        self.placements: dict[int, Placement] = {}
        self.joined: dict[int, MoveCoordinator] = {}
        self.asked: dict[int, int] = {}
        self.answered: dict[int, int] = {}
        self.needed: dict[int, tuple[NodeId, ...]] = {}

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
        holder = context.proposing.setdefault(self.turn, self.key)
        if holder != self.key:
            if now.mono >= self.until:
                return self.give_up(context)
            self.step = "turn"
            context.state.at(now.mono + TURN_S, ("again", self.key))
            return self.join(context, context.requests[holder], now)
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

    def join(self, context: Context, holder: Pending, now: Now) -> list[Effect]:
        """Have the change made in the layout of the request whose turn it is, if that one takes it along."""
        return []

    def check_slots(self, context: Context, topic: Topic, placement: Placement, now: Now) -> list[Effect]:
        """Ask if every slot is trusted in the present set, before the next set is proposed.

        Why: a new slot learns promises from the set before. A slot of it that was never trusted knows none, so that one
        lost disk would leave too few. Only a node that leaves and is silent is passed over: it may be gone for good.
        """
        self.step = "slots"
        self.asked, self.answered, self.needed = {}, {}, {}
        return [effect for each in self.placements.values() for effect in self.ask_slots(context, each, now)]

    def ask_slots(self, context: Context, placement: Placement, now: Now) -> list[Effect]:
        """Ask every slot of a partition; if slots are to be added, also if the learners have the payload."""
        topic, partition = self.topic, PartitionId(self.topic.id, placement.partition)
        nodes = topic.replicas[placement.partition]
        round_ = self.open_round(context, nodes, now, LEAVER_WAIT * context.config.request_timeout)
        self.asked[round_.number], self.answered[round_.number] = placement.partition, 0
        staying = self.staying(placement)
        silent = [node for node in nodes if node not in staying and context.peers.is_silent(node, now)]
        self.needed[round_.number] = staying if silent else nodes
        copied = len(placement.nodes) > len(nodes)
        question = m.SlotRequest(round_.number, partition, topic.epoch_of(placement.partition), copied)
        return self.ask(context, round_, partition, question, now)

    def staying(self, placement: Placement) -> tuple[NodeId, ...]:
        """Return the nodes of a partition's present set that stay; all of them if none does."""
        nodes = self.topic.replicas[placement.partition]
        return tuple(node for node in nodes if node in placement.nodes) or nodes

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
        """Return the layout after the adopted one, with these partitions changed."""
        topic, number = self.topic, self.topic.layout_number + 1
        before, rf = (topic.layout.placements, topic.layout.rf) if topic.layout is not None else ((), 0)
        placements = {each.partition: each for each in before}
        for at, placement in self.placements.items():
            other = self.joined.get(at, self)
            if not other.done:  # else it was answered that nothing was done
                other.proposer = self.proposer
                placements[at] = numbered(topic, placement, number)
        return Layout(topic.id, number, ballot, tuple(placements[at] for at in sorted(placements)), rf)

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
        """Count a slot that is trusted. Propose once all are."""
        if message.error:
            return self.drop_partition(context, message.round, f"{sender} says {message.error}", now)
        self.answered[message.round] |= self.rounds[message.round].hear(sender, incarnation)
        return self.propose_answered(context, now)

    def drop_partition(self, context: Context, number: int, why: str, now: Now) -> list[Effect]:
        """Propose nothing for the partition of a round."""
        self.close_round(context, number)
        partition = self.asked.pop(number)
        del self.placements[partition]
        effects = self.refuse_partition(context, partition, why)
        return effects if self.done else effects + self.propose_answered(context, now)

    def refuse_partition(self, context: Context, partition: int, why: str) -> list[Effect]:
        """Answer the request that wants a partition changed, if one does."""
        other = self.joined.pop(partition, self)
        return [] if other.done else other.refuse_slots(context, why)

    def propose_answered(self, context: Context, now: Now) -> list[Effect]:
        """Propose the layout once every slot that is needed is trusted, of each partition."""
        rounds = [(self.rounds[number], self.needed[number]) for number in self.asked]
        if all(self.may_propose(context, round_, nodes) for round_, nodes in rounds):
            return self.propose(context, self.topic, now)
        return []

    def may_propose(self, context: Context, round_: Round, nodes: tuple[NodeId, ...]) -> bool:
        """Return True if the slots of these nodes are trusted, as each has said."""
        return not round_.bits_of(nodes) & ~(self.answered[round_.number] & round_.valid(context.state))

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
            made = [each for each in self.joined.values() if not each.done and each.is_done(merged)]
            answers = [each.finish(context, m.TopicReply(merged)) for each in (self, *made)]
            return [effect for answer in answers for effect in answer]
        if not merged.deleted and merged.layout_known == self.topic.layout_known:  # else others are ahead
            merged = with_layout(merged, self.topic.next_layout)._replace(next_layout=None)
        effects = merging.take_in_topic(context, merged, now)  # a deletion ends this request
        return effects + ([] if self.done else self.start(context, now))

    def on_moved(self, context: Context, moved: tuple[PartitionId, ...], now: Now) -> list[Effect]:
        concerned = self.rounds and any(self.concerns(each.topic) for each in moved)
        if self.step != "slots" or not concerned or self.done:
            return []
        self.close_rounds(context)
        context.state.at(now.mono, ("again", self.key))
        return []

    def on_timeout(self, context: Context, number: int, now: Now) -> list[Effect]:
        if self.step != "slots":
            return super().on_timeout(context, number, now)
        round_: Round = self.rounds[number]
        nodes = self.needed[number] = self.staying(self.placements[self.asked[number]])
        if self.may_propose(context, round_, nodes):
            return self.propose_answered(context, now)
        silent = [node for node in nodes if node not in round_.answered_by]
        return self.drop_partition(context, number, f"{', '.join(silent)} did not answer", now)


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
    """MOVE: one slot of a partition goes from one node to another. Asked again, it answers the same.

    Attributes:
        joins_until: time until which other requests may be taken along (monotonic seconds).
    """

    __slots__ = ("joins_until", "request")

    def __init__(self, key: int, request: m.MovePartition, topic: Topic) -> None:
        super().__init__(key, topic, request.partition)
        self.request = request
        self.joins_until = 0.0

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

    def check_slots(self, context: Context, topic: Topic, placement: Placement, now: Now) -> list[Effect]:
        """Ask the slots of this partition, and of those of the requests that wait for their turn."""
        self.placements, self.joined = {self.partition: placement}, {}
        self.joins_until = now.mono + LEAVER_WAIT * context.config.request_timeout / 2
        effects = super().check_slots(context, topic, placement, now)
        for each in context.requests.values():
            if isinstance(each, MoveCoordinator) and each.turn == self.turn and each.step == "turn":
                effects += self.take_along(context, each, now)
        return effects

    def join(self, context: Context, holder: Pending, now: Now) -> list[Effect]:
        if not isinstance(holder, MoveCoordinator) or holder.step != "slots":
            return []
        return holder.take_along(context, self, now)

    def take_along(self, context: Context, other: MoveCoordinator, now: Now) -> list[Effect]:
        """Have a waiting request's partition changed in the same layout, if that is not too late, and can be."""
        is_new = other.partition >= len(self.topic.replicas)  # partitions were added since its turn began
        if is_new or now.mono > self.joins_until or len(self.placements) >= TOGETHER_MAX:
            return []
        placement = other.change(self.topic)
        unwanted = (
            other.is_done(self.topic) or other.is_late(self.topic) or other.partition in self.placements
        )
        if unwanted or isinstance(placement, str):
            return []
        self.placements[other.partition], self.joined[other.partition] = placement, other
        return self.ask_slots(context, placement, now)


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
