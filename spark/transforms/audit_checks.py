# spark/transforms/audit_checks.py: the guarantees of docs/protocol.md, section 2, as questions to events.
#
# Three tables are made of the events, each with what was found wrong in an array, so that everything about one message
# is decided where its rows are, without another shuffle:
#   deliveries  a row for each delivery, with what had become of the message before (windows over its events);
#   holds       a row for each hold of a delivery, from the delivery to its deadline, EXTENDs included;
#   messages    a row for each message and group, with how it ended.
#
# Events of a message come from all over a history: adding some up before they are brought together saves nothing, and
# fills the memory with messages. So each of the three moves the events first, by their hash, and then looks at them.
#
# A finding is `broken` where the clocks prove it, `not decidable` where they do not, or where what is missing from an
# incomplete history could explain it. Nothing is said to hold because it was not looked at: each table counts.
"""What each delivery, each hold and each message says of the guarantees."""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from spark.transforms.audit_events import KEY, surely_before

FINDING: Final = "guarantee STRING, verdict STRING, at DOUBLE, text STRING"
"""What an element of `findings` says."""

BROKEN: Final = "broken"
UNDECIDED: Final = "not decidable"
FALSE: Final = "false"
SLACK_S: Final = 1.0
"""What a redelivery may take beyond a hold before it is remarked on."""


def finding(when: Column, guarantee: str, text: Column, at: Column, *, sure: Column | None = None) -> Column:
    """A finding where ``when``, else null: broken where ``sure`` (always, if not given), else not decidable."""
    verdict = F.lit(BROKEN)
    if sure is not None:
        verdict = F.when(F.coalesce(sure, F.expr(FALSE)), F.lit(BROKEN)).otherwise(F.lit(UNDECIDED))
    made = F.struct(
        F.lit(guarantee).alias("guarantee"),
        verdict.alias("verdict"),
        at.cast("double").alias("at"),
        text.alias("text"),
    )
    return F.when(F.coalesce(when, F.expr(FALSE)), made)


def findings(*some: Column) -> Column:
    """Those that are there."""
    return F.filter(F.array(*some), lambda it: it.isNotNull()).alias("findings")


def shown(seconds: Column) -> Column:
    """A time as evidence shows it: to 0.1 ms, and a time of day without an exponent."""
    return F.when(seconds.isNotNull(), F.format_string("%.4f s", seconds.cast("double")))


def say(*parts: str | Column) -> Column:
    """Text and columns, one after the other; a null is shown as nothing."""
    return F.concat(
        *(F.lit(p) if isinstance(p, str) else F.coalesce(p.cast("string"), F.lit("nothing")) for p in parts)
    )


# ----------------------------------------------------------------------- deliveries


