"""Generated input: as many rows as asked, the same for one seed, and wrong where the manifest says and nowhere else."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from quorumq.core.values.errors import UsageError
from quorumq.history import Row, read_history
from sim.checkers import check_history
from spark.schemas import schema
from tests.audit.histories import PROMISES
from tests.spark.scale.__main__ import main
from tests.spark.scale.generate import FAULTS, Rows, deadletters, histories, planted


@pytest.fixture(scope="module")
def made(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    out = tmp_path_factory.mktemp("generated") / "h"
    return out, histories(spark, out, rows=17_000, each=2, seed=5)


def rows_of(out: Path) -> Iterator[Row]:
    return read_history(sorted(out.glob("*.jsonl")))


def test_the_checkers_find_every_planted_fault_and_nothing_else(made: tuple[Path, dict[str, Any]]) -> None:
    """The reader checks every line against the schema, too."""
    out, manifest = made
    expected = {
        f"{fault['producer_id']}[{fault['seq']}]": set(fault["guarantees"]) for fault in manifest["faults"]
    }
    expected |= {
        f"[['{fault['producer_id']}', {fault['seq']}, {fault['seq'] + 1}]]": {"G6"}
        for fault in manifest["faults"]
        if fault["fault"] == "refused-retry"
    }
    found: dict[str, set[str]] = {}
    for violation in check_history(sorted(rows_of(out), key=lambda row: row["at"])):
        message = next((name for name in expected if name in violation.text), violation.text)
        found.setdefault(message, set()).update(
            set(PROMISES[violation.promise]) & expected.get(message, {"nothing"}) or {violation.text}
        )
    refused = {
        f"{fault['producer_id']}[{fault['seq']}]"
        for fault in manifest["faults"]
        if fault["fault"] == "refused-retry"
    }
    assert found == {name: what for name, what in expected.items() if name not in refused}
    assert len(manifest["faults"]) == 2 * len(FAULTS)


def test_lines_are_as_many_as_asked_within_a_wave_and_in_order_of_time(
    made: tuple[Path, dict[str, Any]],
) -> None:
    out, manifest = made
    assert abs(sum(1 for _ in rows_of(out)) - manifest["rows"]) < 9000
    times = [row["at"] for row in read_history(sorted(out.glob("lines-*.jsonl")))]
    assert times == sorted(times)


def test_one_seed_gives_the_same_files_and_another_gives_others(
    spark: SparkSession, made: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    out, _ = made
    histories(spark, tmp_path / "same", rows=17_000, each=2, seed=5)
    for path in out.iterdir():
        if path.is_file() and not path.name.startswith("."):
            assert (tmp_path / "same" / path.name).read_bytes() == path.read_bytes()
    assert planted(17_000, 2, 5) != planted(17_000, 2, 6)


def test_broken_runs_are_spliced_in_under_names_of_their_own(spark: SparkSession, tmp_path: Path) -> None:
    source = tmp_path / "broken.jsonl"
    source.write_text(
        '{"run":"sim-1","who":"sim","within":0,"kind":"settings","history":1,"clock":"simulated","settings":{},'
        '"at":0,"wall_ms":0}\n'
    )
    manifest = histories(spark, tmp_path / "h", rows=9000, each=0, seed=1, splice=[source, source])
    assert [it["run"] for it in manifest["spliced"]] == ["spliced-0", "spliced-1"]
    assert {row["run"] for row in rows_of(tmp_path / "h")} == {"generated", "spliced-0", "spliced-1"}


def test_dead_letters_have_their_schema_and_what_the_manifest_says(
    spark: SparkSession, tmp_path: Path
) -> None:
    manifest = deadletters(spark, tmp_path / "d", rows=20_000, each=2, seed=1)
    letters = spark.read.parquet(str(tmp_path / "d" / "deadletters"))
    assert letters.dtypes == spark.createDataFrame([], schema("deadletters")).dtypes
    assert letters.count() == 20_000
    wanted = schema("deadletters")
    never_null = [field.name for field in wanted if not field.nullable]
    assert letters.where(" OR ".join(f"`{name}` IS NULL" for name in never_null)).count() == 0
    for fault in manifest["faults"]:
        name = {"poison-key": "key", "poison-payload": "digest", "redrive-loop": "id"}.get(
            fault["fault"], "fingerprint"
        )
        value = fault.get("name") or fault.get("id") or fault.get("failure")
        column = F.sha2("key", 256) if name == "key" else F.col(name)
        assert letters.where(column == value).count() == fault["deaths"], fault
    assert letters.groupBy("digest").count().where("count > 1").count() == 2 + 2  # poison, and loops


def test_too_few_rows_or_a_directory_that_is_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="say more --rows"):
        planted(1000, 1000, 1)
    done = CliRunner().invoke(main, ["generate", "histories", "--rows", "1.5", "--out", str(tmp_path / "x")])
    assert done.exit_code == 2
    assert Rows().convert("1e6", None, None) == 1_000_000


def test_a_directory_that_is_there_is_left_alone(spark: SparkSession, tmp_path: Path) -> None:
    for make in (histories, deadletters):
        with pytest.raises(UsageError, match="does not"):
            make(spark, tmp_path, rows=40_000, each=1, seed=1)
    assert not json.loads(json.dumps([path.name for path in tmp_path.iterdir()]))
