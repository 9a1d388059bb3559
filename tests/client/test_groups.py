"""Groups, rewinding under a consumer, dead letters as a queue, PURGE and complete PEEK, through the client."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trio

from quorumq.client import (
    AlreadySettled,
    Client,
    GroupConsumer,
    Message,
    NotFound,
    NotStored,
    Outcome,
    OutcomeUnknown,
    Peek,
    QuorumqError,
    TooFewReplicas,
    UsageError,
)
from quorumq.core import messages as m
from quorumq.core.node import status
from quorumq.core.values.errors import StaleGeneration
from quorumq.core.values.types import Kind
from quorumq.history import HistoryWriter
from quorumq.history.reader import read_history
from tests.client.fake import connected, failing, fake_cluster, serving
from tests.client.steps import jobs, publish, take


def payloads(messages: list[Message]) -> list[int]:
    return sorted(int(message.payload) for message in messages)


async def listed(client: Client, which: str = "all", group: str = "g", topic: str = "jobs") -> list[Peek]:
    return [item async for item in client.peek(topic, group, which, complete=True)]  # type: ignore[arg-type]


async def counts(client: Client, group: str = "g") -> dict[str, int]:
    result: dict[str, int] = {}
    for item in await listed(client, group=group):
        result[item.peeked.state] = result.get(item.peeked.state, 0) + item.peeked.span.size
    return result


async def dying(client: Client, count: int = 3) -> None:
    """A topic with ``count`` dead letters of group g, and one message more."""
    await client.create_topic("jobs")
    await publish(client, count + 1)
    messages = await client.fetch("jobs", "g", max_messages=count)
    await client.dead_letter(messages, error=ValueError("no such account"))


# ------------------------------------------------------------------------------------------ groups


async def test_a_group_begins_where_it_was_created_to_begin() -> None:
    async with jobs(10, partitions=2) as (cluster, client):
        await trio.sleep(1)
        middle = datetime.fromtimestamp(cluster.wall_ms() / 1000, UTC) + timedelta(microseconds=700)
        await client.create_group("jobs", "new", start="latest")
        made = await client.create_group("jobs", "middle", start=middle)
        assert made.from_ms == cluster.wall_ms(), "messages of the rest of this millisecond are covered"
        assert await client.create_group("jobs", "middle", start="earliest") == made, "it is there"
        await client.create_group("jobs", "all")
        assert await client.fetch("jobs", "fetched", start="latest") == []
        async with client.consumer("jobs", "consumed", start="latest") as consumer:
            with trio.move_on_after(1.0):
                await take(consumer, 1)
            await publish(client, 5)
            assert payloads(await take(consumer, 5)) == [0, 1, 2, 3, 4]
        for group, count in (("new", 5), ("middle", 5), ("fetched", 5), ("all", 15), ("other", 15)):
            assert len(await client.fetch("jobs", group)) == count, group


async def test_a_start_that_cannot_be_is_refused_before_anything_is_sent() -> None:
    async with jobs() as (cluster, client):
        with pytest.raises(UsageError, match="time zone"):
            await client.create_group("jobs", "g", start=datetime(2026, 1, 1))
        with pytest.raises(UsageError, match="'newest'"):
            await client.create_group("jobs", "g", start="newest")  # type: ignore[arg-type]
        assert not cluster.of(m.SetGroup)
        with pytest.raises(UsageError, match="dead letters"):
            await client.create_group("jobs", "g!dead")
        with pytest.raises(NotFound, match="'g' reads topic 'jobs': none do"):
            await client.rewind("jobs", "g", "latest")
        with pytest.raises(NotFound):
            await client.create_group("jbs", "g")


async def test_a_call_that_needs_a_topic_alone_asks_for_no_groups() -> None:
    async with jobs() as (cluster, client):
        await publish(client, 1)
        await client.fetch("jobs", "g")
        async with client.consumer("jobs", "g"):
            pass
        asked = cluster.of(m.Metadata)
        assert len(asked) >= 3
        assert not any(request.groups for _, request in asked)
        assert [group.name for group in (await client.metadata("jobs")).groups] == ["g"]


async def test_a_rewind_is_repeated_at_another_node_and_the_newest_generation_counts() -> None:
    async with jobs() as (cluster, client):
        await client.create_group("jobs", "g")
        cluster.lose = lambda node, request: node == "a" and isinstance(request, m.SetGroup)
        group = await client.rewind("jobs", "g", "earliest")
        assert len(cluster.of(m.SetGroup)) == 4, (
            "the creation, the one whose answer was lost, the one that was late after that, the one that was heard"
        )
        (known,) = (await client.metadata("jobs")).groups
        assert known == group


async def test_a_change_whose_answer_was_lost_does_nothing_to_a_group_that_is_made_meanwhile() -> None:
    """The node that stood still reads the old request once the new group is there."""
    async with jobs() as (cluster, client):
        await client.create_group("jobs", "g")
        await client.delete_group("jobs", "g")
        (_, deletion) = cluster.of(m.DeleteGroup)[0]
        made = await client.create_group("jobs", "g")
        with pytest.raises(StaleGeneration, match="since its generation"):
            await client.context.ask(deletion, "deletion that is late", 5.0, writes=True)
        assert (await client.metadata("jobs")).groups == (made,)


async def test_a_change_seen_by_a_node_without_the_group_undoes_nothing_when_it_is_late() -> None:
    async with jobs() as (cluster, client):
        cluster.drop = lambda sender, to, message: "a" in (sender, to)
        cluster.submit("b", m.SetGroup("jobs", "g"))
        cluster.hear_all()
        assert not (await client.metadata("jobs")).groups
        cluster.drop = lambda *packet: False
        for change in (client.pause_group("jobs", "g"), client.limit_group("jobs", "g", 1.0)):
            await change
        await client.resume_group("jobs", "g")
        await client.limit_group("jobs", "g", None)
        for late in (cluster.of(m.PauseGroup)[0], cluster.of(m.LimitGroup)[0]):
            with pytest.raises(StaleGeneration, match="was changed since"):
                await client.context.ask(late[1], "change that is late", 5.0, writes=True)


async def test_a_creation_whose_answer_was_lost_makes_nothing_after_a_deletion() -> None:
    async with jobs() as (cluster, client):
        await client.create_group("jobs", "g")
        await client.delete_group("jobs", "g")
        await client.create_topic("new")
        await client.delete_topic("new")
        await client.publish("auto", b"x")
        await client.delete_topic("auto")
        late_ones = [request for _, request in (*cluster.of(m.CreateTopic)[-2:], cluster.of(m.SetGroup)[-1])]
        for late in late_ones:
            with pytest.raises(StaleGeneration, match="since"):
                await client.context.ask(late, "creation that is late", 5.0, writes=True)
        assert [topic.name for topic in (await client.metadata()).topics] == ["jobs"]
        for _ in range(2):  # names that were deleted several times
            await client.create_topic("new")
            await client.create_group("new", "g")
            await client.delete_group("new", "g")
            await client.create_group("new", "g")
            await client.delete_topic("new")


async def test_metadata_of_several_pages_is_one_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    async with jobs() as (cluster, client):
        for number in range(5):
            await client.create_group("jobs", f"g{number}")
        await client.create_topic("more")
        whole = await client.metadata()
        monkeypatch.setattr(status, "METADATA_BYTES", 1)
        asked = len(cluster.of(m.Metadata))
        known = await client.metadata()
        assert len(cluster.of(m.Metadata)) > asked + 5
        assert (sorted(known.topics), sorted(known.groups)) == (sorted(whole.topics), sorted(whole.groups))


# ------------------------------------------------------------------------- rewound under a consumer


async def test_a_consumer_goes_on_with_the_new_generation() -> None:
    """Messages in hand cannot be acked: an outcome. Buffered ones are released and redelivered."""
    async with jobs(40) as (cluster, client):
        async with client.consumer("jobs", "g", hold_time=5.0, prefetch=20) as consumer:
            first = await take(consumer, 10)
            assert await consumer.ack(first[:5]) == [Outcome.ACKED] * 5
            group = await client.rewind("jobs", "g", "earliest")
            assert await consumer.ack(first[5:9]) == [Outcome.REWOUND] * 4
            await first[9].reject()
            assert first[9].outcome is Outcome.REWOUND
            assert consumer.unsettled == 0
            again: list[Message] = []
            async for message in consumer:
                assert message.delivery.receipt.generation == group.generation
                assert await message.ack() is Outcome.ACKED
                again.append(message)
                if len(again) == 40:
                    break
            assert payloads(again) == list(range(40))
        assert cluster.of(m.ReleaseRequest), "the buffer was given back, or this took a hold longer"
        assert await counts(client) == {"acked": 40}


async def test_a_rewind_to_a_time_omits_what_is_before_it() -> None:
    async with jobs(5) as (cluster, client):
        await trio.sleep(10)
        middle = datetime.fromtimestamp(cluster.wall_ms() / 1000, UTC)
        await publish(client, 3)
        held = await client.fetch("jobs", "g", hold_time=5.0)
        assert len(held) == 8
        await client.rewind("jobs", "g", middle)
        assert await client.ack(held) == [Outcome.REWOUND] * 8
        await trio.sleep(5.1)
        assert payloads(await client.fetch("jobs", "g")) == [0, 1, 2]
        await client.rewind("jobs", "g", middle - timedelta(hours=1))
        await trio.sleep(31)
        assert len(await client.fetch("jobs", "g")) == 8


async def test_a_redrive_after_a_rewind_reaches_the_same_consumer() -> None:
    """It is of the generation that the rewind has ended, and stands."""
    async with jobs(5) as (cluster, client), client.consumer("jobs", "g", prefetch=1) as consumer:
        first = await take(consumer, 3)
        await client.dead_letter(first[:2], reason="no")
        await trio.sleep(10)
        await client.rewind("jobs", "g", datetime.fromtimestamp(cluster.wall_ms() / 1000, UTC))
        assert await consumer.ack(first[2:]) == [Outcome.REWOUND]
        assert (await client.redrive("jobs", "g", await listed(client, "dead"))).messages == 2
        with trio.fail_after(60.0):
            again = await take(consumer, 2)
        assert payloads(again) == [0, 1]
        assert await consumer.ack(again) == [Outcome.ACKED] * 2


# --------------------------------------------------------------------------------- dead letters


@pytest.mark.parametrize(("topic", "group"), [("jobs", "g!dead"), ("jobs.deadletters", "g")])
async def test_dead_letters_are_consumed_and_say_why(topic: str, group: str) -> None:
    async with fake_cluster() as cluster, connected(cluster) as client:
        await dying(client)
        async with client.consumer(topic, group) as consumer:
            (one,) = await take(consumer, 1)
            assert one.death is not None
            assert (one.death.error_class, one.death.message) == ("ValueError", "no such account")
            assert (one.topic, one.group) == ("jobs", "g!dead")
            assert await one.ack() is Outcome.ACKED
            (two,) = await take(consumer, 1)
            await two.reject(delay=60.0)
            (three,) = await take(consumer, 1)
            cluster.asked.clear()
            with pytest.raises(UsageError, match="dead letter already"):
                await three.dead_letter(ValueError("still not"))
            assert not cluster.of(m.RejectRequest)
        assert await counts(client) == {"purged": 1, "dead": 2, "ready": 1}
        assert await counts(client, "g!dead") == {"delayed": 1, "held": 1}
        assert [item.peeked.state for item in await listed(client, "delayed", group, topic)] == ["delayed"]
        await trio.sleep(60)
        assert payloads(await client.fetch(topic, group)) == [1, 2]
        (message,) = await client.fetch("jobs", "g")
        assert message.death is None


async def test_topics_and_their_dead_letters_are_not_read_together() -> None:
    async with fake_cluster() as cluster, connected(cluster) as client:
        with pytest.raises(UsageError, match="together"):
            client.consumer(["jobs", "jobs.deadletters"], "g")


async def test_a_dead_letter_that_was_redriven_meanwhile_says_so_and_is_not_held_any_longer() -> None:
    async with fake_cluster() as cluster, connected(cluster) as client:
        await dying(client, 1)
        async with client.consumer("jobs", "g!dead", hold_time=5.0) as consumer:
            (death,) = await take(consumer, 1)
            assert (await client.redrive("jobs.deadletters", "g", await listed(client, "dead"))).messages == 1
            with pytest.raises(AlreadySettled, match="OPEN at n=1"):
                await death.ack()
            assert consumer.unsettled == 0
        again = [message for message in await client.fetch("jobs", "g") if message.payload == b"0"]
        await client.dead_letter(again, reason="once more")
        await trio.sleep(5)
        (message,) = await client.fetch("jobs", "g!dead")
        assert message.death is not None
        assert (message.death.message, message.death.redrives) == ("once more", 1)


async def test_a_dead_letter_that_a_rewind_made_void_keeps_the_others_readable() -> None:
    async with fake_cluster() as cluster, connected(cluster) as client:
        await dying(client, 3)

        def answer(node: str, request: object) -> m.SettleReply | None:
            if not isinstance(request, m.AckRequest):
                return None
            return m.SettleReply((m.Verdict(0, request.items[0].spans[0], "stale-generation", "rewound"),))

        async with client.consumer("jobs", "g!dead") as consumer:
            (void,) = await take(consumer, 1)
            cluster.answer = answer
            assert await void.ack() is Outcome.REWOUND
            cluster.answer = lambda node, request: None
            with trio.fail_after(1.0):
                assert payloads(await take(consumer, 2)) == [1, 2]


async def test_one_redriven_dead_letter_does_not_fail_the_acks_it_went_with() -> None:
    async with fake_cluster() as cluster, connected(cluster) as client:
        await dying(client, 2)
        one, two = await client.fetch("jobs", "g!dead")
        first = [
            item._replace(peeked=item.peeked._replace(span=one.receipt.spans[0]))
            for item in await listed(client, "dead")
        ]
        await client.redrive("jobs", "g", first)
        results: dict[int, object] = {}

        async def ack(message: Message) -> None:
            try:
                results[message.seq] = await message.ack()
            except QuorumqError as error:
                results[message.seq] = type(error)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ack, one)
            nursery.start_soon(ack, two)
        assert results == {0: AlreadySettled, 1: Outcome.ACKED}
        assert len(cluster.of(m.AckRequest)) == 1, "and nothing was asked twice"


async def test_a_deleted_group_ends_its_consumers_and_only_creation_makes_it_again() -> None:
    async with jobs(3) as (_, client):
        async with client.consumer("jobs", "g", prefetch=1) as consumer:
            message = await consumer.__anext__()
            assert (await client.delete_group("jobs", "g")).deleted
            with pytest.raises(NotFound, match="group was deleted"):
                await message.ack()
            with pytest.raises(NotFound, match="group 'g' of topic 'jobs' was deleted"):
                await take(consumer, 3)
        with pytest.raises(NotFound, match="deleted"):
            await client.fetch("jobs", "g")
        assert (await client.delete_group("jobs", "g")).deleted, "done twice, it is done once"
        with pytest.raises(NotFound, match="no group 'mian'"):
            await client.delete_group("jobs", "mian")
        await client.create_group("jobs", "g")
        assert payloads(await client.fetch("jobs", "g", max_wait=0.5)) == [1, 2], "the first is still held"


async def test_a_consumer_with_a_mistyped_group_hears_so_where_the_topic_wants_groups_created() -> None:
    async with jobs(auto_create_groups=False) as (_, client):
        await client.create_group("jobs", "main")
        await publish(client, 1)
        async with client.consumer("jobs", "mian") as consumer:
            with pytest.raises(
                NotFound, match="no group 'mian' reads topic 'jobs': main does; did you mean 'main'"
            ):
                await take(consumer, 1)
        with pytest.raises(NotFound, match="no group 'mian'"):
            await client.work("jobs", "mian", print)
        assert payloads(await client.fetch("jobs", "main", max_wait=0.5)) == [0]
        await client.alter_topic("jobs", auto_create_groups=True)
        assert payloads(await client.fetch("jobs", "mian", max_wait=0.5)) == [0]


async def test_expired_messages_of_a_dropping_topic_are_counted_as_dropped() -> None:
    async with jobs(ttl=60.0, on_expiry="drop") as (_, client):
        await client.create_group("jobs", "g")
        await publish(client, 3)
        await trio.sleep(70.0)
        backlog = await client.backlog("jobs", "g")
        assert (backlog.ready, backlog.dead, backlog.dropped) == (0, 0, 3)
        assert (await client.alter_topic("jobs", on_expiry="dead-letter")).on_expiry == "dead-letter"
        await publish(client, 2)
        await trio.sleep(70.0)
        backlog = await client.backlog("jobs", "g")
        assert (backlog.ready, backlog.dead, backlog.dropped) == (0, 2, 3)
        with pytest.raises(UsageError, match="on_expiry is 'keep'"):
            await client.create_topic("mail", on_expiry="keep")  # type: ignore[arg-type]


async def test_a_backlog_counts_what_is_ready_held_delayed_and_dead_and_how_old_it_is() -> None:
    async with jobs(partitions=2) as (cluster, client):
        with pytest.raises(NotFound, match="no group 'g'"):
            await client.backlog("jobs", "g")
        await client.create_group("jobs", "g")
        empty = await client.backlog("jobs", "g")
        assert empty[:5] == (0, 0, 0, 0, None)
        await publish(client, 10)
        await trio.sleep(3)
        await client.publish("jobs", b"later", delay=60)
        one, two, three = await client.fetch("jobs", "g", max_messages=3)
        await client.dead_letter([one], error=ValueError("no"))
        await two.reject(delay=30)
        backlog = await client.backlog("jobs", "g")
        assert (backlog[:4], backlog.oldest) == ((7, 1, 2, 1), pytest.approx(3, abs=1))
        assert [part.partition for part in backlog.partitions] == [0, 1]
        assert sum(part.ready for part in backlog.partitions) == 7
        cluster.kill("a")
        assert (await client.backlog("jobs", "g")).ready == 7, "the other replicas say so"
        await three.ack()


async def test_a_backlog_sums_what_all_nodes_delivered_and_settled_and_to_whom() -> None:
    reads = {
        "a": ((m.GroupFlow(0, 5, 4),), (m.GroupConsumer("v", "1", "lib", "h", (0, 1), (5, 0)),)),
        "b": (
            (m.GroupFlow(0, 2, 1), m.GroupFlow(1, 9, 9)),
            (
                m.GroupConsumer("v", "1", "lib", "h", (0,), (2,)),
                m.GroupConsumer("v", "2", "lib", "h", (1,), (9,)),
            ),
        ),
    }
    async with fake_cluster() as cluster, connected(cluster) as client:
        register = await client.create_topic("jobs", rf=1, partitions=2)
        await client.create_group("jobs", "g")

        def answer(node: str, request: object) -> m.ClientReply | None:
            if not isinstance(request, m.DescribeGroups):
                return None
            parts = tuple(
                m.GroupPart(number, ready=3) for number in (0, 1) if node in register.replicas[number]
            )
            described = m.DescribedGroup(register.id, "g", parts, *reads.get(node, ()))
            return m.DescribeGroupsReply((described,))

        cluster.answer = answer
        backlog = await client.backlog("jobs", "g")
        assert (backlog.ready, backlog.delivered, backlog.settled) == (6, 16, 14)
        one, two = GroupConsumer("v", "1", "lib", "h", 7), GroupConsumer("v", "2", "lib", "h", 9)
        assert backlog.consumers == (one, two)
        assert [part.consumers for part in backlog.partitions] == [(one,), (one._replace(delivered=0), two)]
        assert [part.settled for part in backlog.partitions] == [5, 9]
        asked = {node for node, _ in cluster.of(m.DescribeGroups)}
        assert asked == {"a", "b", "c"}, "a node that has no replica has delivered all the same"


# ------------------------------------------------------------------------------- PURGE, PEEK, history


async def test_purge_settles_the_backlog_of_all_partitions_and_nothing_of_others() -> None:
    async with jobs(300, partitions=3) as (_, client):
        held = await client.fetch("jobs", "g", max_messages=10)
        await client.create_group("jobs", "other")
        assert await client.purge("jobs", "g") == 300 - len(held) or await counts(client) == {"skipped": 300}
        assert await client.fetch("jobs", "g") == []
        assert set(await client.ack(held)) == {Outcome.ACKED}
        assert await counts(client, "other") == {"ready": 300}
        assert await client.purge("jobs", "g") == 0
        with pytest.raises(NotFound, match="'gg'"):
            await client.purge("jobs", "gg")
        with pytest.raises(NotFound):
            await client.purge("jobs", "g", partition=3)


@pytest.mark.parametrize(("topic", "group"), [("jobs", "g!dead"), ("jobs.deadletters", "g")])
async def test_purging_dead_letters_keeps_the_backlog(topic: str, group: str) -> None:
    async with fake_cluster() as cluster, connected(cluster) as client:
        await dying(client)
        assert await client.purge(topic, group) == 3
        assert await counts(client) == {"purged": 3, "ready": 1}


async def test_named_messages_are_purged_and_no_others() -> None:
    async with jobs(partitions=2) as (_, client):
        await client.create_topic("others")
        await client.create_group("jobs", "g")
        mids = [await client.publish("jobs", b"x", partition=number % 2) for number in range(6)]
        assert await client.purge("jobs", "g", ids=[mids[0], mids[3], mids[0]]) == 2
        assert await client.purge("jobs", "g", ids=[]) == 0
        states = await client.lookup("jobs", "g", mids)
        assert [states[mid].peeked.state for mid in mids] == [
            "skipped",
            *["ready"] * 2,
            "skipped",
            *["ready"] * 2,
        ]
        with pytest.raises(UsageError, match="of another topic than 'others'"):
            await client.purge("others", "g", ids=mids[:1])
        with pytest.raises(UsageError, match="name their partitions"):
            await client.purge("jobs", "g", ids=mids[:1], partition=0)


async def test_purge_goes_on_at_another_node() -> None:
    async with fake_cluster() as cluster, connected(cluster) as client:
        await dying(client)
        cluster.lose = lambda node, request: node == "a" and isinstance(request, m.PurgeRequest)
        assert await client.purge("jobs", "g!dead") == 0, "the first node had done it all"
        assert (await counts(client))["purged"] == 3


async def test_a_purge_of_which_no_one_knows_how_far_it_came_is_done_again() -> None:
    async with jobs(30) as (cluster, client):
        await client.create_group("jobs", "g")
        cluster.answer = failing("outcome-unknown", times=2, of=m.PurgeRequest)
        assert await client.purge("jobs", "g") == 30
        assert len(cluster.of(m.PurgeRequest)) == 3


@pytest.mark.parametrize(("purged", "error"), [(0, NotStored), (10, OutcomeUnknown)])
async def test_a_purge_that_fails_halfway_has_done_something(purged: int, error: type[QuorumqError]) -> None:
    async with jobs(partitions=2) as (cluster, client):
        await client.create_group("jobs", "g")
        for _ in range(purged):
            await client.publish("jobs", b"x", partition=0)

        def answer(node: str, request: object) -> m.Failed | None:
            second = isinstance(request, m.PurgeRequest) and request.partition == 1
            return m.Failed("too-few-replicas", "as the test asked", 2, 1) if second else None

        cluster.answer = answer
        with pytest.raises(error) as caught:
            await client.purge("jobs", "g", timeout=1.0)
        assert (f"purged {purged} messages" in str(caught.value)) == (purged > 0)


async def test_a_redrive_that_fails_in_its_second_partition_has_done_something() -> None:
    async with jobs(partitions=2) as (cluster, client):
        for partition in (0, 1):
            await client.publish("jobs", b"x", partition=partition)
            await client.dead_letter(await client.fetch("jobs", "g"), reason="broken")
        deaths = [item async for item in client.peek("jobs", "g", "dead")]

        def answer(node: str, request: object) -> m.Failed | None:
            last = isinstance(request, m.RedriveRequest) and request.partition == deaths[-1].partition
            return m.Failed("not-stored", "as the test asked", 2, 1) if last else None

        cluster.answer = answer
        with pytest.raises(OutcomeUnknown, match="redrove 1 message"):
            await client.redrive("jobs", "g", deaths, timeout=1.0)
        with pytest.raises(NotStored):
            await client.redrive("jobs", "g", deaths[-1:], timeout=1.0)


async def test_a_complete_view_shows_what_one_replica_does_not_know() -> None:
    async with jobs() as (cluster, client):
        await client.create_group("jobs", "g")
        cluster.drop = lambda sender, to, message: to == "c"
        await publish(client, 30)
        cluster.drop = lambda sender, to, message: False
        assert [item async for item in client.peek("jobs", "g", node="c")] == []
        assert sum(item.peeked.span.size for item in await listed(client, "ready")) == 30
        with pytest.raises(UsageError, match="bodies"):
            _ = [item async for item in client.peek("jobs", "g", complete=True, bodies=True)]
        cluster.kill("a")
        cluster.kill("b")
        with pytest.raises(TooFewReplicas):
            _ = [item async for item in client.peek("jobs", "g", complete=True, timeout=1.0)]


async def test_a_complete_view_is_paged_through(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quorumq.client.admin.peek.PEEK_LIMIT", 3)
    async with jobs(partitions=2) as (_, client):
        for _ in range(4):
            await publish(client, 20)
        messages = await client.fetch("jobs", "g", max_messages=80)
        await client.dead_letter(messages[::2])
        deaths = await listed(client, "dead")
        assert sum(item.peeked.span.size for item in deaths) == 40
        names = [(item.partition, item.peeked.span) for item in deaths]
        assert sorted(names) == names
        assert (await client.redrive("jobs", "g", deaths)).messages == 40


async def test_the_history_tells_of_a_late_ack_that_beats_a_dead_letter(tmp_path: Path) -> None:
    path = tmp_path / "client.jsonl"
    with HistoryWriter(path, run="r", who="client:x") as history:
        async with serving("jobs", history=history) as (_, client):
            await publish(client, 1)
            (late,) = await client.fetch("jobs", "g", hold_time=1.0)
            await trio.sleep(1.1)
            (message,) = await client.fetch("jobs", "g")
            await message.dead_letter(ValueError("no"))
            assert await late.ack() is Outcome.ACKED_AFTER_EXPIRY
            (item,) = await listed(client)
            assert item.peeked.record.kind is Kind.ACKED
            assert await client.fetch("jobs", "g!dead") == []
            await client.rewind("jobs", "g", "earliest")
            assert await client.ack([late]) == [Outcome.REWOUND]
    rows = [row for row in read_history([path]) if row.get("outcome") != "invoke"]
    assert [row["outcome"] for row in rows if row["kind"] == "dead_letter"] == ["ok"]
    late, stale = [row for row in rows if row["kind"] == "ack"]
    assert late["outcome"] == "acked_after_expiry"
    assert "stale-generation" in (stale["outcome"], stale.get("detail"))
    (row,) = [row for row in rows if row["kind"] == "list" and row["spans"]]
    assert (row["state"], row["complete"]) == ("acked", True)


async def test_a_client_of_one_node_finds_what_was_created_at_another_just_now() -> None:
    async with fake_cluster() as cluster, connected(cluster) as client:
        cluster.drop = lambda sender, to, message: (
            to == "c" != sender and isinstance(message, m.PutTopic | m.PutGroup)
        )
        await client.create_topic("jobs")
        await client.create_group("jobs", "g")
        assert not cluster.nodes["c"].topics
        cluster.refuse = {"a:1", "b:1"}
        async with connected(cluster, "c", addresses=["c:1"]) as other:
            await other.rewind("jobs", "g", "earliest")
            await publish(other, 3)
            assert len(await other.fetch("jobs", "g")) == 3
            with pytest.raises(NotFound, match="there is no topic 'jbs': did you mean 'jobs'"):
                await other.topic("jbs")
