"""`python -m spark deadletters`: OUT, and that its numbers are those of a real cluster's command line."""

from __future__ import annotations

import json
import re
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from quorumq.core.values.errors import NotFound, QuorumqError, StorageError, UsageError
from quorumq.lab.local import LocalCluster
from spark.__main__ import main
from spark.errors import told
from spark.folders import Folder
from spark.jobs import deadletters as job
from spark.jobs import deaths_input
from spark.jobs.deaths_analysis import by_date, observed, period
from spark.jobs.deaths_input import Input
from spark.jobs.output import SUMMARY
from spark.session import written
from spark.transforms import deaths as t
from tests.cli.shell import Shell
from tests.spark.cluster_on_disk import DiskCluster
from tests.spark.rows import NOON, death, frame


def finished(out: Path, version: int = 1) -> Path:
    """An OUT as a run leaves it."""
    (out / "tables" / "failures").mkdir(parents=True)
    (out / SUMMARY).write_text(json.dumps({"quorumq_deadletters": version, "as_of": "then"}))
    return out


def test_out_is_complete_or_not_there(tmp_path: Path) -> None:
    out = tmp_path / "out"

    def fails(new: Folder) -> None:
        (new / "half").local.write_text("")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), job.OUTPUT.staged(Folder(out), False) as new:
        fails(new)
    assert list(tmp_path.iterdir()) == []
    with job.OUTPUT.staged(Folder(out), False) as new:
        finished(new.local)
        assert not out.exists()
    assert job.OUTPUT.read_head(Folder(out))["as_of"] == "then"


def test_out_is_replaced_only_when_told_and_only_if_it_is_ours(tmp_path: Path) -> None:
    out = finished(tmp_path / "out")
    with pytest.raises(UsageError, match="--overwrite"), job.OUTPUT.staged(Folder(out), False):
        pytest.fail("it must not begin")
    with job.OUTPUT.staged(Folder(out), True) as new:
        finished(new.local)
        (new / "second").local.write_text("")
    assert (out / "second").exists()
    foreign = tmp_path / "photos"
    foreign.mkdir()
    (foreign / "cat.jpg").write_text("")
    with pytest.raises(UsageError, match="not from an earlier run"), job.OUTPUT.staged(Folder(foreign), True):
        pytest.fail("it must not begin")
    assert (foreign / "cat.jpg").exists()


