"""`quorumq topics alter --rf`: the present replicas, and those to be added."""

from __future__ import annotations

import json

import pytest

from quorumq.cli.topics import is_raised, show, to_be_added
from quorumq.core.values.types import Layout, Placement, ReplicaSlot, Stamp, Topic
from quorumq.node.problems import move_lines


def raised(nodes: str, *, before: str = "", learners: str = "") -> Topic:
    """Return a topic of one partition on these nodes, which is to have three replicas."""
    slots = tuple(ReplicaSlot(node, 1) for node in nodes)
    placement = Placement(0, 2, slots, tuple(ReplicaSlot(node, 1) for node in before), (), tuple(learners))
    layout = Layout(bytes(16), 2, Stamp(1, "a"), (placement,), 3)
    return Topic(bytes(16), "jobs", 1, (tuple(nodes),), 5, Stamp(1, "a"), layout=layout)


def test_a_raise_is_over_once_all_slots_are_there_and_the_set_before_is_gone() -> None:
    assert not is_raised(raised("a", learners="bc"))
    assert not is_raised(raised("abc", before="a"))
    assert is_raised(raised("abc"))
    assert to_be_added(raised("a"), 3) == 2
    assert to_be_added(raised("abc"), 3) == 0


def test_a_topic_shows_the_replicas_that_it_has_and_is_to_have(capsys: pytest.CaptureFixture[str]) -> None:
    show(raised("a", learners="bc"), as_json=False)
    assert "each on 1 node, and soon on 3" in capsys.readouterr().out
    show(raised("abc"), as_json=False)
    assert "each on 3 nodes;" in capsys.readouterr().out
    show(raised("a"), as_json=True)
    fields = json.loads(capsys.readouterr().out)
    assert (fields["rf"], fields["replicas"]) == (3, [["a"]])


def test_a_raise_that_waits_says_for_which_nodes() -> None:
    row = {"topic": "jobs", "partition": 0, "state": "copying", "waits_for": ["b"], "messages_left": 7}
    (line,) = move_lines([{"node": "a", "moves": [row]}])
    assert line.startswith("a copies its payload of jobs/0")
    assert "it waits for b; 7 messages to go" in line
    (line,) = move_lines([{"node": "a", "moves": [{**row, "state": "short", "waits_for": []}]}])
    assert "more replicas than there are nodes for" in line
