"""Tables about dead letters that are too many to read.

Every function takes frames and gives a frame with the schema named beside it; nothing is read, written or collected
here. They begin with `letters`, a dead letter a row, which the job stores first. Five passes read it, each only the
columns that it needs: `cube`, `sketches`, `repeated`, `again` and `fetched`. All tables are made of their results.

One failure may be nearly all rows. So the cube groups over numbers and times only (Spark keeps those in one hash map
and adds partial sums before it shuffles), samples and quantiles are from sketches of a fixed size, and no list grows
with the number of rows. Sketches are not part of the cube, because Spark would then sort all rows of both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final, NamedTuple

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

GROUP: Final = ("topic", "group")
KIND: Final = ("topic", "group", "failure")
"""Columns that two dead letters of one kind share: the group, and the fingerprint, or the reason without one."""

RESOLUTIONS: Final = ("dead", "redriven", "acked", "purged", "reopened", "closed")
SAMPLES: Final = 3
VERSIONS_MAX: Final = 50
"""Most versions of a group's consumers that are looked at, those with the most dead letters."""

PLAUSIBLE_FROM: Final = "2020-01-01"
PLAUSIBLE_AHEAD: Final = "1 day"
"""A time of death before the first, or further ahead of now than the second, is a clock gone wrong: no rate uses it."""


class Thresholds(NamedTuple):
    """Thresholds above which something is worth a person's attention. docs/spark.md says why these."""

    burst_score: float = 4.0
    burst_deaths: int = 10
    burst_buckets: int = 8
    deploy_score: float = 4.0
    deploy_deaths: int = 20
    deploy_share: float = 0.5
    deploy_buckets: int = 12
    poison_key: int = 3
    poison_payload: int = 2
    poison_redrives: int = 1


DEFAULTS: Final = Thresholds()

DEATHS: Final = """
    date DATE, id STRING, topic STRING, topic_id STRING, partition INT, producer_id STRING, seq BIGINT,
    `group` STRING, failure STRING, generation DECIMAL(20,0), n INT, resolution STRING, reason STRING,
    error_class STRING, message STRING, stack STRING, fingerprint STRING, attempts INT, published_at TIMESTAMP,
    first_delivered_at TIMESTAMP, last_delivered_at TIMESTAMP, died_at TIMESTAMP, dated BOOLEAN,
    seconds_to_death DOUBLE, consumer STRING, consumer_version STRING, host STRING, node STRING, size BIGINT,
    crc STRING, digest STRING, key_digest STRING, replicas ARRAY<STRING>"""
CONTENT: Final = "key BINARY, headers MAP<STRING,STRING>, payload BINARY"
"""Further columns of `deaths` if payloads are wanted."""

FAILURES: Final = """
    date DATE, topic STRING, `group` STRING, failure STRING, status STRING, deaths BIGINT, dead BIGINT, redriven BIGINT,
    acked BIGINT, purged BIGINT, reopened BIGINT, closed BIGINT, fresh BIGINT, share DOUBLE, first_died_at TIMESTAMP,
    last_died_at TIMESTAMP, per_hour DOUBLE, reason STRING, error_class STRING, message STRING, versions ARRAY<STRING>,
    first_version STRING, topics ARRAY<STRING>, groups ARRAY<STRING>, sample_ids ARRAY<STRING>"""
PREVIOUS: Final = (
    "topic STRING, `group` STRING, failure STRING, status STRING, dead BIGINT, last_died_at TIMESTAMP"
)
SAMPLES_OF: Final = """
    topic STRING, `group` STRING, failure STRING, rank INT, id STRING, partition INT, generation DECIMAL(20,0), n INT,
    resolution STRING, reason STRING, error_class STRING, message STRING, stack STRING, attempts INT,
    published_at TIMESTAMP, died_at TIMESTAMP, consumer STRING, consumer_version STRING, host STRING, node STRING,
    size BIGINT"""
AGES: Final = """
    date DATE, topic STRING, `group` STRING, deaths BIGINT, dead BIGINT, oldest_published_at TIMESTAMP,
    oldest_died_at TIMESTAMP, age_p50 DOUBLE, age_p99 DOUBLE, age_max DOUBLE, to_death_known BIGINT,
    to_death_p50 DOUBLE, to_death_p99 DOUBLE, to_death_max DOUBLE, skewed BIGINT, undated BIGINT"""
