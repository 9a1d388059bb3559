"""Incoming connections of strangers, clients and peers, in virtual time."""

from __future__ import annotations

import random
import struct

import pytest
import trio

from quorumq.core import messages as m
from quorumq.core.cluster.peers import node_list_digest
from quorumq.core.values.limits import INFLIGHT_REQUESTS_MAX, MESSAGE_BYTES_MAX, MIB
from quorumq.core.values.types import Batch, Incarnation, PartitionId, Span
from quorumq.wire.batch import Message, encode_header, pack_spans
from quorumq.wire.codec import encode_message, signed_items
from quorumq.wire.frames import MAGIC, PREFIX_BYTES
from quorumq.wire.proofs import DIALLER, LISTENER, Handshake
from quorumq.wire.values import SignedNamed
from sim.shell.memory import SECRET, now, pair
from tests.node.memory import Client, fetch, outcomes, payloads, publish, receipts, served, world

HELLO = b"".join(encode_message(m.Hello(m.VERSIONS, "", b"", 0.0, "", Incarnation(0, 0), 0, 0, 0), request=1))
STATUS = b"".join(encode_message(m.StatusRequest(), request=2))


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"GET / HTTP/1.1\r\n\r\n", id="http"),
        pytest.param(MAGIC + struct.pack(">II", 0xFFFF_FFFF, 0), id="4 GiB"),
        pytest.param(HELLO + MAGIC + struct.pack(">II", 10, 0xFFFF_FFFF), id="4 GiB after hello"),
        pytest.param(MAGIC + struct.pack(">II", 1000, 100_000), id="more than a stranger may send"),
        pytest.param(HELLO + b"garbage", id="garbage after hello"),
        pytest.param(STATUS, id="no hello"),
        pytest.param(HELLO + MAGIC + struct.pack(">II", 4, 0) + b"\xff\xff\xff\xff", id="no cbor"),
        pytest.param(HELLO + MAGIC + struct.pack(">II", 3, 0) + b"\x83\x00\x00", id="short header"),
        pytest.param(random.Random(7).randbytes(4096), id="noise"),
        pytest.param(HELLO + HELLO[:-7] + b"", id="half a frame and goodbye"),
    ],
)
async def test_bytes_outside_the_protocol_end_their_connection_with_one_line(data: bytes) -> None:
    async with world("a") as cluster:
        other = await cluster.client("a")
        stranger = Client(cluster.connect("a", "stranger"))
        await stranger.push(data)
        if data.startswith(HELLO + HELLO[:-7]):
            assert isinstance(await stranger.receive(1), m.Welcome)
            stranger.transport.close()
            await trio.sleep(0.1)
        else:
            assert await stranger.closed(0.5)
        assert len(cluster.logs["a"].of("connection_broken")) == 1
        assert isinstance(await other.ask(m.StatusRequest()), m.StatusReply)
        fields = (await other.ask(m.StatusRequest())).fields
        assert (fields["connections"], fields["connections_broken"]) == (1, 1)


async def test_silence_before_hello_and_half_a_frame_after_it_have_their_time() -> None:
    async with world("a", hello_timeout=5.0, stall_timeout=30.0) as cluster:
        silent = Client(cluster.connect("a"))
        assert not await silent.closed(4.9)
        assert await silent.closed(0.2)
        slow = await cluster.client("a")
        await slow.push(STATUS[:9])
        assert not await slow.closed(29.9)
        assert await slow.closed(0.2)
        idle = await cluster.client("a")
        assert not await idle.closed(1000)


async def test_a_prefix_alone_and_a_frame_that_trickles_have_their_time() -> None:
    async with world("a", stall_timeout=30.0) as cluster:
        silent, slow = await cluster.client("a"), await cluster.client("a")
        for client, size in ((silent, 16_000_000), (slow, 655_360)):  # ten seconds more than the timeout
            await client.push(MAGIC + struct.pack(">II", 4, size))
        for _ in range(13):
            await slow.push(b"\x00")
            await trio.sleep(3.0)
        assert await silent.closed(0.1)
        assert not await slow.closed(0.5)
        assert await slow.closed(1.0)
        reasons = [line["reason"] for line in cluster.logs["a"].of("connection_broken")]
        assert "did not come on for 30 s" in reasons[0]
        assert "did not become complete in 40" in reasons[1]


