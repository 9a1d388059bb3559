"""The client's lines of the history: each is of the schema, and together they describe the run."""

from __future__ import annotations

import errno
import io
import json
from pathlib import Path

import pytest
import trio

from quorumq.client import Conflict, NotFound, OutcomeUnknown
from quorumq.core.messages import AckRequest, Publish
from quorumq.history import HistoryWriter, Row, check_row, producer_id_text
from quorumq.history.reader import read_history
from tests.client.fake import connected, fake_cluster, serving
from tests.client.steps import publish, take


def written() -> tuple[io.StringIO, HistoryWriter]:
    file = io.StringIO()
    return file, HistoryWriter(file, run="r", who="client:c")


def rows(file: io.StringIO, writer: HistoryWriter) -> list[Row]:
    writer.flush()
    result = [json.loads(line) for line in file.getvalue().splitlines()]
    assert [check_row(row) for row in result] == [""] * len(result)
    return result


def messages(lines: list[Row]) -> int:
    return sum(stop - start for row in lines for _, start, stop in row["spans"])


async def test_everything_a_client_does_is_written(tmp_path: Path) -> None:
    path = tmp_path / "client.jsonl"
    with HistoryWriter(path, run="r", who="client:c", clock=lambda: (0.0, 0)) as writer:
        async with serving("jobs", history=writer) as (_, client):
            await publish(client, 20)
            async with client.consumer("jobs", "g", hold_time=4.0) as consumer:
                taken = await take(consumer, 10)
                await consumer.ack(taken[:5])
                await taken[5].reject(1.0)
                await taken[6].dead_letter(reason="no")
                await taken[7].reject(interrupted=True)
                await trio.sleep(3.0)  # messages of the application are extended, buffered ones released
            listed = [item async for item in client.peek("jobs", "g", "dead")]
            await client.redrive("jobs", "g", listed)
    lines = list(read_history([path]))
    kinds = {kind: [row for row in lines if row["kind"] == kind] for kind in {row["kind"] for row in lines}}
    assert set(kinds) == {
        "settings", "publish", "deliver", "ack", "reject", "dead_letter", "extend", "leave", "list", "redrive",
        "set_topic",
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
    asked = [row for row in kinds["reject"] if row["outcome"] == "invoke"]
    assert [(row["delay"], row.get("interrupted")) for row in asked] == [(1.0, None), (0.0, True)]
    assert messages(kinds["leave"]) == consumer.given_back >= 9
    assert messages([row for row in kinds["ack"] if row["outcome"] == "acked"]) == 5
    deliver = kinds["deliver"][0]
    assert (deliver["topic"], deliver["until"]) == ("jobs", pytest.approx(deliver["asked"] + 0.98 * 4.0))
    assert deliver["asked"] <= deliver["at"] < deliver["until"]
    published = "".join(row["crcs"] for row in kinds["publish"] if row["outcome"] == "invoke")
    assert all(row["crcs"] in published for row in kinds["deliver"])
    assert all(len(row["crcs"]) == 8 * messages([row]) for row in kinds["deliver"])


async def test_each_attempt_has_its_own_lines_and_unknown_is_said() -> None:
    file, writer = written()
    async with serving("jobs", history=writer, attempt_timeout=0.5) as (cluster, client):
        lost = iter([True] + [False] * 10)
        cluster.lose = lambda node, request: isinstance(request, Publish) and next(lost)
        await publish(client, 1)
        published = [row for row in rows(file, writer) if row["kind"] == "publish"]
        assert [row["outcome"] for row in published] == ["invoke", "unknown", "invoke", "ok"]
        assert published[0]["op"] == published[1]["op"] != published[2]["op"]
        assert published[0]["spans"] == published[2]["spans"]
        assert published[0]["via"] != published[2]["via"]
        assert [row.get("retries") for row in published] == [None, None, published[0]["op"], None]
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


class FullDisk(io.StringIO):
    """A file without space. It has some again after one refusal."""

    is_full = False

    def write(self, text: str) -> int:
        if self.is_full:
            self.is_full = False
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write(text)


async def test_a_history_whose_disk_is_full_ends_no_call(caplog: pytest.LogCaptureFixture) -> None:
    """Nothing is written behind the gap. Nodes give up theirs in the same way."""
    file = FullDisk()
    writer = HistoryWriter(file, run="r", who="client:c", buffer_bytes=1)
    async with serving("jobs", history=writer) as (_, client):
        await publish(client, 1)
        before, file.is_full = file.getvalue(), True
        await publish(client, 1)
        async with client.consumer("jobs", "g", hold_time=4.0) as consumer:
            await consumer.ack(await take(consumer, 2))
    writer.close()
    assert file.getvalue() == before
    assert [record.getMessage() for record in caplog.records].count(
        "the history of this client is given up, as it cannot be written: [Errno 28] No space left on device"
    ) == 1


async def test_purges_and_rewinds_are_written_with_what_came_of_them_and_named_messages_are_not_all() -> None:
    file, writer = written()
    async with serving("jobs", history=writer) as (_, client):
        await client.create_group("jobs", "g")
        await publish(client, 3)
        mid = await client.publish("jobs", b"x")
        assert await client.purge("jobs", "g", ids=[mid]) == 1
        assert await client.purge("jobs", "g") == 3
        now = await client.rewind("jobs", "g", "earliest")
    lines = [row for row in rows(file, writer) if row["kind"] in ("purge", "set_group")]
    assert [(row["kind"], row["outcome"], row.get("rewind")) for row in lines] == [
        ("set_group", "invoke", False), ("set_group", "ok", False), ("purge", "invoke", None), ("purge", "named", None),
        ("purge", "invoke", None), ("purge", "ok", None), ("set_group", "invoke", True), ("set_group", "ok", True),
    ]  # fmt: skip
    assert [len(row["spans"]) for row in lines[2:4]] == [1, 1]
    assert lines[5]["messages"] == 3
    assert (lines[7]["generation"], lines[7]["from_ms"]) == (now.generation, now.from_ms)
    assert len({row["op"] for row in lines}) == 4


async def test_changes_of_a_group_that_were_confirmed_are_written_as_ok() -> None:
    file, writer = written()
    async with serving("jobs", history=writer) as (_, client):
        await client.create_group("jobs", "g")
        await client.pause_group("jobs", "g")
        await client.limit_group("jobs", "g", 5.0)
        await client.delete_group("jobs", "g")
    lines = [
        row for row in rows(file, writer) if row["kind"].endswith("_group") and row["outcome"] != "invoke"
    ]
    kinds = ("set_group", "pause_group", "limit_group", "delete_group")
    assert [(row["kind"], row["outcome"]) for row in lines] == [(kind, "ok") for kind in kinds]
    assert "generation" in lines[3]


async def test_changes_of_topics_are_written_with_what_they_name_and_what_the_node_fills_in() -> None:
    file, writer = written()
    async with fake_cluster(auto_create_topics=True) as cluster, connected(cluster, history=writer) as client:
        await client.create_topic("jobs", partitions=2, max_deliveries=7)
        await client.alter_topic("jobs", ttl=60.0)
        async with client.producer("made") as producer:
            await producer.send(b"x")
        with pytest.raises(Conflict):
            await client.create_topic("jobs", partitions=4)
    lines = [row for row in rows(file, writer) if row["kind"] == "set_topic"]
    assert [(row["topic"], row["outcome"]) for row in lines] == [
        ("jobs", "invoke"), ("jobs", "ok"), ("jobs", "invoke"), ("jobs", "ok"), ("made", "invoke"), ("made", "ok"),
        ("jobs", "invoke"), ("jobs", "fail"),
    ]  # fmt: skip
    invoked = lines[::2]
    defaults = {
        "retention_s": 0.0,
        "ttl_s": 0.0,
        "backoff": [],
        "auto_create_groups": 1,
        "on_expiry": "dead-letter",
    }
    assert invoked[0]["settings"] == {"partitions": 2, "max_deliveries": 7}
    assert invoked[0]["defaults"] == defaults
    assert invoked[1]["settings"] == {"ttl_s": 60.0}
    assert invoked[2]["settings"] == {}
    assert invoked[2]["defaults"] == {"partitions": 1, "max_deliveries": 5, **defaults}


async def test_a_topic_made_again_has_another_label_whoever_writes_of_it() -> None:
    file, others = io.StringIO(), io.StringIO()
    writer, other = (
        HistoryWriter(it, run="r", who=f"client:{name}") for it, name in ((file, "c"), (others, "d"))
    )
    async with (
        fake_cluster() as cluster,
        connected(cluster, history=writer) as client,
        connected(cluster, history=other) as late,
    ):
        await client.create_topic("jobs")
        await late.topic("jobs")
        await publish(client, 1)
        await client.delete_topic("jobs")
        await client.create_topic("jobs")
        await publish(client, 2)
        await client.create_group("jobs", "g")
        with pytest.raises(NotFound):
            await late.alter_topic("none", ttl=1.0)
        await late.alter_topic("jobs", ttl=60.0)  # the topic is another one than it knew
        listed = [item async for item in client.peek("jobs", "g")]
        await late.ack(await late.fetch("jobs", "g"))
        await client.purge("jobs", "g")
        assert sum(item.peeked.span.size for item in listed) == 2
    mine, theirs = rows(file, writer)[1:], rows(others, other)[1:]
    calls = [
        (row["kind"], row["topic"], row["outcome"])
        for row in mine
        if row.get("outcome", "invoke") != "invoke"
    ]
    assert calls[:7] == [
        ("set_topic", "jobs", "ok"), ("publish", "jobs", "ok"), ("delete_topic", "jobs", "ok"),
        ("set_topic", "jobs#1", "fail"), ("set_topic", "jobs#1", "ok"),
        ("publish", "jobs#1", "ok"), ("set_group", "jobs#1", "ok"),
    ]  # fmt: skip
    assert {row["topic"] for row in mine if row["kind"] in ("list", "purge")} == {"jobs#1"}
    calls = [(row["kind"], row["topic"], row["outcome"]) for row in theirs if row["kind"] == "set_topic"]
    calls = [it for it in calls if it[1] != "none"]
    assert calls == [
        ("set_topic", "jobs", "invoke"), ("set_topic", "jobs", "fail"),
        ("set_topic", "jobs#1", "invoke"), ("set_topic", "jobs#1", "ok"),
    ]  # fmt: skip
    assert {row["topic"] for row in theirs if row["kind"] in ("deliver", "ack")} == {"jobs#1"}


@pytest.mark.parametrize("deaths", [0, 1])
async def test_a_complete_listing_says_that_it_came_to_its_end(deaths: int) -> None:
    """Otherwise a dead letter that is gone would look like one that was not listed."""
    file, writer = written()
    async with serving("jobs", history=writer) as (_, client):
        await publish(client, 1)
        (message,) = await client.fetch("jobs", "g")
        if deaths:
            await message.dead_letter(reason="no")
        before = len(rows(file, writer))
        assert len([item async for item in client.peek("jobs", "g", "dead", partition=0)]) in (0, deaths)
        shown = [item async for item in client.peek("jobs", "g", "dead", partition=0, complete=True, limit=1)]
        shown += [item async for item in client.peek("jobs", "g", "dead", partition=0, complete=True)]
    listed = [row for row in rows(file, writer)[before:] if row["kind"] == "list"]
    ends = [row for row in listed if not row["spans"]]
    assert ends
    assert {
        (row["topic"], row["partition"], row["group"], row["state"], row["complete"]) for row in ends
    } == {("jobs", 0, "g", "dead", True)}
    assert all(row["asked"] <= row["at"] for row in ends)
    assert listed[-1] == ends[-1], "the listing that is not complete says nothing of its end"
    assert bool(shown) == bool([row for row in listed if row["spans"]])


async def test_inputs_of_an_output_are_written_before_its_publish() -> None:
    file, writer = written()
    async with serving("jobs", "out", history=writer) as (_, client):
        await publish(client, 5)
        messages = await client.fetch("jobs", "g")
        assert len(messages) == 5
        async with client.producer("out") as producer:
            for message in (
                *messages[:2],
                *messages[3:],
                messages[0],
            ):  # the first one twice: it is one output
                for index in (0, 1):
                    await producer.send(b"%d" % index + message.payload, derived_from=message, index=index)
    lines = [row for row in rows(file, writer) if row["kind"] in ("derive", "publish")]
    made = [row for row in lines if row["kind"] == "derive"]
    first = messages[0]
    producer_id = producer_id_text(first.id.producer_id)
    assert [row["into"]["index"] for row in made] == [0, 1]
    published = [row for row in lines if row["kind"] == "publish" and row["topic"] == "out"]
    sent = {
        (producer_id, seq): crcs[8 * at : 8 * at + 8]
        for crcs, row in ((row["crcs"], row) for row in published if row["outcome"] == "invoke")
        for at, (producer_id, seq) in enumerate(one_by_one(row["spans"]))
    }
    for row in made:
        assert lines.index(row) < lines.index(published[0])
        assert (row["topic"], row["group"], row["into"]["topic"]) == ("jobs", "g", "out")
        assert row["spans"] == [
            [producer_id, first.seq, first.seq + 2],
            [producer_id, first.seq + 3, first.seq + 5],
        ]
        names = one_by_one(row["into"]["spans"])
        assert [seq for _, seq in names] == [seq for _, seq in one_by_one(row["spans"])]
        assert row["crcs"] == "".join(sent.pop(name) for name in names)
    assert not sent


def one_by_one(spans: list[tuple[str, int, int]]) -> list[tuple[str, int]]:
    return [(producer_id, seq) for producer_id, start, stop in spans for seq in range(start, stop)]
