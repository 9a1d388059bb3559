"""Runs of ordinary steps that several scenarios begin with, and scenarios of operators alone."""

from __future__ import annotations

from typing import Any

from quorumq.core.values.types import NodeId
from sim.explorer.scenario import NO_FETCH, Scenario, Script

A, B, C, D, E, F = "abcdef"


def of_operators(name: str, about: str, *operators: tuple[str, NodeId], **bounds: Any) -> Scenario:
    """Return a scenario of these requests of operators, each once, and of no FETCH; no round gives up."""
    return Scenario(name, about, operators=operators, **{"budget": NO_FETCH, "give_up": False, **bounds})


def answered(ask: str, answer: str, caller: NodeId, *others: NodeId) -> Script:
    """Return steps that ask each of the others and bring its answer."""
    steps = [(("deliver", ask, caller, to), ("deliver", answer, to, caller)) for to in others]
    return tuple(step for pair in steps for step in pair)


def promised(caller: NodeId, *others: NodeId) -> Script:
    """Return steps in which these voters promise the stamp of a change of settings, and send their registers."""
    return answered("RegistersRequest", "RegistersReply", caller, *others)


def chosen(coordinator: NodeId, *voters: NodeId) -> Script:
    """Return steps in which a value is chosen by these other voters beside the coordinator."""
    asked = answered("Prepare", "ProposalReply", coordinator, *voters)
    return *asked, *answered("Accept", "ProposalReply", coordinator, *voters)


def registered(put: str, coordinator: NodeId, *voters: NodeId) -> Script:
    """Return steps in which these voters choose a value, and take its register in."""
    return *chosen(coordinator, *voters), *answered(put, "PutReply", coordinator, *voters)


def won(coordinator: NodeId, voter: NodeId) -> Script:
    """Return steps that deliver a FETCH through ``coordinator`` by the vote of one other replica."""
    return ("fetch", coordinator), *answered("Hold", "HoldReply", coordinator, voter)


def links(name: NodeId, *peers: NodeId) -> Script:
    """Return steps that link a node to these peers."""
    return tuple(("link", *sorted((name, peer))) for peer in peers)


def restarted(name: NodeId, *peers: NodeId) -> Script:
    """Return steps that crash a node, start it again, and link it to these peers."""
    return ("crash", name), *links(name, *peers)


RUN_OUT: Script = (("tick",), ("tick",))
"""Every hold there is runs out."""


def ran_out(coordinator: NodeId) -> Script:
    """Return steps that deliver a0 through ``coordinator``, granted by every replica, and end its hold."""
    return ("fetch", coordinator), ("settle",), *RUN_OUT


def acked_at(via: NodeId, voter: NodeId) -> Script:
    """Return steps that bring a0's ACK, through ``via``, to one replica, and its answer back."""
    return ("ask", via, "ack", 0), *answered("Ack", "AckReply", via, voter)


DELIVERED_AND_EXPIRED: Script = ran_out(A)

DELIVERED_LATE: Script = (*ran_out(A), *won(A, C))
"""a0 is delivered through a, and its hold runs out; a1 is delivered through a by the vote of c."""

DEAD_AT_ONE: Script = (("fetch", A), ("settle",), ("ask", B, "dead", 0), *RUN_OUT, *won(A, C))
"""a0 is delivered through a and dead-lettered at b only; its hold runs out; a1 is delivered through a and c."""

DEAD_EVERYWHERE: Script = (("fetch", A), ("settle",), ("ask", B, "dead", 0), ("settle",))
"""a0 is delivered through a and dead-lettered through b, at every replica."""

ACKED_AND_SKIPPED: Script = (
    *DELIVERED_AND_EXPIRED,
    ("fetch", A),
    ("settle",),
    ("ask", C, "dead", 1),
    *RUN_OUT,
    ("ask", B, "ack", 0),
    *answered("Ack", "AckReply", B, A),
    ("ask", A, "skip"),
    *registered("PutGroup", A, C),
)
"""a0 runs out, a1 is dead-lettered at c alone; then a and b have the ACK of a0, and a rewind leaves the message out."""
