"""The calls of a client that look at messages without holding them, and redrive dead letters."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any, Final, Literal, NamedTuple, cast, get_args

from quorumq.client.base.context import Calls
from quorumq.client.base.message import MessageId, check_topic, ids_of
from quorumq.client.base.names import names_of, source_of
from quorumq.client.consume.fetching import readable
from quorumq.client.transport.connection import Connection
from quorumq.client.transport.nodes import after_some
from quorumq.core import messages as m
from quorumq.core.values.errors import (
    AlreadySettled,
    Code,
    NotFound,
    OutcomeUnknown,
    QuorumqError,
    Unanswered,
    UsageError,
    error_from,
)
from quorumq.core.values.printable import plural
from quorumq.core.values.types import Kind, PartitionId, ProducerId, Span, just_before
from quorumq.wire.batch import Message as Parts
from quorumq.wire.values import WireSlice

PEEK_LIMIT: Final = 500
REDRIVE_ENTRIES_MAX: Final = 1000
LOOKUP_FIRST: Final = 16
"""Items of the first page of a lookup: more only if the requested messages are close together."""

Which = Literal["ready", "held", "delayed", "acked", "dead", "skipped", "purged", "all"]


class Peek(NamedTuple):
    """Some messages of one partition, as one replica sees them, or several together."""

    topic: str
    partition: int
    peeked: m.Peeked
    published_ms: int  # 0 if no bodies were requested, or the node has none
    bodies: dict[int, Parts]  # by number, if bodies were requested

    def ids(self, topic: bytes) -> list[MessageId]:
        """Return the ids of the messages, given the topic's id."""
        producer_id, start, stop = self.peeked.span
        return [MessageId(PartitionId(topic, self.partition), producer_id, seq) for seq in range(start, stop)]


class Redriven(NamedTuple):
    """Result of a redrive."""

    messages: int
    refused: tuple[tuple[Span, QuorumqError], ...]  # already acked, purged or redriven since


