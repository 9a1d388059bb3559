"""The fate of one message, and the runs of messages that share one.

The dumb twin keeps everything per message in plain dicts, and asks the very same rules about each. So the test is of
the pass that lifts a rule to runs: its writes, joined runs, journal and ready messages.
"""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from quorumq.core.messages import Counted
from quorumq.core.partition import fate
from quorumq.core.partition.attempts import Attempts
from quorumq.core.partition.closed import ClosedSessions
from quorumq.core.partition.fate import Delay
from quorumq.core.partition.group import Changes, GroupView
from quorumq.core.partition.lease import FREE, NO_BALLOTS, Ballots, Held, Lease
from quorumq.core.values.types import (
    OPEN_ZERO,
    Death,
    Incarnation,
    Kind,
    Owner,
    ProducerId,
    Record,
    Span,
    Stamp,
)

PRODUCER_ID = ProducerId("a", 1, 7, 1)
MIN_BALLOT = 10
MESSAGES = 16
BATCHES = (Span(PRODUCER_ID, 0, 5), Span(PRODUCER_ID, 5, 6), Span(PRODUCER_ID, 6, MESSAGES))


def owner(time: int, node: str = "a", n: int = 1) -> Owner:
    return Owner(node, Incarnation(n, 1), Stamp(time, node))


def death(time: int) -> Death:
    return Death(Stamp(time, "a"), "rejected")


SPANS = st.builds(
    lambda start, size: Span(PRODUCER_ID, start, min(MESSAGES, start + size)),
    st.integers(0, 15),
    st.integers(1, 9),
)
OWNERS = st.builds(owner, st.integers(8, 20), st.sampled_from("ab"), st.integers(1, 2))
TIMES = st.sampled_from([1.0, 2.0, 5.0])
GENERATIONS = st.sampled_from([0, 3])
REDRIVES = st.integers(0, 1)
RECORDS = st.one_of(
    st.builds(lambda g: Record(g, 0, Kind.ACKED), GENERATIONS),
    st.builds(lambda g, n: Record(g, n, Kind.OPEN), GENERATIONS, REDRIVES),
    st.builds(lambda g, n: Record(g, n, Kind.SKIPPED), GENERATIONS, REDRIVES),
    st.builds(lambda g, n, t: Record(g, n, Kind.DEAD, death(t)), GENERATIONS, REDRIVES, st.integers(1, 2)),
)


class Twin:
    """One view, message by message."""

    def __init__(self, records: dict[int, Record]) -> None:
        self.records = records
        self.leases: dict[int, Lease] = {}
        self.ballots: dict[int, Ballots] = {}

    def of(self, seq: int) -> tuple[Record, Lease, Ballots]:
        return (
            self.records.get(seq, OPEN_ZERO),
            self.leases.get(seq, FREE),
            self.ballots.get(seq, NO_BALLOTS),
        )