async def test_the_oldest_of_too_many_unfinished_frames_is_dropped() -> None:
    async with world("a", inflight_bytes_max=16 * MIB) as cluster:
        clients = [await cluster.client("a") for _ in range(3)]
        for client in clients:
            await client.push(MAGIC + struct.pack(">II", 4, 7_000_000) + bytes(6_000_000))
        assert await clients[0].closed(1.0)
        assert not await clients[1].closed(0.1)
        assert not await clients[2].closed(0.1)
        (line,) = cluster.logs["a"].of("connection_broken")
        assert "inflight_bytes_max" in line["reason"]
        last = await cluster.client("a")
        assert isinstance(await last.ask(m.StatusRequest()), m.StatusReply)


async def test_requests_that_came_with_hello_are_served_after_it() -> None:
    async with world("a") as cluster:
        client = Client(cluster.connect("a"))
        await client.push(HELLO + STATUS)
        assert isinstance(await client.receive(1), m.Welcome)
        assert isinstance(await client.receive(2), m.StatusReply)


async def test_a_well_formed_message_that_is_no_request_is_answered() -> None:
    async with world("a") as cluster:
        client = await cluster.client("a")
        newer = MAGIC + struct.pack(">II", 6, 0) + b"\x83\x18\xfa\x18\x63\x00"
        await client.push(newer)
        assert (await client.receive(99)).code == "unknown-message"
        for message in (m.Heartbeat(()), m.PublishReply(2), m.StoreReply(1, (), m.NO_STARTS)):
            reply = await client.ask(message)
            assert (reply.code, type(message).__name__ in reply.detail) == ("usage", True)
        again = await client.ask(m.Hello(m.VERSIONS, "", b"", 0.0, "", Incarnation(0, 0), 0, 0, 0))
        assert again.code == "usage"
        assert isinstance(await client.ask(m.StatusRequest()), m.StatusReply)


async def test_a_request_with_a_value_that_cannot_be_is_answered_by_name_and_the_connection_goes_on() -> None:
    async with world("a") as cluster:
        client = await cluster.client("a")
        waiting = await client.send(fetch(wait=0.2))
        for request, says in (
            (m.Metadata(("x" * 300,)), "Metadata.topics is 'xxx"),
            (m.CreateTopic("jobs", 1, ttl_s=float("inf")), "CreateTopic.ttl_s is inf"),
            (m.CreateTopic("jobs", -1), "CreateTopic.rf is -1"),
            (fetch(hold_time=float("nan")), "Fetch.hold_time is nan"),
        ):
            reply = await client.ask(request)
            assert (reply.code, says in reply.detail) == ("usage", True), reply
        assert isinstance(await client.receive(waiting), m.FetchReply | m.Failed), (
            "nobody else was hung up on"
        )
        assert isinstance(await client.ask(m.StatusRequest()), m.StatusReply)


async def test_a_message_over_the_limit_is_refused_with_the_limit_and_the_connection_goes_on() -> None:
    async with served("a") as (_, client, topic, producer_id):
        where = PartitionId(topic.id, 0)
        record = b"\x83\xf6\xa0\x5a" + struct.pack(">I", MESSAGE_BYTES_MAX) + bytes(MESSAGE_BYTES_MAX)
        reply = await client.ask(m.Publish(pack_spans(where, (Span(producer_id, 0, 1),), 0, [record])))
        assert (reply.code, str(MESSAGE_BYTES_MAX) in reply.detail) == ("too-large", True)
        assert isinstance(await client.ask(publish(topic, producer_id, 0, b"x")), m.PublishReply)


