"""Quotas of a client, which no other client waits for (docs/operations.md, Quotas)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from quorumq.core import messages as m
from quorumq.core.values import limits
from quorumq.core.values.errors import Busy
from quorumq.core.values.types import DERIVED, STAMP_ZERO, Death, PartitionId, ProducerId, Span, Topic
from quorumq.node.clients import Entry, new_token, write_clients
from quorumq.node.quotas import BURST_S, BUSY_MAX_S, DELAY_MAX_DEFAULT_S, Bucket, Quotas, Usage
from quorumq.wire.batch import Message, build_batch, encode_record, pack_spans
from quorumq.wire.codec import encode_message, signed_items
from quorumq.wire.rights import Client, public
from quorumq.wire.values import SignedNamed
from tests.node.memory import fetch, outcomes, payloads, publish, receipts, signed_session, world

GREEDY, GREEDY_ENTRY = new_token("greedy")
MODEST, MODEST_ENTRY = new_token("modest")
ALL: dict[str, Any] = {"publish": ("*",), "consume": (("*", "*"),), "admin": ("*",)}


def clients(path: Path, **quotas: Any) -> str:
    """A file in which one client has quotas, and the other has none."""
    entries = {"greedy": Entry(GREEDY_ENTRY, **ALL, **quotas), "modest": Entry(MODEST_ENTRY, **ALL)}
    write_clients(path, entries)
    return str(path)


# ------------------------------------------------------------------------- the bucket


@given(
    rate=st.floats(0.5, 1000),
    asked=st.lists(st.tuples(st.floats(0, 3), st.floats(0.1, 3000)), min_size=1, max_size=60),
)
def test_no_more_is_spent_than_came_and_no_one_starves(rate: float, asked: list[tuple[float, float]]) -> None:
    bucket, now, spent, largest = Bucket(rate, 0.0), 0.0, 0.0, 0.0
    for pause, cost in asked:
        now += pause
        if bucket.lacks(cost, now):
            delay = bucket.promise(cost, now)
            assert 0 < delay <= BUSY_MAX_S + 1e-9
        else:
            bucket.spend(cost, now)
            spent, largest = spent + cost, max(largest, cost)
        assert spent <= rate * (now + BURST_S) + largest + 1e-6 * spent
    assert not bucket.lacks(1e9, now + bucket.lacks(1e9, now) + 1e-6), "what is more than all waits for all"


def test_a_busy_reply_has_the_time_of_the_next_turn() -> None:
    bucket = Bucket(10.0, 0.0)
    bucket.spend(10, 0.0)
    delays = [bucket.promise(1, 0.0) for _ in range(1000)]
    assert (delays[:3], max(delays)) == (pytest.approx([0.1, 0.2, 0.3]), BUSY_MAX_S)
    bucket = Bucket(10.0, 0.0)
    bucket.spend(10, 0.0)
    for delay in [bucket.promise(1, 0.0) for _ in range(5)]:
        assert not bucket.lacks(1, delay + 1e-9)
        bucket.spend(1, delay + 1e-9)


SETTLING = (m.AckRequest(()), m.RejectRequest(()), m.ExtendRequest((), 1.0, 0.0), m.ReleaseRequest(()))
OTHERS = (m.Metadata(), m.OpenSession(), m.StatusRequest(), fetch(), m.SetGroup("jobs", "g"))


@pytest.mark.parametrize("request_", [*SETTLING, *OTHERS], ids=lambda request: type(request).__name__)
@pytest.mark.parametrize("quota", ["requests_per_s", "bytes_per_s"])
def test_beyond_a_rate_all_waits_but_what_frees_space_and_that_counts(quota: str, request_: Any) -> None:
    usage = Usage(Quotas(**{quota: 100}), 0.0, 60.0)
    settles = any(request_ is one for one in SETTLING)
    who = Client("greedy")
    for _ in range(250 if settles else 100):
        usage.begin(who, request_, 1, 0.0)
    now = 1.4 if settles else 0.0
    with pytest.raises(Busy, match=f"'greedy': {quota} is 100") as caught:
        usage.begin(who, m.Metadata() if settles else request_, 1, now)
    assert caught.value.delay == pytest.approx(2.51 - 2.4 if settles else 0.01)


# --------------------------------------------------------------------------- a node


@asynccontextmanager
async def greedy_and_modest(path: Path, **quotas: float) -> AsyncIterator[tuple[Any, Any]]:
    """Run one node. Yields a client with these quotas, and one without."""
    async with world("a", clients_file=clients(path / "clients.toml", **quotas)) as cluster:
        yield await cluster.client("a", token=GREEDY), await cluster.client("a", token=MODEST)


async def test_a_greedy_client_is_told_to_wait_and_a_modest_one_notices_nothing(tmp_path: Path) -> None:
    path = clients(tmp_path / "clients.toml", requests_per_s=10)
    async with world("a", clients_file=path) as cluster:
        greedy, other, modest = [await cluster.client("a", token=t) for t in (GREEDY, GREEDY, MODEST)]
        replies = [await (greedy, other)[n % 2].ask(m.Metadata()) for n in range(30)]
        busy = [reply for reply in replies if isinstance(reply, m.Failed)]
        assert (len(busy), {reply.code for reply in busy}) == (20, {"busy"}), "by name, over all connections"
        assert (busy[0].delay, busy[-1].delay) == (pytest.approx(0.1, abs=0.01), pytest.approx(2.0, abs=0.1))
        for _ in range(30):
            assert isinstance(await modest.ask(m.Metadata()), m.MetadataReply)
        await trio.sleep(1.0)
        assert isinstance(await greedy.ask(m.Metadata()), m.MetadataReply)
        assert (await modest.ask(m.StatusRequest())).fields["requests_beyond_quota"] == 20
        assert len(cluster.logs["a"].of("client_held_back")) == 1, "once, when it begins"


def derived(topic: Any, first: int, count: int) -> m.Publish:
    """A message of each of ``count`` derived producer ids."""
    spans = tuple(sorted(Span(ProducerId(DERIVED, n, n, n), 0, 1) for n in range(first, first + count)))
    record = [encode_record(Message(b"x"))] * count
    return m.Publish(pack_spans(PartitionId(topic.id, 0), spans, 0, record), signature=b"")


async def test_a_client_with_many_new_producer_ids_waits_and_may_use_known_ones(tmp_path: Path) -> None:
    async with greedy_and_modest(tmp_path, producer_ids_per_s=10) as (greedy, modest):
        topic = await modest.topic(rf=1)
        assert isinstance(await greedy.ask(derived(topic, 0, 100)), m.PublishReply), (
            "more than all has its turn"
        )
        reply = await greedy.ask(derived(topic, 100, 1))
        assert (reply.code, "producer_ids_per_s is 10" in reply.detail, reply.delay > 5) == (
            "busy",
            True,
            True,
        )
        producer_id = await greedy.session()
        assert (await greedy.ask(publish(topic, producer_id, 0, b"x"))).code == "busy", (
            "a session begins as well"
        )
        assert isinstance(await greedy.ask(derived(topic, 0, 100)), m.PublishReply), (
            "these are there: a retry"
        )
        assert isinstance(await modest.ask(derived(topic, 100, 100)), m.PublishReply)


async def test_no_client_is_told_under_which_key_replicas_compare(tmp_path: Path) -> None:
    async with world("a") as cluster:
        client = await cluster.client("a")
        topic = await client.topic(rf=1)
        held = cluster.services["a"].node.core.topic_named("jobs")
        assert held is not None
        assert len(held.digest_key) == 16
        registers = [
            topic,
            (await client.ask(m.AlterTopic("jobs", partitions=2))).topic,
            *(await client.ask(m.Metadata(("jobs",)))).topics,
            (await client.ask(m.DeleteTopic("jobs", topic.id))).topic,
        ]
        assert {register.digest_key for register in registers} == {b""}


def test_every_reply_that_may_have_a_register_is_known() -> None:
    """The author of a new one sees here that `public` leaves the key out of it, too."""
    topic = Topic(bytes(16), "jobs", 1, (("a",),), 5, STAMP_ZERO, digest_key=b"k" * 16)
    names = {}
    for kind in get_args(m.ClientReply):
        hints = {name: hint for name, hint in get_type_hints(kind).items() if "Topic" in repr(hint)}
        for name, hint in hints.items():
            assert hint in (Topic, tuple[Topic, ...]), f"{kind.__name__}.{name} hides a register"
            blank = dict.fromkeys(kind._fields)
            reply = kind(**{**blank, name: topic if hint is Topic else (topic,)})
            assert b"k" * 16 not in repr(public(reply)).encode(), kind
            names[kind.__name__] = name
    assert set(names) == {"TopicReply", "MetadataReply"}


async def test_a_client_with_many_connections_waits_for_its_own_costly_requests(tmp_path: Path) -> None:
    path = clients(tmp_path / "clients.toml")
    async with world("a", clients_file=path) as cluster:
        greedy = [await cluster.client("a", token=GREEDY) for _ in range(20)]
        modest = await cluster.client("a", token=MODEST)
        for client in greedy * 2:
            await client.send(m.StatusRequest())
        number = await modest.send(m.StatusRequest())
        assert isinstance(await modest.receive(number), m.StatusReply)
        assert sum(bool(client.transport.received) for client in greedy) < 10, "all of them have one turn"


async def test_bytes_count_both_ways_and_a_request_of_seconds_has_its_turn(tmp_path: Path) -> None:
    async with greedy_and_modest(tmp_path, bytes_per_s=10_000) as (greedy, modest):
        topic, producer_id = await modest.topic(rf=1), await modest.session()
        large = publish(topic, producer_id, 0, bytes(50_000))
        await trio.sleep(1.0)  # the answer to HELLO counts
        assert isinstance(await greedy.ask(large), m.PublishReply)
        reply = await greedy.ask(publish(topic, producer_id, 1, b"x"))
        assert (reply.code, reply.delay > 4) == ("busy", True), "it used up what comes in five seconds"
        await trio.sleep(1.01 * reply.delay)  # clocks differ
        assert isinstance(await greedy.ask(publish(topic, producer_id, 1, b"x")), m.PublishReply)
        await trio.sleep(1.0)
        assert sum(map(len, payloads(await greedy.ask(fetch())))) == 50_001
        assert (await greedy.ask(m.Metadata())).code == "busy"


async def test_no_more_is_handed_over_than_may_be_unsettled_and_acks_free_space(tmp_path: Path) -> None:
    async with greedy_and_modest(tmp_path, unsettled=5) as (greedy, modest):
        topic, producer_id = await modest.topic(rf=1), await modest.session()
        await modest.ask(publish(topic, producer_id, 0, *[b"%d" % n for n in range(20)]))
        first = await greedy.ask(fetch(most=3))
        second = await greedy.ask(fetch(most=100))
        assert (len(payloads(first)), len(payloads(second))) == (3, 2)
        reply = await greedy.ask(fetch())
        assert (reply.code, "unsettled is 5" in reply.detail) == ("busy", True)
        assert len(payloads(await modest.ask(fetch(most=4)))) == 4
        assert outcomes(await greedy.ack(*receipts(first))) == ["acked"]
        assert len(payloads(await greedy.ask(fetch()))) == 3
        await trio.sleep(4.0)  # the holds run out
        assert len(payloads(await greedy.ask(fetch(most=4)))) > 0


async def test_a_message_that_is_named_again_and_again_frees_space_once(tmp_path: Path) -> None:
    async with greedy_and_modest(tmp_path, unsettled=5) as (greedy, modest):
        topic, producer_id = await modest.topic(rf=1), await modest.session()
        await modest.ask(publish(topic, producer_id, 0, *[b"%d" % n for n in range(20)]))
        (got,) = receipts(await greedy.ask(fetch()))
        first = Span(producer_id, 0, 1)
        for _ in range(2):
            await greedy.ack(got._replace(spans=(first,) * 5))
        assert payloads(await greedy.ask(fetch())) == [b"5"]
        await greedy.ack(got)
        assert len(payloads(await greedy.ask(fetch()))) == 4
        await greedy.ask(m.ExtendRequest(signed_items([got]), 4.0, 0.0))
        await trio.sleep(4.5)  # the holds run out, later at the node than here
        assert len(payloads(await greedy.ask(fetch(most=4)))) == 4


async def test_bytes_of_replies_are_charged_however_many_were_under_way(tmp_path: Path) -> None:
    async with greedy_and_modest(tmp_path, bytes_per_s=10_000) as (greedy, modest):
        topic, producer_id = await modest.topic(rf=1), await modest.session()
        for seq in range(10):
            await modest.ask(publish(topic, producer_id, seq, bytes(50_000)))
        numbers = [await greedy.send(fetch(most=1)) for _ in range(10)]
        got = [await greedy.receive(number) for number in numbers]
        assert sum(len(payloads(reply)) for reply in got) == 10
        await trio.sleep(40.0)
        assert (await greedy.ask(m.Metadata())).code == "busy", "half a megabyte takes fifty seconds"
        await trio.sleep(12.0)
        assert isinstance(await greedy.ask(m.Metadata()), m.MetadataReply)


async def test_topics_and_groups_are_made_up_to_a_number_and_others_are_used(tmp_path: Path) -> None:
    async with greedy_and_modest(tmp_path, topics=2, groups=2) as (greedy, modest):
        first = await greedy.topic("jobs", rf=1)
        await greedy.topic("more", rf=1)
        refused = await greedy.ask(m.CreateTopic("third", 1))
        assert (refused.code, "there are 2 topics" in refused.detail) == ("too-large", True)
        await greedy.topic("jobs", rf=1)
        for group, code in (("g", None), ("h", None), ("i", "too-large"), ("g", None)):
            assert getattr(await greedy.ask(fetch()._replace(group=group)), "code", None) == code, group
        assert (await greedy.ask(m.SetGroup("more", "i"))).code == "too-large"
        await modest.topic("third", rf=1)
        await modest.ask(m.DeleteTopic("jobs", first.id))
        await modest.ask(m.DeleteTopic("third", m.TopicReply(await modest.topic("third", rf=1)).topic.id))
        await greedy.topic("fourth", rf=1)


async def test_quotas_change_with_the_file_and_what_was_used_stays_where_they_do_not(tmp_path: Path) -> None:
    path = clients(tmp_path / "clients.toml", requests_per_s=5)
    async with world("a", clients_file=path) as cluster:
        greedy = await cluster.client("a", token=GREEDY)
        for _ in range(5):
            await greedy.ask(m.Metadata())
        clients(tmp_path / "clients.toml", requests_per_s=5, topics=7)
        assert (await greedy.ask(m.Metadata())).code == "busy"
        clients(tmp_path / "clients.toml")
        await trio.sleep(1.1)
        for _ in range(50):
            assert isinstance(await greedy.ask(m.Metadata()), m.MetadataReply)


async def test_refused_requests_count_like_served_ones(tmp_path: Path) -> None:
    path = tmp_path / "clients.toml"
    write_clients(path, {"greedy": Entry(GREEDY_ENTRY, consume=(("mine", "g"),), requests_per_s=5)})
    topic = b"x" * 16
    forged = SignedNamed(b"\0" * 40)
    strange = encode_message(m.Metadata(("a",)), request=99)[0].replace(
        b"\x61a", b"\x18\x61"
    )  # a number for a name
    refused: list[Any] = [
        fetch(),
        m.AckRequest(signed_items([forged])),
        m.ShowRequest(PartitionId(topic, 0), Span(ProducerId("a", 1, 1, 1), 0, 1)),
        m.StatusRequest(),
        fetch()._replace(topics=("mine",) * 2000),
    ]
    async with world("a", clients_file=str(path)) as cluster:
        greedy = await cluster.client("a", token=GREEDY)
        for request in refused:
            codes = [(await greedy.ask(request)).code for _ in range(20)]
            assert codes.count("busy") == 15, type(request).__name__
            await trio.sleep(30.0)
        for _ in range(5):
            await greedy.push(bytes(strange))
        await trio.sleep(0.01)
        assert (await greedy.ask(m.Metadata())).code == "busy"


async def test_the_bytes_of_every_answer_count(tmp_path: Path) -> None:
    path = clients(tmp_path / "clients.toml", bytes_per_s=20_000)
    async with world("a", clients_file=path) as cluster:
        greedy, modest = await cluster.client("a", token=GREEDY), await cluster.client("a", token=MODEST)
        topic, producer_id = await modest.topic(rf=1), await modest.session()
        await modest.ask(publish(topic, producer_id, 0, bytes(100_000)))
        await modest.ask(fetch(most=1))
        for number in range(60):
            await modest.topic(f"{number:0>190}", rf=1)
        death = Death(STAMP_ZERO, "rejected", "ValueError", "x" * 8000, "y" * 8000)
        await modest.ask(publish(topic, producer_id, 1, b"y"))
        await modest.ask(m.RejectRequest(signed_items(receipts(await modest.ask(fetch()))), 0.0, death))
        large: list[tuple[Any, int]] = [
            (m.PeekRequest("jobs", 0, "g", "all", (0, 0), 10, bodies=True), 100_000),
            (m.Metadata(), 60 * 190),
            (m.StatusRequest(), 1_000),
            (m.ShowRequest(PartitionId(topic.id, 0), Span(producer_id, 1, 2)), 16_000),
        ]
        node = cluster.services["a"].node
        assert node.clients is not None
        for request, size in large:
            await trio.sleep(20.0)
            bucket = node.clients.usage("greedy", node.clock().mono)._bytes
            assert bucket is not None
            assert not bucket.lacks(20_000, node.clock().mono)
            reply = await greedy.ask(request)
            assert not isinstance(reply, m.Failed), reply
            assert bucket.level < 20_000 - size, type(request).__name__


async def test_topics_and_groups_being_made_count_and_all_that_a_pattern_would_make(tmp_path: Path) -> None:
    async with greedy_and_modest(tmp_path, topics=3, groups=5) as (greedy, modest):
        numbers = [await greedy.send(m.CreateTopic(f"w{at}", 1, implicit=True)) for at in range(30)]
        made = [await greedy.receive(number) for number in numbers]
        assert sum(isinstance(reply, m.TopicReply) for reply in made) == 3
        for at in range(3, 20):
            await modest.topic(f"w{at}", rf=1)
        refused = await greedy.ask(fetch()._replace(topics=("w*",)))
        assert (refused.code, "20 would come" in refused.detail) == ("too-large", True)
        numbers = [await greedy.send(fetch()._replace(topics=("w1",), group=f"h{at}")) for at in range(30)]
        taken = [await greedy.receive(number) for number in numbers]
        assert sum(isinstance(reply, m.FetchReply) for reply in taken) == 5
        groups = (await modest.ask(m.Metadata())).groups
        assert len(groups) == 5
        for number in range(5):  # a deletion frees quota, and a new creation counts again
            await modest.ask(m.DeleteGroup("w1", groups[number].name))
        numbers = [
            await greedy.send(m.SetGroup("w1", groups[at % 5].name + "x" * (at // 5))) for at in range(15)
        ]
        again = [await greedy.receive(number) for number in numbers]
        assert sum(not isinstance(reply, m.Failed) for reply in again) == 5


@pytest.mark.parametrize(("quota", "most"), [({}, DELAY_MAX_DEFAULT_S), ({"delay_max": 60.0}, 60.0)])
async def test_no_client_puts_messages_off_for_longer_than_it_may(
    tmp_path: Path, quota: dict[str, float], most: float
) -> None:
    async with world("a", clients_file=clients(tmp_path / "clients.toml", **quota)) as cluster:
        greedy, modest = await cluster.client("a", token=GREEDY), await cluster.client("a", token=MODEST)
        topic, producer_id = await modest.topic(rf=1), await modest.session()
        await modest.ask(publish(topic, producer_id, 0, b"x"))
        items = signed_items(receipts(await greedy.ask(fetch())))
        refused = await greedy.ask(m.RejectRequest(items, most + 1))
        assert (refused.code, f"at most {most:g} s" in refused.detail) == ("too-large", True)
        claim = min(most + 1, limits.CLAIM_MAX_S)
        claimed = await greedy.ask(m.ExtendRequest(items, claim, 0.0))
        assert getattr(claimed, "code", "") == ("too-large" if claim > most else "")
        assert outcomes(await greedy.ask(m.ExtendRequest(items, cluster.config("a").hold_time_max, 0.0))) == [
            "ok"
        ]
        assert outcomes(await greedy.ask(m.RejectRequest(items, most))) == ["ok"]
        for delay, made in ((most + 1, False), (most, True)):
            batch = build_batch(
                PartitionId(topic.id, 0), producer_id, 1, 1, [Message(b"y")], delay_ms=round(delay * 1000)
            )
            reply = await greedy.ask(m.Publish(batch, signature=signed_session(producer_id)))
            assert isinstance(reply, m.PublishReply) is made, reply
