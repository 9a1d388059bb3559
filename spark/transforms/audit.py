"""From what deliveries, holds and messages say to one verdict for each guarantee of each run.

The rule: `broken` needs proof, `holds` needs that something was looked at and nothing was left open. Whatever lies
between is `not decidable`, with how many; what a history says nothing about is `not checked`. A run with lines that
could not be read holds nothing: what was in them is not known.
"""

from __future__ import annotations

from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from .audit_events import KEY, MESSAGE, apart
from .audit_findings import BROKEN, UNDECIDED, true
from .letters import shaped, summed

GUARANTEES: Final[dict[str, str]] = {
    "G1": "durable: what was confirmed is delivered and settled, or is a dead letter",
    "G2": "exclusive: no two deliveries of a message to a group are inside their holds",
    "G3": "final: nothing is delivered after its ACK; fencing tokens rise",
    "G4": "live: what is not settled is delivered again in time",
    "G5": "faithful: what is delivered was published, byte for byte",
    "G6": "idempotent: retrying a publish makes no second message",
    "G7": "dead letters are conserved: each is there once, until redriven, purged or acked",
    "groups": "groups as asked: generations, their starts, and purges (G3, G4)",
    "delays": "delays as asked: what is delayed, published or given back, is not delivered before, nor after its TTL",
    "derived": "derived once: the outputs of a message are there once it is acked, each once (G3, G5, G6)",
    "settings": "settings as written: all nodes have one register of a topic, with what was written last",
}
"""What is asked, in the order in which it is reported."""

VERDICTS: Final = (
    "run STRING, guarantee STRING, verdict STRING, checked BIGINT, broken BIGINT, undecidable BIGINT"
)
VIOLATIONS: Final = (
    "run STRING, guarantee STRING, verdict STRING, topic STRING, partition INT, `group` STRING, origin STRING, "
    "seq BIGINT, id STRING, at DOUBLE, text STRING"
)
REMAINDER: Final = "run STRING, what STRING, detail STRING, count BIGINT, gap BOOLEAN, lossy BOOLEAN"
"""What was not read or is not there. ``gap``: so the run holds nothing; ``lossy``: so what is absent proves nothing."""

LATENCY: Final = (
    "run STRING, topic STRING, `group` STRING, deliveries BIGINT, messages BIGINT, redelivered BIGINT, "
    "untimed BIGINT, p50 DOUBLE, p90 DOUBLE, p99 DOUBLE, max DOUBLE, attempts_p50 INT, "
    "attempts_p99 INT, attempts_max INT"
)
REDELIVERIES: Final = "run STRING, topic STRING, `group` STRING, after STRING, deliveries BIGINT"
FAULTS: Final = (
    "run STRING, fault STRING, begin DOUBLE, end DOUBLE, nodes STRING, published BIGINT, unknown BIGINT, "
    "delivered BIGINT, acked BIGINT, broken BIGINT"
)
COUNTED: Final = ("published", "unknown", "delivered", "acked", "broken")
"""What is counted while a fault lasts."""

DIVERGENCE: Final = (
    "run STRING, topic STRING, partition INT, `group` STRING, origin STRING, seq BIGINT, listed_by STRING, "
    "missing_at STRING"
)


def doubled(rows: DataFrame) -> DataFrame:
    """Writers whose first line is there more than once: HISTORY in; run, who, how often too often, whether simulated.

    By a real clock no two lines are alike: a file was given twice. Two simulated runs of one name may begin alike.
    """
    first_lines = rows.where(F.col("kind") == "settings")
    simulated = (F.coalesce("clock", F.lit("")) == "simulated").alias("simulated")
    counted = first_lines.groupBy("run", "who", simulated, "at", "wall_ms", "settings").count()
    more = counted.where(F.col("count") > 1)
    return more.groupBy("run", "who", "simulated").agg(F.sum(F.col("count") - 1).alias("count"))


