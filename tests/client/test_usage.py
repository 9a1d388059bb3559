"""A newcomer's mistakes work or get advice: no call hangs or drops messages."""

from __future__ import annotations

import asyncio
import concurrent.futures
import copy
import pickle
import re
import sys
from array import array
from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trustme

from quorumq.client import (
    Client,
    Closed,
    Conflict,
    NewMessage,
    NotAllStored,
    NotFound,
    Outcome,
    QuorumqError,
    StorageFull,
    Task,
    TooFewReplicas,
    Transient,
    UsageError,
    aio,
    blocking,
    connect,
)
from quorumq.client import client as trio_client
from quorumq.client.host import check_host
from quorumq.core.messages import AlterTopic, CreateTopic, Failed, Metadata, MovePartition
from quorumq.core.values.errors import Code
from quorumq.core.values.types import MemberState
from quorumq.wire.address import names_of_nodes
from tests.client.fake import connected, fake_cluster
from tests.client.steps import jobs, publish, take
from tests.virtual import in_real_time


@pytest.mark.parametrize(("most", "taken"), [(5.0, 5.0), (60.0, 30.0)])
async def test_the_default_hold_time_is_one_that_the_cluster_allows(most: float, taken: float) -> None:
    for topic in ("jobs", "j*"):
        async with fake_cluster(hold_time_max=most) as cluster, connected(cluster) as client:
            await client.create_topic("jobs")
            await publish(client, 2)
            client.nodes.hold_time_max = None  # as in a client that made no topic
            (fetched,) = await client.fetch(topic, "once", max_messages=1, max_wait=1.0)
            client.nodes.hold_time_max = None
            async with client.consumer(topic, "g") as consumer:
                (message,) = await take(consumer, 1)
            assert consumer.hold_time == message.delivery.hold_time == fetched.delivery.hold_time == taken


async def test_a_hold_time_may_be_a_timedelta() -> None:
    async with (
        jobs(1) as (_, client),
        client.consumer("jobs", "g", hold_time=timedelta(seconds=4)) as consumer,
    ):
        (message,) = await take(consumer, 1)
        assert message.delivery.hold_time == 4.0
        before = message.deadline
        await message.extend(timedelta(seconds=40))
        assert message.deadline > before + 30.0


async def test_times_of_a_topic_may_be_timedeltas() -> None:
    async with fake_cluster() as cluster, connected(cluster) as client:
        made = await client.create_topic("jobs", ttl=timedelta(days=1), backoff=[timedelta(seconds=1), 2])
        assert (made.ttl_s, made.backoff) == (86400.0, (1.0, 2.0))
        assert (await client.alter_topic("jobs", retention=timedelta(hours=1))).retention_s == 3600.0


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda client: client.consumer("jobs", "g", hold_time="5s"), "hold_time is '5s': give seconds or a timedelta"),
        (lambda client: client.consumer("jobs", 7), "7 is no name"),
        (lambda client: client.consumer([b"jobs"], "g"), "b'jobs' is no name"),
        (lambda client: client.fetch("jobs", "g", hold_time="5s"), "hold_time is '5s'"),
        (lambda client: client.publish("jobs", b"", partition="0"), "partition is '0': give its number"),
        (lambda client: client.publish("jobs", b"", partition=0.0), "partition is 0.0: give its number"),
        (lambda client: client.create_topic("other", ttl="1d"), "ttl is '1d': give seconds or a timedelta"),
        (lambda client: client.create_topic("other", backoff=["1s"]), "backoff is '1s'"),
    ],
)  # fmt: skip
async def test_a_value_of_the_wrong_type_is_named(wrong: Callable[[Client], Any], said: str) -> None:
    async with jobs() as (_, client):
        with pytest.raises(UsageError, match=said):
            await wrong(client)
        await publish(client, 1)
        assert len(await client.fetch("jobs", "g", max_wait=1.0)) == 1


ODD: Any = [
    None, -1, 10**400, 1.5, float("nan"), "", "x", "\ud800", b"x", [None], {}, object(), timedelta(-1), int,
]  # fmt: skip
"""Values that a program gives by mistake."""


