"""FETCH: choose nodes, unpack replies, and give unwanted messages back.

Consumers and `Client.fetch` take their messages from here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Final, NamedTuple, cast

import trio

from quorumq.client.base.context import Context
from quorumq.client.base.message import (
    Delivery,
    Holder,
    Message,
    MessageId,
    Settler,
    deadline_of,
    messages_of,
)
from quorumq.client.base.names import spans_of
from quorumq.client.transport.connection import Connection, Lost
from quorumq.core import messages as m
from quorumq.core.values.errors import PeerError, QuorumqError, TooFewReplicas
from quorumq.core.values.limits import FETCH_BYTES_MAX, FETCH_MESSAGES_MAX, LONG_POLL_MAX_S, SPANS_SETTLED_MAX
from quorumq.core.values.patterns import is_pattern
from quorumq.core.values.types import Span, Topic
from quorumq.wire.batch import Corrupt, readable_records
from quorumq.wire.batch import Message as Parts
from quorumq.wire.codec import signed_items
from quorumq.wire.values import SignedNamed, WireSlice

RELEASE_TIMEOUT_S: Final = 1.0
PARK_SHARE: Final = 0.1
"""A node parks a FETCH for at most this share of its hold time (docs/protocol.md, FETCH)."""

WAIT_SHARE: Final = 0.5
"""A FETCH asks to be parked for at most this share of its timeout: an empty answer must be here before that is over."""

PASS_WAIT_S: Final = 0.25
"""Seconds that one of several nodes may park a `Client.fetch` that has to go round them."""

LAST_S: Final = 0.5
"""Seconds that the last attempt of a `Client.fetch` has at least."""

AGE_SHARE: Final = 0.25
"""`Client.fetch` stops gathering when its oldest message has used this share of its hold."""


class ReplicaSet(NamedTuple):
    """Partitions of one topic that the same nodes have: any of these serves them all."""

    topic: str
    partitions: tuple[int, ...]  # () = all, later ones included
    nodes: tuple[str, ...]  # ids
    spans: tuple[Span, ...] = ()  # only these messages of the one partition; () = all


class Reader(NamedTuple):
    """Fields common to all FETCHes of one consumer, or of one `Client.fetch`."""

    group: str
    name: str  # the fetching consumer, and its version
    version: str
    hold_time: float  # seconds
    start: str  # position of a new group
    timeout: float  # seconds for all attempts of one FETCH
    only: tuple[str, ...]  # addresses to ask instead of those that have the partitions
    pool: str  # see `Nodes.ask`


async def replica_sets_of(context: Context, name: str, timeout: float | None) -> list[ReplicaSet]:
    """Return a topic's replica sets; for a pattern one, which any node serves with the topics that match then."""
    if is_pattern(name):
        return [ReplicaSet(name, (), ())]
    return replica_sets(await context.topic(name, timeout=timeout))


def named_sets(topic: Topic, ids: Iterable[MessageId]) -> list[ReplicaSet]:
    """Return the replica sets of messages, with their names as one FETCH may name them. Raises as `spans_of` does."""
    return [
        ReplicaSet(topic.name, (number,), topic.replicas[number] if number < topic.partitions else (), spans)
        for number, spans in spans_of(topic, ids)
    ]


def replica_sets(topic: Topic) -> list[ReplicaSet]:
    """Group a topic's partitions by the nodes that have them: one FETCH may ask for a group together."""
    sets: dict[tuple[str, ...], list[int]] = {}
    for number, members in enumerate(topic.replicas):
        sets.setdefault(tuple(sorted(members)), []).append(number)
    if len(sets) == 1:
        (members,) = sets
        return [ReplicaSet(topic.name, (), members)]
    return [ReplicaSet(topic.name, tuple(numbers), members) for members, numbers in sets.items()]


