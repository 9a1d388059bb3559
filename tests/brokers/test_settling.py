"""The rule for verdicts that are sent again, without any of the frameworks."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from quorumq.brokers.settling import is_passing
from quorumq.client import (
    Busy,
    Closed,
    HoldLost,
    NotFound,
    NotStored,
    OutcomeUnknown,
    QuorumqError,
    StorageFull,
    TooFewReplicas,
    Unauthorized,
)

HELD, OVER = (SimpleNamespace(is_live=is_live) for is_live in (True, False))


@pytest.mark.parametrize("kind", [TooFewReplicas, NotStored, OutcomeUnknown, Busy, StorageFull])
def test_an_error_that_passes_by_itself_is_tried_again(kind: type[QuorumqError]) -> None:
    assert is_passing(kind("later"), OVER)


@pytest.mark.parametrize("kind", [HoldLost, NotFound, Closed])
def test_an_error_that_does_not_pass_is_given_up(kind: type[QuorumqError]) -> None:
    assert not is_passing(kind("never"), HELD)


def test_a_lost_right_may_come_back_for_as_long_as_the_message_is_held() -> None:
    assert is_passing(Unauthorized("no right"), HELD)
    assert not is_passing(Unauthorized("no right"), OVER)