def calls(client: Client, message: Any) -> dict[str, Callable[[Any], Any]]:
    """Calls with one argument that may be odd."""

    def publish(name: str) -> Callable[[Any], Any]:
        return lambda value: client.publish("jobs", b"", **{name: value})

    def producer(name: str) -> Callable[[Any], Any]:
        return lambda value: client.producer("jobs", **{name: value}).publish(b"")

    def fetch(name: str) -> Callable[[Any], Any]:
        return lambda value: client.fetch("jobs", "h", **{"max_messages": 1, name: value})

    made: dict[str, Callable[[Any], Any]] = {}
    for name in ("delay", "ttl", "not_before", "partition", "derived_from", "timeout", "window"):
        made[f"publish {name}"] = publish(name)
    for name in ("linger", "batch_bytes", "in_flight", "buffer_bytes", "timeout"):
        made[f"producer {name}"] = producer(name)
    for name in ("max_messages", "min_messages", "max_wait", "hold_time", "start", "ids", "node", "timeout"):
        made[f"fetch {name}"] = fetch(name)
    return made | {
        "topic": client.topic,
        "create_topic": client.create_topic,
        "create_topic partitions": lambda value: client.create_topic("jobs", partitions=value),
        "alter_topic name": lambda value: client.alter_topic(value, ttl=1),
        "alter_topic deliveries": lambda value: client.alter_topic("jobs", max_deliveries=value),
        "limit_group": lambda value: client.limit_group("jobs", "g", value),
        "create_group": lambda value: client.create_group("jobs", value),
        "move_partition": lambda value: client.move_partition("jobs", value, "n1", "n2"),
        "raise_voters": client.raise_voters,
        "status timeout": lambda value: client.status(timeout=value),
        "search key": lambda value: client.search("jobs", "g", "ready", key=value),
        "search limit": lambda value: client.search("jobs", "g", "ready", limit=value),
        "dead_letter": message.dead_letter,
        "dead_letter reason": lambda value: message.dead_letter(reason=value),
        "reject": lambda value: message.reject(delay=value),
        "extend": message.extend,
        "ack": client.ack,
        "lookup": lambda value: client.lookup("jobs", "g", value),
        "redrive": lambda value: client.redrive("jobs", "g", value),
        "ticket": client.ticket,
        "fetch_any": client.fetch_any,
    }


async def test_odd_values_raise_what_a_caller_expects_and_no_error_of_the_insides() -> None:
    """The library raised an AttributeError or a RecursionError, or a task in the background ended the client."""
    async with jobs(60) as (_, client):
        client.timeout = 1.0
        (message,) = await client.fetch("jobs", "g", max_messages=1, max_wait=1.0)
        for name, call in calls(client, message).items():
            for value in ODD:
                try:
                    with trio.fail_after(5.0):
                        answer = call(value)
                        if hasattr(answer, "__await__"):
                            await answer
                except (QuorumqError, UnicodeEncodeError):
                    pass
                except Exception as error:
                    raise AssertionError(f"{name} of {value!r:.60}: {error!r}") from error
        await client.publish("jobs", b"and it goes on")


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda client: client.alter_topic(b"jobs", ttl=1), "AlterTopic cannot be sent: name is b'jobs': it must be"),
        (lambda client: client.alter_topic("jobs", partitions=1.5), "partitions is 1.5: it must be an integer"),
        (lambda client: client.alter_topic("jobs", max_deliveries=10**30), "max_deliveries is 1000.*: it must be"),
        (lambda client: client.topic("jobs", timeout=-1), "timeout is -1 s: it must be at least 0"),
        (lambda client: client.topic("jobs", timeout="5s"), "timeout is '5s': give seconds or a timedelta"),
        (lambda client: client.fetch("jobs", "g", max_messages=-1), "max_messages is -1: it must be an integer"),
        (lambda client: client.dead_letter([], "no"), "error is 'no'.*: give an exception, or words as reason="),
        (lambda client: client.publish("jobs", b"", not_before=5), "not_before is 5: give a datetime, or secon"),
        (lambda client: client.publish("jobs", b"", derived_from=b"x"), "derived_from is b'x': give the message"),
        (lambda client: client.fetch("jobs", "g", hold_time=1e9), r"hold_time is 1e\+09 s: it must be from 0.1"),
        (lambda client: client.publish(b"jobs", b""), "b'jobs' is no name of a topic or a group: names are text"),
        (lambda client: client.publish(["a"], b""), r"\['a'\] is no name of a topic or a group: names are text"),
        (lambda client: client.consumer("jobs", "g", max_extend=-1), "max_extend is -1 s: it must be at least 0"),
        (lambda client: client.consumer("jobs", "g", auto_extend="x"), "auto_extend is 'x': give True or False"),
        (lambda client: client.work("jobs", "g", print, signals="x"), "signals is 'x': give True or False"),
        (lambda client: client.set_labels("jobs", ["a"]), r"labels are \['a'\]: give a mapping of names to texts"),
        (lambda client: client.set_labels("jobs", {"a": 4}), "changes is .*text=4.*: it must be text"),
        (lambda client: client.ack(None), "None is not a message that was delivered: settle what"),
        (lambda client: client.raise_voters(-3), "count is -3: it must be an integer, at least 1"),
    ],
)  # fmt: skip
async def test_an_odd_value_is_named_with_what_it_must_be(wrong: Callable[[Client], Any], said: str) -> None:
    async with jobs() as (_, client):
        with pytest.raises(UsageError, match=said):
            await wrong(client)


