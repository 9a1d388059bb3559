"""Protocols with one rule left out. The simulator is tested by whether it catches them.

A mutant that survives many seeds shows a fault that the simulator lacks, or a checker that is blind. Those that are
known to survive, and why, are in `SURVIVORS`: docs/verification.md repeats the list, and a test compares it.
"""

from __future__ import annotations

import contextlib
import itertools
import random
from collections.abc import Iterator
from typing import Any

from quorumq.core import nodecore as nodecore_module
from quorumq.core import registers as registers_module
from quorumq.core import topics as topics_module
from quorumq.core import types as types_module
from quorumq.core.coordinator import PublishCoordinator
from quorumq.core.effects import Forget, Persist, Send
from quorumq.core.fetch import FetchCoordinator, HoldRound
from quorumq.core.messages import Counted, Merged
from quorumq.core.nodecore import NodeCore
from quorumq.core.partition import group as group_module
from quorumq.core.partition import replica as replica_module
from quorumq.core.partition.group import Attempts, DeadView, GroupView
from quorumq.core.partition.holds import Held, HoldTable
from quorumq.core.partition.replica import Replica
from quorumq.core.records import VouchingLost
from quorumq.core.registers import DeleteTopicCoordinator
from quorumq.core.resync import Resync
from quorumq.core.rounds import Round
from quorumq.core.settle import AckCoordinator
from quorumq.core.state import NodeConfig, NodeState
from quorumq.core.types import OPEN_ZERO, Kind, Origin, Owner, Span, Topic
from sim import workload as workload_module
from sim.cluster import Cluster
from sim.disks import MemoryJournal
from sim.mutant import Mutant
from sim.runner import Outcome, run_schedule
from sim.schedule import draw
from sim.slips import SLIPS

INHERITED = object()
"""Stands for what a class has from its base."""


@contextlib.contextmanager
def applied(mutant: Mutant) -> Iterator[None]:
    """The mutant's patches are in force inside."""
    before = [(owner, name, vars(owner).get(name, INHERITED)) for owner, name, _ in mutant.patches]
    try:
        for owner, name, new in mutant.patches:
            getattr(owner, name)  # a patch of nothing would be no mutant
            setattr(owner, name, new)
        yield
    finally:
        for owner, name, old in before:
            if old is INHERITED:
                delattr(owner, name)
            else:
                setattr(owner, name, old)


def run_mutant(mutant: Mutant, seed: int, profile: str = "swarm") -> Outcome:
    """One seed against a mutant."""
    with applied(mutant):
        return run_schedule(draw(seed, profile), prepare=mutant.prepare)


def hunt(mutant: Mutant, first: int, seeds: int, profile: str = "swarm") -> tuple[int, str] | None:
    """The first seed that catches the mutant, and how; None where it survives."""
    for seed in range(first, first + seeds):
        outcome = run_mutant(mutant, seed, profile)
        if outcome.violations:
            first_of_all = outcome.violations[0]
            if "Error at mutants.py" in first_of_all:
                raise AssertionError(f"mutant {mutant.name} does not fit the core any more: {first_of_all}")
            return seed, first_of_all
    return None


# ------------------------------------------------------------------------- the rules


def _release_without_ballot(self: HoldTable, span: Span, owner: Owner) -> list[Any]:
    gone = [(part, held) for part, held in self.holds.within(span) if held.owner.node == owner.node]
    for part, _ in gone:
        self.holds.remove(part)
    return gone


def _any_of_incarnation(self: HoldTable, held: Any, owner: Owner) -> bool:
    return bool(held.owner[:2] == owner[:2])


def _tombstone_majority_of_one(
    self: AckCoordinator, ballot: Any, span: Span, yes: int, no: int, valid: int, *, last: bool
) -> str | None:
    if ballot.answered & valid:
        return "acked"
    return self.unknown(ballot) if last else None


def _exclusive_unasked(
    self: AckCoordinator, ballot: Any, span: Span, yes: int, no: int, valid: int, *, last: bool
) -> str | None:
    if ballot.round.is_majority(ballot.answered & valid):
        return "acked"
    return self.unknown(ballot) if last else None


def _publish_majority_of_one(
    self: PublishCoordinator, core: NodeCore, this: Round, *, timed_out: bool
) -> Any:
    if self.stored:
        this.majority = 1
    return _PUBLISH_DECIDE(self, core, this, timed_out=timed_out)


_PUBLISH_DECIDE = PublishCoordinator._decide


def _learned_dead_ends_holds(self: GroupView, span: Span) -> None:
    self.holds.holds.remove(span)


