"""Rules of ACK and of the records that it leaves: an acked message stays acked."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from quorumq.core.cluster.rounds import Round
from quorumq.core.messages import MergeReply
from quorumq.core.messages.effects import Effect, Event, Gone, Persist, Send
from quorumq.core.messages.records import BallotAtStop
from quorumq.core.node.nodecore import NodeCore
from quorumq.core.partition import fate
from quorumq.core.partition.group import GroupView
from quorumq.core.partition.learning import Learning
from quorumq.core.partition.recall import Recall
from quorumq.core.partition.replica import Replica
from quorumq.core.partition.views import Views
from quorumq.core.requests.deliveries import Won
from quorumq.core.requests.fetch import FetchCoordinator
from quorumq.core.requests.settle import AckCoordinator, VoteCount
from quorumq.core.values import types
from quorumq.core.values.types import Kind, Now, Span
from sim.explorer.scenario import Budget, Scenario
from sim.rules.rule import Rule
from sim.rules.scripts import (
    DEAD_AT_ONE,
    DELIVERED_AND_EXPIRED,
    DELIVERED_LATE,
    RUN_OUT,
    A,
    B,
    C,
    D,
    E,
    F,
    acked_at,
    answered,
    ran_out,
    restarted,
    won,
)
from sim.rules.stand_ins import Before, after, around, no_hold_outlives, nothing


def deliver_what_was_won(self: FetchCoordinator, replica: Replica, won: Won, now: Now) -> list[Span]:
    return [] if now.mono >= won.expires else [won.span]


def acked_once(enough: Callable[[VoteCount, int], object]) -> Callable[..., str | None]:
    """Acknowledge as soon as enough replicas have answered, with any grant."""

    def outcome_of(
        self: AckCoordinator, votes: VoteCount, span: Span, yes: int, no: int, valid: int, *, last: bool
    ) -> str | None:
        if enough(votes, votes.answered & valid):
            return "acked"
        return self.unknown(votes) if last else None

    return outcome_of


def restore_the_min_ballot_alone(self: GroupView, min_ballot: int, kept: Iterable[BallotAtStop]) -> None:
    self.min_ballot = min_ballot


def redrive_dropped(self: Replica, sender: str, message: Any, now: Any) -> list[Any]:
    spans = tuple(span for span, _ in message.entries)
    return [Persist((), (Send(sender, MergeReply(message.round, spans, (), "", self.vector())),))]


def discard_absent(before: Before[list[Effect]], self: NodeCore, event: Event, now: Now) -> list[Effect]:
    effects = before(self, event, now)
    if isinstance(event, Gone):
        self.context.costly.drop(event.key)
    return effects


RULES: tuple[Rule, ...] = (
    Rule(
        "own-tombstone",
        "before it delivers, a coordinator looks at its own record and hold once more",
        ((FetchCoordinator, "still_ours", deliver_what_was_won),),
        scenario=Scenario(
            "late-ack",
            "an expired delivery is acked while the next is under way",
            budget=Budget(acks=1, ticks=2),
            coordinators=(A, C),
            via=(A,),
            script=DELIVERED_AND_EXPIRED,
        ),
    ),
    Rule(
        "tombstone-not-checked",
        "our own record is checked before delivering",
        ((FetchCoordinator, "is_deliverable", lambda self, record, asked: True),),
        survives="a FETCH that waits with what it has won, and a REJECT at one replica, spread and repeated meanwhile",
        test="test_records::test_a_fetch_that_waits_for_more_does_not_deliver_a_message_that_became_a_dead_letter",
    ),
    Rule(
        "superseded-do-not-count",
        "a reply of a superseded start does not count",
        ((Round, "is_superseded", lambda self, state, sender, incarnation: False),),
        scenario=Scenario(
            "wipe",
            "an ACK through a node without a replica, and a disk lost meanwhile",
            nodes=(A, B, C, D),
            budget=Budget(acks=1, wipes=1, ticks=2),
            coordinators=(C,),
            restart_nodes=(B,),
            via=(D,),
            give_up=False,
            script=(*ran_out(C), *acked_at(D, B), ("wipe", B)),
        ),
        hunted=True,
        survives="a reply that is late by a wipe and a resync, and decides a round",
    ),
    Rule(
        "superseded-of-five",
        "nor does it with five replicas, where an ACK counts three answers",
        ((Round, "is_superseded", lambda self, state, sender, incarnation: False),),
        scenario=Scenario(
            "wipe-of-five",
            "an ACK through a node without a replica, and one of five disks lost meanwhile",
            nodes=(A, B, C, D, E, F),
            rf=5,
            budget=Budget(acks=1, wipes=1, ticks=2),
            coordinators=(C,),
            restart_nodes=(D,),
            via=(B,),
            give_up=False,
            # d, which is wiped, has heard the others' holds since, so that the failure is near.
            script=(
                *ran_out(C),
                *acked_at(B, D),
                ("wipe", D),
                *answered("HoldsRequest", "HoldsReply", D, A, C, E, F),
            ),
        ),
    ),
    Rule(
        "nothing-overtakes-acked",
        "ACKED is above every other record, whatever its n",
        ((types, "record_rank", lambda record: (record.generation, record.n, int(record.kind))),),
        scenario=Scenario(
            "overtake",
            "a minority's DEAD is redriven after another delivery was acked",
            budget=Budget(attempts=3, rejects=1, redrives=1, acks=1, ticks=2),
            coordinators=(A, B),
            via=(B,),
            script=DEAD_AT_ONE,
        ),
        hunted=True,
    ),
    Rule(
        "ack-ends-own-hold",
        "an ACK ends only the hold of its own delivery",
        (no_hold_outlives(Kind.ACKED),),
        scenario=Scenario(
            "ack-rewind",
            "an expired delivery is acked beside a live one, and the group is rewound",
            budget=Budget(attempts=3, acks=1, rewinds=1, ticks=2),
            coordinators=(A,),
            via=(B,),
            rewind_via=(B,),
            give_up=False,
            script=DELIVERED_LATE,
        ),
        hunted=True,
        survives="a late ACK beside a live hold, and a rewind inside it",
    ),
    Rule(
        "acked-needs-exclusive",
        "`acked` is said only where a majority has granted no higher ballot",
        ((AckCoordinator, "outcome_of", acked_once(lambda votes, bits: votes.round.is_majority(bits))),),
        scenario=Scenario(
            "late-verdict",
            "an expired delivery is acked beside the next one, which may be extended",
            budget=Budget(acks=1, extends=1, ticks=2),
            coordinators=(A,),
            via=(B,),
            give_up=False,
            script=DELIVERED_AND_EXPIRED,
        ),
        hunted=True,
    ),
    Rule(
        "min-ballot-is-not-exclusive",
        "a replica that was started again is exclusive only for ballots above its minimum ballot",
        ((fate, "exclusive", lambda ballots, _, owner: (ballots.highest or owner.ballot) <= owner.ballot),),
        scenario=Scenario(
            "forgotten-verdict",
            "an expired delivery is acked, and a live one extended, after the live one's voter was started again",
            budget=Budget(acks=1, extends=1, restarts=1, ticks=2),
            coordinators=(A, C),
            restart_nodes=(B,),
            via=(A,),
            give_up=False,
            script=(*ran_out(A), *won(C, B), *restarted(B, A, C)),
        ),
    ),
    Rule(
        "clean-stop-keeps-ballots",
        "a clean stop hands over its minimum ballot only together with all ballots granted above it",
        ((GroupView, "restore_memory", restore_the_min_ballot_alone),),
        scenario=Scenario(
            "handed-over-verdict",
            "2 deliveries ran out, and are acked; a voter of the second stops cleanly",
            budget=Budget(acks=2, clean_stops=1, ticks=4),
            coordinators=(A, C),
            restart_nodes=(B,),
            via=(A,),
            give_up=False,
            script=(*ran_out(A), *won(C, B), *RUN_OUT),
        ),
    ),
    Rule(
        "returned-is-unproven",
        "when payload comes back after RECLAIM, the clock is its minimum ballot",
        ((Views, "raise_min_ballots", lambda self, spans: None),),
        survives="a late ACK, RECLAIM at two replicas, a new group, and payload from the third",
        test="test_reclaim::test_an_ack_is_not_proven_by_ballots_that_went_with_a_payload_that_came_back",
    ),
    Rule(
        "stop-forgets-ballots",
        "a clean stop keeps the ballots of its holds",
        (
            after(Recall, "holds_at_stop", lambda holds: [held._replace(ballot=(0, "")) for held in holds]),
            (GroupView, "memory_at_stop", lambda self: ()),
        ),
    ),
    Rule(
        "tombstone-majority-1",
        "ACKED is durable on a majority",
        ((AckCoordinator, "outcome_of", acked_once(lambda votes, bits: bits)),),
    ),
    Rule(
        "no-read-repair",
        "a TOMB is written here",
        ((Learning, "repair", lambda self, name, tombs, now: []),),
    ),
    Rule(
        "repair-not-journaled",
        "what is learned by read repair is in the journal",
        (after(Learning, "repair", nothing),),
    ),
    Rule(
        "redrive-forgotten",
        "REDRIVE is durable on a majority",
        ((Replica, "on_merge", redrive_dropped),),
    ),
    Rule(
        "forgets-who-left",
        "what has begun goes on to its end although its client is gone",
        (around(NodeCore, "_on_event", discard_absent),),
    ),
)
