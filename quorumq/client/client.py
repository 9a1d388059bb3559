"""The front door, on trio.

A Client owns the connections and the background tasks; producers and consumers are made from it and end before
it. Every wait for a node has a timeout, and what is raised at its end says which addresses were tried and
what each answered. Background tasks never raise: whoever waits for their work hears of its failure.
"""

from __future__ import annotations

import itertools
import random
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, cast

import trio

from quorumq.client.background import Background, background
from quorumq.client.connection import Dial, dial_tcp
from quorumq.client.consumer import (
    LEAVE_TIMEOUT_S,
    MAX_EXTEND_S,
    PREFETCH,
    PREFETCH_BYTES,
    Consumer,
    Stock,
    brought,
    default_name,
    fetch_from,
    give_back,
    leave_items,
    park_time,
    readable,
    replica_sets_of,
    unpack,
)
from quorumq.client.groups import Start, is_dead, names_of, source_of, start_fields
from quorumq.client.history import Calling, History
from quorumq.client.letters import make_letter
from quorumq.client.message import Lot, Message, MessageId, Named, Outcome, Ticket, deadline_of
from quorumq.client.nodes import ATTEMPT_TIMEOUT_S, Nodes, Watch, left_of
from quorumq.client.partitioner import Partitioner
from quorumq.client.producer import BATCH_BYTES, BUFFER_BYTES, IN_FLIGHT, LINGER_S, Producer
from quorumq.client.settle import AckQueue, Failures, count_of, foremost, note_failures, raise_failure, settle
from quorumq.client.times import Duration, number_of, seconds_of
from quorumq.core import messages as m
from quorumq.core.errors import (
    AlreadyResolved,
    BadReceipt,
    NotFound,
    OutcomeUnknown,
    QuorumqError,
    StaleGeneration,
    TooFewReplicas,
    UsageError,
    error_from,
)
from quorumq.core.limits import (
    DELAY_MAX_S,
    FETCH_BYTES_MAX,
    HOLD_TIME_DEFAULT_S,
    LONG_POLL_MAX_S,
    TOPIC_BACKOFF_S,
)
from quorumq.core.spans import SpanSet
from quorumq.core.types import Group, Kind, Letter, Origin, PartitionId, Span, Topic
from quorumq.wire.address import split_address
from quorumq.wire.batch import Message as Parts
from quorumq.wire.receipts import read_receipt
from quorumq.wire.values import SealedNamed, WireSlice

if TYPE_CHECKING:
    from quorumq.history import HistoryWriter

TIMEOUT_S: Final = 30.0
CONNECT_TIMEOUT_S: Final = 3.0
RF_DEFAULT: Final = 3
PEEK_LIMIT: Final = 500
REDRIVE_ENTRIES_MAX: Final = 1000
LOOKUP_FIRST: Final = 16
"""Items of the first page of a lookup: more only where the messages asked for are close together."""

SEQ_MAX: Final = (1 << 63) - 1
"""Above every number of a message."""
PASS_WAIT_S: Final = 0.25
"""How long one of several nodes may park a `Client.fetch` that has to go round them."""

FETCH_AGE_SHARE: Final = 0.25
"""`Client.fetch` stops gathering when its oldest message has used this share of its hold."""

FETCH_LANES: Final = 8
"""So many `Client.fetch` at once have connections of their own, which can be hung up where one is cancelled."""

Which = Literal["ready", "held", "delayed", "acked", "dead", "skipped", "purged", "all"]


class Peek(NamedTuple):
    """Some messages of one partition, as one replica sees them, or several together."""

    topic: str
    partition: int
    peeked: m.Peeked
    published_ms: int  # 0 where no bodies were asked for, or the node has none
    bodies: dict[int, Parts]  # by number, where bodies were asked for

    def ids(self, topic: bytes) -> list[MessageId]:
        """The ids of the messages, given the topic's id."""
        origin, start, stop = self.peeked.span
        return [MessageId(PartitionId(topic, self.partition), origin, seq) for seq in range(start, stop)]


class Redriven(NamedTuple):
    """What became of a redrive."""

    messages: int
    refused: tuple[tuple[Span, QuorumqError], ...]  # already acked, purged or redriven since


def suspending_clock() -> float:
    """The system's monotonic clock that counts suspended time, where there is one; seconds."""
    return _SUSPENDING()


_BOOTTIME: Final = getattr(time, "CLOCK_BOOTTIME", None)


def _boottime() -> float:
    return time.clock_gettime(cast("int", _BOOTTIME))


_SUSPENDING: Final[Callable[[], float]] = time.monotonic if _BOOTTIME is None else _boottime


def default_clock() -> Callable[[], float]:
    """The clock for deadlines: the system's, or trio's where that is a virtual one (tests, simulation)."""
    virtual = type(trio.lowlevel.current_clock()).__name__ != "SystemClock"
    return trio.current_time if virtual else suspending_clock


