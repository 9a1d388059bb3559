"""Rules of dead letters: REJECT, REDRIVE, and their readers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from quorumq.core.messages.effects import Effect
from quorumq.core.partition import fate, replica
from quorumq.core.partition.fate import Fate, RejectAsk, RuleContext
from quorumq.core.partition.group import GroupView
from quorumq.core.partition.lease import Ballots, Lease, without_deferral
from quorumq.core.partition.replica import Replica
from quorumq.core.requests.context import Context
from quorumq.core.requests.settle import Ask, RedriveCoordinator
from quorumq.core.values.types import OPEN_ZERO, Kind, Now, Record, record_rank
from sim.explorer.scenario import Budget, Scenario
from sim.rules.rule import Rule
from sim.rules.scripts import ACKED_AND_SKIPPED, DEAD_AT_ONE, DEAD_EVERYWHERE, DELIVERED_AND_EXPIRED, A, B, C
from sim.rules.stand_ins import Before, around, no_hold_outlives


def dead_without_hold(
    before: Before[Fate], record: Record, lease: Lease, ballots: Ballots, context: RuleContext, ask: RejectAsk
) -> Fate:
    held = lease.held
    if held is not None and fate.is_owner(held, ask.owner):
        return before(record, lease, ballots, context, ask)
    if ask.record.death is not None:
        record, lease, ballots, _ = fate.on_merge(record, lease, ballots, context, ask.record)
    return record, without_deferral(lease), ballots, (True, None)


def with_the_holds_of_the_source(before: Before[None], self: GroupView, *args: Any) -> None:
    before(self, *args)
    self.leases, self.ballots = self.home.leases, self.home.ballots


def grant_as_asked(
    before: Before[tuple[Record, Record]], record: Record, context: RuleContext, asked: Record
) -> tuple[Record, Record]:
    return (record, asked) if context.dead else before(record, context, asked)


def in_the_generation_of_the_group(
    before: Before[list[Effect]], self: RedriveCoordinator, context: Context, ask: Ask, now: Now
) -> list[Effect]:
    register = context.catalogue.groups[(ask.partition.topic, ask.group)]
    return before(self, context, replace(ask, generation=register.generation), now)


def not_dead_in_any_generation(ours: Record | None, redriven: Record) -> bool:
    """Compare without the generation that the message died in."""
    is_dead = ours is not None and ours.kind in (Kind.DEAD, Kind.PURGED) and ours.n == redriven.n - 1
    return not is_dead and record_rank(ours or OPEN_ZERO) < record_rank(redriven)


def read_if_redriven_since(before: Before[bool], record: Record, context: RuleContext) -> bool:
    return before(record, context) and (context.covered or record.generation == context.generation)


def merge_to_ours(ours: Record, theirs: Record) -> Record:
    return ours if record_rank(ours) >= record_rank(theirs) else theirs


RULES: tuple[Rule, ...] = (
    Rule(
        "dead-needs-the-hold",
        "DEAD is written only where exactly the owner of the receipt holds",
        (around(fate, "on_reject", dead_without_hold),),
        scenario=Scenario(
            "late-reject",
            "an expired delivery is dead-lettered while the next is under way",
            budget=Budget(rejects=1, ticks=2),
            coordinators=(A,),
            via=(B,),
            script=DELIVERED_AND_EXPIRED,
        ),
    ),
    Rule(
        "learned-dead-drops-no-hold",
        "a DEAD learned from a peer ends no hold",
        (no_hold_outlives(Kind.DEAD),),
        scenario=Scenario(
            "dead-spreads",
            "a minority's DEAD spreads beside a live delivery, and is redriven",
            budget=Budget(attempts=3, rejects=1, redrives=1, comparisons=2, ticks=3),
            coordinators=(A, B),
            via=(B,),
            script=DEAD_AT_ONE,
        ),
        hunted=True,
        survives="a dead letter on a minority, a delivery, and a redrive inside its hold",
    ),
    Rule(
        "dead-granted-at-its-n",
        "a dead letter is granted only if the record is DEAD at that n",
        (around(fate, "merge_asked", grant_as_asked),),
        scenario=Scenario(
            "dead-reads",
            "a dead letter is redriven beside its readers",
            budget=Budget(attempts=1, rejects=1, redrives=1, dead_reads=2),
            coordinators=(A,),
            via=(B,),
            dead_via=(A, C),
            give_up=False,
            script=DEAD_EVERYWHERE,
        ),
        hunted=True,
        survives="a HOLD of a dead letter at a replica with a newer record: one seed in a thousand",
    ),
    Rule(
        "redrive-where-it-died",
        "a redrive opens the generation that the dead letter is of",
        (
            around(RedriveCoordinator, "put", in_the_generation_of_the_group),
            (replica, "is_not_dead", not_dead_in_any_generation),
        ),
        scenario=Scenario(
            "redrive-after-skip",
            "a minority's dead letter, acked by the others, is redriven after a rewind that leaves it out",
            budget=Budget(attempts=3, acks=1, rejects=1, redrives=1, rewinds=1, ticks=4),
            rewind_to=("skip",),
            rewind_via=(A,),
            coordinators=(A,),
            via=(B, C),
            give_up=False,
            script=ACKED_AND_SKIPPED,
        ),
    ),
    Rule(
        "redriven-stands",
        "what was redriven is open where a rewind leaves the message out",
        (around(fate, "is_readable", read_if_redriven_since),),
        scenario=Scenario(
            "skip-after-redrive",
            "a dead letter is redriven beside a rewind that leaves it out",
            budget=Budget(attempts=2, rejects=1, redrives=1, rewinds=1),
            rewind_to=("skip",),
            rewind_via=(A,),
            coordinators=(A,),
            via=(B,),
            give_up=False,
            script=DEAD_EVERYWHERE,
        ),
    ),
    Rule(
        "death-of-either",
        "of two equal dead letters the one with the lower ballot stays",
        ((fate, "merge_records", merge_to_ours),),
        survives="two nodes that dead-letter one message at once: none in 1,500 seeds",
        test="test_fate::test_the_death_of_the_lower_ballot_is_kept",
    ),
    Rule(
        "death-without-ballot",
        "a dead letter has the ballot of its hold",
        ((fate, "is_retry", lambda record, lease, context, ask: False),),
        survives="nothing that is promised: a repeated REJECT gets `hold-lost`",
        test="test_attempts::test_a_reject_to_the_dead_letters_may_be_repeated_through_any_node",
    ),
    Rule(
        "dead-holds-shared",
        "dead letters have holds of their own",
        (around(GroupView, "__init__", with_the_holds_of_the_source),),
    ),
    Rule(
        "void-letters-stand",
        "a dead letter that a newer generation covers is not delivered",
        ((Replica, "is_stale", lambda self, view, generation, *_, **__: view.is_stale(generation)),),
        survives="a dead letter of an older generation, fetched before its node learns of the rewind",
        test="test_groups::test_a_node_that_missed_a_rewind_delivers_no_dead_letter_that_it_opened_again",
    ),
)
