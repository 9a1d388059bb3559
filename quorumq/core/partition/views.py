"""The groups of one partition on one node: their views, and what is available to each.

What is available changes with the batches, with a group's records, holds and delays, and with time. A change of one
of those is followed by a call of `Views.refresh` for the messages concerned.

A group that begins, or begins anew, has to look at all that is here. A step does as much of that as it has time for
(`NodeState.looks_left`), and the next ones go on. It is the same with groups of a partition that begins, and with
reclaimed messages that are wanted again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from quorumq.core.cluster.state import NodeState
from quorumq.core.messages import NotDue, SpanRecord
from quorumq.core.messages.records import AttemptsCounted, DelaysSet, JournalRecord, RecordsMerged
from quorumq.core.partition import fate
from quorumq.core.partition.backfill import Backfill
from quorumq.core.partition.batches import Batches
from quorumq.core.partition.fate import Rule, RuleContext
from quorumq.core.partition.group import Changes, GroupView, join
from quorumq.core.partition.lease import FREE
from quorumq.core.partition.ready import Kept
from quorumq.core.partition.stored import StoredBatch
from quorumq.core.values.deadnames import DEAD_SUFFIX, source_of
from quorumq.core.values.limits import NUMBERS_END, REFRESHED_PER_STEP, RUNS_PER_STEP
from quorumq.core.values.names import begins_ms
from quorumq.core.values.spans import SpanMap, across
from quorumq.core.values.types import OPEN_ZERO, Group, Kind, Now, PartitionId, ProducerId, Record, Span

NEVER = Now(0.0, 0)

PASSED_OVER = 0.2
"""Cost of passing over a batch that has its turn another time, in looks."""

_new_rule_context: Callable[[tuple[Any, ...]], RuleContext] = partial(tuple.__new__, RuleContext)
"""Makes a `RuleContext` in half the time of its constructor: one is made for each message that is published, held or
settled."""


class Views:
    """The groups of one partition.

    Attributes:
        max_deliveries: the topic's limit of deliveries.
        groups: the views by the group's name, those of dead letters among them.
        over: views of deleted groups, which only keep holds.
        to_reclaim: batches that RECLAIM is to look at, because they may not be needed any more.
        unmade: groups of this partition whose views are still to be made.
        doubted: group ("": all) and session whose reclaimed messages may be wanted, and the number to go on from.
    """

    __slots__ = (
        "batches", "doubted", "groups", "max_deliveries", "min_ballot", "node", "over", "partition", "to_reclaim",
        "unmade",
    )  # fmt: skip

    def __init__(
        self, node: NodeState, partition: PartitionId, batches: Batches, max_deliveries: int
    ) -> None:
        self.node = node
        self.partition = partition
        self.batches = batches
        self.max_deliveries = max_deliveries
        self.groups: dict[str, GroupView] = {}
        self.over: dict[str, GroupView] = {}
        self.to_reclaim: dict[int, None] = {}
        self.unmade: dict[str, None] = {}
        self.doubted: dict[tuple[str, ProducerId], int] = {}
        self.min_ballot = 0  # lower bound of ballots in groups whose views are made later

    def raise_min_ballot(self, stamp: int) -> None:
        """Grant no ballot up to ``stamp`` in any group: a node whose slot this replica has may have granted it.

        Ballots that this replica granted in an earlier slot are not above that, and are dropped.
        """
        self.min_ballot = max(self.min_ballot, stamp)
        for view in self.with_holds():
            view.min_ballot = max(view.min_ballot, stamp)
            view.ballots = SpanMap()

    # ------------------------------------------------------------------ groups

    def begin(self, names: dict[str, None]) -> None:
        """Note groups that read here: their views are made as soon as a step has time for them."""
        # one merge for all groups: a topic may get a thousand partitions with a hundred groups at once
        self.unmade = {**self.unmade, **names}
        self._make()

    def _make(self) -> None:
        while self.unmade and self.node.looks_left > 0:
            name = next(iter(self.unmade))
            del self.unmade[name]
            self.named(name)
        if self.unmade:
            self.node.put_off(self.partition)

    def named(self, name: str) -> GroupView:
        """Return the view of group ``name``; made when first named, at the generation that the group's register names.

        Messages that are stored already count as available since time 0. The view of a deleted group only keeps
        holds.
        """
        view = self.find(name)
        if view is not None:
            return view
        self.unmade.pop(name, None)
        self.node.looks_left -= 1
        deleted = self.is_deleted(name)
        if name.endswith(DEAD_SUFFIX):
            self.named(source_of(name))
        view = (self.over if deleted else self.groups)[name] = self.look(name)
        if view.source is not None:
            view.source.dead = view
        if deleted:
            return view
        if view.source is None:
            self._doubt(name)
        if self.batches.order.size:
            view.backfill = Backfill(view.first_ms, ever=True)
            self.catch_up(view, NEVER)
        return view

    def look(self, name: str) -> GroupView:
        """Return the view of a group, or a temporary one if there is none: reading does not create a group."""
        known = self.find(name)
        if known is not None:
            return known
        min_ballot = max(self.min_ballot, self.node.clock.min_ballot)
        closed = self.batches.closed
        if name.endswith(DEAD_SUFFIX):
            return GroupView(name, min_ballot, closed, self.look(source_of(name)))
        view = GroupView(name, min_ballot, closed)
        topic, catalogue = self.partition.topic, self.node.catalogue
        register = catalogue.groups.get((topic, name)) or catalogue.group(topic, name)
        if register is not None:
            view.read_by(register)
        return view

    def find(self, name: str) -> GroupView | None:
        """Return the view of a group, deleted or not; None if there is none yet."""
        return self.groups.get(name) or self.over.get(name)

    def is_deleted(self, name: str) -> bool:
        """Return True if the group is known to be deleted, or is the dead letters of a deleted one."""
        return self.node.catalogue.is_group_deleted(self.partition.topic, source_of(name))

    def with_holds(self) -> list[GroupView]:
        """Return all views, those of deleted groups included, by name."""
        both = {**self.over, **self.groups}
        return [both[name] for name in sorted(both)]

    def sorted(self) -> list[GroupView]:
        """Return the groups by name, so that two nodes list them alike."""
        return [self.groups[name] for name in sorted(self.groups)]

    def main_groups(self) -> list[GroupView]:
        """Return the groups that have records of their own: those that are not of dead letters."""
        return [view for view in self.groups.values() if view.home is view]

    def on_register(self, register: Group, now: Now) -> None:
        """Take over a group that was created, rewound or deleted: a new generation opens what it covers again."""
        name = register.name
        if register.deleted:
            self._end(register)
            return
        for group in (name, name + DEAD_SUFFIX):
            if group in self.over:
                self.groups[group] = self.over.pop(group)
        view = self.find(name)
        if view is None:
            self.begin({name: None})
            return
        before = (view.generation, view.from_ms, view.last_deletion)
        skipped, paused = view.skipping, view.paused
        view.read_by(register)
        if paused and not view.paused:
            self.node.newly_ready[(self.partition, name)] = None
        anew = before != (view.generation, view.from_ms, view.last_deletion)
        if anew or skipped != view.skipping:
            self._doubt(name)
        for each in (view, view.dead):
            if each is not None and anew:
                self._look_anew(each, now)
            elif each is not None and skipped and not view.skipping:
                self.catch_up(each, now)

    def limit_deliveries(self, most: int, now: Now) -> None:
        """Set the topic's limit of deliveries to ``most``. The messages to deliver apart are worked out again."""
        if most != self.max_deliveries:
            self.max_deliveries = most
            for view in self.groups.values():
                self._look_anew(view, now)

    def _look_anew(self, view: GroupView, now: Now) -> None:
        view.reset_ready()
        view.backfill = Backfill(view.first_ms, ever=False)
        self.catch_up(view, now)

    def _end(self, register: Group) -> None:
        """End a deleted group. Grants from now on, if it is created again, are above all that were made."""
        for name in (register.name, register.name + DEAD_SUFFIX):
            self.unmade.pop(name, None)
            if name in self.groups:
                self.over[name] = self.groups.pop(name)
            if name in self.over:
                if name == register.name:
                    self.over[name].read_by(register)
                self.over[name].end(self.node.clock.value)
        self._doubt("")
        self.to_reclaim.update(dict.fromkeys(self.batches.stored))

    def _want_again(self, view: GroupView, spans: Iterable[Span]) -> None:
        """Mark as absent again what ``view``, new or rewound, would read of ``spans``, which were reclaimed here."""
        for span in spans if not view.skipping else ():
            for part, record in view.record_chunks(span):
                if record.kind in (Kind.OPEN, Kind.DEAD):
                    self.batches.want_again(part)

    def want_anew(self, spans: Iterable[Span]) -> None:
        """Compute anew the wanted parts of ``spans``, reclaimed before or after their records were merged.

        Why: the result must depend only on state that replicas exchange. Otherwise replicas with equal state would
        differ for ever.
        """
        gone = [part for span in spans for part in self.batches.reclaimed.within(span)]
        if not gone:
            return
        for part in gone:
            self.batches.unwant(part)
        for view in self.main_groups():
            self._want_again(view, gone)

    # ------------------------------------------------------- what is done bit by bit

    def _doubt(self, name: str) -> None:
        """Schedule a recheck of the reclaimed messages that a group wants; of all groups if it is ""."""
        if self.batches.reclaimed.runs:
            self.doubted.update(
                dict.fromkeys([(name, producer_id) for producer_id in self.batches.reclaimed.runs], 0)
            )
            self._look_at_doubted()

    def _look_at_doubted(self) -> None:
        while self.doubted and self.node.looks_left > 0:
            (name, producer_id), start = self.doubted.popitem()
            whole = Span(producer_id, start, NUMBERS_END)
            (chunk, runs), *rest = self.batches.reclaimed.cut(whole, RUNS_PER_STEP)
            if rest:
                self.doubted[(name, producer_id)] = chunk.stop
            if not name:
                self.want_anew([chunk])
            elif name in self.groups:
                self._want_again(self.groups[name], self.batches.reclaimed.within(chunk))
            self.node.looks_left -= runs if name else runs * len(self.groups)
        if self.doubted:
            self.node.put_off(self.partition)

    def catch_up(self, view: GroupView, now: Now) -> None:
        """Go on with a group's backfill, as far as this step has time. A group that skips its backlog waits for the end
        of the skip."""
        backfill = view.backfill if not view.home.skipping else None
        while backfill is not None:
            for key in self.batches.order.onward(backfill.key):
                if not self._look_at(view, backfill, self.batches.stored[key[1]], now):
                    self.node.put_off(self.partition)
                    return
            if not backfill.turn():
                view.backfill = backfill = None

    def _look_at(self, view: GroupView, backfill: Backfill, batch: StoredBatch, now: Now) -> bool:
        """Make ready what the group may have of a batch; return False if the step has no time for all of it."""
        spans = batch.header.spans
        made_ms, from_ms = batch.header.published_ms, backfill.from_ms
        covered = made_ms >= from_ms
        if from_ms:
            covered = any(begins_ms(span.producer_id, made_ms) >= from_ms for span in spans)
        if backfill.passes_over(covered):
            if self.node.looks_left <= 0:
                backfill.pause(batch.key, 0, 0)
                return False
            self.node.looks_left -= PASSED_OVER
            return True
        first, seq = backfill.cursor if batch.key == backfill.key else (0, 0)
        for number, section in enumerate(spans[first:], first):
            if not seq and self.is_over(view, section):
                self.node.looks_left -= PASSED_OVER
                self.to_reclaim[batch.number] = None
                continue
            for part, runs in view.chunks(section._replace(start=max(section.start, seq))):
                if self.node.looks_left <= 0:
                    backfill.pause(batch.key, number, part.start)
                    return False
                self.node.looks_left -= runs
                self._refresh_one(view, part, NEVER if backfill.ever else now)
            seq = 0
        return True

    def go_on(self, now: Now) -> bool:
        """Do more of the work that earlier steps had no time for; return True if that was all."""
        self._make()
        for view in list(self.groups.values()):
            self.catch_up(view, now)
        self._look_at_doubted()
        looks = any(view.backfill and not view.home.skipping for view in self.groups.values())
        return not (self.unmade or self.doubted or looks)

    def is_over(self, view: GroupView, section: Span) -> bool:
        """Return True if one record settles the whole section, and the group has no other state of its producer id.

        It is a shortcut: a full pass would find nothing available and nothing to keep.
        """
        producer_id, start, stop = section
        runs = view.home.records.runs.get(producer_id, ())
        if len(runs) != 1 or type(runs) is not tuple or not self.is_untouched(view, producer_id):
            return False
        begin, end, record = runs[0]
        settled = record.kind not in (Kind.OPEN, Kind.DEAD) and record.generation >= view.home.generation
        return settled and begin <= start and stop <= end

    def is_untouched(self, view: GroupView, producer_id: ProducerId) -> bool:
        """Return True if the group has offered and kept nothing of a session, and has nothing but records of it."""
        return not (
            producer_id in view.leases.runs
            or producer_id in view.available.spans.runs
            or producer_id in view.suspects.spans.runs
            or producer_id in view.kept.spans.runs
        )

    def begin_backfill(self, view: GroupView, span: Span, record: Record, changes: Changes) -> bool:
        """Settle messages of an unknown producer id for a group that skips its backlog; return False in other cases.

        It is a fast path of `fate.on_merge`: nothing was offered yet, and the backlog is examined afterwards.
        """
        home, producer_id = view.home, span.producer_id
        if (
            not home.skipping
            or home.backfill is None
            or home.dead is not None
            or producer_id in home.records.runs
        ):
            return False
        if (
            record.generation < home.last_deletion
            or producer_id in self.batches.closed
            or not self.is_untouched(home, producer_id)
        ):
            return False
        home.records.put(span, record)
        home.digests.stale[producer_id] = None
        changes.records.append(SpanRecord(span, record))
        return True

    # ------------------------------------------------------------ availability

    def apply(
        self, view: GroupView, span: Span, rule: Rule | None, ask: Any, now: Now, changes: Changes
    ) -> list[tuple[Span, Any]]:
        """Have ``rule`` (core/partition/fate.py) decide about each message of ``span``, batch by batch.

        Returns:
            Its answers, joined if they are the same.
        """
        closed = bool(self.batches.closed.numbers.runs) and span.producer_id in self.batches.closed
        read = view.name in self.groups
        answers: list[tuple[Span, Any]] = []
        for part, location in self.batches.index.split(span):
            if location is None or not read:
                rule_context, key = view.rule_context(now.mono, unseen=True, closed=closed), None
            else:
                rule_context, key = self._rule_context_of(
                    view, part.producer_id, self.batches.stored[location.number], now
                )
            answers_of_part = view.apply(part, rule, ask, rule_context, changes, key)
            if not answers:
                answers = answers_of_part
                continue
            for answer in answers_of_part:
                join(answers, answer)
        return answers

    def _rule_context_of(
        self, view: GroupView, producer_id: ProducerId, batch: StoredBatch, now: Now
    ) -> tuple[RuleContext, tuple[int, int] | None]:
        """Return the inputs of rules for the messages of a section; and the key of its batch, if that is durable."""
        header = batch.header
        early = batch.due - now.mono if batch.number in self.batches.waiting else 0.0
        home = view.home
        covered = not home.from_ms or view.covers(producer_id, header.published_ms)
        born = batch.born
        if batch.number < self.node.uncertain_below and self.node.is_uncertain(now):
            born = now.mono
        rule_context = _new_rule_context((
            now.mono, home is not view, home.generation, view.min_ballot, covered, early, born,
            header.ttl_ms / 1000, False, False, home.last_deletion, self.max_deliveries,
        ))  # fmt: skip
        return rule_context, batch.key if batch.durable else None

    def finish(self, view: GroupView, changes: Changes, now: Now) -> tuple[JournalRecord, ...]:
        """Carry out the consequences of a pass (wake FETCHes, set timers, queue batches for RECLAIM); return its
        journal records."""
        for name in changes.gained:
            self.node.newly_ready[(self.partition, name)] = None
        for time, name, part in changes.wakes:
            self.node.at(time, ("refresh", self.partition, name, part))
        for number in changes.unavailable:
            self.to_reclaim[number] = None
        if not (changes.records or changes.delays or changes.counted):
            return ()
        records: list[JournalRecord] = []
        if changes.records:
            if self.batches.reclaimed.runs:
                self.want_anew([span for span, _ in changes.records])  # a redrive may have opened it
            records.append(RecordsMerged(self.partition, view.home.name, tuple(changes.records)))
        if changes.delays:
            records.append(self.delays_set(view, tuple(changes.delays), now))
        if changes.counted:
            if not (self.node.disk_shortage and self.node.no_capacity(AttemptsCounted)):
                records.append(AttemptsCounted(self.partition, view.name, tuple(changes.counted)))
            if view.kept.count(fate.EXHAUSTED):
                self.node.bury_soon(self.partition, view.name, now)
        return tuple(records)

    def delays_set(self, view: GroupView, delays: tuple[NotDue, ...], now: Now) -> DelaysSet:
        """Return the record of delays that are counted from now."""
        start, mono_ms = self.node.incarnation.n, int(1000 * now.mono)
        return DelaysSet(self.partition, view.name, now.wall_ms, delays, start, mono_ms)

    def refresh(self, view: GroupView, span: Span, now: Now) -> None:
        """Work out again which of ``span`` is available to the group: a timer, or something beside the rules, says so.

        A group and the group of its dead letters have their records in common, so both are looked at.
        """
        home = view.home
        self._refresh_one(home, span, now)
        if home.dead is not None:
            self._refresh_one(home.dead, span, now)

    def refresh_batch(self, batch: StoredBatch, now: Now, first: int = 0) -> None:
        """Refresh a durable, or due, batch: its spans from index ``first`` on, as many as one step has time for."""
        stop = first + max(1, REFRESHED_PER_STEP // max(1, len(self.groups)))
        for section in batch.header.spans[first:stop]:
            for view in self.groups.values():
                self._refresh_one(view, section, now)
        if stop < len(batch.header.spans):
            self.node.at(now.mono, ("batch", self.partition, batch.number, stop))

    def refresh_all(self, now: Now) -> None:
        """Refresh all groups after the journal was read."""
        self.want_anew(self.batches.reclaimed.items())
        for view in self.groups.values():
            for span, _ in self.batches.index.items():
                self._refresh_one(view, span, now)

    def _refresh_one(self, view: GroupView, span: Span, now: Now) -> None:
        changes = Changes()
        self.apply(view, span, None, None, now, changes)
        self.finish(view, changes, now)

    def withdraw(self, batch: StoredBatch, spans: list[Span]) -> None:
        """Make ``spans`` unavailable to all groups: the batch that they were in is not here any more."""
        self.to_reclaim.pop(batch.number, None)
        for view in self.groups.values():
            view.available.withdraw(batch.key, spans)
            view.suspects.withdraw(batch.key, spans)
            view.kept.withdraw(batch.key, spans)

    def raise_min_ballots(self, spans: list[Span]) -> None:
        """Raise the minimum ballots of ``spans``, whose payload was stored again, to our clock: no forgotten grant is
        above it."""
        for view in self.groups.values():
            for span in spans:
                self.note(view, span, fate.on_return, self.node.clock.value)

    def discard(self, spans: Iterable[Span]) -> None:
        """Drop state that was kept for the payload of ``spans`` alone, as the payload is gone."""
        for view in self.groups.values():
            for span in spans:
                self.note(view, span, fate.on_reclaim, None)

    def note(self, view: GroupView, span: Span, rule: Rule, ask: Any, now: float = 0.0) -> None:
        """Apply changes that are in the journal already, when availability does not change or is computed later."""
        rule_context = view.rule_context(now, closed=span.producer_id in self.batches.closed)
        view.apply(span, rule, ask, rule_context, Changes())

    def check(self, now: Now) -> None:
        """Assert what holds between any two events; what is offered is compared with its definition."""
        batches = self.batches
        for name in self.unmade:
            assert not self.is_deleted(name), f"{name} was deleted, and its view is to be made"
        for view in self.over.values():
            view.check()
            assert self.is_deleted(view.name), f"{view.name} is kept as deleted, and was created again"
            assert not view.available.messages + view.suspects.messages, (
                f"{view.name} was deleted, and something is available to it"
            )
        for view in self.groups.values():
            view.check()
            assert not self.is_deleted(view.name), f"{view.name} was deleted, and is read"
            anew = Kept()
            for span, location in batches.index.items():
                batch = batches.stored[location.number]
                rule_context, key = self._rule_context_of(view, span.producer_id, batch, now)
                free: tuple[SpanMap[int], SpanMap[int]] = (SpanMap(), SpanMap())
                for part, (record, lease) in across(span, (view.home.records, view.leases)):
                    why = fate.standing(record or OPEN_ZERO, lease or FREE, rule_context)
                    if why == fate.READY:
                        lot = fate.lot_at(record or OPEN_ZERO, lease or FREE, rule_context)
                        free[lot > 0].put(part, lot)
                    elif key is not None and why is not None:
                        anew.put(key, part, None, why)
                for ready, expected in zip((view.available, view.suspects), free, strict=True):
                    have = ready.spans.within(span)
                    if not batch.durable or location.number in batches.waiting:
                        assert not have, f"{span} is available too early"
                        continue
                    if view.home.skipping:  # the rest of them is looked at when the group has begun
                        due = [part for before, _ in have for part in expected.within(before)]
                    else:
                        due = expected.items()
                    assert have == due, f"{view.name}: offered is {have}, should be {expected}"
            for ready in (view.available, view.suspects):
                counts: dict[int, int] = {}
                for span, _ in ready.spans.items():
                    for part, location in batches.index.within(span):
                        counts[location.number] = counts.get(location.number, 0) + part.size
                ready.batches.check()
                have_counts = {number: count for _, number, _, count in ready.batches}
                assert counts == have_counts, f"{view.name}: has {have_counts} ready, should have {counts}"
            if not view.home.skipping:
                view.kept.spans.check()
                for name in ("spans", "batches", "messages"):
                    expected, kept = getattr(anew, name), getattr(view.kept, name)
                    assert expected == kept, f"{view.name}: kept by {name} is {kept}, should be {expected}"
