"""Changing and deleting a topic: a register is written to a majority of the nodes. Settings are promised before.

Why a file of its own: a register has many writers and no owner. Operators get no false answer, because
each answer is read before it is counted: an answer may bring a register that is newer than ours, or the news
that the topic is gone. Then we write again, on top of the news, and answer only for registers that a majority has.

Not promised: that what was written is still so when the client hears of it. The next writer may have replaced it.
"""

from __future__ import annotations

from quorumq.core import messages as m
from quorumq.core.cluster.deleted_names import PAGES
from quorumq.core.cluster.rounds import Round, majority_of
from quorumq.core.cluster.topics import (
    all_sets,
    alter,
    closed,
    is_changed,
    is_overtaken,
    merge_topics,
    named,
    names_sets,
    replica_sets,
    with_replicas,
)
from quorumq.core.messages.effects import Effect, Send
from quorumq.core.requests import merging
from quorumq.core.requests.context import Context
from quorumq.core.requests.coordinator import Coordinator
from quorumq.core.requests.promising import (
    ask_for_promises,
    ask_later,
    is_outbid,
    note_promised,
    overtaken,
)
from quorumq.core.requests.proposing import wait_for_stamp
from quorumq.core.values.chunks import chunks_of
from quorumq.core.values.errors import Code
from quorumq.core.values.limits import GROUPS_PER_CHUNK
from quorumq.core.values.types import STAMP_ZERO, Group, Incarnation, NodeId, Now, Stamp, Topic

WRITES_MAX = 8
"""Writes of a register above those of other nodes, before the caller is asked to try again."""


