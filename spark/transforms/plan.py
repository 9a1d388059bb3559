"""Decisions about each kind of failure.

A redrive that is too early makes the same dead letters again; without one work is lost. The rules are a list,
read from the top; the first that matches decides. Reasons against a redrive stand above reasons for it. The rules know
only the dead letters. A person who knows more overrides them by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from string import Formatter
from typing import Final, NamedTuple

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from .deaths import GROUP, KIND, cells, ranked, shaped, summed

VERDICTS: Final = ("redrive", "hold", "discard")


class Limits(NamedTuple):
    """The numbers in the rules."""

    quiet_s: int = 3600
    """Seconds: a failure that killed a message within this time is still happening."""

    redrives_max: int = 3
    """Number of redrives after which another does not help a message that died again."""

    again_share: float = 0.5
    """Least share of the dead letters whose properties hold for the kind."""

    same_payload: int = 3
    """Least number of dead letters with one payload that are one bad input, published again and again."""

    spread_s: int = 600
    """Seconds over which a redrive is spread, about, so that an operator can still stop one that fails again."""

    rate_max: float = 100.0
    """Messages a second, at most."""


DEFAULTS: Final = Limits()

TRANSIENT: Final = (
    "timeout", "timedout", "connection", "brokenpipe", "unavailable", "temporar", "throttl", "toomanyrequests",
    "ratelimit", "deadlock", "locktimeout", "retry", "gaierror", "interrupted",
)  # fmt: skip
"""Words, in any case, in the name of an error class that is about the surroundings, not about the message."""

MALFORMED: Final = (
    "decode", "encod", "syntaxerror", "indentationerror", "taberror", "parse", "json", "xml", "validation", "schema",
    "malformed", "keyerror", "valueerror", "typeerror", "badrequest", "unprocessable",
)  # fmt: skip
"""An error class with one of these in its name is about the message itself."""

EVIDENCE: Final = """
    topic STRING, topic_id STRING, `group` STRING, failure STRING, reason STRING, error_class STRING, dead BIGINT,
    recent BIGINT, again BIGINT, often BIGINT, same_payload BIGINT, first_died_at TIMESTAMP, last_died_at TIMESTAMP,
    newer_version STRING"""
DECISIONS: Final = """
    date DATE, topic STRING, topic_id STRING, `group` STRING, failure STRING, error_class STRING, verdict STRING,
    rule STRING, reason STRING, messages BIGINT, rate DOUBLE, rank INT"""


class Rule(NamedTuple):
    """One line of the rules.

    Attributes:
        name: its name in the plan.
        verdict: its decision.
        when: its condition in SQL; in braces stands one of the numbers in the rules, or of the lists of words.
        reason: its reason, as `say` takes it; `redrives_max` and `quiet` are numbers in the rules.
    """

    name: str
    verdict: str
    when: str
    reason: str


RULES: Final[tuple[Rule, ...]] = (
    Rule("expired", "discard", "reason = 'expired'",
         "expired: nobody took it within its time to live, and a redriven message does not expire"),
    Rule("redriven-often", "discard", "often >= {again_share} * dead",
         "{often} of {dead} died again after {redrives_max} redrives or more"),
    Rule("still-happening", "hold", "recent > 0", "still happening: {recent} died of it in the last {quiet}"),
    Rule("died-again", "hold", "again >= {again_share} * dead",
         "{again} of {dead} died again after a redrive: mend the cause first"),
    Rule("same-payload", "hold", "same_payload >= {same_payload} AND same_payload >= {again_share} * dead",
         "{same_payload} of {dead} have the same payload: look at who publishes it"),
    Rule("newer-version", "redrive", "newer_version IS NOT NULL",
         "not seen since version {newer_version}: it seems to be mended"),
    Rule("transient", "redrive", "lower(error_class) RLIKE '{transient}'",
         "{error_class} is about the surroundings, and has not been seen for {quiet}"),
    Rule("malformed", "hold", "lower(error_class) RLIKE '{malformed}'",
         "{error_class} is about the message itself: it dies again until the consumer takes it"),
    Rule("quiet", "redrive", "true", "not seen for {quiet}, and most were never redriven: try it once"),
)  # fmt: skip
"""The rules, from the top; the first that matches decides. docs/spark.md lists them, and a test compares."""


def _span(seconds: int) -> str:
    """Return a time in words: "1 hour", "2 hours", "90 seconds"."""
    for size, name in ((86400, "day"), (3600, "hour"), (60, "minute")):
        if seconds % size == 0 and seconds:
            count = seconds // size
            return f"{count} {name}{'' if count == 1 else 's'}"
    return f"{seconds} seconds"


def evidence(cube: DataFrame, again: DataFrame, locations: DataFrame) -> DataFrame:
    """Return the rules' input for each kind of failure that has dead letters: CUBE, AGAIN and PLACES in, EVIDENCE out.

    ``newer_version`` is the version of the group's consumers that was first seen last, if all deaths of this kind were
    before it and none is of it; null otherwise. Only versions with deaths are seen.
    """
    every = cells(cube, "cause")
    dead = every.where("dead > 0")
    totals = dead.groupBy(*KIND, "topic_id").agg(*summed("dead", "again", "often", "digests"))
    # Whether it still happens is seen at every death, those that were settled since too.
    times = every.groupBy(*KIND).agg(
        F.sum("recent").alias("recent"),
        F.min("first_died_at").alias("first_died_at"),
        F.max("last_died_at").alias("last_died_at"),
    )
    copies = again.where("kind = 'payload'").groupBy(*KIND, "name").agg(F.sum("dead").alias("copies"))
    payloads = copies.groupBy(*KIND).agg(F.max("copies").alias("copies"))
    causes = dead.groupBy(*KIND, "reason", "error_class").agg(F.sum("dead").alias("times"))
    causes = ranked(causes, KIND, F.col("times").desc(), "reason", "error_class").drop("rank", "times")
    versions = locations.where((F.col("kind") == "version") & (F.col("name") != ""))
    versions = versions.select(
        *GROUP, F.col("name").alias("version"), F.col("first_died_at").alias("version_at")
    )
    newest = ranked(versions, GROUP, F.col("version_at").desc_nulls_last(), "version").drop("rank")
    rows = (
        totals.join(times, [*KIND])
        .join(causes, [*KIND])
        .join(payloads, [*KIND], "left")
        .join(newest, [*GROUP], "left")
        # A payload that one dead letter has is not in AGAIN.
        .withColumn("same_payload", F.greatest("copies", (F.col("digests") > 0).cast("bigint")))
        .withColumn("newer_version", F.when(F.col("version_at") > F.col("last_died_at"), F.col("version")))
    )
    return shaped(rows, EVIDENCE)


def decisions(
    evidence: DataFrame, now: datetime, limits: Limits = DEFAULTS, overrides: Mapping[str, str] | None = None
) -> DataFrame:
    """Return a verdict for each kind of failure: EVIDENCE in, DECISIONS out, ranked as the plan has them.

    Args:
        evidence: the result of `evidence`.
        now: time of the plan.
        limits: the numbers in the rules, and the rate: the dead letters spread over `spread_s`, at least 1 and at most
            `rate_max` a second.
        overrides: verdicts by failure, which win over every rule.
    """
    numbers = {**limits._asdict(), "transient": "|".join(TRANSIENT), "malformed": "|".join(MALFORMED)}
    words = {"redrives_max": F.lit(limits.redrives_max), "quiet": F.lit(_span(limits.quiet_s))}
    conditions = [
        F.when(
            F.expr(rule.when.format(**numbers)),
            _decision(F.lit(rule.verdict), rule.name, say(rule.reason, **words)),
        )
        for rule in RULES
    ]
    if overrides:
        said = F.create_map(*(F.lit(part) for pair in overrides.items() for part in pair))[F.col("failure")]
        conditions.insert(0, F.when(said.isNotNull(), _decision(said, "override", F.lit("decided by hand"))))
    worst_last = F.array_position(F.array(*map(F.lit, VERDICTS)), F.col("verdict"))
    order = Window.partitionBy("date").orderBy(worst_last, F.col("messages").desc(), *KIND)
    rate = F.least(
        F.lit(limits.rate_max), F.greatest(F.lit(1.0), F.ceil(F.col("dead") / limits.spread_s).cast("double"))
    )
    made = (
        evidence.withColumn("chosen", F.coalesce(*conditions))
        .drop("reason")
        .select("*", "chosen.*")
        .withColumn("messages", F.col("dead"))
        .withColumn("rate", F.when(F.col("verdict") == "redrive", rate))
        .withColumn("date", F.to_date(F.lit(now)))
        .withColumn("rank", F.row_number().over(order))
    )
    return shaped(made, DECISIONS)


def _decision(verdict: Column, rule: str, reason: Column) -> Column:
    return F.struct(verdict.alias("verdict"), F.lit(rule).alias("rule"), reason.alias("reason"))


ROWS_AT_ONCE: Final = 100_000
"""Messages of the plan that are sorted, and written to one file, at once."""


def messages(fetched: DataFrame, count: int) -> DataFrame:
    """Return the messages to redrive, in the order of the plan: the result of `spark.transforms.deaths.fetched` in.

    By decision, then oldest first: by their time of publish, then by id.

    Args:
        fetched: samples and messages.
        count: number of messages, about. They are in pieces of some ROWS_AT_ONCE, one after the other: left to itself
            Spark makes pieces by their packed size, and one may not fit in a small Java.
    """
    order = (F.col("planned").asc(), F.col("published_at").asc_nulls_first(), F.col("id").asc())
    return (
        fetched.where(F.col("planned").isNotNull())
        .select("planned", "id", "generation", "n", "published_at")
        .repartitionByRange(-(-max(count, 1) // ROWS_AT_ONCE), *order)
        .sortWithinPartitions(*order)
    )


def say(text: str, **named: Column) -> Column:
    """Return ``text`` with values in it, each ``named`` or an expression of SQL; a null is shown as nothing."""
    parts = []
    for words, name, _, _ in Formatter().parse(text):
        if words:
            parts.append(F.lit(words))
        if name is not None:
            value = named[name] if name in named else F.expr(name)
            parts.append(F.coalesce(value.cast("string"), F.lit("nothing")))
    return F.concat(*parts)
