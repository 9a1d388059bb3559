"""BEGIN and PURGE skip the present messages: those to settle, out of the answers of several replicas."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from quorumq.core.messages import NO_STARTS, Peeked, ReplicaListReply
from quorumq.core.requests.coordinator import Coordinator
from quorumq.core.requests.skipping import Skipping
from quorumq.core.values.spanlists import merge_spans
from quorumq.core.values.types import STAMP_ZERO, Group, Kind, Latest, ProducerId, Record, Span, Topic

ONE, TWO = ProducerId("a", 1, 7, 1), ProducerId("a", 1, 7, 2)
IDS = [(producer_id, seq) for producer_id in (ONE, TWO) for seq in range(4)]
SKIPPED = Record(1, 0, Kind.SKIPPED)

Known = dict[tuple[ProducerId, int], bool]
"""Messages that a replica knows, and whether the group has settled them there."""

known = st.dictionaries(st.sampled_from(IDS), st.booleans())


def spans_of(ids: list[tuple[ProducerId, int]]) -> tuple[Span, ...]:
    return merge_spans(Span(producer_id, seq, seq + 1) for producer_id, seq in ids)


def answer(having: Known, end: int | None) -> ReplicaListReply:
    """A replica's page: all that it knows, or all before the message at ``end``."""
    page = IDS[:end]
    settled = spans_of([it for it in page if having.get(it) is True])
    items = tuple(Peeked(span, "", SKIPPED, 0, 0.0, None) for span in settled)
    upto = Span(IDS[end][0], 0, IDS[end][1]) if end is not None else None
    return ReplicaListReply(
        1, items, upto, "", NO_STARTS, False, spans_of([it for it in page if having.get(it) is False])
    )


@given(st.lists(st.tuples(known, st.sampled_from([None, 1, 3, 6])), min_size=2, max_size=3), st.booleans())
def test_known_messages_are_skipped_unless_all_have_settled_them(
    replicas: list[tuple[Known, int | None]], alike: bool
) -> None:
    """In the part of the order that all pages cover; the next page begins behind it."""
    if alike:
        replicas = [replicas[0]] * len(replicas)
    topic = Topic(b"t", "jobs", 3, (("a", "b", "c"),), 5, STAMP_ZERO)
    skipping = Skipping(Coordinator(1), topic, Group(b"t", "g", 1, latest=Latest.SKIPPING))
    spans, upto, last = skipping._unsettled([answer(having, end) for having, end in replicas])
    ends = [end for _, end in replicas if end is not None]
    page = IDS[: min(ends)] if ends else IDS
    due = [
        it for it in page
        if any(it in having for having, _ in replicas) and not all(having.get(it) for having, _ in replicas)
    ]  # fmt: skip
    assert merge_spans(spans) == spans_of(due)
    assert (upto is None) == (not ends)
    if upto is not None:
        assert last == upto == Span(IDS[min(ends)][0], 0, IDS[min(ends)][1])
