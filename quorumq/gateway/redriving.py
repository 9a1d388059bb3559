"""Redrive of dead letters that are chosen by ids, or by kind of failure: some at a time."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import NamedTuple

from quorumq.client import Client, Peek
from quorumq.core.values.types import Record
from quorumq.gateway.jsonapi.shapes import dead_letter_of


class Selection(NamedTuple):
    """Choice of dead letters: of ``ids``, if there are any, those that match the others; None matches all."""

    topic: str
    group: str
    fingerprint: str | None = None
    error_class: str | None = None
    ids: tuple[str, ...] | None = None
    reason: str | None = None

    def matches(self, peek: Peek) -> bool:
        """Return True if a message is a dead letter and chosen."""
        history = dead_letter_of(peek.peeked.record)
        return history is not None and self.fits(history.fingerprint, history.error_class, history.reason)

    def fits(self, fingerprint: str, error_class: str, reason: str) -> bool:
        """Return True if a kind of failure is chosen."""
        return (
            self.fingerprint in (None, fingerprint)
            and self.error_class in (None, error_class)
            and self.reason in (None, reason)
        )


def bare(record: Record) -> Record:
    """Return a record as a redrive names it: without the history of the dead letter."""
    return Record(*record[:3])


class Done(NamedTuple):
    """Result: messages redriven, messages that were settled or redriven before, and True if more may be remaining."""

    redriven: int
    already: int
    more: bool


async def chosen(client: Client, selection: Selection) -> AsyncGenerator[Peek, None]:
    """Yield the chosen dead letters, in the order of partitions and ids."""
    if selection.ids is not None:
        for peek in (await client.lookup(selection.topic, selection.group, selection.ids)).values():
            if selection.matches(peek):
                yield peek
        return
    async with aclosing(client.peek(selection.topic, selection.group, "dead", complete=True)) as peeks:  # type: ignore[type-var]
        async for peek in peeks:
            if selection.matches(peek):
                yield peek


async def redrive_some(client: Client, selection: Selection, limit: int) -> Done:
    """Redrive up to ``limit`` of the chosen dead letters."""
    items: list[Peek] = []
    size, more = 0, False
    async with aclosing(chosen(client, selection)) as peeks:
        async for peek in peeks:
            remaining = limit - size
            if remaining <= 0:
                more = True
                break
            span = peek.peeked.span
            if span.size > remaining:
                more = True
                span = span._replace(stop=span.start + remaining)
            record = bare(peek.peeked.record)
            items.append(peek._replace(peeked=peek.peeked._replace(span=span, record=record)))
            size += span.size
    if not items:
        return Done(0, 0, False)
    redriven = await client.redrive(selection.topic, selection.group, items)
    return Done(redriven.messages, sum(span.size for span, _ in redriven.refused), more)
