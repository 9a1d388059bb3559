"""The calls of a client that count messages without listing them, and that search the messages that a group can see."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Final, NamedTuple, cast

import trio

from quorumq.client.admin.groups import Start, start_fields
from quorumq.client.admin.peek import Bodies, Peek, PeekCalls, Which, check_which
from quorumq.client.base.context import check_group
from quorumq.client.base.message import MessageId
from quorumq.client.base.names import source_of
from quorumq.client.base.times import positive_of, seconds_of, timeout_of
from quorumq.core import messages as m
from quorumq.core.values.errors import UsageError
from quorumq.core.values.limits import DELAY_MAX_S
from quorumq.core.values.types import PartitionId, Topic
from quorumq.wire.batch import Message as Parts
from quorumq.wire.values import WireSlice

SAMPLES: Final = 3
HOUR_MS: Final = 3_600_000
WITHIN_S: Final = 5.0
SEARCH_PAGE: Final = 200
SEARCH_STEP: Final = 32
"""Messages that a search reads in one step, about half a millisecond."""
TAIL_EVERY_S: Final = 1.0
TAIL_BACK_MS: Final = 60_000
"""Milliseconds before the last answer of a tail's replica at which it begins anew at another one."""
TAIL_SEEN_MAX: Final = 10_000
"""Messages of a partition that a tail remembers, so that it does not yield them twice."""


class DeadLetterKind(NamedTuple):
    """Dead letters of one kind of failure.

    ``messages`` is their number, ``message`` the beginning of the text of one of them, ``versions`` their number by
    version of the consumer, ``hours`` by hour of death (hours since 1970), and ``samples`` ids of some.
    """

    messages: int
    reason: str
    error_class: str
    fingerprint: str
    message: str
    first_died_ms: int
    last_died_ms: int
    versions: dict[str, int]
    hours: dict[int, int]
    samples: tuple[MessageId, ...]


class DeadLetterCounts(NamedTuple):
    """Dead letters of a group by kind, the most frequent first; not ``complete`` if the time was over before."""

    kinds: tuple[DeadLetterKind, ...]
    complete: bool


class RewindCount(NamedTuple):
    """Messages that a rewind would deliver, by their present state; not ``complete`` if the time was over before."""

    messages: int
    states: dict[str, int]
    complete: bool


class Match(NamedTuple):
    """A message that a search found: its id, its state, its publishing time, and its parts."""

    id: MessageId
    peek: Peek
    published_ms: int
    message: Parts


class Search(NamedTuple):
    """Result of a search. ``looked_at`` messages were read, and ``complete`` says if these were all.

    ``of`` is the number of messages in that state, about; None if it is not known.
    """

    matches: tuple[Match, ...]
    looked_at: int
    of: int | None
    complete: bool


