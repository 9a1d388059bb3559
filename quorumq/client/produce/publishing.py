"""Publishing through the client itself: it keeps a producer for each topic."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Unpack

from quorumq.client.base.context import Calls, Context
from quorumq.client.base.message import MessageId
from quorumq.client.base.names import check_texts
from quorumq.client.base.options import Options
from quorumq.client.produce.batches import Pending
from quorumq.client.produce.producer import Producer
from quorumq.core.values.errors import NotFound, QuorumqError

PRODUCERS_MAX: Final = 64
"""Topics that `Client.publish` keeps producers to, if nothing is under way to more."""


@dataclass(eq=False)
class Kept:
    """A producer to one topic, and how many calls use it."""

    producer: Producer
    calls: int = 0


class PublishCalls(Calls):
    """The part of a client that publishes.

    Args:
        context: the client's.
        create: create topics that are not there, if the cluster has ``auto_create_topics``.
        kept_max: topics to keep producers to, if nothing is under way to more.
    """

    def __init__(self, context: Context, *, create: bool = True, kept_max: int = PRODUCERS_MAX) -> None:
        super().__init__(context)
        self._create = create
        self._kept_max = kept_max
        self._kept: dict[str, Kept] = {}  # the one used last is last

    async def publish(
        self, topic: str, payload: bytes | None = None, **options: Unpack[Options]
    ) -> MessageId:
        """Publish a message, and return once it is durable on a majority.

        Messages that many tasks publish at a time share batches. To publish many in one task, or with options of a
        producer's, see `producer`.

        Args:
            topic: its name; it is created if there is none and the cluster has ``auto_create_topics``.
            payload: the message; None if ``json`` is given.
            options: as of `Producer.send`.

        Returns:
            its id. Cancelled before it returns, the message may be stored, or become so.

        Raises:
            as `Producer.send` and `Pending.wait` do.
        """
        self.context.nodes.check_open()
        check_texts((topic,))
        kept = self._kept.pop(topic, None) or Kept(Producer(self, topic, create=self._create))
        self._kept[topic] = kept
        kept.calls += 1
        error: NotFound | None = None
        try:
            return await kept.producer.publish(payload, **options)
        except NotFound as caught:
            error = caught
            raise
        finally:
            self._let_go(topic, kept, error)

    def _publish_now(
        self, topic: str, payload: bytes | None = None, **options: Unpack[Options]
    ) -> Pending | None:
        """Publish up to the wait for nothing but the answer; None, and nothing is taken, if it would wait for more."""
        self.context.nodes.check_open()
        check_texts((topic,))
        kept = self._kept.get(topic)
        pending = None if kept is None else kept.producer._publish_now(payload, **options)
        if kept is not None and pending is not None:
            self._kept[topic] = self._kept.pop(topic)
            kept.calls += 1
            record_batch = pending._record_batch  # and not `pending`, whose end says that no caller waits
            pending._watch(lambda: self._let_go(topic, kept, record_batch.error))
        return pending

    def _let_go(self, topic: str, kept: Kept, error: QuorumqError | None) -> None:
        """Count the end of a call. Close producers that are unused and not kept."""
        kept.calls -= 1
        if isinstance(error, NotFound) and self._kept.get(topic) is kept:
            del self._kept[topic]  # a topic that is made again under this name is another one
        if kept.calls == 0 and self._kept.get(topic) is not kept:
            self.context.tasks.spawn(_close, kept.producer)
        if len(self._kept) > self._kept_max:
            idle = next((name for name, one in self._kept.items() if one.calls == 0), None)
            if idle is not None:
                self.context.tasks.spawn(_close, self._kept.pop(idle).producer)


async def _close(producer: Producer) -> None:
    with suppress(QuorumqError):  # each caller has heard of its own
        await producer.close()
