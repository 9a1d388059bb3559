"""Calls of the transport of kombu to a cluster: shared clients, messages in hand, names, times, and settling."""

from __future__ import annotations

import hashlib
import logging
import os
import re
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import cache, partial
from typing import Any, Final
from urllib.parse import urlsplit

from kombu.transport import virtual

from quorumq.brokers.settling import give_back, is_passing
from quorumq.client import QuorumqError, UsageError, blocking

PAUSE_S: Final = 1.0
"""Seconds between two tries to settle a message. A try has the client's timeout."""

NO_ARGUMENTS: Final = {
    "x-message-ttl": "publish with an expiration",
    "x-max-length": "watch the backlog",
    "x-max-length-bytes": "watch the backlog",
    "x-dead-letter-exchange": "each group has dead letters of its own",
    "x-max-priority": "use a queue for each priority",
    "x-single-active-consumer": "start one worker",
    "x-delivery-limit": "set max_deliveries of broker_transport_options",
}
"""Arguments of queues that limit, expire or move messages, with remedies."""

log = logging.getLogger("quorumq.brokers")


class Shared:
    """Clients of this process, one for each cluster, closed with the last transport that uses them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._clients: dict[Any, tuple[blocking.Client, int]] = {}

    def take(self, nodes: tuple[str, ...], options: dict[str, Any]) -> tuple[Any, blocking.Client]:
        """Return a key for `release`, and a connected client."""
        key = (nodes, tuple(sorted(options.items())))
        with self._lock:
            client, users = self._clients.get(key) or (blocking.Client.open(nodes or None, **options), 0)
            self._clients[key] = client, users + 1
        return key, client

    def release(self, key: Any) -> None:
        """Close a client unless another transport uses it."""
        with self._lock:
            client, users = self._clients.pop(key)
            if users > 1:
                self._clients[key] = client, users - 1
        if users == 1:
            client.close()


SHARED = Shared()
# A forked process of a pool has none of the threads that clients need, and perhaps a lock that one of them holds.
os.register_at_fork(after_in_child=lambda: SHARED.__init__())  # type: ignore[misc]


class QoS(virtual.QoS):
    """Messages in the hands of a channel, and their deliveries."""

    channel: Any

    def __init__(self, channel: Any, prefetch_count: int = 0) -> None:
        super().__init__(channel, prefetch_count)
        self.delivered: dict[str, blocking.Message] = {}

    def ack(self, delivery_tag: str) -> None:
        """Ack a message for good."""
        self._settle(delivery_tag, lambda message: message.ack)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Reject a message: it is redelivered after the topic's backoff if ``requeue``, else a dead letter."""
        if requeue:
            self._settle(delivery_tag, lambda message: message.reject)
        else:
            self._settle(delivery_tag, lambda message: partial(message.dead_letter, reason="rejected"))

    def restore_unacked(self) -> list[Any]:
        """Give back all messages in hand, in one call. That counts no attempt.

        Returns:
            errors as kombu counts them: none, as the messages are redelivered in any case.
        """
        rest, self.delivered = [*self.delivered.values()], {}
        self._delivered.clear()
        self._dirty.clear()
        if self.channel.is_mine:
            give_back(self.channel.client, rest)
            self.channel.changed()
        return []

    def has_capacity(self) -> bool:
        """Return True if one more message may be handed over, after the present one."""
        in_hand = len(self._delivered) - len(self._dirty) + (self.channel.connection.handing is self.channel)
        return not self.prefetch_count or in_hand < self.prefetch_count

    def _settle(self, tag: str, call_of: Callable[[blocking.Message], Callable[[], object]]) -> None:
        message = self.delivered.pop(tag, None)
        if message is not None and self.channel.is_mine:
            settle(message, call_of(message))
        self._quick_ack(tag)
        self.channel.changed()


