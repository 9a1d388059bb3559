"""A broker of Dramatiq: a queue is a topic, and all workers are consumers of one group.

Delayed messages wait in the cluster, and not in a worker's memory: there are no delay queues. A message's hold is
extended for as long as its actor runs. A message that Dramatiq gives up is a dead letter with its exception.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Final

from dramatiq import Broker, Consumer, Message, MessageProxy, Middleware
from dramatiq.errors import ConnectionClosed, QueueJoinTimeout, QueueNotFound

from quorumq.brokers.settling import give_back, is_passing
from quorumq.client import (
    Busy,
    Closed,
    NotFound,
    NotStored,
    Outcome,
    QuorumqError,
    TooFewReplicas,
    UsageError,
    blocking,
)
from quorumq.client.base.options import PRIORITY
from quorumq.client.base.times import Duration
from quorumq.core.cluster.topics import check_topic_name

GROUP: Final = "dramatiq"
LOOK_S: Final = 0.05
"""Seconds between two looks of `join`."""
SETTLED_LOOKS: Final = 2
"""Looks in a row that find nothing left, until `join` is over: a message may be on its way to another queue."""

log = logging.getLogger("quorumq.brokers")


class QuorumqBroker(Broker):
    """A broker of Dramatiq.

    It connects at first use, in each process that uses it.

    Args:
        nodes: "host:port" of some nodes; QUORUMQ_NODES of the environment if None.
        middleware: as of Dramatiq.
        group: group of the workers.
        prefix: begin of each topic's name; the rest is the queue's.
        hold_time: seconds for which a message stays with a worker that was killed; 30 if None.
        max_deliveries: deliveries until a message that ends its workers is a dead letter; the topic's if None.
        client: a connected client to use, which is not closed.
        options: as of `quorumq.client.connect`.
    """

    def __init__(
        self,
        nodes: str | Sequence[str] | None = None,
        *,
        middleware: list[Middleware] | None = None,
        group: str = GROUP,
        prefix: str = "",
        hold_time: Duration | None = None,
        max_deliveries: int | None = None,
        client: blocking.Client | None = None,
        **options: Any,
    ) -> None:
        super().__init__(middleware=middleware)
        self.queues: set[str] = set()
        self.group = group
        self.prefix = prefix
        self.hold_time = hold_time
        self.max_deliveries = max_deliveries
        self._nodes, self._options = nodes, options
        self._given = client
        self._clients: dict[int, blocking.Client] = {}  # by process: this one and its parents
        self._created: set[tuple[int, str]] = set()  # process and topic
        self._lock = threading.Lock()

    @property
    def client(self) -> blocking.Client:
        """The client of this process."""
        if self._given is not None:
            return self._given
        with self._lock:
            process = os.getpid()
            if process not in self._clients:
                with connection_errors():
                    self._clients[process] = blocking.Client.open(self._nodes, **self._options)
            return self._clients[process]

    def topic_of(self, queue_name: str) -> str:
        """Return the topic of a declared queue, which is there with its group.

        Raises:
            QueueNotFound: the queue was not declared.
        """
        if queue_name not in self.queues:
            raise QueueNotFound(queue_name)
        topic, client = self.prefix + queue_name, self.client
        if (os.getpid(), topic) not in self._created:
            with connection_errors():
                client.create_topic(topic, max_deliveries=self.max_deliveries)
                client.create_group(topic, self.group)
            self._created.add((os.getpid(), topic))
        return topic

    def close(self) -> None:
        """Close the client of this process."""
        with self._lock:
            client = self._clients.pop(os.getpid(), None)
        if client is not None:
            client.close()

    def get_declared_queues(self) -> set[str]:
        return set(self.queues)

    def declare_queue(self, queue_name: str) -> None:
        """Declare a queue. Its topic is created when it is used.

        Raises:
            UsageError: if no topic may have its name.
        """
        if error := check_topic_name(self.prefix + queue_name):
            raise UsageError(f"queue {queue_name[:50]!r} cannot be declared: {error}")
        if queue_name not in self.queues:
            self.emit_before("declare_queue", queue_name)
            self.queues.add(queue_name)
            self.emit_after("declare_queue", queue_name)

    def enqueue(self, message: Message[Any], *, delay: int | None = None) -> Message[Any]:
        """Publish a message. When this returns, a majority has it on disk.

        Args:
            delay: milliseconds until a worker may have it.

        Raises:
            QueueNotFound: the queue was not declared.
            UsageError: the message asks for a priority, or the delay is above 366 days.
            ConnectionClosed: no node could be reached, or too few.
        """
        if "broker_priority" in message.options:
            raise UsageError(f"message {message.message_id} has broker_priority, and {PRIORITY}")
        topic = self.topic_of(message.queue_name)
        self.emit_before("enqueue", message, delay)
        seconds = None if delay is None else max(0, delay) / 1000
        headers = {"actor": message.actor_name, "id": message.message_id}
        try:
            with connection_errors():
                try:
                    self.client.publish(topic, message.encode(), headers=headers, delay=seconds)
                except NotFound:  # the topic was deleted after it was created here
                    self._created.discard((os.getpid(), topic))
                    topic = self.topic_of(message.queue_name)
                    self.client.publish(topic, message.encode(), headers=headers, delay=seconds)
        except Exception:
            if isinstance(message, QuorumqMessage):
                message.is_retried = False
            raise
        self.emit_after("enqueue", message, delay)
        return message

    def consume(self, queue_name: str, prefetch: int = 1, timeout: int = 30000) -> QuorumqConsumer:
        """Return a consumer of a queue.

        Args:
            prefetch: messages in the worker's hands, at most.
            timeout: milliseconds to wait for a message.

        Raises:
            QueueNotFound: the queue was not declared.
        """
        topic = self.topic_of(queue_name)
        consumer = self.client.consumer(
            topic,
            self.group,
            hold_time=self.hold_time,
            max_extend=math.inf,
            timeout=math.inf,
        )
        with connection_errors():
            consumer.open()
        return QuorumqConsumer(consumer, max(1, prefetch), timeout / 1000, self.client)

    def flush(self, queue_name: str) -> None:
        """Drop all messages of a queue that no worker has begun, delayed ones too."""
        topic = self.topic_of(queue_name)
        with connection_errors():
            self.client.purge(topic, self.group)

    def flush_all(self) -> None:
        """Drop all messages of all declared queues, as `flush` does."""
        for queue_name in sorted(self.queues):
            self.flush(queue_name)

    def join(self, queue_name: str, *, timeout: int | None = None) -> None:
        """Wait until a queue has no message left, neither ready, nor in work, nor delayed.

        Raises:
            QueueJoinTimeout: some were left after ``timeout`` milliseconds.
            QueueNotFound: the queue was not declared.
        """
        topic = self.topic_of(queue_name)
        end = None if timeout is None else time.monotonic() + timeout / 1000
        looks = 0
        while looks < SETTLED_LOOKS:
            with connection_errors():
                backlog = self.client.backlog(topic, self.group)
            looks = 0 if backlog.ready or backlog.held or backlog.delayed else looks + 1
            if looks < SETTLED_LOOKS:
                if end is not None and time.monotonic() >= end:
                    raise QueueJoinTimeout(queue_name)
                time.sleep(LOOK_S)


class QuorumqConsumer(Consumer):
    """A consumer of one queue.

    Dramatiq makes another one when it has paused, or if this one raised an error. The messages in hand stay with the
    old one, which extends their holds until the last of them is settled.
    """

    def __init__(
        self, consumer: blocking.Consumer, prefetch: int, timeout_s: float, client: blocking.Client
    ) -> None:
        self._consumer = consumer
        self._client = client
        self._timeout_s = timeout_s
        self._slots = threading.Semaphore(prefetch)  # for messages in the worker's hands
        self._lock = threading.Lock()
        self._in_hand = 0
        self._closed = False

    def __next__(self) -> QuorumqMessage | None:
        if not self._slots.acquire(timeout=self._timeout_s):
            return None
        message: QuorumqMessage | None = None
        try:
            message = self._next()
        finally:
            if message is None:
                self._slots.release()
        return message

    def _next(self) -> QuorumqMessage | None:
        with connection_errors():
            delivered = self._consumer.next(timeout=self._timeout_s)
        if delivered is None:
            return None
        try:
            message = QuorumqMessage(Message.decode(delivered.payload), delivered, self)
        except Exception as error:
            log.exception("message %s is none of Dramatiq, and becomes a dead letter", delivered.id)
            settle(delivered, partial(delivered.dead_letter, error))
            return None
        with self._lock:
            self._in_hand += 1
        return message

    def ack(self, message: Any) -> None:
        """Ack a message whose actor has ended. If its retry could not be published, reject it, for another delivery.

        Raises:
            ConnectionClosed: it is not certain; Dramatiq tries again.
        """
        delivered = message.delivered
        message.consumer.settle(message, delivered.ack if message.is_retried else delivered.reject)
        if delivered.outcome is Outcome.ACKED_AFTER_EXPIRY:
            text = "%s was acked after its hold had run out: another worker may have run it as well"
            log.warning(text, message)

    def nack(self, message: Any) -> None:
        """Make a message that was given up a dead letter, with its exception.

        Raises:
            ConnectionClosed: it is not certain; Dramatiq tries again.
        """
        error, delivered = message._exception, message.delivered
        give_up = partial(delivered.dead_letter, error, reason="" if error else "given up")
        message.consumer.settle(message, give_up)

    def requeue(self, messages: Iterable[Any]) -> None:
        """Give messages back that no actor has begun, when the worker stops. That counts no attempt."""
        rest = list(messages)
        self._drain()  # first: a FETCH that is parked would take them
        give_back(self._client, [message.delivered for message in rest])
        for message in rest:
            message.consumer._let_go()

    def settle(self, message: QuorumqMessage, call: Callable[[], object]) -> None:
        """Settle a message of this consumer, and count it no more.

        Raises:
            ConnectionClosed: it is not certain; to be called again.
        """
        settle(message.delivered, call)
        self._let_go()

    def _let_go(self) -> None:
        """Count a message of this consumer no more."""
        self._slots.release()
        with self._lock:
            self._in_hand -= 1
        self._end()

    def close(self) -> None:
        """Give back the messages that were fetched ahead, and end with the last message in hand."""
        self._closed = True
        self._drain()
        self._end()

    def _drain(self) -> None:
        with suppress(Closed):
            self._consumer.drain()

    def _end(self) -> None:
        with self._lock:
            is_over = self._closed and not self._in_hand
        if is_over:
            with suppress(Closed):
                self._consumer.close()


class QuorumqMessage(MessageProxy):
    """A message of Dramatiq, and its delivery."""

    def __init__(self, message: Message[Any], delivered: blocking.Message, consumer: QuorumqConsumer) -> None:
        super().__init__(message)
        self.delivered = delivered
        self.consumer = consumer
        self.is_retried = True  # False if `enqueue` could not publish it again


@contextmanager
def connection_errors() -> Iterator[None]:
    """Raise errors that pass by themselves as Dramatiq's, whose workers then try again.

    Raises:
        ConnectionClosed: no node could be reached, or too few.
    """
    try:
        yield
    except (TooFewReplicas, NotStored, Busy, Closed) as error:
        raise ConnectionClosed(error) from error


def settle(delivered: blocking.Message, call: Callable[[], object]) -> None:
    """Settle a message, if it is still this worker's.

    Raises:
        ConnectionClosed: it is not certain; to be called again.
    """
    try:
        with connection_errors():
            call()
    except QuorumqError as error:
        if is_passing(error, delivered):
            raise ConnectionClosed(error) from error
        log.warning("%r could not be settled, and may come again: %s", delivered, error)
