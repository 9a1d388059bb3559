"""Peeked messages, cut into the lists that one request takes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from quorumq.client import Peek


async def pieces(items: AsyncIterator[Peek], most: int) -> AsyncIterator[list[Peek]]:
    """Yield the items in lists of at most ``most`` messages, spans cut where they must be."""
    piece: list[Peek] = []
    room = most
    async for item in items:
        rest = item.peeked.span
        while rest.size:
            piece.append(first(item._replace(peeked=item.peeked._replace(span=rest)), room))
            taken = piece[-1].peeked.span
            rest = rest._replace(start=taken.stop)
            room -= taken.size
            if not room:
                yield piece
                piece, room = [], most
    if piece:
        yield piece


async def each(items: Iterable[Peek]) -> AsyncIterator[Peek]:
    """Yield items that are there, for a function that takes them as they come."""
    for item in items:
        yield item


def first(item: Peek, most: int) -> Peek:
    """Cut to the first ``most`` of its messages."""
    span = item.peeked.span
    return item._replace(
        peeked=item.peeked._replace(span=span._replace(stop=min(span.stop, span.start + most)))
    )