def reads_all(before: ReplicaSet, after: ReplicaSet) -> bool:
    """Return True if a FETCH from the first set names each partition of the second one, of the same topic."""
    named = bool(after.partitions) and {*after.partitions} <= {*before.partitions}
    return named or not before.partitions


async def fetch_from(
    context: Context,
    where: ReplicaSet,
    reader: Reader,
    *,
    max_messages: int,
    max_bytes: int,
    max_wait: float,
    min_messages: int = 1,
    first: str = "",
    idle: bool = False,
    had_lot: bool = False,
    once: bool = False,
) -> tuple[m.FetchReply, Connection]:
    """Send one FETCH, through the nodes that have the partitions, until one answers.

    Args:
        max_messages, max_bytes, min_messages: limits of the reply; cut to those of a request.
        max_wait: seconds for which a node may park it; cut to a share of its hold time and of its timeout.
        idle: there is nothing in hand for this group, so suspects may arrive.
        had_lot: the last messages were suspects, and first-timers are to be delivered before others.
        once: see `Nodes.ask`.

    Raises:
        TooFewReplicas, UsageError: raised like by `Nodes.ask`.
    """
    nodes = context.nodes
    max_wait = min(max_wait, LONG_POLL_MAX_S, reader.hold_time * PARK_SHARE, reader.timeout * WAIT_SHARE)
    request = m.Fetch(
        topics=(where.topic,),
        group=reader.group,
        max_messages=min(max_messages, FETCH_MESSAGES_MAX),
        max_bytes=min(max_bytes, FETCH_BYTES_MAX),
        min_messages=max(1, min(min_messages, FETCH_MESSAGES_MAX)),
        max_wait=max_wait,
        hold_time=reader.hold_time,
        sent_at=0.0,
        consumer=reader.name,
        partitions=where.partitions,
        start=reader.start,
        idle=idle,
        version=reader.version,
        spans=where.spans,
        had_lot=had_lot,
    )
    reply, connection = await nodes.ask(
        lambda: request._replace(sent_at=nodes.clock()),
        action=f"fetch from {where.topic!r} for group {reader.group!r}",
        timeout=reader.timeout,
        writes=False,
        only=reader.only or nodes.addresses_of(where.nodes),
        first=first,
        pool=reader.pool,
        attempt_timeout=max_wait + nodes.attempt_timeout,
        orphan=release_orphan,
        once=once,
    )
    fetched = cast("m.FetchReply", reply)
    for part in cast("tuple[WireSlice, ...]", fetched.slices):
        context.topic_names[part.header.partition.topic] = part.topic
    return fetched, connection


def unpack(
    context: Context,
    part: WireSlice,
    *,
    via: str,
    sent_at: float,
    hold_time: float,
    settler: Settler,
    holder: Holder | None = None,
) -> list[Message]:
    """Return the messages of a slice, decoded at once; those that are damaged are left out, and their holds run out.

    (Not given back: a message that its producer wrote unreadably would be redelivered for ever. As it is it becomes a
    dead letter after ``max_deliveries``.)

    Args:
        via: the node that delivered it.
        sent_at: time at which its FETCH was sent, by the client's clock.

    Raises:
        PeerError: the deliveries do not cover the records.
    """
    parts = readable(part)
    if sum(delivery.receipt.span.size for delivery in part.deliveries) != len(parts):
        raise PeerError(f"a slice of {part.header.key()} has deliveries for another number of messages")
    made: list[Message] = []
    deadline = deadline_of(sent_at, hold_time)
    at = 0
    delivered_ms = context.wall_ms()
    for sent in part.deliveries:
        delivery = Delivery(
            topic=part.topic,
            signed=sent.signed,
            receipt=sent.receipt,
            attempt=sent.attempt,
            published_ms=part.header.published_ms,
            delivered_ms=delivered_ms,
            hold_time=hold_time,
            settler=settler,
            holder=holder,
            death=sent.death,
            interruptions=sent.interruptions,
            suspect=sent.suspect,
        )
        size = sent.receipt.span.size
        if context.history is not None:
            delivery.via, delivery.asked = via, sent_at
            delivery.crcs = "".join(f"{part.header.crc_of(index):08x}" for index in range(at, at + size))
        made += messages_of(delivery, parts[at : at + size], deadline)
        at += size
    return made


