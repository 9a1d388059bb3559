"""Each output of an input is there once (docs/protocol.md, end of section 2).

Publishing an output derived from a message, then acking the message, promises two things to be asked of a history. An
output has one name and one content, with any client and number of derivations. Once the input is acked, it is there.

An input and its output are two messages, which may be in two parts. So each part reports its lines of either, and
these are then checked together.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from quorumq.audit.context import Context, Run
from quorumq.audit.findings import Checks, Judged, Proof, Where
from quorumq.audit.moment import seconds
from quorumq.audit.story import Story, crc_text

DERIVED: Final = "derived"
PREFIX: Final = "~derived."
"""Prefix of the producer id of an output."""


class Name(NamedTuple):
    """A message of a topic."""

    partition: int
    producer_id: str
    seq: int


class Made(NamedTuple):
    """An output was derived, of an input.

    Attributes:
        output: the output.
        crcs: its checksums.
        last: seconds of the run at which a line last said so.
        of: the input, if this is its output by the first line and is to be there; else None.
        index: number of the output among those of the input.
        acked: seconds of the run at which the input was acked; None if it was not acked.
    """

    run: str
    into: str
    output: Name
    crcs: tuple[str, ...]
    last: float
    of: Where | None
    index: int  # type: ignore[assignment]
    acked: float | None


class Got(NamedTuple):
    """Fate of a message with an output's name: when it was first delivered, and the checksums of that."""

    run: str
    topic: str
    name: Name
    delivered: float | None
    crcs: tuple[str, ...]


class Output(NamedTuple):
    """An output of an input, by all that is said of it: with names and checksums."""

    index: int  # type: ignore[assignment]
    into: str
    output: Name
    seen: Sequence[tuple[Name, str]]

    @property
    def is_output(self) -> bool:
        return self.output.producer_id.startswith(PREFIX)


def _in_words(name: Name) -> str:
    return f"{name.producer_id}[{name.seq}] of partition {name.partition}"


class Message(NamedTuple):
    """A message that is an output by its name: the contents with which it was derived, and delivered."""

    run: Run
    known: bool
    derived: Sequence[str]
    last: float | None
    got: Sequence[str]
    delivered: float | None


def collect(story: Story, where: Where, context: Context, out: Judged) -> None:
    """Check the outputs of the message by its own lines, and keep its lines as an input or as an output."""
    derives = story.kinds.get("derive")
    if derives is not None:
        acks = [
            it.at.t for it in story.of("ack") if it.outcome is not None and it.outcome.startswith("acked")
        ]
        items: dict[tuple[str, int], list[tuple[float, Name, str]]] = {}
        for event, crc in story.mine:
            if event.kind == "derive" and event.into is not None:
                topic, partition, producer_id, seq, index = event.into
                text = crc_text(crc) if crc >= 0 else ""
                items.setdefault((topic, index), []).append(
                    (event.at.t, Name(partition, producer_id, seq), text)
                )
        for (into, index), rows in items.items():
            _input(into, index, rows, min(acks, default=None), where, context, out)
    message = story.message
    if message.producer_id.startswith(PREFIX):
        got = [it for it in story.mine if it.event.kind == "deliver"]
        if got or any(it.state == "dead" for it in story.of("list", dead=None)):
            crcs = tuple(sorted({crc_text(it.crc) for it in got if it.crc >= 0}))
            name = Name(message.partition, message.producer_id, message.seq)
            first = min((it.event.at.t for it in got), default=None)
            out.got.append(Got(message.run, message.topic, name, first, crcs))


def _input(
    into: str, index: int, rows: Sequence[tuple[float, Name, str]], acked: float | None, where: Where, context: Context,
    out: Judged,
) -> None:  # fmt: skip
    first, last = min(rows)[1], max(rows)[0]
    it = Output(index, into, first, sorted({(name, crc) for _, name, crc in rows}))
    # In other runs no line says which clients read the outputs.
    readers = context.runs[where.run].simulated or (where.run, into) in context.read
    out.count(where.run, DERIVED, it.is_output and readers)
    out.ask(OF_OUTPUTS, it, where, last)
    for name in dict.fromkeys(name for _, name, _ in rows):
        crcs = tuple(sorted({crc for _, mine, crc in rows if mine == name and crc}))
        of = where if name == first and it.is_output and readers and acked is not None else None
        out.made.append(
            Made(
                where.run, into, name, crcs, max(at for at, mine, _ in rows if mine == name), of, index, acked
            )
        )


