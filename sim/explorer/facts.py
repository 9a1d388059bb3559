# sim/explorer/facts.py: what the outside world knows, and the promises held against it.
#
# Facts are what clients have asked and heard; nothing in here looks into a node. Every promise of docs/protocol.md,
# section 2, that a cluster of one message can break is checked where the fact arises that would break it.
"""The clients' side of a state, and the promises that are checked there."""

from __future__ import annotations

from typing import NamedTuple

from quorumq.core import limits
from quorumq.core.messages import ClientReply, Failed, Fetched, Left, Verdicts
from quorumq.core.types import NodeId, Receipt, Stamp
from sim.explorer.scenario import HOLD_S

WAITING, LIVE, OVER, NOTHING, ACKING, REJECTED, LEFT = (
    "waiting",
    "live",
    "over",
    "nothing",
    "acking",
    "rejected",
    "left",
)


class Attempt(NamedTuple):
    """One FETCH, and what became of it. A delivery is LIVE until ``until`` unless its client settles it before."""

    node: NodeId
    phase: str
    sent_at: float
    after_ack: bool  # it was started after an ACK had succeeded
    receipt: Receipt | None = None
    until: float = 0.0


class Asked(NamedTuple):
    """A client's request that is not answered yet."""

    key: int
    kind: str  # "ack" | "reject" | "dead" | "extend" | "leave" | "redrive"
    attempt: int  # index of the delivery; -1 for a redrive
    node: NodeId
    sent_at: float
    n: int


class Facts(NamedTuple):
    """What clients have asked and heard."""

    attempts: tuple[Attempt, ...] = ()
    asked: tuple[Asked, ...] = ()
    token: Stamp | None = None  # the highest fencing token delivered
    acked: int = -1  # the delivery whose ACK returned `acked`
    finished: bool = False  # some ACK succeeded
    dead: int = -1  # REJECT to the dead letters said OK at this n, and nothing was done about it since
    keys: int = 0


KEY_OF_SETTLING = 100
"""Keys of settling requests begin here; FETCHes have 1, 2, 3 …"""


def deadline(sent_at: float) -> float:
    """The client's deadline for a hold that was asked for at ``sent_at``."""
    return sent_at + limits.DEADLINE_SHARE * HOLD_S


def started(facts: Facts, node: NodeId, now: float) -> tuple[Facts, int]:
    """A FETCH goes out; its key."""
    attempt = Attempt(node, WAITING, now, facts.finished)
    return facts._replace(attempts=(*facts.attempts, attempt)), len(facts.attempts) + 1


def asked(facts: Facts, kind: str, index: int, node: NodeId, n: int, now: float) -> tuple[Facts, int]:
    """The client settles a delivery, or redrives; the request's key.

    From then on the client does no more work under that delivery, unless it extends it. A LEAVE says that it never
    did. What was a dead letter need not be one any longer once a redrive or an ACK is on its way.
    """
    key = KEY_OF_SETTLING + facts.keys
    facts = facts._replace(asked=(*facts.asked, Asked(key, kind, index, node, now, n)), keys=facts.keys + 1)
    phase = {"ack": ACKING, "reject": REJECTED, "dead": REJECTED, "leave": LEFT}.get(kind)
    if phase is not None:
        facts = with_attempt(facts, index, phase=phase, until=0.0)
    if kind in ("ack", "redrive"):
        facts = facts._replace(dead=-1)
    return facts, key


def with_attempt(facts: Facts, index: int, **changes: object) -> Facts:
    """``facts`` with one attempt changed."""
    attempts = list(facts.attempts)
    attempts[index] = attempts[index]._replace(**changes)  # type: ignore[arg-type]
    return facts._replace(attempts=tuple(attempts))


def ticked(facts: Facts, now: float) -> Facts:
    """Time has passed: deliveries whose deadline is over are over."""
    for index, attempt in enumerate(facts.attempts):
        if attempt.phase == LIVE and attempt.until <= now:
            facts = with_attempt(facts, index, phase=OVER, until=0.0)
    return facts


def lost(facts: Facts, node: NodeId) -> Facts:
    """A node crashed: its clients hear nothing any more of what they had asked."""
    for index, attempt in enumerate(facts.attempts):
        if attempt.phase == WAITING and attempt.node == node:
            facts = came_to_nothing(facts, index)
    return facts._replace(asked=tuple(item for item in facts.asked if item.node != node))


