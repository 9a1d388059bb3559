"""Histories and dead letters of any size, with faults that are known.

A line is computed from its number alone, by Spark's own functions: nothing is shuffled or kept, so 100 million lines
take no more memory than a thousand, and one seed and size give the same files on any machine. Lines of a history
come out in order of time, as checkers that read them one by one need them.

Which messages are faulty is drawn from the seed. The lines of a faulty message are left out or changed, and what it
has beyond a good one is in a file of its own, as is each run that is spliced in. `manifest.json` says what a perfect
audit finds: each fault with its guarantees and the message, and nothing else.
"""

from __future__ import annotations

import hashlib
import json
import random
import shutil
import zlib
from collections.abc import Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, Final, NamedTuple

import click
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from quorumq.core.values.errors import StorageError, UsageError
from spark.schemas import schema
from spark.session import job_session

MANIFEST: Final = "manifest.json"
RUN: Final = "generated"
TOPIC: Final = "jobs"
GROUP: Final = "g"
NODES: Final = ("a", "b", "c")
PHASES: Final = 8
"""Lines of a message that fares well: its publish, three copies, the OK, the delivery, and two for what ends it."""

WAVE: Final = 1000
"""So many messages go through a phase in a second, then on to the next."""

DEAD_EVERY: Final = 64
"""Every so manieth message is a dead letter that nothing is wrong with."""

PRODUCERS: Final = 16
PARTITIONS: Final = 4
HOLD_S: Final = 30.0
BOUND_S: Final = 200.0
"""How long a delivery may take once all is healed, which in a generated run is at its end."""

EPOCH_MS: Final = 1_700_000_000_000
ROWS_PER_FILE: Final = 500_000


class Fault(NamedTuple):
    """A way to be broken.

    Args:
        guarantees: which an audit must find broken for the message.
        without: the phases whose lines are left out.
        dead: it ends as a dead letter.
    """

    guarantees: tuple[str, ...]
    without: tuple[int, ...] = ()
    dead: bool = False


FAULTS: Final[dict[str, Fault]] = {
    "lost": Fault(("G1",), (5, 6, 7)),
    "on-one-disk": Fault(("G1",), (2, 3)),
    "never-settled": Fault(("G1",), (6, 7)),
    "held-twice": Fault(("G2",)),
    "resurrected": Fault(("G3",)),
    "token-falls": Fault(("G3",), (6, 7)),
    "late": Fault(("G4",), (5, 6, 7)),
    "altered": Fault(("G5",)),
    "thin-air": Fault(("G5",), (0, 1, 2, 3, 4)),
    "refused-retry": Fault(("G6",)),
    "letter-lost": Fault(("G1", "G7"), dead=True),
    "letter-doubled": Fault(("G7",), dead=True),
    "letter-delivered": Fault(("G7",), dead=True),
    "skipped": Fault(("groups",), (5, 6, 7)),
}
"""The invented faults, by what went wrong with the message."""


def producer_id(message: int) -> tuple[str, int, int]:
    """Producer id, number and partition of a generated message."""
    producer = message % PRODUCERS
    return f"a.1.5eed{producer:x}.1", message // PRODUCERS, producer % PARTITIONS