async def test_a_batch_whose_bytes_are_not_its_headers_reaches_no_core() -> None:
    async with served("a") as (cluster, client, topic, producer_id):
        good = publish(topic, producer_id, 0, b"good bytes").batch
        body = bytes(good.body).replace(b"good", b"evil")
        await client.send(m.Publish(Batch(good.header, encode_header(good.header), body)))
        assert await client.closed(1)
        (line,) = cluster.logs["a"].of("connection_broken")
        assert "CRC" in line["reason"]
        other = await cluster.client("a")
        assert payloads(await other.ask(fetch())) == []


async def test_a_session_is_of_use_to_its_client_alone() -> None:
    async with world() as cluster:
        first, other, elsewhere = [await cluster.client(name) for name in "aab"]
        topic = await first.topic()
        opened, own = await first.ask(m.OpenSession()), await other.ask(m.OpenSession())
        batch = publish(topic, opened.producer_id, 0, b"x").batch
        here = (PartitionId(topic.id, 0),)
        for signature in (b"", b"\x00", own.signature, opened.signature[:-1] + b"?", bytes(17)):
            for request in (
                m.Publish(batch, signature=signature),
                m.CloseSession(opened.producer_id, here, signature),
            ):
                refused = await other.ask(request)
                assert (refused.code, "is not this client's" in refused.detail) == ("bad-receipt", True)
        assert isinstance(await elsewhere.ask(m.Publish(batch, signature=opened.signature)), m.PublishReply)
        assert isinstance(
            await elsewhere.ask(m.CloseSession(opened.producer_id, here, opened.signature)), m.NotedReply
        )
        derived = publish(topic, opened.producer_id._replace(node="~derived"), 0, b"y").batch
        assert isinstance(await other.ask(m.Publish(derived)), m.PublishReply), (
            "whoever has the input derives it"
        )
        for node in ("~derived", "~named"):
            request = m.CloseSession(opened.producer_id._replace(node=node), here, opened.signature)
            refused = await other.ask(request)
            assert (refused.code, "is no session" in refused.detail) == ("bad-receipt", True)


async def test_a_receipt_that_was_altered_is_refused_and_nothing_is_done() -> None:
    async with served("a") as (_, client, topic, producer_id):
        await client.ask(publish(topic, producer_id, 0, b"x"))
        (receipt,) = receipts(await client.ask(fetch(hold_time=1.0)))
        altered = bytearray(receipt.signed)
        altered[-1] ^= 1
        for signed in (bytes(altered), b"made up", bytes([1, 7]) + receipt.signed[2:], b"", bytes(2000)):
            reply = await client.ask(m.AckRequest(signed_items([SignedNamed(signed)])))
            assert reply.code == "bad-receipt", "answered, and the connection goes on"
        await trio.sleep(1.1)
        assert payloads(await client.ask(fetch())) == [b"x"]


async def test_a_client_that_asks_and_never_reads_is_read_no_further_and_costs_little() -> None:
    async with world("a") as cluster:
        client = await cluster.client("a", capacity=32 * 1024)
        node = cluster.services["a"].node
        sent = 0
        with trio.move_on_after(1):
            while True:
                await client.send(m.StatusRequest())
                sent += 1
        (inbound,) = cluster.services["a"]._inbound.values()
        assert len(inbound._open) <= INFLIGHT_REQUESTS_MAX
        assert node.intake.inflight_bytes <= 9 * MIB
        assert inbound.waiting_bytes <= 300 * 1024
        other = await cluster.client("a")
        assert isinstance(await other.ask(m.StatusRequest()), m.StatusReply)
        for number in range(2, sent + 2):  # and when it reads, it gets every answer
            assert isinstance(await client.receive(number), m.StatusReply)
        assert node.intake.inflight_bytes <= 1 * MIB


async def test_no_more_than_so_many_requests_are_under_way() -> None:
    async with world("a") as cluster:
        client = await cluster.client("a")
        await client.topic(rf=1)
        waiting = [await client.send(fetch(most=1, wait=0.4)) for _ in range(INFLIGHT_REQUESTS_MAX)]
        await trio.sleep(0.1)
        late = await client.send(m.StatusRequest())
        with trio.move_on_after(0.1):
            await client.receive(late)
            pytest.fail("it was read while as many as allowed were under way")
        for number in waiting:
            await client.receive(number)
        assert isinstance(await client.receive(late), m.StatusReply)


