"""Dead letters that are chosen: divided into lists, up to a limit, from a listing that is closed."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from itertools import islice

import pytest
import trio

from quorumq.client import Peek
from quorumq.client.admin.selection import Selection, chunked
from quorumq.core.messages import Peeked
from quorumq.core.values.types import STAMP_ZERO, Death, Kind, ProducerId, Record, Span

DEATH = Death(STAMP_ZERO, "rejected", error_class="E", fingerprint="f")


def entry(start: int, stop: int, death: Death | None = DEATH) -> Peek:
    """Return an entry of a listing of dead letters."""
    record = Record(2, 1, Kind.DEAD, death)
    return Peek(
        "jobs", 0, Peeked(Span(ProducerId("a", 1, 1, 1), start, stop), "dead", record, 5, 0.0, None), 0, {}
    )


@pytest.mark.parametrize(
    ("most", "limit", "sizes"),
    [
        (4, float("inf"), [[4], [2, 2], [1]]),
        (100, float("inf"), [[6, 3]]),
        (4, 7, [[4], [2, 1]]),
        (3, 6, [[3], [3]]),
        (4, 0, []),
    ],
)
def test_lists_have_as_many_messages_as_allowed(most: int, limit: float, sizes: list[list[int]]) -> None:
    closed: list[bool] = []

    async def listing() -> AsyncGenerator[Peek, None]:
        try:
            yield entry(0, 6)
            yield entry(6, 9)
        finally:
            closed.append(True)

    async def main() -> None:
        chunks = [chunk async for chunk in chunked(listing(), most, limit)]
        assert [[item.peeked.span.size for item in chunk] for chunk in chunks] == sizes
        numbers = [seq for chunk in chunks for item in chunk for seq in range(*item.peeked.span[1:])]
        assert numbers == list(islice(range(9), sum(map(sum, sizes))))
        assert {item.peeked.record for chunk in chunks for item in chunk} <= {Record(2, 1, Kind.DEAD)}

    trio.run(main)
    assert closed == [True]


def test_a_listing_that_ends_early_closes_its_source() -> None:
    closed: list[str] = []

    async def listing() -> AsyncGenerator[Peek, None]:
        try:
            while True:
                yield entry(0, 100)
        finally:
            await trio.lowlevel.cancel_shielded_checkpoint()  # as a request that is under way
            closed.append("listing")

    async def main() -> None:
        async with aclosing(chunked(listing(), 500)) as chunks:
            async for items in chunks:
                assert len(items) == 5
                break
        assert closed == ["listing"]

    trio.run(main)


def test_a_choice_matches_dead_letters_of_its_kind() -> None:
    matching = [
        Selection("jobs", "g"),
        Selection("jobs", "g", "f"),
        Selection("jobs", "g", "f", "E", "rejected"),
    ]
    others = [
        Selection("jobs", "g", "other"),
        Selection("jobs", "g", error_class="F"),
        Selection("jobs", "g", reason=""),
    ]
    assert all(selection.matches(entry(0, 1)) for selection in matching)
    assert not any(selection.matches(entry(0, 1)) for selection in others)
    assert not Selection("jobs", "g").matches(entry(0, 1, None))
