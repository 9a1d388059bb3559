"""Creating and rewinding groups.

A rewind is a write to a register: a new generation with a start predicate, on a majority of every partition's replica
set. From then on no delivery of the old generation can be won: any HOLD majority meets a replica that refuses it as
stale. Nothing is swept: what older generations recorded is void where the new one covers the message
(core/partition/group.py).
"""

from __future__ import annotations

from quorumq.core import messages as m
from quorumq.core.context import Context
from quorumq.core.coordinator import Coordinator
from quorumq.core.effects import Effect
from quorumq.core.errors import Code
from quorumq.core.topics import all_sets
from quorumq.core.types import (
    Group,
    Incarnation,
    NodeId,
    Now,
    PartitionId,
    Topic,
)

STAMPS_MAX = 8
"""How often a rewind is stamped again above another one's before the caller is told to try later."""


class GroupCoordinator(Coordinator):
    """Create a group, or rewind it.

    First it is asked what is known, by a majority: a group that is there is rewound only if that is what was asked.
    Then the register is written to a majority of the nodes, and of the replica set of every partition, those included
    that are only proposed; and after that it is asked for partitions that were proposed meanwhile. A rewind that meets
    a newer generation is stamped again above it and repeated, so of two at once each has been the newest, and the one
    with the last stamp stays (docs/protocol.md, "settings", MORE PARTITIONS). One that was deleted is created anew, in
    a generation above all before; it is never rewound.
    """

    __slots__ = ("asking", "request", "stamps", "topic", "wanted", "written")

    request: m.SetGroup | m.DeleteGroup

    def __init__(self, key: int, request: m.SetGroup | m.DeleteGroup, topic: bytes) -> None:
        super().__init__(key)
        self.request = request
        self.topic = topic
        self.asking = True
        self.stamps = 0
        self.wanted = Group(topic, request.group, 0, 0)
        self.written = 0  # to so many partitions

    def concerns(self, topic: bytes) -> bool:
        return self.topic == topic

    def start(self, context: Context, now: Now) -> list[Effect]:
        return self._put(context, self.wanted, now)

    def _put(self, context: Context, wanted: Group, now: Now) -> list[Effect]:
        self.wanted = wanted
        _, effects = self.put_group(context, wanted, now, ask=self.asking)
        return effects

    def on_reply(
        self, context: Context, sender: NodeId, incarnation: Incarnation, message: m.PeerMessage, now: Now
    ) -> list[Effect]:
        assert isinstance(message, m.PutReply | m.RegistersReply)
        this = self.rounds[message.round]
        if isinstance(message, m.RegistersReply):
            effects, _ = self.take_in(context, sender, incarnation, message, now)
            if self.done or not this.is_read(this.valid(context.state)):
                return effects
            self.close_round(context, this.number)
            topic = context.catalogue.topics[self.topic]
            if topic.all_partitions > self.written:  # more were proposed before the register was written
                return effects + self._put(context, self.wanted, now)
            return effects + self.on_written(context, topic)
        effects = context.take_in_group(message.group, now) if message.group is not None else []
        this.hear(sender, incarnation)
        topic = context.catalogue.topics[self.topic]
        heard = this.valid(context.state)
        sets = all_sets(topic, context.config.nodes, context.config.machines)
        if not (this.is_majority(heard) and this.is_majority_of_each(heard, sets)):
            return effects
        self.close_round(context, this.number)
        known = context.catalogue.groups.get((self.topic, self.request.group))
        if not self.asking and known is not None and self.is_written(known):
            self.written = topic.all_partitions
            return effects + self.read_register(context, self.topic, now)
        self.asking = False
        return effects + self.write(context, known, now)

    def is_written(self, known: Group) -> bool:
        """Whether ``known``, which a majority has, is what was to be written."""
        return known == self.wanted

    def on_written(self, context: Context, topic: Topic) -> list[Effect]:
        """The register is at a majority of every partition's replica set."""
        for number in range(topic.partitions):
            context.catalogue.settled_groups[(PartitionId(self.topic, number), self.request.group)] = None
        return self.finish(context, m.SetGroupReply(self.wanted))

    def write(self, context: Context, known: Group | None, now: Now) -> list[Effect]:
        """A majority of every partition's replicas was asked, and this is ``known``.

        Write that where it is all that is asked for, else a generation above it.
        """
        request = self.request
        assert isinstance(request, m.SetGroup)
        if known is not None and not known.deleted and not request.rewind:
            return self._put(context, known, now)
        if request.rewind and (known is None or known.deleted):
            return self.finish(context, context.catalogue.no_group(request.topic, request.group))
        if known is None and request.start == "earliest":
            return self._put(context, self.wanted, now)
        from_ms = {"earliest": 0, "latest": now.wall_ms, "time": request.from_ms}[request.start]
        return self._put_next(context, known or self.wanted, from_ms, now)

    def _put_next(self, context: Context, known: Group, from_ms: int, now: Now) -> list[Effect]:
        """Write a generation above ``known``."""
        self.stamps += 1
        if self.stamps > STAMPS_MAX:
            detail = f"group {self.request.group!r} is being changed by others all the time: try again"
            return self.fail(context, Code.OUTCOME_UNKNOWN, detail, 1)
        wanted = context.next_generation(known, from_ms, now)
        if wanted is None:
            return self.refuse_unstamped(context)
        wanted = self.marked(known, wanted)
        return [*context.take_in_group(wanted, now), *self._put(context, wanted, now)]

    def marked(self, known: Group, wanted: Group) -> Group:
        """``wanted``, above ``known``, as what it is: made anew, where that was deleted, and all of that void."""
        return wanted._replace(made=wanted.generation, buried=known.generation) if known.deleted else wanted

    def on_timeout(self, context: Context, number: int, now: Now) -> list[Effect]:
        this = self.rounds[number]
        code = Code.NOT_STORED if self.asking else Code.OUTCOME_UNKNOWN
        detail = f"group {self.request.group!r}: too few replicas of its topic answered: ask again, through any node"
        return self.fail(context, code, detail, this.majority, len(this.heard))


class DeleteGroupCoordinator(GroupCoordinator):
    """Delete a group: a generation that nobody reads, and that makes all below it void.

    It is written as a rewind is. From then on any HOLD majority meets a replica that answers `NotFound`.
    """

    __slots__ = ()

    def is_written(self, known: Group) -> bool:
        return known.buried >= self.wanted.buried  # it may have been created again by now

    def on_written(self, context: Context, topic: Topic) -> list[Effect]:
        return self.finish(context, m.DeleteGroupReply(self.wanted))

    def write(self, context: Context, known: Group | None, now: Now) -> list[Effect]:
        if known is None:
            return self.finish(context, context.catalogue.no_group(self.request.topic, self.request.group))
        if known.deleted and known.buried == known.generation:
            return self._put(context, known, now)
        return self._put_next(context, known, 0, now)

    def marked(self, known: Group, wanted: Group) -> Group:
        return wanted._replace(buried=wanted.generation)