def readable(part: WireSlice) -> list[Parts | None]:
    """Return the records of a slice, None if one is damaged or cannot be read."""
    try:
        return [*part.messages()]
    except Corrupt:
        records = readable_records(part.header, 0, part.header.size, part.body)
        return [None if isinstance(record, Corrupt) else record for record in records]


def release_items(parts: Iterable[WireSlice]) -> list[SignedNamed]:
    """Return all receipts of slices that were not unpacked."""
    return [SignedNamed(delivery.signed, ()) for part in parts for delivery in part.deliveries]


def brought(reply: m.ClientReply) -> list[SignedNamed]:
    """Return all receipts of a FETCH's reply that no caller waited for."""
    return (
        release_items(cast("tuple[WireSlice, ...]", reply.slices)) if isinstance(reply, m.FetchReply) else []
    )


def release_orphan(connection: Connection, reply: m.ClientReply) -> None:
    """Give back, without waiting, all messages of a FETCH that was answered when no caller waited any more."""
    items = brought(reply)
    try:
        for at in range(0, len(items), SPANS_SETTLED_MAX):
            connection.post(m.ReleaseRequest(signed_items(items[at : at + SPANS_SETTLED_MAX])))
    except Lost:
        pass  # the holds run out


async def give_back(context: Context, items: Sequence[SignedNamed]) -> None:
    """Give back by LEAVE, through any node; if no node takes it, the holds run out."""
    for at in range(0, len(items), SPANS_SETTLED_MAX):
        chunk = items[at : at + SPANS_SETTLED_MAX]
        if context.history is not None:
            context.history.left(chunk, context.topic_names)
        request = m.ReleaseRequest(signed_items(chunk))
        try:
            await context.nodes.ask(
                lambda request=request: request,  # type: ignore[misc]
                action="leave",
                timeout=RELEASE_TIMEOUT_S,
                writes=True,
                attempt_timeout=RELEASE_TIMEOUT_S / 2,
            )
        except QuorumqError as error:
            text = "messages fetched ahead were not given back, and come again once their holds are over: %s"
            context.log.warning("leave", text, error)
            return


async def give_back_parked(context: Context) -> None:
    """Give back messages of nodes for FETCHes that were cancelled on shared connections, before the client ends."""
    if context.nodes.has_orphans(""):
        late = await context.nodes.hang_up("")
        await give_back(context, [item for reply in late for item in brought(reply)])