LOCATIONS: Final = """
    date DATE, topic STRING, `group` STRING, kind STRING, name STRING, deaths BIGINT, dead BIGINT, share DOUBLE,
    failures BIGINT, first_died_at TIMESTAMP, last_died_at TIMESTAMP, failure STRING, failure_deaths BIGINT"""
POISON: Final = """
    date DATE, topic STRING, `group` STRING, kind STRING, name STRING, messages BIGINT, deaths BIGINT, dead BIGINT,
    redrives INT, failures BIGINT, share DOUBLE, first_died_at TIMESTAMP, last_died_at TIMESTAMP, sample_id STRING"""
REPEATED: Final = "hash BIGINT"
MEASURES: Final = f"""
    deaths BIGINT, {" BIGINT, ".join(RESOLUTIONS)} BIGINT, again BIGINT, often BIGINT, recent BIGINT, since BIGINT,
    digests BIGINT, skewed BIGINT, undated BIGINT, to_death_known BIGINT, to_death_max DOUBLE, first_died_at TIMESTAMP,
    last_died_at TIMESTAMP, oldest_died_at TIMESTAMP, oldest_dated_at TIMESTAMP, oldest_published_at TIMESTAMP"""
CUBE: Final = f"""
    of STRING, topic STRING, `group` STRING, failure STRING, topic_id STRING, reason STRING, error_class STRING,
    consumer_version STRING, host STRING, consumer STRING, node STRING, from_at TIMESTAMP, {MEASURES}"""
SETS: Final[Mapping[str, tuple[str, ...]]] = {
    "cause": (*KIND, "topic_id", "reason", "error_class", "consumer_version", "host", "consumer", "node"),
    "time": (*KIND, "consumer_version", "from_at"),
}
"""Columns of a cell of the cube, by the value of its column ``of``."""

SKETCHES: Final = """
    topic STRING, `group` STRING, failure STRING, age ARRAY<DOUBLE>, to_death ARRAY<DOUBLE>,
    first ARRAY<STRUCT<settled: BOOLEAN, undated: BOOLEAN, back: BIGINT, id: STRING, down: INT,
    generation: DECIMAL(20,0)>>"""
AGAIN: Final = """
    topic STRING, `group` STRING, failure STRING, kind STRING, name STRING, id STRING, deaths BIGINT, dead BIGINT,
    first_died_at TIMESTAMP, last_died_at TIMESTAMP, redrives INT"""


def deaths(deadletters: DataFrame, now: datetime, *, payloads: bool = False) -> DataFrame:
    """Return a row for each death: the table `deadletters` in, DEATHS out, CONTENT too with ``payloads``."""
    dated = (F.col("died_at") >= F.lit(PLAUSIBLE_FROM).cast("timestamp")) & (
        F.col("died_at") <= F.lit(now) + F.expr(f"INTERVAL {PLAUSIBLE_AHEAD}")
    )
    more: dict[str, str | Column] = {
        "failure": "if(fingerprint = '', if(reason = '', 'unknown', reason), fingerprint)",
        "dated": F.coalesce(dated, F.lit(False)),
        "date": "if(dated, to_date(died_at), NULL)",  # a wrong clock makes no directories
        "seconds_to_death": seconds_of(F.col("died_at")) - seconds_of(F.col("published_at")),
        "key_digest": "sha2(key, 256)",
    }
    return shaped(with_columns(deadletters, more), f"{DEATHS}, {CONTENT}" if payloads else DEATHS)


