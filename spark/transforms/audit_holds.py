"""Each hold of a message, from its delivery until it ends, and those that were alive at one moment: G2, G6, delays."""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from ..clocks import RATE_MAX
from .audit_deliveries import DELAYS
from .audit_events import KEY, due, maybe, moment, sure
from .audit_findings import Check, findings, say, true, verdict_of

CHECKS: Final = (
    Check("G6", "times > 1", "handed over {times} times in the delivery of {owner}"),
    Check(DELAYS, f"NOT day_asked AND {sure('here', 'due_at')}",
          "delivered {due_at.t - here.t:s} before the delay was over with which it was given back", "NOT lossy"),
)  # fmt: skip


def holds(events: DataFrame, of_runs: DataFrame) -> DataFrame:
    """A row for each hold of a message: from its delivery until its deadline, as EXTEND moved it, or until its client
    asked to give it up. ``acked_t`` is when its own client sent an ACK. One that no client wrote of lasts from when its
    node had won it until the node's `until`, or a `release`; its ``times`` are 0.
    """
    found = _gathered(events)
    won = F.struct(*(F.col(f"won.{it}").alias(it) for it in ("high", "t", "low", "domain")))
    found = found.withColumns({
        "begin": F.coalesce("first.at", won),
        **{it: F.coalesce(f"first.{it}", f"won.{it}") for it in ("within", "generation", "n")},
    })  # fmt: skip
    until = F.expr(
        "array_max(transform(concat(array(coalesce(first.until, won_until, begin)), transform(filter(extended, e -> "
        f"gave_up IS NULL OR {maybe('e.at', 'gave_up')}), e -> e.to)), u -> struct(u.t, u.low, u.high)))"
    )
    found = found.withColumn("until", until)
    # What was given back with a delay, and is in the same life.
    life = Window.partitionBy(*KEY, "dead", "generation", "n").orderBy("begin.low", "begin.t")
    given = F.max(F.when(F.col("rejected"), F.col("due"))).over(
        life.rowsBetween(Window.unboundedPreceding, -1)
    )
    found = found.withColumns({"due_at": given, "here": F.col("begin")}).join(
        F.broadcast(of_runs.select("run", "lossy", "day_asked")), on="run", how="left"
    )
    end = {
        it: F.least(F.col(f"until.{it}"), F.coalesce(f"gave_up.{it}", f"until.{it}"))
        for it in ("t", "low", "high")
    }
    # By its node alone: the FETCH was sent before it was won, and to last so long by the client's clock.
    lasts = (F.col("until.t") - F.col("first.asked.t")) * (1 + RATE_MAX)
    return found.select(
        *KEY, "dead", "owner", "times",
        F.col("begin.t").alias("t"),
        F.greatest("begin.low", "won.low").alias("low"),
        F.col("begin.high").alias("high"),
        F.col("begin.domain").alias("domain"),
        "within", "generation", "n",
        end["t"].alias("end"),
        end["low"].alias("end_low"),
        F.least(end["high"], F.col("won.high") + lasts).alias("end_high"),
        F.col("won.t").alias("won"),
        F.col("won.domain").alias("won_domain"),
        (F.col("won.t") + lasts).alias("won_end"),
        F.col("gave_up.t").alias("gave_up"),
        F.col("acked.t").alias("acked_t"),
        "acked",
        F.col("ended.col2").alias("ended"),
        F.col("ended.t").alias("ended_t"),
        (F.col("due_at").isNotNull() & ~F.col("day_asked")).alias("was_due"),
        findings(CHECKS, at="first.at.t"),
    )  # fmt: skip


