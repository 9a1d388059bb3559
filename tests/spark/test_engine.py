"""`python -m spark`: how its jobs are found, and how it fails."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import click
import pytest
from click.testing import CliRunner
from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from quorumq.core.values.errors import NotFound, StorageError, UsageError
from spark.__main__ import COMMANDS, main
from spark.errors import MEMORY_VARIABLE
from spark.folders import Folder
from spark.jobs.output import Output
from spark.session import JAVA_OPTION, TASK_BYTES, check_shared
from tests.patience import PATIENCE_S, until
from tests.spark.rows import death, frame

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
    assert done.stderr == "quorumq: pyarrow is not installed: pip install 'quorumq[spark]'\n"


def test_an_error_of_a_job_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(main), "get_command", Mock(side_effect=StorageError("the cause; the remedy")))
    result = CliRunner().invoke(main, ["audit"])
    assert (result.exit_code, result.output) == (74, "quorumq: the cause; the remedy\n")


def test_a_module_of_ours_that_is_missing_is_a_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = ModuleNotFoundError("no", name="spark.lost")
    monkeypatch.setattr(type(main), "get_command", Mock(side_effect=missing))
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


class Speechless(Py4JError):
    """An error like Py4JJavaError, which asks Java for its text, when Java has ended since it was raised."""

    __module__ = "py4j.protocol"

    def __str__(self) -> str:
        raise ConnectionRefusedError(111, "Connection refused")


GONE = "quorumq: Spark's Java ran out of memory (1g), or was ended from outside: give it more with QUORUMQ_SPARK_"


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (Py4JNetworkError("Answer from Java side is empty"), 70, GONE),
        (ConnectionRefusedError(111, "Connection refused"), 70, GONE),
        (Speechless(), 70, GONE),
        (Py4JError("while calling o1.\n: a.b.E: failed\nCaused by: java.lang.OutOfMemoryError: heap"), 70, GONE),
        (Py4JError("while calling o1.parquet.\n: a.b.E: failed\nCaused by: x: No space left on device"), 74,
         "quorumq: the disk is full: Spark works in SPARK_LOCAL_DIRS (else /tmp) and beside OUT"),
        (Py4JError("An error occurred while calling o1.\n: java.lang.IllegalArgumentException: too little\n\tat x"), 70,
         "quorumq: Spark failed: too little (QUORUMQ_SPARK_LOG=error shows"),
        (Py4JError("calling o1.\n: a.SparkException: Exception thrown in awaitResult: \n\tat a.b(C.scala:1)\n"
                   "Caused by: a.SparkException: Job aborted: result lost\nDriver stacktrace:\n\tat a.b"), 70,
         "quorumq: Spark failed: Job aborted: result lost (QUORUMQ_SPARK_LOG"),
        (Py4JError("calling o1.\n: a.E: lost\nCaused by: a.PythonException: Traceback (most recent call last):"
                   "\n  File \"w.py\", line 1, in main\n    import msgspec\n"
                   "ModuleNotFoundError: No module named 'msgspec'\n\n\tat a.b(C.scala:1)"), 70,
         "quorumq: Spark failed: ModuleNotFoundError: No module named 'msgspec' (QUORUMQ_SPARK_LOG"),
        (Py4JError("calling o1.\n: a.IOException: Cannot run program \"/absent\": error=2, No such file\n\tat x"), 70,
         "quorumq: Spark failed: Cannot run program \"/absent\": error=2, No such file (QUORUMQ_SPARK_LOG"),
        (AnalysisException("no such column\n more"), 70, "quorumq: Spark failed: no such column (QUORUMQ_SPARK_LOG"),
    ],
)  # fmt: skip
def test_a_failure_of_spark_is_reported_and_breaks_no_guarantee(
    monkeypatch: pytest.MonkeyPatch, error: Exception, code: int, said: str
) -> None:
    monkeypatch.delenv(MEMORY_VARIABLE, raising=False)
    monkeypatch.setattr(type(main), "get_command", Mock(side_effect=error))
    result = CliRunner().invoke(main, ["audit"])
    assert result.exit_code == code
    assert result.output.startswith(said)
    assert result.output.count("\n") == 1


def test_a_session_of_ours_has_java_compile_large_methods_in_small_chunks(spark: SparkSession) -> None:
    said = spark.sparkContext.getConf()
    for process in ("driver", "executor"):
        assert JAVA_OPTION in str(said.get(f"spark.{process}.extraJavaOptions"))
    names = ("spark.sql.files.maxPartitionBytes", "spark.sql.adaptive.advisoryPartitionSizeInBytes",
              "spark.hadoop.parquet.block.size")  # fmt: skip
    assert {said.get(name) for name in names} == {str(TASK_BYTES)}
    assert int(said.get("spark.hadoop.parquet.dictionary.page.size") or 0) < TASK_BYTES // 64, (
        "ids have no dictionary"
    )
    assert said.get("spark.sql.parquet.outputTimestampType") == "TIMESTAMP_MICROS"
    kept = ("spark.ui.retainedStages", "spark.ui.retainedTasks")
    assert {said.get(name) for name in kept} == {"100"}, "what is kept of tasks would grow with the input"


def test_a_java_that_ends_while_a_job_writes_is_not_taken_for_the_disk(tmp_path: Path) -> None:
    with pytest.raises(ConnectionRefusedError), Output("audit", 1).staged(Folder(tmp_path / "out"), False):
        raise ConnectionRefusedError(111, "Connection refused")
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]


def children(pid: int) -> list[str]:
    """The command lines of a process's children."""
    commands = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if int((entry / "stat").read_text().rpartition(")")[2].split()[1]) == pid:
                    commands.append((entry / "cmdline").read_text())
            except OSError:
                continue
    return commands


@pytest.mark.e2e
@pytest.mark.soak
@pytest.mark.parametrize("moment", ["while Java starts", "while it writes"])
def test_an_interrupted_job_says_and_keeps_nothing(spark: SparkSession, tmp_path: Path, moment: str) -> None:
    frame(spark, map(death, range(10_400))).write.parquet(str(tmp_path / "in"))
    arguments = ["deadletters", "--parquet", str(tmp_path / "in"), "--out", str(tmp_path / "out")]
    process = subprocess.Popen(
        [sys.executable, "-m", "spark", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={
            name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK_", "SPARK_"))
        },
        start_new_session=True,
    )

    def come() -> bool:
        if moment == "while Java starts":
            return any("java" in line for line in children(process.pid))
        return (tmp_path / ".out.new" / "tables" / "deaths").exists()

    until(come, moment, process)
    os.killpg(process.pid, signal.SIGINT)
    said, _ = process.communicate(timeout=PATIENCE_S)  # until Java has ended as well, which has this pipe
    assert (process.returncode, said) == (130, b"")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in"]


def test_an_out_on_this_machine_is_refused_where_executors_are_elsewhere() -> None:
    for master in (None, "local[2]"):
        check_shared(Folder(Path("/out")), False, master)
    with pytest.raises(UsageError, match=r"--out file:/out .*the executors of spark://a:7077"):
        check_shared(Folder(Path("/out")), False, "spark://a:7077")
    check_shared(Folder(Path("/out")), True, "spark://a:7077")


@pytest.mark.parametrize("job", [["audit", "--history", "h"], ["deadletters", "--nodes", "a:1"]])
def test_a_job_for_a_cluster_is_refused_before_spark_starts(tmp_path: Path, job: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "spark", *job, "--out", tmp_path / "out", "--master", "spark://127.0.0.1:1"],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 64
    assert "the executors of spark://127.0.0.1:1 write to their own disks" in done.stderr
