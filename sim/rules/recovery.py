"""Rules of starts: the votes and records of a node that was down, stopped, wiped, moved or damaged."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator

from quorumq.core.cluster.peers import Peers
from quorumq.core.cluster.state import GrantTimer, NodeConfig
from quorumq.core.messages import SyncTopics
from quorumq.core.messages.effects import Done, Effect, Persist
from quorumq.core.messages.records import Reclaimed, TopicPut, TrustLost
from quorumq.core.partition import fate
from quorumq.core.partition.closing import Closing
from quorumq.core.partition.fate import Fate, RuleContext
from quorumq.core.partition.group import GroupView
from quorumq.core.partition.hold_recovery import HoldRecovery
from quorumq.core.partition.lease import Ballots, Held, Lease
from quorumq.core.partition.recall import Recall, Reported
from quorumq.core.partition.replica import Replica
from quorumq.core.partition.storing import Storing
from quorumq.core.recovery import trust
from quorumq.core.recovery.resync import Resync
from quorumq.core.recovery.trust import Trust
from quorumq.core.requests.context import Context
from quorumq.core.values.types import Kind, Now, Record, Span, Stamp
from quorumq.driver import Driver
from sim.disks import MemoryJournal
from sim.explorer import world
from sim.explorer.nodes import Nodes
from sim.explorer.scenario import Budget, Scenario
from sim.rules.rule import Rule
from sim.rules.scripts import A, B, C, D, E, acked_at, answered, chosen, links, ran_out, restarted, won
from sim.rules.stand_ins import Before, after, around, but, nothing, resync_without

# -------------------------------------------------------------------------- quarantine


def vote_for_itself_in_quarantine(self: Replica, ballot: Stamp, now: Now) -> bool:
    """Return True if the replica has no vote: in quarantine it votes for its own node, but for no other."""
    quarantined = self.in_quarantine(now) and ballot.node != self.node.me
    return not self.node.trusted or quarantined or not self.node.clock.merge(ballot.time)


def in_quarantine_at_even_starts(self: Replica, now: Now) -> bool:
    return now.mono < self.quarantine_until and self.node.incarnation.n % 2 == 0


def learn_the_first(
    before: Before[Fate], record: Record, lease: Lease, ballots: Ballots, context: RuleContext, ask: Held
) -> Fate:
    if lease.held is not None:
        return record, lease, ballots, None
    return before(record, lease, ballots, context, ask)


def drop_what_is_acked(before: Before[None], self: Replica, reported: list[Reported], now: Now) -> None:
    kept: list[Reported] = []
    for item in reported:
        span = item.hold.span
        record = self.group(item.hold.group).records.get(span.producer_id, span.start)
        if record is None or record.kind != Kind.ACKED or record.generation < item.hold.generation:
            kept.append(item)
    before(self, kept, now)


def told_by_the_record(
    before: Before[Iterator[tuple[GroupView, Span, Held]]],
    self: Recall,
    now: Now,
    granted: Iterable[GrantTimer],
) -> Iterator[tuple[GroupView, Span, Held]]:
    for view, span, held in before(self, now, granted):
        record = view.home.records.get(span.producer_id, span.start)
        if record is not None and record.kind in (Kind.ACKED, Kind.PURGED):
            yield view, span, held


# ------------------------------------------------------------------------- the driver


def speak_first(before: Before[None], self: Driver, persist: Persist) -> None:
    self.carry_out(persist.then)
    before(self, persist._replace(then=()))


# ----------------------------------------------------------------------- the directory


def damage_unsaid(before: Before[None], self: MemoryJournal, rng: random.Random, last: int) -> None:
    before(self, rng, last)
    if self.records:
        assert isinstance(self.records.pop(), TrustLost)


def welcome_at_once(effects: list[Effect]) -> list[Effect | Done]:
    said: list[Effect | Done] = []
    for effect in effects:
        said += [*effect.then, effect._replace(then=())] if isinstance(effect, Persist) else [effect]
    return said


# --------------------------------------------------------------------------- the rules

RECOVERY = Scenario(
    "recovery",
    "a delivery by the word of a replica that then crashes, and a second attempt",
    budget=Budget(restarts=1),
    coordinators=(A, C),
    restart_nodes=(B,),
    give_up=False,
    script=(*won(A, B), *restarted(B, A, C)),
)

ACKED_BY_B_AND_C = (("fetch", B), ("settle",), *restarted(C, B), *acked_at(B, C))
"""c's second start is linked to b alone; a backup from before it lacks what it acked, and finds a."""