def _own_vote_enough(self: FetchCoordinator, this: HoldRound, yes: int, mine: int) -> bool:
    return bool(yes & mine)


def _own_vote_not_needed(self: FetchCoordinator, this: HoldRound, yes: int, mine: int) -> bool:
    return this.is_majority(yes)


def _rank_without_acked(record: Any) -> tuple[int, bool, int, int]:
    return (record.generation, False, record.n, int(record.kind))


def _merge_without_acked(ours: Any, theirs: Any) -> Any:
    mine, other = _rank_without_acked(ours), _rank_without_acked(theirs)
    return ours if mine >= other else theirs


def _a_tenth_of_the_hold(self: FetchCoordinator, core: NodeCore, replica: Replica) -> tuple[float, float]:
    longest = max(0.05, min(1.0, self.request.hold_time / 10))
    usual = core.hold_times.timeout(0.05, longest)
    return usual, usual


def _half_the_time(self: HoldTable, *args: Any) -> Any:
    span, n, owner, now, hold_time, *more = args
    return _VOTE(self, span, n, owner, now, hold_time / 2, *more)


_VOTE = HoldTable.vote


def _eager(cluster: Cluster) -> None:
    cluster.eager = True


def _late_clients(cluster: Cluster) -> None:
    cluster.late_clients = True


def _in_quarantine_at_even_starts(self: Replica, now: Any) -> bool:
    return now.mono < self.quarantine_until and self.node.incarnation.n % 2 == 0


def _repair_nothing(self: Replica, name: str, resolved: Any, now: Any) -> list[Any]:
    return []


def _no_sync(self: Replica, sender: str, message: Any, now: Any) -> list[Any]:
    return []


def _redrive_forgotten(self: Replica, sender: str, message: Any, now: Any) -> list[Any]:
    spans = tuple(span for span, _ in message.entries)
    return [Persist((), (Send(sender, Merged(message.round, spans, (), "", self.vector())),))]


def _acked_overtaken() -> tuple[tuple[Any, str, Any], ...]:
    return (types_module, "record_rank", _rank_without_acked), (
        group_module,
        "merge_records",
        _merge_without_acked,
    )


def _forget_delay(self: Replica, record: Any, now: Any) -> None:
    _LOAD_BATCH(self, record._replace(age_ms=record.batch.header.delay_ms), now)


_LOAD_BATCH = Replica.load_batch


def _void_stands(self: GroupView, span: Span, generation: int | None = None) -> list[Any]:
    return [(part, record or OPEN_ZERO) for part, record in self.records.split(span)]


def _count_across_generations(self: GroupView, span: Span, held: Held) -> list[Counted]:
    counted = []
    for part, old in self.attempts.split(span):
        new = Attempts(held.generation, held.n, old.ended + 1 if old is not None else 1)
        self.attempts.set(part, new)
        self.digests.pop(part.origin, None)
        counted.append(Counted(part, new.n, new.ended, new.generation))
    return counted


def _attempts_of_any_generation(self: GroupView, span: Span, generation: int, n: int) -> list[Any]:
    return [(part, old.ended if old is not None else 0) for part, old in self.attempts.split(span)]


def _acked_ends_holds(self: GroupView, span: Span) -> None:
    self.holds.holds.remove(span)


def _rank_purge_first(record: Any) -> tuple[int, bool, bool, int, int]:
    purged = record.kind in (Kind.SKIPPED, Kind.PURGED)
    return (record.generation, record.kind == Kind.ACKED, purged, record.n, int(record.kind))


def _merge_purge_first(ours: Any, theirs: Any) -> Any:
    return ours if _rank_purge_first(ours) >= _rank_purge_first(theirs) else theirs


def _grant_as_asked(self: DeadView, span: Span, asked: Any) -> list[Any]:
    return [(span, asked, False)]


def _with_the_holds_of_the_source(self: DeadView, source: GroupView, *more: Any) -> None:
    _DEAD_VIEW(self, source, *more)
    self.holds = source.holds


_DEAD_VIEW = DeadView.__init__


def _never_void(self: Replica, view: GroupView, generation: int, spans: Any, *, unseen: bool = False) -> bool:
    return view.is_stale(generation)


_derived_origin = workload_module.derived_origin
_attempts = itertools.count(2)


def _named_anew(source: Any, group: str, output: bytes, index: int) -> Origin:
    return _derived_origin(source, group, output, index + next(_attempts))


_merge_topics = topics_module.merge_topics


def _whole_register(ours: Topic, theirs: Topic) -> Topic:
    merged = _merge_topics(ours, theirs)
    newer = ours if ours.stamp >= theirs.stamp else theirs
    return merged._replace(**{name: getattr(newer, name) for name in topics_module.SETTINGS})


