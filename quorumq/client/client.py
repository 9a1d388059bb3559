"""The entry point, on trio.

A Client owns the connections and the background tasks; producers and consumers are made from it and end before
it. Every wait for a node has a timeout, and the error at its end names the addresses that were tried and
their answers. Background tasks never raise: callers that wait for their work get its failure.
"""

from __future__ import annotations

import inspect
import random
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from functools import partial
from typing import Any, Final, Literal, Unpack

import trio

from quorumq.client.admin.backlog import BacklogCalls
from quorumq.client.admin.counts import CountCalls
from quorumq.client.admin.groups import GroupCalls
from quorumq.client.admin.peek import Peek, PeekCalls, Redriven
from quorumq.client.admin.show import ShowCalls
from quorumq.client.admin.topics import TopicCalls
from quorumq.client.base.background import background
from quorumq.client.base.context import Context
from quorumq.client.base.entry import by_async_with
from quorumq.client.base.hints import hinted
from quorumq.client.base.history import History
from quorumq.client.base.message import Message, MessageId, ids_of
from quorumq.client.base.names import names_of
from quorumq.client.base.options import refuse, refusing
from quorumq.client.base.times import Duration, positive_of, timeout_of
from quorumq.client.consume.consumer import Consumer, ConsumerOptions
from quorumq.client.consume.fetching import (
    Gathering,
    Reader,
    give_back_parked,
    named_sets,
    replica_sets_of,
)
from quorumq.client.consume.settling import SettleCalls
from quorumq.client.consume.several import Source, check_sources, fetch_several
from quorumq.client.consume.work import GRACE_S, Handler, Pool, Stop, Task, Worked
from quorumq.client.produce.producer import Producer, ProducerOptions
from quorumq.client.produce.publishing import PublishCalls
from quorumq.client.transport.connection import Dial, dial_tcp, dial_tls
from quorumq.client.transport.nodes import ATTEMPT_TIMEOUT_S, Nodes
from quorumq.core.values.errors import QuorumqError, UsageError
from quorumq.core.values.limits import CLAIM_MAX_S, FETCH_BYTES_MAX
from quorumq.history import HistoryWriter
from quorumq.history.writer import monotonic
from quorumq.wire.address import names_of_nodes, split_address
from quorumq.wire.hello import own_token
from quorumq.wire.tls import own_ca

__all__ = ["Client", "Peek", "Redriven", "connect", "suspending_clock"]

TIMEOUT_S: Final = 30.0
CONNECT_TIMEOUT_S: Final = 3.0
GIVEN_BACK_S: Final = 2.0
"""Seconds to give back fetched messages that could not be claimed."""
FETCH_LANES: Final = 8
"""`Client.fetch` calls at once that have connections of their own, which can be hung up if one is cancelled."""


async def _serve(
    connecting: Callable[[], AbstractAsyncContextManager[Client]], *, task_status: trio.TaskStatus[Client]
) -> None:
    """Run a client that was opened without a ``with``, in a task of its own."""
    ended = trio.Event()
    try:
        with trio.CancelScope() as scope:
            async with connecting() as client:
                client._serving = scope, ended
                task_status.started(client)
                await trio.sleep_forever()
    finally:
        ended.set()


