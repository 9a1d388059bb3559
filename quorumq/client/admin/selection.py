"""Dead letters that are chosen by their ids or by kind of failure, in lists that one request takes."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final, NamedTuple

import trio

from quorumq.client.admin.peek import Peek, PeekCalls
from quorumq.core.values.errors import AlreadySettled
from quorumq.core.values.types import Record

REDRIVE_MESSAGES: Final = 10_000
"""Messages of one request without a rate; with one, a request has those due in a tenth of a second."""


class Selection(NamedTuple):
    """Choice of dead letters: of ``ids``, if there are any, those that match the others; None matches all."""

    topic: str
    group: str
    fingerprint: str | None = None
    error_class: str | None = None
    reason: str | None = None
    partition: int | None = None
    ids: tuple[str, ...] | None = None

    def matches(self, peek: Peek) -> bool:
        """Return True if a message is a dead letter and chosen."""
        death = peek.peeked.record.death
        return death is not None and self.fits(death.fingerprint, death.error_class, death.reason)

    def fits(self, fingerprint: str, error_class: str, reason: str) -> bool:
        """Return True if a kind of failure is chosen."""
        return (
            self.fingerprint in (None, fingerprint)
            and self.error_class in (None, error_class)
            and self.reason in (None, reason)
        )


async def chosen(client: PeekCalls, selection: Selection) -> AsyncGenerator[Peek, None]:
    """Yield the chosen dead letters, in the order of partitions and ids."""
    topic, group, *_, partition, ids = selection
    if ids is not None:
        for peek in (await client.lookup(topic, group, ids)).values():
            if selection.matches(peek):
                yield peek
        return
    async with aclosing(client.peek(topic, group, "dead", partition=partition, complete=True)) as peeks:  # type: ignore[type-var]
        async for peek in peeks:
            if selection.matches(peek):
                yield peek


async def chunked(
    items: AsyncGenerator[Peek, None], most: int, limit: float = math.inf
) -> AsyncGenerator[list[Peek], None]:
    """Yield entries as a redrive names them, in lists of ``most`` messages, and close their source at the end.

    Args:
        items: the entries; one that does not fit into a list is divided.
        most: messages of a list.
        limit: messages of all lists together.
    """
    chunk: list[Peek] = []
    capacity = most
    async with aclosing(items):
        async for item in items:
            whole, rest = bare(item), item.peeked.span
            while rest.size and limit:
                part = first(whole._replace(peeked=whole.peeked._replace(span=rest)), min(capacity, limit))
                chunk.append(part)
                taken = part.peeked.span
                rest = rest._replace(start=taken.stop)
                capacity, limit = capacity - taken.size, limit - taken.size
                if not capacity:
                    yield chunk
                    chunk, capacity = [], most
            if not limit:
                break
    if chunk:
        yield chunk


async def redriven(
    client: PeekCalls,
    topic: str,
    group: str,
    items: AsyncGenerator[Peek, None],
    *,
    rate: float | None = None,
    limit: float = math.inf,
) -> AsyncGenerator[tuple[int, int], None]:
    """Redrive dead letters in several requests, and close their source at the end.

    Args:
        items: the dead letters.
        rate: messages a second at most; None is as fast as it goes.
        limit: messages of all requests together.

    Yields:
        for each request how many messages it redrove, and how many had been redriven, purged or acked before.
    """
    most = REDRIVE_MESSAGES if rate is None else max(1, min(REDRIVE_MESSAGES, int(rate / 10)))
    due = 0.0
    async with aclosing(chunked(items, most, limit)) as chunks:
        async for chunk in chunks:
            if rate is not None:
                await trio.sleep_until(due)
                # From the later of the two, so that a slow cluster is not made up for by a burst.
                due = max(due, trio.current_time()) + sum(item.peeked.span.size for item in chunk) / rate
            done = await client.redrive(topic, group, chunk)
            for _, error in done.refused:
                if not isinstance(error, AlreadySettled):
                    raise error
            yield done.messages, sum(span.size for span, _ in done.refused)


def first(item: Peek, most: float) -> Peek:
    """Return an entry with the first ``most`` of its messages."""
    span = item.peeked.span
    stop = int(min(span.stop, span.start + most))
    return item._replace(peeked=item.peeked._replace(span=span._replace(stop=stop)))


def bare(item: Peek) -> Peek:
    """Return an entry without the history of the dead letter: generation and redrive number say which it is."""
    return item._replace(peeked=item.peeked._replace(record=Record(*item.peeked.record[:3])))
