"""A node whose directory is lost, or replaced by an old copy, comes back by itself (docs/protocol.md, RECOVERY)."""

from __future__ import annotations

import shutil

from quorumq.cli.local import LocalCluster
from quorumq.core import messages as m
from tests.e2e.raw import Raw, outcomes, receipts, size_of


def publish(client: Raw, topic: object, count: int) -> None:
    origin = client.session()
    for number in range(count):
        assert isinstance(client.publish(topic, origin, number, [b"%d" % number]), m.Published)  # type: ignore[arg-type]


def data_of(cluster: LocalCluster, name: str) -> str:
    return str(cluster.node_directory(name) / "data")


def test_a_wiped_node_comes_back_by_itself_and_an_old_copy_does_too() -> None:
    with LocalCluster(3, hold_time_max=5.0) as cluster:
        with Raw(cluster.address("n1")) as client:
            topic = client.topic("jobs")
            publish(client, topic, 20)
            shutil.copytree(data_of(cluster, "n2"), cluster.directory / "backup")
            got = receipts(client.fetch("jobs", "g", 5, max_wait=1.0))
            assert set(outcomes(client.ack(*got))) == {"acked"}
        for round_ in range(2):
            cluster.kill("n2")
            shutil.rmtree(data_of(cluster, "n2"))
            if round_:
                shutil.copytree(cluster.directory / "backup", data_of(cluster, "n2"))
                (cluster.directory / "backup" / "LOCK").unlink(missing_ok=True)
            with Raw(cluster.address("n1")) as client:
                publish(client, topic, 5)
            cluster.start("n2")
            cluster.wait_ready(quarantine=True)
            status = cluster.status("n2")
            assert status["vouched"], status
            assert status["incarnation"] > 1 + round_
            with Raw(cluster.address("n2")) as client:
                publish(client, topic, 5)
        with Raw(cluster.address("n3")) as client:
            total = 0
            while total < 35:
                reply = client.fetch("jobs", "g", 100, hold_time=4.0, max_wait=1.0)
                assert size_of(reply) > 0, (
                    "what was published through the node that was wiped is delivered, too"
                )
                total += size_of(reply)
                assert set(outcomes(client.ack(*receipts(reply)))) == {"acked"}
            assert total == 35
