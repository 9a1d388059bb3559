"""Tables out of a running cluster, by PEEK alone: nothing is held, counted or consumed.

One Spark task looks at one topic partition. It asks each replica for spans first, which costs little, so that it knows
the messages of each. Then it asks one after the other for bodies, page by page, until it has all listed messages.
It keeps only spans in memory; a page is at most 8 MiB.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Final, cast

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from quorumq.client.blocking import Client, connect
from quorumq.core import messages as m
from quorumq.core.values.errors import QuorumqError, TooFewReplicas
from quorumq.core.values.spans import SpanMap, SpanSet
from quorumq.core.values.types import PartitionId, Record, Span
from quorumq.wire.batch import Message
from quorumq.wire.values import WireSlice

from .arrow import Batches, Same, Values, known_time, small, time_of
from .causes import Rank, columns_of, text_bytes
from .options import Options, Wanted
from .reader import CONTENT, content, names

PAGE: Final = 500
"""Items of one page."""

MEMBER_TIMEOUT_S: Final = 5.0
"""Seconds that one replica may take to answer, if others can be asked."""

ROWS_AT_ONCE: Final = 256
"""Dead letters of one block of rows: each may have 16 KiB of text."""

NO_GROUP: Final = "!spark"
"""A group that cannot be: to it, every message is ready. Looking at a group does not create it."""

Block = Iterator[pa.RecordBatch]
"""The batches that are full once some rows are added."""


Held = tuple[Rank, int]
"""State of a message for a group: the highest record, and a bit mask of the nodes that have it."""


def higher(new: Held, old: Held | None) -> Held:
    """Return the record of two that wins, with the nodes that have it."""
    if old is None or new[0].order() > old[0].order():
        return new
    return (old[0], old[1] | new[1]) if new[0] == old[0] else old


@dataclass(eq=False)
class LiveTask(InputPartition):
    """One topic partition."""

    topic: str
    key: PartitionId
    members: tuple[str, ...]  # the nodes of its replica set
    groups: tuple[str, ...]  # those that are wanted


def plan(options: Options, selection: Wanted) -> list[LiveTask]:
    """Return one task for each topic partition.

    Raises:
        TooFewReplicas: no node answered within the timeout; names the nodes tried.
    """
    with connect(options.nodes, timeout=options.timeout) as client:
        reply = client.metadata()
    tasks: list[LiveTask] = []
    for topic in reply.topics:
        if topic.deleted or not (
            selection.may_be("topic", topic.name) and selection.may_be("topic_id", topic.id.hex())
        ):
            continue
        groups = sorted(
            group.name
            for group in reply.groups
            if group.topic == topic.id
            and (options.groups is None or group.name in options.groups)
            and selection.may_be("group", group.name)
        )
        for number, members in enumerate(topic.replicas):
            if options.chooses(topic.name) and selection.may_be("partition", number):
                tasks.append(LiveTask(topic.name, PartitionId(topic.id, number), members, tuple(groups)))
    return tasks


def read(task: LiveTask, options: Options, selection: Wanted, schema: StructType) -> Iterator[pa.RecordBatch]:
    out = Batches(schema)
    with connect(options.nodes, timeout=options.timeout) as client:
        client.metadata()  # where the members are
        for block in getattr(Looker(client, task, options, out), options.table)():
            yield from block
    yield from out.rest()


@dataclass(eq=False)
class Looker:
    """Looks at one topic partition. A method for each table: blocks of rows, each to be taken at once."""

    client: Client
    task: LiveTask
    options: Options
    out: Batches
    asked: list[str] = field(default_factory=list)  # members that answered
    unpacked: tuple[WireSlice, list[Message]] | None = None  # the slice that was looked at last

    # ------------------------------------------------------------------ pages

    def pages(
        self, group: str, which: str, *, member: str = "", bodies: bool = False, complete: bool = False
    ) -> Iterator[m.PeekReply]:
        """Yield a listing, page by page; if bodies are asked for, each page has those of all its items."""
        cursor: tuple[int, int] | None = (0, 0)
        after: Span | None = None
        limit = PAGE
        nodes = self.client.inner.nodes
        addresses = (nodes.address_of(member),) if member else nodes.addresses_of(self.task.members)
        timeout = min(self.options.timeout, MEMBER_TIMEOUT_S) if member else self.options.timeout
        while cursor is not None:
            request = m.PeekRequest(
                self.task.topic, self.task.key.number, group, which, cursor, limit, bodies, complete, after
            )
            reply, _ = self.client.portal.call(
                nodes.ask,
                lambda request=request: request,
                action=f"peek at {self.task.topic!r}/{self.task.key.number}",
                timeout=timeout,
                writes=False,
                only=addresses,
            )
            page = cast("m.PeekReply", reply)
            if bodies and page.items and limit > 1:
                whole = SpanSet.from_spans(span for part in page.slices for span in part.header.spans)
                covered = 0
                while covered < len(page.items) and whole.covers(page.items[covered].span):
                    covered += 1
                if covered < len(page.items):
                    limit = max(1, covered)  # as many as one answer can bring
                    continue
            limit = PAGE
            yield page
            cursor = page.cursor
            if complete and page.upto is not None:
                cursor, after = (0, 0), page.upto

    def of_each(self, group: str, which: str) -> Iterator[tuple[m.Peeked, int]]:
        """Yield the items of every replica, each with the replica's bit; what a majority has is seen.

        Raises:
            TooFewReplicas: fewer answered than that needs.
        """
        failures: list[str] = []
        self.asked = []
        for at, member in enumerate(self.task.members):
            try:
                for page in self.pages(group, which, member=member):
                    yield from ((item, 1 << at) for item in page.items)
            except QuorumqError as error:
                failures.append(f"{member}: {error}")
            else:
                self.asked.append(member)
        needed = (len(self.task.members) + 1) // 2
        if len(self.asked) < needed:
            raise TooFewReplicas(
                f"{self.task.topic}/{self.task.key.number}: {'; '.join(failures)}; read again",
                needed=needed,
                answered=len(self.asked),
            )

    def nodes_of(self, mask: int) -> list[str]:
        return sorted(member for at, member in enumerate(self.task.members) if mask >> at & 1)

    # ------------------------------------------------------------------ messages

    def messages(self) -> Iterator[Block]:
        have: SpanMap[int] = SpanMap()
        for item, node in self.of_each(NO_GROUP, "all"):
            have.update(item.span, lambda old, node=node: (old or 0) | node)  # type: ignore[misc]
        if not self.out.wants(*CONTENT, "crc", "published_at"):
            for span, mask in have.items():
                yield self._message(span, mask, None, 0)
            return
        for member in self.asked:
            if not have:
                break
            for page in self.pages(NO_GROUP, "all", member=member, bodies=True):
                for part, first, span in spans_of(page):
                    for chunk, mask in have.within(span):
                        yield self._message(chunk, mask, part, first + chunk.start - span.start)
                        have.remove(chunk)
        # The rest was reclaimed since it was listed: every group is done with it.

    def _message(self, span: Span, mask: int, part: WireSlice | None, first: int) -> Block:
        messages, crcs, size = self._content(span, part, first)
        return self.out.add(
            span.size,
            size,
            {
                **names(self.task.key, span, self.task.topic),
                **content(messages, crcs),
                "published_at": Same(time_of(0 if part is None else part.header.published_ms)),
                "delay_ms": Same(None),
                "ttl_ms": Same(None),
                "replicas": Same(self.nodes_of(mask)),
                "damaged": Same([]),
                "reclaimed": Same([]),
                "asked": Same(sorted(self.asked)),
                "replica_set": Same(sorted(self.task.members)),
            },
        )

    def _content(
        self, span: Span, part: WireSlice | None, first: int
    ) -> tuple[list[Message | None], Values, int]:
        """Return a slice's part of a span: messages, their CRCs, bytes."""
        if part is None:
            return [None] * span.size, Same(None), 0
        crcs = [f"{part.header.crc_of(first + at):08x}" for at in range(span.size)]
        if not self.out.wants(*CONTENT):
            return [None] * span.size, crcs, 0
        if self.unpacked is None or self.unpacked[0] is not part:
            self.unpacked = (part, part.messages())
        messages = self.unpacked[1][first : first + span.size]
        return list(messages), crcs, sum(len(item.payload) for item in messages)

    # ------------------------------------------------------------------ dead letters

    def deadletters(self) -> Iterator[Block]:
        for group in self.task.groups:
            there: SpanMap[Held] = SpanMap()
            for item, node in self.of_each(group, "dead"):
                there.update(item.span, functools.partial(higher, (Rank(*item.record[:3]), node)))
            remaining: SpanMap[tuple[int, int]] = SpanMap()  # dead messages that were not given out yet
            for page in self.pages(group, "dead", complete=True):
                for item in page.items:
                    remaining.set(item.span, (item.record.generation, item.record.n))
            for member in self.asked if self.out.wants(*CONTENT, "crc") else ():
                if not remaining:
                    break
                for page in self.pages(group, "dead", member=member, bodies=True):
                    records: SpanMap[Record] = SpanMap()
                    for item in page.items:
                        records.set(item.span, item.record)
                    for part, first, span in spans_of(page):
                        for chunk, record in records.within(span):
                            yield self._deaths(
                                group, chunk, record, remaining, there, part, first - span.start
                            )
            if remaining:  # no replica that answered has their payload
                for page in self.pages(group, "dead", complete=True):
                    for item in page.items:
                        yield self._deaths(group, item.span, item.record, remaining, there, None, 0)

    def _deaths(
        self,
        group: str,
        span: Span,
        record: Record,
        remaining: SpanMap[tuple[int, int]],
        there: SpanMap[Held],
        part: WireSlice | None,
        shift: int,
    ) -> Block:
        """Yield rows of the part of ``span`` that is still to be given out."""
        cause = record.death
        if cause is None:
            return
        for dead_span, dead in remaining.within(span):
            if dead != (record.generation, record.n):
                continue
            for chunk, known in there.split(dead_span):
                nodes = self.nodes_of(known[1] if known is not None and known[0] == record[:3] else 0)
                published = cause.published_ms or (0 if part is None else part.header.published_ms)
                for start in range(chunk.start, chunk.stop, ROWS_AT_ONCE):
                    block = chunk._replace(start=start, stop=min(chunk.stop, start + ROWS_AT_ONCE))
                    messages, crcs, size = self._content(block, part, shift + block.start)
                    values: dict[str, Values] = {
                        **names(self.task.key, block, self.task.topic),
                        **content(messages, crcs),
                        **columns_of(cause),
                        "group": Same(group),
                        "generation": Same(Decimal(record.generation)),
                        "n": Same(small(record.n)),
                        "resolution": Same("dead"),
                        "published_at": Same(known_time(published)),
                        "replicas": Same(nodes),
                    }
                    yield from self.out.add(block.size, size + block.size * text_bytes(cause), values)
            remaining.remove(dead_span)


def spans_of(page: m.PeekReply) -> Iterator[tuple[WireSlice, int, Span]]:
    """Yield every run of messages whose bytes a page has: the slice, the index of its first record, and the span."""
    for part in cast("tuple[WireSlice, ...]", page.slices):
        at = 0
        for section in part.header.spans:
            yield part, at, section
            at += section.size
