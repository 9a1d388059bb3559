"""What is known of a whole run, group or partition: phases, registers, purges.

Small tables, a row for each run, group or place: they are broadcast, and what they say stands in arrays beside each
message, so that no question about one message needs a join with another large table.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from .audit_events import moment, sure

LOSSES = ("wipe", "restore", "flip", "rot", "damage")
"""Faults that take something of a node's disk."""


def _setting(name: str) -> Column:
    """A number that the run was told; as if it had not been told where it is none, or one that no run can have."""
    told = F.get_json_object("settings", f"$.{name}").try_cast("double")
    return F.max(F.when((F.col("kind") == "settings") & told.between(1e-3, 1e6), told))


def runs(lines: DataFrame, *, drained: bool) -> DataFrame:
    """A row for each run: when it was healed and drained, how many replicas, and what is missing.

    ``unstopped``: a real node was killed, or still runs, or none wrote a history: the end of what it did may be in no
    file. ``simulated``: all that was done is in the history, and in the end every node was there and had heard of
    everything. ``day_asked``: so many nodes started again, in a simulated run with a time of day that was turned, that
    delays may be over early. ``steady``: no node started again, or lost anything, so all know how old messages are.

    Args:
        lines: what `audit_events.timed` gives.
        drained: whether a run that does not say so is over, with nothing left to deliver.
    """

    def at(phase: str, time: str = "t") -> Column:
        return F.min(F.when(F.col("phase") == phase, F.col(time)))

    real = F.coalesce(F.col("domain") != "simulated", F.expr("true"))
    start, turned = F.col("kind") == "start", F.col("fault").isin("wall-jump", "wrong-clock")
    found = lines.groupBy("run").agg(
        F.collect_set(F.when(start & (F.col("incarnation") > 1), F.substring("who", 6, 1 << 30))).alias(
            "_again"
        ),
        F.flatten(F.collect_set(F.when(turned, F.col("nodes")))).alias("_turned"),
        at("healed").alias("healed_at"),
        at("healed", "high").alias("healed_high"),
        F.max(F.when(F.col("phase") == "healed", F.col("seconds"))).alias("bound"),
        at("drained").alias("drained_at"),
        at("end").alias("ended_at"),
        F.max("t").alias("ends_at"),
        F.min("t").alias("begins_at"),
        _setting("rf").alias("rf"),
        _setting("hold_min").alias("hold_min"),
        F.coalesce(F.bool_and(F.col("domain") == "simulated"), F.expr("false")).alias("simulated"),
        (
            (F.count_if(real & start) > F.count_if(real & (F.col("kind") == "stop")))
            | (F.count_if(F.startswith("who", F.lit("node:"))) == 0)
        ).alias("unstopped"),
        (F.count_if((start & (F.col("incarnation") > 1)) | F.col("fault").isin(*LOSSES)) == 0).alias(
            "steady"
        ),
        F.count_if(F.col("kind") == "truncated").alias("truncated"),
        F.count("*").alias("lines"),
        F.countDistinct("who").alias("writers"),
        F.countDistinct("domain").alias("clocks"),
    )
    # A node asks the time of day when it starts, for how long it was away: so a delay may be over too early.
    wrong = F.when(F.col("simulated"), F.array_intersect("_again", "_turned")).otherwise(F.col("_again"))
    found = found.withColumn("day_asked", 2 * F.size(wrong) >= F.coalesce("rf", F.lit(3))).drop(
        "_again", "_turned"
    )
    if drained:
        unsaid = F.col("healed_at").isNull()
        found = found.withColumn(
            "drained_at", F.when(unsaid, F.coalesce("drained_at", "ends_at")).otherwise(F.col("drained_at"))
        )
    return found


