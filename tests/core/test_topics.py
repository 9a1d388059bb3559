"""Topic registers: their limits, and how they merge (docs/registers.md, SETTINGS)."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorumq.core.cluster.catalogue import Catalogue
from quorumq.core.cluster.topics import (
    alter,
    as_change,
    check_topic_request,
    closed,
    first_topic,
    merge_decisions,
    merge_topics,
    stamps_of,
    with_partitions,
)
from quorumq.core.messages import SETTINGS, AlterTopic, CreateTopic
from quorumq.core.values import limits
from quorumq.core.values.types import Decision, Instance, Stamp, Topic

NODES = ("a", "b", "c")


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"retention_s": -1.0}, "retention_s is -1.0 s"),
        ({"retention_s": math.nan}, "retention_s is nan s"),
        ({"ttl_s": limits.TOPIC_TIME_MAX_S * 2}, "ttl_s is"),
        ({"backoff": (1.0, -2.0)}, "a step of -2.0 s"),
        ({"backoff": (limits.BACKOFF_MAX_S + 1,)}, "each must be from 0 to"),
        ({"backoff": (1.0,) * (limits.BACKOFF_STEPS_MAX + 1)}, "backoff has 33 steps"),
        ({"max_deliveries": 0}, "max_deliveries is 0"),
        ({"partitions": limits.PARTITIONS_MAX + 1}, "partitions is 1025"),
        ({"rf": 5}, "rf is 5"),
    ],
)
def test_a_setting_out_of_bounds_is_refused_by_name(settings: dict[str, object], named: str) -> None:
    assert named in check_topic_request(CreateTopic("jobs", **settings), NODES)  # type: ignore[arg-type]


def test_settings_within_bounds_are_taken() -> None:
    request = CreateTopic("jobs", retention_s=limits.TOPIC_TIME_MAX_S, ttl_s=0.5, backoff=(0.0, 1.0, 600.0))
    assert check_topic_request(request, NODES) == ""


def test_no_machine_has_two_replicas_of_a_partition() -> None:
    machines = tuple((node + number, node) for node in NODES for number in "12")
    nodes = tuple(node for node, _ in machines)
    assert "at most 3, the number of machines" in check_topic_request(CreateTopic("jobs", 5), nodes, machines)
    assert check_topic_request(CreateTopic("jobs", 3), nodes, machines) == ""
    topic = first_topic(CreateTopic("jobs", 3, partitions=40), nodes, 0, Stamp(1, "a1"), machines)
    assert {frozenset(node[0] for node in members) for members in topic.replicas} == {frozenset(NODES)}
    assert {node for members in topic.replicas for node in members} == {*nodes}, "and all nodes have some"
    grown = with_partitions(topic, 80, nodes, machines)
    assert grown.replicas[:40] == topic.replicas
    assert {frozenset(node[0] for node in members) for members in grown.replicas} == {frozenset(NODES)}


def made(request: CreateTopic, time: int = 1) -> Topic:
    return first_topic(request, NODES, 0, Stamp(time, "a"))


def test_initial_settings_of_a_topic_stay_when_it_grows() -> None:
    """The target of a derived message must not depend on its publish time (docs/patterns.md)."""
    topic = made(CreateTopic("jobs", 3, 3))
    assert (topic.born, topic.partitions) == (3, 3)
    grown = alter(topic, AlterTopic("jobs", partitions=7), Stamp(2, "b"))
    assert (grown.partitions, grown.all_partitions) == (3, 7), "nobody uses what is only proposed"
    merged = merge_topics(topic, grown)
    assert merged == grown
    confirmed = merge_topics(topic, with_partitions(merged, 7, NODES))
    assert (confirmed.born, confirmed.partitions, confirmed.made) == (3, 7, topic.made)
    assert closed(confirmed).all_partitions == closed(merged).all_partitions == 7


def test_settings_that_a_producer_left_to_us_are_below_all_that_somebody_chooses() -> None:
    asked = CreateTopic("jobs", max_deliveries=9, unnamed=("ttl_s",))
    assert stamps_of(made(CreateTopic("jobs", implicit=True))) == (Stamp(0, ""),) * len(SETTINGS)
    assert stamps_of(made(asked)) == (Stamp(1, "a"),) * len(SETTINGS)
    assert as_change(asked) == AlterTopic("jobs", 1, 9, 0.0, None, (), True, "dead-letter")


DECISIONS = st.builds(
    lambda promised, accepted: Decision(
        Instance(b"", "jobs", 0),
        Stamp(max(promised, accepted), "a" if max(promised, accepted) else ""),
        Stamp(accepted, "a" if accepted else ""),
        made(CreateTopic("jobs", max_deliveries=accepted), accepted) if accepted else None,
    ),
    st.integers(0, 5),
    st.integers(0, 5),
)


@given(DECISIONS, DECISIONS, DECISIONS)
def test_promises_and_values_merge_in_any_order(one: Decision, two: Decision, three: Decision) -> None:
    assert merge_decisions(one, one) == one
    assert merge_decisions(one, two) == merge_decisions(two, one)
    merged = merge_decisions(merge_decisions(one, two), three)
    assert merged == merge_decisions(one, merge_decisions(two, three))
    assert merged.promised == max(one.promised, two.promised, three.promised)
    assert merged.ballot == max(one.ballot, two.ballot, three.ballot)


CHANGES = st.builds(
    AlterTopic,
    st.just("jobs"),
    partitions=st.none() | st.integers(1, 4),
    max_deliveries=st.none() | st.integers(1, 9),
    retention_s=st.none() | st.floats(0, 9),
    ttl_s=st.none(),
    backoff=st.none() | st.just((1.0,)),
)


@st.composite
def registers(draw: st.DrawFn) -> Topic:
    """A register as some node may have it: some changes out of one history, in any order, and perhaps deleted."""
    topic = made(CreateTopic("jobs", implicit=True))
    for request, time in draw(st.lists(st.tuples(CHANGES, st.integers(1, 5)), max_size=4)):
        stamp = Stamp(time, repr(request))  # one stamp is used for one change only
        if min(stamps_of(topic)) < stamp:
            topic = merge_topics(topic, alter(made(CreateTopic("jobs", implicit=True)), request, stamp))
    topic = with_partitions(topic, draw(st.integers(1, 3)), NODES)
    return merge_topics(topic, closed(topic)) if draw(st.integers(0, 9)) == 0 else topic


@given(registers(), registers(), registers())
def test_registers_merge_to_the_same_in_any_order(one: Topic, two: Topic, three: Topic) -> None:
    assert merge_topics(one, one) == one
    assert merge_topics(one, two) == merge_topics(two, one)
    assert merge_topics(merge_topics(one, two), three) == merge_topics(one, merge_topics(two, three))


def test_topics_of_one_name_come_to_the_same_in_any_order() -> None:
    """The last two are one topic, made twice: its first life was lost with the directories of a majority."""
    other, first, again = (
        first_topic(CreateTopic("jobs", rf=rf), NODES, 1, Stamp(time, "a"))
        for rf, time in ((3, 1), (1, 1), (1, 2))
    )
    outcomes = set()
    for order in itertools.permutations((other, closed(first), again)):
        catalogue = Catalogue("a")
        for topic in order:
            before = dict(catalogue.topics)
            if catalogue.take_topic(topic) is None:
                assert catalogue.topics == before, "a change that nobody hears of"
        outcomes.add(tuple(catalogue.registers()))
    assert outcomes == {(closed(again),)}


def test_a_name_used_again_and_again_keeps_a_limited_number_of_topics() -> None:
    catalogue = Catalogue("a")
    for deletions in range(limits.REPLACED_TOPICS_MAX + 50):
        catalogue.take_topic(first_topic(CreateTopic("jobs"), NODES, deletions, Stamp(deletions + 1, "a")))
        late = first_topic(CreateTopic("jobs"), NODES, max(0, deletions - 1030), Stamp(1, "a"))
        catalogue.take_topic(late)  # a late old register is no newer
        catalogue.check()
    assert len(catalogue.topics) == limits.REPLACED_TOPICS_MAX + 1
    assert not catalogue.registers()[0].deleted


def test_a_change_takes_back_no_other_change() -> None:
    """Two operators at two nodes. Neither node knows of the other's request."""
    before = made(CreateTopic("jobs", implicit=True))
    one = alter(before, AlterTopic("jobs", ttl_s=5.0), Stamp(1, "a"))
    two = alter(before, AlterTopic("jobs", max_deliveries=9, partitions=2), Stamp(2, "b"))
    merged = merge_topics(one, two)
    assert (merged.ttl_s, merged.max_deliveries, merged.all_partitions) == (5.0, 9, 2)
