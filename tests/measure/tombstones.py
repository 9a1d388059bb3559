"""Disk space of tombstones: ``python -m tests.measure.tombstones [--messages N]``.

One group acks N messages of one producer id, each with an ACK of its own: in order, and in random order. The records
are in the core's table; the journal is on a real directory, and begins new segments as a node does.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

from quorumq.core.messages import SpanRecord
from quorumq.core.messages.records import RecordsMerged
from quorumq.core.partition.closed import ClosedSessions
from quorumq.core.partition.group import GroupView
from quorumq.core.values.types import Kind, Record, Span
from quorumq.storage.journal import Journal
from tests.storage.samples import PARTITION, PRODUCER_ID

ACKED = Record(0, 0, Kind.ACKED, None)
ENTRIES = 10_000
"""Entries of one record in a snapshot."""

COMMIT_EVERY = 256


def snapshot(view: GroupView) -> list[RecordsMerged]:
    entries = [SpanRecord(span, record) for span, record in view.records.items()]
    return [
        RecordsMerged(PARTITION, view.name, tuple(entries[at : at + ENTRIES]))
        for at in range(0, len(entries), ENTRIES)
    ]


def size_of(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.glob("*.journal"))


def measure(order: Iterable[int], count: int, name: str) -> None:
    with tempfile.TemporaryDirectory() as location:
        directory = Path(location)
        store = Journal.open(directory, node="n1", cluster_id="measure")
        assert len(list(store.replayed)) == 1
        store.roll([])
        view = GroupView("billing", 0, ClosedSessions())
        written = peak = stall = spans = snapshot_bytes = 0.0
        for done, seq in enumerate(order, start=1):
            span = Span(PRODUCER_ID, seq, seq + 1)
            view.records.set(span, ACKED)
            before = store.pending_bytes
            store.append([RecordsMerged(PARTITION, view.name, (SpanRecord(span, ACKED),))])
            written += store.pending_bytes - before
            if done % COMMIT_EVERY == 0 or done == count:
                store.commit()
                peak = max(peak, size_of(directory))
            if done == count // 2 or done == count or store.should_roll:
                began = time.perf_counter()
                before = store.pending_bytes
                store.roll(lambda: snapshot(view))
                took, size = time.perf_counter() - began, store.pending_bytes - before
                if size > snapshot_bytes:
                    stall, snapshot_bytes, spans = took, size, sum(1 for _ in view.records.items())
                store.commit()
        print(
            f"{name:9} {written / count:5.0f} bytes a tombstone as appended; at most {peak / 1e6:6.1f} MB on disk, "
            f"{size_of(directory) / 1e6:6.3f} MB when all is acked; largest snapshot {spans:7.0f} spans, "
            f"{snapshot_bytes / 1e6:5.1f} MB, {stall * 1000:5.0f} ms"
        )
        store.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=1_000_000)
    count = parser.parse_args().messages
    measure(range(count), count, "in order")
    shuffled = list(range(count))
    random.Random(1).shuffle(shuffled)
    measure(shuffled, count, "random")


if __name__ == "__main__":
    main()
