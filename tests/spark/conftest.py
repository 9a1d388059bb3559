"""One Spark session for all tests: starting one costs more than most tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from spark.session import SMALL, session


@pytest.fixture(scope="session")
def spark(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Start a local session with two cores and few shuffle partitions.

    It has the settings of jobs with small input, as the input of `make test` is; in `make soak` those of large input.
    """
    small = dict(SMALL)
    if pytestconfig.getoption("markexpr") == "soak":
        small = {"spark.driver.extraJavaOptions": SMALL["spark.driver.extraJavaOptions"]}
    of_all = session(
        "quorumq tests",
        master="local[2]",
        conf={
            "spark.sql.shuffle.partitions": "2",
            "spark.default.parallelism": "2",
            "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
            **small,
        },
    )
    yield of_all
    of_all.stop()
