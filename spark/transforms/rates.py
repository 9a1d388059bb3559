"""Deaths over time: in buckets, as bursts, and around the first of each consumer version.

As in `deaths`, every function takes frames and gives a frame with the schema named beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from .deaths import DEFAULTS, GROUP, VERSIONS_MAX, bucket, cells, ranked, seconds_of, shaped, with_columns

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


def counts(cube: DataFrame) -> DataFrame:
    """Return deaths per kind, consumer version and bucket: CUBE in, COUNTS out.

    Those without a plausible time of death are left out; AGES counts them.
    """
    return shaped(cells(cube, "time").where(F.col("from_at").isNotNull()), COUNTS)


def rates(counts: DataFrame, begin: datetime, end: datetime, seconds: int) -> DataFrame:
    """Return deaths of each group over time, empty buckets included, with bursts marked: COUNTS in, RATES out.

    A bucket's score says by how many standard deviations it is above the usual: deaths n become y = 2·sqrt(n + 3/8),
    whose deviation is 1 if deaths are independent (Anscombe), and the score is (y - median) / max(1, 1.4826·MAD).
    Median and MAD, because a burst must not raise its own measure; at least 1, because a flat line has MAD 0.
    A burst has `burst_score`, at least `burst_deaths` in its bucket, and at least `burst_buckets` to compare with.

    Args:
        counts: counts in buckets of ``seconds``.
        begin, end: the times of the first and last death that count.
        seconds: width of a bucket.
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
    group = Window.partitionBy(*GROUP)
    more = {
        "deaths": "coalesce(deaths, 0)",
        "y": "2 * sqrt(deaths + 0.375)",
        "middle": F.median("y").over(group),
        "spread": F.median(F.abs(F.col("y") - F.col("middle"))).over(group),
        "usual": F.median("deaths").over(group),
        "buckets": F.count("*").over(group),
        "score": "(y - middle) / greatest(1.0D, 1.4826D * spread)",
        "burst": "score >= {burst_score} AND deaths >= {burst_deaths} AND buckets >= {burst_buckets}".format(
            **DEFAULTS._asdict()
        ),
        "date": F.to_date("from_at"),
        "seconds": F.lit(seconds).cast("bigint"),
    }
    made = with_columns(spine.join(per_group, [*GROUP, "from_at"], "left"), more)
    return shaped(made, RATES)


def bursts(rates: DataFrame, counts: DataFrame, seconds: int) -> DataFrame:
    """Return bursts, joined if they touch, with the kind of failure that died most: RATES and COUNTS in, BURSTS out."""
    before = Window.partitionBy(*GROUP).orderBy("from_at")
    gap = seconds_of(F.col("from_at")) - seconds_of(F.lag("from_at").over(before))
    runs = (
        rates.where("burst")
        .withColumn("first", F.coalesce(gap > seconds, F.lit(True)).cast("int"))
        .withColumn("run", F.sum("first").over(before))
    )
    rows = runs.groupBy(*GROUP, "run").agg(
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
    made = rows.join(causes, [*GROUP, "run"], "left").withColumn("date", F.to_date("from_at"))
    return shaped(made, BURSTS)


def deploys(counts: DataFrame, begin: datetime, end: datetime, seconds: int, now: datetime) -> DataFrame:
    """Return deaths before and after each consumer version's first: COUNTS in, DEPLOYS out.

    The bucket of a version's first death, and those behind it, are compared with those in front of it: up to
    `deploy_buckets` each way, as far as there is a period to look at. The score is that of a binomial test: of
    ``before + after`` deaths, it expects as many after as the lengths of the two times say. A `regression` has
    `deploy_score`, `deploy_deaths` in both together, and at least `deploy_share` of those after are its own. A version
    that was there in the first bucket has nothing before it: score and regression are null.

    These are deaths an hour, not deaths per delivery: a version that is given more messages dies more.
    """
    reach = DEFAULTS.deploy_buckets
    versions = (
        counts.where(F.col("consumer_version") != "")
        .groupBy(*GROUP, F.col("consumer_version").alias("version"))
        .agg(F.min("from_at").alias("first_died_at"), F.sum("deaths").alias("deaths"))
    )
    versions = ranked(versions, GROUP, F.col("deaths").desc(), "version", most=VERSIONS_MAX).drop("rank")
    per_version = counts.groupBy(*GROUP, "consumer_version", "from_at").agg(F.sum("deaths").alias("died"))
    start = seconds_of(F.col("first_died_at"))
    offset = (seconds_of(F.col("from_at")) - start) / seconds
    after = (offset >= 0) & (offset < reach)
    before = (offset < 0) & (offset >= -reach)
    own = F.col("consumer_version") == F.col("version")
    seen = (
        F.broadcast(versions)
        .join(per_version, [*GROUP])
        .groupBy(*GROUP, "version", "first_died_at", "deaths")
        .agg(
            F.sum(F.when(before, F.col("died")).otherwise(0)).alias("before_deaths"),
            F.sum(F.when(after, F.col("died")).otherwise(0)).alias("after_deaths"),
            F.sum(F.when(after & own, F.col("died")).otherwise(0)).alias("after_own"),
        )
    )
    first, last = (seconds_of(bucket(F.lit(time), seconds)) for time in (begin, end))
    most = F.lit(float(reach))
    more = {
        "before_hours": F.least(most, (start - first) / seconds) * seconds / 3600,
        "after_hours": F.least(most, (last - start) / seconds + 1) * seconds / 3600,
        "both": "before_deaths + after_deaths",
        "odds": "after_hours / (before_hours + after_hours)",
        "score": "if(before_hours > 0, (after_deaths - both * odds) / sqrt(both * odds * (1 - odds)), NULL)",
        "regression": (
            "if(score IS NOT NULL, score >= {deploy_score} AND both >= {deploy_deaths} "
            "AND after_own >= {deploy_share} * after_deaths, NULL)"
        ).format(**DEFAULTS._asdict()),
        "before_per_hour": "if(before_hours > 0, before_deaths / before_hours, NULL)",
        "after_per_hour": "after_deaths / after_hours",
    }
    return shaped(with_columns(seen, more), DEPLOYS, now)


def bucket_seconds(span: float, most: int = 96) -> int:
    """Return the width of a bucket, so that ``span`` seconds are at most about ``most`` of them."""
    steps: Sequence[int] = (1, 2, 5, 10, 30, 60, 300, 900, 3600, 3 * 3600, 6 * 3600, 12 * 3600, 86400)
    return next((step for step in steps if span / step <= most), 86400 * (1 + int(span / 86400 / most)))
