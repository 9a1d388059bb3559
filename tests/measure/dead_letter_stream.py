"""Cost of a stream's reader: `python -m tests.measure.dead_letter_stream COUNT DIR`, with COUNT deaths in the journals.

Prints CPU seconds of the reader's own Python, driver and tasks together, without Spark.
"""

from __future__ import annotations

import pickle
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql.streaming.datasource import ReadAllAvailable

from spark.schemas import schema
from spark.source.options import read_options
from spark.source.stream import DeathsStream
from tests.spark.journals import BATCH, bury, write


def measured(work: Callable[..., Any], *given: Any) -> tuple[Any, float]:
    begin = time.process_time()
    result = work(*given)
    return result, time.process_time() - begin


def batch(stream: DeathsStream, start: dict[str, Any], end: dict[str, Any]) -> tuple[int, int, int]:
    """Read a micro-batch as Spark does; return its deaths, tasks, and the bytes of the largest task."""
    tasks = [pickle.dumps(task) for task in stream.partitions(start, end)]
    reader = pickle.loads(pickle.dumps(stream))
    count = sum(rows.num_rows for task in tasks for rows in reader.read(pickle.loads(task)))
    return count, len(tasks), max(map(len, tasks), default=0)


def main(count: int, root: Path, stack_bytes: int = 600) -> None:
    cluster = write(count, root, stack_bytes=stack_bytes)
    bytes_of = sum(path.stat().st_size for path in root.rglob("*.journal"))
    print(f"{count:,} deaths, {bytes_of / 1e6:.0f} MB of journals")
    stream = DeathsStream(
        read_options({"table": "deadletters", "data": ",".join(map(str, cluster.data))}, stream=True),
        schema("deadletters"),
    )
    start: dict[str, Any] = {}
    while True:
        end, planned = measured(stream.latestOffset, start, stream.getDefaultReadLimit())
        if end == start:
            break
        (dead_letters, tasks, largest), took = measured(batch, stream, start, end)
        print(
            f"batch: {dead_letters:,} deaths, {tasks} tasks, at most {largest} bytes; {planned:.2f} + {took:.2f} CPU s"
        )
        stream.commit(end)
        start = end
    for turn in range(4):
        bury(cluster, 1, first=(count + BATCH - 1) // BATCH * BATCH + turn * BATCH, stack_bytes=stack_bytes)
        end, planned = measured(stream.latestOffset, start, ReadAllAvailable())
        (dead_letters, _, largest), took = measured(batch, stream, start, end)
        print(f"{dead_letters} new death, {largest} bytes: {1000 * planned:.1f} + {1000 * took:.1f} CPU ms")
        stream.commit(end)
        start = end
    print(f"peak {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB")
    cluster.close()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), *map(int, sys.argv[3:]))
