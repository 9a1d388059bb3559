"""Fate of every message of a demo, and whether the demo may call itself passed.

The checker trusts no counter and no process's memory: it reads the histories that publisher and workers wrote
(docs/history.md), line by line, and compares sets of message ids. All of them are of one machine, so their
monotonic clocks are one clock and their times can be compared.

`lost` and `delivered_after_ack` are judged as follows. A message is published if its publish was answered OK. A
published message is lost if no ACK was answered for it and the dead letters of the cluster do not list it at the end.
A delivery is after an ack if its FETCH was sent after the client had the ACK's answer. If the answer was `acked`, a
delivery with a higher fencing token than the acked one is after it too, at any time (docs/protocol.md, G3). If the
token is lower, the client library drops the delivery.

Why not sim's checkers: they are not installed (docs/decisions/0012). They take an ACK without an answer for one that
may have settled its message, which is right for a random run and too little here. They also go by when a delivery was
written down, which a worker that is stopped between its look at the clock and that line does too late. But for that, a
test has them check a demo too.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from quorumq.core.values.types import Stamp
from quorumq.history import Row, parse_owner

MessageKey = tuple[str, int, str, int]
"""A message id as histories name it: topic, partition, producer id, seq."""

ACKED_OUTCOMES: Final = ("acked", "acked_after_expiry", "acked_unproven")
KILL_FROM: Final = 0.30
KILL_TO: Final = 0.70


class Delivered(NamedTuple):
    """One delivery of one message. Times are seconds of the machine's monotonic clock."""

    who: str
    at: float
    asked: float  # when its FETCH was sent
    until: float  # the deadline of its hold
    token: Stamp


class Answered(NamedTuple):
    """One successful ACK of one message: time and outcome of its answer, and the token of the delivery it names."""

    at: float
    outcome: str
    token: Stamp


@dataclass(slots=True)
class Killed:
    """Facts about the node that was killed."""

    node: str
    acked_share: float  # share of the published messages, when it was killed
    holds: int  # live on it, by its own status, right before
    started_again: bool = False
    out_of_quarantine: bool = False  # before the end


@dataclass(slots=True)
class Stopped:
    """Facts about the worker that was stopped."""

    worker: str
    held: int  # messages delivered to it and not settled, while it stood still
    seconds: float = 0.0


def keys_of(row: Row) -> Iterator[MessageKey]:
    """Yield the messages that a line of a history names."""
    for producer_id, start, stop in row["spans"]:
        for seq in range(start, stop):
            yield row["topic"], row["partition"], producer_id, seq


@dataclass(slots=True)
class Account:
    """Everything that histories and dead-letter listings say, by message.

    Feed it lines in any order of files; lines of one file in their order.
    """

    published: dict[MessageKey, None] = field(default_factory=dict)
    tried: dict[MessageKey, None] = field(default_factory=dict)
    deliveries: dict[MessageKey, list[Delivered]] = field(default_factory=dict)
    acks: dict[MessageKey, list[Answered]] = field(default_factory=dict)
    asked: dict[MessageKey, None] = field(default_factory=dict)
    rejected: dict[MessageKey, None] = field(default_factory=dict)
    dead_letters: dict[MessageKey, str] = field(default_factory=dict)
    """The dead letters as the cluster lists them at the end, with the exception's class, or else the reason."""
    delivered: int = 0

    def feed(self, row: Row) -> None:
        """Take in one line; kinds that say nothing of messages are passed over."""
        kind = row["kind"]
        if kind == "publish":
            self.tried.update(dict.fromkeys(keys_of(row)))
            if row["outcome"] == "ok":
                self.published.update(dict.fromkeys(keys_of(row)))
        elif kind == "deliver":
            entry = Delivered(
                row["who"], row["at"], row["asked"], row["until"], parse_owner(row["owner"]).ballot
            )
            for key in keys_of(row):
                self.delivered += 1
                self.deliveries.setdefault(key, []).append(entry)
        elif kind == "extend" and row["outcome"] == "ok":
            token = parse_owner(row["owner"]).ballot
            for key in keys_of(row):
                entries = self.deliveries[key]
                entries[:] = [it._replace(until=row["until"]) if it.token == token else it for it in entries]
        elif kind == "ack" and row["outcome"] == "invoke":
            self.asked.update(dict.fromkeys(keys_of(row)))
        elif kind == "ack" and row["outcome"] in ACKED_OUTCOMES:
            answer = Answered(row["at"], row["outcome"], parse_owner(row["owner"]).ballot)
            for key in keys_of(row):
                self.acks.setdefault(key, []).append(answer)
        elif kind == "dead_letter" and row["outcome"] == "ok" and row["who"].startswith("client:"):
            self.rejected.update(dict.fromkeys(keys_of(row)))

    @property
    def redelivered(self) -> int:
        """Return the number of deliveries beyond the first of each message."""
        return self.delivered - len(self.deliveries)

    @property
    def ended(self) -> int:
        """Return the number of messages that were acked or rejected so far."""
        return len(self.acks) + len(self.rejected)

    def settled(self) -> int:
        """Return the number of published messages acked or rejected so far, by the histories of the workers."""
        return sum(key in self.acks or key in self.rejected for key in self.published)

    def held_by(self, who: str, now: float) -> int:
        """Return the number of messages that were delivered to ``who``, are inside their hold, and are not settled.

        One whose ack may be under way does not count: it may be settled in spite of the end of ``who``.
        """
        return sum(
            key not in self.acks
            and key not in self.asked
            and key not in self.rejected
            and any(entry.who == who and now < entry.until for entry in entries)
            for key, entries in self.deliveries.items()
        )

    # ------------------------------------------------------------------------------ judging

    def lost(self) -> list[MessageKey]:
        """Return the messages that were published, and are neither acked nor a dead letter."""
        return [key for key in self.published if key not in self.acks and key not in self.dead_letters]

    def delivered_after_ack(self) -> list[MessageKey]:
        """Return one entry for each delivery that should not have been (see the top of this file)."""
        return [
            key
            for key, entries in self.deliveries.items()
            for entry in entries
            if any(
                entry.asked > answer.at or (answer.outcome == "acked" and entry.token > answer.token)
                for answer in self.acks.get(key, ())
            )
        ]

    def overlapping(self) -> list[MessageKey]:
        """Return one entry for each delivery made while an earlier one was inside its hold and not settled."""
        keys: list[MessageKey] = []
        for key, entries in self.deliveries.items():
            ordered = sorted(entries, key=lambda entry: entry.token)
            keys += [key for before, after in itertools.pairwise(ordered) if after.at < before.until]
        return keys

    def strangers(self) -> list[MessageKey]:
        """Return the messages that were delivered if no client published them."""
        return [key for key in self.deliveries if key not in self.tried]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The numbers of one run, and its verdict.

    ``missing`` lists in sentences the events that had to happen and did not; the exit code follows ``passed``.
    """

    published: int
    delivered: int
    acked: int
    dead_lettered: int
    errors: dict[str, int]
    malformed_errors: dict[str, int]
    redelivered: int
    late_acks: int
    lost: int
    delivered_after_ack: int
    overlapping: int
    never_published: int
    killed: Killed | None
    stopped: Stopped | None
    seconds: float
    missing: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Return True if no message was lost or delivered wrongly, and the faults really happened."""
        broken = self.lost or self.delivered_after_ack or self.overlapping or self.never_published
        return not broken and not self.missing

    def as_json(self) -> dict[str, Any]:
        """Return one object of plain values, for `--json`."""
        return asdict(self) | {"passed": self.passed}