def _fewer_partitions(ours: Topic, theirs: Topic) -> Topic:
    newer = ours if ours.stamp >= theirs.stamp else theirs
    return _merge_topics(ours, theirs)._replace(replicas=newer.replicas)


def _damage_unsaid(self: MemoryJournal, rng: random.Random, last: int) -> None:
    _DAMAGE(self, rng, last)
    if self.records:
        assert isinstance(self.records.pop(), VouchingLost)


_DAMAGE = MemoryJournal.damage


def _merge_reviving(ours: Topic, theirs: Topic) -> Topic:
    if ours.deleted != theirs.deleted:
        return theirs if ours.deleted else ours
    return _merge_topics(ours, theirs)


def _take_in_unwritten(self: NodeCore, topic: Topic, now: Any) -> list[Any]:
    effects = _TAKE_IN(self, topic, now)
    return [
        effect._replace(records=()) if isinstance(effect, Persist) and topic.deleted else effect
        for effect in effects
    ]


_TAKE_IN = NodeCore.take_in_topic


def _take_beside(self: NodeCore, topic: Topic) -> Topic | None:
    newest = self.register_named(topic.name)
    if newest is None or newest.id == topic.id:
        return _TAKE(self, topic)
    if topic.id in self.topics:
        merged = _merge_topics(self.topics[topic.id], topic)
        if merged == self.topics[topic.id]:
            return None
    self.topics[topic.id] = topic
    if newest.deletions <= topic.deletions:
        self.names[topic.name] = topic.id
    return topic


_TAKE = NodeCore._take_topic


def _end_without_forgetting(self: NodeCore, topic: Topic, now: Any) -> list[Any]:
    return [effect for effect in _END(self, topic, now) if not isinstance(effect, Forget)]


_END = NodeCore._end_topic


def _keep_orphans(self: NodeCore, token: int, now: Any) -> list[Any]:
    self.orphans.clear()
    return _ON_DURABLE(self, token, now)


_ON_DURABLE = NodeCore._on_durable


MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "quarantine-off",
        "quarantine after a restart",
        ((Replica, "in_quarantine", lambda self, now: False),),
    ),
    Mutant(
        "quarantine-half",
        "quarantine after every restart",
        ((Replica, "in_quarantine", _in_quarantine_at_even_starts),),
    ),
    Mutant("hold-majority-1", "a hold needs a majority", ((FetchCoordinator, "is_won", _own_vote_enough),)),
    Mutant(
        "own-vote-not-needed",
        "a majority, ours included",
        ((FetchCoordinator, "is_won", _own_vote_not_needed),),
    ),
    Mutant(
        "release-without-ballot",
        "RELEASE carries the ballot",
        ((HoldTable, "release", _release_without_ballot),),
    ),
    Mutant(
        "owner-without-ballot", "an owner is one attempt", ((HoldTable, "is_owner", _any_of_incarnation),)
    ),
    Mutant(
        "hold-replaced",
        "no hold is ever replaced",
        ((HoldTable, "may_replace", lambda self, held, owner: True),),
    ),
    Mutant(
        "extend-revives",
        "EXTEND never revives",
        ((HoldTable, "may_extend", lambda self, held, owner: True),),
    ),
    Mutant(
        "hold-half-the-time",
        "a grant outlives the coordinator's deadline",
        ((HoldTable, "vote", _half_the_time),),
    ),
    Mutant(
        "tombstone-majority-1",
        "ACKED is durable on a majority",
        ((AckCoordinator, "judge", _tombstone_majority_of_one),),
    ),
    Mutant(
        "hold-round-tenth",
        "a round may take up to half of its hold where answers do",
        ((FetchCoordinator, "patience", _a_tenth_of_the_hold),),
    ),
    Mutant(
        "acked-unproven-as-acked",
        "acked needs an exclusive majority",
        ((AckCoordinator, "judge", _exclusive_unasked),),
    ),
    Mutant(
        "store-majority-1",
        "a publish is durable on a majority",
        ((PublishCoordinator, "_decide", _publish_majority_of_one),),
    ),
    Mutant("then-before-fsync", "persist before send", (), _eager),
    Mutant(
        "publish-unsynced",
        "a publish waits for the fsync, unless its topic says otherwise",
        ((Replica, "syncs", False),),
    ),
    Mutant("deadline-from-reply", "a client's deadline counts from its request", (), _late_clients),
    Mutant(
        "tombstone-not-checked",
        "our own record is looked at before delivering",
        ((FetchCoordinator, "is_deliverable", lambda self, record, asked: True),),
    ),
    Mutant(
        "dead-ends-holds",
        "a learned DEAD drops no hold",
        ((GroupView, "on_learned_dead", _learned_dead_ends_holds),),
    ),
    Mutant("acked-overtaken", "nothing overtakes ACKED", _acked_overtaken()),
    Mutant(
        "ballots-fall",
        "ballots only rise",
        ((HoldTable, "is_above", lambda self, ballot, highest, floor: True),),
    ),
    Mutant("no-read-repair", "a TOMB is written here", ((Replica, "repair", _repair_nothing),)),
    Mutant("no-anti-entropy", "what differs is exchanged", ((Replica, "on_sync_offer", _no_sync),)),
    Mutant(
        "redrive-forgotten", "REDRIVE is durable on a majority", ((Replica, "on_merge", _redrive_forgotten),)
    ),
    Mutant(
        "due-by-one-clock",
        "what is not due is voted against",
        ((Replica, "due_parts", lambda self, view, span, n, now: ([span], [])),),
    ),
    Mutant(
        "unseen-votes-on-due",
        "who has not seen a delayed message cannot say that it is due",
        ((Replica, "delayed_parts", lambda self, span: []),),
    ),
    Mutant(
        "one-flag-expires",
        "a majority says that a message has expired",
        ((FetchCoordinator, "is_over", lambda self, this, late: bool(late)),),
    ),
    Mutant(
        "copied-clock",
        "a batch from a peer is as old as enough replicas say",
        ((replica_module, "majority_of", lambda members: members),),
    ),
    Mutant("delay-forgotten", "delays survive a restart", ((Replica, "load_batch", _forget_delay),)),
    Mutant(
        "resync-skipped",
        "nothing counts before the resync is complete",
        ((Resync, "missing", lambda self, core: []),),
    ),
    Mutant(
        "superseded-count",
        "superseded incarnations do not count",
        (
            (Round, "is_superseded", lambda self, state, sender, incarnation: False),
            (NodeState, "superseded", lambda self, node, incarnation: False),
        ),
    ),
    Mutant(
        "void-stands",
        "an older record is void where the new generation covers the message",
        ((GroupView, "record_pieces", _void_stands),),
    ),
    Mutant(
        "predicate-ignored",
        "every replica applies the start predicate",
        ((GroupView, "covers", lambda self, published_ms: True),),
    ),
    Mutant(
        "stale-voted-for",
        "what names an older generation is refused",
        ((GroupView, "is_stale", lambda self, generation: False),),
    ),
    Mutant(
        "attempts-go-on",
        "attempts begin anew in a new generation",
        (
            (GroupView, "count_attempt", _count_across_generations),
            (GroupView, "attempts_at", _attempts_of_any_generation),
        ),
    ),
    Mutant(
        "ack-ends-holds",
        "an ACK ends the hold of its own delivery only",
        ((GroupView, "on_acked", _acked_ends_holds),),
    ),
    Mutant(
        "purge-overtakes-redrive",
        "a redrive is above a purge of what it redrove",
        (
            (types_module, "record_rank", _rank_purge_first),
            (group_module, "merge_records", _merge_purge_first),
        ),
    ),
    Mutant(
        "dead-granted-unseen",
        "a dead letter is granted only where the record is DEAD at that n",
        ((DeadView, "on_asked", _grant_as_asked),),
    ),
    Mutant(
        "dead-holds-shared",
        "dead letters have holds of their own",
        ((DeadView, "__init__", _with_the_holds_of_the_source),),
    ),
    Mutant(
        "void-letters-stand",
        "a dead letter that a newer generation covers is not handed out",
        ((Replica, "is_stale", _never_void),),
    ),
    Mutant(
        "damaged-stays-listed",
        "a damaged batch is absent, and pulled",
        ((Replica, "on_damaged", lambda self, number, now: None),),
    ),
    Mutant(
        "damaged-votes",
        "a damaged directory cannot vouch",
        ((MemoryJournal, "damage", _damage_unsaid),),
    ),
    Mutant(
        "moved-votes",
        "a directory that was moved waits for every other node",
        ((NodeCore, "is_elsewhere", False),),
    ),
    Mutant(
        "starts-near",
        "a directory that cannot vouch begins far above what is reported",
        ((nodecore_module, "far_above", lambda n: n + (not n)),),
    ),
    Mutant(
        "made-otherwise",
        "what the cluster was made with does not change between starts",
        ((NodeConfig, "check_same", lambda self, nodes, hold_time_max: None),),
    ),
    Mutant(
        "deleted-revives",
        "a topic is deleted for good",
        (
            (registers_module, "merge_topics", _merge_reviving),
            (nodecore_module, "merge_topics", _merge_reviving),
        ),
    ),
    Mutant(
        "deleted-on-one",
        "DELETE is OK when a majority of the nodes has it",
        (
            (DeleteTopicCoordinator, "is_enough", lambda self, core, this: True),
            (DeleteTopicCoordinator, "on_written", lambda self, core, now: self.on_buried(core, now)),
        ),
    ),
    Mutant(
        "deleted-beside-replicas",
        "… and of each partition's replica set",
        ((Round, "is_majority_of_each", lambda self, bits, replicas: True),),
    ),
    Mutant(
        "deletion-not-kept",
        "a deletion is in the journal",
        ((NodeCore, "take_in_topic", _take_in_unwritten),),
    ),
    Mutant(
        "older-topic-stays",
        "a topic whose name was deleted more often takes the place of the others",
        ((NodeCore, "_take_topic", _take_beside),),
    ),
    Mutant(
        "deleted-payload-stays",
        "the payload of a deleted topic goes everywhere",
        ((NodeCore, "_end_topic", _end_without_forgetting),),
    ),
    Mutant(
        "deleted-payload-returns",
        "what a start finds of a deleted topic is forgotten",
        ((NodeCore, "_on_durable", _keep_orphans),),
    ),
    Mutant(
        "output-named-anew",
        "an output's id is made from its input's alone",
        ((workload_module, "derived_origin", _named_anew),),
    ),
    Mutant(
        "change-not-above",
        "a change of a topic that meets a newer one is stamped again above it",
        ((registers_module, "is_overtaken", lambda topic, request, stamp: False),),
    ),
    Mutant(
        "settings-as-one",
        "each setting of a topic goes to its own last writer",
        (
            (registers_module, "merge_topics", _whole_register),
            (nodecore_module, "merge_topics", _whole_register),
        ),
    ),
    Mutant(
        "partitions-by-stamp",
        "partitions only become more",
        (
            (registers_module, "merge_topics", _fewer_partitions),
            (nodecore_module, "merge_topics", _fewer_partitions),
        ),
    ),
    *SLIPS,
)
"""Every mutant. Most are one line of section 4 of docs/protocol.md."""

