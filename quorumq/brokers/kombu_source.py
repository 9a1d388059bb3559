"""Consumer of one queue for one channel of kombu, and the thread that waits for its messages.

The thread asks for a message only while the channel has a place for one. Else each queue of a worker would keep one
message more than its prefetch count from other workers, behind a task that may take hours.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from quorumq.client import Closed, blocking
from quorumq.client.consume.consumer import PREFETCH
from quorumq.client.consume.fetching import give_back

if TYPE_CHECKING:
    from quorumq.brokers.kombu import Channel

GET_S: Final = 1.0
"""Seconds that `basic_get` waits for a message."""
TURN_S: Final = 1.0
"""Longest seconds between two looks of a reader at its end."""
KEEP_S: Final = 1.0
"""Seconds that a message waits for a place if one of another queue took the last one."""


class Source:
    """Consumer of one queue for one channel.

    Args:
        channel: the channel.
        queue: the queue's name.
        no_ack: True if messages are acked when they are handed over.

    Attributes:
        message: the next one to hand over.
        error: what ended the thread.
        hand_over: called with each payload.
    """

    def __init__(self, channel: Channel, queue: str, no_ack: bool) -> None:
        self.channel, self.queue, self.no_ack = channel, queue, no_ack
        self.message: blocking.Message | None = None
        self.error: Exception | None = None
        self.hand_over: Callable[[dict[str, Any]], object]
        self._changed = channel.connection.changed
        self._stopped = False
        topic, group = channel.source_of(queue)
        self.consumer = channel.client.consumer(
            topic,
            group,
            hold_time=channel.option("hold_time"),
            prefetch=channel.qos.prefetch_count or PREFETCH,
            max_extend=math.inf,
            timeout=math.inf,
        )
        self.consumer.open()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._read, name=f"quorumq {self.queue}", daemon=True)
        self._thread.start()

    def get(self) -> blocking.Message | None:
        """Return a message if one comes within a second."""
        return self.consumer.next(timeout=GET_S)

    def _read(self) -> None:
        while self._has_place():
            message: blocking.Message | None = None
            try:
                message = self.consumer.next(timeout=TURN_S)
            except Exception as error:
                if not self._stopped:
                    self._stopped, self.error = True, error
            with self._changed:
                if not self._stopped:
                    self.message, message = message, None
                self._changed.notify_all()
                self._changed.wait_for(self._is_over, KEEP_S)
                if self.message is not None and not self.channel.qos.has_place():
                    self.message, message = None, self.message
            self._give_back(message)

    def _has_place(self) -> bool:
        """Wait until the channel has a place for a message. Return False if the consumer is stopped."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._stopped or (self.message is None and self.channel.qos.has_place())
            )
        return not self._stopped

    def _is_over(self) -> bool:
        return self.message is None or self._stopped

    def _give_back(self, message: blocking.Message | None) -> None:
        """Give back a message that came while the consumer was stopped, or the channel had no place. Counts nothing."""
        if message is not None:
            with suppress(Closed):
                leave(self.channel.client, self.consumer, message)

    def stop(self) -> None:
        """Fetch no more. Messages in hand keep their holds until `close`."""
        with self._changed:
            self._stopped = True
            message, self.message = self.message, None
            self._changed.notify_all()
        self._give_back(message)
        with suppress(Closed):
            self.consumer.drain()

    def close(self) -> None:
        """Give up the messages in hand."""
        with suppress(Closed):
            self.consumer.close()


def leave(client: blocking.Client, consumer: blocking.Consumer, message: blocking.Message) -> None:
    """Give back a message that nothing was done with. That counts neither an attempt nor an interruption."""

    async def call() -> None:
        consumer.inner.settled([message.inner])
        await give_back(client.inner.context, [message.inner.receipt])

    client.portal.call(call)
