"""Backlogs of all groups, counts of dead letters and of a rewind, and the search."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
import trio

from quorumq.client import NewMessage, NotFound, connect
from quorumq.client.admin import peek
from quorumq.client.admin.peek import Bodies, bodies_of
from quorumq.core import messages as m
from quorumq.core.values.types import Span
from quorumq.wire.values import WireSlice
from tests.client.steps import jobs


async def test_the_backlogs_of_all_groups_take_one_request_to_each_node() -> None:
    async with jobs(7) as (cluster, client):
        await client.create_topic("mail", partitions=2)
        for topic, group in (("jobs", "g"), ("jobs", "h"), ("mail", "g")):
            await client.create_group(topic, group)
        await client.publish("mail", b"x")
        await client.ack(await client.fetch("jobs", "h", max_messages=2))
        cluster.asked.clear()
        backlogs = await client.backlogs()
        assert [(*location, one.ready if one else None) for location, one in backlogs.items()] == [
            ("jobs", "g", 7), ("jobs", "h", 5), ("mail", "g", 1),
        ]  # fmt: skip
        assert sorted(node for node, _ in cluster.of(m.DescribeGroups)) == ["a", "b", "c"]
        assert backlogs["jobs", "g"] == await client.backlog("jobs", "g")
        assert list(await client.backlogs("mai*")) == [("mail", "g")]
        cluster.kill("a")
        assert (await client.backlogs("jobs"))["jobs", "h"].ready == 5  # type: ignore[union-attr]


async def test_a_topic_whose_replicas_do_not_answer_has_no_counts_and_does_not_hide_the_others() -> None:
    async with jobs(3) as (cluster, client):
        lonely = await client.create_topic("lonely", rf=1)
        await client.create_group("jobs", "g")
        await client.create_group("lonely", "g")
        cluster.kill(lonely.replicas[0][0])
        backlogs = await client.backlogs()
        assert backlogs["lonely", "g"] is None
        assert backlogs["jobs", "g"].ready == 3  # type: ignore[union-attr]


async def test_many_partitions_are_asked_for_in_several_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quorumq.client.admin.backlog.PARTITIONS_ASKED", 5)
    async with jobs(0, partitions=4) as (cluster, client):
        for group in "fgh":
            await client.create_group("jobs", group)
        cluster.asked.clear()
        assert len(await client.backlogs()) == 3
        assert len(cluster.of(m.DescribeGroups)) == 3 * 3


async def test_dead_letters_are_counted_by_kind_over_partitions() -> None:
    async with jobs(0, partitions=2) as (_, client):
        await client.create_group("jobs", "g")
        await client.producer("jobs").publish_many([NewMessage(b"%d" % n, key=b"%d" % n) for n in range(20)])
        messages = await client.fetch("jobs", "g", max_messages=100, min_messages=20, max_wait=1)
        for message in messages[:12]:
            await message.dead_letter(ValueError("bad"))
        await client.dead_letter(messages[12:15], reason="rejected")
        counts = await client.count_dead_letters("jobs", "g!dead")
        assert counts.complete
        assert [(kind.messages, kind.error_class, kind.message) for kind in counts.kinds] == [
            (12, "ValueError", "bad"), (3, "", "rejected"),
        ]  # fmt: skip
        (first, _) = counts.kinds
        assert sum(first.versions.values()) == sum(first.hours.values()) == 12
        assert set(first.samples) <= {message.id for message in messages[:12]}
        assert not (await client.count_dead_letters("jobs", "nobody")).kinds


async def test_a_rewind_is_counted_and_brings_back_what_was_counted() -> None:
    async with jobs(10, retention=3600.0) as (cluster, client):
        await client.create_group("jobs", "g")
        await client.ack(await client.fetch("jobs", "g", max_messages=4))
        count = await client.count_rewind("jobs", "g", "earliest")
        assert (count.messages, count.states, count.complete) == (10, {"acked": 4, "ready": 6}, True)
        assert (await client.count_rewind("jobs", "g", "latest")).messages == 0
        for group in ("h", "h!dead"):
            with pytest.raises(NotFound, match="no group 'h' reads topic 'jobs': g does"):
                await client.count_rewind("jobs", group, "earliest")
        await trio.sleep(10)
        later = datetime.fromtimestamp(cluster.now.wall_ms / 1000, UTC)
        assert (await client.count_rewind("jobs", "g", later)).messages == 0
        await client.rewind("jobs", "g", "earliest")
        assert (await client.backlog("jobs", "g")).ready == 10


async def test_a_search_reads_keys_headers_and_payloads_and_says_how_many_it_looked_at() -> None:
    async with jobs() as (_, client):
        await client.create_group("jobs", "g")
        await client.producer("jobs").publish_many(
            [
                NewMessage(b"order %d Z\xc3\xbcrich" % n, key=b"k%d" % n, headers={"tenant": f"T{n}", "n": n})
                for n in range(50)
            ]
        )
        both = await client.search("jobs", "g", key="K4", text="zürich")
        assert [match.message.key for match in both.matches] == [b"k4", *(b"k4%d" % n for n in range(10))]
        assert (both.looked_at, both.of, both.complete) == (50, 50, True)
        (one,) = (await client.search("jobs", "g", "ready", header="n=17")).matches
        assert (one.message.payload, one.peek.peeked.state) == ("order 17 Zürich".encode(), "ready")
        few = await client.search("jobs", "g", text="order", look_at=10)
        assert (len(few.matches), few.looked_at, few.of, few.complete) == (10, 10, 50, False)
        assert len((await client.search("jobs", "g", text="order", limit=3)).matches) == 3
        assert (await client.backlog("jobs", "g")).held == 0
        assert len((await client.search("jobs", "g", limit=60)).matches) == 50


async def test_a_search_lets_other_tasks_run_and_is_paced_by_the_caller() -> None:
    async with jobs() as (_, client):
        await client.create_group("jobs", "g")
        await client.producer("jobs").publish_many([b"x"] * 100)
        seen: list[int] = []
        turns = 0

        async def pace(number: int) -> None:
            seen.append(number)

        async def others() -> None:
            nonlocal turns
            while True:
                await trio.sleep(0)
                turns += 1

        async with trio.open_nursery() as nursery:
            await client.search("jobs", "g", text="none", pace=pace)
            nursery.start_soon(others)
            turns = 0
            await client.search("jobs", "g", text="none", pace=pace)
            waited, turns = turns, 0
            await client.search("jobs", "g", text="none")
            assert turns >= waited + 3, "after each 32 messages"
            nursery.cancel_scope.cancel()
        assert seen == 2 * list(range(100))


async def test_a_search_decodes_a_batch_in_a_step_and_drops_earlier(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page was decoded whole once: 8 MiB of it are 50 ms in which a gateway serves no other user."""
    decoded: list[int] = []  # messages of each step that decodes some
    kept: list[int] = []
    paced = 0

    def decode(part: WireSlice) -> dict[Any, Any]:
        decoded.append(part.header.size)
        return bodies_of(part)

    def within(bodies: Bodies, span: Span) -> Any:
        before = len(decoded)
        parts = one(bodies, span)
        kept.append(sum(map(len, bodies._decoded.values())))
        assert len(decoded) <= before + 1
        assert paced >= sum(decoded[:-1]), "those before were read"
        return parts

    async def pace(number: int) -> None:
        nonlocal paced
        paced += 1

    one = Bodies.within
    monkeypatch.setattr(peek, "bodies_of", decode)
    monkeypatch.setattr(Bodies, "within", within)
    async with jobs() as (_, client):
        await client.create_group("jobs", "g")
        producer = client.producer("jobs")
        for _ in range(10):
            await producer.publish_many([b"x" * 100] * 50)
        await client.fetch("jobs", "g", max_messages=10)  # two entries are of one batch
        search = await client.search("jobs", "g", text="none", pace=pace)
    assert (search.looked_at, sum(decoded)) == (500, 500), "none is decoded twice"
    assert (max(decoded), max(kept)) == (50, 50)