def came_to_nothing(facts: Facts, index: int) -> Facts:
    """A FETCH delivered nothing, and never will."""
    return with_attempt(facts, index, node="", phase=NOTHING, sent_at=0.0, after_ack=False)


def heard(facts: Facts, key: int, reply: ClientReply, now: float) -> tuple[Facts, str]:
    """A client hears an answer; the facts after it, and the promise that it breaks, or ""."""
    if isinstance(reply, Fetched):
        return _delivered(facts, key - 1, reply, now)
    if key < KEY_OF_SETTLING:
        return came_to_nothing(facts, key - 1), ""
    found = [item for item in facts.asked if item.key == key]
    assert len(found) == 1, f"request {key} was answered and is not open"
    this = found[0]
    facts = facts._replace(asked=tuple(item for item in facts.asked if item.key != key))
    if isinstance(reply, Verdicts):
        (verdict,) = reply.verdicts
        return _settled(facts, this, verdict.outcome, now)
    assert isinstance(reply, Failed | Left), reply
    return facts, ""


def _delivered(facts: Facts, index: int, reply: Fetched, now: float) -> tuple[Facts, str]:
    attempt = facts.attempts[index]
    if not reply.slices:
        return came_to_nothing(facts, index), ""
    (delivery,) = reply.slices[0].deliveries
    receipt = delivery.receipt
    until = deadline(attempt.sent_at)
    if until <= now:  # the client never hands it over
        return with_attempt(facts, index, phase=OVER, receipt=receipt, sent_at=0.0), ""
    ballot = receipt.owner.ballot
    problem = ""
    live = [k for k, other in enumerate(facts.attempts) if other.phase == LIVE]
    if live:
        problem = f"G2 exclusive: a{index} is delivered while a{live[0]} is inside its hold"
    elif facts.acked >= 0:
        problem = f"G3 final: a{index} is delivered after the ACK of a{facts.acked} returned `acked`"
    elif facts.finished and attempt.after_ack:
        problem = f"G3 final: a{index} was fetched after an ACK had succeeded, and is delivered"
    elif facts.dead >= receipt.n:
        problem = f"G7 dead letters: a{index} is delivered at n={receipt.n}, where it is a dead letter"
    elif facts.token is not None and ballot <= facts.token:
        problem = f"fencing: a{index} is delivered with a token that is not above that of an earlier delivery"
    facts = with_attempt(facts, index, phase=LIVE, receipt=receipt, until=until, sent_at=0.0)
    return facts._replace(token=max(ballot, facts.token or ballot)), problem


def _settled(facts: Facts, this: Asked, outcome: str, now: float) -> tuple[Facts, str]:
    if this.kind == "ack" and outcome in ("acked", "acked_after_expiry", "acked_unproven"):
        receipt = facts.attempts[this.attempt].receipt
        assert receipt is not None
        problem = ""
        if outcome == "acked":
            if facts.acked not in (-1, this.attempt):
                problem = f"one `acked`: a{this.attempt} hears it after a{facts.acked} did"
            elif facts.token is not None and facts.token > receipt.owner.ballot:
                problem = f"one `acked`: a{this.attempt} hears it although a later delivery was made"
            facts = facts._replace(acked=this.attempt)
        return facts._replace(finished=True), problem
    if this.kind == "dead" and outcome == "ok":
        return facts._replace(dead=max(facts.dead, this.n)), ""
    if this.kind == "extend" and outcome == "ok":
        return _extended(facts, this, now)
    return facts, ""


def _extended(facts: Facts, this: Asked, now: float) -> tuple[Facts, str]:
    attempt = facts.attempts[this.attempt]
    until = deadline(this.sent_at)
    if attempt.phase not in (LIVE, OVER) or until <= now:
        return facts, ""
    assert attempt.receipt is not None
    live = [k for k, other in enumerate(facts.attempts) if other.phase == LIVE and k != this.attempt]
    problem = ""
    if live:
        problem = f"G2 exclusive: a{this.attempt} is extended while a{live[0]} is inside its hold"
    elif facts.token is not None and attempt.receipt.owner.ballot < facts.token:
        problem = f"fencing: a{this.attempt} is live again after a delivery with a higher token"
    elif facts.acked >= 0:
        problem = f"G3 final: a{this.attempt} is live again after the ACK of a{facts.acked} returned `acked`"
    return with_attempt(facts, this.attempt, phase=LIVE, until=max(attempt.until, until)), problem
