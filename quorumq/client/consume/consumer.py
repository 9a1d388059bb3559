"""A stream of messages, each handed over only while its hold is certain.

Messages fetched ahead wait in prefetch.py until the application asks. Once handed over, a message is the
application's: its hold is extended at half time until it is settled.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from itertools import repeat
from typing import Final, Literal, TypedDict

import trio

from quorumq.client.base.hints import hinted
from quorumq.client.base.message import Message, Outcome, Settleable, again, deadline_of
from quorumq.client.base.names import is_dead, names_of
from quorumq.client.base.times import Duration, flag_of, number_of, positive_of, timeout_of
from quorumq.client.consume.fetching import RELEASE_TIMEOUT_S, Gathering, Reader, replica_sets_of, unpack
from quorumq.client.consume.prefetch import Prefetch, Prefetched
from quorumq.client.consume.settle import Failures
from quorumq.client.consume.settling import SettleCalls
from quorumq.core.values.errors import HoldLost, UsageError
from quorumq.core.values.limits import FETCH_BYTES_MAX, HOLD_TIME_DEFAULT_S, MIB
from quorumq.core.values.patterns import is_pattern
from quorumq.core.values.printable import plural

PREFETCH: Final = 1000
PREFETCH_BYTES: Final = 4 * MIB
MAX_EXTEND_S: Final = 3600.0
EXTEND_SHARE: Final = 0.5
"""Share of its hold time after which the hold of a message handed over is extended."""

MAX_UNSETTLED: Final = 100
"""Unsettled messages that `async for` hands over, at most, by default."""

STUCK_S: Final = 10.0
"""Seconds without a place for another one after which it is logged."""

STALL_S: Final = 0.5
"""A shorter stop of the event loop is not named as the cause of a hold that ran out."""

YIELD_EVERY: Final = 64


class ConsumerOptions(TypedDict, total=False):
    """Keyword arguments of `Client.consumer`, with the meaning that it gives them."""

    start: Literal["earliest", "latest"]
    hold_time: Duration | None
    prefetch: int
    prefetch_bytes: int
    max_unsettled: int | None
    auto_extend: bool
    max_extend: float
    node: str | None
    name: str | None
    version: str
    timeout: float | None


@hinted
class Consumer:
    """A stream of messages of one group. Made by `Client.consumer`; several tasks may share one.

    Use it as an async context manager, and iterate: ``async for message in consumer`` or, for speed,
    ``async for messages in consumer.batches()``. Settle every message (`Message.ack`, `reject`, `dead_letter`): if
    one is forgotten, no other consumer gets it until ``max_extend`` is over.

    Leaving it gives back messages that were not handed over. If others are not settled, their holds run out.

    Attributes:
        expects_topics: set before it is entered, topics that are not there, or are deleted, are waited for.
    """

    def __init__(
        self,
        client: SettleCalls,
        topic: str | Sequence[str],
        group: str,
        *,
        start: Literal["earliest", "latest"] = "earliest",
        hold_time: Duration | None = None,
        prefetch: int = PREFETCH,
        prefetch_bytes: int = PREFETCH_BYTES,
        max_unsettled: int | None = None,
        auto_extend: bool = True,
        max_extend: float = MAX_EXTEND_S,
        node: str | None = None,
        name: str | None = None,
        version: str = "",
        timeout: float | None = None,
    ) -> None:
        positive_of("prefetch", prefetch)
        positive_of("prefetch_bytes", prefetch_bytes)
        if max_unsettled is not None:
            positive_of("max_unsettled", max_unsettled)
        if not topic:
            raise UsageError("no topic is named")
        self.topics, self.group = names_of((topic,) if isinstance(topic, str) else topic, group)
        context = client.context
        self.start = start
        self.hold_time = HOLD_TIME_DEFAULT_S if hold_time is None else number_of("hold_time", hold_time)
        self.name = name if name is not None else context.host
        self.version = version
        self.timeout = context.time(timeout)
        self.prefetch = prefetch
        self.max_unsettled = max_unsettled
        self.auto_extend = flag_of("auto_extend", auto_extend)
        self.max_extend = timeout_of(max_extend, "max_extend")
        self.expects_topics = False
        self._context = context
        self.settler = client
        self._default_hold = hold_time is None
        self._prefetch_bytes = prefetch_bytes
        self._node = node
        # FETCHes have connections of their own: a node lets go of what it has parked when its connection ends, and
        # would else hold for no consumer what this one gives back when it is closed. Nor do acks wait behind bodies.
        self._pool = f"consumer {next(context.numbers)}"
        self._ahead = Prefetch(context, self._unpack, lambda: len(self._working))
        self._working: dict[Message, float] = {}  # handed over and not settled -> when
        self._fewer = trio.lowlevel.ParkingLot()  # tasks that wait until there are fewer of them
        self._scope = trio.CancelScope()
        self._fetching = trio.CancelScope()  # within it
        self._draining = trio.Lock()
        self._entered = False
        self._ended: trio.Event | None = None
        self._turn = 0
        self._full_since: float | None = None  # time since which a task waits for a place

    @property
    def unsettled(self) -> int:
        """Messages handed over and not settled, whose holds are not over."""
        return len(self._working)

    @property
    def given_back(self) -> int:
        """Messages given back without having been handed over, so far."""
        return self._ahead.given_back

    @property
    def expired(self) -> int:
        """Messages not handed over because their deadline had passed or their connection was lost, so far."""
        return self._ahead.expired

    # ---------------------------------------------------------------------- life

    async def __aenter__(self) -> Consumer:
        if self._entered:
            raise UsageError("this consumer was used before: make another one by `Client.consumer`")
        self._entered = True
        context, timeout = self._context, self.timeout
        only: tuple[str, ...] = ()
        if self._node is not None:
            only = (await context.address_of(self._node, timeout),)
        expected = tuple(name for name in self.topics if self.expects_topics and not is_pattern(name))
        named = [name for name in self.topics if name not in expected]
        sets = [where for name in named for where in await replica_sets_of(context, name, timeout)]
        if self._default_hold:
            self.hold_time = await context.hold_time_of(None, timeout)
        reader = Reader(
            group=self.group,
            name=self.name,
            version=self.version,
            hold_time=self.hold_time,
            start=self.start,
            timeout=timeout,
            only=only,
            pool=self._pool,
        )
        self._ahead.open(
            reader,
            sets,
            messages=self.prefetch,
            size=self._prefetch_bytes,
            expected=expected if self.expects_topics else None,
            # A consumer that extends holds for ever is waited for as long, too. Others may collect messages.
            patience=self.max_extend if self.max_extend == float("inf") else self.hold_time,
        )
        await context.start(self._run)
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def open(self) -> None:
        """Begin to fetch, until `close`: for programs whose start and stop are two calls. Else use ``async with``."""
        await self.__aenter__()

    async def close(self) -> None:
        """End: nothing more is handed over, and the rest is given back. Takes at most a second."""
        self._scope.cancel()
        await self.drain()
        unsettled = [message for message in self._working if message.outcome is None and message.is_live]
        if unsettled:
            text = "a consumer of group %r leaves %s unsettled, as %r: each comes again in %g s"
            count = plural(len(unsettled), "message")
            self._context.log.warning(
                ("left", self.group), text, self.group, count, unsettled[0], self.hold_time
            )
        self._working.clear()

    async def drain(self) -> None:
        """Fetch no more, give back at once messages not handed over, and end iterating.

        Messages handed over keep their holds until they are settled or the consumer is left. Takes at most a second,
        also if it is cancelled: else every message in the buffer would wait for its hold to run out.

        If another task drains it already, this waits for that. A program that gives back its messages in hand after
        `drain` would otherwise get them again by a FETCH that is still parked.
        """
        self._ahead.closed = True
        self._fetching.cancel()
        self._ahead.arrival.unpark_all()
        self._fewer.unpark_all()
        with trio.move_on_after(RELEASE_TIMEOUT_S) as scope:
            scope.shield = True
            async with self._draining:
                if self._ended is not None:
                    await self._ended.wait()
                await self._ahead.release(await self._context.nodes.hang_up(self._pool))

    async def _run(self, task_status: trio.TaskStatus[None]) -> None:
        self._ended = trio.Event()
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    task_status.started()
                    nursery.start_soon(self._tend_holds)
                    with self._fetching:
                        try:
                            async with trio.open_nursery() as fetching:
                                await self._ahead.run(fetching)
                        finally:
                            self._end_fetching()
        finally:
            self._end_fetching()

    def _end_fetching(self) -> None:
        assert self._ended is not None
        self._ended.set()
        self._ahead.closed = True  # if the client is closed first, tasks that wait have to hear of it
        self._ahead.arrival.unpark_all()
        self._fewer.unpark_all()

    # ----------------------------------------------------------------- hand-over

    def __aiter__(self) -> Consumer:
        return self

    async def __anext__(self) -> Message:
        """Return the next message, waiting for one if need be. Cancelled, it has handed over nothing.

        Raises:
            TooFewReplicas: no partition could be read for the consumer's timeout; the text says what was tried.
                Iterate again to go on.
            UsageError: the FETCH can never work, for example with a hold_time above the cluster's.
        """
        await self._checkpoint()
        most = self.max_unsettled or MAX_UNSETTLED
        if len(self._working) >= most:
            await self._wait_until_fewer(most)
        self._ahead.pace.asked(self._context.clock())
        while True:
            if len(self._working) >= most:
                await self._wait_until_fewer(most)
            elif messages := self._take(1):
                self._ahead.handed(1)
                return messages[0]
            await self._wait(1)

    async def batches(
        self, max_messages: int = 1000, *, timeout: float = float("inf")
    ) -> AsyncIterator[list[Message]]:
        """Yield fetched messages in lists of 1 to ``max_messages``: one wait and one ack for many.

        Args:
            max_messages: in a list, at most.
            timeout: seconds without a message after which it ends.

        Raises:
            as iterating does.
        """
        while batch := await self.take(max_messages, timeout=timeout):
            yield batch

    async def take(self, max_messages: int = 1000, *, timeout: float = float("inf")) -> list[Message]:
        """Return the fetched messages. If there is none, wait for the first.

        Args:
            max_messages: number of messages, at most.
            timeout: seconds to wait; 0 takes messages that were fetched already, and else asks the cluster once.

        Returns:
            1 to ``max_messages`` messages; none if none arrived in time, or the consumer is closed.

        Raises:
            as iterating does. With ``timeout`` 0 also if nothing is ready and one partition cannot be read.
        """
        positive_of("max_messages", max_messages)
        await self._checkpoint()
        most = self.max_unsettled
        timeout = max(0.0, number_of("timeout", timeout))
        until = trio.current_time() + timeout
        with trio.move_on_at(until):
            if most is not None:
                await self._wait_until_fewer(most)
            self._ahead.pace.asked(self._context.clock())
            while True:
                count = max_messages if most is None else min(max_messages, most - len(self._working))
                messages: list[Message] = []
                while len(messages) < count and (more := self._take(count - len(messages))):
                    messages += more
                if messages:
                    self._ahead.handed(len(messages))
                    return messages
                try:
                    await (
                        self._wait_until_fewer(most or 1)
                        if count < 1 and not self._ahead.closed
                        else self._wait(count)
                    )
                except StopAsyncIteration:
                    return []
        if timeout <= 0 and not self._ahead.closed:
            messages = await self._ask_once(max_messages)
            if messages:
                return messages
        self._ahead.missed(max_messages)
        return []

    async def _ask_once(self, max_messages: int) -> list[Message]:
        """Fetch the messages that are ready now, as far as there is room."""
        most = self.max_unsettled
        count = max_messages if most is None else min(max_messages, most - len(self._working))
        sets = self._ahead.sets()
        if count < 1 or not sets:
            return []
        messages = await Gathering(
            self._context,
            sets,
            self._ahead.reader._replace(pool=""),
            self.settler,
            max_messages=count,
            max_bytes=FETCH_BYTES_MAX,
            min_messages=1,
            until=self._context.clock(),
            idle=self._ahead.is_idle(),
            holder=self,
        ).run()
        self._working.update(zip(messages, repeat(self._context.clock())))
        if messages and self._context.history is not None:
            self._context.history.delivered(messages)
        return messages

    async def _checkpoint(self) -> None:
        self._turn += 1
        if self._turn >= YIELD_EVERY:
            self._turn = 0
            await trio.lowlevel.checkpoint()
        else:
            await trio.lowlevel.checkpoint_if_cancelled()

    async def _wait_until_fewer(self, most: int) -> None:
        """Wait until fewer than ``most`` messages are handed over and not settled."""
        now = self._context.clock()
        if self._full_since is None:
            self._full_since = now
        while len(self._working) >= most and not self._ahead.closed:
            # A task that asks again and again, each time for a moment, waits as long as one that asks once.
            with trio.move_on_after(max(0.0, self._full_since + STUCK_S - now)):
                await self._fewer.park()
            now = self._context.clock()
            if len(self._working) >= most and now >= self._full_since + STUCK_S:
                oldest = now - min(self._working.values())
                text = (
                    "%d messages of group %r are not settled, the oldest for %.0f s, and nothing more is handed over: "
                    "ack, reject or dead_letter each, also where its handler fails, or raise max_unsettled"
                )
                self._context.log.warning(("full", self.group), text, len(self._working), self.group, oldest)
                self._full_since = now

    async def _wait(self, count: int) -> None:
        """Wait until something arrived, or raise the error of fetching."""
        if not self._entered:
            raise UsageError("nothing is fetched yet: use the consumer by `with`")
        ahead = self._ahead
        if ahead.fatal is not None:
            raise again(ahead.fatal)
        if ahead.closed:
            raise StopAsyncIteration
        if ahead.error is not None:
            error, ahead.error = ahead.error, None
            raise again(error)
        ahead.waiting += 1
        ahead.requested += count
        try:
            ahead.want()
            await ahead.arrival.park()
        finally:
            ahead.waiting -= 1
            ahead.requested -= count

    def _take(self, most: int) -> list[Message]:
        """Return the messages of `Prefetch.take`; from now on their holds are extended."""
        messages = self._ahead.take(most)
        if messages:
            self._working.update(zip(messages, repeat(self._context.clock())))
            history = self._context.history
            if history is not None:
                history.delivered(messages)
        return messages

    def _unpack(self, buffer: Prefetched) -> list[Message]:
        return unpack(
            self._context,
            buffer.part,
            via=buffer.connection.node,
            sent_at=buffer.sent_at,
            hold_time=buffer.hold_time,
            settler=self.settler,
            holder=self,
        )

    # ----------------------------------------------------------------- extension

    async def _tend_holds(self) -> None:
        """Extend the holds that the application works on, from half of the hold time on, until they are settled."""
        turn = min(1.0, max(0.01, self.hold_time / 20))
        while True:
            slept_at = self._context.clock()
            await trio.sleep(turn)
            now = self._context.clock()
            self._tell_stall(now - slept_at - turn, now)
            margin = deadline_of(0.0, self.hold_time) - EXTEND_SHARE * self.hold_time
            due: list[Message] = []
            before = len(self._working)
            for message, since in list(self._working.items()):
                if message.outcome is not None or now >= message.deadline or now - since > self.max_extend:
                    del self._working[message]
                elif self.auto_extend and message.deadline - now <= margin:
                    due.append(message)
            if len(self._working) < before:
                self._note_fewer()
                if not self._working:
                    self._ahead.emptied()
            if due:
                timeout = max(0.05, min(message.deadline for message in due) - now)
                failures: Failures = {}
                await self.settler.extend_quietly(due, self.hold_time, failures, timeout=timeout)
                lost = [message for message in due if message in failures and message.outcome is None]
                if lost:
                    text = "%d messages of group %r that are worked on were not extended, as one of %r: %s"
                    one = lost[0]
                    self._context.log.warning(
                        ("extend", one.group), text, len(lost), one.group, one.topic, failures[one]
                    )
                # Lost: nothing revives it. Anything else: tried again at the next turn, while there is time.
                for message in due:
                    if isinstance(failures.get(message), HoldLost):
                        self._working.pop(message, None)

    def _tell_stall(self, seconds: float, now: float) -> None:
        """Log that nothing ran for ``seconds``, if holds are over because of that, or nearly were."""
        over = sum(message.outcome is None and now >= message.deadline for message in self._working)
        if seconds >= EXTEND_SHARE * self.hold_time or (over and seconds >= STALL_S):
            text = (
                "the event loop stood for %.1f s, and with it the extension of holds of %g s: those of %s of "
                "group %r ran out, and others may do the same work; have a thread do what blocks, as a pool does with "
                "a handler that is a plain function"
            )
            lost = plural(over, "message")
            self._context.log.warning(("stall", self.group), text, seconds, self.hold_time, lost, self.group)

    def let_go(self, message: Message) -> None:
        """Extend the hold of a message no more: it runs out if the message is not settled before."""
        self._working.pop(message, None)
        self._note_fewer()

    def _note_fewer(self) -> None:
        self._full_since = None
        if self._fewer:
            self._fewer.unpark_all()

    # ------------------------------------------------------------------ settling

    def settled(self, messages: Sequence[Settleable]) -> None:
        """Let go of this consumer's messages that have their verdicts."""
        let_go, rewound = self._working.pop, Outcome.REWOUND
        for message in messages:
            let_go(message, None)  # type: ignore[call-overload]
            # Dead letters that the new generation does not cover stand: nothing is void as a whole.
            if message.outcome is rewound and not is_dead(self.group):
                receipt = message.delivery.receipt
                self._ahead.rewound(receipt.partition.topic, receipt.generation)
        self._full_since = None
        if self._fewer:
            self._fewer.unpark_all()
        if not self._working:
            self._ahead.emptied()

    async def ack(
        self, messages: Iterable[Settleable] | Settleable, *, timeout: float | None = None
    ) -> list[Outcome]:
        """Ack many at once: see `Client.ack`."""
        return await self.settler.ack(messages, timeout=timeout)