class PeekCalls(Calls):
    """Calls that list messages, look up their state, and redrive dead letters."""

    async def peek(
        self,
        topic: str,
        group: str,
        which: Which = "ready",
        *,
        partition: int | None = None,
        bodies: bool = False,
        complete: bool = False,
        limit: int | None = None,
        page: int = PEEK_LIMIT,
        node: str | None = None,
        timeout: float | None = None,
    ) -> AsyncIterator[Peek]:
        """Look at messages without holding them: one replica's view, oldest first within each partition.

        Args:
            topic, group: names; dead letters are listed for "g" with ``which="dead"``, and for "g!dead" as that
                queue has them: ready, held or delayed.
            which: state of the messages to list.
            partition: only this one; all if None.
            complete: ask several replicas, so that everything that a majority has is there, in the order of ids.
            bodies: bring keys, headers and payloads along, if the answering replica has them.
            limit: messages in all, about; all of them if None.
            page: entries, messages that are alike and follow each other, that one request brings at most.
            node: ask only this one (id or address).

        Raises:
            NotFound: no such topic or partition.
            UsageError: bodies of a complete view are asked for.
            TooFewReplicas: no node answered, or too few replicas for a complete view.
        """
        from quorumq.core.values.spans import SpanSet  # not imported by programs that only publish

        check_which(which)
        if complete and bodies:
            raise UsageError("a complete view has no bodies: ask for one of the two")
        (topic,), group = names_of((topic,), group)
        register = await self.context.topic(topic, timeout=timeout)
        numbers = range(register.partitions) if partition is None else (partition,)
        nodes = self.context.nodes
        remaining = limit
        for number in numbers:
            members = register.replicas[number] if number < register.partitions else ()
            only = (nodes.address_of(node),) if node is not None else nodes.addresses_of(members)
            cursor: tuple[int, int] | None = (0, 0)
            after: Span | None = None
            first = ""
            shown = SpanSet()
            history = self.context.history
            asked = history.clock() if history is not None else 0.0
            while cursor is not None and (remaining is None or remaining > 0):
                # A page of a complete view is looked through as a whole: what it shows may be little of it.
                most = PEEK_LIMIT if complete else min(remaining or page, page)
                request = m.PeekRequest(topic, number, group, which, cursor, most, bodies, complete, after)
                answer, connection = await self._page("peek at", request, only, first, timeout)
                moved = first not in ("", connection.address)
                first = connection.address
                if moved and cursor != (0, 0):  # a cursor is the replica's own: this one begins anew
                    cursor = (0, 0)
                    continue
                contents = Bodies(cast("tuple[WireSlice, ...]", answer.slices))
                if history is not None:
                    history.listed(topic, number, group, answer.items, connection.node, complete)
                for item in answer.items:
                    for span in shown.add(item.span):
                        if remaining is not None:
                            remaining -= span.size
                        yield Peek(topic, number, item._replace(span=span), *contents.within(span))
                cursor = answer.cursor
                if complete and answer.upto is not None:
                    cursor, after = (0, 0), answer.upto
                if history is not None and complete and cursor is None:
                    history.listed_all(topic, number, group, which, asked)

    async def _page(
        self, action: str, request: m.PeekRequest, only: Sequence[str], first: str, timeout: float | None
    ) -> tuple[m.PeekReply, Connection]:
        """Return a page of a listing, from ``first`` if that node answers, and its connection."""
        reply, connection = await self.context.nodes.ask(
            lambda: request,
            action=f"{action} {request.topic!r}/{request.partition}",
            timeout=self.context.time(timeout),
            writes=False,
            only=only,
            first=first,
        )
        return cast("m.PeekReply", reply), connection

    async def lookup(
        self,
        topic: str,
        group: str,
        ids: Iterable[MessageId | str] | MessageId | str,
        *,
        timeout: float | None = None,
    ) -> dict[MessageId, Peek]:
        """Return the state of messages for a group, as a majority knows it.

        Args:
            topic, group: name of the topic and of its group; "g!dead" and "t.deadletters" mean the same.
            ids: ids of messages of that topic, in any order; also as text, and one alone.

        Returns:
            for each message its record and state, without bodies. A message that no replica which answered knows is
            left out.

        Raises:
            NotFound: no such topic or partition.
            UsageError: an id is of another topic.
            TooFewReplicas: too few replicas answered.
        """
        topic, group = source_of(topic, group)
        register = await self.context.topic(topic, timeout=timeout)
        by_partition: dict[int, list[MessageId]] = {}
        for name in sorted(ids_of(ids)):
            check_topic(name, register)
            by_partition.setdefault(name.partition.number, []).append(name)
        peeks: dict[MessageId, Peek] = {}
        for number, names in by_partition.items():
            members = register.replicas[number] if number < register.partitions else ()
            at, most = 0, LOOKUP_FIRST
            after: Span | None = None
            while at < len(names):
                # Messages between are skipped. But a page may end before the message, and then the next one follows it.
                skip = just_before(names[at].producer_id, names[at].seq)
                if after is None or (
                    skip is not None and (skip.producer_id, skip.stop) > (after.producer_id, after.stop)
                ):
                    after = skip
                request = m.PeekRequest(topic, number, group, "all", (0, 0), most, False, True, after)
                action, only = f"look at {topic!r}/{number}", self.context.nodes.addresses_of(members)
                page: m.PeekReply = await self.context.ask(request, action, timeout, writes=False, only=only)
                begin = at
                for item in page.items:
                    span = item.span
                    while at < len(names) and names[at][1:] < (span.producer_id, span.start):
                        at += 1
                    while at < len(names) and names[at][1:] < (span.producer_id, span.stop):
                        one = span._replace(start=names[at].seq, stop=names[at].seq + 1)
                        peeks[names[at]] = Peek(topic, number, item._replace(span=one), 0, {})
                        at += 1
                after = page.upto
                while at < len(names) and (after is None or names[at][1:] < (after.producer_id, after.stop)):
                    at += 1
                # Messages that are close together are worth long pages, others short ones.
                most = min(2 * most, PEEK_LIMIT) if 2 * (at - begin) >= len(page.items) else LOOKUP_FIRST
        return peeks

    async def redrive(
        self,
        topic: str,
        group: str,
        items: Iterable[Peek | MessageId | str] | Peek | MessageId | str,
        *,
        timeout: float | None = None,
    ) -> Redriven:
        """Make dead letters available again, to that group only, with fresh attempts.

        Args:
            topic, group: name of the topic and of its group; "g!dead" and "t.deadletters" mean the same.
            items: as `peek` listed them (``which="dead"``), which done twice is done once; or ids, also as text, of
                dead letters as they are now.

        Returns:
            how many messages were redriven, and which were refused because they are no longer dead letters.

        Raises:
            NotStored: too few replicas answered, and nothing was redriven.
            OutcomeUnknown: too few replicas answered, and some may be redriven: redrive the same items again.
        """
        topic, group = source_of(topic, group)
        by_partition: dict[int, list[m.SpanRecord]] = {}
        for item in await self._peeks_of(topic, group, items, timeout):
            if item.peeked.record.kind != Kind.DEAD:
                raise UsageError(f"{item.peeked.span} is {item.peeked.record.kind.name}, not a dead letter")
            entry = m.SpanRecord(item.peeked.span, item.peeked.record)
            by_partition.setdefault(item.partition, []).append(entry)
        count = 0
        refused: list[tuple[Span, QuorumqError]] = []
        for partition, entries in by_partition.items():
            for at in range(0, len(entries), REDRIVE_ENTRIES_MAX):
                chunk = tuple(entries[at : at + REDRIVE_ENTRIES_MAX])
                request = m.RedriveRequest(topic, partition, group, chunk)
                try:
                    reply = await self.context.ask(
                        request,
                        f"redrive of {topic!r}/{partition}",
                        timeout,
                        writes=True,
                        check=check_redrive,
                        watch=self.context.watch("redrive"),
                    )
                except Unanswered as exc:
                    if not count:
                        raise
                    raise after_some(exc, f"redrove {plural(count, 'message')}") from exc
                for verdict in reply.verdicts:
                    if verdict.outcome == "ok":
                        count += verdict.span.size
                    else:
                        refused.append((verdict.span, error_from(verdict.outcome, verdict.detail)))
        return Redriven(count, tuple(refused))

    async def _peeks_of(self, topic: str, group: str, items: Any, timeout: float | None) -> list[Peek]:
        """Return the items given to `redrive`, with ids among them looked up."""
        alone = isinstance(items, Peek | MessageId | str) or not isinstance(items, Iterable)
        given = [items] if alone else list(items)
        names = ids_of(item for item in given if not isinstance(item, Peek))
        known = await self.lookup(topic, group, names, timeout=timeout) if names else {}
        for name in names - known.keys():
            raise NotFound(f"no replica that answered knows {name}")
        return [item for item in given if isinstance(item, Peek)] + [known[name] for name in sorted(names)]


