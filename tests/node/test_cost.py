"""What one message alone costs the shells of three nodes, counted exactly: a change that costs a call says so."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import trio

import quorumq.node.connections
import quorumq.node.node
from quorumq.core import messages as m
from quorumq.storage.log import Log
from quorumq.storage.memory import MemoryDisk
from sim.shell.memory import MemoryTransport
from tests.node.memory import fetch, outcomes, payloads, publish, receipts, world

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

    def count(owner: Any, name: str, what: str) -> None:
        inner: Callable[..., Any] = getattr(owner, name)

        def counted(*args: Any, **more: Any) -> Any:
            counts[what] += 1
            return inner(*args, **more)

        monkeypatch.setattr(owner, name, counted)

    async with world("abc") as cluster:
        client = await cluster.client("a")
        topic, origin = await client.topic(), await client.session()
        for commits in cluster.commits.values():
            commits.at_once = True
        found: dict[str, Counter[str]] = {}
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
                    await client.ask(publish(topic, origin, seq, b"%d" % seq))
                elif name == "fetch":
                    given = await client.ask(fetch())
                    assert payloads(given) == [b"%d" % seq]
                else:
                    assert outcomes(await client.ask(m.AckRequest(receipts(given)))) == ["acked"]
                await trio.sleep(0.01)
                found[name] = counts.copy()
                found[name]["sent"] -= 1  # the client's own
    assert found == COUNTS
