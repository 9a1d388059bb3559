"""Each message for each group, and how it ended: G1, G5, G6, G7, groups and delays as asked."""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from .audit_deliveries import DELAYS, NAMED
from .audit_events import KEY, maybe, moment, sure
from .audit_findings import Check, findings
from .letters import with_facts

_AFTER: Final = "exists(listed, l -> exists({1}, a -> {2} AND {0}))"
"""Whether a replica listed the message as dead after something that ends this was confirmed."""

_REDRIVEN: Final = "a.outcome = 'ok' AND a.generation = l.generation AND l.n <= a.n"

CHECKS: Final = (
    # What was confirmed is on a majority, and delivered and settled, or a dead letter.
    Check("G1", "drained AND wanted AND undelivered",
          "confirmed at {stored.t:s}, was never delivered{in_life} and is no dead letter{unlisted}",
          "heard AND inventoried"),
    Check("G1", "drained AND wanted AND NOT undelivered AND unacked",
          "was delivered{in_life}, nobody acked it, and it is no dead letter{unlisted}", "heard AND inventoried"),
    Check("G1", "is_first AND stored IS NOT NULL AND size(durable_on) < floor(rf / 2) + 1",
          "was confirmed at {stored.t:s}, and durable on {array_join(durable_on, ', ')} of {int(rf)} replicas",
          "complete AND NOT unstopped", "stored.t"),
    # What had expired wherever it is, before anybody asked, is delivered to nobody.
    Check(DELAYS, f"was_mortal AND forall(ends, e -> {maybe('e', 'last_asked')})",
          "delivered to a FETCH sent at {last_asked.t:s}, after its TTL was over at all its replicas",
          f"NOT lossy AND forall(ends, e -> {sure('e', 'last_asked')})", "last_asked.t"),
    # A retry has the bytes of the first try.
    Check("G5", "is_first AND NOT startswith(origin, '~derived.') AND first_crc != last_crc",
          "published as {first_crc} and as {last_crc}", at="last_try"),
    Check("G6", "is_first AND conflict AND first_crc <=> last_crc",
          "refused as a conflict, and every retry has the same bytes", at="last_try"),
    # Replicas list one dead letter alike, and none that was settled.
    Check("G7", "size(listed) > size(listed_by)", "listed twice by one replica"),
    Check("G7", "drained AND size(listed) > 0 AND size(absent) > 0",
          "is listed by {array_join(listed_by, ', ')} and not by {array_join(absent, ', ')}", "complete"),
    Check("G7", "drained AND size(array_distinct(transform(listed, l -> struct(l.generation, l.n)))) > 1",
          "listed differently: {to_json(transform(listed, l -> struct(l.who, l.generation, l.n)))}"),
    Check("G7", "drained AND listing.generation < buried",
          "listed dead in generation {listing.generation}, and its group was deleted"),
    Check("G7", f"drained AND {_AFTER.format(maybe('a.at', 'l.at'), 'acks', 'a.generation >= l.generation')}",
          "listed dead, and an ACK of it was confirmed",
          _AFTER.format(sure('a.at', 'l.at'), 'acks', 'a.generation >= l.generation')),
    Check("G7", f"drained AND {_AFTER.format(maybe('a.at', 'l.at'), 'redrives', _REDRIVEN)}",
          "listed dead at n = {listing.n}, whose redrive was confirmed",
          _AFTER.format(sure('a.at', 'l.at'), 'redrives', _REDRIVEN)),
    Check("G7", "drained AND listing.n = last_died_in.n AND purged_since AND NOT was_void",
          "listed dead at n = {listing.n}, and was purged"),
    # A dead letter, or its redrive, is not lost.
    Check("G7", "drained AND letter_gone",
          "a dead letter at n = {last_died.n} since {-last_died.col3:s}, is gone{unlisted}",
          "heard AND inventoried"),
    Check("G7", "drained AND redrive_lost", "redriven at n = {last_redriven.n}, and nobody ever got it{unlisted}",
          "heard AND inventoried"),
    # What is skipped or purged was asked for.
    Check("groups", "skipped AND NOT purge_asked AND NOT behind", "is skipped, and nobody purged it", "complete"),
    Check("groups", "purged AND NOT dead_purge_asked AND NOT dead_acked",
          "is purged, and nobody purged or acked the dead letter", "complete"),
)  # fmt: skip

