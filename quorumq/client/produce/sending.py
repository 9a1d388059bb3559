"""Sending of a producer's batches to a node: sessions and requests."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Final, NamedTuple

import trio

from quorumq.client.base.context import Context
from quorumq.client.produce.batches import DerivedBatch, RecordBatch
from quorumq.client.transport.nodes import left_of
from quorumq.core import messages as m
from quorumq.core.values.errors import BadReceipt, Conflict, QuorumqError, SessionClosed
from quorumq.core.values.limits import SESSION_IDLE_S
from quorumq.core.values.printable import plural
from quorumq.core.values.types import Batch, PartitionId, ProducerId

ENDED: Final = (SessionClosed, BadReceipt)
"""Errors of a session that no node takes any more: it was idle, or was signed with a secret that was changed since."""

CLOSE_WAIT_S: Final = 1.0
"""Seconds that a producer that ends waits until the cluster has heard that its session is over."""

SESSION_S: Final = SESSION_IDLE_S / 2
"""Seconds for which a session numbers: nodes close one without a batch in a partition for twice that time, and refuse
the next batch. One message a day must not mean one failed publish a day."""


class Session:
    """Producer id under which a producer numbers its messages."""

    def __init__(self, context: Context) -> None:
        self.producer_id: ProducerId | None = None
        self.signature = b""
        self._context = context
        self._until = 0.0  # by the client's clock, which counts while the machine is suspended

    @property
    def is_needed(self) -> bool:
        """Return True if there is no session, or one that is too old to number by."""
        return self.producer_id is None or self._context.clock() >= self._until

    async def open(self, timeout: float) -> None:
        """Open one; raises as any request does."""
        until = self._context.clock() + SESSION_S
        opened = await self._context.ask(m.OpenSession(), "open a session", timeout, writes=True)
        self.producer_id, self.signature, self._until = opened.producer_id, opened.signature, until

    async def close(self, used: Sequence[PartitionId]) -> None:
        """End the session: nothing more is sent under our producer id, so the cluster need not keep it for ever.

        Nothing depends on it: a session that is not closed is closed when it has been idle for a day (docs/protocol.md,
        RECLAIM).

        Args:
            used: partitions in which it numbered anything; all of that is confirmed.
        """
        assert self.producer_id is not None
        request = m.CloseSession(self.producer_id, tuple(used), self.signature)
        self.producer_id = None
        with trio.move_on_after(CLOSE_WAIT_S), contextlib.suppress(QuorumqError):
            await self._context.ask(request, "close a session", CLOSE_WAIT_S, writes=True)


class Sender(NamedTuple):
    """Sender of batches to one topic, each until it has its outcome."""

    context: Context
    topic: str  # its name
    timeout: float  # seconds for one batch

    async def send(self, record_batch: RecordBatch) -> None:
        """Publish one batch, again and again if need be; raises why it was given up.

        A batch of derived messages is cut in two if some are refused, and these again, so that one that is
        refused takes no others with it: why is in ``record_batch.refused``.
        """
        if isinstance(record_batch, DerivedBatch):
            if self.context.history is not None:
                self.context.history.derived(record_batch.outputs(self.topic))
            await self._publish_derived(record_batch, record_batch.in_order())
        else:
            assert record_batch.batch is not None
            await self._publish(record_batch, record_batch.batch)

    async def _publish(self, record_batch: RecordBatch, batch: Batch) -> None:
        clock = self.context.clock
        header = batch.header
        await self.context.nodes.ask(
            lambda: m.Publish(
                batch, max(0, int(1000 * (clock() - record_batch.encoded_at))), record_batch.signature
            ),
            action=f"publish of {plural(header.size, 'message')} to {self.topic!r}/{header.partition.number}",
            timeout=min(self.timeout, left_of(record_batch.until)) if record_batch.timeout else self.timeout,
            writes=True,
            watch=self.context.watch("publish"),
        )

    async def _publish_derived(self, record_batch: DerivedBatch, indexes: Sequence[int]) -> None:
        try:
            await self._publish(record_batch, record_batch.packed(indexes, self.context.wall_ms()))
        except (Conflict, SessionClosed) as exc:
            if len(indexes) == 1:
                record_batch.refuse(indexes[0], exc)
                return
            half = len(indexes) // 2
            await self._publish_derived(record_batch, indexes[:half])
            await self._publish_derived(record_batch, indexes[half:])
