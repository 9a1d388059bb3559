# quorumq/client/producer.py: from single messages to batches that are stored once, whatever happens on the way.
#
# A batch is encoded once, numbered once, and repeated byte for byte through any node until it is confirmed or its
# time is over (docs/protocol.md, PUBLISH and promise G6). Numbers are per partition and dense; a batch that is never
# confirmed leaves a gap, and nothing waits for it.
#
# Latency and size: a partition's batch closes at once when nothing of that partition is under way, and otherwise
# when it is full, when it has lingered, or when what was under way is answered. So one message alone does
# not wait, and a flood fills its batches.
"""The producer: batching, pipelining, back-pressure, retries."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Final

import trio

from quorumq.client.message import MessageId, again
from quorumq.client.partitioner import DefaultPartitioner, Partitioner
from quorumq.core import messages as m
from quorumq.core.errors import NotFound, NotStored, OriginClosed, OutcomeUnknown, QuorumqError, UsageError
from quorumq.core.limits import BATCH_BYTES_MAX, BATCH_MESSAGES_MAX, KIB, MIB
from quorumq.core.types import Batch, Origin, PartitionId, Topic
from quorumq.wire.batch import HeaderValue, encode_record, pack_batch
from quorumq.wire.batch import Message as Parts

if TYPE_CHECKING:
    from quorumq.client.client import Client

LINGER_S: Final = 0.010
BATCH_BYTES: Final = 64 * KIB
IN_FLIGHT: Final = 8
BUFFER_BYTES: Final = 16 * MIB
YIELD_EVERY: Final = 32
"""`publish` lets other tasks run at least after so many messages."""


class Pending:
    """A message that was taken, and may not be stored yet."""

    __slots__ = ("_index", "_parcel")

    def __init__(self, parcel: Parcel, index: int) -> None:
        self._parcel = parcel
        self._index = index

    @property
    def done(self) -> bool:
        """Whether `wait` would return or raise at once."""
        return self._parcel.done

    async def wait(self) -> MessageId:
        """Wait until the message is durable on a majority.

        Returns:
            its id.

        Raises:
            NotStored: given up, and certainly never sent: publishing it again makes no second message.
            OutcomeUnknown: given up after it was sent: it may be stored, or become so.
            QuorumqError: refused for good: see `Client.producer`.
        """
        parcel = self._parcel
        if not parcel.done:
            parcel.watched = True
            await parcel.event.wait()
        else:
            await trio.lowlevel.checkpoint_if_cancelled()
        if parcel.error is not None:
            parcel.watched = True
            raise again(parcel.error)
        assert parcel.origin is not None
        return MessageId(parcel.partition, parcel.origin, parcel.first + self._index)


class Parcel:
    """One batch, from its first message until it is confirmed or given up."""

    __slots__ = (
        "batch", "bytes", "count", "done", "error", "event", "first", "opened", "origin", "partition", "records",
        "sent", "started", "watched",
    )  # fmt: skip

    def __init__(self, partition: PartitionId, opened: float) -> None:
        self.partition = partition
        self.opened = opened  # when its first message came
        self.records: list[bytes] = []
        self.bytes = 0
        self.count = 0
        self.batch: Batch | None = None  # once it is numbered and encoded
        self.origin: Origin | None = None
        self.first = 0
        self.started = False  # whether `_store` was begun
        self.sent = False
        self.done = False
        self.watched = False  # whether anyone heard, or waits to hear, of its error
        self.error: QuorumqError | None = None
        self.event = trio.Event()

    def finish(self, error: QuorumqError | None) -> None:
        """It is confirmed, or given up with ``error``."""
        self.error = error
        self.done = True
        self.batch = None
        self.records = []
        self.event.set()


class Lane:
    """One partition: the batch that is being filled, and how many are not answered yet."""

    __slots__ = ("next_seq", "open", "origin", "unanswered")

    def __init__(self) -> None:
        self.open: Parcel | None = None
        self.unanswered = 0  # closed and not done
        self.origin: Origin | None = None
        self.next_seq = 0  # under `origin`


class Producer:
    """Publishes to one topic. Made by `Client.producer`; several tasks may share one.

    Use it as an async context manager: leaving it flushes, and raises if a message was given up whose `Pending`
    nobody waited for. Leaving it by an exception gives up what is not confirmed.
    """

    def __init__(
        self,
        client: Client,
        topic: str,
        *,
        linger: float = LINGER_S,
        batch_bytes: int = BATCH_BYTES,
        in_flight: int = IN_FLIGHT,
        buffer_bytes: int = BUFFER_BYTES,
        partitioner: Partitioner | None = None,
        timeout: float | None = None,
        create: bool = True,
    ) -> None:
        if not 1 <= batch_bytes <= BATCH_BYTES_MAX:
            raise UsageError(f"batch_bytes is {batch_bytes}: it must be from 1 to {BATCH_BYTES_MAX}")
        if in_flight < 1 or buffer_bytes < 1 or linger < 0:
            raise UsageError(
                f"in_flight is {in_flight}, buffer_bytes {buffer_bytes}, linger {linger} s: the first two must be at "
                "least 1, linger at least 0"
            )
        self.client = client
        self.topic = topic
        self._linger = linger
        self._batch_bytes = batch_bytes
        self._in_flight_max = in_flight
        self._buffer_bytes = buffer_bytes
        self._partitioner = partitioner or DefaultPartitioner(rng=client.rng)
        self._timeout = client.timeout if timeout is None else timeout
        self._create = create
        self._register: Topic | None = None
        self._ids: list[PartitionId] = []
        self._origin: Origin | None = None
        self._lanes: dict[int, Lane] = {}
        self._open: dict[int, Lane] = {}  # lanes with a batch being filled
        self._closed: deque[tuple[Lane, Parcel]] = deque()  # batches that wait for their turn
        self._unanswered: dict[Parcel, None] = {}  # open, waiting or under way
        self._in_flight = 0
        self._buffered = 0
        self._room = trio.lowlevel.ParkingLot()
        self._idle = trio.lowlevel.ParkingLot()
        self._poke = trio.Event()
        self._lock = trio.Lock()
        self._scope = trio.CancelScope()
        self._nursery: trio.Nursery | None = None
        self._since_yield = 0
        self._flushing = 0
        self._failed: list[Parcel] = []
        self._ended = False

    # ---------------------------------------------------------------------- life

    async def __aenter__(self) -> Producer:
        await self.client.start(self._run)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            await self.aclose()
        else:
            self._end()

    async def aclose(self) -> None:
        """Flush, then end.

        Raises:
            NotStored, OutcomeUnknown, …: messages were given up and nobody has waited for them: the first error, with
                how many there are.
        """
        try:
            await self._drain()
        finally:
            self._end()
        unheard = [parcel for parcel in self._failed if not parcel.watched]
        if unheard:
            first = unheard[0].error
            assert first is not None
            error = again(first)
            count = sum(parcel.count for parcel in unheard)
            error.add_note(f"{count} messages to {self.topic!r} were given up and nobody waited for them")
            for parcel in unheard:
                parcel.watched = True
            raise error

    def _end(self) -> None:
        """Stop the tasks; what is not confirmed is given up."""
        self._ended = True
        self._scope.cancel()
        for lane in self._open.values():
            lane.open = None
        self._open.clear()
        self._closed.clear()
        for parcel in list(self._unanswered):
            if parcel.sent:
                detail = "the producer was closed before the answer came: it may be stored"
                self._finish(parcel, OutcomeUnknown(detail))
            else:
                self._finish(parcel, NotStored("the producer was closed before it was sent"))

    # ---------------------------------------------------------------- publishing

    async def publish(
        self,
        payload: bytes,
        *,
        key: bytes | None = None,
        headers: Mapping[str, HeaderValue] | None = None,
        partition: int | None = None,
    ) -> Pending:
        """Take a message; waits while too much is buffered. It is encoded at once: change ``payload`` as you like.

        Args:
            payload: the message.
            key: messages of one key go to one partition, unless ``partition`` or a partitioner says otherwise.
            headers: names to bytes, text, numbers, booleans or None.
            partition: its number; the partitioner's choice if None.

        Returns:
            wait on it to know that the message is stored. Cancelled before it returns, the message was not taken.

        Raises:
            TooLarge: over 1 MiB with key and headers; nothing was taken.
            TypeError: a part is of a type that messages do not have.
            NotFound: no such topic (and the cluster does not create topics by themselves), or no such partition.
            NotStored: no node can be reached to ask about the topic, or the producer is closed.
        """
        record = encode_record(Parts(payload, key, headers or {}))
        size = len(record)
        if self._ended:
            raise NotStored(f"the producer to {self.topic!r} is closed")
        if self._register is None or self._origin is None:
            await self._prepare()
        self._since_yield += 1
        if self._since_yield >= YIELD_EVERY:
            self._since_yield = 0
            await trio.lowlevel.checkpoint()
        else:
            await trio.lowlevel.checkpoint_if_cancelled()
        while self._buffered and self._buffered + size > self._buffer_bytes:
            await self._room.park()
        if self._ended:
            raise NotStored(f"the producer to {self.topic!r} was closed")
        # From here on nothing waits: a cancelled publish has taken nothing.
        number = self._choose(key, partition)
        return self._take(number, record, size)

    async def flush(self) -> None:
        """Send what is buffered without lingering, and wait until everything published before has its outcome.

        Raises:
            NotStored, OutcomeUnknown, …: one of those was given up; the first error.
        """
        mine = list(self._unanswered)
        await self._drain()
        for parcel in mine:
            if parcel.error is not None:
                parcel.watched = True
                raise again(parcel.error)

    async def _drain(self) -> None:
        mine = list(self._unanswered)
        self._flushing += 1
        try:
            self._poke.set()
            for parcel in mine:
                await parcel.event.wait()
            await trio.lowlevel.checkpoint()
        finally:
            self._flushing -= 1

    def _choose(self, key: bytes | None, partition: int | None) -> int:
        count = len(self._ids)
        number = self._partitioner(key, count) if partition is None else partition
        if not 0 <= number < count:
            raise NotFound(
                f"topic {self.topic!r} has {count} partitions, numbered from 0: there is no {number}"
            )
        return number

    def _take(self, number: int, record: bytes, size: int) -> Pending:
        lane = self._lanes.get(number)
        if lane is None:
            lane = self._lanes[number] = Lane()
        parcel = lane.open
        if parcel is not None and parcel.bytes + size > self._batch_bytes:
            self._close(number, lane)
            parcel = None
        if parcel is None:
            parcel = lane.open = Parcel(self._ids[number], trio.current_time())
            self._open[number] = lane
            self._unanswered[parcel] = None
            self._poke.set()
        parcel.records.append(record)
        parcel.bytes += size
        index = parcel.count
        parcel.count += 1
        self._buffered += size
        if parcel.bytes >= self._batch_bytes or parcel.count >= BATCH_MESSAGES_MAX:
            self._close(number, lane)
        return Pending(parcel, index)

    def _close(self, number: int, lane: Lane) -> None:
        """The lane's batch is complete: number it, encode it, and put it in line."""
        parcel = lane.open
        assert parcel is not None
        assert self._origin is not None
        lane.open = None
        del self._open[number]
        if lane.origin != self._origin:
            lane.origin, lane.next_seq = self._origin, 0
        parcel.origin, parcel.first = lane.origin, lane.next_seq
        lane.next_seq += parcel.count
        parcel.batch = pack_batch(
            parcel.partition, parcel.origin, parcel.first, self.client.wall_ms(), parcel.records
        )
        parcel.records = []
        lane.unanswered += 1
        self._closed.append((lane, parcel))
        self._poke.set()

    async def _prepare(self) -> None:
        """Learn of the topic, and open the session that numbers the messages."""
        async with self._lock:
            if self._register is None:
                self._register = await self.client.topic(
                    self.topic, create=self._create, timeout=self._timeout
                )
                self._ids = [PartitionId(self._register.id, n) for n in range(self._register.partitions)]
            if self._origin is None:
                self._origin = await self.client.open_session(timeout=self._timeout)

    # ------------------------------------------------------------------- sending

    async def _run(self, task_status: trio.TaskStatus[None]) -> None:
        with self._scope:
            async with trio.open_nursery() as self._nursery:
                task_status.started()
                await self._pump()

    async def _pump(self) -> None:
        """Close the batches whose time has come, and send what is closed, as far as allowed."""
        nursery = self._nursery
        assert nursery is not None
        while True:
            self._poke = trio.Event()
            now = trio.current_time()
            wake = float("inf")
            for number, lane in list(self._open.items()):
                parcel = lane.open
                assert parcel is not None
                due = parcel.opened + self._linger
                if self._origin is None:
                    continue  # the old session was closed: another is being opened
                if lane.unanswered == 0 or self._flushing or now >= due:
                    self._close(number, lane)
                else:
                    wake = min(wake, due)
            while self._closed and self._in_flight < self._in_flight_max:
                lane, parcel = self._closed.popleft()
                self._in_flight += 1
                nursery.start_soon(self._store, lane, parcel)
            with trio.move_on_at(wake):
                await self._poke.wait()

    async def _store(self, lane: Lane, parcel: Parcel) -> None:
        """Publish one batch, again and again if need be, until it has its outcome."""
        batch = parcel.batch
        assert batch is not None
        error: QuorumqError | None = None
        parcel.sent = True
        partition = parcel.partition.number
        history = self.client.history
        try:
            await self.client.nodes.ask(
                lambda: m.Publish(batch),
                what=f"publish of {parcel.count} messages to {self.topic!r}/{partition}",
                timeout=self._timeout,
                writes=True,
                watch=None if history is None else history.publishing(self.topic),
            )
        except OriginClosed as exc:
            error = exc
            if self._origin == parcel.origin:
                self._origin = None  # what is numbered next is numbered under a new session
                assert self._nursery is not None
                self._nursery.start_soon(self._reopen)
        except QuorumqError as exc:
            error = exc
        finally:
            self._in_flight -= 1
            lane.unanswered -= 1
            self._poke.set()
        self._finish(parcel, error)

    async def _reopen(self) -> None:
        try:
            await self._prepare()
        except QuorumqError as exc:
            for lane in list(self._open.values()):
                if lane.open is not None:
                    parcel, lane.open = lane.open, None
                    self._finish(parcel, exc)
            self._open.clear()
        self._poke.set()

    def _finish(self, parcel: Parcel, error: QuorumqError | None) -> None:
        if parcel.done:
            return
        self._unanswered.pop(parcel, None)
        self._buffered -= parcel.bytes
        parcel.finish(error)
        if error is not None:
            self._failed.append(parcel)
            if len(self._failed) > 1000:
                del self._failed[:-1000]
        self._room.unpark_all()
