"""The shell in virtual time: requests, group commit, stops and starts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import trio

from quorumq.core import messages as m
from quorumq.core.messages.diskroom import Shortage
from quorumq.core.messages.effects import DiskFull
from quorumq.core.values.limits import MIB
from quorumq.history import boot
from quorumq.node.links import PeerLink
from quorumq.node.node import EXIT_AGAIN, EXIT_REFUSED
from quorumq.node.transport import listen
from quorumq.storage.journal import Journal
from sim.memory_disk import MemoryDisk
from sim.shell.memory import MemoryTransport
from tests.node.memory import Client, World, fetch, outcomes, payloads, publish, receipts, served, world
from tests.storage.samples import newest


async def test_publish_fetch_ack_through_three_nodes() -> None:
    async with world() as cluster:
        a, b, c = [await cluster.client(name) for name in "abc"]
        topic, producer_id = await a.topic(), await a.session()
        assert isinstance(await a.ask(publish(topic, producer_id, 0, b"one", b"two")), m.PublishReply)
        got = await b.ask(fetch())
        assert payloads(got) == [b"one", b"two"]
        assert outcomes(await c.ack(*receipts(got))) == ["acked"]
        await trio.sleep(6)
        assert payloads(await a.ask(fetch())) == []


async def test_replies_come_as_they_are_ready_and_carry_their_numbers() -> None:
    async with served() as (_, client, topic, producer_id):
        waits = await client.send(fetch(wait=0.4))
        asked = await client.send(m.StatusRequest())
        assert isinstance(await client.receive(asked), m.StatusReply)
        assert waits not in client.replies
        await client.send(publish(topic, producer_id, 0, b"x"))
        assert payloads(await client.receive(waits)) == [b"x"]


async def test_nothing_is_answered_before_its_commit_and_one_commit_serves_all_that_waited() -> None:
    async with served("a") as (cluster, client, topic, producer_id):
        await trio.sleep(1)
        commits = cluster.commits["a"]
        commits.hold()
        first = await client.send(publish(topic, producer_id, 0, b"x"))
        await trio.sleep(0.5)
        others = [await client.send(publish(topic, producer_id, seq, b"x")) for seq in range(1, 20)]
        await trio.sleep(1)
        answered = client.transport.peer.total
        before = commits.count
        commits.release()
        assert isinstance(await client.receive(first), m.PublishReply)
        for number in others:
            assert isinstance(await client.receive(number), m.PublishReply)
        assert commits.count == before + 2, "the one under way, and one for the nineteen that came meanwhile"
        assert client.transport.peer.total > answered

        async def hears_nothing() -> None:
            commits.hold()
            await client.send(publish(topic, producer_id, 20, b"x"))
            with trio.move_on_after(2):
                await client.transport.receive()
                pytest.fail("an answer overtook its commit")

        await hears_nothing()


async def test_records_that_no_one_waits_for_are_committed_soon() -> None:
    async with served("a") as (cluster, client, topic, producer_id):
        await client.ask(publish(topic, producer_id, 0, b"x"))
        await client.ask(fetch(hold_time=0.5))
        node = cluster.services["a"].node
        await trio.sleep(0.499)
        assert not node.store.needs_write
        await trio.sleep(0.011)  # the hold has run out: an attempt was counted
        assert node.store.needs_write, "this test wants a record without anybody waiting"
        await trio.sleep(0.06)
        assert not node.store.needs_write


async def test_a_failed_fsync_stops_the_node_and_nothing_is_said_afterwards() -> None:
    async with served("a") as (cluster, client, topic, producer_id):
        await trio.sleep(1)
        said = client.transport.peer.total
        cluster.disks["a"].fail_syncs = 1
        commits = cluster.commits["a"]
        commits.hold()
        await client.send(publish(topic, producer_id, 0, b"x"))
        await trio.sleep(0.1)
        commits.release()
        assert await client.closed(5)
        assert client.transport.peer.total == said
        while "a" not in cluster.codes:
            await trio.sleep(0.01)
        assert cluster.codes["a"] == 74
        (line,) = cluster.logs["a"].of("node_stops")
        assert "Input/output error" in line["reason"]


async def test_replies_queued_before_a_failed_fsync_are_not_sent() -> None:
    async with world("a") as cluster:
        slow, client = await cluster.client("a", capacity=2000), await cluster.client("a")
        topic, producer_id = await client.topic(rf=1), await client.session()
        for _ in range(20):
            await slow.send(m.StatusRequest())
        await trio.sleep(1)
        (queued,) = [one for one in cluster.services["a"]._inbound.values() if one.busy]
        assert queued.waiting_bytes
        said = slow.transport.peer.total
        cluster.disks["a"].fail_syncs = 1
        noticed: list[int] = []

        async def read_at_once() -> None:
            """In the very moment of the failure, before any task of the node has been cancelled."""
            await cluster.services["a"].node.ended.wait()
            slow.transport.received.clear()
            slow.transport.wake()
            noticed.append(1)

        cluster.nursery.start_soon(read_at_once)
        await client.send(publish(topic, producer_id, 0, b"x"))
        await stopped(cluster, "a")
        assert noticed
        assert slow.transport.peer.total == said


async def test_a_clean_stop_gives_up_waiting_fetches_finishes_the_rest_and_costs_no_quarantine() -> None:
    async with served() as (cluster, client, topic, producer_id):
        await client.ask(publish(topic, producer_id, 0, b"held"))
        held = await client.ask(fetch(hold_time=5.0))
        waits = await client.send(fetch(wait=20.0))
        await trio.sleep(0.1)
        cluster.commits["a"].seconds = 0.3
        under_way = await client.send(publish(topic, producer_id, 1, b"x"))
        await trio.sleep(0.001)
        cluster.services["a"].stop()
        refused = await client.receive(waits)
        assert (refused.code, "stopping" in refused.detail) == ("too-few-replicas", True)
        assert isinstance(await client.receive(under_way), m.PublishReply)
        assert await client.closed(2)
        assert await stopped(cluster, "a") == 0
        cluster.commits["a"].seconds = 0.001
        service = cluster.start("a")
        assert service.node.core.state.quarantine_until <= service.node.clock().mono
        await cluster.ready()
        again = await cluster.client("a")
        assert payloads(await again.ask(fetch())) == [b"x"], "the hold is remembered"
        assert outcomes(await again.ack(*receipts(held))) == ["acked"]


async def stopped(cluster: World, name: str) -> int:
    while name not in cluster.codes:
        await trio.sleep(0.01)
    return cluster.codes[name]


async def test_a_killed_node_comes_back_into_quarantine_with_all_it_promised() -> None:
    async with world() as cluster:
        client = await cluster.client("b")
        topic, producer_id = await client.topic(), await client.session()
        await client.ask(publish(topic, producer_id, 0, b"x"))
        await trio.sleep(1)
        cluster.kill("a")
        await trio.sleep(4)
        service = cluster.start("a")
        status = service.node.core.status(service.node.clock())
        assert 5.0 < status["quarantine_s"] <= 5.1
        await cluster.ready()
        await trio.sleep(5.2)
        late = await cluster.client("a")
        assert payloads(await late.ask(fetch())) == [b"x"]


async def test_a_node_with_an_older_directory_begins_again_and_says_why() -> None:
    async with world() as cluster:
        old = cluster.disks["a"].clone()
        for _ in range(2):
            assert await cluster.stop("a") == 0
            cluster.start("a")
            await cluster.ready()
        assert await cluster.stop("a") == 0
        old.unlock()
        cluster.disks["a"] = old
        cluster.start("a")
        assert await stopped(cluster, "a") == EXIT_AGAIN
        (line,) = cluster.logs["a"].of("resync_begins")
        assert "old copy" in line["reason"]
        assert not cluster.logs["a"].of("node_stops")


async def test_a_waiting_client_that_goes_away_takes_nothing_with_it() -> None:
    async with world() as cluster:
        ghost, client = await cluster.client("a"), await cluster.client("a")
        topic, producer_id = await client.topic(), await client.session()
        await ghost.send(fetch(wait=20.0, hold_time=5.0))
        await trio.sleep(0.1)
        ghost.transport.close()
        await trio.sleep(0.01)
        node = cluster.services["a"].node
        assert (len(node.core.context.requests), node.intake.inflight_bytes) == (0, 0)
        await client.ask(publish(topic, producer_id, 0, b"x"))
        assert payloads(await client.ask(fetch())) == [b"x"]


async def test_a_full_disk_refuses_publishes_and_lets_the_rest_go_on() -> None:
    async with served("a", disk_reserve_bytes=4 * MIB) as (cluster, client, topic, producer_id):
        await client.ask(publish(topic, producer_id, 0, b"x"))
        disk: MemoryDisk = cluster.disks["a"]
        used = disk.capacity - disk.free_bytes()
        disk.capacity = used + 3 * MIB
        await trio.sleep(1.1)
        reply = await client.ask(publish(topic, producer_id, 1, b"y"))
        assert reply.code == "storage-full"
        assert outcomes(await client.ack(*receipts(await client.ask(fetch())))) == ["acked"]
        disk.capacity = used + 4 * MIB + 1000
        await trio.sleep(1.1)
        assert (await client.ask(publish(topic, producer_id, 1, b"y"))).code == "storage-full", "no flapping"
        disk.capacity = used + 5 * MIB
        await trio.sleep(1.1)
        assert isinstance(await client.ask(publish(topic, producer_id, 1, b"y")), m.PublishReply)
        assert [event for _, event, _ in cluster.logs["a"].lines if event.startswith("disk")] == [
            "disk_full",
            "disk_not_full",
        ]
        cluster.services["a"].node.feed(DiskFull(Shortage.NONE))


async def test_above_memory_max_nothing_new_is_taken_and_the_rest_goes_on() -> None:
    most = 1024 * 1024 * MIB  # more than a process of tests ever takes: what it takes is said below
    async with served("a", memory_max=most) as (cluster, client, topic, producer_id):
        await client.ask(publish(topic, producer_id, 0, b"x"))
        assert payloads(await client.ask(fetch(hold_time=0.1))) == [b"x"]
        health = cluster.services["a"].node.health
        new = (
            publish(topic, producer_id, 1, b"y"),
            m.CreateTopic("other", 1),
            m.SetGroup("jobs", "new"),
            m.Fetch(("jobs",), "new", 1, 100, 1, 0.0, 1.0, 0.0),
        )
        health.rss = lambda: most + 1
        await trio.sleep(1.1)
        for request in new:
            reply = await client.ask(request)
            assert reply.code == "storage-full", request
            assert f"takes {most + 1} bytes of memory" in reply.detail, request
        assert (await client.ask(m.StatusRequest())).fields["memory_full"]
        assert isinstance(await client.ask(m.SetGroup("jobs", "g")), m.GroupReply), "it is known"
        assert outcomes(await client.ack(*receipts(await client.ask(fetch())))) == ["acked"]
        for rss, code in ((most - 1, "storage-full"), (most - most // 10, "")):
            health.rss = lambda rss=rss: rss
            await trio.sleep(1.1)
            assert getattr(await client.ask(new[0]), "code", "") == code
        for request in new[1:]:
            assert not isinstance(await client.ask(request), m.Failed), request
        lines = [event for _, event, _ in cluster.logs["a"].lines if event.startswith("memory")]
        assert lines == ["memory_full", "memory_not_full"]


async def test_a_quiet_second_marks_the_last_write_as_durable_once() -> None:
    async with served("a") as (cluster, client, topic, producer_id):
        await trio.sleep(3)
        store, disk = cluster.services["a"].node.store, cluster.disks["a"]
        for seq in range(2):
            await client.ask(publish(topic, producer_id, seq, b"confirmed"))
            name = newest(disk)
            written = disk.size(name)
            assert store.is_unmarked
            await trio.sleep(3)
            assert not store.is_unmarked
            marked = disk.size(name)
            assert written < marked < written + 100
            await trio.sleep(8)
            assert disk.size(name) == marked, "one mark for each pause, however long it is"
        cluster.kill("a")
        disk = cluster.disks["a"]  # the disk after the crash
        disk.flip(name, written - 4)
        journal = Journal.open(disk, node="a", cluster_id="test", new_directory_id=lambda: 1)
        list(journal.replayed)
        assert len(journal.damaged) == 1, "and not a torn write, which is cut off in silence"


async def test_publishes_keep_space_for_the_snapshot_of_the_next_start() -> None:
    async with world("a", disk_reserve_bytes=0) as cluster:
        client = await cluster.client("a")
        for number in range(50):
            await client.topic(f"topic{number}", rf=1)
        await cluster.stop("a")
        cluster.start("a")
        await trio.sleep(0.1)
        client = await cluster.client("a")
        topic, producer_id = await client.topic(rf=1), await client.session()
        disk: MemoryDisk = cluster.disks["a"]
        snapshot = disk.size(newest(disk))
        assert snapshot > 5000
        disk.capacity = disk.capacity - disk.free_bytes() + snapshot // 2
        await trio.sleep(1.1)
        assert (await client.ask(publish(topic, producer_id, 0, b"x"))).code == "storage-full"


async def test_a_full_segment_is_followed_by_another_and_nothing_is_lost() -> None:
    async with served("a", segment_bytes=MIB) as (cluster, client, topic, producer_id):
        for seq in range(12):
            await client.ask(publish(topic, producer_id, seq, bytes([seq]) * 200_000))
        assert len(cluster.logs["a"].of("segment_begun")) >= 2
        cluster.kill("a")
        cluster.start("a")
        await trio.sleep(6)
        again = await cluster.client("a")
        assert payloads(await again.ask(fetch(size=8 * MIB))) == [bytes([seq]) * 200_000 for seq in range(12)]


async def test_a_node_that_has_no_replica_serves_a_fetch_all_the_same() -> None:
    async with served(rf=1) as (cluster, client, topic, producer_id):
        (home,) = topic.replicas[0]
        away = next(name for name in "abc" if name != home)
        far = await cluster.client(away)
        await client.ask(publish(topic, producer_id, 0, b"one", b"two"))
        got = await far.ask(fetch())
        assert payloads(got) == [b"one", b"two"]
        assert receipts(got)[0].signed, "signed by the node that won it"
        assert outcomes(await client.ack(*receipts(got))) == ["acked"]


async def test_a_damaged_batch_is_not_served_and_what_was_won_is_given_back() -> None:
    async with world() as cluster:
        a, b = await cluster.client("a"), await cluster.client("b")
        topic, producer_id = await a.topic(), await a.session()
        await a.ask(publish(topic, producer_id, 0, b"the very bytes"))
        await trio.sleep(1)
        disk = cluster.disks["a"]
        for name in disk.list():
            at = bytes(disk.read(name, 0, disk.size(name))).find(b"the very bytes")
            if at >= 0:
                disk.flip(name, at)
        refused = await a.ask(fetch())
        assert (refused.code, "damaged" in refused.detail) == ("too-few-replicas", True)
        await trio.sleep(0.1)
        assert payloads(await b.ask(fetch())) == [b"the very bytes"]
        assert (await a.ask(m.StatusRequest())).fields["damaged_batches"] == 1


async def test_a_page_passed_on_brings_the_bytes_or_where_they_are_damaged_none() -> None:
    async with world() as cluster:
        maker = await cluster.client("a")
        topic, producer_id = await maker.topic(rf=1), await maker.session()
        await maker.ask(publish(topic, producer_id, 0, b"the very", b"bytes"))
        ((home,),) = topic.replicas
        stranger = await cluster.client(next(name for name in cluster.names if name != home))
        ask = m.PeekRequest("jobs", 0, "g", "ready", (0, 0), 10, bodies=True)
        page = await stranger.ask(ask)
        shown = [message.payload for part in page.slices for message in part.messages()]
        assert shown == [b"the very", b"bytes"]
        disk = cluster.disks[home]
        for name in disk.list():
            at = bytes(disk.read(name, 0, disk.size(name))).find(b"the very")
            if at >= 0:
                disk.flip(name, at)
        assert await stranger.ask(ask) == page._replace(slices=())
        home_status = await (await cluster.client(home)).ask(m.StatusRequest())
        assert home_status.fields["damaged_batches"] == 1


async def test_status_shows_the_shell_and_the_page_lists_every_fact() -> None:
    page = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
    async with world() as cluster:
        client = await cluster.client("a")
        fields = (await client.ask(m.StatusRequest())).fields
        assert (fields["connections"], fields["clients"], fields["fsync_ms"]["p50"]) == (3, 1, 1.0)
        for name in fields:
            assert f"`{name}`" in page, f"docs/operations.md does not say what {name} is"


async def test_a_port_that_another_process_takes_while_the_journal_is_read_is_said_to_be_taken() -> None:
    async with world("a") as cluster:
        (first,) = listen("127.0.0.1", 0)
        (second,) = listen(*first.getsockname())  # possible as long as neither listens
        with first, second:
            first.listen()
            assert await cluster.stop("a") == 0
            service = cluster.start("a", [second])
            while "a" not in cluster.codes:
                await trio.sleep(0.01)
            assert cluster.codes["a"] == EXIT_REFUSED
            assert "something else listens there" in service.node.failed[1]


def test_the_page_lists_every_log_event() -> None:
    root = Path(__file__).parents[2]
    page = (root / "docs" / "operations.md").read_text()
    events: list[str] = []
    for path in (root / "quorumq" / "node").glob("*.py"):
        for line in path.read_text().replace("(\n", "(").split("log.")[1:]:
            level, _, rest = line.partition("(")
            if level in ("debug", "info", "warning", "error") and rest.lstrip().startswith('"'):
                events.append(rest.split('"')[1])
    assert len(events) > 15
    for event in events:
        assert f"`{event}`" in page, f"docs/operations.md does not explain the log event {event}"


async def test_a_node_writes_its_part_of_the_history(tmp_path: Path) -> None:
    async with served("a", history=str(tmp_path / "a.jsonl")) as (cluster, client, topic, producer_id):
        await client.ask(publish(topic, producer_id, 0, b"x"))
        last = json.loads((tmp_path / "a.jsonl").read_text().splitlines()[-1])
        assert last["kind"] == "store", "a kill must not cost the line of what was told"
        assert payloads(await client.ask(fetch())) == [b"x"]
        assert await cluster.stop("a") == 0

    rows = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert [row["kind"] for row in rows] == [
        "settings", "start", "topic", "store", "register", "hold_won", "stop",
    ]  # fmt: skip
    assert (rows[2]["topic"], rows[2]["settings"]["max_deliveries"]) == ("jobs", 5)
    assert rows[3]["spans"] == rows[5]["spans"]
    assert (rows[4]["group"], rows[4]["generation"], rows[4]["from_ms"]) == ("g", 0, 0)
    assert rows[0]["settings"]["boot"] == boot()
    assert {row["who"] for row in rows} == {"node:a"}


async def test_a_node_says_how_long_a_hold_lasts_and_what_gives_it_back(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    async with world("a", history=str(path)) as cluster:
        client = await cluster.client("a")
        topic, producer_id = await client.topic(rf=1), await client.session()
        await client.ask(publish(topic, producer_id, 0, b"x"))
        began = cluster.clock("a").mono
        for request in (m.ReleaseRequest, m.RejectRequest):
            (signed,) = receipts(await client.ask(fetch()))
            await client.ask(request((signed,)))
            last = json.loads(path.read_text().splitlines()[-1])
            assert last["kind"] == "release", "a kill must not cost the line"
        for _ in range(4):  # the topic allows five deliveries
            await client.ask(m.RejectRequest(tuple(receipts(await client.ask(fetch())))))
        await trio.sleep(10.0)
        assert await cluster.stop("a") == 0
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    won, back = ([row for row in rows if row["kind"] == kind] for kind in ("hold_won", "release"))
    assert won[0]["until"] == pytest.approx(began + 0.98 * 4.0, abs=0.02)
    assert [row["reason"] for row in back] == ["left"] + ["rejected"] * 5
    assert [row["owner"] for row in back] == [row["owner"] for row in won]
    assert all(row["spans"] == won[0]["spans"] for row in back)
    (death,) = [row for row in rows if row["kind"] == "dead_letter"]
    assert (death["spans"], death["group"], death["n"]) == (won[0]["spans"], "g", 0)
    assert (death["outcome"], death["reason"]) == ("ok", "max-deliveries")


async def test_unsynced_writes_of_a_killed_node_enter_its_history_when_replayed(tmp_path: Path) -> None:
    def stored() -> list[list[tuple[int, int]]]:
        rows = map(json.loads, (tmp_path / "a.jsonl").read_text().splitlines())
        spans = [row["spans"] for row in rows if row["kind"] == "store"]
        return [[(start, stop) for _, start, stop in of_line] for of_line in spans]

    async with served("a", history=str(tmp_path / "a.jsonl")) as (cluster, client, topic, producer_id):
        cluster.commits["a"].hold()
        await client.send(publish(topic, producer_id, 0, b"one", b"two"))
        await trio.sleep(1.0)
        assert stored() == []
        cluster.kill("a", keep_bytes=1 << 40, keep_names=1 << 30)  # the process, not the machine
        cluster.commits["a"].release()
        cluster.start("a")
        await trio.sleep(1.0)
        assert stored() == [[(0, 2)]]


async def test_a_history_that_cannot_be_written_stops_nothing(tmp_path: Path) -> None:
    async with served("a", history=str(tmp_path / "missing" / "a.jsonl")) as (
        cluster,
        client,
        topic,
        producer_id,
    ):
        assert isinstance(await client.ask(publish(topic, producer_id, 0, b"x")), m.PublishReply)
        assert len(cluster.logs["a"].of("history_given_up")) == 1


async def test_a_link_that_is_full_drops_and_counts() -> None:
    async with served(link_bytes_max=16 * MIB, stall_timeout=60.0) as (cluster, client, topic, producer_id):
        node = cluster.services["a"].node
        link = node.links["b"]
        link.out.transport.capacity = 0  # type: ignore[attr-defined]
        for seq in range(40):
            reply = await client.ask(publish(topic, producer_id, seq, b"x" * 1_000_000))
            assert isinstance(reply, m.PublishReply), reply
        assert node.health.counts["sends_dropped"] >= 20
        assert link.waiting <= 17 * MIB


async def test_a_delivery_dropped_by_a_full_link_is_released_at_once() -> None:
    """LEAVE for an answer that was never begun (docs/rules.md): no group waits for its hold to end."""
    async with world(link_bytes_max=16 * MIB, stall_timeout=60.0) as cluster:
        home, away, other = await far_from_home(cluster)
        node = cluster.services[home].node
        node.links[away].out.transport.capacity = 0  # type: ignore[attr-defined]
        node.links[away].out.put([bytes(16 * MIB)])
        far = await cluster.client(away)
        await far.send(fetch(hold_time=4.0))
        await trio.sleep(0.1)
        assert node.health.counts["sends_dropped"] >= 1
        assert payloads(await other.ask(fetch())) == [b"wanted"]


@pytest.mark.parametrize("has_begun", [False, True])
async def test_a_link_that_ends_gives_back_deliveries_never_begun_alone(has_begun: bool) -> None:
    """One byte may have been the last one that was missing: a begun round runs out."""
    async with world(stall_timeout=60.0) as cluster:
        home, away, other = await far_from_home(cluster)
        link = cluster.services[home].node.links[away]
        assert isinstance(link, PeerLink)
        transport = link.out.transport
        assert isinstance(transport, MemoryTransport)
        far = await cluster.client(away)
        transport.capacity = 0
        await far.send(fetch(hold_time=4.0))
        await trio.sleep(0.1)
        assert len(link.never_begun()) == 1, "the answer waits for the peer to read"
        while has_begun and link.never_begun():
            transport.capacity = 1  # a byte at a time, until the answer's first is among them
            transport.wake()
            transport.peer.wake()
            await trio.sleep(0.001)
        transport.capacity = 0
        transport.close()
        await trio.sleep(0.1)
        assert payloads(await other.ask(fetch())) == ([] if has_begun else [b"wanted"])
        await trio.sleep(4.0)
        assert payloads(await other.ask(fetch())) == [b"wanted"], "at the latest when the hold has run out"


async def far_from_home(cluster: World) -> tuple[str, str, Client]:
    """A message on one node; that node, one that has no replica, and a client of the first."""
    client = await cluster.client("a")
    topic, producer_id = await client.topic(rf=1), await client.session()
    await client.ask(publish(topic, producer_id, 0, b"wanted"))
    (home,) = topic.replicas[0]
    away = next(name for name in "abc" if name != home)
    return home, away, await cluster.client(home)


async def test_names_that_run_out_are_said_at_half_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quorumq.node.node.NAMES_LOOKED_S", 2.0)
    monkeypatch.setattr("quorumq.core.values.limits.DELETED_NAMES_MAX", 2)
    async with served("a") as (cluster, client, topic, _):
        await trio.sleep(3)
        assert cluster.logs["a"].of("names_run_out") == [], "none of two"
        await client.topic("other", rf=1)
        await client.ask(m.DeleteTopic("jobs", topic.id))
        await trio.sleep(3)
        line = cluster.logs["a"].of("names_run_out")[0]
        assert (line["topics"], line["topics_deleted"], line["deleted_max"]) == (1, 1, 2)