async def test_a_time_in_which_no_node_can_be_tried_is_named() -> None:
    """It ended in "Tried no node could be tried in that time"."""
    async with fake_cluster() as cluster:
        with pytest.raises(
            TooFewReplicas, match="connecting did not succeed within 0 s, too little to try a node"
        ):
            async with connected(cluster, timeout=0.0):
                pass


async def test_a_message_may_have_a_timedelta_as_its_timeout() -> None:
    """It was taken, and a task in the background ended the client by it."""
    async with jobs() as (_, client):
        await client.publish("jobs", b"1", timeout=timedelta(seconds=3))  # type: ignore[arg-type]
        await client.producer("jobs").publish_many([b"2", b"3"], timeout=timedelta(seconds=3))  # type: ignore[arg-type]
        assert len(await client.fetch("jobs", "g", max_wait=1.0, min_messages=3)) == 3


async def test_one_payload_is_not_published_byte_by_byte() -> None:
    async with jobs() as (_, client), client.producer("jobs") as producer:
        for payload in (b"resize", bytearray(b"x"), "resize"):
            with pytest.raises(TypeError, match="is one payload: publish_many takes several"):
                await producer.publish_many(payload)  # type: ignore[arg-type]
        assert len(await producer.publish_many([b"resize"])) == 1


async def test_a_take_of_no_messages_is_refused_and_the_consumer_goes_on() -> None:
    """It asked for less and less ahead from then on, and waited for ever."""
    async with jobs(8) as (_, client), client.consumer("jobs", "g") as consumer:
        for wrong in (0, -1, "1", None):
            with pytest.raises(UsageError, match=r"max_messages is .*: it must be an integer, at least 1"):
                await consumer.take(wrong, timeout=0.1)  # type: ignore[arg-type]
        with trio.fail_after(5.0):
            assert len(await take(consumer, 8)) == 8


async def test_a_full_node_that_is_to_get_a_partition_is_named_at_once() -> None:
    """The client asked again for 30 s: but a producer does wait for space."""
    async with jobs(1) as (cluster, client):
        full = Failed(Code.STORAGE_FULL, "to is 'n3': node n3 has only its reserve of disk space left")
        busy = Failed(Code.TOO_FEW_REPLICAS, "node a is in quarantine", 2, 1)
        cluster.answer = lambda node, request: (
            full if isinstance(request, MovePartition | AlterTopic | CreateTopic) else None
        )
        began = trio.current_time()
        for call in (
            lambda: client.move_partition("jobs", 0, "n1", "n3"),
            lambda: client.move_partition("jobs", 0, "n1", "n3", dry_run=True),
            lambda: client.alter_topic("jobs", rf=3),
        ):
            with pytest.raises(StorageFull, match="node n3 has only its reserve"):
                await call()
        assert trio.current_time() - began < 1.0
        with pytest.raises(StorageFull):
            await client.create_topic("other", timeout=3.0)
        assert trio.current_time() - began > 2.0
        cluster.answer = lambda node, request: (
            (busy if node == "a" else full) if isinstance(request, MovePartition) else None
        )
        began = trio.current_time()
        with pytest.raises(Transient):
            await client.move_partition("jobs", 0, "n1", "n3", timeout=3.0)
        assert trio.current_time() - began > 2.0, "node a did not say that it is full"


