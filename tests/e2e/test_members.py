"""A cluster of real nodes grows by the commands of docs/operations.md, while messages flow."""

from __future__ import annotations

import http.client
import json
import tomllib
from pathlib import Path

import pytest
import trio
from click.testing import CliRunner

from quorumq.cli.main import main
from quorumq.client import NotFound, connect
from quorumq.lab.leash import end, logged
from quorumq.lab.local import LocalCluster
from quorumq.lab.ports import HeldPorts
from tests.e2e.groups import drained, payloads, publish, through
from tests.e2e.manual import commands, run
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.soak


def node_file(directory: Path, cluster: LocalCluster, address: str, http_port: int) -> Path:
    """Write the file of a node that is to be added."""
    values = tomllib.loads(cluster.config_path("n1").read_text())
    directory.mkdir()
    file = directory / "node.toml"
    file.write_text(
        f'node = "d"\ncluster_id = "{values["cluster_id"]}"\nsecret_file = "{values["secret_file"]}"\n'
        f'data_dir = "data"\nlisten = "{address}"\njoin = ["{cluster.addresses[1]}"]\n'
        f'http_listen = "127.0.0.1:{http_port}"\n'
    )
    return file


def ready(port: int) -> tuple[int, str]:
    """Return the answer of a node to /ready."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    connection.request("GET", "/ready")
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


@pytest.mark.parametrize("own", [3], indirect=True)
def test_a_fourth_node_is_added_and_a_partition_moves_to_it(own: LocalCluster, tmp_path: Path) -> None:
    held = HeldPorts(2)
    address = f"127.0.0.1:{held.numbers[0]}"
    http_port = held.numbers[1]
    file = node_file(tmp_path / "d", own, address, http_port)
    command = [*own.command("n1")[:-1], str(file)]
    log = tmp_path / "d" / "node.log"

    async def before() -> tuple[str, ...]:
        async with through(own, "n1") as client:
            topic = await client.create_topic("jobs", rf=3)
            await publish(client, "jobs", range(100))
            return topic.replicas[0]

    source = trio.run(before)[0]
    names = {"NODE": "d", "HOST:PORT": address, "TOPIC/0": "jobs/0", "FROM": source, "BY": "n1"}
    asked = [
        [names.get(word, word) for word in line]
        for line in commands("Growing", "### Moving", "nodes", "partitions")
    ]
    dry, add, listed, move, balance_dry, balance, drain_dry, drain, remove, replace_dry, _ = asked
    held.release()
    joiners = [logged(command, log, tmp_path / "d")]

    def crash() -> None:
        """Kill the node that joins, wherever it is on the way, and start it again."""
        joiners[-1].kill()
        joiners[-1].wait()
        joiners.append(logged(command, log, tmp_path / "d"))

    try:

        async def waits() -> None:
            with trio.fail_after(PATIENCE_S):
                while "waits_to_join" not in log.read_text():
                    await trio.sleep(0.1)

        trio.run(waits)
        assert f"quorumq nodes add d --address {address}" in log.read_text()
        crash()
        for line in (dry, add, add):
            answer = run(own, *line)
            assert answer.exit_code == 0, answer.stderr
        for seconds in (0.0, 0.3, 0.6, 1.0):
            trio.run(trio.sleep, seconds)
            crash()

        async def members() -> list[dict[str, object]]:
            answer = await trio.to_thread.run_sync(lambda: run(own, *listed, "--json"))
            assert answer.exit_code == 0, answer.stderr
            return [json.loads(line) for line in answer.stdout.splitlines()]

        async def during() -> list[int]:
            with trio.fail_after(PATIENCE_S):
                while not all(row["up"] for row in await members()):
                    await trio.sleep(0.2)
            assert [row["voter"] for row in await members()] == [True, True, True, False]
            async with through(own, "n1") as client:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(publish, client, "jobs", range(100, 200))
                    with trio.fail_after(PATIENCE_S):
                        while True:
                            answer = await trio.to_thread.run_sync(lambda: run(own, *move))
                            if answer.exit_code == 0:
                                break
                            await trio.sleep(0.5)
                with trio.fail_after(PATIENCE_S):
                    while any(row["leaving"] for row in await members()):
                        await trio.sleep(0.5)
            other = next(name for name in own.nodes if name != source)
            own.kill(source)
            async with through(own, other) as client:
                delivered = payloads(await drained(client, "jobs", "g"))
            own.start(source)
            return delivered

        assert trio.run(during) == list(range(200))
        refused = run(own, "nodes", "add", "e", "--address", address)
        assert refused.exit_code == 64
        assert "that is d's" in refused.stderr
        by_first = [own.addresses[0] if word == address else word for word in replace_dry]
        for line in (balance_dry, balance, drain_dry, by_first):
            answer = run(own, *line)
            assert answer.exit_code == 0, answer.stderr
        refused = run(own, *remove)
        assert refused.exit_code == 64
        assert "is in use" in refused.stderr
        first = ("nodes", "drain", "n1", "--to", "d")
        back = ("nodes", "add", "n1", "--address", own.addresses[0])
        for line in (first, first, back):
            answer = run(own, *line)
            assert answer.exit_code == 0, answer.stderr
        assert [row["voter"] for row in trio.run(members)] == [False, True, True, True]
        for line in (drain, drain, remove, remove):
            answer = run(own, *line)
            assert answer.exit_code == 0, answer.stderr
            if line == drain:
                assert ready(http_port) == (503, "node d was drained\n")
        assert [(row["node"], row["voter"]) for row in trio.run(members)] == [
            (name, True) for name in own.nodes
        ]

        async def refused_by_name() -> None:
            with trio.fail_after(PATIENCE_S):
                while "was removed from this cluster" not in log.read_text():
                    await trio.sleep(0.2)

        trio.run(refused_by_name)

        async def at_the_removed_node() -> None:
            async with connect(address) as client:
                await client.publish("jobs", b"late")
                with trio.fail_after(PATIENCE_S):
                    (message,) = await client.fetch("jobs", "late", max_messages=1, max_wait=5.0)
                await message.ack()
                with pytest.raises(NotFound, match="there is no topic 'absent'"):
                    await client.fetch("absent", "g")

        trio.run(at_the_removed_node)
        assert ready(http_port) == (503, "node d was removed from the cluster\n")
        shown = CliRunner().invoke(main, ["status", "--node", address])
        assert shown.exit_code == 0
        assert "d was removed from the cluster, and the others refuse it: stop it" in " ".join(
            shown.stdout.split()
        )
        assert "check the network" not in shown.stdout
        end(joiners, 10.0)
        exported = run(own, "export", "--data", str(tmp_path / "d" / "data"))
        assert exported.exit_code == 0, exported.stderr
    finally:
        end(joiners, 10.0)
