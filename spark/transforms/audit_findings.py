"""What a check of the audit says: a finding beside the row that it is about, with its evidence in words.

A finding is `broken` where the clocks prove it, `not decidable` where they do not, or where what is missing from an
incomplete history could explain it. Nothing is said to hold because it was not looked at: each table counts.
"""

from __future__ import annotations

from string import Formatter
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F

BROKEN: Final = "broken"
UNDECIDED: Final = "not decidable"


def finding(
    when: Column, guarantee: str, text: str | Column, at: Column, *, sure: Column | None = None
) -> Column:
    """A finding where ``when``, else null.

    Args:
        when: where.
        guarantee: which one it is about.
        text: the evidence; a str as `say` takes it.
        at: when it was, in seconds of the run.
        sure: where it is broken, else not decidable; if not given, it is broken everywhere.
    """
    verdict = F.lit(BROKEN)
    if sure is not None:
        verdict = F.when(true(sure), F.lit(BROKEN)).otherwise(F.lit(UNDECIDED))
    made = F.struct(
        F.lit(guarantee).alias("guarantee"),
        verdict.alias("verdict"),
        at.cast("double").alias("at"),
        (say(text) if isinstance(text, str) else text).alias("text"),
    )
    return F.when(true(when), made)


def findings(*some: Column) -> Column:
    """Those that are there."""
    return F.filter(F.array(*some), lambda it: it.isNotNull()).alias("findings")


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
