"""Deaths over time: in buckets, as bursts, and around the first of each consumer version.

As in `letters`, every function takes frames and gives a frame with the schema named beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from .letters import DEFAULTS, GROUP, KIND, VERSIONS_MAX, date_of, ranked, seconds_of, shaped

COUNTS: Final = """
    topic STRING, `group` STRING, failure STRING, consumer_version STRING, from_at TIMESTAMP, deaths BIGINT"""
RATES: Final = """
    date DATE, topic STRING, `group` STRING, from_at TIMESTAMP, seconds BIGINT, deaths BIGINT, usual DOUBLE,
    score DOUBLE, burst BOOLEAN"""
BURSTS: Final = """
    date DATE, topic STRING, `group` STRING, from_at TIMESTAMP, to_at TIMESTAMP, deaths BIGINT, peak BIGINT,
    usual DOUBLE, score DOUBLE, failure STRING, failure_deaths BIGINT"""
DEPLOYS: Final = """
    date DATE, topic STRING, `group` STRING, version STRING, first_died_at TIMESTAMP, deaths BIGINT,
    before_hours DOUBLE, before_deaths BIGINT, before_per_hour DOUBLE, after_hours DOUBLE, after_deaths BIGINT,
    after_per_hour DOUBLE, after_own BIGINT, score DOUBLE, regression BOOLEAN"""


def counts(letters: DataFrame, seconds: int) -> DataFrame:
    """Deaths per kind, consumer version and bucket of so many seconds: LETTERS in, COUNTS out.

    Those without a plausible time of death are left out; AGES counts them.
    """
    return shaped(
        letters.where("dated")
        .withColumn("from_at", _bucket(F.col("died_at"), seconds))
        .groupBy(*KIND, "consumer_version", "from_at")
        .agg(F.count("*").alias("deaths")),
        COUNTS,
    )


def rates(counts: DataFrame, begin: datetime, end: datetime, seconds: int) -> DataFrame:
    """Deaths of each group over time, empty buckets included, and which are bursts: COUNTS in, RATES out.

    A bucket's score says by how many standard deviations it is above the usual: deaths n become y = 2·sqrt(n + 3/8),
    whose deviation is 1 where deaths come independently (Anscombe), and the score is (y - median) / max(1, 1.4826·MAD).
    Median and MAD, as a burst must not raise what it is measured against; at least 1, as a flat line has MAD 0.
    A burst has `burst_score`, at least `burst_deaths` in its bucket, and at least `burst_buckets` to compare with.

    Args:
        counts: of buckets of ``seconds``.
        begin, end: the times of the first and last death that count.
        seconds: of a bucket.
    """
    first, last = (F.floor(seconds_of(F.lit(time)) / seconds) * seconds for time in (begin, end))
    per_group = counts.groupBy(*GROUP, "from_at").agg(F.sum("deaths").alias("deaths"))
    spine = (
        counts.select(*GROUP)
        .distinct()
        # In seconds: a day of a session's time zone may have 23 hours.
        .withColumn("from_at", F.explode(F.sequence(first, last, F.lit(seconds).cast("bigint"))))
        .withColumn("from_at", F.timestamp_seconds("from_at"))
    )
    y = 2 * F.sqrt(F.col("deaths") + 0.375)
    group = Window.partitionBy(*GROUP)
    made = (
        spine.join(per_group, [*GROUP, "from_at"], "left")
        .withColumn("deaths", F.coalesce("deaths", F.lit(0)))
        .withColumn("y", y)
        .withColumn("middle", F.median("y").over(group))
        .withColumn("spread", F.median(F.abs(F.col("y") - F.col("middle"))).over(group))
        .withColumn("usual", F.median("deaths").over(group))
        .withColumn("buckets", F.count("*").over(group))
        .withColumn(
            "score", (F.col("y") - F.col("middle")) / F.greatest(F.lit(1.0), 1.4826 * F.col("spread"))
        )
        .withColumn(
            "burst",
            (F.col("score") >= DEFAULTS.burst_score)
            & (F.col("deaths") >= DEFAULTS.burst_deaths)
            & (F.col("buckets") >= DEFAULTS.burst_buckets),
        )
        .withColumn("date", F.to_date("from_at"))
        .withColumn("seconds", F.lit(seconds).cast("bigint"))
    )
    return shaped(made, RATES)


def bursts(rates: DataFrame, counts: DataFrame, seconds: int) -> DataFrame:
    """Bursts that touch are one, with the kind of failure that died most in it: RATES and COUNTS in, BURSTS out."""
    before = Window.partitionBy(*GROUP).orderBy("from_at")
    gap = seconds_of(F.col("from_at")) - seconds_of(F.lag("from_at").over(before))
    runs = (
        rates.where("burst")
        .withColumn("first", F.coalesce(gap > seconds, F.lit(True)).cast("int"))
        .withColumn("run", F.sum("first").over(before))
    )
    found = runs.groupBy(*GROUP, "run").agg(
        F.min("from_at").alias("from_at"),
        F.timestamp_seconds(seconds_of(F.max("from_at")) + seconds).alias("to_at"),
        F.sum("deaths").alias("deaths"),
        F.max("deaths").alias("peak"),
        F.first("usual").alias("usual"),
        F.max("score").alias("score"),
    )
    causes = (
        counts.join(F.broadcast(runs.select(*GROUP, "run", "from_at")), [*GROUP, "from_at"])
        .groupBy(*GROUP, "run", "failure")
        .agg(F.sum("deaths").alias("failure_deaths"))
    )
    causes = ranked(causes, (*GROUP, "run"), F.col("failure_deaths").desc(), "failure").drop("rank")
    made = found.join(causes, [*GROUP, "run"], "left").withColumn("date", F.to_date("from_at"))
    return shaped(made, BURSTS)


def deploys(
    counts: DataFrame,
    begin: datetime,
    end: datetime,
    seconds: int,
    now: datetime,
) -> DataFrame:
    """Deaths before and after each consumer version's first: COUNTS in, DEPLOYS out.

    The bucket of a version's first death, and those behind it, are compared with those in front of it: up to
    `deploy_buckets` each way, as far as there is a period to look at. The score is that of a binomial test: of
    ``before + after`` deaths, so many would come after by the lengths of the two times. A `regression` has
    `deploy_score`, `deploy_deaths` in both together, and at least `deploy_share` of those after are its own. A version
    that was there in the first bucket has nothing before it: score and regression are null.

    These are deaths an hour, not deaths per delivery: a version that is given more messages dies more.
    """
    reach = DEFAULTS.deploy_buckets
    versions = (
        counts.where(F.col("consumer_version") != "")
        .groupBy(*GROUP, F.col("consumer_version").alias("version"))
        .agg(F.min("from_at").alias("start"), F.sum("deaths").alias("all"))
    )
    versions = ranked(versions, GROUP, F.col("all").desc(), "version", most=VERSIONS_MAX).drop("rank")
    per_version = counts.groupBy(*GROUP, "consumer_version", "from_at").agg(F.sum("deaths").alias("deaths"))
    offset = (seconds_of(F.col("from_at")) - seconds_of(F.col("start"))) / seconds
    after = (offset >= 0) & (offset < reach)
    before = (offset < 0) & (offset >= -reach)
    own = F.col("consumer_version") == F.col("version")
    seen = (
        F.broadcast(versions)
        .join(per_version, [*GROUP])
        .groupBy(*GROUP, "version", "start", "all")
        .agg(
            F.sum(F.when(before, F.col("deaths")).otherwise(0)).alias("before_deaths"),
            F.sum(F.when(after, F.col("deaths")).otherwise(0)).alias("after_deaths"),
            F.sum(F.when(after & own, F.col("deaths")).otherwise(0)).alias("after_own"),
        )
    )
    first, last = _bucket(F.lit(begin), seconds), _bucket(F.lit(end), seconds)
    buckets_before = F.least(F.lit(float(reach)), (seconds_of(F.col("start")) - seconds_of(first)) / seconds)
    buckets_after = F.least(
        F.lit(float(reach)), (seconds_of(last) - seconds_of(F.col("start"))) / seconds + 1
    )
    total = F.col("before_deaths") + F.col("after_deaths")
    odds = F.col("after_hours") / (F.col("before_hours") + F.col("after_hours"))
    score = (F.col("after_deaths") - total * odds) / F.sqrt(total * odds * (1 - odds))
    made = (
        seen.withColumn("before_hours", buckets_before * seconds / 3600)
        .withColumn("after_hours", buckets_after * seconds / 3600)
        .withColumn("score", F.when(F.col("before_hours") > 0, score))
        .withColumn(
            "regression",
            F.when(
                F.col("score").isNotNull(),
                (F.col("score") >= DEFAULTS.deploy_score)
                & (total >= DEFAULTS.deploy_deaths)
                & (F.col("after_own") >= DEFAULTS.deploy_share * F.col("after_deaths")),
            ),
        )
        .withColumn(
            "before_per_hour",
            F.when(F.col("before_hours") > 0, F.col("before_deaths") / F.col("before_hours")),
        )
        .withColumn("after_per_hour", F.col("after_deaths") / F.col("after_hours"))
        .withColumn("deaths", F.col("all"))
        .withColumn("first_died_at", F.col("start"))
        .withColumn("date", date_of(now))
    )
    return shaped(made, DEPLOYS)


def bucket_seconds(span: float, most: int = 96) -> int:
    """The width of a bucket, so that ``span`` seconds are at most about ``most`` of them."""
    steps: Sequence[int] = (1, 2, 5, 10, 30, 60, 300, 900, 3600, 3 * 3600, 6 * 3600, 12 * 3600, 86400)
    return next((step for step in steps if span / step <= most), 86400 * (1 + int(span / 86400 / most)))


def _bucket(time: Column, seconds: int) -> Column:
    return F.timestamp_seconds(F.floor(seconds_of(time) / seconds) * seconds)