async def test_a_key_and_headers_of_the_wrong_type_are_named_and_the_producer_goes_on() -> None:
    async with jobs() as (_, client):
        text: Any = 1
        async with client.producer("jobs") as producer:
            with pytest.raises(TypeError, match="a key is bytes or text, not int: encode it first"):
                await producer.send(b"1", key=text)
            headers: Any = [("a", "b")]
            with pytest.raises(TypeError, match="headers are a mapping of names to values, not list"):
                await producer.send(b"1", headers=headers)
            await producer.publish(b"1")


LONE = "a\udcff"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"key": LONE}, "key 'a.udcff': its character 1 is a lone surrogate"),
        ({"headers": {"name": LONE}}, "header 'name' has 'a.udcff'"),
        ({"headers": {LONE: 1}}, "header 'a.udcff' has 'a.udcff'"),
        ({"dedup": LONE}, "dedup 'a.udcff'"),
        ({"json": [LONE]}, "json '..a.udcff"),
    ],
)
@pytest.mark.parametrize("several", [False, True])
async def test_text_that_is_not_unicode_is_named(options: dict[str, Any], said: str, several: bool) -> None:
    payload = None if "json" in options else b"x"
    async with jobs() as (_, client):
        if several:
            with pytest.raises(NotAllStored, match=f"UsageError: {said}"):
                await client.producer("jobs").publish_many([NewMessage(payload, **options)])
        else:
            with pytest.raises(UsageError, match=said):
                await client.publish("jobs", payload, **options)


@pytest.mark.parametrize(
    ("view", "contents"),
    [
        (memoryview(array("H", [1, 2])), array("H", [1, 2]).tobytes()),
        (memoryview(b"abcdef").cast("B", (2, 3)), b"abcdef"),
        (memoryview(b"abcdef")[::2], b"ace"),
        (memoryview(b"abc"), b"abc"),
    ],
)
@pytest.mark.parametrize("several", [False, True])
async def test_a_view_of_memory_is_published_as_its_bytes(view: Any, contents: bytes, several: bool) -> None:
    """One of items of several bytes was stored with a wrong length, and no consumer could read it."""
    async with jobs() as (_, client):
        if several:
            await client.producer("jobs").publish_many([view])
        else:
            await client.publish("jobs", view, key=view)
        (message,) = await client.fetch("jobs", "g", max_wait=1.0)
        assert message.payload == contents
        assert message.key == (None if several else contents)


async def test_a_consumer_says_that_it_is_used_by_with_and_both_are_used_once() -> None:
    async with jobs() as (_, client):
        producer, consumer = client.producer("jobs"), client.consumer("jobs", "g")
        with trio.fail_after(5.0):
            with pytest.raises(UsageError, match="nothing is fetched yet: use the consumer by `with`"):
                await consumer.take(1)
            with pytest.raises(UsageError, match="nothing is fetched yet"):
                await anext(consumer)
        async with producer, consumer:
            await producer.send(b"1")
            assert len(await take(consumer, 1)) == 1
        with pytest.raises(UsageError, match=r"used before: make another one by `Client.producer`"):
            await producer.__aenter__()
        with pytest.raises(UsageError, match=r"used before: make another one by `Client.consumer`"):
            await consumer.__aenter__()


async def test_messages_may_come_from_a_generator() -> None:
    async with jobs(8) as (_, client):
        a, b, c, d, *more = await client.fetch("jobs", "g", max_messages=8)
        await client.extend(one for one in [a, b])
        assert await client.ack(one for one in [a, b]) == [Outcome.ACKED] * 2
        await client.reject(one for one in [c])
        await client.dead_letter((one for one in [d]), ValueError("no"))
        assert (c.outcome, d.outcome) == (Outcome.REQUEUED, Outcome.DEAD_LETTERED)
        async with client.consumer("jobs", "h") as consumer:
            messages = await take(consumer, 2)
            assert await consumer.ack(one for one in messages) == [Outcome.ACKED] * 2
        assert more


async def test_a_list_that_changes_while_it_is_acked_is_acked_as_it_was() -> None:
    async with jobs(3) as (_, client):
        messages = await client.fetch("jobs", "g", max_messages=3)
        kept = list(messages)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.ack, messages)
            await trio.testing.wait_all_tasks_blocked()
            messages.clear()
        assert [message.outcome for message in kept] == [Outcome.ACKED] * 3