_PURGED: Final = "coalesce(exists(purges_asked, p -> {} AND " + NAMED + "), false)"
FACTS: Final = {
    # What the topic's label says, or as all topics of the run.
    "rf": "coalesce(int(nullif(regexp_extract(topic, '/rf([0-9]+)$', 1), '')), rf)",
    **{name: f"coalesce({name}, 0)" for name in ("current", "current_from", "buried")},
    **{name: f"coalesce({name}, -1)" for name in ("delivered_in", "gone_in")},
    "ack_asked": "coalesce(array_max(array_except(acks_asked, acks_failed)).generation, -1)",
    **{
        name: f"coalesce({name}, false)"
        for name in (
            "dead_acked",
            "skipped",
            "purged",
            "conflict",
            "deleted",
            "unmade",
            "unregistered",
            "kept",
        )
    },
    "purge_asked": _PURGED.format("NOT p.dead"),
    "dead_purge_asked": _PURGED.format("p.dead"),
    "is_first": "coalesce(turn = 0, false)",
    "covered": "coalesce(made_ms >= current_from, true)",
    "drained": "drained_at IS NOT NULL",
    "over_at": "coalesce(drained_at, ends_at)",
    "complete": "NOT lossy AND NOT unregistered",
    # Whoever was handed a message has a history: else it may have been settled, and nobody wrote of it.
    "heard": "complete AND (simulated OR size(array_except(won, told)) = 0)",
    "ends": "transform(copies, c -> struct(c.high + dies AS high, c.t + dies AS t, c.low + dies AS low, c.domain))",
    # Of a group that was made later a replica may have no payload any more, and have no say.
    "was_mortal": (
        "steady AND dies IS NOT NULL AND last_asked IS NOT NULL AND made_at < array_min(copies.t) "
        "AND rf IS NOT NULL AND size(array_distinct(copies.who)) >= rf"
    ),
    "last_died": "array_max(transform(died, d -> struct(d.generation, d.n, -d.t)))",
    "last_redriven": (
        "array_max(transform(filter(redrives, r -> r.outcome = 'ok'), r -> struct(r.generation, r.n, r.who, r.op)))"
    ),
    "redrive_asked": "coalesce(array_max(transform(filter(redrives, r -> r.outcome = 'invoke'), r -> r.n)), -1)",
    "redrive_sent": (
        "array_min(transform(filter(redrives, r -> r.outcome = 'invoke' AND r.who = last_redriven.who "
        "AND r.op = last_redriven.op), r -> r.at))"
    ),
    "listing": "array_max(transform(listed, l -> struct(l.generation, l.n)))",
    "listed_by": "sort_array(array_distinct(transform(listed, l -> l.who)))",
    # Whether a request from latest, when the message may have been there already, is to skip it.
    "behind": (
        f"coalesce(exists(skips, s -> NOT coalesce(if(s.rewind, {sure('s.done', 'sent')}, "
        f"exists(confirmed, c -> {sure('s.sent', 'c', '<=')} AND {sure('c', 'sent')})), false)), false)"
    ),
    # Whether a FETCH began to make the group, and no majority is known to have had it: a crash may have ended it.
    "never_was": "coalesce(guest AND founded IS NULL AND seen IS NULL AND registered <= floor(rf / 2), false)",
    # Of a topic that drops what no group needs: whether the message may have been dropped before the group was there.
    "began": "least(founded, if(guest, since, NULL))",
    "too_early": f"NOT kept AND coalesce({maybe('sent', 'began')}, false)",
    # In which generation it has to be delivered: what such a topic dropped does not come again with a rewind.
    "asked_in": "if(kept, current, 0)",
    "asked_from": "if(kept, current_from, coalesce(array_max(transform(registers, r -> r.from_ms)), 0))",
    # Whether a complete listing that would show the message as a dead letter began after all else that is said of it.
    "inventoried": f"simulated OR coalesce(exists(inventories, i -> forall(said, s -> {sure('s', 'i')})), false)",
    "unlisted": (
        "if(inventoried, '', concat(', and nobody listed the dead letters of ', topic, '/', partition, ' for ', grp, "
        "' after that'))"
    ),
    # Whether the group has to get the message, or to have it as a dead letter.
    "wanted": (
        "grp != '' AND stored IS NOT NULL AND NOT deleted AND NOT unmade AND NOT never_was AND NOT too_early "
        "AND coalesce(made_ms >= asked_from, true) AND gone_in < asked_in "
        "AND (inventoried OR NOT behind AND NOT purge_asked)"
    ),
    "undelivered": "delivered_in < asked_in",
    "unacked": "ack_asked < asked_in",
    "in_life": "if(asked_in > 0, concat(' in generation ', asked_in), '')",
    # A copy that may have been there counts: the clocks of one machine, or intervals, must show that it was not.
    "durable_on": f"array_distinct(transform(filter(copies, c -> {maybe('c', 'stored', '<=')}), c -> c.who))",
    "absent": "sort_array(array_except(to_list, listed_by))",
    "last_died_in": (
        "array_max(transform(filter(died, d -> d.generation = listing.generation), d -> struct(d.n, -d.t)))"
    ),
    "purged_since": (
        "exists(died, d -> d.generation = listing.generation AND d.n = listing.n AND exists(purges, p -> p.dead AND "
        f"{NAMED} AND {sure('d', 'p.sent')}))"
    ),
    "was_void": (
        "coalesce(exists(registers, r -> r.generation > listing.generation AND coalesce(made_ms, 0L) >= r.from_ms), "
        "false)"
    ),
    # Whether a dead letter is not there any more, and nothing that was asked for explains it.
    "letter_gone": (
        "last_died IS NOT NULL AND NOT deleted AND NOT (last_died.generation < current AND covered) "
        "AND NOT last_died.generation < buried "
        "AND NOT coalesce(coalesce(listing, shown_dead) >= struct(last_died.generation, last_died.n), false) "
        "AND NOT (ack_asked >= last_died.generation OR redrive_asked >= last_died.n OR dead_purge_asked OR dead_acked)"
    ),
    # Whether nobody got what was redriven, and nothing that was asked for explains it.
    "redrive_lost": (
        "last_redriven IS NOT NULL AND NOT deleted AND listing IS NULL AND ack_asked < 0 AND NOT purge_asked "
        "AND NOT behind "
        f"AND NOT (current > 0 AND NOT exists(confirmed, c -> c.generation = current AND {sure('c', 'redrive_sent')})) "
        "AND NOT coalesce(delivered.n > last_redriven.n OR delivered.generation > last_redriven.generation, false)"
    ),
}
"""What the checks ask for by name."""