class TopicCoordinator(Coordinator):
    """A coordinator of register changes: write a register to every node, read what they have, delete one."""

    __slots__ = ("merged", "name", "sets", "step", "stored", "topic", "writes")

    topic: Topic  # as written in this round
    merged: Topic  # merged with the registers of the answers

    def __init__(self, key: int, name: str) -> None:
        super().__init__(key)
        self.name = name
        self.step = ""  # the purpose of the round
        self.stored = 0
        self.sets: tuple[tuple[NodeId, ...], ...] = ()  # a majority of each is needed beside one of the nodes
        self.writes = 0

    def begin(self, context: Context, now: Now) -> Round:
        """Begin a round among all nodes; the one before, if any, does not count any more."""
        self.close_rounds(context)
        self.stored = 0
        return self.open_register_round(context, now)

    def count_write(self) -> bool:
        """Count a write; return True if others have got in between too often."""
        self.writes += 1
        return self.writes > WRITES_MAX

    def give_up(self, context: Context) -> list[Effect]:
        """Return the answer of a crowded-out request."""
        detail = (
            f"topic {self.name!r} is being changed elsewhere at the same time: look at it, then try again"
        )
        needed = majority_of(len(context.catalogue.cluster.voters))
        return self.fail(context, Code.OUTCOME_UNKNOWN, detail, needed)

    def write(
        self,
        context: Context,
        step: str,
        topic: Topic,
        now: Now,
        sets: tuple[tuple[NodeId, ...], ...] = (),
        groups: tuple[Group, ...] = (),
        packed: bytes = b"",
    ) -> list[Effect]:
        """Begin a round of PutTopic."""
        round_ = self.begin(context, now)
        self.step, self.sets = step, sets
        self.topic = self.merged = topic
        return [Send(node, m.PutTopic(round_.number, topic, groups, packed)) for node in round_.members]

    def read(self, context: Context, step: str, now: Now, *, groups: bool = False) -> list[Effect]:
        """Ask all nodes for their registers, after a majority has the one written before."""
        self.close_rounds(context)
        self.stored = 0
        self.step = step
        return self.read_register(context, self.topic, now, groups=groups)

    def fresh_stamp(self, context: Context, topic: Topic, now: Now) -> Stamp | None:
        """Return a stamp above those of ``topic``; None while the clock's reserve has to be raised for it."""
        context.state.clock.merge(topic.stamp.time)
        return context.state.clock.fresh(now)

    def on_reply(
        self, context: Context, sender: NodeId, incarnation: Incarnation, message: m.PeerMessage, now: Now
    ) -> list[Effect]:
        assert isinstance(message, m.PutReply | m.RegistersReply)
        round_ = self.rounds[message.round]
        if isinstance(message, m.RegistersReply):
            effects, bit = self.take_in(context, sender, incarnation, message, now)
            if self.has_read(message):
                self.stored |= bit
            if not round_.is_read(self.stored & round_.valid(context.state)):
                return effects
            known = context.catalogue.register_with(self.topic.id, self.name)
            self.merged = merge_topics(self.merged, known) if known is not None else self.merged
            return effects + self.on_read(context, now)
        self.stored |= round_.hear(sender, incarnation)
        if message.refused:
            return self.on_replaced(context, now)
        note_promised(context, (self.topic.id, ""), message.promised)
        if message.topic is not None:
            self.merged = merge_topics(self.merged, message.topic)
        return self.on_written(context, now) if self.is_enough(context, round_) else []

    def is_enough(self, context: Context, round_: Round) -> bool:
        """Return True if a majority has it: of the nodes, and of each replica set that has to have it."""
        bits = self.stored & round_.valid(context.state)
        if self.step != "bury":
            return round_.is_majority(bits) and round_.is_majority_of_each(bits, self.sets)
        sets = all_sets(self.merged, context.config.nodes, context.config.machines)
        return round_.is_majority(bits) and round_.is_majority_of_each(
            bits, sets, context.catalogue.cluster.gone
        )

    def bury(self, context: Context, topic: Topic, now: Now) -> list[Effect]:
        """Delete ``topic``: known to a majority of the nodes, and of the replicas of each partition that it ever had.

        The second is what makes it mean something: no STORE, HOLD or ACK finds a majority any more. A node that has not
        heard refuses to take part as soon as it asks one that has.
        """
        if self.count_write():
            return self.give_up(context)
        return self.write(context, "bury", closed(topic), now)

    def on_written(self, context: Context, now: Now) -> list[Effect]:
        """Go on after a majority has ``merged``. A deletion asks it now which partitions were proposed before that."""
        return self.read(context, "count", now)

    def has_read(self, message: m.RegistersReply) -> bool:
        """Return True if the sender of this answer counts among those that were asked after the write."""
        return True

    def on_read(self, context: Context, now: Now) -> list[Effect]:
        """Go on after ``merged`` has the partitions proposed before the write."""
        merged, written = self.merged, self.topic
        if merged.all_partitions > written.all_partitions or merged.layout_known > written.layout_known:
            return self.bury(context, merged, now)
        effects: list[Effect] = []
        if names_sets(merged):  # these need not be kept any more
            effects = merging.take_in_topic(context, closed(merged._replace(buried=True)), now)
        return effects + ([] if self.done else self.on_buried(context, now))

    def on_buried(self, context: Context, now: Now) -> list[Effect]:
        """Go on after the topic is deleted, certainly."""
        return self.finish(context, m.TopicReply(self.merged))

    def on_replaced(self, context: Context, now: Now) -> list[Effect]:
        """Go on after the topic was deleted; the name may have another one by now."""
        return self.fail(context, Code.NOT_FOUND, f"topic {self.name!r} was deleted")

    def on_timeout(self, context: Context, number: int, now: Now) -> list[Effect]:
        round_ = self.rounds[number]
        detail = f"topic {self.name!r}: it may have happened, or may yet happen: do it again"
        answered = (self.stored & round_.valid(context.state)).bit_count()
        return self.fail(context, Code.OUTCOME_UNKNOWN, detail, round_.majority, answered)


