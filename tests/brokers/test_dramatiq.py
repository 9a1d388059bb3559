"""The Dramatiq broker with Dramatiq's own worker, on a cluster in this process."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import pytest

pytest.importorskip("dramatiq")

import dramatiq
from dramatiq import QueueJoinTimeout, QueueNotFound, Worker
from dramatiq.errors import ConnectionClosed
from dramatiq.middleware import AgeLimit, Callbacks, Pipelines, Retries

from quorumq.brokers import dramatiq as dramatiq_broker
from quorumq.brokers.dramatiq import QuorumqBroker, QuorumqConsumer
from quorumq.client import Outcome, Unauthorized, UsageError
from quorumq.core.messages import RejectRequest
from quorumq.testing import blocking
from tests.client.fake import FakeCluster
from tests.client.steps import in_a_thread
from tests.patience import PATIENCE_S, until

pytestmark = pytest.mark.soak  # the extra is installed there

JOIN_MS = int(PATIENCE_S * 1000)


@pytest.fixture
def nodes() -> Iterator[blocking.Cluster]:
    with (cluster := blocking.cluster(real_time=True, hold_time_max=5.0)):
        yield cluster


@pytest.fixture
def broker(nodes: blocking.Cluster) -> QuorumqBroker:
    retries = Retries(max_retries=2, min_backoff=50, max_backoff=100)
    return QuorumqBroker(client=nodes.client, middleware=[AgeLimit(), Callbacks(), Pipelines(), retries])


@contextmanager
def working(broker: QuorumqBroker, threads: int = 4) -> Iterator[Worker]:
    """Run a worker of Dramatiq in threads of this process."""
    worker = Worker(broker, worker_timeout=100, worker_threads=threads)
    worker.start()
    try:
        yield worker
    finally:
        worker.stop()


def test_messages_are_worked_on_once(broker: QuorumqBroker) -> None:
    numbers: list[int] = []

    @dramatiq.actor(broker=broker)
    def add(number: int) -> None:
        numbers.append(number)

    with working(broker):
        for number in range(40):
            add.send(number)
        broker.join("default", timeout=JOIN_MS)
    assert sorted(numbers) == list(range(40))


def test_a_delayed_message_waits_in_the_cluster(broker: QuorumqBroker, nodes: blocking.Cluster) -> None:
    numbers: list[int] = []

    @dramatiq.actor(broker=broker)
    def add(number: int) -> None:
        numbers.append(number)

    began = time.monotonic()
    add.send_with_options(args=(1,), delay=1000)
    assert nodes.client.backlog("default", "dramatiq").delayed == 1
    with working(broker):
        until(lambda: numbers, "the message is worked on")
    assert time.monotonic() - began >= 1.0
    assert broker.get_declared_delay_queues() == set()


def test_a_failure_is_retried_and_then_a_dead_letter(broker: QuorumqBroker, nodes: blocking.Cluster) -> None:
    attempts: list[int] = []

    @dramatiq.actor(broker=broker)
    def fail() -> None:
        attempts.append(1)
        raise ValueError("no such user")

    with working(broker):
        fail.send()
        broker.join("default", timeout=JOIN_MS)
    assert len(attempts) == 3
    assert nodes.client.backlog("default", "dramatiq").dead == 1
    (dead,) = nodes.client.fetch("default", "dramatiq!dead")
    assert dead.death is not None
    assert (dead.death.error_class, dead.death.message) == ("ValueError", "no such user")


def test_a_message_that_is_too_old_is_a_dead_letter(broker: QuorumqBroker, nodes: blocking.Cluster) -> None:
    numbers: list[int] = []

    @dramatiq.actor(broker=broker, max_age=1)
    def sell() -> None:
        numbers.append(1)

    sell.send()
    time.sleep(0.01)  # longer than its age may be
    with working(broker):
        broker.join("default", timeout=JOIN_MS)
    assert not numbers
    assert nodes.client.backlog("default", "dramatiq").dead == 1


def test_a_message_longer_than_its_hold_is_worked_on_once(nodes: blocking.Cluster) -> None:
    broker = QuorumqBroker(client=nodes.client, hold_time=2, middleware=[])
    numbers: list[int] = []

    @dramatiq.actor(broker=broker)
    def slow() -> None:
        numbers.append(1)
        time.sleep(6.0)  # three holds

    with working(broker), working(broker):
        slow.send()
        broker.join("default", timeout=JOIN_MS)
    assert numbers == [1]


def test_queues_and_pipelines_work(broker: QuorumqBroker) -> None:
    results: list[int] = []

    @dramatiq.actor(broker=broker, queue_name="sums")
    def add(a: int, b: int) -> int:
        results.append(a + b)
        return a + b

    with working(broker):
        dramatiq.pipeline([add.message(1, 2), add.message(3), add.message(4)], broker=broker).run()
        until(lambda: len(results) == 3, "the pipeline has ended")
        broker.join("sums", timeout=JOIN_MS)
    assert results == [3, 6, 10]


def test_messages_in_hand_are_given_back_when_the_worker_stops(
    broker: QuorumqBroker, nodes: blocking.Cluster
) -> None:
    numbers: list[int] = []

    @dramatiq.actor(broker=broker)
    def work(number: int) -> None:
        numbers.append(number)
        time.sleep(0.2)  # the worker stops before it has done all

    for number in range(16):
        work.send(number)
    with working(broker, threads=1):
        until(lambda: numbers, "a message is begun")
    backlog = nodes.client.backlog("default", "dramatiq")
    assert (backlog.ready, backlog.held) == (16 - len(numbers), 0)
    assert {message.attempt for message in nodes.client.fetch("default", "dramatiq")} == {1}


def test_a_message_in_hand_stays_with_its_consumer_beside_another_one(nodes: blocking.Cluster) -> None:
    """Dramatiq does that after a pause, or an error. A hold that is not extended would have the message done twice."""
    broker = QuorumqBroker(client=nodes.client, hold_time=0.5, middleware=[])
    broker.declare_queue("default")
    for _ in range(3):
        broker.enqueue(dramatiq.Message("default", "work", (), {}, {}))
    first = broker.consume("default", prefetch=2, timeout=1000)
    message = next(first)
    first.close()
    second = broker.consume("default", prefetch=2, timeout=1000)
    others = [next(second), next(second)]
    assert next(second) is None
    time.sleep(1.0)  # two holds
    second.ack(message)
    assert message.delivered.outcome is Outcome.ACKED
    assert next(second) is None, "another consumer's message does not count here"
    second.requeue(others)
    second.close()
    backlog = nodes.client.backlog("default", "dramatiq")
    assert (backlog.ready, backlog.held) == (2, 0)


def test_a_closed_consumer_fetches_no_more_and_ends_with_its_last_message(nodes: blocking.Cluster) -> None:
    broker = QuorumqBroker(client=nodes.client, middleware=[])
    broker.declare_queue("default")

    def enqueue(delay: int | None = None) -> None:
        broker.enqueue(dramatiq.Message("default", "work", (), {}, {}), delay=delay)

    async def has_ended() -> bool:
        return bool(first._consumer.inner._scope.cancel_called)

    enqueue(delay=-5)
    first = broker.consume("default", prefetch=2, timeout=200)
    assert first._consumer.inner.max_extend == math.inf
    message = next(first)
    assert message is not None, "its delay is over"
    assert next(first) is None, "the node goes on to wait for one"
    first.close()
    enqueue()
    second = broker.consume("default", prefetch=0, timeout=2000)
    assert next(second) is not None
    assert not nodes.client.portal.call(has_ended), "it extends the hold of its last message"
    first.nack(message)
    assert nodes.client.portal.call(has_ended)


def test_messages_are_given_back_in_one_call_and_not_fetched_again() -> None:
    """A worker that stops may be killed after some seconds, and a call may take the client's timeout."""
    clusters: list[FakeCluster] = []
    with in_a_thread(clusters) as client:
        broker = QuorumqBroker(client=client, middleware=[])
        broker.declare_queue("default")
        consumer = broker.consume("default", prefetch=3, timeout=200)
        for _ in range(3):
            broker.enqueue(dramatiq.Message("default", "work", (), {}, {}))
        messages = [next(consumer) for _ in range(3)]
        assert next(consumer) is None, "the node goes on to wait for one"
        consumer.requeue(messages)
        asked = [type(request) for _, request in clusters[0].asked]
        backlog = client.backlog("default", "dramatiq")
        consumer.close()
    assert (backlog.ready, backlog.held) == (3, 0)
    assert asked.count(RejectRequest) == 1
    assert asked[-1] is RejectRequest, "nothing is fetched after it"


