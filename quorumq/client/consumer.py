"""A stream of messages, each handed over only while its hold is certain.

A consumer keeps FETCHes going and a bounded stock of what they brought. Between the stock and the application
stands one question, asked at the moment of handing over: is the deadline ahead, by the clock that stamped the
FETCH, and is the connection still the one it came over? (docs/protocol.md, FETCH.) What is not handed over goes
back by LEAVE: at close, when its connection is lost, and when it has lain for half of its hold, so that a slow
handler neither keeps work from other consumers nor uses up deliveries of messages that nobody saw.

Once handed over, a message is the application's: its hold is extended at half time until it is settled.
"""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import AsyncIterator, Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, cast

import trio

from quorumq.client.connection import Connection, Lost
from quorumq.client.groups import is_dead, names_of
from quorumq.client.message import Lot, Message, Outcome, Ticket, again, deadline_of
from quorumq.client.settle import Failures, chunks, items_of
from quorumq.client.times import Duration, number_of
from quorumq.core import messages as m
from quorumq.core.errors import HoldLost, PeerError, QuorumqError, TooFewReplicas, UsageError
from quorumq.core.limits import (
    FETCH_BYTES_MAX,
    FETCH_MESSAGES_MAX,
    HOLD_TIME_DEFAULT_S,
    LONG_POLL_MAX_S,
    MIB,
    SPANS_PER_REQUEST_MAX,
)
from quorumq.core.topics import is_pattern
from quorumq.core.types import Span, Topic
from quorumq.wire.batch import Corrupt, records_of
from quorumq.wire.batch import Message as Parts
from quorumq.wire.codec import sealed_items
from quorumq.wire.receipts import read_receipt
from quorumq.wire.values import SealedNamed, WireSlice

if TYPE_CHECKING:
    from quorumq.client.client import Client

PREFETCH: Final = 1000
PREFETCH_BYTES: Final = 4 * MIB
MAX_EXTEND_S: Final = 3600.0
GIVE_BACK_SHARE: Final = 0.5
"""After this share of what was left of its hold time when it came, what was not handed over is given back."""

EXTEND_SHARE: Final = 0.5
"""After this share of its hold time, the hold of what was handed over is extended."""

REFRESH_S: Final = 5.0
"""How often consumers and producers look whether their topic has got more partitions."""

LEAVE_TIMEOUT_S: Final = 1.0
YIELD_EVERY: Final = 64
PARK_SHARE: Final = 0.1
"""A node parks a FETCH for at most this share of its hold time (docs/protocol.md, FETCH)."""


def default_name() -> str:
    """What a consumer is called if nobody names it: the host."""
    return socket.gethostname()[:100]


def park_time(hold_time: float) -> float:
    """For how long a node may be asked to park a FETCH."""
    return min(LONG_POLL_MAX_S, hold_time * PARK_SHARE)


class ReplicaSet(NamedTuple):
    """Partitions of one topic that the same nodes have: any of these serves them all."""

    topic: str
    partitions: tuple[int, ...]  # () = all, those to come included
    nodes: tuple[str, ...]  # ids


async def replica_sets_of(client: Client, name: str, timeout: float | None) -> list[ReplicaSet]:
    """Those of the topic of that name; of a pattern one, which any node serves with what matches then.

    Raises:
        NotFound: no such topic.
    """
    if is_pattern(name):
        return [ReplicaSet(name, (), ())]
    return replica_sets(await client.topic(name, timeout=timeout))


def replica_sets(topic: Topic) -> list[ReplicaSet]:
    """A topic's partitions by who has them: what one FETCH may ask for together."""
    sets: dict[tuple[str, ...], list[int]] = {}
    for number, members in enumerate(topic.replicas):
        sets.setdefault(tuple(sorted(members)), []).append(number)
    if len(sets) == 1:
        return [ReplicaSet(topic.name, (), *sets)]
    return [ReplicaSet(topic.name, tuple(numbers), members) for members, numbers in sets.items()]


