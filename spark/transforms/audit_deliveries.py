"""Each delivery of a message, with what had become of the message before: G3 to G7, groups and delays as asked.

What had become of it is told by windows over the message's events. They come from all over a history: adding some up
before they are brought together saves nothing, and fills the memory with messages. So the events are moved first, by
their hash, and then looked at; the same in `audit_holds` and `audit_messages`.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from .audit_events import FAR_S, KEY, due, maybe, maybe_before, moment, sure, surely_before
from .audit_findings import finding, findings, say, true

DELAYS: Final = "delays"
NAMED: Final = (
    "(p.spans IS NULL OR exists(p.spans, s -> s.origin = origin AND s.start <= seq AND seq < s.stop))"
)
"""Whether purge ``p`` named the message, or all there are."""

SLACK_S: Final = 1.0
"""What a redelivery may take beyond a hold before it is remarked on."""


def deliveries(
    events: DataFrame, of_groups: DataFrame, of_places: DataFrame, of_runs: DataFrame, of_origins: DataFrame
) -> DataFrame:
    """A row for each delivery of a message (and each ACK that heard `acked`), judged.

    Args:
        events: what `audit_events.events` gives.
        of_groups: what `audit_context.group_facts` gives.
        of_places: what `audit_context.purges` gives.
        of_runs: what `audit_context.runs` gives, with `lossy`.
        of_origins: what `audit_context.origins` gives.
    """
    named = (
        _told(events)
        .join(F.broadcast(of_groups), on=["run", "topic", "grp"], how="left")
        .join(F.broadcast(of_places), on=["run", "topic", "partition", "grp"], how="left")
        .join(F.broadcast(of_runs), on="run", how="left")
        .join(F.broadcast(of_origins), on=["run", "origin"], how="left")
    )
    at, delivery = F.col("t"), F.col("kind") == "deliver"
    was_due = delivery & ~F.col("dead") & (F.col("n") == 0) & F.col("due_at").isNotNull()
    return named.select(
        *KEY, "dead", "kind", "owner", "generation", "n", "attempt", "t", "asked", "published",
        delivery.alias("is_delivery"),
        _crc_known().alias("crc_known"),
        (F.size("registers") > 0).alias("has_registers"),
        (was_due & ~F.col("day_asked")).alias("was_due"),
        F.when(delivery & F.col("last").isNotNull(), at - F.col("last.until")).alias("waited"),
        (F.col("last.until") - F.col("last.t") + SLACK_S).alias("may_wait"),
        F.col("healed_at").isNotNull().alias("healed"),
        (delivery & _placed() & (at > F.col("healed_at"))).alias("after_healing"),
        findings(*_final(), *_faithful(), *_of_dead_letters(), *_of_groups(), *_in_time()),
    )  # fmt: skip


def _told(events: DataFrame) -> DataFrame:
    """Deliveries and ACKs, each with what the events of its message say before it, and which came last of its kind."""
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
    relevant = relevant.repartition("hash").withColumns({
        "_k": F.when(delivery, F.col("high")).otherwise(F.col("low")),
        "_turn": F.when(published | redriven, 0).when(delivery, 1).otherwise(2),
        "_n": F.when(F.col("dead"), F.col("n")).otherwise(0),
    })  # fmt: skip
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
    return relevant.withColumns({
        "acked": F.min(F.when(success & (outcome == "acked"), settling)).over(of_life),
        "settled": F.min(F.when(success, settling)).over(of_life),
        "died": F.max(F.when(died, F.struct("n", -F.col("high"), "t", "low", "high", "domain"))).over(of_life),
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
    }).where(delivery | (success & (outcome == "acked")))  # fmt: skip


def _final() -> list[Column]:
    """Nothing is delivered after its ACK, nor for a retry of its publish; tokens rise: G3, G6."""
    at, delivery = F.col("t"), F.col("kind") == "deliver"
    certainly, possibly = surely_before("settled", "sent"), maybe_before("settled", "sent")
    acked_possible = delivery & true(maybe_before("acked", "here"))
    same_token = delivery & (F.col("token") == F.col("last_token"))
    fell = delivery & true(maybe_before("here", "lower"))
    fall = F.when(same_token, say("delivered with token {token}, as another delivery was")).otherwise(
        say("delivered with token {token}, and then with the lower {lower.token}")
    )
    return [
        finding(
            acked_possible, "G3",
            "delivered as {owner} at {t:s}, after {acked.owner} heard acked at {acked.t:s}",
            at, sure=surely_before("acked", "here"),
        ),
        finding(
            delivery & ~acked_possible & F.col("settled").isNotNull() & possibly, "G3",
            "delivered to a FETCH sent at {asked:s}, after an ACK had heard {settled.outcome} at {settled.t:s}",
            at, sure=certainly,
        ),
        finding(
            ~delivery & (F.col("acked.owner") != F.col("owner")), "G3",
            "{owner} heard acked at {t:s}, and so did {acked.owner}",
            at,
        ),
        finding(
            delivery & (surely_before("acked", "here") | certainly)
            & surely_before("settled", "last_try") & surely_before("last_try", "here"), "G6",
            "delivered at {t:s} after an ACK at {settled.t:s} and a retry of its publish at {last_try.t:s}",
            at,
        ),
        finding(same_token | fell, "G3", fall, at, sure=same_token | surely_before("here", "lower")),
    ]  # fmt: skip


def _crc_known() -> Column:
    return (F.col("kind") == "deliver") & F.col("crc").isNotNull() & F.col("first_crc").isNotNull()


def _faithful() -> list[Column]:
    """What is delivered was published, byte for byte: G5."""
    at, delivery = F.col("t"), F.col("kind") == "deliver"
    differs = (F.col("crc") != F.col("first_crc")) & (F.col("crc") != F.col("last_crc"))
    return [
        finding(
            delivery & ~F.col("is_known"), "G5", "delivered at {t:s} and never published",
            at, sure=~F.col("lossy") & F.col("has_producer").isNotNull(),
        ),
        finding(
            delivery & F.col("invoked") & F.col("published").isNull(), "G5",
            "delivered at {t:s}, before it was published", at,
        ),
        finding(_crc_known() & differs, "G5", "published as {first_crc} and delivered as {crc}", at),
    ]  # fmt: skip


def _of_dead_letters() -> list[Column]:
    """What is dead is not delivered until it is redriven: G7."""
    at, n, open_ = F.col("t"), F.col("n"), _open()
    return [
        finding(
            open_ & (n <= F.col("died.n")) & maybe_before("died", "here"), "G7",
            "delivered at n = {n}, dead at n = {died.n} since {died.t:s}",
            at, sure=surely_before("died", "here"),
        ),
        finding(
            open_ & (n > F.coalesce("redrives", F.lit(-1)) + 1), "G7",
            "delivered at n = {n}, and nobody redrove it so often", at, sure=~F.col("lossy"),
        ),
    ]  # fmt: skip


def _open() -> Column:
    return (F.col("kind") == "deliver") & ~F.col("dead")


def _of_groups() -> list[Column]:
    """A rewind, a group's beginning, a purge, and the count of attempts."""
    at, generation, n = F.col("t"), F.col("generation"), F.col("n")
    delivery, open_ = F.col("kind") == "deliver", _open()
    confirmed = (
        "coalesce(array_max(transform(filter(confirmed, c -> c.rewind AND {}), c -> c.generation)), 0)"
    )
    newest = F.expr(confirmed.format(maybe("c", "sent", "<=")))
    newest_sure = F.expr(confirmed.format(sure("c", "sent", "<=")))
    if_covered = F.expr(
        "coalesce(made_ms, 0L) >= array_max(transform(filter(known, r -> r.low <= high AND r.generation >= "
        f"{confirmed.format(sure('c', 'sent', '<='))}), r -> r.from_ms))"
    )
    stale = delivery & (generation < newest) & (~F.col("dead") | true(if_covered))
    begins = F.expr("array_max(transform(filter(registers, r -> r.generation = generation), r -> r.from_ms))")
    purged_by = (
        f"exists(purges, p -> NOT p.dead AND {NAMED} AND p.generation = generation AND "
        f"{sure('stored', 'p.sent')} AND {{}})"
    )
    since = F.expr("array_min(transform(filter(known, k -> k.generation = generation), k -> k.t))")
    since_low = F.expr("array_min(transform(filter(known, k -> k.generation = generation), k -> k.low))")
    ended = F.col("rejects") + F.floor((F.col("high") - since_low) * 1.02 / F.col("hold_min"))
    rewound = (
        "delivered in generation {generation} to a FETCH sent after the rewind to {newest} was confirmed"
    )
    attempts = "is said to be at attempt {attempt} of generation {generation}, which is {age:s} old"
    return [
        finding(stale, "groups", say(rewound, newest=newest), at, sure=generation < newest_sure),
        finding(
            open_ & (n == 0) & (F.col("made_ms") < begins), "groups",
            "lies before the start of generation {generation}", at,
        ),
        finding(
            open_ & (n == 0) & F.expr(purged_by.format(maybe("p.done", "sent"))), "groups",
            "was purged, and is delivered to a FETCH sent at {asked:s}",
            at, sure=F.expr(purged_by.format(sure("p.done", "sent"))),
        ),
        finding(
            open_ & (generation > 0) & (F.col("attempt") > 1 + F.col("rf") * ended), "groups",
            say(attempts, age=at - since), at,
        ),
    ]  # fmt: skip


def _placed() -> Column:
    """Whether anything can be said of what came after healing."""
    return F.col("healed_high") < FAR_S


def _in_time() -> list[Column]:
    """Not before its delay is over, and again in time: delays, G4."""
    at, delivery = F.col("t"), F.col("kind") == "deliver"
    early = _open() & (F.col("n") == 0) & true(surely_before("here", "due_at")) & ~F.col("day_asked")
    free = F.greatest("healed_at", "free", "due_at.t")
    free_high = F.greatest("healed_high", "free_high", "due_at.high")
    waited = delivery & _placed() & (at > free + F.col("bound"))
    return [
        finding(
            early, DELAYS, "delivered {due_at.t - t:s} before its delay was over", at, sure=~F.col("lossy")
        ),
        finding(
            waited, "G4", say("waited {time:s} for its next delivery", time=at - free),
            at, sure=F.col("low") > free_high + F.col("bound"),
        ),
    ]  # fmt: skip
