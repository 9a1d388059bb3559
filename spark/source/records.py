"""`tombstones`: the records of groups of all nodes, merged. Memory holds a few numbers per run of tombstones."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from decimal import Decimal
from typing import Final, NamedTuple

import pyarrow as pa

from quorumq.core.messages.records import SessionsClosed
from quorumq.core.values.spans import SpanMap
from quorumq.core.values.types import Kind, PartitionId, Record, record_rank
from quorumq.storage.records import TYPE_OF
from quorumq.storage.scan import Frame

from .arrow import Same, small
from .journals import RECORDS_MERGED, Directory, SegmentPlan, decoded
from .merged import MergingReader
from .reader import span_columns

CLOSED: Final = TYPE_OF[SessionsClosed]


class Held(NamedTuple):
    """State of a message for a group: the highest record, and a bit mask of the nodes that have it."""

    generation: int
    n: int
    kind: Kind
    nodes: int

    def rank(self) -> tuple[int, bool, int, int]:
        return record_rank(Record(self.generation, self.n, self.kind))


def higher(new: Held, old: Held | None) -> Held:
    """Return the record of two that wins, with the nodes that have it."""
    if old is None or new.rank() > old.rank():
        return new
    return old._replace(nodes=old.nodes | new.nodes) if new.rank() == old.rank() else old


class TombstonesReader(MergingReader):
    """Fates of messages for each group, as spans."""

    def segments_of(self, directory: Directory) -> list[SegmentPlan]:
        return [plan for plan in directory.segments if plan.state]

    def rows(self) -> Iterator[pa.RecordBatch]:
        self.records: dict[tuple[PartitionId, str], SpanMap[Held]] = {}
        self.scan(self._take)
        for (key, group), merged in sorted(self.records.items()):
            for span, held in merged.items():
                kind = held.kind.name.lower()
                if self.is_closed(key, span.producer_id) or not self.selection.may_be("kind", kind):
                    continue
                yield from self.out.add(
                    1,
                    0,
                    {
                        **span_columns(key, self.topic_name(key), group, span),
                        "generation": Same(Decimal(held.generation)),
                        "n": Same(small(held.n)),
                        "kind": Same(kind),
                        "replicas": Same(self.nodes_of(held.nodes)),
                    },
                )

    def _take(self, at: int, plan: SegmentPlan, frame: Frame) -> None:
        if frame.type not in (RECORDS_MERGED, CLOSED):
            return
        record = decoded(self.open_directories[at].files[plan.number].name, frame)
        if isinstance(record, SessionsClosed):
            self.take_closed(frame, record)
        elif self.counts_at(record.partition, at) and self.wants(record.group):
            merged = self.records.setdefault((record.partition, record.group), SpanMap())
            buried = self.registers.buried(record.partition.topic, record.group)
            for span, value in record.entries:
                if value.generation >= buried and self.mine(span.producer_id):
                    held = Held(value.generation, value.n, value.kind, 1 << at)
                    merged.update(span, functools.partial(higher, held))
