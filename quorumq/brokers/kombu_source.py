"""Consumer of one queue for one channel of kombu, and the thread that waits for its messages.

The thread asks for a message only if the channel has capacity for one. Otherwise each queue of a worker would keep one
message more than its prefetch count from other workers, behind a task that may take hours.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from quorumq.client import Closed, blocking
from quorumq.client.consume.consumer import PREFETCH
from quorumq.client.consume.fetching import give_back

GET_S: Final = 1.0
"""Seconds that `basic_get` waits for a message."""
TURN_S: Final = 1.0
"""Longest seconds between two looks of a reader at its end."""
KEEP_S: Final = 1.0
"""Seconds that a message waits if one of another queue has used the capacity that it was fetched for."""

WAKES: Final = 4096
"""Bytes that are read at once."""


class Source:
    """Consumer of one queue for one channel.

    Attributes:
        hand_over: called with each payload.
    """

    def __init__(self, channel: Any, queue: str, no_ack: bool) -> None:
        self.channel, self.queue, self.no_ack = channel, queue, no_ack
        self.message: blocking.Message | None = None
        self.error: Exception | None = None
        self.hand_over: Callable[[dict[str, Any]], object]
        self._changed, self._wake = channel.connection.changed, channel.connection.wake
        self._stopped = False
        topic, group = channel.source_of(queue)
        self.consumer: blocking.Consumer = channel.client.consumer(
            topic,
            group,
            hold_time=channel.option("hold_time"),
            prefetch=channel.qos.prefetch_count or PREFETCH,
            max_extend=math.inf,
            timeout=math.inf,
        )
        # Like a pool of workers: rights may be granted again, and a deleted topic may be created again.
        self.consumer.inner.expects_topics = True
        self.consumer.open()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._read, name=f"quorumq {self.queue}", daemon=True)
        self._thread.start()

    def get(self) -> blocking.Message | None:
        """Return a message, or None if there is none within `GET_S`."""
        return self.consumer.next(timeout=GET_S)

    def _read(self) -> None:
        while self._has_capacity():
            message: blocking.Message | None = None
            try:
                message = self.consumer.next(timeout=TURN_S)
            except Exception as error:
                if not self._stopped:
                    self._stopped, self.error = True, error
            with self._changed:
                if not self._stopped:
                    self.message, message = message, None
                self._wake()
                self._changed.wait_for(self._is_over, KEEP_S)
                if self.message is not None and not self.channel.qos.has_capacity():
                    self.message, message = None, self.message
            self._give_back(message)

    def _has_capacity(self) -> bool:
        """Wait until the channel has capacity for a message. Return False if the consumer is stopped."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._stopped or (self.message is None and self.channel.qos.has_capacity())
            )
        return not self._stopped

    def _is_over(self) -> bool:
        return self.message is None or self._stopped

    def _give_back(self, message: blocking.Message | None) -> None:
        """Give a message back if it was fetched after the consumer's stop, or if the channel had no capacity."""
        if message is not None:
            with suppress(Closed):
                release(self.channel.client, self.consumer, message)

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


class Waker:
    """A pipe by which threads wake an event loop of kombu."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pipe: tuple[int, int] | None = None  # for reading and for writing
        self._loop: Any = None
        self._pid = os.getpid()

    def attach(self, loop: Any, callback: Callable[[], object]) -> None:
        """Have a loop call ``callback`` after each `wake`, until `detach`."""
        self.detach()
        self._pipe, self._loop, self._pid = os.pipe(), loop, os.getpid()
        for end in self._pipe:
            os.set_blocking(end, False)
        loop.add_reader(self._pipe[0], callback)

    def detach(self) -> None:
        """Call nothing any more. A forked process leaves the loop alone, which it shares with its parent."""
        if self._pid != os.getpid():
            return
        with self._lock:
            pipe, self._pipe = self._pipe, None
            if pipe is not None:
                self._loop.remove(pipe[0])
                for end in pipe:
                    os.close(end)

    def wake(self) -> None:
        """Wake the loop, if there is one."""
        with self._lock, suppress(BlockingIOError):  # full of bytes that wake it
            if self._pipe is not None:
                os.write(self._pipe[1], b"\0")

    def clear(self) -> None:
        """Read the bytes of all calls of `wake` so far."""
        with suppress(BlockingIOError):
            if self._pipe is not None:
                os.read(self._pipe[0], WAKES)


def release(client: blocking.Client, consumer: blocking.Consumer, message: blocking.Message) -> None:
    """Give back a message that nothing was done with. It counts neither as an attempt nor as an interruption."""

    async def call() -> None:
        consumer.inner.settled([message.inner])
        await give_back(client.inner.context, [message.inner.receipt])

    client.portal.call(call)
