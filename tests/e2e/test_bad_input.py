"""Bytes of strangers: each gets an answer or is disconnected, and no other client notices."""

from __future__ import annotations

import os
import random
import struct
import time
from collections.abc import Iterator

import pytest

from quorumq.core import messages as m
from quorumq.core.cluster.peers import node_list_digest
from quorumq.core.values.limits import FETCH_BYTES_MAX, MESSAGE_BYTES_MAX, MIB, NUMBERS_END
from quorumq.core.values.types import (
    Batch,
    BatchHeader,
    Death,
    Incarnation,
    Kind,
    PartitionId,
    Record,
    Span,
    Stamp,
)
from quorumq.lab.local import LocalCluster
from quorumq.wire import cbor
from quorumq.wire.batch import crc32c, encode_header
from quorumq.wire.codec import encode_message
from quorumq.wire.frames import MAGIC
from quorumq.wire.values import SignedNamed
from tests.e2e.conftest import rss_of
from tests.e2e.raw import Raw, client_hello, outcomes, size_of

RSS_GROWTH_MAX_MIB = 64
DEATH = Death(Stamp(0, ""), "rejected", "ValueError")


@pytest.fixture
def bystander(shared: LocalCluster) -> Iterator[Raw]:
    """Another client's connection, which must go on as if nothing had happened."""
    with Raw(shared.addresses[0]) as other:
        topic = other.topic("bystander")
        producer_id = other.session()
        yield other
        assert isinstance(other.publish(topic, producer_id, 0, [b"still here"]), m.PublishReply)
        for name in shared.nodes:
            assert shared.running(name)


def prefix(header: int, body: int) -> bytes:
    return MAGIC + struct.pack(">II", header, body)


HELLO = b"".join(encode_message(client_hello(), request=1))


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", id="http"),
        pytest.param(random.Random(7).randbytes(4096), id="noise"),
        pytest.param(prefix(0xFFFF_FFFF, 0), id="4 GiB header"),
        pytest.param(prefix(10, 0xFFFF_FFFF), id="4 GiB body"),
        pytest.param(prefix(4, 0) + b"\xff\xff\xff\xff", id="no cbor"),
        pytest.param(HELLO + prefix(1, 0xFFFF_FFFF), id="4 GiB after hello"),
        pytest.param(HELLO + prefix(3, 0) + b"\x83\x00\x00", id="short header after hello"),
        pytest.param(b"".join(encode_message(m.StatusRequest(), request=1)), id="a request before hello"),
    ],
)
def test_bytes_outside_the_protocol_close_their_own_connection(
    shared: LocalCluster, bystander: Raw, data: bytes
) -> None:
    with Raw(shared.addresses[0], hello=False) as stranger:
        stranger.sock.sendall(data)
        assert stranger.is_closed()


