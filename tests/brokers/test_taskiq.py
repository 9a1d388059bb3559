"""The Taskiq broker on a cluster in this process: labels, ack types, and a worker that ends with tasks in hand."""

from __future__ import annotations

import asyncio
import gc
import math
import os
import signal
import threading
import time
import weakref
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any

import pytest

pytest.importorskip("taskiq")

from taskiq import (
    Context,
    InMemoryBroker,
    SimpleRetryMiddleware,
    TaskiqDepends,
    TaskiqMessage,
    TaskiqMiddleware,
)
from taskiq.acks import AcknowledgeType
from taskiq.exceptions import SendTaskError
from taskiq.receiver import Receiver
from taskiq.result_backends.dummy import DummyResultBackend

from quorumq.brokers.taskiq import QuorumqBroker
from quorumq.client import Conflict, UsageError
from quorumq.testing import aio
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.soak  # the extra is installed there


def looped(test: Callable[[aio.Cluster, QuorumqBroker], Awaitable[None]]) -> Callable[[], None]:
    """Run a test with a cluster and a broker that is started."""

    @wraps(test)
    def run() -> None:
        async def whole() -> None:
            async with (
                asyncio.timeout(PATIENCE_S),
                (nodes := aio.cluster(real_time=True, hold_time_max=5.0, auto_create_topics=False)),
            ):
                broker = QuorumqBroker(client=nodes.client, hold_time=2)
                await broker.startup()
                try:
                    await test(nodes, broker)
                finally:
                    await broker.shutdown()

        asyncio.run(whole())

    del run.__wrapped__
    return run


class Worker:
    """A worker of Taskiq in this process."""

    def __init__(self, broker: QuorumqBroker, **options: Any) -> None:
        self.finish = asyncio.Event()
        broker.is_worker_process = True
        options = {"max_async_tasks": 16, "run_startup": False, "wait_tasks_timeout": 0.2, **options}
        self.receiver = Receiver(broker, **options)
        self.task = asyncio.create_task(self.receiver.listen(self.finish))

    async def stop(self) -> None:
        """Stop it as SIGTERM does."""
        self.finish.set()
        await self.task


async def until(condition: Callable[[], Any]) -> None:
    """Wait until a condition holds."""
    while not condition():
        await asyncio.sleep(0.01)


async def settled(nodes: aio.Cluster, topic: str = "taskiq") -> None:
    """Wait until the workers' group has nothing left to do."""
    while True:
        backlog = await nodes.client.backlog(topic, "workers")
        if not (backlog.ready or backlog.held or backlog.delayed):
            return
        await asyncio.sleep(0.01)


@looped
async def test_a_task_runs_once_with_its_arguments(nodes: aio.Cluster, broker: QuorumqBroker) -> None:
    ran: list[Any] = []

    @broker.task
    async def add(a: int, b: int) -> None:
        ran.append(a + b)

    worker = Worker(broker)
    for number in range(40):
        await add.kiq(number, b=1)
    await until(lambda: len(ran) == 40)
    await settled(nodes)
    assert [consumer.max_extend for consumer in broker._consumers] == [math.inf]
    await until(lambda: not broker._in_hand)
    await worker.stop()
    assert sorted(ran) == list(range(1, 41))


@looped
async def test_a_delay_is_kept_by_the_cluster(nodes: aio.Cluster, broker: QuorumqBroker) -> None:
    ran: list[float] = []

    @broker.task
    async def later() -> None:
        ran.append(time.monotonic())

    began = time.monotonic()
    await later.kicker().with_labels(delay="0.5").kiq()
    assert (await nodes.client.backlog("taskiq", "workers")).delayed == 1
    worker = Worker(broker)
    await until(lambda: ran)
    await worker.stop()
    assert ran[0] - began >= 0.5


