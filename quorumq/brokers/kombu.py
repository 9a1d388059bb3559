"""A transport of kombu, for Celery: a queue is a topic, and all workers are consumers of one group.

Importing this module makes ``quorumq://`` known to kombu. A task with an ETA waits in the cluster, and not in the
memory of a worker. A message's hold is extended for as long as its task runs.

An exchange whose messages go to queues that their publishers do not know (fanout, events, replies of remote control) is
a topic of its own. Each queue bound to it is a group of that topic, and messages expire that no group has read.
"""

from __future__ import annotations

import hashlib
import logging
import os
import random
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from importlib.metadata import version
from queue import Empty
from typing import Any, Final

from kombu.exceptions import ChannelError, ConnectionError, OperationalError
from kombu.transport import TRANSPORT_ALIASES, virtual
from kombu.transport.base import to_rabbitmq_queue_arguments
from kombu.utils.json import dumps, loads

from quorumq.brokers.kombu_calls import (
    SHARED,
    QoS,
    certified_by,
    check_arguments,
    delay_of,
    nodes_of,
    settle,
    topic_name,
    ttl_of,
    warn_of_options,
)
from quorumq.brokers.kombu_source import Source, Waker
from quorumq.client import (
    Busy,
    Closed,
    NotFound,
    NotStored,
    OutcomeUnknown,
    TooFewReplicas,
    UsageError,
    blocking,
)
from quorumq.client.base.options import PRIORITY

TRANSPORT_ALIASES["quorumq"] = "quorumq.brokers.kombu:Transport"

GROUP: Final = "celery"
EXCHANGE: Final = "exchange."
"""Begin of the name of an exchange's topic."""
REPLIES: Final = "replies"
"""The exchange that stands for the anonymous one, to queues that their publishers have not declared."""
TRANSIENT_TTL_S: Final = 60.0
BROADCAST_TTL_S: Final = 3600.0
"""Seconds that a message to a fanout exchange waits for the queues that are bound to it."""
NAMES: Final = 10_000
"""Groups of an exchange's topic: names of groups are kept for ever, and queues of replies have names of their own."""
TIDY: Final = 3
"""Groups of ended processes that one process looks for when it binds a queue."""
UNREAD_S: Final = 30.0
"""Age in seconds of a message that a group without consumers has not read, if its process has ended."""
AT_ONCE: Final = 16
"""Messages that are handed over in one turn of an event loop."""
TRANSIENT: Final = 1
"""Delivery mode of messages that need not survive their broker."""
CONNECT: Final = ("tls_ca", "cluster_id", "timeout")
"""Transport options that are those of `quorumq.client.connect`."""

OPTIONS: Final = frozenset({
    *CONNECT, "client", "group", "hold_time", "max_deliveries", "nodes", "prefix",
    "body_encoding", "callback", "client_properties", "confirm_publish", "connect_retries_timeout", "deadletter_queue",
    "errback", "interval_max", "interval_start", "interval_step", "max_retries", "polling_interval",
})  # fmt: skip
"""Transport options: those above, and those of kombu."""

log = logging.getLogger("quorumq.brokers")


