"""A broker of Taskiq: tasks are messages of a topic, and workers are consumers of one group.

A task's hold is extended for as long as the task runs. If a worker is killed, its task is redelivered when the hold has
run out. If a worker is stopped, the tasks that it had not begun are redelivered at once.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, Final

from taskiq import AckableMessage, AsyncBroker, AsyncTaskiqDecoratedTask, BrokerMessage
from taskiq.acks import AcknowledgeType

from quorumq.brokers.settling import LAST_WORD_S, is_passing, warn_of_rest
from quorumq.client import Closed, Message, NotFound, Outcome, QuorumqError, UsageError
from quorumq.client.aio import Client, Consumer
from quorumq.client.base.options import PRIORITY
from quorumq.client.base.times import Duration
from quorumq.core.cluster.topics import check_topic_name

TOPIC: Final = "taskiq"
GROUP: Final = "workers"
UNSETTLED_MAX: Final = 100_000
"""Tasks in the hands of one worker: Taskiq has a bound of its own (``--max-async-tasks``, ``--max-prefetch``)."""

ACK_PAUSE_S: Final = 1.0
"""Seconds between two tries to settle a task. A try has the client's timeout."""

TURN_S: Final = 0.25
"""Longest seconds between two turns of the event loop while a worker waits for tasks."""

ACK_TYPES: Final = tuple(one.value for one in AcknowledgeType)

log = logging.getLogger("quorumq.brokers")


