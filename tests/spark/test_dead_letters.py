"""The analysis of dead letters on small frames, each expected row written out, and against plain Python on many."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from datetime import UTC, datetime, timedelta
from math import sqrt
from statistics import median
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark.transforms import deaths as t
from spark.transforms import rates as r
from spark.transforms.plan import DECISIONS
from tests.spark.rows import NOON, at, death, frame


def made(spark: SparkSession, *rows: dict[str, Any]) -> DataFrame:
    return t.deaths(frame(spark, rows), NOON)


def shown(frame: DataFrame, *names: str) -> list[tuple[Any, ...]]:
    """These columns of all rows, sorted; times as seconds after noon."""

    def value(cell: Any) -> Any:
        if isinstance(cell, datetime):
            return (cell.astimezone(NOON.tzinfo) - NOON).total_seconds()
        return round(cell, 4) if isinstance(cell, float) else cell

    rows = [tuple(value(row[name]) for name in names) for row in frame.collect()]
    return sorted(rows, key=repr)


def cubed(dead: DataFrame, seconds: int = 3600, previous: DataFrame | None = None) -> DataFrame:
    return t.cube(dead, seconds, NOON, previous).cache()


def kinds(dead: DataFrame, previous: DataFrame | None = None) -> DataFrame:
    cube = cubed(dead, previous=previous)
    nothing = dead.sparkSession.createDataFrame([], DECISIONS)
    samples = t.fetched(dead, t.sketches(dead, NOON), nothing)
    return t.failures(cube, samples, t.locations(cube, NOON), NOON, previous)


def test_kinds_of_failures_are_counted_with_what_became_of_them(spark: SparkSession) -> None:
    dead = made(
        spark,
        death(1, died_at=at(-7200), message="old"),
        death(2, died_at=at(-3600), consumer_version="2.0", message="new"),
        death(3, died_at=at(0), resolution="redriven"),
        death(4, fingerprint="", reason="expired", error_class="", message="", resolution="closed"),
        death(5, topic="mail", group="h", resolution="acked"),
    )
    frame = kinds(dead)
    assert shown(frame, "topic", "group", "failure", "deaths", "dead", "redriven", "acked", "closed", "share") == [
        ("jobs", "g", "expired", 1, 0, 0, 0, 1, 0.25),
        ("jobs", "g", "f1", 3, 2, 1, 0, 0, 0.75),
        ("mail", "h", "f1", 1, 0, 0, 1, 0, 1.0),
    ]  # fmt: skip
    (row,) = (row for row in frame.collect() if (row["failure"], row["topic"]) == ("f1", "jobs"))
    assert (row["per_hour"], row["status"], row["versions"]) == (1.5, None, ["1.0", "2.0"])
    assert (row["topics"], row["groups"]) == (["jobs", "mail"], ["g", "h"])
    # A sample is one that still is dead, and of those the newest.
    assert [name.rpartition("/")[2] for name in row["sample_ids"]] == ["2", "1", "3"]
    assert row["message"] == "new"


def test_new_regressed_ongoing_and_gone_kinds_follow_from_the_run_before(spark: SparkSession) -> None:
    dead = made(
        spark,
        death(1, fingerprint="new", died_at=at(-60)),
        death(2, fingerprint="same", died_at=at(-9000)),
        death(3, fingerprint="more", died_at=at(-9000)),
        death(4, fingerprint="more", died_at=at(-60)),
        death(5, fingerprint="back", died_at=at(-60)),
        death(6, fingerprint="back-settled", died_at=at(-60)),
        death(7, fingerprint="settled", died_at=at(-9000), resolution="acked"),
    )
    before = [
        # failure, status, dead, last_died_at
        ("same", "new", 1, at(-9000)),
        ("more", None, 1, at(-9000)),
        ("back", "gone", 0, at(-90000)),
        ("back-settled", "ongoing", 0, at(-9000)),
        ("settled", "new", 1, at(-9000)),
        ("forgotten", "ongoing", 3, at(-9000)),
        ("long-gone", "gone", 0, at(-90000)),
        ("undated", "new", 1, None),
    ]
    previous = spark.createDataFrame([("jobs", "g", *row) for row in before], t.PREVIOUS)
    assert shown(kinds(dead, previous), "failure", "status", "deaths", "fresh", "last_died_at") == [
        ("back", "regressed", 1, 1, -60.0),
        ("back-settled", "regressed", 1, 1, -60.0),
        ("forgotten", "gone", 0, 0, -9000.0),
        ("long-gone", "gone", 0, 0, -90000.0),
        ("more", "ongoing", 2, 1, -60.0),
        ("new", "new", 1, 1, -60.0),
        ("same", "ongoing", 1, 0, -9000.0),
        ("settled", "gone", 1, 0, -9000.0),
        ("undated", "gone", 0, 0, None),
    ]


def test_a_burst_is_high_above_the_usual_and_touching_ones_are_one(spark: SparkSession) -> None:
    usual = [death(100 * hour + i, died_at=at(3600 * (hour - 12))) for hour in range(12) for i in range(2)]
    high = [
        death(9000 + i, died_at=at(-3600 * back + i), fingerprint="f2")
        for back, n in ((5, 20), (4, 12))
        for i in range(n)
    ]
    # Nine are not ten: rare groups have no bursts of a few.
    rare = [death(8000 + i, topic="mail", died_at=at(-3600)) for i in range(9)]
    dead = made(spark, *usual, *high, *rare)
    counts = r.counts(cubed(dead)).cache()
    rates = r.rates(counts, at(-12 * 3600), at(-3600), 3600)
    by_time = {(row["topic"], row["from_at"]): row for row in rates.collect()}
    assert len(by_time) == 2 * 12, "the empty hours are there"
    assert shown(rates.where("burst or deaths = 9"), "topic", "from_at", "deaths", "usual", "burst") == [
        ("jobs", -14400.0, 14, 2.0, True),
        ("jobs", -18000.0, 22, 2.0, True),
        ("mail", -3600.0, 9, 0.0, False),
    ]
    assert shown(
        r.bursts(rates, counts, 3600),
        "from_at",
        "to_at",
        "deaths",
        "peak",
        "failure",
        "failure_deaths",
        "score",
    ) == [(-18000.0, -10800.0, 36, 22, "f2", 32, round(2 * (sqrt(22.375) - sqrt(2.375)), 4))]
    few = r.rates(counts, at(-6 * 3600), at(-3600), 3600)
    assert few.where("burst").count() == 0, "six buckets are no usual"


def test_ages_are_of_the_dead_and_clocks_that_go_wrong_are_counted(spark: SparkSession) -> None:
    dead = made(
        spark,
        death(1, died_at=at(-100), published_at=at(-400)),
        death(2, died_at=at(-10), published_at=at(-20)),
        death(3, died_at=at(-5000), published_at=at(-5002), resolution="acked"),
        death(4, died_at=at(-50), published_at=at(-40)),
        death(5, died_at=None, published_at=at(-9000)),
        death(6, died_at=NOON + timedelta(days=30), published_at=at(-1)),
    )
    names = ("deaths", "dead", "oldest_published_at", "age_p50", "age_max", "to_death_known", "to_death_p50")
    ages = t.ages(cubed(dead), t.sketches(dead, NOON), NOON)
    assert shown(ages, *names, "to_death_max", "skewed", "undated") == [
        (6, 5, -9000.0, 50.0, 100.0, 3, 10.0, 300.0, 1, 2)
    ]  # fmt: skip


def test_deaths_are_told_by_version_host_and_node(spark: SparkSession) -> None:
    dead = made(
        spark,
        death(1, consumer_version="1.0", host="a"),
        death(2, consumer_version="2.0", host="a", fingerprint="f2"),
        death(3, consumer_version="2.0", host="b", resolution="acked", node="n2"),
        death(4, consumer_version="2.0", host="b", fingerprint="f2"),
    )
    locations = t.locations(cubed(dead), NOON).where("kind in ('version', 'host', 'node')")
    assert shown(
        locations, "kind", "name", "deaths", "dead", "share", "failures", "failure", "failure_deaths"
    ) == [
        ("host", "a", 2, 2, 0.5, 2, "f1", 1),
        ("host", "b", 2, 1, 0.5, 2, "f1", 1),
        ("node", "n1", 3, 3, 0.75, 2, "f2", 2),
        ("node", "n2", 1, 0, 0.25, 1, "f1", 1),
        ("version", "1.0", 1, 1, 0.25, 1, "f1", 1),
        ("version", "2.0", 3, 2, 0.75, 2, "f2", 2),
    ]


def test_a_deploy_is_suspicious_where_more_die_of_its_own_from_then_on(spark: SparkSession) -> None:
    rows = [death(hour, died_at=at(3600 * (hour - 12))) for hour in range(12)]
    rows += [death(100 + i, died_at=at(-3 * 3600 + 100 * i), consumer_version="2.0") for i in range(30)]
    # The same rise beside a version that has no part in it.
    rows += [death(200 + hour, topic="mail", died_at=at(3600 * (hour - 12))) for hour in range(12)]
    rows += [death(300 + i, topic="mail", died_at=at(-3 * 3600 + 100 * i)) for i in range(30)]
    rows += [death(400, topic="mail", died_at=at(-3 * 3600), consumer_version="2.0")]
    counts = r.counts(cubed(made(spark, *rows)))
    deploys = r.deploys(counts, at(-12 * 3600), at(-3600), 3600, NOON)
    score = lambda before, after: round((after - (before + after) / 4) / sqrt((before + after) * 3 / 16), 4)  # noqa: E731
    names = (
        "topic", "version", "before_hours", "before_deaths", "after_hours", "after_deaths", "after_own",
        "score",
    )  # fmt: skip
    assert shown(deploys, *names, "regression") == [
        ("jobs", "1.0", 0.0, 0, 12.0, 42, 12, None, None),
        ("jobs", "2.0", 9.0, 9, 3.0, 33, 30, score(9, 33), True),
        ("mail", "1.0", 0.0, 0, 12.0, 43, 42, None, None),
        ("mail", "2.0", 9.0, 9, 3.0, 34, 1, score(9, 34), False),
    ]  # fmt: skip


def test_keys_payloads_and_messages_that_die_again_are_found(spark: SparkSession) -> None:
    dead = made(
        spark,
        *(death(i, key=b"k", payload=b"p%d" % i) for i in range(3)),
        *(death(10 + i, key=b"two", payload=b"same", fingerprint=f"f{i}") for i in range(2)),
        death(20, n=1, resolution="redriven"),
        death(20, n=2),
        death(30, payload=None),
    )
    key, same = dead.where("seq = 0").first()["key_digest"], dead.where("seq = 10").first()["digest"]
    names = ("kind", "name", "messages", "deaths", "dead", "redrives", "failures")
    assert shown(t.poison(t.again(dead, t.repeated(dead)), cubed(dead), NOON), *names) == sorted([
        ("key", key, 3, 3, 3, 0, 1),
        ("message", death(20)["id"], 1, 2, 1, 2, 1),
        ("payload", same, 2, 2, 2, 0, 2),
    ], key=repr)  # fmt: skip


def test_the_main_numbers_are_those_of_plain_python_on_many_rows(spark: SparkSession) -> None:
    rng = random.Random(7)
    rows = [
        death(
            seq,
            topic=rng.choice(("jobs", "mail")),
            group=rng.choice("gh"),
            fingerprint=rng.choice(("", "f1", "f1", "f2", "f3")),
            reason=rng.choice(("rejected", "expired")),
            resolution=rng.choice(t.RESOLUTIONS),
            died_at=at(-86400 * rng.random() ** 2),
            consumer_version=rng.choice(("", "1", "2")),
            n=rng.choice((0, 0, 1)),
            payload=b"%d" % rng.randrange(4000),
        )
        for seq in range(2000)
    ]
    dead = made(spark, *rows).cache()

    def kind(row: dict[str, Any]) -> tuple[str, str, str]:
        return row["topic"], row["group"], row["fingerprint"] or row["reason"]

    per_kind: dict[Any, list[dict[str, Any]]] = defaultdict(list)
    buckets: Counter[Any] = Counter()
    for row in rows:
        per_kind[kind(row)].append(row)
        buckets[row["topic"], row["group"], (row["died_at"] - NOON) // timedelta(seconds=900) * 900.0] += 1
    groups = Counter((row["topic"], row["group"]) for row in rows)
    names = ("topic", "group", "failure", "deaths", *t.RESOLUTIONS, "share", "last_died_at")
    assert shown(kinds(dead), *names) == sorted((
        (*key, len(deaths), *(sum(row["resolution"] == name for row in deaths) for name in t.RESOLUTIONS),
         round(len(deaths) / groups[key[:2]], 4), max((row["died_at"] - NOON).total_seconds() for row in deaths))
        for key, deaths in per_kind.items()
    ), key=repr)  # fmt: skip

    first = min(row["died_at"] for row in rows)
    last = max(row["died_at"] for row in rows)
    counts = r.counts(cubed(dead, 900))
    rates = r.rates(counts, first, last, 900).cache()
    assert {
        row[:3]: row[3] for row in shown(rates, "topic", "group", "from_at", "deaths") if row[3]
    } == buckets
    for group in groups:
        series = [row for row in rates.collect() if (row["topic"], row["group"]) == group]
        y = [2 * sqrt(row["deaths"] + 0.375) for row in series]
        spread = max(1, 1.4826 * median(abs(value - median(y)) for value in y))
        for row, value in zip(series, y, strict=True):
            assert row["score"] == pytest.approx((value - median(y)) / spread)

    payloads: dict[Any, set[str]] = defaultdict(set)
    for row in rows:
        payloads[row["topic"], row["group"], row["digest"]].add(row["id"])
    found_poison = shown(
        t.poison(t.again(dead, t.repeated(dead)), cubed(dead), NOON).where("kind = 'payload'"),
        "topic",
        "group",
        "name",
        "messages",
    )
    assert found_poison == sorted(
        ((*key, len(ids)) for key, ids in payloads.items() if len(ids) > 1), key=repr
    )


@pytest.mark.parametrize(
    ("span", "seconds"), [(0, 1), (90, 1), (100, 2), (86400, 900), (7 * 86400, 3 * 3600)]
)
def test_there_are_about_a_hundred_buckets_whatever_the_time(span: float, seconds: int) -> None:
    assert r.bucket_seconds(span) == seconds


def test_there_are_few_buckets_for_years_too() -> None:
    assert 10 * 365 * 86400 / r.bucket_seconds(10 * 365 * 86400) <= 97


def test_buckets_of_days_are_days_whatever_the_time_zone_of_the_session(spark: SparkSession) -> None:
    day, begin, end = 86400, datetime(2026, 10, 20, 12, tzinfo=UTC), datetime(2026, 10, 30, 12, tzinfo=UTC)
    dead = made(spark, *(death(n, died_at=begin + timedelta(days=n)) for n in range(11)))
    spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")  # the 25th has 25 hours there
    try:
        rates = r.rates(r.counts(cubed(dead, day)), begin, end, day)
        assert [row["deaths"] for row in rates.orderBy("from_at").collect()] == [1] * 11
        bursts = r.bursts(rates.withColumn("burst", F.lit(True)), r.counts(cubed(dead, day)), day)
        seconds = F.unix_seconds("to_at") - F.unix_seconds("from_at")
        assert [row[0] for row in bursts.select(seconds).collect()] == [11 * day]
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
