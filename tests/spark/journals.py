"""Cost of reading dead letters in journals of three nodes: `python -m tests.spark.journals COUNT DIR [TASKS] [BATCH]`.

Every message dies. Each death has some 0.8 KB of text, in one of 40 kinds. BATCH messages are published together. If
DIR exists, it is only read.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from quorumq.core.messages import SpanRecord
from quorumq.core.messages.records import BatchStored, RecordsMerged
from quorumq.core.values.types import Death, Kind, ProducerId, Record, Span, Stamp
from spark.schemas import schema
from spark.source import offline
from spark.source.options import Wanted
from tests.spark.cluster_on_disk import DiskCluster, batch_of, options_of

BATCH = 100
KINDS = 40
DAY_MS = 86_400_000


def death_of(number: int, published_ms: int, stack: str) -> Death:
    kind = number % KINDS
    return Death(
        Stamp(number, "n2"), "rejected", f"shop.Error{kind}", f"account {number} of kind {kind} is closed",
        stack, f"{kind:016x}", 5, published_ms, published_ms + 20, published_ms + 900, published_ms + 1_000,
        f"consumer-{number % 8}", f"1.{number % 3}", f"host-{number % 4}", "n2",
    )  # fmt: skip


def write(count: int, root: Path, **options: int) -> DiskCluster:
    """Write ``count`` dead letters into journals below ``root``; return the cluster, still open.

    Args:
        options: those of `bury`.
    """
    cluster = DiskCluster(root, segment_bytes=64 << 20)
    bury(cluster, count, **options)
    return cluster


def bury(
    cluster: DiskCluster,
    count: int,
    *,
    first: int = 0,
    stack_bytes: int = 600,
    step_ms: int = 50,
    together: int = BATCH,
) -> None:
    """Publish ``count`` messages, as many ``together`` as it says, and let them die at all nodes."""
    stack = ("  at shop.billing.charge(billing.py:118)\n" * (stack_bytes // 40 + 1))[:stack_bytes]
    now = 1_700_000_000_000
    for number in range(first, first + count, together):
        size = min(together, first + count - number)
        key = cluster.keys[number // together % 2]
        producer = ProducerId("n1", 1, 0xABC, number // together % 2)
        start = number // together // 2 * together
        span = Span(producer, start, start + size)
        published = now + number * step_ms
        batch = batch_of(key, (span,), published)
        records = [
            RecordsMerged(
                key, "billing",
                (SpanRecord(Span(producer, at, at + 1),
                            Record(0, 0, Kind.DEAD, death_of(number + at - start, published, stack))),),
            )
            for at in range(start, start + size)
        ]  # fmt: skip
        for node in cluster.nodes:
            node.number = max(node.number + 1, node.store.next_number)
            node.store.append([BatchStored(node.number, batch, published), *records])
            kept = node.records.setdefault((key, "billing"), {})
            for record in records:
                (entry,) = record.entries
                kept[(producer, entry.span.start)] = entry.record
        if number % 5000 == 0:
            cluster.commit()
    cluster.commit()
    for node in cluster.nodes:  # a later record says that all was durable
        node.register(node.registers.pop())
        node.store.commit()


def bytes_read() -> int:
    """Return the bytes that this process has read so far, of files in memory as well."""
    return int(Path("/proc/self/io").read_text().split()[1])


def main(count: int, root: Path, tasks: str = "1", together: str = str(BATCH)) -> None:
    if not root.exists():
        write(count, root, together=int(together)).close()
    options = options_of("deadletters", sorted(root.iterdir()), tasks=tasks)
    size = sum(path.stat().st_size for path in root.rglob("*.journal"))
    before, begin = bytes_read(), time.process_time()
    planned = offline.plan(options, Wanted())
    count = 0
    for task in planned:
        for rows in offline.read(task, options, Wanted(), schema("deadletters")):
            count += rows.num_rows
    cpu_s, read = time.process_time() - begin, bytes_read() - before
    print(
        f"{count:,} deaths, {len(planned)} tasks: {cpu_s:.1f} CPU s, {read / 1e6:,.0f} of {size / 1e6:,.0f} MB"
    )


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])