class QuorumqBroker(AsyncBroker):
    """A broker of Taskiq.

    Labels of a task: ``delay`` and ``ttl`` in seconds; ``queue_name`` is another topic to publish it to.

    Args:
        nodes: "host:port" of some nodes; QUORUMQ_NODES of the environment if None.
        topic: topic of the tasks. It is created if it is not there.
        group: group of the workers. Another group gets each task as well.
        hold_time: seconds for which a task stays with a worker that was killed; 30 if None.
        max_deliveries: deliveries until a task that ends its workers is a dead letter; the topic's if None.
        client: a connected client to use, which is not closed.
        options: as of `quorumq.client.connect`.
    """

    def __init__(
        self,
        nodes: str | Sequence[str] | None = None,
        *,
        topic: str = TOPIC,
        group: str = GROUP,
        hold_time: Duration | None = None,
        max_deliveries: int | None = None,
        client: Client | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        self.topic = topic
        self.group = group
        self.hold_time = hold_time
        self.max_deliveries = max_deliveries
        self._nodes, self._options = nodes, options
        self._given = client
        self._client: Client | None = client
        self._consumers: list[Consumer] = []
        self._in_hand: dict[Message, None] = {}
        self._rejecting: set[asyncio.Future[None]] = set()

    @property
    def client(self) -> Client:
        """The client, once the broker is started."""
        if self._client is None:
            raise UsageError("the broker is not started: await broker.startup() before tasks are sent")
        return self._client

    async def startup(self) -> None:
        """Connect, and create topic and group.

        Raises:
            Conflict: the topic is there with another ``max_deliveries``.
            TooFewReplicas: no node could be reached.
        """
        if self._client is None:
            self._client = await Client.open(self._nodes, **self._options)
        await self._create(self.topic)
        await super().startup()

    async def _create(self, topic: str) -> None:
        await self.client.create_topic(topic, max_deliveries=self.max_deliveries)
        if topic == self.topic:  # workers of another one may have another group
            await self.client.create_group(topic, self.group)

    async def shutdown(self) -> None:
        """Give back the tasks that are not acked, and close the client.

        A worker cancels this after its ``--shutdown-timeout``. All is given back also then, and if a middleware or a
        result backend fails.
        """
        try:
            await super().shutdown()
        finally:
            client, self._client = self._client, self._given
            if client is not None:
                await completed(self._end(client))

    async def _end(self, client: Client) -> None:
        try:
            await self._give_back(client)
        finally:
            if client is not self._given:
                await client.close()

    async def _give_back(self, client: Client) -> None:
        consumers, self._consumers = self._consumers, []
        for consumer in consumers:
            await drain(consumer)  # first: else it would fetch again what is given back below
        rest = list(self._in_hand)
        self._in_hand.clear()
        try:
            if rest:
                await client.reject(rest, interrupted=True, timeout=LAST_WORD_S)
        except QuorumqError as error:
            warn_of_rest(len(rest), error)
        for consumer in consumers:
            await consumer.close()

    def _register_task(self, task_name: str, task: AsyncTaskiqDecoratedTask[Any, Any]) -> None:
        """Register a task when it is declared.

        Raises:
            UsageError: if `check_labels` refuses a label.
        """
        if isinstance(kind := task.labels.get("ack_type"), AcknowledgeType):
            task.labels["ack_type"] = kind.value  # Taskiq sends the text of labels, which is another one here
        check_labels(task_name, task.labels)
        super()._register_task(task_name, task)

    async def kick(self, message: BrokerMessage) -> None:
        """Publish a task. When this returns, a majority has it on disk.

        Raises:
            UsageError: if `check_labels` refuses a label.
            NotStored, OutcomeUnknown: as `Client.publish` does.
        """
        labels = message.labels
        check_labels(message.task_name, labels)
        topic = labels.get("queue_name") or self.topic
        publish = partial(
            self.client.publish,
            topic,
            message.message,
            headers={"task": message.task_name, "id": message.task_id},
            delay=seconds_of("delay", message.task_name, labels),
            ttl=seconds_of("ttl", message.task_name, labels),
        )
        try:
            await publish()
        except NotFound:  # it is another queue's, or was deleted
            await self._create(topic)
            await publish()

    async def listen(self) -> AsyncGenerator[AckableMessage, None]:
        """Yield tasks, each with the function that acks it."""
        consumer = self.client.consumer(
            self.topic,
            self.group,
            hold_time=self.hold_time,
            max_unsettled=UNSETTLED_MAX,
            max_extend=math.inf,
            timeout=math.inf,
        )
        await consumer.open()
        self._consumers.append(consumer)
        turning = asyncio.create_task(turn())
        try:
            async for message in consumer:
                self._in_hand[message] = None
                if (error := self._fault_of(message)) is not None:
                    log.error("message %s becomes a dead letter: %s", message.id, error)
                    await self._settle(message, partial(message.dead_letter, error))
                    continue
                yield Delivered(data=message.payload, ack=Ack(self, message))
        finally:
            turning.cancel()
            # Tasks that run keep their holds until `shutdown`.
            await drain(consumer)

    def _fault_of(self, message: Message) -> Exception | None:
        """Return the reason if a message can be no task here, else None. Taskiq would ack it, and log a warning."""
        try:
            name = self.formatter.loads(message=message.payload).task_name
        except Exception as error:
            return error
        if self.find_task(name) is None:
            return LookupError(f"no task {name!r} is known to this worker: have it import the task's module")
        return None

    async def _ack(self, message: Message) -> None:
        await self._settle(message, message.ack)
        if message.outcome is Outcome.ACKED_AFTER_EXPIRY:
            text = "task %s (%s) was acked after its hold had run out: another worker may have run it as well"
            log.warning(text, message.headers.get("id"), message.headers.get("task"))

    def _ended(self, message: Message, task: asyncio.Task[Any]) -> None:
        """Reject a message if its task has failed before the ack, as when a middleware has. Nothing else settles it."""
        error = None if task.cancelled() else task.exception()
        if error is not None and message in self._in_hand:
            text = "task %s has failed outside of its function, and comes again"
            log.error(text, message.headers.get("id"), exc_info=error)
            rejecting = asyncio.ensure_future(self._settle(message, message.reject))
            self._rejecting.add(rejecting)
            rejecting.add_done_callback(self._rejecting.discard)

    async def _settle(self, message: Message, call: Callable[[], Awaitable[object]]) -> None:
        while True:  # its hold is extended meanwhile
            try:
                await call()
                break
            except QuorumqError as error:
                name = message.headers.get("id")
                if not is_passing(error, message):
                    log.warning("task %s could not be settled, and may come again: %s", name, error)
                    break
                log.warning("task %s is not settled yet: %s", name, error)
                await asyncio.sleep(ACK_PAUSE_S)
        self._in_hand.pop(message, None)


class Ack:
    """Function that acks one message."""

    def __init__(self, broker: QuorumqBroker, message: Message) -> None:
        self.broker, self.message = broker, message

    async def __call__(self) -> None:
        await self.broker._ack(self.message)


class Delivered(AckableMessage):
    """A message that knows the asyncio task that works on it: the one that asks for ``ack``."""

    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        if name == "ack" and (task := asyncio.current_task()) is not None:
            task.add_done_callback(partial(value.broker._ended, value.message))
        return value


async def turn() -> None:
    """Have the event loop turn. A loop without timers would not see the event that Taskiq's handler of SIGTERM sets."""
    while True:
        await asyncio.sleep(TURN_S)


async def completed(work: Coroutine[Any, Any, None]) -> None:
    """Await ``work`` until it has ended, and raise a cancellation only then."""
    task = asyncio.create_task(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await task
        raise


async def drain(consumer: Consumer) -> None:
    """Have a consumer give back the messages that it has not handed over."""
    try:
        await consumer.drain()
    except Closed:
        log.debug("the client was closed before its consumer")


def check_labels(task: str, labels: Mapping[str, Any]) -> None:
    """Refuse labels if the cluster or a worker cannot keep to them.

    Args:
        task: name of the task.
        labels: as they are sent, or as the task is declared with.

    Raises:
        UsageError: one is a priority, an unknown ack_type, no number of seconds, or a queue that cannot be.
    """
    if "priority" in labels:
        raise UsageError(f"task {task!r} has a priority, and {PRIORITY}")
    ack_type = labels.get("ack_type")
    if ack_type is not None and str(ack_type).lower() not in ACK_TYPES:
        text = f"label ack_type of task {task!r} is {str(ack_type)!r}"
        raise UsageError(f"{text}: give one of {', '.join(ACK_TYPES)}, as text")
    for label in ("delay", "ttl"):
        seconds_of(label, task, labels)
    queue = labels.get("queue_name")
    if queue and (error := check_topic_name(str(queue))):
        raise UsageError(f"label queue_name of task {task!r} cannot be: {error}")


def seconds_of(label: str, task: str, labels: Mapping[str, Any]) -> float | None:
    """Return a label as seconds, or None if the task has none.

    Raises:
        UsageError: it is no number.
    """
    value = labels.get(label)
    if value is None:
        return None
    try:
        return float(value)
    except (TypeError, ValueError):
        raise UsageError(f"label {label} of task {task!r} is {value!r}: give seconds") from None
