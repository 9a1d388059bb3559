"""A real cluster of Spark on loopback: a master and two workers, each a process of its own."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyarrow.dataset import dataset
from pyspark.sql import SparkSession

from spark.java import launcher
from spark.session import SMALL
from tests.audit.histories import FAULTS, constant, good, on_machines
from tests.patience import until
from tests.spark import cluster_jobs
from tests.spark.journals import write

SPARK = Path(pyspark.__file__).parent
ROOT = Path(__file__).parents[2]
ENVIRON = {
    **os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(ROOT),
}  # fmt: skip


def launched(log: Path) -> str:
    """The home of a Java for the process that writes this log."""
    home = log.with_suffix(".java")
    home.mkdir()
    launcher(home)
    return str(home)


@contextmanager
def process(log: Path, pattern: str, *arguments: object) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """A class of Spark, until `pattern` is in its log; gives the process and the match."""
    environ = {**ENVIRON, "JAVA_HOME": launched(log)}
    command = [str(SPARK / "bin/spark-class"), *map(str, arguments)]
    with log.open("w") as output:
        started = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environ)
    try:
        yield started, waited(log, pattern, started)
    finally:
        started.terminate()
        started.wait()


def waited(log: Path, pattern: str, started: subprocess.Popen[bytes]) -> str:
    """The first match in a log that a process writes."""
    until(lambda: re.search(pattern, log.read_text()), log.read_text, started)
    match = re.search(pattern, log.read_text())
    assert match is not None
    return match.group(0)


@contextmanager
def cluster(folder: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """A master and two workers; gives the master's URL and the second worker."""
    deploy = "org.apache.spark.deploy"
    address = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
    with ExitStack() as stack:
        begin = process(
            folder / "master.log", r"spark://127\.0\.0\.1:\d+", f"{deploy}.master.Master", *address
        )
        _, master = stack.enter_context(begin)
        for name in ("one", "two"):
            limits = ("--cores", 1, "--memory", "512m", "--work-dir", folder / name)
            begin = process(
                folder / f"{name}.log",
                "Successfully registered",
                f"{deploy}.worker.Worker",
                *address,
                *limits,
                master,
            )
            worker, _ = stack.enter_context(begin)
        yield master, worker


def submitted(master: str, log: Path, conf: dict[str, str], *arguments: object) -> subprocess.Popen[bytes]:
    """The driver of a file of Python, which writes to a log."""
    command = [
        SPARK / "bin/spark-submit", "--master", master, "--driver-memory", "512m", "--executor-memory",
        "512m",
    ]  # fmt: skip
    for name, value in conf.items():
        command += ["--conf", f"{name}={value}"]
    with log.open("w") as output:
        return subprocess.Popen(
            list(map(str, [*command, *arguments])), stdout=output, stderr=subprocess.STDOUT,
            env={**ENVIRON, "JAVA_HOME": launched(log)},
        )  # fmt: skip


def rows_in(out: Path) -> dict[str, list[str]]:
    """The rows of each table, in an order that does not depend on files."""
    jobs = ("deadletters", "since", "audit")
    folders = [*(folder for job in jobs for folder in (out / job / "tables").iterdir()), out / "stream"]
    return {
        str(folder.relative_to(out)): sorted(
            str(sorted(row.items()))
            for row in dataset(folder, format="parquet", partitioning="hive").to_table().to_pylist()
        )
        for folder in folders
    }


def summary_in(out: Path) -> dict[str, Any]:
    """Both summaries, less the names of what was read."""
    result = {}
    for job in ("deadletters", "audit"):
        summary = json.loads((out / job / "summary.json").read_text())
        result[job] = {name: value for name, value in summary.items() if name not in ("paths", "remainder")}
    return result


@pytest.mark.soak
def test_a_cluster_that_loses_a_worker_gives_the_same_tables(spark: SparkSession, tmp_path: Path) -> None:
    """Histories are read from a second file system and results go there, by URI: it is a view of the first."""
    data, histories, away, here = (tmp_path / name for name in ("data", "histories", "away", "here"))
    write(50, data).close()
    histories.mkdir()
    faulty = next(made for seed in range(1, 40) if (made := FAULTS["lost"][0](good(seed))) is not None)
    for name, rows in (("lost", faulty), ("machines", on_machines("m", good(2, full=True), constant(2)))):
        lines = (json.dumps({**row, "run": name}) + "\n" for row in rows)
        (histories / f"{name}.jsonl").write_text("".join(lines))
    with cluster(tmp_path) as (master, worker):
        conf = {
            **SMALL,
            "spark.executor.extraJavaOptions": SMALL["spark.driver.extraJavaOptions"],
            "spark.hadoop.fs.viewfs.mounttable.view.link./all": f"file://{tmp_path}",
        }
        view = "viewfs://view/all"
        arguments = (cluster_jobs.__file__, data, f"{view}/histories", f"{view}/away")
        driver = submitted(master, tmp_path / "driver.log", conf, *arguments)
        try:
            written = away / ".deadletters.new/tables/deaths/_SUCCESS"
            until(written.exists, lambda: (tmp_path / "driver.log").read_text()[-9000:], driver)
            assert list((tmp_path / "two").glob("app-*/*/stderr")), "it has an executor"
            worker.send_signal(signal.SIGKILL)
            assert driver.wait() == 0, (tmp_path / "driver.log").read_text()[-9000:]
        finally:
            driver.kill()
        assert f"MASTER {master}" in (tmp_path / "driver.log").read_text()
    cluster_jobs.main(spark, data, str(histories), str(here))
    assert rows_in(away) == rows_in(here)
    assert summary_in(away) == summary_in(here)
    assert len(rows_in(away)["stream"]) == 50
    assert {row["guarantee"] for row in summary_in(away)["audit"]["verdicts"] if row["broken"]} == {
        "G1",
        "derived",
    }