def once(rows: DataFrame, of_doubled: DataFrame) -> DataFrame:
    """HISTORY, each line once of a file that was given twice: DOUBLED as `doubled` gives it."""
    twice = F.broadcast(of_doubled.where(~F.col("simulated")).select("run", "who"))
    whole = rows.join(twice, on=["run", "who"], how="left_anti")
    return whole.unionByName(rows.join(twice, on=["run", "who"], how="left_semi").distinct())


def remainder(rows: DataFrame, unread: DataFrame, of_doubled: DataFrame) -> DataFrame:
    """What could not be read, and who is missing: HISTORY, UNREAD and what `doubled` gives in, REMAINDER out.

    A line of which not even the run is known counts against every run; it has an empty ``run``.
    """
    everywhere = F.coalesce("run", F.lit(""))
    torn = F.startswith("reason", F.lit("a last line"))
    lines = unread.groupBy(everywhere.alias("run"), F.col("reason").alias("what")).agg(
        F.min("file").alias("detail"),
        F.count("*").alias("count"),
        F.max(~F.col("harmless")).alias("gap"),
        F.max(~F.col("harmless") | torn).alias("lossy"),
    )
    per_writer = rows.groupBy("run", "who").agg(
        F.count_if(F.col("kind") == "settings").alias("settings"),
        F.count_if(F.col("kind") == "truncated").alias("truncated"),
        F.max(F.from_json(F.get_json_object("settings", "$.nodes"), "ARRAY<STRING>")).alias("nodes"),
        F.max((F.col("clock") == "simulated").cast("int")).alias("simulated"),
    )
    run = Window.partitionBy("run")
    per_writer = per_writer.withColumn("simulated", F.max("simulated").over(run))
    unsaid = per_writer.where("settings = 0 AND coalesce(simulated, 0) = 0")
    named = per_writer.groupBy("run").agg(
        F.array_distinct(F.flatten(F.collect_list("nodes"))).alias("nodes"),
        F.collect_set(F.regexp_extract("who", "^node:(.*)$", 1)).alias("wrote"),
    )
    absent = named.select("run", F.explode(F.array_except("nodes", "wrote")).alias("who"))
    copies, namesakes = of_doubled.where("NOT simulated"), of_doubled.where("simulated")
    twice = "a first line that is there more than once: a file was given twice, or two runs have one name"
    found = (
        lines,
        _gap(unsaid, "a writer without its first line (settings)"),
        _gap(per_writer.where("truncated > 0"), "a writer reached its limit (truncated)"),
        _gap(copies, "a file that was given twice, and is read once", "sum(count)", gap="false", lossy="false"),
        _gap(namesakes, twice, "sum(count)"),
        _gap(absent, "a node without a history", gap="false"),
    )  # fmt: skip
    return reduce(DataFrame.unionByName, found)


def _gap(
    of_writers: DataFrame, what: str, count: str = "count(*)", *, gap: str = "true", lossy: str = "true"
) -> DataFrame:
    """What is the matter with some writers of a run: a row for each run, as in REMAINDER."""
    return of_writers.groupBy("run").agg(
        F.lit(what).alias("what"),
        F.concat_ws(", ", F.sort_array(F.collect_set("who"))).alias("detail"),
        F.expr(count).alias("count"),
        F.expr(gap).alias("gap"),
        F.expr(lossy).alias("lossy"),
    )


def with_remainder(of_runs: DataFrame, rest: DataFrame) -> DataFrame:
    """Runs, each with `gaps`, how much could not be read, and `lossy`."""
    total = rest.groupBy("run").agg(
        F.coalesce(F.sum(F.when(F.col("gap"), F.col("count"))), F.lit(0)).alias("gaps"),
        F.max("lossy").alias("lossy"),
    )
    of_all = total.where(F.col("run") == "").agg(
        F.sum("gaps").alias("all_gaps"), F.max("lossy").alias("all_lossy")
    )
    return (
        of_runs.join(F.broadcast(total), on="run", how="left")
        .crossJoin(F.broadcast(of_all))
        .withColumn("gaps", F.expr("coalesce(gaps, 0) + coalesce(all_gaps, 0)"))
        .withColumn("lossy", F.expr("coalesce(lossy, false) OR coalesce(all_lossy, false)"))
        .drop("all_gaps", "all_lossy")
    )


