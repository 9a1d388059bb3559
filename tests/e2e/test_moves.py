"""A partition moves between real nodes, by the commands of docs/operations.md, while messages flow."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio

from quorumq.lab.local import LocalCluster
from tests.e2e.groups import drained, payloads, publish, through
from tests.e2e.manual import commands, run
from tests.e2e.nodes import status_when
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.soak


@pytest.mark.parametrize("own", [4], indirect=True)
def test_a_partition_moves_off_a_node_that_goes_away(own: LocalCluster) -> None:
    async def made() -> tuple[str, ...]:
        async with through(own, "n1") as client:
            topic = await client.create_topic("jobs", rf=3)
            await publish(client, "jobs", range(200))
            return topic.replicas[0]

    members = trio.run(made)
    source, to = members[0], next(node for node in own.nodes if node not in members)
    names = {"FROM": source, "TO": to}
    dry, real = [
        [names.get(word, word) for word in line] for line in commands("Moving a partition", "#", "partitions")
    ]
    assert "--dry-run" in dry
    plan = run(own, *dry)
    assert plan.exit_code == 0, plan.stderr
    assert f"would move from {source} to {to}" in plan.stdout

    async def asked() -> dict[str, Any]:
        answer = await trio.to_thread.run_sync(lambda: run(own, *real, "--json"))
        assert answer.exit_code == 0, answer.stderr
        return dict(json.loads(answer.stdout))

    async def during() -> list[int]:
        async with through(own, to) as client:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(publish, client, "jobs", range(200, 400))
                moved = await asked()
            assert to in moved["replicas"]
            with trio.fail_after(PATIENCE_S):
                while (await asked())["sources"]:
                    await trio.sleep(0.5)
            own.kill(source)
            return payloads(await drained(client, "jobs", "g"))

    assert trio.run(during) == list(range(400))
    refused = run(own, "partitions", "move", "jobs/0", "--from", source, "--to", to, "--json")
    assert refused.exit_code == 0, "it is done: repeating it changes nothing"
    assert run(own, "partitions", "move", "jobs/7", "--from", source, "--to", to).exit_code == 66
    assert run(own, "partitions", "move", "jobs", "--from", source, "--to", to).exit_code == 64


def test_limits_of_moves_change_while_a_node_runs_and_moves() -> None:
    async def prepared(cluster: LocalCluster) -> str:
        async with through(cluster, "n1") as client:
            topic = await client.create_topic("jobs", rf=1)
            async with client.producer("jobs") as producer:
                for _ in range(60):
                    await producer.send(bytes(50_000))
            return topic.replicas[0][0]

    with LocalCluster(2, settings={"move_bytes_per_s": 1000}) as cluster:
        source = trio.run(prepared, cluster)
        to = next(name for name in cluster.nodes if name != source)
        path = cluster.config_path(source)
        assert run(cluster, "partitions", "move", "jobs/0", "--from", source, "--to", to).exit_code == 0
        status_when(cluster, source, lambda it: "limited" in [move["state"] for move in it["moves"]])
        path.write_text(path.read_text().replace("move_bytes_per_s = 1000", "move_bytes_per_s = -1"))
        status = status_when(cluster, source, lambda it: bool(it["config_file_problem"]))
        assert status["move_bytes_per_s"] == 1000, "the limit of before"
        assert "goes by its configuration file of before" in run(cluster, "status").stdout.replace("\n", " ")
        text = path.read_text().replace("move_bytes_per_s = -1", "move_bytes_per_s = 0\nheartbeat = 0.4")
        path.write_text(text)
        status = status_when(cluster, source, lambda it: not it["config_file_problem"])
        assert (status["move_bytes_per_s"], status["needs_restart"]) == (0, ["heartbeat"])
        done = status_when(cluster, source, lambda it: not it["moves"])
        assert done["pid"] == status["pid"], "without a restart"
        (row,) = status_when(cluster, to, lambda it: bool(it["partitions"]))["partitions"]
        assert (row["messages"], row["missing"]) == (60, 0)
