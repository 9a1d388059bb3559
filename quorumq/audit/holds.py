"""Each hold of a message, from its delivery until it ends, and those that were alive at one moment: G2, G6, delays."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from quorumq.audit.findings import Checks, Judged, Proof, Where
from quorumq.audit.moment import Moment, maybe, maybe_by, seconds, sure
from quorumq.audit.solver import RATE_MAX
from quorumq.audit.story import Event, Story


class Until(NamedTuple):
    """End of a hold: in the order of its clock, and the least and the most that it may be."""

    t: float
    low: float
    high: float


class Hold(NamedTuple):
    """A hold of a message: from its delivery until its deadline, as EXTEND moved it, or until its client gave it up.

    If no client wrote of it, only its node's line says when it was won, and maybe its deadline.

    Attributes:
        times: number of times that it was handed over; 0 if no client wrote of it.
        by: the client that wrote of it; else "node".
        won: moment at which its node had won it; None if no node wrote of it.
        won_end: seconds at which it ends at the latest, by that clock; None if there is no ``won``.
        gave_up, acked: moment at which its own client asked for that; None if it did not.
        ended: moment and kind of the last answer to that; None if there is none.
        due_at: end of the delay with which it was given back before; None if there is none.
    """

    story: Story
    dead: bool
    owner: str
    times: int
    by: str
    begin: Moment
    low: float
    within: float
    generation: int
    n: int
    end: Until
    end_high: float
    won: Moment | None
    won_end: float | None
    gave_up: Moment | None
    acked: Moment | None
    ended: tuple[float, str] | None
    due_at: Moment | None

    @property
    def life(self) -> tuple[int, int]:
        """A newer one may be open at once when the older one is acked."""
        return self.generation, self.n if self.dead else 0

    @property
    def was_due(self) -> bool:
        return self.due_at is not None and not self.story.run.day_asked


class _Lines:
    """Lines about one hold."""

    def __init__(self) -> None:
        self.delivered: list[Event] = []
        self.won: list[Event] = []
        self.extended: list[Event] = []
        self.given_up: list[Moment] = []
        self.acked: list[Moment] = []
        self.ended: list[tuple[float, str]] = []
        self.due: list[Moment] = []
        self.rejected = False

    def add(self, event: Event) -> None:
        kind, outcome = event.kind, event.outcome
        if kind == "deliver":
            self.delivered.append(event)
        elif kind == "hold_won":
            self.won.append(event)
        elif kind in ("leave", "release"):
            self.given_up.append(event.at)
        elif kind == "extend":
            if outcome == "ok" and event.until is not None:
                self.extended.append(event)
        elif outcome == "invoke":
            if kind == "ack":
                self.acked.append(event.at)
            elif event.client:
                self.given_up.append(event.at)
            if kind == "reject" and event.due is not None:
                self.due.append(event.due)
        else:
            self.ended.append((event.at.t, f"{kind} {outcome}"))
            self.rejected |= kind == "reject" and outcome == "ok"


_KINDS: Final = frozenset(
    ("hold_won", "deliver", "ack", "reject", "dead_letter", "extend", "leave", "release")
)


def holds(story: Story) -> list[Hold]:
    """Return the holds of a message for a group."""
    lines: dict[tuple[bool, str], _Lines] = {}
    for event, _ in story.mine:
        if event.owner is not None and event.kind in _KINDS:
            lines.setdefault((event.dead, event.owner), _Lines()).add(event)
    result = []
    given: list[tuple[tuple[bool, int, int], Moment, Moment]] = []
    for (dead, owner), items in lines.items():
        if items.delivered or items.won:
            hold = _hold(story, dead, owner, items)
            result.append(hold)
            if items.rejected and items.due:
                given.append(((dead, hold.generation, hold.n), hold.begin, min(items.due)))
    if not given:
        return result
    return [it._replace(due_at=_due(it, given)) for it in result]


def _due(hold: Hold, given: Sequence[tuple[tuple[bool, int, int], Moment, Moment]]) -> Moment | None:
    mine = (hold.dead, hold.generation, hold.n)
    before = [
        due
        for life, begin, due in given
        if life == mine and (begin.low, begin.t) < (hold.begin.low, hold.begin.t)
    ]
    return max(before, default=None)


def _hold(story: Story, dead: bool, owner: str, items: _Lines) -> Hold:
    first = min(items.delivered, key=lambda it: it.at) if items.delivered else None
    node = min(items.won, key=lambda it: it.at) if items.won else None
    one = first or node
    assert one is not None
    begin, won = one.at, node.at if node is not None else None
    gave_up = min(items.given_up, default=None)
    until_won = min((it.until for it in items.won if it.until is not None), default=begin)
    deadlines = [until_won if first is None or first.until is None else first.until]
    deadlines += [
        it.until
        for it in items.extended
        if it.until is not None and (gave_up is None or maybe(it.at, gave_up))
    ]
    until = Until(*max((it.t, it.low, it.high) for it in deadlines))
    end = until if gave_up is None else Until(*map(min, until, (gave_up.t, gave_up.low, gave_up.high)))
    end_high, won_end = end.high, None
    if won is not None:
        if first is None:
            won_end = until.t
        elif first.asked is not None:
            # By its node alone: the FETCH was sent before it was won. The client's clock gives its length from there.
            lasts = (until.t - first.asked.t) * (1 + RATE_MAX)
            won_end, end_high = won.t + lasts, min(end_high, won.high + lasts)
    return Hold(
        story, dead, owner, len(items.delivered), "node" if first is None else first.who, begin,
        max(begin.low, won.low) if won else begin.low, one.within, one.generation, one.n, end, end_high, won, won_end,
        gave_up, min(items.acked, default=None), max(items.ended, default=None), None,
    )  # fmt: skip


# --------------------------------------------------------------------------- checks


CHECKS: Final = Checks[Hold]()


@CHECKS.of("G6", "handed over more than once in one delivery")
def handed_over_twice(it: Hold) -> Proof | None:
    return Proof(f"handed over {it.times} times in the delivery of {it.owner}") if it.times > 1 else None


@CHECKS.of("delays", "delivered before the delay was over with which it was given back")
def too_early(it: Hold) -> Proof | None:
    if it.due_at is None or not it.was_due or not sure(it.begin, it.due_at):
        return None
    text = f"delivered {seconds(it.due_at.t - it.begin.t)} before the delay was over with which it was given back"
    return Proof(text, not it.story.run.lossy)


INSIDE: Final = "delivered or won inside another hold"


def overlaps(result: Sequence[Hold]) -> Iterator[tuple[Hold, Hold, bool]]:
    """Find holds that began while another one was, or may have been, alive: each with the worst other, and if that is
    sure.

    Two are apart for certain by their clients' clocks, or by those of the nodes that won them. A hold whose own client
    has sent an ACK is not in the way of a newer generation, nor, of a dead letter, of a higher redrive number: a
    rewind, or a redrive, may open an acked message at once.
    """
    for dead in (False, True):
        items = sorted(
            (it for it in result if it.dead == dead), key=lambda it: (it.low, it.begin.t, it.owner)
        )
        alive: list[Hold] = []
        for current in items:
            alive = [it for it in alive if it.end_high > current.low]
            worst = max(
                (
                    (_certain(it, current), it.end.t, it.owner, it.begin.t, it)
                    for it in alive
                    if _together(it, current)
                ),
                key=lambda it: it[:4],
                default=None,
            )
            if worst is not None:
                yield current, worst[4], worst[0]
            alive.append(current)


def _same(a: Hold, b: Hold) -> bool:
    return a.begin.clock == b.begin.clock >= 0


def _together(a: Hold, b: Hold) -> bool:
    """Say if they may have been alive at one moment; ``a`` is the one that is first in order."""
    if _done(a, b) or _done(b, a):
        return False
    if _same(a, b):
        return _inside(a, b)
    by_node = False
    if a.won is not None and b.won is not None and a.won.clock == b.won.clock >= 0:
        by_node = _over(a.won_end, b.won.t) or _over(b.won_end, a.won.t)
    return not (by_node or b.end_high <= a.low)


def _over(end: float | None, at: float) -> bool:
    return end is not None and end <= at


def _inside(a: Hold, b: Hold) -> bool:
    within = max(a.within, b.within)
    if a.begin.t <= b.begin.t:
        return b.begin.t < a.end.t - within
    return a.begin.t < b.end.t - within


def _certain(a: Hold, b: Hold) -> bool:
    """Say if they were. The first may have been given back in a line that no file has, or through a node without a
    history if no client wrote of it.
    """
    earlier = a.begin.t <= b.begin.t if _same(a, b) else a.begin.high <= b.begin.high
    first, second = (a, b) if earlier else (b, a)
    if a.story.run.lossy and not first.times:
        return False
    if not a.story.message.has_all(second.begin, first.by):
        return False
    if _same(a, b):
        return _inside(a, b)
    return b.begin.high < a.end.low and a.begin.high < b.end.low


def _done(older: Hold, newer: Hold) -> bool:
    """Say if the older life was acked before the newer one was delivered, or no client wrote of it."""
    return newer.life > older.life and (not older.times or maybe_by(older.acked, newer.begin))


def _overlap(current: Hold, other: Hold, certain: bool) -> Proof:
    text = (
        f"{'delivered' if current.times else 'won'} as {current.owner} at {seconds(current.begin.t)} "
        f"while {other.owner}, "
        f"{'delivered' if other.times else 'won'} at {seconds(other.begin.t)}, was inside its hold until "
        f"{seconds(other.end.t)}"
    )
    return Proof(text, certain)


def check(story: Story, where: Where, out: Judged) -> list[Hold]:
    """Ask all of these of the holds of a message for a group, and count."""
    result = holds(story)
    run = story.run.run
    for it in result:
        mine = where._replace(group=f"{where.group}!dead") if it.dead else where
        out.ask(CHECKS, it, mine, it.begin.t, story.lines)
        out.count(run, "G2", True)
        out.count(run, "delays", it.was_due)
    if len(result) > 1:
        for current, other, certain in overlaps(result):
            mine = where._replace(group=f"{where.group}!dead") if current.dead else where
            out.report("G2", INSIDE, _overlap(current, other, certain), mine, current.begin.t, story.lines)
        _redeliveries(result, where, out)
    return result


def _redeliveries(result: Sequence[Hold], where: Where, out: Judged) -> None:
    """Count deliveries but the first by the end of the hold before: acked, given up, run out, or still alive."""
    for dead in (False, True):
        items = sorted(
            (it for it in result if it.times and it.dead == dead), key=lambda it: (it.begin.t, it.owner)
        )
        group = f"{where.group}!dead" if dead else where.group
        for before, it in itertools.pairwise(items):
            out.sums.counts[("after", where.run, where.topic, group, _after(before, it))] += 1


def _after(before: Hold, it: Hold) -> str:
    if (it.generation, it.n) > (before.generation, before.n):
        return "rewind or redrive"
    if before.ended is not None and before.ended[1].startswith("ack acked") and before.ended[0] < it.begin.t:
        return "ack"
    if it.begin.t < before.end.t:
        return "inside the hold"
    if before.gave_up is not None:
        return "reject"
    return "expiry" if before.acked is None else "expiry, an ACK unanswered"
