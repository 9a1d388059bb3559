"""Tables about dead letters that are too many to read.

Every function takes frames and gives a frame with the schema named beside it; nothing is read, written or collected
here. They begin with `letters`, a dead letter a row, which the job stores first, so that what follows reads only the
columns that it needs.

One failure may be nearly all rows. So counts are grouped over numbers and times only (Spark keeps those in one hash
map and adds partial sums before it shuffles), samples are taken by a ranking that keeps the first few on each side of
the shuffle, and no list grows with the number of rows.
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

LETTERS: Final = """
    date DATE, id STRING, topic STRING, topic_id STRING, partition INT, producer_id STRING, seq BIGINT,
    `group` STRING, failure STRING, generation DECIMAL(20,0), n INT, resolution STRING, reason STRING,
    error_class STRING, message STRING, stack STRING, fingerprint STRING, attempts INT, published_at TIMESTAMP,
    first_delivered_at TIMESTAMP, last_delivered_at TIMESTAMP, died_at TIMESTAMP, dated BOOLEAN,
    seconds_to_death DOUBLE, consumer STRING, consumer_version STRING, host STRING, node STRING, size BIGINT,
    crc STRING, digest STRING, key_digest STRING, replicas ARRAY<STRING>"""
CONTENT: Final = "key BINARY, headers MAP<STRING,STRING>, payload BINARY"
"""Further columns of `letters` if payloads are wanted."""

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
PLACES: Final = """
    date DATE, topic STRING, `group` STRING, kind STRING, name STRING, deaths BIGINT, dead BIGINT, share DOUBLE,
    failures BIGINT, first_died_at TIMESTAMP, last_died_at TIMESTAMP, failure STRING, failure_deaths BIGINT"""
POISON: Final = """
    date DATE, topic STRING, `group` STRING, kind STRING, name STRING, messages BIGINT, deaths BIGINT, dead BIGINT,
    redrives INT, failures BIGINT, share DOUBLE, first_died_at TIMESTAMP, last_died_at TIMESTAMP, sample_id STRING"""
REPEATED: Final = "hash BIGINT"
ATTEMPTS: Final = "date DATE, topic STRING, `group` STRING, reason STRING, attempts INT, deaths BIGINT"
SIZES: Final = "date DATE, topic STRING, `group` STRING, size_from BIGINT, size_to BIGINT, deaths BIGINT"
TO_DEATH: Final = """
    date DATE, topic STRING, `group` STRING, seconds_from DOUBLE, seconds_to DOUBLE, deaths BIGINT"""


def letters(deadletters: DataFrame, now: datetime, *, payloads: bool = False) -> DataFrame:
    """Return a row for each death: the table `deadletters` in, LETTERS out, CONTENT too with ``payloads``."""
    reason = F.when(F.col("reason") == "", F.lit("unknown")).otherwise(F.col("reason"))
    dated = (F.col("died_at") >= F.lit(PLAUSIBLE_FROM).cast("timestamp")) & (
        F.col("died_at") <= F.lit(now) + F.expr(f"INTERVAL {PLAUSIBLE_AHEAD}")
    )
    made = (
        deadletters.withColumn("date", F.to_date("died_at"))
        .withColumn("failure", F.when(F.col("fingerprint") == "", reason).otherwise(F.col("fingerprint")))
        .withColumn("dated", F.coalesce(dated, F.lit(False)))
        .withColumn("seconds_to_death", seconds_of(F.col("died_at")) - seconds_of(F.col("published_at")))
        .withColumn("key_digest", F.sha2("key", 256))
    )
    return shaped(made, f"{LETTERS}, {CONTENT}" if payloads else LETTERS)


def failures(
    letters: DataFrame,
    samples: DataFrame,
    places: DataFrame,
    now: datetime,
    previous: DataFrame | None = None,
) -> DataFrame:
    """Return kinds of failures: LETTERS, SAMPLES_OF and PLACES in, and a previous run's PREVIOUS; FAILURES out.

    ``status`` is null without a previous run. Else a kind is `new` if that run did not have it; `gone` if nothing died
    of it since and nothing of it is dead; `regressed` if it died again after it was gone or settled; else `ongoing`.
    What was gone is listed on, with no deaths, so that its return is noticed.
    """
    totals = letters.groupBy(*KIND).agg(
        *tally(), *(F.count_if(F.col("resolution") == name).alias(name) for name in RESOLUTIONS[1:])
    )
    rows = _with_status(letters, totals, previous)
    own = samples.groupBy(*KIND).agg(
        F.sort_array(F.collect_list(F.struct("rank", "id", "reason", "error_class", "message"))).alias("own")
    )
    versions = (
        places.where((F.col("kind") == "version-of-failure") & (F.col("name") != ""))
        .groupBy(*KIND)
        .agg(
            F.sort_array(F.collect_list("name")).alias("versions"),
            F.min_by("name", F.struct("first_died_at", "name")).alias("first_version"),
        )
    )
    everywhere = (
        totals.groupBy("failure").agg(
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
    facts = {
        "share": F.when(all_of_group > 0, F.col("deaths") / all_of_group).otherwise(0.0),
        "per_hour": F.when(F.col("deaths") > 0, F.col("deaths") / hours).otherwise(0.0),
        **{name: f"coalesce(own[0].{name}, '')" for name in ("reason", "error_class", "message")},
        "sample_ids": F.coalesce(F.col("own")["id"], texts),
        "versions": F.coalesce("versions", texts),
        "first_version": "coalesce(first_version, '')",
        "topics": "coalesce(topics, array(topic))",
        "groups": "coalesce(groups, array(`group`))",
    }
    return shaped(with_facts(joined, facts), FAILURES, now)


def _with_status(letters: DataFrame, totals: DataFrame, previous: DataFrame | None) -> DataFrame:
    """Return totals with ``status`` and ``fresh``, and rows of a previous run that are no longer there."""
    if previous is None:
        return totals.withColumn("status", F.lit(None).cast("string")).withColumn("fresh", F.col("deaths"))
    before = previous.select(
        *KIND,
        F.col("status").alias("was"),
        F.col("dead").alias("was_dead"),
        F.col("last_died_at").alias("until"),
    )
    since = (
        letters.select(*KIND, "died_at")
        .join(before.select(*KIND, "until"), [*KIND])
        .where(F.col("until").isNull() | (F.col("died_at") > F.col("until")))
        .groupBy(*KIND)
        .agg(F.count("*").alias("since"))
    )
    joined = totals.join(before, [*KIND], "full").join(since, [*KIND], "left")
    facts = {
        **{name: f"coalesce({name}, 0)" for name in ("deaths", *RESOLUTIONS)},
        "fresh": "if(was_dead IS NULL, deaths, coalesce(since, 0))",
        "status": (
            "CASE WHEN was_dead IS NULL THEN 'new' WHEN fresh = 0 AND dead = 0 THEN 'gone' "
            "WHEN fresh > 0 AND (was = 'gone' OR was_dead = 0) THEN 'regressed' ELSE 'ongoing' END"
        ),
        "last_died_at": "coalesce(last_died_at, until)",
    }
    return with_facts(joined, facts)


def samples(letters: DataFrame, most: int = SAMPLES) -> DataFrame:
    """Return a few dead letters of each kind, those still dead first, then the newest: LETTERS in, SAMPLES_OF out."""
    newest = (
        F.col("resolution") != "dead",
        F.col("died_at").desc_nulls_last(),
        "id",
        F.col("n").desc(),
        "generation",
    )
    # The long texts are fetched afterwards, for the few rows that stay.
    names = ("id", "group", "generation", "n")
    rows = letters.select(*KIND, "id", "generation", "n", "died_at", "resolution")
    chosen = ranked(rows, KIND, *newest, most=most).select(*names, "rank")
    return shaped(letters.join(F.broadcast(chosen), [*names]), SAMPLES_OF)


def ages(letters: DataFrame, now: datetime) -> DataFrame:
    """Return ages of dead letters and their times to death, in seconds: LETTERS in, AGES out.

    Ages are of those still dead, counted from their death. A time to death below zero is a producer's clock ahead of a
    node's: counted as ``skewed``, in no quantile. Quantiles are values that occur, off by at most a rank in 10,000.
    """
    dead = F.col("resolution") == "dead"
    age = F.when(dead & F.col("dated"), seconds_of(F.lit(now)) - seconds_of(F.col("died_at")))
    to_death = F.when(F.col("dated") & (F.col("seconds_to_death") >= 0), F.col("seconds_to_death"))
    made = letters.groupBy(*GROUP).agg(
        F.count("*").alias("deaths"),
        F.count_if(dead).alias("dead"),
        F.min(F.when(dead, F.col("published_at"))).alias("oldest_published_at"),
        F.min(F.when(dead, F.col("died_at"))).alias("oldest_died_at"),
        F.percentile_approx(age, [0.5, 0.99]).alias("age"),
        F.max(age).alias("age_max"),
        F.count(to_death).alias("to_death_known"),
        F.percentile_approx(to_death, [0.5, 0.99]).alias("to_death"),
        F.max(to_death).alias("to_death_max"),
        F.count_if(F.col("seconds_to_death") < 0).alias("skewed"),
        F.count_if(~F.col("dated")).alias("undated"),
    )
    quantiles = {
        f"{name}_p{of}": f"{name}[{at}]" for name in ("age", "to_death") for at, of in enumerate((50, 99))
    }
    return shaped(with_facts(made, quantiles), AGES, now)


def places(letters: DataFrame, now: datetime) -> DataFrame:
    """Return deaths by consumer version, host, consumer and node: LETTERS in, PLACES out, with ``kind`` of those names.

    Rows of kind `version-of-failure` say which versions each kind of failure was seen with; ``failure`` is that kind.
    """
    kinds = {"version": "consumer_version", "host": "host", "consumer": "consumer", "node": "node"}
    each = (
        letters.select(*KIND, "died_at", "resolution", *kinds.values())
        .withColumn("place", F.explode(_named(kinds)))
        .groupBy(*KIND, "place.kind", "place.name")
        .agg(*tally())
    )
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
    return shaped(both, PLACES, now)


def repeated(letters: DataFrame) -> DataFrame:
    """Return hashes of the keys and payloads that enough deaths of a group have: LETTERS in, REPEATED out.

    They may be poison. Nearly every key and payload dies once. Counting numbers first leaves these out.
    """
    name = F.explode(_named(_DIGESTS)).alias("what")
    rows = letters.select(*GROUP, "key_digest", "digest").select(*GROUP, name)
    hashes = rows.where(F.col("what.name").isNotNull()).select(_hash("what").alias("hash"))
    enough = min(DEFAULTS.poison_key, DEFAULTS.poison_payload)
    return shaped(hashes.groupBy("hash").count().where(F.col("count") >= enough), REPEATED)


_DIGESTS: Final = {"key": "key_digest", "payload": "digest"}
"""The column that tells one of each kind of poison from another."""


def _named(columns: Mapping[str, str]) -> Column:
    """Return the name in the column of each kind: an array of kind and name."""
    each = (F.struct(F.lit(kind).alias("kind"), F.col(name).alias("name")) for kind, name in columns.items())
    return F.array(*each)


def _hash(column: str) -> Column:
    return F.xxhash64(*GROUP, f"{column}.kind", f"{column}.name")


def poison(letters: DataFrame, repeated: DataFrame, now: datetime) -> DataFrame:
    """Return keys, payloads and messages that die again and again: LETTERS and REPEATED in, POISON out.

    ``kind`` is `key` (at least `poison_key` messages with this key died), `payload` (at least `poison_payload` messages
    with the same bytes), or `message` (it died again after at least `poison_redrives` redrives). ``name`` is the
    SHA-256 of key or payload, or the message's id. ``share`` is of the group's deaths.
    """
    rows = letters.select(*KIND, "id", "key_digest", "digest", "n", "died_at", "resolution")
    again = rows.withColumn("what", F.explode(_named(_DIGESTS))).withColumn("hash", _hash("what"))
    # A message counts as one in a loop only if it was redriven.
    redriven = rows.where(F.col("n") > 0).withColumn("what", F.explode(_named({"message": "id"})))
    each = (
        again.join(repeated, "hash", "left_semi")
        .drop("hash")
        .unionByName(redriven)
        .where(F.col("what.name").isNotNull())
        .groupBy(*KIND, "what.kind", "what.name", "id")
        .agg(*tally(), F.max("n").alias("redrives"))
    )
    numbers, name = (*counted(), F.max("redrives").alias("redrives")), (*GROUP, "kind", "name")
    by_message = each.groupBy(*name, "id").agg(*numbers)
    failures = each.select(*name, "failure").distinct().groupBy(*name).agg(F.count("*").alias("failures"))
    enough = (
        "kind = 'key' AND messages >= {poison_key} OR kind = 'payload' AND messages >= {poison_payload} "
        "OR kind = 'message' AND redrives >= {poison_redrives}"
    ).format(**DEFAULTS._asdict())
    total = letters.groupBy(*GROUP).agg(F.count("*").alias("all"))
    made = (
        by_message.groupBy(*name)
        .agg(F.count("*").alias("messages"), F.min("id").alias("sample_id"), *numbers)
        .where(enough)
        .join(failures, [*name])
        .join(F.broadcast(total), [*GROUP])
        .withColumn("share", F.col("deaths") / F.col("all"))
    )
    return shaped(made, POISON, now)


def attempts(letters: DataFrame, now: datetime) -> DataFrame:
    """Return the numbers of deliveries of messages at their death: LETTERS in, ATTEMPTS out."""
    made = letters.groupBy(*GROUP, "reason", "attempts").agg(F.count("*").alias("deaths"))
    return shaped(made, ATTEMPTS, now)


def sizes(letters: DataFrame, now: datetime) -> DataFrame:
    """Return payload sizes in powers of two, `size_from` to below `size_to`: LETTERS in, SIZES out; null: not known."""
    low = F.expr("CASE WHEN size = 0 THEN 0 WHEN size > 0 THEN bigint(pow(2.0, int(floor(log2(size))))) END")
    made = (
        letters.groupBy(*GROUP, low.alias("size_from"))
        .agg(F.count("*").alias("deaths"))
        .withColumn("size_to", F.expr("if(size_from IS NOT NULL, greatest(1, 2 * size_from), NULL)"))
    )
    return shaped(made, SIZES, now)


def to_death(letters: DataFrame, now: datetime) -> DataFrame:
    """Return time from publish to death in seconds, four buckets to a power of ten: LETTERS in, TO_DEATH out.

    Below a millisecond is in the bucket that begins with 0; unknown and negative times are left out.
    """
    seconds = F.col("seconds_to_death")
    step = F.floor(F.log10(F.greatest(seconds, F.lit(0.001))) * 4)
    made = (
        letters.where(F.col("dated") & (seconds >= 0))
        .withColumn("step", F.when(seconds < 0.001, F.lit(-13)).otherwise(F.greatest(step, F.lit(-12))))
        .groupBy(*GROUP, "step")
        .agg(F.count("*").alias("deaths"))
        .withColumn(
            "seconds_from", F.when(F.col("step") < -12, 0.0).otherwise(F.pow(F.lit(10.0), F.col("step") / 4))
        )
        .withColumn("seconds_to", F.pow(F.lit(10.0), (F.col("step") + 1) / 4))
    )
    return shaped(made, TO_DEATH, now)


def tally() -> list[Column]:
    """Return counts of rows of LETTERS that died and that are dead, and times of the first and the last death."""
    return [
        F.count("*").alias("deaths"),
        F.count_if(F.col("resolution") == "dead").alias("dead"),
        F.min("died_at").alias("first_died_at"),
        F.max("died_at").alias("last_died_at"),
    ]


def counted() -> list[Column]:
    """Return the same of rows that `tally` has made."""
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


def with_facts(rows: DataFrame, facts: Mapping[str, str | Column]) -> DataFrame:
    """Return the rows with more columns; a text is SQL, and may ask for those before it."""
    for name, fact in facts.items():
        rows = rows.withColumn(name, F.expr(fact) if isinstance(fact, str) else fact)
    return rows


def shaped(frame: DataFrame, schema: str, now: datetime | None = None) -> DataFrame:
    """Return exactly the columns of a schema, with its types; with ``now`` its day as ``date``."""
    if now is not None:
        frame = frame.withColumn("date", F.to_date(F.lit(now)))
    fields = StructType.fromDDL(schema).fields
    return frame.select(*(F.col(field.name).cast(field.dataType).alias(field.name) for field in fields))
