"""`quorumq partitions move --wait`: it returns when no node keeps a copy of its own any more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import trio.testing

from quorumq.cli import partitions
from quorumq.cli.common import Where
from quorumq.core.cluster.topics import with_layout
from quorumq.core.values.errors import NotFound
from quorumq.core.values.types import STAMP_ZERO, Layout, Placement, ReplicaSlot, Topic

FIRST = Topic(b"t" * 16, "jobs", 1, (("a",),), 1, STAMP_ZERO)


class Answer(NamedTuple):
    topics: tuple[Topic, ...]


class Registers:
    """The part of a client that is asked: one register after another, as nodes learn them."""

    def __init__(self, *registers: Topic) -> None:
        self.registers = list(registers)

    async def metadata(self, topic: str) -> Answer:
        assert topic == "jobs"
        return Answer((self.registers.pop(0),) if self.registers else ())


def register(number: int, *sources: str) -> Topic:
    placement = Placement(0, 2, (ReplicaSlot("b", 2),), (), sources)
    return with_layout(FIRST, Layout(FIRST.id, number, STAMP_ZERO, (placement,)))


def reports_with(*numbers: int) -> Callable[[Any], dict[str, Any]]:
    """Return reports with these numbers of messages to go, one after another."""
    counts = iter(numbers)

    def report(addresses: Any) -> dict[str, Any]:
        move = {"topic": "jobs", "partition": 0, "state": "leaving", "waits_for": ["b"]}
        return {"nodes": [{"node": "a", "moves": [{**move, "messages_left": next(counts)}]}]}

    return report


def is_over(topic: Topic) -> bool:
    return not partitions.sources_of(topic, 0)


def waited(*registers: Topic) -> Topic:
    async def main() -> Topic:
        client: Any = Registers(*registers)
        return await partitions.followed(client, Where(("h:1",)), register(2, "a"), is_over, 0)

    return trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0.05))


def test_a_wait_shows_the_progress_and_does_not_believe_a_node_that_is_late(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(partitions, "cluster_report", reports_with(300, 300, 20))
    assert waited(FIRST, register(2, "a"), register(3)) == register(3)
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition("; ")[2] for line in lines] == ["300 messages to go", "20 messages to go"]


def test_a_wait_ends_with_its_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partitions, "cluster_report", reports_with(300))
    with pytest.raises(NotFound, match="deleted while its replicas were copied"):
        waited()
