"""One way to a Spark session in which everything of quorumq works."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from pyspark.sql import SparkSession


def session(
    name: str = "quorumq", *, master: str | None = None, conf: Mapping[str, str] | None = None
) -> SparkSession:
    """A Spark session in which ``read.format("quorumq")`` works, or the one that is there already.

    Args:
        name: of the application.
        master: where it runs; what `spark-submit` says, else this machine with all its cores.
        conf: further settings of Spark, which win over ours.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.appName(name)
    if master is not None or not os.environ.get("SPARK_SUBMIT"):
        builder = builder.master(master or "local[*]")
    ours = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.adaptive.enabled": "true",
        "spark.sql.python.filterPushdown.enabled": "true",
        "spark.sql.session.timeZone": "UTC",
    }
    for key, value in {**ours, **(conf or {})}.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()
