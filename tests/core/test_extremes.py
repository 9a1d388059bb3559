"""A core reads all that it writes, also with the largest numbers in requests. No number moves stamps far."""

from __future__ import annotations

from quorumq.core import messages as m
from quorumq.core.messages import Envelope
from quorumq.core.messages.effects import Received
from quorumq.core.partition.attempts import Attempts
from quorumq.core.partition.fate import count_attempt
from quorumq.core.partition.lease import NO_OWNER, Held, Lease
from quorumq.core.values.limits import AGES_ASKED_END, NUMBERS_END, STAMPS_END, STARTS_MAX, WORDS_END
from quorumq.core.values.types import Death, Kind, PartitionId, ProducerId, Record, Stamp, Topic
from tests.core.coded import Coded, through_the_wire
from tests.core.last_numbers import LAST, begun, far_batch, see_stamps
from tests.core.steps import check_failed, outcomes

ENDS = (NUMBERS_END, AGES_ASKED_END, STAMPS_END, STARTS_MAX, 1 << 63, WORDS_END)
FAR = sorted({0, 1, *(end - by for end in ENDS for by in (65_538, 2, 1)), *ENDS} - {WORDS_END})


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
