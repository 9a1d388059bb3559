"""Fake messages: a call is checked as a client checks it, and recorded."""

from __future__ import annotations

from datetime import timedelta

import pytest

from quorumq.client import HoldLost, Outcome, UsageError
from quorumq.testing import BlockingMessage, Message


def test_a_fake_message_has_the_fields_that_a_handler_reads() -> None:
    message = Message.fake(
        json={"a": 1}, key="k", headers={"h": 2}, topic="t", group="g", partition=3, attempt=4
    )
    assert message.json() == {"a": 1}
    assert (message.key, message.headers) == (b"k", {"h": 2})
    assert (message.topic, message.group, message.partition, message.attempt) == ("t", "g", 3, 4)
    assert message.id != Message.fake(b"").id
    assert message.is_live
    assert message.outcome is None
    assert message.fencing_token < Message.fake(b"").fencing_token


def test_an_ack_and_a_second_one_are_recorded() -> None:
    message = BlockingMessage.fake("text")
    assert message.payload == b"text"
    assert [message.ack(), message.ack()] == [Outcome.ACKED, Outcome.ACKED]
    with pytest.raises(HoldLost, match="ACKED"):
        message.reject()
    assert isinstance(message.failure, HoldLost)


@pytest.mark.parametrize(
    ("arguments", "delay", "interrupted"),
    [
        ({"delay": 3}, 3.0, False),
        ({"delay": timedelta(minutes=1)}, 60.0, False),
        ({}, None, False),
        ({"interrupted": True}, 0.0, True),
    ],
)
def test_a_reject_is_recorded(arguments: dict[str, object], delay: float | None, interrupted: bool) -> None:
    message = BlockingMessage.fake(b"")
    message.reject(**arguments)  # type: ignore[arg-type]
    assert message.outcome is Outcome.REQUEUED
    assert (message.settlement.delay, message.settlement.interrupted) == (delay, interrupted)
    with pytest.raises(HoldLost):
        message.dead_letter(ValueError())
    assert message.ack() is Outcome.ACKED_AFTER_EXPIRY


def test_a_dead_letter_has_the_report_that_would_be_stored() -> None:
    message, error = BlockingMessage.fake(b"", attempt=2), ValueError("no amount")
    message.dead_letter(error, reason="given up")
    assert message.outcome is Outcome.DEAD_LETTERED
    assert (message.settlement.error, message.settlement.reason) == (error, "given up")
    death = message.settlement.death
    assert death is not None
    assert (death.error_class, death.attempts) == ("ValueError", 2)


def test_a_hold_runs_out_unless_it_is_extended() -> None:
    message = BlockingMessage.fake(b"", hold_time=10.0)
    message.pass_time(8.0)
    message.extend(20.0)
    message.pass_time(8.0)
    message.extend()
    assert message.settlement.extended == [20.0, 10.0]
    message.pass_time(20.0)
    assert not message.is_live
    for settle in (message.reject, message.dead_letter, message.extend):
        with pytest.raises(HoldLost, match="run out"):
            settle()
    assert message.ack() is Outcome.ACKED_AFTER_EXPIRY


def test_wrong_calls_are_refused_as_by_a_client() -> None:
    with pytest.raises(UsageError, match="json="):
        Message.fake()
    with pytest.raises(UsageError, match="attempt is 0"):
        Message.fake(b"", attempt=0)
    message = BlockingMessage.fake(b"")
    with pytest.raises(UsageError, match="delay"):
        message.reject(-1)
    with pytest.raises(UsageError, match="interrupted"):
        message.reject(1, interrupted=True)
    with pytest.raises(UsageError, match="dead letter already"):
        BlockingMessage.fake(b"", group="g!dead").dead_letter()
    assert message.outcome is None


async def test_messages_are_settled_by_await_too() -> None:
    message = Message.fake(b"")
    await message.extend(5)
    assert await message.ack() is Outcome.ACKED