async def fetch_from(
    client: Client,
    where: ReplicaSet,
    group: str,
    *,
    max_messages: int,
    max_bytes: int,
    max_wait: float,
    hold_time: float,
    consumer: str,
    timeout: float,
    start: str,
    min_messages: int = 1,
    only: Sequence[str] = (),
    first: str = "",
    lane: str = "",
) -> tuple[m.Fetched, Connection]:
    """One FETCH, through the nodes that have the partitions, until one answers.

    Args:
        client: whose connections and clock.
        where: what to fetch from.
        group: that fetches.
        max_messages, max_bytes, min_messages: cut to what a request may ask for.
        max_wait: seconds for which a node may park it.
        hold_time: seconds.
        consumer: the name of who fetches.
        timeout: seconds for all attempts.
        start: where the group begins if it is new.
        only: addresses to ask instead.
        first, lane: see `Nodes.ask`.

    Raises:
        TooFewReplicas, UsageError: as `Nodes.ask` does.
    """
    nodes = client.nodes
    request = m.Fetch(
        topics=(where.topic,),
        group=group,
        max_messages=min(max_messages, FETCH_MESSAGES_MAX),
        max_bytes=min(max_bytes, FETCH_BYTES_MAX),
        min_messages=max(1, min(min_messages, FETCH_MESSAGES_MAX)),
        min_bytes=0,
        max_wait=max_wait,
        hold_time=hold_time,
        sent_at=0.0,
        consumer=consumer,
        partitions=where.partitions,
        start=start,
    )
    reply, connection = await nodes.ask(
        lambda: request._replace(sent_at=nodes.clock()),
        what=f"fetch from {where.topic!r} for group {group!r}",
        timeout=timeout,
        writes=False,
        only=only or nodes.addresses_of(where.nodes),
        first=first,
        lane=lane,
        attempt_timeout=max_wait + nodes.attempt_timeout,
        orphan=leave_orphan,
    )
    fetched = cast("m.Fetched", reply)
    for part in cast("tuple[WireSlice, ...]", fetched.slices):
        client.topic_names[part.header.partition.topic] = part.topic
    return fetched, connection


class Stock:
    """A slice of a FETCH's reply, not looked into yet."""

    __slots__ = ("connection", "deadline", "feed", "give_back_at", "hold_time", "left", "part", "sent_at")

    def __init__(
        self,
        part: WireSlice,
        sent_at: float,
        hold_time: float,
        connection: Connection,
        feed: Feed | None,
        now: float,
    ) -> None:
        self.part = part
        self.connection = connection
        self.feed = feed
        self.hold_time = hold_time
        self.sent_at = sent_at
        self.deadline = deadline_of(sent_at, hold_time)
        self.give_back_at = now + GIVE_BACK_SHARE * (self.deadline - now)
        self.left = part.header.size  # messages not handed over


def unpack(client: Client, stock: Stock, consumer: Consumer | None) -> list[Message]:
    """The messages of a slice, decoded at once; those that are damaged are left out, and their holds run out.

    (Not given back: what its producer wrote unreadably would come again for ever, where as it is it becomes a
    dead letter after so many deliveries.)

    Raises:
        PeerError: the deliveries do not cover the records.
    """
    part = stock.part
    parts = readable(part)
    if sum(delivery.receipt.span.size for delivery in part.deliveries) != len(parts):
        raise PeerError(f"a slice of {part.header.key()} has deliveries for another number of messages")
    made: list[Message] = []
    take = made.append
    deadline = stock.deadline
    at = 0
    delivered_ms = client.wall_ms()
    for delivery in part.deliveries:
        lot = Lot(
            topic=part.topic,
            sealed=delivery.sealed,
            receipt=delivery.receipt,
            attempt=delivery.attempt,
            published_ms=part.header.published_ms,
            delivered_ms=delivered_ms,
            hold_time=stock.hold_time,
            client=client,
            consumer=consumer,
            letter=delivery.letter,
        )
        if client.history is not None:
            lot.via, lot.asked = stock.connection.node, stock.sent_at
            size = delivery.receipt.span.size
            lot.crcs = "".join(f"{part.header.crc_of(index):08x}" for index in range(at, at + size))
        _, start, stop = delivery.receipt.span
        for seq in range(start, stop):
            found = parts[at]
            at += 1
            if found is not None:
                payload, key, headers = found
                take(Message(lot, seq, payload, key, headers, deadline))
    return made