async def test_a_delivery_that_would_be_late_is_given_back_at_once() -> None:
    async with world("a", stall_timeout=60.0) as cluster:
        slow, other = await cluster.client("a", capacity=100_000), await cluster.client("a")
        topic, producer_id = await other.topic(rf=1), await other.session()
        await other.ask(publish(topic, producer_id, 0, *[b"x" * 100_000] * 5))
        await other.ask(publish(topic, producer_id, 5, b"wanted"))
        first = await slow.send(fetch(most=5))  # fills what the connection keeps
        second = await slow.send(fetch(most=1))
        await trio.sleep(0.2)
        assert payloads(await other.ask(fetch())) == [], "both are held"
        assert len(payloads(await slow.receive(first))) == 5
        refused = await slow.receive(second)
        assert (refused.code, "did not read" in refused.detail) == ("too-few-replicas", True)
        assert payloads(await other.ask(fetch())) == [b"wanted"]
        assert cluster.services["a"].node.health.counts["replies_late"] == 1


async def test_a_connection_that_dies_gives_back_what_was_never_begun_and_nothing_else() -> None:
    async with world("a", stall_timeout=60.0) as cluster:
        slow, other = await cluster.client("a", capacity=100_000), await cluster.client("a")
        topic, producer_id = await other.topic(rf=1), await other.session()
        await other.ask(publish(topic, producer_id, 0, *[b"x" * 100_000] * 5))
        await other.ask(publish(topic, producer_id, 5, b"wanted"))
        await slow.send(fetch(most=5))
        await slow.send(fetch(most=1))
        await trio.sleep(0.02)
        slow.transport.close()
        await trio.sleep(0.02)
        assert payloads(await other.ask(fetch())) == [b"wanted"]


async def test_a_connection_that_dies_under_a_large_reply_takes_its_weight_back_once() -> None:
    async with world("a") as cluster:
        dying, other = await cluster.client("a"), await cluster.client("a")
        topic, producer_id = await other.topic(rf=1), await other.session()
        assert (
            payloads(await other.ask(fetch())) == []
        )  # the group is there: the next FETCH waits for no disk
        await other.ask(publish(topic, producer_id, 0, *[b"x" * 100_000] * 5))
        await dying.send(fetch(most=5))
        dying.transport.close()  # before the node has read the request: its reply is the first to notice
        await trio.sleep(0.02)
        assert cluster.services["a"].node.intake.inflight_bytes == 0
        assert len(payloads(await other.ask(fetch()))) == 5, "not a byte was sent, so it was given back"


async def test_a_client_that_takes_no_byte_for_long_is_hung_up_on() -> None:
    async with world("a", stall_timeout=3.0) as cluster:
        client = await cluster.client("a", capacity=1000)
        for _ in range(10):
            await client.send(m.StatusRequest())
            await trio.sleep(0.01)
        await trio.sleep(3.1)
        assert cluster.services["a"].node.health.connections == 0


async def test_one_client_too_many_is_sent_elsewhere_and_peers_are_not_counted() -> None:
    async with world(connections_max=2) as cluster:
        clients = [await cluster.client("a") for _ in range(2)]
        third = Client(cluster.connect("a"))
        await third.push(HELLO)
        refused = await third.receive(1)
        assert (refused.code, "connections_max" in refused.detail) == ("not-stored", True)
        assert await third.closed(1)
        clients[0].transport.close()
        await trio.sleep(0.01)
        await cluster.client("a")


async def test_no_address_shuts_out_the_others() -> None:
    async with world("a", connections_max=5, connections_per_address=2) as cluster:
        first = [await cluster.client("a", address=f"10.0.0.1:{port}") for port in (1, 2)]
        third = Client(cluster.connect("a", "10.0.0.1:3"))
        refused = await third.ask(m.Hello(m.VERSIONS, "", b"", 0.0, "", Incarnation(0, 0), 0, 0, 0))
        assert (refused.code, "2 clients from 10.0.0.1" in refused.detail) == ("not-stored", True)
        await cluster.client("a", address="10.0.0.2:1")
        first[0].transport.close()
        await trio.sleep(0.1)
        await cluster.client("a", address="10.0.0.1:4")