def cube(
    deaths: DataFrame,
    seconds: int,
    now: datetime,
    previous: DataFrame | None = None,
    *,
    quiet_s: int = 3600,
    redrives_max: int = 3,
) -> DataFrame:
    """Return the counts of all tables, in cells of SETS: DEATHS in, CUBE out.

    Args:
        deaths: a row for each death.
        seconds: width of a time bucket.
        now: time of the analysis.
        previous: PREVIOUS, to count the deaths since the last one of each kind there as ``since``.
        quiet_s: seconds within which a death is ``recent``.
        redrives_max: number of redrives from which on a dead letter counts as ``often``.
    """
    seconds_to, dead = F.col("seconds_to_death"), F.col("resolution") == "dead"
    known = F.col("dated") & (seconds_to >= 0)
    since = F.lit(False)
    rows = deaths
    if previous is not None:
        before = previous.select(*KIND, F.lit(True).alias("known"), F.col("last_died_at").alias("until"))
        rows = deaths.join(before, [*KIND], "left")
        since = F.col("known") & (F.col("until").isNull() | (F.col("died_at") > F.col("until")))
    recent = F.col("died_at") > F.lit(now) - F.expr(f"INTERVAL {quiet_s} SECONDS")
    rows = rows.withColumn("from_at", F.when(F.col("dated"), bucket(F.col("died_at"), seconds)))
    columns = list(dict.fromkeys(name for names in SETS.values() for name in names))
    of = F.coalesce(*(F.when(F.grouping(names[-1]) == 0, F.lit(of)) for of, names in SETS.items()))
    cells = rows.groupingSets([[*names] for names in SETS.values()], *columns).agg(
        *(F.count_if(F.col("resolution") == name).alias(name) for name in RESOLUTIONS),
        F.count("*").alias("deaths"),
        F.count_if(dead & (F.col("n") >= 1)).alias("again"),
        F.count_if(dead & (F.col("n") >= redrives_max)).alias("often"),
        F.count_if(dead & F.col("digest").isNotNull()).alias("digests"),
        F.count_if(recent).alias("recent"),
        F.count_if(since).alias("since"),
        F.count_if(seconds_to < 0).alias("skewed"),
        F.count_if(~F.col("dated")).alias("undated"),
        F.count_if(known).alias("to_death_known"),
        F.max(F.when(known, seconds_to)).alias("to_death_max"),
        F.min("died_at").alias("first_died_at"),
        F.max("died_at").alias("last_died_at"),
        F.min(F.when(dead, F.col("died_at"))).alias("oldest_died_at"),
        F.min(F.when(dead & F.col("dated"), F.col("died_at"))).alias("oldest_dated_at"),
        F.min(F.when(dead, F.col("published_at"))).alias("oldest_published_at"),
        of.alias("of"),
    )
    return shaped(cells, CUBE)


def cells(cube: DataFrame, of: str) -> DataFrame:
    return cube.where(F.col("of") == of)


def totals(rows: DataFrame, *by: str | Column) -> DataFrame:
    """Return the sums of cells by some columns: MEASURES."""
    names = [field.name for field in StructType.fromDDL(MEASURES)]
    least = ("first_died_at", *(name for name in names if name.startswith("oldest")))
    return rows.groupBy(*by).agg(*(
        (F.min if name in least else F.max if name in ("last_died_at", "to_death_max") else F.sum)(name).alias(name)
        for name in names
    ))  # fmt: skip


def sketches(deaths: DataFrame, now: datetime) -> DataFrame:
    """Return samples and quantiles: DEATHS in, SKETCHES out.

    A row for each kind has its first `SAMPLES` dead letters: those still dead first, then the newest. A row for each
    group, with no failure, has p50 and p99 of ages and of times to death: values that occur, off by at most a rank in
    10,000.
    """
    dead = F.col("resolution") == "dead"
    age = F.when(dead & F.col("dated"), seconds_of(F.lit(now)) - seconds_of(F.col("died_at")))
    to_death = F.when(F.col("dated") & (F.col("seconds_to_death") >= 0), F.col("seconds_to_death"))
    order = F.struct(
        (~dead).alias("settled"), F.col("died_at").isNull().alias("undated"),
        (-F.unix_micros("died_at")).alias("back"), "id", (-F.col("n")).alias("down"), "generation",
    )  # fmt: skip
    each = deaths.select(
        *GROUP, F.explode(F.array("failure", F.lit(None))).alias("failure"), age.alias("age"),
        to_death.alias("to_death"), order.alias("order"),
    )  # fmt: skip
    of_group, order = F.col("failure").isNull(), F.when(F.col("failure").isNotNull(), F.col("order"))
    made = each.groupBy(*KIND).agg(
        *(F.percentile_approx(F.when(of_group, F.col(name)), [0.5, 0.99]).alias(name) for name in ("age", "to_death")),
        F.min_by(order, order, SAMPLES).alias("first"),
    )  # fmt: skip
    return shaped(made, SKETCHES)


