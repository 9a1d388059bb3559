"""A topic of one replica gets three on real nodes, by the commands of docs/operations.md, while messages flow."""

from __future__ import annotations

import json

import pytest
import trio

from quorumq.client import Client
from quorumq.lab.local import LocalCluster
from tests.e2e.groups import drained, payloads, publish, through
from tests.e2e.manual import commands, run
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.soak


@pytest.mark.parametrize("own", [4], indirect=True)
def test_a_topic_of_one_replica_gets_three_under_load(own: LocalCluster) -> None:
    dry, real, waiting = commands("Raise the replication factor", "#", "topics")
    assert "--dry-run" in dry
    assert "--wait" in waiting
    received: list[int] = []

    async def consume(client: Client, task_status: trio.TaskStatus[trio.CancelScope]) -> None:
        with trio.CancelScope() as scope:
            task_status.started(scope)
            async with client.consumer("jobs", "g") as consumer:
                async for message in consumer:
                    received.append(int(message.payload))
                    await message.ack()

    async def during() -> tuple[list[int], list[int]]:
        async with through(own, "n1") as client:
            (home,) = (await client.create_topic("jobs", rf=1)).replicas[0]
            await publish(client, "jobs", range(200))
            plan = await trio.to_thread.run_sync(lambda: run(own, *dry, "--json"))
            assert json.loads(plan.stdout)["adds"] == 2
            async with trio.open_nursery() as nursery:
                scope = await nursery.start(consume, client)
                nursery.start_soon(publish, client, "jobs", range(200, 400))
                asked = await trio.to_thread.run_sync(lambda: run(own, *real, "--json"))
                assert asked.exit_code == 0, asked.stderr
                topic = (await client.metadata("jobs")).topics[0]
                dies = (topic.learners_of(0) or topic.replicas[0][1:])[0]
                own.kill(dies)
                await trio.sleep(1.0)
                await own.start_async(dies)
                with trio.fail_after(PATIENCE_S):
                    shown = await trio.to_thread.run_sync(lambda: run(own, *waiting, "--json"))
                assert shown.exit_code == 0, shown.stderr
                nodes = json.loads(shown.stdout)["replicas"][0]
                await publish(client, "jobs", range(400, 500))
                scope.cancel()
            assert (len(nodes), nodes[0]) == (3, home)
            await own.wait_ready_async(quarantine=True)
            own.kill(home)
        async with through(own, nodes[1]) as client:
            return nodes, payloads(await drained(client, "jobs", "g"))

    _, rest = trio.run(during)
    assert sorted({*received, *rest}) == list(range(500))
    assert len(received) + len(rest) - len({*received, *rest}) <= 20, "a delivery at the kill may come again"
    refused = run(own, "topics", "alter", "jobs", "--rf", "1")
    assert refused.exit_code == 64
    assert "cannot become fewer" in refused.stderr