def _gathered(events: DataFrame) -> DataFrame:
    """A row for each hold with what lines say of it: when it was won, delivered, extended, given up and settled."""
    kind, outcome = F.col("kind"), F.col("outcome")
    gave_up = (
        kind.isin("reject", "dead_letter") & (outcome == "invoke") & F.startswith("who", F.lit("client:"))
    )
    extended = F.when(
        (kind == "extend") & (outcome == "ok"), F.struct(moment().alias("at"), moment("until").alias("to"))
    )
    ended = F.when(
        kind.isin("ack", "reject", "dead_letter") & (outcome != "invoke"),
        F.struct("t", F.concat_ws(" ", "kind", "outcome")),
    )
    times = [
        moment(name).alias(short) for name, short in (("t", "at"), ("asked", "asked"), ("until", "until"))
    ]
    first = F.struct(*times, "within", "generation", "n", "who")
    gave_up = gave_up | kind.isin("leave", "release")
    lasts = (kind == "hold_won") & F.col("until").isNotNull()
    of_holds = kind.isin("hold_won", "deliver", "ack", "reject", "dead_letter", "extend", "leave", "release")
    return (
        events.where(of_holds & F.col("owner").isNotNull())
        .repartition("hash")
        .groupBy(*KEY, "dead", "owner")
        .agg(
            F.min(F.when(kind == "deliver", first)).alias("first"),
            F.min(F.when(kind == "hold_won", moment("t", "within", "generation", "n"))).alias("won"),
            F.min(F.when(lasts, moment("until"))).alias("won_until"),
            F.count_if(kind == "deliver").alias("times"),
            F.collect_list(extended).alias("extended"),
            F.min(F.when(gave_up, moment())).alias("gave_up"),
            F.min(F.when((kind == "ack") & (outcome == "invoke"), moment())).alias("acked"),
            F.max(ended).alias("ended"),
            F.min(due(kind == "reject")).alias("due"),
            F.max((kind == "reject") & (outcome == "ok")).alias("rejected"),
        )
        .where(F.col("first").isNotNull() | F.col("won").isNotNull())
    )


def overlaps(held: DataFrame) -> DataFrame:
    """Pairs of holds of one message for one group that were, or may have been, alive at one moment (G2).

    A window over the holds in order of their begin finds those that may begin before the latest end so far; only those
    few are then compared one by one. Two are apart for certain by their clients' clocks, or by those of the nodes that
    won them. A hold whose own client has sent an ACK is not in the way of a newer generation, nor, of a dead letter, of
    a higher redrive number: a rewind, or a redrive, may open at once what was acked.

    Args:
        held: what `holds` gives.
    """
    place = (*KEY, "dead")
    so_far = (
        Window.partitionBy(*place).orderBy("low", "t", "owner").rowsBetween(Window.unboundedPreceding, -1)
    )
    suspects = held.withColumn("_end", F.max("end_high").over(so_far)).where(F.col("_end") > F.col("low"))
    other, this = held.alias("a"), suspects.alias("b")
    a, b = (lambda name: F.col(f"a.{name}")), (lambda name: F.col(f"b.{name}"))
    begins = [F.struct(it("low"), it("t"), it("owner")) for it in (a, b)]
    pairs = this.join(other, on=[a(name).eqNullSafe(b(name)) for name in place], how="inner").where(
        (begins[0] < begins[1]) & (a("end_high") > b("low"))
    )
    same = true(a("domain") == b("domain"))
    within = F.greatest(a("within"), b("within"))
    inside = ((a("t") <= b("t")) & (b("t") < a("end") - within)) | (
        (b("t") < a("t")) & (a("t") < b("end") - within)
    )
    beyond = (b("high") < a("end_low")) & (a("high") < b("end_low"))
    by_node = true(
        (a("won_domain") == b("won_domain")) & ((a("won_end") <= b("won")) | (b("won_end") <= a("won")))
    )
    apart = by_node | (b("end_high") <= a("low"))
    life = [F.struct(it("generation"), F.when(it("dead"), it("n")).otherwise(0)) for it in (a, b)]

    def done(older: str, newer: str, newer_life: Column, older_life: Column) -> Column:
        """The older life was acked before the newer one was delivered, or no client wrote of it."""
        acked = F.expr(maybe(f"{older}.acked", newer, "<=")) | (F.col(f"{older}.times") == 0)
        return true((newer_life > older_life) & acked)

    is_done = done("a", "b", life[1], life[0]) | done("b", "a", life[0], life[1])
    certain = true(F.when(same, inside).otherwise(beyond))
    worst = F.struct(certain.alias("sure"), *(a(name).alias(name) for name in ("end", "owner", "t", "times")))
    # One finding for each hold that should not have begun, however many others were alive.
    found = (
        pairs.where(~is_done & F.when(same, inside).otherwise(~apart))
        .groupBy(*(b(name).alias(name) for name in place), b("owner").alias("owner"))
        .agg(F.max(worst).alias("other"), F.first(b("t")).alias("t"), F.first(b("times")).alias("times"))
    )
    text = say(
        "{if(times > 0, 'delivered', 'won')} as {owner} at {t:s} while {other.owner}"
        "{if(other.times > 0, ', delivered at ', ', won at ')}{other.t:s}, was inside its hold until {other.end:s}"
    )
    return found.select(
        *place,
        F.lit("G2").alias("guarantee"),
        verdict_of(F.col("other.sure")).alias("verdict"),
        F.col("t").alias("at"),
        text.alias("text"),
    )
