"""Rules of dead letters: REJECT, REDRIVE, and who may read them."""

from __future__ import annotations

from typing import Any

from quorumq.core.messages import Reject
from quorumq.core.partition import group
from quorumq.core.partition.group import DeadView, GroupView
from quorumq.core.partition.replica import Replica
from quorumq.core.types import Kind, Record, Span, record_rank
from sim.explorer.scenario import Scenario
from sim.rules.rule import Rule
from sim.rules.scripts import DEAD_AT_ONE, DEAD_EVERYWHERE, DELIVERED_AND_EXPIRED, A, B, C
from sim.rules.stand_ins import drop_any_hold


def dead_without_hold(
    self: Replica, view: GroupView, span: Span, message: Reject
) -> tuple[list[Span], list[Span]]:
    if message.letter is not None:
        view.merge(span, Record(message.generation, message.n, Kind.DEAD, message.letter))
    return [span], []


def with_the_holds_of_the_source(self: DeadView, source: GroupView, *more: Any) -> None:
    _dead_view(self, source, *more)
    self.holds = source.holds


_dead_view = DeadView.__init__


def never_void(self: Replica, view: GroupView, generation: int, spans: Any, *, unseen: bool = False) -> bool:
    return view.is_stale(generation)


def merge_to_ours(ours: Record, theirs: Record) -> Record:
    return ours if record_rank(ours) >= record_rank(theirs) else theirs


RULES: tuple[Rule, ...] = (
    Rule(
        "dead-needs-the-hold",
        "DEAD is written only where exactly the owner of the receipt holds",
        ((Replica, "_already_rejected", dead_without_hold),),
        off="a REJECT is applied whoever holds",
        scenario=Scenario(
            "late-reject",
            "an expired delivery is dead-lettered while the next is under way",
            rejects=1,
            ticks=2,
            coordinators=(A,),
            via=(B,),
            script=DELIVERED_AND_EXPIRED,
        ),
    ),
    Rule(
        "learned-dead-drops-no-hold",
        "a DEAD that is learned from a peer ends no hold",
        ((GroupView, "on_learned_dead", drop_any_hold),),
        off="a learned DEAD ends the hold there",
        scenario=Scenario(
            "dead-spreads",
            "a minority's DEAD spreads beside a live delivery, and is redriven",
            attempts=3,
            rejects=1,
            redrives=1,
            offers=2,
            ticks=3,
            coordinators=(A, B),
            via=(B,),
            script=DEAD_AT_ONE,
        ),
        hunted=True,
        survives="a dead letter on a minority, a delivery, a redrive inside its hold: too rare a chain",
    ),
    Rule(
        "dead-granted-at-its-n",
        "a dead letter is granted to a reader only where the record is DEAD at exactly that n",
        ((DeadView, "on_asked", lambda self, span, asked: [(span, asked, False)]),),
        off="it is granted whatever the record says",
        scenario=Scenario(
            "dead-reads",
            "a dead letter is redriven beside its readers",
            attempts=1,
            rejects=1,
            redrives=1,
            dead_reads=2,
            coordinators=(A,),
            via=(B,),
            dead_via=(A, C),
            give_up=False,
            script=DEAD_EVERYWHERE,
        ),
        hunted=True,
        survives="a HOLD of a dead letter at a replica that has a newer record: one seed in a thousand",
    ),
    Rule(
        "letter-of-either",
        "of two equal dead letters the one with the lower ballot stays",
        ((group, "merge_records", merge_to_ours),),
        hunted=True,
    ),
    Rule(
        "dead-holds-shared",
        "dead letters have holds of their own",
        ((DeadView, "__init__", with_the_holds_of_the_source),),
        hunted=True,
        survives="nothing is missing: what is redriven only waits for a hold of its dead letter",
    ),
    Rule(
        "void-letters-stand",
        "a dead letter that a newer generation covers is not handed out",
        ((Replica, "is_stale", never_void),),
        hunted=True,
        survives="a dead letter of an older generation, looked for before a rewind is known there: too rare",
    ),
)