async def test_a_search_ends_at_its_bytes() -> None:
    async with jobs() as (_, client):
        await client.create_group("jobs", "g")
        for number in range(10):
            await client.publish("jobs", b"%d" % number + 999 * b"x", key=b"")
        first = await client.search("jobs", "g", max_bytes=3500)
        assert (len(first.matches), first.looked_at, first.of, first.complete) == (3, 3, 10, False)
        one = await client.search("jobs", "g", max_bytes=10)
        assert (len(one.matches), one.complete) == (1, False), "one that is larger by itself comes alone"
        few = await client.search("jobs", "g", text="9x", look_at_bytes=3500)
        assert (few.matches, few.looked_at, few.complete) == ((), 4, False)
        assert (await client.search("jobs", "g", max_bytes=10_000, look_at_bytes=10_001)).complete


async def test_a_tail_yields_what_is_published_from_now_on_also_after_its_replica_is_gone() -> None:
    async with jobs(5, partitions=2, retention=3600.0) as (cluster, client):
        await client.create_group("jobs", "g")
        payloads: list[bytes] = []
        await trio.sleep(1)

        async def watch() -> None:
            async for match in client.tail("jobs", "g"):
                payloads.append(match.message.payload)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch)
            await trio.sleep(2)
            for number in range(4):
                await client.publish("jobs", b"%d" % number, partition=number % 2)
            await client.ack(await client.fetch("jobs", "g", max_messages=3))
            await trio.sleep(2)
            assert sorted(payloads) == [b"0", b"1", b"2", b"3"]
            (address,) = {node for node, _ in cluster.of(m.PeekRequest)[-1:]}
            cluster.kill(address)
            await client.publish("jobs", b"4", partition=0)
            await client.publish("jobs", b"5", partition=1)
            await trio.sleep(60)
            assert sorted(payloads) == [b"0", b"1", b"2", b"3", b"4", b"5"], "each once"
            nursery.cancel_scope.cancel()