def violations(
    deliveries: DataFrame,
    messages: DataFrame,
    holds: DataFrame,
    overlaps: DataFrame,
    asked: DataFrame,
    of_runs: DataFrame,
) -> DataFrame:
    """Everything that is broken, or could not be decided about a message in particular: VIOLATIONS."""
    together = overlaps
    for table in (deliveries, messages, holds, asked):
        names = [name for name in (*MESSAGE, "dead") if name in table.columns]
        found = table.select(*names, F.inline("findings"))
        together = together.unionByName(found, allowMissingColumns=True)
    slash = F.lit("/")
    name = F.concat("topic", slash, "partition", slash, "origin", slash, "seq")  # null of what is no message
    together = together.withColumns({"group": _group(), "id": name})
    stuck = of_runs.where("healed_at IS NOT NULL AND drained_at IS NULL AND ended_at IS NOT NULL")
    said = "healed at %.4f s, and after the %.2f s that it may take not everything is settled"
    text = F.format_string(said, "healed_at", "bound")
    of_run = stuck.select(
        "run",
        F.lit("G4").alias("guarantee"),
        F.lit(BROKEN).alias("verdict"),
        F.col("ended_at").alias("at"),
        text.alias("text"),
    )
    return shaped(together.unionByName(of_run, allowMissingColumns=True), VIOLATIONS)


def _group() -> Column:
    """The name of a group, or of the group of its dead letters."""
    return F.when(F.col("dead"), F.concat("grp", F.lit("!dead"))).otherwise(F.col("grp"))


def tallies(
    deliveries: DataFrame, messages: DataFrame, holds: DataFrame, asked: DataFrame, of_runs: DataFrame
) -> DataFrame:
    """How much was looked at, and how much of it can never be decided: run, guarantee, checked, undecidable."""

    def counted(table: DataFrame, **counts: tuple[str, str]) -> DataFrame:
        sums = [
            F.struct(
                F.lit(guarantee).alias("guarantee"),
                F.count_if(true(F.expr(checked))).alias("checked"),
                F.count_if(true(F.expr(left))).alias("undecidable"),
            )
            for guarantee, (checked, left) in counts.items()
        ]
        return table.groupBy("run").agg(F.array(*sums).alias("_sums")).select("run", F.inline("_sums"))

    of_deliveries = counted(
        deliveries,
        G3=("true", "false"),
        # Where a run says when it was healed, liveness is asked from then on, with the bound that it states.
        G4=(
            "is_delivery AND if(healed, after_healing, waited IS NOT NULL)",
            "NOT healed AND waited > may_wait",
        ),
        G5=("crc_known", "false"),
        groups=("is_delivery AND has_registers", "false"),
        delays=("was_due", "false"),
    )
    of_messages = counted(
        messages,
        G1=("confirmed OR copies_counted", "pending"),
        G4=("false", "pending"),
        G6=("retried", "false"),
        G7=("letter", "letter_pending OR redrive_pending"),
        delays=("mortal", "false"),
    )
    of_holds = counted(holds, G2=("true", "false"), delays=("was_due", "false"))
    every = F.array(*(F.lit(name) for name in GUARANTEES))
    unread = of_runs.select(
        "run",
        F.explode(every).alias("guarantee"),
        F.lit(0).alias("checked"),
        F.col("gaps").alias("undecidable"),
    )
    of_others = asked.groupBy("run", "guarantee").agg(
        F.count_if("checked").alias("checked"), F.count_if("pending").alias("undecidable")
    )
    together = of_deliveries.unionByName(of_messages).unionByName(of_holds).unionByName(of_others)
    together = together.unionByName(unread)
    return together.groupBy("run", "guarantee").agg(*summed("checked", "undecidable"))


