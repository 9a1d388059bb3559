"""Both jobs and a stream, one after the other: `cluster_jobs.py DATA HISTORIES OUT`.

tests/spark/test_engine_cluster.py submits this file to a cluster, and runs it on one machine.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import SparkSession

from spark.jobs.audit import command as audit
from spark.jobs.deadletters import command as deadletters
from spark.session import session
from tests.spark.cluster_on_disk import NAMES

AS_OF = "2026-11-22T12:00:00Z"


def main(spark: SparkSession, data: Path, histories: str, out: str) -> None:
    """Run both jobs, the first once more for later deaths, and a stream over the same dead letters to its end."""
    directories = [str(data / name) for name in NAMES]
    given = [f"--data={directory}" for directory in directories]
    deadletters.main([*given, "--as-of", AS_OF, "--out", f"{out}/deadletters"], standalone_mode=False)
    deadletters.main(
        [*given, "--as-of", AS_OF, "--out", f"{out}/since", "--since", f"{out}/deadletters"],
        standalone_mode=False,
    )
    try:
        audit.main(["--history", histories, "--out", f"{out}/audit"], standalone_mode=False)
    except SystemExit as end:
        print("AUDIT ends with", end.code)
    died = spark.readStream.format("quorumq").option("table", "deadletters").load(",".join(directories))
    stream = died.writeStream.format("parquet").trigger(availableNow=True)
    stream.option("checkpointLocation", f"{out}/checkpoint").start(f"{out}/stream").awaitTermination()


if __name__ == "__main__":
    print("MASTER", (spark := session("cluster test")).sparkContext.master)
    main(spark, Path(sys.argv[1]), sys.argv[2], sys.argv[3])
