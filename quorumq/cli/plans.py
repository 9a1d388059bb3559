"""A redrive plan, read and carried out.

A plan is a file of JSON Lines that `python -m spark deadletters` writes and anybody can read, cut or write by hand
(docs/spark.md, "The redrive plan"): a head, then for each kind of failure a decision, with the messages to redrive
behind it. It is read line by line, twice: once to find everything that is wrong with it, before anything is done.

Before a message is redriven the cluster is asked what became of it since the plan was made. A message is named with
its generation and n, so what was redriven since, even if it died again, is left alone: a plan that was interrupted
and is run again goes on where it stopped, and one that was run is done.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from quorumq.cli.common import (
    Where,
    cluster,
    print_json,
    say,
)
from quorumq.cli.pieces import pieces
from quorumq.client.message import MessageId
from quorumq.core.errors import AlreadyResolved, ClusterMismatch, NotFound, StorageError, UsageError
from quorumq.core.printable import plural
from quorumq.core.types import Kind, Record

if TYPE_CHECKING:
    from quorumq.client import Client, Peek

VERSION: Final = 1
VERDICTS: Final = ("redrive", "hold", "discard")
LOOK_AT: Final = 1000
"""Messages that are looked up at once, and the most that one request redrives."""

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
"""What can become of a message of a plan, and how it is said to a person."""


class Decision(NamedTuple):
    """What a plan says of one kind of failure."""

    line: int
    topic: str
    topic_id: bytes
    group: str
    failure: str  # the fingerprint, or the reason of dead letters that have none
    verdict: str
    rate: float | None  # messages a second; None: as fast as it goes


class Wanted(NamedTuple):
    """A message to redrive, as it was when the plan was made."""

    line: int
    id: MessageId
    generation: int
    n: int


def read_plan(path: Path) -> Iterator[dict[str, Any] | Decision | Wanted]:
    """The head of a plan, its decisions, and behind each the messages to redrive, one by one.

    Raises:
        UsageError: with the line and what is wrong in it.
        StorageError: it cannot be read.
    """
    head: dict[str, Any] | None = None
    decision: Decision | None = None
    try:
        with path.open("rb") as lines:
            for number, raw in enumerate(lines, 1):
                if not raw.strip():
                    continue
                fields = _object(path, number, raw)
                if head is None:
                    head = _head(path, number, fields)
                    yield head
                elif "verdict" in fields:
                    decision = _decision(path, number, fields)
                    yield decision
                else:
                    yield _message(path, number, fields, decision)
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error.strerror or error}") from error
    if head is None:
        raise UsageError(f'{path} is empty: a plan begins with {{"quorumq_plan": {VERSION}, …}}')


def _object(path: Path, line: int, raw: bytes) -> dict[str, Any]:
    try:
        value = json.loads(raw)
    except ValueError as error:
        raise _bad(
            path, line, raw.decode(errors="backslashreplace").strip(), f"is not JSON ({error})"
        ) from None
    if not isinstance(value, dict):
        raise _bad(path, line, value, "is not a JSON object")
    return value


def _bad(path: Path, line: int, value: Any, problem: str) -> UsageError:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return UsageError(f"{path}, line {line}: {text[:120]!r} {problem}")


def _head(path: Path, line: int, fields: dict[str, Any]) -> dict[str, Any]:
    if fields.get("quorumq_plan") != VERSION:
        problem = f'is not the head of a plan that can be read here: that has "quorumq_plan": {VERSION}'
        raise _bad(path, line, fields, problem)
    if not isinstance(fields.get("cluster"), str | None):
        raise _bad(path, line, fields["cluster"], "is not the id of a cluster")
    return fields


def _text(path: Path, line: int, fields: dict[str, Any], name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str) or not value:
        raise _bad(path, line, fields, f"has no {name}, or one that is no text")
    return value


def _decision(path: Path, line: int, fields: dict[str, Any]) -> Decision:
    verdict = fields["verdict"]
    if verdict not in VERDICTS:
        raise _bad(path, line, verdict, f"is no verdict: say {', '.join(VERDICTS)}")
    try:
        topic_id = bytes.fromhex(_text(path, line, fields, "topic_id"))
    except ValueError:
        raise _bad(path, line, fields["topic_id"], "is not the id of a topic: 32 hex digits") from None
    rate = fields.get("rate")
    if rate is not None and (
        isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate < 1e9
    ):
        raise _bad(path, line, rate, "is no rate: say how many messages a second, above 0")
    topic, group = (_text(path, line, fields, name) for name in ("topic", "group"))
    return Decision(line, topic, topic_id, group, _text(path, line, fields, "failure"), verdict, rate)


def _message(path: Path, line: int, fields: dict[str, Any], decision: Decision | None) -> Wanted:
    if decision is None:
        raise _bad(path, line, fields, "is a message without a decision in front of it")
    if decision.verdict != "redrive":
        problem = f"is a message behind a decision to {decision.verdict}: only what is redriven has its ids in the plan"
        raise _bad(path, line, fields, problem)
    try:
        name = MessageId.parse(_text(path, line, fields, "id"))
    except ValueError as error:
        raise UsageError(f"{path}, line {line}: {error}") from None
    if name.partition.topic != decision.topic_id:
        problem = f"is of another topic than the decision in line {decision.line}: {decision.topic_id.hex()}"
        raise _bad(path, line, str(name), problem)
    for field in ("generation", "n"):
        value = fields.get(field)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 64:
            raise _bad(path, line, fields, f"has no {field}, or one that is no number from 0")
    return Wanted(line, name, fields["generation"], fields["n"])


async def carry_out(where: Where, path: Path, rate: float | None, dry_run: bool, as_json: bool) -> None:
    """Redrive what the plan says, decision by decision, in its order.

    Args:
        nodes: addresses.
        path: the plan.
        rate: messages a second, instead of the plan's.
        dry_run: only look what would be done.
        as_json: print JSON.

    Raises:
        UsageError, ClusterMismatch, NotFound: nothing was done.
        TooFewReplicas: run it again; what is done stays done.
    """
    topics: dict[str, Decision] = {}
    verdicts: Counter[str] = Counter()
    wanted = 0
    head: dict[str, Any] = {}
    for part in read_plan(path):
        if isinstance(part, Wanted):
            wanted += 1
        elif isinstance(part, Decision):
            verdicts[part.verdict] += 1
            before = topics.setdefault(part.topic, part)
            if before.topic_id != part.topic_id:
                problem = f"is another id of topic {part.topic!r} than in line {before.line}: {before.topic_id.hex()}"
                raise _bad(path, part.line, part.topic_id.hex(), problem)
        else:
            head = part
    async with cluster(where) as client:
        await _check(client, path, head, topics)
        total: Counter[str] = Counter()
        try:
            async for decision, counts in _decisions(client, path, rate, dry_run, total):
                if as_json:
                    print_json({**_about(decision), **_counts(counts), "dry_run": dry_run})
                else:
                    say(f"{decision.topic} {decision.group} {decision.failure}: {_words(counts, dry_run)}")
        except BaseException:
            say(f"redriven {plural(total['redriven'], 'message')} so far; run it again to go on", err=True)
            raise
    if wanted and total["unknown"] == wanted and head["cluster"] is None:
        raise UsageError(
            f"none of the {plural(wanted, 'message')} of {path} is known here: all were settled and reclaimed "
            "since, or it is a plan of another cluster; it does not say of which"
        )
    if as_json:
        print_json({
            "plan": str(path), "chosen": wanted, **_counts(total), "dry_run": dry_run,
            "hold": verdicts["hold"], "discard": verdicts["discard"],
        })  # fmt: skip
        return
    say(f"{_words(total, dry_run)}" if wanted else "the plan has nothing to redrive")
    left = [f"{count} to {verdict}" for verdict in VERDICTS[1:] if (count := verdicts[verdict])]
    if left:
        say(f"left alone, as the plan says: {' and '.join(left)} (kinds of failures)", err=True)


async def _check(client: Client, path: Path, head: dict[str, Any], topics: dict[str, Decision]) -> None:
    """That the plan is of this cluster and of these topics."""
    for decision in topics.values():
        known = await client.metadata(decision.topic)
        if head["cluster"] not in (None, known.cluster_id):
            raise ClusterMismatch(
                f"{path} is a plan for cluster {head['cluster']!r}, and this is {known.cluster_id!r}: give --node an "
                "address of the right one"
            )
        here = known.topics[0].id
        if here != decision.topic_id:
            raise NotFound(
                f"{path}, line {decision.line}: topic {decision.topic!r} has the id {here.hex()} here, not "
                f"{decision.topic_id.hex()}: it was deleted and made again, or this is another cluster; make a new plan"
            )


async def _decisions(
    client: Client, path: Path, rate: float | None, dry_run: bool, total: Counter[str]
) -> Any:
    """Each decision to redrive, done, with what became of its messages."""
    decision: Decision | None = None
    counts: Counter[str] = Counter()
    batch: list[Wanted] = []
    pace: list[float] = []
    for part in read_plan(path):
        if isinstance(part, Wanted):
            batch.append(part)
            assert decision is not None
            if len(batch) >= _look_at(rate or decision.rate):
                await _redrive(client, decision, batch, rate, dry_run, counts, total, pace)
                batch = []
        elif isinstance(part, Decision):
            if decision is not None and decision.verdict == "redrive":
                await _redrive(client, decision, batch, rate, dry_run, counts, total, pace)
                yield decision, counts
            decision, counts, batch, pace = part, Counter(), [], []
    if decision is not None and decision.verdict == "redrive":
        await _redrive(client, decision, batch, rate, dry_run, counts, total, pace)
        yield decision, counts


def _look_at(rate: float | None) -> int:
    """How many messages to look up at once: what was looked up is redriven within about ten seconds."""
    return LOOK_AT if rate is None else min(LOOK_AT, max(1, int(10 * rate)))


async def _redrive(
    client: Client,
    decision: Decision,
    batch: list[Wanted],
    rate: float | None,
    dry_run: bool,
    counts: Counter[str],
    total: Counter[str],
    pace: list[float],
) -> None:
    """Look at the messages of a batch, and redrive those that are dead letters as the plan has them."""
    import trio

    found = await client.lookup(decision.topic, decision.group, [item.id for item in batch])
    items: list[Peek] = []
    for item in batch:
        peek = found.get(item.id)
        became = became_of(item, peek.peeked.record if peek is not None else None)
        if became == "dead":
            assert peek is not None
            bare = peek.peeked._replace(record=peek.peeked.record._replace(letter=None))
            items.append(peek._replace(peeked=bare))
        else:
            counts[became] += 1
            total[became] += 1
    if dry_run:
        counts["redriven"] += len(items)
        total["redriven"] += len(items)
        return
    rate = rate or decision.rate
    most = LOOK_AT if rate is None else max(1, int(rate / 10))
    if not pace:
        pace.append(trio.current_time())
    async for piece in pieces(_each(items), most):
        if rate is not None:
            await trio.sleep_until(pace[0])
            # From the later of the two, so that a slow cluster is not made up for by a burst.
            pace[0] = max(pace[0], trio.current_time()) + len(piece) / rate
        done = await client.redrive(decision.topic, decision.group, piece)
        refused = sum(span.size for span, _ in done.refused)
        for _, error in done.refused:
            if not isinstance(error, AlreadyResolved):
                raise error
        for counter in (counts, total):
            counter["redriven"] += done.messages
            counter["changed"] += refused


async def _each(items: list[Peek]) -> Any:
    for item in items:
        yield item


def became_of(wanted: Wanted, record: Record | None) -> str:
    """What a message of a plan is now: ``dead`` as it was then, or one of OUTCOMES."""
    if record is None:
        return "unknown"
    if record.kind == Kind.ACKED:
        return "acked"
    if record.n > wanted.n:
        return "redriven_before"
    if record.generation > wanted.generation:
        return "rewound"
    if record.kind in (Kind.PURGED, Kind.SKIPPED):
        return "purged"
    if record.kind == Kind.DEAD and (record.generation, record.n) == (wanted.generation, wanted.n):
        return "dead"
    return "not_dead"


def _about(decision: Decision) -> dict[str, Any]:
    return {"topic": decision.topic, "group": decision.group, "failure": decision.failure}


def _counts(counts: Counter[str]) -> dict[str, int]:
    return {name: counts[name] for name in OUTCOMES}


def _words(counts: Counter[str], dry_run: bool) -> str:
    first = f"{plural(counts['redriven'], 'message')} {'would be redriven' if dry_run else 'redriven'}"
    rest = [f"{counts[name]:,} {words}" for name, words in list(OUTCOMES.items())[1:] if counts[name]]
    return ", ".join([first, *rest])