def deliveries(
    events: DataFrame, of_groups: DataFrame, of_places: DataFrame, of_runs: DataFrame, of_origins: DataFrame
) -> DataFrame:
    """A row for each delivery of a message (and each ACK that heard `acked`), judged: G3 to G7 and groups as asked.

    Args:
        events: what `audit_events.events` gives.
        of_groups: what `audit_context.group_facts` gives.
        of_places: what `audit_context.purges` gives.
        of_runs: what `audit_context.runs` gives, with `lossy`.
        of_origins: what `audit_context.origins` gives.
    """
    kind, outcome = F.col("kind"), F.col("outcome")
    delivery = kind == "deliver"
    moment = F.struct("t", "u", "domain", "owner", "outcome")
    success = (kind == "ack") & F.startswith("outcome", F.lit("acked"))
    by_client = F.startswith("who", F.lit("client:"))
    died = (kind == "dead_letter") & (outcome == "ok") & by_client & ~F.col("dead")
    published, invoked = kind == "publish", (kind == "publish") & (outcome == "invoke")
    rejected, redriven = ((kind == name) & (outcome == "invoke") for name in ("reject", "redrive"))
    # Cut into pieces by the hash alone: every window below is then inside one piece, and rows are moved once. A
    # delivery comes as late, and all else as early, as the clocks allow: what could have been before it is seen.
    relevant = events.where(delivery | success | died | published | rejected | redriven)
    relevant = relevant.repartition("hash").withColumns(
        {
            "_k": F.when(delivery, F.col("t") + F.col("u")).otherwise(F.col("t") - F.col("u")),
            "_turn": F.when(published | redriven, 0).when(delivery, 1).otherwise(2),
            "_n": F.when(F.col("dead"), F.col("n")).otherwise(0),
        }
    )
    so_far = (Window.unboundedPreceding, Window.currentRow)
    message = Window.partitionBy(*KEY)
    story = message.orderBy("_k", "_turn").rowsBetween(*so_far)
    of_life = Window.partitionBy(*KEY, "dead", "generation", "_n").orderBy("_k", "_turn").rowsBetween(*so_far)
    before = Window.partitionBy(*KEY, "dead", "kind").orderBy("t").rowsBetween(Window.unboundedPreceding, -1)
    last = Window.partitionBy(*KEY, "dead", "kind").orderBy("t", "token")

    # All in one: what shares a window is then one pass over its rows.
    told = relevant.withColumns(
        {
            "acked": F.min(F.when(success & (outcome == "acked"), moment)).over(of_life),
            "settled": F.min(F.when(success, moment)).over(of_life),
            "died": F.max(F.when(died, F.struct("n", -F.col("t"), "t", "u", "domain"))).over(of_life),
            "rejects": F.count_if(rejected).over(of_life),
            "redrives": F.max(F.when(redriven, F.col("n"))).over(story),
            "published": F.min(F.when(published, F.col("t"))).over(story),
            "invoked": F.max(invoked).over(message),
            "is_known": F.max(published).over(message),
            "last_try": F.max(F.when(invoked, F.col("t"))).over(message),
            "first_crc": F.min(F.when(invoked, F.col("crc"))).over(message),
            "last_crc": F.max(F.when(invoked, F.col("crc"))).over(message),
            "made_ms": F.min(F.when(invoked, F.col("published_ms"))).over(message),
            "stored": F.min(F.when(published & (outcome == "ok"), F.col("t"))).over(message),
            "free": F.max("until").over(before),
            "last_token": F.lag("token").over(last),
            "last": F.lag(F.struct("t", "u", "domain", "until", "owner")).over(last),
        }
    ).where(delivery | (success & (outcome == "acked")))
    named = (
        told.join(F.broadcast(of_groups), on=["run", "topic", "grp"], how="left")
        .join(F.broadcast(of_places), on=["run", "topic", "partition", "grp"], how="left")
        .join(F.broadcast(of_runs), on="run", how="left")
        .join(F.broadcast(of_origins), on=["run", "origin"], how="left")
    )
    at, u, domain = F.col("t"), F.col("u"), F.col("domain")
    asked, generation, n = F.col("asked"), F.col("generation"), F.col("n")
    open_ = delivery & ~F.col("dead")
    complete = ~F.col("lossy")
    settled_before = F.when(F.col("settled.domain") == domain, F.col("settled.t") < asked)
    certainly = settled_before.otherwise(F.col("settled.t") + F.col("settled.u") < asked - u)
    possibly = settled_before.otherwise(F.col("settled.t") - F.col("settled.u") < asked + u)
    acked_possible = delivery & F.col("acked").isNotNull() & (F.col("acked.t") - F.col("acked.u") < at + u)
    acked_possible = acked_possible & ~(F.col("acked.domain").eqNullSafe(domain) & (F.col("acked.t") >= at))
    crc_known = delivery & F.col("crc").isNotNull() & F.col("first_crc").isNotNull()

    confirmed = (
        "array_max(transform(filter(confirmed, c -> c.rewind AND c.t {} <= asked {}), c -> c.generation))"
    )
    newest = F.expr(f"coalesce({confirmed.format('- c.u', '+ u')}, 0)")
    newest_sure = F.expr(f"coalesce({confirmed.format('+ c.u', '- u')}, 0)")
    if_covered = F.expr(
        "coalesce(made_ms, 0L) >= array_max(transform(filter(known, r -> r.t <= t AND r.generation >= "
        "coalesce(array_max(transform(filter(confirmed, c -> c.rewind AND c.t <= asked), c -> c.generation)), 0)), "
        "r -> r.from_ms))"
    )
    stale = delivery & (generation < newest) & (~F.col("dead") | F.coalesce(if_covered, F.expr(FALSE)))
    begins = F.expr("array_max(transform(filter(registers, r -> r.generation = generation), r -> r.from_ms))")
    purged_by = (
        "exists(purges, p -> NOT p.dead AND p.generation = generation AND stored < p.sent.t - u - p.sent.u "
        "AND asked {} u > p.done.t {} p.done.u)"
    )
    purged = open_ & (n == 0) & F.expr(purged_by.format("+", "-"))
    since = F.expr("array_min(transform(filter(known, k -> k.generation = generation), k -> k.t))")
    ended = F.col("rejects") + F.floor((at - since) * 1.02 / F.col("hold_min"))
    too_many = open_ & (generation > 0) & (F.col("attempt") > 1 + F.col("rf") * ended)
    free = F.greatest("healed_at", F.coalesce("free", F.lit(0.0)))
    waited = delivery & (at > free + F.col("bound"))
    token_low = delivery & (F.col("token") <= F.col("last_token"))

    return named.select(
        *KEY,
        "dead",
        "kind",
        "owner",
        "generation",
        "n",
        "attempt",
        "t",
        "u",
        "asked",
        "published",
        "stored",
        delivery.alias("is_delivery"),
        crc_known.alias("crc_known"),
        (F.size("registers") > 0).alias("has_registers"),
        F.when(delivery & F.col("last").isNotNull(), at - F.col("last.until")).alias("waited"),
        (F.col("last.until") - F.col("last.t") + SLACK_S).alias("may_wait"),
        F.col("healed_at").isNotNull().alias("healed"),
        (delivery & (at > F.col("healed_at"))).alias("after_healing"),
        findings(
            finding(
                acked_possible,
                "G3",
                say(
                    "delivered as ",
                    F.col("owner"),
                    " at ",
                    shown(at),
                    ", after ",
                    F.col("acked.owner"),
                    " heard acked at ",
                    shown(F.col("acked.t")),
                ),
                at,
                sure=surely_before(F.col("acked"), at, u, domain),
            ),
            finding(
                delivery & ~acked_possible & F.col("settled").isNotNull() & possibly,
                "G3",
                say(
                    "delivered to a FETCH sent at ",
                    shown(asked),
                    ", after an ACK had heard ",
                    F.col("settled.outcome"),
                    " at ",
                    shown(F.col("settled.t")),
                ),
                at,
                sure=certainly,
            ),
            finding(
                ~delivery & (F.col("acked.owner") != F.col("owner")),
                "G3",
                say(F.col("owner"), " heard acked at ", shown(at), ", and so did ", F.col("acked.owner")),
                at,
            ),
            finding(
                (acked_possible | (delivery & F.col("settled").isNotNull() & certainly))
                & (F.col("last_try") > F.col("settled.t"))
                & (F.col("last_try") < at),
                "G6",
                say(
                    "delivered at ",
                    shown(at),
                    " after an ACK at ",
                    shown(F.col("settled.t")),
                    " and a retry of its publish at ",
                    shown(F.col("last_try")),
                ),
                at,
            ),
            finding(
                token_low,
                "G3",
                say("delivered with token ", F.col("token"), " after ", F.col("last_token")),
                at,
                sure=surely_before(F.col("last"), at, u, domain) | (F.col("token") == F.col("last_token")),
            ),
            finding(
                delivery & ~F.col("is_known"),
                "G5",
                say("delivered at ", shown(at), " and never published"),
                at,
                sure=complete & F.col("has_producer").isNotNull(),
            ),
            finding(
                delivery & F.col("invoked") & F.col("published").isNull(),
                "G5",
                say("delivered at ", shown(at), ", before it was published"),
                at,
            ),
            finding(
                crc_known & (F.col("crc") != F.col("first_crc")) & (F.col("crc") != F.col("last_crc")),
                "G5",
                say("published as ", F.col("first_crc"), " and delivered as ", F.col("crc")),
                at,
            ),
            finding(
                open_ & (n <= F.col("died.n")),
                "G7",
                say(
                    "delivered at n = ",
                    n,
                    ", dead at n = ",
                    F.col("died.n"),
                    " since ",
                    shown(F.col("died.t")),
                ),
                at,
                sure=surely_before(F.col("died"), at, u, domain),
            ),
            finding(
                open_ & (n > F.coalesce("redrives", F.lit(-1)) + 1),
                "G7",
                say("delivered at n = ", n, ", and nobody redrove it so often"),
                at,
                sure=complete,
            ),
            finding(
                stale,
                "groups",
                say(
                    "delivered in generation ",
                    generation,
                    " to a FETCH sent after the rewind to ",
                    newest,
                    " was confirmed",
                ),
                at,
                sure=generation < newest_sure,
            ),
            finding(
                open_ & (n == 0) & (F.col("made_ms") < begins),
                "groups",
                say("lies before the start of generation ", generation),
                at,
            ),
            finding(
                purged,
                "groups",
                say("was purged, and is delivered to a FETCH sent at ", shown(asked)),
                at,
                sure=F.expr(purged_by.format("-", "+")),
            ),
            finding(
                too_many,
                "groups",
                say(
                    "is said to be at attempt ",
                    F.col("attempt"),
                    " of generation ",
                    generation,
                    ", which is ",
                    shown(at - since),
                    " old",
                ),
                at,
            ),
            finding(waited, "G4", say("waited ", shown(at - free), " for its next delivery"), at),
        ),
    )


