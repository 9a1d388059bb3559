"""One Spark session for all tests: starting one costs more than most tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from spark.session import session

SMALL_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For processes that live a minute: half the CPU of the defaults, which are for hours."""


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A local session with two cores and few shuffle partitions."""
    found = session(
        "quorumq tests",
        master="local[2]",
        conf={
            "spark.sql.shuffle.partitions": "2",
            "spark.default.parallelism": "2",
            "spark.driver.extraJavaOptions": SMALL_JAVA,
        },
    )
    yield found
    found.stop()