@looped
async def test_a_task_that_expires_does_not_run(nodes: aio.Cluster, broker: QuorumqBroker) -> None:
    ran: list[int] = []

    @broker.task
    async def sell(number: int) -> None:
        ran.append(number)

    await sell.kicker().with_labels(ttl=0.2).kiq(1)
    await sell.kiq(2)
    await asyncio.sleep(0.3)
    worker = Worker(broker)
    await until(lambda: ran)
    await settled(nodes)
    await worker.stop()
    assert ran == [2]


@looped
async def test_a_task_goes_to_the_queue_that_it_names(nodes: aio.Cluster, broker: QuorumqBroker) -> None:
    @broker.task(queue_name="reports")
    async def report() -> None: ...

    await report.kiq()
    (message,) = await nodes.client.fetch("reports", "other", max_wait=1)
    assert message.headers["task"] == report.task_name
    groups = [group.name for group in (await nodes.client.metadata("reports")).groups]
    assert groups == ["other"], "its workers may have another group"
    assert (await nodes.client.backlog("taskiq", "workers")).ready == 0


@pytest.mark.parametrize(
    ("labels", "text"),
    [
        ({"priority": 3}, "no priorities"),
        ({"delay": "soon"}, "'soon'"),
        ({"ttl": -1}, "ttl"),
        ({"delay": 1e9}, "366"),
        ({"ack_type": "whenever"}, "when_saved"),
        ({"ack_type": AcknowledgeType.MANUAL}, "as text"),
        ({"queue_name": "a b"}, "'a b'"),
    ],
)
def test_a_label_that_cannot_be_kept_is_refused_by_name(labels: dict[str, Any], text: str) -> None:
    @looped
    async def test(nodes: aio.Cluster, broker: QuorumqBroker) -> None:
        @broker.task
        async def work() -> None: ...

        with pytest.raises(SendTaskError) as caught:
            await work.kicker().with_labels(**labels).kiq()
        assert isinstance(caught.value.__cause__, UsageError)
        assert text in str(caught.value.__cause__)

    test()


@pytest.mark.parametrize(
    "labels", [{"priority": 3}, {"delay": "soon"}, {"ack_type": "whenever"}, {"queue_name": 201 * "q"}]
)
def test_a_label_that_cannot_be_kept_is_refused_where_it_is_declared(labels: dict[str, Any]) -> None:
    """The worker refused an unknown ack_type, and its tasks became dead letters."""
    broker = QuorumqBroker()
    with pytest.raises(UsageError, match=next(iter(labels))):

        @broker.task(**labels)
        async def work() -> None: ...


@looped
async def test_a_task_longer_than_its_hold_runs_once(nodes: aio.Cluster, broker: QuorumqBroker) -> None:
    ran: list[int] = []

    @broker.task
    async def slow() -> None:
        ran.append(1)
        await asyncio.sleep(6.0)

    first, second = Worker(broker), Worker(broker)
    await slow.kiq()
    await until(lambda: ran)
    await settled(nodes)
    await first.stop()
    await second.stop()
    assert ran == [1]


@pytest.mark.parametrize("ack_type", [*AcknowledgeType, *(one.value for one in AcknowledgeType)])
def test_each_ack_type_acks_when_it_says(ack_type: AcknowledgeType | str) -> None:
    @looped
    async def test(nodes: aio.Cluster, broker: QuorumqBroker) -> None:
        held: list[int] = []

        async def unsettled() -> int:
            backlog = await nodes.client.backlog("taskiq", "workers")
            return backlog.ready + backlog.held

        class Backend(DummyResultBackend[Any]):
            async def set_result(self, task_id: str, result: Any) -> None:
                held.append(await unsettled())

        broker.result_backend = Backend()

        @broker.task(ack_type=ack_type)
        async def work(context: Context = TaskiqDepends()) -> None:  # noqa: B008
            held.append(await unsettled())
            if ack_type == AcknowledgeType.MANUAL:
                await context.ack()

        worker = Worker(broker)
        await work.kiq()
        await until(lambda: len(held) == 2)
        await settled(nodes)
        await worker.stop()
        during = 0 if ack_type == AcknowledgeType.WHEN_RECEIVED else 1
        at_the_result = 1 if ack_type == AcknowledgeType.WHEN_SAVED else 0
        assert held == [during, at_the_result]

    test()


