"""One fetch from several sources: pairs of a topic and a group, dead letters among them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import trio

from quorumq.client.base.message import Message
from quorumq.core.values.errors import QuorumqError, UsageError

SOURCES_MAX = 64
"""Sources of one fetch: each waits in a request of its own."""

Source = tuple[str, str]
"""A topic, and a group that reads it."""

Fetch = Callable[..., Awaitable[list[Message]]]
"""Fetches from one source; the arguments are topic, group, and by name ``max_messages``, ``max_wait`` and ``idle``."""


def check_sources(sources: Sequence[Source]) -> None:
    """Raise UsageError if one of these is no source, or they are too many."""
    if not isinstance(sources, Sequence) or isinstance(sources, str | bytes):
        raise UsageError(f"sources is {sources!r}: give a list of pairs of topic and group")
    if not 0 < len(sources) <= SOURCES_MAX:
        raise UsageError(
            f"{len(sources)} sources are given: give 1 to {SOURCES_MAX} pairs of topic and group"
        )
    for source in sources:
        if not (isinstance(source, tuple | list) and len(source) == 2):
            raise UsageError(f"{source!r} is no source: give pairs of topic and group")


async def fetch_several(
    fetch: Fetch,
    give_back: Callable[[list[Message]], Awaitable[None]],
    sources: Sequence[Source],
    *,
    max_messages: int,
    max_wait: float,
    idle: bool,
) -> list[Message]:
    """Take ready messages, source by source in the given order; else wait at all of them for the first that has some.

    Suspects are of one source, with nothing beside them. Messages of another one, or beyond
    ``max_messages``, are given back; so is everything if one source fails, or if this is cancelled.

    Raises:
        QuorumqError: a source failed before another one had messages.
    """
    messages: list[Message] = []
    try:
        for topic, group in sources:
            most = max_messages - len(messages)
            more = await fetch(topic, group, max_messages=most, max_wait=0.0, idle=idle and not messages)
            messages += more
            if len(messages) >= max_messages or any(message.suspect for message in more):
                break
        if messages or max_wait <= 0:
            return messages
        errors: list[QuorumqError] = []
        batches: list[list[Message]] = []
        async with trio.open_nursery() as nursery:

            async def wait(topic: str, group: str) -> None:
                try:
                    batch = await fetch(topic, group, max_messages=max_messages, max_wait=max_wait, idle=idle)
                except QuorumqError as error:
                    errors.append(error)
                    nursery.cancel_scope.cancel()
                    return
                if batch:
                    batches.append(batch)
                    messages.extend(batch)
                    nursery.cancel_scope.cancel()

            for topic, group in sources:
                nursery.start_soon(wait, topic, group)
        if errors and not messages:
            raise errors[0]
        lots = [batch for batch in batches if any(message.suspect for message in batch)]
        kept = lots[0] if lots else messages[:max_messages]
        rest = [message for message in messages if message not in kept]
    except BaseException:
        await _shielded(give_back, messages)
        raise
    await _shielded(give_back, rest)
    return kept


async def _shielded(give_back: Callable[[list[Message]], Awaitable[None]], messages: list[Message]) -> None:
    if messages:
        with trio.CancelScope(shield=True):
            await give_back(messages)
