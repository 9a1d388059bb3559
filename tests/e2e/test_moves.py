"""A partition moves between real nodes, by the commands of docs/operations.md, while messages flow."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio

from quorumq.lab.local import LocalCluster
from tests.e2e.groups import drained, payloads, publish, through
from tests.e2e.manual import commands, run
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