def verdicts(tally: DataFrame, broken: DataFrame) -> DataFrame:
    """One row for each run and guarantee: what `tallies` and `violations` give in, VERDICTS out."""
    found = broken.groupBy("run", "guarantee").agg(
        F.count_if(F.col("verdict") == BROKEN).alias("broken"),
        F.count_if(F.col("verdict") == UNDECIDED).alias("more"),
    )
    joined = tally.join(found, on=["run", "guarantee"], how="left")
    bad = F.coalesce("broken", F.lit(0))
    left = F.col("undecidable") + F.coalesce("more", F.lit(0))
    said = verdict(F.col("checked"), bad, left).alias("verdict")
    return joined.select("run", "guarantee", said, "checked", bad.alias("broken"), left.alias("undecidable"))


def verdict(checked: Column, broken: Column, undecidable: Column) -> Column:
    """What the counts amount to."""
    return (
        F.when(broken > 0, F.lit(BROKEN))
        .when(undecidable > 0, F.lit(UNDECIDED))
        .when(checked > 0, F.lit("holds"))
        .otherwise(F.lit("not checked"))
    )


def overall(of_runs: DataFrame) -> DataFrame:
    """VERDICTS over all runs together, a row for each guarantee, with how many runs there are, in how many of them it
    was checked (`runs_checked`), and in how many it is broken (`runs_broken`).
    """
    counts = ("checked", "broken", "undecidable")
    sums = of_runs.groupBy("guarantee").agg(
        *summed(*counts),
        F.count("*").alias("runs"),
        F.count_if(F.col("checked") > 0).alias("runs_checked"),
        F.count_if(F.col("verdict") == BROKEN).alias("runs_broken"),
    )
    said = verdict(*(F.col(name) for name in counts)).alias("verdict")
    return sums.select("guarantee", said, *sums.columns[1:])


# --------------------------------------------------------------------------- figures


def latency(deliveries: DataFrame) -> DataFrame:
    """How long messages waited for their first delivery, and how often they were delivered: LATENCY.

    Counted from when the publish was sent, or confirmed where a history says no more. ``untimed``: messages of which
    that is not known, as a clock is not placed, or nobody wrote of the publish.
    """
    live = deliveries.where(F.col("is_delivery") & ~F.col("dead"))
    per = live.groupBy(*KEY).agg(
        F.min("here").alias("first"),
        F.min("published").alias("published"),
        F.count("*").alias("times"),
        F.max("attempt").alias("attempt"),
    )
    per = per.withColumn("waited", F.expr(apart("published", "first")))
    return per.groupBy("run", "topic", F.col("grp").alias("group")).agg(
        F.sum("times").alias("deliveries"),
        F.count("*").alias("messages"),
        F.count_if(F.col("times") > 1).alias("redelivered"),
        F.count_if(F.col("waited").isNull()).alias("untimed"),
        *(F.percentile_approx("waited", share / 100).alias(f"p{share}") for share in (50, 90, 99)),
        F.max("waited").alias("max"),
        F.percentile_approx("attempt", 0.5).alias("attempts_p50"),
        F.percentile_approx("attempt", 0.99).alias("attempts_p99"),
        F.max("attempt").alias("attempts_max"),
    )


