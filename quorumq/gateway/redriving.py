"""Redrive of dead letters within one request."""

from __future__ import annotations

from contextlib import aclosing
from typing import NamedTuple

from quorumq.client import Client
from quorumq.client.admin.peek import Peek
from quorumq.client.admin.selection import Selection, chosen, chunked


class Done(NamedTuple):
    """Result: messages redriven, messages that were settled or redriven before, and True if more may be remaining."""

    redriven: int
    already: int
    more: bool


async def redrive_some(client: Client, selection: Selection, limit: int) -> Done:
    """Redrive up to ``limit`` of the chosen dead letters."""
    async with aclosing(chunked(chosen(client, selection), limit)) as chunks:
        items: list[Peek] = await anext(chunks, [])
        more = bool(await anext(chunks, []))
    if not items:
        return Done(0, 0, False)
    redriven = await client.redrive(selection.topic, selection.group, items)
    return Done(redriven.messages, sum(span.size for span, _ in redriven.refused), more)