async def test_connections_that_never_say_who_they_are_shut_out_no_one() -> None:
    async with world("ab") as cluster:
        quiet = Client(cluster.connect("a", "10.0.0.9:1"))
        mute = [Client(cluster.connect("a", f"10.0.0.1:{port}")) for port in range(200)]
        client = await cluster.client("a", address="10.0.0.2:1")
        assert await mute[0].closed(0.1)
        assert not await mute[-1].closed(0.1)
        assert not await quiet.closed(0.1)
        assert isinstance(await client.ask(m.StatusRequest()), m.StatusReply)
        cluster.services["b"].node.links["a"].out.transport.close()
        await trio.sleep(1.0)
        await cluster.ready()
        broken = cluster.logs["a"].of("connection_broken")
        assert len(broken) < 200
        assert "have not said who they are" in broken[0]["reason"]


async def test_another_cluster_list_or_version_is_refused_by_name_and_hung_up_on() -> None:
    async with world() as cluster:
        ours = m.Hello(
            m.VERSIONS, "test", node_list_digest(("a", "b", "c")), 5.0, "b", Incarnation(9, 9), 1, 0, 0
        )
        for hello, name in (
            (ours._replace(cluster_id="other"), "'other'"),
            (ours._replace(nodes=node_list_digest(("a", "b"))), "node list"),
            (ours._replace(node="g"), "'g'"),
            (ours._replace(hold_time_max=6.0), "hold_time_max"),
            (ours._replace(versions=(7, 8)), "versions 7 to 8"),
            (ours._replace(cluster_id="other", node=""), "'other'"),
        ):
            stranger = Client(cluster.connect("a"))
            refused = await (stranger.greet(hello, "a") if hello.node else stranger.ask(hello))
            assert (refused.code, name in refused.detail) == ("cluster-mismatch", True), refused
            assert await stranger.closed(1)
        itself = await Client(cluster.connect("a")).greet(ours._replace(node="a"), "a")
        assert (itself.code, "'a'" in itself.detail) == ("superseded", True)


async def test_a_hello_without_the_secret_is_refused() -> None:
    async with world() as cluster:
        core = cluster.services["a"].node.core
        hello = core.hello(now())._replace(node="b", incarnation=Incarnation(9, 9), stamp=1 << 57)
        stamp = core.state.clock.durable_reserve
        stranger = Client(cluster.connect("a"))
        refused = await stranger.greet(hello, "a", b"another secret, as long")
        assert (refused.code, "secret of node a" in refused.detail) == ("unauthorized", True)
        assert await stranger.closed(1)
        for answer in (m.StatusRequest(), m.Proof(b"", b""), hello):
            stranger = Client(cluster.connect("a"))
            await stranger.send(hello)
            await stranger.receive(0)
            await stranger.send(answer)
            assert await stranger.closed(1)
        assert core.state.clock.durable_reserve == stamp
        assert core.state.links.keys() == {"b", "c"}


async def test_with_separate_addresses_nodes_and_clients_use_their_own_listener() -> None:
    apart = {name: f"127.0.0.1:{port}" for name, port in (("a", 8401), ("b", 8402))}
    async with world("ab", peers=apart) as cluster:
        service = cluster.services["a"]
        for listens_for, node, words in (
            ("clients", "b", "nodes at 127.0.0.1:8401 only: give `peers` to node b"),
            ("peers", "", "only nodes come in here: node a serves clients at 127.0.0.1:7401"),
        ):
            ours, theirs = pair()
            service.serve(theirs, "10.0.0.1:1", listens_for)  # type: ignore[arg-type]
            refused = await Client(ours).ask(service.node.core.hello(now())._replace(node=node))
            assert (refused.code, words in refused.detail) == ("unauthorized", True), refused
        assert len(cluster.logs["a"].of("peer_refused")) == len(cluster.logs["a"].of("client_refused")) == 1