class FateMachine(RuleBasedStateMachine):
    """A group and its dead letters, in runs and in dicts."""

    def __init__(self) -> None:
        super().__init__()
        source = GroupView("g", MIN_BALLOT, ClosedSessions())
        source.dead = GroupView("g!dead", MIN_BALLOT, ClosedSessions(), source)
        records: dict[int, Record] = {}
        self.views = (source, source.dead)
        self.twins = (Twin(records), Twin(records))
        self.now = 0.0
        self.both()

    def rule_context(self, which: int, batch: int) -> fate.RuleContext:
        """The second batch is early, the third one was published before the generation begins."""
        covered = batch < 2 or self.views[0].generation == 0
        early = 4.5 - self.now if batch == 1 and self.now < 4.5 else 0.0
        fields = self.views[which].rule_context(self.now, covered, early, ttl=1.0 if batch == 2 else 0.0)
        return fields._replace(max_deliveries=4)

    def ask(self, which: int, span: Span, step: Any, input_: Any) -> None:
        """Have both be asked, and compare the answers and the journal."""
        view, twin = self.views[which], self.twins[which]
        changes = Changes()
        answers: dict[int, Any] = {}
        expected: dict[int, Any] = {}
        records: dict[int, Record] = {}
        attempts: dict[int, Attempts] = {}
        delays: set[tuple[int, Delay]] = set()
        for number, batch in enumerate(BATCHES):
            part = Span(PRODUCER_ID, max(span.start, batch.start), min(span.stop, batch.stop))
            if part.start >= part.stop:
                continue
            fields = self.rule_context(which, number)
            key = None if fields.early else (0, number)
            for chunk, answer in view.apply(part, step, input_, fields, changes, key):
                for seq in range(chunk.start, chunk.stop):
                    assert seq not in answers
                    answers[seq] = answer
            for seq in range(part.start, part.stop) if step is not None else ():
                before = twin.of(seq)
                record, lease, ballots, answer = step(*before, fields, input_)
                twin.records[seq], twin.leases[seq], twin.ballots[seq] = record, lease, ballots
                if answer is not None:
                    expected[seq] = answer
                if record != before[0]:
                    records[seq] = record
                if lease.attempts not in (before[1].attempts, None):
                    attempts[seq] = lease.attempts
                if lease.delay not in (before[1].delay, None):
                    delays.add((seq, lease.delay))
                if lease.claim not in (before[1].claim, None):
                    delays.add((seq, lease.claim))
        assert answers == expected
        assert {seq: entry.record for entry in changes.records for seq in seqs(entry)} == records
        assert {seq: counted(entry) for entry in changes.counted for seq in seqs(entry)} == attempts
        assert {
            (seq, entry.n, entry.ballot, entry.generation, entry.claimed)
            for entry in changes.delays
            for seq in seqs(entry)
        } == {
            (seq, delay.n, delay.ballot, delay.generation, delay.claim is not None) for seq, delay in delays
        }

    def both(self) -> None:
        """Compute the ready messages again, as a timer does, or a batch that is due."""
        for which in (0, 1):
            self.ask(which, Span(PRODUCER_ID, 0, MESSAGES), None, None)

    @rule(which=st.integers(0, 1), span=SPANS, who=OWNERS, time=TIMES, generation=GENERATIONS, n=REDRIVES)
    def hold(self, which: int, span: Span, who: Owner, time: float, generation: int, n: int) -> None:
        asked = self.views[which].asked(generation, n)
        self.ask(which, span, fate.on_hold, fate.HoldAsk(who, asked, self.now + time, 2, 0.0))

    @rule(which=st.integers(0, 1), span=SPANS, who=OWNERS, theirs=st.booleans())
    def release(self, which: int, span: Span, who: Owner, theirs: bool) -> None:
        self.ask(which, span, fate.on_release, fate.ReleaseAsk(who, theirs))

    @rule(which=st.integers(0, 1), span=SPANS, who=OWNERS, time=TIMES)
    def extend(self, which: int, span: Span, who: Owner, time: float) -> None:
        self.ask(which, span, fate.on_extend, fate.ExtendAsk(who, self.now + time))

    @rule(which=st.integers(0, 1), span=SPANS, who=OWNERS, generation=GENERATIONS, n=REDRIVES)
    def ack(self, which: int, span: Span, who: Owner, generation: int, n: int) -> None:
        self.ask(which, span, fate.on_ack, fate.AckAsk(who, self.views[which].ack_record(generation, n)))

    @rule(
        which=st.integers(0, 1),
        span=SPANS,
        who=OWNERS,
        generation=GENERATIONS,
        n=REDRIVES,
        dead=st.booleans(),
        interrupted=st.booleans(),
    )
    def reject(
        self, which: int, span: Span, who: Owner, generation: int, n: int, dead: bool, interrupted: bool
    ) -> None:
        asked = self.views[which].asked(generation, n)
        if dead and which == 0:
            asked = Record(generation, n, Kind.DEAD, death(who.ballot.time))
        self.ask(which, span, fate.on_reject, fate.RejectAsk(who, asked, (1.0, 3.0), interrupted))

    @rule(span=SPANS, record=RECORDS)
    def merge(self, span: Span, record: Record) -> None:
        self.ask(0, span, fate.on_merge, record)

    @rule(which=st.integers(0, 1), span=SPANS, who=OWNERS, time=TIMES)
    def reported(self, which: int, span: Span, who: Owner, time: float) -> None:
        granted = [it.highest for _, it in self.views[which].ballots.within(span) if it.highest is not None]
        if granted and min(granted) < who.ballot:
            return  # RECOVERY ends before this start grants anything: a report is never above what was granted
        self.ask(which, span, fate.on_reported, Held(who, self.now + time, 0))

    @rule(
        span=SPANS,
        generation=GENERATIONS,
        ended=st.integers(1, 3),
        suspect=st.booleans(),
        interruptions=st.integers(0, 2),
    )
    def counted(self, span: Span, generation: int, ended: int, suspect: bool, interruptions: int) -> None:
        self.ask(0, span, fate.on_counted, Attempts(generation, 0, ended, suspect, 0, interruptions))

    @rule(span=SPANS, generation=GENERATIONS, n=REDRIVES, ballot=st.integers(8, 20), time=TIMES)
    def delayed(self, span: Span, generation: int, n: int, ballot: int, time: float) -> None:
        self.ask(0, span, fate.on_delay, Delay(n, Stamp(ballot, "a"), self.now + time, generation))

    @rule(which=st.integers(0, 1), span=SPANS, time=TIMES)
    def deferred(self, which: int, span: Span, time: float) -> None:
        self.ask(which, span, fate.on_defer, self.now + time)

    @rule(which=st.integers(0, 1), span=SPANS, min_ballot=st.integers(8, 20))
    def reclaimed(self, which: int, span: Span, min_ballot: int) -> None:
        self.ask(which, span, fate.on_reclaim, None)
        self.ask(which, span, fate.on_return, min_ballot)

    @rule()
    def rewind(self) -> None:
        self.views[0].generation = 3
        self.both()

    @rule(seconds=st.sampled_from([0.5, 2.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        for which in (0, 1):
            self.ask(which, Span(PRODUCER_ID, 0, MESSAGES), fate.on_expire, None)
        self.both()

    @invariant()
    def they_agree(self) -> None:
        for which, (view, twin) in enumerate(zip(self.views, self.twins, strict=True)):
            view.check()
            offered: dict[bool, dict[int, int]] = {False: {}, True: {}}
            for seq in range(MESSAGES):
                record, lease, ballots = twin.of(seq)
                assert (view.home.records.get(PRODUCER_ID, seq) or OPEN_ZERO) == record
                assert (view.leases.get(PRODUCER_ID, seq) or FREE) == lease
                assert (view.ballots.get(PRODUCER_ID, seq) or NO_BALLOTS) == ballots
                number = next(at for at, batch in enumerate(BATCHES) if batch.start <= seq < batch.stop)
                fields = self.rule_context(which, number)
                free = fate.standing(record, lease, fields) == fate.READY
                lot = fate.lot_at(record, lease, fields) if free else None
                assert view.suspects.spans.get(PRODUCER_ID, seq) == (lot or None)
                assert view.available.spans.get(PRODUCER_ID, seq) == (None if lot else lot)
                if lot is not None:
                    offered[lot > 0][number] = offered[lot > 0].get(number, 0) + 1
            for alone, digests in ((False, view.available), (True, view.suspects)):
                assert offered[alone] == {number: count for _, number, _, count in digests.batches}
            lasting = [lease.attempts or lease.delay for lease in twin.leases.values()]
            if which == 0:
                lasting += [record != OPEN_ZERO for record in twin.records.values()]  # type: ignore[misc]
            assert bool(view.lasting_producer_ids()) == any(lasting)


def seqs(entry: Any) -> range:
    return range(entry.span.start, entry.span.stop)


def counted(entry: Counted) -> Attempts:
    return Attempts(entry.generation, entry.n, entry.ended, *entry[4:])


TestFateMachine = FateMachine.TestCase
TestFateMachine.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)


def test_the_death_of_the_lower_ballot_is_kept() -> None:
    fields = GroupView("g", MIN_BALLOT, ClosedSessions()).rule_context(0.0)
    first, second = (Record(0, 0, Kind.DEAD, death(time)) for time in (1, 2))
    for ours, theirs in ((first, second), (second, first)):
        kept, _, _, _ = fate.on_merge(ours, FREE, NO_BALLOTS, fields, theirs)
        assert kept.death == death(1)