def failures(
    cube: DataFrame,
    samples: DataFrame,
    locations: DataFrame,
    now: datetime,
    previous: DataFrame | None = None,
) -> DataFrame:
    """Return kinds of failures: CUBE, SAMPLES_OF and PLACES in, and a previous run's PREVIOUS; FAILURES out.

    ``status`` is null without a previous run. Else a kind is `new` if that run did not have it; `gone` if nothing died
    of it since and nothing of it is dead; `regressed` if it died again after it was gone or settled; else `ongoing`.
    What was gone is listed on, with no deaths, so that its return is noticed.
    """
    kinds = totals(cells(cube, "cause"), *KIND)
    rows = _with_status(kinds, previous)
    own = samples.groupBy(*KIND).agg(
        F.sort_array(F.collect_list(F.struct("rank", "id", "reason", "error_class", "message"))).alias("own")
    )
    versions = (
        locations.where((F.col("kind") == "version-of-failure") & (F.col("name") != ""))
        .groupBy(*KIND)
        .agg(
            F.sort_array(F.collect_list("name")).alias("versions"),
            F.min_by("name", F.struct("first_died_at", "name")).alias("first_version"),
        )
    )
    everywhere = (
        kinds.groupBy("failure").agg(
            F.sort_array(F.collect_set("topic")).alias("topics"), F.sort_array(F.collect_set("group")).alias("groups")
        )
    )  # fmt: skip
    hours = F.greatest(
        F.lit(1.0), (seconds_of(F.col("last_died_at")) - seconds_of(F.col("first_died_at"))) / 3600
    )
    all_of_group = F.sum("deaths").over(Window.partitionBy(*GROUP))
    texts = F.array().cast("array<string>")
    joined = (
        rows.join(own, [*KIND], "left").join(versions, [*KIND], "left").join(everywhere, ["failure"], "left")
    )
    more = {
        "share": F.when(all_of_group > 0, F.col("deaths") / all_of_group).otherwise(0.0),
        "per_hour": F.when(F.col("deaths") > 0, F.col("deaths") / hours).otherwise(0.0),
        **{name: f"coalesce(own[0].{name}, '')" for name in ("reason", "error_class", "message")},
        "sample_ids": F.coalesce(F.col("own")["id"], texts),
        "versions": F.coalesce("versions", texts),
        "first_version": "coalesce(first_version, '')",
        "topics": "coalesce(topics, array(topic))",
        "groups": "coalesce(groups, array(`group`))",
    }
    return shaped(with_columns(joined, more), FAILURES, now)


def _with_status(kinds: DataFrame, previous: DataFrame | None) -> DataFrame:
    """Return totals with ``status`` and ``fresh``, and rows of a previous run that are no longer there."""
    if previous is None:
        return kinds.withColumn("status", F.lit(None).cast("string")).withColumn("fresh", F.col("deaths"))
    before = previous.select(
        *KIND,
        F.col("status").alias("was"),
        F.col("dead").alias("was_dead"),
        F.col("last_died_at").alias("until"),
    )
    joined = kinds.join(before, [*KIND], "full")
    more = {
        **{name: f"coalesce({name}, 0)" for name in ("deaths", *RESOLUTIONS)},
        "fresh": "if(was_dead IS NULL, deaths, coalesce(since, 0))",
        "status": (
            "CASE WHEN was_dead IS NULL THEN 'new' WHEN fresh = 0 AND dead = 0 THEN 'gone' "
            "WHEN fresh > 0 AND (was = 'gone' OR was_dead = 0) THEN 'regressed' ELSE 'ongoing' END"
        ),
        "last_died_at": "coalesce(last_died_at, until)",
    }
    return with_columns(joined, more)


def fetched(
    deaths: DataFrame, sketches: DataFrame, decisions: DataFrame, *, payload_bytes: int = 0
) -> DataFrame:
    """Return the samples, with ``rank``, and the messages to redrive, with ``planned``, the rank of their decision.

    DEATHS, SKETCHES and `spark.transforms.plan.DECISIONS` in. Only samples have texts. The first sample of a kind
    has ``payload_bytes`` bytes of key and payload, and the headers, if that is not 0.
    """
    names = ("id", "group", "generation", "n")
    chosen = sketches.where(F.col("failure").isNotNull()).select(
        "group", F.posexplode(F.sort_array("first")).alias("at", "it")
    )
    chosen = chosen.select(
        "it.id", "group", "it.generation", (-F.col("it.down")).alias("n"), (F.col("at") + 1).alias("rank")
    )
    planned = decisions.where("verdict = 'redrive'").select(*KIND, "topic_id", F.col("rank").alias("planned"))
    rows = deaths.join(F.broadcast(chosen), [*names], "left")
    rows = rows.join(F.broadcast(planned), [*KIND, "topic_id"], "left")
    more = {"planned": "if(resolution = 'dead', planned, NULL)"}
    more |= {name: f"if(rank IS NOT NULL, {name}, NULL)" for name in ("message", "stack")}
    columns = f"{SAMPLES_OF}, planned INT"
    if payload_bytes:
        cut = {name: f"substring({name}, 1, {payload_bytes})" for name in ("key", "payload")} | {
            "headers": "headers"
        }
        more |= {name: f"if(rank = 1, {text}, NULL)" for name, text in cut.items()}
        columns += f", {CONTENT}"
    rows = with_columns(rows, more).where("rank IS NOT NULL OR planned IS NOT NULL")
    return shaped(rows, columns)


