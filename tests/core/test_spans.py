"""SpanMap and SpanSet against a dict and a set of single messages, which cannot get intervals wrong."""

from __future__ import annotations

import random
from typing import ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from quorumq.core.values.spanlists import merge_spans, subtract
from quorumq.core.values.spans import SpanMap, SpanSet
from quorumq.core.values.types import ProducerId, Span

# In this order on purpose: it is not the sorted one, so a listing in order of arrival is seen.
PRODUCER_IDS = [ProducerId("node-c", 1, 7, 0), ProducerId("node-a", 2, 9, 1), ProducerId("node-b", 1, 8, 0)]
A, B, C = PRODUCER_IDS
SEQ_MAX = 40

producer_ids = st.sampled_from(PRODUCER_IDS)
values = st.sampled_from(["x", "y", "z"])
seqs = st.integers(0, SEQ_MAX)


@st.composite
def spans(draw: st.DrawFn) -> Span:
    start, stop = sorted((draw(seqs), draw(seqs)))  # may be empty: that is legal, and does nothing
    return Span(draw(producer_ids), start, stop)


class TinyMap(SpanMap[str]):
    """A SpanMap that is large at 4 runs, so that short programs cross both borders many times."""

    SMALL_MAX: ClassVar[int] = 3
    SMALL_AGAIN: ClassVar[int] = 1


class TinySet(SpanSet):
    SMALL_MAX: ClassVar[int] = 3
    SMALL_AGAIN: ClassVar[int] = 1


Model = dict[tuple[ProducerId, int], str]


def members(span: Span) -> list[tuple[ProducerId, int]]:
    return [(span.producer_id, seq) for seq in range(span.start, span.stop)]


def naive_split(model: Model, span: Span) -> list[tuple[Span, str | None]]:
    """``span`` cut wherever the value changes, one message at a time."""
    parts: list[tuple[Span, str | None]] = []
    for producer_id, seq in members(span):
        value = model.get((producer_id, seq))
        if parts and parts[-1][1] == value:
            parts[-1] = (Span(producer_id, parts[-1][0].start, seq + 1), value)
        else:
            parts.append((Span(producer_id, seq, seq + 1), value))
    return parts


def naive_items(model: Model) -> list[tuple[Span, str]]:
    return [
        (span, value)
        for producer_id in sorted(PRODUCER_IDS)
        for span, value in naive_split(model, Span(producer_id, 0, SEQ_MAX + 1))
        if value is not None
    ]


def naive_gaps(model: Model, span: Span) -> list[Span]:
    return [part for part, value in naive_split(dict.fromkeys(model, "in"), span) if value is None]