# ----------------------------------------------------------------------------- holds


def holds(events: DataFrame) -> DataFrame:
    """A row for each hold of a message: from its delivery until its deadline, as EXTEND moved it, or until its client
    asked to give it up. ``acked_t`` is when its own client sent an ACK.
    """
    kind, outcome = F.col("kind"), F.col("outcome")
    gave_up = (
        kind.isin("reject", "dead_letter") & (outcome == "invoke") & F.startswith("who", F.lit("client:"))
    )
    extended = F.when((kind == "extend") & (outcome == "ok"), F.struct("t", "until"))
    ended = F.when(
        kind.isin("ack", "reject", "dead_letter") & (outcome != "invoke"),
        F.struct("t", F.concat_ws(" ", "kind", "outcome")),
    )
    found = (
        events.where(
            kind.isin("deliver", "ack", "reject", "dead_letter", "extend") & F.col("owner").isNotNull()
        )
        .repartition("hash")
        .groupBy(*KEY, "dead", "owner")
        .agg(
            F.min(
                F.when(
                    kind == "deliver",
                    F.struct("t", "u", "domain", "within", "until", "generation", "n", "who"),
                )
            ).alias("first"),
            F.count_if(kind == "deliver").alias("times"),
            F.collect_list(extended).alias("extended"),
            F.min(F.when(gave_up, F.col("t"))).alias("gave_up"),
            F.min(F.when((kind == "ack") & (outcome == "invoke"), F.col("t"))).alias("acked_t"),
            F.max(ended).alias("ended"),
        )
        .where(F.col("first").isNotNull())
    )
    until = F.expr(
        "greatest(first.until, coalesce(array_max(transform(filter(extended, e -> gave_up IS NULL OR e.t < gave_up), "
        "e -> e.until)), first.until))"
    )
    return found.select(
        *KEY,
        "dead",
        "owner",
        "times",
        F.col("first.t").alias("t"),
        F.col("first.u").alias("u"),
        F.col("first.domain").alias("domain"),
        F.col("first.within").alias("within"),
        F.col("first.who").alias("who"),
        F.col("first.generation").alias("generation"),
        F.col("first.n").alias("n"),
        F.least(until, F.coalesce("gave_up", until)).alias("end"),
        "gave_up",
        "acked_t",
        F.col("ended.col2").alias("ended"),
        F.col("ended.t").alias("ended_t"),
        findings(
            finding(
                F.col("times") > 1,
                "G6",
                say("handed over ", F.col("times"), " times in the delivery of ", F.col("owner")),
                F.col("first.t"),
            ),
        ),
    )