def test_an_out_that_is_a_link_stays_one(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    out = tmp_path / "out"
    out.symlink_to(tmp_path / "disk" / "letters")
    for run in ("first", "second", "third"):
        with job.OUTPUT.staged(Folder(out), True) as new:
            finished(new.local)
            (new / run).local.write_text("")
        assert out.is_symlink()
        assert (out / run).exists()
    assert [path.name for path in (tmp_path / "disk").iterdir()] == ["letters"]


def test_an_out_that_cannot_be_renamed_is_refused_before_the_work() -> None:
    with pytest.raises(UsageError, match="/proc is a mount point"):
        job.OUTPUT.check(Folder(Path("/proc")), True)
    with pytest.raises(StorageError, match="cannot be read"):
        job.OUTPUT.check(Folder(Path("/tmp", "x" * 300)), True)


def test_two_runs_to_one_out_do_not_mix(tmp_path: Path) -> None:
    with (
        job.OUTPUT.staged(Folder(tmp_path / "out"), False) as new,
        pytest.raises(UsageError, match="another run"),
        job.OUTPUT.staged(Folder(tmp_path / "out"), True),
    ):
        pytest.fail("it must not begin")
    assert not new.exists()


def test_a_run_that_was_killed_while_it_replaced_out_loses_nothing(tmp_path: Path) -> None:
    finished(tmp_path / ".out.old")
    (tmp_path / ".out.new").mkdir()
    with pytest.raises(UsageError, match="--overwrite"), job.OUTPUT.staged(Folder(tmp_path / "out"), False):
        pytest.fail("it must not begin")
    assert job.OUTPUT.read_head(Folder(tmp_path / "out"))["as_of"] == "then"


@pytest.mark.parametrize(
    ("content", "error", "said"),
    [
        (None, NotFound, "has no summary.json"),
        ("{", StorageError, "cannot be read"),
        ("[]", UsageError, "version None"),
        ('{"quorumq_deadletters": 2}', UsageError, "version 2 of this job, not 1"),
        ('{"quorumq_deadletters": 1}', StorageError, "was not complete"),
    ],
)
def test_a_previous_run_that_is_none_is_refused(
    tmp_path: Path, content: str | None, error: type[Exception], said: str
) -> None:
    if content is not None:
        (tmp_path / SUMMARY).write_text(content)
    with pytest.raises(error, match=said):
        job.read_previous_head(Folder(tmp_path))


@pytest.mark.parametrize(
    ("before", "inputs", "said"),
    [
        ({"cluster": "other"}, {"cluster": "test"}, "is of cluster 'other'"),
        ({"only": {"topics": ["jobs"], "groups": []}}, {}, "is of topic jobs only"),
        ({"only": {"topics": ["jobs"], "groups": []}}, {"topics": ("jobs", "mail")}, "is of topic jobs only"),
        ({"only": {"topics": [], "groups": ["g"]}}, {"topics": ("jobs",)}, "is of group g only"),
    ],
)
def test_runs_that_looked_at_different_things_are_not_compared(
    spark: SparkSession, before: dict[str, Any], inputs: dict[str, Any], said: str
) -> None:
    rows = frame(spark, [])
    with pytest.raises(UsageError, match=said):
        deaths_input.check_previous(before, None, Input(rows, None, "", **inputs))
    same = {"topics": ("jobs",), "groups": ("g",), "cluster": before.get("cluster")}
    deaths_input.check_previous(before, None, Input(rows, None, "", **same))


def test_a_plan_names_the_cluster_whose_directories_were_read(tmp_path: Path) -> None:
    cluster = DiskCluster(tmp_path)
    cluster.close()
    assert deaths_input.cluster_of_directories(map(str, [tmp_path, *cluster.data])) == "test"
    assert deaths_input.cluster_of_directories([str(tmp_path)]) is None


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ((), 2, "say what to read"),
        (("--nodes", "a:1", "--data", "d"), 2, "say what to read"),
        (("--nodes", "a:1", "--decide", "f=maybe"), 2, "'f=maybe' is not FAILURE=VERDICT"),
        (("--nodes", "a:1", "--as-of", "soon"), 2, "'soon' is not a time"),
        (("--nodes", "a:1", "--previous", "nowhere"), 66, "nowhere has no summary.json"),
        (("--data", "d", "--since", "nowhere"), 66, "nowhere has no summary.json"),
        (("--data", "d", "--since", "one", "--previous", "one"), 2, "give one of them"),
    ],
)
def test_impossible_options_are_refused_before_spark_starts(
    tmp_path: Path, arguments: tuple[str, ...], code: int, said: str
) -> None:
    result = CliRunner().invoke(main, ["deadletters", "--out", str(tmp_path / "out"), *arguments])
    assert (result.exit_code, said in result.output) == (code, True), result.output
    assert not (tmp_path / "out").exists()