@looped
async def test_tasks_in_hand_are_given_back_when_the_worker_stops(
    nodes: aio.Cluster, broker: QuorumqBroker
) -> None:
    ran: list[int] = []
    release = asyncio.Event()

    @broker.task
    async def stuck(number: int) -> None:
        ran.append(number)
        await release.wait()

    worker = Worker(broker)
    try:
        for number in range(16):
            await stuck.kiq(number)
        await until(lambda: len(ran) == 16)
        worker.finish.set()
        await broker.shutdown()  # a worker's process ends after that
        backlog = await nodes.client.backlog("taskiq", "workers")
        assert (backlog.ready, backlog.held) == (16, 0)
        again = await nodes.client.fetch("taskiq", "workers", max_wait=1, max_messages=16)
        assert {message.attempt for message in again} == {1}, "being stopped counts no attempt"
    finally:
        release.set()
        await worker.task


class Ending(TaskiqMiddleware):
    """A middleware whose shutdown fails, or does not end."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way
        self.is_ending = asyncio.Event()

    async def shutdown(self) -> None:
        """Fail, wait for ever, or do nothing."""
        self.is_ending.set()
        if self.way == "failure":
            raise ConnectionError("the middleware's server is away")
        if self.way == "hang":
            await asyncio.Event().wait()


@pytest.mark.parametrize("way", ["failure", "hang", "cancelled while tasks are given back"])
def test_tasks_in_hand_are_given_back_when_the_shutdown_is_cut_off(way: str) -> None:
    """Taskiq cancels it after five seconds, or after its ``--shutdown-timeout``."""

    @looped
    async def test(nodes: aio.Cluster, broker: QuorumqBroker) -> None:
        middleware = Ending(way)
        broker.add_middlewares(middleware)
        is_running = asyncio.Event()
        release = asyncio.Event()

        @broker.task
        async def stuck() -> None:
            is_running.set()
            await release.wait()

        worker = Worker(broker)
        await stuck.kiq()
        await is_running.wait()
        worker.finish.set()
        shutdown = asyncio.create_task(broker.shutdown())
        await middleware.is_ending.wait()
        if way != "failure":
            shutdown.cancel()
        with pytest.raises(ConnectionError if way == "failure" else asyncio.CancelledError):
            await shutdown
        backlog = await nodes.client.backlog("taskiq", "workers")
        broker.middlewares.clear()
        release.set()
        await worker.task
        assert (backlog.ready, backlog.held) == (1, 0)

    test()


@looped
async def test_a_failed_task_is_tried_again_by_middleware(nodes: aio.Cluster, broker: QuorumqBroker) -> None:
    broker.add_middlewares(SimpleRetryMiddleware(default_retry_count=3))
    ran: list[int] = []

    @broker.task(retry_on_error=True)
    async def fail() -> None:
        ran.append(1)
        raise ValueError

    worker = Worker(broker)
    await fail.kiq()
    await until(lambda: len(ran) == 3)
    await settled(nodes)
    await worker.stop()
    assert len(ran) == 3


@looped
async def test_a_message_that_is_no_task_here_is_a_dead_letter(
    nodes: aio.Cluster, broker: QuorumqBroker
) -> None:
    """Taskiq itself would ack it, and log a warning."""

    @broker.task(task_name="known")
    async def known() -> None: ...

    await known.kiq()
    elsewhere = QuorumqBroker(client=nodes.client)
    await elsewhere.startup()
    await elsewhere.register_task(known.original_func, task_name="unknown").kiq()
    await nodes.client.publish("taskiq", b"not of Taskiq")
    worker = Worker(broker)
    await settled(nodes)
    await worker.stop()
    assert (await nodes.client.backlog("taskiq", "workers")).dead == 2


class Broken(TaskiqMiddleware):
    """A middleware that fails at its first tasks."""

    def __init__(self, failures: int) -> None:
        super().__init__()
        self.failures = failures

    def pre_execute(self, message: TaskiqMessage) -> TaskiqMessage:
        """Fail, or do nothing."""
        self.failures -= 1
        if self.failures >= 0:
            raise ConnectionError("the middleware's server is away")
        return message


@looped
async def test_a_task_that_ends_without_an_ack_comes_again(nodes: aio.Cluster, broker: QuorumqBroker) -> None:
    """Taskiq does not ack it, and its hold would be extended for as long as the worker runs."""
    broker.add_middlewares(Broken(1))
    ran: list[int] = []

    @broker.task
    async def work() -> None:
        ran.append(1)

    worker = Worker(broker)
    await work.kiq()
    await until(lambda: ran)
    await settled(nodes)
    await worker.stop()
    assert ran == [1]


@looped
async def test_a_topic_that_was_deleted_is_created_anew_by_the_next_task(
    nodes: aio.Cluster, broker: QuorumqBroker
) -> None:
    @broker.task
    async def work() -> None: ...

    for _ in range(2):
        await work.kiq()
        assert (await nodes.client.backlog("taskiq", "workers")).ready == 1
        await nodes.client.delete_topic("taskiq")


@looped
async def test_an_idle_worker_ends_at_a_signal(nodes: aio.Cluster, broker: QuorumqBroker) -> None:
    """Taskiq's handler only sets an event, which an event loop that waits for nothing but I/O does not see."""
    worker = Worker(broker)
    await asyncio.sleep(0.5)
    before = signal.signal(signal.SIGUSR1, lambda number, frame: worker.finish.set())
    killer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGUSR1))
    killer.start()
    try:
        async with asyncio.timeout(60.0):
            await worker.task
    finally:
        signal.signal(signal.SIGUSR1, before)


