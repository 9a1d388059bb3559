"""Knowledge of a node, as a value, and the check that its journal knows the same.

Everything that a node has promised is in its journal (core/node/nodecore.py). So after any step a core that is built
from the journal, or from a snapshot and the batches, knows the same as the running one. That one property covers every
record that is forgotten somewhere: in a step, in a snapshot, in a replay, in a clean stop.

If the two may differ, nothing is promised:

- holds and ballots: a clean stop keeps them, else quarantine and the minimum ballot stand for them;
- what is known and absent, hints, starts of peers that were heard of without a HELLO, and what waits, is settled or
  idle_since: it is heard, or worked out, again;
- positions of peers that are not written yet (they are written with something else, at most every few seconds);
- messages that were reclaimed and are needed again: they are worked out when peers compare, and at a start;
- attempts and delays of generations that were rewound: no request reads them;
- the batch that a message is read from if two overlap, and, if one of them was reclaimed, whether the other
  one still counts as payload;
- ages that peers reported, which are asked for again;
- batches, records and groups of topics whose register was damaged, until a start that knows the topic again;
- times, if a clock was set: over a boot they are counted from the time of day.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Any, get_args

from quorumq.core.messages.records import BatchStored, DeletedPage, GroupPut, JournalRecord, Started, TopicPut
from quorumq.core.node.nodecore import NodeCore
from quorumq.core.partition.delays import Delay
from quorumq.core.partition.group import GroupView
from quorumq.core.partition.lease import Lease
from quorumq.core.partition.recall import PartitionRecord
from quorumq.core.partition.replica import Replica
from quorumq.core.values.spans import SpanMap, SpanSet, across
from quorumq.core.values.types import NodeId, Now
from sim.world import SimError

TIMES_WITHIN_S = 0.05
"""Times of day are journaled in milliseconds, more than once."""

PARTITIONED = get_args(PartitionRecord)

Known = dict[str, Any]


def compare(
    core: NodeCore,
    journal: Iterable[JournalRecord],
    now: Now,
    *,
    durable: bool,
    times: bool,
    counted: bool = True,
    snapshot: bool = False,
) -> None:
    """Check that a core built from ``journal`` knows the same as ``core``.

    Args:
        durable: True if all of the journal is durable: a node that is about to be trusted waits for that.
        times: True if delays and ages count too: no clock was set.
        counted: True if attempts were journaled: not while the disk has no room for them.
        snapshot: True if the core is built from a snapshot and the journal's batches instead.

    Raises:
        SimError: the knowledge differs, with each difference.
    """
    orphans = dict.fromkeys(core.orphans)  # topics unknown at this start, which the next one may know
    records = [
        record
        for record in without_lost_topics(list(journal))
        if not (isinstance(record, BatchStored) and record.number in orphans)
    ]
    batches = [record for record in records if isinstance(record, BatchStored)]
    pages = [record for record in records if isinstance(record, DeletedPage)]
    ignored = {record.number for record in batches if record.age_ms < 0}
    unwritten = core.context.peers.positions.fresh
    over = (
        now.mono + TIMES_WITHIN_S if times else math.inf
    )  # claims end with their time, which a set clock moves
    here = known_of(core, unwritten, over)
    if not durable and not core.state.trusted:
        del here["trusted"]
    name, source = (
        ("a snapshot", [*core.snapshot(now), *pages, *batches]) if snapshot else ("its journal", records)
    )
    other = rebuilt(core, source, now)
    there = known_of(other, unwritten, over)
    if "trusted" not in here:
        del there["trusted"]
    for subject in dict.fromkeys([*here, *there]):
        if subject.endswith(", attempts") and not counted:
            continue
        if here.get(subject) != there.get(subject):
            ours, theirs = (repr(known.get(subject))[:400] for known in (here, there))
            raise SimError(f"node {core.config.node} knows of {subject}: {ours}; and {name} {theirs}")
    if other.state.clock.min_ballot < core.state.clock.value:
        raise SimError(f"node {core.config.node} has used stamps above the reserve in {name}")
    if not times:  # then only this boot's clock is to be believed
        ignored.update(record.number for record in batches if record.start not in other.state.same_boot)
    compare_times(core, other, ignored, name, now, delays=times)


def without_lost_topics(records: list[JournalRecord]) -> list[JournalRecord]:
    """Return ``records`` without those that the last start could not place: their topic's register had been damaged."""
    starts = [at for at, record in enumerate(records) if isinstance(record, Started)]
    last = starts[-1] if starts else 0
    known = dict.fromkeys(record.topic.id for record in records[:last] if isinstance(record, TopicPut))
    lost = [
        at
        for at, record in enumerate(records[:last])
        if (isinstance(record, PARTITIONED) and record.partition.topic not in known)
        or (isinstance(record, GroupPut) and record.group.topic not in known)
    ]
    gone = dict.fromkeys(lost)
    return [record for at, record in enumerate(records) if at not in gone]


def rebuilt(core: NodeCore, records: Iterable[JournalRecord], now: Now) -> NodeCore:
    """Return the core of the next start of ``core``."""
    return NodeCore(
        core.config,
        records,
        nonce=1,
        directory=core.state.directory,
        now=now,
        rng=random.Random(0),
        location=core.trust.location,
        boot=core.boot,
    )


