"""Rules of groups: generations, rewinds and purges."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from quorumq.core.cluster.catalogue import Catalogue
from quorumq.core.cluster.rounds import Round
from quorumq.core.messages.effects import Effect
from quorumq.core.partition import fate
from quorumq.core.partition.attempts import NO_ATTEMPTS, Attempts
from quorumq.core.partition.group import GroupView
from quorumq.core.partition.lease import Held, Lease
from quorumq.core.partition.replica import Replica
from quorumq.core.requests import proposing
from quorumq.core.requests.context import Context
from quorumq.core.requests.groups import GroupCoordinator
from quorumq.core.requests.proposing import PROPOSALS_MAX, Proposer
from quorumq.core.requests.purge import PurgeCoordinator
from quorumq.core.requests.registration import Registration
from quorumq.core.values import types
from quorumq.core.values.spans import SpanMap
from quorumq.core.values.types import Instance, Kind, Now, Record, Span
from sim.explorer.scenario import Budget, Scenario
from sim.rules.rule import Rule
from sim.rules.scripts import DEAD_EVERYWHERE, A, B, C, D, E, answered, chosen, ran_out, registered
from sim.rules.stand_ins import AT_A_MAJORITY_OF_NODES, Before, around


def stale_but_in_holds(
    before: Before[bool],
    self: Replica,
    view: GroupView,
    generation: int,
    spans: Sequence[Span],
    *,
    unseen: bool = False,
) -> bool:
    """Return True if the generation is stale, but never for a HOLD: it alone says how to take `unseen` messages."""
    return not unseen and before(self, view, generation, spans)


def count_across_generations(
    lease: Lease, held: Held, *, expired: bool = False, interrupted: bool = False
) -> Lease:
    ended = lease.attempts.ended + 1 if lease.attempts is not None else 1
    return lease._replace(attempts=Attempts(held.generation, held.n, ended, expired, ended))


def rank_purge_first(record: Record) -> tuple[int, bool, bool, int, int]:
    purged = record.kind in (Kind.SKIPPED, Kind.PURGED)
    return (record.generation, record.kind == Kind.ACKED, purged, record.n, int(record.kind))


def propose_anyway(self: Registration, context: Context, now: Now) -> list[Effect]:
    if self.proposer is None:
        instance = Instance(self.topic, self.name, 0)
        self.proposer = Proposer(instance, alike=not self.latest, implicit=True)
    if self.proposer.proposals >= PROPOSALS_MAX:
        return self._give_up(context, 0, now)
    return self.proposer.propose(self, context, now)


DELETED_AT_TWO = registered("PutGroup", B, C)


def drop_holds(before: Before[None], self: GroupView, min_ballot: int) -> None:
    before(self, min_ballot)
    self.leases = SpanMap()


PURGED = Scenario(
    "purge",
    "a purge beside 1 attempt",
    budget=Budget(attempts=1, backlog_purges=1),
    coordinators=(A,),
    purge_via=(B,),
    give_up=False,
)

RULES: tuple[Rule, ...] = (
    Rule(
        "deleted-is-not-read",
        "nobody reads a group that was deleted until it is created again: no FETCH makes it again",
        ((types.Group, "deleted", False),),
        scenario=Scenario(
            "group-deleted",
            "1 attempt runs out, the group is deleted at two of three nodes; a late ACK, and 1 attempt",
            budget=Budget(acks=1, rewinds=1, ticks=2),
            rewind_to=("unmake",),
            coordinators=(A,),
            via=(A,),
            give_up=False,
            rewind_via=(B,),
            script=(*ran_out(A), ("ask", B, "unmake"), *DELETED_AT_TWO),
        ),
        hunted=True,
    ),
    Rule(
        "groups-are-asked-for",
        "where a topic makes no groups, a FETCH makes none",
        (
            (Catalogue, "makes_group", lambda self, topic, group: not self.is_group_deleted(topic.id, group)),
            (Registration, "_propose", propose_anyway),
            (proposing, "is_refused", lambda message, topic: False),
        ),
    ),
    Rule(
        "groups-as-seen",
        "a creation makes no group after a deletion that its client did not know of",
        ((GroupCoordinator, "is_late", lambda self, known: False),),
        scenario=Scenario(
            "group-late",
            "the group is deleted; a creation that was made before and comes through another node, and 1 attempt",
            budget=Budget(attempts=1, rewinds=2),
            rewind_to=("unmake", "late make"),
            coordinators=(A,),
            give_up=False,
            rewind_via=(B, A),
            script=(("ask", B, "unmake"), *DELETED_AT_TWO, ("ask", A, "late make")),
        ),
    ),
    Rule(
        "deletion-keeps-holds",
        "what is held when a group is deleted stays held until that hold runs out",
        (around(GroupView, "end", drop_holds),),
        scenario=Scenario(
            "group-made-again",
            "1 attempt, the group is deleted and made again, 1 attempt",
            budget=Budget(rewinds=2),
            rewind_to=("unmake", "make"),
            coordinators=(A, C),
            give_up=False,
            rewind_via=(B,),
            script=(("fetch", A), ("settle",), ("ask", B, "unmake"), ("settle",)),
        ),
        hunted=True,
    ),
    Rule(
        "stale-generation-refused",
        "a HOLD of a generation that was rewound is refused",
        (around(Replica, "is_stale", stale_but_in_holds),),
        scenario=Scenario(
            "rewind",
            "2 attempts and a rewind",
            budget=Budget(rewinds=1),
            coordinators=(A, C),
            give_up=False,
            rewind_via=(B,),
        ),
    ),
    Rule(
        "stale-voted-for",
        "a request of an older generation is refused",
        ((GroupView, "is_stale", lambda self, generation: False),),
        survives="an ACK or HOLD of an older generation that decides before its node learns: none in 600",
        test="test_groups::test_a_rewind_to_earliest_delivers_everything_again_and_old_receipts_are_stale",
    ),
    Rule(
        "void-stands",
        "an older record is void where the new generation covers the message",
        ((fate, "as_read", lambda record, context, generation: record),),
    ),
    Rule(
        "predicate-ignored",
        "every replica applies the start predicate",
        ((GroupView, "covers", lambda self, producer_id, published_ms: True),),
    ),
    Rule(
        "group-of-each-set",
        "a rewind is OK when a majority of each partition's replica set has it, too",
        (AT_A_MAJORITY_OF_NODES,),
        scenario=Scenario(
            "rewind-of-five",
            "five nodes, three replicas: a rewind through one of the others, 1 attempt",
            nodes=(A, B, C, D, E),
            budget=Budget(attempts=1, rewinds=1),
            coordinators=(A,),
            give_up=False,
            rewind_via=(C,),
            script=(("ask", C, "rewind"), *chosen(C, D, E), *answered("PutGroup", "PutReply", C, D)),
        ),
    ),
    Rule(
        "attempts-go-on",
        "attempts begin anew in a new generation",
        (
            (fate, "count_attempt", count_across_generations),
            (fate, "attempts_at", lambda lease, asked: lease.attempts or NO_ATTEMPTS),
        ),
    ),
    Rule(
        "purge-asks-enough",
        "a purge settles what RF - majority + 1 replicas know, one of which has whatever was confirmed",
        ((PurgeCoordinator, "enough", lambda self, members: 1),),
        scenario=replace(
            PURGED,
            name="purge-missing",
            about="a purge through a replica that has not got the message, 1 attempt",
            stored_on=(A, B),
            purge_via=(C,),
        ),
    ),
    Rule(
        "one-answer-counts-once",
        "a replica's answer to a round counts once, however often it arrives",
        ((Round, "awaits", lambda self, sender: sender in self.members),),
        scenario=replace(
            PURGED,
            name="purge-elsewhere",
            about="1 attempt, one replica has no copy of the message; a purge through a node without a replica",
            nodes=(A, B, C, D),
            stored_on=(A, B),
            purge_via=(D,),
        ),
    ),
    Rule(
        "purge-at-a-majority",
        "a purge says OK once a majority has each record, or one above it",
        ((PurgeCoordinator, "is_settled", lambda self, round_, bits: bool(bits)),),
        scenario=PURGED,
    ),
    Rule(
        "purge-what-is-named",
        "a purge that names messages settles these and no others",
        ((PurgeCoordinator, "chosen", lambda self, span: (span,)),),
        scenario=replace(
            PURGED, name="purge-beside", about="1 attempt beside a purge of another message", beside=True
        ),
        hunted=True,
    ),
    Rule(
        "purge-overtakes-redrive",
        "a redrive is above a purge of what it redrove",
        ((types, "record_rank", rank_purge_first),),
        scenario=Scenario(
            "redrive-purge",
            "a dead letter is redriven and purged, each once",
            budget=Budget(attempts=1, rejects=1, redrives=1, purges=1),
            coordinators=(A,),
            via=(A, B),
            give_up=False,
            script=DEAD_EVERYWHERE,
        ),
        hunted=True,
        survives="none in 800 seeds; why is not known",
    ),
)
