"""Costs of one message at the shells of three nodes, counted exactly: one call more fails."""

from __future__ import annotations

import cProfile
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import trio

import quorumq.node.connections
import quorumq.node.node
from quorumq.core import messages as m
from quorumq.storage.log import Log
from sim.memory_disk import MemoryDisk
from sim.shell.memory import MemoryTransport
from tests.core.work import SLACK
from tests.node.memory import fetch, outcomes, payloads, publish, receipts, served

COUNTS = {
    "publish": {"sent": 5, "encoded": 4, "decoded": 5, "fsyncs": 3},
    "fetch": {"sent": 5, "encoded": 4, "decoded": 5},
    "ack": {"sent": 5, "encoded": 4, "decoded": 5, "fsyncs": 3},
}
"""A frame to two peers is encoded once. The disk is not asked for its room, and no frame waits for another."""


async def test_a_message_alone_is_few_frames_and_fsyncs_and_no_question_to_the_disk(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counts: Counter[str] = Counter()

    def count(owner: Any, name: str, label: str) -> None:
        original = getattr(owner, name)
        inner: Callable[..., Any] = original.fget if isinstance(original, property) else original

        def counted(*args: Any, **more: Any) -> Any:
            counts[label] += 1
            return inner(*args, **more)

        monkeypatch.setattr(owner, name, property(counted) if isinstance(original, property) else counted)

    async with served() as (cluster, client, topic, producer_id):
        for commits in cluster.commits.values():
            commits.at_once = True
        original: dict[str, Counter[str]] = {}
        for seq in range(3):
            if seq == 2:  # all is known by now
                await trio.sleep(1.05)
                count(MemoryTransport, "send_some", "sent")
                count(MemoryDisk, "sync", "fsyncs")
                count(Log, "free_bytes", "asked for room")
                for module in (quorumq.node.node, quorumq.node.connections):
                    count(module, "encode_message", "encoded")
                count(quorumq.node.connections, "decode_message", "decoded")
            for name in COUNTS:
                counts.clear()
                if name == "publish":
                    await client.ask(publish(topic, producer_id, seq, b"%d" % seq))
                elif name == "fetch":
                    given = await client.ask(fetch())
                    assert payloads(given) == [b"%d" % seq]
                else:
                    assert outcomes(await client.ask(m.AckRequest(receipts(given)))) == ["acked"]
                await trio.sleep(0.01)
                original[name] = counts.copy()
                original[name]["sent"] -= 1  # the client's own
    assert original == COUNTS


CALLS = {"node": 568, "wire": 373, "storage": 241, "driver": 84}
"""Calls of Python functions of three nodes for a message that is published, delivered and acked alone, at most."""


def part_of(file: str) -> str:
    """Return the part of a node that a function belongs to."""
    if file.startswith("<quorumq"):
        return "wire"  # written when it is first needed
    parts = file.rpartition("/quorumq/")[2].split("/")
    return parts[0] if len(parts) > 1 else parts[0].removesuffix(".py")


async def test_a_message_alone_is_few_calls_around_the_cores() -> None:
    """In virtual time, with a task for each connection."""
    messages = 10
    async with served(sync_interval=1000.0) as (
        cluster,
        client,
        topic,
        producer_id,
    ):  # its digests are no message's
        for commits in cluster.commits.values():
            commits.at_once = True
        profiler = cProfile.Profile(builtins=False)
        for seq in range(3 + messages):
            answer: Any = None
            for name in COUNTS:
                request: Any = fetch()
                if name == "publish":
                    request = publish(topic, producer_id, seq, b"x" * 1024)
                elif name == "ack":
                    request = m.AckRequest(receipts(answer))
                number = await client.send(request)
                if seq >= 3:
                    profiler.enable()
                await trio.sleep(0.01)
                profiler.disable()
                answer = await client.receive(number)
            assert outcomes(answer) == ["acked"]
    calls = Counter[str]()
    for entry in profiler.getstats():
        calls[part_of(getattr(entry.code, "co_filename", ""))] += entry.callcount
    calls_each = {part: calls[part] / messages for part in CALLS}
    assert not [part for part in CALLS if calls_each[part] > SLACK * CALLS[part]], str(calls_each)