def known_of(core: NodeCore, unwritten: Iterable[NodeId], over: float = -math.inf) -> Known:
    """Return a node's knowledge by subject.

    It is without times, positions of the nodes ``unwritten``, and claims that end by ``over`` (monotonic seconds).
    """
    known: Known = {
        "directory": core.state.directory,
        "starts": core.trust.starts,
        "trusted": (
            core.state.trusted,
            core.trust.resync is None,
            core.trust.covered_up_to,
            core.trust.moved,
            core.trust.journal_location,
            core.trust.was_trusted,
        ),
        "peers": dict(sorted(core.context.peers.seen.items())),
        "topics": sorted(core.catalogue.live()),
        "deleted": core.catalogue.all_deleted(),
        "decisions": dict(core.catalogue.decisions.items()),
        "groups": [group for group in core.catalogue.all_groups() if not group.deleted],
        "replicas": sorted(core.replicas),
    }
    for node, position in sorted(core.context.peers.positions.reported.items()):
        if node not in unwritten:
            known[f"position of {node}"] = position
    for partition, replica in core.replicas.items():
        known.update(replica_known(replica, str(partition), over))
    return known


def replica_known(replica: Replica, where: str, over: float) -> Known:
    """Return a replica's knowledge; empty tables say nothing."""

    def timeless(delay: Delay | None) -> Delay | None:
        if delay is None or (delay.claim is not None and delay.due <= over):
            return None
        return delay._replace(due=0.0)

    here = SpanSet.from_spans([*replica.batches.present.items(), *replica.batches.reclaimed.items()])
    known: Known = {
        f"{where}, present or reclaimed": here.items(),
        f"{where}, promised": replica.closing.promised.items(),
        f"{where}, closed": replica.batches.closed.numbers.items(),
    }
    for name in (*replica.views.groups, *replica.views.unmade):
        view, at = replica.views.look(name), f"{where}, group {name}"
        known[f"{at}, records"] = view.records.items()
        known[f"{at}, attempts"] = part_of(view, lambda lease: lease.attempts).items()
        # The times at which they end are compared elsewhere.
        known[f"{at}, delays"] = part_of(view, lambda lease: timeless(lease.delay)).items()
        known[f"{at}, claims"] = part_of(view, lambda lease: timeless(lease.claim)).items()
        known[f"{at}, generation"] = (view.generation, view.from_ms) if view.generation else None
    return {subject: value for subject, value in known.items() if value}


def part_of(view: GroupView, part: Callable[[Lease], Any]) -> SpanMap[Any]:
    """Return one part of the leases of a group, without those of a generation that was rewound."""
    table: SpanMap[Any] = SpanMap()
    for span, lease in view.leases.items():
        value = part(lease)
        if value is not None and value.generation >= view.home.generation:
            table.set(span, value)
    return table


def compare_times(
    core: NodeCore, other: NodeCore, ignored: set[int], name: str, now: Now, *, delays: bool
) -> None:
    """Check that delays end, and batches were made, at the same time, except if peers have ``ignored`` their age."""
    for partition, replica in core.replicas.items():
        twin = other.replicas[partition]
        for number, batch in replica.batches.stored.items():
            same = number in twin.batches.stored and number not in ignored
            if same and abs(batch.born - twin.batches.stored[number].born) > TIMES_WITHIN_S:
                raise SimError(f"batch {number} of {partition} has another age in {name}")
        for group, view in replica.views.groups.items() if delays else ():
            for kind in ("delay", "claim"):
                there_delays = part_of(twin.views.look(group), attrgetter(kind))
                for span, delay in part_of(view, attrgetter(kind)).items():
                    for part, theirs in there_delays.within(span):
                        remaining, there = max(0.0, delay.due - now.mono), max(0.0, theirs.due - now.mono)
                        if abs(remaining - there) > TIMES_WITHIN_S:
                            raise SimError(
                                f"the {kind} of {part} lasts {remaining} s, and {there} s in {name}"
                            )


def compare_holds(core: NodeCore, journal: Iterable[JournalRecord], now: Now) -> None:
    """Check that a clean stop keeps the holds, and the ballots that granted them, of every replica that may vote.

    Raises:
        SimError: it forgot one.
    """
    other = rebuilt(core, journal, now)
    for partition, replica in core.replicas.items():
        kept_replica = other.context.kept(
            partition
        )  # a layout that was written just before may have moved it
        if not replica.may_vote(now) or kept_replica is None:
            continue
        for group, view in replica.views.groups.items():
            twin = kept_replica.group(group)
            for span, held in view.all_held():
                if held.deadline <= now.mono:
                    continue
                kept = twin.held(span)
                same = all(their.owner == held.owner and their.deadline >= held.deadline for _, their in kept)
                ballots = all(
                    (ours and ours.highest) == (theirs and theirs.highest)
                    for _, (ours, theirs) in across(span, (view.ballots, twin.ballots))
                )
                if sum(part.size for part, _ in kept) != span.size or not same or not ballots:
                    raise SimError(
                        f"the clean stop of {core.config.node} does not keep the hold of {span}: {held}"
                    )


def without_texts(subject: str, known: Any) -> Any:
    """Return the knowledge with dead letters cut to their ballots: a full node keeps no more of them."""
    if known is None or not subject.endswith(", records"):
        return known
    return [(span, value._replace(death=value.death and value.death.ballot)) for span, value in known]


def knows_all(mine: NodeCore, theirs: NodeCore) -> bool:
    """Return True if ``mine`` knows all that ``theirs`` knows, and has its batches; attempts are an estimate."""
    ours, other = known_of(mine, ()), known_of(theirs, ())
    return all(
        without_texts(subject, ours.get(subject)) == without_texts(subject, other.get(subject))
        for subject in dict.fromkeys([*ours, *other])
        if subject in ("topics", "groups", "replicas")
        or subject.endswith((", records", ", delays", "reclaimed", "closed"))
    ) and all(
        mine.replicas[partition].batches.present.covers(span)
        for partition, replica in theirs.replicas.items()
        for span in replica.batches.present.items()
    )