def readable(part: WireSlice) -> list[Parts | None]:
    """The records of a slice, None for each that is damaged or cannot be read."""
    try:
        return [*part.messages()]
    except Corrupt:
        return salvage(part)


def salvage(part: WireSlice) -> list[Parts | None]:
    """The records of a slice one by one, None for each that is damaged or cannot be read."""
    found: list[Parts | None] = []
    header = part.header
    for index in range(header.size):
        record = part.body[header.end_of(index - 1) : header.end_of(index)]
        try:
            found += records_of(header, index, index + 1, record)
        except Corrupt:
            found.append(None)
    return found


def leave_items(parts: Iterable[WireSlice]) -> list[SealedNamed]:
    """All receipts of slices that nobody has looked into."""
    return [SealedNamed(delivery.sealed, ()) for part in parts for delivery in part.deliveries]


def brought(reply: m.ClientReply) -> list[SealedNamed]:
    """All receipts of a FETCH's reply that nobody waited for."""
    return leave_items(cast("tuple[WireSlice, ...]", reply.slices)) if isinstance(reply, m.Fetched) else []


def leave_orphan(connection: Connection, reply: m.ClientReply) -> None:
    """The answer to a FETCH came when nobody waited for it any more: give it all back, without waiting."""
    items = brought(reply)
    try:
        for at in range(0, len(items), SPANS_PER_REQUEST_MAX):
            connection.post(m.LeaveRequest(sealed_items(items[at : at + SPANS_PER_REQUEST_MAX])))
    except Lost:
        pass  # the holds run out