class Channel(virtual.Channel):
    """A channel of the transport."""

    QoS = QoS
    connection: Transport
    body_encoding = None  # JSON as it is: people read it in dead letters
    supports_fanout = True
    closed: bool

    def __init__(self, connection: Transport, **options: Any) -> None:
        super().__init__(connection, **options)
        self.client = connection.cluster
        self.pid = os.getpid()
        self._sources: dict[str, Source] = {}  # by consumer tag
        self._cancelled: list[Source] = []
        self._getters: dict[str, Source] = {}  # consumers by queue, used by `basic_get`
        self._tags = 0

    @property
    def is_mine(self) -> bool:
        """True in the process that made the channel, and not in one that was forked from it."""
        return self.pid == os.getpid()

    def option(self, name: str, default: Any = None) -> Any:
        return self.connection.client.transport_options.get(name, default)

    def changed(self) -> None:
        """Let the transport look again, as there may be a place for a message."""
        if self.connection is not None:
            self.connection.wake()

    # ------------------------------------------------------------------------- queues

    def source_of(self, queue: str) -> tuple[str, str]:
        """Return topic and group of a queue, which are there."""
        source = self.connection.subscriptions.get(queue)
        if source is None and queue in self.connection.transient:
            source = self._subscribe(REPLIES, queue)
        return source or self.connection.create(self.connection.topic_of(queue), self.option("group", GROUP))

    def exchange_declare(self, exchange: str | None = None, type: str | None = None, **options: Any) -> None:
        """Declare an exchange.

        Raises:
            UsageError: there are no exchanges of its type.
        """
        if type and type not in self.exchange_types:
            kinds = ", ".join(sorted(self.exchange_types))
            raise UsageError(f"exchange {exchange!r} is of type {type!r}, and quorumq:// has only {kinds}")
        super().exchange_declare(exchange, type or "direct", **options)

    def _new_queue(self, queue: str, **options: Any) -> None:
        is_transient = options.get("auto_delete") or not options.get("durable", True)
        (self.connection.transient.add if is_transient else self.connection.transient.discard)(queue)
        if not is_transient:
            check_arguments(queue, options.get("arguments"))
            self.source_of(queue)

    def prepare_queue_arguments(self, arguments: dict[str, Any], **options: Any) -> dict[str, Any]:
        """Return arguments of a queue with its options, under the names that RabbitMQ gives them."""
        prepared: dict[str, Any] = to_rabbitmq_queue_arguments(arguments, **options)
        return prepared

    def _has_queue(self, queue: str, **options: Any) -> bool:
        if queue in self.connection.transient or self.connection.is_durable(queue):
            return True
        try:
            self.client.topic(self.connection.topic_of(queue))
        except NotFound:
            return False
        return True

    def _queue_bind(self, exchange: str, routing_key: str, pattern: str | None, queue: str) -> None:
        if queue in self.connection.transient and self._is_broadcast(exchange, True):
            self._subscribe(exchange, queue)

    def _is_broadcast(self, exchange: str, is_transient: bool) -> bool:
        """Return True if publishers of an exchange do not know the queues of its messages.

        Args:
            exchange: name of the exchange.
            is_transient: True if the message, or the queue, need not survive.
        """
        known = self.state.exchanges.get(exchange, {})
        kind = known.get("type", "direct")
        return kind == "fanout" or not known.get("durable", True) or (kind == "topic" and is_transient)

    def _subscribe(self, exchange: str, queue: str) -> tuple[str, str]:
        """Return topic and group of an exchange's queue, with a group of its own that begins now."""
        if queue not in self.connection.subscriptions:
            topic, _ = self.connection.create_exchange(self.connection.topic_of(EXCHANGE + exchange))
            group = self._free_name(topic, queue)
            self.client.create_group(topic, group, start="latest")
            self.connection.subscriptions[queue] = topic, group
        return self.connection.subscriptions[queue]

    def _free_name(self, topic: str, queue: str) -> str:
        """Return the name of a group that no other process uses, and delete some whose processes have ended."""
        groups = [group.name for group in self.client.metadata(topic).groups if not group.deleted]
        used = [name for name in groups if name.startswith("q")]
        for name in random.sample(used, min(TIDY, len(used))):
            with suppress(NotFound, TooFewReplicas):
                backlog = self.client.backlog(topic, name)
                is_used = backlog.consumers or backlog.held  # one whose tasks take minutes does not fetch
                if not is_used and (backlog.oldest or 0.0) > UNREAD_S:
                    self.client.delete_group(topic, name)
        first = int(hashlib.sha256(queue.encode()).hexdigest(), 16)
        names = (f"q{(first + step) % NAMES}" for step in range(NAMES))
        free = next((name for name in names if name not in used), None)
        if free is None:
            raise OperationalError(f"{topic} has {NAMES} groups: delete those whose processes have ended")
        return free

    def _size(self, queue: str) -> int:
        if queue in self.connection.transient and queue not in self.connection.subscriptions:
            return 0  # it is declared, and not bound yet
        return int(self.client.backlog(*self.source_of(queue)).ready)

    def _purge(self, queue: str) -> int:
        if queue in self.connection.transient and queue not in self.connection.subscriptions:
            return 0
        return self.client.purge(*self.source_of(queue))

    def _delete(self, queue: str, *args: Any, **options: Any) -> None:
        """Drop a queue's messages, and the group of a queue that is bound to an exchange."""
        if queue in self.connection.subscriptions:
            self.connection.unsubscribe(queue)
        else:
            self._purge(queue)

    # -------------------------------------------------------------------- publishing

    def basic_publish(self, message: dict[str, Any], exchange: str, routing_key: str, **options: Any) -> None:
        """Publish a message. When this returns, a majority has it on disk.

        Raises:
            UsageError: it has a priority, or an ETA that is too far away; or its queue cannot get it.
            ChannelError: its exchange is not declared here.
        """
        if message["properties"].get("priority"):
            raise UsageError(f"a message to {routing_key!r} has a priority, and {PRIORITY}")
        self._inplace_augment_message(message, exchange, routing_key)
        is_transient = message["properties"].get("delivery_mode") == TRANSIENT
        if not exchange:
            if is_transient and not self.connection.is_durable(routing_key):
                return self._broadcast(REPLIES, message, TRANSIENT_TTL_S)
            return self._put(routing_key, message)
        if exchange not in self.state.exchanges:
            text = f"NOT_FOUND - no exchange {exchange!r}: declare it before a message is published to it"
            raise ChannelError(text, (60, 40), "Channel.basic_publish", "404")
        queues = self._lookup(exchange, routing_key)
        ending = [
            queue
            for queue in queues
            if queue in self.connection.subscriptions or queue in self.connection.transient
        ]
        if self._is_broadcast(exchange, is_transient):
            is_kept = self.state.exchanges[exchange]["type"] == "fanout" and not is_transient
            self._broadcast(exchange, message, BROADCAST_TTL_S if is_kept else TRANSIENT_TTL_S)
        elif ending:
            raise UsageError(
                f"queue {ending[0]!r} ends with its consumers (auto_delete, or not durable), and gets no messages of "
                f"exchange {exchange!r}, which is durable: declare the queue durable, or the exchange not durable"
            )
        elif not queues:
            raise UsageError(
                f"no queue is bound to exchange {exchange!r} with the routing key {routing_key!r}, as far as this "
                "process knows: declare the queue here too, or the message would be dropped"
            )
        for queue in queues:
            if queue not in ending:
                self._put(queue, message)
        return None

    def _put(self, queue: str, message: dict[str, Any], **options: Any) -> None:
        self._publish(lambda: self.source_of(queue)[0], message, delay=delay_of(message), ttl=ttl_of(message))

    def _broadcast(self, exchange: str, message: dict[str, Any], ttl: float) -> None:
        topic = self.connection.topic_of(EXCHANGE + exchange)
        self._publish(
            lambda: self.connection.create_exchange(topic)[0], message, ttl=min(ttl, ttl_of(message) or ttl)
        )

    def _publish(self, created: Callable[[], str], message: dict[str, Any], **options: Any) -> None:
        """Publish to a topic that ``created`` returns; once more if the topic was deleted meanwhile."""
        named = message.get("headers") or {}
        headers = {name: str(named[name]) for name in ("task", "id") if named.get(name)}
        payload = dumps(message).encode()
        topic = created()
        try:
            self.client.publish(topic, payload, headers=headers, **options)
        except NotFound:
            self.connection.discard(topic)
            self.client.publish(created(), payload, headers=headers, **options)

    # --------------------------------------------------------------------- consuming

    def basic_consume(
        self, queue: str, no_ack: bool, callback: Callable[..., Any], consumer_tag: str, **options: Any
    ) -> None:
        super().basic_consume(queue, no_ack, callback, consumer_tag, **options)
        source = self._sources[consumer_tag] = Source(self, queue, no_ack)
        # That of this consumer: kombu keeps one for each queue, and another channel may consume it too.
        source.hand_over = self.connection._callbacks[queue]
        source.start()

    def basic_qos(self, prefetch_size: int = 0, prefetch_count: int = 0, apply_global: bool = False) -> None:
        """Set the number of messages in hand, at most; 0 for any number."""
        super().basic_qos(prefetch_size, prefetch_count, apply_global)
        self.changed()

    def basic_cancel(self, consumer_tag: str) -> None:
        """Fetch no more for a consumer. Its messages in hand stay."""
        super().basic_cancel(consumer_tag)
        source = self._sources.pop(consumer_tag, None)
        if source is not None and self.is_mine:
            source.stop()
            self._cancelled.append(source)

    def take(self) -> tuple[Source, blocking.Message] | None:
        """Return the next buffered message, if the channel may have it.

        Raises:
            ConnectionError: a consumer has ended by an error, as that its group was deleted.
        """
        for tag, source in list(self._sources.items()):
            if source.error is not None:
                raise ConnectionError(str(source.error)) from source.error
            if source.message is not None and self.qos.has_capacity():
                message, source.message = source.message, None
                self._sources[tag] = self._sources.pop(tag)  # the last one next time
                return source, message
        return None

    def payload_of(self, source: Source, message: blocking.Message) -> dict[str, Any] | None:
        """Return a delivered message as kombu has it, or None if there is nothing to hand over."""
        try:
            payload: dict[str, Any] = loads(message.payload)
            properties = payload["properties"]
            delivery = properties["delivery_info"]
        except Exception as error:
            log.warning("message %s is none of kombu, and becomes a dead letter", message.id)
            settle(message, partial(message.dead_letter, error))
            return None
        if source.no_ack or not self._is_bound(source.queue, delivery):
            settle(message, message.ack)
            return payload if source.no_ack and self._is_bound(source.queue, delivery) else None
        self._tags += 1
        properties["delivery_tag"] = f"{self.channel_id}.{self._tags}"
        delivery["redelivered"] = message.attempt > 1
        self.qos.delivered[properties["delivery_tag"]] = message
        return payload

    def _is_bound(self, queue: str, delivery: dict[str, Any]) -> bool:
        """Return True if a message is for a queue: every group of an exchange gets all messages."""
        if queue not in self.connection.subscriptions:
            return True
        exchange, key = delivery["exchange"], delivery["routing_key"]
        if not exchange:
            return bool(key == queue)
        return queue in self.typeof(exchange).lookup(self.get_table(exchange), exchange, key, None)

    def _get(self, queue: str, timeout: float | None = None) -> dict[str, Any]:
        source = self._getters.get(queue) or self._getters.setdefault(queue, Source(self, queue, False))
        message = source.get()
        payload = None if message is None else self.payload_of(source, message)
        if payload is None:
            raise Empty
        return payload

    def basic_get(self, queue: str, no_ack: bool = False, **options: Any) -> virtual.Message | None:
        """Return the next message of a queue, or None if there is none within a second."""
        message = super().basic_get(queue, no_ack=no_ack, **options)
        if message is not None and no_ack:
            self.qos.ack(message.delivery_tag)
        return message

    def _restore_at_beginning(self, message: virtual.Message) -> None:
        self.qos.reject(message.delivery_tag, requeue=True)

    def close(self) -> None:
        """Give back messages in hand, and end the consumers. Queues end that end with their consumers."""
        if self.closed:
            return
        if not self.is_mine:
            self.closed = True
            return
        connection = self.connection
        sources = dict.fromkeys([*self._sources.values(), *self._getters.values(), *self._cancelled])
        for tag in list(self._sources):
            self.basic_cancel(tag)
        for source in self._getters.values():
            source.stop()
        self.qos.restore_unacked()  # after that: a FETCH that is parked would take them
        super().close()
        for source in sources:
            source.close()
            connection.unsubscribe(source.queue)


