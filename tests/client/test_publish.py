"""`publish` keeps its promises: awaited messages are stored, and every message that was not stored is reported."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import trio

from quorumq.client import (
    Client,
    HoldLost,
    MessageId,
    NewMessage,
    NotAllStored,
    NotFound,
    NotStored,
    OutcomeUnknown,
    StorageFull,
    TooFewReplicas,
    TooLarge,
    Transient,
    UsageError,
    blocking,
    connect,
    partition_of_key,
)
from quorumq.client.transport.nodes import Attempts
from quorumq.core.messages import CloseSession, CreateTopic, OpenSession, Publish
from quorumq.core.values.errors import error_from
from quorumq.lab.local import LocalCluster
from tests.client.fake import FakeCluster, connected, failing, fake_cluster, serving
from tests.client.steps import in_a_thread, jobs, payloads
from tests.patience import PATIENCE_S


def sizes(cluster: FakeCluster) -> list[int]:
    return [request.batch.header.size for _, request in cluster.of(Publish)]


@pytest.mark.e2e
def test_an_awaited_publish_survives_the_process() -> None:
    programs = {
        "trio": """
import os, sys, trio
from quorumq.client import connect
async def main():
    async with connect(sys.argv[1:]) as client:
        producer = client.producer("jobs")
        for number in range(5):
            await client.publish("jobs", b"%d" % number)
            await producer.publish(b"%d" % (5 + number))
        os._exit(9)
trio.run(main)
""",
        "blocking": """
import os, sys
from quorumq.client.blocking import connect
with connect(sys.argv[1:]) as client:
    producer = client.producer("jobs")
    for number in range(5):
        client.publish("jobs", b"%d" % number)
        producer.publish(b"%d" % (5 + number))
    os._exit(9)
