"""Clients whose time of day is wrong are found by their publishes, named in the log and in the status."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from quorumq.core import messages as m
from quorumq.core.values.types import PartitionId
from quorumq.node.producers import LATE_MS, SAID_AGAIN_S, SPAN_S, TOLD_MAX, TRACKED_MAX, ProducerClocks
from quorumq.wire.batch import Message, build_batch
from sim.shell.memory import now
from tests.node.memory import served, signed_session

WHO = ("billing", "10.0.0.9")


class Lines:
    """A log that keeps its warnings."""

    def __init__(self) -> None:
        self.warnings: list[dict[str, Any]] = []

    def warning(self, event: str, **fields: Any) -> None:
        self.warnings.append({"event": event, **fields})


def clocks() -> tuple[ProducerClocks, Lines]:
    log = Lines()
    return ProducerClocks(log), log


@pytest.mark.parametrize("ahead_ms", [1_001, 3_600_000, -LATE_MS - 1, -86_400_000])
def test_a_clock_that_no_delay_explains_is_known_at_once_and_said_once_an_hour(ahead_ms: int) -> None:
    clocks_, log = clocks()
    for second in range(int(SAID_AGAIN_S) - 1):
        clocks_.published(WHO, ahead_ms + second % 3, float(second))
    ahead_s = round(ahead_ms / 1000, 1)
    assert log.warnings == [
        {"event": "client_clock_wrong", "client": "billing at 10.0.0.9", "ahead_s": ahead_s}
    ]
    (wrong,) = clocks_.fields(SAID_AGAIN_S)["clock_wrong"]  # type: ignore[misc]
    assert (wrong["client"], wrong["address"]) == WHO
    assert (wrong["ahead_s"], wrong["seen_s_ago"]) == (pytest.approx(ahead_s, abs=0.01), 2.0)
    clocks_.published(WHO, ahead_ms, SAID_AGAIN_S + 1)
    assert len(log.warnings) == 2
    clocks_.published(WHO, ahead_ms + (5_000 if ahead_ms > 0 else -5_000), SAID_AGAIN_S + SPAN_S + 2)
    clocks_.published(WHO, ahead_ms + (5_000 if ahead_ms > 0 else -5_000), SAID_AGAIN_S + SPAN_S + 3)
    assert len(log.warnings) == 3, "it has changed"


def test_a_slow_publish_does_not_make_a_clock_wrong() -> None:
    """One quick publish of a span shows the clock."""
    clocks_, log = clocks()
    for second in range(60):
        clocks_.published(WHO, -5 if second % 9 == 0 else -4_000, float(second))
    assert (log.warnings, clocks_.fields(60.0)) == ([], {"clients_clock_wrong": 0, "clock_wrong": []})


def test_a_clock_that_is_some_seconds_slow_is_known_after_a_span_and_dropped_once_it_is_right() -> None:
    clocks_, log = clocks()
    for second in range(int(SPAN_S)):
        clocks_.published(WHO, -3_000 - second, float(second))
    assert not log.warnings
    clocks_.published(WHO, -3_500, SPAN_S)
    assert [line["ahead_s"] for line in log.warnings] == [-3.0]
    assert clocks_.fields(SPAN_S)["clients_clock_wrong"] == 1
    clocks_.published(WHO, 0, SPAN_S + 1)
    clocks_.published(WHO, 0, 2 * SPAN_S)
    assert clocks_.fields(2 * SPAN_S)["clients_clock_wrong"] == 0


def test_clients_that_left_are_not_kept_for_ever() -> None:
    clocks_, _ = clocks()
    for number in range(3 * TRACKED_MAX):
        clocks_.published((f"c{number}", "10.0.0.9"), 2_000 + number, 0.0)
    fields = clocks_.fields(0.0)
    wrong: Any = fields["clock_wrong"]
    assert fields["clients_clock_wrong"] == TRACKED_MAX
    assert (len(wrong), wrong[0]["client"]) == (TOLD_MAX, f"c{3 * TRACKED_MAX - 1}"), "the worst first"
    assert clocks_.fields(SAID_AGAIN_S) == {"clients_clock_wrong": 0, "clock_wrong": []}


@pytest.mark.parametrize("off", [0, 3_600_000, -3_600_000])
async def test_a_node_tells_whose_clock_is_wrong_by_publish_time_and_age(off: int) -> None:
    async with served() as (_, client, topic, producer_id):
        batch = build_batch(PartitionId(topic.id, 0), producer_id, 0, now().wall_ms + off, [Message(b"x")])
        await trio.sleep(20)
        assert isinstance(
            await client.ask(m.Publish(batch, 20_000, signed_session(producer_id))), m.PublishReply
        )
        fields = (await client.ask(m.StatusRequest())).fields
        assert fields["clients_clock_wrong"] == (1 if off else 0)
        assert [(wrong["client"], wrong["ahead_s"]) for wrong in fields["clock_wrong"]] == (
            [("test", off / 1000)] if off else []
        )
