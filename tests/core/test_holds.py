"""The hold table: one owner at a time, which no other replaces (docs/protocol.md, ON HOLD and section 4)."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from quorumq.core.partition import fate
from quorumq.core.values.types import Death, Incarnation, Kind, Owner, ProducerId, Record, Span, Stamp
from tests.core.holding import Holding

PRODUCER_ID = ProducerId("a", 1, 7, 1)
MIN_BALLOT = 10


def span(start: int = 0, stop: int = 10) -> Span:
    return Span(PRODUCER_ID, start, stop)


def owner(time: int, node: str = "a", n: int = 1) -> Owner:
    return Owner(node, Incarnation(n, 1), Stamp(time, node))


def test_a_hold_excludes_every_other_owner_until_its_deadline() -> None:
    table = Holding(MIN_BALLOT)
    assert table.hold(span(), owner(11), 0.0, 5.0) == ([span()], [])
    granted, refused = table.hold(span(), owner(99, "b"), 1.0, 5.0)
    assert granted == []
    assert [(part, no.remaining) for part, no in refused] == [(span(), 4.0)]
    assert table.expire(span(), 4.9) == []
    assert table.expire(span(), 5.0) == [span()]
    assert table.hold(span(), owner(99, "b"), 5.0, 5.0)[0] == [span()]


def test_the_same_attempt_is_granted_again_and_never_shortened() -> None:
    table = Holding(MIN_BALLOT)
    table.hold(span(), owner(11), 0.0, 5.0)
    assert table.hold(span(), owner(11), 1.0, 1.0)[0] == [span()]
    assert table.expire(span(), 4.9) == []


def test_a_dead_letter_that_was_learned_beside_a_later_grant_proves_no_retry_of_its_reject() -> None:
    """The later delivery may yet be won: by this grant, and by those of replicas that have not learned of it."""
    dead = Record(0, 0, Kind.DEAD, Death(owner(11).ballot, "rejected"))
    for later, proof in ((False, True), (True, False)):
        table = Holding(MIN_BALLOT)
        table.hold(span(), owner(11), 0.0, 5.0)
        table.expire(span(), 5.0)
        if later:
            assert table.hold(span(), owner(20, "b"), 5.0, 5.0)[0] == [span()]
        table.ask(span(), fate.on_merge, dead, 6.0)
        assert table.ask(span(), fate.on_reject, fate.RejectAsk(owner(11), dead, ()), 6.0) == [
            (span(), (proof, None))
        ]


def test_another_incarnation_or_ballot_of_the_same_node_is_another_owner() -> None:
    table = Holding(MIN_BALLOT)
    table.hold(span(), owner(11), 0.0, 5.0)
    assert table.hold(span(), owner(12), 0.0, 5.0)[0] == []
    assert table.hold(span(), Owner("a", Incarnation(2, 1), Stamp(13, "a")), 0.0, 5.0)[0] == []


def test_ballots_at_or_below_the_min_ballot_or_the_highest_granted_are_refused() -> None:
    table = Holding(MIN_BALLOT)
    assert table.hold(span(), owner(10), 0.0, 5.0)[1][0][1].highest == Stamp(MIN_BALLOT, "")
    table.hold(span(0, 5), owner(20), 0.0, 5.0)
    table.release(span(), owner(20))
    granted, refused = table.hold(span(), owner(15, "b"), 0.0, 5.0)
    assert granted == [span(5, 10)]
    assert [(part, no.highest, no.remaining) for part, no in refused] == [(span(0, 5), Stamp(20, "a"), 0.0)]


def test_an_extend_shortens_no_hold() -> None:
    table = Holding(MIN_BALLOT)
    table.hold(span(), owner(11), 0.0, 5.0)
    assert table.extend(span(0, 5), owner(11), 3.0) == ([span(0, 5)], [])
    assert table.expire(span(), 4.9) == []


def test_dropped_ballots_raise_the_min_ballot_of_their_messages() -> None:
    table = Holding(MIN_BALLOT)
    table.hold(span(), owner(11), 0.0, 5.0)
    table.release(span(), owner(11))
    table.ask(span(), fate.on_reclaim, None)
    table.ask(span(0, 5), fate.on_return, 50)
    assert table.exclusive(span(), owner(50)) == ([span(5, 10)], []), (
        "0 to 4: neither exclusive nor overtaken"
    )
    granted, refused = table.hold(span(), owner(50, "b"), 0.0, 5.0)
    assert granted == [span(5, 10)]
    assert [(part, no.highest) for part, no in refused] == [(span(0, 5), Stamp(50, ""))]
    assert table.hold(span(0, 5), owner(51, "b"), 0.0, 5.0)[0] == [span(0, 5)]
    assert table.exclusive(span(0, 5), owner(51, "b")) == ([span(0, 5)], [])
    table.ask(span(), fate.on_reclaim, None)
    assert not table.view.ballots


def test_the_min_ballot_itself_may_have_been_granted() -> None:
    table = Holding(MIN_BALLOT)
    assert table.exclusive(span(), owner(MIN_BALLOT)) == ([], [])
    assert table.exclusive(span(), owner(MIN_BALLOT + 1)) == ([span()], [])


def test_release_matches_the_owner_exactly() -> None:
    table = Holding(MIN_BALLOT)
    table.hold(span(), owner(11), 0.0, 5.0)
    assert table.release(span(), owner(12)) == []
    assert table.release(span(), Owner("a", Incarnation(2, 1), Stamp(11, "a"))) == []
    assert table.release(span(2, 4), owner(11)) == [span(2, 4)]
    assert [part for part, _ in table.holds()] == [span(0, 2), span(4, 10)]


def test_extend_is_for_the_owner_that_holds_now() -> None:
    table = Holding(MIN_BALLOT)
    table.hold(span(0, 5), owner(11), 0.0, 5.0)
    assert table.extend(span(), owner(11), 9.0) == ([span(0, 5)], [span(5, 10)])
    assert table.expire(span(), 5.0) == []
    assert table.extend(span(0, 5), owner(12), 9.0) == ([], [span(0, 5)])
    table.expire(span(), 9.0)
    assert table.extend(span(0, 5), owner(11), 20.0) == ([], [span(0, 5)])


def test_exclusivity_is_known_only_above_the_min_ballot() -> None:
    table = Holding(MIN_BALLOT)
    table.hold(span(0, 5), owner(20), 0.0, 5.0)
    assert table.exclusive(span(), owner(20)) == ([span(0, 5), span(5, 10)], [])
    assert table.exclusive(span(), owner(15)) == ([span(5, 10)], [span(0, 5)])
    assert table.exclusive(span(5, 10), owner(9)) == ([], [])


SEQS = st.integers(0, 11)
OWNERS = st.builds(owner, st.integers(8, 20), st.sampled_from(["a", "b"]), st.integers(1, 2))


class HoldMachine(RuleBasedStateMachine):
    """Against a dictionary from single messages to (owner, deadline): the same answers, always."""

    def __init__(self) -> None:
        super().__init__()
        self.table = Holding(MIN_BALLOT)
        self.now = 0.0
        self.held: dict[int, tuple[Owner, float]] = {}
        self.highest: dict[int, Stamp] = {}

    @rule(low=SEQS, size=st.integers(1, 6), who=OWNERS, time=st.floats(1, 5))
    def hold(self, low: int, size: int, who: Owner, time: float) -> None:
        self.discard()
        granted, refused = self.table.hold(span(low, low + size), who, self.now, time)
        yes = {seq for part in granted for seq in range(part.start, part.stop)}
        no = {seq for part, _ in refused for seq in range(part.start, part.stop)}
        assert yes | no == set(range(low, low + size))
        assert not yes & no
        for seq in range(low, low + size):
            current = self.held.get(seq)
            if current is not None:
                expected = current[0] == who
                if expected:
                    self.held[seq] = (who, max(current[1], self.now + time))
            else:
                above = self.highest.get(seq)
                expected = who.ballot.time > MIN_BALLOT if above is None else who.ballot > above
                if expected:
                    self.held[seq] = (who, self.now + time)
                    self.highest[seq] = who.ballot
            assert (seq in yes) == expected

    @rule(low=SEQS, size=st.integers(1, 6), who=OWNERS)
    def release(self, low: int, size: int, who: Owner) -> None:
        self.table.release(span(low, low + size), who)
        for seq in range(low, low + size):
            if seq in self.held and self.held[seq][0] == who:
                del self.held[seq]

    @rule(low=SEQS, size=st.integers(1, 6), who=OWNERS, time=st.floats(1, 5))
    def extend(self, low: int, size: int, who: Owner, time: float) -> None:
        self.discard()
        granted, _ = self.table.extend(span(low, low + size), who, self.now + time, self.now)
        yes = {seq for part in granted for seq in range(part.start, part.stop)}
        for seq in range(low, low + size):
            ours = seq in self.held and self.held[seq][0] == who
            assert (seq in yes) == ours
            if ours:
                self.held[seq] = (who, max(self.held[seq][1], self.now + time))

    @rule(seconds=st.floats(0.1, 3))
    def time_passes(self, seconds: float) -> None:
        """The timers may be late: an expired hold blocks no message."""
        self.now += seconds

    @rule()
    def expire(self) -> None:
        self.table.expire(span(0, 100), self.now)

    def discard(self) -> None:
        self.held = {seq: item for seq, item in self.held.items() if item[1] > self.now}

    @invariant()
    def tables_agree(self) -> None:
        self.discard()
        self.table.view.check()
        actual = {
            seq: (held.owner, held.deadline)
            for part, held in self.table.holds()
            if held.deadline > self.now
            for seq in range(part.start, part.stop)
        }
        assert actual == self.held


TestHoldMachine = HoldMachine.TestCase
TestHoldMachine.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
