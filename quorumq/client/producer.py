"""From single messages to batches that are stored once, whatever happens on the way.

A batch is encoded once, numbered once, and repeated byte for byte through any node until it is confirmed or its
time is over (docs/protocol.md, PUBLISH and promise G6). Numbers are per partition and dense; a batch that is never
confirmed leaves a gap, and nothing waits for it.

Messages that are derived from others bring their names along (derived.py). They go in batches of their own, of many
sections, so that one that is refused takes no others with it: a batch of them that hears `Conflict` is cut in two.

Latency and size: a partition's batch closes at once when nothing of that partition is under way, and otherwise
when it is full, when it has lingered, or when what was under way is answered. So one message alone does
not wait, and a flood fills its batches.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Final, NamedTuple

import trio
from crc32c import crc32c

from quorumq.client.context import REFRESH_S, Context
from quorumq.client.derived import derived_origin, derived_partition, runs_of
from quorumq.client.history import Output
from quorumq.client.message import Message, MessageId, again
from quorumq.client.nodes import left_of
from quorumq.client.partitioner import DefaultPartitioner, Partitioner
from quorumq.client.times import Duration, delay_ms, ttl_ms
from quorumq.core import messages as m
from quorumq.core.errors import (
    Conflict,
    NotFound,
    NotStored,
    OriginClosed,
    OutcomeUnknown,
    QuorumqError,
    UsageError,
)
from quorumq.core.limits import BATCH_BYTES_MAX, BATCH_MESSAGES_MAX, KIB, MIB, ORIGIN_IDLE_S
from quorumq.core.types import Batch, Origin, PartitionId, Span, Topic
from quorumq.history import topic_label
from quorumq.wire.batch import SECTIONS_MAX, HeaderValue, encode_record, pack_sections
from quorumq.wire.batch import Message as Parts

CLOSE_WAIT_S: Final = 1.0
"""How long a producer that ends waits until the cluster has heard that its session is over."""

SESSION_S: Final = ORIGIN_IDLE_S / 2
"""A session numbers for so long: nodes close one under which nothing comes to a partition for twice that time, and
refuse the next batch. One message a day must not mean one failed publish a day."""

LINGER_S: Final = 0.010
BATCH_BYTES: Final = 64 * KIB
IN_FLIGHT: Final = 8
BUFFER_BYTES: Final = 16 * MIB
YIELD_EVERY: Final = 32
"""`publish` lets other tasks run at least after so many messages."""


class Times(NamedTuple):
    """What all messages of a batch share, in milliseconds; 0 for none."""

    delay_ms: int
    ttl_ms: int


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
            await parcel.event.wait()
        else:
            await trio.lowlevel.checkpoint_if_cancelled()
        error = parcel.failure(self._index)
        if error is not None:
            raise again(error)
        return parcel.id_of(self._index)


class Parcel:
    """One batch, from its first message until it is confirmed or given up."""

    __slots__ = (
        "batch", "bytes", "count", "done", "error", "event", "first", "heard", "made", "opened", "origin", "partition",
        "records", "refused", "sent", "times",
    )  # fmt: skip

    def __init__(self, partition: PartitionId, opened: float, times: Times) -> None:
        self.partition = partition
        self.opened = opened  # when its first message came
        self.times = times
        self.made = 0.0  # when it was numbered and encoded, by the client's clock: its age counts from there
        self.records: list[bytes] = []
        self.bytes = 0
        self.count = 0
        self.batch: Batch | None = None  # once it is numbered and encoded
        self.origin: Origin | None = None
        self.first = 0
        self.sent = False
        self.done = False
        self.heard: set[int] = set()  # indexes of those whose failure somebody was told
        self.error: QuorumqError | None = None
        self.refused: dict[int, QuorumqError] = {}  # by index: messages that were refused alone
        self.event = trio.Event()

    @property
    def full(self) -> bool:
        """Whether no message may be added, however small."""
        return self.count >= BATCH_MESSAGES_MAX

    def add(self, record: bytes) -> int:
        """Append a record; its index."""
        self.records.append(record)
        self.bytes += len(record)
        self.count += 1
        return self.count - 1

    def number(self, origin: Origin, first: int, wall_ms: int) -> None:
        """It is complete: name its messages, and encode it once and for all."""
        self.origin, self.first = origin, first
        sections = (Span(origin, first, first + self.count),)
        self.batch = pack_sections(self.partition, sections, wall_ms, self.records, **self.times._asdict())
        self.records = []

    def id_of(self, index: int) -> MessageId:
        """The id of one of its messages."""
        assert self.origin is not None
        return MessageId(self.partition, self.origin, self.first + index)

    def finish(self, error: QuorumqError | None) -> None:
        """It is confirmed, or given up with ``error``."""
        self.error = error
        self.done = True
        self.batch = None
        self.records = []
        self.event.set()

    def failure(self, index: int) -> QuorumqError | None:
        """Why one of its messages was given up, or None; who asks tells the application."""
        error = self.error or self.refused.get(index)
        if error is not None:
            self.heard.add(index)
        return error

    def take_failures(self) -> list[QuorumqError]:
        """Why messages were given up that nobody has heard of, one for each: told now."""
        failed = range(self.count) if self.error is not None else self.refused
        found = [index for index in failed if index not in self.heard]
        self.heard.update(found)
        return [self.error or self.refused[index] for index in found]


class DerivedParcel(Parcel):
    """A batch of messages that came with their names: sections in place of one run of numbers."""

    __slots__ = ("inputs", "names", "places", "runs")

    def __init__(self, partition: PartitionId, opened: float, times: Times) -> None:
        super().__init__(partition, opened, times)
        self.names: list[tuple[Origin, int]] = []
        self.inputs: list[tuple[Message, int]] = []  # and which output of it this is: for the history
        self.places: dict[tuple[Origin, int], int] = {}
        self.runs = 0  # sections that it takes, or fewer

    @property
    def full(self) -> bool:
        """Whether no message may be added, however small."""
        return super().full or self.runs >= SECTIONS_MAX

    def place(self, name: tuple[Origin, int], record: bytes) -> int:
        """Append a record under its name; its index, which it has already if it was added before.

        Raises:
            Conflict: another record was added under this name.
        """
        index = self.places.get(name)
        if index is None:
            index = self.places[name] = self.add(record)
            self.names.append(name)
            self.runs += (name[0], name[1] - 1) not in self.places
        elif self.records[index] != record:
            raise Conflict(
                f"another payload is being published as {self.id_of(index)}: what is derived must depend on its input "
                "alone, and each of several outputs needs an index of its own"
            )
        return index

    def in_order(self) -> list[int]:
        """The indexes of its messages as `packed` wants them."""
        return sorted(range(self.count), key=self.names.__getitem__)

    def packed(self, indexes: Sequence[int], wall_ms: int) -> Batch:
        """A batch of some of its messages."""
        sections = runs_of([self.names[index] for index in indexes])
        records = [self.records[index] for index in indexes]
        return pack_sections(self.partition, sections, wall_ms, records, **self.times._asdict())

    def outputs(self, topic: str) -> Iterator[Output]:
        """What is derived from what, for the history; ``topic`` is the one that they are published to."""
        for (source, index), (name, seq), record in zip(self.inputs, self.names, self.records, strict=True):
            of = source.id
            label = topic_label(of.partition.topic, source.topic)
            yield Output(
                label, of.partition.number, source.group, of.origin, index,
                topic, self.partition.number, name, seq, crc32c(record),
            )  # fmt: skip

    def id_of(self, index: int) -> MessageId:
        """The id of one of its messages."""
        return MessageId(self.partition, *self.names[index])

    def refuse(self, index: int, error: QuorumqError) -> None:
        """One of its messages is refused for good, and the others are not."""
        self.refused[index] = error


class Lane:
    """One partition: the batch that is being filled, and how many are not answered yet."""

    __slots__ = ("kind", "next_seq", "open", "origin", "partition", "unanswered")

    def __init__(self, partition: PartitionId, kind: type[Parcel]) -> None:
        self.partition = partition
        self.kind = kind
        self.open: Parcel | None = None
        self.unanswered = 0  # closed and not done
        self.origin: Origin | None = None
        self.next_seq = 0  # under `origin`

    @property
    def numbers(self) -> bool:
        """Whether messages get their numbers here; else they came with names."""
        return self.kind is Parcel


class Producer:
    """Publishes to one topic. Made by `Client.producer`; several tasks may share one.

    Use it as an async context manager: leaving it flushes, and raises if a message was given up whose `Pending`
    nobody waited for. Leaving it by an exception gives up what is not confirmed.
    """

    def __init__(
        self,
        context: Context,
        topic: str,
        *,
        linger: float,
        batch_bytes: int,
        in_flight: int,
        buffer_bytes: int,
        partitioner: Partitioner | None,
        timeout: float | None,
        create: bool,
    ) -> None:
        if not 1 <= batch_bytes <= BATCH_BYTES_MAX:
            raise UsageError(f"batch_bytes is {batch_bytes}: it must be from 1 to {BATCH_BYTES_MAX}")
        if in_flight < 1 or buffer_bytes < 1 or linger < 0:
            raise UsageError(
                f"in_flight is {in_flight}, buffer_bytes {buffer_bytes}, linger {linger} s: the first two must be at "
                "least 1, linger at least 0"
            )
        self._context = context
        self.topic = topic
        self._linger = linger
        self._batch_bytes = batch_bytes
        self._in_flight_max = in_flight
        self._buffer_bytes = buffer_bytes
        self._partitioner = partitioner or DefaultPartitioner(rng=context.rng)
        self._timeout = context.time(timeout)
        self._create = create
        self._register: Topic | None = None
        self._ids: list[PartitionId] = []
        self._origin: Origin | None = None
        self._origin_until = 0.0  # by the client's clock, which counts while the machine is suspended
        self._lanes: dict[tuple[int, bool], Lane] = {}  # by partition, and whether what goes there is derived
        self._open: dict[Lane, None] = {}  # lanes with a batch being filled
        self._closed: deque[tuple[Lane, Parcel]] = deque()  # batches that wait for their turn
        self._unanswered: dict[Parcel, None] = {}  # open, waiting or under way
        self._in_flight = 0
        self._buffered = 0
        self._room = trio.lowlevel.ParkingLot()
        self._poke = trio.Event()
        self._lock = trio.Lock()
        self._scope = trio.CancelScope()
        self._nursery: trio.Nursery | None = None
        self._since_yield = 0
        self._flushing = 0
        self._failed: list[Parcel] = []
        self._entered = False
        self._ended = False

    # ---------------------------------------------------------------------- life

    async def __aenter__(self) -> Producer:
        if self._entered:
            raise UsageError("this producer was used before: make another one by `Client.producer`")
        self._entered = True
        await self._context.start(self._run)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            await self.aclose()
        else:
            self._end()

    async def aclose(self) -> None:
        """Flush, then end. A session of which every message is confirmed is closed with it, as far as can be heard.

        Raises:
            NotStored, OutcomeUnknown, …: messages were given up and nobody has waited for them: the first error, with
                how many there are.
        """
        try:
            await self._drain()
            await self._close_session()
        finally:
            self._end()
        unheard = [error for parcel in self._failed for error in parcel.take_failures()]
        if unheard:
            error = again(unheard[0])
            error.add_note(
                f"{len(unheard)} messages to {self.topic!r} were given up and nobody waited for them"
            )
            raise error

    async def _close_session(self) -> None:
        """Tell the cluster that nothing more comes under our origin, so that it need not remember it for ever."""
        origin = self._origin
        used = [
            lane.partition for lane in self._lanes.values() if origin is not None and lane.origin == origin
        ]
        if origin is None or not used or self._failed:
            return  # a session that is not closed is closed for being idle, some day
        self._origin = None
        with trio.move_on_after(CLOSE_WAIT_S), contextlib.suppress(QuorumqError):
            request = m.CloseSession(origin, tuple(used))
            await self._context.ask(request, "close a session", CLOSE_WAIT_S, writes=True)

    def _end(self) -> None:
        """Stop the tasks; what is not confirmed is given up."""
        self._ended = True
        self._scope.cancel()
        for lane in self._open:
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
        derived_from: Message | None = None,
        index: int = 0,
        delay: Duration | None = None,
        not_before: datetime | None = None,
        ttl: Duration | None = None,
    ) -> Pending:
        """Take a message; waits while too much is buffered. It is encoded at once: change ``payload`` as you like.

        With ``derived_from`` it is an output of that input: its id comes from the input's, so that publishing it
        again, at any time, by anyone to whom the group's input was delivered, makes no second message. Publish, wait,
        then ack the input: whatever is killed in between, each output is there exactly once. That holds as long as key,
        headers, payload and ``partition`` depend on nothing but the input. It is one output of one input for ever: an
        input that is redriven, or read again by a rewound group, derives the same id and adds nothing.

        Args:
            payload: the message.
            key: messages of one key go to one partition, unless ``partition`` or a partitioner says otherwise.
            headers: names to bytes, text, numbers, booleans or None.
            partition: its number; the partitioner's choice if None. What is derived is spread over the partitions
                that the topic was created with, and without a key the outputs of one input partition stay together.
            derived_from: the message that this one is an output of, as a consumer or `Client.fetch` gave it.
            index: of several outputs of one input to this topic, which one this is: 0, 1, 2 …
            delay: seconds or a timedelta: deliver it to nobody before they are over. At most 366 days.
            not_before: instead of a delay, a datetime with a time zone. It is turned into a delay at once, by this
                machine's clock; what is in the past is no delay.
            ttl: seconds or a timedelta, counted from now like the delay: where nobody has acked it by then it becomes
                a dead letter with the reason ``expired`` instead of being delivered. The topic's if None.

        Messages with other times go in another batch: a stream in which each has its own makes many small batches.

        Returns:
            wait on it to know that the message is stored. Cancelled before it returns, the message was not taken.

        Raises:
            TooLarge: over 1 MiB with key and headers; nothing was taken.
            TypeError: a part is of a type that messages do not have.
            UsageError: ``delay``, ``not_before`` or ``ttl`` is out of bounds.
            NotFound: no such topic (and the cluster does not create topics by themselves), or no such partition.
            NotStored: no node can be reached to ask about the topic, or the producer is closed.
            Conflict: another payload was just derived as this output of this input. `Pending.wait` raises it too, where
                replicas have other bytes under the id: what they have stays, and this was not stored.
        """
        if not self._entered:
            raise UsageError("nothing would be sent: use the producer by `with`")
        if not 0 <= index < 1 << 64 or (index and derived_from is None):
            raise UsageError(f"index is {index}: it counts the outputs of derived_from, from 0")
        record = encode_record(Parts(payload, key, headers or {}))
        size = len(record)
        wall_ms = self._context.wall_ms
        times = Times(delay_ms(delay, not_before, wall_ms()), ttl_ms(ttl))
        self._since_yield += 1
        if self._since_yield >= YIELD_EVERY:
            self._since_yield = 0
            await trio.lowlevel.checkpoint()
        else:
            await trio.lowlevel.checkpoint_if_cancelled()
        while not self._ended:  # while it waits for room the session may be closed, and another needed
            if self._register is None or (derived_from is None and self._needs_session):
                await self._prepare(numbered=derived_from is None)
            elif self._buffered and self._buffered + size > self._buffer_bytes:
                await self._room.park()
            else:
                break
        if self._ended:
            raise NotStored(f"the producer to {self.topic!r} is closed")
        # From here on nothing waits: a cancelled publish has taken nothing.
        if not_before is not None:  # it may have waited here
            times = Times(delay_ms(None, not_before, wall_ms()), times.ttl_ms)
        if derived_from is not None:
            return self._take_derived(derived_from, index, key, partition, record, times)
        return self._take(self._choose(key, partition), record, times)

    async def flush(self) -> None:
        """Send what is buffered without lingering, and wait until everything published before has its outcome.

        Raises:
            NotStored, OutcomeUnknown, …: one of those was given up; the first error.
        """
        mine = list(self._unanswered)
        await self._drain()
        for parcel in mine:
            error = parcel.error or next(iter(parcel.refused.values()), None)
            if error is not None:
                parcel.take_failures()
                raise again(error)

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
        return self._existing(self._partitioner(key, len(self._ids)) if partition is None else partition)

    def _existing(self, number: int) -> int:
        count = len(self._ids)
        if not 0 <= number < count:
            raise NotFound(
                f"topic {self.topic!r} has {count} partitions, numbered from 0: there is no {number}"
            )
        return number

    def _take(self, number: int, record: bytes, times: Times) -> Pending:
        lane = self._lane(number, derived=False)
        parcel = self._filling(lane, len(record), times)
        index = parcel.add(record)
        self._taken(lane, parcel, len(record))
        return Pending(parcel, index)

    def _take_derived(
        self,
        source: Message,
        index: int,
        key: bytes | None,
        partition: int | None,
        record: bytes,
        times: Times,
    ) -> Pending:
        register = self._register
        assert register is not None
        source_id = source.id
        if partition is None:
            partition = derived_partition(source_id, key, register, self._partitioner)
        lane = self._lane(self._existing(partition), derived=True)
        parcel = self._filling(lane, len(record), times)
        assert isinstance(parcel, DerivedParcel)
        before = parcel.count
        origin = derived_origin(source_id, source.group, register.id, index)
        place = parcel.place((origin, source_id.seq), record)
        if self._context.history is not None and parcel.count > before:
            parcel.inputs.append((source, index))
        self._taken(lane, parcel, len(record) if parcel.count > before else 0)
        return Pending(parcel, place)

    def _lane(self, number: int, *, derived: bool) -> Lane:
        lane = self._lanes.get((number, derived))
        if lane is None:
            lane = self._lanes[(number, derived)] = Lane(
                self._ids[number], DerivedParcel if derived else Parcel
            )
        return lane

    def _filling(self, lane: Lane, size: int, times: Times) -> Parcel:
        """The lane's open batch for these times, with room for a record of ``size`` bytes."""
        parcel = lane.open
        if parcel is not None and (parcel.bytes + size > self._batch_bytes or parcel.times != times):
            self._close(lane)
            parcel = None
        if parcel is None:
            parcel = lane.open = lane.kind(lane.partition, trio.current_time(), times)
            self._open[lane] = None
            self._unanswered[parcel] = None
            self._poke.set()
        return parcel

    def _taken(self, lane: Lane, parcel: Parcel, size: int) -> None:
        """The lane's open batch has grown by a record."""
        self._buffered += size
        if parcel.bytes >= self._batch_bytes or parcel.full:
            self._close(lane)

    def _close(self, lane: Lane) -> None:
        """The lane's batch is complete: have it named and encoded, and put it in line."""
        parcel = lane.open
        assert parcel is not None
        lane.open = None
        del self._open[lane]
        parcel.made = self._context.clock()
        if lane.numbers:
            assert self._origin is not None
            if lane.origin != self._origin:
                lane.origin, lane.next_seq = self._origin, 0
            parcel.number(lane.origin, lane.next_seq, self._context.wall_ms())
            lane.next_seq += parcel.count
        lane.unanswered += 1
        self._closed.append((lane, parcel))
        self._poke.set()

    @property
    def _needs_session(self) -> bool:
        return self._origin is None or self._context.clock() >= self._origin_until

    async def _prepare(self, *, numbered: bool = True) -> None:
        """Learn of the topic, and open the session that numbers the messages, if any are to be numbered."""
        async with self._lock:
            end = trio.current_time() + self._timeout
            if self._register is None:
                self._register = await self._context.topic(
                    self.topic, create=self._create, timeout=self._timeout
                )
                self._ids = [PartitionId(self._register.id, n) for n in range(self._register.partitions)]
            if numbered and self._needs_session:
                until = self._context.clock() + SESSION_S
                opened = await self._context.ask(m.OpenSession(), "open a session", left_of(end), writes=True)
                self._origin = opened.origin
                self._origin_until = until

    # ------------------------------------------------------------------- sending

    async def _run(self, task_status: trio.TaskStatus[None]) -> None:
        try:
            with self._scope:
                async with trio.open_nursery() as self._nursery:
                    task_status.started()
                    self._nursery.start_soon(self._refresh)
                    await self._pump()
        finally:
            self._end()  # where the client is closed first, whoever waits has to hear of it

    async def _refresh(self) -> None:
        """Spread new messages over partitions that are made meanwhile; a batch stays where it was numbered."""
        while True:
            await trio.sleep(REFRESH_S)
            if self._register is None:
                continue
            try:
                topic = await self._context.topic(self.topic, timeout=self._timeout)
            except QuorumqError:
                continue  # publishing says what is the matter
            if topic.id == self._register.id:
                self._register = topic
                self._ids += [PartitionId(topic.id, n) for n in range(len(self._ids), topic.partitions)]

    async def _pump(self) -> None:
        """Close the batches whose time has come, and send what is closed, as far as allowed."""
        nursery = self._nursery
        assert nursery is not None
        while True:
            self._poke = trio.Event()
            now = trio.current_time()
            wake = float("inf")
            for lane in list(self._open):
                parcel = lane.open
                assert parcel is not None
                due = parcel.opened + self._linger
                if lane.numbers and self._origin is None:
                    continue  # the old session was closed: another is being opened
                if lane.unanswered == 0 or self._flushing or now >= due:
                    self._close(lane)
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
        if parcel.done:  # the producer was left between the decision to send it and this
            return
        error: QuorumqError | None = None
        parcel.sent = True
        try:
            if isinstance(parcel, DerivedParcel):
                if self._context.history is not None:
                    self._context.history.derived(parcel.outputs(self.topic))
                await self._publish_derived(parcel, parcel.in_order())
            else:
                assert parcel.batch is not None
                await self._publish(parcel, parcel.batch)
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

    async def _publish(self, parcel: Parcel, batch: Batch) -> None:
        history, clock = self._context.history, self._context.clock
        header = batch.header
        await self._context.nodes.ask(
            lambda: m.Publish(batch, max(0, int(1000 * (clock() - parcel.made)))),
            what=f"publish of {header.size} messages to {self.topic!r}/{header.partition.number}",
            timeout=self._timeout,
            writes=True,
            watch=None if history is None else history.publishing(self.topic),
        )

    async def _publish_derived(self, parcel: DerivedParcel, indexes: Sequence[int]) -> None:
        """Publish these messages of the parcel; one that is refused must not keep the others from being stored."""
        try:
            await self._publish(parcel, parcel.packed(indexes, self._context.wall_ms()))
        except (Conflict, OriginClosed) as exc:
            if len(indexes) == 1:
                parcel.refuse(indexes[0], exc)
                return
            half = len(indexes) // 2
            await self._publish_derived(parcel, indexes[:half])
            await self._publish_derived(parcel, indexes[half:])

    async def _reopen(self) -> None:
        try:
            await self._prepare()
        except QuorumqError as exc:
            for lane in [lane for lane in self._open if lane.numbers]:
                assert lane.open is not None
                parcel, lane.open = lane.open, None
                del self._open[lane]
                self._finish(parcel, exc)
        self._poke.set()

    def _finish(self, parcel: Parcel, error: QuorumqError | None) -> None:
        if parcel.done:
            return
        self._unanswered.pop(parcel, None)
        self._buffered -= parcel.bytes
        parcel.finish(error)
        if error is not None or parcel.refused:
            self._failed.append(parcel)
            if len(self._failed) > 1000:
                del self._failed[:-1000]
        self._room.unpark_all()
