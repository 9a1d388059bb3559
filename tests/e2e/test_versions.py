"""Real nodes and clients of two versions of the protocol: killed in turn, and upgraded one by one under load."""

from __future__ import annotations

import re
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from quorumq.cli.local import LocalCluster, NodeDied
from quorumq.client import Client, ClusterMismatch, Message, Peek, connect
from quorumq.core.versions import NEWEST
from tests.e2e.load import DEAD_EVERY, First, Load, until_voting


def speak(cluster: LocalCluster, name: str, version: int) -> None:
    """Have a node speak no more than ``version`` from its next start on."""
    path = cluster.config_path(name)
    rest = re.sub(r"^protocol_max.*\n", "", path.read_text(), flags=re.M)
    path.write_text(f"protocol_max = {version}\n{rest}")


def cluster_of(**versions: int) -> LocalCluster:
    """Three nodes, of which some speak an older version."""
    cluster = LocalCluster(3, hold_time_max=3.0)
    for name, version in versions.items():
        speak(cluster, name, version)
    return cluster


@asynccontextmanager
async def through(cluster: LocalCluster, name: str, **more: int) -> AsyncIterator[Client]:
    async with connect([cluster.address(name)], rng=First(), **more) as client:  # type: ignore[arg-type]
        yield client


def never_puzzled(cluster: LocalCluster) -> None:
    """No node was sent a message that its version does not have, or something that is not the protocol."""
    for name in cluster.nodes:
        log = cluster.log_path(name).read_text()
        assert "unknown_message" not in log
        assert "connection_broken" not in log
        assert "connection_bug" not in log
        assert "node_stops" not in log


async def go_through_everything(cluster: LocalCluster, topic: str, version: int) -> None:
    """Publish, consume, ack, reject, dead-letter, list and redrive, each step through another node."""
    names = cluster.nodes
    async with (
        through(cluster, names[0], protocol_max=version) as one,
        through(cluster, names[1], protocol_max=version) as two,
        through(cluster, names[2], protocol_max=version) as three,
    ):
        clients = (one, two, three)
        await one.create_topic(topic, partitions=2)

        async def fetched(at: int, most: int, wanted: int) -> list[Message]:
            found: list[Message] = []
            with trio.fail_after(15):
                while len(found) < wanted:
                    more = most - len(found)
                    found += await clients[at].fetch(
                        topic, "g", max_messages=more, max_wait=1.0, hold_time=3.0
                    )
            return found

        for at in range(3):
            async with clients[at].producer(topic) as producer:
                for number in range(10):
                    await producer.publish(b"%d" % number)
            got = await fetched(at, 10, 10)
            await clients[at - 1].ack(got[:4])
            await clients[at - 1].extend(got[4:], 3.0)
            await clients[at - 2].reject(got[4:6])
            await clients[at - 2].reject(got[6:8], delay=0.2)
            await clients[at].dead_letter(got[8:], error=ValueError("no"))
            got = await fetched(at, 4, 4)
            assert all(message.attempt == 2 for message in got)
            await clients[at - 1].ack(got)
        with trio.fail_after(15):
            for client in clients:
                listed: list[Peek] = []
                while sum(item.peeked.span.size for item in listed) < 6:
                    listed = [item async for item in client.peek(topic, "g", "dead")]
        letters = [item async for item in two.peek(topic, "g", "dead")]
        assert (await three.redrive(topic, "g", letters)).messages == 6
        await one.ack(await fetched(0, 6, 6))
        assert await two.fetch(topic, "g", hold_time=3.0) == []


def test_everything_works_with_nodes_and_clients_of_both_versions(tmp_path: Path) -> None:
    with cluster_of(n1=1) as cluster:
        for client in (1, NEWEST):
            trio.run(go_through_everything, cluster, f"all-{client}", client)

        async def refusals() -> None:
            async with through(cluster, "n2") as client:
                with pytest.raises(
                    ClusterMismatch, match="n1 speaks version 1 of the protocol only: upgrade it"
                ):
                    await client.alter_topic("all-1", max_deliveries=9)
                with pytest.raises(ClusterMismatch, match="n1 speaks version 1"):
                    await client.rewind("all-1", "g", "earliest")
                async with client.producer("all-1") as producer:
                    with pytest.raises(ClusterMismatch, match="n1 speaks version 1"):
                        await (await producer.publish(b"later", delay=5.0)).wait()
            async with through(cluster, "n1") as client:
                with pytest.raises(ClusterMismatch, match="has no AlterTopic: upgrade node n1"):
                    await client.alter_topic("all-1", max_deliveries=9)
            async with through(cluster, "n2", protocol_max=1) as client:
                with pytest.raises(ClusterMismatch, match="lift the protocol_max of this client"):
                    await client.alter_topic("all-1", max_deliveries=9)
            assert (await facts(cluster, "n2"))["peers"]["n1"]["version"] == 1

        trio.run(refusals)
        never_puzzled(cluster)


