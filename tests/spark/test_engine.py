"""`python -m spark`: how its jobs are found, and how it fails."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner
from py4j.protocol import Py4JNetworkError
from pyspark.sql import SparkSession

from quorumq.core.errors import NotFound, StorageError
from spark.__main__ import COMMANDS, main

WITHOUT_SPARK = (
    "import sys\n"
    "sys.modules['pyspark'] = None\n"
    "sys.modules['pyarrow'] = None\n"
    "from spark.__main__ import main\n"
    "main.lazy = {**main.lazy, 'job': ('spark.session:session', '')}\n"
    "main(prog_name='python -m spark')\n"
)
"""A Python in which importing pyspark or pyarrow fails as where they are not installed."""


def test_help_lists_the_jobs_without_spark() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_SPARK, "--help"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert all(name in done.stdout for name in COMMANDS)


def test_a_job_without_spark_says_what_to_install() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_SPARK, "job"], capture_output=True, text=True)
    assert done.returncode == 64
    assert done.stderr == "quorumq: pyspark is not installed: pip install 'quorumq[spark]'\n"


def test_an_error_of_a_job_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*args: object) -> None:
        raise StorageError("the cause; the remedy")

    monkeypatch.setattr(type(main), "get_command", fails)
    result = CliRunner().invoke(main, ["audit"])
    assert (result.exit_code, result.output) == (74, "quorumq: the cause; the remedy\n")


def test_a_module_of_ours_that_is_missing_is_a_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*args: object) -> None:
        raise ModuleNotFoundError("no", name="spark.lost")

    monkeypatch.setattr(type(main), "get_command", fails)
    assert isinstance(CliRunner().invoke(main, ["audit"]).exception, ModuleNotFoundError)


def test_an_error_of_ours_in_a_worker_reaches_a_person_as_one_sentence(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(rows: Iterator[object]) -> Iterator[object]:
        raise NotFound("there is no journal in /x: name a data directory of a node")

    @click.command()
    def job() -> None:
        spark.sparkContext.parallelize([1], 1).mapPartitions(fails).count()

    monkeypatch.setattr(type(main), "get_command", lambda *args: job)
    result = CliRunner().invoke(main, ["audit"])
    assert (result.exit_code, result.output) == (
        66,
        "quorumq: there is no journal in /x: name a data directory of a node\n",
    )


def test_a_java_that_is_gone_is_told_as_that(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*args: object) -> None:
        raise Py4JNetworkError("Answer from Java side is empty")

    monkeypatch.setattr(type(main), "get_command", fails)
    result = CliRunner().invoke(main, ["audit"])
    assert result.exit_code == 1
    assert "QUORUMQ_SPARK_MEMORY" in result.output
