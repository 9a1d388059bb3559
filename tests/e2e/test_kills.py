"""Nodes are killed and started again, over and over, while messages flow (docs/protocol.md, section 2)."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest
import trio

from quorumq.client.client import suspending_clock
from quorumq.lab.local import LocalCluster
from tests.e2e.conftest import through_any_node
from tests.e2e.load import Load, until_voting
from tests.e2e.turmoil import Turmoil

DOWN_S = 0.7


async def kill_one_after_the_other(load: Load, seconds: float, kills_min: int) -> None:
    """SIGKILL each node in turn, as soon as the one before votes again."""
    cluster = load.cluster
    first = suspending_clock()
    kills = 0
    while suspending_clock() < first + seconds or kills < kills_min:
        name = cluster.nodes[kills % len(cluster.nodes)]
        cluster.kill(name)
        kills += 1
        await trio.sleep(DOWN_S)
        await load.served(50)  # while it is down: no client waits for it
        await cluster.start_async(name)
        await until_voting(cluster, name)


def run(cluster: LocalCluster, folder: Path, seconds: float, kills_min: int) -> None:
    load = Load(cluster, folder, "kills", outside=len(cluster.nodes) > 3)

    async def main() -> None:
        async with load.running():
            await load.served(100)
            await kill_one_after_the_other(load, seconds, kills_min)

    trio.run(main)
    assert load.check().dead_letters, "some were given up"


@through_any_node
def test_nothing_is_lost_or_comes_back_while_each_node_is_killed(own: LocalCluster, tmp_path: Path) -> None:
    run(own, tmp_path, 6.0, 3)


@pytest.mark.soak
def test_nothing_is_lost_or_comes_back_while_nodes_are_killed_for_60_seconds(
    own: LocalCluster, tmp_path: Path
) -> None:
    run(own, tmp_path, 60.0, 9)


def turmoil(folder: Path, seconds: float) -> Counter[str]:
    """Run everything at once on five nodes; return the counts. A failure names the seed."""
    seed = int.from_bytes(os.urandom(4), "big")
    with LocalCluster(5, hold_time_max=3.0, history=True) as five:
        try:
            run = Turmoil(five, folder, seconds, seed)
            trio.run(run.run)
            return run.check()
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise


@pytest.mark.soak
def test_every_promise_is_kept_while_everything_happens_for_60_seconds(tmp_path: Path) -> None:
    counts = turmoil(tmp_path, 60.0)
    assert counts["kills"] >= 6
    assert counts["pauses"]
    assert counts["published"] > 1000
    for event in (
        "acked", "redelivered", "rejected", "max-deliveries", "expired", "redriven",
        "read and acked as dead letters",
    ):  # fmt: skip
        assert counts[event], f"{event}: {counts}"
