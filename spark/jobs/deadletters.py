"""From dead letters to tables, a summary, a plan and a report.

The source is read once, into the table `letters`; all else is computed from that table, column by column. Only tops
and totals come to the driver; the plan's messages pass through it one by one, in order, on their way into a file.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from quorumq.core.errors import NotFound, QuorumqError, StorageError, UsageError
from spark.jobs.output import SUMMARY, Output

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

    from spark.transforms.plan import Limits

OUTPUT: Final = Output("deadletters", 1)
PLAN: Final = "plan.jsonl"
REPORT: Final = "report.html"
TABLES: Final = (
    "letters", "samples", "places", "failures", "counts", "rates", "bursts", "ages", "deploys", "poison", "attempts",
    "sizes", "to_death", "decisions", "problems",
)  # fmt: skip
"""What is written under OUT/tables, in this order."""

TOP: Final = 500
"""Rows of each table that the report shows, at most."""

SUMMARY_TOP: Final = 20
SAMPLES_SHOWN: Final = 100
TEXT_SHOWN: Final = 4000
PAYLOAD_SHOWN: Final = 2000
SERIES: Final = 7


class Input(NamedTuple):
    """What is analysed.

    Attributes:
        deadletters: rows of the table `deadletters` (spark/schemas.py).
        problems: rows of the table `problems`: what could not be read; None where there is no such table.
        source: where it came from, in words.
        cluster: the cluster's id; None if not known.
        nodes: addresses of the cluster, where it was read live.
        topics, groups: only these are in it; all where there are none.
    """

    deadletters: DataFrame
    problems: DataFrame | None
    source: str
    cluster: str | None = None
    nodes: str = ""
    topics: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()


class Settings(NamedTuple):
    """How it is analysed.

    Attributes:
        now: when; ages and "still happening" count from here.
        previous: an OUT of an earlier run.
        payloads: keep keys, headers and payloads.
        overwrite: replace OUT if it is one of ours.
        limits: the numbers in the rules of the plan; None: the defaults.
        decide: verdicts by failure that win over the rules.
    """

    now: datetime
    previous: Path | None = None
    payloads: bool = False
    overwrite: bool = False
    limits: Limits | None = None
    decide: Mapping[str, str] = {}


def _decide(ctx: click.Context, param: click.Parameter, value: Iterable[str]) -> dict[str, str]:
    from spark.transforms.plan import VERDICTS

    found = {}
    for text in value:
        failure, _, verdict = text.rpartition("=")
        if not failure or verdict not in VERDICTS:
            raise click.BadParameter(f"{text!r} is not FAILURE=VERDICT, with {', '.join(VERDICTS)}")
        found[failure] = verdict
    return found


def _time(ctx: click.Context, param: click.Parameter, value: str | None) -> datetime | None:
    if value is None:
        return None
    try:
        at = datetime.fromisoformat(value)
    except ValueError:
        raise click.BadParameter(f"{value!r} is not a time such as 2026-11-22T09:00:00Z") from None
    return at if at.tzinfo is not None else at.replace(tzinfo=UTC)


@click.command("deadletters")
@click.option("--data", multiple=True, type=click.Path(path_type=Path), metavar="DIR",
              help="A node's data directory, read offline; give those of all nodes.")  # fmt: skip
@click.option("--nodes", default="", metavar="HOST:PORT,…", help="A running cluster, read by peeking.")
@click.option("--parquet", type=click.Path(path_type=Path), metavar="DIR",
              help="Rows of the table `deadletters` in Parquet.")  # fmt: skip
@click.option("--out", required=True, type=click.Path(file_okay=False, path_type=Path), metavar="OUT",
              help="Where tables, summary.json, plan.jsonl and report.html go.")  # fmt: skip
@click.option(
    "--overwrite", is_flag=True, help="Replace OUT, at the end and as a whole, if an earlier run wrote it."
)
@click.option("--previous", type=click.Path(file_okay=False, path_type=Path), metavar="OUT",
              help="An earlier run's OUT: say what is new, regressed and gone since.")  # fmt: skip
@click.option("--topic", "topics", multiple=True, metavar="NAME", help="Only this topic; may be repeated.")
@click.option("--group", "groups", multiple=True, metavar="NAME", help="Only this group; may be repeated.")
@click.option(
    "--payloads", is_flag=True, help="Keep keys, headers and payloads, and show some of them in the report."
)
@click.option("--decide", multiple=True, callback=_decide, metavar="FAILURE=VERDICT",
              help="The plan's verdict (redrive, hold, discard) for a failure, whatever the rules say.")  # fmt: skip
@click.option("--quiet", "quiet_s", default=3600, show_default=True, type=click.IntRange(1), metavar="SECONDS",
              help="A failure not seen for so long is not happening any more.")  # fmt: skip
@click.option("--rate", "rate_max", default=100.0, show_default=True, type=click.FloatRange(0, min_open=True),
              metavar="N", help="Redrive at most so many messages a second.")  # fmt: skip
@click.option("--as-of", callback=_time, metavar="TIME", help="Analyse as if it were this time, not now.")
@click.option(
    "--strict",
    is_flag=True,
    help="End with 1 if something could not be read that may be missing for it: all but a torn last write, which a "
    "running node mostly has. All is reported anyway.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
def command(
    data: tuple[Path, ...],
    nodes: str,
    parquet: Path | None,
    out: Path,
    overwrite: bool,
    previous: Path | None,
    topics: tuple[str, ...],
    groups: tuple[str, ...],
    payloads: bool,
    decide: dict[str, str],
    quiet_s: int,
    rate_max: float,
    as_of: datetime | None,
    strict: bool,
    as_json: bool,
) -> None:
    """Analyse dead letters: tables in Parquet, summary.json, a redrive plan and one HTML file to look at.

    They are read from the data directories of all nodes (running or not), or from a running cluster. Without --payloads
    no key, header or payload is kept anywhere in OUT; what consumers reported (error, text, stack) is.

    The plan is carried out by `quorumq deadletters redrive --plan OUT/plan.jsonl`.
    """
    if sum(map(bool, (data, nodes, parquet))) != 1:
        raise click.UsageError(
            "say what to read: --data DIR for each node, or --nodes HOST:PORT,…, or --parquet DIR"
        )
    OUTPUT.check(out, overwrite)
    before = read_previous_head(previous) if previous is not None else None
    from spark.session import fit, job_session
    from spark.transforms.plan import Limits

    spark = job_session("quorumq deadletters")
    fit(spark, sum(map(bytes_in, (*data, parquet) if parquet is not None else data)))
    found = read(spark, data=data, nodes=nodes, parquet=parquet, topics=topics, groups=groups)
    settings = Settings(
        now=as_of or datetime.now(UTC),
        previous=previous if before else None,
        payloads=payloads,
        overwrite=overwrite,
        limits=Limits(quiet_s=quiet_s, rate_max=rate_max),
        decide=decide,
    )
    summary = run(found, out, settings)
    if as_json:
        click.echo(json.dumps(summary, ensure_ascii=False))
    else:
        for line in told(summary, out):
            click.echo(line)
    problems = summary["problems"]["count"]
    if problems:
        click.echo(f"{problems:,} places could not be read: see {out / REPORT}", err=True)
        if strict and problems > summary["problems"]["harmless"]:
            raise click.exceptions.Exit(1)


def bytes_in(place: Path) -> int:
    """Bytes of all files in a directory, of which a running node deletes some meanwhile."""
    size = 0
    for path in place.rglob("*"):
        try:
            size += path.stat().st_size
        except OSError:
            continue
    return size


def read(
    session: SparkSession,
    *,
    data: Iterable[Path] = (),
    nodes: str = "",
    parquet: Path | None = None,
    topics: Iterable[str] = (),
    groups: Iterable[str] = (),
) -> Input:
    """The dead letters of data directories, of a running cluster, or of a table in Parquet.

    Raises:
        UsageError, NotFound, StorageError: there is nothing that can be read; says what.
    """
    from spark.schemas import TABLES as SOURCE

    directories = [str(path) for path in data]
    cluster: str | None
    if parquet is not None:
        if not parquet.is_dir():
            raise NotFound(f"{parquet} is no directory: --parquet takes what `DataFrame.write.parquet` wrote")
        letters = read_parquet(session, parquet)
        problems, source, cluster = None, str(parquet), None
    else:
        from spark.source import register

        register(session)
        place = {"data": json.dumps(directories)} if directories else {"nodes": nodes}
        reader = session.read.format("quorumq").options(**place)
        if directories:
            reader = reader.option("onDamage", "report")
        letters = reader.option("table", "deadletters").load()
        problems = None
        if directories and "problems" in SOURCE:
            problems = reader.option("table", "problems").load()
        source = ", ".join(directories) or nodes
        cluster = cluster_of_directories(directories) if directories else cluster_of_nodes(nodes)
    topics, groups = tuple(topics), tuple(groups)
    letters = only(letters, topics, groups)
    for column, names in (("topic", topics), ("group", groups)):
        if names:
            source += f"; {column} {', '.join(names)}"
    return Input(letters, problems, source, cluster, nodes, topics, groups)


def read_parquet(session: SparkSession, place: Path) -> DataFrame:
    """The rows of the table `deadletters` in a directory.

    Raises:
        NotFound: there is no Parquet in it.
        UsageError: a column that every dead letter has is missing, or null in some row: nothing would be counted of it.
    """
    from pyspark.sql import functions as F

    from spark.schemas import TABLES as SOURCE
    from spark.schemas import schema
    from spark.session import exactly, file_path

    whole, path = schema("deadletters"), exactly(file_path(place))
    if not any(name.is_file() and not name.name.startswith(("_", ".")) for name in place.rglob("*")):
        if not (place / "_SUCCESS").exists():
            raise NotFound(
                f"{place} has no Parquet in it: --parquet takes what `DataFrame.write.parquet` wrote"
            )
        # Spark makes no more than that of a table that has partitions and no rows.
        return session.createDataFrame([], whole)
    needed = [column.name for column in SOURCE["deadletters"] if not column.nullable]
    there = session.read.parquet(path).columns
    missing = [name for name in needed if name not in there]
    if missing:
        raise UsageError(
            f"{place} has no column {', '.join(missing)}: --parquet takes rows of the table deadletters"
        )
    letters = with_topics(session.read.schema(whole).parquet(path))
    # The other two are long, and nothing is counted by them.
    told = [name for name in needed if name not in ("message", "stack")]
    nulls = letters.agg(*(F.count_if(F.col(name).isNull()).alias(name) for name in told)).first()
    for name in told:
        if nulls is not None and nulls[name]:
            raise UsageError(f"{place} has {nulls[name]:,} rows without {name}, which every dead letter has")
    return letters


def only(rows: DataFrame, topics: Iterable[str], groups: Iterable[str]) -> DataFrame:
    """The rows of these topics and groups; of all where none is named."""
    from pyspark.sql import functions as F

    for column, names in (("topic", list(topics)), ("group", list(groups))):
        if names:
            rows = rows.where(F.col(column).isin(names))
    return rows


def cluster_of_directories(directories: Iterable[str]) -> str | None:
    """The id of the cluster that these data directories are of; None where none of them can be read."""
    from spark.source.journals import ignore, plan_directory

    for directory in directories:
        try:
            return plan_directory(directory, ignore).directory.cluster_id
        except QuorumqError:
            continue  # the read itself says why
    return None


def cluster_of_nodes(nodes: str) -> str:
    """The id of the cluster that answers at these addresses."""
    import trio

    from quorumq.client import connect

    async def ask() -> str:
        addresses = [part.strip() for part in nodes.split(",") if part.strip()]
        async with connect(addresses, timeout=10.0) as client:
            return (await client.metadata()).cluster_id

    return trio.run(ask)


def read_previous_head(previous: Path) -> dict[str, Any]:
    """The summary of a run, and the table that is compared with must be there."""
    summary = OUTPUT.read_head(previous)
    if not (previous / "tables" / "failures").is_dir():
        raise StorageError(f"{previous}/tables/failures is missing: the run that wrote it was not complete")
    return summary


def check_previous(previous: Mapping[str, Any], settings: Settings, found: Input) -> None:
    """See that a run can be compared with this one: what only one of them looked at would be called new, or gone.

    Raises:
        UsageError: it was of another cluster, or looked at less.
    """
    cluster = previous.get("cluster")
    if cluster is not None and found.cluster is not None and cluster != found.cluster:
        raise UsageError(
            f"{settings.previous} is of cluster {cluster!r} and this one is {found.cluster!r}: give --previous an OUT "
            "of the same cluster"
        )
    for option, names in (("topic", found.topics), ("group", found.groups)):
        before = previous.get("only", {}).get(f"{option}s", [])
        if before and not (names and set(names) <= set(before)):
            raise UsageError(
                f"{settings.previous} is of {option} {', '.join(before)} only: choose no others with --{option}, or "
                "give --previous an OUT that has them all"
            )


# ------------------------------------------------------------------------------ the analysis


def run(found: Input, out: Path, settings: Settings) -> dict[str, Any]:
    """Analyse, and write OUT.

    Returns:
        the summary, as it is in OUT/summary.json (docs/spark.md).
    """
    from spark.report.deadletters import page

    previous = read_previous_head(settings.previous) if settings.previous is not None else None
    if previous is not None:
        check_previous(previous, settings, found)
    from spark.session import interruptible

    with OUTPUT.staged(out, settings.overwrite) as new, interruptible():
        frames = analyse(found, new / "tables", settings)
        summary, facts = summarise(frames, found, settings, previous)
        redrive = write_plan(frames, new / PLAN, found, settings)
        assert redrive == summary["plan"]["redrive"]["messages"], (
            "the plan must have every message that it counts"
        )
        (new / SUMMARY).write_text(json.dumps(summary, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
        (new / REPORT).write_text(page(summary, facts), encoding="utf-8")
    return summary


def analyse(found: Input, tables: Path, settings: Settings) -> dict[str, DataFrame]:
    """Every table of TABLES, written under ``tables`` and read back from there.

    ``period`` besides: one row with the first and the last plausible time of death and the width of a bucket.
    """

    from spark.session import exactly, file_path
    from spark.transforms import letters as t
    from spark.transforms import plan, rates

    session = found.deadletters.sparkSession
    now = settings.now

    def store(name: str, frame: DataFrame, *, small: bool = True) -> DataFrame:
        path = file_path(tables / name)
        by = [column for column in ("date", "topic") if column in frame.columns]
        # A small table is one file a day and topic, not one for each task.
        writer = (frame.coalesce(1) if small else frame).write
        (writer.partitionBy(*by) if by else writer).parquet(path)
        return with_topics(session.read.schema(frame.schema).parquet(exactly(path))).select(*frame.columns)

    frames: dict[str, DataFrame] = {}
    rows = t.letters(found.deadletters, now, payloads=settings.payloads)
    letters = frames["letters"] = store("letters", rows, small=False)
    begin, end = period(letters, now)
    seconds = rates.bucket_seconds((end - begin).total_seconds())
    frames["period"] = session.createDataFrame(
        [(begin, end, seconds)], "begin timestamp, end timestamp, seconds bigint"
    )

    frames["samples"] = store("samples", t.samples(letters))
    frames["places"] = store("places", t.places(letters, now))
    before = None
    if settings.previous is not None:
        path = file_path(settings.previous / "tables" / "failures")
        before = with_topics(session.read.schema(t.PREVIOUS).parquet(exactly(path)))
        before = only(before, found.topics, found.groups)
    frames["failures"] = store(
        "failures", t.failures(letters, frames["samples"], frames["places"], now, before)
    )
    counts = frames["counts"] = store("counts", rates.counts(letters, seconds))
    frames["rates"] = store("rates", rates.rates(counts, begin, end, seconds))
    frames["bursts"] = store("bursts", rates.bursts(frames["rates"], counts, seconds))
    frames["ages"] = store("ages", t.ages(letters, now))
    frames["deploys"] = store("deploys", rates.deploys(counts, begin, end, seconds, now))
    with tempfile.TemporaryDirectory(dir=tables.parent, prefix="steps-") as steps:
        path = file_path(Path(steps, "repeated"))
        t.repeated(letters).write.parquet(path)
        repeated = session.read.schema(t.REPEATED).parquet(exactly(path))
        frames["poison"] = store("poison", t.poison(letters, repeated, now))
    frames["attempts"] = store("attempts", t.attempts(letters, now))
    frames["sizes"] = store("sizes", t.sizes(letters, now))
    frames["to_death"] = store("to_death", t.to_death(letters, now))
    limits = settings.limits or plan.DEFAULTS
    proof = plan.evidence(letters, frames["places"], now, limits)
    frames["decisions"] = store("decisions", plan.decisions(proof, now, limits, settings.decide))
    if found.problems is not None:
        frames["problems"] = store("problems", found.problems)
    return frames


def with_topics(rows: DataFrame) -> DataFrame:
    """What was filed by topic, read back: a topic may have the name that Spark gives to none, and is null then."""
    from pyspark.sql import functions as F

    if "topic" not in rows.columns:
        return rows
    return rows.withColumn("topic", F.coalesce("topic", F.lit("__HIVE_DEFAULT_PARTITION__")))


def period(letters: DataFrame, now: datetime) -> tuple[datetime, datetime]:
    """The first and the last plausible time of death, in UTC: an hour that a clock shows twice a year is one of two."""
    from pyspark.sql import functions as F

    times = letters.where("dated").agg(F.min("died_at").alias("begin"), F.max("died_at").alias("end")).first()
    found = (times["begin"], times["end"]) if times is not None and times["begin"] else (now, now)
    return utc(found[0]), utc(found[1])


PLANNED: Final = ("rank", "id", "generation", "n")
"""What the plan says of a message, and of which decision it is."""


def in_order(folder: Path) -> Iterator[tuple[Any, ...]]:
    """The messages of a redrive plan in their order: what Spark wrote there, file by file.

    By way of files: what comes from a task to the driver goes through Java's memory, and what finds no room there is
    lost, and the job with it.
    """
    from pyarrow.parquet import ParquetFile

    for part in sorted(folder.glob("part-*"), key=lambda path: int(path.name.split("-")[1])):
        with ParquetFile(part) as file:
            for batch in file.iter_batches(columns=list(PLANNED)):
                yield from zip(*(batch.column(name).to_pylist() for name in PLANNED), strict=True)


def write_plan(frames: Mapping[str, DataFrame], path: Path, found: Input, settings: Settings) -> int:
    """The redrive plan as JSON Lines (docs/spark.md, "The redrive plan"); how many messages it has."""
    from pyspark.sql import functions as F

    from spark.session import file_path
    from spark.transforms import plan

    decisions = frames["decisions"].orderBy("rank").toLocalIterator()
    chosen = frames["decisions"].where("verdict = 'redrive'").agg(F.sum("messages").alias("count")).first()
    total = int(chosen["count"] or 0) if chosen is not None else 0
    count = 0
    head = {"quorumq_plan": 1, "cluster": found.cluster, "made_at": iso(settings.now), "source": found.source}
    with (
        # Interrupted, Spark may write there yet: that must not take the place of the interrupt.
        tempfile.TemporaryDirectory(dir=path.parent, prefix="steps-", ignore_cleanup_errors=True) as steps,
        path.open("w", encoding="utf-8") as lines,
    ):
        folder = Path(steps, "messages")
        plan.messages(frames["letters"], frames["decisions"], total).write.parquet(file_path(folder))
        messages = in_order(folder)
        waiting = next(messages, None)

        def write(value: dict[str, Any]) -> None:
            lines.write(json.dumps(value, ensure_ascii=False) + "\n")

        write(head)
        for decision in decisions:
            names = (
                "verdict",
                "topic",
                "topic_id",
                "group",
                "failure",
                "error_class",
                "rule",
                "reason",
                "messages",
                "rate",
            )
            write({name: decision[name] for name in names if decision[name] is not None})
            while waiting is not None and waiting[0] == decision["rank"]:
                write(dict(zip(PLANNED[1:], (waiting[1], int(waiting[2]), waiting[3]), strict=True)))
                count += 1
                waiting = next(messages, None)
        lines.flush()
        os.fsync(lines.fileno())
    assert waiting is None, f"a message to redrive without a decision: {waiting}"
    return count


def summarise(
    frames: Mapping[str, DataFrame], found: Input, settings: Settings, previous: dict[str, Any] | None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The summary, and what the report shows besides: tops of the tables, as plain values."""
    from pyspark.sql import functions as F

    from spark.transforms.letters import RESOLUTIONS

    def top(name: str, *order: Any, most: int = TOP, where: str = "true") -> list[dict[str, Any]]:
        return [plain(row) for row in frames[name].where(where).orderBy(*order).limit(most).collect()]

    kinds = frames["failures"].agg(
        F.count("*").alias("kinds"),
        *(F.coalesce(F.sum(name), F.lit(0)).alias(name) for name in ("deaths", *RESOLUTIONS)),
        *(F.count(F.when(F.col("status") == name, 1)).alias(name) for name in STATUSES),
        F.min("first_died_at").alias("first_died_at"),
        F.max("last_died_at").alias("last_died_at"),
    )  # fmt: skip
    totals = plain(kinds.first())
    aged = plain(
        frames["ages"].agg(
            F.min("oldest_published_at").alias("oldest_published_at"),
            F.min("oldest_died_at").alias("oldest_died_at"),
            *(F.coalesce(F.sum(name), F.lit(0)).alias(name) for name in ("undated", "skewed")),
        ).first()
    )  # fmt: skip
    period = plain(frames["period"].first())
    verdicts = {
        row["verdict"]: {"failures": row["failures"], "messages": row["messages"]}
        for row in frames["decisions"]
        .groupBy("verdict")
        .agg(F.count("*").alias("failures"), F.sum("messages").alias("messages"))
        .collect()
    }
    many = F.col("deaths").desc()
    facts: dict[str, Any] = {
        "failures": top("failures", many, "topic", "group", "failure"),
        "bursts": top("bursts", F.col("score").desc(), "from_at", "topic", "group"),
        "ages": top("ages", many, "topic", "group"),
        "deploys": top("deploys", F.col("regression").desc_nulls_last(), F.col("score").desc_nulls_last(), "version"),
        "places": [
            row
            for kind in ("version", "host", "consumer", "node")
            for row in top("places", many, "topic", "group", "name", most=100, where=f"kind = '{kind}'")
        ],
        "poison": top("poison", many, "kind", "name"),
        "decisions": top("decisions", "rank"),
        "attempts": [plain(row) for row in frames["attempts"].groupBy("attempts", "reason")
                     .agg(F.sum("deaths").alias("deaths")).orderBy("attempts", "reason").limit(TOP).collect()],
        "sizes": [plain(row) for row in frames["sizes"].groupBy("size_from", "size_to")
                  .agg(F.sum("deaths").alias("deaths")).orderBy("size_from").limit(TOP).collect()],
        "to_death": [plain(row) for row in frames["to_death"].groupBy("seconds_from", "seconds_to")
                     .agg(F.sum("deaths").alias("deaths")).orderBy("seconds_from").limit(TOP).collect()],
        "period": period,
        "payloads": settings.payloads,
    }  # fmt: skip
    facts.update(series(frames, facts["failures"]))
    facts["samples"] = shown_samples(frames, facts["failures"], settings.payloads)
    from spark.source.journals import HARMLESS

    problems: dict[str, Any] = {"count": 0, "harmless": 0, "rows": []}
    if "problems" in frames:
        problems["count"] = frames["problems"].count()
        problems["harmless"] = frames["problems"].where(F.col("what").isin(*HARMLESS)).count()
        problems["rows"] = top("problems", "path", F.col("segment").asc_nulls_first(), most=100)
    summary: dict[str, Any] = {
        **OUTPUT.mark,
        "as_of": iso(settings.now),
        "source": found.source,
        "cluster": found.cluster,
        "nodes": found.nodes,
        "only": {"topics": list(found.topics), "groups": list(found.groups)},
        "previous": {"out": str(settings.previous), "as_of": previous["as_of"]} if previous is not None else None,
        "deaths": totals["deaths"],
        **{name: totals[name] for name in RESOLUTIONS},
        "failures": totals["kinds"],
        "status": {name: totals[name] for name in STATUSES} if previous is not None else None,
        "first_died_at": iso(totals["first_died_at"]),
        "last_died_at": iso(totals["last_died_at"]),
        "oldest_published_at": iso(aged["oldest_published_at"]),
        "oldest_died_at": iso(aged["oldest_died_at"]),
        "undated": aged["undated"],
        "skewed": aged["skewed"],
        "bucket_seconds": period["seconds"],
        "bursts": frames["bursts"].count(),
        "regressions": frames["deploys"].where("regression").count(),
        "poison": frames["poison"].count(),
        "plan": {name: verdicts.get(name, {"failures": 0, "messages": 0}) for name in ("redrive", "hold", "discard")},
        "groups": [
            {"topic": row["topic"], "group": row["group"], "deaths": row["deaths"], "dead": row["dead"]}
            for row in facts["ages"]
        ],
        "top": [
            {name: value(row[name]) for name in TOP_COLUMNS} for row in facts["failures"][:SUMMARY_TOP]
        ],
        "problems": {**problems, "rows": [{k: value(v) for k, v in row.items()} for row in problems["rows"]]},
    }  # fmt: skip
    return summary, facts