def group_facts(lines: DataFrame) -> DataFrame:
    """A row for each group: its registers, its confirmed rewinds and creations, and which generation is current.

    Current is the newest that a node has in the end, or that a client was told of: one that a node had and lost in a
    crash, before a majority had it, never was. ``unregistered``: a newer generation was delivered than any register
    names, so where it begins is not known. ``buried``: likewise the generation of the last deletion, which voids dead
    letters; a deletion is as a rewind to a FETCH sent later. ``deletions``: the generations of all that were confirmed.
    ``deleted``: a deletion of the topic was sent that did not fail, so nothing of it has to be there in the end.
    ``unmade``: likewise of the group, in a topic that drops what no group needs; one that is made again reads what the
    topic kept (``kept``). ``skips``: requests from latest (see `_skips`). ``guest``: a FETCH may have made it, and then
    so many nodes (``registered``) have its register; ``founded``: when it was first confirmed; ``since``: when the last
    of these nodes had it.
    """
    kind = F.col("kind")
    register = kind == "register"
    ok = F.coalesce(
        (F.col("outcome") == "ok") & F.coalesce(F.col("messages") > 0, F.expr("true")), F.expr("false")
    )
    fetched = (kind == "fetch") & ok
    created, unmade = (kind == "set_group") & ok, (kind == "delete_group") & ok
    told = (register | created) & F.col("generation").isNotNull() & F.col("from_ms").isNotNull()
    rewound = F.coalesce(F.col("rewind") | unmade, F.expr("false"))
    generation = F.coalesce("generation", F.lit(-1).cast("decimal(20,0)")).alias("generation")
    confirmed = F.when(
        created | fetched | unmade & F.col("generation").isNotNull(),
        F.struct(generation, "t", "low", "high", "domain", rewound.alias("rewind")),
    )
    made = fetched | created & ~rewound
    found = (
        lines.where(F.col("grp").isNotNull())
        .groupBy("run", "topic", "grp")
        .agg(
            F.collect_set(F.when(told, F.struct("generation", "from_ms"))).alias("registers"),
            F.collect_list(confirmed).alias("confirmed"),
            F.collect_list(F.when(register, F.struct("generation", "from_ms", "t", "low"))).alias("known"),
            F.max(F.when(kind.isin("deliver", "ack"), F.col("generation"))).alias("seen"),
            F.max(F.when(told & created, F.struct("generation", "from_ms"))).alias("created"),
            F.max(F.when(unmade, F.col("generation"))).alias("_unmade"),
            F.collect_set(F.when(unmade, F.col("generation"))).alias("deletions"),
            F.min(F.when(made, moment())).alias("founded"),
            F.max(kind == "fetch").alias("guest"),
        )
    )
    in_the_end = (
        lines.where(told & register)
        .groupBy("run", "topic", "grp", "who")
        .agg(
            F.max_by(F.struct("generation", "from_ms", "buried"), F.struct("t", "generation")).alias("_its"),
            F.min(moment()).alias("_first"),
        )
        .groupBy("run", "topic", "grp")
        .agg(
            F.max(F.struct("_its.generation", "_its.from_ms")).alias("last"),
            F.max("_its.buried").alias("_buried"),
            F.max("_first").alias("since"),
            F.count("*").alias("registered"),
        )
    )
    found = found.join(in_the_end, on=["run", "topic", "grp"], how="left").withColumn(
        "_current", F.greatest("last", "created")
    )
    groups = deletions(lines, "delete_group", "topic", "grp").withColumnRenamed("deleted", "unmade")
    found = found.join(F.broadcast(_keeping(lines)), on=["run", "topic"], how="left")
    found = found.join(F.broadcast(_skips(lines)), on=["run", "topic", "grp"], how="left")
    found = found.join(
        F.broadcast(deletions(lines, "delete_topic", "topic")), on=["run", "topic"], how="left"
    )
    found = found.join(F.broadcast(groups), on=["run", "topic", "grp"], how="left")
    zero = F.lit(0).cast("decimal(20,0)")
    newest = F.expr("array_max(registers).generation")
    return found.select(
        *(
            "run",
            "topic",
            "grp",
            "registers",
            "confirmed",
            "known",
            "skips",
            "deletions",
            "guest",
            "founded",
            "since",
        ),
        *("seen", "registered"),
        F.coalesce("kept", F.expr("false")).alias("kept"),
        F.coalesce("_current.generation", zero).alias("current"),
        F.coalesce("_current.from_ms", F.lit(0)).alias("current_from"),
        F.coalesce(F.col("seen") > F.coalesce(newest, zero), F.expr("false")).alias("unregistered"),
        F.coalesce(F.greatest("_buried", "_unmade"), zero).alias("buried"),
        F.coalesce("deleted", F.expr("false")).alias("deleted"),
        F.array_min("known.t").alias("made_at"),
        F.expr("coalesce(unmade, false) AND NOT coalesce(kept, false)").alias("unmade"),
    )