""",
    }
    trios = programs["trio"]
    programs["asyncio"] = (
        trios.replace("client import", "client.aio import")
        .replace("trio", "asyncio")
        .replace("(main)", "(main())")
    )
    with LocalCluster(3) as cluster, blocking.connect(cluster.addresses) as client:
        for style, program in programs.items():
            died = subprocess.run([sys.executable, "-c", program, *cluster.addresses], env=dict(os.environ))
            assert died.returncode == 9, style
            messages = client.fetch("jobs", "g", min_messages=10, max_wait=PATIENCE_S)
            assert sorted(message.payload for message in messages) == [b"%d" % number for number in range(10)]
            client.ack(messages)


# --------------------------------------------------------------------------------- publish


async def test_publish_returns_when_a_majority_has_it_and_lingers_for_no_one() -> None:
    async with jobs() as (cluster, client):
        producer = client.producer("jobs", linger=5.0)
        began = trio.current_time()
        assert [id_.seq for id_ in [await producer.publish(b"x") for _ in range(3)]] == [0, 1, 2]
        assert trio.current_time() == began
        cluster.mute.update("abc")
        with trio.move_on_after(1.0) as scope:
            await producer.publish(b"never answered")
        assert scope.cancelled_caught, "it returned before it was stored"
        cluster.mute.clear()


async def test_messages_of_many_tasks_share_batches() -> None:
    async with jobs() as (cluster, client):
        await client.publish("jobs", b"first")
        async with trio.open_nursery() as nursery:
            for number in range(100):
                nursery.start_soon(client.publish, "jobs", b"%d" % number)
        assert sum(sizes(cluster)) == 101
        assert len(sizes(cluster)) <= 5
        assert len(cluster.of(OpenSession)) == 1, "one producer is kept for the topic"


async def test_the_client_keeps_so_many_producers_and_no_more() -> None:
    async with fake_cluster() as cluster, connected(cluster) as client:
        client._kept_max = 3
        for name in ("a", "b", "c", "a", "d", "e", "a"):
            await client.publish(name, b"x")
        await trio.testing.wait_all_tasks_blocked()
        assert set(client._kept) == {"d", "e", "a"}
        assert len(cluster.of(OpenSession)) == 5, "the one that was used again was kept"
        assert len(cluster.of(CloseSession)) == 2
        assert set(client.context._open) == {kept.producer for kept in client._kept.values()}
    assert len(cluster.of(CloseSession)) == 5


async def test_producers_in_use_are_not_closed_though_they_are_many() -> None:
    async with fake_cluster() as cluster, connected(cluster) as client:
        client._kept_max = 1
        await client.publish("b", b"x")
        async with trio.open_nursery() as nursery:
            cluster.answer = failing("not-stored", times=1_000, of=OpenSession)
            nursery.start_soon(client.publish, "a", b"waits for its session")
            await trio.sleep(0.1)
            await client.publish("b", b"y")
            assert set(client._kept) == {"a"}
            cluster.answer = lambda node, request: None
        assert await payloads(client, "a") == [b"waits for its session"]


async def test_a_topic_that_is_made_again_is_published_to_after_one_error() -> None:
    async with jobs() as (_, client):
        await client.publish("jobs", b"old")
        await client.delete_topic("jobs")
        with pytest.raises(NotFound):
            await client.publish("jobs", b"lost")
        await client.create_topic("jobs", partitions=2)
        await client.publish("jobs", b"new", partition=1)
        assert await payloads(client) == [b"new"]
        await trio.testing.wait_all_tasks_blocked()
        assert list(client.context._open) == [client._kept["jobs"].producer], "the old one is closed"


async def test_a_closed_client_publishes_nothing() -> None:
    async with fake_cluster() as cluster:
        async with connected(cluster) as client:
            producer = client.producer("jobs")
            await client.publish("jobs", b"x")
            await producer.publish(b"x")
        with pytest.raises(blocking.Closed):
            await client.publish("jobs", b"y")
        with pytest.raises(NotStored, match="is closed"):
            await producer.publish(b"y")
        with pytest.raises(blocking.Closed):
            await client.producer("jobs").publish(b"y")
        assert not client.context._open


# ---------------------------------------------------------------------- life without `with`


async def test_a_producer_that_is_not_left_is_flushed_with_the_client() -> None:
    async with fake_cluster() as cluster:
        async with connected(cluster) as client:
            producer = client.producer("jobs", linger=5.0)
            for number in range(100):
                await producer.send(b"%d" % number)
        assert len(cluster.of(CloseSession)) == 1
        async with connected(cluster) as client:
            assert len(await payloads(client)) == 100


async def test_leaving_the_client_raises_what_no_one_waited_for_and_flushes_the_others() -> None:
    async with fake_cluster() as cluster:
        with pytest.raises(OutcomeUnknown) as caught:  # noqa: PT012
            async with connected(cluster, timeout=3.0) as client:
                bad, good = client.producer("bad"), client.producer("good")
                await bad.publish(b"0")
                await good.publish(b"0")
                topic = await client.topic("bad")

                def answer(node: str, request: Any) -> Any:
                    if isinstance(request, Publish) and request.batch.header.partition.topic == topic.id:
                        return failing("outcome-unknown", times=1, of=Publish)(node, request)
                    return None

                cluster.answer = answer
                await bad.send(b"1")
                await good.send(b"1")
        assert any("1 message to 'bad'" in note for note in caught.value.__notes__)
        cluster.answer = lambda node, request: None
        async with connected(cluster) as client:
            assert await payloads(client, "good") == [b"0", b"1"]


async def test_leaving_the_client_by_an_exception_waits_for_nothing() -> None:
    async with fake_cluster() as cluster:
        with pytest.raises(ZeroDivisionError):  # noqa: PT012
            async with connected(cluster) as client:
                producer = client.producer("jobs")
                await producer.publish(b"0")
                cluster.mute.update("abc")
                pending = await producer.send(b"1")
                began = trio.current_time()
                raise ZeroDivisionError
        assert trio.current_time() == began
        with pytest.raises(OutcomeUnknown):
            await pending.wait()


async def test_a_producer_for_every_message_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quorumq.client.base.context.OPEN_MAX", 3)
    async with fake_cluster() as cluster, connected(cluster) as client:
        for _ in range(3):
            await client.producer("jobs").publish(b"x")
        with pytest.raises(UsageError, match="3 producers of this client are open: keep one for a topic"):
            await client.producer("jobs").publish(b"x")


# ---------------------------------------------------------------------- failures not known to be dead of


async def failed(client: Client, cluster: FakeCluster) -> Any:
    """A producer that gave up two messages. No caller waits for them."""
    producer = client.producer("jobs", timeout=2.0)
    await producer.publish(b"0")
    await cluster.cut_off()
    await producer.send(b"1")
    await producer.send(b"2")
    await trio.sleep(3.0)
    cluster.refuse.clear()
    return producer


@pytest.mark.parametrize("call", ["send", "publish", "publish_many", "flush"])
async def test_a_failure_that_no_one_waits_for_is_raised_by_the_next_call_and_once(call: str) -> None:
    async with fake_cluster() as cluster, connected(cluster) as client:
        producer = await failed(client, cluster)
        arguments: dict[str, list[Any]] = {"publish_many": [[b"3"]], "flush": []}
        with pytest.raises(NotStored) as caught:
            await getattr(producer, call)(*arguments.get(call, [b"3"]))
        assert any("2 messages to 'jobs'" in note for note in caught.value.__notes__)
        await producer.publish(b"4")
        await producer.close()
        assert await payloads(client) == [b"0", b"4"]


async def test_one_that_may_still_be_waited_for_is_raised_there_or_once_it_is_let_go() -> None:
    async with fake_cluster() as cluster, connected(cluster) as client:
        producer = client.producer("jobs", timeout=2.0)
        await producer.publish(b"0")
        await cluster.cut_off()
        kept, dropped = await producer.send(b"1"), await producer.send(b"2")
        await trio.sleep(3.0)
        cluster.refuse.clear()
        await producer.publish(b"3")
        with pytest.raises(NotStored):
            await kept.wait()
        await producer.publish(b"4")
        del dropped, kept
        with pytest.raises(NotStored) as caught:
            await producer.publish(b"5")
        assert any("1 message" in note for note in caught.value.__notes__)
        await producer.publish(b"6")


async def test_a_cancelled_publish_is_not_reported() -> None:
    async with fake_cluster() as cluster, connected(cluster, timeout=2.0, attempt_timeout=1.0) as client:
        await client.publish("jobs", b"0")
        cluster.mute.update("abc")
        with trio.move_on_after(0.1) as scope:
            await client.publish("jobs", b"1")
        assert scope.cancelled_caught
        await trio.sleep(5.0)
        cluster.mute.clear()
        await client.publish("jobs", b"2")


# ----------------------------------------------------------------------------- publish_many


async def test_many_are_published_in_batches_and_their_ids_are_in_order() -> None:
    async with jobs(partitions=3) as (cluster, client):
        producer = client.producer("jobs")
        ids = await producer.publish_many((b"%d" % number for number in range(1000)), headers={"n": 1})
        assert len(sizes(cluster)) < 40
        messages = await client.fetch("jobs", "g", max_messages=1000, max_wait=0.5)
        assert {message.id: message.payload for message in messages} == {
            name: b"%d" % number for number, name in enumerate(ids)
        }
        assert {message.headers["n"] for message in messages} == {1}
        assert await producer.publish_many([]) == []


async def test_each_of_many_may_have_options_of_its_own() -> None:
    async with jobs(partitions=4) as (_, client):
        batch = [b"a", NewMessage(b"b", partition=2, key=b"other"), NewMessage(b"c")]
        await client.producer("jobs").publish_many(batch, key=b"k", partition=1)
        messages = await client.fetch("jobs", "g", max_wait=0.5)
        assert {message.payload: (message.partition, message.key) for message in messages} == {
            b"a": (1, b"k"), b"b": (2, b"other"), b"c": (1, b"k"),
        }  # fmt: skip


async def test_not_more_than_the_buffer_is_read_ahead() -> None:
    async with jobs() as (cluster, client):
        producer = client.producer("jobs", buffer_bytes=5_000, batch_bytes=1_000)
        await producer.publish(b"first")
        cluster.mute.update("abc")
        read = 0

        def messages() -> Iterator[bytes]:
            nonlocal read
            while read < 100:
                read += 1
                yield b"x" * 900

        with trio.move_on_after(1.0):
            await producer.publish_many(messages())
        assert read == 6
        cluster.mute.clear()


async def test_an_invalid_message_is_left_out_and_named() -> None:
    async with fake_cluster() as cluster, connected(cluster) as client:
        wrong: Any = ["text", b"x" * ((1 << 20) + 1), NewMessage(b"d", ttl=-1.0)]
        with pytest.raises(NotAllStored, match="2 messages to 'jobs' are stored") as caught:
            await client.producer("jobs").publish_many([b"a", *wrong, b"b"])
        error = caught.value
        assert [type(each) for each in error.errors.values()] == [TypeError, TooLarge, UsageError]
        assert list(error.errors) == [1, 2, 3]
        assert [name is None for name in error.ids] == [False, True, True, True, False]
        assert error.untaken is None
        assert "number 1: TypeError" in str(error)
        assert await payloads(client) == [b"a", b"b"]


def test_failures_alike_are_named_together() -> None:
    errors: dict[int, Exception] = {at: StorageFull("no room") for at in range(2)}
    error = NotAllStored.of("jobs", [None] * 3, errors | {2: NotStored("nobody is there")}, None)
    assert "not all: number 0, 1: StorageFull: no room; number 2: NotStored: nobody is there" in str(error)


async def test_an_unreachable_cluster_returns_a_list_of_stored_messages() -> None:
    async with jobs() as (cluster, client):
        producer = client.producer("jobs", timeout=2.0)
        await producer.publish(b"0")

        def messages() -> Iterator[bytes]:
            for number in range(1, 20):
                yield b"%d" % number
            cluster.refuse.update(cluster.addresses)
            cluster.answer = failing("not-stored", times=1_000, of=Publish)
            yield from [b"x" * 70_000] * 10

        with pytest.raises(NotAllStored) as caught:
            await producer.publish_many(messages())
        stored = [location for location, name in enumerate(caught.value.ids) if name is not None]
        assert sorted([*stored, *caught.value.errors]) == list(range(29))
        assert "and 5 more" in str(caught.value) or len(caught.value.errors) != 10
        cluster.refuse.clear()
        cluster.answer = lambda node, request: None
        assert len(await payloads(client)) == 1 + len(stored)
        await producer.publish(b"it goes on")


async def test_nothing_is_taken_of_a_topic_that_is_not_there() -> None:
    async with fake_cluster() as cluster, connected(cluster) as client:
        with pytest.raises(NotAllStored, match="from number 0 on nothing was taken") as caught:
            await client.producer("nothing", create=False).publish_many([b"x"] * 1000)
        assert isinstance(caught.value.errors[0], NotFound)
        assert caught.value.ids == [None]
        assert not cluster.of(CreateTopic)


@pytest.mark.parametrize("front", ["trio", "blocking"])
def test_an_exception_of_the_iterable_is_raised_after_earlier_messages_are_stored(front: str) -> None:
    wrong: Any = "text"

    def messages() -> Iterator[bytes]:
        yield from (b"%d" % number for number in range(300))
        yield wrong
        raise ZeroDivisionError

    async def on_trio() -> list[bytes]:
        async with fake_cluster() as cluster, connected(cluster) as client:
            with pytest.raises(ZeroDivisionError) as caught:
                await client.producer("jobs").publish_many(messages())
            assert (
                "300 messages to 'jobs' are stored, and not all: number 300: Type"
                in caught.value.__notes__[0]
            )
            return await payloads(client)

    def in_threads() -> list[bytes]:
        with in_a_thread() as client:
            with pytest.raises(ZeroDivisionError):
                client.producer("jobs").publish_many(messages())
            return [message.payload for message in client.fetch("jobs", "g", max_messages=1000)]

    received = trio.run(on_trio) if front == "trio" else in_threads()
    assert received == [b"%d" % number for number in range(300)]


def test_the_same_without_async() -> None:
    with in_a_thread() as client:
        client.create_topic("out")
        name = client.publish("jobs", b"one", key=b"k")
        (message,) = client.fetch("jobs", "g")
        assert message.id == name
        ids = client.producer("out").publish_many(
            [b"a", NewMessage(b"b", derived_from=message, index=7)], derived_from=message
        )
        assert client.publish("out", b"a", derived_from=message) == ids[0]
        assert client.publish("out", b"b", derived_from=message, index=7) == ids[1]
        wrong: Any = "text"
        with pytest.raises(NotAllStored):
            client.producer("out").publish_many([b"c", wrong] + [b"d"] * 600)
        assert len(client.fetch("out", "g", max_messages=1000)) == 603
        with client.producer("jobs") as producer:
            assert producer.send(b"later").wait().seq == 0


# ------------------------------------------------------------------------------ JSON and text


async def test_json_and_keys_of_text() -> None:
    async with fake_cluster() as cluster, connected(cluster) as client:
        value = {"é": [1, 2.5, None, True]}
        await client.publish("jobs", json=value, key="é", headers={"n": 1})
        await client.publish("jobs", json=None, headers={"content-type": "application/other+json"})
        await client.publish("jobs", b"no json", key="é".encode())
        one, none, other = await client.fetch("jobs", "g", max_wait=0.5)
        assert one.json() == value
        assert one.payload == '{"é":[1,2.5,null,true]}'.encode()
        assert one.headers == {"content-type": "application/json", "n": 1}
        assert (one.key, other.key) == ("é".encode(), "é".encode())
        assert (none.json(), none.headers) == (None, {"content-type": "application/other+json"})
        with pytest.raises(ValueError, match=f"the payload of message {other.id} is not JSON"):
            other.json()


async def test_values_outside_json_are_refused() -> None:
    async with fake_cluster() as cluster, connected(cluster) as client:
        with pytest.raises(TypeError, match="payload or json=, and neither"):
            await client.publish("jobs")
        with pytest.raises(TypeError, match="payload or json=, and both"):
            await client.publish("jobs", b"x", json=1)
        with pytest.raises(TypeError, match="not JSON serializable"):
            await client.publish("jobs", json=object())
        with pytest.raises(ValueError, match="not JSON compliant"):
            await client.publish("jobs", json=float("nan"))
        assert not cluster.of(Publish)


async def test_a_key_of_text_has_the_partition_of_its_bytes() -> None:
    async with jobs(partitions=16) as (_, client):
        for key in ("a", "order-17", "é"):
            name = await client.publish("jobs", b"x", key=key)
            assert name.partition.number == partition_of_key(key.encode(), 16)


# ------------------------------------------------------------------------------------ logging


async def test_unawaited_messages_that_fail_are_logged_together(caplog: pytest.LogCaptureFixture) -> None:
    async with fake_cluster() as cluster, connected(cluster) as client:
        producer = client.producer("jobs", timeout=2.0, batch_bytes=1, in_flight=200)
        await producer.publish(b"0")
        await cluster.cut_off()
        for _ in range(100):
            await producer.send(b"1")
        kept = await producer.send(b"2")
        await trio.sleep(5.0)
        (line,) = [one for one in caplog.records if one.levelno == logging.ERROR]
        assert line.name == "quorumq.client"
        assert (
            "given up, and nobody waits: 1 message to 'jobs': publish of 1 message to 'jobs'/0"
            in line.getMessage()
        )
        cluster.refuse.clear()
        with pytest.raises(NotStored):
            await kept.wait()
        with pytest.raises(NotStored):
            await producer.flush()
        await trio.sleep(60.0)
        await cluster.cut_off()
        await producer.send(b"3")
        await trio.sleep(3.0)
        *_, last = [one.getMessage() for one in caplog.records if one.levelno == logging.ERROR]
        assert last.endswith("(99 more like this before)")
        with pytest.raises(NotStored):
            await producer.close()


async def test_a_failure_that_somebody_hears_of_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    async with fake_cluster() as cluster, connected(cluster, timeout=2.0) as client:
        await client.publish("jobs", b"0")
        await cluster.cut_off()
        with pytest.raises(NotStored):
            await client.publish("jobs", b"1")
        assert [one for one in caplog.records if one.levelno >= logging.WARNING] == []


async def test_a_cancelled_publish_that_is_given_up_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async with fake_cluster() as cluster, connected(cluster, timeout=2.0, attempt_timeout=1.0) as client:
        await client.publish("jobs", b"0")
        cluster.mute.update("abc")
        with trio.move_on_after(0.1):
            await client.publish("jobs", b"1")
        await trio.sleep(5.0)
        assert [one.levelno for one in caplog.records if one.levelno >= logging.WARNING] == [logging.ERROR]
        cluster.mute.clear()


async def test_failover_is_logged_once_a_node_not_each_request(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "quorumq.client")
    async with fake_cluster() as cluster, connected(cluster) as client:
        await client.publish("jobs", b"0")
        cluster.kill("a")
        for _ in range(5):
            await client.publish("jobs", b"1")
        lines = [one.getMessage() for one in caplog.records]
        assert any(
            "publish of 1 message to 'jobs'/0: " in line and "another node is asked" in line for line in lines
        )
        assert all("a:1" in line for line in lines)
        assert 1 <= len(lines) <= 2
        assert {one.levelno for one in caplog.records} == {logging.INFO}


# ----------------------------------------------------------------------------- one base class


def test_errors_that_pass_have_one_base_class() -> None:
    passing = [NotStored, OutcomeUnknown, TooFewReplicas, StorageFull, HoldLost]
    assert all(issubclass(each, Transient) for each in passing)
    assert not issubclass(UsageError, Transient)
    assert not issubclass(Transient, UsageError)


def test_outcome_unknown_is_no_subclass_of_not_stored() -> None:
    """F6a: ``except (NotStored, TooFewReplicas)`` in front hid that the message may be stored."""
    assert not issubclass(OutcomeUnknown, TooFewReplicas)
    assert not issubclass(TooFewReplicas, OutcomeUnknown)
    again = error_from("outcome-unknown", "who knows", needed=2, answered=1)
    assert (type(again), str(again)) == (OutcomeUnknown, "needed 2 replicas, 1 answered; who knows")


def test_an_error_for_which_enough_nodes_answered_does_not_count_them() -> None:
    """A rewind of a topic whose only replica was away: "needed 2 replicas, 2 answered"."""
    again = error_from("outcome-unknown", "do it again", needed=2, answered=2)
    assert (str(again), again.needed, again.answered) == ("do it again", 2, 2)  # type: ignore[attr-defined]


async def test_a_loop_that_catches_it_goes_on_and_loses_nothing() -> None:
    async with fake_cluster() as cluster, connected(cluster, timeout=2.0) as client:
        await client.publish("jobs", b"0")
        done: list[bytes] = []
        caught: list[str] = []
        cluster.answer = failing("storage-full", times=50, of=Publish)
        for number in range(10):
            try:
                (message,) = await client.fetch("jobs", "g", max_wait=10.0, hold_time=0.5)
                if number == 0:
                    await trio.sleep(1.0)
                    await message.reject(0)
                await client.publish("out", message.payload)
                await message.ack()
            except Transient as error:
                caught.append(type(error).__name__)
            else:
                done.append(message.payload)
                break
        assert (done, set(caught)) == ([b"0"], {"HoldLost", "StorageFull"})


# --------------------------------------------------------------------- what a web handler needs


async def test_a_publish_has_a_time_of_its_own_and_says_whether_it_was_sent() -> None:
    """F6: ``timeout=`` was a TypeError from inside."""
    async with fake_cluster() as cluster, connected(cluster, timeout=30.0) as client:
        await client.publish("jobs", b"0")
        for case, error in (("mute", OutcomeUnknown), ("away", NotStored)):
            if case == "mute":
                cluster.mute |= {"a", "b", "c"}
            else:
                await cluster.cut_off()
            began = trio.current_time()
            with pytest.raises(error):
                await client.publish("jobs", b"1", timeout=3.0)
            assert 2.9 <= trio.current_time() - began < 3.5, case
        began = trio.current_time()
        with pytest.raises(NotStored, match="within 3 s"):
            await client.publish("new", b"1", timeout=3.0)
        assert trio.current_time() - began < 3.5


async def test_a_batch_without_a_turn_before_its_timeout_is_never_sent() -> None:
    async with fake_cluster() as cluster, connected(cluster) as client:
        await client.create_topic("jobs", partitions=1)
        async with client.producer("jobs", in_flight=1) as producer:
            await producer.publish(b"0")
            cluster.mute |= {"a", "b", "c"}
            first = await producer.send(b"1")
            await trio.sleep(0.1)
            bulk = NewMessage(b"2", timeout=3.0)
            with pytest.raises(NotAllStored) as caught:
                await producer.publish_many([bulk])
            assert isinstance(caught.value.errors[0], NotStored)
            assert trio.current_time() < 5.0
            cluster.wake("abc")
            await first.wait()
            assert await producer.publish(b"3", timeout=3.0)
        assert sorted(await payloads(client)) == [b"0", b"1", b"3"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"countdown": 5}, r"publish\(\) has no option 'countdown': here it is delay="),
        ({"priority": 5}, "there are no priorities"),
        ({"tll": 5}, "here it is ttl="),
        ({"value": b"x"}, "here it is payload="),
        ({"xyzzy": 5}, "nothing near. It has payload, json, key"),
    ],
)
async def test_an_unknown_option_is_refused_with_the_nearest(options: dict[str, Any], said: str) -> None:
    async with fake_cluster() as cluster, connected(cluster) as client:
        with pytest.raises(TypeError, match=said):
            await client.publish("jobs", b"x", **options)
        with pytest.raises(TypeError, match=said.replace("publish", "NewMessage")):
            NewMessage(b"x", **options)
        assert cluster.of(Publish) == []
        with pytest.raises(TypeError, match=r"^Client\.alter_topic\(\)"):
            await client.alter_topic("jobs", slots=1)  # type: ignore[call-arg]
        with pytest.raises(TypeError, match=r"^consumer\(\) has no option 'prefetch_count'.*max_unsettled="):
            client.consumer("jobs", "g", prefetch_count=1)  # type: ignore[call-arg]


async def test_every_call_refuses_an_option_with_the_nearest_and_a_list() -> None:
    """They had Python's own TypeError, without the options that there are."""
    async with fake_cluster() as cluster, connected(cluster) as client:
        work: Any = client.work
        create: Any = client.create_topic
        fetch: Any = client.fetch
        for call, options, said in [
            (
                partial(work, "jobs", "g", print),
                {"max_retries": 3},
                r"work\(\) .* create_topic\(\) takes.*retry",
            ),
            (
                partial(create, "jobs"),
                {"num_partitions": 3},
                r"create_topic\(\) .* here it is partitions=.*, rf",
            ),
            (
                partial(fetch, "jobs", "g"),
                {"bogus": 3},
                r"fetch\(\) .* nothing near. It has topic, group, max_m",
            ),
            (client.labels, {"bogus": 3}, r"Client.labels\(\) has no option 'bogus'"),
        ]:
            with pytest.raises(TypeError, match=said):
                await call(**options)
    opened: Any = connect
    with pytest.raises(TypeError, match=r"connect\(\) has no option 'time_out': here it is timeout=. It has"):
        opened(time_out=1)


