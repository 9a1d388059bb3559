"""Cost of an analysis of COUNT dead letters in Parquet: `python -m tests.measure.dead_letters COUNT DIR`.

Rows are computed from their numbers alone, by Spark, so COUNT rows take no memory. Four of five deaths are spread over
a week, topics and 200 kinds; the rest are a burst, and a version that fails from its start. Prints CPU seconds and the
peak memory of the largest process, which is Java.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

from pyspark.sql import functions as F

from spark.errors import MEMORY_VARIABLE
from spark.schemas import schema
from spark.session import job_session
from tests.measure.audit import cost_of

WEEK_S: Final = 7 * 86400
COLUMNS: Final = {
    "id": "'m' || id", "topic": "topic", "topic_id": "md5(topic)", "partition": "id % 4",
    "producer_id": "'a.1.5eed' || id % 16 || '.1'", "seq": "id div 16", "group": "'g'", "generation": "0", "n": "0",
    "resolution": "'dead'", "reason": "'rejected'", "message": "'it went wrong: ' || kind",
    "error_class": "if(part < 8, 'ValueError', 'RuntimeError')", "stack": "'File \"worker.py\", line 1, in handle'",
    "fingerprint": "left(sha2(kind, 256), 16)", "attempts": "1 + id % 3", "published_at": "timestamp_seconds(at - 60)",
    "first_delivered_at": "timestamp_seconds(at - 30)", "last_delivered_at": "timestamp_seconds(at - 1)",
    "died_at": "timestamp_seconds(at)", "consumer": "'c' || id % 4", "host": "'host' || id % 4",
    "consumer_version": "if(part = 9, '2.0', '1.0')", "node": "'n' || (1 + id % 3)",
    "key": "encode('k' || id, 'utf-8')", "headers": "map('source', 'generated')",
    "payload": "encode('payload ' || id, 'utf-8')",
    "size": "length('payload ' || id)", "crc": "lower(hex(crc32(string(id))))", "digest": "sha2('payload ' || id, 256)",
    "replicas": "array('n1', 'n2', 'n3')",
}  # fmt: skip
"""Each column in SQL, of ``id``, ``part`` from 0 to 9, ``topic``, ``kind`` and ``at``, the time of death."""


def generate(count: int, out: str) -> None:
    """Write the rows."""
    spark = job_session("letters")
    rows = spark.range(0, count, 1, -(-count // 500_000)).selectExpr("id", "pmod(xxhash64(id), 10) AS part")
    rows = rows.selectExpr(
        "id", "part", "'topic' || if(part < 8, id % 8, part - 8) AS topic",
        "CASE part WHEN 8 THEN 'burst' WHEN 9 THEN 'deploy' ELSE 'kind' || pmod(xxhash64(id, 1), 200) END AS kind",
        f"1.7e9 + CASE part WHEN 8 THEN 0.8 * {WEEK_S} + 600 * id / {count} "
        f"WHEN 9 THEN {WEEK_S} * (0.6 + 0.4 * id / {count}) ELSE {WEEK_S} * id / {count} END AS at",
    )  # fmt: skip
    made = (F.expr(COLUMNS[it.name]).cast(it.dataType).alias(it.name) for it in schema("deadletters"))
    rows.select(*made).write.parquet(out)


if __name__ == "__main__":
    count, source = int(sys.argv[1]), Path(sys.argv[2], "letters").absolute()
    if sys.argv[3:]:
        generate(count, str(source))
        sys.exit()
    os.environ.setdefault(MEMORY_VARIABLE, "512m")
    cost_of("tests.measure.dead_letters", *sys.argv[1:], "generate")
    cpu_s, most = cost_of(
        "spark", "deadletters", "--parquet", str(source), "--out", str(source.with_name("out"))
    )
    print(f"{count:,} dead letters: {cpu_s:.0f} CPU s, {most:,.0f} MB at most")