def planted(rows: int, each: int, seed: int) -> dict[int, str]:
    """The faulty messages of a history of so many lines, each with the name of its fault.

    Raises:
        UsageError: there are not as many messages.
    """
    count = messages_of(rows)
    good = [number for number in range(min(count, 1 << 20)) if number % DEAD_EVERY != DEAD_EVERY - 1]
    wanted = each * len(FAULTS)
    if wanted > len(good):
        raise UsageError(
            f"{rows} rows are {count} messages: too few for {each} of each of {len(FAULTS)} faults; say more --rows"
        )
    stretch = max(1, count // (1 << 20))
    drawn = random.Random(seed).sample(good, wanted)
    names = [name for name in FAULTS for _ in range(each)]
    # A multiple of DEAD_EVERY more or less makes no dead letter of it.
    return {
        number + (number // DEAD_EVERY) * DEAD_EVERY * (stretch - 1): name
        for number, name in zip(drawn, names, strict=True)
    }


def messages_of(rows: int) -> int:
    """How many messages a history of about so many lines has: whole waves."""
    per_wave = WAVE * PHASES + WAVE // DEAD_EVERY * len(NODES)
    return max(1, rows // per_wave) * WAVE


# ------------------------------------------------------------------------- histories


def histories(
    spark: SparkSession, out: Path, *, rows: int, each: int, seed: int, splice: Sequence[Path] = ()
) -> dict[str, Any]:
    """Write a history and its manifest to a new directory.

    Args:
        spark: the session that computes.
        out: where; must not exist.
        rows: about how many lines; whole waves of messages.
        each: how many messages get each of `FAULTS`.
        seed: which ones.
        splice: histories of broken runs, to be runs beside the generated one.

    Returns:
        What the manifest says.

    Raises:
        UsageError: `out` exists, or too few rows.
        StorageError: a file to be spliced cannot be read.
    """
    faulty = planted(rows, each, seed)
    new_directory(out)
    count = messages_of(rows)
    waves = count // WAVE
    end = waves * PHASES + 10.0
    lines = _lines(spark, count, faulty)
    lines.write.text(str(out / "lines"))
    extra = sorted(_extra(faulty, count, end), key=lambda line: line["at"])
    begin = sorted(_begin(), key=lambda line: line["at"])
    letters = _listings(spark, count, end)
    letters.write.text(str(out / "listings"))
    for name, some in (("begin", begin), ("extra", extra)):
        with (out / f"{name}.jsonl").open("w") as file:
            file.writelines(json.dumps(line, separators=(",", ":")) + "\n" for line in some)
    for name in ("lines", "listings"):
        _flatten(out / name)
    spliced = [_splice(path, out / f"spliced-{index}.jsonl", index) for index, path in enumerate(splice)]
    manifest = {
        "table": "history",
        "rows": rows,
        "messages": count,
        "seed": seed,
        "run": RUN,
        "faults": [
            {
                "fault": name,
                "guarantees": list(FAULTS[name].guarantees),
                "topic": TOPIC,
                "group": GROUP,
                **dict(zip(("producer_id", "seq", "partition"), producer_id(number), strict=True)),
            }
            for number, name in sorted(faulty.items())
        ],
        "spliced": spliced,
    }
    (out / MANIFEST).write_text(json.dumps(manifest, indent=1))
    return manifest


def new_directory(out: Path) -> None:
    """Make it.

    Raises:
        UsageError: it is there, or cannot be made.
    """
    try:
        out.mkdir(parents=True)
    except FileExistsError:
        raise UsageError(f"{out} exists: give --out a directory that does not") from None
    except OSError as error:
        raise UsageError(f"{out} cannot be made: {error.strerror}") from None


def _flatten(folder: Path) -> None:
    """`lines/part-00012-….txt` becomes `lines-00012.jsonl`: names that readers of histories look for."""
    for path in sorted(folder.glob("part-*")):
        path.rename(folder.parent / f"{folder.name}-{path.name.split('-')[1]}.jsonl")
    shutil.rmtree(folder)


def _splice(path: Path, target: Path, index: int) -> dict[str, Any]:
    run = f"spliced-{index}"
    try:
        with path.open(encoding="utf-8") as source, target.open("w", encoding="utf-8") as file:
            for line in source:
                file.write(json.dumps({**json.loads(line), "run": run}, separators=(",", ":")) + "\n")
    except (OSError, ValueError) as error:
        raise StorageError(f"{path} cannot be spliced in: {error}") from None
    return {"run": run, "source": path.name}


def _text(*parts: str | Column) -> Column:
    return F.concat(*(F.lit(part) if isinstance(part, str) else part.cast("string") for part in parts))


def _line(run: str, who: Column, kind: Column, body: Column, at: Column) -> Column:
    wall = F.lit(EPOCH_MS) + (at * 1000).cast("bigint")
    return _text(
        f'{{"run":"{run}","within":0,"who":"', who, '","kind":"', kind, f'","topic":"{TOPIC}","partition":',
        (F.col("m") % PRODUCERS % PARTITIONS), ',"spans":[["a.1.5eed', F.lower(F.hex(F.col("m") % PRODUCERS)), '.1",',
        F.expr(f"m div {PRODUCERS}"), ",", F.expr(f"m div {PRODUCERS} + 1"), "]]", body,
        ',"at":', at, ',"wall_ms":', wall, "}",
    ).alias("value")  # fmt: skip


def _crc(number: Column) -> Column:
    return F.lpad(F.lower(F.hex(F.crc32(number.cast("string")))), 8, "0")


def _lines(spark: SparkSession, count: int, faulty: dict[int, str]) -> DataFrame:
    """The lines of all messages, in order of time, without those that faulty messages lack."""
    total = count * PHASES
    numbers = spark.range(0, total, 1, max(2, total // ROWS_PER_FILE))
    place = F.col("id") % (WAVE * PHASES)
    lines = numbers.select(
        (F.expr(f"id div {WAVE * PHASES}") * WAVE + place % WAVE).alias("m"),
        F.expr(f"(id % {WAVE * PHASES}) div {WAVE}").alias("phase"),
        (F.expr(f"id div {WAVE * PHASES}") * PHASES + place / WAVE).cast("decimal(18,4)").alias("at"),
    )
    if faulty:
        table = spark.createDataFrame(
            [
                (number, name, list(FAULTS[name].without), FAULTS[name].dead)
                for number, name in sorted(faulty.items())
            ],
            "m BIGINT, fault STRING, without ARRAY<INT>, doomed BOOLEAN",
        )
        lines = lines.join(F.broadcast(table), "m", "left").where(
            F.col("fault").isNull() | ~F.array_contains("without", F.col("phase").cast("int"))
        )
    else:
        lines = lines.withColumns(
            {"fault": F.lit(None).cast("string"), "doomed": F.lit(None).cast("boolean")}
        )
    phase, m, at = F.col("phase"), F.col("m"), F.col("at")
    dead = F.coalesce("doomed", F.lit(False)) | (m % DEAD_EVERY == DEAD_EVERY - 1)
    client, producer = F.lit("client:c0"), _text("client:p", m % PRODUCERS)
    who = F.when(phase.isin(0, 4), producer)
    for index, node in enumerate(NODES):
        who = who.when(phase == 1 + index, F.lit(f"node:{node}"))
    who = who.otherwise(client)
    kind = (
        F.when(phase.isin(0, 4), "publish")
        .when(phase.isin(1, 2, 3), "store")
        .when(phase == 5, "deliver")
        .when(dead, "dead_letter")
        .otherwise("ack")
    )
    crc = F.when((phase == 5) & (F.col("fault") == "altered"), F.lit("0bad0bad")).otherwise(_crc(m))
    owner = _text('"owner":"b.1.b0b#', F.lower(F.hex(m + 1)), '@b"')
    held = _text(f',"group":"{GROUP}","generation":0,"n":0,', owner)
    token = F.lpad((at * 10000).cast("bigint").cast("string"), 20, "0")
    body = (
        F.when(phase == 0, _text(',"op":', m, ',"outcome":"invoke","crcs":"', crc, '","published_ms":',
                                 F.lit(EPOCH_MS) + (at * 1000).cast("bigint")))
        .when(phase == 4, _text(',"op":', m, ',"outcome":"ok"'))
        .when(phase == 5, _text(held, ',"token":"', token, '@b","attempt":1,"until":', at + HOLD_S,
                                ',"asked":', at - F.lit(Decimal("0.5")), ',"crcs":"', crc, '"'))
        .when(phase == 6, _text(held, ',"op":', m, ',"outcome":"invoke"'))
        .when(phase == 7, _text(held, ',"op":', m, ',"outcome":"', F.when(dead, F.lit("ok")).otherwise("acked"), '"'))
        .otherwise(F.lit(""))
    )  # fmt: skip
    return lines.select(_line(RUN, who, kind, body, at))


def _listings(spark: SparkSession, count: int, end: float) -> DataFrame:
    """What each node lists at the end: the dead letters that nothing is wrong with."""
    total = count // DEAD_EVERY * len(NODES)
    numbers = spark.range(0, total, 1, max(1, total // ROWS_PER_FILE))
    lines = numbers.select(
        (F.expr(f"id div {len(NODES)}") * DEAD_EVERY + DEAD_EVERY - 1).alias("m"),
        (F.col("id") % len(NODES)).cast("int").alias("node"),
        F.lit(end + 350).alias("at"),
    )
    who = _text("node:", F.element_at(F.array(*map(F.lit, NODES)), F.col("node") + 1))
    body = F.lit(f',"group":"{GROUP}","state":"dead","n":0,"generation":0,"complete":true')
    return lines.select(_line(RUN, who, F.lit("list"), body, F.col("at")))


def line(who: str, at: float, kind: str, **fields: Any) -> dict[str, Any]:
    """One line of the generated run."""
    stamp = {"at": round(at, 4), "wall_ms": EPOCH_MS + int(at * 1000)}
    return {"run": RUN, "who": who, "within": 0, "kind": kind, **fields, **stamp}


def _begin() -> Iterator[dict[str, Any]]:
    yield line("sim", 0.0, "settings", history=1, clock="simulated", settings={"rf": 3, "nodes": list(NODES)})
    for node in NODES:
        yield line(f"node:{node}", 0.0, "register", topic=TOPIC, group=GROUP, generation=0, from_ms=0)


def _extra(faulty: dict[int, str], count: int, end: float) -> Iterator[dict[str, Any]]:
    """What faulty messages have beyond good ones, and the end of the run."""
    for number, name in faulty.items():
        start, seq, partition = producer_id(number)
        places = {"topic": TOPIC, "partition": partition, "spans": [[start, seq, seq + 1]]}
        grouped = {**places, "group": GROUP}
        wave, within = divmod(number, WAVE)
        at = wave * PHASES + within / WAVE

        def again(
            at: float, token: float, owner: int = 2, grouped: dict[str, Any] = grouped, number: int = number
        ) -> dict[str, Any]:
            held = {**grouped, "generation": 0, "n": 0, "owner": f"c.1.c0c#{number + 1:x}{owner}@c"}
            fields = {"token": f"{int(token * 10000):020d}@c", "attempt": 2, "until": at + HOLD_S}
            return line("client:c1", at, "deliver", **held, **fields, asked=at - 0.5, crcs=crc_of(number))

        def acks(
            delivery: dict[str, Any], number: int = number, grouped: dict[str, Any] = grouped
        ) -> Iterator[dict[str, Any]]:
            held = {**grouped, "generation": 0, "n": 0, "owner": delivery["owner"], "op": number}
            yield line("client:c1", delivery["at"] + 0.5, "ack", **held, outcome="invoke")
            yield line("client:c1", delivery["at"] + 0.6, "ack", **held, outcome="acked")

        if name == "held-twice":
            yield again(at + 5.5, at + 5.5)
        elif name == "resurrected":
            yield again(at + 107, at + 107)
        elif name == "token-falls":
            later = again(at + 5 + HOLD_S + 5, at + 4)
            yield from (later, *acks(later))
        elif name == "late":
            later = again(end + BOUND_S + 50, end)
            yield from (later, *acks(later))
        elif name == "refused-retry":
            retry = {**places, "op": (1 << 40) + number}
            who = f"client:p{number % PRODUCERS}"
            yield line(who, at + 4.2, "publish", **retry, outcome="invoke", crcs=crc_of(number),
                       published_ms=EPOCH_MS + int(at * 1000))  # fmt: skip
            yield line(who, at + 4.3, "publish", **retry, outcome="fail", detail="conflict")
        elif name == "letter-delivered":
            yield again(at + 107, at + 107)
        elif name == "skipped":
            yield line("sim", end + 350, "list", **grouped, state="skipped", generation=0, complete=True)
        if FAULTS[name].dead and name != "letter-lost":
            times = (*NODES, "a") if name == "letter-doubled" else NODES
            for node in times:
                yield line(
                    f"node:{node}",
                    end + 350,
                    "list",
                    **grouped,
                    state="dead",
                    n=0,
                    generation=0,
                    complete=True,
                )
    yield line("sim", end, "phase", phase="healed", seconds=BOUND_S)
    yield line("sim", end + 400, "phase", phase="drained")
    yield line("sim", end + 401, "phase", phase="end")


def crc_of(number: int) -> str:
    """The checksum that `_crc` computes."""
    return f"{zlib.crc32(str(number).encode()):08x}"


# ---------------------------------------------------------------------- dead letters

DAYS: Final = 7
TOPICS: Final = 8
KINDS: Final = 40
"""Kinds of failures that nothing is wrong with, of even rate."""

BURST_SHARE: Final = 0.004
DEPLOY_SHARE: Final = 0.08
LETTER_FAULTS: Final = ("burst", "deploy", "poison-key", "poison-payload", "redrive-loop", "rare")


def deadletters(spark: SparkSession, out: Path, *, rows: int, each: int, seed: int) -> dict[str, Any]:
    """Write dead letters in Parquet, in the schema `deadletters`, and a manifest to a new directory.

    Planted are a burst of one failure within minutes, a version of a consumer that fails from its start, and ``each``
    of: a key that dies again and again, a payload that does, a message that was redriven three times in vain, and a
    failure that happened once.

    Args: as `histories`.
    """
    if rows < 100 * (4 * each + 100):
        raise UsageError(f"{rows} rows are too few for {each} of each fault; say more --rows")
    new_directory(out)
    burst, deploy = int(rows * BURST_SHARE), int(rows * DEPLOY_SHARE)
    base = rows - burst - deploy - each * (4 + 3 + 4 + 1)
    edges = [base]
    for size in (burst, deploy, each * 4, each * 3, each * 4, each):
        edges.append(edges[-1] + size)
    i = F.col("id")
    part = F.when(i < edges[0], F.lit("base"))
    for name, edge in zip(LETTER_FAULTS, edges[1:], strict=True):
        part = part.when(i < edge, F.lit(name))
    span = DAYS * 86400.0
    numbers = spark.range(0, rows, 1, max(2, rows // ROWS_PER_FILE)).withColumn("part", part)
    first = F.create_map(*(F.lit(it) for pair in zip(LETTER_FAULTS, edges, strict=False) for it in pair))
    k = F.col("id") - F.element_at(first, F.col("part"))
    numbers = numbers.withColumn("k", F.coalesce(k, F.lit(0)))
    in_part = F.col("part")
    # Numbers that are spread evenly and hit every topic and kind alike, and a time that is spread evenly in each.
    topic = F.when(in_part == "burst", 0).when(in_part == "deploy", 1).otherwise(i % TOPICS)
    at = (
        F.when(in_part == "base", i * (span / base))
        .when(in_part == "burst", span * 0.8 + F.col("k") * (600.0 / burst))
        .when(in_part == "deploy", span * 0.6 + F.col("k") * (span * 0.4 / deploy))
        .otherwise(span * 0.3 + F.col("k") * 977.0 % (span / 2))
    )
    which = F.xxhash64(F.lit(seed), F.expr(f"id div {TOPICS}")) % KINDS
    kind = (
        F.when(in_part.isin("burst", "deploy"), in_part)
        .when(in_part == "rare", _text("rare", F.col("k")))
        .otherwise(_text("kind", F.abs(which)))
    )
    fingerprint = F.substring(F.sha2(kind, 256), 1, 16)
    loop = F.expr("k div 4")
    number = F.when(in_part == "redrive-loop", F.lit(edges[4]) + loop).otherwise(i)
    key = F.when(in_part == "poison-key", _text("poisoned", F.expr("k div 4"))).otherwise(_text("k", number))
    payload = F.when(in_part == "poison-payload", _text(f"poison {seed} ", F.expr("k div 3"))).otherwise(
        _text("payload ", number)
    )
    died = F.timestamp_seconds(F.lit(EPOCH_MS / 1000) + at)
    together = F.when(in_part == "poison-payload", F.expr("k div 3")).when(
        in_part.isin("poison-key", "redrive-loop"), loop
    )
    topic_name = _text("topic", F.coalesce(together % TOPICS, topic))
    columns: dict[str, Column] = {
        "id": _text("m", number),
        "topic": topic_name,
        "topic_id": F.substring(F.md5(topic_name), 1, 16),
        "partition": (number % PARTITIONS).cast("int"),
        "producer_id": _text("a.1.5eed", number % PRODUCERS, ".1"),
        "seq": (number / PRODUCERS).cast("bigint"),
        "group": F.lit(GROUP),
        "generation": F.lit(0).cast("decimal(20,0)"),
        "n": F.when(in_part == "redrive-loop", F.col("k") % 4).otherwise(0).cast("int"),
        "resolution": F.when((in_part == "redrive-loop") & (F.col("k") % 4 < 3), "redriven").otherwise(
            "dead"
        ),
        "reason": F.lit("rejected"),
        "error_class": F.when(kind.startswith("kind"), "ValueError").otherwise("RuntimeError"),
        "message": _text("it went wrong: ", kind),
        "stack": F.lit('File "worker.py", line 1, in handle'),
        "fingerprint": fingerprint,
        "attempts": (1 + number % 3).cast("int"),
        "published_at": F.timestamp_seconds(F.lit(EPOCH_MS / 1000) + at - 60),
        "first_delivered_at": F.timestamp_seconds(F.lit(EPOCH_MS / 1000) + at - 30),
        "last_delivered_at": F.timestamp_seconds(F.lit(EPOCH_MS / 1000) + at - 1),
        "died_at": died,
        "consumer": _text("c", number % 4),
        "consumer_version": F.when(in_part == "deploy", "2.0").otherwise("1.0"),
        "host": _text("host", number % 4),
        "node": _text("n", 1 + number % 3),
        "key": key.cast("binary"),
        "headers": F.create_map(F.lit("source"), F.lit("generated")),
        "payload": payload.cast("binary"),
        "size": F.length(payload).cast("bigint"),
        "crc": _crc(number),
        "digest": F.sha2(payload, 256),
        "replicas": F.array(F.lit("n1"), F.lit("n2"), F.lit("n3")),
    }
    made = numbers.select(
        *(columns[field.name].cast(field.dataType).alias(field.name) for field in schema("deadletters"))
    )
    made.write.parquet(str(out / "deadletters"))

    def digest(text: str) -> str:
        return hashlib.sha256(text.encode()).hexdigest()

    faults: list[dict[str, Any]] = [
        {"fault": "burst", "topic": "topic0", "failure": digest("burst")[:16], "deaths": burst},
        {"fault": "deploy", "topic": "topic1", "version": "2.0", "failure": digest("deploy")[:16], "deaths": deploy},
    ]  # fmt: skip
    for index in range(each):
        faults += [
            {"fault": "poison-key", "name": digest(f"poisoned{index}"), "deaths": 4},
            {"fault": "poison-payload", "name": digest(f"poison {seed} {index}"), "deaths": 3},
            {"fault": "redrive-loop", "id": f"m{edges[4] + index}", "deaths": 4},
            {"fault": "rare", "failure": digest(f"rare{index}")[:16], "deaths": 1},
        ]
    manifest = {"table": "deadletters", "rows": rows, "seed": seed, "kinds": KINDS, "faults": faults}
    (out / MANIFEST).write_text(json.dumps(manifest, indent=1))
    return manifest


# ---------------------------------------------------------------------- command line


class Rows(click.ParamType):
    """A number of rows, also as 1e6."""

    name = "rows"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            number = float(value)
        except ValueError:
            number = 0.0
        if not 1 <= number <= 1e12 or number != int(number):
            self.fail(f"{value!r} is not a number of rows such as 1000000 or 1e6", param, ctx)
        return int(number)


@click.command("generate")
@click.argument("table", type=click.Choice(["histories", "deadletters"]))
@click.option("--rows", type=Rows(), default="1e6", show_default=True, help="About how many rows.")
@click.option(
    "--faults", "each", default=5, show_default=True, type=click.IntRange(0), help="How many faults of each kind."
)  # fmt: skip
@click.option("--seed", default=1, show_default=True, help="Which rows are faulty.")
@click.option("--splice", multiple=True, type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="FILE",
              help="A history of a broken run, to be a run beside the generated one; may be repeated.")  # fmt: skip
@click.option(
    "--out",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="A new directory.",
)
@click.option("--memory", default="1g", show_default=True, help="Memory of Spark's Java process.")
def command(
    table: str, rows: int, each: int, seed: int, splice: tuple[Path, ...], out: Path, memory: str
) -> None:
    """Make histories or dead letters of any size, with planted faults.

    Histories are JSON Lines as of docs/history.md, dead letters Parquet in the schema `deadletters`. DIR/manifest.json
    says what is wrong with them: which guarantee of which message, and nothing else is. One seed and one size give
    the same rows.
    """
    if splice and table != "histories":
        raise click.UsageError("--splice takes histories: it goes with `generate histories`")
    spark = job_session("quorumq generate", memory=memory)
    if table == "histories":
        manifest = histories(spark, out, rows=rows, each=each, seed=seed, splice=splice)
    else:
        manifest = deadletters(spark, out, rows=rows, each=each, seed=seed)
    click.echo(f"{rows:,} rows with {len(manifest['faults'])} planted faults in {out}")