STATUSES: Final = ("new", "regressed", "ongoing", "gone")
TOP_COLUMNS: Final = (
    "topic", "group", "failure", "status", "deaths", "dead", "share", "error_class", "first_died_at", "last_died_at",
    "sample_ids",
)  # fmt: skip


def series(frames: Mapping[str, DataFrame], failures: list[dict[str, Any]]) -> dict[str, Any]:
    """Deaths over time: of the largest kinds of failures and the rest, of each group, and of each version."""
    from pyspark.sql import functions as F

    names: list[str] = []
    for row in failures:
        if row["failure"] not in names and row["deaths"]:
            names.append(row["failure"])
    names = names[:SERIES]
    counts = frames["counts"]
    kind = F.when(F.col("failure").isin(names), F.col("failure")).otherwise(F.lit("")) if names else F.lit("")

    def over_time(name: str, column: Any) -> list[dict[str, Any]]:
        grouped = counts.groupBy(column.alias(name), "from_at").agg(F.sum("deaths").alias("deaths"))
        return [plain(row) for row in grouped.orderBy("from_at", name).collect()]

    largest = counts.groupBy("consumer_version").agg(F.sum("deaths").alias("all"))
    versions = [
        row["consumer_version"]
        for row in largest.orderBy(F.col("all").desc(), "consumer_version").limit(SERIES).collect()
    ]
    version = F.when(F.col("consumer_version").isin(versions), F.col("consumer_version")).otherwise(
        F.lit("others")
    )
    groups = [
        plain(row)
        for row in frames["rates"]
        .groupBy("topic", "group")
        .agg(F.sum("deaths").alias("all"))
        .orderBy(F.col("all").desc(), "topic", "group")
        .limit(SERIES + 1)
        .collect()
    ]
    rates = frames["rates"].join(
        frames["rates"].sparkSession.createDataFrame(
            [(row["topic"], row["group"]) for row in groups], "topic string, `group` string"
        ),
        ["topic", "group"],
    )
    return {
        "by_failure": over_time("failure", kind),
        "by_version": over_time("version", version if versions else F.lit("")),
        "rates": [plain(row) for row in rates.orderBy("topic", "group", "from_at").collect()],
    }