class Client:
    """A connection to a cluster. Made by `connect`.

    Attributes:
        timeout: seconds for an operation, all its attempts included, unless the call says otherwise.
        clock: the clock of every deadline, in seconds (`Message.deadline`).
        wall_ms: the time of day in milliseconds since 1970.
        nodes: where the cluster can be reached.
        history: where what happens is written down, or None.
    """

    def __init__(self, nodes: Nodes, tasks: Background, *, timeout: float, history: History | None) -> None:
        self.nodes = nodes
        self.timeout = timeout
        self.clock = nodes.clock
        self.wall_ms = nodes.wall_ms
        self.rng = nodes.rng
        self.history = history
        self.host = socket.gethostname()
        self._tasks = tasks
        self._numbers = itertools.count(1)
        self.topic_names: dict[bytes, str] = {}
        self._fetch_lanes = [f"fetch {number}" for number in range(FETCH_LANES)]  # `fetch` alone uses them
        self._acks = AckQueue(nodes, lambda: self.watch("ack"))

    @property
    def acks(self) -> AckQueue:
        """The queue that acks go through."""
        return self._acks

    def next_number(self) -> int:
        """A number that nothing else of this client has."""
        return next(self._numbers)

    async def start(self, task: Callable[..., Awaitable[None]]) -> None:
        """Run a background task as long as the client lives; returns when it says it has started."""
        self.nodes.check_open()
        await self._tasks.start(task)

    def watch(self, kind: str, **fields: object) -> Watch | None:
        """What is told of the attempts of a request with receipts, if a history is written."""
        return None if self.history is None else self.history.settling(kind, self.topic_names, **fields)

    def _time(self, timeout: float | None) -> float:
        return self.timeout if timeout is None else timeout

    def _end(self, timeout: float | None) -> float:
        """When an operation that begins now has had its time, by trio's clock."""
        return trio.current_time() + self._time(timeout)

    async def _ask(self, request: m.ClientRequest, what: str, timeout: float | None, **more: Any) -> Any:
        self.nodes.check_open()
        reply, _ = await self.nodes.ask(lambda: request, what=what, timeout=self._time(timeout), **more)
        return reply

    # -------------------------------------------------------------------- topics

    async def create_topic(
        self,
        name: str,
        *,
        rf: int | None = None,
        partitions: int | None = None,
        max_deliveries: int | None = None,
        durability: Literal["fsync", "os"] | None = None,
        retention: Duration | None = None,
        ttl: Duration | None = None,
        backoff: Sequence[Duration] | None = None,
        timeout: float | None = None,
    ) -> Topic:
        """Create a topic. Done twice, it is done once: of one that is there, what is given must agree.

        Args:
            name: letters, digits, '.', '_' and '-'.
            rf: on how many nodes each message is kept: odd. 3 if None, or 1 where the cluster has fewer nodes.
            partitions: how many; 1 if None.
            max_deliveries: after so many a message becomes a dead letter; 5 if None.
            durability: "fsync", or "os" to trust the page cache of a majority (docs/operations.md); "fsync" if None.
            retention: seconds or a timedelta that payload is kept after the last group is done with it; 0 if None.
            ttl: seconds or a timedelta after which a message that nobody has acked expires; 0 = never, also if None.
            backoff: seconds or timedeltas that a rejected message waits where the reject does not say, attempt by
                attempt; the last one repeats. No wait if None.
            timeout: seconds; the client's if None.

        Returns:
            the topic; where it was there, with whatever settings it has beside those given.

        Raises:
            Conflict: the topic exists with another value of something given; names it. `alter_topic` changes it.
            UsageError: a value that cannot be; names it.
            NotStored, OutcomeUnknown: too few nodes answered.
        """
        given = {"rf": rf, **_settings(partitions, max_deliveries, durability, retention, ttl, backoff)}
        named: dict[str, Any] = {field: value for field, value in given.items() if value is not None}
        unnamed = tuple(field for field in given if field not in named)
        end = self._end(timeout)
        if rf is None:
            named["rf"] = await self._default_rf(left_of(end))
        request = m.CreateTopic(name, unnamed=unnamed, **named)
        watch = self._calling("set_topic", name)
        reply = await self._ask(request, f"create topic {name!r}", left_of(end), writes=True, watch=watch)
        return self._known(cast("Topic", reply.topic))

    async def alter_topic(
        self,
        name: str,
        *,
        partitions: int | None = None,
        max_deliveries: int | None = None,
        durability: Literal["fsync", "os"] | None = None,
        retention: Duration | None = None,
        ttl: Duration | None = None,
        backoff: Sequence[Duration] | None = None,
        timeout: float | None = None,
    ) -> Topic:
        """Change what is given of a topic's settings; what is None stays. Of two that change one, the last one wins.

        Args:
            partitions: how many there are to be; never fewer than there are. Messages of a key that is published from
                now on may go to another partition than those before.
            max_deliveries, durability, retention, ttl, backoff: as in `create_topic`.
            timeout: seconds; the client's if None.

        Returns:
            the topic with all its settings, as a majority of the nodes had it.

        Raises:
            NotFound: no such topic.
            UsageError: a value that cannot be, or nothing given.
            NotStored, OutcomeUnknown: too few nodes answered; repeat it.
        """
        settings = _settings(partitions, max_deliveries, durability, retention, ttl, backoff)
        request = m.AlterTopic(name, **settings)
        watch = self._calling("set_topic", name)
        reply = await self._ask(request, f"change topic {name!r}", timeout, writes=True, watch=watch)
        return self._known(cast("Topic", reply.topic))

    async def delete_topic(self, name: str, *, timeout: float | None = None) -> Topic:
        """Delete a topic with its messages, groups and dead letters, for good.

        Once this has returned, nothing is published to it or delivered from it; who still works on a message of it
        hears `NotFound` when acking. A topic made later under the same name is another one.

        Args:
            name: of the topic that has the name now: only that one is deleted, however often this is repeated.
            timeout: seconds; the client's if None.

        Returns:
            what was deleted.

        Raises:
            NotFound: no such topic, or it was deleted already.
            OutcomeUnknown: too few nodes answered: it may be deleted, or become so. Repeat it.
        """
        end = self._end(timeout)
        topic = await self.topic(name, timeout=left_of(end))
        request = m.DeleteTopic(name, topic.id)
        watch = self._calling("delete_topic", name)
        await self._ask(request, f"delete topic {name!r}", left_of(end), writes=True, watch=watch)
        if self.history is not None:
            self.history.learn(topic, deleted=True)
        return topic

    async def _default_rf(self, timeout: float | None) -> int:
        reply = await self._ask(m.Metadata(), "metadata", timeout, writes=False)
        self.nodes.learn(reply)
        count = min(RF_DEFAULT, len(reply.nodes))
        return count if count % 2 else max(1, count - 1)

    async def topic(self, name: str, *, create: bool = False, timeout: float | None = None) -> Topic:
        """The topic of that name: its id, replicas and settings.

        Args:
            name: of the topic.
            create: make it, where the cluster lets publishing do that (``auto_create_topics``).
            timeout: seconds; the client's if None.

        Raises:
            NotFound: every node that could be reached says that there is none.
        """
        end = self._end(timeout)
        try:
            reply = await self.metadata(name, timeout=left_of(end))
            return self._known(reply.topics[0])
        except NotFound:
            if not create:
                raise
        # Only now that nobody knows it: a creation that overtakes the news of an earlier one would write
        # the default settings over those that somebody chose.
        rf = await self._default_rf(left_of(end))
        request = m.CreateTopic(name, rf, implicit=True)
        watch = self._calling("set_topic", name)
        made = await self._ask(request, f"create topic {name!r}", left_of(end), writes=True, watch=watch)
        return self._known(cast("Topic", made.topic))

    async def hold_time_of(self, given: Duration | None, timeout: float | None) -> float:
        """What to ask for where ``given`` was: that, or the default as far as the cluster allows it."""
        if given is not None:
            return number_of("hold_time", given)
        if self.nodes.hold_time_max is None:
            await self.metadata(timeout=timeout)
        most = self.nodes.hold_time_max
        return HOLD_TIME_DEFAULT_S if most is None else min(HOLD_TIME_DEFAULT_S, most)

    def _known(self, topic: Topic) -> Topic:
        self.topic_names[topic.id] = topic.name
        if self.history is not None:
            self.history.learn(topic)
        return topic

    # -------------------------------------------------------------------- groups

    async def create_group(
        self, topic: str, group: str, *, start: Start = "earliest", timeout: float | None = None
    ) -> Group:
        """Create a group before anybody reads it. One that is there stays as it is.

        Args:
            topic: its name.
            group: its name, without "!".
            start: "earliest", "latest" (what is published from now on), or a datetime with a time zone: what was
                published at or after it, by the producers' clocks.
            timeout: seconds; the client's if None.

        Returns:
            the group: a majority of the replicas of every partition know it.

        Raises:
            NotFound: no such topic.
            UsageError: a name or a start that cannot be.
            NotStored, OutcomeUnknown: too few replicas answered; do it again.
        """
        return await self._set_group(topic, group, start, rewind=False, timeout=timeout)

    async def rewind(self, topic: str, group: str, to: Start, *, timeout: float | None = None) -> Group:
        """Have a group read again from ``to``, in a new generation; its consumers go on by themselves.

        Everything from there on that the topic still has (`retention`) is delivered again, what was acked and what
        died included; what is held, once its hold is over. What is before is not delivered any more, and its dead
        letters stay. What was delivered before the rewind cannot be acked any more: `Outcome.REWOUND`. Done twice, it
        is done twice.

        Args:
            topic, group: which.
            to: as ``start`` in `create_group`.
            timeout: seconds; the client's if None.

        Returns:
            the group in its new generation: a majority of the replicas of every partition know it.

        Raises:
            NotFound: no such topic, or no such group of it.
            UsageError: a time that cannot be.
            NotStored, OutcomeUnknown: too few replicas answered; rewind again.
        """
        return await self._set_group(topic, group, to, rewind=True, timeout=timeout)

    async def _set_group(
        self, topic: str, group: str, start: Start, *, rewind: bool, timeout: float | None
    ) -> Group:
        word, from_ms = start_fields(start)
        request = m.SetGroup(topic, group, word, from_ms, rewind)
        what = f"{'rewind' if rewind else 'create'} group {group!r} of {topic!r}"
        watch = self._calling("set_group", topic, group=group, rewind=rewind)
        return cast("Group", (await self._ask(request, what, timeout, writes=True, watch=watch)).group)

    def _calling(self, kind: str, topic: str, **fields: object) -> Calling | None:
        return None if self.history is None else self.history.calling(kind, topic, **fields)

    async def purge(
        self, topic: str, group: str, *, partition: int | None = None, timeout: float | None = None
    ) -> int:
        """Settle a group's backlog unread, or its dead letters (group "g!dead", or topic "t.deadletters").

        What is delivered at the moment may still be acked; what is published meanwhile may stay. Other groups are
        not concerned. Interrupted and done again, it does the rest.

        Args:
            topic, group: whose.
            partition: only this one; all if None.
            timeout: seconds for each partition; the client's if None.

        Returns:
            how many messages were settled, as the last node that was asked counted them: after one that failed
            on the way, these are the rest.

        Raises:
            NotFound: no such topic, group or partition.
            TooFewReplicas, OutcomeUnknown: too few replicas answered; purge again.
        """
        (topic,), group = names_of((topic,), group)
        register = await self.topic(topic, timeout=timeout)
        count = 0
        for number in range(register.partitions) if partition is None else (partition,):
            request = m.PurgeRequest(topic, number, group)
            what = f"purge of group {group!r} in {topic!r}/{number}"
            watch = self._calling("purge", topic, partition=number, group=group)
            count += (await self._ask(request, what, timeout, writes=True, watch=watch)).messages
        return count

    async def metadata(self, *topics: str, timeout: float | None = None) -> m.MetadataReply:
        """Nodes, limits, and the named topics with their groups (all topics if none is named).

        Raises:
            NotFound: no such topic.
            TooFewReplicas: no node answered.
        """
        reply = cast(
            "m.MetadataReply", await self._ask(m.Metadata(topics), "metadata", timeout, writes=False)
        )
        self.nodes.learn(reply)
        return reply

    async def status(self, node: str | None = None, *, timeout: float | None = None) -> dict[str, object]:
        """What a node knows of itself and its peers (docs/operations.md).

        Args:
            node: its id or address; whichever answers if None.
            timeout: seconds; the client's if None.

        Raises:
            NotFound: no such node is known.
            TooFewReplicas: it does not answer; says why.
        """
        end = self._end(timeout)
        only = () if node is None else (await self.address_of(node, left_of(end)),)
        reply = await self._ask(
            m.StatusAsk(), f"status of {node or 'a node'}", left_of(end), writes=False, only=only
        )
        return cast("dict[str, object]", reply.facts)

    async def address_of(self, node: str, timeout: float | None) -> str:
        """The address of a node named by its id or its address; NotFound if no node knows it."""
        if node not in self.nodes.ids and node not in self.nodes.addresses:
            await self.metadata(timeout=timeout)
        return self.nodes.address_of(node)

    async def open_session(self, *, timeout: float | None = None) -> Origin:
        """An origin to number messages under; producers open their own."""
        reply = await self._ask(m.OpenSession(), "open a session", timeout, writes=True)
        return cast("Origin", reply.origin)

    async def close_session(
        self, origin: Origin, partitions: Sequence[PartitionId], *, timeout: float | None = None
    ) -> None:
        """Nothing more is published under ``origin``; producers close theirs.

        Args:
            origin: all that was published under it is confirmed.
            partitions: where it was used.
            timeout: seconds.

        Errors as for any request. Nothing depends on it: a session that is not closed is closed when it has been idle
        for a day (docs/protocol.md, RECLAIM).
        """
        await self._ask(m.CloseSession(origin, tuple(partitions)), "close a session", timeout, writes=True)

    # --------------------------------------------------------- producing, consuming

    def producer(
        self,
        topic: str,
        *,
        linger: float = LINGER_S,
        batch_bytes: int = BATCH_BYTES,
        in_flight: int = IN_FLIGHT,
        buffer_bytes: int = BUFFER_BYTES,
        partitioner: Partitioner | None = None,
        timeout: float | None = None,
        create: bool = True,
    ) -> Producer:
        """A producer to one topic, to be used by ``async with``.

        Args:
            topic: its name.
            linger: seconds that a batch waits to be filled while another of its partition is under way.
            batch_bytes: a batch closes when it has so many.
            in_flight: batches sent and not answered, at most.
            buffer_bytes: messages taken and not confirmed, in bytes, at most; `Producer.publish` waits above it.
            partitioner: from key and number of partitions to a partition; by hash of the key, else round robin.
            timeout: seconds for which a batch is retried before it is given up; the client's if None.
            create: whether publishing to an unknown topic asks for it to be created.
        """
        return Producer(
            self,
            topic,
            linger=linger,
            batch_bytes=batch_bytes,
            in_flight=in_flight,
            buffer_bytes=buffer_bytes,
            partitioner=partitioner,
            timeout=timeout,
            create=create,
        )

    def consumer(
        self,
        topic: str | Sequence[str],
        group: str,
        *,
        start: Literal["earliest", "latest"] = "earliest",
        hold_time: Duration | None = None,
        prefetch: int = PREFETCH,
        prefetch_bytes: int = PREFETCH_BYTES,
        auto_extend: bool = True,
        max_extend: float = MAX_EXTEND_S,
        node: str | None = None,
        name: str | None = None,
        version: str = "",
        timeout: float | None = None,
    ) -> Consumer:
        """A consumer of one group, to be used by ``async with``.

        Args:
            topic: one name or several; "t.deadletters" for the group's dead letters of topic "t". A shell-style pattern
                (``orders.*``: ``*`` any letters, ``?`` one, ``[ab]`` one of these, ``[!ab]`` none of these) stands for
                the topics that match, those to come included.
            group: reads on its own: each group gets every message. "g!dead" is the dead letters of group "g".
            start: where the group begins if it is new: with the oldest message, or with what is published from now on.
            hold_time: seconds or a timedelta for which a delivered message is this consumer's alone, until extended.
                30 s if None, or the cluster's ``hold_time_max`` where that is less.
            prefetch: messages fetched ahead, at most; fewer where the handler is slow.
            prefetch_bytes: the same in bytes.
            auto_extend: keep the holds of what the application works on.
            max_extend: seconds after which a message that is not settled is no longer extended.
            node: fetch only from this node (id or address); any of the partition's replicas if None.
            name, version: of this consumer, for dead letters and status; the host's name if None.
            timeout: seconds without any node before iterating raises; the client's if None. May be infinite.
        """
        return Consumer(
            self,
            (topic,) if isinstance(topic, str) else topic,
            group,
            start=start,
            hold_time=hold_time,
            prefetch=prefetch,
            prefetch_bytes=prefetch_bytes,
            auto_extend=auto_extend,
            max_extend=max_extend,
            node=node,
            name=name,
            version=version,
            timeout=timeout,
        )

    async def fetch(
        self,
        topic: str,
        group: str,
        *,
        max_messages: int = 100,
        min_messages: int = 1,
        max_bytes: int = FETCH_BYTES_MAX,
        max_wait: float = 0.0,
        hold_time: Duration | None = None,
        start: Literal["earliest", "latest"] = "earliest",
        node: str | None = None,
        timeout: float | None = None,
    ) -> list[Message]:
        """Fetch messages once. Their holds are not extended by themselves: see `extend`.

        Args:
            topic: its name, or a pattern; dead letters as in `consumer`.
            group: who reads.
            max_messages, max_bytes: at most so much.
            min_messages: wait for so many, as long as ``max_wait`` and a quarter of the hold time allow.
            max_wait: seconds to wait for them; 0 takes what is there.
            hold_time: seconds or a timedelta for which they are the caller's; as in `consumer` if None.
            start: where the group begins if it is new.
            node: ask only this one (id or address).
            timeout: seconds without an answer of any node, before it raises; the client's if None.

        Returns:
            0 to ``max_messages`` messages. Cancelled, what had been fetched is given back.

        Raises:
            NotFound: no such topic.
            TooFewReplicas: no node could serve it; says what was tried.
        """
        self.nodes.check_open()
        began = self.clock()
        (topic,), group = names_of((topic,), group)
        sets = await replica_sets_of(self, topic, timeout)
        seconds = await self.hold_time_of(hold_time, timeout)
        only = () if node is None else (await self.address_of(node, timeout),)
        found: list[Message] = []
        slices: list[WireSlice] = []
        size = 0
        oldest = float("inf")
        at = self.rng.randrange(len(sets))
        quiet = 0  # replica sets in a row that had nothing
        lane = self._fetch_lanes.pop() if self._fetch_lanes else ""
        try:
            while True:
                now = self.clock()
                left = min(began + max_wait, oldest + FETCH_AGE_SHARE * seconds) - now
                patient = len(sets) == 1 or quiet >= len(sets)
                wait = max(0.0, min(left, park_time(seconds), LONG_POLL_MAX_S)) if patient else 0.0
                if len(sets) > 1:
                    wait = min(wait, PASS_WAIT_S)
                fetched, connection = await fetch_from(
                    self,
                    sets[at % len(sets)],
                    group,
                    max_messages=max_messages - len(found),
                    max_bytes=max_bytes - size,
                    min_messages=min_messages - len(found),
                    max_wait=wait,
                    hold_time=seconds,
                    consumer=default_name(),
                    start=start,
                    timeout=self._time(timeout),
                    only=only,
                    lane=lane,
                )
                at += 1
                quiet = 0 if fetched.slices else quiet + 1
                for part in cast("tuple[WireSlice, ...]", fetched.slices):
                    slices.append(part)
                    stock = Stock(part, fetched.sent_at, fetched.hold_time, connection, None, self.clock())
                    found += unpack(self, stock, None)
                    size += len(part.body)
                    oldest = min(oldest, fetched.sent_at)
                enough = len(found) >= min(min_messages, max_messages) or size >= max_bytes
                over = self.clock() >= min(began + max_wait, oldest + FETCH_AGE_SHARE * seconds)
                if enough or (over and (quiet >= len(sets) or found or len(sets) == 1)):
                    break
        except BaseException as exc:
            with trio.move_on_after(LEAVE_TIMEOUT_S) as scope:
                # At once: what is cancelled may be the client itself, which ends with its body. First of all the node
                # must drop the FETCH that it has parked, or that takes what is given back.
                scope.shield = True
                items = leave_items(slices)
                if lane and not isinstance(exc, QuorumqError):
                    items += [item for reply in await self.nodes.hang_up(lane) for item in brought(reply)]
                await give_back(self, items)
            raise
        finally:
            if lane:
                self._fetch_lanes.append(lane)
        now = self.clock()
        alive = [message for message in found if now < message.deadline]
        if self.history is not None:
            self.history.delivered(alive)
        return alive

    # ------------------------------------------------------------------ settling

    def ticket(self, receipt: SealedNamed) -> Ticket:
        """A receipt from elsewhere (`receipt_from_text`), to be given to `ack`, `reject`, `dead_letter`, `extend`.

        Raises:
            BadReceipt: it names no messages, or several spans.
        """
        found = read_receipt(receipt.sealed)
        spans = receipt.spans or (found.span,)
        if len(spans) != 1:
            raise BadReceipt(f"the receipt names {len(spans)} spans: settle them one by one")
        lot = Lot(
            topic="",
            sealed=receipt.sealed,
            receipt=found,
            attempt=0,
            published_ms=0,
            delivered_ms=0,
            hold_time=HOLD_TIME_DEFAULT_S,
            client=self,
            consumer=None,
        )
        return Named(lot, spans[0])

    async def ack(self, messages: Iterable[Ticket], *, timeout: float | None = None) -> list[Outcome]:
        """They are processed: never deliver them to this group again.

        Args:
            messages: of any deliveries, topics and groups.
            timeout: seconds to go on trying; the client's if None.

        Returns:
            the verdict on each, in order.

        Raises:
            OutcomeUnknown, NotStored: some were not confirmed: ack the same messages again. Each message's
                ``outcome`` and ``failure`` say which.
            AlreadyResolved: some were read as dead letters, and are none any more.
            BadReceipt: some were refused.
        """
        messages = list(messages)
        if not messages:
            return []
        try:
            await self._acks.ack(messages, self._time(timeout))
        finally:
            self._note_settled(messages)
        return [cast("Outcome", message.outcome) for message in messages]

    async def reject(
        self, messages: Iterable[Ticket], *, delay: Duration | None = None, timeout: float | None = None
    ) -> None:
        """Not now: make them available again after a while. Counts as an attempt.

        Args:
            messages: to be given back.
            delay: seconds or a timedelta; 0 is at once. None takes the step of the topic's ``backoff`` for the
                attempt that ends; at once where the topic has none.
            timeout: seconds to go on trying; the client's if None.

        Dead letters stay dead letters. Where a group was rewound, nothing is done, and ``outcome`` is REWOUND.

        Raises:
            UsageError: the delay is negative, or above 366 days.
            HoldLost: of some the hold is over, and they may have been rejected or not; each message's ``failure`` says
                which.
            OutcomeUnknown, NotStored: some were not confirmed.
        """
        wait = TOPIC_BACKOFF_S if delay is None else seconds_of("delay", delay, DELAY_MAX_S)
        await self._reject(list(messages), wait, None, Outcome.REQUEUED, timeout)

    async def dead_letter(
        self,
        messages: Iterable[Ticket],
        error: BaseException | None = None,
        *,
        reason: str = "",
        timeout: float | None = None,
    ) -> None:
        """Never again, for this group: keep them as dead letters.

        Args:
            messages: to be given up.
            error: what their handler failed with.
            reason: in words.
            timeout: seconds to go on trying; the client's if None.

        Raises:
            UsageError: some are dead letters already; nothing was sent.
            as `reject` does.
        """
        messages = list(messages)
        for message in messages:
            receipt = message.lot.receipt
            if is_dead(receipt.group):
                raise UsageError(
                    f"{receipt.span.origin}[{message.seq}] of {receipt.group!r} is a dead letter already: "
                    "ack it to purge it, or reject it to have it wait in the dead-letter queue"
                )
        # One request has one letter, and letters tell of their own delivery.
        by_letter: dict[Letter, list[Ticket]] = {}
        for message in messages:
            by_letter.setdefault(self._letter(message, error, reason), []).append(message)
        failures: list[QuorumqError] = []
        end = self._end(timeout)
        for letter, some in by_letter.items():
            try:
                await self._reject(some, 0.0, letter, Outcome.DEAD_LETTERED, left_of(end))
            except QuorumqError as exc:
                failures.append(exc)
        found = foremost(failures)
        if found is not None:
            raise found

    def _letter(self, message: Ticket, error: BaseException | None, reason: str) -> Letter:
        lot = message.lot
        consumer = lot.consumer
        return make_letter(
            error,
            reason=reason,
            attempt=lot.attempt,
            published_ms=lot.published_ms,
            delivered_ms=lot.delivered_ms,
            consumer=consumer.name if consumer is not None else default_name(),
            consumer_version=consumer.version if consumer is not None else "",
            host=self.host,
        )

    async def _reject(
        self,
        messages: Sequence[Ticket],
        delay: float,
        letter: Letter | None,
        outcome: Outcome,
        timeout: float | None,
    ) -> None:
        def on_final(ticket: Ticket, verdict: m.Verdict, reply: m.Verdicts) -> QuorumqError | None:
            if verdict.outcome in ("ok", StaleGeneration.code):
                ticket.outcome = outcome if verdict.outcome == "ok" else Outcome.REWOUND
                return None
            # What a minority applied spreads, and so does an earlier attempt whose answer was lost.
            done = "it is not certain whether it was " + ("dead-lettered" if letter else "rejected")
            return self._refusal(ticket, verdict, done)

        self.nodes.check_open()
        failures: Failures = {}
        note_failures(messages, failures)
        what = f"{'dead-letter' if letter else 'reject'} of {count_of(messages)}"
        if letter is not None:
            watch = self.watch("dead_letter", reason=letter.reason)
        else:
            watch = self.watch("reject", **({} if delay == TOPIC_BACKOFF_S else {"delay": delay}))
        try:
            await settle(
                self.nodes,
                messages,
                lambda items: m.RejectRequest(items, delay, letter),
                on_final,
                failures,
                what=what,
                timeout=self._time(timeout),
                watch=watch,
            )
        finally:
            note_failures(messages, failures)
            self._note_settled(messages)
        raise_failure(messages, failures)

    async def extend(
        self, messages: Iterable[Ticket], hold_time: Duration | None = None, *, timeout: float | None = None
    ) -> None:
        """Keep their holds for ``hold_time``, seconds or a timedelta, from now (that of their FETCH if None).

        Raises:
            HoldLost: of some the hold is over, and nothing revives it; each message's ``failure`` says which.
            OutcomeUnknown, NotStored: some were not confirmed: their old deadlines stand.
        """
        messages = list(messages)
        seconds = None if hold_time is None else number_of("hold_time", hold_time)
        self.nodes.check_open()
        failures: Failures = {}
        note_failures(messages, failures)
        try:
            await self.extend_quietly(messages, seconds, failures, timeout=timeout)
        finally:
            note_failures(messages, failures)
        raise_failure(messages, failures)

    async def extend_quietly(
        self,
        messages: Sequence[Ticket],
        hold_time: float | None,
        failures: Failures,
        *,
        timeout: float | None = None,
    ) -> None:
        """`extend` on nobody's behalf: what fails is in ``failures``, and neither raised nor left on the messages."""

        def on_final(ticket: Ticket, verdict: m.Verdict, reply: m.Verdicts) -> QuorumqError | None:
            if verdict.outcome != "ok":
                return self._refusal(ticket, verdict, "it was not extended")
            if isinstance(ticket, Message):
                ticket.deadline = max(ticket.deadline, deadline_of(reply.sent_at, seconds))
            return None

        end = self._end(timeout)
        by_time: dict[float, list[Ticket]] = {}
        for message in messages:
            by_time.setdefault(message.lot.hold_time if hold_time is None else hold_time, []).append(message)
        for seconds, some in by_time.items():
            await settle(
                self.nodes,
                some,
                lambda items, seconds=seconds: m.ExtendRequest(items, seconds, self.clock()),  # type: ignore[misc]
                on_final,
                failures,
                what=f"extend of {count_of(some)}",
                timeout=left_of(end),
                watch=self.watch("extend", hold_time=seconds),
            )

    @staticmethod
    def _refusal(ticket: Ticket, verdict: m.Verdict, done: str) -> QuorumqError:
        detail = verdict.detail
        if verdict.outcome == "hold-lost" and not detail:
            detail = (
                f"the hold on {ticket.lot.receipt.span.origin}[{ticket.seq}] of {ticket.lot.topic!r} is over: "
                f"{done}, and another delivery may have begun; stop working on it"
            )
        return error_from(verdict.outcome, detail or verdict.outcome)

    @staticmethod
    def _note_settled(messages: Sequence[Ticket]) -> None:
        for message in messages:
            final = message.outcome is not None or isinstance(message.failure, AlreadyResolved)
            if final and message.lot.consumer is not None:
                message.lot.consumer.settled(message)

    # ------------------------------------------------------------------- looking

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
        node: str | None = None,
        timeout: float | None = None,
    ) -> AsyncIterator[Peek]:
        """Look at messages without holding them: one replica's view, oldest first within each partition.

        Args:
            topic, group: whose; dead letters are listed for "g" with ``which="dead"``, and for "g!dead" as that
                queue has them: ready, held or delayed.
            which: what to show.
            partition: only this one; all if None.
            complete: ask several replicas, so that everything that a majority has is there, in the order of ids.
            bodies: bring keys, headers and payloads along, where the answering replica has them: the first 8 MiB of
                each page.
            limit: messages in all, about; all of them if None.
            node: ask only this one (id or address).
            timeout: seconds for each page; the client's if None.

        Raises:
            NotFound: no such topic or partition.
            UsageError: bodies of a complete view are asked for.
            TooFewReplicas: no node answered, or too few replicas for a complete view.
        """
        if complete and bodies:
            raise UsageError("a complete view has no bodies: ask for one of the two")
        (topic,), group = names_of((topic,), group)
        register = await self.topic(topic, timeout=timeout)
        numbers = range(register.partitions) if partition is None else (partition,)
        left = limit
        for number in numbers:
            members = register.replicas[number] if number < register.partitions else ()
            only = (self.nodes.address_of(node),) if node is not None else self.nodes.addresses_of(members)
            cursor: tuple[int, int] | None = (0, 0)
            after: Span | None = None
            first = ""
            shown = SpanSet()
            while cursor is not None and (left is None or left > 0):
                # A page of a complete view is looked through as a whole: what it shows may be little of it.
                most = PEEK_LIMIT if complete else min(left or PEEK_LIMIT, PEEK_LIMIT)
                request = m.PeekAsk(topic, number, group, which, cursor, most, bodies, complete, after)
                reply, connection = await self.nodes.ask(
                    lambda request=request: request,  # type: ignore[misc]
                    what=f"peek at {topic!r}/{number}",
                    timeout=self._time(timeout),
                    writes=False,
                    only=only,
                    first=first,
                )
                moved = first not in ("", connection.address)
                first = connection.address
                if moved and cursor != (0, 0):  # a cursor is the replica's own: this one begins anew
                    cursor = (0, 0)
                    continue
                page = cast("m.PeekPage", reply)
                found = bodies_of(cast("tuple[WireSlice, ...]", page.slices))
                if self.history is not None:
                    self.history.listed(topic, number, group, page.items, connection.node, complete)
                for item in page.items:
                    for span in shown.add(item.span):
                        if left is not None:
                            left -= span.size
                        yield Peek(topic, number, item._replace(span=span), *within(span, found))
                cursor = page.cursor
                if complete and page.upto is not None:
                    cursor, after = (0, 0), page.upto

    async def lookup(
        self, topic: str, group: str, ids: Iterable[MessageId], *, timeout: float | None = None
    ) -> dict[MessageId, Peek]:
        """What became of messages for a group, as a majority knows it.

        Args:
            topic, group: whose; "g!dead" and "t.deadletters" mean the same.
            ids: of that topic, in any order.
            timeout: seconds for each request; the client's if None.

        Returns:
            for each message its record and state, without bodies. A message that no replica which answered knows is
            left out.

        Raises:
            NotFound: no such topic or partition.
            UsageError: an id is of another topic.
            TooFewReplicas: too few replicas answered.
        """
        topic, group = source_of(topic, group)
        register = await self.topic(topic, timeout=timeout)
        by_partition: dict[int, list[MessageId]] = {}
        for name in sorted(set(ids)):
            if name.partition.topic != register.id:
                raise UsageError(
                    f"{name} is of another topic than {topic!r}, which has the id {register.id.hex()}"
                )
            by_partition.setdefault(name.partition.number, []).append(name)
        found: dict[MessageId, Peek] = {}
        for number, names in by_partition.items():
            members = register.replicas[number] if number < register.partitions else ()
            at, most = 0, LOOKUP_FIRST
            after: Span | None = None
            while at < len(names):
                # What is between is skipped; but a page may end before the message, and then the next follows it.
                skip = _before(names[at])
                if after is None or (
                    skip is not None and (skip.origin, skip.stop) > (after.origin, after.stop)
                ):
                    after = skip
                request = m.PeekAsk(topic, number, group, "all", (0, 0), most, False, True, after)
                reply, _ = await self.nodes.ask(
                    lambda request=request: request,  # type: ignore[misc]
                    what=f"look at {topic!r}/{number}",
                    timeout=self._time(timeout),
                    writes=False,
                    only=self.nodes.addresses_of(members),
                )
                page = cast("m.PeekPage", reply)
                begin = at
                for item in page.items:
                    span = item.span
                    while at < len(names) and names[at][1:] < (span.origin, span.start):
                        at += 1
                    while at < len(names) and names[at][1:] < (span.origin, span.stop):
                        one = span._replace(start=names[at].seq, stop=names[at].seq + 1)
                        found[names[at]] = Peek(topic, number, item._replace(span=one), 0, {})
                        at += 1
                after = page.upto
                while at < len(names) and (after is None or names[at][1:] < (after.origin, after.stop)):
                    at += 1
                # Messages that are close together are worth long pages, others short ones.
                most = min(2 * most, PEEK_LIMIT) if 2 * (at - begin) >= len(page.items) else LOOKUP_FIRST
        return found

    async def redrive(
        self, topic: str, group: str, items: Iterable[Peek], *, timeout: float | None = None
    ) -> Redriven:
        """Make dead letters available again, to that group only, with fresh attempts.

        Args:
            topic, group: whose; "g!dead" and "t.deadletters" mean the same.
            items: as `peek` listed them (``which="dead"``). Done twice, it is done once.
            timeout: seconds for each request; the client's if None.

        Returns:
            how many messages were redriven, and which were refused because they are no longer dead letters.

        Raises:
            OutcomeUnknown, NotStored: not confirmed; redrive the same items again.
        """
        topic, group = source_of(topic, group)
        by_partition: dict[int, list[m.Resolved]] = {}
        for item in items:
            if item.peeked.record.kind != Kind.DEAD:
                raise UsageError(f"{item.peeked.span} is {item.peeked.record.kind.name}, not a dead letter")
            entry = m.Resolved(item.peeked.span, item.peeked.record)
            by_partition.setdefault(item.partition, []).append(entry)
        count = 0
        refused: list[tuple[Span, QuorumqError]] = []
        for partition, entries in by_partition.items():
            for at in range(0, len(entries), REDRIVE_ENTRIES_MAX):
                some = tuple(entries[at : at + REDRIVE_ENTRIES_MAX])
                request = m.RedriveRequest(topic, partition, group, some)
                reply = await self._ask(
                    request,
                    f"redrive of {topic!r}/{partition}",
                    timeout,
                    writes=True,
                    judge=judge_redrive,
                    watch=None if self.history is None else self.history.redriving(topic),
                )
                for verdict in reply.verdicts:
                    if verdict.outcome == "ok":
                        count += verdict.span.size
                    else:
                        refused.append((verdict.span, error_from(verdict.outcome, verdict.detail)))
        return Redriven(count, tuple(refused))


