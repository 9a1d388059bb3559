"""Rules of a topic: its settings, its partitions, its deletion."""

from __future__ import annotations

from typing import Any

from quorumq.core.cluster import catalogue
from quorumq.core.cluster.catalogue import Catalogue
from quorumq.core.cluster.rounds import Round
from quorumq.core.cluster.topics import all_sets, alter, merge_topics, with_partitions
from quorumq.core.messages import SETTINGS, AlterTopic
from quorumq.core.messages.effects import DropBatches, Effect, Persist
from quorumq.core.node.nodecore import NodeCore
from quorumq.core.requests import merging, registers
from quorumq.core.requests.context import Context
from quorumq.core.requests.creation import CreateTopicCoordinator
from quorumq.core.requests.registers import ChangeCoordinator, DeleteTopicCoordinator, TopicCoordinator
from quorumq.core.values.types import Now, Stamp, Topic
from sim.rules.rule import Patch, Rule
from sim.rules.scripts import A, B, C, answered, of_operators
from sim.rules.stand_ins import Before, after, around, but

# ---------------------------------------------------------------- settings, partitions


def merging_with(merge: Any) -> tuple[Patch, ...]:
    """Return patches that merge registers with ``merge``, wherever that is done."""
    return ((registers, "merge_topics", merge), (catalogue, "merge_topics", merge))


def newer(ours: Topic, theirs: Topic) -> Topic:
    return ours if ours.stamp >= theirs.stamp else theirs


def whole_register(ours: Topic, theirs: Topic) -> Topic:
    last = newer(ours, theirs)
    return merge_topics(ours, theirs)._replace(**{name: getattr(last, name) for name in SETTINGS})


def fewer_partitions(ours: Topic, theirs: Topic) -> Topic:
    return merge_topics(ours, theirs)._replace(replicas=newer(ours, theirs).replicas)


def reviving(ours: Topic, theirs: Topic) -> Topic:
    if ours.deleted != theirs.deleted:
        return theirs if ours.deleted else ours
    return merge_topics(ours, theirs)


def alter_at_once(topic: Topic, request: AlterTopic, stamp: Stamp) -> Topic:
    return with_partitions(alter(topic, request, stamp), request.partitions or 0, (A, B, C))


def write_over_newer(self: ChangeCoordinator, context: Context, now: Now) -> list[Effect]:
    if self.merged.deleted:
        return self.on_replaced(context, now)
    return self.write_change(context, self.merged, now)


def confirm_deleted(
    before: Before[list[Effect]], self: ChangeCoordinator, context: Context, now: Now
) -> list[Effect]:
    if self.step != "change":
        return before(self, context, now)
    self.pages, self.merged = [], self.topic
    return self.carry(context, now)


# ---------------------------------------------------------------------------- deletion


def enough_as_known(self: TopicCoordinator, context: Context, round_: Round) -> bool:
    """End a DELETE once the partitions that its own node knows are done, without a look at the answers."""
    bits = self.stored & round_.valid(context.state)
    sets = (
        all_sets(self.topic, context.config.nodes, context.config.machines)
        if self.step == "bury"
        else self.sets
    )
    return round_.is_majority(bits) and round_.is_majority_of_each(bits, sets)


def take_in_unwritten(before: Before[list[Any]], self: Context, topic: Topic, now: Any) -> list[Any]:
    effects = before(self, topic, now)
    return [
        effect._replace(records=()) if isinstance(effect, Persist) and topic.deleted else effect
        for effect in effects
    ]


def take_beside(before: Before[Topic | None], self: Catalogue, topic: Topic) -> Topic | None:
    newest = self.register_named(topic.name)
    if newest is None or newest.id == topic.id:
        return before(self, topic)
    if topic.id in self.topics:
        merged = merge_topics(self.topics[topic.id], topic)
        if merged == self.topics[topic.id]:
            return None
    self.topics[topic.id] = topic
    if newest.deletions <= topic.deletions:
        self.names[topic.name] = self.living[topic.name] = topic.id
    return topic