def _keeping(lines: DataFrame) -> DataFrame:
    """The topics that keep what no group needs, as far as the run says: run, topic, kept."""
    dropping = [
        F.get_json_object(name, "$.retention_s").try_cast("double") == 0 for name in ("settings", "defaults")
    ]
    asked = F.coalesce(*(F.when(it, it) for it in dropping), F.expr("false")) & (F.col("kind") == "set_topic")
    told = (F.col("kind") == "settings") & (F.get_json_object("settings", "$.kept") == "true")
    runs = lines.where(told).select("run").distinct()
    topics = (
        lines.where(F.col("topic").isNotNull()).groupBy("run", "topic").agg(F.bool_or(asked).alias("_drops"))
    )
    return (
        topics.where(~F.col("_drops"))
        .join(runs, on="run")
        .select("run", "topic", F.expr("true").alias("kept"))
    )


def _skips(lines: DataFrame) -> DataFrame:
    """The requests from latest that did not fail, by group: run, topic, grp, skips.

    Each has when it was ``sent`` and ``done``, and whether it was to ``rewind``. It skips what it finds until it is
    done. One of unknown outcome that makes the group is over once any request has found the group made; one that
    rewinds, which is a PURGE, may go on for ever. A group that a client without a history made is told of by registers
    alone.
    """
    kind, invoke = F.col("kind"), F.col("outcome") == "invoke"
    group = ("run", "topic", "grp")
    asked = (
        lines.where(kind.isin("set_group", "fetch"))
        .groupBy(*group, "who", "op")
        .agg(
            F.min(F.when(invoke & (F.col("start") == "latest"), moment())).alias("sent"),
            F.min(F.when(F.col("outcome") == "ok", moment())).alias("done"),
            F.coalesce(F.bool_or("rewind"), F.expr("false")).alias("rewind"),
            F.bool_or(F.col("outcome") == "fail").alias("_failed"),
        )
        .where(F.col("sent").isNotNull() & ~F.col("_failed"))
    )
    told = (
        lines.where((kind == "register") & F.col("latest").isNotNull())
        .groupBy(*group, "generation")
        .agg(F.min(moment()).alias("sent"))
    )
    columns = (*group, "sent", "done", "rewind")
    both = asked.select(*columns).unionByName(
        told.withColumns({"done": F.lit(None), "rewind": F.expr("false")}).select(*columns)
    )
    return both.groupBy(*group).agg(F.collect_list(F.struct("sent", "done", "rewind")).alias("skips"))


def deletions(lines: DataFrame, kind: str, *what: str) -> DataFrame:
    """What was to be deleted by calls that did not fail: run, ``what``, deleted."""
    calls = (
        lines.where(F.col("kind") == kind)
        .groupBy("run", *what, "who", "op")
        .agg(F.bool_or(F.col("outcome") == "fail").alias("failed"))
    )
    return calls.where(~F.col("failed")).select("run", *what, F.expr("true").alias("deleted")).distinct()


def origins(lines: DataFrame) -> DataFrame:
    """The origins whose producer wrote a history: run, origin, has_producer."""
    spans = lines.where(F.col("kind") == "publish").select("run", F.explode("spans.origin").alias("origin"))
    return spans.distinct().withColumn("has_producer", F.expr("true"))


