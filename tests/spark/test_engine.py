"""`python -m spark`: how its jobs are found, and how it fails."""

from __future__ import annotations

import subprocess
import sys

import pytest
from click.testing import CliRunner

from quorumq.core.errors import StorageError
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