def nodes_of(client: Any) -> tuple[str, ...]:
    """Return the addresses in the URLs of a connection, its own first; none if they name no host.

    Raises:
        UsageError: a URL has no port.
    """
    urls = [str(url) for url in client.alt or ()]
    others = (urlsplit(url if "://" in url else f"//{url}") for url in urls)
    pairs = [(client.hostname, client.port), *((url.hostname, url.port) for url in others)]
    for host, port in pairs:
        if host and not port:
            raise UsageError(
                f"the broker URL names the host {host!r} without a port: write quorumq://{host}:7401"
            )
    addresses = (f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in pairs if host)
    return tuple(dict.fromkeys(addresses))


def check_arguments(queue: str, arguments: dict[str, Any] | None) -> None:
    """Refuse a queue if one of its arguments would limit, expire or move messages.

    Raises:
        UsageError: it has one; names the argument, and the remedy.
    """
    for name, remedy in NO_ARGUMENTS.items():
        if name in (arguments or {}):
            raise UsageError(
                f"queue {queue!r} has {name}, which quorumq:// does not: leave it out, and {remedy}"
            )


@cache
def warn_of_options(unknown: tuple[str, ...]) -> None:
    """Log transport options that have no effect, once in a process."""
    if unknown:
        log.warning("transport options without effect on quorumq://: %s", ", ".join(unknown))


def certified_by(client: Any, tls_ca: str | None) -> str | None:
    """Return the file of authorities that a connection of kombu asks for, or None for the client's own rule.

    Raises:
        UsageError: it asks for TLS, and names no file.
    """
    ssl = client.ssl
    named = ssl.get("ca_certs") or ssl.get("ssl_ca_certs") if isinstance(ssl, dict) else None
    if ssl and not (tls_ca or named):
        raise UsageError(
            f"broker_use_ssl is {ssl!r}, and names no authorities: set broker_transport_options = "
            "{'tls_ca': 'ca.pem'}, a file of the certificates that sign those of the nodes"
        )
    return tls_ca or named


def topic_name(name: str) -> str:
    """Return the name of a topic for a name of kombu, which may have any characters."""
    plain = re.sub(r"[^A-Za-z0-9._-]", "_", name)[:150]
    return plain if plain == name else f"{plain}.{hashlib.sha256(name.encode()).hexdigest()[:12]}"


def delay_of(message: dict[str, Any]) -> float | None:
    """Return the seconds until the ETA of a task, or None if it has none, or it is past."""
    text: Any = (message.get("headers") or {}).get("eta")
    try:
        eta = datetime.fromisoformat(text)
    except (TypeError, ValueError):
        return None  # the worker names what is wrong
    eta = eta if eta.tzinfo is not None else eta.replace(tzinfo=UTC)
    seconds = (eta - datetime.now(UTC)).total_seconds()
    return seconds if seconds > 0 else None


def ttl_of(message: dict[str, Any]) -> float | None:
    """Return the seconds after which a message expires, or None if it does not.

    If a task has ``expires``, its message has none, though Celery sets an expiration as well: if the message expired,
    no worker would revoke the task, and its caller would wait for the result for ever.
    """
    milliseconds = message["properties"].get("expiration")
    has_expires = (message.get("headers") or {}).get("expires") is not None
    return None if milliseconds is None or has_expires else int(milliseconds) / 1000


def settle(message: blocking.Message, call: Callable[[], object]) -> None:
    """Settle a message, if it is still this worker's. If nodes do not answer, a thread goes on trying."""
    if not is_settled(message, call):
        thread = threading.Thread(target=insist, args=(message, call), name="quorumq settles", daemon=True)
        thread.start()


def insist(message: blocking.Message, call: Callable[[], object]) -> None:
    """Settle a message whose task is done: its hold is extended meanwhile."""
    while not is_settled(message, call):
        time.sleep(PAUSE_S)


def is_settled(message: blocking.Message, call: Callable[[], object]) -> bool:
    """Try to settle a message. Return False if that is to be tried again: settled twice is settled once."""
    try:
        call()
    except QuorumqError as error:
        if is_passing(error, message):
            log.warning("%r is not settled yet: %s", message, error)
            return False
        log.warning("%r could not be settled, and may come again: %s", message, error)
    return True
