"""Topic registers: what they may say, and how they merge (docs/protocol.md, "settings")."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorumq.core import limits
from quorumq.core.messages import AlterTopic, CreateTopic
from quorumq.core.topics import (
    alter,
    check_topic_request,
    closed,
    make_topic,
    merge_topics,
    new_topic,
    stamps_of,
)
from quorumq.core.types import Stamp, Topic

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
        ({"durability": "raid"}, "durability is 'raid'"),
        ({"partitions": limits.PARTITIONS_MAX + 1}, "partitions is 1025"),
        ({"rf": 5}, "rf is 5"),
    ],
)
def test_a_setting_out_of_bounds_is_refused_by_name(settings: dict[str, object], named: str) -> None:
    assert named in check_topic_request(CreateTopic("jobs", **settings), NODES)  # type: ignore[arg-type]


def test_what_is_within_bounds_is_taken() -> None:
    request = CreateTopic("jobs", retention_s=limits.TOPIC_TIME_MAX_S, ttl_s=0.5, backoff=(0.0, 1.0, 600.0))
    assert check_topic_request(request, NODES) == ""


def made(partitions: int, known: Topic | None = None, time: int = 0) -> Topic:
    blank = Topic(bytes(16), "jobs", 3, 1, (), 0, "fsync", Stamp(0, ""))
    return make_topic(CreateTopic("jobs", 3, partitions), NODES, known or blank)._replace(
        stamp=Stamp(time, "a")
    )


def test_what_a_topic_was_born_with_stays_when_it_grows() -> None:
    """Where a derived message goes must not depend on when it is published (docs/client.md)."""
    topic = made(3)
    assert (topic.born, topic.partitions) == (3, 3)
    grown = made(7, topic, time=1)
    assert (grown.born, grown.partitions) == (3, 7)
    old = topic._replace(born=0)  # of a register that did not say so yet: nobody may make it up later
    assert made(7, old).born == 0


@given(st.permutations([made(4), made(2, time=1), made(9, made(4), time=2), made(5)._replace(born=0)]))
def test_registers_agree_on_it_in_whatever_order_they_merge(registers: list[Topic]) -> None:
    merged = registers[0]
    for other in registers[1:]:
        merged = merge_topics(merged, other)
    assert (merged.born, merged.partitions) == (2, 9)


CHANGES = st.builds(
    AlterTopic,
    st.just("jobs"),
    partitions=st.none() | st.integers(1, 4),
    max_deliveries=st.none() | st.integers(1, 9),
    retention_s=st.none() | st.floats(0, 9),
    durability=st.none() | st.just("os"),
    ttl_s=st.none(),
    backoff=st.none() | st.just((1.0,)),
)


@st.composite
def registers(draw: st.DrawFn) -> Topic:
    """A register as some node may have it: some changes out of one history, in any order, and perhaps deleted."""
    topic = new_topic("jobs", 3, NODES, 0)
    for request, time in draw(st.lists(st.tuples(CHANGES, st.integers(1, 5)), max_size=4)):
        stamp = Stamp(time, repr(request))  # one stamp is used for one change only
        if min(stamps_of(topic)) < stamp:
            topic = merge_topics(topic, alter(new_topic("jobs", 3, NODES, 0), request, NODES, stamp))
    return merge_topics(topic, closed(topic)) if draw(st.integers(0, 9)) == 0 else topic


@given(registers(), registers(), registers())
def test_registers_merge_to_the_same_in_any_order(one: Topic, two: Topic, three: Topic) -> None:
    assert merge_topics(one, one) == one
    assert merge_topics(one, two) == merge_topics(two, one)
    assert merge_topics(merge_topics(one, two), three) == merge_topics(one, merge_topics(two, three))


def test_a_change_takes_back_no_other_change() -> None:
    """Two operators at two nodes, neither of which has heard of the other."""
    before = new_topic("jobs", 3, NODES, 0)
    one = alter(before, AlterTopic("jobs", ttl_s=5.0), NODES, Stamp(1, "a"))
    two = alter(before, AlterTopic("jobs", max_deliveries=9, partitions=2), NODES, Stamp(2, "b"))
    merged = merge_topics(one, two)
    assert (merged.ttl_s, merged.max_deliveries, merged.partitions) == (5.0, 9, 2)
