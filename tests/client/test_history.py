"""The client's lines of the history: each is of the schema, and together they tell what happened."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
import trio

from quorumq.client import OutcomeUnknown
from quorumq.core.messages import AckRequest, Publish
from quorumq.history import HistoryWriter, Row, check_row, parse_spans, read_history
from tests.client.fake import connected, fake_cluster
from tests.client.test_consumer import publish, take


def rows(file: io.StringIO, writer: HistoryWriter) -> list[Row]:
    writer.flush()
    found = [json.loads(line) for line in file.getvalue().splitlines()]
    assert [check_row(row) for row in found] == [""] * len(found)
    return found


def messages(found: list[Row]) -> int:
    return sum(span.size for row in found for span in parse_spans(row["spans"]))


async def test_everything_a_client_does_is_written(tmp_path: Path) -> None:
    path = tmp_path / "client.jsonl"
    with HistoryWriter(path, run="r", who="client:c", clock=lambda: (0.0, 0)) as writer:
        async with fake_cluster() as cluster, connected(cluster, history=writer) as client:
            await client.create_topic("jobs")
            await publish(client, 20)
            async with client.consumer("jobs", "g", hold_time=4.0) as consumer:
                found = await take(consumer, 10)
                await consumer.ack(found[:5])
                await found[5].reject(1.0)
                await found[6].dead_letter(reason="no")
                await trio.sleep(3.0)  # what the application has is extended, what it has not goes back
            listed = [item async for item in client.peek("jobs", "g", "dead")]
            await client.redrive("jobs", "g", listed)
    lines = list(read_history([path]))
    kinds = {kind: [row for row in lines if row["kind"] == kind] for kind in {row["kind"] for row in lines}}
    assert set(kinds) == {
        "settings", "publish", "deliver", "ack", "reject", "dead_letter", "extend", "leave", "list", "redrive",
    }  # fmt: skip
    for kind in ("publish", "ack", "reject", "dead_letter", "extend", "redrive"):
        invoked = [row for row in kinds[kind] if row["outcome"] == "invoke"]
        done = [row for row in kinds[kind] if row["outcome"] in ("ok", "acked")]
        assert {row["op"] for row in invoked} == {row["op"] for row in done}
        assert messages(invoked) == messages(done)
    for op in {row["op"] for row in lines if "op" in row}:
        assert len({row["kind"] for row in lines if row.get("op") == op}) == 1, "one op is one request"
    assert messages([row for row in kinds["publish"] if row["outcome"] == "ok"]) == 20
    assert messages(kinds["deliver"]) == 10
    assert messages(kinds["leave"]) == consumer.given_back >= 10
    assert messages([row for row in kinds["ack"] if row["outcome"] == "acked"]) == 5
    deliver = kinds["deliver"][0]
    assert deliver["topic"] == "jobs"
    assert deliver["until"] == pytest.approx(deliver["asked"] + 0.98 * 4.0)
    assert deliver["asked"] <= deliver["at"] < deliver["until"]
    published = "".join(row["crcs"] for row in kinds["publish"] if row["outcome"] == "invoke")
    assert all(row["crcs"] in published for row in kinds["deliver"])
    assert all(len(row["crcs"]) == 8 * messages([row]) for row in kinds["deliver"])


async def test_each_attempt_has_its_own_lines_and_unknown_is_said() -> None:
    file = io.StringIO()
    writer = HistoryWriter(file, run="r", who="client:c")
    async with fake_cluster() as cluster, connected(cluster, history=writer, attempt_timeout=0.5) as client:
        await client.create_topic("jobs")
        lost = iter([True] + [False] * 10)
        cluster.lose = lambda node, request: isinstance(request, Publish) and next(lost)
        await publish(client, 1)
        published = [row for row in rows(file, writer) if row["kind"] == "publish"]
        assert [row["outcome"] for row in published] == ["invoke", "unknown", "invoke", "ok"]
        assert published[0]["op"] == published[1]["op"] != published[2]["op"]
        assert published[0]["spans"] == published[2]["spans"]
        assert published[0]["via"] != published[2]["via"]
        (message,) = await client.fetch("jobs", "g")
        cluster.mute.update("abc")
        with pytest.raises(OutcomeUnknown):
            await message.ack(timeout=0.8)
        acked = [row for row in rows(file, writer) if row["kind"] == "ack"]
        assert {row["outcome"] for row in acked} == {"invoke", "unknown"}
        cluster.mute.clear()
        cluster.answer = lambda node, request: None
        await message.ack()
        assert rows(file, writer)[-1]["outcome"] == "acked"
        assert len(cluster.of(AckRequest)) == len([row for row in acked if row["outcome"] == "invoke"]) + 1


async def test_purges_and_rewinds_are_written_with_what_came_of_them() -> None:
    file = io.StringIO()
    writer = HistoryWriter(file, run="r", who="client:c")
    async with fake_cluster() as cluster, connected(cluster, history=writer) as client:
        await client.create_topic("jobs")
        await client.create_group("jobs", "g")
        await publish(client, 3)
        assert await client.purge("jobs", "g") == 3
        now = await client.rewind("jobs", "g", "earliest")
    found = [row for row in rows(file, writer) if row["kind"] in ("purge", "set_group")]
    assert [(row["kind"], row["outcome"], row.get("rewind")) for row in found] == [
        ("set_group", "invoke", False), ("set_group", "ok", False), ("purge", "invoke", None), ("purge", "ok", None),
        ("set_group", "invoke", True), ("set_group", "ok", True),
    ]  # fmt: skip
    assert found[3]["messages"] == 3
    assert (found[5]["generation"], found[5]["from_ms"]) == (now.generation, now.from_ms)
    assert len({row["op"] for row in found}) == 3