async def test_a_message_that_would_expire_before_it_is_due_is_refused() -> None:
    """Field, near misses: it was accepted, and no consumer could ever get it."""
    async with fake_cluster() as cluster, connected(cluster) as client:
        with pytest.raises(UsageError, match="the delay is 4 s and ttl 2 s"):
            await client.publish("jobs", b"x", delay=4, ttl=2)
        await client.create_topic("short", ttl=10)
        for _ in range(2):  # the topic is known from the second on
            with pytest.raises(UsageError, match="the topic's ttl 10 s"):
                await client.publish("short", b"x", delay=10)
        async with client.producer("short") as producer:
            with pytest.raises(NotAllStored, match="the topic's ttl"):
                await producer.publish_many([b"x"] * 3, delay=60)
        await client.publish("short", b"x", delay=60, ttl=70)


@pytest.mark.parametrize("kept", [False, True])
async def test_a_producer_finds_the_topic_that_was_made_again(kept: bool) -> None:
    """Field 6: it was dead until its program was started again."""
    async with serving("jobs") as (_, client):
        producer = client.producer("jobs", create=False)
        await producer.publish(b"0")
        await client.delete_topic("jobs")
        if not kept:
            with pytest.raises(NotFound):
                await producer.publish(b"lost")
        await client.create_topic("jobs")
        for number in range(1, 4):
            await producer.publish(b"%d" % number)
        assert sorted(await payloads(client)) == [b"1", b"2", b"3"]
        await client.delete_topic("jobs")
        await client.create_topic("jobs")
        await trio.sleep(6.0)  # it looks by itself
        await producer.publish(b"4")
        assert await payloads(client) == [b"4"]