class MapMachine(RuleBasedStateMachine):
    """A SpanMap and its clones are dicts that know nothing of each other."""

    make: type[SpanMap[str]] = SpanMap[str]

    def __init__(self) -> None:
        super().__init__()
        self.pairs: list[tuple[SpanMap[str], Model]] = [(type(self).make(), {})]

    def pick(self, data: st.DataObject) -> tuple[SpanMap[str], Model]:
        return self.pairs[data.draw(st.integers(0, len(self.pairs) - 1), label="clone")]

    @rule(data=st.data(), span=spans(), value=values)
    def set(self, data: st.DataObject, span: Span, value: str) -> None:
        map_, model = self.pick(data)
        map_.set(span, value)
        model.update(dict.fromkeys(members(span), value))

    @rule(data=st.data(), producer_id=producer_ids, first=st.integers(0, 3), value=values)
    def set_every_fourth(self, data: st.DataObject, producer_id: ProducerId, first: int, value: str) -> None:
        map_, model = self.pick(data)
        for seq in range(first, SEQ_MAX, 4):
            map_.set(Span(producer_id, seq, seq + 1), value)
            model[producer_id, seq] = value

    @rule(data=st.data(), span=spans())
    def remove(self, data: st.DataObject, span: Span) -> None:
        map_, model = self.pick(data)
        expected = [(part, value) for part, value in naive_split(model, span) if value is not None]
        assert map_.remove(span) == expected
        for at in members(span):
            model.pop(at, None)

    @rule(data=st.data(), span=spans(), table=st.fixed_dictionaries(
        {value: st.none() | values for value in (None, "x", "y", "z")}
    ))  # fmt: skip
    def update(self, data: st.DataObject, span: Span, table: dict[str | None, str | None]) -> None:
        map_, model = self.pick(data)
        map_.update(span, lambda value: table[value])
        for at in members(span):
            result = table[model.pop(at, None)]
            if result is not None:
                model[at] = result

    @rule(data=st.data(), span=spans())
    def update_that_fails_changes_nothing(self, data: st.DataObject, span: Span) -> None:
        map_, _ = self.pick(data)
        before = map_.state()
        calls = 0

        def fail_late(_: str | None) -> str:
            nonlocal calls
            calls += 1
            if calls == len(map_.split(span)):
                raise KeyError("late")
            return "new"

        if span.size:
            with pytest.raises(KeyError):
                map_.update(span, fail_late)
        assert map_.state() == before

    @precondition(lambda self: len(self.pairs) < 4)
    @rule(data=st.data())
    def clone(self, data: st.DataObject) -> None:
        map_, model = self.pick(data)
        self.pairs.append((map_.clone(), dict(model)))

    @rule(data=st.data(), span=spans())
    def ask(self, data: st.DataObject, span: Span) -> None:
        map_, model = self.pick(data)
        split = naive_split(model, span)
        assert map_.split(span) == split
        assert map_.within(span) == [(part, value) for part, value in split if value is not None]
        assert map_.gaps(span) == naive_gaps(model, span)
        assert map_.covers(span) == all(at in model for at in members(span))
        for producer_id, seq in [(span.producer_id, span.start), (span.producer_id, span.stop)]:
            assert map_.get(producer_id, seq) == model.get((producer_id, seq))

    @invariant()
    def is_the_model(self) -> None:
        for map_, model in self.pairs:
            map_.check()
            items = naive_items(model)
            assert map_.items() == items
            assert map_.spans == len(items)
            assert map_.messages == len(model)
            assert bool(map_) == bool(model)
            assert sorted(map_.runs) == sorted({producer_id for producer_id, _ in model})
            for producer_id in PRODUCER_IDS:
                assert map_.spans_of(producer_id) == [
                    item for item in items if item[0].producer_id == producer_id
                ]

    @invariant()
    def state_and_digest_know_only_the_content(self) -> None:
        for map_, model in self.pairs:
            # Built again a message at a time, backwards, and never large before the end.
            again = type(self).make()
            for (producer_id, seq), value in sorted(model.items(), reverse=True):
                again.set(Span(producer_id, seq, seq + 1), value)
            assert again.state() == map_.state()
            assert hash(again.state()) == hash(map_.state())
            assert again == map_
            for producer_id in PRODUCER_IDS:
                assert again.content(producer_id) == map_.content(producer_id)
                assert again.content(producer_id, str.encode) == map_.content(producer_id, str.encode)


class TinyMapMachine(MapMachine):
    """The same with the storage of large maps."""

    make = TinyMap


class SetMachine(RuleBasedStateMachine):
    """A SpanSet and its clones are sets that know nothing of each other."""

    make: type[SpanSet] = SpanSet

    def __init__(self) -> None:
        super().__init__()
        self.pairs: list[tuple[SpanSet, Model]] = [(type(self).make(), {})]

    def pick(self, data: st.DataObject) -> tuple[SpanSet, Model]:
        return self.pairs[data.draw(st.integers(0, len(self.pairs) - 1), label="clone")]

    @rule(data=st.data(), span=spans())
    def add(self, data: st.DataObject, span: Span) -> None:
        set_, model = self.pick(data)
        expected = naive_gaps(model, span)
        assert set_.add(span) == expected
        model.update(dict.fromkeys(members(span), "in"))

    @rule(data=st.data(), span=spans())
    def remove(self, data: st.DataObject, span: Span) -> None:
        set_, model = self.pick(data)
        expected = [part for part, value in naive_split(model, span) if value is not None]
        assert set_.within(span) == expected
        assert set_.remove(span) == expected
        for at in members(span):
            model.pop(at, None)

    @precondition(lambda self: len(self.pairs) < 4)
    @rule(data=st.data())
    def clone(self, data: st.DataObject) -> None:
        set_, model = self.pick(data)
        self.pairs.append((set_.clone(), dict(model)))

    @rule(data=st.data(), span=spans())
    def ask(self, data: st.DataObject, span: Span) -> None:
        set_, model = self.pick(data)
        assert set_.gaps(span) == naive_gaps(model, span)
        assert set_.covers(span) == all(at in model for at in members(span))
        assert set_.contains(span.producer_id, span.start) == ((span.producer_id, span.start) in model)

    @invariant()
    def is_the_model(self) -> None:
        for set_, model in self.pairs:
            set_.check()
            expected = [span for span, _ in naive_items(model)]
            assert set_.items() == expected
            assert set_.spans == len(expected)
            assert set_.messages == len(model)
            assert bool(set_) == bool(model)
            assert sorted(set_.runs) == sorted({producer_id for producer_id, _ in model})
            again = type(self).make.from_spans(reversed(expected))
            assert again.state() == set_.state()
            for producer_id in PRODUCER_IDS:
                assert set_.spans_of(producer_id) == [
                    span for span in expected if span.producer_id == producer_id
                ]
                assert set_.content(producer_id) == again.content(producer_id)