def ages(cube: DataFrame, sketches: DataFrame, now: datetime) -> DataFrame:
    """Return ages of dead letters and their times to death, in seconds: CUBE and SKETCHES in, AGES out.

    Ages are of those still dead, counted from their death. A time to death below zero is a producer's clock ahead of a
    node's: counted as ``skewed``, in no quantile.
    """
    of_group = sketches.where(F.col("failure").isNull()).select(*GROUP, "age", "to_death")
    made = totals(cells(cube, "cause"), *GROUP).join(of_group, [*GROUP])
    more: dict[str, str | Column] = {
        f"{name}_p{of}": f"{name}[{at}]" for name in ("age", "to_death") for at, of in enumerate((50, 99))
    }
    more["age_max"] = seconds_of(F.lit(now)) - seconds_of(F.col("oldest_dated_at"))
    return shaped(with_columns(made, more), AGES, now)


def locations(cube: DataFrame, now: datetime) -> DataFrame:
    """Return deaths by consumer version, host, consumer and node: CUBE in, PLACES out, with ``kind`` of those names.

    Rows of kind `version-of-failure` say which versions each kind of failure was seen with; ``failure`` is that kind.
    """
    names = "stack(4, 'version', consumer_version, 'host', host, 'consumer', consumer, 'node', node) AS (kind, name)"
    each = cells(cube, "cause").selectExpr("*", names).groupBy(*KIND, "kind", "name").agg(*counted())
    most, name = F.col("deaths").desc(), (*GROUP, "kind", "name")
    top = ranked(each, name, most, "failure")
    top = top.select(*name, "failure", F.col("deaths").alias("failure_deaths"))
    of_group = Window.partitionBy(*GROUP, "kind")
    summed = each.groupBy(*name).agg(F.count("*").alias("failures"), *counted()).join(top, [*name])
    of_failures = (
        ranked(each.where(F.col("kind") == "version"), KIND, most, "name", most=VERSIONS_MAX)
        .withColumn("kind", F.lit("version-of-failure"))
        .withColumn("failures", F.lit(1).cast("bigint"))
        .withColumn("failure_deaths", F.col("deaths"))
    )
    both = summed.withColumn("share", F.col("deaths") / F.sum("deaths").over(of_group)).unionByName(
        of_failures.withColumn("share", F.col("deaths") / F.sum("deaths").over(Window.partitionBy(*KIND))),
        allowMissingColumns=True,
    )
    return shaped(both, LOCATIONS, now)


NAMES: Final = {"key": "key_digest", "payload": "digest", "message": "if(n > 0, id, NULL)"}
"""Names of what may be poison, in SQL, by kind: a message counts as one in a loop only if it was redriven."""

HASHES: Final = {
    kind: f"if({name} IS NULL, NULL, xxhash64(topic, `group`, '{kind}', {name}))"
    for kind, name in NAMES.items()
}
"""A name's hash in its group."""


def repeated(deaths: DataFrame) -> DataFrame:
    """Return hashes of the keys and payloads that enough deaths of a group have, and of messages that were redriven.

    DEATHS in, REPEATED out. They may be poison. Nearly every key and payload dies once. Counting numbers first leaves
    these out.
    """
    enough = min(DEFAULTS.poison_key, DEFAULTS.poison_payload)
    each = [*HASHES.values(), *[HASHES["message"]] * (enough - 1)]  # one redrive is enough
    hashes = deaths.select(F.explode(F.array(*map(F.expr, each))).alias("hash")).where("hash IS NOT NULL")
    # Nearly all differ: sums before the shuffle would cost more than they save.
    counts = hashes.repartition("hash").groupBy("hash").agg(F.count("*").alias("count"))
    return shaped(counts.where(F.col("count") >= enough), REPEATED)


