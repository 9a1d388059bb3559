"""Promises of a voter about settings (docs/registers.md, "settings")."""

from __future__ import annotations

from quorumq.core.cluster.promises import PROMISES_MAX, Promises
from quorumq.core.values.types import Stamp


def test_the_highest_promise_stands() -> None:
    promises = Promises()
    for time in (5, 9, 7):
        promises.make((b"", "g"), Stamp(time, "a"))
    assert promises.of((b"", "g"), 0) == Stamp(9, "a")
    assert promises.of((b"", "g"), 11).time == 11, "what a start counts as promised"


def test_a_promise_that_is_dropped_counts_for_every_register() -> None:
    promises = Promises()
    promises.make((b"", "first"), Stamp(50, "a"))
    for number in range(PROMISES_MAX):
        promises.make((b"", str(number)), Stamp(1, "a"))
        promises.check()
    assert promises.of((b"", "first"), 0).time == 50
    assert promises.of((b"", "never"), 0).time == 50
