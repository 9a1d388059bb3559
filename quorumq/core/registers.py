# quorumq/core/registers.py: creating, changing and deleting a topic: a register is written to a majority of the nodes.
#
# Why a file of its own: a register has many writers and no owner. What keeps operators from being told what is not so
# is that each answer is read before it is counted: an answer may bring a register that is newer than ours, or the news
# that the topic is gone. Then we write again, on top of what we heard, and answer only for what a majority has.
#
# Not promised: that what was written is still so when the client hears of it. The next writer may have come.
"""The coordinators of CREATE, ALTER and DELETE of a topic (docs/protocol.md, "settings")."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorumq.core.coordinator import Coordinator, too_few
from quorumq.core.effects import Effect, Send
from quorumq.core.messages import (
    AlterTopic,
    CreateTopic,
    DeleteTopic,
    Failed,
    PeerMessage,
    Put,
    PutTopic,
    TopicAltered,
    TopicCreated,
    TopicDeleted,
)
from quorumq.core.rounds import Round, majority_of
from quorumq.core.topics import alter, closed, difference, is_overtaken, make_topic, merge_topics, new_topic
from quorumq.core.types import STAMP_ZERO, Incarnation, NodeId, Now, Stamp, Topic

if TYPE_CHECKING:
    from quorumq.core.nodecore import NodeCore

WRITES_MAX = 8
"""How often a register is written again above what came from elsewhere, before the caller is told to try again."""


class TopicCoordinator(Coordinator):
    """What the three share: write a register to every node, and hear what they have instead.

    Args:
        key: the client's request.
        name: of the topic.
    """

    __slots__ = ("merged", "name", "stored", "topic", "writes")

    topic: Topic  # as written in this round
    merged: Topic  # with what the answers brought

    def __init__(self, key: int, name: str) -> None:
        super().__init__(key)
        self.name = name
        self.stored = 0
        self.writes = 0

    def write(self, core: NodeCore, topic: Topic, now: Now) -> list[Effect]:
        """A round of PutTopic; the one before, if any, does not count any more."""
        for number in list(self.rounds):
            self.close_round(core, number)
        self.writes += 1
        if self.writes > WRITES_MAX:
            detail = (
                f"topic {self.name!r} is being changed elsewhere at the same time: look at it, then try again"
            )
            return self.finish(
                core, too_few("outcome-unknown", detail, majority_of(len(core.config.nodes)), 0)
            )
        self.topic = self.merged = topic
        self.stored = 0
        this = self.open_round(core, core.config.nodes, now)
        return [Send(node, PutTopic(this.number, topic)) for node in core.config.nodes]

    def fresh_stamp(self, core: NodeCore, topic: Topic, now: Now) -> Stamp | None:
        """A stamp above those of ``topic``; None while the clock's reserve has to be raised for it."""
        core.state.clock.merge(topic.stamp.time)
        return core.state.clock.fresh(now)

    def on_reply(
        self, core: NodeCore, sender: NodeId, incarnation: Incarnation, message: PeerMessage, now: Now
    ) -> list[Effect]:
        assert isinstance(message, Put)
        this = self.rounds[message.round]
        if message.refused and message.refused != "deleted":
            return self.finish(core, Failed(message.refused, message.detail))
        self.stored |= this.hear(sender, incarnation)
        if message.refused:
            return self.on_replaced(core, this, now)
        if message.topic is not None:
            self.merged = merge_topics(self.merged, message.topic)
        return self.on_written(core, this, now) if self.is_enough(core, this) else []

    def is_enough(self, core: NodeCore, this: Round) -> bool:
        """Whether those who have it are a majority."""
        return this.is_majority(self.stored & this.valid(core.state))

    def on_written(self, core: NodeCore, this: Round, now: Now) -> list[Effect]:
        """A majority has ``merged``."""
        raise NotImplementedError

    def on_replaced(self, core: NodeCore, this: Round, now: Now) -> list[Effect]:
        """Somebody knows that the topic was deleted, and the name may have another one by now."""
        return self.finish(core, Failed("not-found", f"topic {self.name!r} was deleted"))

    def on_timeout(self, core: NodeCore, number: int, now: Now) -> list[Effect]:
        this = self.rounds[number]
        detail = f"topic {self.name!r}: it may have happened, or may yet happen: do it again"
        answered = (self.stored & this.valid(core.state)).bit_count()
        return self.finish(core, too_few("outcome-unknown", detail, this.majority, answered))