class CountCalls(PeekCalls):
    """Calls that count and search messages."""

    async def count_dead_letters(
        self, topic: str, group: str, *, within: float = WITHIN_S, timeout: float | None = None
    ) -> DeadLetterCounts:
        """Count a group's dead letters by kind of failure, as one replica of each partition sees them.

        Nodes count, so that a million dead letters are a few lines. A kind has one fingerprint, one class of
        the error and one reason.

        Args:
            topic, group: name of the topic and of its group; "g!dead" and "t.deadletters" mean the same.
            within: seconds after which the count ends with what it has.

        Raises:
            NotFound: no such topic, or the group was deleted.
            TooFewReplicas: no node answered.
        """
        topic, group = source_of(topic, group)
        register = await self.context.topic(topic, timeout=timeout)
        kinds: dict[tuple[str, str, str], DeadLetterKind] = {}
        complete = True
        async for number, rows in self._counts(topic, group, "dead", 0, within, timeout):
            complete = rows is not None
            for row in rows or ():
                key = row.reason, row.error_class, row.fingerprint
                partition = PartitionId(register.id, number)
                kinds[key] = joined(kinds.get(key), row, partition)
        ordered = sorted(kinds.values(), key=lambda kind: -kind.messages)
        return DeadLetterCounts(tuple(ordered), complete)

    async def count_rewind(
        self, topic: str, group: str, to: Start, *, within: float = WITHIN_S, timeout: float | None = None
    ) -> RewindCount:
        """Count the messages that `rewind` to ``to`` would deliver, by their present state. Nothing is changed.

        It is one replica's view of each partition. Messages that are published meanwhile are not in it.

        Args:
            topic, group, to: as in `rewind`.
            within: seconds after which the count ends with what it has.

        Raises:
            NotFound: no such topic, or no such group of it.
            UsageError: a time that cannot be.
            TooFewReplicas: no node answered.
        """
        word, from_ms = start_fields(to, self.context.wall_ms())
        of = source_of(topic, group)
        check_group(await self.context.metadata(of[0], timeout=timeout), *of)
        states: dict[str, int] = {}
        complete = True
        if word != "latest":
            async for _, rows in self._counts(topic, group, "all", from_ms, within, timeout):
                complete = rows is not None
                for row in rows or ():
                    states[row.state] = states.get(row.state, 0) + row.messages
        return RewindCount(sum(states.values()), states, complete)

    async def search(
        self,
        topic: str,
        group: str,
        which: Which = "all",
        *,
        key: str | None = None,
        header: str | None = None,
        text: str | None = None,
        limit: int = 20,
        look_at: int = 10_000,
        max_bytes: int | None = None,
        look_at_bytes: int | None = None,
        pace: Callable[[int], Awaitable[None]] | None = None,
        timeout: float | None = None,
    ) -> Search:
        """Search the messages of a group by key, headers and payload, oldest first, without holding them.

        The client reads message by message: nodes keep no index. Each given text has to occur in its part of the
        message, in upper or lower case; without any, all messages match.

        Args:
            topic, group, which: as in `peek`.
            key: text within the key.
            header: text within a header, written as NAME=VALUE.
            text: text within the payload.
            limit: matches at most.
            look_at: messages to read at most.
            max_bytes: bytes of matches at most, but for the first one; as many as there are if None.
            look_at_bytes: bytes of messages to read at most; as many as there are if None.
            pace: awaited after each message that was read, with its number from 0 on.

        Raises:
            as `peek` does.
        """
        for part, given in {"key": key, "header": header, "text": text}.items():
            if not isinstance(given, str | None):
                raise UsageError(f"{part} is {given!r}: give text that occurs in it")
        positive_of("limit", limit)
        positive_of("look_at", look_at)
        register = await self.context.topic(source_of(topic, group)[0], timeout=timeout)
        matches: list[Match] = []
        looked_at, complete = 0, True
        remaining = math.inf if max_bytes is None else max_bytes
        unread = math.inf if look_at_bytes is None else look_at_bytes
        pace = pace or let_others_run
        source = self.peek(topic, group, which, bodies=True, page=SEARCH_PAGE, timeout=timeout)
        async with aclosing(source) as peeks:  # type: ignore[type-var]
            async for name, peek, message in readable(register.id, peeks):
                complete = looked_at < look_at and len(matches) < limit and unread > 0
                if not complete:
                    break
                size = size_of(message)
                if is_match(message, key, header, text):
                    complete = remaining >= size or not matches
                    if not complete:
                        break
                    remaining -= size
                    matches.append(Match(name, peek, peek.published_ms, message))
                await pace(looked_at)
                looked_at += 1
                unread -= size
        of = looked_at if complete else await self._count_of(topic, group, which, timeout)
        return Search(tuple(matches), looked_at, of, complete)

    async def tail(
        self,
        topic: str,
        group: str,
        which: Which = "all",
        *,
        every: float = TAIL_EVERY_S,
        timeout: float | None = None,
    ) -> AsyncIterator[Match]:
        """Yield messages as they are published from now on, without holding them. It does not end by itself.

        One replica of each partition is asked again and again. A message that all groups have settled before it is
        asked is not seen, unless the topic has ``retention``; nor is one that this replica gets late.

        Args:
            topic, group, which: as in `peek`; messages in other states at that moment are left out.
            every: seconds between two questions.

        Raises:
            as `peek` does.
        """
        check_which(which)
        every = seconds_of("every", every, DELAY_MAX_S)
        register = await self.context.topic(topic, timeout=timeout)
        begin_ms = self.context.wall_ms()
        tails = [Tail(number, begin_ms, begin_ms) for number in range(register.partitions)]
        while True:
            for tail in tails:
                request = m.PeekRequest(
                    topic, tail.partition, group, which, tail.cursor, SEARCH_PAGE, True,
                    since_ms=tail.since_ms, follow=True,
                )  # fmt: skip
                only = self.context.nodes.addresses_of(register.replicas[tail.partition])
                page, connection = await self._page("tail of", request, only, tail.address, timeout)
                for match in tail.take(page, connection.address, register, self.context.wall_ms()):
                    yield match
            await trio.sleep(every)

    async def _count_of(self, topic: str, group: str, which: Which, timeout: float | None) -> int | None:
        count = 0
        async for _, rows in self._counts(topic, group, which, 0, WITHIN_S, timeout):
            if rows is None:
                return None
            count += sum(row.messages for row in rows)
        return count

    async def _counts(
        self, topic: str, group: str, which: str, since_ms: int, within: float, timeout: float | None
    ) -> AsyncIterator[tuple[int, tuple[m.StateCount, ...] | None]]:
        """Yield each partition's number and rows; rows are None at the end if the time is over."""
        end = trio.current_time() + timeout_of(within, "within")
        topic, group = source_of(topic, group) if which == "dead" else (topic, group)
        register = await self.context.topic(topic, timeout=timeout)
        for number in range(register.partitions):
            only = self.context.nodes.addresses_of(register.replicas[number])
            rows: list[m.StateCount] = []
            cursor: tuple[int, int] | None = (0, 0)
            first = ""
            while cursor is not None:
                request = m.PeekRequest(
                    topic, number, group, which, cursor, 1, counted=True, since_ms=since_ms
                )
                page, connection = await self._page("count of", request, only, first, timeout)
                if first not in ("", connection.address):  # a cursor is the replica's own: count anew
                    rows, cursor, first = [], (0, 0), connection.address
                    continue
                first = connection.address
                rows += page.counts
                cursor = page.cursor
                if cursor is not None and trio.current_time() >= end:
                    yield number, tuple(rows)
                    yield number, None
                    return
            yield number, tuple(rows)


