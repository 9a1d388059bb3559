"""Each delivery of a message, with the fate of the message before it: G3 to G7, groups and delays as asked.

A delivery is taken as late, and all else as early, as the clocks allow: all that may have been before it is seen.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Final, NamedTuple

from quorumq.audit.findings import Checks, Judged, Proof, Where
from quorumq.audit.moment import FAR_S, Moment, apart, maybe, maybe_by, seconds, sure, sure_by
from quorumq.audit.replicas import most_replicas
from quorumq.audit.story import Event, Said, Story, crc_text
from quorumq.core.values.limits import INTERRUPTIONS_MAX

SLACK_S: Final = 1.0
"""Seconds that a redelivery may take beyond a hold before it is remarked on."""


class Settled(NamedTuple):
    """An ACK that succeeded: the first is the least."""

    at: Moment
    owner: str
    outcome: str


class Died(NamedTuple):
    """A dead letter that was confirmed."""

    n: int
    at: Moment


class Delivery:
    """A delivery of a message, or an ACK of it that heard `acked`, with the events before it.

    Attributes:
        acked, settled: the first ACK of its life that heard `acked`, or any success; None if there is none.
        died: its death, of the highest redrive number the first, if a client learned of one.
        redrives: the highest number of a redrive that was asked for; None if there is none.
        rejects, interruptions: number of times that it had been given back, and given back as interrupted.
        published: moment of its first publish; None if none may be before it.
        free, free_high: seconds of the run at which the holds before it were over; None if there is none.
        last: the delivery before it; None if it is the first.
        last_token, lower: the one with the token before its own, and the latest with a lower one; None if none is.
    """

    def __init__(self, story: Story, said: Said) -> None:
        self.story, self.event, self.crc = story, said.event, said.crc
        self.here, self.sent = said.event.at, said.event.asked
        self.is_delivery = said.event.kind == "deliver"
        self.is_open = self.is_delivery and not said.event.dead
        self.acked: Settled | None = None
        self.settled: Settled | None = None
        self.died: Died | None = None
        self.redrives: int | None = None
        self.rejects = self.interruptions = 0
        self.published: Moment | None = None
        self.free: float | None = None
        self.free_high: float | None = None
        self.last: Event | None = None
        self.last_token: str | None = None
        self.lower: Event | None = None

    @cached_property
    def was_due(self) -> bool:
        """Say if a delay of its publish is asked about."""
        return (
            self.is_open
            and self.event.n == 0
            and self.story.message.due_at is not None
            and not self.story.run.day_asked
        )

    @property
    def crc_known(self) -> bool:
        """Say if the checksums of both sides are known."""
        return self.is_delivery and self.crc >= 0 and self.story.message.first_crc >= 0

    @cached_property
    def after_ack(self) -> bool:
        """Say if it may have been delivered when an ACK of it was confirmed already."""
        return self.is_delivery and self.acked is not None and maybe(self.acked.at, self.here)

    def _rewound(self, is_before: Callable[[Moment | None, Moment | None], bool]) -> int:
        confirmed = self.story.group.confirmed
        return max(
            (it.generation for it in confirmed if it.rewind and is_before(it.at, self.sent)), default=0
        )

    @cached_property
    def newest(self) -> int:
        """The generation to which the group may have been rewound before the FETCH was sent."""
        return self._rewound(maybe_by)

    @cached_property
    def newest_sure(self) -> int:
        """Generation to which it was rewound before that beyond doubt."""
        return self._rewound(sure_by)

    @property
    def if_covered(self) -> bool:
        """Say if the message is in the newest generation that a node may have had."""
        begins = [
            it.from_ms for it in self.story.group.known
            if it.at.low <= self.here.high and it.generation >= self.newest_sure
        ]  # fmt: skip
        return bool(begins) and (self.story.message.made_ms or 0) >= max(begins)

    @property
    def waited(self) -> float | None:
        """Seconds since the hold before it was over."""
        return apart(self.last.until, self.here) if self.is_delivery and self.last is not None else None

    @property
    def overdue(self) -> bool:
        """Say if the wait since the end of that hold was longer than the hold, by more than `SLACK_S`."""
        waited, last = self.waited, self.last
        if waited is None or last is None or last.until is None:
            return False
        return waited > last.until.t - last.at.t + SLACK_S


def deliveries(story: Story) -> list[Delivery]:
    """Return the deliveries of a message to a group, and the ACKs of it that heard `acked`."""
    rows = _in_order(story)
    result: list[Delivery] = []
    rejects: Counter[tuple[bool, int, int]] = Counter()
    interruptions: Counter[tuple[bool, int, int]] = Counter()
    settled: dict[tuple[bool, int, int], Settled] = {}
    acks: dict[tuple[bool, int, int], Settled] = {}
    deaths: dict[tuple[bool, int, int], Died] = {}
    redrives: int | None = None
    published: Moment | None = None
    for said in rows:
        event = said.event
        life = (event.dead, event.generation, event.n if event.dead else 0)
        kind, outcome = event.kind, event.outcome
        if kind == "publish":
            published = event.at if published is None else min(published, event.at)
        elif kind == "redrive":
            redrives = event.n if redrives is None else max(redrives, event.n)
        elif kind == "reject":
            (interruptions if event.interrupted else rejects)[life] += 1
        elif kind == "dead_letter":
            known = deaths.get(life)
            if known is None or (event.n, -event.at.high) > (known.n, -known.at.high):
                deaths[life] = Died(event.n, event.at)
        else:
            if kind == "ack":
                one = Settled(event.at, event.owner or "", outcome or "")
                settled[life] = min(one, settled.get(life, one))
                if outcome != "acked":
                    continue
                acks[life] = min(one, acks.get(life, one))
            made = Delivery(story, said)
            made.acked, made.settled = acks.get(life), settled.get(life)
            made.died, made.redrives, made.published = deaths.get(life), redrives, published
            made.rejects, made.interruptions = rejects[life], interruptions[life]
            result.append(made)
    _beside(result)
    return result


def _in_order(story: Story) -> list[Said]:
    items = []
    for it in (*story.message.shared, *story.mine):
        event = it.event
        kind, outcome = event.kind, event.outcome
        if kind == "deliver":
            items.append(((event.at.high, 1), it))
        elif kind in ("publish", "redrive"):
            if kind == "publish" or outcome == "invoke":
                items.append(((event.at.low, 0), it))
        elif (
            (kind == "ack" and outcome is not None and outcome.startswith("acked"))
            or (kind == "reject" and outcome == "invoke")
            or (kind == "dead_letter" and any(event is death for death in story.deaths))
        ):
            items.append(((event.at.low, 2), it))
    items.sort(key=lambda it: it[0])
    return [it for _, it in items]


def _beside(result: Sequence[Delivery]) -> None:
    """Give each delivery the one before it, in the order of times and in that of tokens."""
    for dead in (False, True):
        items = [it for it in result if it.is_delivery and it.event.dead == dead]
        if len(items) < 2:
            continue
        items.sort(key=lambda it: (it.here.t, it.event.token or ""))
        free = free_high = -math.inf
        for before, it in itertools.pairwise(items):
            it.last = before.event
            if before.event.until is not None:
                free, free_high = max(free, before.event.until.t), max(free_high, before.event.until.high)
                it.free, it.free_high = free, free_high
        items.sort(key=lambda it: (it.event.token or "", it.here.t))
        latest: Event | None = None
        for before, it in itertools.pairwise(items):
            it.last_token = before.event.token
            if latest is None or _by_low(before.event) > _by_low(latest):
                latest = before.event
            it.lower = latest


def _by_low(event: Event) -> tuple[float, float, float]:
    return event.at.low, event.at.high, event.at.t


# --------------------------------------------------------------------------- checks


CHECKS: Final = Checks[Delivery]()


@CHECKS.of("G3", "delivered after its ACK was confirmed")
def after_ack(it: Delivery) -> Proof | None:
    if it.acked is None or not it.after_ack:
        return None
    acked = f"{it.acked.owner} heard acked at {seconds(it.acked.at.t)}"
    text = f"delivered as {it.event.owner} at {seconds(it.here.t)}, after {acked}"
    return Proof(text, sure(it.acked.at, it.here))


@CHECKS.of("G3", "fetched after an ACK had succeeded")
def after_success(it: Delivery) -> Proof | None:
    if it.settled is None or not it.is_delivery or it.after_ack or not maybe(it.settled.at, it.sent):
        return None
    text = (
        f"delivered to a FETCH sent at {_sent(it)}, after an ACK had heard {it.settled.outcome} at "
        f"{seconds(it.settled.at.t)}"
    )
    return Proof(text, sure(it.settled.at, it.sent))


@CHECKS.of("G3", "acked by two owners")
def acked_twice(it: Delivery) -> Proof | None:
    if it.is_delivery or it.acked is None or it.acked.owner == it.event.owner:
        return None
    return Proof(f"{it.event.owner} heard acked at {seconds(it.here.t)}, and so did {it.acked.owner}")


@CHECKS.of("G6", "delivered again after its ACK, for a retry of its publish")
def after_retry(it: Delivery) -> Proof | None:
    settled, last_try = it.settled, it.story.message.last_try
    if settled is None or not it.is_delivery:
        return None
    if not ((it.acked is not None and sure(it.acked.at, it.here)) or sure(settled.at, it.sent)):
        return None
    if not sure(settled.at, last_try) or not sure(last_try, it.here):
        return None
    times = [seconds(None if at is None else at.t) for at in (it.here, settled.at, last_try)]
    return Proof(
        f"delivered at {times[0]} after an ACK at {times[1]} and a retry of its publish at {times[2]}"
    )


@CHECKS.of("G2", "won by a node that is no longer in the replica set")
def without_slot(it: Delivery) -> Proof | None:
    """Ask if the node that won it had a slot of its partition when the FETCH was sent.

    Only a replica wins a hold. One that has adopted a layout without it, before a FETCH was sent, grants none for it.
    """
    if not it.is_delivery or not it.story.message.moved:
        return None
    node = (it.event.owner or "").partition("#")[0].rsplit(".", 2)[0]
    mine = [one for one in it.story.message.moved if one.who == f"node:{node}"]
    layout = max((one for one in mine if sure(one.at, it.sent)), default=None)
    if layout is None or any(node in one.nodes for one in mine if one.layout >= layout.layout):
        return None
    nodes = ", ".join(layout.nodes)
    text = (
        f"delivered as {it.event.owner} to a FETCH sent at {_sent(it)}, and {node} has no slot of partition "
        f"{it.story.message.partition} since {seconds(layout.at.t)}: it is on {nodes} by layout {layout.layout}"
    )
    return Proof(text)


@CHECKS.of("G3", "delivered twice with one token")
def same_token(it: Delivery) -> Proof | None:
    if it.last_token is None or it.event.token != it.last_token:
        return None
    return Proof(f"delivered with token {it.event.token}, as another delivery was")


@CHECKS.of("G3", "delivered with a token lower than one before")
def lower_token(it: Delivery) -> Proof | None:
    if it.lower is None or it.event.token == it.last_token or not maybe(it.here, it.lower.at):
        return None
    text = f"delivered with token {it.event.token}, and then with the lower {it.lower.token}"
    return Proof(text, sure(it.here, it.lower.at))


def _has_publishes(it: Delivery) -> bool:
    """Return True if the files have all lines of its publishers until then: any client may publish under a name."""
    message = it.story.message
    who = ("client",) if message.producer_id.startswith("~") else message.producers
    return message.has_all(it.here, *who)


@CHECKS.of("G5", "delivered and never published")
def from_nowhere(it: Delivery) -> Proof | None:
    if not it.is_delivery or it.story.message.published:
        return None
    sure_ = not it.story.run.lossy and bool(it.story.message.producers) and _has_publishes(it)
    return Proof(f"delivered at {seconds(it.here.t)} and never published", sure_)


@CHECKS.of("G5", "delivered before it was published")
def before_publish(it: Delivery) -> Proof | None:
    if not it.is_delivery or it.published is not None or not it.story.message.tries:
        return None
    return Proof(f"delivered at {seconds(it.here.t)}, before it was published", _has_publishes(it))


@CHECKS.of("G5", "delivered with other bytes than published")
def altered(it: Delivery) -> Proof | None:
    message = it.story.message
    if not it.crc_known or it.crc in (message.first_crc, message.last_crc):
        return None
    return Proof(f"published as {crc_text(message.first_crc)} and delivered as {crc_text(it.crc)}")


@CHECKS.of("G7", "delivered while it was a dead letter")
def though_dead(it: Delivery) -> Proof | None:
    if not it.is_open or it.died is None or it.event.n > it.died.n or not maybe(it.died.at, it.here):
        return None
    text = f"delivered at n = {it.event.n}, dead at n = {it.died.n} since {seconds(it.died.at.t)}"
    return Proof(text, sure(it.died.at, it.here))


@CHECKS.of("G7", "delivered at a redrive number that nobody asked for")
def unreachable(it: Delivery) -> Proof | None:
    if not it.is_open or it.event.n <= (-1 if it.redrives is None else it.redrives) + 1:
        return None
    text = f"delivered at n = {it.event.n}, and nobody redrove it so often"
    return Proof(text, not it.story.run.lossy and it.story.message.has_all(it.here, "client"))


@CHECKS.of("groups", "delivered in a generation from before a rewind")
def old_generation(it: Delivery) -> Proof | None:
    event = it.event
    if not it.story.group.confirmed or not it.is_delivery or event.generation >= it.newest:
        return None
    if event.dead and not it.if_covered:
        return None
    text = f"delivered in generation {event.generation} to a FETCH sent after the rewind to {it.newest} was confirmed"
    return Proof(text, event.generation < it.newest_sure)


@CHECKS.of("groups", "delivered in a deletion of its group")
def in_a_deletion(it: Delivery) -> Proof | None:
    if not it.is_delivery or it.event.generation not in it.story.group.deletions:
        return None
    return Proof(f"delivered in generation {it.event.generation}, a deletion of the group")


@CHECKS.of("groups", "delivered in a generation that begins after it")
def before_start(it: Delivery) -> Proof | None:
    made, generation = it.story.message.made_ms, it.event.generation
    if not it.is_open or it.event.n != 0 or made is None:
        return None
    begins = max((ms for of, ms in it.story.group.registers if of == generation), default=None)
    if begins is None or made >= begins:
        return None
    return Proof(f"lies before the start of generation {generation}")


@CHECKS.of("groups", "delivered after it was purged")
def though_purged(it: Delivery) -> Proof | None:
    if not it.is_open or it.event.n != 0 or not it.story.location.purges:
        return None
    items = [
        purge for purge in it.story.purged(dead=False)
        if purge.done is not None and purge.generation == it.event.generation
        and sure(it.story.message.stored, purge.sent) and maybe(purge.done, it.sent)
    ]  # fmt: skip
    if not items:
        return None
    text = f"was purged, and is delivered to a FETCH sent at {_sent(it)}"
    return Proof(text, any(sure(purge.done, it.sent) for purge in items))


@CHECKS.of("groups", "attempts counted on from another generation")
def too_many_attempts(it: Delivery) -> Proof | None:
    event, run = it.event, it.story.run
    message = it.story.message
    if not it.is_open or not event.generation or run.hold_min is None or message.rf is None:
        return None
    replicas = most_replicas(message.moved, message.rf)
    known = [one.at for one in it.story.group.known if one.generation == event.generation]
    if not known:
        return None
    ended = it.rejects + math.floor((it.here.high - min(at.low for at in known)) * 1.02 / run.hold_min)
    ended += it.interruptions if replicas * it.interruptions > INTERRUPTIONS_MAX else 0
    if event.attempt <= 1 + replicas * ended:
        return None
    age = seconds(it.here.t - min(at.t for at in known))
    return Proof(
        f"is said to be at attempt {event.attempt} of generation {event.generation}, which is {age} old"
    )


@CHECKS.of("delays", "delivered before its delay was over")
def too_early(it: Delivery) -> Proof | None:
    due = it.story.message.due_at
    if due is None or not it.was_due or not sure(it.here, due):
        return None
    return Proof(f"delivered {seconds(due.t - it.here.t)} before its delay was over", not it.story.run.lossy)


@CHECKS.of("G4", "waited too long for its next delivery")
def too_late(it: Delivery) -> Proof | None:
    run, due = it.story.run, it.story.message.due_at
    if run.healed_at is None or run.healed_high is None or run.bound is None:
        return None
    if not it.is_delivery or run.healed_high >= FAR_S:
        return None
    free = max(it for it in (run.healed_at, it.free, due and due.t) if it is not None)
    if it.here.t <= free + run.bound:
        return None
    high = max(it for it in (run.healed_high, it.free_high, due and due.high) if it is not None)
    return Proof(f"waited {seconds(it.here.t - free)} for its next delivery", it.here.low > high + run.bound)


def _sent(it: Delivery) -> str:
    return seconds(None if it.sent is None else it.sent.t)


def check(story: Story, where: Where, out: Judged) -> list[Delivery]:
    """Ask all of these of each delivery of a message to a group, and count."""
    result = deliveries(story)
    run = story.run
    for it in result:
        out.ask(CHECKS, it, _of(where, it.event), it.here.t, story.lines)
        out.count(run.run, "G3", True)
        if not it.is_delivery:
            continue
        if run.healed_at is None:
            out.count(run.run, "G4", it.waited is not None, it.overdue)
        elif run.healed_high is not None and run.healed_high < FAR_S:
            out.count(run.run, "G4", it.here.t > run.healed_at)
        out.count(run.run, "G5", it.crc_known)
        out.count(run.run, "groups", bool(story.group.registers))
        out.count(run.run, "delays", it.was_due)
    _latency(story, result, out)
    return result


def _of(where: Where, event: Event) -> Where:
    return where._replace(group=f"{where.group}!dead") if event.dead else where


def _latency(story: Story, result: Sequence[Delivery], out: Judged) -> None:
    """Count its wait for its first delivery, in seconds, and its number of deliveries."""
    live = [it for it in result if it.is_open]
    if not live:
        return
    key = (story.message.run, story.message.topic, story.grp)
    out.sums.counts[("deliveries", *key)] += len(live)
    out.sums.counts[("messages", *key)] += 1
    if len(live) > 1:
        out.sums.counts[("redelivered", *key)] += 1
    published = min((it.published for it in live if it.published is not None), default=None)
    waited = apart(published, min(it.here for it in live))
    if waited is None:
        out.sums.counts[("untimed", *key)] += 1
    else:
        out.sums.waited(key, waited)
    out.sums.attempts.setdefault(key, Counter())[max(it.event.attempt for it in live)] += 1
