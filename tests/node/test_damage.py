"""Starts with a damaged directory that no other node can repair (docs/operations.md)."""

from __future__ import annotations

import pytest
import trio

from quorumq.core.messages.records import Started
from quorumq.core.values.errors import StorageError
from quorumq.core.values.limits import STARTS_FAR
from quorumq.storage.records import TYPE_OF
from tests.node.memory import World, publish, served, world
from tests.storage.samples import record_headers


def damage(cluster: World, name: str) -> None:
    """Flip a bit of the newest segment that is not in the body of a batch."""
    disk = cluster.disks[name]
    segment = max(file for file in disk.list() if file.endswith(".journal"))
    headers = record_headers(bytes(disk.read(segment, 0, disk.size(segment))))
    disk.flip(segment, max(at for type_, at in headers if type_ == TYPE_OF[Started]) + 3)


@pytest.mark.parametrize(
    ("names", "word"), [("a", "a cluster of one node"), ("abc", "the only replica of topics")]
)
async def test_a_damaged_directory_that_no_one_else_can_complete_is_refused(names: str, word: str) -> None:
    async with served(names, rf=1) as (cluster, client, topic, producer_id):
        (home,) = topic.replicas[0]
        for seq in range(3):
            await client.ask(publish(topic, producer_id, seq, b"x"))
            await trio.sleep(0.2)
        cluster.kill(home)
        damage(cluster, home)
        with pytest.raises(StorageError, match=word) as caught:
            cluster.start(home)
        assert "start with an empty one" in str(caught.value)


async def test_a_damaged_directory_of_replicated_topics_resyncs_and_is_trusted_again() -> None:
    async with served() as (cluster, client, topic, producer_id):
        for seq in range(3):
            await client.ask(publish(topic, producer_id, seq, b"x"))
            await trio.sleep(0.2)
        cluster.kill("b")
        damage(cluster, "b")
        service = cluster.start("b")
        assert service.node.store.not_trusted
        assert not service.node.core.state.trusted
        first = service.node.core.state.incarnation.n
        assert first > STARTS_FAR, "nobody knows how many starts the damage took"
        cluster.kill("b")
        service = cluster.start("b")
        assert service.node.core.trust.resync is not None
        assert service.node.core.state.incarnation.n == first + 1, "a later start has lost nothing more"
        await cluster.ready()
        await trio.sleep(2)
        node = cluster.services["b"].node
        assert node.core.state.trusted
        assert not node.store.not_trusted
        assert cluster.logs["b"].of("resync_over")
        cluster.kill("b")
        assert not cluster.start("b").node.store.not_trusted, "so it says on the disk"
        assert len(cluster.logs["b"].of("directory_damaged")) == 2, "at each start with it, and no more"


async def test_a_crash_between_trust_and_the_segment_that_says_so_costs_no_second_resync() -> None:
    async with world() as cluster:
        client = await cluster.client("a")
        await client.ask(publish(await client.topic(), await client.session(), 0, b"x"))
        await trio.sleep(0.2)
        cluster.kill("b")
        damage(cluster, "b")
        cluster.start("b").node._end_resync = lambda: None  # type: ignore[method-assign]
        await cluster.ready()
        before = cluster.services["b"].node.core.state.incarnation.n
        assert cluster.services["b"].node.store.not_trusted
        cluster.kill("b")
        node = cluster.start("b").node
        assert node.core.state.trusted
        assert node.core.state.incarnation.n == before + 1
        await trio.sleep(1)
        assert not node.store.not_trusted


async def test_a_directory_that_was_moved_waits_for_all_others_and_says_so() -> None:
    async with world() as cluster:
        client = await cluster.client("a")
        await client.ask(publish(await client.topic(), await client.session(), 0, b"x"))
        await trio.sleep(2)
        for name in "bc":
            cluster.kill(name)
        cluster.disks["b"] = cluster.disks["b"].copied()
        cluster.start("b")
        await trio.sleep(2)
        (line,) = cluster.logs["b"].of("directory_moved")
        assert "still missing a, c." in line["reason"]
        assert not cluster.services["b"].node.core.state.trusted
        assert not cluster.logs["b"].of("directory_trusted")
        cluster.start("c")
        await cluster.ready()
        assert cluster.services["b"].node.core.state.trusted
        assert cluster.logs["b"].of("directory_trusted")
        assert not cluster.logs["b"].of("resync_begins")
        cluster.kill("b")
        cluster.start("b")
        assert len(cluster.logs["b"].of("directory_moved")) == 1
        for service in cluster.services.values():
            await service.node.settled()
            assert service.node.core.context.peers.positions.appended == service.node.store.position, (
                "they count the same"
            )
        assert cluster.logs["b"].of("directory_was_moved")


async def test_a_backup_of_the_last_start_resyncs() -> None:
    async with served() as (cluster, client, topic, producer_id):
        await client.ask(publish(topic, producer_id, 0, b"before"))
        await trio.sleep(2)
        backup = cluster.disks["b"].clone()
        await client.ask(publish(topic, producer_id, 1, b"after"))
        await trio.sleep(1)
        cluster.kill("b")
        backup.unlock()
        cluster.disks["b"] = backup
        cluster.start("b")
        await trio.sleep(2)
        (line,) = cluster.logs["b"].of("resync_begins")
        assert "the data directory is an old copy" in line["reason"]
        cluster.disks["b"].unlock()
        cluster.start("b")
        await cluster.ready()
        assert cluster.services["b"].node.core.state.trusted
        await trio.sleep(10)
        assert len(cluster.services["b"].node.store) == 2
        cluster.kill("b")
        cluster.start("b")
        await cluster.ready()
        assert len(cluster.logs["b"].of("resync_begins")) == 1


async def test_a_damaged_directory_of_a_long_path_starts_again_and_again() -> None:
    """The journaled damage has the path in it, and the next start reads it."""
    path = "/" + "/".join(["a directory with a long name"] * 60)
    async with world() as cluster:
        client = await cluster.client("a")
        await client.ask(publish(await client.topic(), await client.session(), 0, b"x"))
        await trio.sleep(0.2)
        cluster.kill("b")
        damage(cluster, "b")
        disk = cluster.disks["b"]
        disk.__class__ = type("Deep", (type(disk),), {"__str__": lambda _: path})
        assert path in cluster.start("b").node.store.not_trusted
        cluster.kill("b")
        service = cluster.start("b")
        resync = service.node.core.trust.resync
        assert resync is not None
        assert path in resync.reason