SURVIVORS: dict[str, str] = {
    "acked-hold-dropped": "a late ACK beside a live hold, a restart and a rewind inside that hold: too rare a chain",
    "reported-hold-replaces": "a half-won hold and a live one, both told to one restarted replica: too rare a chain",
    "dead-holds-shared": "nothing is missing: what is redriven only waits for a hold of its dead letter",
    "own-vote-not-needed": "nothing is missing: the reply looks at our own hold again, so it needs our vote",
    "tombstone-not-checked": "nothing is missing: ACKED ends the hold, which is looked at too",
    "dead-ends-holds": "a dead letter on a minority, a delivery, a redrive inside its hold: too rare a chain",
    "ballots-fall": "a HOLD that is late at two replicas, then an ACK of that age: too rare a chain",
    "unseen-votes-on-due": "a replica without the batch, one with a wrong clock, and no third vote: too rare a chain",
    "copied-clock": "a batch that two replicas have, one with a wrong clock, and the third from that one: too rare",
    "due-by-one-clock": "a delayed message, one wrong clock, and nobody else awake: too rare; tests/core has it",
    "ack-ends-holds": "a late ACK beside a live hold, and a rewind inside it: too rare; the explorer has it",
    "deleted-on-one": "a publish between the answer and the news, which is sent before it: too rare; tests/core has it",
    "deleted-payload-returns": "a crash between a deletion and the drop of its batches: too rare; tests/core has it",
    "change-not-above": "a change through a node that has heard nothing since the one just confirmed: too rare",
    "deleted-beside-replicas": "five nodes, and a cut with two replicas of a partition beyond it: too rare",
    "dead-granted-unseen": "a HOLD of a dead letter at a replica that has a newer record: one seed in a thousand",
    "void-letters-stand": "a dead letter of an older generation, looked for before a rewind is known there: too rare",
    "starts-near": "an answer under way while its sender is wiped, of a start that only its receiver saw: too rare",
    "superseded-count": "an answer that is late by a wipe and a resync, and decides a round: too rare a chain",
}
"""Mutants that the simulator does not catch in `BOUND` seeds, and the fault or the checker that is missing.

The explorer catches each of them whose rule is in the table of docs/protocol.md, section 4.
"""

BOUND = 600
"""Seeds within which every other mutant is caught."""