# --------------------------------------------------------------------------- checks


OF_OUTPUTS: Final = Checks[Output]()


@OF_OUTPUTS.of(DERIVED, "an output with two names or contents")
def derived_otherwise(it: Output) -> Proof | None:
    if len(it.seen) < 2:
        return None
    rows = [{"output": name._asdict(), "crc": crc} for name, crc in it.seen]
    return Proof(
        f"its output {it.index} in {it.into} was derived as {json.dumps(rows, separators=(',', ':'))}"
    )


@OF_OUTPUTS.of(DERIVED, "an output without the name of one")
def misnamed(it: Output) -> Proof | None:
    if it.is_output:
        return None
    return Proof(f"is said to have the output {_in_words(it.output)}, which is no name of one", False)


OF_MESSAGES: Final = Checks[Message]()


@OF_MESSAGES.of(DERIVED, "derived with two contents")
def made_otherwise(it: Message) -> Proof | None:
    return Proof(f"was derived as {' and as '.join(it.derived)}", at=it.last) if len(it.derived) > 1 else None


@OF_MESSAGES.of(DERIVED, "delivered, and never derived")
def never_derived(it: Message) -> Proof | None:
    if it.known:
        return None
    text = f"was delivered at {seconds(it.delivered)}, and nobody derived it"
    return Proof(text, not it.run.lossy and it.run.simulated)


@OF_MESSAGES.of(DERIVED, "delivered with other bytes than derived")
def delivered_otherwise(it: Message) -> Proof | None:
    other = [crc for crc in it.got if crc not in it.derived]
    if not it.derived or not other:
        return None
    return Proof(f"was derived as {it.derived[0]} and delivered as {', '.join(other)}")


NEVER_DELIVERED: Final = "an output that was never delivered, of an input that was acked"


def key_of(it: Made | Got) -> tuple[str, str, Name]:
    """Return the output that this is about, by run and topic: all about one is asked together."""
    return (it.run, it.into, it.output) if isinstance(it, Made) else (it.run, it.topic, it.name)


def check(items: Iterable[Made | Got], context: Context, out: Judged) -> None:
    """Ask these of each output of an input that was acked, and of each message with an output's name."""
    together: dict[tuple[str, str, Name], tuple[list[Made], list[Got]]] = defaultdict(lambda: ([], []))
    for it in items:
        made, got = together[key_of(it)]
        (made if isinstance(it, Made) else got).append(it)  # type: ignore[arg-type]
    for key in sorted(together):
        _output(key, *together[key], context, out)


def _output(
    key: tuple[str, str, Name], made: Sequence[Made], got: Sequence[Got], context: Context, out: Judged
) -> None:
    name, topic, output = key
    run = context.runs[name]
    for it in made:
        if it.of is None or got:
            continue
        out.count(name, DERIVED, False, run.drained_at is None)
        if run.drained_at is not None:
            words = f"its output {it.index}, {_in_words(output)} of {topic}, was never delivered"
            proof = Proof(f"was acked at {seconds(it.acked)}, and {words}", not run.lossy, run.drained_at)
            out.report(DERIVED, NEVER_DELIVERED, proof, it.of, None)
    delivered = min((it.delivered for it in got if it.delivered is not None), default=None)
    if not made and (delivered is None or (name, topic) not in context.into):
        return
    crcs = sorted({crc for it in got if it.delivered is not None for crc in it.crcs})
    derived = sorted({crc for it in made for crc in it.crcs})
    about = Message(run, bool(made), derived, max((it.last for it in made), default=None), crcs, delivered)
    out.count(name, DERIVED, delivered is not None)
    partition, producer_id, seq = output
    where = Where(name, topic, partition, "", producer_id, seq, f"{topic}/{partition}/{producer_id}/{seq}")
    out.ask(OF_MESSAGES, about, where, delivered)