def check(
    account: Account,
    *,
    malformed: Iterable[MessageKey],
    killed: Killed | None,
    stopped: Stopped | None,
    hold_time: float,
    expected: int,
    seconds: float,
) -> Verdict:
    """Return the verdict on one run, by all histories, read to their ends, and the dead-letter listing.

    A fault that did not happen is None; ``malformed`` are the messages that are so on purpose, and ``expected`` is how
    many the publisher set out to publish.
    """
    ours = dict.fromkeys(malformed)
    dead = {key: name for key, name in account.dead_letters.items() if key not in account.acks}
    late = sum(answer.outcome != "acked" for answers in account.acks.values() for answer in answers)
    return Verdict(
        published=len(account.published),
        delivered=account.delivered,
        acked=len(account.acks),
        dead_lettered=len(dead),
        errors=_by_class(name for key, name in dead.items() if key not in ours),
        malformed_errors=_by_class(name for key, name in dead.items() if key in ours),
        redelivered=account.redelivered,
        late_acks=late,
        lost=len(account.lost()),
        delivered_after_ack=len(account.delivered_after_ack()),
        overlapping=len(account.overlapping()),
        never_published=len(account.strangers()),
        killed=killed,
        stopped=stopped,
        seconds=seconds,
        missing=tuple(_missing(account, killed, stopped, hold_time, expected, late)),
    )


def _missing(
    account: Account,
    killed: Killed | None,
    stopped: Stopped | None,
    hold_time: float,
    expected: int,
    late: int,
) -> Iterator[str]:
    if len(account.published) < expected:
        yield f"{expected - len(account.published)} of {expected} messages were not published"
    if killed is None:
        yield "no node was killed"
    else:
        if not KILL_FROM <= killed.acked_share <= KILL_TO:
            yield (
                f"node {killed.node} was killed when {killed.acked_share:.0%} were acked, not between "
                f"{KILL_FROM:.0%} and {KILL_TO:.0%}"
            )
        if killed.holds < 1:
            yield f"node {killed.node} had no hold when it was killed"
        if not killed.started_again:
            yield f"node {killed.node} was not started again"
    if stopped is None:
        yield "no worker was stopped"
    else:
        if stopped.held < 1:
            yield f"{stopped.worker} held no message while it was stopped"
        if stopped.seconds <= hold_time:
            yield f"{stopped.worker} was stopped for {stopped.seconds:.1f} s, not past the hold of {hold_time:g} s"
        if not late:
            yield f"no ack came late, though {stopped.worker} was stopped past its hold"


def _by_class(names: Iterable[str]) -> dict[str, int]:
    counts = Counter(names)
    return {name: counts[name] for name in sorted(counts, key=lambda name: (-counts[name], name))}


@dataclass(eq=False)
class Tail:
    """The lines of a file that another process still writes, as far as they are complete."""

    path: Path  # it need not be there yet
    _offset: int = 0

    def read(self) -> list[Mapping[str, Any]]:
        """Return the lines that were added since the last call. If a line has no end yet, it waits for the next."""
        try:
            with self.path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return []
        complete = data[: data.rfind(b"\n") + 1]
        self._offset += len(complete)
        return [json.loads(line) for line in complete.splitlines()]