def again(deaths: DataFrame, repeated: DataFrame) -> DataFrame:
    """Return the deaths of each message that may be poison: DEATHS and REPEATED in, AGAIN out.

    ``kind`` is `key`, `payload` or `message`. ``name`` is the SHA-256 of key or payload, or the message's id.
    """
    rows = ", ".join(f"'{kind}', {name}, {HASHES[kind]}" for kind, name in NAMES.items())
    each = deaths.selectExpr("*", f"stack({len(NAMES)}, {rows}) AS (kind, name, hash)")
    each = each.join(repeated, "hash", "left_semi")
    made = each.groupBy(*KIND, "kind", "name", "id").agg(
        F.count("*").alias("deaths"),
        F.count_if(F.col("resolution") == "dead").alias("dead"),
        F.min("died_at").alias("first_died_at"),
        F.max("died_at").alias("last_died_at"),
        F.max("n").alias("redrives"),
    )
    return shaped(made, AGAIN)


def poison(again: DataFrame, cube: DataFrame, now: datetime) -> DataFrame:
    """Return keys, payloads and messages that die again and again: AGAIN and CUBE in, POISON out.

    ``kind`` is `key` (at least `poison_key` messages with this key died), `payload` (at least `poison_payload` messages
    with the same bytes), or `message` (it died again after at least `poison_redrives` redrives). ``share`` is of the
    group's deaths.
    """
    numbers, name = (*counted(), F.max("redrives").alias("redrives")), (*GROUP, "kind", "name")
    by_message = again.groupBy(*name, "id").agg(*numbers)
    failures = again.select(*name, "failure").distinct().groupBy(*name).agg(F.count("*").alias("failures"))
    enough = (
        "kind = 'key' AND messages >= {poison_key} OR kind = 'payload' AND messages >= {poison_payload} "
        "OR kind = 'message' AND redrives >= {poison_redrives}"
    ).format(**DEFAULTS._asdict())
    total = cells(cube, "cause").groupBy(*GROUP).agg(F.sum("deaths").alias("all"))
    made = (
        by_message.groupBy(*name)
        .agg(F.count("*").alias("messages"), F.min("id").alias("sample_id"), *numbers)
        .where(enough)
        .join(failures, [*name])
        .join(F.broadcast(total), [*GROUP])
        .withColumn("share", F.col("deaths") / F.col("all"))
    )
    return shaped(made, POISON, now)


def counted() -> list[Column]:
    """Return the sums of counts of deaths and of the dead, and the times of the first and the last death."""
    first, last = F.min("first_died_at").alias("first_died_at"), F.max("last_died_at").alias("last_died_at")
    return [*summed("deaths", "dead"), first, last]


def summed(*names: str) -> list[Column]:
    """Return the sums of columns, under the same names."""
    return [F.sum(name).alias(name) for name in names]


def ranked(rows: DataFrame, by: Sequence[str], *order: Column | str, most: int = 1) -> DataFrame:
    """Return the first ``most`` rows of each group in an order, numbered as ``rank``."""
    rank = F.row_number().over(Window.partitionBy(*by).orderBy(*order))
    return rows.withColumn("rank", rank).where(F.col("rank") <= most)


def seconds_of(time: Column) -> Column:
    return F.unix_micros(time) / 1e6


def bucket(time: Column, seconds: int) -> Column:
    return F.timestamp_seconds(F.floor(seconds_of(time) / seconds) * seconds)


def with_columns(rows: DataFrame, more: Mapping[str, str | Column]) -> DataFrame:
    """Return the rows with more columns; a text is SQL, and may ask for those before it."""
    for name, column in more.items():
        rows = rows.withColumn(name, F.expr(column) if isinstance(column, str) else column)
    return rows


def shaped(frame: DataFrame, schema: str, now: datetime | None = None) -> DataFrame:
    """Return exactly the columns of a schema, with its types; with ``now`` its day as ``date``."""
    if now is not None:
        frame = frame.withColumn("date", F.to_date(F.lit(now)))
    fields = StructType.fromDDL(schema).fields
    return frame.select(*(F.col(field.name).cast(field.dataType).alias(field.name) for field in fields))
