"""Mutants that are single mistakes, such as tests of their package have let through.

sim/mutants.py has the rules of docs/protocol.md, section 4. Here is what a change may forget: a record, a wait for
the disk, a vote that is not one, a memory that ends too soon.
"""

from __future__ import annotations

from typing import Any

from quorumq.core import nodecore as nodecore_module
from quorumq.core.creation import vote
from quorumq.core.effects import Persist
from quorumq.core.messages import Accept
from quorumq.core.nodecore import NodeCore
from quorumq.core.partition.holds import Held, HoldTable
from quorumq.core.partition.replica import Replica
from quorumq.core.records import CreationPut, Reclaimed, TopicPut
from quorumq.core.types import Kind, Owner, Span
from sim.mutant import Mutant


def without(effects: list[Any], kind: type) -> list[Any]:
    """Records of that kind are not written."""
    return [
        effect._replace(records=tuple(record for record in effect.records if not isinstance(record, kind)))
        if isinstance(effect, Persist)
        else effect
        for effect in effects
    ]


def _stop_without_ballots(self: Replica, now: Any) -> list[Any]:
    return [held._replace(ballot=(0, "")) for held in _HOLDS_AT_STOP(self, now)]


_HOLDS_AT_STOP = Replica.holds_at_stop


def _repair_in_memory(self: Replica, name: str, resolved: Any, now: Any) -> list[Any]:
    _REPAIR(self, name, resolved, now)
    return []


_REPAIR = Replica.repair


def _snapshot_without_reclaimed(self: Replica, now: Any) -> list[Any]:
    return [record for record in _SNAPSHOT(self, now) if not isinstance(record, Reclaimed)]


_SNAPSHOT = Replica.snapshot


def _promise_in_memory(self: Replica, origins: Any) -> list[Any]:
    _PROMISE(self, origins)
    return []


_PROMISE = Replica.promise


def _extend_shortens(self: HoldTable, span: Span, owner: Owner, deadline: float) -> Any:
    granted, refused = _EXTEND(self, span, owner, deadline)
    for part in granted:
        for piece, held in self.holds.within(part):
            self.holds.set(piece, held._replace(deadline=deadline))
    return granted, refused


_EXTEND = HoldTable.extend


def _acked_hold_dropped(self: Replica, reported: list[Any], now: Any) -> None:
    kept = [
        item
        for item in reported
        if not any(
            record.kind == Kind.ACKED for _, record in self.group(item[0][0]).record_pieces(item[0][1])
        )
    ]
    _END_QUARANTINE(self, kept, now)


_END_QUARANTINE = Replica.end_quarantine


def _reported_hold_replaces(self: HoldTable, span: Span, held: Held) -> None:
    self.holds.set(span, held)


def _take_in_accepted(core: NodeCore, sender: str, message: Any) -> list[Any]:
    effects = vote(core, sender, message)
    if isinstance(message, Accept) and core._take_topic(message.topic) is not None:
        effects.append(Persist((TopicPut(message.topic),)))
    return effects


SLIPS: tuple[Mutant, ...] = (
    Mutant(
        "stop-forgets-ballots",
        "a clean stop keeps the ballots of its holds",
        (
            (Replica, "holds_at_stop", _stop_without_ballots),
            (HoldTable, "memory_at_stop", lambda self: ()),
        ),
    ),
    Mutant(
        "repair-not-journaled",
        "what is learned by read repair is in the journal",
        ((Replica, "repair", _repair_in_memory),),
    ),
    Mutant(
        "snapshot-without-reclaimed",
        "a snapshot has what was reclaimed",
        ((Replica, "snapshot", _snapshot_without_reclaimed),),
    ),
    Mutant(
        "promise-not-journaled",
        "a promise to close an origin is in the journal",
        ((Replica, "promise", _promise_in_memory),),
    ),
    Mutant(
        "vote-not-journaled",
        "what is promised and accepted of a creation is in the journal",
        ((nodecore_module, "vote", lambda *args: without(vote(*args), CreationPut)),),
    ),
    Mutant(
        "extend-shortens",
        "an EXTEND by less than is left shortens no hold",
        ((HoldTable, "extend", _extend_shortens),),
    ),
    Mutant(
        "acked-hold-dropped",
        "every hold that a peer reports is kept, whatever our record says",
        ((Replica, "end_quarantine", _acked_hold_dropped),),
    ),
    Mutant(
        "reported-hold-replaces",
        "recovery keeps the union",
        ((HoldTable, "learn", _reported_hold_replaces),),
    ),
    Mutant(
        "accepted-served",
        "only what is chosen is a topic",
        ((nodecore_module, "vote", _take_in_accepted),),
    ),
)
"""Every slip."""