class TinySetMachine(SetMachine):
    make = TinySet


for machine in (MapMachine, TinyMapMachine, SetMachine, TinySetMachine):
    machine.TestCase.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
TestMap = MapMachine.TestCase
TestTinyMap = TinyMapMachine.TestCase
TestSet = SetMachine.TestCase
TestTinySet = TinySetMachine.TestCase


@pytest.mark.parametrize("make", [SpanMap[str], TinyMap])
def test_fast_and_dumb_agree_over_a_long_run(make: type[SpanMap[str]]) -> None:
    """Thousands of small writes to hundreds of runs, with a wide one now and then."""
    rng = random.Random(20)
    top = 3000
    dumb: list[str | None] = [None] * top
    fast = make()
    clones: list[tuple[SpanMap[str], list[str | None]]] = []
    most = 0
    for step in range(6000):
        start = rng.randrange(top)
        width = rng.randrange(top) if step % 1500 == 1499 else rng.randrange(6)
        span = Span(A, start, min(top, start + width))
        value = rng.choice(["x", "y", "z", "", None])
        if value is None:
            fast.remove(span)
        else:
            fast.set(span, value)
        dumb[span.start : span.stop] = [value] * span.size
        most = max(most, fast.spans)
        if step % 500 == 0:
            fast.check()
            clones.append((fast.clone(), list(dumb)))
    assert most > SpanMap.SMALL_MAX  # or this test is not about large maps
    for map_, expected in [*clones, (fast, dumb)]:
        map_.check()
        assert [map_.get(A, seq) for seq in range(top)] == expected


def test_equal_neighbours_merge_on_both_sides_and_others_do_not() -> None:
    map_: SpanMap[str] = SpanMap()
    map_.set(Span(A, 0, 5), "x")
    map_.set(Span(A, 10, 15), "x")
    map_.set(Span(B, 5, 10), "x")  # another producer id is no neighbour
    map_.set(Span(A, 5, 10), "y")
    assert [(span.start, value) for span, value in map_.spans_of(A)] == [(0, "x"), (5, "y"), (10, "x")]
    map_.set(Span(A, 5, 10), "x")
    assert map_.spans_of(A) == [(Span(A, 0, 15), "x")]
    assert map_.items() == [(Span(B, 5, 10), "x"), (Span(A, 0, 15), "x")]


def test_values_merge_by_equality_not_by_identity() -> None:
    first, second = str(10**6), str(10**6)
    assert first is not second
    map_: SpanMap[str] = SpanMap()
    map_.set(Span(A, 0, 5), first)
    map_.set(Span(A, 5, 9), second)
    assert map_.items() == [(Span(A, 0, 9), first)]


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("kept", [0, 1, 2])
def test_a_large_producer_id_becomes_small_and_large_again(kept: int, at_once: bool) -> None:
    """Both ways down: one wide removal, and run by run; with a clone that must not notice."""
    map_ = TinyMap()
    singles = [Span(A, seq, seq + 1) for seq in range(0, 40, 2)]
    for _ in range(2):
        for span in singles:
            map_.set(span, "x")
            map_.check()
        twin = map_.clone()
        for span in [Span(A, 2 * kept, 40)] if at_once else singles[kept:]:
            map_.remove(span)
            map_.check()
        assert map_.items() == [(span, "x") for span in singles[:kept]]
        assert twin.items() == [(span, "x") for span in singles]
        twin.check()


def test_listings_are_sorted_by_producer_id_whatever_arrived_first() -> None:
    set_ = SpanSet.from_spans([Span(C, 0, 1), Span(A, 5, 6), Span(B, 0, 1), Span(A, 0, 1)])
    assert sorted(PRODUCER_IDS) != PRODUCER_IDS
    assert sorted(set_.runs) == sorted(PRODUCER_IDS)
    assert set_.items() == sorted(set_.items())
    assert [producer_id for producer_id, _ in set_.state()] == sorted(PRODUCER_IDS)


