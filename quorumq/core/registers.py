# quorumq/core/registers.py: changing and deleting a topic: a register is written to a majority of the nodes.
#
# Why a file of its own: a register has many writers and no owner. What keeps operators from being told what is not so
# is that each answer is read before it is counted: an answer may bring a register that is newer than ours, or the news
# that the topic is gone. Then we write again, on top of what we heard, and answer only for what a majority has.
#
# Not promised: that what was written is still so when the client hears of it. The next writer may have come.
"""The coordinators of ALTER and DELETE of a topic (docs/protocol.md, "settings"). CREATE is in core/creation.py."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorumq.core.coordinator import Coordinator, too_few
from quorumq.core.effects import Effect, Send
from quorumq.core.messages import (
    AlterTopic,
    DeleteTopic,
    Failed,
    PeerMessage,
    Put,
    PutTopic,
    TopicAltered,
    TopicDeleted,
)
from quorumq.core.rounds import Round, majority_of
from quorumq.core.topics import alter, closed, is_overtaken, merge_topics
from quorumq.core.types import Incarnation, NodeId, Now, Stamp, Topic

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

    def begin(self, core: NodeCore, now: Now) -> Round:
        """A round among all nodes; the one before, if any, does not count any more."""
        self.close_rounds(core)
        self.stored = 0
        return self.open_round(core, core.config.nodes, now)

    def is_crowded_out(self) -> bool:
        """Others have got in between too often."""
        self.writes += 1
        return self.writes > WRITES_MAX

    def give_up(self, core: NodeCore) -> list[Effect]:
        """The answer then."""
        detail = (
            f"topic {self.name!r} is being changed elsewhere at the same time: look at it, then try again"
        )
        return self.finish(core, too_few("outcome-unknown", detail, majority_of(len(core.config.nodes)), 0))

    def write(self, core: NodeCore, topic: Topic, now: Now) -> list[Effect]:
        """A round of PutTopic."""
        if self.is_crowded_out():
            return self.give_up(core)
        this = self.begin(core, now)
        self.topic = self.merged = topic
        return [Send(node, PutTopic(this.number, topic)) for node in this.members]

    def fresh_stamp(self, core: NodeCore, topic: Topic, now: Now) -> Stamp | None:
        """A stamp above those of ``topic``; None while the clock's reserve has to be raised for it."""
        core.state.clock.merge(topic.stamp.time)
        return core.state.clock.fresh(now)

    def on_reply(
        self, core: NodeCore, sender: NodeId, incarnation: Incarnation, message: PeerMessage, now: Now
    ) -> list[Effect]:
        assert isinstance(message, Put)
        this = self.rounds[message.round]
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
        if (
            stamp is None and self.writes
        ):  # what was written below another's stamp stays, where that named less
            detail = f"topic {self.name!r} is being changed elsewhere at the same time: do it again"
            return self.finish(core, too_few("outcome-unknown", detail, 1, 0))
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