@dataclass(eq=False)
class Gathering:
    """One `Client.fetch`: FETCHes from one replica set after the other, until there is enough or its time is over."""

    context: Context
    sets: list[ReplicaSet]
    reader: Reader
    settler: Settler  # for the messages
    _: KW_ONLY
    max_messages: int
    max_bytes: int
    min_messages: int  # messages to gather, as long as ``until`` and a quarter of the hold time allow
    until: float  # when to end, by the client's clock
    idle: bool = True  # False if the caller has others in hand: it gets no suspects then
    holder: Holder | None = None  # consumer that fetches
    _messages: list[Message] = field(default_factory=list)
    _slices: list[WireSlice] = field(default_factory=list)
    _bytes: int = 0
    _ends: float = 0.0  # when its timeout is over, by the client's clock
    _alone: bool = False  # the messages are suspects
    _quiet: int = 0  # replica sets in a row that had nothing, or did not answer
    _failed: dict[ReplicaSet, TooFewReplicas] = field(
        default_factory=dict
    )  # sets whose last FETCH got no answer

    async def run(self) -> list[Message]:
        """Fetch; gathered messages are given back if this is cancelled or fails.

        If one replica set does not answer, the messages of the others are returned.

        Raises:
            TooFewReplicas: there is no message, and one replica set has not answered within the timeout. Why: empty
                says that nothing is ready.
        """
        sets = self.sets
        at = self.context.rng.randrange(len(sets))
        self._ends = max(self.context.clock() + self.reader.timeout, self.until)
        try:
            while True:
                where = sets[at % len(sets)]
                try:
                    self._take(where, *await self._fetch(where))
                except TooFewReplicas as exc:
                    if not self._has_others() or not (self._messages or self.context.clock() < self._ends):
                        raise
                    self._failed[where] = exc
                    self._quiet += 1
                at += 1
                if self._is_done():
                    return self._messages
        except BaseException as exc:
            with trio.move_on_after(RELEASE_TIMEOUT_S) as scope:
                # At once: what is cancelled may be the client itself, which ends with its body. First of all the node
                # must drop the FETCH that it has parked, or that takes what is given back.
                scope.shield = True
                items = release_items(self._slices)
                if self.reader.pool and not isinstance(exc, QuorumqError):
                    late = await self.context.nodes.hang_up(self.reader.pool)
                    items += [item for reply in late for item in brought(reply)]
                await give_back(self.context, items)
            raise

    def _has_others(self) -> bool:
        """Return True if the other replica sets are asked although one does not answer. Ids name what is wanted."""
        return len(self.sets) > 1 and not self.sets[0].spans

    async def _fetch(self, where: ReplicaSet) -> tuple[m.FetchReply, Connection]:
        """Fetch from a replica set. If others answer, ask each of its nodes once, or else for a part of the timeout."""
        context, reader, wait = self.context, self.reader, self._wait()
        once = False
        if self._has_others():
            early = self._quiet < len(self.sets) or context.clock() < self.until
            once = early and len(self._failed) < len(self.sets)  # else `Nodes.ask` pauses between its rounds
            remaining = max(self._ends - context.clock(), LAST_S)
            reader = reader._replace(timeout=min(remaining, wait + context.nodes.attempt_timeout))
        return await fetch_from(
            context,
            where,
            reader,
            max_messages=self.max_messages - len(self._messages),
            max_bytes=self.max_bytes - self._bytes,
            min_messages=self.min_messages - len(self._messages),
            max_wait=wait,
            idle=self.idle and not self._messages,
            once=once,
        )

    def _wait(self) -> float:
        """Return the seconds that the next FETCH may be parked."""
        remaining = max(0.0, self.until - self.context.clock())
        if len(self.sets) == 1:
            return remaining
        return min(remaining, PASS_WAIT_S) if self._quiet >= len(self.sets) else 0.0

    def _take(self, where: ReplicaSet, fetched: m.FetchReply, connection: Connection) -> None:
        self._failed.pop(where, None)
        self._quiet = 0 if fetched.slices else self._quiet + 1
        for part in cast("tuple[WireSlice, ...]", fetched.slices):
            self._slices.append(part)
            self._messages += unpack(
                self.context,
                part,
                via=connection.node,
                sent_at=fetched.sent_at,
                hold_time=fetched.hold_time,
                settler=self.settler,
                holder=self.holder,
            )
            self._bytes += len(part.body)
            self._alone = self._alone or any(delivery.suspect for delivery in part.deliveries)
            self.until = min(self.until, fetched.sent_at + AGE_SHARE * self.reader.hold_time)

    def _is_done(self) -> bool:
        count = len(self._messages)
        enough = count >= min(self.min_messages, self.max_messages) or self._bytes >= self.max_bytes
        if enough or self._alone:
            return True
        # Without any message, each replica set is to be asked at least once; named ones, until it has nothing more.
        all_asked = self._quiet >= len(self.sets) or (
            not self.sets[0].spans and (count > 0 or len(self.sets) == 1)
        )
        is_known = count > 0 or not self._failed
        return is_known and all_asked and self.context.clock() >= self.until