@pytest.mark.parametrize("make", [SpanMap[str], TinyMap])
def test_a_write_that_changes_nothing_keeps_a_clone_shared(make: type[SpanMap[str]]) -> None:
    """The explorer forks states by the million; most steps touch a few maps and leave the rest alone."""
    map_ = make()
    for seq in range(0, 40, 2):
        map_.set(Span(A, seq, seq + 1), "x")
    twin = map_.clone()
    twin.set(Span(A, 4, 5), "x")
    twin.remove(Span(A, 5, 6))
    twin.update(Span(A, 0, 40), lambda value: value)
    assert twin.runs[A] is map_.runs[A]
    twin.set(Span(A, 4, 5), "y")
    assert twin.runs[A] is not map_.runs[A]
    assert (map_.get(A, 4), twin.get(A, 4)) == ("x", "y")


def test_a_large_producer_id_is_copied_once_after_a_clone_and_no_more() -> None:
    map_ = TinyMap()
    for seq in range(0, 40, 2):
        map_.set(Span(A, seq, seq + 1), "x")
    twin = map_.clone()
    map_.set(Span(A, 0, 1), "y")
    own = map_.runs[A]
    assert own is not twin.runs[A]
    map_.set(Span(A, 2, 3), "y")
    assert map_.runs[A] is own
    assert [value for _, value in twin.items()] == ["x"] * 20


def test_an_invalid_run_is_refused_by_name() -> None:
    map_: SpanMap[str] = SpanMap()
    with pytest.raises(ValueError, match="None is no value for node-c"):
        map_.set(Span(A, 0, 1), None)  # type: ignore[arg-type]
    for bad in (Span(A, -1, 4), Span(A, 5, 4), Span(A, -3, -3)):
        with pytest.raises(ValueError, match="is not a span of messages"):
            map_.set(bad, "x")
        with pytest.raises(ValueError, match="is not a span of messages"):
            map_.update(bad, lambda _: "x")
        with pytest.raises(ValueError, match="is not a span of messages"):
            SpanSet().add(bad)
    assert not map_
    map_.check()


def test_content_is_what_is_encoded() -> None:
    map_: SpanMap[str] = SpanMap()
    map_.set(Span(A, 0, 5), "x")
    map_.set(Span(A, 5, 9), "X")
    set_ = SpanSet.from_spans([Span(A, 0, 9)])
    assert map_.content(A) == set_.content(A), "without an encoding only the coverage counts"
    assert map_.content(A, lambda value: value.lower().encode()) != map_.content(A, str.encode)
    alike: SpanMap[str] = SpanMap()
    alike.set(Span(A, 0, 9), "x")
    assert map_.content(A, lambda value: value.lower().encode()) == alike.content(A, str.encode)
    assert map_.content(B) == b""


def test_content_keeps_its_value() -> None:
    """Nodes of two releases compare digests of it: a change of the encoding is a change of the protocol."""
    set_ = SpanSet.from_spans([Span(A, 0, 9), Span(A, 12, 2**64)])
    assert set_.content(A) == b"0,9,0:" + b"12,18446744073709551616,0:"
    map_: SpanMap[str] = SpanMap()
    map_.set(Span(A, 0, 9), "x")
    map_.set(Span(A, 9, 10), "y")
    assert map_.content(A, str.encode) == b"0,9,1:x9,10,1:y"


@given(st.lists(spans(), max_size=8), st.lists(spans(), max_size=8))
def test_contents_differ_where_the_content_differs(ours: list[Span], theirs: list[Span]) -> None:
    a, b = SpanSet.from_spans(ours), SpanSet.from_spans(theirs)
    for producer_id in PRODUCER_IDS:
        assert (a.content(producer_id) == b.content(producer_id)) == (
            a.spans_of(producer_id) == b.spans_of(producer_id)
        )
    assert (a == b) == (a.items() == b.items())


@given(st.lists(spans(), max_size=10))
def test_merge_spans(parts: list[Span]) -> None:
    model: Model = {at: "in" for part in parts for at in members(part)}
    assert list(merge_spans(parts)) == [span for span, _ in naive_items(model)]


@given(spans(), st.lists(spans(), max_size=6))
def test_subtract(span: Span, others: list[Span]) -> None:
    model: Model = {at: "in" for other in others for at in members(other)}
    assert subtract(span, others) == naive_gaps(model, span)