async def test_a_proof_is_of_use_on_its_own_connection_alone() -> None:
    async with world("ab") as cluster:
        hello = cluster.services["b"].node.core.hello(now())
        first, second = Client(cluster.connect("a")), Client(cluster.connect("a"))
        nonces = []
        for client in (first, second):
            await client.send(hello)
            nonces.append((await client.receive(0)).nonce)
        header = bytes(encode_message(hello, request=1)[0])[PREFIX_BYTES:]
        said = Handshake(header, "a", nonces[0], b"n" * 16)
        for client, proof in ((second, said.prove(SECRET, DIALLER)), (first, said.prove(SECRET, LISTENER))):
            await client.push(b"".join(encode_message(m.Proof(said.answer, proof))))
            assert (await client.receive(1)).code == "unauthorized"


async def test_while_a_secret_is_changed_nodes_with_either_order_are_peers_and_take_receipts() -> None:
    async with world() as cluster:
        old, new = SECRET.decode(), "another secret, as long"
        orders = {"a": f"{old}\n{new}", "b": f"{new}\n{old}", "c": f"{new}\n{old}"}
        for name, secret in orders.items():
            await cluster.stop(name)
            cluster.settings["secret"] = secret
            cluster.start(name)
        await cluster.ready()
        first, second = await cluster.client("a"), await cluster.client("b")
        topic, producer_id = await first.topic(), await first.session()
        assert isinstance(await first.ask(publish(topic, producer_id, 0, b"x")), m.PublishReply)
        got = receipts(await first.ask(fetch()))
        assert outcomes(await second.ask(m.AckRequest(signed_items(got)))) == ["acked"]


async def test_a_peer_that_says_what_peers_do_not_say_is_hung_up_on_and_dials_again() -> None:
    async with world() as cluster:
        link = cluster.services["b"].node.links["a"]
        assert link.send(encode_message(m.StatusRequest()))
        link.flush()
        await trio.sleep(2)
        (line,) = cluster.logs["a"].of("connection_broken")
        assert "StatusRequest" in line["reason"]
        await cluster.ready()
        client = await cluster.client("b")
        topic, producer_id = await client.topic(), await client.session()
        assert isinstance(await client.ask(publish(topic, producer_id, 0, b"x")), m.PublishReply)


async def test_a_store_from_a_peer_is_checked_as_a_publish_is() -> None:
    async with served() as (cluster, _, topic, producer_id):
        good = publish(topic, producer_id, 0, b"good bytes").batch
        evil = Batch(good.header, good.raw, bytes(good.body).replace(b"good", b"evil"))
        link = cluster.services["b"].node.links["a"]
        assert link.send(encode_message(m.Store(1, topic.epoch_of(0), evil)))
        link.flush()
        await trio.sleep(1)
        assert len(cluster.logs["a"].of("connection_broken")) == 1
        assert len(cluster.services["a"].node.store) == 0


async def test_each_connection_has_its_turn_where_many_ask_for_much() -> None:
    async with world("abc") as cluster:
        one, other = await cluster.client("a"), await cluster.client("a")
        many = [await one.send(m.StatusRequest()) for _ in range(30)]
        await trio.sleep(0.001)
        began = trio.current_time()
        assert isinstance(await other.ask(m.StatusRequest()), m.StatusReply)
        took = trio.current_time() - began
        for number in many:
            assert isinstance(await one.receive(number), m.StatusReply)
        assert 0 < 5 * took < trio.current_time() - began


async def test_acks_of_many_deliveries_pipeline() -> None:
    async with served() as (_, client, topic, producer_id):
        for seq in range(50):
            await client.send(publish(topic, producer_id, seq, Message(b"%d" % seq).payload))
        await trio.sleep(0.2)
        got = await client.ask(fetch())
        assert len(payloads(got)) == 50
        numbers = [await client.send(m.AckRequest(signed_items([receipt]))) for receipt in receipts(got)]
        for number in numbers:
            assert outcomes(await client.receive(number)) == ["acked"]
