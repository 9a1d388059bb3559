"""The audit in Spark: the same findings as on one machine, from files that Spark reads, in tables."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest
from pyarrow.dataset import dataset
from pyspark.sql import SparkSession

from quorumq.audit.audit import audit
from quorumq.audit.files import read as read_locally
from quorumq.audit.findings import GUARANTEES
from quorumq.core.values.errors import NotFound, StorageError, UsageError
from quorumq.history.reader import histories_of
from spark.folders import Folder
from spark.histories import Histories, Parts, files, read
from spark.jobs.audit import SCHEMAS, audited
from tests.audit.histories import FAULTS, constant, good, on_machines
from tests.audit.stories import TWICE, Story, stories, text_of


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small runs by hand, a simulated one with outputs, and one by several clocks."""
    target = tmp_path_factory.mktemp("audit") / "in"
    target.mkdir()
    for story in stories():
        (target / f"{story.run}.jsonl").write_text(text_of(story))
    (target / "copy.jsonl").write_text((target / f"{TWICE}.jsonl").read_text())
    rederived = next(
        made for seed in range(1, 40) if (made := FAULTS["output-forgotten"][0](good(seed))) is not None
    )
    for name, rows in (
        ("rederived", rederived),
        ("machines", on_machines("m", good(2, full=True), constant(2))),
    ):
        lines = (json.dumps({**row, "run": name}) + "\n" for row in rows)
        (target / f"{name}.jsonl").write_text("".join(lines))
    return target


def test_spark_finds_what_one_machine_finds(spark: SparkSession, folder: Path, tmp_path: Path) -> None:
    """In three parts, though it is small: so outputs and their inputs are apart."""
    summary, parts = read_locally(histories_of([str(folder)]), tmp_path / "parts")
    here = audit(summary, parts)
    histories = read(spark, [str(folder)])
    there = audited(Cut(*histories), Folder(tmp_path / "out"))
    assert there.verdicts == here.verdicts
    folders = [it for it in (tmp_path / "out" / "tables").iterdir() if it.is_dir()]
    tables = {it.name: dataset(it, format="parquet").to_table().to_pylist() for it in folders}
    for name, rows in here.tables().items():
        assert len(tables[name]) == len(rows)
        if name not in ("remainder", "unread"):  # with other names of files
            assert sorted(tables[name], key=str) == sorted(rows, key=str)
    columns = ("run", "guarantee", "verdict", "group", "id", "text", "cause")
    violations = sorted((tuple(row[it] for it in columns) for row in tables["violations"]), key=str)
    assert violations == sorted(
        (tuple(getattr(it, name) for name in columns) for it in here.judged.findings), key=str
    )
    assert {row["guarantee"] for row in there.verdicts if row["run"] == "rederived" and row["broken"]} == {
        "derived"
    }
    assert set(tables) == {*SCHEMAS, "violations"}
    assert not (tmp_path / "out" / "steps").exists()


class Cut(Histories):
    """The same in more parts than their size asks for."""

    @property
    def parts(self) -> int:
        return 3


def summary_of(spark: SparkSession, paths: list[str], steps: Path) -> Any:
    """Return Spark's summary of these paths as a whole."""
    return Parts(read(spark, paths), Folder(steps)).summary()


def test_a_path_that_names_no_history_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("not a history\n")
    for path in (tmp_path, tmp_path / "nothing.jsonl", tmp_path / "*.jsonl"):
        with pytest.raises(NotFound, match="no history here"):
            files(spark, [str(path)])


def test_a_file_is_read_by_its_very_name_and_none_is_passed_over(spark: SparkSession, tmp_path: Path) -> None:
    names = ["a 1%20.jsonl", "a[1].jsonl", "a1.jsonl", "{b,c}.jsonl"]
    inside = tmp_path / "in"
    inside.mkdir()
    for name in names:
        lines = [json.dumps(row) + "\n" for row in Story(name).publish().rows]
        (inside / name).write_text("".join(lines) + lines[0][:-2])
    for number, paths in enumerate(([inside], [inside / name for name in names])):
        summary = summary_of(spark, [str(path) for path in paths], tmp_path / f"steps{number}")
        assert sorted((it.writer.run, it.lines) for it in summary.stretches) == [
            (name, 3) for name in sorted(names)
        ]
        assert sorted((it.run, it.harmless) for it in summary.unread) == [
            (name, True) for name in sorted(names)
        ], "each ends with a line without its newline"
    for hidden in (".a.jsonl", "_a.jsonl"):
        (inside / hidden).write_text("")
        with pytest.raises(UsageError, match=f"{hidden}: Spark passes over"):
            files(spark, [str(inside)])
        (inside / hidden).unlink()


@pytest.mark.soak
def test_a_blank_line_and_a_torn_gzip_cost_their_own_lines(spark: SparkSession, tmp_path: Path) -> None:
    lines = [json.dumps({**row, "run": "r", "detail": str(at * 7919 % 10007)}) + "\n"
             for at, row in enumerate(Story("r").publish().rows * 500)]  # fmt: skip
    packed = gzip.compress("".join(lines).encode())
    (tmp_path / "blank.jsonl").write_bytes(f"{lines[0]}\n  \n{lines[1]}\t\r\n\r\n".encode())
    blank = summary_of(spark, [str(tmp_path / "blank.jsonl")], tmp_path / "steps")
    assert sum(it.lines for it in blank.stretches) == 2
    assert [(it.reason, it.harmless) for it in blank.unread] == [("a blank line", True)] * 4
    for cut in (len(packed) - 1, 40):
        path = tmp_path / f"torn-{cut}.jsonl.gz"
        path.write_bytes(packed[:cut])
        unpack = zlib.decompressobj(wbits=31)
        text = (unpack.decompress(packed[:cut]) + unpack.flush()).decode()
        summary = summary_of(spark, [str(path)], tmp_path / f"steps-{cut}")
        assert sum(it.lines for it in summary.stretches) == text.count("\n")
        (row,) = summary.unread
        assert (row.reason, row.harmless) == ("a last line without its newline: the writer was killed", True)
        assert row.line == text.rpartition("\n")[2][:200]
    (tmp_path / "damaged.jsonl.gz").write_bytes(packed[:40] + bytes(20) + packed[60:])
    with pytest.raises(StorageError, match=r"damaged\.jsonl\.gz cannot be read"):
        read(spark, [str(tmp_path / "damaged.jsonl.gz")])


@pytest.mark.soak
def test_the_command_writes_tables_a_summary_and_a_page_and_ends_with_1(tmp_path: Path) -> None:
    rows = FAULTS["flipped"][0](good(1))
    assert rows is not None
    (tmp_path / "h.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    out = tmp_path / "out 1"
    args = ["audit", "--history", str(tmp_path / "h.jsonl"), "--out", str(out), "--json"]
    done = subprocess.run([sys.executable, "-m", "spark", *args], capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    summary = json.loads(done.stdout)
    assert summary == json.loads((out / "summary.json").read_text())
    assert [row["guarantee"] for row in summary["verdicts"]] == list(GUARANTEES)
    assert {row["guarantee"] for row in summary["verdicts"] if row["verdict"] == "broken"} == {"G5"}
    page = (out / "audit.html").read_text()
    assert "http://" not in page
    assert "https://" not in page
    assert summary["broken"][0]["id"] in page
    for table in (*SCHEMAS, "violations"):
        assert list((out / "tables" / table).glob("*.parquet"))