async def give_back(client: Client, items: Sequence[SealedNamed]) -> None:
    """LEAVE, through any node; if nobody takes it, the holds run out."""
    for at in range(0, len(items), SPANS_PER_REQUEST_MAX // 2):
        some = items[at : at + SPANS_PER_REQUEST_MAX // 2]
        if client.history is not None:
            client.history.left(some, client.topic_names)
        request = m.LeaveRequest(sealed_items(some))
        try:
            await client.nodes.ask(
                lambda request=request: request,  # type: ignore[misc]
                what="leave",
                timeout=LEAVE_TIMEOUT_S,
                writes=True,
                attempt_timeout=LEAVE_TIMEOUT_S / 2,
            )
        except QuorumqError:
            return


class Feed:
    """A consumer's FETCHes for the partitions that share one replica set."""

    def __init__(self, consumer: Consumer, where: ReplicaSet) -> None:
        self.consumer = consumer
        self.where = where
        self.first = ""  # address of the node that answered last
        self.stocked = 0  # messages in stock
        self.stocked_bytes = 0
        self.window = 1
        self.wake = trio.Event()

    def room(self) -> int:
        """How many messages the next FETCH may bring; 0 while that is too few to be worth one."""
        room = self.window - self.stocked
        if self.consumer.waiting and self.stocked == 0:
            room = max(room, 1)
        return room if room * 4 >= self.window and room > 0 else 0

    async def run(self) -> None:
        """FETCH, for ever. Raises what can never work."""
        consumer = self.consumer
        while True:
            self.wake = trio.Event()
            room, room_bytes = self.room(), consumer.bytes_per_feed - self.stocked_bytes
            if room <= 0 or room_bytes <= 0:
                await self.wake.wait()
                continue
            try:
                fetched, connection = await fetch_from(
                    consumer.client,
                    self.where,
                    consumer.group,
                    max_messages=room,
                    max_bytes=room_bytes,
                    max_wait=park_time(consumer.hold_time),
                    hold_time=consumer.hold_time,
                    consumer=consumer.name,
                    timeout=consumer.timeout,
                    start=consumer.start,
                    only=consumer.only,
                    first=self.first,
                    lane=consumer.lane,
                )
            except TooFewReplicas as exc:
                consumer.trouble(exc)  # the application hears of it; this goes on
                continue
            self.first = connection.address
            consumer.arrived(self, fetched, connection)


class Consumer:
    """A stream of messages of one group. Made by `Client.consumer`; several tasks may share one.

    Use it as an async context manager, and iterate: ``async for message in consumer`` or, for speed,
    ``async for messages in consumer.batches()``. Settle every message (`Message.ack`, `reject`, `dead_letter`): one
    that is forgotten is kept from everyone until ``max_extend`` is over.

    Leaving it gives back what was not handed over; what was handed over and not settled runs out.
    """

    def __init__(
        self,
        client: Client,
        topics: Sequence[str],
        group: str,
        *,
        start: Literal["earliest", "latest"],
        hold_time: Duration | None,
        prefetch: int,
        prefetch_bytes: int,
        auto_extend: bool,
        max_extend: float,
        node: str | None,
        name: str | None,
        version: str,
        timeout: float | None,
    ) -> None:
        if prefetch < 1 or prefetch_bytes < 1:
            raise UsageError(
                f"prefetch is {prefetch}, prefetch_bytes {prefetch_bytes}: both must be at least 1"
            )
        if not topics:
            raise UsageError("no topic is named")
        self.client = client
        self.topics, self.group = names_of(topics, group)
        self.start = start
        self.hold_time = HOLD_TIME_DEFAULT_S if hold_time is None else number_of("hold_time", hold_time)
        self._default_hold = hold_time is None
        self._entered = False
        self.name = name if name is not None else default_name()
        self.version = version
        self.timeout = client.timeout if timeout is None else timeout
        self.prefetch = prefetch
        self.bytes_per_feed = prefetch_bytes
        self.auto_extend = auto_extend
        self.max_extend = max_extend
        self.only: tuple[str, ...] = ()
        # FETCHes have connections of their own: a node lets go of what it has parked when its connection ends, and
        # would else win for nobody what this consumer gives back when it is closed. Nor do acks wait behind bodies.
        self.lane = f"consumer {client.next_number()}"
        self.waiting = 0  # tasks that wait for a message
        self.given_back = 0
        """Messages given back without having been handed over, so far."""
        self.expired = 0
        """Messages not handed over because their deadline had passed or their connection was lost, so far."""
        self._node = node
        self._feeds: list[Feed] = []
        self._stock: deque[Stock] = deque()
        self._ready: list[Message] = []  # of `_current`, decoded
        self._at = 0  # the next of `_ready`
        self._current: Stock | None = None
        self._void: dict[bytes, int] = {}  # topic id -> the newest of its generations that a rewind ended
        self._working: dict[Message, float] = {}  # handed over and not settled -> when
        self._arrival = trio.lowlevel.ParkingLot()
        self._error: QuorumqError | None = None
        self._fatal: QuorumqError | None = None
        self._scope = trio.CancelScope()
        self._ended: trio.Event | None = None
        self._closed = False
        self._turn = 0

    @property
    def unsettled(self) -> int:
        """Messages handed over, not settled, and extended until they are (0 without ``auto_extend``)."""
        return len(self._working)

    # ---------------------------------------------------------------------- life

    async def __aenter__(self) -> Consumer:
        if self._entered:
            raise UsageError("this consumer was used before: make another one by `Client.consumer`")
        self._entered = True
        if self._node is not None:
            self.only = (await self.client.address_of(self._node, self.timeout),)
        for name in self.topics:
            self._feeds += [
                Feed(self, where) for where in await replica_sets_of(self.client, name, self.timeout)
            ]
        for feed in self._feeds:
            feed.window = max(1, self.prefetch // len(self._feeds))
        if self._default_hold:
            self.hold_time = await self.client.hold_time_of(None, self.timeout)
        self.window_max = self._feeds[0].window
        self.bytes_per_feed = max(1, self.bytes_per_feed // len(self._feeds))
        await self.client.start(self._run)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """End: nothing more is handed over, and what was not is given back. Takes at most a second."""
        self._closed = True
        self._scope.cancel()
        self._arrival.unpark_all()
        # Also when cancelled: else every message in stock waits for its hold to run out.
        with trio.move_on_after(LEAVE_TIMEOUT_S) as scope:
            scope.shield = True
            if self._ended is not None:
                await self._ended.wait()
            late = await self.client.nodes.hang_up(self.lane)
            await self._give_back([*self._take_all(), *(item for reply in late for item in brought(reply))])
        self._working.clear()

    async def _run(self, task_status: trio.TaskStatus[None]) -> None:
        self._ended = trio.Event()
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    task_status.started()
                    nursery.start_soon(self._tend_stock)
                    if self.auto_extend:
                        nursery.start_soon(self._tend_holds)
                    for feed in self._feeds:
                        nursery.start_soon(self._feed, feed)
                    await self._tend_feeds(nursery)
        finally:
            self._ended.set()
            self._closed = True  # where the client is closed first, whoever waits has to hear of it
            self._arrival.unpark_all()

    async def _tend_feeds(self, nursery: trio.Nursery) -> None:
        """Fetch from partitions that are made while this runs. A feed that names none fetches from all there are."""
        while True:
            await trio.sleep(REFRESH_S)
            for name in dict.fromkeys(feed.where.topic for feed in self._feeds if feed.where.partitions):
                try:
                    topic = await self.client.topic(name, timeout=self.timeout)
                except QuorumqError:
                    continue  # the feeds themselves hear what is the matter
                homes = {feed.where.nodes: feed for feed in self._feeds if feed.where.topic == name}
                for where in replica_sets(topic):
                    if where.nodes in homes:
                        homes[where.nodes].where = where
                        continue
                    feed = Feed(self, where)
                    feed.window = self.window_max
                    self._feeds.append(feed)
                    nursery.start_soon(self._feed, feed)

    async def _feed(self, feed: Feed) -> None:
        try:
            await feed.run()
        except QuorumqError as exc:
            self._fatal = exc
            self._arrival.unpark_all()

    # ------------------------------------------------------------------ arrivals

    def arrived(self, feed: Feed, fetched: m.Fetched, connection: Connection) -> None:
        """Take the answer to a FETCH into stock."""
        self._error = None
        if not fetched.slices:
            return
        now = self.client.clock()
        for part in cast("tuple[WireSlice, ...]", fetched.slices):
            stock = Stock(part, fetched.sent_at, fetched.hold_time, connection, feed, now)
            self._stock.append(stock)
            feed.stocked += stock.left
            feed.stocked_bytes += len(part.body)
        self._arrival.unpark_all()

    def trouble(self, error: QuorumqError) -> None:
        """No node has answered for the whole timeout: who waits hears of it."""
        self._error = error
        self._arrival.unpark_all()

    # ----------------------------------------------------------------- hand-over

    def __aiter__(self) -> Consumer:
        return self

    async def __anext__(self) -> Message:
        """The next message, waiting for one if need be. Cancelled, it has handed over nothing.

        Raises:
            TooFewReplicas: no node has answered for the consumer's timeout; the text says what was tried. Iterate again
                to go on.
            UsageError: the FETCH can never work, for example with a hold_time above the cluster's.
        """
        await self._checkpoint()
        while True:
            message = self._next()
            if message is not None:
                return message
            await self._wait()

    async def batches(
        self, max_messages: int = 1000, *, timeout: float = float("inf")
    ) -> AsyncIterator[list[Message]]:
        """The messages in lists of 1 to ``max_messages``, as they are there: one wait and one ack for many.

        Args:
            max_messages: in a list, at most.
            timeout: end when nothing has come for so many seconds.

        Raises:
            as iterating does.
        """
        while found := await self.take(max_messages, timeout=timeout):
            yield found

    async def take(self, max_messages: int = 1000, *, timeout: float = float("inf")) -> list[Message]:
        """The messages that are there, waiting for the first if need be.

        Args:
            max_messages: at most so many.
            timeout: seconds to wait; 0 takes what has been fetched already.

        Returns:
            1 to ``max_messages`` messages; none where none came in time, or the consumer is closed.

        Raises:
            as iterating does.
        """
        await self._checkpoint()
        until = trio.current_time() + timeout
        while True:
            found: list[Message] = []
            while len(found) < max_messages and (more := self._next_many(max_messages - len(found))):
                found += more
            if found:
                return found
            with trio.move_on_at(until) as scope:
                try:
                    await self._wait()
                except StopAsyncIteration:
                    return []
            if scope.cancelled_caught:
                return []

    async def _checkpoint(self) -> None:
        self._turn += 1
        if self._turn >= YIELD_EVERY:
            self._turn = 0
            await trio.lowlevel.checkpoint()
        else:
            await trio.lowlevel.checkpoint_if_cancelled()

    async def _wait(self) -> None:
        """Wait until something came, or raise what is the matter."""
        if not self._entered:
            raise UsageError("nothing is fetched yet: use the consumer by `with`")
        if self._fatal is not None:
            raise again(self._fatal)
        if self._error is not None:
            error, self._error = self._error, None
            raise again(error)
        if self._closed:
            raise StopAsyncIteration
        self.waiting += 1
        try:
            for feed in self._feeds:
                if feed.room():
                    feed.wake.set()
            await self._arrival.park()
        finally:
            self.waiting -= 1

    def _next(self) -> Message | None:
        found = self._next_many(1)
        return found[0] if found else None

    def _next_many(self, most: int) -> list[Message]:
        """Up to ``most`` messages of one slice, handed over now: each deadline is ahead, its connection is there."""
        while True:
            stock = self._current
            if stock is None or self._at >= len(self._ready):
                if stock is not None:  # what was damaged in it was not handed over, and is no longer here
                    self._unstock(stock, stock.left)
                    self._bytes_gone(stock)
                    self._current = None
                if self._closed or not self._stock:
                    return []
                self._open(self._stock.popleft())
                continue
            now = self.client.clock()
            if stock.connection.lost or now >= stock.deadline:
                self.expired += stock.left
                self._leave_later(self._take_current(), lost=not stock.connection.lost)
                continue
            if self._void and self._is_void(stock):
                self._leave_later(self._take_current())
                continue
            found = self._ready[self._at : self._at + most]
            self._at += len(found)
            self._unstock(stock, len(found))
            if self.auto_extend:
                for message in found:
                    self._working[message] = now
            history = self.client.history
            if history is not None:
                history.delivered(found)
            return found

    def _open(self, stock: Stock) -> None:
        try:
            self._ready = unpack(self.client, stock, self)
        except PeerError as exc:
            self._ready = []
            self.trouble(exc)
        self._at = 0
        self._current = stock

    def _unstock(self, stock: Stock, count: int) -> None:
        stock.left -= count
        feed = stock.feed
        assert feed is not None
        feed.stocked -= count
        if feed.window < self.window_max:
            feed.window = min(self.window_max, feed.window + count)
        if feed.room():
            feed.wake.set()

    def _bytes_gone(self, stock: Stock) -> None:
        feed = stock.feed
        assert feed is not None
        feed.stocked_bytes -= len(stock.part.body)
        feed.wake.set()

    # --------------------------------------------------------------- giving back

    def _take_current(self) -> list[SealedNamed]:
        """What is left of the slice that is being handed over, taken out."""
        stock = self._current
        if stock is None:
            return []
        rest = self._ready[self._at :]
        self._ready = []
        self._at = 0
        self._current = None
        self._unstock(stock, stock.left)
        self._bytes_gone(stock)
        return [SealedNamed(item.sealed, item.spans) for chunk in chunks(items_of(rest)) for item in chunk]

    def _take_stock(self, stock: Stock) -> list[SealedNamed]:
        self._unstock(stock, stock.left)
        self._bytes_gone(stock)
        return leave_items((stock.part,))

    def _take_all(self) -> list[SealedNamed]:
        """Everything that was not handed over, taken out."""
        items = self._take_current()
        while self._stock:
            items += self._take_stock(self._stock.popleft())
        return items

    def _leave_later(self, items: list[SealedNamed], *, lost: bool = False) -> None:
        if items and not lost:
            self.client.nodes.spawn(self._give_back, items)

    async def _give_back(self, items: list[SealedNamed]) -> None:
        self.given_back += sum(span.size for item in items for span in spans_named(item))
        await give_back(self.client, items)

    async def _tend_stock(self) -> None:
        """Give back what has lain for half of its hold, or whose connection is lost; then fetch less at once."""
        while True:
            await trio.sleep(min(1.0, max(0.01, self.hold_time / 20)))
            now = self.client.clock()
            items: list[SealedNamed] = []
            slow: dict[Feed, int] = {}  # how much each had in stock for nothing
            if self._current is not None and self._is_stale(self._current, now):
                self._note_slow(self._current, slow)
                items += self._take_current()
            for _ in range(len(self._stock)):
                stock = self._stock.popleft()
                if self._is_stale(stock, now):
                    self._note_slow(stock, slow)
                    items += self._take_stock(stock)
                else:
                    self._stock.append(stock)
            for feed, count in slow.items():
                feed.window = min(feed.window, count) // 2
            self._leave_later(items)

    @staticmethod
    def _is_stale(stock: Stock, now: float) -> bool:
        return now >= stock.give_back_at or bool(stock.connection.lost)

    @staticmethod
    def _note_slow(stock: Stock, slow: dict[Feed, int]) -> None:
        if stock.feed is not None and not stock.connection.lost:
            slow[stock.feed] = slow.get(stock.feed, 0) + stock.left

    # ----------------------------------------------------------------- extension

    async def _tend_holds(self) -> None:
        """EXTEND what the application works on, from half of the hold time on, until it is settled."""
        while True:
            await trio.sleep(min(1.0, max(0.01, self.hold_time / 20)))
            now = self.client.clock()
            left = deadline_of(0.0, self.hold_time) - EXTEND_SHARE * self.hold_time
            due: list[Message] = []
            for message, since in list(self._working.items()):
                if message.outcome is not None or now >= message.deadline or now - since > self.max_extend:
                    del self._working[message]
                elif message.deadline - now <= left:
                    due.append(message)
            if due:
                timeout = max(0.05, min(message.deadline for message in due) - now)
                failures: Failures = {}
                await self.client.extend_quietly(due, self.hold_time, failures, timeout=timeout)
                # Lost: nothing revives it. Anything else: tried again at the next turn, while there is time.
                for message in due:
                    if isinstance(failures.get(message), HoldLost):
                        self._working.pop(message, None)

    # ------------------------------------------------------------------ settling

    def settled(self, message: Ticket) -> None:
        """The client says that a message of ours has its verdict."""
        self._working.pop(message, None)  # type: ignore[call-overload]
        # Of dead letters, those that the new generation does not cover stand: nothing is void as a whole.
        if message.outcome is Outcome.REWOUND and not is_dead(self.group):
            receipt = message.lot.receipt
            topic = receipt.partition.topic
            self._void[topic] = max(receipt.generation, self._void.get(topic, 0))

    def _is_void(self, stock: Stock) -> bool:
        """Whether it is of a generation that ended: it could not be acked."""
        receipts = [delivery.receipt for delivery in stock.part.deliveries]
        return any(receipt.generation <= self._void.get(receipt.partition.topic, -1) for receipt in receipts)

    async def ack(self, messages: Iterable[Ticket], *, timeout: float | None = None) -> list[Outcome]:
        """Ack many at once: see `Client.ack`."""
        return await self.client.ack(messages, timeout=timeout)


def spans_named(item: SealedNamed) -> tuple[Span, ...]:
    """The spans an item names; of a whole receipt, its own."""
    return item.spans or (read_receipt(item.sealed).span,)