def purges(lines: DataFrame, of_groups: DataFrame) -> DataFrame:
    """A row for each place that was purged: what was asked for, backlog or dead letters, and each confirmed purge with
    when it was sent and confirmed and which generation was the confirmed one when it was sent. ``spans`` are the
    messages that it named; null: all. One that failed asked for nothing.
    """
    place = ("run", "topic", "partition", "grp")
    call = (
        lines.where(F.col("kind") == "purge")
        .groupBy(*place, "dead", "who", "op")
        .agg(
            F.min(F.when(F.col("outcome") == "invoke", moment())).alias("sent"),
            F.min(F.when(F.col("outcome") == "ok", moment())).alias("done"),
            F.max("spans").alias("spans"),
            F.bool_or(F.col("outcome") == "fail").alias("_failed"),
        )
        .where(~F.col("_failed"))
        .join(
            F.broadcast(of_groups.select("run", "topic", "grp", "confirmed")),
            on=["run", "topic", "grp"],
            how="left",
        )
    )
    newest = F.expr(
        f"coalesce(array_max(transform(filter(confirmed, c -> c.rewind AND {sure('c', 'sent', '<=')}), "
        "c -> c.generation)), 0)"
    ).cast("decimal(20,0)")
    one = F.when(
        F.col("done").isNotNull() & F.col("sent").isNotNull(),
        F.struct("dead", "sent", "done", newest.alias("generation"), "spans"),
    )
    return call.groupBy(*place).agg(
        F.collect_set(F.struct("dead", "spans")).alias("purges_asked"), F.collect_list(one).alias("purges")
    )


def replicas(lines: DataFrame) -> DataFrame:
    """A row for each place: which nodes are to list its dead letters in the end.

    All that ever stored something of the partition, where every node is there in the end; else those that list any
    dead letter of the place, as one that lists none has written nothing.
    """
    node = F.startswith("who", F.lit("node:"))
    listed = (F.col("kind") == "list") & (F.col("state") == "dead") & node
    place = ("run", "topic", "partition")
    told = lines.where(listed).groupBy(*place, "grp").agg(F.collect_set("who").alias("listing"))
    having = (
        lines.where((F.col("kind") == "store") & (F.col("domain") == "simulated"))
        .groupBy(*place)
        .agg(F.collect_set("who").alias("having"))
    )
    both = F.array_union("listing", F.coalesce("having", F.array().cast("array<string>")))
    return told.join(having, on=list(place), how="left").select(*place, "grp", both.alias("to_list"))


def inventories(lines: DataFrame) -> DataFrame:
    """Collect when each place's dead letters were listed to the end by a complete listing: run, topic, partition, grp,
    inventories. Each is the moment in which the listing began.
    """
    ended = (
        (F.col("kind") == "list") & (F.size("spans") == 0) & F.col("complete") & F.col("asked").isNotNull()
    )
    whole = lines.where(ended & F.col("state").isin("dead", "all") & ~F.col("dead"))
    return whole.groupBy("run", "topic", "partition", "grp").agg(
        F.collect_list(moment("asked")).alias("inventories")
    )


def faults(lines: DataFrame) -> DataFrame:
    """What was done to each run, and how long it lasted: until it was undone, or healed, or at once."""
    by_time = Window.partitionBy("run").orderBy("t").rowsBetween(1, Window.unboundedFollowing)
    healed = F.first(F.when(F.col("phase") == "healed", F.col("t")), ignorenulls=True).over(by_time)
    marks = lines.where(F.col("kind").isin("fault", "crash") | (F.col("phase") == "healed")).withColumn(
        "healed", healed
    )
    lasts = F.coalesce(F.col("t") + F.col("seconds"), F.col("t"))
    return marks.where(F.col("kind").isin("fault", "crash")).select(
        "run",
        F.coalesce("fault", "kind").alias("fault"),
        F.col("t").alias("begin"),
        F.least(lasts, F.coalesce("healed", lasts)).alias("end"),
        F.coalesce("nodes", F.array().cast("array<string>")).alias("nodes"),
    )