def overlaps(held: DataFrame) -> DataFrame:
    """Pairs of holds of one message for one group that were, or may have been, alive at one moment (G2).

    A window over the holds in order of their begin finds those that begin before the latest end so far; only those few
    are then compared one by one. A hold whose own client has sent an ACK is not in the way of a newer generation, nor,
    of a dead letter, of a higher redrive number: a rewind, or a redrive, may open at once what was acked.

    Args:
        held: what `holds` gives.
    """
    place = (*KEY, "dead")
    early = F.col("t") - F.col("u")
    so_far = Window.partitionBy(*place).orderBy(early, "owner").rowsBetween(Window.unboundedPreceding, -1)
    suspects = held.withColumn("_end", F.max(F.col("end") + F.col("u")).over(so_far)).where(
        F.col("_end") > early
    )
    other, this = held.alias("a"), suspects.alias("b")
    a, b = (lambda name: F.col(f"a.{name}")), (lambda name: F.col(f"b.{name}"))
    pairs = this.join(other, on=[a(name).eqNullSafe(b(name)) for name in place], how="inner").where(
        (a("owner") != b("owner"))
        & (
            (a("t") - a("u") < b("t") - b("u"))
            | ((a("t") - a("u") == b("t") - b("u")) & (a("owner") < b("owner")))
        )
        & (a("end") + a("u") > b("t") - b("u"))
    )
    same = F.coalesce(a("domain") == b("domain"), F.expr(FALSE))
    inside = b("t") < a("end") - F.greatest(a("within"), b("within"))
    beyond = (b("t") + b("u") < a("end") - a("u")) & (a("t") + a("u") < b("end") - b("u"))
    newer = F.struct(b("generation"), F.when(b("dead"), b("n")).otherwise(0)) > F.struct(
        a("generation"), F.when(a("dead"), a("n")).otherwise(0)
    )
    done = F.coalesce((a("acked_t") <= b("t")) & newer, F.expr(FALSE))
    sure = F.when(same, inside).otherwise(beyond)
    worst = F.struct(
        F.coalesce(sure, F.expr(FALSE)).alias("sure"),
        a("end").alias("end"),
        a("owner").alias("owner"),
        a("t").alias("t"),
    )
    # One finding for each hold that should not have begun, however many others were alive.
    found = (
        pairs.where(~done & (~same | inside))
        .groupBy(*(b(name).alias(name) for name in place), b("owner").alias("owner"))
        .agg(F.max(worst).alias("other"), F.first(b("t")).alias("t"))
    )
    text = say(
        "delivered as ",
        F.col("owner"),
        " at ",
        shown(F.col("t")),
        " while ",
        F.col("other.owner"),
        ", delivered at ",
        shown(F.col("other.t")),
        ", was inside its hold until ",
        shown(F.col("other.end")),
    )
    return found.select(
        *place,
        F.lit("G2").alias("guarantee"),
        F.when(F.col("other.sure"), F.lit(BROKEN)).otherwise(F.lit(UNDECIDED)).alias("verdict"),
        F.col("t").alias("at"),
        text.alias("text"),
    )