def shown_samples(
    frames: Mapping[str, DataFrame], failures: list[dict[str, Any]], payloads: bool
) -> dict[tuple[str, str, str], dict[str, Any]]:
    """A message for each of the largest kinds of failures, long texts cut; with its key and payload if wanted."""
    from pyspark.sql import functions as F

    session = frames["samples"].sparkSession
    kinds = [(row["topic"], row["group"], row["failure"]) for row in failures[:SAMPLES_SHOWN]]
    wanted = session.createDataFrame(kinds, "topic string, `group` string, failure string")
    rows = frames["samples"].where("rank = 1").join(F.broadcast(wanted), ["topic", "group", "failure"])
    rows = rows.withColumns({
        "message": F.substring("message", 1, TEXT_SHOWN),
        # The end of a traceback is what was raised.
        "stack": F.expr(f"right(stack, {TEXT_SHOWN})"),
    })  # fmt: skip
    if payloads:
        content = frames["letters"].select(
            "id", "group", "generation", "n", F.substring("key", 1, PAYLOAD_SHOWN).alias("key"),
            F.substring("payload", 1, PAYLOAD_SHOWN).alias("payload"), "headers",
        )  # fmt: skip
        rows = content.join(F.broadcast(rows), ["id", "group", "generation", "n"], "right")
    return {(row["topic"], row["group"], row["failure"]): plain(row) for row in rows.collect()}


