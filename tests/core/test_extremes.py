"""A core reads all that it writes, also with the largest numbers in requests. No number moves stamps far."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from quorumq.core import messages as m
from quorumq.core.messages import Envelope
from quorumq.core.messages.effects import Received
from quorumq.core.partition.attempts import Attempts
from quorumq.core.partition.fate import count_attempt
from quorumq.core.partition.lease import NO_OWNER, Held, Lease
from quorumq.core.values.limits import (
    AGES_ASKED_END,
    DELAY_MAX_S,
    NUMBERS_END,
    STAMPS_END,
    STARTS_MAX,
    WORDS_END,
)
from quorumq.core.values.types import (
    Death,
    Kind,
    PartitionId,
    ProducerId,
    Record,
    Span,
    Stamp,
    Topic,
)
from quorumq.wire.values import SignedNamed
from tests.core.coded import Coded, through_the_wire
from tests.core.last_numbers import LAST, begun, far_batch, receipts, see_stamps
from tests.core.steps import check_failed

ENDS = (NUMBERS_END, AGES_ASKED_END, STAMPS_END, STARTS_MAX, 1 << 63, WORDS_END)
FAR = sorted({0, 1, *(end - by for end in ENDS for by in (65_538, 2, 1)), *ENDS} - {WORDS_END})
numbers = st.sampled_from(FAR)
taken = st.sampled_from([number for number in FAR if number < AGES_ASKED_END]) | st.just(NUMBERS_END - 65_538)
"""Those that no field refuses."""
small = st.sampled_from([1, 100])
times = numbers | numbers.filter(lambda n: n <= 1 << 63).map(lambda n: -n)


def made(cls: Any, *fields: Any) -> st.SearchStrategy[Any]:
    """A ``cls`` of fields that are drawn if they are strategies. Those that are not named have their defaults."""
    drawn = [field if isinstance(field, st.SearchStrategy) else st.just(field) for field in fields]
    return st.tuples(*drawn).map(lambda values: cls(*values))


nodes = st.sampled_from(["a", "x", "~derived"])
producer_ids = made(
    ProducerId, nodes, taken | st.just(NUMBERS_END - 1), numbers, taken | st.just(NUMBERS_END - 1)
) | made(ProducerId, nodes, numbers, numbers, numbers)
spans = st.builds(
    lambda producer_id, start, size: Span(
        producer_id, min(start, WORDS_END - 1 - size), min(start + size, WORDS_END - 1)
    ),
    producer_ids,
    numbers,
    st.sampled_from([1, 2, 1 << 32]),
)
spans |= st.sampled_from([LAST, LAST._replace(stop=NUMBERS_END - 2)])
deaths = made(
    Death,
    made(Stamp, numbers, "b"),
    "rejected",
    "",
    "",
    "",
    "",
    numbers,
    times,
    times,
    times,
    times,
    "",
    "",
    "",
    "",
    numbers,
)
settled = made(m.SpanRecord, spans, made(Record, numbers, numbers, st.sampled_from(Kind), st.none() | deaths))


def requests(topic: bytes, items: tuple[SignedNamed, ...]) -> st.SearchStrategy[Any]:
    """A request with numbers at and near the limits."""
    here = PartitionId(topic, 0)
    batches = st.builds(
        far_batch, producer_ids, taken | numbers, times, st.sampled_from([0, 1, 1 << 32]), st.just(topic)
    )
    asked = [
        made(m.Publish, batches, taken | times),
        made(m.CloseSession, producer_ids, (here,)),
        made(m.Fetch, ("jobs",), "g", small | numbers, small | numbers, numbers, numbers, 0.0, 1.0, 0.0),
        made(
            m.Fetch, ("jobs",), "g", small, small, 1, 1, 0.0, 1.0, 0.0, "", (0,), "earliest", st.booleans(), "",
            st.tuples(spans, spans),
        ),
        made(m.RedriveRequest, "jobs", 0, "g", st.tuples(settled)),
        made(m.SetGroup, "jobs", "g", "time", times, st.booleans()),
        made(m.AlterTopic, "jobs", st.none() | numbers, st.none() | numbers),
        made(
            m.PeekRequest, "jobs", 0, "g", "all", st.tuples(times, times), small | numbers,
            st.booleans(), st.booleans(), st.none() | spans,
        ),
        made(m.ShowRequest, here, spans),
        made(m.PurgeRequest, "jobs", numbers, "g"),
    ]  # fmt: skip
    if items:
        some_items = st.tuples(
            st.builds(
                lambda item, parts: item._replace(spans=parts),
                st.sampled_from(items),
                st.just(()) | st.tuples(spans),
            )
        )
        asked += [
            made(m.AckRequest, some_items),
            made(m.RejectRequest, some_items, st.sampled_from([0.0, DELAY_MAX_S]), st.none() | deaths),
            made(m.ExtendRequest, some_items, 60.0, st.sampled_from([0.0, 1e299])),
            made(m.ReleaseRequest, some_items),
        ]
    return st.one_of(asked)


def start_again(cluster: Coded, topic: Topic) -> None:
    for name in cluster.names:
        cluster.stop(name)
    for name in cluster.names:
        cluster.start(name)
        cluster.journals[name] += tuple(cluster.nodes[name].snapshot(cluster.now))
    producer_id = cluster.ask("a", m.OpenSession()).producer_id  # type: ignore[union-attr]
    assert isinstance(
        cluster.ask("b", m.Publish(cluster.batch(topic, producer_id, 0, [b"after"]))), m.PublishReply
    )


def test_each_number_of_each_request_at_and_near_each_limit() -> None:
    cluster, topic, items = begun()
    here, plain = PartitionId(topic.id, 0), ProducerId("x", 1, 1, 1)
    assert items
    dead = Death(Stamp(0, ""), "rejected")
    assert outcomes(cluster.ask("a", m.RejectRequest(items[:1], 0.0, dead))) == ["ok"]
    for at, far in enumerate(FAR):
        for number, producer_id in enumerate(
            (plain._replace(n=far), plain._replace(nonce=far), plain._replace(k=far))
        ):
            batch = far_batch(producer_id, 0, 0, 0, topic.id)
            reply = cluster.ask("abc"[number], m.Publish(batch))
            taken = far < (WORDS_END if number == 1 else NUMBERS_END)
            assert isinstance(reply, m.PublishReply) == taken, (producer_id, reply)
            closed = cluster.ask("abc"[number], m.CloseSession(producer_id, (here,)))
            assert isinstance(closed, m.NotedReply) == taken
        aged = cluster.ask("a", m.Publish(far_batch(plain._replace(k=100 + at), 0, 0, 0, topic.id), far))
        assert isinstance(aged, m.PublishReply) == (far < AGES_ASKED_END), (far, aged)
        reply = cluster.ask("a", m.Publish(far_batch(plain._replace(k=200 + at), far, 0, 0, topic.id)))
        assert isinstance(reply, m.PublishReply) == (far < NUMBERS_END), (far, reply)
        for span in (LAST._replace(stop=LAST.start + 1), LAST._replace(start=LAST.stop - 1)):
            entry = m.SpanRecord(span, Record(far, min(far, NUMBERS_END - 1), Kind.DEAD))
            cluster.ask("b", m.RedriveRequest("jobs", 0, "g", (entry,)))
        for ms in (far, -far):
            cluster.ask("c", m.SetGroup("jobs", "far", "time", ms, True))
        cluster.ask("c", m.PeekRequest("jobs", 0, "g", "all", (far, far), far, True))
        see_stamps(cluster)
    cluster.advance(5.0)
    start_again(cluster, topic)


def test_counts_that_a_node_made_up_grow_no_further() -> None:
    cluster, topic, _ = begun()
    gone = topic._replace(deleted=True, deletions=NUMBERS_END - 1, name="far", id=b"far topic's 16 b")
    peer = cluster.nodes["b"].state.incarnation
    me = cluster.nodes["a"].state.incarnation
    cluster.feed("a", Received(Envelope("b", peer, "a", me, 1, through_the_wire(m.PutTopic(0, gone)))))
    check_failed(cluster.ask("a", m.CreateTopic("far")), None, str(NUMBERS_END))
    held = Held(NO_OWNER, 1.0, 0, 0, Attempts(0, 0, NUMBERS_END - 1))
    counted = count_attempt(Lease(), held)
    assert counted.attempts is not None
    assert counted.attempts.ended == NUMBERS_END - 1
    start_again(cluster, topic)


def outcomes(reply: Any) -> list[str]:
    return [verdict.outcome for verdict in reply.verdicts]


@settings(max_examples=12, deadline=None)
@given(st.data())
def test_whatever_a_core_writes_for_extreme_requests_is_read_again_and_every_node_starts(
    data: st.DataObject,
) -> None:
    cluster, topic, items = begun()
    for _ in range(data.draw(st.integers(1, 8))):
        name = data.draw(st.sampled_from(cluster.names))
        reply = cluster.ask(name, data.draw(requests(topic.id, items)))
        if isinstance(reply, m.FetchReply):
            items += receipts(reply)
        if data.draw(st.booleans()):
            cluster.advance(2.5)  # holds run out; anti-entropy and RECLAIM say what they have
        see_stamps(cluster)
    start_again(cluster, topic)