def keep_orphans(before: Before[list[Any]], self: NodeCore, token: int, now: Any) -> list[Any]:
    self.orphans.clear()
    return before(self, token, now)


# --------------------------------------------------------------------------- the rules

ALTERED_AND_DELETED = of_operators(
    "alter-delete", "one more partition and a DELETE, through two nodes", ("alter", A), ("delete", B), rf=1
)

RULES: tuple[Rule, ...] = (
    Rule(
        "creation-as-seen",
        "a creation makes no topic after a deletion that its client did not know of",
        ((CreateTopicCoordinator, "is_late", lambda self, known: False),),
        scenario=of_operators(
            "create-late",
            "a DELETE, and a creation that was made before and comes through another node",
            ("delete", A),
            ("late create", C),
            rf=1,
            script=(("ask", A, "delete", 0), *answered("PutTopic", "PutReply", A, B)),
        ),
    ),
    Rule(
        "change-not-above",
        "a change of a topic that meets a newer one is stamped again above it",
        (
            (registers, "is_overtaken", lambda topic, request, stamp: False),
            (ChangeCoordinator, "is_outbid", lambda self, context: False),
            (ChangeCoordinator, "on_promised", write_over_newer),
        ),
        survives="a change that a majority has, then one through a node that missed it and whose clock is behind",
        test="test_late_settings::test_a_creation_undoes_no_alteration_of_what_a_producer_made",
    ),
    Rule(
        "settings-as-one",
        "each setting of a topic goes to its own last writer",
        merging_with(whole_register),
        survives="a change that one node has, and a later one of another setting that never met it",
        test="test_late_settings::test_a_change_that_one_node_has_and_a_later_one_of_another_setting_are_both_kept",
    ),
    Rule(
        "partitions-by-stamp",
        "partitions only become more",
        merging_with(fewer_partitions),
    ),
    Rule(
        "delete-hears-of-partitions",
        "a DELETE goes to the replicas of all partitions that anybody proposed before it",
        (
            (TopicCoordinator, "is_enough", enough_as_known),
            # Nor does it ask for more, once that has been done.
            (TopicCoordinator, "on_read", lambda self, context, now: self.on_buried(context, now)),
        ),
        scenario=ALTERED_AND_DELETED,
    ),
    Rule(
        "alter-hears-of-deletion",
        "an ALTER confirms nothing where any of the majority that has its proposal says that the topic is gone",
        (around(ChangeCoordinator, "on_written", confirm_deleted),),
        scenario=ALTERED_AND_DELETED,
    ),
    Rule(
        "partitions-are-confirmed",
        "a partition takes messages only once a majority of the nodes knows that it was proposed",
        ((registers, "alter", alter_at_once),),
        scenario=ALTERED_AND_DELETED,
    ),
    Rule(
        "deleted-revives",
        "a topic is deleted for good",
        merging_with(reviving),
    ),
    Rule(
        "deleted-on-one",
        "DELETE is OK when a majority of the nodes has it",
        (
            (DeleteTopicCoordinator, "is_enough", lambda self, context, round_: True),
            (DeleteTopicCoordinator, "on_written", lambda self, context, now: self.on_buried(context, now)),
        ),
    ),
    Rule(
        "deleted-beside-replicas",
        "… and of each partition's replica set",
        ((Round, "is_majority_of_each", lambda self, bits, replicas, gone=(): True),),
    ),
    Rule(
        "deletion-not-kept",
        "a deletion is in the journal",
        (around(merging, "take_in_topic", take_in_unwritten),),
    ),
    Rule(
        "older-topic-stays",
        "a topic whose name was deleted more often takes the place of the others",
        (around(Catalogue, "take_topic", take_beside),),
    ),
    Rule(
        "deleted-payload-stays",
        "the payload of a deleted topic goes everywhere",
        (after(merging, "end_topic", but(DropBatches)),),
    ),
    Rule(
        "deleted-payload-returns",
        "what a start finds of a deleted topic is forgotten",
        (around(NodeCore, "_on_durable", keep_orphans),),
        profile="store",
    ),
)