async def test_a_tail_goes_by_no_clock_of_a_producer_also_when_the_batch_at_its_cursor_is_reclaimed() -> None:
    """A producer an hour ahead hid all others' messages, one behind was not seen."""
    async with jobs(1) as (cluster, client):
        await client.create_group("jobs", "g")
        payloads: list[bytes] = []

        async def watch() -> None:
            async for match in client.tail("jobs", "g"):
                payloads.append(match.message.payload)

        async def publish(number: int, hours: int) -> None:
            ms = hours * 3_600_000
            given: Any = {"dial": cluster.dial, "wall_ms": lambda: cluster.wall_ms() + ms}
            async with connect(cluster.addresses, **given) as other:
                await other.publish("jobs", b"%d" % number)
            await trio.sleep(2)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch)
            await trio.sleep(2)
            for number, hours in enumerate((0, -1, 1, 0)):
                await publish(number, hours)
            _, *new = await client.fetch("jobs", "g", max_messages=10, min_messages=5, max_wait=5)
            await client.ack(new)
            await trio.sleep(20)
            await publish(4, -1)
            nursery.cancel_scope.cancel()
        assert payloads == [b"0", b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize("pattern", ["*", "jo*", "nothing*"])
async def test_a_pattern_is_no_name_of_one_topic(pattern: str) -> None:
    async with jobs(1) as (_, client):
        await client.create_group("jobs", "g")
        for call in (client.topic(pattern), client.backlog(pattern, "g"), client.search(pattern, "g")):
            with pytest.raises(NotFound, match="patterns"):
                await call


async def test_a_search_reads_the_messages_after_the_bytes_of_one_answer() -> None:
    async with jobs() as (_, client):
        await client.create_group("jobs", "g")
        filler = bytes(900_000)
        await client.producer("jobs").publish_many([*[NewMessage(filler)] * 11, NewMessage(b"needle")])
        search = await client.search("jobs", "g", text="needle")
        assert (len(search.matches), search.looked_at) == (1, 12)