async def facts(cluster: LocalCluster, name: str) -> dict[str, dict[str, dict[str, object]]]:
    return await trio.to_thread.run_sync(cluster.status, name)


async def kill_in_turn(cluster: LocalCluster) -> None:
    for name in cluster.nodes:
        cluster.kill(name)
        await trio.sleep(0.7)
        await cluster.start_async(name)
        await until_voting(cluster, name)


def test_nothing_is_lost_while_nodes_of_two_versions_are_killed_in_turn(tmp_path: Path) -> None:
    with cluster_of(n1=1) as cluster:
        load = Load(cluster, tmp_path, "mixed", rate=60.0)

        async def main() -> None:
            async with load.running():
                await trio.sleep(1.0)
                await kill_in_turn(cluster)

        trio.run(main)
        account = load.check()
        assert len(account.published) > DEAD_EVERY
        assert account.letters
        never_puzzled(cluster)


def test_a_rolling_upgrade_under_load_loses_and_doubles_nothing(tmp_path: Path) -> None:
    with cluster_of(n1=1, n2=1, n3=1) as cluster:
        older = Load(cluster, tmp_path / "older", "older", rate=40.0, protocol_max=1)
        newer = Load(cluster, tmp_path / "newer", "newer", rate=40.0)
        older.folder.mkdir()
        newer.folder.mkdir()

        async def main() -> None:
            async with older.running(), newer.running():
                await trio.sleep(1.0)
                for name in cluster.nodes:
                    assert await trio.to_thread.run_sync(cluster.terminate, name) == 0
                    speak(cluster, name, NEWEST)
                    await cluster.start_async(name)
                    await cluster.wait_ready_async(quarantine=True)
                    await trio.sleep(1.0)
            async with through(cluster, "n1") as client:
                assert (await client.alter_topic("newer", max_deliveries=9)).max_deliveries == 9

        trio.run(main)
        for load in (older, newer):
            account = load.check()
            assert len(account.published) > DEAD_EVERY
        never_puzzled(cluster)


# ------------------------------------------------------------------------------ the software itself

FIRST = "e1edc38"
"""The last commit that spoke version 1 and wrote format version 1."""


class WithFirst(LocalCluster):
    """A cluster in which ``old`` nodes run other software."""

    software = ""
    old: tuple[str, ...] = ("n1",)

    def spawn(self, name: str) -> None:
        with pytest.MonkeyPatch.context() as patch:
            if name in self.old:
                patch.setenv("PYTHONPATH", self.software)
            super().spawn(name)


@pytest.mark.soak
def test_a_node_of_the_first_version_is_killed_and_upgraded_among_newer_ones(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    archive = subprocess.run(["git", "archive", FIRST, "quorumq"], cwd=root, capture_output=True)
    if archive.returncode:
        pytest.skip(f"no history with {FIRST} here")
    software = tmp_path / "software"
    software.mkdir()
    subprocess.run(["tar", "x", "-C", str(software)], input=archive.stdout, check=True)
    WithFirst.software = str(software)
    with WithFirst(3, hold_time_max=3.0) as cluster:
        assert cluster.status("n2")["peers"]["n1"]["version"] == 1
        for client in (1, NEWEST):
            trio.run(go_through_everything, cluster, f"all-{client}", client)
        load = Load(cluster, tmp_path, "mixed", rate=50.0)

        async def main() -> None:
            async with load.running():
                await trio.sleep(1.0)
                await kill_in_turn(cluster)
                assert await trio.to_thread.run_sync(cluster.terminate, "n1") == 0
                cluster.old = ()
                await cluster.start_async("n1")
                await cluster.wait_ready_async(quarantine=True)
                await trio.sleep(1.0)

        trio.run(main)
        load.check()
        assert cluster.status("n2")["peers"]["n1"]["version"] == NEWEST
        never_puzzled(cluster)
        cluster.terminate("n1")
        cluster.old = ("n1",)
        with pytest.raises(NodeDied, match="has format version 2, this quorumq reads 1"):
            cluster.start("n1")