@hinted
class Client(PublishCalls, TopicCalls, GroupCalls, BacklogCalls, CountCalls, ShowCalls, SettleCalls):
    """A connection to a cluster. Made by `connect`, or by `Client.open`.

    Attributes:
        timeout: seconds for an operation, all its attempts included, if the call names no others.
        clock: the clock of every deadline, in seconds (`Message.deadline`).
        wall_ms: the time of day in milliseconds since 1970.
        nodes: addresses and connections of the cluster.
        history: writer of the client's history; None without one.
    """

    # Here are the ways to publish and to receive; the calls about topics, groups, listings and settling are in the
    # files of its bases. All of them, and what is made here, share the context.

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.wall_ms = context.wall_ms
        self.nodes = context.nodes
        self.history = context.history
        self._serving: tuple[trio.CancelScope, trio.Event] | None = None
        self._pools = [f"fetch {number}" for number in range(FETCH_LANES)]  # `fetch` alone uses them

    @classmethod
    async def open(
        cls, addresses: str | Sequence[str] | None = None, *, nursery: trio.Nursery, **options: Any
    ) -> Client:
        """Connect to a cluster, until `close`: for programs whose start and stop are two calls. Else use `connect`.

        Args:
            addresses: "host:port" of one or several nodes; QUORUMQ_NODES of the environment if None.
            nursery: nursery of the client's tasks. If it is cancelled the client ends at once: nothing is flushed.
            options: as of `connect`.

        Raises:
            as `connect` does.
        """
        client: Client = await nursery.start(_serve, partial(connect, addresses, **options))
        return client

    async def close(self) -> None:
        """Flush the producers, and end: later calls raise `Closed`. Leave the consumers before.

        If cancelled while it flushes, the client ends at once, as it does if it is left by an exception.

        Raises:
            NotStored, OutcomeUnknown, …: messages were given up and no caller waited for them; all others are stored,
                and the client is closed.
        """
        try:
            await self.context.flush()
            await give_back_parked(self.context)
        finally:
            self.nodes.close()
            if self._serving is not None:
                scope, ended = self._serving
                scope.cancel()
                await ended.wait()

    @property
    def timeout(self) -> float:
        """Seconds that a request may take if its own ``timeout`` is not given. May be changed at any time."""
        return self.context.timeout

    @timeout.setter
    def timeout(self, seconds: float) -> None:
        self.context.timeout = seconds

    def producer(self, topic: str, **options: Unpack[ProducerOptions]) -> Producer:
        """Return a producer to one topic.

        It begins with its first message, and is flushed and closed when the client is left; use it by ``async with``
        to flush and close it before. Keep one for a topic: at most 1000 may be open.

        Args:
            linger: seconds that a batch waits to be filled while another of its partition is under way. 0.01 if not
                given.
            batch_bytes: bytes at which a batch closes. None follows the load: 64 KiB if no batch is under
                way, up to 512 KiB while many are, and for the messages of one call of `Producer.publish_many`.
            in_flight: batches sent and not answered, at most; 8 if not given.
            buffer_bytes: messages taken and not confirmed, in bytes, at most; `Producer.send` waits above it. 16 MiB if
                not given.
            partitioner: from key and number of partitions to a partition; by hash of the key, else round robin.
            timeout: seconds for which a batch is retried before it is given up; the client's if None.
            create: whether publishing to an unknown topic asks for it to be created; it does if not given.
        """
        refuse("producer", options, ProducerOptions.__annotations__)
        return Producer(self, topic, **options)

    def consumer(
        self, topic: str | Sequence[str], group: str, **options: Unpack[ConsumerOptions]
    ) -> Consumer:
        """Return a consumer of one group, to be used by ``async with``.

        Args:
            topic: one name or several; "t.deadletters" for the group's dead letters of topic "t". A shell-style pattern
                (``orders.*``: ``*`` any characters, ``?`` one, ``[ab]`` one of these, ``[!ab]`` none of these) stands
                for the topics that match, later ones included.
            group: reads on its own: each group gets every message. "g!dead" is the dead letters of group "g".
            start: position of a new group: "earliest", with the oldest message, or "latest", with the first one
                published from now on. "earliest" if not given.
            hold_time: seconds or a timedelta for which a delivered message is this consumer's alone, until extended.
                30 s if None, or the cluster's ``hold_time_max`` if that is less.
            prefetch: messages fetched ahead, at most; 1000 if not given. Within it, those are fetched that tasks wait
                for, and those used up within about half a second at the pace seen: none if the handler takes longer.
            prefetch_bytes: the same in bytes; 4 MiB if not given.
            max_unsettled: messages handed over and not settled, at most; then handing over waits. None is 100 for
                ``async for``, and no bound for `Consumer.take` and `Consumer.batches`.
            auto_extend: keep the holds of messages that the application works on; it does if not given.
            max_extend: seconds after which a message that is not settled is no longer extended; 3600 if not given.
            node: fetch only from this node (id or address); any of the partition's replicas if None.
            name, version: of this consumer, for dead letters and status; the host's name if None.
            timeout: seconds without any node before iterating raises; the client's if None. May be infinite.
        """
        refuse("consumer", options, ConsumerOptions.__annotations__)
        return Consumer(self, topic, group, **options)

    async def work(
        self,
        topic: str | Sequence[str],
        group: str,
        handler: Handler,
        *,
        concurrency: int = 1,
        retry: type[Exception] | tuple[type[Exception], ...] = (),
        timeout: Duration | None = None,
        hold_time: Duration | None = None,
        start: Literal["earliest", "latest"] = "earliest",
        name: str | None = None,
        version: str = "",
        grace: Duration = GRACE_S,
        stop: Stop | None = None,
        signals: bool | None = None,
    ) -> Worked:
        """Call ``handler`` with each message of a group, and settle the message by how that ends, until stopped.

        The message is acked when the handler returns. An exception of a class in ``retry`` rejects it, for another
        delivery after the topic's ``backoff``, or 1, 2, 4 … 60 s if it has none; at its last attempt, and after any
        other exception, it becomes a dead letter with the class, the text and the stack. A message that the handler
        settled itself stays as it is. The hold is extended while the handler runs.

        SIGTERM, SIGINT and ``stop`` end it: messages that are not begun are given back at once and counted nowhere,
        and running handlers have ``grace`` seconds to end. Then, or at a second signal, handlers are cancelled and
        their messages rejected. Cancelling the call does the same without grace.

        Topics that are not there yet, or are deleted, are waited for; that is logged.

        Raises:
            NotFound: the group was deleted, or its topic makes none by itself and the group was never created.
            UsageError: an argument or the fetch can never work.
            Any error of the handler that is no `Exception`, as SystemExit. Nodes that do not answer raise nothing: they
            are logged (``quorumq.client``), and tried again.
        """
        task = Task(
            topic,
            group,
            handler,
            concurrency=concurrency,
            retry=retry,
            timeout=timeout,
            hold_time=hold_time,
            start=start,
            name=name,
            version=version,
        )
        return await self.work_all([task], grace=grace, stop=stop, signals=signals)

    async def work_all(
        self,
        tasks: Sequence[Task],
        *,
        grace: Duration = GRACE_S,
        stop: Stop | None = None,
        signals: bool | None = None,
    ) -> Worked:
        """Work like `work`, with several handlers of several topics at once.

        Args:
            tasks: each with the arguments of `work`; ``concurrency`` is each one's own.
            grace, stop, signals: as in `work`.

        Returns:
            how many messages of all tasks ended how.

        Raises:
            as `work` does; then all tasks have ended.
        """
        from quorumq.client.signals import (
            stopped_by_signals,  # not imported by programs that only publish
        )

        self.context.nodes.check_open()
        pool = Pool(self.context, self.consumer, tasks, grace, stop)
        post = trio.lowlevel.current_trio_token().run_sync_soon
        with stopped_by_signals(pool.stop, post, signals=signals):
            return await pool.run()

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
        ids: Iterable[MessageId | str] | MessageId | str | None = None,
        node: str | None = None,
        idle: bool = True,
        timeout: float | None = None,
    ) -> list[Message]:
        """Fetch messages once. Their holds are not extended by themselves: see `extend`.

        Args:
            topic: its name, or a pattern; dead letters as in `consumer`.
            group: name of the reading group.
            max_messages, max_bytes: limits of the reply. If many producers publish one by one, it has some 128.
            min_messages: messages to wait for, as long as ``max_wait`` and a quarter of the hold time allow.
            max_wait: seconds to wait for them; 0 takes those whose publish has returned.
            hold_time: seconds or a timedelta for which they are the caller's; as in `consumer` if None. More than the
                cluster's ``hold_time_max`` claims them (`Message.extend`).
            start: position of a new group.
            ids: only these messages of one topic, also as text, as many of them as the group may be given now.
            node: ask only this one (id or address).
            idle: False if the program works on other messages of the group: then no suspects arrive
                (`Message.suspect`).
            timeout: seconds without an answer of any node, before it raises; the client's if None.

        Returns:
            0 to ``max_messages`` messages, or one lot of suspects. Cancelled, fetched messages are given back.

        Raises:
            NotFound: no such topic, or no such partition.
            UsageError: an id is of another topic, or ``max_wait`` is given beside ids.
            TooFewReplicas: there is no message, and a partition could not be read; says what was tried.
        """
        context = self.context
        context.nodes.check_open()
        until = self.clock() + timeout_of(max_wait, "max_wait")
        positive_of("max_messages", max_messages)
        positive_of("min_messages", min_messages)
        positive_of("max_bytes", max_bytes)
        (topic,), group = names_of((topic,), group)
        if ids is None:
            sets = await replica_sets_of(context, topic, timeout)
        elif max_wait:
            raise UsageError(
                f"max_wait is {max_wait}, and there are ids: they are fetched if they are there now"
            )
        else:
            names = ids_of(ids)
            sets = named_sets(await context.topic(topic, timeout=timeout), names)
            if not names:
                return []
            max_messages = min_messages = len(names)
        seconds = await context.hold_time_of(hold_time, timeout)
        if not seconds <= CLAIM_MAX_S:
            raise UsageError(
                f"hold_time is {seconds:g} s: it must be from 0.1 to {CLAIM_MAX_S:.0f} s (7 days)"
            )
        hold = seconds if hold_time is None else min(seconds, await context.hold_time_max(timeout))
        only = () if node is None else (await context.address_of(node, timeout),)
        pool = self._pools.pop() if self._pools else ""
        try:
            messages = await Gathering(
                context,
                sets,
                Reader(
                    group=group,
                    name=context.host,
                    version="",
                    hold_time=hold,
                    start=start,
                    timeout=context.time(timeout),
                    only=only,
                    pool=pool,
                ),
                self,
                max_messages=max_messages,
                min_messages=min_messages,
                max_bytes=max_bytes,
                until=until,
                idle=idle,
            ).run()
        finally:
            if pool:
                self._pools.append(pool)
        if hold < seconds:
            messages = await self._claim(messages, seconds, timeout)
        now = self.clock()
        alive = [message for message in messages if now < message.deadline]
        if self.history is not None:
            self.history.delivered(alive)
        return alive

    async def fetch_any(
        self,
        sources: Sequence[Source],
        *,
        max_messages: int = 100,
        max_wait: float = 0.0,
        hold_time: Duration | None = None,
        idle: bool = True,
        timeout: float | None = None,
    ) -> list[Message]:
        """Fetch once from several groups: ready messages in the order of ``sources``, else the first that arrive.

        Args:
            sources: pairs of a topic and a group that reads it, 64 at most; dead letters as in `consumer`, such as
                ``("jobs", "workers!dead")``. `Message.topic` and `Message.group` name a message's source.
            max_messages: limit of all sources together.
            max_wait, hold_time, idle, timeout: as in `fetch`.

        Returns:
            0 to ``max_messages`` messages, as `fetch` does. Cancelled, fetched messages are given back.

        Raises:
            as `fetch` does.
        """
        check_sources(sources)
        positive_of("max_messages", max_messages)
        max_wait = timeout_of(max_wait, "max_wait")

        async def give_back(messages: list[Message]) -> None:
            with suppress(QuorumqError):
                await self.reject(messages, interrupted=True, timeout=GIVEN_BACK_S)

        fetch = partial(self.fetch, hold_time=hold_time, timeout=timeout)
        options = {"max_messages": max_messages, "max_wait": max_wait, "idle": idle}
        return await fetch_several(fetch, give_back, sources, **options)  # type: ignore[arg-type]

    async def _claim(self, messages: list[Message], seconds: float, timeout: float | None) -> list[Message]:
        """Claim fetched messages, and return those that are; the others are given back, all of them if cancelled."""
        failures: dict[Any, QuorumqError] = {}
        lost = messages
        try:
            await self.extend_quietly(messages, seconds, failures, timeout=timeout)
            lost = [message for message in messages if message in failures]
        finally:
            if lost:
                with trio.CancelScope(shield=True), suppress(QuorumqError):
                    await self.reject(lost, interrupted=True, timeout=GIVEN_BACK_S)
        return [message for message in messages if message not in failures]