async def test_a_closed_client_says_so_at_once() -> None:
    async with fake_cluster() as cluster:
        async with connected(cluster) as client:
            await client.create_topic("jobs")
            await publish(client, 1)
            (message,) = await client.fetch("jobs", "g")
            producer, consumer = client.producer("jobs"), client.consumer("jobs", "g")
        began = trio.current_time()
        calls: list[Callable[[], Awaitable[object]]] = [
            client.status, message.ack, message.reject, message.extend, producer.__aenter__, consumer.__aenter__,
            lambda: client.fetch("j*", "g"), lambda: client.create_topic("jobs"),
        ]  # fmt: skip
        for call in calls:
            with pytest.raises(Closed, match="the client is closed"):
                await call()
        assert trio.current_time() == began


async def test_batches_end_when_nothing_comes_for_so_long() -> None:
    async with jobs(3) as (_, client):
        async with client.consumer("jobs", "g") as consumer:
            with trio.fail_after(10.0):
                batches = [
                    one for batch in [b async for b in consumer.batches(2, timeout=1.0)] for one in batch
                ]
        assert len(batches) == 3


@pytest.mark.parametrize(
    ("module", "use"), [(trio_client, "async with"), (aio, "async with"), (blocking, "with")]
)
def test_a_connect_that_is_taken_for_a_client_says_how_to_use_it(module: Any, use: str) -> None:
    """'_GeneratorContextManager' object has no attribute 'publish'."""
    with pytest.raises(AttributeError, match=f"no 'publish': it is no client yet; use it as `{use} connect"):
        module.connect("127.0.0.1:1").publish("jobs", b"")
    assert not hasattr(module.connect("127.0.0.1:1"), "publish")


async def test_a_connect_that_is_awaited_says_how_to_use_it() -> None:
    for module in (trio_client, aio):
        with pytest.raises(TypeError, match=r"not awaited: use it as .async with connect.*Client\.open"):
            await module.connect("127.0.0.1:1")


def test_outside_of_trio_it_names_the_client_to_use() -> None:
    async def main() -> None:
        async with connect("127.0.0.1:1"):
            raise AssertionError

    with pytest.raises(UsageError, match=r"runs on trio.*quorumq\.client\.blocking"):
        asyncio.run(main())


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("127.0.0.1:7401,://127.0.0.1:7402", "without a scheme"),
        ("[::1]", r"the port is missing, as in '\[::1\]:7401'"),
        ("", "no address of a node is given"),
        (7401, "address = 7401: must be text"),
        ([7401], "address = 7401: must be text"),
        ("http://127.0.0.1:7401", "without a scheme"),
        ("::1:7401", "in brackets"),
        ("localhost", "'localhost'"),
    ],
)
async def test_an_address_that_is_none_says_how_to_write_it(address: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        async with connect(address):
            raise AssertionError


async def test_a_client_of_another_run_is_refused() -> None:
    async def elsewhere(client: Client) -> None:
        with pytest.raises(UsageError, match=r"belongs to another trio\.run"):
            await client.topic("jobs")
        with pytest.raises(UsageError, match=r"belongs to another trio\.run"):
            async with client.producer("jobs"):
                pass

    async with jobs() as (_, client):
        with concurrent.futures.ThreadPoolExecutor(1) as threads:
            threads.submit(trio.run, elsewhere, client).result()


async def test_partitions_are_added_by_create_only_while_a_topic_made_by_publishing_is_empty() -> None:
    async with fake_cluster() as cluster, connected(cluster) as client:
        await client.topic("empty", create=True)
        assert (await client.create_topic("empty", partitions=3)).partitions == 3
        await client.publish("jobs", b"one")
        with pytest.raises(Conflict, match="made by publishing, with 1 partition, and has messages"):
            await client.create_topic("jobs", partitions=3)
        assert (await client.create_topic("jobs", partitions=1, max_deliveries=7)).partitions == 1
        assert (await client.alter_topic("jobs", partitions=3)).partitions == 3
        assert (await client.create_topic("jobs", partitions=3)).partitions == 3


async def test_ids_are_taken_as_text_and_one_message_where_a_list_is() -> None:
    """F11: raw errors of Python, or an empty list."""
    async with jobs(3, backoff=5) as (_, client):
        assert (await client.topic("jobs")).backoff == (5.0,)
        with pytest.raises(UsageError, match="which is 'pending': give one of ready, held"):
            [item async for item in client.peek("jobs", "g", "pending")]  # type: ignore[arg-type]
        first, second, third = await client.fetch("jobs", "g", max_messages=3, max_wait=1.0)
        await client.ack(first)
        await client.dead_letter(second, reason="no")
        name = str(second.id)
        (peek,) = (await client.lookup("jobs", "g", name)).values()
        assert peek.peeked.state == "dead"
        assert list(await client.lookup("jobs", "g", [second])) == [second.id]  # type: ignore[list-item]
        assert (await client.redrive("jobs", "g", [name])).messages == 1
        (again,) = await client.fetch("jobs", "g", ids=name, max_messages=1)
        assert again.id == second.id
        await client.reject(again, delay=0)
        assert await client.purge("jobs", "g", ids=name) == 1
        for wrong in (name, third.id, [name], 7, [None]):
            with pytest.raises(UsageError, match="not a message that was delivered"):
                await client.ack(wrong)  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="not a message id"):
            await client.purge("jobs", "g", ids="x")
        never = str(third.id._replace(seq=99))
        with pytest.raises(NotFound, match="no replica that answered knows"):
            await client.redrive("jobs", "g", never)


