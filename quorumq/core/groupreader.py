"""Reading as a group takes that the group is known: its register has to be at a majority of each replica set first."""

from __future__ import annotations

from quorumq.core import limits
from quorumq.core.context import Context
from quorumq.core.coordinator import Coordinator
from quorumq.core.deadnames import DEAD_SUFFIX
from quorumq.core.effects import Effect
from quorumq.core.errors import Code
from quorumq.core.messages import Failed, Fetch, PutReply
from quorumq.core.rounds import Round, majority_of
from quorumq.core.types import Group, Incarnation, NodeId, Now, PartitionId, Topic


class GroupReader(Coordinator):
    """A coordinator that reads partitions as a group.

    Args:
        request: names the group, and where it begins if it has to be made.
        partitions: those that it reads.
        now: when it came.

    Attributes:
        register_name: the group whose register is needed: of a dead-letter group, its source.
        unregistered: too few replicas can vouch to have it registered now.
        told: the answer says that suspects wait.
    """

    __slots__ = (
        "group_rounds", "park_until", "partitions", "places", "register_name", "request", "told", "unregistered",
        "won_bytes", "won_messages",
    )  # fmt: skip

    def __init__(self, key: int, request: Fetch, partitions: tuple[PartitionId, ...], now: Now) -> None:
        super().__init__(key)
        self.request = request
        self.partitions = partitions
        self.places = frozenset(partitions)  # to look one up
        self.park_until = now.mono + min(request.max_wait, request.hold_time / 10)
        self.register_name = request.group.removesuffix(DEAD_SUFFIX)
        self.unregistered = False
        self.told = False
        self.won_messages = 0
        self.won_bytes = 0
        # Round number -> topic id, and whether it only asks.
        self.group_rounds: dict[int, tuple[bytes, bool]] = {}

    @property
    def cost(self) -> int:
        return len(self.partitions)

    def concerns(self, topic: bytes) -> bool:
        return any(partition.topic == topic for partition in self.partitions)

    def on_deleted(self, context: Context, topic: Topic, now: Now) -> list[Effect]:
        return self.leave(context, topic, Failed(Code.NOT_FOUND, f"topic {topic.name!r} was deleted"), now)

    def reads(self, topic: bytes, group: str) -> bool:
        return self.register_name == group and self.concerns(topic)

    def on_group_deleted(self, context: Context, topic: Topic, now: Now) -> list[Effect]:
        return self.leave(context, topic, context.catalogue.no_group(topic.name, self.register_name), now)

    def leave(self, context: Context, topic: Topic, why: Failed, now: Now) -> list[Effect]:
        """There is nothing more of ``topic``: answer with what is won in others; where nothing can be, say why."""
        raise NotImplementedError

    def advance(self, context: Context, now: Now) -> list[Effect]:
        """Go on: the group is registered, or cannot be."""
        raise NotImplementedError

    def unsettled(self, context: Context) -> list[PartitionId]:
        """Where it is not known that a majority of the replica set has the group's register."""
        settled, name = context.catalogue.settled_groups, self.register_name
        return [partition for partition in self.partitions if (partition, name) not in settled]

    def register(self, context: Context, new: list[PartitionId], now: Now) -> list[Effect]:
        """A group is read in a partition once a majority of its replica set has the group's register.

        It is registered in so many topics at a time: in the others when they have it (`on_registered`).
        Where a group is to begin with what is published from now on, and it is not known here, the others are asked
        first: one that exists is not rewound by a FETCH.
        """
        effects: list[Effect] = []
        for topic in [*dict.fromkeys(partition.topic for partition in new)][: limits.GROUPS_MADE_PER_STEP]:
            known = (topic, self.register_name) in context.catalogue.groups
            effects += self._put(context, topic, self.request.start == "latest" and not known, now)
        return effects

    def _put(self, context: Context, topic: bytes, ask: bool, now: Now) -> list[Effect]:
        group = context.catalogue.groups.get((topic, self.register_name)) or Group(
            topic, self.register_name, 0, 0
        )
        this, effects = self.put_group(context, group, now, ask=ask)
        self.group_rounds[this.number] = (topic, ask)
        return effects

    def on_registered(
        self, context: Context, sender: NodeId, incarnation: Incarnation, message: PutReply, now: Now
    ) -> list[Effect]:
        """A node has the register now, or says what it has."""
        this = self.rounds[message.round]
        topic, ask = self.group_rounds[message.round]
        effects = context.take_in_group(message.group, now) if message.group is not None else []
        if message.round not in self.group_rounds:  # it is deleted, the answer says
            return effects
        this.hear(sender, incarnation)
        partitions = [partition for partition in self.partitions if partition.topic == topic]
        sets = dict.fromkeys([context.catalogue.members_of(partition) for partition in partitions])
        if not this.is_majority_of_each(this.valid(context.state), sets):
            return effects
        self.close_round(context, message.round)
        del self.group_rounds[message.round]
        if ask:
            if not context.catalogue.reads(topic, self.register_name):
                group = context.next_generation(Group(topic, self.register_name, 0, 0), now.wall_ms, now)
                if group is None:
                    return effects + self.refuse_unstamped(context)
                effects += context.take_in_group(group, now)
            return effects + self._put(context, topic, False, now)
        for partition in partitions:
            context.catalogue.settled_groups[(partition, self.register_name)] = None
        left = self.unsettled(context) if not self.group_rounds else []
        if not left and self.cost > limits.CHEAP:  # as many may wait for this answer
            context.state.at(now.mono, ("advance", self.key))
            return effects
        return effects + (self.register(context, left, now) if left else self.advance(context, now))

    def on_cannot_vouch(self, context: Context, number: int, sender: NodeId, now: Now) -> list[Effect]:
        """Where no majority can register the group now, nobody can deliver either: there is nothing to be had."""
        this = self.rounds[number]
        topic, _ = self.group_rounds[number]
        this.unasked |= this.bits_of([sender])
        left = this.bits_of([context.state.me, *context.state.links]) & ~this.unasked
        sets = [context.catalogue.members_of(found) for found in self.partitions if found.topic == topic]
        if this.is_majority_of_each(left, sets):
            return []
        self.close_round(context, number)
        del self.group_rounds[number]
        self.unregistered = True
        return self.advance(context, now)

    def refuse_unregistered(self, context: Context, this: Round) -> list[Effect]:
        """Too few have answered in time."""
        needed = max(
            majority_of(len(context.catalogue.members_of(partition))) for partition in self.partitions
        )
        detail = f"group {self.request.group!r} could not be registered through {context.state.me}: ask another node"
        return self.fail(context, Code.TOO_FEW_REPLICAS, detail, needed, len(this.heard))
