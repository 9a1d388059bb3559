"""Each message for each group, and how it ended: G1, G5, G6, G7 and groups as asked."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from .audit_deliveries import NAMED
from .audit_events import KEY, maybe, moment, sure
from .audit_findings import finding, findings, say, true


def messages(
    events: DataFrame, of_groups: DataFrame, of_places: DataFrame, of_runs: DataFrame, to_list: DataFrame
) -> DataFrame:
    """A row for each message and group: how it ended, judged.

    Args: as `audit_deliveries.deliveries`, and `to_list`: what `audit_context.replicas` gives.
    """
    named = _named(_told(events), of_groups, of_places, of_runs, to_list).withColumn("rf", _replicas())
    drained, first, stored = F.col("drained"), F.col("is_first"), F.col("stored").isNotNull()
    listing, last, again = F.col("listing"), F.col("last_died"), F.col("last_redriven")
    return named.select(
        *KEY,
        ((F.col("grp") != "") & stored & F.col("covered")).alias("confirmed"),
        (first & stored & F.col("rf").isNotNull()).alias("copies_counted"),
        first.alias("first"),
        (first & (F.col("tries") > 1)).alias("retried"),
        F.size("copies").alias("copies"),
        (last.isNotNull() | again.isNotNull() | listing.isNotNull()).alias("letter"),
        (F.size("listed") > 0).alias("was_listed"),
        (_wanted() & ~drained & (_undelivered() | _unacked())).alias("pending"),
        (~drained & _letter_gone()).alias("letter_pending"),
        (~drained & _redrive_lost()).alias("redrive_pending"),
        findings(*_durable(), *_same_bytes(), *_listed(), *_conserved(), *_purged()),
    )


def _replicas() -> Column:
    """How many replicas the topic has: what its label says, or as all topics of the run."""
    said = F.regexp_extract("topic", "/rf([0-9]+)$", 1)
    return F.when(said != "", said.cast("int")).otherwise(F.col("rf"))


def _told(events: DataFrame) -> DataFrame:
    """A row for each message and group, with what its events say."""
    kind, outcome, generation = (F.col(name) for name in ("kind", "outcome", "generation"))
    live, dead = ~F.col("dead"), F.col("dead")
    publish, invoke, ok = kind == "publish", outcome == "invoke", outcome == "ok"
    asked, delivered, ack, listed = (
        publish & invoke,
        (kind == "deliver") & live,
        (kind == "ack") & live,
        kind == "list",
    )
    mine, state = F.startswith("who", F.lit("client:")), F.col("state")
    life = F.struct("generation", "n")
    died = (kind == "dead_letter") & live & ok & mine
    redriven = (kind == "redrive") & outcome.isin("invoke", "ok")
    redrive = F.struct("outcome", "generation", "n", "who", "op", moment().alias("at"))
    return (
        events.repartition("hash")
        .groupBy(*KEY)
        .agg(
            F.min(F.when(publish, F.col("turn"))).alias("turn"),
            F.count_if(asked).alias("tries"),
            F.max(publish & (outcome == "fail") & F.col("conflict")).alias("conflict"),
            F.min(F.when(publish & ok, moment())).alias("stored"),
            F.max(F.when(asked, F.col("t"))).alias("last_try"),
            F.min(F.when(asked, F.col("crc"))).alias("first_crc"),
            F.max(F.when(asked, F.col("crc"))).alias("last_crc"),
            F.min(F.when(asked, F.col("published_ms"))).alias("made_ms"),
            F.collect_set(F.when(kind == "store", moment("t", "who"))).alias("copies"),
            F.max(F.when(delivered, life)).alias("delivered"),
            F.max(F.when(delivered, generation)).alias("delivered_in"),
            F.max(F.when(ack & invoke, generation)).alias("ack_asked"),
            F.max(F.when(ack & F.startswith("outcome", F.lit("acked")), generation)).alias("acked"),
            F.max((kind == "ack") & dead & invoke).alias("dead_acked"),
            F.max(F.when(listed & state.isin("dead", "skipped", "purged", "acked"), generation)).alias("gone_in"),
            F.max(listed & (state == "skipped")).alias("skipped"),
            F.max(listed & (state == "purged")).alias("purged"),
            F.collect_list(F.when(listed & (state == "dead") & ~mine, F.struct("who", "generation", "n")))
            .alias("listed"),
            F.max(F.when(listed & (state == "dead"), life)).alias("shown_dead"),
            F.collect_list(F.when(died, moment("t", "generation", "n"))).alias("died"),
            F.collect_list(F.when(redriven, redrive)).alias("redrives"),
        )
    )  # fmt: skip


def _named(
    told: DataFrame, of_groups: DataFrame, of_places: DataFrame, of_runs: DataFrame, to_list: DataFrame
) -> DataFrame:
    """The same with what is known of group, place and run, and of the last death and redrive."""
    place = ["run", "topic", "partition", "grp"]
    named = (
        told.join(F.broadcast(of_groups.drop("known")), on=["run", "topic", "grp"], how="left")
        .join(F.broadcast(of_places), on=place, how="left")
        .join(F.broadcast(to_list), on=place, how="left")
        .join(F.broadcast(of_runs), on="run", how="left")
    )
    zero = F.lit(0).cast("decimal(20,0)")
    numbers = {"current": zero, "current_from": F.lit(0), "buried": zero}
    numbers |= dict.fromkeys(("delivered_in", "ack_asked", "acked", "gone_in"), F.lit(-1))
    flags = ("dead_acked", "skipped", "purged", "conflict", "deleted", "unmade")
    purged = "exists(purges_asked, p -> {} AND " + NAMED + ")"
    named = named.withColumns({
        **{name: F.coalesce(name, default) for name, default in numbers.items()},
        "purge_asked": true(F.expr(purged.format("NOT p.dead"))),
        "dead_purge_asked": true(F.expr(purged.format("p.dead"))),
        **{name: true(F.col(name)) for name in flags},
    })  # fmt: skip
    named = named.withColumns({
        "is_first": true(F.col("turn") == 0),
        "covered": F.coalesce(F.col("made_ms") >= F.col("current_from"), F.expr("true")),
        "drained": F.col("drained_at").isNotNull(),
        "end": F.coalesce("drained_at", "ends_at"),
        "complete": ~F.col("lossy") & ~true(F.col("unregistered")),
        "last_died": F.expr("array_max(transform(died, d -> struct(d.generation, d.n, -d.t)))"),
        "last_redriven": F.expr(
            "array_max(transform(filter(redrives, r -> r.outcome = 'ok'), "
            "r -> struct(r.generation, r.n, r.who, r.op)))"
        ),
        "listing": F.expr("array_max(transform(listed, l -> struct(l.generation, l.n)))"),
        "redrive_asked": F.expr(
            "coalesce(array_max(transform(filter(redrives, r -> r.outcome = 'invoke'), r -> r.n)), -1)"
        ),
    })  # fmt: skip
    return named.withColumn(
        "redrive_sent",
        F.expr(
            "array_min(transform(filter(redrives, r -> r.outcome = 'invoke' AND r.who = last_redriven.who "
            "AND r.op = last_redriven.op), r -> r.at))"
        ),
    )


def _wanted() -> Column:
    """Whether the group has to get the message, or to have it as a dead letter."""
    return (
        (F.col("grp") != "")
        & F.col("stored").isNotNull()
        & ~F.col("deleted")
        & ~F.col("unmade")
        & F.col("covered")
        & (F.col("gone_in") < F.col("current"))
    )


def _undelivered() -> Column:
    return F.col("delivered_in") < F.col("current")


def _unacked() -> Column:
    return F.col("ack_asked") < F.col("current")


def _durable() -> list[Column]:
    """What was confirmed is on a majority, and delivered and settled, or a dead letter: G1."""
    drained, complete, end = F.col("drained"), F.col("complete"), F.col("end")
    where_ = F.when(F.col("current") > 0, say(" in generation {current}")).otherwise(F.lit(""))
    # A copy that may have been there counts: the clocks of one machine, or intervals, must show that it was not.
    nodes = F.expr(
        f"array_distinct(transform(filter(copies, c -> {maybe('c', 'stored', '<=')}), c -> c.who))"
    )
    few = F.col("is_first") & F.col("stored").isNotNull() & (F.size(nodes) < F.floor(F.col("rf") / 2) + 1)
    lost = "confirmed at {stored.t:s}, was never delivered{where} and is no dead letter"
    unsettled = "was delivered{where}, nobody acked it, and it is no dead letter"
    copies = "was confirmed at {stored.t:s}, and durable on {nodes} of {int(rf)} replicas"
    return [
        finding(drained & _wanted() & _undelivered(), "G1", say(lost, where=where_), end, sure=complete),
        finding(
            drained & _wanted() & ~_undelivered() & _unacked(), "G1", say(unsettled, where=where_), end, sure=complete
        ),
        finding(
            few, "G1", say(copies, nodes=F.concat_ws(", ", nodes)), F.col("stored.t"),
            sure=complete & ~F.col("unstopped"),
        ),
    ]  # fmt: skip


def _same_bytes() -> list[Column]:
    """A retry has the bytes of the first try: G5, G6."""
    first, last_try = F.col("is_first"), F.col("last_try")
    derived = F.startswith("origin", F.lit("~derived."))
    return [
        finding(
            first & ~derived & (F.col("first_crc") != F.col("last_crc")), "G5",
            "published as {first_crc} and as {last_crc}", last_try,
        ),
        finding(
            first & F.col("conflict") & F.col("first_crc").eqNullSafe(F.col("last_crc")), "G6",
            "refused as a conflict, and every retry has the same bytes", last_try,
        ),
    ]  # fmt: skip


def _listed() -> list[Column]:
    """Replicas list one dead letter alike, and none that was settled: G7."""
    drained, end, listing = F.col("drained"), F.col("end"), F.col("listing")
    nodes = F.sort_array(F.expr("array_distinct(transform(listed, l -> l.who))"))
    absent = F.sort_array(F.array_except("to_list", nodes))
    one_sided = say(
        "is listed by {nodes} and not by {absent}",
        nodes=F.array_join(nodes, ", "),
        absent=F.array_join(absent, ", "),
    )
    differing = F.size(F.expr("array_distinct(transform(listed, l -> struct(l.generation, l.n)))")) > 1
    redriven = F.expr(
        "coalesce(array_max(transform(filter(redrives, r -> r.outcome = 'ok' AND r.generation = listing.generation), "
        "r -> r.n)), -1)"
    )
    died = F.expr(
        "array_max(transform(filter(died, d -> d.generation = listing.generation), d -> struct(d.n, -d.t)))"
    )
    purged = F.expr(
        "exists(died, d -> d.generation = listing.generation AND d.n = listing.n AND exists(purges, p -> p.dead AND "
        f"{NAMED} AND {sure('d', 'p.sent')}))"
    )
    was_void = F.expr(
        "exists(registers, r -> r.generation > listing.generation AND coalesce(made_ms, 0L) >= r.from_ms)"
    )
    return [
        finding(F.size("listed") > F.size(nodes), "G7", "listed twice by one replica", end),
        finding(
            drained & (F.size("listed") > 0) & (F.size(absent) > 0), "G7", one_sided, end, sure=F.col("complete")
        ),
        finding(drained & differing, "G7", "listed differently: {to_json(listed)}", end),
        finding(
            drained & (F.col("listing.generation") < F.col("buried")), "G7",
            "listed dead in generation {listing.generation}, and its group was deleted", end,
        ),
        finding(
            drained & listing.isNotNull() & (F.col("acked") >= F.col("listing.generation")), "G7",
            "listed dead, and an ACK of it was confirmed", end,
        ),
        finding(
            drained & listing.isNotNull() & (F.col("listing.n") <= redriven), "G7",
            "listed dead at n = {listing.n}, whose redrive was confirmed", end,
        ),
        finding(
            drained & (F.col("listing.n") == died["n"]) & purged & ~true(was_void), "G7",
            "listed dead at n = {listing.n}, and was purged", end,
        ),
    ]  # fmt: skip


def _letter_gone() -> Column:
    """Whether a dead letter is not there any more, and nothing that was asked for explains it."""
    last = F.col("last_died")
    reopened = (F.col("last_died.generation") < F.col("current")) & F.col("covered")
    reopened |= F.col("last_died.generation") < F.col("buried")
    is_there = F.coalesce("listing", "shown_dead") >= F.struct("last_died.generation", "last_died.n")
    explained = (
        (F.col("ack_asked") >= F.col("last_died.generation"))
        | (F.col("redrive_asked") >= F.col("last_died.n"))
        | F.col("dead_purge_asked")
        | F.col("dead_acked")
    )
    return last.isNotNull() & ~F.col("deleted") & ~reopened & ~true(is_there) & ~explained


def _redrive_lost() -> Column:
    """Whether nobody got what was redriven, and nothing that was asked for explains it."""
    again = F.col("last_redriven")
    before = F.expr(f"exists(confirmed, c -> c.generation = current AND {sure('c', 'redrive_sent')})")
    rewound = (F.col("current") > 0) & ~true(before)
    got = true((F.col("delivered.n") > again["n"]) | (F.col("delivered.generation") > again["generation"]))
    return (
        again.isNotNull()
        & ~F.col("deleted")
        & ~rewound
        & F.col("listing").isNull()
        & ~got
        & (F.col("ack_asked") < 0)
        & ~F.col("purge_asked")
    )


def _conserved() -> list[Column]:
    """A dead letter, or its redrive, is not lost: G7."""
    drained, complete, end = F.col("drained"), F.col("complete"), F.col("end")
    return [
        finding(
            drained & _letter_gone(), "G7", "a dead letter at n = {last_died.n} since {-last_died.col3:s}, is gone",
            end, sure=complete,
        ),
        finding(
            drained & _redrive_lost(), "G7", "redriven at n = {last_redriven.n}, and nobody ever got it",
            end, sure=complete,
        ),
    ]  # fmt: skip


def _purged() -> list[Column]:
    """What is skipped or purged was asked for: groups."""
    complete, end = F.col("complete"), F.col("end")
    return [
        finding(
            F.col("skipped") & ~F.col("purge_asked"), "groups", "is skipped, and nobody purged it",
            end, sure=complete,
        ),
        finding(
            F.col("purged") & ~F.col("dead_purge_asked") & ~F.col("dead_acked"), "groups",
            "is purged, and nobody purged or acked the dead letter", end, sure=complete,
        ),
    ]  # fmt: skip