class Transport(virtual.Transport):
    """Transport of kombu to a cluster of quorumq.

    URL: ``quorumq://[:token@]host:port[/prefix]``; more than one separated by ";". Without a host the nodes are those
    of QUORUMQ_NODES. Transport options: ``nodes``, ``group``, ``prefix``, ``hold_time``, ``max_deliveries``;
    ``tls_ca``, ``cluster_id`` and ``timeout`` of the client; ``client``, a connected client, which is not closed.
    """

    Channel = Channel
    driver_type = "quorumq"
    driver_name = "quorumq"
    default_port = None
    polling_interval = None
    connection_errors = (*virtual.Transport.connection_errors, TooFewReplicas, NotStored, Busy, Closed)
    implements = virtual.Transport.implements.extend(
        asynchronous=True, exchange_type=frozenset(["direct", "topic", "fanout"])
    )

    def __init__(self, client: Any, **options: Any) -> None:
        super().__init__(client, **options)
        warn_of_options(tuple(sorted(set(client.transport_options) - OPTIONS)))
        self.changed = threading.Condition()  # a message was received, or there is capacity for one
        self.handing: Channel | None = None  # channel that a message is being handed over to
        self.waker = Waker()
        self.transient: set[str] = set()  # queues that end with their consumers
        self.subscriptions: dict[str, tuple[str, str]] = {}  # topic and group of a queue of an exchange
        self._created: dict[str, tuple[str, str]] = {}  # topics, with the group of each
        self._key: Any = None
        self._cluster: blocking.Client | None = None
        self._pid = 0  # process that has the client
        self._lock = threading.Lock()

    @property
    def prefix(self) -> str:
        """Begin of the names of all topics: the URL's path."""
        host = (self.client.virtual_host or "").strip("/")
        return str(self.client.transport_options.get("prefix", f"{host}." if host else ""))

    @property
    def cluster(self) -> blocking.Client:
        """The client, connected."""
        given: blocking.Client | None = self.client.transport_options.get("client")
        if given is not None:
            return given
        with self._lock:
            if self._cluster is None or self._pid != os.getpid():
                options = {
                    name: value for name, value in self.client.transport_options.items() if name in CONNECT
                }
                if self.client.password:
                    options["token"] = self.client.password
                if tls_ca := certified_by(self.client, options.get("tls_ca")):
                    options["tls_ca"] = tls_ca
                self._key, self._cluster = SHARED.take(self._nodes(), options)
                self._pid = os.getpid()
            return self._cluster

    def _nodes(self) -> tuple[str, ...]:
        given = self.client.transport_options.get("nodes") or nodes_of(self.client)
        return (given,) if isinstance(given, str) else tuple(given)

    def is_durable(self, queue: str) -> bool:
        """Return True if a queue was declared here, and outlives its consumers."""
        return self.topic_of(queue) in self._created and queue not in self.transient

    def topic_of(self, name: str) -> str:
        """Return the name of the topic of a queue, or of an exchange with `EXCHANGE` before it."""
        return topic_name(self.prefix + name)

    def create(self, topic: str, group: str, **settings: Any) -> tuple[str, str]:
        """Create a topic and a group of it, if they are not there, and return both."""
        if topic not in self._created:
            settings.setdefault("max_deliveries", self.client.transport_options.get("max_deliveries"))
            self.cluster.create_topic(topic, **settings)
            self.cluster.create_group(topic, group)
            self._created[topic] = topic, group
        return self._created[topic]

    def discard(self, topic: str) -> None:
        """Create a topic anew when it is used next."""
        self._created.pop(topic, None)

    def create_exchange(self, topic: str) -> tuple[str, str]:
        """Create the topic of an exchange, with a group without consumers, so that messages expire without a queue."""
        return self.create(topic, "unread", on_expiry="drop", max_deliveries=None)

    def unsubscribe(self, queue: str) -> None:
        """Delete the group of a queue that is bound to an exchange; other queues stay."""
        subscription = self.subscriptions.pop(queue, None)
        if subscription is not None:
            self.state.queue_bindings_delete(queue)
            with suppress(NotFound, TooFewReplicas, OutcomeUnknown, Closed):
                self.cluster.delete_group(*subscription)

    def close_connection(self, connection: Any) -> None:
        """Close all channels, and the client unless others use it."""
        super().close_connection(connection)
        self.waker.detach()
        if self._pid in (0, os.getpid()):
            for queue in list(self.subscriptions):
                self.unsubscribe(queue)
        with self._lock:
            key, self._key, self._cluster = self._key, None, None
        if key is not None:
            with suppress(KeyError):  # another process took it, and forked this one
                SHARED.release(key)

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        """Hand messages over in an event loop of kombu.

        Celery's worker then answers remote control while its processes are all busy. Without an event loop it blocks on
        the next task until one of them is idle.
        """
        self.waker.attach(loop, self.on_readable)
        self.wake()

    def on_readable(self) -> None:
        """Hand over some buffered messages, at most `AT_ONCE`."""
        self.waker.clear()
        with suppress(TimeoutError):
            for _ in range(AT_ONCE):
                self.drain_events(None, timeout=0.0)
            self.wake()  # for the rest, when others in the loop have had their turn

    def wake(self) -> None:
        """Have threads and the event loop look again."""
        with self.changed:
            self.changed.notify_all()
        self.waker.wake()

    def drain_events(self, connection: Any, timeout: float | None = None) -> None:
        """Hand over one message.

        Raises:
            TimeoutError: no message within ``timeout`` seconds.
        """
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            with self.changed:
                arrived = self._take()
                while arrived is None:
                    remaining = None if end is None else end - time.monotonic()
                    if remaining is not None and remaining <= 0:
                        raise TimeoutError
                    self.changed.wait(remaining)
                    arrived = self._take()
                self.handing, source, message = arrived
                self.changed.notify_all()
            try:
                payload = self.handing.payload_of(source, message)
                if payload is not None:
                    source.hand_over(payload)
                    return
            finally:
                with self.changed:
                    self.handing = None
                    self.changed.notify_all()

    def _take(self) -> tuple[Any, Source, blocking.Message] | None:
        for channel in list(self.channels):
            taken = channel.take()
            if taken is not None:
                self.channels.append(self.channels.pop(self.channels.index(channel)))
                return channel, *taken
        return None

    def driver_version(self) -> str:
        return version("quorumq")


__all__ = ["Channel", "QoS", "Transport"]
