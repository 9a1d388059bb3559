"""A cluster in the process of a test, for programs without trio and asyncio."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, cast

import trio
from trio.testing import active_thread_count

from quorumq.client.base.counterparts import Counterpart, blocking
from quorumq.client.blocking import Client, Message
from quorumq.client.consume.work import Task, Worked
from quorumq.client.portal import Portal, like
from quorumq.client.transport.nodes import Closed
from quorumq.core.values.errors import UsageError
from quorumq.testing import clusters as testing
from quorumq.testing.clock import Clock


class StillPortal(Portal):
    """Portal in virtual time, which passes only when a call waits and no handler runs."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock(self._is_still)

    def _is_still(self) -> bool:
        # A handler that waits for a call of its own counts on both sides.
        return self._nursery is not None and len(self._nursery.child_tasks) <= active_thread_count()


class Cluster(Counterpart[testing.Cluster]):
    """A cluster of nodes "a", "b", "c" …, and a client of it: as `quorumq.testing.Cluster`."""

    portal: Portal

    def __init__(self, inner: testing.Cluster, *, real_time: bool) -> None:
        super().__init__(Portal() if real_time else StillPortal(), inner)
        self._client: Client | None = None

    def __enter__(self) -> Client:
        if self._client is not None:
            raise UsageError("this cluster was used before: make another one by `cluster()`")
        self._client = Client(self.portal, self.portal.open(lambda: self.inner))
        return self._client

    def __exit__(self, *exc_info: object) -> None:
        with suppress(Closed):
            self.client.close()

    @property
    def client(self) -> Client:
        """The client that ``with`` gives."""
        if self._client is None:
            raise UsageError("the cluster does not run yet: use it by `with`")
        return self._client

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the nodes."""
        return self.inner.names

    @contextmanager
    def connect(self, **options: Any) -> Iterator[Client]:
        """Return another client, to be used by ``with``; options as of `quorumq.client.blocking.connect`."""
        inner = self.portal.call(self.inner.network.open_client, **options)
        try:
            yield Client(self.portal, inner)
        finally:
            self.portal.call(inner.close)

    @like(testing.Cluster.work)
    def work(
        self, topic: str | Sequence[str], group: str, handler: Callable[[Message], object], **options: Any
    ) -> Worked:
        task = self.client._plain(Task(topic, group, cast("Any", handler), **options))
        return self.portal.call(testing.work_off, self.client.inner, [task])

    kill = blocking(testing.Cluster.kill)
    stop = blocking(testing.Cluster.stop)
    start = blocking(testing.Cluster.start)
    cut = blocking(testing.Cluster.cut)
    mend = blocking(testing.Cluster.mend)

    def sleep(self, seconds: float) -> None:
        """Let virtual time pass, and all that happens in it."""
        self.portal.call(trio.sleep, seconds)


def cluster(nodes: int = 3, *, real_time: bool = False, **options: Any) -> Cluster:
    """Return a cluster in this process, to be used by ``with``, which gives a client of it.

    Args:
        nodes, options: as of `quorumq.testing.cluster`.
        real_time: True for the time of the machine: for programs that wait by other clocks beside the client's.
    """
    return Cluster(testing.cluster(nodes, **options), real_time=real_time)