HALF_ACKED = (*won(A, B), ("ask", B, "ack", 0), ("crash", A))
"""a0 is delivered by the votes of a and b, and its ACK is at b alone; a is back, without the ACK."""

NO_WITNESS = (("settle",), *links(A, B, C), ("settle",), *restarted(B, A, C))
"""a gets the ACK, and then b is started again: a majority has not heard of the ACK."""

RULES: tuple[Rule, ...] = (
    Rule(
        "quarantine",
        "after a restart a replica abstains until no hold that it forgot can live",
        ((Replica, "in_quarantine", lambda self, now: False),),
        scenario=Scenario(
            "restart",
            "2 attempts, 1 crash",
            budget=Budget(restarts=1, ticks=1),
            coordinators=(A, C),
            restart_nodes=(B,),
        ),
        hunted=True,
    ),
    Rule(
        "made-with-one-configuration",
        "a node starts with the node list and the hold_time_max that its cluster was made with",
        ((NodeConfig, "check_same", lambda self, *made: None),),
        scenario=Scenario(
            "shorter-holds",
            "a delivery, every node is started again with a shorter hold_time_max, and a second attempt",
            budget=Budget(restarts=3, ticks=1),
            coordinators=(A, C),
            shorter_holds=True,
            give_up=False,
            script=(*won(A, B), ("crash", A), ("crash", B), *restarted(C, A, B), ("link", A, B)),
        ),
        hunted=True,
    ),
    Rule(
        "made-with-one-list",
        "nor does a node start with a longer node list",
        ((NodeConfig, "check_same", lambda self, *made: None),),
        scenario=Scenario(
            "longer-list",
            "a creation at two of three nodes, which are started again with two more; a creation through one of these",
            nodes=(A, B, C, D, E),
            joining=(D, E),
            budget=Budget(attempts=0, restarts=3),
            restart_nodes=(A, B, C),
            operators=(("create", A), ("create", D)),
            give_up=False,
            script=(
                ("ask", A, "create", 0),
                *chosen(A, B),
                ("crash", A),
                ("crash", B),
                ("crash", C),
                *(("link", name, other) for other in (D, E) for name in (A, B, C)),
                ("ask", D, "create", 1),
            ),
        ),
    ),
    Rule(
        "quarantine-coordinator",
        "a restarted node coordinates no FETCH until then either",
        (
            (Replica, "abstains", vote_for_itself_in_quarantine),
            (Replica, "may_vote", lambda self, now: self.node.trusted),
        ),
        scenario=Scenario(
            "restart-coordinator",
            "2 attempts through the node that crashes",
            budget=Budget(restarts=1, ticks=1),
            coordinators=(A,),
            restart_nodes=(A,),
        ),
    ),
    Rule(
        "quarantine-half",
        "quarantine after every restart",
        ((Replica, "in_quarantine", in_quarantine_at_even_starts),),
        scenario=Scenario(
            "restart-twice",
            "a restart, 2 attempts, and another restart between them",
            budget=Budget(restarts=2, ticks=1),
            coordinators=(A, C),
            restart_nodes=(B,),
            give_up=False,
            script=(*restarted(B, A, C), ("settle",), *won(A, B), *restarted(B, A, C)),
        ),
    ),
    Rule(
        "votes-wait-for-the-topic",
        "a vote waits for the topic's record, without which a start has no quarantine",
        ((Context, "put_register", lambda self, merged, before: [Persist((TopicPut(merged),))]),),
        scenario=Scenario(
            "unheard-topic",
            "a delivery by the word of a replica that has just heard of the topic, and crashes, and a second attempt",
            budget=Budget(restarts=1),
            stored_on=(A, C),
            unaware=(B,),
            coordinators=(A, C),
            restart_nodes=(B,),
            give_up=False,
            unsynced=True,
            script=(
                ("fetch", A),
                *answered("Hold", "HoldReply", A, B),
                ("deliver", "PutTopic", A, B),
                ("deliver", "Hold", A, B),
            ),
        ),
        hunted=True,
        survives="a replica that grants and crashes before its topic's record is durable",
    ),
    Rule(
        "resync-brings-topics",
        "a resync brings every topic that the lost directory has voted in: only others have no quarantine",
        (resync_without(registers=SyncTopics((), ())),),
        scenario=Scenario(
            "resynced-topics",
            "a delivery by the word of a replica whose disk is lost, and a second attempt",
            budget=Budget(resyncs=1),
            coordinators=(A, C),
            restart_nodes=(B,),
            give_up=False,
            script=(
                *won(A, B),
                ("lose", B),
                *links(B, A, C),
                *answered("ResyncRequest", "ResyncReply", B, A, C),
            ),
        ),
    ),
    Rule(
        "recovery-keeps-union",
        "every reported hold is kept; a message with two owners is blocked until both are gone",
        (around(fate, "on_reported", learn_the_first),),
        scenario=RECOVERY,
        hunted=True,
        survives="a half-won and a live hold, both reported to one restarted replica",
    ),
    Rule(
        "recovery-hears-all",
        "every other replica must have told its holds before a quarantine ends early",
        ((HoldRecovery, "has_enough_answers", lambda self, replica, awaited: True),),
        scenario=RECOVERY,
    ),
    Rule(
        "recovery-tells-acked",
        "a hold that an ACK ended early is reported as held",
        ((Recall, "acked_early", lambda self, now, granted: iter(())),),
        scenario=Scenario(
            "recovery-tells",
            "a delivery is acked at one of its two voters, and the other one is started again",
            budget=Budget(acks=1, restarts=1),
            coordinators=(A, C),
            restart_nodes=(A,),
            via=(B,),
            give_up=False,
            script=(*won(A, B), ("ask", B, "ack", 0), *restarted(A, B, C)),
        ),
        hunted=True,
        survives="a late ACK at one voter, and a crash of the other inside that hold: one seed in 47,000",
    ),
    Rule(
        "recovery-tells-grants",
        "what is told follows from the grant and its end: the record of the ACK may go with its group",
        (around(Recall, "acked_early", told_by_the_record),),
        scenario=Scenario(
            "recovery-group-made-again",
            "a delivery is acked at one of two voters, the group made again, and both voters are started again",
            budget=Budget(acks=1, restarts=2, rewinds=2),
            rewind_to=("unmake", "make"),
            coordinators=(A, C),
            restart_nodes=(A, B),
            via=(B,),
            rewind_via=(B,),
            acks_end_nothing=True,
            give_up=False,
            script=(*HALF_ACKED, ("ask", B, "unmake"), ("settle",), ("ask", B, "make"), *NO_WITNESS),
        ),
    ),
    Rule(
        "recovery-tells-replaced",
        "likewise: the record of the ACK may be replaced by one of a newer generation",
        (around(Recall, "acked_early", told_by_the_record),),
        scenario=Scenario(
            "recovery-purged",
            "likewise; the group is rewound and purged before both voters are started again, and rewound after it",
            budget=Budget(acks=1, restarts=2, rewinds=2, backlog_purges=1),
            coordinators=(A, C),
            restart_nodes=(A, B),
            via=(B,),
            rewind_via=(C,),
            purge_via=(C,),
            acks_end_nothing=True,
            give_up=False,
            script=(*HALF_ACKED, ("ask", C, "rewind"), ("settle",), ("ask", C, "clear"), *NO_WITNESS),
        ),
    ),
    Rule(
        "recovery-keeps-acked",
        "a reported hold is kept, even if our own record is ACKED",
        (around(Replica, "end_quarantine", drop_what_is_acked),),
        scenario=Scenario(
            "recovery-acked",
            "a late ACK beside a live delivery whose voter is started again, and a rewind",
            budget=Budget(attempts=3, acks=1, restarts=1, rewinds=1, ticks=2),
            coordinators=(A, C),
            restart_nodes=(B,),
            via=(B,),
            rewind_via=(B,),
            give_up=False,
            script=(
                *ran_out(A),
                *won(A, B),
                *acked_at(B, A),
                *restarted(B, A, C),
            ),
        ),
        hunted=True,
        survives="a late ACK beside a live hold, then a restart and a rewind inside that hold",
    ),
    Rule(
        "sync-before-answering",
        "an answer that promises something durable waits for its fsync",
        (around(Driver, "persist", speak_first),),
        scenario=Scenario(
            "unsynced",
            "RF 1, 1 ACK, 1 crash before or after the fsync",
            nodes=(A,),
            rf=1,
            budget=Budget(acks=1, restarts=1, ticks=5),
            unsynced=True,
        ),
        hunted=True,
    ),
    Rule(
        "clean-stop-once",
        "the hold table of a clean stop is used once",
        ((Nodes, "reorder_journal", True),),
        scenario=Scenario(
            "clean-stop",
            "2 attempts; b stops cleanly first and crashes once",
            budget=Budget(clean_stops=1, restarts=1, ticks=1),
            coordinators=(A, C),
            restart_nodes=(B,),
            give_up=False,
            script=(("clean stop", B), ("link", A, B), ("link", B, C)),
        ),
    ),
    Rule(
        "wiped-begins-far-above",
        "an empty directory begins far above the reported starts",
        (
            (world, "far_above", lambda n: n or 1),  # a node that the explorer wipes
            (trust, "far_above", lambda n: n or 1),
        ),
        scenario=Scenario(
            "wipe-unseen",
            "an ACK through the only node that knows the second start of another, whose disk is lost meanwhile",
            nodes=(A, B, C, D, E),
            rf=5,
            budget=Budget(acks=1, restarts=1, wipes=1, ticks=5),
            coordinators=(C,),
            restart_nodes=(D,),
            wiped_hears=(A, C, E),
            via=(B,),
            # d's second start is linked to b alone; it is wiped, and may vote again before the ACK reaches a.
            script=(
                *ran_out(C),
                *restarted(D, B),
                *acked_at(B, D),
                ("wipe", D),
                *(("tick",),) * 3,
                *answered("Ack", "AckReply", B, A),
            ),
        ),
        hunted=True,
        survives="an answer under way while its sender is wiped, of a start that only its receiver saw",
    ),
    Rule(
        "resync-skipped",
        "nothing counts before the resync is complete",
        ((Resync, "lacks", lambda self, core: False),),
    ),
    Rule(
        "snapshot-without-reclaimed",
        "a snapshot has what was reclaimed",
        (after(Recall, "snapshot", but(Reclaimed)),),
    ),
    Rule(
        "welcome-unsynced",
        "a node's start is durable before its WELCOME",
        (after(Peers, "on_hello", welcome_at_once),),
        survives="a power cut right after HELLO, and a start that this peer alone has seen",
        test="test_after_the_fsync::test_an_incarnation_is_durable_before_its_welcome",
    ),
    Rule(
        "promise-not-journaled",
        "a promise to close a producer id is in the journal",
        (after(Closing, "promise", nothing),),
    ),
    Rule(
        "damaged-stays-listed",
        "a damaged batch is absent, and pulled",
        ((Storing, "on_damaged", lambda self, number, now: None),),
    ),
    Rule(
        "damaged-votes",
        "a damaged directory is not trusted",
        (around(MemoryJournal, "damage", damage_unsaid),),
    ),
    Rule(
        "moved-votes",
        "a directory that was moved waits for every other node",
        ((Trust, "is_elsewhere", False),),
        scenario=Scenario(
            "backup",
            "an ACK by the word of a node whose start one peer alone has seen, and a backup from before it",
            budget=Budget(acks=1, restarts=1, restores=1, ticks=3),
            coordinators=(A, B),
            restart_nodes=(C,),
            via=(B,),
            give_up=False,
            script=(*ACKED_BY_B_AND_C, ("restore", C), ("link", A, C)),
        ),
        hunted=True,
    ),
    Rule(
        "starts-by-number",
        "a peer names the starts that it has seen, not their number",
        ((Trust, "_is_ours", lambda self, start: start.n <= self.starts[-1].incarnation.n),),
        scenario=Scenario(
            "backup-restarted",
            "likewise, and that backup is started twice, the second time beside the peer that knows better",
            budget=Budget(acks=1, restarts=2, restores=1, ticks=4),
            coordinators=(A, B),
            restart_nodes=(C,),
            via=(B,),
            give_up=False,
            script=(*ACKED_BY_B_AND_C, ("tick",), ("restore", C), *restarted(C, A, B)),
        ),
        hunted=True,
        survives="a copy started twice, and a FETCH just when the informed peer is back: one seed in 12,000",
    ),
    Rule(
        "made-otherwise",
        "what the cluster was made with does not change between starts",
        ((NodeConfig, "check_same", lambda self, *made: None),),
    ),
)
