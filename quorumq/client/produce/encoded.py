"""A message that is about to be published: encoded, and its options checked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, cast

from quorumq.client.base.context import Context
from quorumq.client.base.message import MessageId, Source
from quorumq.client.base.options import Options, parts_of, refuse
from quorumq.client.base.times import Duration
from quorumq.client.produce.batches import DerivedBatch, RecordBatch, message_timeout, times_of
from quorumq.client.produce.derived import EncodedMessage, Name, window_of
from quorumq.client.produce.partitioner import Partitioner
from quorumq.core import messages as m
from quorumq.core.values.errors import UsageError
from quorumq.core.values.types import PartitionId, ProducerId, Topic
from quorumq.wire.batch import HeaderValue, encode_record


def encoded_of(
    wall_ms: Callable[[], int],
    payload: bytes | None = None,
    *,
    json: Any = ...,
    key: bytes | str | None = None,
    headers: Mapping[str, HeaderValue] | None = None,
    partition: int | None = None,
    derived_from: Source | None = None,
    index: int = 0,
    delay: Duration | None = None,
    not_before: datetime | None = None,
    ttl: Duration | None = None,
    timeout: float | None = None,
    dedup: str | None = None,
    window: Duration | None = None,
    **unknown: object,
) -> EncodedMessage:
    """Encode a message, and check its options."""
    if unknown:
        refuse("publish", unknown, ("payload", *Options.__annotations__))
    if timeout is not None:
        timeout = message_timeout(timeout)
    if not (partition is None or isinstance(partition, int)):
        raise UsageError(f"partition is {partition!r}: give its number, from 0")
    if not (derived_from is None or isinstance(getattr(derived_from, "id", None), MessageId)):
        raise UsageError(f"derived_from is {derived_from!r}: give the message that it is made from")
    if not isinstance(index, int) or not 0 <= index < 1 << 64 or (index and derived_from is None):
        raise UsageError(f"index is {index!r}: it counts the outputs of derived_from, from 0")
    if dedup is None and window is not None:
        raise UsageError("window says for how long a name is kept: give dedup=, too")
    if dedup is not None and not (derived_from is None and partition is None):
        raise UsageError(
            "dedup names the message, and decides its partition: give no derived_from and no partition"
        )
    name = None if dedup is None else Name.of(dedup)
    parts = parts_of(payload, json, key, headers)
    record = encode_record(parts)
    kept = 0 if window is None else window_of(window)
    numbered = derived_from is None and name is None
    times = None
    if not (delay is None and not_before is None and ttl is None):
        times = (delay, not_before, ttl)
        times_of(*times, wall_ms())
    return EncodedMessage(
        record, parts.key, partition, derived_from, index, times, timeout, name, kept, numbered
    )


async def found_name(context: Context, partition: PartitionId, encoded: EncodedMessage) -> ProducerId:
    """Ask for the producer id of a named message: of the window in which it was published, or else of the current one.

    It stays the same in every retry of this message.
    """
    assert encoded.name is not None
    request = m.FindName(partition, encoded.window, encoded.name.slot_of(encoded.window), encoded.name.seq)
    reply = await context.ask(request, "find a message by its name", encoded.timeout, writes=False)
    return cast("ProducerId", reply.producer_id)


async def rename(
    context: Context, batch: RecordBatch, where: PartitionId, topic: Topic | None, partitioner: Partitioner
) -> bool:
    """Name messages that are not stored for a partition of another topic.

    Returns:
        False if one of them would be in another partition there, or two would have one name.
    """
    assert isinstance(batch, DerivedBatch)
    if topic is None or any(
        encoded.partition_in(topic, partitioner) != where.number for encoded in batch.messages
    ):
        return False
    names = [
        encoded.name_in(where.topic, await found_name(context, where, encoded) if encoded.window else None)
        for encoded in batch.messages
    ]
    return batch.rename(where, names)
