"""The guarantees of docs/protocol.md, section 2, as questions to events.

Three tables are made of the events, each with what was found wrong in an array, so that everything about one message
is decided where its rows are, without another shuffle:
  deliveries  a row for each delivery, with what had become of the message before (windows over its events);
  holds       a row for each hold of a delivery, from the delivery to its deadline, EXTENDs included;
  messages    a row for each message and group, with how it ended.

Events of a message come from all over a history: adding some up before they are brought together saves nothing, and
fills the memory with messages. So each of the three moves the events first, by their hash, and then looks at them.

A finding is `broken` where the clocks prove it, `not decidable` where they do not, or where what is missing from an
incomplete history could explain it. Nothing is said to hold because it was not looked at: each table counts.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from spark.clocks import RATE_MAX
from spark.transforms.audit_events import FAR_S, KEY, due, maybe, maybe_before, moment, sure, surely_before

BROKEN: Final = "broken"
DELAYS: Final = "delays"
UNDECIDED: Final = "not decidable"
FALSE: Final = "false"
NAMED: Final = (
    "(p.spans IS NULL OR exists(p.spans, s -> s.origin = origin AND s.start <= seq AND seq < s.stop))"
)
"""Whether purge ``p`` named the message, or all there are."""
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
    settling = moment("t", "owner", "outcome")
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
            "_k": F.when(delivery, F.col("high")).otherwise(F.col("low")),
            "_turn": F.when(published | redriven, 0).when(delivery, 1).otherwise(2),
            "_n": F.when(F.col("dead"), F.col("n")).otherwise(0),
        }
    )
    so_far = (Window.unboundedPreceding, Window.currentRow)
    message = Window.partitionBy(*KEY)
    story = message.orderBy("_k", "_turn").rowsBetween(*so_far)
    of_life = Window.partitionBy(*KEY, "dead", "generation", "_n").orderBy("_k", "_turn").rowsBetween(*so_far)
    last = Window.partitionBy(*KEY, "dead", "kind").orderBy("t", "token")
    before = last.rowsBetween(Window.unboundedPreceding, -1)
    # In the order of tokens each delivery is compared with the latest of those before it.
    by_token = Window.partitionBy(*KEY, "dead", "kind").orderBy("token", "t")
    lower = by_token.rowsBetween(Window.unboundedPreceding, -1)

    # All in one: what shares a window is then one pass over its rows.
    told = relevant.withColumns(
        {
            "acked": F.min(F.when(success & (outcome == "acked"), settling)).over(of_life),
            "settled": F.min(F.when(success, settling)).over(of_life),
            "died": F.max(F.when(died, F.struct("n", -F.col("high"), "t", "low", "high", "domain"))).over(
                of_life
            ),
            "rejects": F.count_if(rejected).over(of_life),
            "redrives": F.max(F.when(redriven, F.col("n"))).over(story),
            "published": F.min(F.when(published, F.col("t"))).over(story),
            "invoked": F.max(invoked).over(message),
            "is_known": F.max(published).over(message),
            "last_try": F.max(F.when(invoked, moment())).over(message),
            "first_crc": F.min(F.when(invoked, F.col("crc"))).over(message),
            "due_at": F.min(due(invoked)).over(message),
            "last_crc": F.max(F.when(invoked, F.col("crc"))).over(message),
            "made_ms": F.min(F.when(invoked, F.col("published_ms"))).over(message),
            "stored": F.min(F.when(published & (outcome == "ok"), moment())).over(message),
            "free": F.max("until").over(before),
            "free_high": F.max("until_high").over(before),
            "last_token": F.lag("token").over(by_token),
            "lower": F.max(F.when(delivery, F.struct("low", "high", "t", "domain", "token"))).over(lower),
            "last": F.lag(F.struct("t", "until")).over(last),
            "here": moment(),
            "sent": moment("asked"),
        }
    ).where(delivery | (success & (outcome == "acked")))
    named = (
        told.join(F.broadcast(of_groups), on=["run", "topic", "grp"], how="left")
        .join(F.broadcast(of_places), on=["run", "topic", "partition", "grp"], how="left")
        .join(F.broadcast(of_runs), on="run", how="left")
        .join(F.broadcast(of_origins), on=["run", "origin"], how="left")
    )
    at = F.col("t")
    asked, generation, n = F.col("asked"), F.col("generation"), F.col("n")
    open_ = delivery & ~F.col("dead")
    complete = ~F.col("lossy")
    certainly, possibly = surely_before("settled", "sent"), maybe_before("settled", "sent")
    acked_possible = delivery & F.coalesce(maybe_before("acked", "here"), F.expr(FALSE))
    crc_known = delivery & F.col("crc").isNotNull() & F.col("first_crc").isNotNull()

    confirmed = "array_max(transform(filter(confirmed, c -> c.rewind AND {}), c -> c.generation))"
    newest = F.expr(f"coalesce({confirmed.format(maybe('c', 'sent', '<='))}, 0)")
    newest_sure = F.expr(f"coalesce({confirmed.format(sure('c', 'sent', '<='))}, 0)")
    if_covered = F.expr(
        "coalesce(made_ms, 0L) >= array_max(transform(filter(known, r -> r.low <= high AND r.generation >= "
        f"coalesce({confirmed.format(sure('c', 'sent', '<='))}, 0)), r -> r.from_ms))"
    )
    stale = delivery & (generation < newest) & (~F.col("dead") | F.coalesce(if_covered, F.expr(FALSE)))
    begins = F.expr("array_max(transform(filter(registers, r -> r.generation = generation), r -> r.from_ms))")
    purged_by = (
        f"exists(purges, p -> NOT p.dead AND {NAMED} AND p.generation = generation AND "
        f"{sure('stored', 'p.sent')} AND {{}})"
    )
    purged = open_ & (n == 0) & F.expr(purged_by.format(maybe("p.done", "sent")))
    since = F.expr("array_min(transform(filter(known, k -> k.generation = generation), k -> k.t))")
    since_low = F.expr("array_min(transform(filter(known, k -> k.generation = generation), k -> k.low))")
    ended = F.col("rejects") + F.floor((F.col("high") - since_low) * 1.02 / F.col("hold_min"))
    too_many = open_ & (generation > 0) & (F.col("attempt") > 1 + F.col("rf") * ended)
    early = open_ & (n == 0) & F.coalesce(surely_before("here", "due_at"), F.expr(FALSE))
    early = early & ~F.col("day_asked")
    free = F.greatest("healed_at", "free", "due_at.t")
    free_high = F.greatest("healed_high", "free_high", "due_at.high")
    placed = F.col("healed_high") < FAR_S  # else nothing can be said of what came after
    waited = delivery & placed & (at > free + F.col("bound"))
    same_token = delivery & (F.col("token") == F.col("last_token"))
    fell = delivery & F.coalesce(maybe_before("here", "lower"), F.expr(FALSE))
    fall = F.when(
        same_token, say("delivered with token ", F.col("token"), ", as another delivery was")
    ).otherwise(
        say("delivered with token ", F.col("token"), ", and then with the lower ", F.col("lower.token"))
    )

    return named.select(
        *KEY,
        "dead",
        "kind",
        "owner",
        "generation",
        "n",
        "attempt",
        "t",
        "asked",
        "published",
        delivery.alias("is_delivery"),
        crc_known.alias("crc_known"),
        (F.size("registers") > 0).alias("has_registers"),
        (open_ & (n == 0) & F.col("due_at").isNotNull() & ~F.col("day_asked")).alias("was_due"),
        F.when(delivery & F.col("last").isNotNull(), at - F.col("last.until")).alias("waited"),
        (F.col("last.until") - F.col("last.t") + SLACK_S).alias("may_wait"),
        F.col("healed_at").isNotNull().alias("healed"),
        (delivery & placed & (at > F.col("healed_at"))).alias("after_healing"),
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
                sure=surely_before("acked", "here"),
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
                delivery
                & (surely_before("acked", "here") | certainly)
                & surely_before("settled", "last_try")
                & surely_before("last_try", "here"),
                "G6",
                say(
                    "delivered at ",
                    shown(at),
                    " after an ACK at ",
                    shown(F.col("settled.t")),
                    " and a retry of its publish at ",
                    shown(F.col("last_try.t")),
                ),
                at,
            ),
            finding(
                same_token | fell,
                "G3",
                fall,
                at,
                sure=same_token | surely_before("here", "lower"),
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
                open_ & (n <= F.col("died.n")) & maybe_before("died", "here"),
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
                sure=surely_before("died", "here"),
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
                sure=F.expr(purged_by.format(sure("p.done", "sent"))),
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
            finding(
                early,
                DELAYS,
                say("delivered ", shown(F.col("due_at.t") - at), " before its delay was over"),
                at,
                sure=complete,
            ),
            finding(
                waited,
                "G4",
                say("waited ", shown(at - free), " for its next delivery"),
                at,
                sure=F.col("low") > free_high + F.col("bound"),
            ),
        ),
    )


# ----------------------------------------------------------------------------- holds


def holds(events: DataFrame, of_runs: DataFrame) -> DataFrame:
    """A row for each hold of a message: from its delivery until its deadline, as EXTEND moved it, or until its client
    asked to give it up. ``acked_t`` is when its own client sent an ACK. Of one that no client wrote of only the moment
    is known in which its node had won it; its ``times`` are 0.
    """
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
    found = (
        events.where(
            kind.isin("hold_won", "deliver", "ack", "reject", "dead_letter", "extend")
            & F.col("owner").isNotNull()
        )
        .repartition("hash")
        .groupBy(*KEY, "dead", "owner")
        .agg(
            F.min(
                F.when(
                    kind == "deliver",
                    F.struct(
                        moment().alias("at"), moment("asked").alias("asked"), moment("until").alias("until"),
                        "within", "generation", "n", "who",
                    ),
                )
            ).alias("first"),
            F.min(F.when(kind == "hold_won", moment("t", "within", "generation", "n"))).alias("won"),
            F.count_if(kind == "deliver").alias("times"),
            F.collect_list(extended).alias("extended"),
            F.min(F.when(gave_up, moment())).alias("gave_up"),
            F.min(F.when((kind == "ack") & (outcome == "invoke"), moment())).alias("acked"),
            F.max(ended).alias("ended"),
            F.min(due(kind == "reject")).alias("due"),
            F.max((kind == "reject") & (outcome == "ok")).alias("rejected"),
        )
        .where(F.col("first").isNotNull() | F.col("won").isNotNull())
    )  # fmt: skip
    won = F.struct(*(F.col(f"won.{it}").alias(it) for it in ("high", "t", "low", "domain")))
    found = found.withColumns(
        {
            "begin": F.coalesce("first.at", won),
            **{it: F.coalesce(f"first.{it}", f"won.{it}") for it in ("within", "generation", "n")},
        }
    )
    until = F.expr(
        "array_max(transform(concat(array(coalesce(first.until, begin)), transform(filter(extended, e -> "
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
        *KEY,
        "dead",
        "owner",
        "times",
        F.col("begin.t").alias("t"),
        F.greatest("begin.low", "won.low").alias("low"),
        F.col("begin.high").alias("high"),
        F.col("begin.domain").alias("domain"),
        "within",
        "generation",
        "n",
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
        findings(
            finding(
                F.col("times") > 1,
                "G6",
                say("handed over ", F.col("times"), " times in the delivery of ", F.col("owner")),
                F.col("first.at.t"),
            ),
            finding(
                F.coalesce(surely_before("here", "due_at"), F.expr(FALSE)) & ~F.col("day_asked"),
                DELAYS,
                say(
                    "delivered ",
                    shown(F.col("due_at.t") - F.col("here.t")),
                    " before the delay was over with which it was given back",
                ),
                F.col("first.at.t"),
                sure=~F.col("lossy"),
            ),
        ),
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
    same = F.coalesce(a("domain") == b("domain"), F.expr(FALSE))
    within = F.greatest(a("within"), b("within"))
    inside = ((a("t") <= b("t")) & (b("t") < a("end") - within)) | (
        (b("t") < a("t")) & (a("t") < b("end") - within)
    )
    beyond = (b("high") < a("end_low")) & (a("high") < b("end_low"))
    by_node = F.coalesce(
        (a("won_domain") == b("won_domain")) & ((a("won_end") <= b("won")) | (b("won_end") <= a("won"))),
        F.expr(FALSE),
    )
    apart = by_node | (b("end_high") <= a("low"))
    life = [F.struct(it("generation"), F.when(it("dead"), it("n")).otherwise(0)) for it in (a, b)]

    # The older life was acked before the newer one was delivered.
    done = F.coalesce((life[1] > life[0]) & F.expr(maybe("a.acked", "b", "<=")), F.expr(FALSE)) | F.coalesce(
        (life[0] > life[1]) & F.expr(maybe("b.acked", "a", "<=")), F.expr(FALSE)
    )
    sure_ = F.when(same, inside).otherwise(beyond)
    worst = F.struct(
        F.coalesce(sure_, F.expr(FALSE)).alias("sure"),
        a("end").alias("end"),
        a("owner").alias("owner"),
        a("t").alias("t"),
        a("times").alias("times"),
    )
    # One finding for each hold that should not have begun, however many others were alive.
    found = (
        pairs.where(~done & F.when(same, inside).otherwise(~apart))
        .groupBy(*(b(name).alias(name) for name in place), b("owner").alias("owner"))
        .agg(F.max(worst).alias("other"), F.first(b("t")).alias("t"), F.first(b("times")).alias("times"))
    )
    text = say(
        F.when(F.col("times") > 0, "delivered").otherwise("won"),
        " as ",
        F.col("owner"),
        " at ",
        shown(F.col("t")),
        " while ",
        F.col("other.owner"),
        F.when(F.col("other.times") > 0, ", delivered at ").otherwise(", won at "),
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


def messages(
    events: DataFrame, of_groups: DataFrame, of_places: DataFrame, of_runs: DataFrame, to_list: DataFrame
) -> DataFrame:
    """A row for each message and group: how it ended, judged by G1, G5, G6, G7 and groups as asked.

    Args: as `deliveries`, and `to_list`: what `audit_context.replicas` gives.
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
            F.min(F.when(publish & ok, moment())).alias("stored"),
            F.max(F.when(publish & invoke, F.col("t"))).alias("last_try"),
            F.min(F.when(publish & invoke, F.col("crc"))).alias("first_crc"),
            F.max(F.when(publish & invoke, F.col("crc"))).alias("last_crc"),
            F.min(F.when(publish & invoke, F.col("published_ms"))).alias("made_ms"),
            F.collect_set(F.when(kind == "store", moment("t", "who"))).alias("copies"),
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
                F.when((kind == "dead_letter") & live & ok & mine, moment("t", "generation", "n"))
            ).alias("died"),
            F.collect_list(
                F.when(
                    (kind == "redrive") & outcome.isin("invoke", "ok"),
                    F.struct("outcome", "generation", "n", "who", "op", moment().alias("at")),
                )
            ).alias("redrives"),
        )
    )
    named = (
        told.join(F.broadcast(of_groups.drop("known")), on=["run", "topic", "grp"], how="left")
        .join(F.broadcast(of_places), on=["run", "topic", "partition", "grp"], how="left")
        .join(F.broadcast(to_list), on=["run", "topic", "partition", "grp"], how="left")
        .join(F.broadcast(of_runs), on="run", how="left")
    )
    zero = F.lit(0).cast("decimal(20,0)")
    for name, default in (
        ("current", zero),
        ("current_from", F.lit(0)),
        ("buried", zero),
        ("delivered_in", F.lit(-1)),
        ("ack_asked", F.lit(-1)),
        ("acked", F.lit(-1)),
        ("gone_in", F.lit(-1)),
    ):
        named = named.withColumn(name, F.coalesce(name, default))
    for name, which in (("purge_asked", "NOT p.dead"), ("dead_purge_asked", "p.dead")):
        asked_for = F.expr(f"exists(purges_asked, p -> {which} AND {NAMED})")
        named = named.withColumn(name, F.coalesce(asked_for, F.expr(FALSE)))
    for name in (
        "dead_acked",
        "skipped",
        "purged",
        "conflict",
        "deleted",
        "unmade",
    ):
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
            "AND r.op = last_redriven.op), r -> r.at))"
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
    wanted = (
        has_group
        & stored
        & kept
        & ~F.col("unmade")
        & F.col("covered")
        & (F.col("gone_in") < F.col("current"))
    )
    undelivered = F.col("delivered_in") < F.col("current")
    unacked = F.col("ack_asked") < F.col("current")
    # A copy that may have been there counts: the clocks of one machine, or intervals, must show that it was not.
    nodes = F.expr(
        f"array_distinct(transform(filter(copies, c -> {maybe('c', 'stored', '<=')}), c -> c.who))"
    )
    majority = F.floor(F.col("rf") / 2) + 1
    few = first & stored & (F.size(nodes) < majority)
    where_ = F.when(F.col("current") > 0, say(" in generation ", F.col("current"))).otherwise(F.lit(""))
    derived = F.startswith("origin", F.lit("~derived."))

    listing, gen, num = F.col("listing"), F.col("listing.generation"), F.col("listing.n")
    differing = F.size(F.expr("array_distinct(transform(listed, l -> struct(l.generation, l.n)))")) > 1
    doubled = F.size("listed") > F.size(F.expr("array_distinct(transform(listed, l -> l.who))"))
    listing_nodes = F.sort_array(F.expr("array_distinct(transform(listed, l -> l.who))"))
    absent = F.sort_array(F.array_except("to_list", listing_nodes))
    redriven_there = F.expr(
        "coalesce(array_max(transform(filter(redrives, r -> r.outcome = 'ok' AND r.generation = listing.generation), "
        "r -> r.n)), -1)"
    )
    died_there = F.expr(
        "array_max(transform(filter(died, d -> d.generation = listing.generation), d -> struct(d.n, -d.t)))"
    )
    purged_there = F.expr(
        "exists(died, d -> d.generation = listing.generation AND d.n = listing.n AND exists(purges, p -> p.dead AND "
        f"{NAMED} AND "
        f"{sure('d', 'p.sent')}))"
    )
    was_void = F.expr(
        "exists(registers, r -> r.generation > listing.generation AND coalesce(made_ms, 0L) >= r.from_ms)"
    )
    last, last_n = F.col("last_died"), F.col("last_died.n")
    reopened = (F.col("last_died.generation") < F.col("current")) & F.col("covered")
    reopened |= F.col("last_died.generation") < F.col("buried")
    dead_there = F.coalesce(listing, F.col("shown_dead")) >= F.struct(F.col("last_died.generation"), last_n)
    explained = (
        (F.col("ack_asked") >= F.col("last_died.generation"))
        | (F.col("redrive_asked") >= last_n)
        | F.col("dead_purge_asked")
        | F.col("dead_acked")
    )
    letter_gone = last.isNotNull() & kept & ~reopened & ~F.coalesce(dead_there, F.expr(FALSE)) & ~explained
    again = F.col("last_redriven")
    before = F.expr(f"exists(confirmed, c -> c.generation = current AND {sure('c', 'redrive_sent')})")
    rewound = (F.col("current") > 0) & ~F.coalesce(before, F.expr(FALSE))
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
            finding(
                drained & (F.size("listed") > 0) & (F.size(absent) > 0),
                "G7",
                say(
                    "is listed by ",
                    F.array_join(listing_nodes, ", "),
                    " and not by ",
                    F.array_join(absent, ", "),
                ),
                end,
                sure=complete,
            ),
            finding(drained & differing, "G7", say("listed differently: ", F.to_json("listed")), end),
            finding(
                drained & (gen < F.col("buried")),
                "G7",
                say("listed dead in generation ", gen, ", and its group was deleted"),
                end,
            ),
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
                drained & (num == died_there["n"]) & purged_there & ~F.coalesce(was_void, F.expr(FALSE)),
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
                say("is skipped, and nobody purged it"),
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
