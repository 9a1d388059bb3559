"""Figures of a run, from its history and the checkers, and sums of them over many runs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, fields

from quorumq.history import Row
from sim.checkers import wanted_by
from sim.checkers.base import messages
from sim.checkers.exclusive import Exclusive
from sim.checkers.final import FinalAfterAck
from sim.checkers.loss import NoLoss
from sim.checkers.thin_air import NoThinAir
from sim.rivals.harness import Run
from sim.rivals.workload import ReceiptPart

STEP = math.log(1.05)
"""Times are counted in classes that differ by 5 %."""

HOLDING = ("Hold", "HoldReply", "Release", "ReleaseReply", "Drop")
"""Messages between nodes about holds."""

UNWON_S = 1.8
"""Seconds, nearly a hold: a message without a first delivery for this long is in no client's hand, but held."""

NODE_FAULTS = ("crash", "kill", "freeze", "partition")


@dataclass(slots=True)
class Figures:
    """Sums over runs of one design under one kind of fault."""

    runs: int = 0  # number of runs
    confirmed: int = 0  # messages whose publish was confirmed
    lost: int = 0  # those that were never handled, or not to the end
    deliveries: int = 0  # messages handed to handlers
    duplicates: int = 0  # deliveries of messages that had been delivered before, and not rejected since
    after_ack: int = 0  # deliveries to a request that was sent after an ACK of the message had succeeded
    overlaps: int = 0  # deliveries while another one's deadline had not passed
    # Seconds from the first try to publish to the first delivery, by class (`STEP`).
    waits: dict[int, int] = field(default_factory=dict)
    # After a node's loss, the longest time in the next five seconds without any delivery, though something
    # was to be delivered; summed over the losses.
    gap: float = 0.0
    gap_worst: float = 0.0  # the longest of these
    losses: int = 0  # number of losses
    # Seconds from publish to delivery of what was published to the poison message's partition while it was
    # tried, summed.
    behind_poison: float = 0.0
    behind: int = 0  # number of these messages
    messages: float = 0.0  # network messages until all was settled
    syncs: float = 0.0  # fsyncs of the disks until all was settled
    fairness: float = 0.0  # Jain's index of the deliveries per consumer, summed over runs: 1 is equal
    asked: int = 0  # messages asked for while at least as many were there
    received: int = 0  # messages that came
    hold_messages: int = 0  # between nodes, to get and give back holds
    unwon: int = 0  # messages without a holder within `UNWON_S` of their publish
    lost_rounds: int = 0  # messages that a node tried to hold in vain
    tombstone_reads: int = 0  # quorum reads of a message's tombstones

    def add(self, other: Figures) -> None:
        """Add the sums of other runs."""
        for part in fields(self):
            mine, theirs = getattr(self, part.name), getattr(other, part.name)
            if part.name == "waits":
                for class_, count in theirs.items():
                    mine[class_] = mine.get(class_, 0) + count
            elif part.name == "gap_worst":
                self.gap_worst = max(mine, theirs)
            else:
                setattr(self, part.name, mine + theirs)

    def wait(self, share: float) -> float:
        """Return the quantile of the times to deliver, in seconds."""
        left = share * sum(self.waits.values())
        for class_ in sorted(self.waits):
            left -= self.waits[class_]
            if left <= 0:
                return math.exp(class_ * STEP)
        return 0.0

    def rates(self) -> dict[str, float]:
        """Return the figures that people compare."""

        def per(count: float, of: float, digits: int = 2) -> float:
            return round(count / of, digits) if of else 0.0

        return {
            "lost per 10,000": per(10_000 * self.lost, self.confirmed),
            "duplicates per 10,000": per(10_000 * self.duplicates, self.confirmed),
            "after ack per 10,000": per(10_000 * self.after_ack, self.confirmed),
            "overlaps per 10,000": per(10_000 * self.overlaps, self.confirmed),
            "gap after a loss, mean s": per(self.gap, self.losses),
            "gap after a loss, worst s": round(self.gap_worst, 2),
            "behind poison, mean s": per(self.behind_poison, self.behind, 3),
            "messages per delivery": per(self.messages, self.deliveries),
            "hold messages per delivery": per(self.hold_messages, self.deliveries),
            "syncs per delivery": per(self.syncs, self.deliveries),
            "p50 s": round(self.wait(0.5), 4),
            "p99 s": round(self.wait(0.99), 3),
            "fairness": per(self.fairness, self.runs, 3),
            "received of asked": per(self.received, self.asked, 3),
            "unwon per 10,000": per(10_000 * self.unwon, self.confirmed),
            "lost holds per delivery": per(self.lost_rounds, self.deliveries),
            "tombstone reads per message": per(self.tombstone_reads, self.confirmed),
        }