def _settings(
    partitions: int | None,
    max_deliveries: int | None,
    durability: str | None,
    retention: Duration | None,
    ttl: Duration | None,
    backoff: Sequence[Duration] | None,
) -> dict[str, Any]:
    """A topic's settings as CreateTopic and AlterTopic name them; None where nothing is given."""
    return {
        "partitions": partitions,
        "max_deliveries": max_deliveries,
        "durability": durability,
        "retention_s": None if retention is None else number_of("retention", retention),
        "ttl_s": None if ttl is None else number_of("ttl", ttl),
        "backoff": None if backoff is None else tuple(number_of("backoff", step) for step in backoff),
    }


def _before(name: MessageId) -> Span | None:
    """A place in the order of ids just before a message, with nothing or little between; None for the beginning."""
    origin = name.origin
    if name.seq:
        return Span(origin, 0, name.seq)
    if origin.k:
        return Span(origin._replace(k=origin.k - 1), 0, SEQ_MAX)
    return Span(origin._replace(nonce=origin.nonce - 1), 0, SEQ_MAX) if origin.nonce else None


def judge_redrive(reply: m.ClientReply) -> QuorumqError | None:
    """Ask again as a whole while anything is unknown: what is done stays done."""
    for verdict in cast("m.Verdicts", reply).verdicts:
        if verdict.outcome not in ("ok", AlreadyResolved.code, "usage"):
            error = error_from(verdict.outcome, verdict.detail)
            return error if isinstance(error, TooFewReplicas) else OutcomeUnknown(str(error))
    return None


