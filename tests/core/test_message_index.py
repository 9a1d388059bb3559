"""Locations behave as a SpanMap of slots, also those kept as rows of numbers."""

from __future__ import annotations

from typing import ClassVar

from hypothesis import given
from hypothesis import strategies as st

from quorumq.core.partition.message_index import Location, LocationRuns, MessageIndex
from quorumq.core.values.spans import SpanMap
from quorumq.core.values.types import ProducerId, Span

SESSIONS = [ProducerId("a", 1, 2, k) for k in range(2)]


class TinyLocations(MessageIndex):
    """Large at 3 runs, so that short programs cross both borders many times."""

    SMALL_MAX: ClassVar[int] = 2
    SMALL_AGAIN: ClassVar[int] = 1


SPANS = st.builds(
    lambda producer_id, start, size: Span(producer_id, start, start + size),
    st.sampled_from(SESSIONS),
    st.integers(0, 14),
    st.integers(0, 4),
)
STEPS = st.lists(st.tuples(st.sampled_from(["set", "set", "set", "remove", "clone"]), SPANS), max_size=40)


@given(STEPS, SPANS)
def test_locations_are_a_span_map(steps: list[tuple[str, Span]], asked: Span) -> None:
    locations: SpanMap[Location] = TinyLocations()
    plain: SpanMap[Location] = SpanMap()
    earlier: list[tuple[SpanMap[Location], SpanMap[Location]]] = []
    for number, (step, span) in enumerate(steps):
        if step == "clone":
            earlier.append((locations, plain))
            locations, plain = locations.clone(), plain.clone()
        elif step == "remove":
            assert locations.remove(span) == plain.remove(span)
        else:
            location = Location(number // 2, -span.start)
            locations.set(span, location)
            plain.set(span, location)
        for one, other in [*earlier, (locations, plain)]:
            one.check()
            assert one.state() == other.state()
    for span in (asked, asked._replace(start=0), Span(asked.producer_id, asked.start, asked.start + 1)):
        assert locations.within(span) == plain.within(span)
        assert locations.split(span) == plain.split(span)
        assert locations.gaps(span) == plain.gaps(span)
        assert locations.cut(span, 2) == plain.cut(span, 2)
    assert locations.get(asked.producer_id, asked.start) == plain.get(asked.producer_id, asked.start)
    assert list(locations.onward(asked.producer_id, asked.start)) == list(
        plain.onward(asked.producer_id, asked.start)
    )


def test_many_messages_that_were_published_alone_are_rows_until_few_are_left() -> None:
    locations = MessageIndex()
    for seq in range(200):
        locations.set(Span(SESSIONS[0], seq, seq + 1), Location(1000 + seq, -seq))
    assert isinstance(locations.runs[SESSIONS[0]], LocationRuns)
    assert locations.get(SESSIONS[0], 150) == Location(1150, -150)
    locations.remove(Span(SESSIONS[0], 10, 200))
    assert isinstance(locations.runs[SESSIONS[0]], tuple)
    assert locations.spans == 10
