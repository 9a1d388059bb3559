"""What a check of the audit says: a finding beside the row that it is about, with its evidence in words.

A finding is `broken` where the clocks prove it, `not decidable` where they do not, or where what is missing from an
incomplete history could explain it. Nothing is said to hold because it was not looked at: each table counts.
"""

from __future__ import annotations

from collections.abc import Iterable
from string import Formatter
from typing import Final, NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from .audit_events import MESSAGE

BROKEN: Final = "broken"
UNDECIDED: Final = "not decidable"


class Check(NamedTuple):
    """What is asked of every row of a table, in SQL.

    Attributes:
        guarantee: which one it is about.
        when: where it is not kept.
        text: the evidence, as `say` takes it.
        sure: where it is broken, else not decidable.
        at: when it was, in seconds of the run; if not given, as `findings` says.
    """

    guarantee: str
    when: str
    text: str
    sure: str = "true"
    at: str = ""


def findings(checks: Iterable[Check], at: str) -> Column:
    """What is found of a row: an array of guarantee, verdict, at and text."""
    found = (
        F.when(
            true(F.expr(check.when)),
            F.struct(
                F.lit(check.guarantee).alias("guarantee"),
                verdict_of(F.expr(check.sure)).alias("verdict"),
                F.expr(check.at or at).cast("double").alias("at"),
                say(check.text).alias("text"),
            ),
        )
        for check in checks
    )
    return F.filter(F.array(*found), lambda it: it.isNotNull()).alias("findings")


def verdict_of(sure: Column) -> Column:
    """Broken where that is sure, else not decidable."""
    return F.when(true(sure), F.lit(BROKEN)).otherwise(F.lit(UNDECIDED))


def asked(
    rows: DataFrame, guarantee: str, checked: str, pending: str, checks: Iterable[Check], at: str
) -> DataFrame:
    """What is asked beyond deliveries, holds and messages: ``checked`` and ``pending`` count, as in `tallies`."""
    return rows.select(
        *(name for name in MESSAGE if name in rows.columns),
        F.lit(guarantee).alias("guarantee"),
        F.expr(checked).alias("checked"),
        F.expr(pending).alias("pending"),
        findings(checks, at),
    )


def true(condition: Column) -> Column:
    """``condition``, and false where it is null."""
    return F.coalesce(condition, F.expr("false"))


def shown(seconds: Column) -> Column:
    """A time as evidence shows it: to 0.1 ms, and a time of day without an exponent."""
    return F.when(seconds.isNotNull(), F.format_string("%.4f s", seconds.cast("double")))


def say(text: str, **named: Column) -> Column:
    """``text`` with values in it: "acked by {owner} at {t:s}".

    In braces stands what is ``named``, or else an expression of SQL; `:s` behind it shows a time. A null is shown as
    nothing.
    """
    parts = []
    for words, name, kind, _ in Formatter().parse(text):
        if words:
            parts.append(F.lit(words))
        if name is not None:
            value = named[name] if name in named else F.expr(name)
            value = shown(value) if kind == "s" else value
            parts.append(F.coalesce(value.cast("string"), F.lit("nothing")))
    return F.concat(*parts)