class ChangeCoordinator(TopicCoordinator):
    """Settings are written, and partitions added: proposed, then given the groups that there are, then confirmed.

    A DELETE writes to all partitions that it knows of, then asks for others that were proposed. A group is put to all
    nodes, which report partitions that were proposed before. This writes what it proposes, then asks those that have it
    for groups and whether the topic was deleted (docs/registers.md, MORE PARTITIONS).
    """

    __slots__ = ("drawn", "own", "pages", "requested", "stamp")

    requested: m.AlterTopic
    stamp: Stamp
    own: Stamp  # stamp of the settings that were written last; zero before
    pages: list[
        tuple[tuple[Group, ...], bytes]
    ]  # registers of groups, as they are and packed, still to be carried

    def change(
        self, context: Context, topic: Topic, requested: m.AlterTopic, stamp: Stamp, now: Now
    ) -> list[Effect]:
        """Write the settings and partitions of ``requested`` on top of ``topic``: settings once they are promised."""
        self.requested, self.stamp = requested, stamp
        if not named(requested):
            return self.write_change(context, topic, now)
        self.step, self.stored, self.topic, self.merged = "promise", 0, topic, topic
        return ask_for_promises(self, context, (topic.id, ""), stamp, now)

    def on_promised(self, context: Context, now: Now) -> list[Effect]:
        """Write the change on top of what those know that have promised its stamp; or ask again, above it."""
        if self.merged.deleted:
            return self.on_replaced(context, now)
        if is_changed(self.merged, self.requested, self.own):
            return self.on_set_elsewhere(context, now) if self.own == STAMP_ZERO else self.give_up(context)
        if self.merged.stamp > self.stamp:
            self.topic = self.merged
            return self.start(context, now)
        return self.write_change(context, self.merged, now)

    def on_set_elsewhere(self, context: Context, now: Now) -> list[Effect]:
        """Go on after a setting was changed since the client looked, and nothing was written."""
        return self.finish(context, overtaken(f"topic {self.name!r}"))

    def write_change(self, context: Context, topic: Topic, now: Now) -> list[Effect]:
        requested = self.requested
        # For a thousand partitions this takes as long as making their replicas, which is the last step.
        config = context.config
        self.drawn = replica_sets(topic, requested.partitions or 0, config.nodes, config.machines)
        self.own = self.stamp
        return self.write(context, "change", alter(topic, requested, self.stamp), now)

    def is_outbid(self, context: Context) -> bool:
        """Return True if a higher stamp was promised than that of the settings that were written."""
        return bool(named(self.requested)) and is_outbid(context, (self.merged.id, ""), self.stamp)

    def on_written(self, context: Context, now: Now) -> list[Effect]:
        if self.step == "bury":
            return super().on_written(context, now)
        if self.merged.deleted:
            return merging.take_in_topic(context, self.merged, now) + self.on_replaced(context, now)
        if self.step == "carry":
            return self.carry(context, now)
        if self.step == "change" and self.merged.partitions < (self.requested.partitions or 0):
            return self.read(context, "look", now, groups=True)
        return self.on_changed(context, now)

    def has_read(self, message: m.RegistersReply) -> bool:
        """Count only nodes that have the proposal: a node that puts a group there later hears of the partitions."""
        there = [topic.all_partitions for topic in message.topics if topic.id == self.topic.id]
        return self.step != "look" or max(there, default=0) >= (self.requested.partitions or 0)

    def on_read(self, context: Context, now: Now) -> list[Effect]:
        if self.step == "promise":
            return self.on_promised(context, now)
        if self.step != "look":
            return super().on_read(context, now)
        if self.merged.deleted:
            return self.on_replaced(context, now)
        groups = chunks_of(context.catalogue.group_registers(self.topic.id), GROUPS_PER_CHUNK)
        self.pages = [(chunk, b"") for chunk in groups]
        index = 0
        while index < PAGES:
            packed, index = context.catalogue.deleted.of_topic(self.topic.id, index, GROUPS_PER_CHUNK)
            self.pages += [((), packed)] if packed else []
        return self.carry(context, now)

    def carry(self, context: Context, now: Now) -> list[Effect]:
        """Put every group to a majority of the new partitions' replicas before any client uses these."""
        if self.pages:
            new = self.drawn[self.merged.partitions :]
            return self.write(context, "carry", self.merged, now, new, *self.pages.pop(0))
        return self.write(context, "confirm", with_replicas(self.merged, self.drawn), now)

    def on_changed(self, context: Context, now: Now) -> list[Effect]:
        """Go on after a majority has ``merged``, with all that was wanted."""
        raise NotImplementedError

    def on_timeout(self, context: Context, number: int, now: Now) -> list[Effect]:
        if self.step != "promise" or self.own != STAMP_ZERO:
            return super().on_timeout(context, number, now)
        round_ = self.rounds[number]
        detail = f"topic {self.name!r}: nothing was changed; try again, through any node"
        return self.fail(context, Code.TOO_FEW_REPLICAS, detail, round_.majority, self.stored.bit_count())


