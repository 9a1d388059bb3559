"""Producers: single messages become batches that are stored once, after any failure on the way.

A batch is encoded and numbered once, and repeated byte for byte through any node until it is confirmed or its time is
over (docs/protocol.md, PUBLISH and promise G6). Only if its topic was made again does it get other ids, of that topic.
Numbers are per partition and dense; a batch that is never confirmed leaves a gap, and nothing waits for it.

Batches are filled in outbox.py, described in batches.py and sent in sending.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Final, TypedDict, Unpack

import trio

from quorumq.client.base.background import Crew
from quorumq.client.base.context import Calls
from quorumq.client.base.hints import hinted
from quorumq.client.base.message import MessageId, again
from quorumq.client.base.options import Options, Outgoing
from quorumq.client.base.times import Duration, positive_of, seconds_of
from quorumq.client.produce.batches import NO_TIMES, Pending, RecordBatch, Run, message_timeout, times_of
from quorumq.client.produce.bulk import Bulk, outgoing_of
from quorumq.client.produce.derived import EncodedMessage
from quorumq.client.produce.encoded import encoded_of, found_name, rename
from quorumq.client.produce.outbox import BATCH_BYTES, LOADED_BYTES, Outbox, PartitionQueue
from quorumq.client.produce.partitioner import DefaultPartitioner, Partitioner
from quorumq.client.produce.sending import ENDED, Sender, Session
from quorumq.client.transport.nodes import left_of
from quorumq.core.values.errors import NotFound, NotStored, QuorumqError, UsageError, utf8
from quorumq.core.values.limits import BATCH_BYTES_MAX, DELAY_MAX_S, MIB
from quorumq.core.values.printable import plural
from quorumq.core.values.types import PartitionId, ProducerId, Topic
from quorumq.wire.batch import HeaderValue, encode_records

LINGER_S: Final = 0.010
IN_FLIGHT: Final = 8
BUFFER_BYTES: Final = 16 * MIB
SHARED_LEFT: Final = 0.9
"""Share of its timeout that a message has left when it is taken, at which it shares batches as if it had all of it."""
YIELD_EVERY: Final = 32
"""Messages after which `send` lets other tasks run."""


class ProducerOptions(TypedDict, total=False):
    """Keyword arguments of `Client.producer`, with the meaning that it gives them."""

    linger: float
    batch_bytes: int | None
    in_flight: int
    buffer_bytes: int
    partitioner: Partitioner | None
    timeout: float | None
    create: bool


@hinted
class Producer:
    """Publisher to one topic. Made by `Client.producer`; several tasks may share one.

    It begins with its first message, and ends with the client. Used as an async context manager it ends there: leaving
    that flushes, and raises if a message was given up whose `Pending` no caller waited for; leaving it by an exception
    gives up messages that are not confirmed.
    """

    def __init__(
        self,
        client: Calls,
        topic: str,
        *,
        linger: float = LINGER_S,
        batch_bytes: int | None = None,
        in_flight: int = IN_FLIGHT,
        buffer_bytes: int = BUFFER_BYTES,
        partitioner: Partitioner | None = None,
        timeout: float | None = None,
        create: bool = True,
    ) -> None:
        if batch_bytes is not None and positive_of("batch_bytes", batch_bytes) > BATCH_BYTES_MAX:
            raise UsageError(f"batch_bytes is {batch_bytes}: it must be from 1 to {BATCH_BYTES_MAX}")
        if partitioner is not None and not callable(partitioner):
            raise UsageError(
                f"partitioner is {partitioner!r}: give a function of a key and the number of partitions"
            )
        positive_of("in_flight", in_flight)
        positive_of("buffer_bytes", buffer_bytes)
        context = client.context
        self.topic = topic
        self._context = context
        self._linger = seconds_of("linger", linger, DELAY_MAX_S)
        self._in_flight_max = in_flight
        self._buffer_bytes = buffer_bytes
        self._partitioner = partitioner or DefaultPartitioner(rng=context.rng)
        self._timeout = context.time(timeout)
        self._create = create
        self._register: Topic | None = None
        self._ids: list[PartitionId] = []
        self._session = Session(context)
        # As many as may be in flight fit the buffer, or it would be full before a batch is.
        most = max(BATCH_BYTES, min(LOADED_BYTES, buffer_bytes // in_flight))
        self._outbox = Outbox(
            context,
            topic,
            self._session,
            batch_bytes=batch_bytes or BATCH_BYTES,
            loaded_bytes=batch_bytes or most,
            send_soon=self._send_soon,
        )
        # `publish_many` takes messages in runs of a batch: others run in between, and full batches are sent.
        self._run_bytes = min(batch_bytes or most, buffer_bytes)
        self._sender = Sender(context, topic, self._timeout)
        self._in_flight = 0
        self._lock = trio.Lock()
        self._scope = trio.CancelScope()
        self._nursery: trio.Nursery | None = None
        self._crew: Crew  # once it has started, as nothing is taken before
        self._since_yield = 0
        self._flushing = 0
        self._started = False
        self._ended = False

    # ---------------------------------------------------------------------- life

    async def __aenter__(self) -> Producer:
        if self._ended:
            raise UsageError("this producer was used before: make another one by `Client.producer`")
        await self._start()
        return self

    async def open(self) -> None:
        """Begin, until `close`: for programs whose start and stop are two calls. Else use ``async with``."""
        await self.__aenter__()

    async def _start(self) -> None:
        async with self._lock:
            if not self._started:
                self._context.open(self)
                try:
                    await self._context.start(self._run)
                except BaseException:
                    self._context.closed(self)
                    raise
                self._started = True

    async def __aexit__(self, *exc_info: object) -> None:
        if exc_info[0] is None:
            await self.close()
        else:
            self._end()

    async def close(self) -> None:
        """Flush, then end. If all messages of its session are confirmed, the session is closed too, as far as possible.

        Raises:
            NotStored, OutcomeUnknown, …: messages were given up and no caller waited for them: the first error, with
                how many there are.
        """
        try:
            await self._drain()
            await self._close_session()
        finally:
            self._end()
        unreported = [error for record_batch in self._outbox.failed for error in record_batch.take_failures()]
        if unreported:
            raise self._given_up(unreported)

    async def _close_session(self) -> None:
        producer_id = self._session.producer_id
        used = self._outbox.used(producer_id) if producer_id is not None else []
        # A session that is not closed is closed for being idle, some day.
        if used and not self._outbox.failed:
            await self._session.close(used)

    def _end(self) -> None:
        """Stop the tasks; unconfirmed messages are given up."""
        self._ended = True
        self._scope.cancel()
        self._outbox.end()
        self._context.closed(self)

    # ---------------------------------------------------------------- publishing

    async def publish(self, payload: bytes | None = None, **options: Unpack[Options]) -> MessageId:
        """Publish a message, and return once it is durable on a majority.

        It goes at once if nothing of its partition is under way. Messages that many tasks publish at a time
        share batches; one task that has many to publish is faster with `publish_many` or `send`.

        Args:
            payload: the message; None if ``json`` is given.
            options: as of `send`.

        Returns:
            its id. Cancelled before it returns, the message may be stored, or become so.

        Raises:
            as `send` and `Pending.wait` do.
        """
        pending = await self.send(payload, **options)
        try:
            return await pending.wait()
        finally:
            pending._abandon()  # a cancelled caller does not want its outcome

    async def publish_many(self, messages: Iterable[Outgoing], **options: Unpack[Options]) -> list[MessageId]:
        """Publish messages in order, as fast as possible, and return when all are durable on a majority.

        Batches are filled and several kept in flight. ``messages`` is read as they go: at most ``buffer_bytes`` of them
        are in memory, and the id of each.

        Args:
            messages: payloads, or `NewMessage` for those with options of their own.
            options: as of `send`, for all of them. With ``derived_from`` they are its outputs ``index``,
                ``index + 1`` …

        Returns:
            their ids, in their order. Cancelled before it returns, any of them may be stored, or become so.

        Raises:
            NotAllStored: some are not stored, or may not be: it says which. An invalid message is left out; if no node
                can be reached, no more are taken. It is raised when all that were taken have their outcome.
            Exception: ``messages`` raised it. Those before are stored, or a note at the exception says which are not.
        """
        outgoing = outgoing_of(messages)
        bulk = await self._bulk(**options)
        try:
            try:
                await bulk.take(outgoing)
            except Exception as error:
                await bulk.end_by(error)
                raise
            return await bulk.finish()
        finally:
            bulk.abandon()

    async def _bulk(self, **options: Unpack[Options]) -> Bulk:
        """Begin a `publish_many` in steps, for a front whose messages arrive in parts."""
        self._raise_unreported()
        # A partitioner of the application's is asked about each message.
        runs = options.get("partition") is not None or type(self._partitioner) is DefaultPartitioner
        return Bulk(self.topic, self._take, self._take_run, options, self._run_bytes if runs else 0)

    async def send(self, payload: bytes | None = None, **options: Unpack[Options]) -> Pending:
        """Take a message, to be published in a batch, and return at once; waits only while too much is buffered.

        A failure is raised by `Pending.wait`, or by the next call of this producer if the `Pending` was dropped.

        With ``derived_from`` it is an output of that input: its id is made of the input's, so that publishing it
        again, by any client to which the input was delivered, makes no second message. Publish, wait, then ack the
        input: each output exists exactly once if key, headers, payload and ``partition`` depend on nothing but the
        input. An input that is redriven, or read again by a rewound group, derives the same id and adds nothing.

        Args:
            payload: the message; None if ``json`` is given.
            json: instead of a payload, anything that `json.dumps` takes. `Message.json` reads it.
            key: messages of one key go to one partition, unless ``partition`` or a partitioner says otherwise.
            headers: names to bytes, text, numbers, booleans or None.
            partition: its number; the partitioner's choice if None. Derived messages are spread over the partitions
                that the topic was created with.
            derived_from: the message that this one is an output of.
            index: number of this output among several of one input to this topic: 0, 1, 2 …
            dedup: a name of your own, as "invoice-4711": a message that any client publishes again under it is the
                same one. It decides the partition; ``key`` does not.
            window: seconds or a timedelta for which the name is kept, 60 s at least, rounded up; the topic's life if
                None. docs/client.md has the exact rules.
            delay: seconds or a timedelta, at most 366 days: no consumer gets it before they are over.
            not_before: instead of a delay, a datetime with a time zone. It is turned into a delay at once, by this
                machine's clock; a time in the past is no delay.
            ttl: seconds or a timedelta from now: if it is not acked by then it becomes a dead letter with the reason
                ``expired``. The topic's if None.
            timeout: seconds for this message: to be taken, and then until it is given up. The producer's if None.

        Returns:
            a handle to wait for. Cancelled before it returns, the message was not taken.

        Raises:
            TooLarge: a payload over 1 MiB, or over 64 KiB more with key and headers; nothing was taken.
            TypeError, ValueError: a part is of a type that messages do not have, or is no JSON.
            UsageError: a time is out of bounds, or the message would expire before its delay is over.
            NotStored: no node can be reached to ask about the topic, or the producer is closed.
            NotStored, OutcomeUnknown, …: messages before this one were given up, and no caller waited for them. This
                one was not taken. It is raised once.
            Conflict: another payload was derived as this output, or published under this name; `Pending.wait` raises
                it too. This one was not stored.
        """
        if self._outbox.silent:
            self._raise_unreported()
        return Pending(*(await self._take(payload, **options))[:2])

    def _publish_now(self, payload: bytes | None = None, **options: Unpack[Options]) -> Pending | None:
        """Publish up to the wait for the answer; None, and nothing is taken, if it would wait before."""
        if self._outbox.silent:
            self._raise_unreported()
        encoded = encoded_of(self._context.wall_ms, payload, **options)
        if encoded.window or not self._takes(len(encoded.record), numbered=encoded.numbered):
            return None
        pending = Pending(*self._put(encoded)[:2])
        pending._abandon()  # a caller that waits gets the outcome, and a cancelled one does not want it
        return pending

    def _raise_unreported(self) -> None:
        """Raise the failures that no caller can receive otherwise; once."""
        errors = self._outbox.take_silent()
        if errors:
            raise self._given_up(errors)

    def _given_up(self, errors: Sequence[QuorumqError]) -> QuorumqError:
        error = again(errors[0])
        error.add_note(f"given up, and nobody waited: {plural(len(errors), 'message')} to {self.topic!r}")
        return error

    async def _take(self, payload: bytes | None = None, **options: Unpack[Options]) -> Run:
        """Take one message, as `send` does."""
        # Errors of the message are raised before anything waits.
        encoded = encoded_of(self._context.wall_ms, payload, **options)
        self._since_yield += 1
        if self._since_yield >= YIELD_EVERY:
            self._since_yield = 0
            await trio.lowlevel.checkpoint()
        else:
            await trio.lowlevel.checkpoint_if_cancelled()
        named: ProducerId | None = None
        asked = b""  # the topic in which the name was looked up
        while True:
            if not self._takes(len(encoded.record), numbered=encoded.numbered):
                size, numbered = len(encoded.record), encoded.numbered
                remaining = await self._capacity_within(encoded.timeout, size, numbered=numbered)
                encoded = encoded._replace(timeout=remaining)
            assert self._register is not None
            if not encoded.window or self._register.id == asked:
                return self._put(encoded, named)  # a publish cancelled before this has taken nothing
            asked = self._register.id
            where = self._existing(encoded.partition_in(self._register, self._partitioner))
            try:
                named = await found_name(self._context, where, encoded)
            except NotFound:
                if not await self._is_made_again(asked):
                    raise

    def _put(self, encoded: EncodedMessage, named: ProducerId | None = None) -> Run:
        """Take a message for which there is room, and whose topic and session are known."""
        record, key, partition, _, _, given, timeout, _, _, numbered = encoded
        times = NO_TIMES if given is None else times_of(*given, self._context.wall_ms(), self._register)
        if not numbered:
            assert self._register is not None
            where = self._existing(encoded.partition_in(self._register, self._partitioner))
            return self._outbox.put_named(where, encoded.name_in(where.topic, named), encoded, times)
        where = self._existing(self._partitioner(key, len(self._ids)) if partition is None else partition)
        run = self._outbox.put(where, (record,), times, timeout)[0]
        if key is not None or partition is not None:
            run.record_batch.fix(partition, len(self._ids))
        return run

    async def _take_run(
        self,
        payloads: Sequence[bytes],
        *,
        key: bytes | str | None = None,
        headers: Mapping[str, HeaderValue] | None = None,
        partition: int | None = None,
        delay: Duration | None = None,
        not_before: datetime | None = None,
        ttl: Duration | None = None,
        timeout: float | None = None,
    ) -> list[Run]:
        """Take all of these messages that have the same options, or none; raises as `send` does."""
        key = utf8(key, "key") if isinstance(key, str) else key
        records = encode_records(payloads, key, headers)
        times_of(delay, not_before, ttl, self._context.wall_ms())
        if timeout is not None:
            timeout = message_timeout(timeout)
        await trio.lowlevel.checkpoint()
        timeout = await self._capacity_within(timeout, sum(map(len, records)), numbered=True)
        times = times_of(delay, not_before, ttl, self._context.wall_ms(), self._register)
        if partition is None and key is None:
            assert isinstance(self._partitioner, DefaultPartitioner)
            targets = self._partitioner.runs(len(records), len(self._ids))
        else:
            where = partition if partition is not None else self._partitioner(key, len(self._ids))
            targets = [(where, len(records))]
        numbers = [(self._existing(number), count) for number, count in targets]
        runs: list[Run] = []
        at = 0
        for where_to, count in numbers:
            runs += self._outbox.put(where_to, records[at : at + count], times, timeout)
            at += count
        for run in runs if key is not None or partition is not None else ():
            run.record_batch.fix(partition, len(self._ids))
        return runs

    async def _capacity_within(self, timeout: float | None, size: int, *, numbered: bool) -> float | None:
        """Wait like `_wait_for_capacity`, for as long as one message has; return the rest, as a batch may share it."""
        if timeout is None:
            await self._wait_for_capacity(size, numbered=numbered)
            return None
        until = trio.current_time() + timeout
        with trio.move_on_at(until):
            await self._wait_for_capacity(size, numbered=numbered)
            remaining = left_of(until)
            return timeout if remaining > SHARED_LEFT * timeout else remaining
        raise NotStored(
            f"publish to {self.topic!r} did not begin within {timeout:g} s: no node has said what the topic is, or too "
            "much is buffered before it. Nothing was sent"
        )

    async def _wait_for_capacity(self, size: int, *, numbered: bool) -> None:
        """Wait until messages of ``size`` bytes can be taken: topic and session are known, and there is room."""
        while not self._takes(size, numbered=numbered):
            if self._ended:
                raise NotStored(f"the producer to {self.topic!r} is closed")
            if not self._started:
                await self._start()
            elif self._register is None or (numbered and self._session.is_needed):
                await self._prepare(numbered=numbered)
            else:  # meanwhile the session may be closed, and another needed
                await self._outbox.waiting.park()

    def _takes(self, size: int, *, numbered: bool) -> bool:
        """Return True if messages of ``size`` bytes can be taken now."""
        buffered = self._outbox.buffered
        return (
            self._started
            and not self._ended
            and self._register is not None
            and not (numbered and self._session.is_needed)
            and (not buffered or buffered + size <= self._buffer_bytes)
        )

    def _existing(self, number: int) -> PartitionId:
        try:
            if 0 <= number < len(self._ids):
                return self._ids[number]
        except TypeError:
            raise UsageError(f"partition is {number!r:.60}: give its number, from 0") from None
        there = plural(len(self._ids), "partition")
        raise NotFound(f"topic {self.topic!r} has {there}, numbered from 0: there is no {number}")

    async def flush(self) -> None:
        """Send buffered messages without lingering, and wait until everything sent before has its outcome.

        Raises:
            NotStored, OutcomeUnknown, …: one of those was given up, or an earlier one that no caller waited for; the
                first error.
        """
        mine = list(self._outbox.unanswered)
        await self._drain()
        unreported = self._outbox.take_silent()
        errors = [
            record_batch.error or next(iter(record_batch.refused.values()), None) for record_batch in mine
        ]
        for record_batch in mine:
            unreported += record_batch.take_failures()
        if unreported:
            raise self._given_up(unreported)
        for error in errors:
            if error is not None:
                raise again(error)

    async def _drain(self) -> None:
        mine = list(self._outbox.unanswered)
        self._flushing += 1
        try:
            self._outbox.poke.set()
            for record_batch in mine:
                await record_batch.event.wait()
            await trio.lowlevel.checkpoint()
        finally:
            self._flushing -= 1

    def _learn(self, register: Topic) -> None:
        """Take note of the topic as a node has just named it.

        New messages are spread over added partitions; a batch stays where it was numbered.
        """
        if self._register is None:
            return
        if register.id != self._register.id:
            self._register = None  # deleted, and made again: the next message looks
        else:
            self._register = register
            self._ids += [PartitionId(register.id, n) for n in range(len(self._ids), register.partitions)]

    async def _prepare(self, *, numbered: bool = True) -> None:
        """Learn of the topic, and open the session that numbers the messages, if any are to be numbered."""
        async with self._lock:
            end = trio.current_time() + self._timeout
            if self._register is None:
                self._register = await self._context.topic(
                    self.topic, create=self._create, timeout=self._timeout
                )
                self._ids = [PartitionId(self._register.id, n) for n in range(self._register.partitions)]
                self._outbox.discard_others(self._register.id)
            if numbered and self._session.is_needed:
                await self._session.open(left_of(end))

    # ------------------------------------------------------------------- sending

    async def _run(self, task_status: trio.TaskStatus[None]) -> None:
        try:
            with self._scope:
                async with trio.open_nursery() as self._nursery:
                    self._crew = Crew(self._nursery.start_soon)
                    task_status.started()
                    await self._pump()
        finally:
            self._end()  # if the client is closed first, tasks that wait have to hear of it

    async def _pump(self) -> None:
        """Close the batches that are due, and send closed ones, as far as allowed."""
        outbox = self._outbox
        while True:
            outbox.poke = trio.Event()
            wake = outbox.close_due(0.0 if self._flushing else self._linger)
            if outbox.closed:
                wake = min(wake, outbox.expire())
            while outbox.closed and self._in_flight < self._in_flight_max:
                queue, record_batch = outbox.closed.popleft()
                self._in_flight += 1
                self._crew.do(self._store, queue, record_batch)
            with trio.move_on_at(wake):
                await outbox.poke.wait()

    def _send_soon(self, queue: PartitionQueue) -> bool:
        """Have the batch just opened sent in the next turn of the loop, if fewer than ``in_flight`` are under way."""
        if self._in_flight >= self._in_flight_max:
            return False
        self._in_flight += 1
        self._crew.do(self._close_and_store, queue)
        return True

    async def _close_and_store(self, queue: PartitionQueue) -> None:
        outbox = self._outbox
        outbox.close(queue)
        if outbox.closed:
            await self._store(*outbox.closed.popleft())
        else:  # it was sent as it was full, or waits for a session
            self._in_flight -= 1
            outbox.poke.set()

    async def _store(self, queue: PartitionQueue, record_batch: RecordBatch) -> None:
        """Send one batch until it has its outcome."""
        if record_batch.done:  # the producer was left between the decision to send it and this
            return
        error: QuorumqError | None = None
        record_batch.sent = True
        try:
            try:
                await self._sender.send(record_batch)
            except NotFound:
                if not await self._follow(record_batch):
                    raise
                await self._sender.send(record_batch)
        except QuorumqError as exc:
            error = exc
            ended = isinstance(exc.__cause__ or exc, ENDED)
            if ended and self._session.producer_id == record_batch.producer_id:
                self._session.producer_id = None  # later batches are numbered under a new session
                assert self._nursery is not None
                self._nursery.start_soon(self._reopen)
        finally:
            self._in_flight -= 1
            self._outbox.answered(queue)
        self._outbox.finish(record_batch, error)

    async def _follow(self, record_batch: RecordBatch) -> bool:
        """Give a batch that is not stored ids of the topic that has the name now; return False if there is none."""
        gone = record_batch.partition
        if not await self._is_made_again(gone.topic):
            return False
        with suppress(QuorumqError):  # that the topic is gone is the error to raise
            await self._prepare(numbered=(numbered := type(record_batch) is RecordBatch))
            where, register = self._existing(record_batch.number_in(len(self._ids))), self._register
            if not numbered:
                return await rename(self._context, record_batch, where, register, self._partitioner)
            if self._session.producer_id is not None and where.topic != gone.topic:
                self._outbox.number_anew(record_batch, where)
                return True
        return False

    async def _is_made_again(self, gone: bytes) -> bool:
        """Return True if another topic has the name of one that was deleted."""
        if self._register is not None and self._register.id == gone:
            self._register = None  # the next message looks
        with suppress(QuorumqError):
            return (await self._context.topic(self.topic, timeout=self._timeout)).id != gone
        return False

    async def _reopen(self) -> None:
        try:
            await self._prepare()
        except QuorumqError as exc:
            self._outbox.fail_unnumbered(exc)
        self._outbox.poke.set()
