"""A cluster in the process of a test, for trio: real nodes without sockets, disks and waiting."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any, Final

import trio

from quorumq.client import Client
from quorumq.client.base.names import is_dead, names_of
from quorumq.client.consume.work import GRACE_S, Handler, Pool, Task, Worked
from quorumq.core.values.errors import UsageError
from quorumq.testing.network import QUIET, Network, running
from quorumq.testing.nodes import NAMES

SEED: Final = 7
LOOK_S: Final = 0.05
LOOK_MAX_S: Final = 30.0
"""Seconds between two looks whether a group has work, at first and at most."""


class Cluster:
    """A cluster of nodes "a", "b", "c" …, and a client of it. Made by `cluster`.

    ``async with cluster() as client`` is enough for most tests. One that hurts nodes keeps the cluster as well:
    ``nodes = cluster()``, ``async with nodes as client``.
    """

    def __init__(self, count: int, *, seed: int, hold_time_max: float, auto_create_topics: bool) -> None:
        self._making = lambda: Network(
            count,
            random.Random(seed),
            **QUIET,
            hold_time_max=hold_time_max,
            auto_create_topics=auto_create_topics,
        )
        self._stack = AsyncExitStack()
        self._network: Network | None = None
        self._client: Client | None = None

    async def __aenter__(self) -> Client:
        if self._network is not None:
            raise UsageError("this cluster was used before: make another one by `cluster()`")
        self._network = await self._stack.enter_async_context(running(self._making))
        self._client = await self._stack.enter_async_context(self._network.connect())
        return self._client

    async def __aexit__(self, *exc_info: Any) -> bool | None:
        return await self._stack.__aexit__(*exc_info)

    @property
    def client(self) -> Client:
        """The client that ``async with`` gives."""
        if self._client is None:
            raise UsageError("the cluster does not run yet: use it by `async with`")
        return self._client

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the nodes."""
        return self.network.names

    @property
    def network(self) -> Network:
        """The nodes, once they run."""
        if self._network is None:
            raise UsageError("the cluster does not run yet: use it by `async with`")
        return self._network

    def connect(self, **options: Any) -> AbstractAsyncContextManager[Client]:
        """Return another client, to be used by ``async with``; options as of `quorumq.client.connect`."""
        return self.network.connect(**options)

    async def work(self, topic: str | Sequence[str], group: str, handler: Handler, **options: Any) -> Worked:
        """Work like `Client.work` until the group has nothing left to do: neither ready, nor held, nor delayed.

        Delays and backoff pass at once.

        Raises:
            as `Client.work` does, and NotFound if a topic is not there.
        """
        return await work_off(self.client, [Task(topic, group, handler, **options)])

    async def kill(self, name: str) -> None:
        """End a node at once: it loses its memory and keeps its disk."""
        await self.call("kill", name, runs=True)

    async def stop(self, name: str) -> None:
        """End a node cleanly."""
        await self.call("stop", name, runs=True)

    async def start(self, name: str) -> None:
        """Start a node that was killed or stopped, from its disk."""
        await self.call("start", name, runs=False)

    async def cut(self, name: str) -> None:
        """Cut a node off from the others and from clients. It goes on running."""
        await self.call("cut", name, runs=True)

    async def mend(self, name: str) -> None:
        """End the cut of a node."""
        await self.call("mend", name, runs=True)

    async def call(self, fault: str, name: str, *, runs: bool) -> None:
        """Do something to a node that has to run, or must not."""
        network = self.network
        if name not in network.names:
            raise UsageError(f"no node is called {name!r}: the nodes are {', '.join(network.names)}")
        if (name in network.nodes) is not runs:
            raise UsageError(f"node {name!r} {'does not run' if runs else 'runs already'}")
        await trio.lowlevel.checkpoint()
        getattr(network, fault)(name)


def cluster(
    nodes: int = 3, *, seed: int = SEED, hold_time_max: float = 60.0, auto_create_topics: bool = True
) -> Cluster:
    """Return a cluster in this process, to be used by ``async with``, which gives a client of it.

    Under `quorumq.testing.run`, or another virtual clock of trio, no wait takes time.

    Args:
        nodes: number of nodes, 1 to 9.
        seed: start of the random numbers that nodes and clients draw.
        hold_time_max: seconds of the longest hold, and of the quarantine after a node was killed.
        auto_create_topics: whether publishing to a topic that is not there creates it.
    """
    if not 1 <= nodes <= len(NAMES):
        raise UsageError(f"a cluster of {nodes} nodes: give 1 to {len(NAMES)}")
    return Cluster(nodes, seed=seed, hold_time_max=hold_time_max, auto_create_topics=auto_create_topics)


async def work_off(client: Client, tasks: Sequence[Task]) -> Worked:
    """Run a pool until the groups of all tasks have nothing left to do."""
    pool = Pool(client.context, client.consumer, tasks, GRACE_S)
    groups = [await group for task in tasks for group in groups_of(client, task)]
    worked = Worked()

    async def work() -> None:
        nonlocal worked
        try:
            worked = await pool.run()
        finally:
            nursery.cancel_scope.cancel()

    async with unwrapped() as nursery:
        nursery.start_soon(work)
        pause = LOOK_S
        while True:
            await trio.sleep(pause)
            if not await has_work(client, groups):
                break
            pause = min(LOOK_MAX_S, 1.5 * pause)
        pool.stop()
        await trio.sleep_forever()
    return worked


@asynccontextmanager
async def unwrapped() -> AsyncIterator[trio.Nursery]:
    """Open a nursery whose only error is raised as it is."""
    try:
        async with trio.open_nursery() as nursery:
            yield nursery
    except BaseExceptionGroup as group:
        if len(group.exceptions) == 1:
            raise group.exceptions[0] from None
        raise


def groups_of(client: Client, task: Task) -> Iterable[Any]:
    """Yield an awaitable of each group that a task reads, which creates it if need be."""

    async def created(topic: str) -> tuple[str, str]:
        if not is_dead(group):
            await client.create_group(topic, group, start=task.start)
        return topic, group

    topics, group = names_of((task.topic,) if isinstance(task.topic, str) else task.topic, task.group)
    return [created(topic) for topic in topics]


async def has_work(client: Client, groups: Iterable[tuple[str, str]]) -> bool:
    """Return True if a group has messages to work on, now or later."""
    for topic, group in groups:
        backlog = await client.backlog(topic, group)
        if backlog.dead if is_dead(group) else backlog.ready or backlog.held or backlog.delayed:
            return True
    return False