# -------------------------------------------------------------------------- messages


def messages(events: DataFrame, of_groups: DataFrame, of_places: DataFrame, of_runs: DataFrame) -> DataFrame:
    """A row for each message and group: how it ended, judged by G1, G5, G6, G7 and groups as asked.

    Args: as `deliveries`.
    """
    kind, outcome, generation = (F.col(name) for name in ("kind", "outcome", "generation"))
    live, dead = ~F.col("dead"), F.col("dead")
    publish, invoke, ok = kind == "publish", outcome == "invoke", outcome == "ok"
    mine = F.startswith("who", F.lit("client:"))
    gone = F.col("state").isin("dead", "skipped", "purged", "acked")
    listed_here = (kind == "list") & (F.col("state") == "dead") & ~mine
    life = F.struct("generation", "n")
    told = (
        events.repartition("hash")
        .groupBy(*KEY)
        .agg(
            F.min(F.when(publish, F.col("turn"))).alias("turn"),
            F.count_if(publish & invoke).alias("tries"),
            F.max(publish & (outcome == "fail") & F.col("conflict")).alias("conflict"),
            F.min(F.when(publish & ok, F.struct("t", "u", "domain"))).alias("stored"),
            F.max(F.when(publish & invoke, F.col("t"))).alias("last_try"),
            F.min(F.when(publish & invoke, F.col("crc"))).alias("first_crc"),
            F.max(F.when(publish & invoke, F.col("crc"))).alias("last_crc"),
            F.min(F.when(publish & invoke, F.col("published_ms"))).alias("made_ms"),
            F.collect_set(F.when(kind == "store", F.struct("who", "t"))).alias("copies"),
            F.max(F.when((kind == "deliver") & live, life)).alias("delivered"),
            F.max(F.when((kind == "deliver") & live, generation)).alias("delivered_in"),
            F.max(F.when((kind == "deliver") & live, F.col("t"))).alias("last_delivery"),
            F.max(F.when((kind == "ack") & live & invoke, generation)).alias("ack_asked"),
            F.max(F.when((kind == "ack") & live & F.startswith("outcome", F.lit("acked")), generation)).alias(
                "acked"
            ),
            F.max((kind == "ack") & dead & invoke).alias("dead_acked"),
            F.max(F.when((kind == "list") & gone, generation)).alias("gone_in"),
            F.max((kind == "list") & (F.col("state") == "skipped")).alias("skipped"),
            F.max((kind == "list") & (F.col("state") == "purged")).alias("purged"),
            F.collect_list(F.when(listed_here, F.struct("who", "generation", "n"))).alias("listed"),
            F.max(F.when((kind == "list") & (F.col("state") == "dead"), life)).alias("shown_dead"),
            F.collect_list(
                F.when((kind == "dead_letter") & live & ok & mine, F.struct("generation", "n", "t"))
            ).alias("died"),
            F.collect_list(
                F.when(
                    (kind == "redrive") & outcome.isin("invoke", "ok"),
                    F.struct("outcome", "generation", "n", "who", "op", "t"),
                )
            ).alias("redrives"),
        )
    )
    named = (
        told.join(F.broadcast(of_groups.drop("known")), on=["run", "topic", "grp"], how="left")
        .join(F.broadcast(of_places), on=["run", "topic", "partition", "grp"], how="left")
        .join(F.broadcast(of_runs), on="run", how="left")
    )
    zero = F.lit(0).cast("decimal(20,0)")
    for name, default in (
        ("current", zero),
        ("current_from", F.lit(0)),
        ("delivered_in", F.lit(-1)),
        ("ack_asked", F.lit(-1)),
        ("acked", F.lit(-1)),
        ("gone_in", F.lit(-1)),
    ):
        named = named.withColumn(name, F.coalesce(name, default))
    for name in ("dead_acked", "purge_asked", "dead_purge_asked", "skipped", "purged", "conflict", "deleted"):
        named = named.withColumn(name, F.coalesce(name, F.expr(FALSE)))
    named = (
        named.withColumn("covered", F.coalesce(F.col("made_ms") >= F.col("current_from"), F.expr("true")))
        .withColumn("drained", F.col("drained_at").isNotNull())
        .withColumn("last_died", F.expr("array_max(transform(died, d -> struct(d.generation, d.n, -d.t)))"))
        .withColumn(
            "last_redriven",
            F.expr(
                "array_max(transform(filter(redrives, r -> r.outcome = 'ok'), "
                "r -> struct(r.generation, r.n, r.who, r.op)))"
            ),
        )
        .withColumn("listing", F.expr("array_max(transform(listed, l -> struct(l.generation, l.n)))"))
        .withColumn(
            "redrive_asked",
            F.expr(
                "coalesce(array_max(transform(filter(redrives, r -> r.outcome = 'invoke'), r -> r.n)), -1)"
            ),
        )
    )
    named = named.withColumn(
        "redrive_sent",
        F.expr(
            "array_min(transform(filter(redrives, r -> r.outcome = 'invoke' AND r.who = last_redriven.who "
            "AND r.op = last_redriven.op), r -> r.t))"
        ),
    )
    drained, complete, end = (
        F.col("drained"),
        ~F.col("lossy") & ~F.coalesce("unregistered", F.expr(FALSE)),
        F.coalesce("drained_at", "ends_at"),
    )
    first = F.coalesce(F.col("turn") == 0, F.expr(FALSE))
    has_group = F.col("grp") != ""
    stored = F.col("stored").isNotNull()
    kept = ~F.col("deleted")
    wanted = has_group & stored & kept & F.col("covered") & (F.col("gone_in") < F.col("current"))
    undelivered = F.col("delivered_in") < F.col("current")
    unacked = F.col("ack_asked") < F.col("current")
    nodes = F.expr("array_distinct(transform(filter(copies, c -> c.t <= stored.t), c -> c.who))")
    majority = F.floor(F.col("rf") / 2) + 1
    few = first & stored & (F.size(nodes) < majority)
    where_ = F.when(F.col("current") > 0, say(" in generation ", F.col("current"))).otherwise(F.lit(""))
    derived = F.startswith("origin", F.lit("~derived."))

    listing, gen, num = F.col("listing"), F.col("listing.generation"), F.col("listing.n")
    differing = F.size(F.expr("array_distinct(transform(listed, l -> struct(l.generation, l.n)))")) > 1
    doubled = F.size("listed") > F.size(F.expr("array_distinct(transform(listed, l -> l.who))"))
    redriven_there = F.expr(
        "coalesce(array_max(transform(filter(redrives, r -> r.outcome = 'ok' AND r.generation = listing.generation), "
        "r -> r.n)), -1)"
    )
    died_there = F.expr(
        "array_max(transform(filter(died, d -> d.generation = listing.generation), d -> struct(d.n, -d.t)))"
    )
    purge_sent = F.expr("array_max(transform(filter(purges, p -> p.dead), p -> p.sent.t))")
    was_void = F.expr(
        "exists(registers, r -> r.generation > listing.generation AND coalesce(made_ms, 0L) >= r.from_ms)"
    )
    last, last_n = F.col("last_died"), F.col("last_died.n")
    reopened = (F.col("last_died.generation") < F.col("current")) & F.col("covered")
    dead_there = F.coalesce(listing, F.col("shown_dead")) >= F.struct(F.col("last_died.generation"), last_n)
    explained = (
        (F.col("ack_asked") >= F.col("last_died.generation"))
        | (F.col("redrive_asked") >= last_n)
        | F.col("dead_purge_asked")
        | F.col("dead_acked")
    )
    letter_gone = last.isNotNull() & kept & ~reopened & ~F.coalesce(dead_there, F.expr(FALSE)) & ~explained
    again = F.col("last_redriven")
    rewound_at = F.expr("array_min(transform(filter(confirmed, c -> c.generation = current), c -> c.t))")
    rewound = (F.col("current") > 0) & (
        F.coalesce(rewound_at, F.col("redrive_sent")) >= F.col("redrive_sent")
    )
    got = F.coalesce(
        (F.col("delivered.n") > again["n"]) | (F.col("delivered.generation") > again["generation"]),
        F.expr(FALSE),
    )
    redrive_lost = (
        again.isNotNull()
        & kept
        & ~rewound
        & listing.isNull()
        & ~got
        & (F.col("ack_asked") < 0)
        & ~F.col("purge_asked")
    )
    pending = wanted & ~drained & (undelivered | unacked)
    retried = first & (F.col("tries") > 1)

    return named.select(
        *KEY,
        (has_group & stored & F.col("covered")).alias("confirmed"),
        (first & stored & F.col("rf").isNotNull()).alias("copies_counted"),
        first.alias("first"),
        retried.alias("retried"),
        F.size("copies").alias("copies"),
        (last.isNotNull() | again.isNotNull() | listing.isNotNull()).alias("letter"),
        (F.size("listed") > 0).alias("was_listed"),
        pending.alias("pending"),
        (~drained & letter_gone).alias("letter_pending"),
        (~drained & redrive_lost).alias("redrive_pending"),
        findings(
            finding(
                drained & wanted & undelivered,
                "G1",
                say(
                    "confirmed at ",
                    shown(F.col("stored.t")),
                    ", was never delivered",
                    where_,
                    " and is no dead letter",
                ),
                end,
                sure=complete,
            ),
            finding(
                drained & wanted & ~undelivered & unacked,
                "G1",
                say("was delivered", where_, ", nobody acked it, and it is no dead letter"),
                end,
                sure=complete,
            ),
            finding(
                few,
                "G1",
                say(
                    "was confirmed at ",
                    shown(F.col("stored.t")),
                    ", and durable on ",
                    F.concat_ws(", ", nodes),
                    " of ",
                    F.col("rf").cast("int"),
                    " replicas",
                ),
                F.col("stored.t"),
                sure=complete & ~F.col("unstopped"),
            ),
            finding(
                first & ~derived & (F.col("first_crc") != F.col("last_crc")),
                "G5",
                say("published as ", F.col("first_crc"), " and as ", F.col("last_crc")),
                F.col("last_try"),
            ),
            finding(
                first & F.col("conflict") & F.col("first_crc").eqNullSafe(F.col("last_crc")),
                "G6",
                say("refused as a conflict, and every retry has the same bytes"),
                F.col("last_try"),
            ),
            finding(doubled, "G7", say("listed twice by one replica"), end),
            finding(drained & differing, "G7", say("listed differently: ", F.to_json("listed")), end),
            finding(
                drained & listing.isNotNull() & (F.col("acked") >= gen),
                "G7",
                say("listed dead, and an ACK of it was confirmed"),
                end,
            ),
            finding(
                drained & listing.isNotNull() & (num <= redriven_there),
                "G7",
                say("listed dead at n = ", num, ", whose redrive was confirmed"),
                end,
            ),
            finding(
                drained
                & (num == died_there["n"])
                & (-died_there["col2"] < purge_sent)
                & ~F.coalesce(was_void, F.expr(FALSE)),
                "G7",
                say("listed dead at n = ", num, ", and was purged"),
                end,
            ),
            finding(
                drained & letter_gone,
                "G7",
                say("a dead letter at n = ", last_n, " since ", shown(-F.col("last_died.col3")), ", is gone"),
                end,
                sure=complete,
            ),
            finding(
                drained & redrive_lost,
                "G7",
                say("redriven at n = ", again["n"], ", and nobody ever got it"),
                end,
                sure=complete,
            ),
            finding(
                F.col("skipped") & ~F.col("purge_asked"),
                "groups",
                say("is skipped, and nobody purged the group"),
                end,
                sure=complete,
            ),
            finding(
                F.col("purged") & ~F.col("dead_purge_asked") & ~F.col("dead_acked"),
                "groups",
                say("is purged, and nobody purged or acked the dead letter"),
                end,
                sure=complete,
            ),
        ),
    )