def broken(rows: Iterable[Row]) -> dict[str, int]:
    """Count the violations of each promise that can be asked of every design."""
    checkers = [checker() for checker in (NoLoss, NoThinAir, Exclusive, FinalAfterAck)]
    wanted = wanted_by(checkers)
    for row in rows:
        for checker in wanted.get(row["kind"], ()):
            checker.see(row)
    return {checker.promise: len(dict.fromkeys(checker.verdict())) for checker in checkers}


def measure(run: Run) -> Figures:
    """Checker a run that is over."""
    rows = run.world.rows
    books = run.books
    result = Figures(runs=1, confirmed=len(books.confirmed), deliveries=books.deliveries)
    found = broken(rows)
    result.lost, result.overlaps = found["no loss"], found["exclusive holds"]
    result.after_ack = found["final after ack"]
    assert not found["no thin air"], (
        f"{run.world.run_name}: something was delivered that was not published so"
    )
    won: dict[ReceiptPart, float] = {}
    for row in rows:
        if row["kind"] == "hold_won":
            for key in messages(row):
                won.setdefault(key, row["at"])
    if won:
        result.unwon = sum(won.get(key, math.inf) > at + UNWON_S for key, at in books.confirmed.items())
    made, first, times = _deliveries(rows, result)
    for key, at in first.items():
        class_ = math.floor(math.log(max(at - made[key], 1e-4)) / STEP)
        result.waits[class_] = result.waits.get(class_, 0) + 1
    for row in rows:
        if row["kind"] == "fault" and row["fault"] in NODE_FAULTS:
            stop = _stop(made, first, sorted(times), row["at"], min(row["at"] + 5.0, run.settled_at))
            result.losses += 1
            result.gap += stop
            result.gap_worst = max(result.gap_worst, stop)
    _measure_poison(run, made, first, result)
    taken = Counter(row["who"] for row in rows if row["kind"] == "deliver")
    per_consumer = [float(taken[client.who]) for client in run.consumers]
    squares = sum(count * count for count in per_consumer)
    result.fairness = sum(per_consumer) ** 2 / (len(per_consumer) * squares) if squares else 1.0
    result.messages, result.syncs = run.costs["messages"], run.costs["syncs"]
    result.asked, result.received = books.asked, books.received
    result.hold_messages = sum(run.world.sent.get(kind, 0) for kind in HOLDING)
    result.lost_rounds, result.tombstone_reads = books.lost_rounds, books.tombstone_reads
    if run.design == "quorumq":
        result.lost_rounds = sum(
            stop - start for row in rows if row["kind"] == "hold_lost" for _, start, stop in row["spans"]
        )
    return result


def _deliveries(
    rows: Iterable[Row], result: Figures
) -> tuple[dict[ReceiptPart, float], dict[ReceiptPart, float], list[float]]:
    """Return the times of each message's publish and first delivery, and of all deliveries; count duplicates."""
    made: dict[ReceiptPart, float] = {}
    first: dict[ReceiptPart, float] = {}
    times: list[float] = []
    rejected: dict[ReceiptPart, None] = {}
    for row in rows:
        if row["kind"] == "publish" and row["outcome"] == "invoke":
            for key in messages(row):
                made.setdefault(key, row["at"])
        elif row["kind"] == "deliver":
            key = next(messages(row))
            times.append(row["at"])
            if key in rejected:
                del rejected[key]
            elif key in first and row["attempt"] == 1:
                result.duplicates += 1
            first.setdefault(key, row["at"])
        elif row["kind"] == "reject" and row["outcome"] == "ok":
            rejected[next(messages(row))] = None
    return made, first, times


def longest_stop(rows: Iterable[Row], begin: float, end: float) -> float:
    """Return the longest time between ``begin`` and ``end`` without a delivery, while something was to be delivered."""
    made, first, times = _deliveries(rows, Figures())
    return _stop(made, first, sorted(times), begin, end)


def _stop(
    made: dict[ReceiptPart, float],
    first: dict[ReceiptPart, float],
    times: list[float],
    begin: float,
    end: float,
) -> float:
    longest, since = 0.0, begin
    waiting = [(made[key], at) for key, at in first.items() if at >= begin and made[key] < end]
    for at in (*(time for time in times if begin <= time <= end), end):
        longest = max(longest, at - min((max(since, a) for a, b in waiting if a < at <= b), default=at))
        since = at
    return longest


def _measure_poison(
    run: Run, made: dict[ReceiptPart, float], first: dict[ReceiptPart, float], result: Figures
) -> None:
    """Measure the waits of messages behind a message that fails."""
    for key in run.books.failures:
        tried = [
            row["at"]
            for row in run.world.rows
            if row["kind"] in ("deliver", "dead_letter") and next(messages(row)) == key
        ]
        for other, at in made.items():
            if other[0] == key[0] and other != key and min(tried) <= at < max(tried) and other in first:
                result.behind += 1
                result.behind_poison += first[other] - at