# ------------------------------------------------------------------------------------ values


def plain(row: Row | None) -> dict[str, Any]:
    """A row as a dictionary; times with their zone."""
    assert row is not None
    return {name: utc(found) for name, found in row.asDict().items()}


def utc(found: Any) -> Any:
    """A time in UTC; Spark gives times in the zone of this process, without saying so."""
    return found.astimezone(UTC) if isinstance(found, datetime) else found


def iso(at: datetime | None) -> str | None:
    """A time as text, to the millisecond."""
    return (
        at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        if at is not None
        else None
    )


def value(found: Any) -> Any:
    """As JSON has it."""
    return iso(found) if isinstance(found, datetime) else found


def told(summary: dict[str, Any], out: Path) -> list[str]:
    """What a person is told at the end."""
    if not summary["deaths"]:
        return [f"no dead letters in {summary['source']}", f"report: {out / REPORT}"]
    plan = summary["plan"]
    lines = [
        f"{summary['deaths']:,} dead letters of {summary['failures']:,} kinds, {summary['dead']:,} of them unresolved",
        f"plan: redrive {plan['redrive']['messages']:,}, hold {plan['hold']['messages']:,}, "
        f"discard {plan['discard']['messages']:,}",
        f"report: {out / REPORT}",
    ]
    if plan["redrive"]["messages"]:
        lines.append(f"next: quorumq deadletters redrive --plan {out / PLAN} --dry-run")
    if summary["status"] is not None:
        found = ", ".join(f"{count:,} {name}" for name, count in summary["status"].items())
        lines.insert(1, f"since {summary['previous']['as_of']}: {found}")
    return lines