async def test_batches_under_way_follow_to_the_topic_that_was_made_again() -> None:
    """They are numbered anew, each once, and ids are those of the new topic."""
    async with fake_cluster() as cluster, connected(cluster) as client, connected(cluster) as other:
        await client.create_topic("jobs", partitions=2)
        producer = client.producer("jobs", linger=0.0)
        await producer.publish(b"old")
        await other.delete_topic("jobs")
        topic = await other.create_topic("jobs", partitions=2)
        ids: list[MessageId] = []
        async with trio.open_nursery() as nursery:
            for number in range(4):

                async def publish(number: int = number) -> None:
                    ids.append(await producer.publish(b"%d" % number, partition=number % 2))

                nursery.start_soon(publish)
        assert {each.partition.topic for each in ids} == {topic.id}
        assert len(dict.fromkeys(ids)) == 4
        assert sorted(await payloads(other)) == [b"0", b"1", b"2", b"3"]
        await other.delete_topic("jobs")
        await other.create_topic("jobs", partitions=1)
        with pytest.raises(NotFound):
            await producer.publish(b"nowhere", partition=1)


@pytest.mark.parametrize("options", [{}, {"partition": 0}, {"key": b"k"}])
@pytest.mark.parametrize(("before", "after"), [(4, 1), (1, 4), (3, 2)])
async def test_a_topic_that_is_made_again_with_other_partitions_is_published_to(
    before: int, after: int, options: dict[str, Any]
) -> None:
    """A message without a key goes on; one with a key is refused once and not put into another key's partition."""
    async with fake_cluster() as cluster, connected(cluster) as client, connected(cluster) as other:
        await client.create_topic("jobs", partitions=before)
        producer = client.producer("jobs")
        for number in range(before - 1):
            await producer.publish_many([b"old"] * 64, partition=number)
        await producer.publish_many([b"old"] * 64)  # the next one goes to the last partition
        await other.delete_topic("jobs")
        await other.create_topic("jobs", partitions=after)
        if "key" in options:
            with pytest.raises(NotFound):
                await producer.publish(b"refused", **options)
            where = await producer.publish(b"new", **options)
            assert where.partition.number == partition_of_key(b"k", after)
        else:
            await producer.publish(b"new", **options)
            await producer.publish_many([b"more"], **options)
        assert set(await payloads(other)) == {b"new"} | ({b"more"} if "key" not in options else set())


