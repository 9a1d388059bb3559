"""Won messages, as slices of stored batches with a receipt for each run of messages."""

from __future__ import annotations

from typing import NamedTuple

from quorumq.core.messages import Delivery, Released, Slice
from quorumq.core.partition.replica import Replica
from quorumq.core.values.types import Owner, PartitionId, Receipt, Span


class Won(NamedTuple):
    """Messages won in one round."""

    partition: PartitionId
    span: Span
    n: int
    generation: int
    owner: Owner
    attempt: int
    expires: float  # the coordinator's deadline, monotonic seconds
    lot: int = 0  # most expired messages that may be delivered with it; 0: any others (`attempts.lot_of`)
    interruptions: int = 0  # number of interrupted deliveries before this one

    def released(self, group: str) -> Released:
        """Return them in the form in which they are given back."""
        return Released(self.partition, group, self.owner, (self.span,))


def released_of(part: Slice) -> list[Released]:
    """Return the messages that a slice delivers, in the form in which they are given back."""
    receipts = [delivery.receipt for delivery in part.deliveries]
    return [Released(it.partition, it.group, it.owner, (it.span,)) for it in receipts]


def add_slices(slices: list[Slice], replica: Replica, won: Won, group: str, span: Span) -> None:
    """Append the deliveries of ``span``, extending the last slice and receipt if they continue there."""
    topic = replica.topic.name
    for chunk, location, death in [
        (chunk, location, death)
        for part, death in replica.group(group).deaths(span)
        for chunk, location in replica.batches.index.within(part)
    ]:
        first, stop = chunk.start + location.shift, chunk.stop + location.shift
        receipt = Receipt(won.partition, group, won.generation, won.n, chunk, won.owner)
        delivery = Delivery(receipt, won.attempt, b"", death, won.lot > 0, won.interruptions)
        last = slices[-1] if slices else None
        if last is None or (last.partition, last.batch, last.stop) != (won.partition, location.number, first):
            header = replica.batches.stored[location.number].header
            slices.append(Slice(topic, won.partition, location.number, first, stop, header, (delivery,)))
            continue
        before = last.deliveries[-1]
        ours = before.receipt
        if (
            before[1:] == delivery[1:]
            and (ours.span.producer_id, ours.span.stop) == (chunk.producer_id, chunk.start)
            and (ours._replace(span=chunk) == receipt)
        ):
            joined = Span(chunk.producer_id, ours.span.start, chunk.stop)
            delivery = delivery._replace(receipt=receipt._replace(span=joined))
            slices[-1] = last._replace(stop=stop, deliveries=(*last.deliveries[:-1], delivery))
        else:
            slices[-1] = last._replace(stop=stop, deliveries=(*last.deliveries, delivery))