def test_the_hour_that_a_clock_shows_twice_is_the_right_one_of_two(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, last = (datetime(2026, 10, 25, hour, 30, tzinfo=UTC) for hour in (0, 1))  # both are 2:30 in Berlin
    rows = [death(1, died_at=first), death(2, died_at=last)]
    dead_letters = t.deaths(frame(spark, rows), NOON)
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        seen = written(dead_letters, Folder(tmp_path / "letters"), observed=observed())
        assert period(seen, NOON) == (first, last)
    finally:
        monkeypatch.undo()
        time.tzset()


def test_parquet_that_is_no_table_of_dead_letters_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """A row without a column or a value would be in no group, no kind and no plan; an empty one would be good news."""
    rows = frame(spark, [death(1), death(2)])
    (tmp_path / "empty").mkdir()
    with pytest.raises(NotFound, match="has no Parquet in it"):
        job.read(spark, parquet=Folder(tmp_path / "empty"))
    rows.drop("resolution", "n").write.parquet(str(tmp_path / "fewer"))
    with pytest.raises(UsageError, match="has no column n, resolution"):
        job.read(spark, parquet=Folder(tmp_path / "fewer"))
    unknown = rows.withColumn("fingerprint", F.when(F.col("seq") == 1, F.col("fingerprint")))
    unknown.write.parquet(str(tmp_path / "nulls"))
    nulls = job.read(spark, parquet=Folder(tmp_path / "nulls"))
    with pytest.raises(UsageError, match="1 rows without fingerprint"):
        job.run(nulls, Folder(tmp_path / "out"), job.Settings(now=NOON))
    assert not (tmp_path / "out").exists()
    rows.write.parquet(str(tmp_path / "whole [1]"))
    assert job.read(spark, parquet=Folder(tmp_path / "whole [1]")).deadletters.count() == 2


@pytest.mark.soak
def test_no_dead_letters_are_a_whole_run(spark: SparkSession, tmp_path: Path) -> None:
    out = tmp_path / "out [1] {a} 100%20"  # a name is no pattern, and nothing in it stands for something else
    summary = job.run(Input(frame(spark, []), None, "nothing"), Folder(out), job.Settings(now=NOON))
    assert list(tmp_path.iterdir()) == [out]
    assert (summary["deaths"], summary["first_died_at"], summary["plan"]["redrive"]["messages"]) == (
        0,
        None,
        0,
    )
    assert json.loads((out / SUMMARY).read_text()) == summary
    assert "There are no dead letters." in (out / job.REPORT).read_text()
    assert len((out / job.PLAN).read_text().splitlines()) == 1
    assert job.told(summary, tmp_path)[0] == "no dead letters in nothing"


def test_dead_letters_are_as_many_files_as_they_have_days(spark: SparkSession, tmp_path: Path) -> None:
    before = spark.conf.get("spark.sql.adaptive.enabled")
    rows = [death(n, died_at=NOON - timedelta(days=n % 3), topic=f"t{n % 2}") for n in range(24)]
    rows += [death(n, died_at=NOON.replace(year=1960 + n)) for n in range(40)]  # the clock jumps
    dead_letters = t.deaths(frame(spark, rows), NOON).repartition(8)
    spark.conf.set("spark.sql.adaptive.enabled", "true")
    try:
        written(by_date(dead_letters), Folder(tmp_path / "letters"), "date")
    finally:
        spark.conf.set("spark.sql.adaptive.enabled", str(before))
    assert len([*(tmp_path / "letters").rglob("*.parquet")]) == 4
    assert spark.read.parquet(str(tmp_path / "letters")).where("dated = (date IS NOT NULL)").count() == 64


def plans_of(spark: SparkSession, since: int = 0) -> list[str]:
    """The physical plans of the session's queries."""
    session: Any = spark
    store = session._jsparkSession.sharedState().statusStore()
    there = store.executionsList()
    return [there.apply(at).physicalPlanDescription() for at in range(since, there.size())]


@pytest.mark.soak
def test_a_run_reads_its_dead_letters_five_times(spark: SparkSession, tmp_path: Path) -> None:
    """The cube, the sketches, hashes of keys and payloads, those that repeat, and samples with the plan's messages."""
    before = spark.conf.get("spark.sql.adaptive.enabled")
    spark.conf.set("spark.sql.adaptive.enabled", "false")  # the text of such a plan has it twice
    source = tmp_path / "source"
    frame(spark, [death(n, fingerprint=f"f{n % 3}", key=b"k", n=n % 2) for n in range(30)]).write.parquet(
        str(source)
    )
    try:
        known = len(plans_of(spark))
        job.run(
            job.read(spark, parquet=Folder(source)),
            Folder(tmp_path / "out"),
            job.Settings(now=NOON, payloads=True),
        )
        plans = plans_of(spark, known)
    finally:
        spark.conf.set("spark.sql.adaptive.enabled", str(before))

    def count(pattern: str) -> int:
        return sum(len(re.findall(pattern, plan, re.MULTILINE)) for plan in plans)

    assert count(rf"Location: [^\n]*{source}[\],]") == 1, "of the source, to make the table"
    assert count(r"Location: [^\n]*/tables/deaths[\],]") == 5
    wide = [
        plan for plan in plans if re.search(r"/tables/deaths[\],](?:.*\n)*?ReadSchema: [^\n]*stack:", plan)
    ]
    assert len(wide) == 1, "texts are read once"
    assert count(r"^\(\d+\) Coalesce") == 0
    assert (len(plans), count(r"^\(\d+\) (?:Broadcast)?Exchange")) <= (47, 84)


def test_a_refusal_of_the_data_source_is_one_sentence(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "no-node").mkdir()
    with pytest.raises(Exception, match="no-node") as raised:
        job.run(
            job.read(spark, data=[tmp_path / "no-node"]), Folder(tmp_path / "out"), job.Settings(now=NOON)
        )
    said = told(raised.value)
    assert isinstance(said, QuorumqError)
    assert "Traceback" not in str(said)
    assert not (tmp_path / "out").exists()


@pytest.mark.e2e
def test_the_numbers_are_those_of_the_command_and_its_plan_works(spark: SparkSession, tmp_path: Path) -> None:
    nodes, out = tmp_path / "nodes", tmp_path / "out"
    with LocalCluster(3, hold_time_max=2.0, keep=nodes) as cluster:
        shell = Shell(cluster)
        for topic, counts in (
            ("jobs", {"no such account 17": 3, "out of paper": 2}),
            ("mail", {"refused": 2}),
        ):
            shell("publish", topic, *(f"the-secret-{number}" for number in range(sum(counts.values()))))
            for reason, count in counts.items():
                shell("consume", topic, "--group", "g", "--max", str(count), "--dead-letter", reason)
        listed = {
            (topic, "g", line["fingerprint"]): line["count"]
            for topic in ("jobs", "mail")
            for line in shell("deadletters", "list", topic, "--group", "g", "--json").lines()
        }
        assert sorted(listed.values()) == [2, 2, 3]

        live = job.read(spark, nodes=",".join(cluster.addresses))
        found_live = live.deadletters.groupBy("topic", "group", "fingerprint").count().collect()
        assert {tuple(row[:3]): row[3] for row in found_live} == listed
        assert live.cluster == "local"

        data = [nodes / name / "data" for name in ("n1", "n2", "n3")]
        inputs = job.read(spark, data=data)
        later = job.Settings(now=datetime.now(UTC) + timedelta(hours=2), decide={"nothing": "hold"})
        summary = job.run(inputs, Folder(out), later)
        tables = spark.read.parquet(str(out / "tables" / "failures")).collect()
        assert {(row["topic"], row["group"], row["failure"]): row["dead"] for row in tables} == listed
        assert (summary["dead"], summary["deaths"], summary["problems"]["count"]) == (7, 7, 0)
        assert summary["cluster"] == "local"
        written = "".join((out / name).read_text() for name in (SUMMARY, job.PLAN, job.REPORT))
        assert "no such account 17" in written
        assert "the-secret" not in written
        kept = [path for path in (out / "tables").iterdir() if any(path.rglob("*.parquet"))]
        columns = {path: spark.read.parquet(str(path)).columns for path in kept}
        assert not [
            path.name for path, names in columns.items() if {"key", "payload", "headers"} & set(names)
        ]

        dry = shell("deadletters", "redrive", "--plan", str(out / job.PLAN), "--dry-run", "--json").lines()[
            -1
        ]
        assert dry["redriven"] == summary["plan"]["redrive"]["messages"] == 7
        done = shell(
            "deadletters", "redrive", "--plan", str(out / job.PLAN), "--rate", "999", "--json"
        ).lines()[-1]
        assert done["redriven"] == 7
        got = shell("consume", "jobs", "--group", "g", "--max", "5").out.split()
        assert sorted(got) == [f"the-secret-{number}" for number in range(5)]