def bodies_of(slices: Iterable[WireSlice]) -> dict[tuple[Origin, int], tuple[int, Parts]]:
    """Published time and parts of each message in slices; those that are damaged are left out."""
    found: dict[tuple[Origin, int], tuple[int, Parts]] = {}
    for part in slices:
        parts = iter(readable(part))
        for origin, start, stop in part.header.sections:
            for seq in range(start, stop):
                body = next(parts)
                if body is not None:
                    found[(origin, seq)] = (part.header.published_ms, body)
    return found


def within(span: Span, found: dict[tuple[Origin, int], tuple[int, Parts]]) -> tuple[int, dict[int, Parts]]:
    """The earliest published time and the parts, by number, of the messages in ``span``."""
    mine = {
        seq: found[(span.origin, seq)] for seq in range(span.start, span.stop) if (span.origin, seq) in found
    }
    published = min((time for time, _ in mine.values()), default=0)
    return published, {seq: parts for seq, (_, parts) in mine.items()}


@asynccontextmanager
async def connect(
    addresses: str | Sequence[str],
    *,
    cluster_id: str | None = None,
    timeout: float = TIMEOUT_S,
    connect_timeout: float = CONNECT_TIMEOUT_S,
    attempt_timeout: float = ATTEMPT_TIMEOUT_S,
    history: HistoryWriter | None = None,
    dial: Dial | None = None,
    clock: Callable[[], float] | None = None,
    wall_ms: Callable[[], int] | None = None,
    rng: random.Random | None = None,
) -> AsyncIterator[Client]:
    """Connect to a cluster, for the length of an ``async with``.

    Args:
        addresses: "host:port" of one or several nodes; the others are learned from them.
        cluster_id: refuse nodes of any other cluster; None takes whichever answers first, and only that.
        timeout: seconds for an operation, all its attempts included.
        connect_timeout: seconds to reach one node.
        attempt_timeout: seconds that one node may take to answer before the next is asked.
        history: writes down what happens (docs/history.md); flushed and closed by who made it.
        dial: opens a stream to an address; TCP if None.
        clock: monotonic seconds, counting suspended time, for the deadlines of holds; the system's if None.
        wall_ms: time of day in milliseconds since 1970; the system's if None.
        rng: for jitter and choices; a fresh one if None.

    Raises:
        UsageError: an address is not one, or this is not run by trio.
        TooFewReplicas: no node could be reached within ``timeout``; says what was tried.
        ClusterMismatch, Unauthorized: a node refused the connection.
    """
    names = [addresses] if isinstance(addresses, str) else list(addresses)
    if not trio.lowlevel.in_trio_task():
        raise UsageError(
            "quorumq.client runs on trio, and this is not a task of trio: use trio.run, or quorumq.client.blocking, "
            "from asyncio through asyncio.to_thread"
        )
    if dial is None:
        for name in names:
            split_address(name)
    async with background() as tasks:
        nodes = Nodes(
            names,
            cluster_id=cluster_id or "",
            dial=dial or dial_tcp,
            spawn=tasks.spawn,
            clock=clock or default_clock(),
            wall_ms=wall_ms or _wall_ms,
            rng=rng or random.Random(),
            connect_timeout=connect_timeout,
            attempt_timeout=attempt_timeout,
        )
        recorder = History(history, nodes.clock, nodes.wall_ms) if history is not None else None
        client = Client(nodes, tasks, timeout=timeout, history=recorder)
        try:
            await nodes.reach(timeout)
            yield client
        finally:
            nodes.close()


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000