async def test_a_delayed_message_can_be_called_back() -> None:
    """names.md and patterns.md denied it."""
    async with jobs() as (_, client):
        await client.create_group("jobs", "g")
        name = await client.publish("jobs", b"no", delay=10.0)
        await client.publish("jobs", b"yes", delay=10.0)
        assert await client.purge("jobs", "g", ids=name) == 1
        assert [one.payload for one in await client.fetch("jobs", "g", max_wait=15.0)] == [b"yes"]


@pytest.mark.parametrize("name", ["timeout", "connect_timeout", "attempt_timeout"])
def test_times_of_connect_are_checked(name: str) -> None:
    options: Any
    for options in ({name: "5s"}, {name: -1}, {name: None}):
        with pytest.raises(UsageError, match=f"{name} is "), blocking.connect("127.0.0.1:1", **options):
            raise AssertionError


async def test_asyncio_is_named_where_another_loop_runs() -> None:
    """RuntimeError: no running event loop."""
    with pytest.raises(UsageError, match=r"aio runs on asyncio.* on trio quorumq\.client"):
        async with aio.connect("127.0.0.1:1"):
            raise AssertionError


async def test_tasks_that_are_none_are_refused() -> None:
    async with jobs() as (_, client):
        wrong: Any
        for wrong in (Task("jobs", "g", print), [("jobs", "g", print)], None):
            with pytest.raises(
                UsageError, match=r"tasks is .*: give a list of Task\(topic, group, handler\)"
            ):
                await client.work_all(wrong)


def test_connect_reads_the_nodes_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUORUMQ_NODES", "a:1,b:2 c:3")
    assert names_of_nodes(None) == ["a:1", "b:2", "c:3"]
    assert names_of_nodes("a:1,b:2") == ["a:1", "b:2"]


@pytest.mark.parametrize(
    ("name", "module", "patched"),
    [("gevent", "gevent.monkey", "is_module_patched"), ("eventlet", "eventlet.patcher", "is_monkey_patched")],
)
def test_a_host_that_has_replaced_sockets_is_named(
    monkeypatch: pytest.MonkeyPatch, name: str, module: str, patched: str
) -> None:
    """Field, near misses: LoopExit, or an import that died inside of trio."""
    monkeypatch.setitem(sys.modules, module, SimpleNamespace(**{patched: lambda label: label == "socket"}))
    with pytest.raises(UsageError, match=f"{name} has replaced sockets"):
        blocking.connect("127.0.0.1:1").__enter__()
    monkeypatch.setitem(sys.modules, module, SimpleNamespace(**{patched: lambda label: False}))
    check_host()


@in_real_time
async def test_tls_of_the_environment_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """F13: "closed during the TLS handshake" after 30 s, and no word why TLS was spoken."""
    ca = tmp_path / "ca.pem"
    ca.write_bytes(trustme.CA().cert_pem.bytes())
    monkeypatch.setenv("QUORUMQ_TLS_CA", str(ca))

    async def hang_up(stream: trio.SocketStream) -> None:
        await stream.receive_some()

    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(partial(trio.serve_tcp, host="127.0.0.1"), hang_up, 0)
        address = f"127.0.0.1:{listener.socket.getsockname()[1]}"
        for said in ({}, {"tls_ca": str(ca)}):
            with pytest.raises(TooFewReplicas) as caught:
                async with connect(address, timeout=0.3, **said):
                    raise AssertionError
            named = "TLS is used because QUORUMQ_TLS_CA is set" in str(caught.value)
            assert named, "also where the program names the same file"
        nursery.cancel_scope.cancel()