@dataclass(eq=False)
class Tail:
    """Place of a tail in one partition. A cursor is a replica's own: at another replica it begins anew, from a time.

    Attributes:
        since_ms: that time, until the end of what the other replica has. 0 while cursors count alone: producers' clocks
            may be wrong.
    """

    partition: int
    begin_ms: int
    answered_ms: int
    since_ms: int = 0
    cursor: tuple[int, int] = (-1, 0)
    address: str = ""
    seen: OrderedDict[MessageId, None] = field(default_factory=OrderedDict)

    def take(self, reply: m.PeekReply, address: str, topic: Topic, now_ms: int) -> list[Match]:
        """Move on, and return the messages that are new."""
        if self.address not in ("", address):
            self.address, self.cursor = address, (0, 0)
            self.since_ms = max(self.begin_ms, self.answered_ms - TAIL_BACK_MS)
            return []
        if reply.cursor == self.cursor:
            self.since_ms = 0
        self.answered_ms = now_ms
        self.address, self.cursor = address, reply.cursor or (0, 0)
        bodies = Bodies(cast("tuple[WireSlice, ...]", reply.slices))
        matches = []
        for item in reply.items:
            peek = Peek(topic.name, self.partition, item, *bodies.within(item.span))
            for name in peek.ids(topic.id):
                if name.seq in peek.bodies and name not in self.seen:
                    self.seen[name] = None
                    matches.append(Match(name, peek, peek.published_ms, peek.bodies[name.seq]))
        while len(self.seen) > TAIL_SEEN_MAX:
            self.seen.popitem(last=False)
        return matches


async def readable(topic: bytes, peeks: AsyncIterator[Peek]) -> AsyncIterator[tuple[MessageId, Peek, Parts]]:
    """Yield each message that has its body."""
    async for peek in peeks:
        for name in peek.ids(topic):
            if name.seq in peek.bodies:
                yield name, peek, peek.bodies[name.seq]


def joined(kind: DeadLetterKind | None, row: m.StateCount, partition: PartitionId) -> DeadLetterKind:
    """Return a kind of failure with a row of counts added."""
    if kind is None:
        kind = DeadLetterKind(
            0, row.reason, row.error_class, row.fingerprint, row.message,
            row.first_died_ms, row.last_died_ms, {}, {}, (),
        )  # fmt: skip
    versions, hours = dict(kind.versions), dict(kind.hours)
    versions[row.version] = versions.get(row.version, 0) + row.messages
    hour = row.first_died_ms // HOUR_MS
    hours[hour] = hours.get(hour, 0) + row.messages
    sample = MessageId(partition, row.sample.producer_id, row.sample.start)
    return kind._replace(
        messages=kind.messages + row.messages,
        first_died_ms=min(kind.first_died_ms, row.first_died_ms),
        last_died_ms=max(kind.last_died_ms, row.last_died_ms),
        versions=versions,
        hours=hours,
        samples=(*kind.samples, sample)[:SAMPLES],
    )


async def let_others_run(number: int) -> None:
    """Let other tasks run after each `SEARCH_STEP` messages."""
    if number % SEARCH_STEP == SEARCH_STEP - 1:
        await trio.lowlevel.checkpoint()


def size_of(message: Parts) -> int:
    """Return the bytes of a message's payload, key and headers, about."""
    headers = sum(
        len(name) + len(value) for name, value in message.headers.items() if isinstance(value, str | bytes)
    )
    return len(message.payload or b"") + len(message.key or b"") + headers


def is_match(message: Parts, key: str | None, header: str | None, text: str | None) -> bool:
    """Return True if each given text occurs in its part of the message, in any case of its characters."""

    def within(part: str | None, *values: bytes) -> bool:
        return not part or any(
            part.casefold() in value.decode(errors="replace").casefold() for value in values
        )

    headers = (
        name.encode()
        + b"="
        + (bytes(value) if isinstance(value, bytes | memoryview) else str(value).encode())
        for name, value in message.headers.items()
    )
    return (
        within(key, bytes(message.key or b""))
        and within(text, bytes(message.payload or b""))
        and within(header, *headers)
    )