async def test_a_publish_that_one_node_left_unknown_ends_once_all_others_say_that_the_topic_is_gone() -> None:
    """It was repeated for all of its time."""
    async with jobs() as (cluster, client):
        producer = client.producer("jobs")
        await producer.publish(b"old")
        await client.delete_topic("jobs")
        began = trio.current_time()
        cluster.answer = failing("outcome-unknown", times=1, of=Publish)
        with pytest.raises(OutcomeUnknown, match="was deleted"):
            await producer.publish(b"x")
        assert trio.current_time() - began < 1.0


async def test_full_disks_are_said_once_however_often_the_nodes_say_it() -> None:
    """Not each node's sentence, and how many times."""
    attempts = Attempts("publish")
    for where in ("n1 (a:1)", "n2 (b:1)", "n3 (c:1)") * 3:
        attempts.refuse(where, StorageFull("3 replicas of 3 have no room: let consumers ack"))
    error = attempts.error(10, writes=True)
    assert type(error) is StorageFull
    assert str(error) == (
        "publish did not succeed within 10 s: 3 replicas of 3 have no room: let consumers ack"
    )
    attempts.note("n1 (a:1)", "connection refused")
    error = attempts.error(10, writes=True)
    assert type(error) is StorageFull
    assert "connection refused" in str(error), "something else is the case as well"


def test_nodes_that_say_the_same_are_named_together() -> None:
    attempts = Attempts("fetch")
    for where in ("n1 (a:1)", "n2 (b:1)", "n1 (a:1)"):
        attempts.note(where, "a majority is in quarantine")
    attempts.note("n3 (c:1)", "connection refused")
    assert str(attempts.error(10, writes=False)).endswith(
        "Tried n1 (a:1), n2 (b:1): a majority is in quarantine (3 times); n3 (c:1): connection refused"
    )