class CreateTopicCoordinator(TopicCoordinator):
    """CREATE. Two creations at once are one topic.

    First the register that all creations begin with is written: its answers say whether somebody has chosen settings
    for the name before. Only where nobody has are ours written.
    """

    __slots__ = ("request",)

    def __init__(self, key: int, request: CreateTopic) -> None:
        super().__init__(key, request.name)
        self.request = request

    def start(self, core: NodeCore, now: Now) -> list[Effect]:
        known = core.register_named(self.name)
        if known is None or known.deleted:
            deletions = known.deletions + 1 if known is not None else 0
            known = new_topic(self.name, self.request.rf, core.config.nodes, deletions)
        elif known.rf != self.request.rf and "rf" not in self.request.unnamed:
            return self.refuse(core, known)
        return self.write(core, known, now)

    def on_written(self, core: NodeCore, this: Round, now: Now) -> list[Effect]:
        merged = self.merged
        if merged.deleted:
            return core.take_in_topic(merged, now) + self.start(core, now)
        if merged.stamp != STAMP_ZERO:
            if not self.request.implicit and difference(self.request, merged):
                return self.refuse(core, merged)
            return self.finish(core, TopicCreated(merged))
        wanted = make_topic(self.request, core.config.nodes, merged)
        if wanted == merged:
            return self.finish(core, TopicCreated(merged))
        if self.request.implicit:
            return self.write(core, wanted, now)
        stamp = self.fresh_stamp(core, merged, now)
        if stamp is None:
            return self.refuse_unstamped(core)
        return self.write(core, wanted._replace(stamp=stamp), now)

    def on_replaced(self, core: NodeCore, this: Round, now: Now) -> list[Effect]:
        return self.start(core, now)

    def refuse(self, core: NodeCore, there: Topic) -> list[Effect]:
        detail = (
            f"topic {self.name!r} exists with {difference(self.request, there)}: use it as it is, change it "
            "(`quorumq topics set`), or choose another name"
        )
        return self.finish(core, Failed("conflict", detail))


class AlterTopicCoordinator(TopicCoordinator):
    """ALTER: the settings that the request names, on top of whatever the others are."""

    __slots__ = ("request", "stamp")

    def __init__(self, key: int, request: AlterTopic, topic: Topic) -> None:
        super().__init__(key, request.name)
        self.request = request
        self.topic = topic

    def start(self, core: NodeCore, now: Now) -> list[Effect]:
        return self.change(core, self.topic, now)

    def change(self, core: NodeCore, topic: Topic, now: Now) -> list[Effect]:
        """Write our settings on top of ``topic``."""
        stamp = self.fresh_stamp(core, topic, now)
        if stamp is None:
            return self.refuse_unstamped(core)
        self.stamp = stamp
        return self.write(core, alter(topic, self.request, core.config.nodes, stamp), now)

    def on_written(self, core: NodeCore, this: Round, now: Now) -> list[Effect]:
        merged = self.merged
        if merged.deleted:
            return core.take_in_topic(merged, now) + self.on_replaced(core, this, now)
        if is_overtaken(merged, self.request, self.stamp):
            return self.change(core, merged, now)
        return self.finish(core, TopicAltered(merged))


class DeleteTopicCoordinator(TopicCoordinator):
    """DELETE: known to a majority of the nodes, and of the replicas of each partition.

    The second is what makes the answer mean something: no STORE, HOLD or ACK finds a majority any more. Who has not
    heard refuses to take part as soon as it asks one of those who have.
    """

    __slots__ = ("replicas",)

    def __init__(self, key: int, request: DeleteTopic, topic: Topic) -> None:
        super().__init__(key, request.name)
        self.topic = closed(topic)
        self.replicas = tuple(dict.fromkeys(topic.replicas))

    def start(self, core: NodeCore, now: Now) -> list[Effect]:
        return self.write(core, self.topic, now)

    def is_enough(self, core: NodeCore, this: Round) -> bool:
        bits = self.stored & this.valid(core.state)
        return this.is_majority(bits) and this.is_majority_of_each(bits, self.replicas)

    def on_written(self, core: NodeCore, this: Round, now: Now) -> list[Effect]:
        return self.finish(core, TopicDeleted(self.topic))

    def on_replaced(self, core: NodeCore, this: Round, now: Now) -> list[Effect]:
        return self.on_written(core, this, now) if self.is_enough(core, this) else []