async def test_a_fetch_beyond_the_longest_hold_claims_what_it_returns() -> None:
    async with jobs(2) as (_, client):
        longest = await client.context.hold_time_max(None)
        messages = await client.fetch("jobs", "g", hold_time=10 * longest, max_wait=1.0)
        assert len(messages) == 2
        assert all(message.deadline > client.clock() + 9 * longest for message in messages)
        await messages[0].extend(20 * longest)
        assert messages[0].deadline > client.clock() + 19 * longest
        assert await client.fetch("jobs", "g") == []
        await client.reject(messages, delay=0)
        assert [message.attempt for message in await client.fetch("jobs", "g", max_wait=1.0)] == [2, 2]


async def test_messages_that_could_not_be_claimed_are_given_back() -> None:
    async with jobs(1) as (_, client):
        longest = await client.context.hold_time_max(None)
        extend = client.extend_quietly

        async def refused(messages: Any, hold_time: Any, failures: Any, **more: Any) -> None:
            await extend(messages, hold_time, failures, **more)
            failures.update(dict.fromkeys(messages, UsageError("the disk is full")))

        client.extend_quietly = refused  # type: ignore[method-assign]
        assert await client.fetch("jobs", "g", hold_time=10 * longest, max_wait=1.0) == []
        client.extend_quietly = extend  # type: ignore[method-assign]
        (message,) = await client.fetch("jobs", "g", max_wait=1.0)
        assert message.interruptions == 1


async def test_a_new_topic_gets_no_more_replicas_than_there_are_machines_for_it() -> None:
    """A drained node gets no partition, and two nodes of one machine get one: the node would refuse the topic."""
    async with fake_cluster() as cluster, connected(cluster) as client:
        known = await client.metadata()
        first, *others = known.nodes
        drained = [info._replace(state=MemberState.DRAINING) for info in others]
        together = [info._replace(machine="m") for info in known.nodes]
        for nodes, expected in ((known.nodes, 3), ([first, *drained], 1), (together, 1)):
            reply = known._replace(nodes=tuple(nodes))
            cluster.answer = lambda node, request, reply=reply: (
                reply if isinstance(request, Metadata) else None
            )
            assert await client.context.default_rf(5.0) == expected


async def test_a_client_that_needs_the_nodes_gets_no_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    """All topics of a cluster may have megabytes."""
    async with jobs(1) as (_, client):
        replies: list[Any] = []
        learn = client.nodes.learn
        monkeypatch.setattr(client.nodes, "learn", lambda reply: (replies.append(reply), learn(reply)))
        client.nodes.hold_time_max = None
        await client.context.hold_time_max(None)
        await client.context.default_rf(None)
        assert [(len(reply.nodes), reply.topics) for reply in replies] == [(3, ()), (3, ())]


FRONTS: dict[str, Any] = {"trio": trio_client, "aio": aio, "blocking": blocking}


@pytest.mark.parametrize("front", FRONTS)
@pytest.mark.parametrize(
    ("kind", "name", "here"),
    [("Message", "body", "payload"), ("Message", "nack", "reject()"), ("Client", "send", "publish()"),
     ("Client", "subscribe", "consumer(topic, group)"), ("Client", "queue_declare", "create_topic()"),
     ("Consumer", "poll", "take()"), ("Consumer", "aclose", "close()"), ("Producer", "produce", "send()")],
)  # fmt: skip
def test_a_call_of_another_queue_is_refused_with_ours(front: str, kind: str, name: str, here: str) -> None:
    cls = getattr(FRONTS[front], kind)
    with pytest.raises(AttributeError, match=re.escape(f"no attribute {name!r}: here it is {here}")):
        getattr(cls.__new__(cls), name)
    assert not hasattr(cls.__new__(cls), "else_where")


async def test_a_message_for_another_process_is_refused_with_the_way_to_ack_it_there() -> None:
    async with jobs(1) as (_, client):
        (message,) = await client.fetch("jobs", "g", max_wait=1.0)
        for copied in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(TypeError, match="neither pickled nor copied: send receipt_to_text"):
                copied(message)
        with pytest.raises(TypeError, match=r"a Client belongs to its process.* make one in each process"):
            pickle.dumps(client)