def redeliveries(holds: DataFrame) -> DataFrame:
    """What each delivery but the first followed: the hold before it acked, given up, run out, or still alive."""
    order = Window.partitionBy(*KEY, "dead").orderBy("t", "owner")
    before = F.lag(F.struct("end", "ended", "ended_t", "gave_up", "acked_t", "generation", "n")).over(order)
    again = holds.where(F.col("times") > 0).withColumn("_before", before).where(F.col("_before").isNotNull())
    newer = F.struct("generation", "n") > F.struct("_before.generation", "_before.n")
    after = (
        F.when(newer, F.lit("rewind or redrive"))
        .when(
            F.startswith("_before.ended", F.lit("ack acked")) & (F.col("_before.ended_t") < F.col("t")),
            F.lit("ack"),
        )
        .when(F.col("t") < F.col("_before.end"), F.lit("inside the hold"))
        .when(F.col("_before.gave_up").isNotNull(), F.lit("reject"))
        .when(F.col("_before.acked_t").isNotNull(), F.lit("expiry, an ACK unanswered"))
        .otherwise(F.lit("expiry"))
    )
    by = ("run", "topic", _group().alias("group"), after.alias("after"))
    return again.groupBy(*by).agg(F.count("*").alias("deliveries"))


def per_fault(lines: DataFrame, of_faults: DataFrame, broken: DataFrame) -> DataFrame:
    """What happened while each fault lasted, per line of the history: FAULTS."""
    by_run = of_faults.groupBy("run").agg(
        F.collect_list(F.struct("fault", "begin", "end", "nodes")).alias("faults")
    )
    during = "explode(filter(faults, f -> {0} >= f.begin AND {0} <= f.end))"
    kind, outcome = F.col("kind"), F.col("outcome")
    calls = lines.where(kind.isin("publish", "deliver", "ack", "reject", "dead_letter", "extend")).join(
        F.broadcast(by_run), on="run", how="inner"
    )
    seen = (
        calls.select("run", F.expr(during.format("t")).alias("f"), "kind", "outcome")
        .groupBy("run", "f")
        .agg(
            F.count_if((kind == "publish") & (outcome == "ok")).alias("published"),
            F.count_if(outcome == "unknown").alias("unknown"),
            F.count_if(kind == "deliver").alias("delivered"),
            F.count_if((kind == "ack") & F.startswith("outcome", F.lit("acked"))).alias("acked"),
        )
    )
    wrong = (
        broken.where(F.col("verdict") == BROKEN)
        .join(F.broadcast(by_run), on="run", how="inner")
        .select("run", F.expr(during.format("at")).alias("f"))
        .groupBy("run", "f")
        .agg(F.count("*").alias("broken"))
    )
    each = of_faults.select("run", F.struct("fault", "begin", "end", "nodes").alias("f")).distinct()
    found = each.join(seen, on=["run", "f"], how="left").join(wrong, on=["run", "f"], how="left")
    nodes = F.concat_ws(", ", "f.nodes").alias("nodes")
    known = (F.coalesce(name, F.lit(0)).alias(name) for name in COUNTED)
    return found.select("run", "f.fault", "f.begin", "f.end", nodes, *known)


def divergence(lines: DataFrame, events: DataFrame) -> DataFrame:
    """Dead letters that some of the nodes that listed theirs in the end do not list: DIVERGENCE.

    A node that wrote no `list` line of a group and partition at all has said nothing and is not missing there.
    """
    place = ("run", "topic", "partition", "grp")
    node = F.startswith("who", F.lit("node:"))
    mine = (F.col("kind") == "list") & (F.col("state") == "dead") & node
    told = lines.where(mine).groupBy(*place).agg(F.collect_set("who").alias("nodes"))
    listed = events.where(mine).groupBy(*KEY).agg(F.collect_set("who").alias("by"))
    found = listed.join(F.broadcast(told), on=list(place), how="inner")
    absent = F.array_except("nodes", "by")
    found = found.where(F.size(absent) > 0).withColumns({
        "group": F.col("grp"),
        "listed_by": F.concat_ws(", ", F.sort_array("by")),
        "missing_at": F.concat_ws(", ", F.sort_array(absent)),
    })  # fmt: skip
    return shaped(found, DIVERGENCE)