def test_half_a_frame_and_silence_is_closed_and_half_a_frame_and_goodbye_harms_no_one(
    shared: LocalCluster, bystander: Raw
) -> None:
    """The first frame has five seconds (hello_timeout); a client that is known may be slow."""
    with Raw(shared.addresses[0], hello=False) as slow, Raw(shared.addresses[0]) as known:
        slow.sock.sendall(HELLO[: len(HELLO) // 2])
        half = b"".join(encode_message(m.StatusRequest(), request=9))
        known.sock.sendall(half[: len(half) // 2])
        assert slow.is_closed()
        known.sock.sendall(half[len(half) // 2 :])
        assert isinstance(known.receive(9), m.StatusReply)
        known.sock.sendall(half[: len(half) // 2])


def test_a_node_or_client_of_another_cluster_is_refused_by_name(shared: LocalCluster, bystander: Raw) -> None:
    secret = (shared.directory / "secret").read_text().strip().encode()

    def refusal(hello: m.Hello) -> m.Failed:
        with Raw(shared.addresses[0], hello=False) as stranger:
            reply = stranger.greet(hello, "n1", secret) if hello.node else stranger.ask(hello)
            assert isinstance(reply, m.Failed), reply
            assert stranger.is_closed()
            return reply

    fields = shared.status("n1")
    ours = m.Hello(
        m.VERSIONS, fields["cluster_id"], node_list_digest(shared.nodes), fields["hold_time_max"], "n2",
        Incarnation(99, 1), 1, int(time.time() * 1000), 0, "raw",
    )  # fmt: skip
    other_client = refusal(client_hello("another"))
    assert (other_client.code, "'another'" in other_client.detail) == ("cluster-mismatch", True)
    other_cluster = refusal(ours._replace(cluster_id="another"))
    assert (other_cluster.code, "'another'" in other_cluster.detail) == ("cluster-mismatch", True)
    other_list = refusal(ours._replace(nodes=node_list_digest(("n1", "n2"))))
    assert (other_list.code, "node list" in other_list.detail) == ("cluster-mismatch", True)
    other_hold = refusal(ours._replace(hold_time_max=60.0))
    assert (other_hold.code, "hold_time_max" in other_hold.detail) == ("cluster-mismatch", True)
    twice = refusal(ours)
    # It may be a restart: try again.
    assert (twice.code, "running twice" in twice.detail) == (
        "not-stored",
        True,
    )
    itself = refusal(ours._replace(node="n1"))
    assert (itself.code, "'n1'" in itself.detail) == ("superseded", True)
    old = refusal(ours._replace(node="n3", incarnation=Incarnation(0, 1)))
    assert (old.code, "running twice" in old.detail) == ("not-stored", True)  # the one that is up stays
    stranger = refusal(ours._replace(node="n7"))
    assert (stranger.code, "'n7'" in stranger.detail) == ("cluster-mismatch", True)
    newer = refusal(ours._replace(versions=(7, 9)))
    assert newer.code == "cluster-mismatch"
    secret = b"made up by somebody"
    unknown = refusal(ours)
    assert (unknown.code, "does not know the secret" in unknown.detail) == ("unauthorized", True)


def test_receipts_old_made_up_and_altered(shared: LocalCluster, bystander: Raw) -> None:
    with Raw(shared.addresses[1]) as raw, Raw(shared.addresses[2]) as elsewhere:
        topic = raw.topic("receipts")
        assert isinstance(raw.publish(topic, raw.session(), 0, [b"one"]), m.PublishReply)
        first = raw.take("receipts", "g", 1, hold_time=0.3)
        good = first[0].signed
        flips = [good[:i] + bytes((good[i] ^ 1,)) + good[i + 1 :] for i in range(0, len(good), 5)]
        for wrong in (b"receipt", os.urandom(len(good)), good[:-1], good + b"\0", *flips):
            reply = raw.ack(SignedNamed(wrong))
            refused = isinstance(reply, m.Failed) and reply.code == "bad-receipt"
            assert refused or outcomes(reply) == ["bad-receipt"], (wrong, reply)
        before = elsewhere.ask(m.PeekRequest("receipts", 0, "g", "acked", (0, 0), 100))
        assert before.items == (), "a receipt that does not verify writes nothing"

        again = elsewhere.take(
            "receipts", "g", 1, hold_time=3.0
        )  # unacked messages come again after their hold
        late = outcomes(elsewhere.ack(*first))
        assert set(late) == {"acked_after_expiry"}
        assert set(outcomes(raw.ack(*again))) == {"acked"}
        assert set(outcomes(elsewhere.ack(*first))) == {"acked_after_expiry"}, (
            "an old receipt keeps its verdict"
        )
        assert set(outcomes(raw.ack(*again))) == {"acked"}


def test_a_redrive_that_is_made_up_brings_nothing_back_and_keeps_no_rewind_from_working(
    shared: LocalCluster, bystander: Raw
) -> None:
    with Raw(shared.addresses[1]) as raw:
        topic, producer_id = raw.topic("redriven", retention_s=3600.0), raw.session()
        assert isinstance(raw.publish(topic, producer_id, 0, [b"acked", b"acked", b"buried"]), m.PublishReply)
        for request in (m.AckRequest, m.AckRequest, lambda got: m.RejectRequest(got, 0.0, DEATH)):
            got = tuple(raw.take("redriven", "g", 1))
            assert set(outcomes(raw.ask(request(got)))) <= {"acked", "ok"}
        for generation in (0, 7, 1 << 61):
            for n, says in ((0, "already-settled"), (5, "already-settled"), (NUMBERS_END - 1, "usage")):
                made_up = m.SpanRecord(Span(producer_id, 0, 2), Record(generation, n, Kind.DEAD, DEATH))
                reply = raw.ask(m.RedriveRequest("redriven", 0, "g", (made_up,)))
                assert outcomes(reply) == [says], reply
        assert size_of(raw.fetch("redriven", "g", max_wait=0.2)) == 0
        assert isinstance(raw.ask(m.SetGroup("redriven", "g", rewind=True)), m.GroupReply)
        raw.drain("redriven", "g", 3)


def test_the_dead_letter_of_many_receipts_is_on_each_disk_once(shared: LocalCluster, bystander: Raw) -> None:
    def sizes() -> list[int]:
        return [
            sum(path.stat().st_size for path in shared.data_path(name).glob("*.journal"))
            for name in shared.nodes
        ]

    with Raw(shared.addresses[1]) as raw:
        topic = raw.topic("letters")
        for number in range(60):
            assert isinstance(raw.publish(topic, raw.session(), 0, [b"%d" % number]), m.PublishReply)
        got = [raw.take("letters", "g", 1, hold_time=3.0) for _ in range(60)]
        before = sizes()
        death = DEATH._replace(stack="x" * 8_192, message="y" * 8_192)
        reply = raw.ask(m.RejectRequest(tuple(one for (one,) in got), 0.0, death))
        assert outcomes(reply) == ["ok"] * 60
        grown = [after - was for was, after in zip(before, sizes(), strict=True)]
        assert max(grown) < 2 * death.text_bytes, grown


def test_an_unknown_topic_is_named_with_the_closest_that_exists(shared: LocalCluster, bystander: Raw) -> None:
    with Raw(shared.addresses[0]) as raw:
        raw.topic("invoices")
        reply = raw.fetch("invoises", "g")
        assert isinstance(reply, m.Failed)
        assert reply.code == "not-found"
        assert "'invoises'" in reply.detail
        assert "'invoices'" in reply.detail
        missing = raw.ask(m.PeekRequest("invoises", 0, "g", "all", (0, 0), 10))
        assert isinstance(missing, m.Failed)
        assert missing.code == "not-found"


def test_a_message_of_2_mib_is_refused_with_the_limit_though_no_client_checked_it(
    shared: LocalCluster, bystander: Raw
) -> None:
    with Raw(shared.addresses[0]) as raw:
        topic = raw.topic("large")
        producer_id = raw.session()
        record = b"\x83\xf6\xa0" + cbor.blob(bytes(2 * MIB))
        header = BatchHeader(
            PartitionId(topic.id, 0), (Span(producer_id, 0, 1),), int(time.time() * 1000), 0,
            struct.pack("<I", len(record)), struct.pack("<I", crc32c(record)), crc32c(record),
        )  # fmt: skip
        reply = raw.ask(m.Publish(Batch(header, encode_header(header), record)))
        assert isinstance(reply, m.Failed), reply
        assert reply.code == "too-large", reply
        assert str(MESSAGE_BYTES_MAX) in reply.detail, reply
        assert size_of(raw.fetch("large", "g")) == 0
        # The same session goes on: nothing was used up.
        assert isinstance(raw.publish(topic, producer_id, 0, [b"small"]), m.PublishReply)


# ------------------------------------------------------------------------------- memory


def grown(shared: LocalCluster, before: dict[str, int]) -> dict[str, float]:
    return {name: (rss_of(shared.pid(name) or 0) - was) / MIB for name, was in before.items()}


def sizes(shared: LocalCluster) -> dict[str, int]:
    return {name: rss_of(shared.pid(name) or 0) for name in shared.nodes}


def filled(raw: Raw, name: str, mib: int) -> None:
    """A topic with ``mib`` MiB in messages of 256 KiB."""
    topic = raw.topic(name)
    producer_id = raw.session()
    for first in range(0, 4 * mib, 8):
        reply = raw.publish(topic, producer_id, first, [bytes(256 * 1024)] * 8)
        assert isinstance(reply, m.PublishReply), reply


def test_a_fetch_for_10_gib_gets_one_frame_and_costs_little(shared: LocalCluster, bystander: Raw) -> None:
    with Raw(shared.addresses[0]) as raw:
        filled(raw, "plenty", 40)
        before = sizes(shared)
        for _ in range(4):
            reply = raw.fetch(
                "plenty", "g", most=1_000_000_000, max_bytes=10 << 30, hold_time=3.0, max_wait=20.0
            )
            if isinstance(reply, m.Failed):
                assert reply.code in ("too-large", "usage"), reply
                break
            assert 0 < size_of(reply) * 256 * 1024 <= FETCH_BYTES_MAX
        assert max(grown(shared, before).values()) < RSS_GROWTH_MAX_MIB


def test_a_client_that_sends_and_never_reads_costs_little(shared: LocalCluster, bystander: Raw) -> None:
    with Raw(shared.addresses[0]) as raw:
        filled(raw, "unread", 24)
    before = sizes(shared)
    rude = [Raw(shared.addresses[0]) for _ in range(4)]
    try:
        # Each request asks for megabytes; the client reads no answers and sends until the node accepts no more.
        frame = b"".join(
            encode_message(m.PeekRequest("unread", 0, "", "all", (0, 0), 1000, True), request=7)
            + encode_message(
                m.Fetch(("unread",), "g", 1000, 8 * MIB, 1, 0, 0.0, 0.2, time.monotonic()), request=8
            )
        )
        end = time.monotonic() + 4
        while time.monotonic() < end:
            for raw in rude:
                raw.sock.setblocking(False)
                try:
                    while raw.sock.send(frame * 50):
                        pass
                except OSError:  # full, or hung up on: either is an answer
                    pass
            now = grown(shared, before)
            assert max(now.values()) < RSS_GROWTH_MAX_MIB, now
            time.sleep(0.05)
        with Raw(shared.addresses[0]) as polite:
            assert isinstance(polite.ask(m.StatusRequest()), m.StatusReply), "the others are served meanwhile"
    finally:
        for raw in rude:
            raw.sock.close()


def test_a_thousand_idle_connections_cost_little(shared: LocalCluster, bystander: Raw) -> None:
    before = sizes(shared)
    idle: list[Raw] = []
    try:
        for _ in range(1000):
            idle.append(Raw(shared.addresses[1]))
        assert max(grown(shared, before).values()) < RSS_GROWTH_MAX_MIB
        with Raw(shared.addresses[1]) as raw:
            assert isinstance(raw.ask(m.Metadata()), m.MetadataReply), "one more is served beside them"
        assert isinstance(idle[500].ask(m.Metadata()), m.MetadataReply)
    finally:
        for raw in idle:
            raw.sock.close()