def why_away(context: Context, request: m.AlterTopic, topic: Topic, now: Now) -> m.Failed | None:
    """Return `too-few-replicas` if a partition to be added would take no message, as too few of its nodes are up."""
    config = context.config
    drawn = replica_sets(topic, request.partitions or 0, config.nodes, config.machines)
    for number, members in enumerate(drawn[topic.partitions :], topic.partitions):
        away = [node for node in members if context.peers.is_away(node, now)]
        if len(away) >= majority_of(len(members)):
            detail = (
                f"partition {number} of topic {topic.name!r} would be on {', '.join(members)}, and too few of these "
                f"are up (away: {', '.join(away)}): start them, then try again"
            )
            return m.Failed(
                Code.TOO_FEW_REPLICAS, detail, majority_of(len(members)), len(members) - len(away)
            )
    return None


class AlterTopicCoordinator(ChangeCoordinator):
    """ALTER: the settings that the request names, on top of the other settings as they are."""

    __slots__ = ("request",)

    def __init__(self, key: int, request: m.AlterTopic, topic: Topic) -> None:
        super().__init__(key, request.name)
        self.own = STAMP_ZERO
        self.request = request
        self.topic = topic

    def start(self, context: Context, now: Now) -> list[Effect]:
        if self.count_write():
            return self.give_up(context)
        stamp = self.fresh_stamp(context, self.topic, now)
        if stamp is None:
            return wait_for_stamp(self, context, now)
        return self.change(context, self.topic, self.request, stamp, now)

    def on_changed(self, context: Context, now: Now) -> list[Effect]:
        overtaken_by = is_overtaken(self.merged, self.request, self.stamp)
        if not overtaken_by and not self.is_outbid(context):
            return self.finish(context, m.TopicReply(self.merged))
        self.topic = self.merged
        if overtaken_by:
            return self.start(context, now)
        return ask_later(self, context, self.writes, now)


class DeleteTopicCoordinator(TopicCoordinator):
    """DELETE. If the name has another topic by now, that one was created after all this had been done."""

    __slots__ = ()

    def __init__(self, key: int, request: m.DeleteTopic, topic: Topic) -> None:
        super().__init__(key, request.name)
        self.topic = self.merged = closed(topic)

    def start(self, context: Context, now: Now) -> list[Effect]:
        newest = context.catalogue.register_named(self.name)
        if newest is not None and newest.deletions > self.topic.deletions:
            return self.on_buried(context, now)
        return self.bury(context, self.topic, now)

    def on_replaced(self, context: Context, now: Now) -> list[Effect]:
        return self.on_buried(context, now)


class BuryCoordinator(DeleteTopicCoordinator):
    """A DELETE whose outcome is not known is completed, so that its register names no sets. No client waits for it."""

    __slots__ = ()


def complete_deletion(context: Context, now: Now) -> list[Effect]:
    """Complete the deletion of a topic that cannot be packed, because it may not have reached every set.

    One of the nodes does it in each round, on average, for one topic that is chosen at random: the nodes of another one
    may be away for long.
    """
    catalogue = context.catalogue
    known = [catalogue.register_named(name) for topic_id, name in catalogue.unpackable if not topic_id]
    topics = [topic for topic in known if topic is not None and not topic.buried and names_sets(topic)]
    if not topics or context.rng.random() * len(catalogue.cluster.present) >= 1:
        return []
    topic = topics[int(context.rng.random() * len(topics))]
    request = BuryCoordinator(context.next_key(), m.DeleteTopic(topic.name, topic.id), topic)
    return context.begin(request, now)
