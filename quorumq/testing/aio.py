"""A cluster in the process of a test, for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from contextvars import Context
from functools import update_wrapper
from typing import Any

import trio
from trio.testing import active_thread_count

from quorumq.client.aio import Bridge, Call, Client, Quick
from quorumq.client.consume.work import Handler, Task, Worked
from quorumq.client.portal import like
from quorumq.client.transport.nodes import Closed
from quorumq.core.values.errors import UsageError
from quorumq.testing import clusters as testing
from quorumq.testing.clock import Clock


class StillBridge(Bridge):
    """Bridge in virtual time, which passes only when a call is awaited and no handler runs."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self.clock = Clock(self._is_still)
        self._handlers = 0
        self._quick: set[Call] = set()

    def _is_still(self) -> bool:
        if self._nursery is None:
            return False
        # A handler that waits for a call of its own counts on both sides.
        calls = len(self._nursery.child_tasks) + len(self._quick)
        return calls <= self._handlers + active_thread_count()

    def _begin_quick(self, call: Call, quick: Quick) -> bool:
        is_quick = super()._begin_quick(call, quick)
        if call.pending is not None:
            self._quick.add(call)
        return is_quick

    def _answer_call(self, call: Call) -> None:
        self._quick.discard(call)
        super()._answer_call(call)

    async def _in_loop(self, work: Callable[[], Any], context: Context) -> None:
        self._handlers += 1
        try:
            await super()._in_loop(work, context)
        finally:
            self._handlers -= 1


def _bridged(
    method: Callable[[testing.Cluster, str], Awaitable[None]],
) -> Callable[[Any, str], Awaitable[None]]:
    """Return a method of a cluster on trio as one of its counterpart here."""

    async def called(self: Cluster, name: str) -> None:
        await self._bridge.call(method, self._inner, name)

    return update_wrapper(called, method)


class Cluster:
    """A cluster of nodes "a", "b", "c" …, and a client of it: as `quorumq.testing.Cluster`."""

    def __init__(self, inner: testing.Cluster, *, real_time: bool) -> None:
        self._inner = inner
        self._real_time = real_time
        self._client: Client | None = None

    async def __aenter__(self) -> Client:
        if self._client is not None:
            raise UsageError("this cluster was used before: make another one by `cluster()`")
        loop = asyncio.get_running_loop()
        self._bridge = Bridge(loop) if self._real_time else StillBridge(loop)
        try:
            inner = await asyncio.wrap_future(self._bridge.begin(lambda: self._inner))
        except BaseException:
            await self._bridge.aclose()
            raise
        self._client = Client(self._bridge, inner)
        return self._client

    async def __aexit__(self, *exc_info: object) -> None:
        with suppress(Closed):
            await self.client.close()

    @property
    def client(self) -> Client:
        """The client that ``async with`` gives."""
        if self._client is None:
            raise UsageError("the cluster does not run yet: use it by `async with`")
        return self._client

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the nodes."""
        return self._inner.names

    @asynccontextmanager
    async def connect(self, **options: Any) -> AsyncIterator[Client]:
        """Return another client, to be used by ``async with``; options as of `quorumq.client.aio.connect`."""
        inner = await self._bridge.call(self._inner.network.open_client, **options)
        try:
            yield Client(self._bridge, inner)
        finally:
            await self._bridge.call(inner.close)

    @like(testing.Cluster.work)
    async def work(self, topic: str | Sequence[str], group: str, handler: Handler, **options: Any) -> Worked:
        task = self._bridge.handler(Task(topic, group, handler, **options))
        return await self._bridge.call(testing.work_off, self.client, [task])

    kill = _bridged(testing.Cluster.kill)
    stop = _bridged(testing.Cluster.stop)
    start = _bridged(testing.Cluster.start)
    cut = _bridged(testing.Cluster.cut)
    mend = _bridged(testing.Cluster.mend)

    async def sleep(self, seconds: float) -> None:
        """Let virtual time pass, and all that happens in it."""
        await self._bridge.call(trio.sleep, seconds)


def cluster(nodes: int = 3, *, real_time: bool = False, **options: Any) -> Cluster:
    """Return a cluster in this process, to be used by ``async with``, which gives a client of it.

    Args:
        nodes, options: as of `quorumq.testing.cluster`.
        real_time: True for the time of the machine: for programs that wait by other clocks beside the client's.
    """
    return Cluster(testing.cluster(nodes, **options), real_time=real_time)
