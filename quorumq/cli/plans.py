"""A redrive plan, read and carried out.

A plan is a file of JSON Lines that `python -m quorumq.spark deadletters` writes and a person can read, cut or write by
hand (docs/spark.md, "The redrive plan"): a head, then for each kind of failure a decision, with the messages to redrive
behind it. It is read line by line, twice: once to find everything that is wrong with it, before anything is done.

Before a message is redriven, the cluster is asked for its state. A message is named with its generation and n. So if it
was redriven since the plan was made, it is left alone, even when it died again. If a plan was interrupted, it goes on
at the same place when it is run again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Iterator
from functools import cached_property
from itertools import groupby, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct

from quorumq.cli.common import Where, cluster, print_json, say
from quorumq.client.admin.selection import redriven
from quorumq.client.base.message import MessageId
from quorumq.core.values.errors import ClusterMismatch, NotFound, StorageError, UsageError
from quorumq.core.values.printable import plural
from quorumq.core.values.types import Kind, Record

if TYPE_CHECKING:
    from quorumq.client import Client, Peek

LOOK_AT: Final = 1000
"""Messages that are looked up at once."""

OUTCOMES: Final = {
    "redriven": "redriven",
    "redriven_before": "had been redriven before",
    "acked": "acked meanwhile",
    "purged": "purged meanwhile",
    "rewound": "open again since the group was rewound",
    "not_dead": "not dead letters here",
    "unknown": "no longer known here",
    "changed": "settled by somebody else at the same moment",
}
"""Outcomes of a message of a plan, in words for a person."""


Text = Annotated[str, Meta(min_length=1)]
Number = Annotated[int, Meta(ge=0)]


class Head(Struct):
    """The first line of a plan."""

    quorumq_plan: Literal[1]  # the version of its format
    cluster: str | None = None


class Decision(Struct):
    """Decision of a plan on one kind of failure."""

    verdict: Literal["redrive", "hold", "discard"]
    topic: Text
    topic_id: Annotated[str, Meta(pattern="^[0-9a-f]{32}$")]
    group: Text
    failure: Text  # the fingerprint, or the reason of dead letters that have none
    rate: Annotated[float, Meta(gt=0, lt=1e9)] | None = None  # messages a second; None: as fast as it goes
    line: int = 0


class Wanted(Struct, dict=True):  # a place for `name`
    """A message to redrive, as it was when the plan was made."""

    id: str
    generation: Number
    n: Number

    @cached_property
    def name(self) -> MessageId:
        return MessageId.parse(self.id)


T = TypeVar("T", Head, Decision, Wanted)


def read_plan(path: Path) -> Iterator[Head | Decision | Wanted]:
    """Yield the head of a plan, its decisions, and behind each the messages to redrive, one by one.

    Raises:
        UsageError: a line is wrong; names it and the mistake.
        StorageError: it cannot be read.
    """
    head: Head | None = None
    decision: Decision | None = None
    try:
        with path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if not line.strip():
                    continue
                if head is None:
                    head = _read(path, number, line, Head)
                    yield head
                elif b'"verdict"' in line:
                    decision = _read(path, number, line, Decision)
                    decision.line = number
                    yield decision
                else:
                    message = _read(path, number, line, Wanted)
                    _check_order(path, number, message, decision)
                    yield message
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error.strerror or error}") from error
    if head is None:
        raise UsageError(f'{path} is empty: a plan begins with {{"quorumq_plan": 1, …}}')


def _read(path: Path, number: int, line: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(line, type=kind)
    except msgspec.DecodeError as error:
        text = line.decode(errors="backslashreplace").strip()
        expected = {Head: "the head of a plan", Decision: "a decision", Wanted: "a message to redrive"}[kind]
        raise UsageError(f"{path}, line {number}: {text[:120]!r} is not {expected}: {error}") from None


def _check_order(path: Path, number: int, message: Wanted, decision: Decision | None) -> None:
    """Refuse a message that does not belong to the decision in front of it."""
    where = f"{path}, line {number}: {message.id!r}"
    if decision is None:
        raise UsageError(f"{where} is a message without a decision in front of it")
    if decision.verdict != "redrive":
        raise UsageError(
            f"{where} is a message behind a decision to {decision.verdict}: only what is redriven has its ids in a plan"
        )
    try:
        topic = message.name.partition.topic.hex()
    except ValueError as error:
        raise UsageError(f"{path}, line {number}: {error}") from None
    if topic != decision.topic_id:
        raise UsageError(
            f"{where} is of another topic than the decision in line {decision.line}: {decision.topic_id}"
        )


async def carry_out(where: Where, path: Path, rate: float | None, dry_run: bool, as_json: bool) -> None:
    """Redrive a plan's messages, decision by decision, in its order. If ``rate`` is given, it replaces the plan's own.

    Raises:
        UsageError, ClusterMismatch, NotFound: nothing was done.
        TooFewReplicas: some messages are redriven; run it again.
    """
    topics: dict[str, Decision] = {}
    verdicts: Counter[str] = Counter()
    chosen = 0
    head: Head | None = None
    for part in read_plan(path):
        if isinstance(part, Wanted):
            chosen += 1
        elif isinstance(part, Decision):
            verdicts[part.verdict] += 1
            before = topics.setdefault(part.topic, part)
            if before.topic_id != part.topic_id:
                raise UsageError(
                    f"{path}, line {part.line}: {part.topic_id!r} is another id of topic {part.topic!r} than in line "
                    f"{before.line}: {before.topic_id}"
                )
        else:
            head = part
    assert head is not None
    async with cluster(where) as client:
        await _check(client, path, head, topics)
        total: Counter[str] = Counter()
        counts: Counter[str] = Counter()
        try:
            for decision, messages in redrives(path):
                await _redrive(client, decision, messages, rate or decision.rate, dry_run, counts)
                if as_json:
                    about = {"topic": decision.topic, "group": decision.group, "failure": decision.failure}
                    print_json({**about, **_counts(counts), "dry_run": dry_run})
                else:
                    say(f"{decision.topic} {decision.group} {decision.failure}: {_words(counts, dry_run)}")
                total.update(counts)
                counts = Counter()
        except BaseException:
            so_far = plural(total["redriven"] + counts["redriven"], "message")
            say(f"redriven {so_far} so far; run it again to go on", err=True)
            raise
    if chosen and total["unknown"] == chosen and head.cluster is None:
        raise UsageError(
            f"none of the {plural(chosen, 'message')} of {path} is known here: all were settled and reclaimed "
            "since, or it is a plan of another cluster; it does not say of which"
        )
    if as_json:
        print_json({
            "plan": str(path), "chosen": chosen, **_counts(total), "dry_run": dry_run,
            "hold": verdicts["hold"], "discard": verdicts["discard"],
        })  # fmt: skip
        return
    say(f"{_words(total, dry_run)}" if chosen else "the plan has nothing to redrive")
    left_alone = [f"{count} to {verdict}" for verdict in ("hold", "discard") if (count := verdicts[verdict])]
    if left_alone:
        say(f"left alone, as the plan says: {' and '.join(left_alone)} (kinds of failures)", err=True)


async def _check(client: Client, path: Path, head: Head, topics: dict[str, Decision]) -> None:
    """Check that the plan is of this cluster and of these topics."""
    for decision in topics.values():
        known = await client.metadata(decision.topic)
        if head.cluster not in (None, known.cluster_id):
            raise ClusterMismatch(
                f"{path} is a plan for cluster {head.cluster!r}, and this is {known.cluster_id!r}: give --node an "
                "address of the right one"
            )
        here = known.topics[0].id.hex()
        if here != decision.topic_id:
            raise NotFound(
                f"{path}, line {decision.line}: topic {decision.topic!r} has the id {here} here, not "
                f"{decision.topic_id}: it was deleted and made again, or this is another cluster; make a new plan"
            )


def redrives(path: Path) -> Iterator[tuple[Decision, Iterator[Wanted]]]:
    """Yield the decisions to redrive, in their order, each with its messages."""
    decision: Decision | None = None

    def decision_of(part: Head | Decision | Wanted) -> Decision | None:
        nonlocal decision
        decision = part if isinstance(part, Decision) else decision
        return decision

    for decided, parts in groupby(read_plan(path), decision_of):
        if decided is not None and decided.verdict == "redrive":
            yield decided, (part for part in parts if isinstance(part, Wanted))


async def _redrive(
    client: Client,
    decision: Decision,
    messages: Iterator[Wanted],
    rate: float | None,
    dry_run: bool,
    counts: Counter[str],
) -> None:
    """Redrive the messages of a decision, or count those that would be."""
    dead = _dead_letters(client, decision, messages, rate, counts)
    if dry_run:
        counts["redriven"] = len([item async for item in dead])
        return
    async for now, before in redriven(client, decision.topic, decision.group, dead, rate=rate):
        counts["redriven"] += now
        counts["changed"] += before


async def _dead_letters(
    client: Client, decision: Decision, messages: Iterator[Wanted], rate: float | None, counts: Counter[str]
) -> AsyncGenerator[Peek, None]:
    """Look at the messages, some at a time, and yield those that are dead letters as the plan says."""
    # Messages are redriven within about ten seconds after they were looked up.
    look_at = LOOK_AT if rate is None else min(LOOK_AT, max(1, int(10 * rate)))
    while batch := list(islice(messages, look_at)):
        peeks = await client.lookup(decision.topic, decision.group, [item.name for item in batch])
        for item in batch:
            peek = peeks.get(item.name)
            became = became_of(item, peek.peeked.record if peek is not None else None)
            if became == "dead":
                assert peek is not None
                yield peek
            else:
                counts[became] += 1


def became_of(message: Wanted, record: Record | None) -> str:
    """Return the present state of a message of a plan: ``dead`` as it was then, or one of OUTCOMES."""
    if record is None:
        return "unknown"
    if record.kind == Kind.ACKED:
        return "acked"
    if record.n > message.n:
        return "redriven_before"
    if record.generation > message.generation:
        return "rewound"
    if record.kind in (Kind.PURGED, Kind.SKIPPED):
        return "purged"
    if record.kind == Kind.DEAD and (record.generation, record.n) == (message.generation, message.n):
        return "dead"
    return "not_dead"


def _counts(counts: Counter[str]) -> dict[str, int]:
    return {name: counts[name] for name in OUTCOMES}


def _words(counts: Counter[str], dry_run: bool) -> str:
    first = f"{plural(counts['redriven'], 'message')} {'would be redriven' if dry_run else 'redriven'}"
    rest = [f"{counts[name]:,} {words}" for name, words in list(OUTCOMES.items())[1:] if counts[name]]
    return ", ".join([first, *rest])