def messages(
    events: DataFrame,
    of_groups: DataFrame,
    of_places: DataFrame,
    of_runs: DataFrame,
    to_list: DataFrame,
    of_inventories: DataFrame,
) -> DataFrame:
    """A row for each message and group: how it ended, judged.

    Args: as `audit_deliveries.deliveries`, and what `audit_context.replicas` and `audit_context.inventories` give.
    """
    place = ["run", "topic", "partition", "grp"]
    named = (
        _told(events)
        .join(F.broadcast(of_groups.drop("known")), on=["run", "topic", "grp"], how="left")
        .join(F.broadcast(of_places), on=place, how="left")
        .join(F.broadcast(to_list), on=place, how="left")
        .join(F.broadcast(of_inventories), on=place, how="left")
        .join(F.broadcast(of_runs), on="run", how="left")
    )
    flags = {
        "confirmed": "grp != '' AND stored IS NOT NULL AND covered",
        "copies_counted": "is_first AND stored IS NOT NULL AND rf IS NOT NULL",
        "retried": "is_first AND tries > 1",
        "mortal": "was_mortal",
        "letter": "last_died IS NOT NULL OR last_redriven IS NOT NULL OR listing IS NOT NULL",
        "pending": "wanted AND NOT drained AND (undelivered OR unacked)",
        "letter_pending": "NOT drained AND letter_gone",
        "redrive_pending": "NOT drained AND redrive_lost",
    }
    return with_facts(named, FACTS).select(
        *KEY, *(F.expr(flag).alias(name) for name, flag in flags.items()), findings(CHECKS, at="over_at")
    )


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
    acked = ack & F.startswith("outcome", F.lit("acked"))
    mine, state = F.startswith("who", F.lit("client:")), F.col("state")
    life = F.struct("generation", "n")
    shown = F.struct("who", "generation", "n", moment().alias("at"))
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
            F.min(F.when(asked, moment())).alias("sent"),
            F.min(F.when(asked, F.col("crc"))).alias("first_crc"),
            F.max(F.when(asked, F.col("crc"))).alias("last_crc"),
            F.min(F.when(asked, F.col("published_ms"))).alias("made_ms"),
            F.max(F.when(asked, F.col("dies"))).alias("dies"),
            F.max(F.when(delivered & (F.col("n") == 0) & (generation == 0), moment("asked"))).alias("last_asked"),
            F.collect_set(F.when(kind == "hold_won", F.col("owner"))).alias("won"),
            F.collect_set(F.when(kind.isin("deliver", "leave", "release"), F.col("owner"))).alias("told"),
            F.collect_set(F.when(kind == "store", moment("t", "who"))).alias("copies"),
            F.max(F.when(delivered, life)).alias("delivered"),
            F.max(F.when(delivered, generation)).alias("delivered_in"),
            F.collect_set(F.when(ack & invoke, F.struct("generation", "who", "op"))).alias("acks_asked"),
            F.collect_set(F.when(ack & (outcome == "fail"), F.struct("generation", "who", "op"))).alias("acks_failed"),
            F.collect_list(F.when(acked, F.struct("generation", moment().alias("at")))).alias("acks"),
            F.max((kind == "ack") & dead & invoke).alias("dead_acked"),
            F.max(F.when(listed & state.isin("dead", "skipped", "purged", "acked"), generation)).alias("gone_in"),
            F.max(listed & (state == "skipped")).alias("skipped"),
            F.max(listed & (state == "purged")).alias("purged"),
            F.collect_list(F.when(listed & (state == "dead") & ~mine, shown))
            .alias("listed"),
            F.max(F.when(listed & (state == "dead"), life)).alias("shown_dead"),
            F.collect_list(F.when(died, moment("t", "generation", "n"))).alias("died"),
            F.collect_list(F.when(redriven, redrive)).alias("redrives"),
            F.collect_list(F.when(~listed, moment())).alias("said"),
        )
    )  # fmt: skip