for base in (Client, *Client.__bases__, PeekCalls):  # a wrong call is named by the method that was called
    for name, call in [*vars(base).items()]:
        if inspect.isfunction(call) and not name.startswith("_"):
            call.__qualname__ = f"{Client.__name__}.{name}"
            if not inspect.isasyncgenfunction(call):  # and so is the option that it does not have
                setattr(base, name, refusing(call))


@by_async_with
@asynccontextmanager
@refusing
async def connect(
    addresses: str | Sequence[str] | None = None,
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
    token: str | None = None,
    tls_ca: str | None = None,
    on_behalf: str = "",
) -> AsyncIterator[Client]:
    """Connect to a cluster, for the length of an ``async with``.

    Args:
        addresses: "host:port" of one or several nodes, also as one text with commas; the others are learned from them.
            QUORUMQ_NODES of the environment if None.
        cluster_id: refuse nodes of any other cluster; None takes the first that answers.
        timeout: seconds for an operation, all its attempts included.
        connect_timeout: seconds to reach one node.
        attempt_timeout: seconds that one node may take to answer before the next is asked.
        history: writer of the client's history (docs/history.md); flushed and closed by its maker.
        dial, clock, wall_ms, rng: for tests: a stream to an address, monotonic seconds, milliseconds since 1970, and
            random choices; the system's if None.
        tls_ca: a PEM file of the authorities that may sign nodes' certificates. QUORUMQ_TLS_CA of the
            environment if None; "" for plain TCP.
        token: proof of the client's identity; QUORUMQ_TOKEN of the environment if None.
        on_behalf: name of another client, whose rights, quotas and turns count. The token's client needs the right
            ``on_behalf`` for that name.

    Raises:
        UsageError: an address is not one, or this is not run by trio.
        TooFewReplicas: no node could be reached within ``timeout``; says what was tried.
        ClusterMismatch, Unauthorized: a node refused the connection.
    """
    names = names_of_nodes(addresses)
    if not trio.lowlevel.in_trio_task():
        raise UsageError(
            "quorumq.client runs on trio, and this is not a task of trio: use trio.run; on asyncio "
            "quorumq.client.aio, and anywhere else quorumq.client.blocking"
        )
    if dial is None:
        for name in names:
            split_address(name)
        ca = own_ca() if tls_ca is None else tls_ca
        dial = dial_tls(ca) if ca else dial_tcp
    timeout = timeout_of(timeout)
    async with background() as tasks:
        nodes = Nodes(
            addresses=names,
            cluster_id=cluster_id or "",
            dial=dial,
            spawn=tasks.spawn,
            clock=clock or default_clock(),
            wall_ms=wall_ms or _wall_ms,
            rng=rng or random.Random(),
            connect_timeout=timeout_of(connect_timeout, "connect_timeout"),
            attempt_timeout=timeout_of(attempt_timeout, "attempt_timeout"),
            token=own_token() if token is None else token,
            on_behalf=on_behalf,
        )
        recorder = History(history, nodes.clock, nodes.wall_ms) if history is not None else None
        context = Context(nodes, tasks, timeout=timeout, history=recorder)
        try:
            await nodes.reach(timeout)
            tasks.spawn(nodes.keep_learning)
            tasks.spawn(context.keep_looking)
            yield Client(context)
            await context.flush()
            await give_back_parked(context)
        finally:
            nodes.close()


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


suspending_clock = monotonic


def default_clock() -> Callable[[], float]:
    """Return the clock for deadlines: the system's, or trio's if that is a virtual one (tests, simulation)."""
    virtual = type(trio.lowlevel.current_clock()).__name__ != "SystemClock"
    return trio.current_time if virtual else suspending_clock
