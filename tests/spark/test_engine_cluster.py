"""A real cluster of Spark on loopback: a master and two workers, each a process of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark
import pytest

from spark.java import find_java, launcher
from spark.session import packages
from tests.patience import PATIENCE_S

SPARK = Path(pyspark.__file__).parent
"""For what hangs."""

JOB = """
import sys
from pyspark.sql import functions as F
from spark.session import session

out, *more = sys.argv[1:]
spark = session("cluster test", **({"master": more[0]} if more else {}))
numbers = spark.range(0, 10_000, 1, 4)


def ours(rows):
    from quorumq.core.values.spans import SpanSet

    spans = SpanSet()
    return iter([(type(spans).__name__, sum(row[0] for row in rows))])


print("MASTER", spark.sparkContext.master)
total = sorted(numbers.rdd.mapPartitions(ours).collect())
counts = numbers.groupBy((F.col("id") % 7).alias("k")).count().orderBy("k").collect()
open(out, "w").write(repr((total, counts)))
spark.stop()
"""
"""Runs code of ours in Python workers, and shuffles."""


@contextmanager
def process(log: Path, pattern: str, *arguments: str) -> Iterator[str]:
    """A class of Spark, until `pattern` is in its log; gives the match."""
    environ = {**os.environ, "JAVA_HOME": str(launcher(find_java())), "SPARK_LOCAL_IP": "127.0.0.1"}
    environ["PYSPARK_PYTHON"] = sys.executable
    with log.open("w") as output:
        started = subprocess.Popen(
            [SPARK / "bin/spark-class", *arguments], stdout=output, stderr=subprocess.STDOUT, env=environ
        )
        try:
            deadline = time.monotonic() + PATIENCE_S
            while not (match := re.search(pattern, log.read_text())):
                assert started.poll() is None, log.read_text()
                assert time.monotonic() < deadline, log.read_text()
                time.sleep(0.2)
            yield match.group(0)
        finally:
            started.terminate()
            started.wait()


@pytest.mark.soak
def test_a_standalone_cluster_gives_what_one_machine_gives(tmp_path: Path) -> None:
    deploy = "org.apache.spark.deploy"
    (tmp_path / "job.py").write_text(JOB)
    environ = {**os.environ, "PYSPARK_PYTHON": sys.executable, "JAVA_HOME": str(launcher(find_java()))}
    environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    with ExitStack() as stack:
        address = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        begin = process(
            tmp_path / "master.log", r"spark://127\.0\.0\.1:\d+", f"{deploy}.master.Master", *address
        )
        master = stack.enter_context(begin)
        for name in ("one", "two"):
            limits = ("--cores", "1", "--memory", "512m", "--work-dir", str(tmp_path / name))
            begin = process(
                tmp_path / f"{name}.log",
                "Successfully registered",
                f"{deploy}.worker.Worker",
                *address,
                *limits,
                master,
            )
            stack.enter_context(begin)
        submit = [
            SPARK / "bin/spark-submit", "--master", master, "--executor-memory", "512m", "--driver-memory", "512m",
            "--py-files", packages(tmp_path), tmp_path / "job.py", tmp_path / "cluster.txt",
        ]  # fmt: skip
        done = subprocess.run(submit, capture_output=True, text=True, env=environ)
        assert done.returncode == 0, done.stderr
        assert f"MASTER {master}" in done.stdout
    local = [sys.executable, tmp_path / "job.py", tmp_path / "local.txt", "local[2]"]
    subprocess.run(local, check=True, env=environ)
    assert (tmp_path / "cluster.txt").read_text() == (tmp_path / "local.txt").read_text()