def test_messages_that_cannot_be_given_back_are_in_hand_no_more(
    nodes: blocking.Cluster, broker: QuorumqBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """Else their holds were extended for as long as the process runs."""
    broker.declare_queue("default")
    for _ in range(2):
        broker.enqueue(dramatiq.Message("default", "work", (), {}, {}))
    consumer = broker.consume("default", prefetch=2, timeout=int(PATIENCE_S * 1000))
    messages = [next(consumer), next(consumer)]
    nodes.kill("a")
    nodes.kill("b")
    consumer.requeue(messages)
    assert "of 2 messages some were not given back" in caplog.text
    assert not consumer._in_hand
    consumer.close()


class Refused:
    """A delivery whose client has lost its rights."""

    is_live = True
    outcome = None

    def ack(self) -> None:
        """Refuse."""
        raise Unauthorized("no right")

    reject = ack


def test_an_ack_that_is_refused_counts_as_in_hand_until_it_is_given_up() -> None:
    consumer = QuorumqConsumer(cast("Any", None), 1, 0.0, cast("Any", None))
    assert consumer._slots.acquire(blocking=False)
    message: Any = SimpleNamespace(delivered=Refused(), consumer=consumer, is_retried=True)
    with pytest.raises(ConnectionClosed):
        consumer.ack(message)
    assert not consumer._slots.acquire(blocking=False), "Dramatiq tries again"
    message.delivered.is_live = False
    consumer.ack(message)
    assert consumer._slots.acquire(blocking=False)


def test_a_topic_that_was_deleted_is_created_anew_by_the_next_message() -> None:
    with (nodes := blocking.cluster(real_time=True, auto_create_topics=False)):
        broker = QuorumqBroker(client=nodes.client, middleware=[])
        broker.declare_queue("default")
        for _ in range(2):
            broker.enqueue(dramatiq.Message("default", "work", (), {}, {}))
            backlog = nodes.client.backlog("default", "dramatiq")
            assert backlog.ready == 1
            nodes.client.delete_topic("default")


def test_a_retry_that_cannot_be_published_does_not_lose_the_message(
    broker: QuorumqBroker, nodes: blocking.Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts: list[int] = []

    @dramatiq.actor(broker=broker)
    def fail() -> None:
        attempts.append(1)
        if len(attempts) == 1:
            raise ValueError

    fail.send()
    monkeypatch.setattr(type(nodes.client), "publish", Mock(side_effect=UsageError("a disk is full")))
    with working(broker):
        broker.join("default", timeout=JOIN_MS)
    assert len(attempts) == 2


def test_an_unknown_actor_and_other_bytes_are_dead_letters(
    broker: QuorumqBroker, nodes: blocking.Cluster
) -> None:
    broker.declare_queue("default")
    broker.enqueue(dramatiq.Message("default", "gone", (), {}, {}))
    nodes.client.publish("default", b"not of Dramatiq")
    with working(broker):
        broker.join("default", timeout=JOIN_MS)
    dead = nodes.client.fetch("default", "dramatiq!dead", min_messages=2, max_wait=5)
    assert {message.death.error_class.split(".")[-1] for message in dead if message.death} == {
        "ActorNotFound",
        "DecodeError",
    }


def test_a_flush_drops_ready_and_delayed_messages(broker: QuorumqBroker, nodes: blocking.Cluster) -> None:
    @dramatiq.actor(broker=broker)
    def work() -> None: ...

    work.send()
    work.send_with_options(delay=60_000)
    broker.flush_all()
    backlog = nodes.client.backlog("default", "dramatiq")
    assert (backlog.ready, backlog.delayed) == (0, 0)
    broker.join("default", timeout=JOIN_MS)


def test_a_join_looks_again_as_a_message_may_be_on_its_way_to_another_queue(
    broker: QuorumqBroker, nodes: blocking.Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.declare_queue("default")
    broker.enqueue(dramatiq.Message("default", "work", (), {}, {}))
    broker.flush("default")
    empty = nodes.client.backlog("default", "dramatiq")
    looks = [empty, empty._replace(delayed=1), empty, empty]
    monkeypatch.setattr(nodes.client, "backlog", lambda topic, group: looks.pop(0))
    monkeypatch.setattr(dramatiq_broker, "LOOK_S", 0.0)
    broker.join("default", timeout=JOIN_MS)
    assert looks == []


def test_a_priority_and_an_undeclared_queue_are_refused_by_name(broker: QuorumqBroker) -> None:
    @dramatiq.actor(broker=broker)
    def work() -> None: ...

    with pytest.raises(UsageError, match=r"broker_priority.*no priorities"):
        work.send_with_options(broker_priority=3)
    with pytest.raises(QueueNotFound, match="nowhere"):
        broker.consume("nowhere")
    with pytest.raises(UsageError, match="366"):
        work.send_with_options(delay=10**12)
    work.send()
    with pytest.raises(QueueJoinTimeout):
        broker.join("default", timeout=10)


def test_a_queue_that_no_topic_can_be_is_refused_where_it_is_declared() -> None:
    """It was refused in the worker, by a line in its log for each try."""
    broker = QuorumqBroker(prefix="shop.", middleware=[])
    for name in (196 * "q", "a.deadletters"):
        with pytest.raises(UsageError, match="topic name"):

            @dramatiq.actor(queue_name=name, broker=broker)
            def work() -> None: ...

        assert not broker.get_declared_queues()
    broker.declare_queue(195 * "q")


def test_nodes_that_do_not_answer_are_a_closed_connection() -> None:
    broker = QuorumqBroker("127.0.0.1:1", timeout=0.2)
    broker.declare_queue("default")
    with pytest.raises(ConnectionClosed, match=r"127\.0\.0\.1:1"):
        broker.enqueue(dramatiq.Message("default", "work", (), {}, {}))
    broker.close()