def check_which(which: str) -> None:
    """Raise UsageError if this is no state of messages."""
    if which not in get_args(Which):
        raise UsageError(f"which is {which!r}: give one of {', '.join(get_args(Which))}")


def check_redrive(reply: m.ClientReply) -> QuorumqError | None:
    """Ask again as a whole while anything is unknown: redriving twice is redriving once."""
    for verdict in cast("m.SettleReply", reply).verdicts:
        if verdict.outcome not in ("ok", AlreadySettled.code, Code.USAGE):
            error = error_from(verdict.outcome, verdict.detail)
            return error if isinstance(error, Unanswered) else OutcomeUnknown(str(error))
    return None


class Bodies:
    """Bodies of the messages of a page, those of one slice decoded when they are asked for.

    Why: a page may have 8 MiB, whose bodies take 50 ms in which no other task runs.
    """

    def __init__(self, slices: Sequence[WireSlice]) -> None:
        self._slices = slices
        self._locations: dict[ProducerId, list[tuple[int, int, int]]] = {}  # first number, end, slice
        self._decoded: dict[int, dict[tuple[ProducerId, int], tuple[int, Parts]]] = {}
        for number, part in enumerate(slices):
            for producer_id, start, stop in part.header.spans:
                self._locations.setdefault(producer_id, []).append((start, stop, number))

    def within(self, span: Span) -> tuple[int, dict[int, Parts]]:
        """Return the earliest published time and the parts, by number, of the messages in ``span``."""
        locations = self._locations.get(span.producer_id, ())
        needed = [number for start, stop, number in locations if start < span.stop and span.start < stop]
        self._decoded = {
            number: self._decoded.get(number) or bodies_of(self._slices[number]) for number in needed
        }
        mine = {
            seq: bodies[(span.producer_id, seq)]
            for bodies in self._decoded.values()
            for seq in range(span.start, span.stop)
            if (span.producer_id, seq) in bodies
        }
        published = min((time for time, _ in mine.values()), default=0)
        return published, {seq: parts for seq, (_, parts) in mine.items()}


def bodies_of(part: WireSlice) -> dict[tuple[ProducerId, int], tuple[int, Parts]]:
    """Return published time and parts of each message in a slice; those that are damaged are left out."""
    bodies: dict[tuple[ProducerId, int], tuple[int, Parts]] = {}
    parts = iter(readable(part))
    for producer_id, start, stop in part.header.spans:
        for seq in range(start, stop):
            body = next(parts)
            if body is not None:
                bodies[(producer_id, seq)] = (part.header.published_ms, body)
    return bodies
