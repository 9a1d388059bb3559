"""Findings of checks, each with its evidence in words, and counts.

A finding is `broken` if the clocks prove it. It is `not decidable` if they do not, or if lines missing from an
incomplete history could explain it. Nothing is said to hold because it was not looked at: each check counts.
"""

from __future__ import annotations

import math
from bisect import insort
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Generic, NamedTuple, TypeAlias, TypeVar

GUARANTEES: Final[dict[str, str]] = {
    "G1": "durable: what was confirmed is delivered and settled, or is a dead letter",
    "G2": "exclusive: no two deliveries of a message to a group are inside their holds",
    "G3": "final: nothing is delivered after its ACK; fencing tokens rise",
    "G4": "live: what is not settled is delivered again in time",
    "G5": "faithful: what is delivered was published, byte for byte",
    "G6": "idempotent: retrying a publish makes no second message",
    "G7": "dead letters are conserved: each is there once, until redriven, purged or acked",
    "groups": "groups as asked: generations, their starts, and purges (G3, G4)",
    "delays": "delays as asked: what is delayed, published or given back, is not delivered before, nor after its TTL",
    "derived": "derived once: the outputs of a message are there once it is acked, each once (G3, G5, G6)",
    "settings": "settings as written: all nodes have one register of a topic, with what was written last",
}
"""Guarantees by name, in the order in which it is reported."""

BROKEN: Final = "broken"
UNDECIDED: Final = "not decidable"

SHOWN: Final = 50
"""Most findings of a guarantee, and most rows of each other table, in a summary; each finding has its story."""

T = TypeVar("T")


class Proof(NamedTuple):
    """The evidence that a guarantee was not kept.

    Attributes:
        text: the evidence in words.
        sure: True if it is broken, else it is not decidable.
        at: time in seconds of the run; None if it is the time that the check gives.
    """

    text: str
    sure: bool = True
    at: float | None = None


Test: TypeAlias = Callable[[T], Proof | None]


class Check(NamedTuple, Generic[T]):
    """A question about one thing.

    Attributes:
        guarantee: name of the guarantee.
        cause: the fault in general, in words.
        test: the proof that it is not kept; None if there is none.
    """

    guarantee: str
    cause: str
    test: Test[T]


class Checks(list[Check[T]]):
    """Questions about things of one type, each beside its test: in the order of a module."""

    def of(self, guarantee: str, cause: str) -> Callable[[Test[T]], Test[T]]:
        """Add the test below."""

        def add(test: Test[T]) -> Test[T]:
            self.append(Check(guarantee, cause, test))
            return test

        return add


class Finding(NamedTuple):
    """Something broken, or undecided about one message, topic or run. ``producer_id`` is None if it is of no
    message."""

    run: str
    guarantee: str
    verdict: str
    topic: str | None
    partition: int | None
    group: str | None
    producer_id: str | None
    seq: int | None
    id: str | None
    at: float | None
    text: str
    cause: str
    story: tuple[str, ...] = ()


class Where(NamedTuple):
    """Subject of a finding."""

    run: str
    topic: str | None = None
    partition: int | None = None
    group: str | None = None
    producer_id: str | None = None
    seq: int | None = None
    id: str | None = None


class Sums:
    """Counts of a part, to be added to that of other parts.

    Attributes:
        counts: number of events by kind, run and further names.
        waits: messages in each bucket of seconds from publish to delivery, by run, topic and group.
        extremes: the greatest of each, by the same names.
    """

    def __init__(self) -> None:
        self.counts: Counter[tuple[Any, ...]] = Counter()
        self.waits: dict[tuple[str, str, str], Counter[int]] = {}
        self.attempts: dict[tuple[str, str, str], Counter[int]] = {}
        self.longest: dict[tuple[str, str, str], float] = {}

    def add(self, other: Sums) -> None:
        self.counts.update(other.counts)
        for mine, more in ((self.waits, other.waits), (self.attempts, other.attempts)):
            for key, items in more.items():
                mine.setdefault(key, Counter()).update(items)
        for key, value in other.longest.items():
            self.longest[key] = max(value, self.longest.get(key, value))

    def waited(self, key: tuple[str, str, str], value: float) -> None:
        """Count the wait of a message, in seconds, to 1 %."""
        self.waits.setdefault(key, Counter())[bucket(value)] += 1
        self.longest[key] = max(value, self.longest.get(key, value))


def bucket(value: float) -> int:
    """Return the number of a bucket of waits, each 1 % wider than the one before; the least if there was no wait."""
    return math.floor(math.log(value) * 100) if value > 1e-9 else -(10**6)


def of_bucket(number: int) -> float:
    return math.exp((number + 0.5) / 100) if number > -(10**6) else 0.0


class Judged:
    """Result of a part.

    Attributes:
        top: the first findings of each cause, with their stories.
    """

    def __init__(self) -> None:
        self.findings: list[Finding] = []
        self.sums = Sums()
        self.divergence: list[dict[str, Any]] = []
        self.made: list[Any] = []  # quorumq.audit.derived.Made
        self.got: list[Any] = []  # quorumq.audit.derived.Got
        self.top: dict[tuple[str, str, str], list[Finding]] = {}

    def count(self, run: str, guarantee: str, checked: bool | int, undecidable: bool | int = 0) -> None:
        """Count a thing that was looked at, and one that can never be decided."""
        if checked:
            self.sums.counts[("checked", run, guarantee)] += int(checked)
        if undecidable:
            self.sums.counts[("undecidable", run, guarantee)] += int(undecidable)

    def ask(
        self, checks: Iterable[Check[T]], of: T, where: Where, at: float | None,
        story: Callable[[], Sequence[str]] = tuple,
    ) -> None:  # fmt: skip
        for guarantee, cause, test in checks:
            proof = test(of)
            if proof is not None:
                self.report(guarantee, cause, proof, where, at, story)

    def report(
        self, guarantee: str, cause: str, proof: Proof, where: Where, at: float | None,
        story: Callable[[], Sequence[str]] = tuple,
    ) -> None:  # fmt: skip
        verdict = BROKEN if proof.sure else UNDECIDED
        self.sums.counts[(verdict, where.run, guarantee, cause)] += 1
        when = proof.at if proof.at is not None else at
        it = Finding(where.run, guarantee, verdict, *where[1:], when, proof.text, cause)
        self.findings.append(it)
        top = self.top.setdefault((verdict, guarantee, cause), [])
        if len(top) < SHOWN or in_order(it) < in_order(top[-1]):
            insort(top, it._replace(story=tuple(story())), key=in_order)
            del top[SHOWN:]

    def add(self, other: Judged) -> None:
        """Add the result of another part, but for its findings and outputs."""
        self.sums.add(other.sums)
        self.divergence += other.divergence
        for key, items in other.top.items():
            self.top[key] = sorted([*self.top.get(key, []), *items], key=in_order)[:SHOWN]


def in_order(it: Finding) -> tuple[str, float, str, str]:
    return it.run, -math.inf if it.at is None else it.at, it.id or "", it.text
