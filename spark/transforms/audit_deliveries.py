"""Each delivery of a message, with what had become of the message before: G3 to G7, groups and delays as asked.

What had become of it is told by windows over the message's events. They come from all over a history: adding some up
before they are brought together saves nothing, and fills the memory with messages. So the events are moved first, by
their hash, and then looked at; the same in `audit_holds` and `audit_messages`.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from .audit_events import FAR_S, KEY, apart, due, maybe, moment, sure
from .audit_findings import Check, findings
from .letters import with_facts

DELAYS: Final = "delays"
NAMED: Final = (
    "(p.spans IS NULL OR exists(p.spans, s -> s.origin = origin AND s.start <= seq AND seq < s.stop))"
)
"""Whether purge ``p`` named the message, or all there are."""

SLACK_S: Final = 1.0
"""What a redelivery may take beyond a hold before it is remarked on."""


_REWOUND: Final = (
    "coalesce(array_max(transform(filter(confirmed, c -> c.rewind AND {}), c -> c.generation)), 0)"
)
_PURGED: Final = (
    f"exists(purges, p -> NOT p.dead AND {NAMED} AND p.generation = generation "
    f"AND {sure('stored', 'p.sent')} AND {{}})"
)

FACTS: Final = {
    "is_delivery": "kind = 'deliver'",
    "is_open": "is_delivery AND NOT dead",
    "was_due": "is_open AND n = 0 AND due_at IS NOT NULL AND NOT day_asked",
    "crc_known": "is_delivery AND crc IS NOT NULL AND first_crc IS NOT NULL",
    "after_ack": f"is_delivery AND coalesce({maybe('acked', 'here')}, false)",
    "same_token": "coalesce(is_delivery AND token = last_token, false)",
    "newest": _REWOUND.format(maybe("c", "sent", "<=")),
    "newest_sure": _REWOUND.format(sure("c", "sent", "<=")),
    "if_covered": (
        "coalesce(made_ms, 0L) >= array_max(transform(filter(known, "
        "r -> r.low <= high AND r.generation >= newest_sure), r -> r.from_ms))"
    ),
    "begins": "array_max(transform(filter(registers, r -> r.generation = generation), r -> r.from_ms))",
    "since": "array_min(transform(filter(known, k -> k.generation = generation), k -> k.t))",
    "since_low": "array_min(transform(filter(known, k -> k.generation = generation), k -> k.low))",
    "ended": "rejects + floor((high - since_low) * 1.02 / hold_min)",
    # Whether anything can be said of what came after healing.
    "placed": f"healed_high < {FAR_S}",
    "free_at": "greatest(healed_at, free, due_at.t)",
    "free_at_high": "greatest(healed_high, free_high, due_at.high)",
}
"""What the checks ask for by name."""

CHECKS: Final = (
    # Nothing is delivered after its ACK, nor for a retry of its publish; tokens rise.
    Check("G3", "after_ack", "delivered as {owner} at {t:s}, after {acked.owner} heard acked at {acked.t:s}",
          sure("acked", "here")),
    Check("G3", f"is_delivery AND NOT after_ack AND settled IS NOT NULL AND {maybe('settled', 'sent')}",
          "delivered to a FETCH sent at {asked:s}, after an ACK had heard {settled.outcome} at {settled.t:s}",
          sure("settled", "sent")),
    Check("G3", "NOT is_delivery AND acked.owner != owner",
          "{owner} heard acked at {t:s}, and so did {acked.owner}"),
    Check("G6", f"is_delivery AND ({sure('acked', 'here')} OR {sure('settled', 'sent')}) "
          f"AND {sure('settled', 'last_try')} AND {sure('last_try', 'here')}",
          "delivered at {t:s} after an ACK at {settled.t:s} and a retry of its publish at {last_try.t:s}"),
    Check("G3", "same_token", "delivered with token {token}, as another delivery was"),
    Check("G3", f"is_delivery AND NOT same_token AND {maybe('here', 'lower')}",
          "delivered with token {token}, and then with the lower {lower.token}", sure("here", "lower")),
    # What is delivered was published, byte for byte.
    Check("G5", "is_delivery AND NOT is_known", "delivered at {t:s} and never published",
          "NOT lossy AND has_producer IS NOT NULL"),
    Check("G5", "is_delivery AND invoked AND published IS NULL", "delivered at {t:s}, before it was published"),
    Check("G5", "crc_known AND crc != first_crc AND crc != last_crc",
          "published as {first_crc} and delivered as {crc}"),
    # What is dead is not delivered until it is redriven.
    Check("G7", f"is_open AND n <= died.n AND {maybe('died', 'here')}",
          "delivered at n = {n}, dead at n = {died.n} since {died.t:s}", sure("died", "here")),
    Check("G7", "is_open AND n > coalesce(redrives, -1) + 1",
          "delivered at n = {n}, and nobody redrove it so often", "NOT lossy"),
    # A rewind, a group's beginning, a purge, and the count of attempts.
    Check("groups", "is_delivery AND generation < newest AND (NOT dead OR coalesce(if_covered, false))",
          "delivered in generation {generation} to a FETCH sent after the rewind to {newest} was confirmed",
          "generation < newest_sure"),
    Check("groups", "is_delivery AND array_contains(deletions, generation)",
          "delivered in generation {generation}, a deletion of the group"),
    Check("groups", "is_open AND n = 0 AND made_ms < begins", "lies before the start of generation {generation}"),
    Check("groups", f"is_open AND n = 0 AND {_PURGED.format(maybe('p.done', 'sent'))}",
          "was purged, and is delivered to a FETCH sent at {asked:s}", _PURGED.format(sure("p.done", "sent"))),
    Check("groups", "is_open AND generation > 0 AND attempt > 1 + rf * ended",
          "is said to be at attempt {attempt} of generation {generation}, which is {t - since:s} old"),
    # Not before its delay is over, and again in time.
    Check(DELAYS, f"was_due AND {sure('here', 'due_at')}", "delivered {due_at.t - t:s} before its delay was over",
          "NOT lossy"),
    Check("G4", "is_delivery AND placed AND t > free_at + bound", "waited {t - free_at:s} for its next delivery",
          "low > free_at_high + bound"),
)  # fmt: skip


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
    last = F.col("last.until")
    return with_facts(named, FACTS).select(
        *KEY, "dead", "kind", "owner", "generation", "n", "attempt", "t", "asked", "published", "here",
        "is_delivery", "crc_known", "was_due",
        (F.size("registers") > 0).alias("has_registers"),
        F.expr(f"if(is_delivery, {apart('last_until', 'here')}, NULL)").alias("waited"),
        (last - F.col("last.t") + SLACK_S).alias("may_wait"),
        F.col("healed_at").isNotNull().alias("healed"),
        F.expr("is_delivery AND placed AND t > healed_at").alias("after_healing"),
        findings(CHECKS, at="t"),
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
        "published": F.min(F.when(published, moment())).over(story),
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
        "last_until": F.lag(moment("until")).over(last),
        "here": moment(),
        "sent": moment("asked"),
    }).where(delivery | (success & (outcome == "acked")))  # fmt: skip