@looped
async def test_an_ack_is_tried_until_the_nodes_are_back(nodes: aio.Cluster, broker: QuorumqBroker) -> None:
    broker.client.timeout = 0.2
    down = asyncio.Event()
    ran: list[int] = []

    @broker.task
    async def work() -> None:
        ran.append(1)
        await nodes.kill("a")
        await nodes.kill("b")
        down.set()

    worker = Worker(broker)
    await work.kiq()
    await down.wait()
    await asyncio.sleep(0.5)
    await nodes.start("a")
    await nodes.start("b")
    broker.client.timeout = 30.0
    await settled(nodes)
    await worker.stop()
    assert ran == [1]


@looped
async def test_a_topic_with_other_settings_is_refused(nodes: aio.Cluster, broker: QuorumqBroker) -> None:
    await nodes.client.create_topic("mine", max_deliveries=3)
    other = QuorumqBroker(topic="mine", max_deliveries=7, client=nodes.client)
    with pytest.raises(Conflict, match="max_deliveries"):
        await other.startup()


def test_a_broker_that_is_not_started_says_so() -> None:
    broker = QuorumqBroker()
    with pytest.raises(UsageError, match="startup"):
        _ = broker.client
    assert not isinstance(broker, InMemoryBroker)


@looped
async def test_a_rejection_goes_on_if_nothing_refers_to_it(nodes: aio.Cluster, broker: QuorumqBroker) -> None:
    """Loops of asyncio keep weak references to tasks."""
    calls: list[weakref.ref[asyncio.Future[None]]] = []

    class Waiting:
        def __init__(self) -> None:
            self.headers: dict[str, str] = {}

        async def reject(self) -> None:
            future = asyncio.get_running_loop().create_future()
            calls.append(weakref.ref(future))
            await future

    message: Any = Waiting()
    failed: Any = asyncio.get_running_loop().create_future()
    failed.set_exception(ValueError("a middleware has failed"))
    broker._in_hand[message] = None
    broker._ended(message, failed)
    await until(lambda: calls)
    gc.collect()
    future = calls[0]()
    assert future is not None
    future.set_result(None)
    await until(lambda: not (broker._rejecting or broker._in_hand))
