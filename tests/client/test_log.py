"""The logger `quorumq.client`: a line for failures without an exception, and not one for each message."""

from __future__ import annotations

import logging

import pytest
import trio

from quorumq.client.transport.log import EVERY_S, KINDS_MAX, Log
from quorumq.core.messages import ExtendRequest, ReleaseRequest
from tests.client.fake import connected, failing, fake_cluster
from tests.client.steps import publish, take


def lines(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    assert {record.name for record in caplog.records} <= {"quorumq.client"}
    return [record.getMessage() for record in caplog.records if record.levelno == level]


def test_one_line_of_a_kind_in_ten_seconds_and_the_next_says_how_many_were_between(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now = 0.0
    log = Log(lambda: now)
    for _ in range(5):
        log.error("a", "%s", "one")
    log.warning("b", "two")
    now = EVERY_S
    log.error("a", "%s", "one")
    assert lines(caplog, logging.ERROR) == ["one", "one (4 more like this before)"]
    assert lines(caplog, logging.WARNING) == ["two"]


def test_the_memory_of_a_log_is_bounded(caplog: pytest.LogCaptureFixture) -> None:
    log = Log(lambda: 0.0)
    for number in range(KINDS_MAX + 10):
        log.warning(number, "x")
    assert len(log._said) == KINDS_MAX


def test_a_disabled_level_costs_nothing() -> None:
    log = Log(lambda: 1 / 0)
    log.info("a", "x")


async def test_messages_released_by_a_consumer_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "quorumq.client")
    async with fake_cluster() as cluster, connected(cluster) as client:
        await publish(client, 20)
        async with client.consumer("jobs", "g") as consumer:
            for message in await take(consumer, 2):
                await message.ack()
            await trio.testing.wait_all_tasks_blocked()
        given = consumer.given_back
        assert given
        assert lines(caplog, logging.INFO) == [
            f"{given} messages for group 'g' were fetched ahead and are given back"
        ]


async def test_messages_left_unsettled_by_a_consumer_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    async with fake_cluster() as cluster, connected(cluster) as client:
        await publish(client, 20)
        async with client.consumer("jobs", "g", hold_time=7.0) as consumer:
            for message in (await take(consumer, 5))[:3]:
                await message.ack()
        async with client.consumer("jobs", "h") as consumer:
            await take(consumer, 1)
        two, one = lines(caplog, logging.WARNING)
        assert two.startswith("a consumer of group 'g' leaves 2 messages unsettled, as <Message jobs ")
        assert two.endswith("each comes again in 7 s")
        assert "leaves 1 message unsettled" in one


async def test_a_consumer_that_keeps_nothing_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async with fake_cluster() as cluster, connected(cluster) as client:
        await publish(client, 20)
        async with client.consumer("jobs", "g", hold_time=7.0, auto_extend=False) as consumer:
            first, second = await take(consumer, 2)
            await first.ack()
            await trio.sleep(8.0)
            assert not second.is_live
        assert lines(caplog, logging.WARNING) == []


async def test_a_failed_release_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async with fake_cluster() as cluster, connected(cluster) as client:
        await publish(client, 20)
        cluster.answer = failing("usage", times=1_000, of=ReleaseRequest)
        async with client.consumer("jobs", "g") as consumer:
            for _ in range(2):  # the second time, more are fetched for its next call
                (message,) = await consumer.take(1)
                await message.ack()
            await trio.testing.wait_all_tasks_blocked()
        (line,) = lines(caplog, logging.WARNING)
        assert line.startswith("messages fetched ahead were not given back")


async def test_an_extension_that_fails_is_said_once_for_many(caplog: pytest.LogCaptureFixture) -> None:
    async with fake_cluster() as cluster, connected(cluster) as client:
        await publish(client, 20)
        cluster.answer = failing("hold-lost", times=1_000, of=ExtendRequest)
        async with client.consumer("jobs", "g", hold_time=2.0) as consumer:
            messages = await take(consumer, 20)
            await trio.sleep(5.0)
            assert len(messages) == 20
        (line, *more) = lines(caplog, logging.WARNING)
        assert "messages of group 'g' that are worked on were not extended, as one of 'jobs'" in line
        assert not more
